//! A snapshot of a volume that is being used, as a stream over the admin socket: slice by slice, one read at a time, so that the
//! sessions hardly notice.
//!
//! Absent: the stream itself (the store's; `docs/send-format.md`).

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use strongroom_store::{Sender, SnapshotId};

use super::{CLIENT_PATIENCE, Reply, Resume, SLICE_BYTES_MAX, SLICE_PATIENCE};
use crate::operate::{Served, load};
use crate::server::Shared;

/// How long to leave a busy store alone.
const PAUSE: Duration = Duration::from_millis(5);

/// The snapshots that streams are being made of, each as often as it is: those that are sent, and those that what is sent builds on.
#[derive(Debug, Default)]
pub(crate) struct SendsUnderWay(Mutex<Vec<SnapshotId>>);

impl SendsUnderWay {
    /// Whether a stream would end if this snapshot were deleted.
    pub(crate) fn concern(&self, snapshot: SnapshotId) -> bool {
        self.list().contains(&snapshot)
    }

    /// Notes these until the answer is dropped.
    fn note(&self, snapshots: Vec<SnapshotId>) -> NotedSend<'_> {
        self.list().extend(&snapshots);
        NotedSend { all: self, snapshots }
    }

    fn list(&self) -> MutexGuard<'_, Vec<SnapshotId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct NotedSend<'a> {
    all: &'a SendsUnderWay,
    snapshots: Vec<SnapshotId>,
}

impl Drop for NotedSend<'_> {
    fn drop(&mut self) {
        let mut list = self.all.list();
        for snapshot in &self.snapshots {
            if let Some(at) = list.iter().position(|noted| noted == snapshot) {
                list.swap_remove(at);
            }
        }
    }
}

/// Sends it all. The reply ends it; an error says that the client is gone.
pub(super) fn send(
    client: &mut UnixStream,
    shared: &Arc<Shared>,
    (volume, snapshot, from): (&str, &str, Option<&str>),
    resume: Option<&Resume>,
) -> io::Result<Reply> {
    let started = start(shared, volume, snapshot, from, resume);
    let (served, mut stream, size_bytes, block_bytes, _noted) = match started {
        Ok(started) => started,
        Err(problem) => return Ok(Reply::Error(problem)),
    };
    client.set_write_timeout(Some(SLICE_PATIENCE))?;
    super::socket::send(client, &Reply::Stream { size_bytes })?;
    let reply = loop {
        let position = stream.position();
        let (next, bytes) = match served.send(stream) {
            Ok((next, Some(bytes))) => (next, bytes),
            Ok((_, None)) => break Reply::Done,
            Err(problem) => break Reply::Error(problem),
        };
        stream = next;
        if bytes.is_empty() && stream.position() == position {
            std::thread::sleep(PAUSE);
        }
        let done_bytes = stream.blocks_done() * block_bytes;
        if bytes.is_empty() && stream.position() > position {
            // Where a volume has nothing for long, whoever waits sees that it goes on.
            super::socket::send(client, &Reply::Slice { bytes: 0, done_bytes })?;
        }
        for slice in bytes.chunks(SLICE_BYTES_MAX) {
            super::socket::send(client, &Reply::Slice { bytes: slice.len(), done_bytes })?;
            client.write_all(slice)?;
        }
    };
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    Ok(reply)
}

/// The store, the stream at its beginning, the volume's size and that of its blocks, and the note that keeps its snapshots.
#[allow(clippy::type_complexity)]
fn start<'a>(
    shared: &'a Arc<Shared>,
    volume: &str,
    snapshot: &str,
    from: Option<&str>,
    resume: Option<&Resume>,
) -> Result<(Served<'a>, Box<Sender>, u64, u64, NotedSend<'a>), String> {
    let described = load(&shared.catalogue, volume)?;
    described.may_be_sent()?;
    let names: Vec<&str> = [snapshot].into_iter().chain(from).collect();
    let (served, info, found) = Served::with_snapshots(shared, &described, &names)?;
    let (to, base) = (found[0], found.get(1).copied());
    let (base, position) = match resume {
        None => (base, 0),
        Some(resume) if resume.to != to.0 => {
            return Err(format!(
                "that position is of another snapshot than {snapshot}; name the one that was being sent"
            ));
        }
        Some(resume) if base.is_some() && base.map(|base| base.0) != resume.from => {
            return Err(
                "that position is of a transfer that builds on something else than --from says; leave --from out"
                    .to_owned(),
            );
        }
        Some(resume) => (resume.from.map(SnapshotId), resume.position),
    };
    let stream = Sender::new(base, to, position).sealed_as(described.stream_sealing());
    let noted = shared.sends.note([to].into_iter().chain(base).collect());
    Ok((served, Box::new(stream), info.geometry.bytes(), info.geometry.block_size.bytes().into(), noted))
}

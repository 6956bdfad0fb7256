//! A snapshot of a volume that is being used, as a stream over the admin socket: slice by slice, one read at a time, so that the
//! sessions hardly notice.
//!
//! Absent: the stream itself (the store's; `docs/send-format.md`).

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use strongroom_store::{Sender, SnapshotId};

use super::error::RequestError;
use super::{CLIENT_PATIENCE, Reply, Resume, SLICE_BYTES_MAX, SLICE_PATIENCE, lines};
use crate::operate::{Served, load};
use crate::sends::SendUnderWay;
use crate::services::TargetServices;

/// How long to leave a busy store alone.
const PAUSE: Duration = Duration::from_millis(5);

/// Sends it all. The reply ends it; an error says that the client is gone.
pub(super) fn send(
    client: &mut UnixStream,
    shared: &Arc<TargetServices>,
    (volume, snapshot, from): (&str, &str, Option<&str>),
    resume: Option<&Resume>,
) -> io::Result<Reply> {
    let started = start(shared, volume, snapshot, from, resume);
    let (served, mut stream, size_bytes, block_bytes, _noted) = match started {
        Ok(started) => started,
        Err(error) => return Ok(Reply::Error(error.to_string())),
    };
    client.set_write_timeout(Some(SLICE_PATIENCE))?;
    lines::send(client, &Reply::Stream { size_bytes })?;
    let reply = loop {
        let position = stream.position();
        let (next, bytes) = match served.send(stream) {
            Ok((next, Some(bytes))) => (next, bytes),
            Ok((_, None)) => break Reply::Done,
            Err(error) => break Reply::Error(error.to_string()),
        };
        stream = next;
        if bytes.is_empty() && stream.position() == position {
            std::thread::sleep(PAUSE);
        }
        let done_bytes = stream.blocks_done() * block_bytes;
        if bytes.is_empty() && stream.position() > position {
            // Over long empty ranges the client sees that the stream makes progress.
            lines::send(client, &Reply::Slice { bytes: 0, done_bytes })?;
        }
        for slice in bytes.chunks(SLICE_BYTES_MAX) {
            lines::send(client, &Reply::Slice { bytes: slice.len(), done_bytes })?;
            client.write_all(slice)?;
        }
    };
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    Ok(reply)
}

/// The store, the stream at its beginning, the volume's size and that of its blocks, and the note that keeps its snapshots.
#[allow(clippy::type_complexity)]
fn start<'a>(
    shared: &'a Arc<TargetServices>,
    volume: &str,
    snapshot: &str,
    from: Option<&str>,
    resume: Option<&Resume>,
) -> Result<(Served<'a>, Box<Sender>, u64, u64, SendUnderWay<'a>), RequestError> {
    let described = load(&shared.catalogue, volume)?;
    described.may_be_sent()?;
    let names: Vec<&str> = [snapshot].into_iter().chain(from).collect();
    let (served, info, found) = Served::with_snapshots(shared, &described, &names)?;
    let (to, base) = (found[0], found.get(1).copied());
    let (base, position) = match resume {
        None => (base, 0),
        Some(resume) if resume.to != to.0 => {
            return Err(RequestError::OtherSnapshot { snapshot: snapshot.to_owned() });
        }
        Some(resume) if base.is_some() && base.map(|base| base.0) != resume.from => {
            return Err(RequestError::OtherBase);
        }
        Some(resume) => (resume.from.map(SnapshotId), resume.position),
    };
    let stream = Sender::new(base, to, position).sealed_as(described.stream_sealing());
    let noted = shared.operations.sends.begin([to].into_iter().chain(base).collect());
    Ok((served, Box::new(stream), info.geometry.bytes(), info.geometry.block_size.bytes().into(), noted))
}

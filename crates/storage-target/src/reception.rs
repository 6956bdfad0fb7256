//! A snapshot on its way into a volume of a running target: by the admin socket, or from another target.
//!
//! A [`Reception`] belongs to a thread of its own, which may wait. It decodes the stream and checks every block there; the volume's worker
//! gets slices of about 1 MiB, one after the other, and never waits. Absent: what carries the stream here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_store::{
    BranchId, Op, OpError, Outcome, ReceiveStep, Receiver, ReceptionInfo, SnapshotId, StreamError, StreamInfo, View,
};

use crate::budget::{Charge, MemoryClass};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::operate::error::OperationError;
use crate::operate::{Served, note_received};
use crate::services::TargetServices;
use crate::unit::{Job, PossibleWriter, StepError};
use crate::volume::Volume;

/// How long to leave a busy store alone.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for memory, and for a store that takes nothing in.
pub(crate) const ROOM_PATIENCE: Duration = Duration::from_secs(120);
/// Upper bound on what one reception holds: an incomplete frame, the bytes that came last, and the slice that is made of them.
const RECEPTION_BYTES: u64 = 8 << 20;
/// Bytes that may be given to [`Reception::feed`] at once.
pub(crate) const FEED_BYTES_MAX: usize = 1 << 20;

/// Why a volume does not take a stream in, or not all of it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceptionError {
    /// These could write to it, for people.
    #[error("still in use: {}; detach there, and receive the rest", .0.join(", "))]
    InUse(Vec<String>),
    #[error("'{0}' is a clone, which takes in no stream; receive into a new volume, under another name")]
    Clone(VolumeName),
    #[error("'{0}' takes in another stream; wait for its end")]
    Busy(VolumeName),
    #[error("the target has no memory left for it; try again later")]
    Memory,
    #[error("the store takes nothing in; look into the target's log")]
    Stuck,
    #[error("the stream ended before its end")]
    Incomplete,
    #[error(
        "what sessions see could not be written down in the volume's directory: {0}; make room there, then receive the rest"
    )]
    NotPinned(std::io::Error),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// The volume's worker cannot open it, or does not answer.
    #[error(transparent)]
    Operation(#[from] OperationError),
}

/// A stream on its way in. Dropped before its end, what arrived stays, and goes on from [`Reception::position`].
pub(crate) struct Reception {
    shared: Arc<TargetServices>,
    volume: Volume,
    receiver: Receiver,
    is_whole: bool,
    _memory: Charge,
}

impl Reception {
    /// Begins to take a stream into a volume. Refused while another one comes in, and while somebody could write. Memory is waited for as
    /// long as `patience`.
    pub(crate) fn begin(
        shared: &Arc<TargetServices>,
        volume: &str,
        patience: Duration,
    ) -> Result<Reception, ReceptionError> {
        let volume = receivable(shared, volume)?;
        let writers = Served::of(shared, &volume).ask(Job::PossibleWriters)?;
        if !writers.is_empty() {
            return Err(in_use(shared, &volume, writers));
        }
        let memory = charge(shared, patience)?;
        if !shared.operations.receptions.begin(&volume.name) {
            return Err(ReceptionError::Busy(volume.name));
        }
        let receiver = Receiver::new();
        Ok(Reception { shared: Arc::clone(shared), volume, receiver, is_whole: false, _memory: memory })
    }

    /// The volume's size.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.volume.geometry.bytes()
    }

    /// Whether the volume has a snapshot already.
    pub(crate) fn has(&self, snapshot: SnapshotId) -> Result<bool, ReceptionError> {
        let contents = self.ask(Job::Describe)?;
        Ok(contents.snapshots.iter().any(|info| info.id == snapshot))
    }

    /// Where the stream of a snapshot shall go on; 0: at its start.
    pub(crate) fn position(&self, snapshot: SnapshotId) -> Result<u64, ReceptionError> {
        let begun = self.ask(Job::Receptions)?.into_iter().find(|begun| begun.id == snapshot);
        Ok(begun.map_or(0, |begun| begun.position))
    }

    /// What the stream says of itself, once its first frame is here.
    pub(crate) fn info(&self) -> Option<&StreamInfo> {
        self.receiver.info()
    }

    /// Whether the stream's end is here, and so the snapshot.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Takes in the next bytes of the stream, at most [`FEED_BYTES_MAX`], cut anywhere. They are in the store when this returns.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), ReceptionError> {
        debug_assert!(bytes.len() <= FEED_BYTES_MAX, "what a reception is charged for");
        self.receiver.push(bytes);
        while let Some(step) = self.receiver.next_step()? {
            let is_end = step.is_end();
            self.take(Box::new(step))?;
            if is_end {
                self.receiver.finished();
                self.is_whole = true;
            }
        }
        Ok(())
    }

    /// Makes what was taken in durable.
    pub(crate) fn flush(&self) -> Result<(), ReceptionError> {
        let view = View::default();
        let flushed: Result<Outcome, OpError> = self.ask(|reply| Job::Run { view, op: Op::Flush, reply })?;
        flushed.map(drop).map_err(|error| StreamError::Store(error).into())
    }

    /// The stream has ended: the snapshot's name, and the volume's description tells of it.
    pub(crate) fn finish(self) -> Result<String, ReceptionError> {
        let name = self.receiver.info().map(|info| info.name.clone()).unwrap_or_default();
        if !self.is_whole {
            return Err(ReceptionError::Incomplete);
        }
        let _turn = self.shared.operations.turns.take([self.volume.name.clone()]);
        note_received(&self.shared, &self.volume)?;
        Ok(name)
    }

    fn take(&self, mut step: Box<ReceiveStep>) -> Result<(), ReceptionError> {
        let until = Instant::now() + ROOM_PATIENCE;
        // Its end makes a snapshot: nothing else is done to the volume as a whole meanwhile.
        let is_change = step.is_end() || step.begins().is_some();
        let _turn = is_change.then(|| self.shared.operations.turns.take([self.volume.name.clone()]));
        loop {
            match self.ask(|reply| Job::Receive { step, reply })? {
                Ok(()) => return Ok(()),
                Err(StepError::Busy(same)) if Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    step = same;
                }
                Err(StepError::Busy(_)) => return Err(ReceptionError::Stuck),
                Err(StepError::Stream(error)) => return Err(error.into()),
                Err(StepError::NotPinned(error)) => return Err(ReceptionError::NotPinned(error)),
                Err(StepError::InUse(writers)) => return Err(in_use(&self.shared, &self.volume, writers)),
            }
        }
    }

    fn ask<T>(&self, job: impl FnOnce(std::sync::mpsc::Sender<T>) -> Job) -> Result<T, ReceptionError> {
        Ok(Served::of(&self.shared, &self.volume).ask(job)?)
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.shared.operations.receptions.end(&self.volume.name);
    }
}

fn charge(shared: &TargetServices, patience: Duration) -> Result<Charge, ReceptionError> {
    let until = Instant::now() + patience;
    loop {
        match shared.budget.try_charge(MemoryClass::Commands, RECEPTION_BYTES) {
            Some(charge) => return Ok(charge),
            None if Instant::now() >= until => return Err(ReceptionError::Memory),
            None => std::thread::sleep(PAUSE),
        }
    }
}

/// What was begun and not ended in a volume; deleted if `abandon`.
pub(crate) fn unfinished(
    shared: &Arc<TargetServices>,
    volume: &str,
    abandon: bool,
) -> Result<Vec<ReceptionInfo>, ReceptionError> {
    let volume = shared.catalogue.load(&VolumeName::new(volume)?)?;
    let served = Served::of(shared, &volume);
    let all: Vec<ReceptionInfo> = served.ask(Job::Receptions)?;
    if abandon {
        let _turn = shared.operations.turns.take([volume.name.clone()]);
        if shared.operations.receptions.contains(&volume.name) {
            return Err(ReceptionError::Busy(volume.name));
        }
        for reception in &all {
            delete(&served, reception.branch)?;
        }
    }
    Ok(all)
}

fn delete(served: &Served<'_>, branch: BranchId) -> Result<(), ReceptionError> {
    let (view, op) = (View::default(), Op::CloneDelete { branch });
    let done: Result<Outcome, OpError> = served.ask(|reply| Job::Run { view, op, reply })?;
    done.map(drop).map_err(|error| StreamError::Store(error).into())
}

fn receivable(shared: &TargetServices, volume: &str) -> Result<Volume, ReceptionError> {
    let volume = shared.catalogue.load(&VolumeName::new(volume)?)?;
    if volume.clone_of.is_some() {
        return Err(ReceptionError::Clone(volume.name));
    }
    match volume.successor.as_ref().or(volume.succeeds.as_ref()) {
        None => Ok(volume),
        Some(other) => {
            let (name, other) = (volume.name.to_string(), other.to_string());
            Err(CatalogueError::Moving { name, other }.into())
        }
    }
}

fn in_use(shared: &TargetServices, volume: &Volume, writers: Vec<PossibleWriter>) -> ReceptionError {
    let settings = shared.settings();
    let name = |writer: PossibleWriter| {
        let peer = writer.identity.as_ref().and_then(|identity| settings.rules.peer_name(identity));
        let who = peer.map_or_else(|| crate::names::for_log(&writer.initiator_name), str::to_owned);
        match writer.identity {
            Some(_) => format!("{who} with '{}'", volume.name),
            None => format!("{who} with a lease of '{}'", volume.name),
        }
    };
    ReceptionError::InUse(writers.into_iter().map(name).collect())
}

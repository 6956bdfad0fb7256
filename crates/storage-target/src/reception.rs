//! A snapshot on its way into a volume of a running target, wherever its stream comes from: the admin socket, or another target.
//!
//! A [`Reception`] belongs to a thread of its own, which may wait. It decodes the stream and checks every block there; the volume's worker
//! gets slices of about 1 MiB, one after the other, and never waits. Absent: what carries the stream here.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strongroom_store::{BranchId, Op, OpError, Outcome, ReceiveStep, Receiver, ReceptionInfo, View};

use crate::budget::{Charge, MemoryClass};
use crate::names::VolumeName;
use crate::operate::error::OperationError;
use crate::operate::{Served, load, note_received};
use crate::services::TargetServices;
use crate::unit::{InTheWay, Job, NotReceived};
use crate::volume::Volume;

/// How long to leave a busy store alone.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for memory, and for a store that takes nothing in.
const ROOM_PATIENCE: Duration = Duration::from_secs(120);
/// What one reception holds at most: a frame that is not whole, the bytes that came last, and the slice that is made of them.
const HELD_BYTES: u64 = 8 << 20;
/// Bytes that may be given to [`Reception::feed`] at once.
pub(crate) const FEED_BYTES_MAX: usize = 1 << 20;

/// The volumes that take in a stream now: each one at a time.
#[derive(Debug, Default)]
pub(crate) struct ReceptionsUnderWay(Mutex<HashSet<VolumeName>>);

/// Why a volume does not take a stream in, or not to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// These use it, for people.
    InUse(Vec<String>),
    /// For people.
    Refused(String),
}

impl From<String> for NotTaken {
    fn from(problem: String) -> NotTaken {
        NotTaken::Refused(problem)
    }
}

impl From<OperationError> for NotTaken {
    fn from(error: OperationError) -> NotTaken {
        NotTaken::Refused(error.to_string())
    }
}

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NotTaken::InUse(users) => {
                write!(f, "still in use: {}; detach there, and receive the rest", users.join(", "))
            }
            NotTaken::Refused(problem) => f.write_str(problem),
        }
    }
}

/// A stream on its way in. Dropped before its end, what arrived is kept, and goes on from the position that [`unfinished`] tells.
pub(crate) struct Reception {
    shared: Arc<TargetServices>,
    volume: Volume,
    receiver: Receiver,
    is_whole: bool,
    _memory: Charge,
}

impl Reception {
    /// Begins to take a stream into a volume. Refused while another one comes in, and while somebody could write.
    pub(crate) fn begin(shared: &Arc<TargetServices>, volume: &str) -> Result<Reception, NotTaken> {
        let volume = receivable(shared, volume)?;
        let others = Served::of(shared, &volume).ask(|reply| Job::InTheWay { reply })?;
        if !others.is_empty() {
            return Err(in_use(shared, &volume, others));
        }
        let until = Instant::now() + ROOM_PATIENCE;
        let memory = loop {
            match shared.budget.try_charge(MemoryClass::Commands, HELD_BYTES) {
                Some(charge) => break charge,
                None if Instant::now() >= until => {
                    return Err(NotTaken::Refused("the target has no memory left for it; try again later".to_owned()));
                }
                None => std::thread::sleep(PAUSE),
            }
        };
        if !shared.operations.receptions.lock().insert(volume.name.clone()) {
            let problem = format!("'{}' takes in another stream; wait for its end", volume.name);
            return Err(NotTaken::Refused(problem));
        }
        let receiver = Receiver::new();
        Ok(Reception { shared: Arc::clone(shared), volume, receiver, is_whole: false, _memory: memory })
    }

    /// Takes in the next bytes of the stream, at most [`FEED_BYTES_MAX`], cut anywhere. They are in the store when this returns.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), NotTaken> {
        debug_assert!(bytes.len() <= FEED_BYTES_MAX, "what a reception is charged for");
        self.receiver.push(bytes);
        while let Some(step) = self.receiver.next_step().map_err(|error| NotTaken::Refused(error.to_string()))? {
            let is_end = step.is_end();
            self.take(Box::new(step))?;
            if is_end {
                self.receiver.finished();
                self.is_whole = true;
            }
        }
        Ok(())
    }

    /// The stream has ended: the snapshot's name, and the volume's description tells of it.
    pub(crate) fn finish(self) -> Result<String, NotTaken> {
        let name = self.receiver.info().map(|info| info.name.clone()).unwrap_or_default();
        if !self.is_whole {
            return Err(NotTaken::Refused("the stream ended before its end".to_owned()));
        }
        let _turn = self.shared.operations.turns.take([self.volume.name.clone()]);
        note_received(&self.shared, &self.volume)?;
        Ok(name)
    }

    fn take(&self, mut step: Box<ReceiveStep>) -> Result<(), NotTaken> {
        let until = Instant::now() + ROOM_PATIENCE;
        // Its end makes a snapshot: nothing else is done to the volume as a whole meanwhile.
        let is_change = step.is_end() || step.begins().is_some();
        let _turn = is_change.then(|| self.shared.operations.turns.take([self.volume.name.clone()]));
        loop {
            let served = Served::of(&self.shared, &self.volume);
            match served.ask(|reply| Job::Receive { step, reply })? {
                Ok(()) => return Ok(()),
                Err(NotReceived::Busy(same)) if Instant::now() < until => {
                    std::thread::sleep(PAUSE);
                    step = same;
                }
                Err(NotReceived::Busy(_)) => {
                    return Err(NotTaken::Refused("the store takes nothing in; look into the target's log".to_owned()));
                }
                Err(NotReceived::Refused(error)) => return Err(NotTaken::Refused(error.to_string())),
                Err(NotReceived::InUse(others)) => return Err(in_use(&self.shared, &self.volume, others)),
            }
        }
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.shared.operations.receptions.lock().remove(&self.volume.name);
    }
}

impl ReceptionsUnderWay {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<VolumeName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was begun and not ended in a volume; given up, if that is wanted.
pub(crate) fn unfinished(
    shared: &Arc<TargetServices>,
    volume: &str,
    abandon: bool,
) -> Result<Vec<ReceptionInfo>, String> {
    let volume = load(&shared.catalogue, volume).map_err(|error| error.to_string())?;
    let all = receptions(shared, &volume)?;
    if abandon {
        let _turn = shared.operations.turns.take([volume.name.clone()]);
        if shared.operations.receptions.lock().contains(&volume.name) {
            return Err(format!("'{}' takes in a stream now; end that first", volume.name));
        }
        for reception in &all {
            delete(shared, &volume, reception.branch)?;
        }
    }
    Ok(all)
}

fn receptions(shared: &Arc<TargetServices>, volume: &Volume) -> Result<Vec<ReceptionInfo>, String> {
    Served::of(shared, volume).ask(Job::Receptions).map_err(|error| error.to_string())
}

fn delete(shared: &Arc<TargetServices>, volume: &Volume, branch: BranchId) -> Result<(), String> {
    let op = Op::CloneDelete { branch };
    let done: Result<Outcome, OpError> = Served::of(shared, volume)
        .ask(|reply| Job::Run { view: View::default(), op, reply })
        .map_err(|error| error.to_string())?;
    done.map(drop).map_err(|error| error.to_string())
}

fn receivable(shared: &TargetServices, volume: &str) -> Result<Volume, String> {
    let volume = load(&shared.catalogue, volume).map_err(|error| error.to_string())?;
    if volume.clone_of.is_some() {
        let name = &volume.name;
        return Err(format!(
            "'{name}' is a clone, which takes in no stream; receive into a new volume, under another name"
        ));
    }
    match volume.successor.as_ref().or(volume.succeeds.as_ref()) {
        None => Ok(volume),
        Some(other) => {
            let (name, other) = (volume.name.to_string(), other.to_string());
            Err(crate::error::CatalogueError::Moving { name, other }.to_string())
        }
    }
}

fn in_use(shared: &TargetServices, volume: &Volume, others: Vec<InTheWay>) -> NotTaken {
    let settings = shared.settings();
    let name = |other: InTheWay| {
        let peer = other.identity.as_ref().and_then(|identity| settings.rules.peer_name(identity));
        let who = peer.map_or_else(|| crate::names::for_log(&other.initiator_name), str::to_owned);
        match other.identity {
            Some(_) => format!("{who} with '{}'", volume.name),
            None => format!("{who} with a lease of '{}'", volume.name),
        }
    };
    NotTaken::InUse(others.into_iter().map(name).collect())
}

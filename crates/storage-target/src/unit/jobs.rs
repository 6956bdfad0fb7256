//! What the keeper of the target wants of a unit's store: operations without a session, answered over a channel.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use strongroom_block::{Geometry, Token};
use strongroom_scsi::UnitAttention;
use strongroom_store::{
    self as stream, BranchInfo, Op, OpError, Outcome, PinnedCount, ReceiveStep, ReceptionInfo, SendStep, SnapshotId,
    SnapshotInfo, SpaceState, Stats, StreamError, View, VolumeInfo,
};

use super::Unit;
use super::receive::{InTheWay, NotReceived, RunningStep};
use crate::volume::{Access, Volume};

/// What is told of a cryptographic erase whose key is still there.
const KEY_SURVIVED: &str = "the key that wraps the volume's block keys could not be destroyed (the target's log says why); everything in the \
    volume is overwritten instead, but what was copied elsewhere opens with that key: destroy its file, and every copy of it";

/// Why a snapshot stays that a newer one was received onto.
const SHOWN: &str =
    "sessions that were attached to the volume before a newer snapshot was received read this one, until they detach";

/// How full a store is when that is logged, in percent of what it can have.
const SPACE_LEVELS: [u8; 2] = [95, 80];
/// It has to become so much emptier before that is logged again.
const SPACE_LEVELS_APART: u8 = 5;

/// What a store has in it.
#[derive(Clone, Debug)]
pub(crate) struct StoreContents {
    pub(crate) info: VolumeInfo,
    pub(crate) stats: Stats,
    pub(crate) snapshots: Vec<SnapshotInfo>,
    pub(crate) branches: Vec<BranchInfo>,
}

/// One thing to do. Whoever wanted it may have gone when it is done.
pub(crate) enum Job {
    Describe(Sender<Box<StoreContents>>),
    Run {
        view: View,
        op: Op,
        reply: Sender<Result<Outcome, OpError>>,
    },
    /// A slice of counting what each snapshot alone keeps; the answer says whether there is more.
    CountPinned {
        count: PinnedCount,
        reply: Sender<(PinnedCount, bool)>,
    },
    /// The next bytes of a stream.
    Send {
        stream: Box<stream::Sender>,
        reply: Sender<Sent>,
    },
    /// A step of a stream that comes in.
    Receive {
        step: Box<ReceiveStep>,
        reply: Sender<Result<(), NotReceived>>,
    },
    /// Who could write to the volume.
    InTheWay {
        reply: Sender<Vec<InTheWay>>,
    },
    /// What was begun to be received.
    Receptions(Sender<Vec<ReceptionInfo>>),
}

/// A stream with its next bytes (`None`: it has ended), or why it cannot go on.
pub(crate) type Sent = Result<(Box<stream::Sender>, Option<Vec<u8>>), StreamError>;

/// A job that the store works on.
pub(super) enum RunningJob {
    Run {
        reply: Sender<Result<Outcome, OpError>>,
        grows: bool,
    },
    /// Answered when nothing can undo it any more, or when it is over; then there is no one to tell.
    Erase {
        reply: Option<Sender<Result<Outcome, OpError>>>,
        /// Not before its key is destroyed, either.
        by_key: bool,
    },
    Send {
        stream: Box<stream::Sender>,
        reply: Sender<Sent>,
    },
    Receive(RunningStep),
    /// A step of background verification.
    Verify,
}

impl Unit {
    /// Does a job, or begins it.
    pub(crate) fn take_job(&mut self, job: Job) {
        match job {
            Job::Describe(reply) => {
                let (snapshots, branches) = (self.store.snapshots(), self.store.branches());
                let contents =
                    StoreContents { info: self.store.info(), stats: self.store.stats(), snapshots, branches };
                let _ = reply.send(Box::new(contents));
            }
            Job::CountPinned { mut count, reply } => {
                let goes_on = self.store.count_pinned(&mut count);
                let _ = reply.send((count, goes_on));
            }
            Job::Receive { step, reply } => self.take_step(step, reply),
            Job::InTheWay { reply } => {
                // Of a stream that builds on something, whatever that is.
                let _ = reply.send(self.in_the_way(Some(SnapshotId(0))));
            }
            Job::Receptions(reply) => drop(reply.send(self.store.receptions())),
            Job::Run { view, op, reply } => {
                let job = match op {
                    Op::SnapshotDelete { id } if self.shown == Some(id) => {
                        return drop(reply.send(Err(OpError::Depended(SHOWN))));
                    }
                    Op::CryptoErase if !self.can_destroy_key() => {
                        let why = "its wrapping key is another volume's too, or cannot be destroyed by this target";
                        return drop(reply.send(Err(OpError::Depended(why))));
                    }
                    Op::Erase | Op::CryptoErase => {
                        RunningJob::Erase { reply: Some(reply), by_key: matches!(op, Op::CryptoErase) }
                    }
                    _ => RunningJob::Run { reply, grows: matches!(op, Op::Grow { .. }) },
                };
                self.start_job(job, view, op);
            }
            Job::Send { mut stream, reply } => match self.store.send_step(&mut stream) {
                Ok(SendStep::Bytes(bytes)) => drop(reply.send(Ok((stream, Some(bytes))))),
                Ok(SendStep::End) => drop(reply.send(Ok((stream, None)))),
                Ok(SendStep::Read { view, runs }) => {
                    self.start_job(RunningJob::Send { stream, reply }, view, Op::ReadRuns { runs });
                }
                Err(error) => drop(reply.send(Err(error))),
            },
        }
    }

    pub(super) fn start_job(&mut self, job: RunningJob, view: View, op: Op) {
        self.next_token += 1;
        let token = Token(self.next_token);
        self.jobs.insert(token, job);
        self.store.submit_to(token, view, op);
    }

    /// An erase is under way that nothing can undo any more.
    pub(super) fn tell_certain_jobs(&mut self) {
        for job in self.jobs.values_mut() {
            if let RunningJob::Erase { reply, by_key: false } = job
                && let Some(reply) = reply.take()
            {
                let _ = reply.send(Ok(Outcome::Changed));
            }
        }
    }

    /// The key of a cryptographic erase is destroyed, or could not be.
    pub(super) fn tell_key_jobs(&mut self, is_destroyed: bool) {
        for job in self.jobs.values_mut() {
            if let RunningJob::Erase { reply, by_key: true } = job
                && let Some(reply) = reply.take()
            {
                let _ =
                    reply.send(if is_destroyed { Ok(Outcome::Changed) } else { Err(OpError::Depended(KEY_SURVIVED)) });
            }
        }
    }

    pub(super) fn job_done(&mut self, token: Token, result: Result<Outcome, OpError>) {
        match self.jobs.remove(&token) {
            None | Some(RunningJob::Erase { reply: None, .. }) => {}
            Some(RunningJob::Receive(step)) => self.step_done(&step, result),
            Some(RunningJob::Verify) => self.verify_step_done(result),
            Some(RunningJob::Run { reply, grows }) => {
                if grows && result.is_ok() {
                    self.take_size(self.store.info().geometry);
                }
                let _ = reply.send(result);
            }
            Some(RunningJob::Erase { reply: Some(reply), .. }) => drop(reply.send(result)),
            Some(RunningJob::Send { mut stream, reply }) => {
                let bytes = match result {
                    Ok(read) => Ok(self.store.send_blocks(&mut stream, &read)),
                    // Others have filled the queue: the same again, later.
                    Err(OpError::Busy) => Ok(Vec::new()),
                    Err(error) => Err(error.into()),
                };
                let _ = reply.send(bytes.map(|bytes| (stream, Some(bytes))));
            }
        }
    }

    /// Tells users when space becomes scarce (SBC-3 §4.7.3.7), once each time that it gets worse.
    pub(super) fn watch_space(&mut self) {
        self.watch_space_percent();
        let now = self.store.space();
        if now == self.space {
            return;
        }
        let before = std::mem::replace(&mut self.space, now);
        let volume = &self.volume.name;
        match now {
            SpaceState::Full => tracing::error!(
                %volume,
                host_free_bytes = self.store.stats().host_free_bytes,
                log_free_bytes = self.store.stats().log_free_bytes,
                "the store is full, and new data is refused. What is written can be read, written again and discarded, so a file system on \
                 the volume can still be mounted: delete files there and run fstrim, or delete snapshots, or make room where the store is \
                 (docs/admin.md, \"Space\")"
            ),
            SpaceState::NearlyFull => tracing::warn!(%volume, "the store is nearly full: make room before writes fail"),
            SpaceState::Ample => tracing::info!(%volume, "the store has room again"),
        }
        if before == SpaceState::Ample {
            self.users.values_mut().for_each(|user| user.attentions.establish(UnitAttention::SpaceThreshold));
        }
    }

    /// Logs when the store has filled 80 and 95 percent of what it can have, once each time.
    fn watch_space_percent(&mut self) {
        let percent = self.store.space_percent();
        let level = SPACE_LEVELS.into_iter().find(|&level| percent >= level).unwrap_or(0);
        if level > self.space_level {
            let (volume, room_bytes) = (&self.volume.name, self.store.stats().room_bytes);
            tracing::warn!(
                %volume, percent, room_bytes,
                "the store is nearly full: make room where it is, or delete files on the volume and run fstrim, before writes fail"
            );
        }
        // Not again for going back and forth.
        if level > self.space_level || percent.saturating_add(SPACE_LEVELS_APART) < self.space_level {
            self.space_level = level;
        }
    }

    /// Other rules hold for who may use the volume, and how.
    pub(crate) fn take_access(&mut self, access: Access) {
        if access != self.volume.access {
            self.volume = Arc::new(Volume { access, ..(*self.volume).clone() });
        }
    }

    /// The volume may have another size now; whoever uses it is told by a unit attention.
    pub(crate) fn take_size(&mut self, geometry: Geometry) {
        if geometry == self.volume.geometry {
            return;
        }
        self.volume = Arc::new(Volume { geometry, ..(*self.volume).clone() });
        self.users.values_mut().for_each(|user| user.attentions.establish(UnitAttention::CapacityChanged));
    }
}

//! Administrative jobs on a unit's store: operations without a session, answered over a channel.

use std::collections::HashMap;
use std::sync::mpsc::Sender;

use strongroom_block::Token;
use strongroom_store::{
    self as stream, BranchInfo, Op, OpError, Outcome, PinnedCount, ReceiveStep, ReceptionInfo, SendStep, SnapshotId,
    SnapshotInfo, Stats, StreamError, View, VolumeInfo,
};

use super::receive_step::{PossibleWriter, RequestedStep, RunningStep, StepError};
use crate::store_handle::StoreHandle;

/// Reported for a cryptographic erase whose key still exists.
const KEY_SURVIVED: &str = "the key that wraps the volume's block keys could not be destroyed (the target's log says why); everything in the \
    volume is overwritten instead, but what was copied elsewhere opens with that key: destroy its file, and every copy of it";

/// Why a snapshot cannot be deleted after a newer one was received onto it.
const SHOWN: &str =
    "sessions that were attached to the volume before a newer snapshot was received read this one, until they detach";

/// The contents of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreContents {
    pub(crate) info: VolumeInfo,
    pub(crate) stats: Stats,
    pub(crate) snapshots: Vec<SnapshotInfo>,
    pub(crate) branches: Vec<BranchInfo>,
}

/// One job. Its requester may be gone when it ends.
pub(crate) enum Job {
    Describe(Sender<Box<StoreContents>>),
    Run {
        view: View,
        op: Op,
        reply: Sender<Result<Outcome, OpError>>,
    },
    /// A slice of counting the blocks that only one snapshot has; the answer says whether there is more.
    CountPinned {
        count: PinnedCount,
        reply: Sender<(PinnedCount, bool)>,
    },
    /// The next bytes of a stream.
    Send {
        stream: Box<stream::Sender>,
        reply: Sender<Sent>,
    },
    /// A step of a stream that is received.
    Receive {
        step: Box<ReceiveStep>,
        reply: Sender<Result<(), StepError>>,
    },
    /// Who could write to the volume.
    PossibleWriters(Sender<Vec<PossibleWriter>>),
    /// The receptions that have begun.
    Receptions(Sender<Vec<ReceptionInfo>>),
}

/// A stream with its next bytes (`None`: it has ended), or why it cannot go on.
pub(crate) type Sent = Result<(Box<stream::Sender>, Option<Vec<u8>>), StreamError>;

/// A job whose operation the store is executing.
pub(super) enum RunningJob {
    Run {
        reply: Sender<Result<Outcome, OpError>>,
        grows: bool,
    },
    /// Answered when no crash can undo it any more, or when it ends; `reply` is `None` afterwards.
    Erase {
        reply: Option<Sender<Result<Outcome, OpError>>>,
        /// It is answered after its key is destroyed.
        by_key: bool,
    },
    Send {
        stream: Box<stream::Sender>,
        reply: Sender<Sent>,
    },
    Receive(RunningStep),
    /// An operation of background verification.
    Verify,
}

/// The jobs whose operations the store is executing.
#[derive(Default)]
pub(super) struct Jobs {
    running: HashMap<Token, RunningJob>,
}

/// What decides whether a job is executed.
pub(super) struct JobRules {
    /// The snapshot that sessions see instead of the volume's head.
    pub(super) shown: Option<SnapshotId>,
    /// The unit can destroy the key that wraps its block keys.
    pub(super) can_destroy_key: bool,
}

impl JobRules {
    /// Why an operation is refused, if it is.
    fn refusal(&self, op: &Op) -> Option<&'static str> {
        match op {
            Op::SnapshotDelete { id } if self.shown == Some(*id) => Some(SHOWN),
            Op::CryptoErase if !self.can_destroy_key => {
                Some("its wrapping key is another volume's too, or cannot be destroyed by this target")
            }
            _ => None,
        }
    }
}

impl Jobs {
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Whether the end of a stream is being received.
    pub(super) fn is_receiving_end(&self) -> bool {
        self.running.values().any(|job| matches!(job, RunningJob::Receive(step) if step.is_end()))
    }

    /// An operation has ended.
    pub(super) fn remove(&mut self, token: Token) -> Option<RunningJob> {
        self.running.remove(&token)
    }

    /// Has the store execute an operation for a requester, unless `rules` refuse it.
    pub(super) fn run(
        &mut self,
        token: Token,
        (view, op): (View, Op),
        reply: Sender<Result<Outcome, OpError>>,
        rules: &JobRules,
        store: &mut StoreHandle,
    ) {
        if let Some(why) = rules.refusal(&op) {
            return drop(reply.send(Err(OpError::Depended(why))));
        }
        let job = match op {
            Op::Erase | Op::CryptoErase => {
                RunningJob::Erase { reply: Some(reply), by_key: matches!(op, Op::CryptoErase) }
            }
            _ => RunningJob::Run { reply, grows: matches!(op, Op::Grow { .. }) },
        };
        self.submit(token, job, (view, op), store);
    }

    /// Has the store execute an operation of a job.
    pub(super) fn submit(&mut self, token: Token, job: RunningJob, (view, op): (View, Op), store: &mut StoreHandle) {
        self.running.insert(token, job);
        store.submit_to(token, view, op);
    }

    /// Sends the next bytes of a stream, or has the store read the blocks that they contain.
    pub(super) fn send(
        &mut self,
        token: Token,
        mut stream: Box<stream::Sender>,
        reply: Sender<Sent>,
        store: &mut StoreHandle,
    ) {
        match store.streams().send_step(&mut stream) {
            Ok(SendStep::Bytes(bytes)) => drop(reply.send(Ok((stream, Some(bytes))))),
            Ok(SendStep::End) => drop(reply.send(Ok((stream, None)))),
            Ok(SendStep::Read { view, runs }) => {
                self.submit(token, RunningJob::Send { stream, reply }, (view, Op::ReadRuns { runs }), store);
            }
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Has the store execute a step of a stream that is received.
    pub(super) fn receive(&mut self, token: Token, requested: RequestedStep, store: &mut StoreHandle) {
        let RequestedStep { step, reply } = requested;
        let is_end = step.is_end();
        match store.streams().submit_receive(token, *step) {
            Ok(()) => drop(self.running.insert(token, RunningJob::Receive(RunningStep::new(reply, is_end)))),
            Err(error) => drop(reply.send(Err(StepError::Stream(error)))),
        }
    }

    /// No crash can undo the store's erase any more.
    pub(super) fn erase_is_certain(&mut self) {
        self.answer_erases(false, || Ok(Outcome::Changed));
    }

    /// The key of a cryptographic erase is destroyed, or could not be.
    pub(super) fn key_destroyed(&mut self, is_destroyed: bool) {
        let result = || if is_destroyed { Ok(Outcome::Changed) } else { Err(OpError::Depended(KEY_SURVIVED)) };
        self.answer_erases(true, result);
    }

    fn answer_erases(&mut self, with_key: bool, result: impl Fn() -> Result<Outcome, OpError>) {
        for job in self.running.values_mut() {
            if let RunningJob::Erase { reply, by_key } = job
                && *by_key == with_key
                && let Some(reply) = reply.take()
            {
                let _ = reply.send(result());
            }
        }
    }
}

/// What the unit's store contains.
pub(super) fn describe(store: &StoreHandle) -> StoreContents {
    let (snapshots, branches) = (store.snapshots(), store.branches());
    StoreContents { info: store.info(), stats: store.stats(), snapshots, branches }
}

/// The blocks of a stream were read, or could not be.
pub(super) fn send_blocks(
    mut stream: Box<stream::Sender>,
    result: Result<Outcome, OpError>,
    store: &StoreHandle,
) -> Sent {
    let bytes = match result {
        Ok(read) => store.streams().send_blocks(&mut stream, &read),
        // The queue is full of other requests: the requester asks again.
        Err(OpError::Busy) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    Ok((stream, Some(bytes)))
}

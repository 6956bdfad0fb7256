//! Receiving a snapshot into a volume that is being served: steps of a stream, as jobs. Sessions that read meanwhile go on seeing one image.
//!
//! With the end of its stream the snapshot is there and the volume goes on from it, by one entry of the log: no crash gets between. A volume
//! takes a stream in only while it holds nothing but the snapshot that the stream builds on. So what its readers see is that snapshot, and the
//! unit pins it (`image`) before the volume goes on.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use strongroom_scsi::vendor::lease::Standing;
use strongroom_store::{OpError, Outcome, ReceiveStep, SnapshotId, StreamError, View};

use super::Unit;
use super::image::{AbsentReader, Pin, PinEvent};
use super::jobs::RunningJob;
use super::task::SessionKey;
use super::users::User;
use crate::access::Identity;

/// Whose session, or lease, lets it write to the volume, so that a reception is refused.
#[derive(Clone, Debug)]
pub(crate) struct PossibleWriter {
    pub(crate) initiator_name: Arc<str>,
    /// `None`: of a lease whose holder is away.
    pub(crate) identity: Option<Identity>,
}

/// Why a step was not done.
#[derive(Debug)]
pub(crate) enum StepError {
    /// There is no room for it now.
    Busy(Box<ReceiveStep>),
    Stream(StreamError),
    /// These could write.
    InUse(Vec<PossibleWriter>),
    /// What readers see could not be pinned on disk.
    NotPinned(std::io::Error),
}

/// A snapshot that was received waits for sessions that see the one before.
#[derive(Clone, Debug)]
pub(crate) struct PendingImage {
    /// What they see.
    pub(crate) shown: SnapshotId,
    pub(crate) sessions: Vec<(Arc<str>, Identity)>,
    /// Sessions that were lost and may come back.
    pub(crate) absent: Vec<AbsentReader>,
}

/// A step that the store works on.
pub(super) struct RunningStep {
    reply: Sender<Result<(), StepError>>,
    is_end: bool,
}

impl RunningStep {
    /// Whether it is the last step of its stream.
    pub(super) fn is_end(&self) -> bool {
        self.is_end
    }
}

/// The end of a stream, which waits until what sessions see is pinned.
pub(super) struct WaitingEnd {
    step: Box<ReceiveStep>,
    reply: Sender<Result<(), StepError>>,
}

impl Unit {
    /// Takes a step of a stream.
    pub(super) fn take_step(&mut self, step: Box<ReceiveStep>, reply: Sender<Result<(), StepError>>) {
        if !self.store.may_receive(&step) {
            return drop(reply.send(Err(StepError::Busy(step))));
        }
        if step.is_end() || step.begins().is_some() {
            let writers = self.possible_writers(step.from());
            if !writers.is_empty() {
                return drop(reply.send(Err(StepError::InUse(writers))));
            }
        }
        // Before the volume goes on. Sessions that come until it does are included: what is pinned is the same as the head until then.
        if let Some(snapshot) = step.from().filter(|_| step.is_end()) {
            let pin = Pin { snapshot, image: self.image_number() };
            let now = self.image.set(pin, WaitingEnd { step, reply }, !self.access.users.is_empty());
            self.show();
            if let Some(WaitingEnd { step, reply }) = now {
                self.submit_step(*step, reply);
            }
        } else {
            self.submit_step(*step, reply);
        }
    }

    fn submit_step(&mut self, step: ReceiveStep, reply: Sender<Result<(), StepError>>) {
        let is_end = step.is_end();
        let token = self.executor.next_token();
        match self.store.submit_receive(token, step) {
            Ok(()) => self.jobs.insert(token, RunningJob::Receive(RunningStep { reply, is_end })),
            Err(error) => drop(reply.send(Err(StepError::Stream(error)))),
        }
    }

    pub(super) fn step_done(&mut self, step: &RunningStep, result: Result<Outcome, OpError>) {
        let outcome = result.map(drop).map_err(|error| StepError::Stream(StreamError::of_step(error)));
        let _ = step.reply.send(outcome);
    }

    /// Sessions that could write, and leases whose holders may come back. Where the stream builds on nothing (`from`): every session, because
    /// there is no snapshot that could be shown to them.
    pub(super) fn possible_writers(&self, from: Option<SnapshotId>) -> Vec<PossibleWriter> {
        let could_write = |(key, user): &(SessionKey, &User)| {
            let standing = self.access.leases.standing(*key);
            let is_reader = standing.is_some_and(|standing| standing.is_reader);
            let only_reads = user.read_only || is_reader || self.image.is_pinned();
            from.is_none() || standing.is_some_and(|standing| standing.lease.is_some()) || !only_reads
        };
        let sessions = self.access.users.iter().filter(could_write).map(|(_, user)| PossibleWriter {
            initiator_name: Arc::clone(&user.nexus.initiator_name),
            identity: Some(user.origin.identity.clone()),
        });
        let away = self.access.leases.holders().filter_map(|writer| match writer.standing {
            Standing::Gone { left_s: 1.., .. } => {
                Some(PossibleWriter { initiator_name: writer.initiator_name.into(), identity: None })
            }
            _ => None,
        });
        sessions.chain(away).collect()
    }

    /// What sessions see instead of the newest snapshot that was received, and which.
    pub(crate) fn pending_image(&self) -> Option<PendingImage> {
        let shown = self.image.pin()?.snapshot;
        let sessions = self.access.users.sessions();
        let sessions =
            sessions.map(|(_, nexus, identity)| (Arc::clone(&nexus.initiator_name), identity.clone())).collect();
        Some(PendingImage { shown, sessions, absent: self.image.absent() })
    }

    /// The number of the image that sessions see: another one whenever the contents are replaced, and only then.
    pub(super) fn image_number(&self) -> u64 {
        self.image.pin().map_or_else(|| self.store.incarnation_and_image().1, |pin| pin.image)
    }

    /// Pins and releases the image that sessions see, as far as that has come.
    pub(super) fn poll_image(&mut self) {
        loop {
            match self.image.poll(!self.access.users.is_empty(), self.jobs.is_receiving_end()) {
                None => return,
                // Sessions that came meanwhile are write-protected.
                Some(PinEvent::Durable(WaitingEnd { step, reply })) => self.submit_step(*step, reply),
                Some(PinEvent::Failed(WaitingEnd { reply, .. }, error)) => {
                    let _ = reply.send(Err(StepError::NotPinned(error)));
                }
                Some(PinEvent::Released) => {
                    tracing::info!(volume = %self.volume.name, "the volume shows the newest snapshot that was received");
                    self.show();
                }
            }
        }
    }

    /// Reads go to what is pinned, or to the head. A snapshot's unit, which is never pinned, keeps its view.
    fn show(&mut self) {
        let head = View::Head(self.volume.branch());
        self.store.set_view(self.image.pin().map_or(head, |pin| View::Snapshot(pin.snapshot)));
    }
}

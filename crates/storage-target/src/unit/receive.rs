//! Receiving a snapshot into a volume that is being served: steps of a stream, as jobs. Who reads meanwhile goes on seeing one image.
//!
//! With the end of its stream the snapshot is there and the volume goes on from it, by one entry of the log: no crash gets between. A volume
//! takes a stream in only while it holds nothing but the snapshot that the stream builds on. So what its readers see is that snapshot, and the
//! unit shows it to them instead of the volume's head, write-protected, until the last of them has let go.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use strongroom_scsi::vendor::lease::Standing;
use strongroom_store::{OpError, Outcome, ReceiveStep, SnapshotId, StreamError, View};

use super::Unit;
use super::jobs::RunningJob;
use super::task::SessionKey;
use super::users::User;
use crate::access::Identity;

/// Whose session, or lease, stands in the way of a reception.
#[derive(Clone, Debug)]
pub(crate) struct InTheWay {
    pub(crate) initiator_name: Arc<str>,
    /// `None`: of a lease whose holder is away.
    pub(crate) identity: Option<Identity>,
}

/// Why a step was not done.
#[derive(Debug)]
pub(crate) enum NotReceived {
    /// There is no room for it now.
    Busy(Box<ReceiveStep>),
    Refused(StreamError),
    InUse(Vec<InTheWay>),
}

/// A step that the store works on.
pub(super) struct RunningStep {
    reply: Sender<Result<(), NotReceived>>,
    is_end: bool,
}

impl RunningStep {
    /// Whether it is the last step of its stream.
    pub(super) fn is_end(&self) -> bool {
        self.is_end
    }
}

impl Unit {
    /// Takes a step of a stream.
    pub(super) fn take_step(&mut self, step: Box<ReceiveStep>, reply: Sender<Result<(), NotReceived>>) {
        if !self.store.may_receive(&step) {
            return drop(reply.send(Err(NotReceived::Busy(step))));
        }
        let is_end = step.is_end();
        if is_end || step.begins().is_some() {
            let in_the_way = self.in_the_way(step.from());
            if !in_the_way.is_empty() {
                return drop(reply.send(Err(NotReceived::InUse(in_the_way))));
            }
        }
        // Before the head goes on, and whoever comes until it does is included: what is shown is the same until then.
        if let Some(base) = step.from().filter(|_| is_end && self.shown.is_none()) {
            self.show(Some(base));
        }
        let token = self.executor.next_token();
        match self.store.submit_receive(token, *step) {
            Ok(()) => self.jobs.insert(token, RunningJob::Receive(RunningStep { reply, is_end })),
            Err(error) => {
                self.show_head_if_unused();
                let _ = reply.send(Err(NotReceived::Refused(error)));
            }
        }
    }

    pub(super) fn step_done(&mut self, step: &RunningStep, result: Result<Outcome, OpError>) {
        if step.is_end {
            self.show_head_if_unused();
        }
        let outcome = result.map(drop).map_err(|error| NotReceived::Refused(StreamError::of_step(error)));
        let _ = step.reply.send(outcome);
    }

    /// Who could write, by a session or by a lease; and where the stream builds on nothing (`from`), whoever uses the volume, because there
    /// is no snapshot that could be shown to them.
    pub(super) fn in_the_way(&self, from: Option<SnapshotId>) -> Vec<InTheWay> {
        let could_write = |(key, user): &(SessionKey, &User)| {
            let standing = self.access.leases.standing(*key);
            let is_reader = standing.is_some_and(|standing| standing.is_reader);
            let only_reads = user.read_only || is_reader || self.shown.is_some();
            from.is_none() || standing.is_some_and(|standing| standing.lease.is_some()) || !only_reads
        };
        let sessions = self.access.users.iter().filter(could_write).map(|(_, user)| InTheWay {
            initiator_name: Arc::clone(&user.nexus.initiator_name),
            identity: Some(user.origin.identity.clone()),
        });
        let away = self.access.leases.holders().filter_map(|writer| match writer.standing {
            Standing::Gone { left_s: 1.., .. } => {
                Some(InTheWay { initiator_name: writer.initiator_name.into(), identity: None })
            }
            _ => None,
        });
        sessions.chain(away).collect()
    }

    /// Nobody sees the snapshot any more that was shown instead of the head.
    pub(super) fn show_head_if_unused(&mut self) {
        if self.shown.is_some() && self.access.users.is_empty() && !self.jobs.is_receiving_end() {
            self.show(None);
        }
    }

    fn show(&mut self, shown: Option<SnapshotId>) {
        self.shown = shown;
        let head = View::Head(self.volume.branch());
        self.store.set_view(shown.map_or(head, View::Snapshot));
    }
}

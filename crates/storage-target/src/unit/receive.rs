//! Receiving a snapshot into a volume that is being served: which steps of its stream are taken, and what sessions that read meanwhile see.
//!
//! With the end of its stream the snapshot is there and the volume goes on from it, by one entry of the log: no crash gets between. A volume
//! takes a stream in only while it holds nothing but the snapshot that the stream builds on. So what its readers see is that snapshot, and the
//! unit pins it (`image`) before the volume goes on. Absent: executing steps, which are jobs.

use std::sync::Arc;

use strongroom_scsi::vendor::lease::Standing;
use strongroom_store::{SnapshotId, View};

use super::access_control::AccessControl;
use super::image::{self, AbsentReader, Pin, PinEvent, PinnedImage};
use super::medium::Medium;
use super::receive_step::{PossibleWriter, RequestedStep, StepError};
use super::task::SessionKey;
use super::users::User;
use crate::access::Identity;

/// A snapshot that was received waits for sessions that see the one before.
#[derive(Clone, Debug)]
pub(crate) struct PendingImage {
    /// What they see.
    pub(crate) shown: SnapshotId,
    pub(crate) sessions: Vec<(Arc<str>, Identity)>,
    /// Sessions that were lost and may come back.
    pub(crate) absent: Vec<AbsentReader>,
}

/// The snapshots that a unit receives, and the image that its sessions see. The end of a stream waits until that is pinned.
pub(super) struct SnapshotReceiver {
    pub(super) image: PinnedImage<RequestedStep>,
}

impl SnapshotReceiver {
    /// Whether a step may be done now: gives it back then. Else it waits, or is refused.
    pub(super) fn take_step(
        &mut self,
        step: RequestedStep,
        access: &AccessControl,
        medium: &mut Medium,
    ) -> Option<RequestedStep> {
        if !medium.store.streams().may_receive(&step.step) {
            let _ = step.reply.send(Err(StepError::Busy(step.step)));
            return None;
        }
        let (from, is_end) = (step.step.from(), step.step.is_end());
        if is_end || step.step.begins().is_some() {
            let writers = self.possible_writers(from, access);
            if !writers.is_empty() {
                step.refuse(StepError::InUse(writers));
                return None;
            }
        }
        let Some(snapshot) = from.filter(|_| is_end) else { return Some(step) };
        // Before the volume goes on. Sessions that come until it does are included: what is pinned is the same as the head until then.
        let pin = Pin { snapshot, image: image::number(self.image.pin(), &medium.store) };
        let now = self.image.set(pin, step, !access.users.is_empty());
        self.show(medium);
        now
    }

    /// Sessions that could write, and leases whose holders may come back. Where the stream builds on nothing (`from`): every session, because
    /// there is no snapshot that could be shown to them.
    pub(super) fn possible_writers(&self, from: Option<SnapshotId>, access: &AccessControl) -> Vec<PossibleWriter> {
        let could_write = |(key, user): &(SessionKey, &User)| {
            let standing = access.leases.standing(*key);
            let is_reader = standing.is_some_and(|standing| standing.is_reader);
            let only_reads = user.read_only || is_reader || self.image.is_pinned();
            from.is_none() || standing.is_some_and(|standing| standing.lease.is_some()) || !only_reads
        };
        let sessions = access.users.iter().filter(could_write).map(|(_, user)| PossibleWriter {
            initiator_name: Arc::clone(&user.nexus.initiator_name),
            identity: Some(user.origin.identity.clone()),
        });
        let away = access.leases.holders().filter_map(|writer| match writer.standing {
            Standing::Gone { left_s: 1.., .. } => {
                Some(PossibleWriter { initiator_name: writer.initiator_name.into(), identity: None })
            }
            _ => None,
        });
        sessions.chain(away).collect()
    }

    /// What sessions see instead of the newest snapshot that was received, and which.
    pub(super) fn pending_image(&self, access: &AccessControl) -> Option<PendingImage> {
        let shown = self.image.pin()?.snapshot;
        let sessions = access.users.sessions();
        let sessions =
            sessions.map(|(_, nexus, identity)| (Arc::clone(&nexus.initiator_name), identity.clone())).collect();
        Some(PendingImage { shown, sessions, absent: self.image.absent() })
    }

    /// Pins and releases the image that sessions see, as far as that has come; returns a step that can be done now. `is_ending`: the end of a
    /// stream is being received.
    pub(super) fn poll(&mut self, has_sessions: bool, is_ending: bool, medium: &mut Medium) -> Option<RequestedStep> {
        loop {
            match self.image.poll(has_sessions, is_ending)? {
                // Sessions that came meanwhile are write-protected.
                PinEvent::Durable(step) => return Some(step),
                PinEvent::Failed(step, error) => step.refuse(StepError::NotPinned(error)),
                PinEvent::Released => {
                    tracing::info!(volume = %medium.volume.name, "the volume shows the newest snapshot that was received");
                    self.show(medium);
                }
            }
        }
    }

    /// Reads go to what is pinned, or to the head. A snapshot's unit, which is never pinned, keeps its view.
    fn show(&mut self, medium: &mut Medium) {
        let head = View::Head(medium.volume.branch());
        medium.store.set_view(self.image.pin().map_or(head, |pin| View::Snapshot(pin.snapshot)));
    }
}

//! How a sealed unit recognizes what it was sent before: operation ids, and the registration of attach ids.
//!
//! A request that writes is known to the unit by its operation id: the first stamp under which it was sealed when it was first
//! sent. The unit keeps the operations that it has executed, for each attach id that is registered, together with the data, and
//! executes none of them twice. An attach id is registered before the first request under it is sent, and never afterwards: a unit
//! that has forgotten it no longer knows which operations it has executed. It refuses them then; those that were never sent before
//! are resealed under a new attach id, and those whose outcome is unknown fail.

use strongroom_block::{AttachId, DeviceError, DeviceErrorKind, Stamp};

use super::command::{Command, SealingState};
use super::request_table::Request;
use crate::completion::device_error;
use crate::pipeline::operation::execute::Execute;
use crate::pipeline::sealing::Sealing;

/// Attach ids that are remembered; beyond it those are dropped under which nothing can be sent any more.
const ATTACH_IDS_MAX: usize = 64;
/// How often one request is resealed under another attach id because the unit does not know its own.
const REFUSALS_MAX: u32 = 8;

/// What the unit knows of our attach ids.
#[derive(Debug, Default)]
pub(super) struct AttachIds {
    /// The newest last.
    ids: Vec<(AttachId, Registration)>,
    /// Being registered: no write is sent meanwhile.
    pending: Option<AttachId>,
    /// A planted fault, for tests of tests: what is resealed is sent under a new operation id.
    forgets_operations: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    Registered,
    /// The unit has forgotten it. It is never registered again.
    Forgotten,
}

impl AttachIds {
    pub(super) fn new(forgets_operations: bool) -> AttachIds {
        AttachIds { forgets_operations, ..AttachIds::default() }
    }

    fn registration(&self, id: AttachId) -> Option<Registration> {
        self.ids.iter().rev().find(|(known, _)| *known == id).map(|(_, registration)| *registration)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The connection is lost: whether the unit has registered the pending one is unknown, and nothing was sent under it yet.
    pub(super) fn disconnected(&mut self) {
        self.pending = None;
    }

    /// The attach id that a write has to wait for, if it was not registered yet. It is pending from here on.
    pub(super) fn register_first(&mut self, operation_id: Option<Stamp>) -> Option<AttachId> {
        let id = operation_id?.attach_id;
        if self.registration(id).is_some() {
            return None;
        }
        self.pending = Some(id);
        Some(id)
    }

    /// The unit has registered the pending attach id. `in_use`: those under which something may still be sent.
    pub(super) fn registered(&mut self, in_use: impl FnOnce() -> Vec<AttachId>) {
        let Some(id) = self.pending.take() else { return };
        if self.ids.len() >= ATTACH_IDS_MAX {
            let in_use = in_use();
            self.ids.retain(|(id, _)| in_use.contains(id));
        }
        self.ids.push((id, Registration::Registered));
    }

    /// The unit does not take the pending attach id.
    pub(super) fn not_registered(&mut self) -> Option<AttachId> {
        self.pending.take()
    }

    /// What was sealed under an epoch that is over, or under an attach id that the unit has forgotten, is resealed and kept so:
    /// what is sent again, and what the log keeps, is what was sent. If the unit may have executed it, it keeps its operation id.
    pub(super) fn reseal_if_stale(
        &self,
        command: &mut Command,
        request: &mut Request,
        sealing: &Sealing,
    ) -> Result<(), DeviceError> {
        let Some((stamp, epoch)) = request.first_record(command, sealing.block_bytes()) else { return Ok(()) };
        let operation_id = command.operation_id.unwrap_or(stamp);
        let is_forgotten = self.registration(operation_id.attach_id) == Some(Registration::Forgotten);
        // A replay is safe by its sequence, under any operation id.
        if is_forgotten && command.may_be_done && !request.is_replay() {
            return Err(outcome_unknown(command));
        }
        if !is_forgotten && !sealing.is_stale(epoch)? {
            return Ok(());
        }
        let keeps_id = !is_forgotten && (command.may_be_done || request.is_replay()) && !self.forgets_operations;
        let resealed = match command.sealing.done() {
            Some(sealed) => Some(sealing.seal_again(command.plan.lba_or_zero(), sealed)?),
            None => request.operation.reseal(&command.plan, sealing)?,
        };
        if let Some(blocks) = resealed {
            command.sealing = SealingState::Done(Box::new(blocks));
        }
        command.operation_id = keeps_id.then_some(operation_id);
        Ok(())
    }

    /// The unit has refused a command because it does not know its attach id (any more). It is sent again under another one, unless
    /// an earlier try may have been executed.
    pub(super) fn refused(
        &mut self,
        command: &mut Command,
        request: &Request,
        sealing: Option<&Sealing>,
    ) -> Result<(), DeviceError> {
        let lba = command.plan.lba;
        let hardware = |what| device_error(DeviceErrorKind::Hardware, lba, what);
        let record =
            sealing.and_then(|sealing| Some((sealing, request.first_record(command, sealing.block_bytes())?.0)));
        let Some((sealing, stamp)) = record else {
            return Err(hardware("the target speaks of an attach id where there is none; see its log"));
        };
        let attach_id = command.operation_id.unwrap_or(stamp).attach_id;
        if self.registration(attach_id) != Some(Registration::Forgotten) {
            tracing::warn!(
                ?attach_id,
                "the target does not know this attachment any more; it goes on under a new attach id"
            );
            sealing.renew(None);
        }
        self.ids.retain(|(known, _)| *known != attach_id);
        self.ids.push((attach_id, Registration::Forgotten));
        if command.refusals >= REFUSALS_MAX {
            return Err(hardware("the target keeps forgetting attach ids that it has registered; see its log"));
        }
        command.refusals += 1;
        if command.may_be_done && !request.is_replay() {
            return Err(outcome_unknown(command));
        }
        Ok(())
    }
}

fn outcome_unknown(command: &Command) -> DeviceError {
    let message = "whether this write was executed is unknown: the connection was lost before it was answered, and the target no \
                   longer knows the attachment; look at the data, then write again";
    device_error(DeviceErrorKind::Hardware, command.plan.lba, message)
}

//! How a sealed unit recognizes what it was sent before: operation ids and the registration of attach ids.
//!
//! A request that writes is known to the unit by its operation id: the first stamp under which it was sealed when it was first
//! sent. The unit keeps the operations that it has executed, for each attach id that is registered, together with the data, and
//! executes none of them twice. An attach id is registered before the first request under it is sent, and never afterwards: a unit
//! that has forgotten it no longer knows which operations it has executed. It refuses them then; those that were never sent before
//! are sealed again under a new attach id, and those whose outcome is unknown fail.

use bytes::Bytes;
use strongroom_block::{AttachId, Buffer, DeviceError, DeviceErrorKind, HoleRecord, Lba, Stamp};
use strongroom_iscsi::ahs::{self, Written};
use strongroom_iscsi::initiator::{Command as ScsiCommand, Completed, WriteSource};
use strongroom_scsi::{Sense, SenseKey, Status, VendorCommand, vendor};

use super::command::CommandKind;
use super::seal::SealingState;
use super::{Engine, OpWork};
use crate::completion::device_error;
use crate::pipeline::request::Work;
use crate::pipeline::sealing::{Records, SealedBlocks, Sealing};
use crate::pipeline::unflushed::Stored;

/// Attach ids that are remembered; beyond it those go under which nothing can be sent any more.
const ATTACH_IDS_KEPT: usize = 64;
/// How often one request is sealed again under another attach id because the unit does not know its own.
const REFUSALS_MAX: u32 = 8;

/// What the unit knows of our attach ids.
#[derive(Debug, Default)]
pub(super) struct Registrations {
    /// The newest last.
    ids: Vec<(AttachId, Standing)>,
    /// Being registered: no write is sent meanwhile.
    pending: Option<AttachId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Registered,
    /// The unit has forgotten it. It is never registered again.
    Forgotten,
}

impl Registrations {
    fn standing(&self, id: AttachId) -> Option<Standing> {
        self.ids.iter().rev().find(|(known, _)| *known == id).map(|(_, standing)| *standing)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The connection is lost: whether the unit has registered it is unknown, and nothing was sent under it yet.
    pub(super) fn disconnected(&mut self) {
        self.pending = None;
    }

    /// The unit does not know an attach id. Whether that is news.
    fn forgotten(&mut self, id: AttachId) -> bool {
        let is_news = self.standing(id) != Some(Standing::Forgotten);
        self.ids.retain(|(known, _)| *known != id);
        self.ids.push((id, Standing::Forgotten));
        is_news
    }
}

/// What a command writes, as it was sealed.
enum Content {
    Blocks(Lba, SealedBlocks),
    Hole(HoleRecord),
}

impl Content {
    fn seal_again(&self, sealing: &Sealing) -> Result<Content, DeviceError> {
        Ok(match self {
            Content::Blocks(lba, blocks) => Content::Blocks(*lba, sealing.seal_again(*lba, blocks)?),
            Content::Hole(hole) => Content::Hole(sealing.seal_hole(hole.start, hole.count)?),
        })
    }
}

impl Engine {
    /// The stamp of the first block or hole that a command writes, as it is sealed now, and its key epoch; `None` for commands that
    /// write nothing sealed.
    fn sealed_as(&self, key: usize) -> Option<(Stamp, u32)> {
        self.sealing.as_ref()?;
        let command = &self.commands[key];
        let of_hole = |hole: &HoleRecord| (hole.record.stamp(), hole.record.epoch());
        Some(match (&command.sealing, command.kind, &self.ops[command.op].work) {
            (SealingState::Done(sealed), ..) => (sealed.records.first_stamp(), sealed.records.epoch()),
            (_, CommandKind::Write { lba, .. }, OpWork::Plain(Work::Write { lba: first, data, records, .. })) => {
                let records = records.as_ref()?;
                let each = records.len() / (data.len() / self.block_bytes());
                (records.stamp_at((lba.0 - first.0) as usize * each), records.epoch())
            }
            (_, CommandKind::SealHole, OpWork::Plain(Work::Hole(hole))) => of_hole(hole),
            (_, CommandKind::Reseal, OpWork::Asking(Work::ResealHole(hole), _)) => of_hole(hole),
            (_, CommandKind::Conditional, OpWork::Plain(Work::ConditionalWrite { records, .. }))
            | (_, CommandKind::Reseal, OpWork::Asking(Work::ResealBlock { records, .. }, _)) => {
                (records.first_stamp(), records.epoch())
            }
            (_, CommandKind::PartWrite, OpWork::Part(part)) => {
                let blocks = part.sealed()?;
                (blocks.records.first_stamp(), blocks.records.epoch())
            }
            _ => return None,
        })
    }

    /// The operation id of a command, if it writes something sealed.
    pub(super) fn operation_id(&self, key: usize) -> Option<Stamp> {
        let (stamp, _) = self.sealed_as(key)?;
        Some(self.commands[key].operation.unwrap_or(stamp))
    }

    fn content(&self, key: usize) -> Option<Content> {
        let command = &self.commands[key];
        Some(match (command.kind, &self.ops[command.op].work) {
            (CommandKind::Write { lba, .. }, _) => {
                let (data, records) = self.blocks_to_write(key);
                Content::Blocks(lba, SealedBlocks { data, records: records? })
            }
            (CommandKind::SealHole, OpWork::Plain(Work::Hole(hole)))
            | (CommandKind::Reseal, OpWork::Asking(Work::ResealHole(hole), _)) => Content::Hole(hole.clone()),
            (CommandKind::Conditional, OpWork::Plain(Work::ConditionalWrite { lba, data, records, .. }))
            | (CommandKind::Reseal, OpWork::Asking(Work::ResealBlock { lba, data, records, .. }, _)) => {
                Content::Blocks(*lba, SealedBlocks { data: data.clone(), records: records.clone() })
            }
            (CommandKind::PartWrite, OpWork::Part(part)) => Content::Blocks(part.lba, part.sealed()?.clone()),
            _ => return None,
        })
    }

    fn replace_content(&mut self, key: usize, content: Content) {
        let command = &mut self.commands[key];
        match (content, command.kind, &mut self.ops[command.op].work) {
            (Content::Blocks(_, sealed), CommandKind::Write { .. }, _) => {
                command.sealing = SealingState::Done(Box::new(sealed));
            }
            (Content::Hole(fresh), _, OpWork::Plain(Work::Hole(hole)))
            | (Content::Hole(fresh), _, OpWork::Asking(Work::ResealHole(hole), _)) => *hole = fresh,
            (Content::Blocks(_, sealed), _, OpWork::Plain(Work::ConditionalWrite { data, records, .. }))
            | (Content::Blocks(_, sealed), _, OpWork::Asking(Work::ResealBlock { data, records, .. }, _)) => {
                (*data, *records) = (sealed.data, sealed.records);
            }
            (Content::Blocks(_, sealed), _, OpWork::Part(part)) => part.sealed_again(sealed),
            _ => unreachable!("a command's content goes back where it came from"),
        }
    }

    /// What was sealed under an epoch that is over, or under an attach id that the unit has forgotten, is sealed again and kept so:
    /// what is sent again, and what the log keeps, is what was sent. If the unit may have executed it, it keeps its operation id.
    pub(super) fn freshen(&mut self, key: usize) -> Result<(), DeviceError> {
        let (Some(sealing), Some((stamp, epoch))) = (&self.sealing, self.sealed_as(key)) else { return Ok(()) };
        let command = &self.commands[key];
        let operation = command.operation.unwrap_or(stamp);
        let is_forgotten = self.registrations.standing(operation.attach_id) == Some(Standing::Forgotten);
        let is_replay = self.ops[command.op].is_replay;
        // A replay is safe by its sequence, under any operation id.
        if is_forgotten && command.may_be_done && !is_replay {
            return Err(self.outcome_unknown(key));
        }
        if !is_forgotten && !sealing.is_stale(epoch)? {
            return Ok(());
        }
        let keeps_id = !is_forgotten && (command.may_be_done || is_replay) && !self.forgets_operations;
        let Some(content) = self.content(key) else { return Ok(()) };
        let content = content.seal_again(sealing)?;
        self.commands[key].operation = keeps_id.then_some(operation);
        self.replace_content(key, content);
        Ok(())
    }

    /// Whether a command has to wait for the registration of its attach id, which is then on its way.
    pub(super) fn registers_first(&mut self, key: usize) -> bool {
        let Some(Stamp { attach_id, .. }) = self.operation_id(key) else { return false };
        if self.registrations.standing(attach_id).is_some() {
            return false;
        }
        self.again_ready(key);
        self.registrations.pending = Some(attach_id);
        let op = self.insert_own(Work::Register { attach_id });
        self.make_command(op, CommandKind::Register);
        true
    }

    pub(super) fn build_registration(&self, attach_id: AttachId) -> ScsiCommand {
        let list = Buffer::copy_from(&attach_id.0);
        let cdb = VendorCommand::RegisterAttachment { parameter_list_len: vendor::ATTACH_ID_BYTES }.encode();
        ScsiCommand::write(self.unit.wire_lun(), cdb, WriteSource::plain(list))
    }

    /// The unit knows the attach id: writes go on.
    pub(super) fn registered(&mut self) {
        let Some(id) = self.registrations.pending.take() else { return };
        self.counters.registrations += 1;
        if self.registrations.ids.len() >= ATTACH_IDS_KEPT {
            self.forget_unused_ids();
        }
        self.registrations.ids.push((id, Standing::Registered));
    }

    fn forget_unused_ids(&mut self) {
        let waiting = self.commands.iter().filter_map(|(key, _)| self.operation_id(key)).map(|stamp| stamp.attach_id);
        let used: Vec<AttachId> = waiting.chain(self.log.attach_ids()).collect();
        self.registrations.ids.retain(|(id, _)| used.contains(id));
    }

    /// The unit does not take the attach id (it is read-only, reserved, or full): what waits for it fails as it would have by itself.
    pub(super) fn registration_failed(&mut self, error: &DeviceError) {
        let Some(id) = self.registrations.pending.take() else { return };
        let waiting = self.ready.writes.iter().chain(&self.replay_ready).copied();
        let waiting: Vec<usize> =
            waiting.filter(|key| self.operation_id(*key).is_some_and(|stamp| stamp.attach_id == id)).collect();
        self.ready.retain(|key| !waiting.contains(&key));
        self.replay_ready.retain(|key| !waiting.contains(key));
        for key in waiting {
            self.fail_command(key, error.clone());
        }
    }

    /// The unit has refused a command because it does not know its attach id (any more). It goes out again under another one, unless
    /// an earlier try may have been executed.
    pub(super) fn attachment_forgotten(&mut self, key: usize) -> Result<(), DeviceError> {
        let lba = self.commands[key].kind.lba(&self.ops[self.commands[key].op]);
        let Some(Stamp { attach_id, .. }) = self.operation_id(key) else {
            let message = "the target speaks of an attach id where there is none; see its log";
            return Err(device_error(DeviceErrorKind::Hardware, lba, message));
        };
        if self.registrations.forgotten(attach_id) {
            tracing::warn!(
                ?attach_id,
                "the target does not know this attachment any more; it goes on under a new attach id"
            );
            if let Some(sealing) = &self.sealing {
                sealing.renew(None);
            }
        }
        let is_replay = self.ops[self.commands[key].op].is_replay;
        let command = &mut self.commands[key];
        command.refusals += 1;
        if command.refusals > REFUSALS_MAX {
            let message = "the target keeps forgetting attach ids that it has registered; see its log";
            return Err(device_error(DeviceErrorKind::Hardware, lba, message));
        }
        if command.may_be_done && !is_replay {
            return Err(self.outcome_unknown(key));
        }
        self.again_ready(key);
        Ok(())
    }

    fn outcome_unknown(&self, key: usize) -> DeviceError {
        let command = &self.commands[key];
        let message = "whether this write was executed is unknown: the connection was lost before it was answered, and the target no \
                       longer knows the attachment; look at the data, then write again";
        device_error(DeviceErrorKind::Hardware, command.kind.lba(&self.ops[command.op]), message)
    }

    /// The OPERATION segment of a command: for what was sealed again, and for replays.
    fn operation_segment(&self, key: usize) -> Option<ahs::Operation> {
        let command = &self.commands[key];
        let op = &self.ops[command.op];
        let Some(stored) = op.stored else { return command.operation.map(|id| ahs::Operation { id, replay: None }) };
        let Stored { first, .. } = self.stored_part(stored, command.op, command.kind);
        Some(ahs::Operation { id: self.operation_id(key)?, replay: Some(first) })
    }

    /// The header segments of a command that writes.
    pub(super) fn write_segments(&self, key: usize, expected: Option<&[u8; 24]>) -> Bytes {
        let mut segments = Vec::new();
        if let Some(expected) = expected {
            ahs::push_expected_stamp(&mut segments, expected);
        }
        if let Some(operation) = self.operation_segment(key) {
            operation.push(&mut segments);
        }
        segments.into()
    }

    /// `expected`: only if the range is still that.
    pub(super) fn build_hole(&self, key: usize, hole: &HoleRecord, expected: Option<&[u8; 24]>) -> ScsiCommand {
        let list = Buffer::copy_from(&vendor::encode_holes(std::slice::from_ref(hole)));
        let cdb = VendorCommand::SealHole { parameter_list_len: list.len() as u32 }.encode();
        let ahs = self.write_segments(key, expected);
        ScsiCommand { ahs, ..ScsiCommand::write(self.unit.wire_lun(), cdb, WriteSource::plain(list)) }
    }

    pub(super) fn build_conditional(
        &self,
        key: usize,
        lba: Lba,
        expected: &[u8; 24],
        data: Buffer,
        records: Records,
    ) -> ScsiCommand {
        let cdb = VendorCommand::ConditionalWrite { lba, count: 1 }.encode();
        ScsiCommand {
            ahs: self.write_segments(key, Some(expected)),
            ..ScsiCommand::write(self.unit.wire_lun(), cdb, self.write_source(data, Some(records)))
        }
    }

    /// What a replay of `stored` means for one command of it.
    pub(super) fn stored_part(&self, stored: Stored, op: usize, kind: CommandKind) -> Stored {
        match kind {
            CommandKind::Write { lba, .. } => stored.offset(lba.0 - self.ops[op].range_start().0),
            _ => stored,
        }
    }

    /// What the response to a write says, where it must: on a sealed unit.
    pub(super) fn written(&self, kind: CommandKind, completed: &Completed) -> Result<Option<Written>, &'static str> {
        if self.sealing.is_none() || !kind.writes() {
            return Ok(None);
        }
        match Written::find(&completed.ahs) {
            Ok(Some(written)) => Ok(Some(written)),
            _ => Err("the target does not say where it stored a write; update it, or see its log"),
        }
    }
}

/// Whether a command that is tried again may have been executed all the same.
pub(super) fn may_have_been_executed(completed: &Completed) -> bool {
    let sense = Sense::parse(&completed.sense);
    match Status::from_byte(completed.status) {
        _ if completed.response != 0 => true,
        Some(Status::Busy | Status::TaskSetFull) => false,
        Some(Status::CheckCondition) => !sense.is_some_and(|sense| {
            matches!(sense.key, SenseKey::UnitAttention | SenseKey::NotReady | SenseKey::IllegalRequest)
        }),
        _ => true,
    }
}

//! The tasks of an association by their tags, and which use of each slot is the present one.

use strongroom_scsi::transport::target::TaskId;
use strongroom_scsi::transport::{Direction, Lun, Parameters, TaskAttribute};

use super::respond::{ResponseTransfer, Transferred};
use super::write::WriteAssembly;
use crate::parity::Parity;
use crate::tag::{SINKS_MAX, SinkTag};

/// A command as it arrived.
#[derive(Debug)]
pub(super) struct CommandHead {
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) lun: Lun,
    pub(super) cdb: [u8; 16],
    pub(super) parameters: Parameters,
    pub(super) attribute: TaskAttribute,
    pub(super) direction: Direction,
    pub(super) expected_bytes: u32,
    pub(super) is_sealed: bool,
}

impl CommandHead {
    /// Bytes of write data.
    pub(super) fn write_bytes(&self) -> u32 {
        if self.direction == Direction::Write { self.expected_bytes } else { 0 }
    }

    pub(super) fn transferred(&self) -> Transferred {
        Transferred {
            expected_bytes: self.expected_bytes,
            arrived_bytes: self.write_bytes(),
            is_read: self.direction == Direction::Read,
        }
    }
}

/// What is happening to a task.
#[derive(Debug)]
pub(super) enum Phase {
    /// Its command, or data of its write, is missing; or commands before it are.
    Receiving(WriteAssembly),
    /// The logical unit has it.
    Executing,
    /// It was answered, and the answer is on its way.
    Responding(ResponseTransfer),
}

/// One transfer.
#[derive(Debug)]
pub(super) struct Task {
    /// `None`: data came before it.
    pub(super) command: Option<CommandHead>,
    pub(super) phase: Phase,
}

impl Task {
    /// Memory that it occupies, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match &self.phase {
            Phase::Receiving(assembly) => assembly.memory_bytes(),
            Phase::Executing => self.command.as_ref().map_or(0, |command| command.write_bytes().into()),
            Phase::Responding(transfer) => transfer.memory_bytes(),
        }
    }

    fn bytes(&self) -> TaskBytes {
        let unsent = match &self.phase {
            Phase::Responding(transfer) => transfer.unsent_bytes(),
            _ => 0,
        };
        TaskBytes { memory: self.memory_bytes(), unsent }
    }

    /// What `complete` calls it.
    pub(super) fn id(&self, tag: SinkTag) -> Option<TaskId> {
        let number = self.command.as_ref()?.number;
        Some(TaskId(number << SLOT_BITS | tag.slot() as u64))
    }
}

const SLOT_BITS: u32 = 12;

/// How a tag relates to the present use of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It is the present use, and going on.
    Present,
    /// It is an earlier use, or the present one is over.
    Over,
    /// It is a new use; the earlier one, if it goes on here, is over for the initiator.
    New,
    /// There is no such slot.
    Impossible,
}

/// What tasks hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskBytes {
    /// Memory that they occupy.
    pub(super) memory: u64,
    /// Read data that has not left yet.
    pub(super) unsent: u64,
}

#[derive(Debug, Default)]
struct Slot {
    newest: Option<SinkTag>,
    task: Option<Task>,
    /// What the table's sum has of this slot.
    counted: TaskBytes,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    slots: Vec<Slot>,
    /// Of all tasks: a target asks for each command, and there can be a thousand tasks.
    bytes: TaskBytes,
}

impl TaskTable {
    pub(super) fn use_of(&self, tag: SinkTag) -> Use {
        if tag.slot() >= SINKS_MAX {
            return Use::Impossible;
        }
        let Some(slot) = self.slots.get(tag.slot()) else { return Use::New };
        match slot.newest {
            Some(newest) if newest == tag && slot.task.is_some() => Use::Present,
            Some(newest) if !tag.is_newer_than(newest) => Use::Over,
            _ => Use::New,
        }
    }

    /// The present use of a slot, of any generation: what a table without generations would find.
    pub(super) fn present(&self, tag: SinkTag) -> SinkTag {
        let slot = self.slots.get(tag.slot()).filter(|slot| slot.task.is_some());
        slot.and_then(|slot| slot.newest).unwrap_or(tag)
    }

    /// Begins a new use of a slot; returns what was left of the earlier one.
    pub(super) fn begin(&mut self, tag: SinkTag, parity: Option<Parity>) -> Option<Task> {
        if self.slots.len() <= tag.slot() {
            self.slots.resize_with(tag.slot() + 1, Slot::default);
        }
        let slot = &mut self.slots[tag.slot()];
        slot.newest = Some(tag);
        let earlier = slot.task.replace(Task { command: None, phase: Phase::Receiving(WriteAssembly::new(parity)) });
        self.recount(tag);
        earlier
    }

    /// What a task holds has changed.
    pub(super) fn recount(&mut self, tag: SinkTag) {
        let Some(slot) = self.slots.get_mut(tag.slot()) else { return };
        let now = slot.task.as_ref().map_or(TaskBytes::default(), Task::bytes);
        let before = std::mem::replace(&mut slot.counted, now);
        self.bytes.memory = self.bytes.memory - before.memory + now.memory;
        self.bytes.unsent = self.bytes.unsent - before.unsent + now.unsent;
    }

    /// What all tasks hold.
    pub(super) fn bytes(&self) -> TaskBytes {
        debug_assert_eq!(
            self.bytes,
            self.iter().map(|(_, task)| task.bytes()).fold(TaskBytes::default(), |sum, one| TaskBytes {
                memory: sum.memory + one.memory,
                unsent: sum.unsent + one.unsent,
            }),
            "a change that was not counted"
        );
        self.bytes
    }

    pub(super) fn get(&self, tag: SinkTag) -> Option<&Task> {
        let slot = self.slots.get(tag.slot())?;
        slot.task.as_ref().filter(|_| slot.newest == Some(tag))
    }

    pub(super) fn get_mut(&mut self, tag: SinkTag) -> Option<&mut Task> {
        let slot = self.slots.get_mut(tag.slot())?;
        slot.task.as_mut().filter(|_| slot.newest == Some(tag))
    }

    pub(super) fn remove(&mut self, tag: SinkTag) -> Option<Task> {
        let slot = self.slots.get_mut(tag.slot())?;
        let removed = slot.task.take_if(|_| slot.newest == Some(tag));
        self.recount(tag);
        removed
    }

    /// The tag of a task by the name that `complete` uses.
    pub(super) fn tag_of(&self, id: TaskId) -> Option<SinkTag> {
        let slot = self.slots.get((id.0 & ((1 << SLOT_BITS) - 1)) as usize)?;
        let tag = slot.newest?;
        slot.task.as_ref().filter(|task| task.id(tag) == Some(id)).map(|_| tag)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SinkTag, &Task)> {
        self.slots.iter().filter_map(|slot| Some((slot.newest?, slot.task.as_ref()?)))
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.bytes = TaskBytes::default();
    }
}

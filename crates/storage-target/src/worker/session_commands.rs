//! What the commands of a session hold: memory of the budget and places in the store's queue. Commands wait here until both are free.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use strongroom_iscsi::target::{Command, Direction, TASKS_MAX, TaskId};
use strongroom_scsi::opcode;

use crate::TRANSFER_BYTES_MAX;
use crate::budget::Charge;
use crate::store_queue::Share;
use crate::unit::SLICE_BYTES;

/// Commands that wait for memory; the session's queue depth bounds them too.
const WAITING_MAX: usize = TASKS_MAX;

/// What a command costs while it is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandCost {
    /// Bytes that it may make the target hold until they are sent, or until the store has completed it.
    pub(super) memory_bytes: u64,
    /// Bytes of the store's queue; `None`: the command does not enter it.
    queue_bytes: Option<u64>,
}

pub(super) struct SessionCommands {
    /// Commands that wait until reads before them have been sent, or the session has less in the store's queue.
    waiting: VecDeque<Command>,
    /// Reads that the store executes, with the bytes that they may bring.
    reading: FxHashMap<TaskId, u64>,
    reading_bytes: u64,
    /// What the session has in the store's queue.
    share: Share,
    memory: Charge,
}

impl SessionCommands {
    pub(super) fn new(share: Share, memory: Charge) -> SessionCommands {
        SessionCommands { waiting: VecDeque::new(), reading: FxHashMap::default(), reading_bytes: 0, share, memory }
    }

    /// How many commands wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether further commands may be received.
    pub(super) fn accepts(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    /// Admits a command: returns it to be started, or keeps it waiting. `unsent_bytes`: responses that have not been sent; `bytes_max`: what
    /// reads of the session may hold.
    pub(super) fn admit(&mut self, command: Command, unsent_bytes: u64, bytes_max: u64) -> Option<Command> {
        if self.waiting.is_empty() && self.may_start(&command, unsent_bytes, bytes_max) {
            return Some(command);
        }
        self.waiting.push_back(command);
        None
    }

    /// Whether the first command that waits may be started.
    pub(super) fn may_start_waiting(&self, unsent_bytes: u64, bytes_max: u64) -> bool {
        self.waiting.front().is_some_and(|command| self.may_start(command, unsent_bytes, bytes_max))
    }

    /// The first command that waits, if it may be started.
    pub(super) fn next_waiting(&mut self, unsent_bytes: u64, bytes_max: u64) -> Option<Command> {
        if !self.may_start_waiting(unsent_bytes, bytes_max) {
            return None;
        }
        self.waiting.pop_front()
    }

    fn may_start(&self, command: &Command, unsent_bytes: u64, bytes_max: u64) -> bool {
        let (held, cost) = (self.reading_bytes + unsent_bytes, CommandCost::of(command));
        (held == 0 || held + cost.memory_bytes <= bytes_max)
            && cost.queue_bytes.is_none_or(|bytes| self.share.has_room(bytes))
    }

    /// The unit executes a command. `machine_bytes`: what the session's machine holds.
    pub(super) fn started(&mut self, task: TaskId, cost: CommandCost, machine_bytes: impl FnOnce() -> u64) {
        if let Some(bytes) = cost.queue_bytes {
            self.share.begin(task, bytes);
        }
        if cost.memory_bytes > 0 {
            self.reading.insert(task, cost.memory_bytes);
            self.reading_bytes += cost.memory_bytes;
            // At once: the next command may have no more than is free now, here or with another worker.
            self.charge(machine_bytes());
        }
    }

    /// The store has completed a command.
    pub(super) fn finished(&mut self, task: TaskId) {
        self.share.end(task);
        if let Some(bytes) = self.reading.remove(&task) {
            self.reading_bytes -= bytes;
        }
    }

    /// Forgets waiting commands that were aborted.
    pub(super) fn abort_waiting(&mut self, tasks: &[TaskId]) {
        self.waiting.retain(|command| !tasks.contains(&command.task));
    }

    /// All waiting commands: their tasks were aborted.
    pub(super) fn take_waiting(&mut self) -> VecDeque<Command> {
        std::mem::take(&mut self.waiting)
    }

    /// Charges what commands hold now. `machine_bytes`: what the session's machine holds.
    pub(super) fn charge(&mut self, machine_bytes: u64) {
        self.memory.set(self.reading_bytes + machine_bytes);
    }
}

impl CommandCost {
    pub(super) fn of(command: &Command) -> CommandCost {
        let (moved, written) = match command.direction {
            Direction::Read => (u64::from(command.expected_bytes.min(TRANSFER_BYTES_MAX)), 0),
            Direction::Write => (0, u64::from(command.expected_bytes)),
            Direction::None => (0, 0),
        };
        // These read a slice of the medium at a time, however little the initiator expects.
        let reads_slices = match command.cdb[0] {
            opcode::VERIFY_10 | opcode::VERIFY_16 => true,
            opcode::SERVICE_ACTION_IN_16 => command.cdb[1] & 0x1f == opcode::SA_GET_LBA_STATUS,
            _ => false,
        };
        let memory_bytes = if reads_slices { moved.max(SLICE_BYTES.into()) } else { moved };
        let queue_bytes = match command.cdb[0] {
            // They wait for reservations or leases to be persisted, and no completion is reported when they are withdrawn.
            opcode::PERSISTENT_RESERVE_OUT => None,
            opcode::STRONGROOM
                if matches!(command.cdb[1] & 0x1f, opcode::SA_CLAIM_LEASE | opcode::SA_RELEASE_LEASE) =>
            {
                None
            }
            opcode::WRITE_SAME_10 | opcode::WRITE_SAME_16 | opcode::EXTENDED_COPY => Some(SLICE_BYTES.into()),
            _ => Some(memory_bytes.max(written)),
        };
        CommandCost { memory_bytes, queue_bytes }
    }
}

#[cfg(test)]
mod tests {
    //! Proves that what a command makes the target hold is counted, independently of what the initiator expects.
    use strongroom_block::Lba;
    use strongroom_iscsi::Lun;
    use strongroom_iscsi::pdu::Attribute;
    use strongroom_scsi::cdb;

    use super::*;

    fn command(cdb: [u8; 16], direction: Direction, expected_bytes: u32) -> Command {
        Command {
            task: TaskId(1),
            lun: Lun::single_level(0),
            cdb,
            parameters: Default::default(),
            attribute: Attribute::Simple,
            direction,
            expected_bytes,
            immediate: false,
            data: Vec::new(),
        }
    }

    fn cost(command: &Command) -> u64 {
        CommandCost::of(command).memory_bytes
    }

    #[test]
    fn what_reads_the_medium_costs_memory() {
        let mut verify = [0; 16];
        for opcode in [opcode::VERIFY_10, opcode::VERIFY_16] {
            verify[0] = opcode;
            assert_eq!(cost(&command(verify, Direction::None, 0)), u64::from(SLICE_BYTES));
        }
        let status = cdb::get_lba_status(Lba(0), 24);
        assert_eq!(cost(&command(status, Direction::Read, 24)), u64::from(SLICE_BYTES));
        assert_eq!(cost(&command(cdb::read_16(Lba(0), 3), Direction::Read, 12288)), 12288);
        let write = command(cdb::write_16(Lba(0), 3, false), Direction::Write, 12288);
        assert_eq!((cost(&write), CommandCost::of(&write).queue_bytes), (0, Some(12288)));
    }
}

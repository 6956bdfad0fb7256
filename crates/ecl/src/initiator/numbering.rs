//! Numbers of commands, and behind which of them a command must not fall.

use strongroom_scsi::opcode;
use strongroom_scsi::transport::TaskAttribute;
use strongroom_scsi::transport::initiator::Command;

/// A command's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandNumber {
    /// Unique in the association.
    pub(super) number: u64,
    /// All commands before this number are handed over before it.
    pub(super) epoch: u64,
}

/// Gives commands their numbers as they leave.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    next: u64,
    /// One behind the last command that nothing may pass.
    barrier_end: u64,
}

impl Numbering {
    /// The number of the next command.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// A number for a command. `is_free`: it may pass others that are free, and they may pass it.
    pub(super) fn assign(&mut self, is_free: bool) -> CommandNumber {
        let number = self.next;
        self.next += 1;
        if is_free {
            return CommandNumber { number, epoch: self.barrier_end };
        }
        self.barrier_end = number + 1;
        CommandNumber { number, epoch: number }
    }
}

/// Whether a command may be handed over before or after others that were sent at about the same time. SAM-5 §8.6 lets a unit reorder simple
/// tasks; reads and writes of blocks are reordered on the way too, so that a lost packet delays one command and no other. Everything else
/// keeps its place.
pub(super) fn is_free(command: &Command) -> bool {
    let is_simple = matches!(command.attribute, TaskAttribute::Simple | TaskAttribute::Untagged);
    let moves_blocks = match command.cdb[0] {
        opcode::READ_6 | opcode::READ_10 | opcode::READ_12 | opcode::READ_16 => true,
        opcode::WRITE_6 | opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16 => true,
        opcode::STRONGROOM => {
            matches!(command.cdb[1] & 0x1f, opcode::SA_READ_VERSION | opcode::SA_CONDITIONAL_WRITE)
        }
        _ => false,
    };
    is_simple && moves_blocks
}

#[cfg(test)]
mod tests {
    use strongroom_scsi::transport::Lun;

    use super::*;

    #[test]
    fn only_blocks_pass_each_other() {
        let command = |opcode: u8| Command::without_data(Lun(0), [opcode, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(is_free(&command(opcode::READ_16)) && is_free(&command(opcode::WRITE_16)));
        assert!(!is_free(&command(opcode::SYNCHRONIZE_CACHE_16)) && !is_free(&command(opcode::PERSISTENT_RESERVE_OUT)));
        let ordered = Command { attribute: TaskAttribute::Ordered, ..command(opcode::READ_16) };
        assert!(!is_free(&ordered));
        let mut numbering = Numbering::default();
        let places: Vec<(u64, u64)> = [true, true, false, true]
            .into_iter()
            .map(|is_free| numbering.assign(is_free))
            .map(|place| (place.number, place.epoch))
            .collect();
        assert_eq!(places, [(0, 0), (1, 0), (2, 2), (3, 3)]);
    }
}

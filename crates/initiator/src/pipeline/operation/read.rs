//! Reads whole blocks into the caller's buffer.

use strongroom_block::{BufferMut, Lba};
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, take_blocks};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) lba: Lba,
    pub(crate) buffer: BufferMut,
}

impl Execute for Read {
    fn range(&self, block_bytes: usize) -> Range {
        Range::new(self.lba, (self.buffer.len() / block_bytes) as u64)
    }

    fn next_command(&mut self, capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        let (lba, count) = take_blocks(remaining, capabilities.transfer_blocks);
        CommandPlan::read(lba, count)
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.read_blocks(cdb::read_16(plan.lba_or_zero(), plan.count), plan.count)
    }

    fn data_in(&mut self, plan: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        let first = plan.lba_or_zero();
        let from = ((first.0 - self.lba.0) as usize) << data.shift;
        let out = &mut self.buffer[from..from + ((plan.count as usize) << data.shift)];
        data.open_into(first, out, |_, _| ())
    }

    fn refetch_from(&mut self, plan: &mut CommandPlan, lba: Lba) {
        // The blocks before it are in the buffer: Data-In comes in order (RFC 7143 §13.19, DataPDUInOrder), and the session checks that.
        let skipped = (lba.0 - plan.lba_or_zero().0) as u32;
        *plan = CommandPlan::read(lba, plan.count - skipped);
    }

    fn into_failed_read(self) -> Option<(Lba, BufferMut)> {
        Some((self.lba, self.buffer))
    }

    fn answer(self) -> Answer {
        Answer::Read(self.buffer)
    }
}

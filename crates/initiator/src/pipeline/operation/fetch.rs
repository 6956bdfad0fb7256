//! Fetches blocks and does not open them: only checks that each comes whole and with what opens it. For load generators.

use strongroom_block::Lba;
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, take_blocks};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) lba: Lba,
    pub(crate) count: u32,
}

impl Execute for Fetch {
    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, self.count.into())
    }

    fn next_command(&mut self, capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        let (lba, count) = take_blocks(remaining, capabilities.transfer_blocks);
        CommandPlan::read(lba, count)
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.read_blocks(cdb::read_16(plan.lba_or_zero(), plan.count), plan.count)
    }

    fn data_in(&mut self, plan: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        data.check_complete(plan.lba_or_zero()).map_err(Into::into)
    }
}

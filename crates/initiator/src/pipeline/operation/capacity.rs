//! How large the unit is now.

use strongroom_block::Lba;
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, Next};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, is_no_answer, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::write_order::Range;

#[derive(Debug, Default)]
pub(crate) struct Capacity {
    bytes: Vec<u8>,
}

impl Execute for Capacity {
    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::question(Lba(0), 0)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.read_bytes(cdb::read_capacity_16(), ReadCapacity16::BYTES as u32)
    }

    fn data_in(&mut self, _: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        self.bytes.extend_from_slice(data.bytes());
        Ok(())
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        if is_no_answer(outcome) { Next::Continue } else { Next::Fail(unexpected(outcome, plan.lba)) }
    }

    fn restart(&mut self) {
        self.bytes.clear();
    }

    fn answer(self) -> Answer {
        Answer::Capacity(ReadCapacity16::parse(&self.bytes).and_then(|capacity| capacity.geometry()))
    }
}

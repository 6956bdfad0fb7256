//! What blocks and holes are in a range of one transfer, with their data, opened.

use strongroom_block::{BufferMut, Lba};
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, Next};
use crate::pipeline::answer::{Answer, SurveyResult, SurveyedBlock, SurveyedHole};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, is_no_answer, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Survey {
    lba: Lba,
    count: u32,
    buffer: BufferMut,
    blocks: Vec<SurveyedBlock>,
    holes: Vec<SurveyedHole>,
}

impl Survey {
    /// `buffer` has room for `count` blocks.
    pub(crate) fn new(lba: Lba, count: u32, buffer: BufferMut) -> Survey {
        Survey { lba, count, buffer, blocks: Vec::new(), holes: Vec::new() }
    }
}

impl Execute for Survey {
    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, self.count.into())
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::question(self.lba, self.count)
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.read_blocks(cdb::read_16(self.lba, plan.count), plan.count)
    }

    fn data_in(&mut self, _: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        let blocks = &mut self.blocks;
        data.open_into(self.lba, &mut self.buffer, |lba, record| {
            blocks.push(SurveyedBlock { lba, epoch: record.epoch(), stamp: record.stamp().to_bytes() });
        })?;
        if data.is_absent() {
            let (lba, count) = data.blocks_covered(self.lba)?;
            self.holes.push(SurveyedHole { lba, count, epoch: data.hole(lba)?.record.epoch() });
        }
        Ok(())
    }

    fn expected_bytes(&self, plan: &CommandPlan, shift: u32) -> Option<u32> {
        Some(plan.count << shift)
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        if is_no_answer(outcome) { Next::Continue } else { Next::Fail(unexpected(outcome, plan.lba)) }
    }

    fn restart(&mut self) {
        self.blocks.clear();
        self.holes.clear();
    }

    fn answer(self) -> Answer {
        Answer::Survey(SurveyResult { data: self.buffer, blocks: self.blocks, holes: self.holes })
    }
}

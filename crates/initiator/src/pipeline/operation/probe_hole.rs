//! How many blocks from one on are proved absent (sealed units): a read, which moves no data where there is none.

use strongroom_block::Lba;
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, Next};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, is_no_answer, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::sealing::medium;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ProbeHole {
    lba: Lba,
    count: u32,
    /// Fewer than wanted where a transfer is limited.
    asked_blocks: u32,
    found: Found,
}

#[derive(Debug, Default)]
struct Found {
    hole_blocks: u64,
    oldest_epoch: Option<u32>,
    saw_data: bool,
}

impl ProbeHole {
    pub(crate) fn new(lba: Lba, count: u32) -> ProbeHole {
        ProbeHole { lba, count, asked_blocks: 0, found: Found::default() }
    }
}

impl Execute for ProbeHole {
    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, self.count.into())
    }

    fn next_command(&mut self, capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        let blocks = u64::from(self.count).min(capabilities.probe_blocks);
        self.asked_blocks = blocks.clamp(1, u64::from(u32::MAX)) as u32;
        CommandPlan::question(self.lba, self.asked_blocks)
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.read_blocks(cdb::read_16(self.lba, plan.count), plan.count)
    }

    fn data_in(&mut self, _: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        let (lba, count) = data.blocks_covered(self.lba)?;
        if !data.is_absent() {
            self.found.saw_data = true;
        } else if !self.found.saw_data {
            let hole = data.hole(lba)?;
            let sealing = data.sealing.ok_or_else(|| medium(lba, "a hole on a plain unit"))?;
            sealing.open_hole(lba, count, &hole)?;
            self.found.hole_blocks += count;
            let epoch = hole.record.epoch();
            self.found.oldest_epoch = Some(self.found.oldest_epoch.map_or(epoch, |oldest| oldest.min(epoch)));
        }
        Ok(())
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        if is_no_answer(outcome) { Next::Continue } else { Next::Fail(unexpected(outcome, plan.lba)) }
    }

    fn restart(&mut self) {
        self.found = Found::default();
    }

    fn answer(self) -> Answer {
        let Found { hole_blocks, oldest_epoch, .. } = self.found;
        Answer::HoleBlocks { absent: hole_blocks, asked: self.asked_blocks, oldest_epoch }
    }
}

//! Replaces the seal of one block if its newest version still has a given stamp. Unlike a conditional write it is not made durable by itself,
//! and that another initiator wrote first is an answer, not an error.

use strongroom_block::{DeviceError, Lba};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::conditional_block::{Comparison, ConditionalBlock};
use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::Outcome;
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ResealBlock {
    block: ConditionalBlock,
    comparison: Comparison,
}

impl ResealBlock {
    pub(crate) fn new(lba: Lba, expected: [u8; 24], sealed: SealedBlocks) -> ResealBlock {
        ResealBlock { block: ConditionalBlock::new(lba, expected, sealed), comparison: Comparison::default() }
    }
}

impl Execute for ResealBlock {
    fn effect(&self) -> Effect {
        Effect::Seals
    }

    fn range(&self, _: usize) -> Range {
        self.block.range()
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::write_uncounted(self.block.lba(), 1)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        self.block.build(context)
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        self.comparison.declined(plan, outcome)
    }

    fn restart(&mut self) {
        self.comparison.restart();
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        self.block.first_record(plan)
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        self.block.reseal(sealing).map(|()| None)
    }

    fn answer(self) -> Answer {
        self.comparison.answer()
    }
}

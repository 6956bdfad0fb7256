//! Writes one sealed block if its newest version still has a given stamp. Durable when it is acknowledged.

use strongroom_block::{DeviceError, Lba};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::conditional_block::ConditionalBlock;
use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next, UnitContext};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ConditionalWrite {
    block: ConditionalBlock,
}

impl ConditionalWrite {
    pub(crate) fn new(lba: Lba, expected: [u8; 24], sealed: SealedBlocks) -> ConditionalWrite {
        ConditionalWrite { block: ConditionalBlock::new(lba, expected, sealed) }
    }

    fn write(&self) -> CommandPlan {
        CommandPlan::write(self.block.lba(), 1)
    }
}

impl Execute for ConditionalWrite {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, _: usize) -> Range {
        self.block.range()
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        self.write()
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        self.block.build(context)
    }

    fn succeeded(&mut self, _: &CommandPlan, _: UnitContext<'_>) -> Next {
        Next::Flush
    }

    fn instead_of_lost_flush(&self, _: bool) -> Option<CommandPlan> {
        Some(self.write())
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        self.block.first_record(plan)
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        self.block.reseal(sealing).map(|()| None)
    }
}

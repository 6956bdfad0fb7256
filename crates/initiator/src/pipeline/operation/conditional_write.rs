//! Writes one sealed block if its newest version still has a given stamp. Durable when it is acknowledged.

use strongroom_block::{Buffer, DeviceError, Lba};
use strongroom_scsi::VendorCommand;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next, UnitContext};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::sealing::{Records, SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ConditionalWrite {
    pub(crate) lba: Lba,
    pub(crate) expected: [u8; 24],
    pub(crate) data: Buffer,
    pub(crate) records: Records,
}

impl Execute for ConditionalWrite {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, 1)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::write(self.lba, 1)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let cdb = VendorCommand::ConditionalWrite { lba: self.lba, count: 1 }.encode();
        context.write_blocks(cdb, self.data.clone(), Some(self.records.clone()), Some(&self.expected))
    }

    fn succeeded(&mut self, _: &CommandPlan, _: UnitContext<'_>) -> Next {
        Next::Flush
    }

    fn instead_of_lost_flush(&self, _: bool) -> Option<CommandPlan> {
        Some(CommandPlan::write(self.lba, 1))
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        plan.writes().then(|| (self.records.first_stamp(), self.records.epoch()))
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        let sealed = SealedBlocks { data: self.data.clone(), records: self.records.clone() };
        SealedBlocks { data: self.data, records: self.records } = sealing.seal_again(self.lba, &sealed)?;
        Ok(None)
    }
}

//! Discards blocks of a sealed unit: writes a sealed hole.

use strongroom_block::{Buffer, DeviceError, HoleRecord};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;
use strongroom_scsi::{VendorCommand, vendor};

use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::unflushed::Logged;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Hole(pub(crate) HoleRecord);

/// SEAL HOLE; `expected`: only where the range still is this.
pub(super) fn build_hole(hole: &HoleRecord, expected: Option<&[u8; 24]>, context: &BuildContext<'_>) -> ScsiCommand {
    let list = Buffer::copy_from(&vendor::encode_holes(std::slice::from_ref(hole)));
    let cdb = VendorCommand::SealHole { parameter_list_len: list.len() as u32 }.encode();
    context.with_parameters(context.unit.write_bytes(cdb, list), expected)
}

impl Execute for Hole {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, _: usize) -> Range {
        Range::new(self.0.start, self.0.count)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::write_uncounted(self.0.start, 0)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        build_hole(&self.0, None, context)
    }

    fn log_entry(&self, _: &CommandPlan, _: Option<SealedBlocks>, block_bytes: usize) -> Option<(Range, Logged)> {
        Some((self.range(block_bytes), Logged::Hole(self.0.clone())))
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        plan.writes().then(|| (self.0.record.stamp(), self.0.record.epoch()))
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        self.0 = sealing.seal_hole(self.0.start, self.0.count)?;
        Ok(None)
    }
}

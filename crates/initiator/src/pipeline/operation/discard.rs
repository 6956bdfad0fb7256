//! Discards blocks of a plain unit: UNMAP where unmapped blocks read as zeros, otherwise zeros are written.

use strongroom_block::{Buffer, BufferMut, Lba};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;
use strongroom_scsi::{cdb, provisioning};

use super::execute::{BuildContext, Capabilities, Effect, Execute, take_blocks};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::sealing::SealedBlocks;
use crate::pipeline::unflushed::Logged;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Discard {
    pub(crate) lba: Lba,
    pub(crate) count: u64,
}

impl Execute for Discard {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, self.count)
    }

    fn next_command(&mut self, capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        match capabilities.unmap_blocks {
            Some(blocks_max) => {
                let (lba, count) = take_blocks(remaining, blocks_max);
                CommandPlan::write_uncounted(lba, count)
            }
            None => {
                let (lba, count) = take_blocks(remaining, capabilities.transfer_blocks);
                CommandPlan::write(lba, count)
            }
        }
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let (lba, count) = (plan.lba_or_zero(), plan.count);
        // It has data if it was planned for a unit without UNMAP.
        if plan.data_blocks > 0 {
            let zeros = BufferMut::zeroed(context.unit.bytes_of(count) as usize).freeze();
            return context.unit.write_bytes(cdb::write_16(lba, count, false), zeros);
        }
        let list = Buffer::copy_from(&provisioning::unmap_parameters(&[(lba, count)]));
        context.unit.write_bytes(cdb::unmap(list.len() as u16), list)
    }

    fn log_entry(&self, plan: &CommandPlan, _: Option<SealedBlocks>, _: usize) -> Option<(Range, Logged)> {
        Some((Range::new(plan.lba_or_zero(), plan.count.into()), Logged::Discard))
    }
}

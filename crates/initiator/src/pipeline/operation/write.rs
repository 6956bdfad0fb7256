//! Writes whole blocks. On a sealed unit they come sealed, or plain: then each command is sealed when the pipeline has room for it.

use strongroom_block::{Buffer, DeviceError, Lba};
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, take_blocks};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::sealing::{Records, SealedBlocks, Sealing};
use crate::pipeline::unflushed::Logged;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) lba: Lba,
    pub(crate) data: Buffer,
    /// `None` on a plain unit, and on a sealed one if the pipeline seals the blocks.
    pub(crate) records: Option<Records>,
    pub(crate) fua: bool,
}

impl Write {
    /// The blocks of one command, and their records.
    fn blocks(&self, plan: &CommandPlan, block_bytes: usize) -> (Buffer, Option<Records>) {
        let (from, count) = ((plan.lba_or_zero().0 - self.lba.0) as usize, plan.count as usize);
        let records = self.records.as_ref().map(|records| {
            let each = self.record_bytes(records, block_bytes);
            records.slice(from * each..(from + count) * each)
        });
        (self.data.slice(from * block_bytes..(from + count) * block_bytes), records)
    }

    fn record_bytes(&self, records: &Records, block_bytes: usize) -> usize {
        records.len() / (self.data.len() / block_bytes)
    }
}

impl Execute for Write {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, block_bytes: usize) -> Range {
        Range::new(self.lba, (self.data.len() / block_bytes) as u64)
    }

    fn next_command(&mut self, capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        let (lba, count) = take_blocks(remaining, capabilities.transfer_blocks);
        CommandPlan::write(lba, count)
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let (data, records) = match context.sealed {
            Some(sealed) => (sealed.data.clone(), Some(sealed.records.clone())),
            None => self.blocks(plan, context.unit.block_bytes()),
        };
        context.write_blocks(cdb::write_16(plan.lba_or_zero(), plan.count, self.fua), data, records, None)
    }

    fn measures_path(&self) -> bool {
        true
    }

    fn log_entry(
        &self,
        plan: &CommandPlan,
        sealed: Option<SealedBlocks>,
        block_bytes: usize,
    ) -> Option<(Range, Logged)> {
        let (data, records) = match sealed {
            Some(sealed) => (sealed.data, Some(sealed.records)),
            None => self.blocks(plan, block_bytes),
        };
        Some((Range::new(plan.lba_or_zero(), plan.count.into()), Logged::Write { data, records }))
    }

    fn is_plain_write(&self) -> bool {
        self.records.is_none()
    }

    fn plain_blocks(&self, plan: &CommandPlan, block_bytes: usize) -> Option<Buffer> {
        Some(self.blocks(plan, block_bytes).0)
    }

    fn first_record(&self, plan: &CommandPlan, block_bytes: usize) -> Option<FirstRecord> {
        let records = self.records.as_ref()?;
        let from = (plan.lba_or_zero().0 - self.lba.0) as usize * self.record_bytes(records, block_bytes);
        Some((records.stamp_at(from), records.epoch()))
    }

    fn reseal(&mut self, plan: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        let (data, Some(records)) = self.blocks(plan, sealing.block_bytes()) else { return Ok(None) };
        sealing.seal_again(plan.lba_or_zero(), &SealedBlocks { data, records }).map(Some)
    }

    fn lost_request(&self, block_bytes: usize) -> Option<LostRequest> {
        Some(LostRequest::write(self.lba, self.data.len(), block_bytes))
    }
}

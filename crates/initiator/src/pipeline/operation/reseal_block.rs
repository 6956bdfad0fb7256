//! Replaces the seal of one block if its newest version still has a given stamp. Unlike a conditional write it is not made durable by itself,
//! and that another initiator wrote first is an answer, not an error.

use strongroom_block::{Buffer, DeviceError, Lba};
use strongroom_scsi::VendorCommand;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, unexpected};
use crate::pipeline::sealing::{Records, SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ResealBlock {
    lba: Lba,
    expected: [u8; 24],
    data: Buffer,
    records: Records,
    /// Another initiator wrote first.
    miscompared: bool,
}

impl ResealBlock {
    pub(crate) fn new(lba: Lba, expected: [u8; 24], sealed: SealedBlocks) -> ResealBlock {
        ResealBlock { lba, expected, data: sealed.data, records: sealed.records, miscompared: false }
    }
}

impl Execute for ResealBlock {
    fn effect(&self) -> Effect {
        Effect::Seals
    }

    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, 1)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::write_uncounted(self.lba, 1)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let cdb = VendorCommand::ConditionalWrite { lba: self.lba, count: 1 }.encode();
        context.write_blocks(cdb, self.data.clone(), Some(self.records.clone()), Some(&self.expected))
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        if *outcome != Outcome::Miscompare {
            return Next::Fail(unexpected(outcome, plan.lba));
        }
        self.miscompared = true;
        Next::Continue
    }

    fn restart(&mut self) {
        self.miscompared = false;
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        plan.writes().then(|| (self.records.first_stamp(), self.records.epoch()))
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        let sealed = SealedBlocks { data: self.data.clone(), records: self.records.clone() };
        SealedBlocks { data: self.data, records: self.records } = sealing.seal_again(self.lba, &sealed)?;
        Ok(None)
    }

    fn answer(self) -> Answer {
        Answer::Resealed(!self.miscompared)
    }
}

//! What the operations have in common that write one sealed block if its newest version still has a given stamp.

use strongroom_block::{DeviceError, Lba};
use strongroom_scsi::VendorCommand;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, FirstRecord, Next};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, unexpected};
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

/// The stamp that stands for "absent" in a comparison.
pub(super) const ABSENT: [u8; 24] = [0; 24];

/// One block of CONDITIONAL WRITE.
#[derive(Debug)]
pub(super) struct ConditionalBlock {
    lba: Lba,
    expected: [u8; 24],
    sealed: SealedBlocks,
}

impl ConditionalBlock {
    pub(super) fn new(lba: Lba, expected: [u8; 24], sealed: SealedBlocks) -> ConditionalBlock {
        ConditionalBlock { lba, expected, sealed }
    }

    pub(super) fn lba(&self) -> Lba {
        self.lba
    }

    /// The key epoch of its seal.
    pub(super) fn epoch(&self) -> u32 {
        self.sealed.records.epoch()
    }

    pub(super) fn range(&self) -> Range {
        Range::new(self.lba, 1)
    }

    pub(super) fn build(&self, context: &BuildContext<'_>) -> ScsiCommand {
        let cdb = VendorCommand::ConditionalWrite { lba: self.lba, count: 1 }.encode();
        let SealedBlocks { data, records } = self.sealed.clone();
        context.write_blocks(cdb, data, Some(records), Some(&self.expected))
    }

    pub(super) fn first_record(&self, plan: &CommandPlan) -> Option<FirstRecord> {
        plan.writes().then(|| (self.sealed.records.first_stamp(), self.epoch()))
    }

    pub(super) fn reseal(&mut self, sealing: &Sealing) -> Result<(), DeviceError> {
        self.sealed = sealing.seal_again(self.lba, &self.sealed)?;
        Ok(())
    }
}

/// The result of a comparison whose failure is an answer, not an error: another initiator wrote first.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    has_failed: bool,
}

impl Comparison {
    /// The command was answered with neither success nor an error.
    pub(super) fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome) -> Next {
        if *outcome != Outcome::Miscompare {
            return Next::Fail(unexpected(outcome, plan.lba));
        }
        self.has_failed = true;
        Next::Continue
    }

    /// The command is sent again.
    pub(super) fn restart(&mut self) {
        self.has_failed = false;
    }

    /// Whether the seal was replaced.
    pub(super) fn answer(&self) -> Answer {
        Answer::Resealed(!self.has_failed)
    }
}

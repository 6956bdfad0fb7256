//! Replaces the seal of a hole where there is no data. It is not in the log of unflushed writes: resealing checks whether the target was
//! restarted.

use strongroom_block::{DeviceError, HoleRecord};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next};
use super::hole::build_hole;
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, unexpected};
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

/// The stamp that stands for "absent".
const ABSENT: [u8; 24] = [0; 24];

#[derive(Debug)]
pub(crate) struct ResealHole {
    hole: HoleRecord,
    /// Another initiator wrote data first.
    miscompared: bool,
}

impl ResealHole {
    pub(crate) fn new(hole: HoleRecord) -> ResealHole {
        ResealHole { hole, miscompared: false }
    }
}

impl Execute for ResealHole {
    fn effect(&self) -> Effect {
        Effect::Seals
    }

    fn range(&self, _: usize) -> Range {
        Range::new(self.hole.start, self.hole.count)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::write_uncounted(self.hole.start, 0)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        build_hole(&self.hole, Some(&ABSENT), context)
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
        plan.writes().then(|| (self.hole.record.stamp(), self.hole.record.epoch()))
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        self.hole = sealing.seal_hole(self.hole.start, self.hole.count)?;
        Ok(None)
    }

    fn answer(self) -> Answer {
        Answer::Resealed(!self.miscompared)
    }
}

//! Replaces the seal of a hole where there is no data. It is not in the log of unflushed writes: resealing checks whether the target was
//! restarted.

use strongroom_block::{DeviceError, HoleRecord};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::conditional_block::{ABSENT, Comparison};
use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next};
use super::hole::build_hole;
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::Outcome;
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ResealHole {
    hole: HoleRecord,
    comparison: Comparison,
}

impl ResealHole {
    pub(crate) fn new(hole: HoleRecord) -> ResealHole {
        ResealHole { hole, comparison: Comparison::default() }
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
        self.comparison.declined(plan, outcome)
    }

    fn restart(&mut self) {
        self.comparison.restart();
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        plan.writes().then(|| (self.hole.record.stamp(), self.hole.record.epoch()))
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        self.hole = sealing.seal_hole(self.hole.start, self.hole.count)?;
        Ok(None)
    }

    fn answer(self) -> Answer {
        self.comparison.answer()
    }
}

//! Puts a unit in the place of the one whose successor it was made to be.

use strongroom_block::Lba;
use strongroom_scsi::VendorCommand;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Effect, Execute};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct TakePlace;

impl Execute for TakePlace {
    fn effect(&self) -> Effect {
        Effect::Metadata
    }

    fn range(&self, _: usize) -> Range {
        Range::new(Lba(0), 0)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::control()
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.without_data(VendorCommand::TakePlace.encode())
    }
}

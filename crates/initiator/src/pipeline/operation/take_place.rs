//! Puts a unit in the place of the one whose successor it was made to be.

use strongroom_scsi::VendorCommand;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Effect, Execute};
use crate::pipeline::command_plan::CommandPlan;

#[derive(Debug)]
pub(crate) struct TakePlace;

impl Execute for TakePlace {
    fn effect(&self) -> Effect {
        Effect::Metadata
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.without_data(VendorCommand::TakePlace.encode())
    }
}

//! Registers an attach id with the unit, before operations under it are sent.

use strongroom_block::{AttachId, Buffer};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;
use strongroom_scsi::{VendorCommand, vendor};

use super::execute::{BuildContext, Capabilities, Effect, Execute, Next, UnitContext};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct Register {
    pub(crate) attach_id: AttachId,
}

impl Execute for Register {
    fn effect(&self) -> Effect {
        Effect::Metadata
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::registration()
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let list = Buffer::copy_from(&self.attach_id.0);
        let cdb = VendorCommand::RegisterAttachment { parameter_list_len: vendor::ATTACH_ID_BYTES }.encode();
        context.unit.write_bytes(cdb, list)
    }

    fn succeeded(&mut self, _: &CommandPlan, _: UnitContext<'_>) -> Next {
        Next::Registered
    }
}

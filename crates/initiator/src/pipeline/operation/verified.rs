//! Feedback: tells the target which versions have opened, so that it need not retain older ones.

use strongroom_block::{Buffer, Lba, StoreSequence};
use strongroom_scsi::transport::initiator::Command as ScsiCommand;
use strongroom_scsi::{VendorCommand, vendor};

use super::execute::{BuildContext, Effect, Execute};
use crate::pipeline::command_plan::CommandPlan;

#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) pairs: Vec<(Lba, StoreSequence)>,
}

impl Execute for Verified {
    fn effect(&self) -> Effect {
        Effect::Metadata
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let list = Buffer::copy_from(&vendor::encode_verified(&self.pairs));
        let cdb = VendorCommand::Verified { parameter_list_len: list.len() as u32 }.encode();
        context.unit.write_bytes(cdb, list)
    }
}

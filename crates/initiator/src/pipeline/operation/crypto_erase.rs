//! Makes the target forget everything: there are no keys of epochs before a given one any more.

use strongroom_block::Lba;
use strongroom_scsi::cdb;
use strongroom_scsi::transport::Parameters;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Effect, Execute, Next, UnitContext};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct CryptoErase {
    pub(crate) epoch: u32,
    pub(crate) blocks: u64,
}

impl Execute for CryptoErase {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, _: usize) -> Range {
        Range::new(Lba(0), self.blocks)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let parameters = Parameters { keys_destroyed: Some(self.epoch), ..Parameters::default() };
        ScsiCommand { parameters, ..context.unit.without_data(cdb::sanitize_crypto_erase()) }
    }

    fn succeeded(&mut self, _: &CommandPlan, _: UnitContext<'_>) -> Next {
        Next::Erased
    }
}

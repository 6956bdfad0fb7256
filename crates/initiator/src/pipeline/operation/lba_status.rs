//! What the target says about a block and those that follow: mapped or not. A hint, which proves nothing.

use strongroom_block::Lba;
use strongroom_scsi::cdb;
use strongroom_scsi::provisioning::parse_lba_status;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, Next};
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, is_no_answer, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::write_order::Range;

/// Bytes asked for: the header and one descriptor are enough.
const ANSWER_BYTES: u32 = 8 + 16;

#[derive(Debug)]
pub(crate) struct LbaStatus {
    lba: Lba,
    bytes: Vec<u8>,
}

impl LbaStatus {
    pub(crate) fn new(lba: Lba) -> LbaStatus {
        LbaStatus { lba, bytes: Vec::new() }
    }
}

impl Execute for LbaStatus {
    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, 1)
    }

    fn is_supported(&self, capabilities: &Capabilities) -> bool {
        capabilities.has_lba_status
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::question(self.lba, 0)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        context.unit.read_bytes(cdb::get_lba_status(self.lba, ANSWER_BYTES), ANSWER_BYTES)
    }

    fn data_in(&mut self, _: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        self.bytes.extend_from_slice(data.bytes());
        Ok(())
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, capabilities: &mut Capabilities) -> Next {
        if !is_no_answer(outcome) {
            return Next::Fail(unexpected(outcome, plan.lba));
        }
        capabilities.has_lba_status &= *outcome != Outcome::NotSupported;
        Next::Continue
    }

    fn restart(&mut self) {
        self.bytes.clear();
    }

    fn answer(self) -> Answer {
        Answer::LbaStatus(parse_lba_status(&self.bytes).and_then(|all| all.into_iter().next()))
    }
}

//! Reads a stored version of one block without opening it: the newest, or the newest older than a given one.

use strongroom_block::{BufferMut, Lba, OpenError, StoreSequence};
use strongroom_scsi::VendorCommand;
use strongroom_scsi::transport::Parameters;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::execute::{BuildContext, Capabilities, Execute, Next};
use crate::pipeline::answer::{Answer, Version};
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::outcome::{Outcome, is_no_answer, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::write_order::Range;

#[derive(Debug)]
pub(crate) struct ReadVersion {
    lba: Lba,
    /// 0: the newest of all.
    older_than: StoreSequence,
    version: Option<Box<Version>>,
}

impl ReadVersion {
    pub(crate) fn new(lba: Lba, older_than: StoreSequence) -> ReadVersion {
        ReadVersion { lba, older_than, version: None }
    }
}

impl Execute for ReadVersion {
    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, 1)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        CommandPlan::question(self.lba, 1)
    }

    fn build(&self, _: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        let parameters = Parameters { older_than: Some(self.older_than), ..Parameters::default() };
        let command = context.unit.read_blocks(VendorCommand::ReadVersion { lba: self.lba }.encode(), 1);
        ScsiCommand { parameters, ..command }
    }

    fn data_in(&mut self, _: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        let version = data.version(self.lba)?;
        // Opened here only to see whether it is to be fetched again; without a key that cannot be told.
        let damaged = match (&version, data.sealing) {
            (Version::Block { sequence, record, data }, Some(sealing)) => {
                let opened = sealing.open_version(self.lba, record, data, &mut BufferMut::to_fill(data.len()));
                matches!(opened, Ok(Err(OpenError::NotAuthentic))).then_some(*sequence)
            }
            _ => None,
        };
        self.version = Some(Box::new(version));
        damaged.map_or(Ok(()), |sequence| Err(ReadFault::NotAuthentic { lba: self.lba, sequence }))
    }

    fn accepts_damage(&self) -> bool {
        true
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        if is_no_answer(outcome) { Next::Continue } else { Next::Fail(unexpected(outcome, plan.lba)) }
    }

    fn restart(&mut self) {
        self.version = None;
    }

    fn answer(self) -> Answer {
        Answer::Version(self.version.map(|version| *version))
    }
}

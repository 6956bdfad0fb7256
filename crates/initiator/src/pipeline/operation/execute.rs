//! What every operation tells the pipeline: how it is split into commands and built, what it does with data, what follows from the end of a
//! command, and what it answers. One file per operation implements [`Execute`]; the defaults suit one command
//! that is about no blocks.

use strongroom_block::{Buffer, DeviceError, DeviceErrorKind, Lba, Stamp};
use strongroom_scsi::transport::initiator::{Command as ScsiCommand, WriteRecords, WriteSource};
use strongroom_scsi::transport::{Operation, Parameters};

use crate::completion::device_error;
use crate::pipeline::answer::Answer;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::outcome::{Outcome, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::sealing::{Records, SealedBlocks, Sealing};
use crate::pipeline::unflushed::Logged;
use crate::pipeline::unit::UnitDescription;
use crate::pipeline::write_order::Range;

/// What an operation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: it reads, or asks.
    None,
    /// What the target keeps besides blocks, or their durability.
    Metadata,
    /// Seals only; readers get the same data as before.
    Seals,
    /// What readers get.
    Blocks,
}

impl Effect {
    /// Whether the right to write is needed.
    pub(crate) fn needs_write_access(self) -> bool {
        self != Effect::None
    }

    /// Whether other writers of the same blocks have to wait.
    pub(crate) fn excludes_writers(self) -> bool {
        matches!(self, Effect::Seals | Effect::Blocks)
    }
}

/// What the unit can do, as far as it matters for splitting requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    /// Blocks of one READ or WRITE.
    pub(crate) transfer_blocks: u64,
    /// Blocks of one UNMAP; `None` where zeros are written instead.
    pub(crate) unmap_blocks: Option<u64>,
    /// Blocks of one probe for holes.
    pub(crate) probe_blocks: u64,
    /// GET LBA STATUS works.
    pub(crate) has_lba_status: bool,
}

/// What follows from the end of a command.
#[derive(Debug)]
pub(crate) enum Next {
    /// The rest of the request; it has ended if there is none.
    Continue,
    /// What was written is made durable before the request ends.
    Flush,
    /// Another command.
    Send(CommandPlan),
    /// As `Send`: another initiator was faster, and the operation starts over.
    StartOver(CommandPlan),
    /// The unit knows the attach id now; the request has ended.
    Registered,
    /// Everything on the volume is gone, and is not sent again; the request has ended.
    Erased,
    /// The request fails.
    Fail(DeviceError),
}

/// What commands are built from, besides the operation.
#[derive(Clone, Copy)]
pub(crate) struct UnitContext<'a> {
    pub(crate) unit: &'a UnitDescription,
    /// `None` on a plain unit.
    pub(crate) sealing: Option<&'a Sealing>,
}

impl UnitContext<'_> {
    pub(crate) fn block_bytes(&self) -> usize {
        self.unit.geometry.block_size.len()
    }

    pub(crate) fn bytes_of(&self, blocks: u32) -> u32 {
        blocks << self.unit.geometry.block_size.shift()
    }

    /// A command that fetches blocks.
    pub(crate) fn read_blocks(&self, cdb: [u8; 16], count: u32) -> ScsiCommand {
        ScsiCommand {
            sealed_block_bytes: self.sealing.is_some().then(|| self.unit.geometry.block_size.bytes()),
            ..ScsiCommand::read(self.unit.wire_lun(), cdb, self.bytes_of(count))
        }
    }

    /// A command whose answer is not blocks.
    pub(crate) fn read_bytes(&self, cdb: [u8; 16], bytes: u32) -> ScsiCommand {
        ScsiCommand::read(self.unit.wire_lun(), cdb, bytes)
    }

    /// A command with a parameter list, or with blocks that are not sealed.
    pub(crate) fn write_bytes(&self, cdb: [u8; 16], data: Buffer) -> ScsiCommand {
        ScsiCommand::write(self.unit.wire_lun(), cdb, WriteSource::plain(data))
    }

    pub(crate) fn without_data(&self, cdb: [u8; 16]) -> ScsiCommand {
        ScsiCommand::without_data(self.unit.wire_lun(), cdb)
    }
}

/// The same, for one command that may write.
pub(crate) struct BuildContext<'a> {
    pub(crate) unit: UnitContext<'a>,
    /// What the pipeline has sealed for this command.
    pub(crate) sealed: Option<&'a SealedBlocks>,
    /// How the unit is to recognize it, where its first stamp does not tell.
    pub(crate) operation: Option<Operation>,
}

impl BuildContext<'_> {
    /// A command that writes blocks; `expected`: only if the first block still has this stamp.
    pub(crate) fn write_blocks(
        &self,
        cdb: [u8; 16],
        data: Buffer,
        records: Option<Records>,
        expected: Option<&[u8; 24]>,
    ) -> ScsiCommand {
        let block_bytes = self.unit.unit.geometry.block_size.bytes();
        let record_bytes = self.unit.sealing.map_or(0, |sealing| sealing.record_bytes() as u32);
        let records = records.map(|records| WriteRecords { block_bytes, record_bytes, bytes: records.into_bytes() });
        let source = WriteSource { data, records };
        let command = ScsiCommand::write(self.unit.unit.wire_lun(), cdb, source);
        self.with_parameters(command, expected)
    }

    /// Adds what the unit recognizes the write by, and what it is to compare.
    pub(crate) fn with_parameters(&self, command: ScsiCommand, expected: Option<&[u8; 24]>) -> ScsiCommand {
        let (expected_stamp, operation) = (expected.copied(), self.operation.map(Ok));
        ScsiCommand { parameters: Parameters { expected_stamp, operation, ..command.parameters }, ..command }
    }
}

/// The stamp of the first record that a command writes, and its key epoch.
pub(crate) type FirstRecord = (Stamp, u32);

/// One kind of request.
pub(crate) trait Execute: Sized {
    /// What it changes.
    fn effect(&self) -> Effect {
        Effect::None
    }

    /// The blocks concerned.
    fn range(&self, block_bytes: usize) -> Range {
        let _ = block_bytes;
        Range::new(Lba(0), 0)
    }

    /// It makes earlier writes durable.
    fn is_flush(&self) -> bool {
        false
    }

    /// Whether the unit can be asked at all; otherwise the request ends at once.
    fn is_supported(&self, capabilities: &Capabilities) -> bool {
        let _ = capabilities;
        true
    }

    /// The next command of the blocks that `remaining` names; takes what it covers from them. For most operations that is all.
    fn next_command(&mut self, capabilities: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        let _ = capabilities;
        *remaining = None;
        CommandPlan::control()
    }

    /// Builds a command, each time that it is sent.
    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand;

    /// Takes in data. What is wrong with it counts when the command ends.
    fn data_in(&mut self, plan: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        let _ = (plan, data);
        Err(unrequested_data())
    }

    /// The data that a command must have moved when it reports success, in bytes; `None` if any length will do.
    fn expected_bytes(&self, plan: &CommandPlan, shift: u32) -> Option<u32> {
        (plan.reads() && plan.data_blocks > 0).then(|| plan.data_blocks << shift)
    }

    /// That a version does not open is an answer, once it was fetched again.
    fn accepts_damage(&self) -> bool {
        false
    }

    /// Its transfer time tells what the path carries.
    fn measures_path(&self) -> bool {
        false
    }

    /// A command has succeeded.
    fn succeeded(&mut self, plan: &CommandPlan, context: UnitContext<'_>) -> Next {
        let _ = (plan, context);
        Next::Continue
    }

    /// A command was answered with neither success nor an error.
    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, capabilities: &mut Capabilities) -> Next {
        let _ = capabilities;
        Next::Fail(unexpected(outcome, plan.lba))
    }

    /// What a command that succeeded adds to the log of unflushed writes.
    fn log_entry(
        &self,
        plan: &CommandPlan,
        sealed: Option<SealedBlocks>,
        block_bytes: usize,
    ) -> Option<(Range, Logged)> {
        let _ = (plan, sealed, block_bytes);
        None
    }

    /// Drops what has arrived: the command is sent again.
    fn restart(&mut self) {}

    /// The same, where only the blocks from `lba` on are needed again.
    fn refetch_from(&mut self, plan: &mut CommandPlan, lba: Lba) {
        let _ = (plan, lba);
        self.restart();
    }

    /// A flush of what a command wrote got no answer: what is sent instead, if the write must be repeated for it.
    fn instead_of_lost_flush(&self, is_sealed: bool) -> Option<CommandPlan> {
        let _ = is_sealed;
        None
    }

    /// A write that was never sent is about to be: what to send instead if its seal is of an old epoch and the write can start over.
    fn instead_of_stale(&self, sealing: &Sealing) -> Option<CommandPlan> {
        let _ = sealing;
        None
    }

    /// It came in plain, and the pipeline seals its commands.
    fn is_plain_write(&self) -> bool {
        false
    }

    /// What the pipeline is to seal for a command.
    fn plain_blocks(&self, plan: &CommandPlan, block_bytes: usize) -> Option<Buffer> {
        let _ = (plan, block_bytes);
        None
    }

    /// The first record that a command writes; `None` if it writes none.
    fn first_record(&self, plan: &CommandPlan, block_bytes: usize) -> Option<FirstRecord> {
        let _ = (plan, block_bytes);
        None
    }

    /// Seals what a command writes again. Returns the blocks if they are the command's alone; otherwise they are kept in the operation.
    fn reseal(&mut self, plan: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        let _ = (plan, sealing);
        Ok(None)
    }

    /// What is lost if the request fails.
    fn lost_request(&self, block_bytes: usize) -> Option<LostRequest> {
        let _ = block_bytes;
        None
    }

    /// The first block and the buffer of a read that fails.
    fn into_failed_read(self) -> Option<(Lba, strongroom_block::BufferMut)> {
        None
    }

    /// What a request is answered that has ended without an error.
    fn answer(self) -> Answer {
        Answer::Done
    }
}

/// The error of a command to which data came although it reads none.
pub(crate) fn unrequested_data() -> ReadFault {
    let message = "the target sent data that no command asked for";
    device_error(DeviceErrorKind::Hardware, None, message).into()
}

/// Takes up to `blocks_max` blocks from `remaining`.
pub(crate) fn take_blocks(remaining: &mut Option<Range>, blocks_max: u64) -> (Lba, u32) {
    let Some(range) = remaining else { return (Lba(0), 0) };
    let (lba, count) = (Lba(range.start), (range.end - range.start).min(blocks_max));
    range.start += count;
    if range.start == range.end {
        *remaining = None;
    }
    (lba, count as u32)
}

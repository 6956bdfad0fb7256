//! Replaces part of a block without losing another initiator's update: reads it, changes it, and writes it only if nothing came in between.
//!
//! On a sealed unit CONDITIONAL WRITE compares the stamp that was read, on a plain one COMPARE AND WRITE the contents. Nothing is written back
//! unconditionally. `WriteOrder` separates writers of this initiator; the comparison is against other initiators, and a mismatch starts
//! over. After a lost connection a sealed unit knows whether it has executed the write; on a plain one the same write may find its own data,
//! which counts as done.
//!
//! A part is durable when it is acknowledged: a flush follows each. That costs a flush for every part (a file system with the
//! volume's block size writes none). In return a part is never replayed: after a restart of the target a replay would restore the whole block
//! and undo what other initiators have changed in the rest of it since.

use strongroom_block::{Buffer, BufferMut, DeviceError, DeviceErrorKind, Lba};
use strongroom_scsi::cdb;
use strongroom_scsi::transport::initiator::Command as ScsiCommand;

use super::conditional_block::{ABSENT, ConditionalBlock};
use super::execute::{BuildContext, Capabilities, Effect, Execute, FirstRecord, Next, UnitContext};
use crate::completion::device_error;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::outcome::{Outcome, unexpected};
use crate::pipeline::read_data::ReadData;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::sealing::{SealedBlocks, Sealing};
use crate::pipeline::write_order::Range;

/// Tries against other writers of the same block. Each failure means that another initiator succeeded.
const TRIES_MAX: u32 = 1000;

#[derive(Debug)]
pub(crate) struct WritePart {
    lba: Lba,
    offset_bytes: u32,
    data: Buffer,
    fua: bool,
    tries: u32,
    /// As read, opened; empty before the first data.
    block: BufferMut,
    /// Stamp of what was read (sealed units).
    found: [u8; 24],
    attempt: Option<Box<Attempt>>,
}

/// The write that is or will be sent.
#[derive(Debug)]
enum Attempt {
    Sealed(ConditionalBlock),
    /// What must be there and what is to be written, one block each, back to back.
    Plain {
        both: Buffer,
    },
}

impl WritePart {
    pub(crate) fn new(lba: Lba, offset_bytes: u32, data: Buffer, fua: bool) -> WritePart {
        let block = BufferMut::zeroed(0);
        WritePart { lba, offset_bytes, data, fua, tries: 0, block, found: ABSENT, attempt: None }
    }

    fn sealed(&self) -> Option<&ConditionalBlock> {
        match self.attempt.as_deref() {
            Some(Attempt::Sealed(block)) => Some(block),
            _ => None,
        }
    }

    /// Whether what was read is what we wrote: the answer to that write was lost.
    fn is_done(&self) -> bool {
        match self.attempt.as_deref() {
            // A sealed unit executes nothing twice, and says so when the write is sent again.
            None | Some(Attempt::Sealed(_)) => false,
            Some(Attempt::Plain { both }) => both[self.block.len()..] == self.block[..],
        }
    }

    fn changed(&self) -> BufferMut {
        let mut block = BufferMut::copy_from(&self.block);
        let at = self.offset_bytes as usize;
        block[at..at + self.data.len()].copy_from_slice(&self.data);
        block
    }

    fn attempt(&self, context: UnitContext<'_>) -> Result<Attempt, DeviceError> {
        let changed = self.changed();
        if let Some(sealing) = context.sealing {
            let sealed = sealing.seal(self.lba, &changed)?;
            return Ok(Attempt::Sealed(ConditionalBlock::new(self.lba, self.found, sealed)));
        }
        if !context.unit.compare_and_write {
            let message = format!(
                "this target has no COMPARE AND WRITE, so part of a block cannot be written safely; write whole \
                 blocks of {} bytes",
                self.block.len()
            );
            return Err(device_error(DeviceErrorKind::Refused, Some(self.lba), message));
        }
        let mut both = BufferMut::zeroed(2 * self.block.len());
        let (old, new) = both.split_at_mut(self.block.len());
        old.copy_from_slice(&self.block);
        new.copy_from_slice(&changed);
        Ok(Attempt::Plain { both: both.freeze() })
    }

    /// The block was read: write it back, changed, if it still is what was read.
    fn was_read(&mut self, context: UnitContext<'_>) -> Next {
        if self.is_done() {
            return Next::Flush;
        }
        match self.attempt(context) {
            Ok(attempt) => {
                self.attempt = Some(Box::new(attempt));
                Next::Send(CommandPlan::write(self.lba, 1))
            }
            Err(error) => Next::Fail(error),
        }
    }

    fn read(&self) -> CommandPlan {
        CommandPlan::read(self.lba, 1)
    }
}

impl Execute for WritePart {
    fn effect(&self) -> Effect {
        Effect::Blocks
    }

    fn range(&self, _: usize) -> Range {
        Range::new(self.lba, 1)
    }

    fn next_command(&mut self, _: &Capabilities, remaining: &mut Option<Range>) -> CommandPlan {
        *remaining = None;
        self.read()
    }

    fn build(&self, plan: &CommandPlan, context: &BuildContext<'_>) -> ScsiCommand {
        match self.attempt.as_deref().filter(|_| plan.writes()) {
            None => context.unit.read_blocks(cdb::read_16(self.lba, 1), 1),
            Some(Attempt::Sealed(block)) => block.build(context),
            Some(Attempt::Plain { both }) => {
                context.unit.write_bytes(cdb::compare_and_write(self.lba, 1, self.fua), both.clone())
            }
        }
    }

    fn data_in(&mut self, _: &CommandPlan, data: &mut ReadData<'_>) -> Result<(), ReadFault> {
        if self.block.is_empty() {
            self.block = BufferMut::zeroed(1 << data.shift);
        }
        let mut stamp = ABSENT;
        data.open_each(self.lba, &mut self.block, |_, record, _| stamp = record.stamp().to_bytes())?;
        self.found = stamp;
        Ok(())
    }

    fn succeeded(&mut self, plan: &CommandPlan, context: UnitContext<'_>) -> Next {
        // A part, and what depends on a condition, is durable before it is acknowledged.
        if plan.writes() { Next::Flush } else { self.was_read(context) }
    }

    fn declined(&mut self, plan: &CommandPlan, outcome: &Outcome, _: &mut Capabilities) -> Next {
        if !plan.writes() || *outcome != Outcome::Miscompare {
            return Next::Fail(unexpected(outcome, plan.lba));
        }
        self.tries += 1;
        if self.tries < TRIES_MAX {
            return Next::StartOver(self.read());
        }
        Next::Fail(device_error(
            DeviceErrorKind::Refused,
            Some(self.lba),
            "other initiators keep writing this block; use a cluster file system, or attach the volume only once",
        ))
    }

    fn instead_of_lost_flush(&self, is_sealed: bool) -> Option<CommandPlan> {
        // On a plain unit, reading the block shows whether the part is still there.
        Some(if is_sealed { CommandPlan::write(self.lba, 1) } else { self.read() })
    }

    fn instead_of_stale(&self, sealing: &Sealing) -> Option<CommandPlan> {
        // Without keys it then fails where it opens what it has read.
        let block = self.sealed()?;
        (sealing.is_stale(block.epoch()) != Ok(false)).then(|| self.read())
    }

    fn first_record(&self, plan: &CommandPlan, _: usize) -> Option<FirstRecord> {
        self.sealed()?.first_record(plan)
    }

    fn reseal(&mut self, _: &CommandPlan, sealing: &Sealing) -> Result<Option<SealedBlocks>, DeviceError> {
        if let Some(Attempt::Sealed(block)) = self.attempt.as_deref_mut() {
            block.reseal(sealing)?;
        }
        Ok(None)
    }

    fn lost_request(&self, _: usize) -> Option<LostRequest> {
        Some(LostRequest::write_part(self.lba))
    }
}

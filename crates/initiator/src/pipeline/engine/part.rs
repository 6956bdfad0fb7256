//! Part of a block, replaced without losing anybody's update: read, change, write only if nothing came in between.
//!
//! On a sealed unit CONDITIONAL WRITE guards by the stamp that was read, on a plain one COMPARE AND WRITE by the contents.
//! Nothing is ever written back unguarded. Writers of this initiator are kept apart by `order` already; the guard is against
//! other initiators, and a miscompare starts over. After a lost connection a sealed unit knows whether it has executed the write; on a
//! plain one the same write may find itself, which counts as done.
//!
//! A part is durable when it is acknowledged: a flush follows each. That costs a flush for every part (a file system with the
//! volume's block size writes none), and buys that a part is never replayed: after a restart of the target that would put the
//! whole block back, and so undo what other initiators have changed in the rest of it since.

use strongroom_block::{Buffer, BufferMut, DeviceErrorKind, Lba};
use strongroom_iscsi::initiator::{Command as ScsiCommand, WriteSource};
use strongroom_scsi::cdb;

use super::command::{CommandKind, Place};
use super::refetch::ReadFault;
use super::{Engine, OpWork};
use crate::completion::device_error;
use crate::pipeline::sealing::SealedBlocks;

/// Tries against other writers of the same block. Each failure means that somebody else succeeded.
const TRIES_MAX: u32 = 1000;

/// The stamp that says "absent" to CONDITIONAL WRITE.
pub(super) const ABSENT: [u8; 24] = [0; 24];

/// A replacement of part of one block.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) lba: Lba,
    offset_bytes: u32,
    data: Buffer,
    pub(super) fua: bool,
    tries: u32,
    /// As read, opened.
    block: BufferMut,
    /// Stamp of what was read (sealed units).
    found: [u8; 24],
    attempt: Option<Attempt>,
}

/// The write under way.
#[derive(Debug)]
enum Attempt {
    Sealed {
        expected: [u8; 24],
        blocks: SealedBlocks,
    },
    /// What must be there and what shall be, one block each, back to back.
    Plain {
        both: Buffer,
    },
}

impl Part {
    pub(super) fn new(lba: Lba, offset_bytes: u32, data: Buffer, fua: bool, block_bytes: usize) -> Part {
        let block = BufferMut::zeroed(block_bytes);
        Part { lba, offset_bytes, data, fua, tries: 0, block, found: ABSENT, attempt: None }
    }

    /// The write under way, if it is sealed.
    pub(super) fn sealed(&self) -> Option<&SealedBlocks> {
        match &self.attempt {
            Some(Attempt::Sealed { blocks, .. }) => Some(blocks),
            _ => None,
        }
    }

    /// The write under way is sealed like this now.
    pub(super) fn sealed_again(&mut self, sealed: SealedBlocks) {
        if let Some(Attempt::Sealed { blocks, .. }) = &mut self.attempt {
            *blocks = sealed;
        }
    }

    /// Takes in the block as it is.
    pub(super) fn found(&mut self, place: &mut Place<'_>) -> Result<(), ReadFault> {
        let mut stamp = ABSENT;
        place.blocks(self.lba, &mut self.block, |_, record, _| stamp = record.stamp().to_bytes())?;
        self.found = stamp;
        Ok(())
    }

    /// Whether what was read is what we wrote: the answer to that write was lost.
    fn is_done(&self) -> bool {
        match &self.attempt {
            None => false,
            // A sealed unit executes nothing twice, and says so when it is asked to.
            Some(Attempt::Sealed { .. }) => false,
            Some(Attempt::Plain { both }) => both[self.block.len()..] == self.block[..],
        }
    }

    fn changed(&self) -> BufferMut {
        let mut block = BufferMut::copy_from(&self.block);
        let at = self.offset_bytes as usize;
        block[at..at + self.data.len()].copy_from_slice(&self.data);
        block
    }
}

impl Engine {
    /// The block was read: write it back, changed, if it still is what was read.
    pub(super) fn part_was_read(&mut self, key: usize) {
        let OpWork::Part(part) = &mut self.ops[key].work else { unreachable!("only parts read parts") };
        if part.is_done() {
            return self.flush_written(key, None);
        }
        let changed = part.changed();
        let attempt = match &self.sealing {
            None if !self.unit.compare_and_write => Err(device_error(
                DeviceErrorKind::Refused,
                Some(part.lba),
                format!(
                    "this target has no COMPARE AND WRITE, so part of a block cannot be written safely; write whole \
                     blocks of {} bytes",
                    part.block.len()
                ),
            )),
            None => {
                let mut both = BufferMut::zeroed(2 * part.block.len());
                let (old, new) = both.split_at_mut(part.block.len());
                old.copy_from_slice(&part.block);
                new.copy_from_slice(&changed);
                Ok(Attempt::Plain { both: both.freeze() })
            }
            Some(sealing) => {
                sealing.seal(part.lba, &changed).map(|blocks| Attempt::Sealed { expected: part.found, blocks })
            }
        };
        match attempt {
            Ok(attempt) => {
                part.attempt = Some(attempt);
                self.make_command(key, CommandKind::PartWrite);
            }
            Err(error) => {
                self.ops[key].error = Some(error);
                self.finish_if_done(key);
            }
        }
    }

    pub(super) fn build_part_write(&self, key: usize, part: &Part) -> ScsiCommand {
        match part.attempt.as_ref().expect("made before the command") {
            Attempt::Sealed { expected, blocks } => {
                self.build_conditional(key, part.lba, expected, blocks.data.clone(), blocks.records.clone())
            }
            Attempt::Plain { both } => ScsiCommand::write(
                self.unit.wire_lun(),
                cdb::compare_and_write(part.lba, 1, part.fua),
                WriteSource::plain(both.clone()),
            ),
        }
    }

    /// Somebody else wrote the block in between.
    pub(super) fn part_miscompared(&mut self, key: usize) {
        self.counters.guarded_retries += 1;
        let op = &mut self.ops[key];
        let OpWork::Part(part) = &mut op.work else { unreachable!("only parts write parts") };
        part.tries += 1;
        if part.tries < TRIES_MAX {
            self.make_command(key, CommandKind::PartRead);
            return;
        }
        op.error = Some(device_error(
            DeviceErrorKind::Refused,
            Some(part.lba),
            "other initiators keep writing this block; use a cluster file system, or attach the volume only once",
        ));
        self.finish_if_done(key);
    }
}

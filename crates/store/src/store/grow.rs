//! Growing while open: the medium first, then both superblocks, and only then may anything use the new room.
//!
//! A crash in between leaves a volume that is as large as before, or as large as asked for; never one that names blocks
//! which its superblock does not know. Sealed volumes: the new blocks are not formatted until an initiator seals a hole over them.

use std::io;

use strongroom_block::{Geometry, Token};

use super::Store;
use crate::layout::{Layout, countable, segments_needed};
use crate::op::{OpError, Outcome};
use crate::options::CreateOptions;
use crate::superblock::Superblock;

/// A growth on its way.
pub(super) struct Growing {
    token: Token,
    bytes: usize,
    geometry: Geometry,
    segments: u32,
    retention_blocks: u64,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A round has to begin: only what it syncs has the longer medium behind it.
    Wanted,
    /// It has begun.
    InRound,
    /// Its superblock names the new size.
    FirstCopy,
    /// The other one follows, so that the loss of one does not matter.
    SecondCopy,
}

impl Store {
    /// Begins to grow the volume to `blocks`.
    pub(super) fn start_grow(&mut self, token: Token, blocks: u64, bytes: usize) -> Result<(), OpError> {
        self.check_writable()?;
        if self.growing.is_some() {
            return Err(OpError::Busy);
        }
        let old = &self.superblock;
        if blocks <= old.geometry.blocks {
            return match blocks == old.geometry.blocks {
                true => {
                    self.complete(token, bytes, Ok(Outcome::Changed));
                    Ok(())
                }
                false => Err(OpError::Misuse("a volume does not shrink; make a smaller one and copy")),
            };
        }
        let geometry = Geometry { blocks, ..old.geometry };
        // In the same proportion as before.
        let share = u128::from(old.retention_blocks) * u128::from(blocks) / u128::from(old.geometry.blocks);
        let retention_blocks = share as u64;
        let needed = |geometry, retained| {
            segments_needed(geometry, old.kind, old.segment_bytes, retained, CreateOptions::SPARE_PERCENT_DEFAULT)
        };
        let segments = needed(geometry, retention_blocks).zip(needed(old.geometry, old.retention_blocks)).and_then(
            |(after, before)| {
                // A store that was made with more to spare keeps its proportion.
                let share = (u64::from(after) * u64::from(old.segments)).div_ceil(before.into());
                let segments = u32::try_from(share).ok()?.max(after).max(old.segments);
                countable(segments, old.segment_bytes).then_some(segments)
            },
        );
        let Some(segments) = segments else {
            return Err(OpError::TooMany("a store holds at most about 300 TiB; make another volume"));
        };
        let layout = Layout { segments, ..self.layout };
        match self.backend.grow(layout.segment_at(segments)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::StorageFull => return Err(OpError::NoSpace),
            Err(error) => {
                tracing::error!(volume = %self.info.volume_id, %error, "the medium does not grow");
                return Err(OpError::NoSpace);
            }
        }
        self.growing = Some(Growing { token, bytes, geometry, segments, retention_blocks, step: Step::Wanted });
        Ok(())
    }

    /// A growth waits for a round.
    pub(super) fn grow_wants_round(&self) -> bool {
        self.growing.as_ref().is_some_and(|growing| growing.step == Step::Wanted)
    }

    /// A table is being begun: the round that it belongs to is the growth's.
    pub(super) fn grow_at_table(&mut self) {
        if let Some(growing) = self.growing.as_mut().filter(|growing| growing.step == Step::Wanted) {
            growing.step = Step::InRound;
        }
    }

    /// There was no space for the table of a round. A growth in it does not wait for another, which would meet the same end
    /// for as long as the medium is full.
    pub(super) fn grow_table_failed(&mut self) {
        if self.growing.as_ref().is_some_and(|growing| growing.step == Step::InRound) {
            self.fail_grow(OpError::NoSpace);
        }
    }

    /// The superblock of a round is on its way: if the round began after the medium grew, it tells the new size from now on.
    pub(super) fn grow_in(&mut self, superblock: &mut Superblock) {
        let Some(growing) = self.growing.as_mut().filter(|growing| growing.step != Step::Wanted) else { return };
        superblock.geometry = growing.geometry;
        superblock.segments = growing.segments;
        superblock.retention_blocks = growing.retention_blocks;
        if growing.step == Step::InRound {
            growing.step = Step::FirstCopy;
        }
    }

    /// A superblock of a round is durable: the first copy, then the other one.
    pub(super) fn grow_synced(&mut self) {
        let Some(growing) = &mut self.growing else { return };
        match growing.step {
            Step::Wanted | Step::InRound => {}
            Step::FirstCopy => growing.step = Step::SecondCopy,
            Step::SecondCopy => {
                self.layout.segments = growing.segments;
                self.segments.grow(growing.segments);
                let Growing { token, bytes, .. } = self.growing.take().expect("just seen");
                self.info = self.superblock.info();
                self.complete(token, bytes, Ok(Outcome::Changed));
            }
        }
    }

    /// What a growth on its way comes to if it cannot go on. One that has reached a superblock may yet be found after a crash.
    pub(super) fn fail_grow(&mut self, error: OpError) -> bool {
        match self.growing.take() {
            Some(Growing { token, bytes, .. }) => {
                self.complete(token, bytes, Err(error));
                true
            }
            None => false,
        }
    }

    /// The round that a growth waited for cannot begin.
    pub(super) fn grow_out_of_space(&mut self) {
        if self.grow_wants_round() {
            self.fail_grow(OpError::NoSpace);
        }
    }
}

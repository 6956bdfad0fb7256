//! Growing while open: the medium first, then both superblocks, and only then may anything use the new space.
//!
//! A crash in between leaves a volume of the old size or of the new one; never one that names blocks which its superblock does not know.
//! Sealed volumes: the new blocks are not formatted until an initiator seals a hole over them.

use strongroom_block::{Geometry, Token};

use crate::layout::{countable, segments_needed};
use crate::op::OpError;
use crate::options::CreateOptions;
use crate::superblock::Superblock;

/// A growth in progress.
pub(super) struct Growth {
    pub(super) token: Token,
    pub(super) bytes: usize,
    geometry: Geometry,
    pub(super) segments: u32,
    retention_blocks: u64,
    phase: GrowthPhase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GrowthPhase {
    /// A round has to begin: only what it syncs is sure to have the longer medium behind it.
    Wanted,
    /// It has begun.
    InRound,
    /// Its superblock names the new size.
    FirstCopy,
    /// The other one follows, so that the loss of one does not matter.
    SecondCopy,
}

impl Growth {
    /// Plans the growth of a volume to `blocks`, more than it has.
    ///
    /// # Errors
    /// [`OpError::TooMany`].
    pub(super) fn plan(token: Token, bytes: usize, blocks: u64, old: &Superblock) -> Result<Growth, OpError> {
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
        let segments = segments.ok_or(OpError::TooMany("a store holds at most about 300 TiB; make another volume"))?;
        Ok(Growth { token, bytes, geometry, segments, retention_blocks, phase: GrowthPhase::Wanted })
    }

    /// Whether it waits for a round.
    pub(super) fn wants_round(&self) -> bool {
        self.phase == GrowthPhase::Wanted
    }

    /// A round begins: it is the growth's.
    pub(super) fn round_begins(&mut self) {
        if self.phase == GrowthPhase::Wanted {
            self.phase = GrowthPhase::InRound;
        }
    }

    /// Whether it is part of a round whose superblock was not written yet.
    pub(super) fn is_in_round(&self) -> bool {
        self.phase == GrowthPhase::InRound
    }

    /// The superblock of a round is about to be written: if the round began after the medium grew, it has the new size.
    pub(super) fn change_superblock(&mut self, superblock: &mut Superblock) {
        if self.phase == GrowthPhase::Wanted {
            return;
        }
        superblock.geometry = self.geometry;
        superblock.segments = self.segments;
        superblock.retention_blocks = self.retention_blocks;
        if self.phase == GrowthPhase::InRound {
            self.phase = GrowthPhase::FirstCopy;
        }
    }

    /// A superblock of a round is durable. Whether both copies have the new size.
    pub(super) fn superblock_synced(&mut self) -> bool {
        if self.phase == GrowthPhase::FirstCopy {
            self.phase = GrowthPhase::SecondCopy;
            return false;
        }
        self.phase == GrowthPhase::SecondCopy
    }
}

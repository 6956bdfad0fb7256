//! Which blocks have data: from the index alone, without reading anything.

use strongroom_block::Lba;

use super::volume_index::VolumeIndex;
use crate::map::At;
use crate::view::View;

/// Blocks side by side that all have data, or all have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub lba: Lba,
    /// How many.
    pub count: u64,
    /// They have data.
    pub mapped: bool,
}

impl VolumeIndex<'_> {
    /// How many chunks of the index, or blocks where a view has more than one layer, one question may look at: a bound on its time.
    const RUN_STEPS_MAX: u32 = 65536;
    /// Blocks of a view with more than one layer that are looked up at once.
    const LOOKED_UP: u64 = 4096;

    /// How many blocks a view has that can be read: a sealed one ends with the last block or hole that was sealed in it, so a snapshot
    /// from before its volume grew is as large as it was. A plain one is zeros from there on, as far as the volume goes. 0 for a view that is not there.
    pub fn readable_blocks(&self, view: View) -> u64 {
        let blocks = self.volume.info.geometry.blocks;
        let Some(node) = self.map.catalogue.node(view) else { return 0 };
        if !self.volume.is_sealed() {
            return blocks;
        }
        let ends = self.map.path(node).into_iter().map(|table| table.index.end().max(table.holes.end()));
        ends.max().unwrap_or(0).min(blocks)
    }

    /// The runs from `lba` on, at most `runs_max` of them; none for a view that is not there. Adjacent runs differ, but the last one may end
    /// where the question became too long, and the next question goes on from there. What is in flight counts when it completes.
    pub fn mapped_runs(&self, view: View, lba: Lba, runs_max: usize) -> Vec<Run> {
        let end = self.volume.info.geometry.blocks;
        let Some(node) = self.map.catalogue.node(view) else { return Vec::new() };
        let only = self.map.only_table(node);
        // Of several layers: from which block on what was found.
        let (mut found_from, mut found) = (lba.0, Vec::new());
        let mut steps = Self::RUN_STEPS_MAX;
        let mut runs: Vec<Run> = Vec::new();
        let mut at = lba.0;
        while at < end && steps > 0 {
            let (mapped, until) = match only {
                Some(table) => table.index.run_at(at, end, &mut steps),
                None => {
                    steps -= 1;
                    if at - found_from == found.len() as u64 {
                        (found_from, found) = (at, self.map.look_up(node, at, (end - at).min(Self::LOOKED_UP)));
                    }
                    (matches!(found[(at - found_from) as usize], At::Block(_)), at + 1)
                }
            };
            let full = runs.len() == runs_max;
            match runs.last_mut() {
                Some(last) if last.mapped == mapped => last.count += until - at,
                _ if full => break,
                _ => runs.push(Run { lba: Lba(at), count: until - at, mapped }),
            }
            at = until;
        }
        runs
    }

    /// How many of `count` blocks from `lba` on one [`Op::Discard`](crate::Op::Discard) should name, so that it takes little
    /// time: it does not unmap much more than `mapped_max` blocks. Discard more in such slices.
    pub fn discard_slice(&self, view: View, lba: Lba, count: u64, mapped_max: u64) -> u64 {
        let Some(node) = self.map.catalogue.node(view) else { return count };
        let end = lba.0.saturating_add(count);
        self.map.table(node).index.end_of_slice(lba.0, end, mapped_max, Self::RUN_STEPS_MAX) - lba.0
    }
}

//! A store that is open read-only because the part of its log that opening replays is damaged: nothing is written, and it tells which
//! blocks may be missing or old.

use std::path::Path;
use std::sync::Arc;

use strongroom_block::Lba;

use super::Store;
use super::volume_index::VolumeIndex;
use crate::backend::IoChoice;
use crate::error::StoreError;
use crate::map::At;
use crate::options::OpenOptions;
use crate::planted::Planted;
use crate::recover::{Damage, recover_with};
use crate::view::View;

/// Blocks that one question looks at.
const BLOCKS_PER_QUESTION: u64 = 65536;
/// Blocks that are looked up at once.
const LOOKED_UP: u64 = 4096;

/// What a damaged store says of itself, see [`DamageReport::of`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamageReport {
    /// What cannot be read.
    pub damage: Damage,
    /// The blocks that may be missing or old without it, of the volume, each clone and each snapshot.
    pub suspects: Vec<SuspectBlocks>,
}

/// Blocks of one view that may be missing or old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectBlocks {
    /// Of what, for people.
    pub of: String,
    /// The first ones: first block and count.
    pub runs: Vec<(Lba, u64)>,
    /// How many there are altogether.
    pub blocks: u64,
    /// Of this many.
    pub blocks_total: u64,
}

impl DamageReport {
    /// What of the log of the store in `dir`, which must not be open, cannot be read, and which blocks may be missing or old in a read-only
    /// opening; at most this many runs of them for each view. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError`] if so much is lost that it cannot be opened read-only either.
    pub fn of(dir: &Path, runs_max: usize) -> Result<DamageReport, StoreError> {
        let (_lock, (mut log, _)) = super::directory::locked_log(dir, IoChoice::Buffered)?;
        let (recovered, damage) = recover_with(log.as_mut(), 0, Planted::default(), true)?;
        let mut store = Store::from_recovered(log, OpenOptions::default(), Arc::new(|| {}), recovered);
        if damage.is_none() {
            return Ok(DamageReport { damage, suspects: Vec::new() });
        }
        store.engine.medium.refusal.set_damage(damage.clone());
        let index = store.index();
        let branches =
            index.branches().into_iter().map(|branch| (View::Head(branch.id), format!("clone '{}'", branch.name)));
        let snapshots = index.snapshots().into_iter();
        let snapshots =
            snapshots.map(|snapshot| (View::Snapshot(snapshot.id), format!("snapshot '{}'", snapshot.name)));
        let name = |(view, name)| (view, if view == View::default() { "volume".to_owned() } else { name });
        let views = branches.chain(snapshots).map(name);
        let suspects = views.map(|(view, of)| index.all_suspects(view, of, runs_max)).collect();
        Ok(DamageReport { damage, suspects })
    }
}

impl VolumeIndex<'_> {
    fn all_suspects(&self, view: View, of: String, runs_max: usize) -> SuspectBlocks {
        let blocks_total = self.volume.info.geometry.blocks;
        let mut suspects = SuspectBlocks { of, runs: Vec::new(), blocks: 0, blocks_total };
        let mut from = Some(Lba(0));
        while let Some(at) = from {
            let (run, next) = self.suspect_blocks(view, at);
            if let Some((first, count)) = run {
                suspects.blocks += count;
                let is_full = suspects.runs.len() >= runs_max;
                match suspects.runs.last_mut() {
                    Some((before, length)) if before.0 + *length == first.0 => *length += count,
                    _ if is_full => {}
                    _ => suspects.runs.push((first, count)),
                }
            }
            from = next;
        }
        suspects
    }

    /// The next blocks from `from` on that may be missing or old, because what was passed over may have written them: first block and
    /// count; and where to look on, `None` at the end. Nothing in a store that is not damaged.
    pub fn suspect_blocks(&self, view: View, from: Lba) -> (Option<(Lba, u64)>, Option<Lba>) {
        let (Some(damage), Some(node)) = (self.damage, self.map.catalogue.node(view)) else {
            return (None, None);
        };
        let end = self.volume.info.geometry.blocks;
        let stop = end.min(from.0.saturating_add(BLOCKS_PER_QUESTION));
        let mut run: Option<(Lba, u64)> = None;
        let mut at = from.0;
        while at < stop {
            let count = LOOKED_UP.min(stop - at);
            for (lba, found) in (at..).zip(self.map.look_up(node, at, count)) {
                let sequence = match found {
                    At::Block(version) => version.sequence(),
                    At::Hole { sequence, .. } => sequence,
                    At::Nothing => 0,
                };
                match (&mut run, sequence < damage.suspect_below) {
                    (Some((_, count)), true) => *count += 1,
                    (None, true) => run = Some((Lba(lba), 1)),
                    (Some(_), false) => return (run, Some(Lba(lba))),
                    (None, false) => {}
                }
            }
            at += count;
        }
        (run, (stop < end).then_some(Lba(stop)))
    }
}

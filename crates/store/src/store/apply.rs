//! Applying a complete group to the index.

use super::hiding::CoveredRange;
use super::update::Update;
use super::views::Views;
use super::volume::Volume;
use crate::holes::Hole;
use crate::index::Version;
use crate::map::Table;
use crate::planted::PlantedFault;
use crate::segments::Segments;

/// Fragments of older holes that a new one replaces at once; a hole over more of them is inserted in slices.
const FRAGMENTS_AT_ONCE: usize = 256;

impl Views {
    /// Applies one update. Changes of the catalogue are applied to the map; what else follows from them is up to the caller.
    pub(super) fn apply(&mut self, update: Update, segments: &mut Segments, volume: &Volume) {
        match update {
            Update::Block { branch, lba, version } => self.apply_block(branch, lba, version, segments, volume),
            Update::Hole { branch, hole } => self.apply_hole(branch, *hole, segments, volume),
            Update::Copy { branch, lba, from, to } => {
                // A block that was overwritten while it was copied is dead on arrival.
                if self.map.relocate(branch, lba, from, to) {
                    segments.sub_live_block(from);
                    segments.add_live_block(to);
                }
            }
            Update::CopyHole { branch, start, sequence, from, to } => {
                if let Some(bytes) = self.map.relocate_hole(branch, start, sequence, from, to) {
                    segments.sub_live(from.segment, bytes);
                    segments.add_live(to.segment, bytes);
                }
            }
            Update::Change { change, sequence } => {
                let applied = self.map.catalogue.apply(&change, sequence);
                applied.expect("checked before it was written, alone in its group");
                self.map.grown();
            }
        }
    }

    fn apply_block(&mut self, branch: u32, lba: u64, version: Version, segments: &mut Segments, volume: &Volume) {
        let node = self.map.catalogue.head(branch).expect("a branch with writes in flight is not deleted");
        segments.add_live_block(version);
        let table = self.map.table_mut(node);
        let old = table.index.insert(lba, version);
        let is_sealed = volume.is_sealed();
        match old {
            Some(old) if is_sealed => {
                if volume.has_planted(PlantedFault::VersionReclaimedTooSoon) && old.sequence() % 8 == 0 {
                    return segments.sub_live_block(old);
                }
                // Not always the writing branch: what was received came on another.
                let of = self.map.label(node, branch, old.sequence());
                self.map.versions.keep(of, lba, old, version.sequence());
            }
            Some(old) => segments.sub_live_block(old),
            None if is_sealed => {}
            None => {
                let gone = |hole: Hole| segments.sub_live(hole.place.segment, hole.live_bytes());
                let Table { index, holes } = table;
                holes.trim(lba, version.sequence(), |start, end, hole| index.is_newer(start, end, hole), gone);
            }
        }
    }

    fn apply_hole(&mut self, branch: u32, hole: Hole, segments: &mut Segments, volume: &Volume) {
        let node = self.map.catalogue.head(branch).expect("a branch with writes in flight is not deleted");
        let (at, end, sequence) = (hole.start, hole.start + hole.count, hole.sequence);
        let is_sealed = volume.is_sealed();
        segments.add_live(hole.place.segment, hole.live_bytes());
        let Table { index, holes } = self.map.table_mut(node);
        let inserts = holes.has_more_than(FRAGMENTS_AT_ONCE, at, end);
        if inserts {
            holes.begin_insert(hole);
        } else {
            let needless = |start, end, hole| !is_sealed && index.is_newer(start, end, hole);
            holes.insert(hole, needless, |gone| segments.sub_live(gone.place.segment, gone.live_bytes()));
        }
        self.hiding.cover(CoveredRange { node, branch, at, end, sequence, inserts });
    }
}

//! Feedback found by recovery: the newest sequence of each block that a reader verified.

use std::collections::BTreeMap;

use crate::index::Version;
use crate::map::BlockMap;

/// The newest sequence of each block that a reader verified.
#[derive(Default)]
pub(crate) struct Verified(BTreeMap<(u32, u64), u64>);

impl Verified {
    pub(crate) fn note(&mut self, branch: u32, lba: u64, sequence: u64) {
        let newest = self.0.entry((branch, lba)).or_default();
        *newest = sequence.max(*newest);
    }

    /// Releases what it says.
    pub(crate) fn release(self, map: &mut BlockMap) {
        let (mut released, mut fuel): (Vec<Version>, usize) = (Vec::new(), usize::MAX);
        for ((branch, lba), sequence) in self.0 {
            let catalogue = &map.catalogue;
            let Some(node) = catalogue.node_of(branch, sequence) else { continue };
            let same = |branch, sequence| catalogue.node_of(branch, sequence) == Some(node);
            map.versions.release_below(lba, sequence, &mut fuel, same, |version| released.push(version));
        }
    }
}

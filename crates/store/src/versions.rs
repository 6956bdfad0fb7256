//! Older versions of blocks, kept until a reader has verified a newer one or the budget is exceeded.
//!
//! About 60 bytes of memory each; bounded by the budget (`retention_blocks`).

use std::collections::{BTreeMap, VecDeque};

use crate::index::Version;

/// The retained versions of a volume. Never the newest of a block.
#[derive(Default)]
pub(crate) struct Versions {
    kept: BTreeMap<(u64, u64), Version>,
    /// In the order in which they became old. May name versions that are gone.
    order: VecDeque<(u64, u64)>,
}

impl Versions {
    pub(crate) fn len(&self) -> u64 {
        self.kept.len() as u64
    }

    /// Keeps a version; returns one that was kept under the same name.
    pub(crate) fn keep(&mut self, lba: u64, version: Version) -> Option<Version> {
        let name = (lba, version.sequence());
        let old = self.kept.insert(name, version);
        if old.is_none() {
            self.order.push_back(name);
            if self.order.len() > 2 * self.kept.len() + 1024 {
                self.order.retain(|name| self.kept.contains_key(name));
            }
        }
        old
    }

    pub(crate) fn find(&self, lba: u64, sequence: u64) -> Option<Version> {
        self.kept.get(&(lba, sequence)).copied()
    }

    /// The newest with a sequence smaller than `below`.
    pub(crate) fn newest_below(&self, lba: u64, below: u64) -> Option<Version> {
        self.kept.range((lba, 0)..(lba, below)).next_back().map(|(_, &version)| version)
    }

    /// Lets go everything of `lba` older than `below`, telling each.
    pub(crate) fn release_below(&mut self, lba: u64, below: u64, mut released: impl FnMut(Version)) {
        while let Some(version) = self.newest_below(lba, below) {
            self.kept.remove(&(lba, version.sequence()));
            released(version);
        }
    }

    /// Lets go the one that has been old for longest.
    pub(crate) fn evict(&mut self) -> Option<Version> {
        while let Some(name) = self.order.pop_front() {
            if let Some(version) = self.kept.remove(&name) {
                return Some(version);
            }
        }
        None
    }

    /// Notes that cleaning copied a version; false if it is not at `from` any more.
    pub(crate) fn relocate(&mut self, lba: u64, from: Version, to: Version) -> bool {
        match self.kept.get_mut(&(lba, from.sequence())) {
            Some(version) if *version == from => {
                *version = to;
                true
            }
            _ => false,
        }
    }

    /// Visits every one.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64, Version)) {
        for (&(lba, _), &version) in &self.kept {
            visit(lba, version);
        }
    }

    /// After recovery: age is the order of the sequences.
    pub(crate) fn order_by_sequence(&mut self) {
        let mut order: Vec<(u64, u64)> = self.kept.keys().copied().collect();
        order.sort_unstable_by_key(|&(_, sequence)| sequence);
        self.order = order.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    const LAYOUT: Layout = Layout { segment_bytes: 1 << 16, segments: 10, block_bytes: 4096, item_bytes: 56 };

    fn version(sequence: u64) -> Version {
        Version::new(&LAYOUT, sequence, 0, 4096, 128)
    }

    #[test]
    fn the_oldest_goes_first_and_feedback_takes_only_strictly_older() {
        let mut versions = Versions::default();
        for (lba, sequence) in [(1, 10), (2, 11), (1, 12), (1, 13)] {
            versions.keep(lba, version(sequence));
        }
        assert_eq!(versions.newest_below(1, 13).map(Version::sequence), Some(12));
        assert_eq!(versions.newest_below(1, 10), None);
        let mut released = Vec::new();
        versions.release_below(1, 13, |version| released.push(version.sequence()));
        assert_eq!(released, [12, 10]);
        assert_eq!(versions.evict().map(Version::sequence), Some(11));
        assert_eq!(versions.evict().map(Version::sequence), Some(13));
        assert_eq!(versions.evict(), None);
    }
}

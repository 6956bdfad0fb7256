//! Where the newest version of each block is: 16 bytes per mapped block, in a sparse two-level table.
//!
//! A leaf covers 16384 blocks in chunks of 64; a chunk is a bitmap and a packed array of the blocks that are there. So a
//! thin volume with scattered blocks costs 16 bytes for each, plus half a byte per block of every touched leaf.

use crate::layout::{LOG_START, Layout, SECTOR};
use crate::steps;

const CHUNK_BLOCKS: u64 = 64;
const LEAF_CHUNKS: usize = 256;
const LEAF_BLOCKS: u64 = CHUNK_BLOCKS * LEAF_CHUNKS as u64;

/// One version of one block: its sequence (56 bits), where its data is (40 bits of sectors from the log's start) and
/// where in the segment its item is (32 bits, in units of 8 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    high: u64,
    low: u64,
}

impl Version {
    /// `data_at` and `item_at` are bytes from the start of `segment`.
    pub(crate) fn new(layout: &Layout, sequence: u64, segment: u32, data_at: u32, item_at: u32) -> Version {
        let sector = (layout.segment_at(segment) - LOG_START + u64::from(data_at)) / SECTOR;
        debug_assert!(item_at.is_multiple_of(8));
        Version::from_parts(sequence, sector, item_at / 8)
    }

    /// Of a sequence (56 bits), the sector of its data from the log's start (40 bits), and its item's place in 8 bytes.
    pub(crate) fn from_parts(sequence: u64, sector: u64, item: u32) -> Version {
        debug_assert!(sequence < 1 << 56 && sector < 1 << 40);
        Version { high: sequence << 8 | sector >> 32, low: sector << 32 | u64::from(item) }
    }

    /// As two numbers that a checkpoint of version 2 has.
    pub(crate) fn from_raw(high: u64, low: u64) -> Version {
        Version { high, low }
    }

    /// Whether it lies within the log.
    pub(crate) fn possible(self, layout: &Layout) -> bool {
        let end = u64::from(layout.segments) * u64::from(layout.segment_bytes);
        self.byte() + u64::from(layout.block_bytes) <= end && (self.low as u32) < layout.segment_bytes / 8
    }

    /// The version that is `count` blocks further on, if it was written with this one.
    pub(crate) fn step(self, layout: &Layout, count: u32) -> Version {
        let sector = self.sector() + u64::from(count) * (u64::from(layout.block_bytes) / SECTOR);
        let item = self.item_at() / 8 + count * (layout.item_bytes / 8);
        let sequence = self.sequence() + u64::from(count);
        Version { high: sequence << 8 | sector >> 32 & 0xff, low: sector << 32 | u64::from(item) }
    }

    pub(crate) fn sequence(self) -> u64 {
        self.high >> 8
    }

    /// Where the data is, in sectors from the start of the log's segments.
    pub(crate) fn sector(self) -> u64 {
        (self.high & 0xff) << 32 | self.low >> 32
    }

    /// Byte of the data from the start of the log's segments.
    fn byte(self) -> u64 {
        self.sector() * SECTOR
    }

    /// Byte of the data in the log file.
    pub(crate) fn data_offset(self) -> u64 {
        LOG_START + self.byte()
    }

    pub(crate) fn segment(self, layout: &Layout) -> u32 {
        (self.byte() / u64::from(layout.segment_bytes)) as u32
    }

    /// Byte of the item from the start of the segment.
    pub(crate) fn item_at(self) -> u32 {
        (self.low as u32) * 8
    }
}

#[derive(Default)]
struct Chunk {
    present: u64,
    versions: Vec<Version>,
}

impl Chunk {
    /// Position of a present bit, or where it would go.
    fn rank(&self, bit: u32) -> usize {
        (self.present & ((1 << bit) - 1)).count_ones() as usize
    }

    fn has(&self, bit: u32) -> bool {
        self.present & (1 << bit) != 0
    }
}

/// The chunks of 16384 blocks, at least one of which is mapped.
struct Leaf {
    mapped: u32,
    chunks: [Chunk; LEAF_CHUNKS],
}

impl Leaf {
    const EMPTY: Leaf = Leaf { mapped: 0, chunks: [const { Chunk { present: 0, versions: Vec::new() } }; LEAF_CHUNKS] };
}

/// The table.
#[derive(Default)]
pub(crate) struct BlockIndex {
    leaves: Vec<Option<Box<Leaf>>>,
    mapped: u64,
    bytes: usize,
}

fn split(lba: u64) -> (usize, usize, u32) {
    ((lba / LEAF_BLOCKS) as usize, (lba % LEAF_BLOCKS / CHUNK_BLOCKS) as usize, (lba % CHUNK_BLOCKS) as u32)
}

/// A word with the lowest `count` bits set.
pub(crate) fn low_bits(count: u64) -> u64 {
    if count < u64::from(u64::BITS) { (1 << count) - 1 } else { u64::MAX }
}

/// The set bits, lowest first.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

impl BlockIndex {
    /// How many blocks are mapped.
    pub(crate) fn len(&self) -> u64 {
        self.mapped
    }

    /// Memory taken, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Puts one version in the place of another; false if that is not there.
    pub(crate) fn relocate(&mut self, lba: u64, from: Version, to: Version) -> bool {
        let (leaf, chunk, bit) = split(lba);
        let Some(Some(leaf)) = self.leaves.get_mut(leaf) else { return false };
        let chunk = &mut leaf.chunks[chunk];
        let at = chunk.rank(bit);
        let is_there = chunk.has(bit) && chunk.versions[at] == from;
        if is_there {
            chunk.versions[at] = to;
        }
        is_there
    }

    pub(crate) fn find(&self, lba: u64) -> Option<Version> {
        let (leaf, chunk, bit) = split(lba);
        let chunk = &self.leaves.get(leaf)?.as_ref()?.chunks[chunk];
        chunk.has(bit).then(|| chunk.versions[chunk.rank(bit)])
    }

    /// Maps `lba`; returns what it was mapped to.
    pub(crate) fn insert(&mut self, lba: u64, version: Version) -> Option<Version> {
        let (leaf, chunk, bit) = split(lba);
        if leaf >= self.leaves.len() {
            let before = self.leaves.capacity();
            self.leaves.resize_with(leaf + 1, || None);
            self.bytes += (self.leaves.capacity() - before) * size_of::<Option<Box<Leaf>>>();
        }
        let leaf = &mut self.leaves[leaf];
        if leaf.is_none() {
            *leaf = Some(Box::new(Leaf::EMPTY));
            self.bytes += size_of::<Leaf>();
        }
        let leaf = leaf.as_mut().expect("made above");
        let chunk = &mut leaf.chunks[chunk];
        let rank = chunk.rank(bit);
        if chunk.has(bit) {
            return Some(std::mem::replace(&mut chunk.versions[rank], version));
        }
        if chunk.versions.len() == chunk.versions.capacity() {
            let more = (chunk.versions.len() / 2).clamp(1, CHUNK_BLOCKS as usize - chunk.versions.len());
            chunk.versions.reserve_exact(more);
            self.bytes += more * size_of::<Version>();
        }
        chunk.versions.insert(rank, version);
        chunk.present |= 1 << bit;
        leaf.mapped += 1;
        self.mapped += 1;
        None
    }

    /// Unmaps every block of `start..end`, telling each.
    pub(crate) fn remove_range(&mut self, start: u64, end: u64, mut removed: impl FnMut(u64, Version)) {
        self.retain_range(start, end, |lba, version| {
            removed(lba, version);
            false
        });
    }

    /// Asks for every mapped block of `start..end` whether it stays.
    pub(crate) fn retain_range(&mut self, start: u64, end: u64, mut keep: impl FnMut(u64, Version) -> bool) {
        let (mut lba, end) = (start, end.min(self.leaves.len() as u64 * LEAF_BLOCKS));
        while lba < end {
            let (leaf_at, chunk_at, bit) = split(lba);
            steps::count(1);
            let Some(leaf) = self.leaves.get_mut(leaf_at).and_then(Option::as_mut) else {
                lba = (leaf_at as u64 + 1) * LEAF_BLOCKS;
                continue;
            };
            let chunk = &mut leaf.chunks[chunk_at];
            let base = lba - u64::from(bit);
            let stop = (end - base).min(CHUNK_BLOCKS) as u32;
            let (mut kept, before) = (chunk.rank(bit), chunk.present);
            steps::count((chunk.versions.len() - kept) as u64);
            let mut present = before;
            for (rank, at) in (kept..).zip((bit..64).filter(|&at| before & (1 << at) != 0)) {
                let version = chunk.versions[rank];
                if at < stop && !keep(base + u64::from(at), version) {
                    present &= !(1 << at);
                } else {
                    chunk.versions[kept] = version;
                    kept += 1;
                }
            }
            let gone = (before ^ present).count_ones();
            self.mapped -= u64::from(gone);
            leaf.mapped -= gone;
            chunk.versions.truncate(kept);
            chunk.present = present;
            if chunk.present == 0 && chunk.versions.capacity() > 0 {
                self.bytes -= chunk.versions.capacity() * size_of::<Version>();
                chunk.versions = Vec::new();
            }
            if leaf.mapped == 0 {
                // So searches pass 16384 blocks without data in one step.
                self.leaves[leaf_at] = None;
                self.bytes -= size_of::<Leaf>();
            }
            lba = base + CHUNK_BLOCKS;
        }
    }

    /// Whether every block of `start..end` (a short range) is mapped to a version newer than `sequence`.
    pub(crate) fn is_newer(&self, start: u64, end: u64, sequence: u64) -> bool {
        (start..end).all(|lba| {
            steps::count(1);
            self.find(lba).is_some_and(|version| version.sequence() > sequence)
        })
    }

    /// Whether any block of `start..end` is mapped.
    pub(crate) fn any_in(&self, start: u64, end: u64) -> bool {
        let (mut lba, end) = (start, end.min(self.leaves.len() as u64 * LEAF_BLOCKS));
        while lba < end {
            let (leaf, chunk, bit) = split(lba);
            steps::count(1);
            let Some(leaf_chunks) = self.leaves.get(leaf).and_then(Option::as_ref) else {
                lba = (leaf as u64 + 1) * LEAF_BLOCKS;
                continue;
            };
            let base = lba - u64::from(bit);
            let stop = (end - base).min(CHUNK_BLOCKS);
            if leaf_chunks.chunks[chunk].present & low_bits(stop) & (u64::MAX << bit) != 0 {
                return true;
            }
            lba = base + CHUNK_BLOCKS;
        }
        false
    }

    /// The first mapped block from `lba` on.
    pub(crate) fn next_mapped(&self, lba: u64) -> Option<u64> {
        let (first_leaf, first_chunk, first_bit) = split(lba);
        for (leaf_at, leaf) in self.leaves.iter().enumerate().skip(first_leaf) {
            steps::count(1);
            let Some(leaf) = leaf else { continue };
            let skip = if leaf_at == first_leaf { first_chunk } else { 0 };
            for (chunk_at, chunk) in leaf.chunks.iter().enumerate().skip(skip) {
                steps::count(1);
                let base = leaf_at as u64 * LEAF_BLOCKS + chunk_at as u64 * CHUNK_BLOCKS;
                let from = if base < lba { u64::MAX << first_bit } else { u64::MAX };
                let present = chunk.present & from;
                if present != 0 {
                    return Some(base + u64::from(present.trailing_zeros()));
                }
            }
        }
        None
    }

    /// The end of what is mapped: 0 if nothing is.
    pub(crate) fn end(&self) -> u64 {
        let in_leaf = |(leaf_at, leaf): (usize, &Option<Box<Leaf>>)| {
            steps::count(1);
            let (chunk_at, chunk) =
                leaf.as_ref()?.chunks.iter().enumerate().rev().find(|(_, chunk)| chunk.present != 0)?;
            let base = leaf_at as u64 * LEAF_BLOCKS + chunk_at as u64 * CHUNK_BLOCKS;
            Some(base + u64::from(u64::BITS - chunk.present.leading_zeros()))
        };
        self.leaves.iter().enumerate().rev().find_map(in_leaf).unwrap_or(0)
    }

    /// Whether `lba` (below `end`) is mapped, and up to where the blocks after it are of the same kind. Looks at no more than `steps`
    /// leaves and chunks, and takes them off.
    pub(crate) fn run_at(&self, lba: u64, end: u64, steps: &mut u32) -> (bool, u64) {
        let mapped = self.find(lba).is_some();
        let mut at = lba;
        while at < end && *steps > 0 {
            *steps -= 1;
            let (leaf, chunk, bit) = split(at);
            let Some(chunks) = self.leaves.get(leaf).and_then(Option::as_ref) else {
                if mapped {
                    break;
                }
                at = (leaf as u64 + 1) * LEAF_BLOCKS;
                continue;
            };
            let present = chunks.chunks[chunk].present;
            let other = if mapped { !present } else { present } & (u64::MAX << bit);
            let base = at - u64::from(bit);
            if other != 0 {
                at = base + u64::from(other.trailing_zeros());
                break;
            }
            at = base + CHUNK_BLOCKS;
        }
        (mapped, at.min(end))
    }

    /// The largest end for which `start..end` has no more than about `most` mapped blocks (a chunk's more). Looks at no more than
    /// `steps` chunks.
    pub(crate) fn end_of_slice(&self, start: u64, end: u64, most: u64, mut steps: u32) -> u64 {
        let (mut at, mut mapped) = (start, 0);
        while at < end.min(self.leaves.len() as u64 * LEAF_BLOCKS) {
            steps::count(1);
            let (leaf, chunk, bit) = split(at);
            let Some(chunks) = self.leaves.get(leaf).and_then(Option::as_ref) else {
                at = (leaf as u64 + 1) * LEAF_BLOCKS;
                continue;
            };
            mapped += u64::from((chunks.chunks[chunk].present & (u64::MAX << bit)).count_ones());
            at += CHUNK_BLOCKS - u64::from(bit);
            steps = steps.saturating_sub(1);
            if mapped >= most || steps == 0 {
                return at.min(end);
            }
        }
        end
    }

    /// Visits mapped blocks from `lba` on, in order of address, until told not to go on.
    pub(crate) fn visit_from(&self, lba: u64, mut visit: impl FnMut(u64, Version) -> bool) {
        let (first_leaf, first_chunk, _) = split(lba);
        for (leaf_at, leaf) in self.leaves.iter().enumerate().skip(first_leaf) {
            steps::count(1);
            let Some(leaf) = leaf else { continue };
            let skip = if leaf_at == first_leaf { first_chunk } else { 0 };
            for (chunk_at, chunk) in leaf.chunks.iter().enumerate().skip(skip) {
                steps::count(1);
                let base = leaf_at as u64 * LEAF_BLOCKS + chunk_at as u64 * CHUNK_BLOCKS;
                for (bit, &version) in bits(chunk.present).zip(&chunk.versions) {
                    let at = base + u64::from(bit);
                    steps::count(1);
                    if at >= lba && !visit(at, version) {
                        return;
                    }
                }
            }
        }
    }

    /// Which of the 64 blocks from `base` on (a multiple of 64) are mapped, lowest first.
    pub(crate) fn chunk_at(&self, base: u64) -> u64 {
        let (leaf, chunk, _) = split(base);
        self.leaves.get(leaf).and_then(Option::as_ref).map_or(0, |leaf| leaf.chunks[chunk].present)
    }

    /// The same, with where it is, of every chunk from the one of `lba` on that lies in a leaf with blocks.
    pub(crate) fn chunks_from(&self, lba: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (first_leaf, first_chunk, _) = split(lba);
        let leaves = self.leaves.iter().enumerate().skip(first_leaf);
        leaves.filter_map(|(at, leaf)| Some((at, leaf.as_ref()?))).flat_map(move |(leaf_at, leaf)| {
            let skip = if leaf_at == first_leaf { first_chunk } else { 0 };
            let base = move |chunk_at| leaf_at as u64 * LEAF_BLOCKS + chunk_at as u64 * CHUNK_BLOCKS;
            leaf.chunks.iter().enumerate().skip(skip).map(move |(chunk_at, chunk)| (base(chunk_at), chunk.present))
        })
    }

    /// Visits every mapped block in order of address.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(u64, Version)) {
        for (leaf_at, leaf) in self.leaves.iter().enumerate() {
            steps::count(1);
            let Some(leaf) = leaf else { continue };
            for (chunk_at, chunk) in leaf.chunks.iter().enumerate() {
                steps::count(1);
                let base = leaf_at as u64 * LEAF_BLOCKS + chunk_at as u64 * CHUNK_BLOCKS;
                steps::count(chunk.versions.len() as u64);
                for (bit, &version) in bits(chunk.present).zip(&chunk.versions) {
                    visit(base + u64::from(bit), version);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const LAYOUT: Layout = Layout { segment_bytes: 4 << 20, segments: 1 << 20, block_bytes: 4096, item_bytes: 56 };

    fn version(sequence: u64) -> Version {
        Version::new(&LAYOUT, sequence, 3, 8192, 4096 + 152)
    }

    #[test]
    fn a_version_is_sixteen_bytes_and_keeps_its_fields() {
        assert_eq!(size_of::<Version>(), 16);
        let version = Version::new(&LAYOUT, (1 << 56) - 1, (1 << 20) - 1, (4 << 20) - 512, 4096 + 152);
        assert_eq!(version.sequence(), (1 << 56) - 1);
        assert_eq!(version.segment(&LAYOUT), (1 << 20) - 1);
        assert_eq!(version.data_offset(), LAYOUT.segment_at((1 << 20) - 1) + (4 << 20) - 512);
        assert_eq!(version.item_at(), 4096 + 152);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0u8..4, 0u64..40_000, 1u64..20_000), 1..200)) {
            let mut index = BlockIndex::default();
            let mut model = BTreeMap::new();
            for (sequence, (kind, lba, count)) in steps.into_iter().enumerate() {
                let end = (lba + count).min(50_000);
                if kind == 0 {
                    let mut removed = Vec::new();
                    index.remove_range(lba, end, |lba, version| removed.push((lba, version.sequence())));
                    let keys: Vec<u64> = model.range(lba..end).map(|(&lba, _)| lba).collect();
                    let expected: Vec<(u64, u64)> =
                        keys.into_iter().map(|lba| (lba, model.remove(&lba).expect("listed"))).collect();
                    prop_assert_eq!(removed, expected);
                } else {
                    for lba in lba..(lba + count % 70).min(50_000) {
                        let old = index.insert(lba, version(sequence as u64)).map(Version::sequence);
                        prop_assert_eq!(old, model.insert(lba, sequence as u64));
                    }
                }
                prop_assert_eq!(index.len(), model.len() as u64);
                prop_assert_eq!(index.any_in(lba, end), model.range(lba..end.max(lba)).next().is_some());
                let (most, slice) = (1 + count % 500, index.end_of_slice(lba, end, 1 + count % 500, 1_000_000));
                prop_assert!(slice > lba && slice <= end || lba >= end);
                let within = model.range(lba..slice.max(lba)).count() as u64;
                prop_assert!(within < most + CHUNK_BLOCKS && (within >= most || slice == end || lba >= end));
                prop_assert_eq!(index.end(), model.last_key_value().map_or(0, |(&lba, _)| lba + 1));
                prop_assert_eq!(index.next_mapped(lba), model.range(lba..).next().map(|(&lba, _)| lba));
                prop_assert_eq!(index.find(lba).map(Version::sequence), model.get(&lba).copied());
            }
            let (mut at, mut runs) = (0, Vec::new());
            while at < 50_000 {
                let (mapped, until) = index.run_at(at, 50_000, &mut 1_000_000);
                runs.push((at, mapped));
                prop_assert!((at..until).all(|lba| model.contains_key(&lba) == mapped));
                at = until;
            }
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 != pair[1].1), "runs are as long as they can be");
            let leaves: std::collections::BTreeSet<u64> = model.keys().map(|lba| lba / LEAF_BLOCKS).collect();
            prop_assert_eq!(index.leaves.iter().flatten().count(), leaves.len(), "leaves without blocks are freed");
            let mut all = Vec::new();
            index.for_each(|lba, version| all.push((lba, version.sequence())));
            prop_assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        }
    }
}

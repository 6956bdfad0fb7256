//! Runs of blocks in few bits. What all runs of a block of the checkpoint have in common stands once in front of them; of
//! the rest each has as many bits as the one among them that needs most (frame of reference).
//!
//! A block that lies alone takes 6 to 9 bytes, and never more than [`RUN_BYTES_PLANNED`](crate::layout::RUN_BYTES_PLANNED) while the sequences of adjacent entries are less than
//! 2^40 apart.

use super::{HEADER, Run};
use crate::index::Version;
use crate::layout::{Layout, RECORD_BLOCK, SECTOR, be_u64};
use crate::unit::ENTRY_HEADER;

/// Numbers of a run: distance from the one before, blocks, sequence, place of the data, how far before it its record block is, and
/// how far from where one expects it there its item is.
const FIELDS: usize = 6;
/// Which of them are which.
const GAP: usize = 0;
const BLOCKS: usize = 1;
/// Its last bits may be zeros in all.
const PLACE: usize = 3;
/// Where the least of each number is; in front of them, where the block before the first run would have ended.
const LEAST_AT: usize = HEADER + 8;
/// Where the bits are that places leave out, and behind that how many bits each number has, and a zero.
const SHIFT_AT: usize = LEAST_AT + 8 * FIELDS;
/// Where the runs begin.
const BITS_AT: usize = SHIFT_AT + 8;
/// Bits for runs. The last bytes stay empty: so each number can be read as part of 8 bytes.
const BITS: usize = (RECORD_BLOCK - BITS_AT - 8) * 8;
/// Most bits of one number.
const WIDTH_MAX: u32 = 56;
/// Most bits that places leave out.
const SHIFT_MAX: u32 = 16;
/// Upper bound on the runs in one block, of any size.
const RUNS_MAX: usize = 4096;
/// Runs that a block has room for when most blocks lie alone. To grow there by doubling would touch fresh memory of every size on the way,
/// which the kernel clears first: milliseconds of the first checkpoint's polls.
const RUNS_USUAL: usize = 768;
/// Longest run.
pub(super) const RUN_BLOCKS_MAX: u32 = 0xffff;

/// What is told of runs side by side.
struct Measures {
    /// Sectors of a segment, less one.
    within: u64,
    /// By how many 8 bytes items go on while data goes on by 4 KiB, in units of one block's bytes.
    item_step: i64,
    block_shift: u32,
    items_max: i64,
}

impl Measures {
    fn new(layout: &Layout) -> Measures {
        Measures {
            within: u64::from(layout.segment_bytes) / SECTOR - 1,
            item_step: i64::from((ENTRY_HEADER as u32 + layout.item_bytes) / 8) * RECORD_BLOCK as i64,
            block_shift: layout.block_bytes.trailing_zeros(),
            items_max: i64::from(layout.segment_bytes / 8),
        }
    }

    /// Where the 4 KiB are in the segment that the data begins in.
    fn data_block(&self, sector: u64) -> i64 {
        ((sector & self.within) / (RECORD_BLOCK as u64 / SECTOR)) as i64
    }

    /// How far from the start of its record block an item is, in 8 bytes, if it is for data this many 4 KiB further on, and each block
    /// before it has an entry of its own.
    fn expected(&self, distance: i64) -> i64 {
        distance.wrapping_mul(self.item_step) >> self.block_shift
    }

    fn fields(&self, run: &Run, end_before: u64) -> [i64; FIELDS] {
        const ITEMS: i64 = RECORD_BLOCK as i64 / 8;
        let (sector, item) = (run.first.sector(), i64::from(run.first.item_at() / 8));
        let distance = self.data_block(sector) - item / ITEMS;
        let gap = run.lba.wrapping_sub(end_before) as i64;
        let residue = item % ITEMS - self.expected(distance);
        [gap, i64::from(run.count), run.first.sequence() as i64, sector as i64, distance, residue]
    }

    /// The run of these numbers. `None` if they are not of any.
    fn run(&self, [gap, count, sequence, sector, distance, residue]: [i64; FIELDS], end_before: u64) -> Option<Run> {
        let lba = end_before.wrapping_add(gap as u64);
        let block = self.data_block(sector as u64).wrapping_sub(distance);
        let item = block.wrapping_mul(RECORD_BLOCK as i64 / 8);
        let item = item.wrapping_add(residue).wrapping_add(self.expected(distance));
        let possible = lba < 1 << 48
            && (1..=i64::from(RUN_BLOCKS_MAX)).contains(&count)
            && (0..1 << 56).contains(&sequence)
            && (0..1 << 40).contains(&sector)
            && (0..self.items_max).contains(&item);
        let first = || Version::from_parts(sequence as u64, sector as u64, item as u32);
        possible.then(|| Run { lba, count: count as u32, first: first() })
    }
}

/// What runs have in common.
#[derive(Clone, Copy)]
struct Frame {
    least: [i64; FIELDS],
    most: [i64; FIELDS],
    /// All places, to see which bits none has.
    places: u64,
}

impl Frame {
    const EMPTY: Frame = Frame { least: [i64::MAX; FIELDS], most: [i64::MIN; FIELDS], places: 0 };

    fn with(mut self, fields: [i64; FIELDS]) -> Frame {
        for (at, field) in fields.into_iter().enumerate() {
            self.least[at] = self.least[at].min(field);
            self.most[at] = self.most[at].max(field);
        }
        self.places |= fields[PLACE] as u64;
        self
    }

    fn shift(&self) -> u32 {
        self.places.trailing_zeros().min(SHIFT_MAX)
    }

    fn widths(&self) -> [u32; FIELDS] {
        let mut widths = [0; FIELDS];
        for (at, width) in widths.iter_mut().enumerate() {
            // Nothing is between them in an empty frame.
            let span = self.most[at].checked_sub(self.least[at]).map_or(0, |span| span.max(0));
            let span = if at == PLACE { span >> self.shift() } else { span };
            *width = i64::BITS - span.leading_zeros();
        }
        widths
    }

    /// Whether this many runs fit.
    fn has_room(&self, runs: usize) -> bool {
        let widths = self.widths();
        runs <= RUNS_MAX
            && widths.iter().all(|&width| width <= WIDTH_MAX)
            && runs * widths.iter().sum::<u32>() as usize <= BITS
    }
}

/// Puts versions of consecutive blocks together to runs, as many as one block of a checkpoint holds.
pub(crate) struct Runs {
    layout: Layout,
    measures: Measures,
    frame: Frame,
    end: u64,
    pub(crate) runs: Vec<Run>,
}

impl Runs {
    pub(crate) fn new(layout: Layout) -> Runs {
        let runs = Vec::with_capacity(RUNS_USUAL);
        Runs { layout, measures: Measures::new(&layout), frame: Frame::EMPTY, end: 0, runs }
    }

    /// Adds one; false if there is no room for it.
    pub(crate) fn push(&mut self, lba: u64, version: Version) -> bool {
        let runs = self.runs.len();
        if let Some(run) = self.runs.last_mut()
            && run.count < RUN_BLOCKS_MAX
            && self.end == lba
            && run.first.step(&self.layout, run.count) == version
        {
            let count = i64::from(run.count) + 1;
            if count > self.frame.most[BLOCKS] {
                let mut frame = self.frame;
                frame.most[BLOCKS] = count;
                if !frame.has_room(runs) {
                    return false;
                }
                self.frame = frame;
            }
            run.count += 1;
            self.end += 1;
            return true;
        }
        let run = Run { lba, count: 1, first: version };
        // The first one's distance is the least of the others.
        let end_before = if runs == 0 { lba } else { self.end };
        let fields = self.measures.fields(&run, end_before);
        let mut frame = self.frame;
        if runs == 1 {
            (frame.least[GAP], frame.most[GAP]) = (fields[GAP], fields[GAP]);
        }
        let frame = frame.with(fields);
        let room = frame.has_room(runs + 1);
        if room {
            self.frame = frame;
            self.runs.push(run);
            self.end = lba + 1;
        }
        room
    }
}

/// Writes runs behind the header of a block.
pub(super) fn encode(runs: &[Run], layout: &Layout, out: &mut Vec<u8>) {
    let measures = Measures::new(layout);
    let mut all: Vec<[i64; FIELDS]> = Vec::with_capacity(runs.len());
    let mut end = 0;
    for run in runs {
        all.push(measures.fields(run, end));
        end = run.lba + u64::from(run.count);
    }
    let first_gap = all.iter().skip(1).map(|fields| fields[GAP]).min().unwrap_or(0);
    if let Some(first) = all.first_mut() {
        first[GAP] = first_gap;
    }
    let frame = all.iter().fold(Frame::EMPTY, |frame, &fields| frame.with(fields));
    assert!(frame.has_room(runs.len()), "no more runs than fit");
    let (widths, shift) = (frame.widths(), frame.shift());
    let begin = runs.first().map_or(0, |run| run.lba.wrapping_sub(first_gap as u64));
    out.extend_from_slice(&begin.to_be_bytes());
    for least in frame.least {
        let least = if runs.is_empty() { 0 } else { least };
        out.extend_from_slice(&least.to_be_bytes());
    }
    out.push(shift as u8);
    out.extend(widths.map(|width| width as u8));
    out.push(0);
    debug_assert_eq!(out.len(), BITS_AT);
    let (mut bits, mut held) = (0u128, 0);
    for fields in &all {
        for at in 0..FIELDS {
            let mut offset = (fields[at] - frame.least[at]) as u64;
            if at == PLACE {
                offset >>= shift;
            }
            bits = bits << widths[at] | u128::from(offset);
            held += widths[at];
            while held >= 8 {
                held -= 8;
                out.push((bits >> held) as u8);
            }
        }
    }
    if held > 0 {
        out.push((bits << (8 - held)) as u8);
    }
}

/// Reads this many runs of a whole block. `None` if they cannot be.
pub(super) fn decode(bytes: &[u8], count: usize, layout: &Layout) -> Option<Vec<Run>> {
    let measures = Measures::new(layout);
    let mut least = [0; FIELDS];
    let mut widths = [0; FIELDS];
    for at in 0..FIELDS {
        least[at] = be_u64(bytes, LEAST_AT + 8 * at) as i64;
        widths[at] = u32::from(bytes[SHIFT_AT + 1 + at]);
    }
    let shift = u32::from(bytes[SHIFT_AT]);
    let possible = count <= RUNS_MAX
        && shift <= SHIFT_MAX
        && widths.iter().all(|&width| width <= WIDTH_MAX)
        && bytes[BITS_AT - 1] == 0
        && count * widths.iter().sum::<u32>() as usize <= BITS;
    if !possible {
        return None;
    }
    let mut runs = Vec::with_capacity(count);
    let (mut at, mut end) = (BITS_AT * 8, be_u64(bytes, HEADER));
    for _ in 0..count {
        let mut fields = least;
        for (index, &width) in widths.iter().enumerate() {
            let word = be_u64(bytes, at / 8) << (at % 8);
            let offset = word >> 1 >> (u64::BITS - 1 - width);
            let offset = if index == PLACE { offset << shift } else { offset };
            fields[index] = fields[index].wrapping_add(offset as i64);
            at += width as usize;
        }
        let run = measures.run(fields, end)?;
        end = run.lba + u64::from(run.count);
        runs.push(run);
    }
    Some(runs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::{Block, Content};
    use crate::layout::RUN_BYTES_PLANNED;

    const LAYOUT: Layout = Layout { segment_bytes: 4 << 20, segments: 1 << 18, block_bytes: 4096, item_bytes: 56 };

    /// Numbers in no order, always the same.
    fn scattered(seed: u64) -> u64 {
        let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
    }

    fn bytes_of(runs: &Runs) -> Vec<u8> {
        let content = Content::Runs(runs.runs.clone());
        let block = Block { begin_lsn: 1, generation: 2, next_generation: 3, branch: 0, content };
        let store_id = crate::options::StoreId([0; 16]);
        block.encode(crate::unit::LogAddress { store_id, segment: 0, block: 0 }, &runs.layout)
    }

    fn again(bytes: &[u8], layout: &Layout) -> Option<Vec<Run>> {
        match Block::decode_content(bytes, layout)?.content {
            Content::Runs(runs) => Some(runs),
            _ => None,
        }
    }

    /// Fills one block with lone blocks, and says how many it took.
    fn fill(layout: Layout, version: impl Fn(u64) -> (u64, Version)) -> usize {
        let mut runs = Runs::new(layout);
        let taken = (0..)
            .take_while(|&at| {
                let (lba, version) = version(at);
                runs.push(lba, version)
            })
            .count();
        assert_eq!(again(&bytes_of(&runs), &layout).expect("just encoded"), runs.runs);
        taken
    }

    /// What a random overwrite leaves: every block of the volume somewhere in a store of 64 GiB, in units of 32 blocks with an entry each.
    #[test]
    fn a_block_that_lies_alone_takes_less_than_ten_bytes() {
        let taken = fill(LAYOUT, |lba| {
            let (unit, index) = (scattered(lba) % 31, scattered(lba) / 31 % 32);
            let segment = (scattered(lba) / 1000 % (1 << 14)) as u32;
            let unit_at = unit * 33 * 4096;
            let (data_at, item_at) = (unit_at + 4096 + index * 4096, unit_at + 128 + 24 + index * 80);
            (lba, Version::new(&LAYOUT, 1 + scattered(lba) % (1 << 26), segment, data_at as u32, item_at as u32))
        });
        assert!(taken * 10 > RECORD_BLOCK, "{taken} in one block");
    }

    /// Thin, 512 bytes, the longest units, openings by the hundred: still within what is set aside.
    #[test]
    fn no_block_takes_more_than_is_set_aside() {
        for (block_bytes, item_bytes) in [(512, 8), (512, 96), (4096, 96), (65536, 56)] {
            let layout = Layout { block_bytes, item_bytes, ..LAYOUT };
            let taken = fill(layout, |at| {
                let number = scattered(at);
                let unit_at = (number % 3) << 20;
                let item_at = unit_at + number % 64 * 4096 + 152 + number / 64 % 300 * 8;
                let data_at =
                    unit_at + (64 << 12) + number / 7 % ((192 << 12) / u64::from(block_bytes)) * u64::from(block_bytes);
                let segment = (number / 11 % (1 << 18)) as u32;
                let sequence = 1 + number % (1 << 40);
                (at * 64 + number % 64, Version::new(&layout, sequence, segment, data_at as u32, item_at as u32))
            });
            assert!(taken as u64 * RUN_BYTES_PLANNED >= RECORD_BLOCK as u64, "{layout:?}: {taken} in one block");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut runs = Runs::new(LAYOUT);
        for at in 0..100 {
            assert!(runs.push(at * 3, Version::new(&LAYOUT, 7 + scattered(at) % 999, 3, 8192, 4096 + 152)));
        }
        let good = bytes_of(&runs);
        let refused = |what: &str, change: fn(&mut [u8])| {
            let mut bad = good.clone();
            change(&mut bad);
            assert_eq!(again(&bad, &LAYOUT), None, "{what}");
        };
        assert!(again(&good, &LAYOUT).is_some());
        refused("more than fit", |bytes| bytes[6..8].copy_from_slice(&4000u16.to_be_bytes()));
        refused("runs of no bits", |bytes| {
            bytes[6..8].copy_from_slice(&0xffffu16.to_be_bytes());
            bytes[SHIFT_AT + 1..BITS_AT].fill(0);
        });
        refused("a wide number", |bytes| bytes[SHIFT_AT + 1] = 57);
        refused("a large shift", |bytes| bytes[SHIFT_AT] = 17);
        refused("a reserved byte", |bytes| bytes[BITS_AT - 1] = 1);
        refused("a block beyond 48 bits", |bytes| bytes[HEADER] = 1);
        for field in 0..FIELDS {
            for byte in [0x80, 0x7f] {
                let mut bad = good.clone();
                bad[LEAST_AT + 8 * field] ^= byte;
                // What is left of them lies within their limits.
                for run in again(&bad, &LAYOUT).unwrap_or_default() {
                    assert!(
                        run.count <= RUN_BLOCKS_MAX && run.first.item_at() < LAYOUT.segment_bytes,
                        "field {field}: {run:?}"
                    );
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            mut bytes in prop::collection::vec(any::<u8>(), RECORD_BLOCK),
            count in 0u16..5000,
            least in prop::collection::vec(prop_oneof![0u64..2000, any::<u64>()], FIELDS + 1),
            widths in prop::collection::vec(0u8..20, FIELDS + 1),
        ) {
            crate::fuzz::fuzz_checkpoint(&bytes);
            bytes[4] = 4;
            bytes[6..8].copy_from_slice(&count.to_be_bytes());
            for (at, least) in least.into_iter().enumerate() {
                bytes[HEADER + 8 * at..][..8].copy_from_slice(&least.to_be_bytes());
            }
            bytes[SHIFT_AT..BITS_AT - 1].copy_from_slice(&widths);
            bytes[BITS_AT - 1] = 0;
            crate::fuzz::fuzz_checkpoint(&bytes);
        }

        #[test]
        fn decodes_what_was_pushed(
            block_shift in 9u32..17,
            item_bytes in prop::sample::select(vec![8u32, 56, 96]),
            steps in prop::collection::vec((0u64..5, 1u32..300, 0u64..1 << 41, any::<u64>(), 0u32..4096), 1..600),
        ) {
            let layout = Layout { block_bytes: 1 << block_shift, item_bytes, ..LAYOUT };
            let (mut lba, mut expected, mut found) = (1u64, Vec::new(), Vec::new());
            let mut runs = Runs::new(layout);
            let mut versions = Vec::new();
            for (gap, count, sequence, place, item) in steps {
                // Versions of one block may stand side by side.
                lba = (lba + gap).saturating_sub(1).max(1) + gap / 4 * (place % (1 << 30));
                let data = (place % u64::from(layout.segment_bytes / layout.block_bytes)) as u32 * layout.block_bytes;
                let first = Version::new(&layout, 1 + sequence, (place >> 40) as u32 % layout.segments, data, item * 8);
                let count = if gap == 2 { count } else { 1 };
                for at in 0..count {
                    let version = first.step(&layout, at);
                    if version.possible(&layout) {
                        versions.push((lba + u64::from(at), version));
                    }
                }
                lba += u64::from(count);
            }
            let each = |runs: &[Run], out: &mut Vec<(u64, Version)>| {
                for run in runs {
                    out.extend((0..run.count).map(|at| (run.lba + u64::from(at), run.first.step(&layout, at))));
                }
            };
            for (lba, version) in versions {
                expected.push((lba, version));
                if !runs.push(lba, version) {
                    each(&again(&bytes_of(&runs), &layout).expect("just encoded"), &mut found);
                    runs = Runs::new(layout);
                    prop_assert!(runs.push(lba, version), "the first one always fits");
                }
            }
            each(&again(&bytes_of(&runs), &layout).expect("just encoded"), &mut found);
            prop_assert_eq!(found, expected);
        }
    }
}

//! Finding units: at a place, along the chain of the log, and beyond a gap.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use strongroom_block::{Buffer, BufferMut, keyless_checksum};

use super::damage::Damage;
use super::reader::Reader;
use crate::backend::{Backend, Io, IoDone};
use crate::error::StoreError;
use crate::layout::{LOG_START, Layout, RECORD_BLOCK, item_checksum};
use crate::planted::Planted;
use crate::superblock::{SecondTable, Superblock};
use crate::unit::{Entry, LogAddress, NO_SEGMENT, UnitHeader, decode_entries, decode_header, flag, intact_entries};

/// Where a unit was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) segment: u32,
    pub(crate) block: u32,
    pub(crate) header: UnitHeader,
}

/// A unit whose record blocks are intact.
pub(crate) struct Unit {
    pub(crate) segment: u32,
    pub(crate) block: u32,
    pub(crate) header: UnitHeader,
    records: Buffer,
}

impl Unit {
    pub(crate) fn entries(&self, layout: &Layout) -> Vec<Entry<'_>> {
        intact_entries(&self.records, &self.header, layout).expect("decoded when it was read")
    }

    /// Its record blocks up to the last byte that is not zero.
    pub(super) fn told(&self) -> &[u8] {
        let end = self.records.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        &self.records[..end]
    }

    /// A unit that was found before, from what it [`told`](Unit::told).
    pub(super) fn told_before(found: &Found, told: &[u8]) -> Unit {
        let mut records = BufferMut::zeroed(usize::from(found.header.record_blocks) * RECORD_BLOCK);
        records[..told.len()].copy_from_slice(told);
        Unit { segment: found.segment, block: found.block, header: found.header, records: records.freeze() }
    }

    pub(crate) fn found(&self) -> Found {
        Found { segment: self.segment, block: self.block, header: self.header }
    }

    /// Where its data begins, in bytes from the start of the segment.
    pub(crate) fn data_at(&self) -> u32 {
        (self.block + u32::from(self.header.record_blocks)) * RECORD_BLOCK as u32
    }
}

/// A place in the log at which the next unit is looked for.
pub(crate) struct Chain {
    pub(super) segment: u32,
    pub(super) block: u32,
    /// Number of the first unit, if it begins with a segment table.
    pub(super) start_lsn: u64,
    /// Generation of the segment and number of the last unit; `None` before the first.
    pub(super) last: Option<(u64, u64)>,
    /// The segment that the last unit names as the next.
    pub(super) next_segment: Option<u32>,
}

impl Chain {
    /// At a place, behind the unit `lsn`.
    pub(super) fn at(segment: u32, block: u32, generation: u64, lsn: u64, next_segment: Option<u32>) -> Chain {
        Chain { segment, block, start_lsn: 0, last: Some((generation, lsn)), next_segment }
    }

    /// Number of the unit before the next one, if none was passed by.
    pub(super) fn last_lsn(&self) -> u64 {
        self.last.map_or(self.start_lsn.saturating_sub(1), |(_, lsn)| lsn)
    }

    pub(crate) fn damaged(&self, what: impl Into<String>) -> StoreError {
        damaged(self.segment, self.block, what)
    }
}

/// Something that must be there is not.
pub(crate) fn damaged(segment: u32, block: u32, what: impl Into<String>) -> StoreError {
    let what = format!("{} is missing or does not match its checksum", what.into());
    StoreError::Damaged { segment, offset: u64::from(block) * RECORD_BLOCK as u64, what }
}

/// Reads units of one store.
pub(crate) struct Scanner<'a> {
    reader: Reader<'a>,
    pub(crate) superblock: Superblock,
    pub(crate) layout: Layout,
    /// The first unit of each segment, where there is an intact one of any age. What a thin medium does not hold takes no memory.
    pub(super) first_units: BTreeMap<u32, UnitHeader>,
    /// Segments whose first 4 KiB cannot be read.
    pub(crate) unreadable: BTreeSet<u32>,
    /// Segments of the superblock's opening by the number of the unit before their first.
    by_prev_lsn: HashMap<u64, u32>,
    /// What was passed over; `None`: nothing may be, and damage is an error.
    pub(super) damage: Option<Damage>,
    pub(crate) planted: Planted,
}

/// Units of this many 4 KiB blocks are small.
const SMALL_UNIT_BLOCKS: u32 = 16;
/// How many segments are looked at at a time.
const LOOKS_IN_FLIGHT: usize = 64;

/// The segments that may begin with something, one after the other.
#[derive(Default)]
struct Places {
    next: u32,
    /// Before this byte there is nothing from the next segment on.
    data_at: u64,
}

impl Places {
    fn next(&mut self, backend: &mut dyn Backend, layout: &Layout) -> Option<u32> {
        while self.next < layout.segments {
            let (segment, offset) = (self.next, layout.segment_at(self.next));
            if self.data_at <= offset {
                self.data_at = backend.data_from(offset)?.start.max(offset);
            }
            let there = (self.data_at - LOG_START) / u64::from(layout.segment_bytes);
            self.next = (segment + 1).max(there.min(u64::from(layout.segments)) as u32);
            if self.data_at < offset + RECORD_BLOCK as u64 {
                return Some(segment);
            }
        }
        None
    }
}

impl<'a> Scanner<'a> {
    /// Only reads units where it is told to.
    pub(crate) fn lone(backend: &'a mut dyn Backend, superblock: &Superblock) -> Scanner<'a> {
        let layout = superblock.layout();
        let superblock = superblock.clone();
        Scanner {
            reader: Reader::new(backend, layout),
            superblock,
            layout,
            first_units: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            by_prev_lsn: HashMap::new(),
            damage: None,
            planted: Planted::default(),
        }
    }

    /// Looks at the first record block of every segment. What cannot be read there may not be needed.
    pub(crate) fn new(backend: &'a mut dyn Backend, superblock: &Superblock) -> Scanner<'a> {
        let mut scanner = Scanner::lone(backend, superblock);
        let (mut places, mut in_flight) = (Places::default(), 0);
        loop {
            let backend = scanner.reader.backend();
            while in_flight < LOOKS_IN_FLIGHT
                && let Some(segment) = places.next(backend, &scanner.layout)
            {
                let (offset, buffer) = (scanner.layout.segment_at(segment), BufferMut::zeroed(RECORD_BLOCK));
                backend.submit(u64::from(segment), Io::Read { offset, buffer });
                in_flight += 1;
            }
            if in_flight == 0 {
                return scanner;
            }
            let mut done = Vec::new();
            if backend.poll(&mut done) == 0 {
                backend.wait();
            }
            in_flight -= done.len();
            for IoDone { token, result } in done {
                scanner.looked(token as u32, result.ok().flatten().map(BufferMut::freeze));
            }
        }
    }

    fn looked(&mut self, segment: u32, first: Option<Buffer>) {
        let Some(first) = first else {
            self.unreadable.insert(segment);
            return;
        };
        let Some(header) = decode_header(&first, self.place(segment, 0), &self.layout) else { return };
        if header.open_id == self.superblock.open_id {
            self.by_prev_lsn.insert(header.prev_lsn, segment);
        }
        self.first_units.insert(segment, header);
    }

    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        self.reader.backend()
    }

    /// These segments will be read one after the other.
    pub(super) fn expect(&mut self, segments: impl Iterator<Item = u32> + Clone) {
        self.reader.expect(segments);
    }

    /// The first segment from `segment` on that the medium may hold anything of.
    pub(super) fn next_with_data(&mut self, segment: u32) -> Option<u32> {
        if segment >= self.layout.segments {
            return None;
        }
        let from = self.layout.segment_at(segment);
        let at = self.reader.backend().data_from(from)?.start.max(from);
        let there = (at - LOG_START) / u64::from(self.layout.segment_bytes);
        (there < u64::from(self.layout.segments)).then_some(there as u32)
    }

    fn place(&self, segment: u32, block: u32) -> LogAddress {
        LogAddress { store_id: self.superblock.store_id, segment, block }
    }

    pub(super) fn header_at(&mut self, segment: u32, block: u32) -> Result<Option<(UnitHeader, Buffer)>, StoreError> {
        let first = match self.reader.read(segment, block, 1) {
            // What cannot be read is as good as lost.
            Err(_) if self.damage.is_some() => return Ok(None),
            read => read?,
        };
        let header = decode_header(&first, self.place(segment, block), &self.layout);
        Ok(header.map(|header| (header, first)))
    }

    /// The unit at a place, if all its record blocks are intact.
    pub(crate) fn unit_at(&mut self, segment: u32, block: u32) -> Result<Option<Unit>, StoreError> {
        if block >= self.layout.segment_blocks() {
            return Ok(None);
        }
        let Some((header, mut records)) = self.header_at(segment, block)? else { return Ok(None) };
        self.reader.seen(header.blocks() <= SMALL_UNIT_BLOCKS);
        if header.record_blocks > 1 {
            records = match self.reader.read(segment, block, u32::from(header.record_blocks)) {
                Err(_) if self.damage.is_some() => return Ok(None),
                read => read?,
            };
        }
        let intact = decode_entries(&records, &header, self.place(segment, block), &self.layout).is_ok();
        Ok(intact.then_some(Unit { segment, block, header, records }))
    }

    /// A unit that was found before.
    pub(crate) fn unit_again(&mut self, found: &Found) -> Result<Unit, StoreError> {
        let unit = self.unit_at(found.segment, found.block)?.filter(|unit| unit.header == found.header);
        unit.ok_or_else(|| damaged(found.segment, found.block, "a unit that was there a moment ago"))
    }

    /// The segments of the superblock's opening will be read in their order.
    pub(super) fn expect_chain(&mut self) {
        let ours = self.first_units.iter().filter(|(_, first)| first.open_id == self.superblock.open_id);
        let mut segments: Vec<(u64, u32)> = ours.map(|(&segment, first)| (first.generation, segment)).collect();
        segments.sort_unstable();
        self.expect(segments.iter().map(|&(_, segment)| segment));
    }

    /// The chain of units that begins with the superblock's first table.
    pub(crate) fn chain(&self) -> Chain {
        let &Superblock { table_segment: segment, table_block: block, table_lsn: start_lsn, .. } = &self.superblock;
        Chain { segment, block, start_lsn, last: None, next_segment: None }
    }

    /// The chain of units that begins with the superblock's second table.
    pub(super) fn second_chain(&self) -> Option<Chain> {
        let SecondTable { segment, block, lsn: start_lsn, .. } = self.superblock.second_table?;
        Some(Chain { segment, block, start_lsn, last: None, next_segment: None })
    }

    /// The next unit of the chain, here or at the start of the segment that was opened next.
    pub(crate) fn next(&mut self, chain: &mut Chain) -> Result<Option<Unit>, StoreError> {
        let here = self.unit_at(chain.segment, chain.block)?.filter(|unit| self.continues(chain, &unit.header));
        let unit = match here {
            Some(unit) => Some(unit),
            None => self.next_segment(chain)?,
        };
        if let Some(unit) = &unit {
            let next_segment = Some(unit.header.next_segment).filter(|&segment| segment != NO_SEGMENT);
            let end = unit.block + unit.header.blocks();
            *chain = Chain::at(unit.segment, end, unit.header.generation, unit.header.lsn, next_segment);
        }
        Ok(unit)
    }

    fn continues(&self, chain: &Chain, header: &UnitHeader) -> bool {
        header.open_id == self.superblock.open_id
            && match chain.last {
                None => header.lsn == chain.start_lsn,
                Some((generation, lsn)) => header.generation == generation && header.prev_lsn == lsn,
            }
    }

    fn next_segment(&mut self, chain: &Chain) -> Result<Option<Unit>, StoreError> {
        let Some(&segment) = chain.last.and_then(|(_, lsn)| self.by_prev_lsn.get(&lsn)) else {
            // Where the log would go on: what cannot be read there may be what was flushed last.
            let Some(next) = chain.next_segment.filter(|next| self.unreadable.remove(next)) else { return Ok(None) };
            let first = self.reader.read_now(next, 0, 1);
            if first.is_err() {
                self.unreadable.insert(next);
            }
            self.looked(next, Some(first?));
            return self.next_segment(chain);
        };
        let first = self.first_units[&segment];
        if first.prev_segment != chain.segment || first.prev_end != chain.block {
            return Ok(None);
        }
        self.unit_at(segment, 0)
    }

    /// What units of this opening say is durable that the chain did not reach: in the rest of its last segment, in the
    /// one named as the next (wherever in it: its first unit may be what is lost), and in those opened later.
    pub(crate) fn durable_claimed_beyond(&mut self, chain: &Chain) -> Result<u64, StoreError> {
        let mut durable = 0;
        let lsn = chain.last.map_or(0, |(_, lsn)| lsn);
        self.reader.read_all_ahead();
        let rest = [Some((chain.segment, chain.block)), chain.next_segment.map(|segment| (segment, 0))];
        for (segment, from) in rest.into_iter().flatten() {
            for block in from..self.layout.segment_blocks() {
                let header = self.header_at(segment, block)?.map(|(header, _)| header);
                let ours = |header: &UnitHeader| header.open_id == self.superblock.open_id && header.lsn > lsn;
                durable = header.filter(ours).map_or(durable, |header| durable.max(header.durable_lsn));
            }
        }
        for (segment, first) in self.first_units.clone() {
            if first.open_id != self.superblock.open_id || first.lsn <= lsn {
                continue;
            }
            let mut block = 0;
            while block < self.layout.segment_blocks() {
                let header = self.header_at(segment, block)?.map(|(header, _)| header);
                let Some(header) = header.filter(|header| header.generation == first.generation) else { break };
                durable = durable.max(header.durable_lsn);
                block += header.blocks();
            }
        }
        Ok(durable)
    }

    /// An opening that the superblocks do not know may have written its first table, and nothing more.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if it did more: then both superblocks are older than the log.
    pub(crate) fn check_no_newer_opening(&mut self) -> Result<(), StoreError> {
        for (segment, first) in self.first_units.clone() {
            if first.open_epoch <= self.superblock.open_epoch {
                continue;
            }
            let mut block = 0;
            let mut prev_lsn = first.prev_lsn;
            while let Some((header, _)) =
                if block < self.layout.segment_blocks() { self.header_at(segment, block)? } else { None }
            {
                // Of openings that were cut off, each may have given the segment the same generation, and its units the same numbers.
                let same = header.open_id == first.open_id && header.generation == first.generation;
                if !same || header.prev_lsn != prev_lsn {
                    break;
                }
                if !header.has(flag::TABLE) {
                    return Err(damaged(segment, block, "the superblock of the newest opening"));
                }
                block += header.blocks();
                prev_lsn = header.lsn;
            }
        }
        Ok(())
    }

    /// Whether all blocks of a unit match their checksums.
    pub(crate) fn data_intact(&mut self, found: &Found) -> Result<bool, StoreError> {
        let unit = self.unit_again(found)?;
        self.data_matches(&unit)
    }

    /// As [`Scanner::data_intact`], if the blocks are read anyway.
    pub(super) fn data_intact_on_the_way(&mut self, unit: &Unit) -> Option<bool> {
        let on_the_way = self.reader.reads_all_ahead() && unit.header.blocks() <= SMALL_UNIT_BLOCKS;
        // What cannot be read may not need to be.
        if on_the_way { self.data_matches(unit).ok() } else { None }
    }

    fn data_matches(&mut self, unit: &Unit) -> Result<bool, StoreError> {
        if unit.header.data_bytes == 0 {
            return Ok(true);
        }
        let at = unit.block + u32::from(unit.header.record_blocks);
        let data = self.reader.read(unit.segment, at, unit.header.data_bytes / RECORD_BLOCK as u32)?;
        let mut data = data.chunks_exact(self.layout.block_bytes as usize);
        let items = unit.entries(&self.layout);
        let items = items.iter().filter_map(|entry| match entry {
            Entry::Blocks { items, .. } => Some(*items),
            _ => None,
        });
        let mut items = items.flat_map(|items| items.chunks_exact(self.layout.item_bytes as usize));
        Ok(items.all(|item| data.next().is_some_and(|block| keyless_checksum(block) == item_checksum(item))))
    }

    pub(crate) fn highest_generation(&self) -> u64 {
        self.first_units.values().map(|header| header.generation).max().unwrap_or(0)
    }

    pub(crate) fn highest_epoch(&self) -> u64 {
        self.first_units.values().map(|header| header.open_epoch).max().unwrap_or(0)
    }
}

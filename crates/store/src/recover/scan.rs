//! Finding units: at a place, along the chain of the log, and beyond a gap.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use strongroom_block::{Buffer, BufferMut, keyless_checksum};

use crate::backend::{Backend, Io, IoDone};
use crate::error::StoreError;
use crate::layout::{LOG_START, Layout, RECORD_BLOCK};
use crate::planted::Planted;
use crate::store::{blocking, item_checksum};
use crate::superblock::Superblock;
use crate::unit::{Entry, NO_SEGMENT, Place, UnitHeader, decode_entries, decode_header, flag};

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
    place: Place,
}

impl Unit {
    pub(crate) fn entries(&self, layout: &Layout) -> Vec<Entry<'_>> {
        decode_entries(&self.records, &self.header, self.place, layout).expect("decoded when it was read")
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
    segment: u32,
    block: u32,
    /// Generation of the segment and number of the last unit; `None` before the first.
    last: Option<(u64, u64)>,
    /// The segment that the last unit names as the next.
    next_segment: Option<u32>,
}

impl Chain {
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
    backend: &'a mut dyn Backend,
    pub(crate) superblock: Superblock,
    pub(crate) layout: Layout,
    /// The first unit of each segment, where there is an intact one of any age. What a thin medium does not hold takes no memory.
    first_units: BTreeMap<u32, UnitHeader>,
    /// Segments whose first 4 KiB cannot be read.
    pub(crate) unreadable: BTreeSet<u32>,
    /// Segments of the superblock's opening by the number of the unit before their first.
    by_prev_lsn: HashMap<u64, u32>,
    pub(crate) planted: Planted,
    /// Bytes read ahead: segment, first 4 KiB block.
    window: Option<(u32, u32, BufferMut)>,
    /// How much is read ahead, in 4 KiB blocks: more where units are small.
    ahead: u32,
}

/// Units of so many 4 KiB blocks are small.
const SMALL_UNIT_BLOCKS: u32 = 16;
/// What is read ahead at first, and behind units that are not small: the record blocks of most units.
const AHEAD_LEAST_BLOCKS: u32 = 4;
/// What is read ahead behind many small units in a row. Each doubles it: between units that are not small lies data, which is not wanted.
const AHEAD_BLOCKS: u32 = 1024;
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
            backend,
            superblock,
            layout,
            first_units: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            by_prev_lsn: HashMap::new(),
            planted: Planted::default(),
            window: None,
            ahead: AHEAD_LEAST_BLOCKS,
        }
    }

    /// Looks at the first record block of every segment. What cannot be read there may not be needed.
    pub(crate) fn new(backend: &'a mut dyn Backend, superblock: &Superblock) -> Scanner<'a> {
        let mut scanner = Scanner::lone(backend, superblock);
        let (mut places, mut in_flight) = (Places::default(), 0);
        loop {
            while in_flight < LOOKS_IN_FLIGHT
                && let Some(segment) = places.next(scanner.backend, &scanner.layout)
            {
                let (offset, buffer) = (scanner.layout.segment_at(segment), BufferMut::zeroed(RECORD_BLOCK));
                scanner.backend.submit(u64::from(segment), Io::Read { offset, buffer });
                in_flight += 1;
            }
            if in_flight == 0 {
                return scanner;
            }
            let mut done = Vec::new();
            if scanner.backend.poll(&mut done) == 0 {
                scanner.backend.wait();
            }
            in_flight -= done.len();
            for IoDone { token, result } in done {
                scanner.looked(token as u32, result.ok().flatten());
            }
        }
    }

    fn looked(&mut self, segment: u32, first: Option<BufferMut>) {
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

    fn read(&mut self, segment: u32, block: u32, blocks: u32) -> Result<BufferMut, StoreError> {
        let ahead = self.ahead.min(self.layout.segment_blocks() - block);
        if let Some((of, first, bytes)) = &self.window
            && *of == segment
            && *first <= block
            && (block - first + blocks) as usize * RECORD_BLOCK <= bytes.len()
        {
            let at = (block - first) as usize * RECORD_BLOCK;
            return Ok(BufferMut::copy_from(&bytes[at..at + blocks as usize * RECORD_BLOCK]));
        }
        if ahead > blocks {
            // Its memory does for the next one.
            self.window = None;
            // What cannot be read ahead may yet be read one by one.
            if let Ok(bytes) = self.read_now(segment, block, ahead) {
                self.window = Some((segment, block, bytes));
                return self.read(segment, block, blocks);
            }
        }
        self.read_now(segment, block, blocks)
    }

    fn read_now(&mut self, segment: u32, block: u32, blocks: u32) -> Result<BufferMut, StoreError> {
        let offset = self.layout.block_at(segment, block);
        let buffer = BufferMut::to_fill(blocks as usize * RECORD_BLOCK);
        let result = blocking(self.backend, Io::Read { offset, buffer });
        let place = u64::from(block) * RECORD_BLOCK as u64;
        let unreadable = |source| StoreError::Unreadable { segment, offset: place, source };
        Ok(result.map_err(unreadable)?.expect("reads return their buffer"))
    }

    pub(crate) fn backend(&mut self) -> &mut dyn Backend {
        self.backend
    }

    /// The first segment from `segment` on that the medium may hold anything of.
    pub(super) fn next_with_data(&mut self, segment: u32) -> Option<u32> {
        if segment >= self.layout.segments {
            return None;
        }
        let from = self.layout.segment_at(segment);
        let at = self.backend.data_from(from)?.start.max(from);
        let there = (at - LOG_START) / u64::from(self.layout.segment_bytes);
        (there < u64::from(self.layout.segments)).then_some(there as u32)
    }

    fn place(&self, segment: u32, block: u32) -> Place {
        Place { store_id: self.superblock.store_id, segment, block }
    }

    fn header_at(&mut self, segment: u32, block: u32) -> Result<Option<(UnitHeader, BufferMut)>, StoreError> {
        let first = self.read(segment, block, 1)?;
        let header = decode_header(&first, self.place(segment, block), &self.layout);
        Ok(header.map(|header| (header, first)))
    }

    /// The unit at a place, if all its record blocks are intact.
    pub(crate) fn unit_at(&mut self, segment: u32, block: u32) -> Result<Option<Unit>, StoreError> {
        if block >= self.layout.segment_blocks() {
            return Ok(None);
        }
        let Some((header, mut records)) = self.header_at(segment, block)? else { return Ok(None) };
        let small = header.blocks() <= SMALL_UNIT_BLOCKS;
        self.ahead = if small { (self.ahead * 2).min(AHEAD_BLOCKS) } else { AHEAD_LEAST_BLOCKS };
        if header.record_blocks > 1 {
            records = self.read(segment, block, u32::from(header.record_blocks))?;
        }
        let place = self.place(segment, block);
        let intact = decode_entries(&records, &header, place, &self.layout).is_ok();
        Ok(intact.then(|| Unit { segment, block, header, records: records.freeze(), place }))
    }

    /// A unit that was found before.
    pub(crate) fn unit_again(&mut self, found: &Found) -> Result<Unit, StoreError> {
        let unit = self.unit_at(found.segment, found.block)?.filter(|unit| unit.header == found.header);
        unit.ok_or_else(|| damaged(found.segment, found.block, "a unit that was there a moment ago"))
    }

    /// The chain of units that begins with the superblock's table.
    pub(crate) fn chain(&self) -> Chain {
        let superblock = &self.superblock;
        Chain { segment: superblock.table_segment, block: superblock.table_block, last: None, next_segment: None }
    }

    /// The next unit of the chain, here or at the start of the segment that was opened next.
    pub(crate) fn next(&mut self, chain: &mut Chain) -> Result<Option<Unit>, StoreError> {
        let here = self.unit_at(chain.segment, chain.block)?.filter(|unit| self.continues(chain, &unit.header));
        let unit = match here {
            Some(unit) => Some(unit),
            None => self.next_segment(chain)?,
        };
        if let Some(unit) = &unit {
            *chain = Chain {
                segment: unit.segment,
                block: unit.block + unit.header.blocks(),
                last: Some((unit.header.generation, unit.header.lsn)),
                next_segment: Some(unit.header.next_segment).filter(|&segment| segment != NO_SEGMENT),
            };
        }
        Ok(unit)
    }

    fn continues(&self, chain: &Chain, header: &UnitHeader) -> bool {
        header.open_id == self.superblock.open_id
            && match chain.last {
                None => header.lsn == self.superblock.table_lsn,
                Some((generation, lsn)) => header.generation == generation && header.prev_lsn == lsn,
            }
    }

    fn next_segment(&mut self, chain: &Chain) -> Result<Option<Unit>, StoreError> {
        let Some(&segment) = chain.last.and_then(|(_, lsn)| self.by_prev_lsn.get(&lsn)) else {
            // Where the log would go on: what cannot be read there may be what was flushed last.
            let Some(next) = chain.next_segment.filter(|next| self.unreadable.remove(next)) else { return Ok(None) };
            let first = self.read_now(next, 0, 1)?;
            self.looked(next, Some(first));
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
        self.ahead = AHEAD_BLOCKS;
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
        if found.header.data_bytes == 0 {
            return Ok(true);
        }
        let unit = self.unit_again(found)?;
        let blocks = found.header.data_bytes / RECORD_BLOCK as u32;
        let data = self.read(found.segment, found.block + u32::from(found.header.record_blocks), blocks)?;
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

//! Reading: data and record blocks come from the caches, the medium's memory or the disk, and must match the keyless checksum.
//! Absent: what a read has to fetch, which is decided in `read_parts`.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use slab::Slab;
use strongroom_block::{Buffer, BufferMut, Lba, SealRecord, StoreSequence, keyless_checksum};

use super::access::ReadAccess;
use super::io::{IoResult, Purpose, RecordsBefore};
use super::read_parts::{Owner, Part, Wanted, newest, older};
use super::volume::Volume;
use crate::backend::Io;
use crate::cache::{Cache, DataKey, RecordKey};
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::layout::{RECORD_BLOCK, item_checksum};
use crate::map::BlockMap;
use crate::op::{Extent, OpError};
use crate::planted::PlantedFault;
use crate::segments::SegmentState;
use crate::unit::{Base, LogAddress, UnitHeader, base_of, record_block_generation, record_block_intact};
use crate::view::View;

/// What one read finds in a row is cached up to this length. Longer reads would evict blocks that are read again, and are fast uncached.
const CACHED_BYTES_MAX: usize = 64 << 10;
/// Record blocks at most this far in front of the data are read together with it.
const RECORDS_BEFORE_BYTES_MAX: u64 = 16 << 10;
/// From this length on, data of a medium in memory is returned without a copy.
const LENT_BYTES_MIN: usize = 4 << 10;
/// About what a read in flight takes in memory, in bytes.
const READ_OP_BYTES: usize = 256;

/// A read in flight.
struct ReadOp {
    owner: Owner,
    parts: Vec<Part>,
    records: FxHashMap<RecordKey, Result<Buffer, String>>,
    waiting: usize,
    wanted: Wanted,
}

/// A read that has finished.
pub(super) struct FinishedRead {
    pub(super) owner: Owner,
    pub(super) extents: Result<Vec<Extent>, OpError>,
    /// For a condition: the base of each block (see [`Base`]), 0 if it is unknown. Empty on a plain volume.
    pub(super) bases: Vec<u64>,
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadCounters {
    pub(super) record_cache_hits: u64,
    pub(super) record_cache_misses: u64,
    pub(super) data_cache_hits: u64,
    pub(super) data_cache_misses: u64,
    /// Reads that found an unreadable block or one that does not match its checksum.
    pub(super) medium_errors: u64,
}

/// Reads in flight and the caches.
pub(super) struct Reader {
    pub(super) records: Cache<RecordKey>,
    pub(super) data: Cache<DataKey>,
    /// False where the kernel caches data.
    caches_data: bool,
    reads: Slab<ReadOp>,
    /// Record blocks being read, with the reads that wait for each.
    record_waits: FxHashMap<RecordKey, Vec<usize>>,
    finished: VecDeque<FinishedRead>,
    pub(super) counters: ReadCounters,
}

impl Reader {
    pub(super) fn new(record_bytes: usize, data_bytes: usize, block_bytes: usize) -> Reader {
        Reader {
            records: Cache::new(record_bytes.max(RECORD_BLOCK), RECORD_BLOCK),
            data: Cache::new(data_bytes, block_bytes),
            caches_data: data_bytes > 0,
            reads: Slab::new(),
            record_waits: FxHashMap::default(),
            finished: VecDeque::new(),
            counters: ReadCounters::default(),
        }
    }

    /// Whether no read is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }

    /// The next finished read. To be called after every call that starts reads or reports results.
    pub(super) fn next_finished(&mut self) -> Option<FinishedRead> {
        self.finished.pop_front()
    }

    /// Forgets everything that was cached: the log was erased.
    pub(super) fn clear(&mut self) {
        self.records.clear();
        self.data.clear();
        self.record_waits.clear();
    }

    /// New limits of the caches; entries over a smaller limit are dropped at once.
    pub(super) fn set_cache_bytes(&mut self, record_bytes: usize, data_bytes: usize) {
        self.records.set_bytes_max(record_bytes.max(RECORD_BLOCK));
        if self.caches_data {
            self.data.set_bytes_max(data_bytes);
        }
    }

    /// Caches the record blocks of a unit that was appended, at `block` of its segment.
    pub(super) fn cache_records(&mut self, header: &UnitHeader, block: u32, records: &Buffer) {
        for index in 0..u32::from(header.record_blocks) {
            let at = index as usize * RECORD_BLOCK;
            let slice = &records[at..at + RECORD_BLOCK];
            // A slice would keep the other record blocks in memory.
            let copy = if header.record_blocks == 1 { records.clone() } else { Buffer::copy_from(slice) };
            self.records.insert(RecordKey { generation: header.generation, block: block + index }, copy);
        }
    }

    /// Memory of the caches, in bytes.
    pub(super) fn cache_memory_bytes(&self) -> u64 {
        self.records.memory_bytes() + self.data.memory_bytes()
    }

    /// Memory of reads in flight, in bytes; estimated.
    pub(super) fn read_memory_bytes(&self) -> usize {
        self.reads.len() * READ_OP_BYTES
    }

    /// Starts a read of the newest versions in a view.
    pub(super) fn start(
        &mut self,
        access: &mut ReadAccess<'_>,
        owner: Owner,
        node: NodeId,
        runs: &[(Lba, u32)],
        wanted: Wanted,
    ) {
        let parts = newest(access.map, &access.medium.volume, node, runs, wanted);
        self.start_parts(access, owner, parts, wanted);
    }

    /// Starts a read of the newest version of a block that is older than `below`.
    pub(super) fn start_older(
        &mut self,
        access: &mut ReadAccess<'_>,
        owner: Owner,
        node: NodeId,
        lba: u64,
        below: u64,
    ) {
        let parts = older(access.map, &access.medium.volume, node, lba, below);
        self.start_parts(access, owner, parts, Wanted::Data);
    }

    /// Starts a read of certain versions.
    pub(super) fn start_versions(
        &mut self,
        access: &mut ReadAccess<'_>,
        owner: Owner,
        versions: &[(u64, Version)],
        wanted: Wanted,
    ) {
        let parts = versions.iter().map(|&(lba, version)| Part::version(lba, version, &access.medium.volume)).collect();
        self.start_parts(access, owner, Ok(parts), wanted);
    }

    fn start_parts(
        &mut self,
        access: &mut ReadAccess<'_>,
        owner: Owner,
        parts: Result<Vec<Part>, OpError>,
        wanted: Wanted,
    ) {
        let parts = match parts {
            Ok(parts) => parts,
            Err(error) => {
                self.finished.push_back(FinishedRead { owner, extents: Err(error), bases: Vec::new() });
                return;
            }
        };
        let id = self.reads.vacant_key();
        let mut read = ReadOp { owner, parts, records: FxHashMap::default(), waiting: 0, wanted };
        for at in 0..read.parts.len() {
            self.start_part(access, id, &mut read, at);
        }
        if read.waiting == 0 {
            self.finish(access, read);
        } else {
            let key = self.reads.insert(read);
            debug_assert_eq!(key, id, "nothing was inserted meanwhile");
        }
    }

    fn start_part(&mut self, access: &mut ReadAccess<'_>, id: usize, read: &mut ReadOp, at: usize) {
        let ReadOp { parts, records, waiting, wanted, .. } = read;
        let Part::Blocks { versions, segment, data, cached, .. } = &mut parts[at] else { return };
        let (segment, len) = (*segment, versions.len() * access.medium.volume.block_bytes());
        access.medium.segments.pin(segment);
        if self.may_be_cached(*wanted, len) {
            *data = Ok(self.find_data(access, versions, segment));
            *cached = matches!(data, Ok(Some(_)));
        }
        if *cached && !access.medium.volume.is_sealed() {
            return;
        }
        let mut missing = Vec::new();
        for version in versions.iter() {
            let key = record_key(access, *version, segment);
            if records.contains_key(&key) {
                continue;
            }
            let (block, is_first) = self.want_record(id, key);
            *waiting += usize::from(block.is_err());
            records.insert(key, block);
            missing.extend(is_first.then_some(key));
        }
        let offset = versions[0].data_offset();
        if *wanted != Wanted::Records && !*cached {
            *data = Ok(lend(access, segment, offset, len));
        }
        let reads_data = *wanted != Wanted::Records && matches!(data, Ok(None));
        let layout = access.medium.volume.layout;
        let near = |key: &RecordKey| {
            let at = layout.block_at(segment, key.block);
            reads_data && at < offset && offset - at <= RECORDS_BEFORE_BYTES_MAX
        };
        let first = missing.iter().filter(|key| near(key)).map(|key| key.block).min();
        missing.retain(|key| !near(key));
        for key in missing {
            start_record_read(access, key, segment);
        }
        if reads_data {
            let before = first.map(|block| {
                let bytes = (offset - layout.block_at(segment, block)) as usize;
                RecordsBefore { segment, block, bytes }
            });
            *waiting += 1;
            start_data_read(access, (id, at), offset, len, before);
        }
    }

    /// Whether a run of this many bytes is looked for in the cache, and stored there.
    fn may_be_cached(&self, wanted: Wanted, bytes: usize) -> bool {
        self.data.is_on() && wanted == Wanted::Data && bytes <= CACHED_BYTES_MAX
    }

    /// The data of contiguous blocks, if all of it is in the cache.
    fn find_data(&mut self, access: &ReadAccess<'_>, versions: &[Version], segment: u32) -> Option<Buffer> {
        let mut found = Vec::with_capacity(versions.len());
        for version in versions {
            match self.data.find(data_key(access, *version, segment)) {
                Some(block) => found.push(block),
                None => {
                    self.counters.data_cache_misses += versions.len() as u64;
                    return None;
                }
            }
        }
        self.counters.data_cache_hits += versions.len() as u64;
        if let [block] = &found[..] {
            return Some(block.clone());
        }
        let block_bytes = access.medium.volume.block_bytes();
        let mut whole = BufferMut::to_fill(found.len() * block_bytes);
        for (into, block) in whole.chunks_exact_mut(block_bytes).zip(&found) {
            into.copy_from_slice(block);
        }
        Some(whole.freeze())
    }

    /// Caches data that was just read and matched its checksums.
    fn cache_data(&mut self, access: &ReadAccess<'_>, part: &Part, wanted: Wanted) {
        let Part::Blocks { versions, segment, data: Ok(Some(data)), cached: false, .. } = part else { return };
        let block_bytes = access.medium.volume.block_bytes();
        if !self.may_be_cached(wanted, versions.len() * block_bytes) {
            return;
        }
        for (block, version) in data.chunks_exact(block_bytes).zip(versions) {
            // A slice would keep the adjacent blocks in memory as well.
            let block = if versions.len() == 1 { data.clone() } else { Buffer::copy_from(block) };
            self.data.insert(data_key(access, *version, *segment), block);
        }
    }

    /// The record block from the cache, or why it is missing; and whether it has to be read and is not in flight yet.
    fn want_record(&mut self, id: usize, key: RecordKey) -> (Result<Buffer, String>, bool) {
        if let Some(block) = self.records.find(key) {
            self.counters.record_cache_hits += 1;
            return (Ok(block), false);
        }
        self.counters.record_cache_misses += 1;
        let waiters = self.record_waits.entry(key).or_default();
        waiters.push(id);
        (Err("its record block has not been read".to_owned()), waiters.len() == 1)
    }

    pub(super) fn record_done(&mut self, access: &mut ReadAccess<'_>, key: RecordKey, segment: u32, result: IoResult) {
        match result {
            Ok(buffer) => {
                let block = buffer.expect("reads return their buffer").freeze();
                self.record_arrived(access, key, segment, block);
            }
            Err(error) => self.resolve_record(access, key, &Err(format!("its record block cannot be read: {error}"))),
        }
    }

    fn record_arrived(&mut self, access: &mut ReadAccess<'_>, key: RecordKey, segment: u32, block: Buffer) {
        if !is_record_block(access, key, segment, &block) {
            return self.resolve_record(access, key, &Err("its record block is damaged".to_owned()));
        }
        self.records.insert(key, block.clone());
        self.resolve_record(access, key, &Ok(block));
    }

    /// Gives a record block to the reads that wait for it.
    fn resolve_record(&mut self, access: &mut ReadAccess<'_>, key: RecordKey, block: &Result<Buffer, String>) {
        for id in self.record_waits.remove(&key).unwrap_or_default() {
            let read = self.reads.get_mut(id).expect("it waits");
            read.records.insert(key, block.clone());
            self.one_arrived(access, id);
        }
    }

    pub(super) fn data_done(
        &mut self,
        access: &mut ReadAccess<'_>,
        id: usize,
        part: usize,
        before: Option<RecordsBefore>,
        result: IoResult,
    ) {
        let result = result.map(|buffer| buffer.expect("reads return their buffer").freeze());
        access.medium.io.count_read(result.as_ref().map_or(0, |data| data.len()));
        let data = match (result, before) {
            (Ok(whole), Some(before)) => {
                self.take_records(access, before, &whole);
                let data = whole.slice(before.bytes..);
                // A slice would keep the record blocks in the cache of data.
                Ok(if data.len() <= CACHED_BYTES_MAX { Buffer::copy_from(&data) } else { data })
            }
            (Err(_), Some(before)) => return self.read_separately(access, id, part, before),
            (Ok(data), None) => Ok(data),
            (Err(error), None) => Err(format!("it cannot be read: {error}")),
        };
        let read = self.reads.get_mut(id).expect("it waits");
        let Part::Blocks { data: place, .. } = &mut read.parts[part] else { unreachable!("only blocks have data") };
        *place = data.map(Some);
        self.one_arrived(access, id);
    }

    /// Takes the record blocks in front of data that was read.
    fn take_records(&mut self, access: &mut ReadAccess<'_>, before: RecordsBefore, whole: &Buffer) {
        for (key, bytes) in keys_of(access, before).zip(whole.chunks_exact(RECORD_BLOCK)) {
            if self.record_waits.contains_key(&key) || is_record_block(access, key, before.segment, bytes) {
                self.record_arrived(access, key, before.segment, Buffer::copy_from(bytes));
            }
        }
    }

    /// Data and its record blocks could not be read together: each is read separately, to see which of them is unreadable.
    fn read_separately(&mut self, access: &mut ReadAccess<'_>, id: usize, part: usize, before: RecordsBefore) {
        for key in keys_of(access, before).filter(|key| self.record_waits.contains_key(key)).collect::<Vec<_>>() {
            start_record_read(access, key, before.segment);
        }
        let Part::Blocks { versions, .. } = &self.reads[id].parts[part] else { unreachable!("only blocks have data") };
        let (offset, len) = (versions[0].data_offset(), versions.len() * access.medium.volume.block_bytes());
        start_data_read(access, (id, part), offset, len, None);
    }

    /// One of the results that a read waits for has arrived.
    fn one_arrived(&mut self, access: &mut ReadAccess<'_>, id: usize) {
        let read = self.reads.get_mut(id).expect("it waits");
        read.waiting -= 1;
        if read.waiting == 0 {
            let read = self.reads.remove(id);
            self.finish(access, read);
        }
    }

    fn finish(&mut self, access: &mut ReadAccess<'_>, read: ReadOp) {
        let mut extents = Ok(Vec::with_capacity(read.parts.len()));
        for part in &read.parts {
            if let Ok(list) = &mut extents {
                match read.extent(access, part) {
                    Ok(extent) => {
                        list.push(extent);
                        self.cache_data(access, part, read.wanted);
                    }
                    Err(error) => extents = Err(error),
                }
            }
            if let Part::Blocks { segment, .. } = part {
                access.medium.segments.unpin(*segment);
            }
        }
        if access.medium.volume.has_planted(PlantedFault::OlderForDamaged)
            && let (Err(OpError::Medium { lba, .. }), [Part::Blocks { versions, .. }]) = (&extents, &read.parts[..])
            && let (Some(node), [version]) = (access.map.catalogue.node(View::default()), &versions[..])
        {
            return self.start_older(access, read.owner, node, lba.0, version.sequence());
        }
        if let Err(OpError::Medium { lba, reason }) = &extents {
            self.counters.medium_errors += 1;
            tracing::error!(volume = %access.medium.volume.info.volume_id, lba = lba.0, reason, "medium error");
        }
        let bases = if let Owner::Gate(_) = read.owner { read.bases(access) } else { Vec::new() };
        self.finished.push_back(FinishedRead { owner: read.owner, extents, bases });
    }
}

impl ReadOp {
    /// Verifies every block of a part.
    fn extent(&self, access: &ReadAccess<'_>, part: &Part) -> Result<Extent, OpError> {
        let (lba, versions, segment, data, cached) = match part {
            Part::Hole { lba, count, sequence, record } => {
                let (sequence, hole) = (StoreSequence(*sequence), record.as_deref().cloned());
                return Ok(Extent::Hole { lba: Lba(*lba), count: *count, sequence, hole });
            }
            Part::Blocks { lba, versions, segment, data, cached } => (lba, versions, segment, data, *cached),
        };
        let medium = |at: usize, reason: String| OpError::Medium { lba: Lba(lba + at as u64), reason };
        let data = data.as_ref().map_err(|reason| medium(0, reason.clone()))?.clone().unwrap_or_default();
        let block_bytes = access.medium.volume.block_bytes();
        let mut records = Vec::new();
        // A plain unit's items are checksums, and nothing else.
        let with_items = if cached && !access.medium.volume.is_sealed() { &[][..] } else { versions };
        for (at, version) in with_items.iter().enumerate() {
            let item = self.item(access, *version, *segment).map_err(|reason| medium(at, reason))?;
            if self.wanted != Wanted::Records
                && !cached
                && keyless_checksum(&data[at * block_bytes..][..block_bytes]) != item_checksum(item)
            {
                return Err(medium(at, "it does not match its checksum".to_owned()));
            }
            if access.medium.volume.is_sealed() {
                records.push(SealRecord::decode(item).map_err(|error| medium(at, error.to_string()))?);
            }
        }
        let sequences = versions.iter().map(|version| StoreSequence(version.sequence())).collect();
        Ok(Extent::Blocks { lba: Lba(*lba), data, sequences, records })
    }

    fn item(&self, access: &ReadAccess<'_>, version: Version, segment: u32) -> Result<&[u8], String> {
        let block = self.records[&record_key(access, version, segment)].as_ref().map_err(Clone::clone)?;
        let at = version.item_at() as usize % RECORD_BLOCK;
        let item_bytes = access.medium.volume.layout.item_bytes as usize;
        block.get(at..at + item_bytes).ok_or_else(|| "its record is cut off".to_owned())
    }

    /// The base of each block, as far as it is known: see [`Base`].
    fn bases(&self, access: &ReadAccess<'_>) -> Vec<u64> {
        if !access.medium.volume.is_sealed() {
            return Vec::new();
        }
        let mut bases = Vec::new();
        for part in &self.parts {
            match part {
                Part::Hole { count, sequence, .. } => {
                    let base = base_of_hole(access.map, &access.medium.volume, *sequence);
                    bases.extend(std::iter::repeat_n(base, *count as usize));
                }
                Part::Blocks { versions, segment, .. } => {
                    bases.extend(versions.iter().map(|&version| self.base_of_block(access, version, *segment)));
                }
            }
        }
        bases
    }

    fn base_of_block(&self, access: &ReadAccess<'_>, version: Version, segment: u32) -> u64 {
        let block = self.records.get(&record_key(access, version, segment)).and_then(|block| block.as_ref().ok());
        let item_at = version.item_at() as usize % RECORD_BLOCK;
        let base = block.and_then(|block| base_of(block, item_at, version.sequence(), &access.medium.volume.layout));
        match base {
            Some(Base::Itself) => access.medium.volume.base_of_unconditional(version.sequence()),
            Some(Base::Of(base)) => base,
            // A condition that cannot be ruled out.
            None => 0,
        }
    }
}

/// The base of a hole; 0 if it is unknown.
pub(super) fn base_of_hole(map: &BlockMap, volume: &Volume, sequence: u64) -> u64 {
    if map.is_conditional_hole(sequence) { 0 } else { volume.base_of_unconditional(sequence) }
}

/// Data of a segment without a copy, on a medium in memory. Not of the head, which would have to be copied as long as the reader has the
/// data; nor of little data, which costs less to copy than to keep a whole page.
fn lend(access: &mut ReadAccess<'_>, segment: u32, offset: u64, len: usize) -> Option<Buffer> {
    let is_closed = access.medium.segments.segment(segment).state == SegmentState::Closed;
    if is_closed && len >= LENT_BYTES_MIN { access.medium.io.share(offset, len) } else { None }
}

fn data_key(access: &ReadAccess<'_>, version: Version, segment: u32) -> DataKey {
    DataKey { generation: access.medium.segments.segment(segment).generation, offset: version.data_offset() }
}

fn record_key(access: &ReadAccess<'_>, version: Version, segment: u32) -> RecordKey {
    let generation = access.medium.segments.segment(segment).generation;
    RecordKey { generation, block: version.item_at() / RECORD_BLOCK as u32 }
}

fn keys_of(access: &ReadAccess<'_>, before: RecordsBefore) -> impl Iterator<Item = RecordKey> + use<> {
    let generation = access.medium.segments.segment(before.segment).generation;
    let blocks = (before.bytes / RECORD_BLOCK) as u32;
    (before.block..before.block + blocks).map(move |block| RecordKey { generation, block })
}

fn is_record_block(access: &ReadAccess<'_>, key: RecordKey, segment: u32, bytes: &[u8]) -> bool {
    let place = LogAddress { store_id: access.medium.volume.info.store_id, segment, block: key.block };
    record_block_intact(bytes, place) && record_block_generation(bytes) == key.generation
}

fn start_data_read(
    access: &mut ReadAccess<'_>,
    (read, part): (usize, usize),
    offset: u64,
    len: usize,
    before: Option<RecordsBefore>,
) {
    let bytes_before = before.map_or(0, |before| before.bytes);
    let io = Io::Read { offset: offset - bytes_before as u64, buffer: BufferMut::to_fill(bytes_before + len) };
    access.medium.io.start(Purpose::ReadData { read, part, before }, io);
}

fn start_record_read(access: &mut ReadAccess<'_>, key: RecordKey, segment: u32) {
    let offset = access.medium.volume.layout.block_at(segment, key.block);
    let io = Io::Read { offset, buffer: BufferMut::to_fill(RECORD_BLOCK) };
    access.medium.io.start(Purpose::ReadRecord { key, segment }, io);
}

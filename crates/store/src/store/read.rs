//! Reading: the index says where, the medium gives data and record blocks, the keyless checksum must fit.

use std::io;

use rustc_hash::FxHashMap;
use strongroom_block::{Buffer, BufferMut, HoleRecord, Lba, SealRecord, Token, keyless_checksum};

use super::{Purpose, Store, sequence};
use crate::backend::Io;
use crate::cache::{DataKey, RecordKey};
use crate::catalogue::NodeId;
use crate::index::Version;
use crate::layout::{RECORD_BLOCK, be_u64};
use crate::map::At;
use crate::op::{Extent, OpError, Outcome};
use crate::planted::PlantedFault;
use crate::segments::State;
use crate::unit::{Base, Place, base_of, record_block_generation, record_block_intact};
use crate::view::View;

/// Upper bound on one read from the medium, in bytes.
const READ_BYTES_MAX: usize = 4 << 20;

/// Up to this length, what one read finds in a row is cached. Longer reads would drive out what is asked for again, and are fast as they are.
const CACHED_BYTES_MAX: usize = 64 << 10;

/// Record blocks that lie no farther in front of the data than this come with it, in one read.
const ALONG_BYTES_MAX: u64 = 16 << 10;

/// From this length on, data is sent from where it lies in memory, if the medium is memory.
const LENT_BYTES_MIN: usize = 32 << 10;

/// What comes with a part's data: the record blocks in front of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Along {
    segment: u32,
    /// The first one, in 4 KiB blocks of the segment.
    block: u32,
    /// Bytes in front of the data.
    bytes: usize,
}

/// Who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// With what it counts against the queue's limit.
    Caller { token: Token, bytes: usize },
    /// The condition of the first queued write.
    Gate(u64),
    /// Scrubbing.
    Scrub,
}

/// What a read is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Records,
    Data,
    /// Data that is read from the medium now, whatever the cache has.
    DataOfMedium,
}

/// What a part of a read came to.
enum Part {
    Blocks {
        lba: u64,
        versions: Vec<Version>,
        segment: u32,
        /// `Ok(None)` until it arrives, or for ever if only records are wanted.
        data: Result<Option<Buffer>, String>,
        /// It was in the cache, which only has what matched its checksum. What the medium lends is not: it is checked.
        cached: bool,
    },
    Hole {
        lba: u64,
        count: u64,
        sequence: u64,
        /// As it was when the read began. In a box: a part of blocks that is moved is copied in the size of the largest kind, with what the
        /// stack still has of another part's record in it, and a record may have a block key.
        record: Option<Box<HoleRecord>>,
    },
}

/// A read in flight.
pub(super) struct ReadOp {
    owner: Owner,
    parts: Vec<Part>,
    records: FxHashMap<RecordKey, Result<Buffer, String>>,
    waiting: usize,
    wanted: Wanted,
}

/// The keyless checksum that an item names: a plain one is nothing else, a seal record has it at byte 32.
pub(crate) fn item_checksum(item: &[u8]) -> u64 {
    be_u64(item, if item.len() == 8 { 0 } else { 32 })
}

fn by_sequence(version: Version) -> (u64, Version) {
    (version.sequence(), version)
}

impl Store {
    /// Starts a read of the newest versions in a view.
    pub(super) fn start_read(&mut self, owner: Owner, node: NodeId, runs: &[(Lba, u32)], wanted: Wanted) {
        let run_bytes_max = if wanted == Wanted::Records { usize::MAX } else { READ_BYTES_MAX };
        let mut parts = Vec::new();
        let resolved =
            runs.iter().try_for_each(|&(lba, count)| self.resolve(node, lba.0, count, run_bytes_max, &mut parts));
        self.start_parts(owner, resolved.map(|()| parts), wanted);
    }

    /// Starts a read of the newest version of a block older than `below`.
    pub(super) fn start_version_read(&mut self, owner: Owner, node: NodeId, lba: u64, below: u64) {
        let sealed = self.info.kind.is_sealed();
        let (mut block, mut hole) = (None, None);
        for table in self.map.path(node) {
            let mapped = table.index.find(lba);
            block = block.max(mapped.filter(|version| version.sequence() < below).map(by_sequence));
            // A plain unit keeps no versions, so a hole beneath a block is not one.
            let beneath = table.holes.covering(lba).filter(|_| sealed || mapped.is_none());
            hole = hole.max(beneath.map(|(.., sequence)| sequence).filter(|&sequence| sequence < below));
        }
        let sees = |branch, sequence| self.map.sees(node, branch, sequence);
        let block = block.max(self.map.versions.newest_below(lba, below, sees).map(by_sequence));
        let part = match (block, hole) {
            (Some((sequence, block)), hole) if hole.is_none_or(|hole| hole < sequence) => {
                let segment = block.segment(&self.layout);
                Ok(Part::Blocks { lba, versions: vec![block], segment, data: Ok(None), cached: false })
            }
            (_, Some(sequence)) => Ok(self.hole_part(lba, sequence)),
            _ => Err(OpError::NoVersion { lba: Lba(lba) }),
        };
        self.start_parts(owner, part.map(|part| vec![part]), Wanted::Data);
    }

    /// Reads one version, whatever it is of, to see whether it can be.
    pub(super) fn start_scrub_read(&mut self, lba: u64, version: Version) {
        let segment = version.segment(&self.layout);
        let part = Part::Blocks { lba, versions: vec![version], segment, data: Ok(None), cached: false };
        self.start_parts(Owner::Scrub, Ok(vec![part]), Wanted::DataOfMedium);
    }

    fn hole_part(&self, lba: u64, sequence: u64) -> Part {
        Part::Hole { lba, count: 1, sequence, record: self.hole_record(sequence).map(Box::new) }
    }

    /// Cuts a range of a view into holes and runs of blocks that lie side by side.
    fn resolve(
        &self,
        node: NodeId,
        lba: u64,
        count: u32,
        run_bytes_max: usize,
        parts: &mut Vec<Part>,
    ) -> Result<(), OpError> {
        let count = u64::from(count);
        let block_bytes = u64::from(self.layout.block_bytes);
        let run_max = (run_bytes_max as u64 / block_bytes).max(1) as usize;
        let (only, sealed) = (self.map.only_table(node), self.info.kind.is_sealed());
        let found = if only.is_some() { Vec::new() } else { self.map.look_up(node, lba, count) };
        // Ranges apart are parts apart, even where one was written behind the other.
        let before = parts.len();
        // A piece of a hole counts until its end where no block lies on it; of one node only: another may be nearer.
        let mut covering: Option<(u64, u64)> = None;
        for (nth, lba) in (lba..lba + count).enumerate() {
            let at = match only {
                None => found[nth],
                Some(table) => match (table.index.find(lba), covering) {
                    (Some(version), _) => At::Block(version),
                    (None, Some((end, sequence))) if lba < end => At::Hole { end, sequence },
                    (None, _) => table.at(lba),
                },
            };
            match at {
                At::Block(version) => {
                    let at = version.segment(&self.layout);
                    match parts[before..].last_mut() {
                        Some(Part::Blocks { versions, segment, .. })
                            if *segment == at
                                && versions.len() < run_max
                                && versions.last().expect("not empty").data_offset() + block_bytes
                                    == version.data_offset() =>
                        {
                            versions.push(version);
                        }
                        _ => parts.push(Part::Blocks {
                            lba,
                            versions: vec![version],
                            segment: at,
                            data: Ok(None),
                            cached: false,
                        }),
                    }
                }
                At::Hole { end, sequence } => {
                    covering = Some((end, sequence));
                    match parts[before..].last_mut() {
                        Some(Part::Hole { count, sequence: last, .. }) if *last == sequence => *count += 1,
                        _ => parts.push(self.hole_part(lba, sequence)),
                    }
                }
                // What a plain volume has grown by is zeros without being told.
                At::Nothing if !sealed => match parts[before..].last_mut() {
                    Some(Part::Hole { count, sequence: 0, .. }) => *count += 1,
                    _ => parts.push(self.hole_part(lba, 0)),
                },
                At::Nothing => return Err(OpError::NotFormatted { lba: Lba(lba) }),
            }
        }
        Ok(())
    }

    fn start_parts(&mut self, owner: Owner, parts: Result<Vec<Part>, OpError>, wanted: Wanted) {
        let mut parts = match parts {
            Ok(parts) => parts,
            Err(error) => return self.read_finished(owner, Err(error)),
        };
        let id = self.reads.vacant_key();
        let mut read = ReadOp { owner, parts: Vec::new(), records: FxHashMap::default(), waiting: 0, wanted };
        let block_bytes = self.layout.block_bytes as usize;
        for (at, part) in parts.iter_mut().enumerate() {
            let Part::Blocks { versions, segment, data, cached, .. } = part else { continue };
            self.segments.pin(*segment);
            if self.may_be_cached(wanted, versions.len()) {
                *data = Ok(self.find_data(versions, *segment));
                *cached = matches!(data, Ok(Some(_)));
            }
            if *cached && !self.info.kind.is_sealed() {
                continue;
            }
            let mut missing = Vec::new();
            for version in versions.iter() {
                missing.extend(self.want_record(id, *version, *segment, &mut read));
            }
            let offset = versions[0].data_offset();
            if wanted != Wanted::Records && !*cached {
                *data = Ok(self.lend(*segment, offset, versions.len() * block_bytes));
            }
            let reads_data = wanted != Wanted::Records && matches!(data, Ok(None));
            let near = |key: &RecordKey| {
                let at = self.layout.block_at(*segment, key.block);
                reads_data && at < offset && offset - at <= ALONG_BYTES_MAX
            };
            let first = missing.iter().filter(|key| near(key)).map(|key| key.block).min();
            missing.retain(|key| !near(key));
            for key in missing {
                self.start_record_read(key, *segment);
            }
            if reads_data {
                let along = first.map(|block| {
                    let bytes = (offset - self.layout.block_at(*segment, block)) as usize;
                    Along { segment: *segment, block, bytes }
                });
                read.waiting += 1;
                self.start_data_read(id, at, offset, versions.len() * block_bytes, along);
            }
        }
        read.parts = parts;
        if read.waiting == 0 {
            self.finish_read(read);
        } else {
            let key = self.reads.insert(read);
            debug_assert_eq!(key, id, "nothing was inserted meanwhile");
        }
    }

    /// Data of a segment as it lies on a medium that can show it. Not of one that is still written to, which would have to be copied
    /// for that as long as somebody looks at it; nor of little, which costs less to copy than a whole page to keep.
    fn lend(&mut self, segment: u32, offset: u64, len: usize) -> Option<Buffer> {
        let is_closed = self.segments.segment(segment).state == State::Closed;
        if is_closed && len >= LENT_BYTES_MIN { self.backend.share(offset, len) } else { None }
    }

    /// Whether so many blocks in a row are looked for in the cache, and go there.
    fn may_be_cached(&self, wanted: Wanted, blocks: usize) -> bool {
        self.data.is_on() && wanted == Wanted::Data && blocks * self.layout.block_bytes as usize <= CACHED_BYTES_MAX
    }

    fn data_key(&self, version: Version, segment: u32) -> DataKey {
        DataKey { generation: self.segments.segment(segment).generation, offset: version.data_offset() }
    }

    /// The data of blocks that lie side by side, if all of it is in the cache.
    fn find_data(&mut self, versions: &[Version], segment: u32) -> Option<Buffer> {
        let mut found = Vec::with_capacity(versions.len());
        for version in versions {
            match self.data.find(self.data_key(*version, segment)) {
                Some(block) => found.push(block),
                None => {
                    self.stats.data_cache_misses += versions.len() as u64;
                    return None;
                }
            }
        }
        self.stats.data_cache_hits += versions.len() as u64;
        if let [block] = &found[..] {
            return Some(block.clone());
        }
        let block_bytes = self.layout.block_bytes as usize;
        let mut whole = BufferMut::to_fill(found.len() * block_bytes);
        for (into, block) in whole.chunks_exact_mut(block_bytes).zip(&found) {
            into.copy_from_slice(block);
        }
        Some(whole.freeze())
    }

    /// Keeps what was just read and matched its checksums.
    fn keep_data(&mut self, part: &Part, wanted: Wanted) {
        let Part::Blocks { versions, segment, data: Ok(Some(data)), cached: false, .. } = part else { return };
        if !self.may_be_cached(wanted, versions.len()) {
            return;
        }
        let block_bytes = self.layout.block_bytes as usize;
        for (block, version) in data.chunks_exact(block_bytes).zip(versions) {
            // A copy where a slice would keep its neighbours in memory.
            let block = if versions.len() == 1 { data.clone() } else { Buffer::copy_from(block) };
            self.data.insert(self.data_key(*version, *segment), block);
        }
    }

    fn record_key(&self, version: Version, segment: u32) -> RecordKey {
        let generation = self.segments.segment(segment).generation;
        RecordKey { generation, block: version.item_at() / RECORD_BLOCK as u32 }
    }

    fn start_data_read(&mut self, read: usize, part: usize, offset: u64, len: usize, along: Option<Along>) {
        let before = along.map_or(0, |along| along.bytes);
        let io = Io::Read { offset: offset - before as u64, buffer: BufferMut::to_fill(before + len) };
        self.start_io(Purpose::ReadData { read, part, along }, io);
    }

    fn start_record_read(&mut self, key: RecordKey, segment: u32) {
        let io =
            Io::Read { offset: self.layout.block_at(segment, key.block), buffer: BufferMut::to_fill(RECORD_BLOCK) };
        self.start_io(Purpose::ReadRecord { key, segment }, io);
    }

    /// Looks for the record block of a version; tells which one has to be read and is not on its way.
    fn want_record(&mut self, id: usize, version: Version, segment: u32, read: &mut ReadOp) -> Option<RecordKey> {
        let key = self.record_key(version, segment);
        if read.records.contains_key(&key) {
            return None;
        }
        if let Some(block) = self.records.find(key) {
            self.stats.record_cache_hits += 1;
            read.records.insert(key, Ok(block));
            return None;
        }
        self.stats.record_cache_misses += 1;
        read.records.insert(key, Err("its record block is not there yet".to_owned()));
        read.waiting += 1;
        let waiters = self.record_waits.entry(key).or_default();
        waiters.push(id);
        (waiters.len() == 1).then_some(key)
    }

    pub(super) fn read_record_done(&mut self, key: RecordKey, segment: u32, result: io::Result<Option<BufferMut>>) {
        match result {
            Ok(buffer) => self.record_arrived(key, segment, buffer.expect("reads return their buffer").freeze()),
            Err(error) => self.tell_record(key, &Err(format!("its record block cannot be read: {error}"))),
        }
    }

    fn record_arrived(&mut self, key: RecordKey, segment: u32, block: Buffer) {
        if !self.is_record_block(key, segment, &block) {
            return self.tell_record(key, &Err("its record block is damaged".to_owned()));
        }
        self.records.insert(key, block.clone());
        self.tell_record(key, &Ok(block));
    }

    fn is_record_block(&self, key: RecordKey, segment: u32, bytes: &[u8]) -> bool {
        let place = Place { store_id: self.info.store_id, segment, block: key.block };
        record_block_intact(bytes, place) && record_block_generation(bytes) == key.generation
    }

    fn tell_record(&mut self, key: RecordKey, block: &Result<Buffer, String>) {
        for id in self.record_waits.remove(&key).unwrap_or_default() {
            let read = self.reads.get_mut(id).expect("it waits");
            read.records.insert(key, block.clone());
            self.read_step(id);
        }
    }

    pub(super) fn read_data_done(
        &mut self,
        id: usize,
        part: usize,
        along: Option<Along>,
        result: io::Result<Option<BufferMut>>,
    ) {
        let result = result.map(|buffer| buffer.expect("reads return their buffer").freeze());
        self.count_read(result.as_ref().map_or(0, |data| data.len()));
        let data = match (result, along) {
            (Ok(whole), Some(along)) => {
                self.take_along(along, &whole);
                let data = whole.slice(along.bytes..);
                // A copy where a slice would keep its neighbours in the cache.
                Ok(if data.len() <= CACHED_BYTES_MAX { Buffer::copy_from(&data) } else { data })
            }
            (Err(_), Some(along)) => return self.read_apart(id, part, along),
            (Ok(data), None) => Ok(data),
            (Err(error), None) => Err(format!("it cannot be read: {error}")),
        };
        let read = self.reads.get_mut(id).expect("it waits");
        let Part::Blocks { data: place, .. } = &mut read.parts[part] else { unreachable!("only blocks have data") };
        *place = data.map(Some);
        self.read_step(id);
    }

    /// What stands in front of the data: record blocks, which somebody may wait for.
    fn take_along(&mut self, along: Along, whole: &Buffer) {
        for (key, bytes) in self.keys_along(along).zip(whole.chunks_exact(RECORD_BLOCK)) {
            if self.record_waits.contains_key(&key) || self.is_record_block(key, along.segment, bytes) {
                self.record_arrived(key, along.segment, Buffer::copy_from(bytes));
            }
        }
    }

    fn keys_along(&self, along: Along) -> impl Iterator<Item = RecordKey> + use<> {
        let generation = self.segments.segment(along.segment).generation;
        let blocks = (along.bytes / RECORD_BLOCK) as u32;
        (along.block..along.block + blocks).map(move |block| RecordKey { generation, block })
    }

    /// Data and what should have come with it could not be read together: each by itself, to see which of them cannot be.
    fn read_apart(&mut self, id: usize, part: usize, along: Along) {
        for key in self.keys_along(along).filter(|key| self.record_waits.contains_key(key)).collect::<Vec<_>>() {
            self.start_record_read(key, along.segment);
        }
        let Part::Blocks { versions, .. } = &self.reads[id].parts[part] else { unreachable!("only blocks have data") };
        let (offset, len) = (versions[0].data_offset(), versions.len() * self.layout.block_bytes as usize);
        self.start_data_read(id, part, offset, len, None);
    }

    fn read_step(&mut self, id: usize) {
        let read = self.reads.get_mut(id).expect("it waits");
        read.waiting -= 1;
        if read.waiting == 0 {
            let read = self.reads.remove(id);
            self.finish_read(read);
        }
    }

    fn finish_read(&mut self, read: ReadOp) {
        let mut extents = Ok(Vec::with_capacity(read.parts.len()));
        for part in &read.parts {
            if let Ok(list) = &mut extents {
                match self.extent(part, &read) {
                    Ok(extent) => {
                        list.push(extent);
                        self.keep_data(part, read.wanted);
                    }
                    Err(error) => extents = Err(error),
                }
            }
            if let Part::Blocks { segment, .. } = part {
                self.segments.unpin(*segment);
            }
        }
        if self.options.planted.has(PlantedFault::OlderForDamaged)
            && let (Err(OpError::Medium { lba, .. }), [Part::Blocks { versions, .. }]) = (&extents, &read.parts[..])
            && let (Some(node), [version]) = (self.map.catalogue.node(View::default()), &versions[..])
        {
            return self.start_version_read(read.owner, node, lba.0, version.sequence());
        }
        if let Err(OpError::Medium { lba, reason }) = &extents {
            self.stats.medium_errors += 1;
            tracing::error!(volume = %self.info.volume_id, lba = lba.0, reason, "medium error");
        }
        let bases = if let Owner::Gate(_) = read.owner { self.bases(&read) } else { Vec::new() };
        self.read_finished_with(read.owner, extents, &bases);
    }

    fn read_finished(&mut self, owner: Owner, extents: Result<Vec<Extent>, OpError>) {
        self.read_finished_with(owner, extents, &[]);
    }

    fn read_finished_with(&mut self, owner: Owner, extents: Result<Vec<Extent>, OpError>, bases: &[u64]) {
        match owner {
            Owner::Caller { token, bytes } => self.complete(token, bytes, extents.map(Outcome::Read)),
            Owner::Gate(ticket) => self.gate_read_finished(ticket, extents, bases),
            Owner::Scrub => self.scrub_block_read(extents),
        }
    }

    /// What each block was made from, as far as that is known: see [`crate::unit::Base`].
    fn bases(&self, read: &ReadOp) -> Vec<u64> {
        if !self.info.kind.is_sealed() {
            return Vec::new();
        }
        let mut bases = Vec::new();
        for part in &read.parts {
            match part {
                Part::Hole { count, sequence, .. } => {
                    bases.extend(std::iter::repeat_n(self.base_of_hole(*sequence), *count as usize));
                }
                Part::Blocks { versions, segment, .. } => {
                    bases.extend(versions.iter().map(|&version| self.base_of_block(version, *segment, read)));
                }
            }
        }
        bases
    }

    fn base_of_block(&self, version: Version, segment: u32, read: &ReadOp) -> u64 {
        let block = read.records.get(&self.record_key(version, segment)).and_then(|block| block.as_ref().ok());
        let item_at = version.item_at() as usize % RECORD_BLOCK;
        let base = block.and_then(|block| base_of(block, item_at, version.sequence(), &self.layout));
        match base {
            Some(Base::Itself) => self.told_of(version.sequence()),
            Some(Base::Of(base)) => base,
            // A condition that cannot be ruled out.
            None => 0,
        }
    }

    /// The base of a hole.
    pub(super) fn base_of_hole(&self, sequence: u64) -> u64 {
        if self.map.is_conditional_hole(sequence) { 0 } else { self.told_of(sequence) }
    }

    /// What has this sequence and no condition in the log; 0 if it is of a build that did not tell of conditions.
    fn told_of(&self, sequence: u64) -> u64 {
        Some(sequence).filter(|_| self.superblock.bases_from.is_some_and(|from| sequence >= from)).unwrap_or(0)
    }

    /// Starts a look at the records of versions, for the first queued request.
    pub(super) fn start_base_read(&mut self, ticket: u64, versions: &[(u64, Version)]) {
        let part = |&(lba, version): &(u64, Version)| {
            let segment = version.segment(&self.layout);
            Part::Blocks { lba, versions: vec![version], segment, data: Ok(None), cached: false }
        };
        let parts = versions.iter().map(part).collect();
        self.start_parts(Owner::Gate(ticket), Ok(parts), Wanted::Records);
    }

    /// Checks every block of a part.
    fn extent(&self, part: &Part, read: &ReadOp) -> Result<Extent, OpError> {
        match part {
            Part::Hole { lba, count, sequence: hole, record } => Ok(Extent::Hole {
                lba: Lba(*lba),
                count: *count,
                sequence: sequence(*hole),
                hole: record.as_deref().cloned(),
            }),
            Part::Blocks { lba, versions, segment, data, cached } => {
                let medium = |at: usize, reason: String| OpError::Medium { lba: Lba(lba + at as u64), reason };
                let data = data.as_ref().map_err(|reason| medium(0, reason.clone()))?.clone().unwrap_or_default();
                let mut records = Vec::new();
                // A plain unit's items are checksums, and nothing else.
                let wanted = if *cached && !self.info.kind.is_sealed() { &[][..] } else { versions };
                for (at, version) in wanted.iter().enumerate() {
                    let item = self.item(*version, *segment, read).map_err(|reason| medium(at, reason))?;
                    let block_bytes = self.layout.block_bytes as usize;
                    if read.wanted != Wanted::Records
                        && !cached
                        && keyless_checksum(&data[at * block_bytes..][..block_bytes]) != item_checksum(item)
                    {
                        return Err(medium(at, "it does not match its checksum".to_owned()));
                    }
                    if self.info.kind.is_sealed() {
                        records.push(SealRecord::decode(item).map_err(|error| medium(at, error.to_string()))?);
                    }
                }
                let sequences = versions.iter().map(|version| sequence(version.sequence())).collect();
                Ok(Extent::Blocks { lba: Lba(*lba), data, sequences, records })
            }
        }
    }

    fn item<'a>(&self, version: Version, segment: u32, read: &'a ReadOp) -> Result<&'a [u8], String> {
        let block = read.records[&self.record_key(version, segment)].as_ref().map_err(Clone::clone)?;
        let at = version.item_at() as usize % RECORD_BLOCK;
        block.get(at..at + self.layout.item_bytes as usize).ok_or_else(|| "its record is cut off".to_owned())
    }
}

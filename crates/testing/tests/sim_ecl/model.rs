//! The logical unit behind a simulated association, and what its initiator may read: every block's content names the write that made it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use strongroom_block::{
    AttachId, Buffer, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite, keyless_checksum,
};
use strongroom_scsi::transport::initiator::DataContent;
use strongroom_scsi::transport::target::{Command, ReadPart, Response};
use strongroom_scsi::transport::{Direction, StoredRecords};

/// Blocks of the unit.
pub(crate) const BLOCKS: u64 = 48;

/// The content of a block: the write that made it and the block's address, over and over.
pub(crate) fn content(write: u64, lba: u64, block_bytes: usize) -> Vec<u8> {
    let name = [write.to_be_bytes(), lba.to_be_bytes()].concat();
    name.iter().copied().cycle().take(block_bytes).collect()
}

/// The record of a block.
pub(crate) fn record(write: u64, data: &[u8]) -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([7; 16]), counter: write };
    let checksum = keyless_checksum(data);
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags::default(), 1, stamp, checksum, [5; 16])
}

/// Which write made a block; panics if it is damaged or of another address.
fn writer(data: &[u8], record: &[u8], lba: u64) -> u64 {
    let record = SealRecord::decode(record).expect("a record");
    let write = u64::from_be_bytes(data[..8].try_into().expect("8 bytes"));
    assert!(data == content(write, lba, data.len()), "wrong bytes: block {lba} holds what nobody wrote there");
    assert_eq!(record.checksum(), keyless_checksum(data), "wrong bytes: block {lba} does not match its record");
    assert_eq!(record.stamp().counter, write, "wrong bytes: the record of another block came with block {lba}");
    write
}

/// LBA and count of a READ(16) or WRITE(16).
fn range(cdb: &[u8; 16]) -> (u64, u64) {
    let lba = u64::from_be_bytes(cdb[2..10].try_into().expect("8 bytes"));
    (lba, u32::from_be_bytes(cdb[10..14].try_into().expect("4 bytes")).into())
}

/// What the target stores.
#[derive(Default)]
pub(crate) struct Unit {
    blocks: BTreeMap<u64, u64>,
    executed: BTreeSet<u64>,
    /// Flushes and writes that were executed.
    pub(crate) commands: u64,
}

impl Unit {
    /// Executes a command that the session handed over. Panics if the transport broke a promise.
    pub(crate) fn execute(&mut self, command: &Command, block_bytes: usize) -> Response {
        self.commands += 1;
        let (lba, count) = range(&command.cdb);
        match command.direction {
            Direction::None => Response::good(),
            Direction::Read => self.read(lba, count, block_bytes),
            Direction::Write => {
                let operation = command.parameters.operation.expect("every write says which it is").expect("decodes");
                let write = operation.id.counter;
                assert!(self.executed.insert(write), "executed twice: the write {write}");
                self.write(command, write, lba, count, block_bytes);
                Response::good()
            }
        }
    }

    fn write(&mut self, command: &Command, write: u64, lba: u64, count: u64, block_bytes: usize) {
        let mut at = 0;
        for segment in &command.data {
            assert_eq!(segment.offset as usize, at, "in order and without gaps");
            let records = segment.records.as_ref().expect("sealed");
            for (block, entry) in segment.data.chunks(block_bytes).zip(records.iter()) {
                let lba = lba + (at / block_bytes) as u64;
                assert_eq!(writer(block, entry, lba), write, "stale data: another write's in that of write {write}");
                self.blocks.insert(lba, write);
                at += block_bytes;
            }
        }
        assert_eq!(at as u64, count * block_bytes as u64, "all of the write {write}");
    }

    fn read(&self, lba: u64, count: u64, block_bytes: usize) -> Response {
        let written: Vec<u64> = (lba..lba + count).map(|lba| self.blocks.get(&lba).copied().unwrap_or(0)).collect();
        let data: Vec<u8> = (lba..).zip(&written).flat_map(|(lba, write)| content(*write, lba, block_bytes)).collect();
        let records: Vec<SealRecord> =
            written.iter().zip(data.chunks(block_bytes)).map(|(write, data)| record(*write, data)).collect();
        let entries: Vec<_> = written.iter().map(|write| StoreSequence(*write)).zip(&records).collect();
        let records = StoredRecords::new(8 + SealRecord::BASE_BYTES, entries.into_iter(), false);
        let part = ReadPart::Sealed { data: Buffer::copy_from(&data), records };
        Response { data: vec![part], ..Response::good() }
    }
}

/// A read or a write of the initiator that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) lba: u64,
    pub(crate) count: u64,
    /// The write's name.
    pub(crate) write: Option<u64>,
    /// What a read has returned so far: which write made each block.
    seen: Vec<u64>,
    /// Which writes a read may see, by block.
    may_see: Vec<BTreeSet<u64>>,
}

/// What reads may return.
#[derive(Default)]
pub(crate) struct Expectation {
    /// What a block may hold: the last write that was acknowledged, and those since whose outcome is unknown.
    values: HashMap<u64, BTreeSet<u64>>,
    pending: HashMap<u64, Pending>,
    next: u64,
}

impl Expectation {
    fn may_hold(&self, lba: u64) -> BTreeSet<u64> {
        self.values.get(&lba).cloned().unwrap_or_else(|| BTreeSet::from([0]))
    }

    /// A read or a write begins. Returns its name; that of a write is the write's.
    pub(crate) fn begin(&mut self, lba: u64, count: u64, is_write: bool) -> u64 {
        self.next += 1;
        let name = self.next;
        let may_see = (lba..lba + count).map(|lba| self.may_hold(lba)).collect();
        let write = is_write.then_some(name);
        if is_write {
            // Reads under way may see it from now on, and later ones too.
            for lba in lba..lba + count {
                let mut values = self.may_hold(lba);
                values.insert(name);
                self.values.insert(lba, values);
                for pending in self.pending.values_mut().filter(|pending| pending.write.is_none()) {
                    if lba >= pending.lba && lba < pending.lba + pending.count {
                        pending.may_see[(lba - pending.lba) as usize].insert(name);
                    }
                }
            }
        }
        self.pending.insert(name, Pending { lba, count, write, seen: Vec::new(), may_see });
        name
    }

    /// Whether a write would overlap one that is under way.
    pub(crate) fn overlaps_a_write(&self, lba: u64, count: u64) -> bool {
        let overlaps = |pending: &Pending| lba < pending.lba + pending.count && pending.lba < lba + count;
        self.pending.values().any(|pending| pending.write.is_some() && overlaps(pending))
    }

    /// A read has returned a part.
    pub(crate) fn returned(&mut self, name: u64, offset: u32, content: &DataContent, block_bytes: usize) {
        let pending = self.pending.get_mut(&name).expect("data of a read that is under way");
        assert_eq!(offset as usize, pending.seen.len() * block_bytes, "in order and without gaps");
        let DataContent::Sealed { data, records } = content else { panic!("the unit gave sealed blocks") };
        for (block, entry) in data.chunks(block_bytes).zip(records.iter()) {
            let lba = pending.lba + pending.seen.len() as u64;
            pending.seen.push(writer(block, &entry[8..], lba));
        }
    }

    /// A command was completed.
    pub(crate) fn completed(&mut self, name: u64) {
        let pending = self.pending.remove(&name).expect("a command is completed once");
        match pending.write {
            Some(write) => {
                for lba in pending.lba..pending.lba + pending.count {
                    self.values.insert(lba, BTreeSet::from([write]));
                }
            }
            None => {
                assert_eq!(pending.seen.len() as u64, pending.count, "all of the read");
                for (at, seen) in pending.seen.iter().enumerate() {
                    let lba = pending.lba + at as u64;
                    let may_see = &pending.may_see[at];
                    assert!(may_see.contains(seen), "stale data: block {lba} holds {seen}, none of {may_see:?}");
                }
            }
        }
    }

    /// A command was not sent after all.
    pub(crate) fn withdraw(&mut self, name: u64) {
        let pending = self.pending.remove(&name).expect("it has just begun");
        for lba in pending.lba..pending.lba + pending.count {
            if let Some(values) = self.values.get_mut(&lba) {
                values.remove(&name);
            }
        }
    }

    /// The association is over: the outcome of everything under way is unknown, and remains so.
    pub(crate) fn forget(&mut self) {
        self.pending.clear();
    }

    pub(crate) fn under_way(&self) -> usize {
        self.pending.len()
    }
}

//! A unit in memory that executes what the engine sends, remembers versions, forgets what was not flushed when told to
//! crash, and has no key.

use std::collections::{BTreeMap, HashMap, HashSet};

use strongroom_block::{AttachId, Buffer, HoleRecord, Lba, SealRecord, Stamp, StoreSequence};
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::provisioning::{self, LbaStatus};
use strongroom_scsi::transport::Residual;
use strongroom_scsi::transport::initiator::{Command as ScsiCommand, Completed, DataContent, DataIn, TaskId};
use strongroom_scsi::transport::{Operation, SealRecords, Written};
use strongroom_scsi::{Command, Sense, Status, VendorCommand, vendor};

use crate::pipeline::operation::Write;

const RECORD: usize = 56;

/// One block as stored; absent ones have a hole (sealed) or are zeros (plain).
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) data: Vec<u8>,
    pub(super) record: Vec<u8>,
    pub(super) sequence: u64,
    hole: Option<HoleRecord>,
}

impl Stored {
    pub(super) fn new(data: &[u8], record: &[u8], sequence: u64) -> Stored {
        Stored { data: data.to_vec(), record: record.to_vec(), sequence, hole: None }
    }

    fn stamp(&self) -> [u8; 24] {
        match self.hole {
            Some(_) => [0; 24],
            None => self.record[8..32].try_into().unwrap(),
        }
    }
}

pub(super) struct FakeUnit {
    sealed: bool,
    block_bytes: usize,
    count: u64,
    pub(super) blocks: BTreeMap<u64, Stored>,
    durable: BTreeMap<u64, Stored>,
    pub(super) versions: HashMap<u64, Vec<Stored>>,
    sequence: u64,
    /// The first sequence of this opening.
    opened_at: u64,
    /// Attach ids that it knows, and the counters that it has executed.
    pub(super) known: HashMap<AttachId, HashSet<u64>>,
    durably_known: HashMap<AttachId, HashSet<u64>>,
    pub(super) registrations: Vec<AttachId>,
    /// A registration is acknowledged and not kept.
    pub(super) forgets_at_once: bool,
    /// Responses to writes say nothing about them.
    pub(super) says_nothing: bool,
    /// Of the command at hand.
    written: Option<Written>,
    /// Blocks written, retries not counted.
    pub(super) writes: u64,
    pub(super) commands: u64,
    pub(super) fail_next: Vec<Sense>,
    pub(super) fail_flushes: bool,
    pub(super) verified: Vec<(Lba, StoreSequence)>,
    /// What it says of its size.
    pub(super) capacity: Option<ReadCapacity16>,
}

impl FakeUnit {
    pub(super) fn new(sealed: bool, block_bytes: usize, count: u64) -> FakeUnit {
        FakeUnit {
            sealed,
            block_bytes,
            count,
            blocks: BTreeMap::new(),
            durable: BTreeMap::new(),
            versions: HashMap::new(),
            sequence: 0,
            opened_at: 1,
            known: HashMap::new(),
            durably_known: HashMap::new(),
            registrations: Vec::new(),
            forgets_at_once: false,
            says_nothing: false,
            written: None,
            writes: 0,
            commands: 0,
            fail_next: Vec::new(),
            fail_flushes: false,
            verified: Vec::new(),
            capacity: None,
        }
    }

    /// Forgets what was not flushed.
    pub(super) fn crash(&mut self) {
        self.blocks = self.durable.clone();
        self.known = self.durably_known.clone();
        // No sequence is given twice.
        self.sequence += 1000;
        self.opened_at = self.sequence + 1;
    }

    /// As a unit that was repaired: no attach id is known any more.
    pub(super) fn forget_attachments(&mut self) {
        self.known.clear();
        self.durably_known.clear();
    }

    pub(super) fn hole_of(&self, lba: u64) -> &HoleRecord {
        self.blocks[&lba].hole.as_ref().unwrap()
    }

    pub(super) fn put_hole(&mut self, lba: u64, hole: HoleRecord) {
        self.blocks.insert(lba, Stored { data: Vec::new(), record: Vec::new(), sequence: 1, hole: Some(hole) });
    }

    pub(super) fn write_by_another(&mut self, write: &Write) {
        let Write { lba, data, records, .. } = write;
        self.store(lba.0, data, records.as_deref().unwrap_or_default(), None);
    }

    /// Stores blocks, or, of a replay, those that nothing newer is in the place of.
    fn store(&mut self, lba: u64, data: &[u8], records: &[u8], replay: Option<StoreSequence>) {
        let (first, mut superseded) = (self.sequence + 1, 0);
        for (at, block) in data.chunks(self.block_bytes).enumerate() {
            let lba = lba + at as u64;
            let record = if self.sealed { &records[at * RECORD..(at + 1) * RECORD] } else { &[] };
            let Some(sequence) = self.sequence_for(lba, replay.map(|first| first.0 + at as u64)) else {
                superseded += 1;
                continue;
            };
            self.writes += 1;
            let stored = Stored::new(block, record, sequence);
            self.versions.entry(lba).or_default().push(stored.clone());
            self.blocks.insert(lba, stored);
        }
        self.written = Some(Written { is_repeat: false, first: replay.unwrap_or(StoreSequence(first)), superseded });
    }

    /// The sequence under which a block is stored; `None`: there is something newer.
    fn sequence_for(&mut self, lba: u64, replay: Option<u64>) -> Option<u64> {
        match replay {
            None => {
                self.sequence += 1;
                Some(self.sequence)
            }
            Some(was) => self.blocks.get(&lba).is_none_or(|stored| stored.sequence < was).then_some(was),
        }
    }

    fn store_holes(&mut self, holes: &[HoleRecord], replay: Option<StoreSequence>) {
        let (first, mut superseded) = (self.sequence + 1, 0);
        for (at, hole) in holes.iter().enumerate() {
            self.sequence += u64::from(replay.is_none());
            let sequence = replay.map_or(self.sequence, |first| first.0 + at as u64);
            for lba in hole.start.0..hole.start.0 + hole.count {
                if replay.is_some() && self.blocks.get(&lba).is_some_and(|stored| stored.sequence >= sequence) {
                    superseded += 1;
                    continue;
                }
                let stored = Stored { data: Vec::new(), record: Vec::new(), sequence, hole: Some(hole.clone()) };
                self.versions.entry(lba).or_default().push(stored.clone());
                self.blocks.insert(lba, stored);
            }
        }
        self.written = Some(Written { is_repeat: false, first: replay.unwrap_or(StoreSequence(first)), superseded });
    }

    /// Whether an operation is to be executed: a repeat is not. Those of unknown attach ids are refused.
    fn admit(&mut self, command: &ScsiCommand, first: Stamp, count: u64) -> Result<Option<Operation>, Sense> {
        if !self.sealed {
            return Ok(Some(Operation { id: first, replay: None }));
        }
        let named = command.parameters.operation.transpose().expect("well-formed");
        let operation = named.unwrap_or(Operation { id: first, replay: None });
        let executed = self.known.get(&operation.id.attach_id).ok_or(Sense::UNKNOWN_ATTACHMENT)?;
        let counters = operation.id.counter..operation.id.counter + count;
        let before = counters.filter(|counter| executed.contains(counter)).count() as u64;
        assert!(before == 0 || before == count, "operations do not overlap");
        if before == count {
            self.written = Some(Written { is_repeat: true, ..Written::default() });
            // It is answered when it is durable.
            self.flush();
            return Ok(None);
        }
        if let Some(sequence) = operation.replay {
            assert!(sequence.0 + count <= self.opened_at, "of an earlier opening");
        }
        Ok(Some(operation))
    }

    /// It was executed.
    fn note(&mut self, operation: &Operation, count: u64) {
        if let Some(executed) = self.known.get_mut(&operation.id.attach_id) {
            executed.extend(operation.id.counter..operation.id.counter + count);
        }
    }

    pub(super) fn flush(&mut self) {
        self.durable = self.blocks.clone();
        self.durably_known = self.known.clone();
    }

    pub(super) fn execute(&mut self, command: &ScsiCommand) -> (Vec<DataIn>, Completed) {
        self.commands += 1;
        self.written = None;
        let outcome = if self.fail_next.is_empty() { self.perform(command) } else { Err(self.fail_next.remove(0)) };
        let mut completed = Completed {
            task: TaskId(0),
            status: Status::Good as u8,
            response: 0,
            sense: Vec::new(),
            residual: Residual::None,
            moved_bytes: 0,
            written: None,
        };
        match outcome {
            Ok(data) => {
                if self.sealed && !self.says_nothing {
                    completed.written = self.written.take();
                }
                completed.moved_bytes = data.iter().map(|piece| piece.covers_bytes).sum();
                (data, completed)
            }
            Err(sense) => {
                completed.status = Status::CheckCondition as u8;
                completed.sense = sense.encode();
                (Vec::new(), completed)
            }
        }
    }

    fn perform(&mut self, command: &ScsiCommand) -> Result<Vec<DataIn>, Sense> {
        let decoded = Command::decode(&command.cdb).expect("the engine sends CDBs that decode");
        let out = command.write.as_ref().map(|write| write.data.clone()).unwrap_or_default();
        let records = command.write.as_ref().and_then(|write| write.records.as_ref());
        let records = records.map(|records| records.bytes.to_vec()).unwrap_or_default();
        match decoded {
            Command::Read { lba, count, .. } => (0..u64::from(count)).map(|at| self.data_in(lba.0, at)).collect(),
            Command::Write { lba, fua, .. } => {
                assert_eq!(records.len(), if self.sealed { out.len() / self.block_bytes * RECORD } else { 0 });
                let count = (out.len() / self.block_bytes) as u64;
                let Some(operation) = self.admit(command, stamp_of(&records), count)? else { return Ok(Vec::new()) };
                self.store(lba.0, &out, &records, operation.replay);
                self.note(&operation, count);
                if fua && self.sealed {
                    self.flush();
                } else if fua {
                    for lba in lba.0..lba.0 + (out.len() / self.block_bytes) as u64 {
                        self.durable.insert(lba, self.blocks[&lba].clone());
                    }
                }
                Ok(Vec::new())
            }
            Command::SynchronizeCache { .. } if self.fail_flushes => Err(Sense::INTERNAL_FAILURE),
            Command::SynchronizeCache { .. } => {
                self.flush();
                Ok(Vec::new())
            }
            Command::Unmap { .. } => {
                for (lba, count) in provisioning::parse_unmap(&out).expect("well-formed") {
                    assert!(count <= 16, "the limit that the unit named");
                    self.blocks.retain(|at, _| !(lba.0..lba.0 + u64::from(count)).contains(at));
                }
                Ok(Vec::new())
            }
            Command::CompareAndWrite { lba, .. } => {
                let (old, new) = out.split_at(self.block_bytes);
                let is = self.blocks.get(&lba.0).map_or(vec![0; self.block_bytes], |stored| stored.data.clone());
                if is != old {
                    return Err(Sense::MISCOMPARE);
                }
                self.store(lba.0, new, &[], None);
                Ok(Vec::new())
            }
            Command::GetLbaStatus { lba, .. } => {
                let mapped = |at: &u64| self.blocks.get(at).is_some_and(|stored| stored.hole.is_none());
                let first = mapped(&lba.0);
                let count = (lba.0..self.count).take_while(|at| mapped(at) == first).count() as u32;
                Ok(vec![plain(provisioning::lba_status(&[LbaStatus { lba, count, mapped: first }]))])
            }
            Command::ReadCapacity16 { .. } => Ok(vec![plain(self.capacity.ok_or(Sense::INVALID_OPCODE)?.encode())]),
            Command::Vendor(vendor) => self.perform_vendor(vendor, command, &out, &records),
            other => panic!("not expected: {other:?}"),
        }
    }

    fn perform_vendor(
        &mut self,
        vendor: VendorCommand,
        command: &ScsiCommand,
        out: &[u8],
        records: &[u8],
    ) -> Result<Vec<DataIn>, Sense> {
        match vendor {
            VendorCommand::SealHole { .. } => {
                let holes = vendor::decode_holes(out, RECORD).expect("well-formed");
                let count = holes.len() as u64;
                let first = holes[0].record.stamp();
                if let Some(operation) = self.admit(command, first, count)? {
                    self.store_holes(&holes, operation.replay);
                    self.note(&operation, count);
                }
                Ok(Vec::new())
            }
            VendorCommand::TakePlace
            | VendorCommand::ClaimLease { .. }
            | VendorCommand::ReleaseLease
            | VendorCommand::ReportWriters { .. } => Err(Sense::INVALID_OPCODE),
            VendorCommand::RegisterAttachment { .. } => {
                let id = vendor::decode_attach_id(out).expect("well-formed");
                self.registrations.push(id);
                if self.forgets_at_once {
                    self.forget_attachments();
                } else {
                    self.known.entry(id).or_default();
                    self.durably_known.entry(id).or_default();
                }
                Ok(Vec::new())
            }
            VendorCommand::Verified { .. } => {
                self.verified.extend(vendor::decode_verified(out).expect("well-formed"));
                Ok(Vec::new())
            }
            VendorCommand::ConditionalWrite { lba, .. } => {
                let expected = command.parameters.expected_stamp.expect("a conditional write names a stamp");
                let Some(operation) = self.admit(command, stamp_of(records), 1)? else { return Ok(Vec::new()) };
                let is = self.blocks.get(&lba.0).ok_or(Sense::UNRECOVERED_READ)?.stamp();
                if is != expected {
                    return Err(Sense::MISCOMPARE);
                }
                self.store(lba.0, out, records, operation.replay);
                self.note(&operation, 1);
                Ok(Vec::new())
            }
            VendorCommand::ReadVersion { lba } => {
                let bound =
                    command.parameters.older_than.map(|bound| bound.0).filter(|&bound| bound > 0).unwrap_or(u64::MAX);
                let versions = self.versions.get(&lba.0).map(Vec::as_slice).unwrap_or_default();
                let found = versions.iter().rev().find(|version| version.sequence < bound).cloned();
                let found = found.ok_or(Sense::NO_OLDER_VERSION)?;
                Ok(vec![self.piece(&found, 0)])
            }
        }
    }

    fn data_in(&self, lba: u64, at: u64) -> Result<DataIn, Sense> {
        match self.blocks.get(&(lba + at)) {
            Some(stored) => Ok(self.piece(stored, at)),
            None if self.sealed => Err(Sense::UNRECOVERED_READ.at(Lba(lba + at))),
            None => Ok(DataIn { offset: (at as usize * self.block_bytes) as u32, ..plain(vec![0; self.block_bytes]) }),
        }
    }

    fn piece(&self, stored: &Stored, at: u64) -> DataIn {
        let data = Buffer::copy_from(&stored.data);
        let content = if let Some(hole) = &stored.hole {
            let (start, count) = (hole.start.0.to_be_bytes(), hole.count.to_be_bytes());
            let record = [&start[..], &count, hole.record.as_bytes()].concat().into();
            DataContent::Hole { sequence: StoreSequence(stored.sequence), record }
        } else if self.sealed {
            assert!(SealRecord::decode(&stored.record).is_ok());
            let entry = [&stored.sequence.to_be_bytes()[..], &stored.record].concat();
            let records = SealRecords::new(entry.len(), entry.into()).expect("one entry");
            DataContent::Sealed { data, records }
        } else {
            DataContent::Plain(data)
        };
        let offset = (at as usize * self.block_bytes) as u32;
        DataIn { task: TaskId(0), offset, covers_bytes: self.block_bytes as u32, content }
    }
}

fn plain(data: Vec<u8>) -> DataIn {
    DataIn {
        task: TaskId(0),
        offset: 0,
        covers_bytes: data.len() as u32,
        content: DataContent::Plain(Buffer::copy_from(&data)),
    }
}

/// The stamp of the first record; zeros on a plain unit.
fn stamp_of(records: &[u8]) -> Stamp {
    Stamp::from_bytes(records.get(8..32).map_or([0; 24], |stamp| stamp.try_into().unwrap()))
}

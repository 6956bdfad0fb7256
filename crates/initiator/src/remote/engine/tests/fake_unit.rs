//! A unit in memory that executes what the engine sends, remembers versions, forgets what was not flushed when told to
//! crash, and has no key.

use std::collections::{BTreeMap, HashMap};

use strongroom_block::{Buffer, HoleRecord, Lba, SealRecord, StoreSequence};
use strongroom_iscsi::Residual;
use strongroom_iscsi::ahs::{self, Hole};
use strongroom_iscsi::initiator::{Command as ScsiCommand, Completed, DataIn, TaskId};
use strongroom_scsi::capacity::ReadCapacity16;
use strongroom_scsi::provisioning::{self, LbaStatus};
use strongroom_scsi::{Command, Sense, Status, VendorCommand, vendor};

use crate::remote::work::Work;

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
    }

    pub(super) fn hole_of(&self, lba: u64) -> &HoleRecord {
        self.blocks[&lba].hole.as_ref().unwrap()
    }

    pub(super) fn put_hole(&mut self, lba: u64, hole: HoleRecord) {
        self.blocks.insert(lba, Stored { data: Vec::new(), record: Vec::new(), sequence: 1, hole: Some(hole) });
    }

    pub(super) fn write_by_another(&mut self, work: &Work) {
        let Work::Write { lba, data, records, .. } = work else { panic!("a write") };
        self.store(lba.0, data, records.as_deref().unwrap_or_default());
    }

    fn store(&mut self, lba: u64, data: &[u8], records: &[u8]) {
        for (at, block) in data.chunks(self.block_bytes).enumerate() {
            let lba = lba + at as u64;
            let record = if self.sealed { &records[at * RECORD..(at + 1) * RECORD] } else { &[] };
            if self.sealed
                && self.blocks.get(&lba).is_some_and(|old| old.hole.is_none() && old.stamp() == record[8..32])
            {
                continue;
            }
            self.sequence += 1;
            self.writes += 1;
            let stored = Stored::new(block, record, self.sequence);
            self.versions.entry(lba).or_default().push(stored.clone());
            self.blocks.insert(lba, stored);
        }
    }

    pub(super) fn execute(&mut self, command: &ScsiCommand) -> (Vec<DataIn>, Completed) {
        self.commands += 1;
        let outcome = if self.fail_next.is_empty() { self.perform(command) } else { Err(self.fail_next.remove(0)) };
        let mut completed = Completed {
            task: TaskId(0),
            status: Status::Good as u8,
            response: 0,
            sense: Vec::new(),
            residual: Residual::None,
            moved_bytes: 0,
            ahs: Default::default(),
        };
        match outcome {
            Ok(data) => {
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
                self.store(lba.0, &out, &records);
                if fua {
                    for lba in lba.0..lba.0 + (out.len() / self.block_bytes) as u64 {
                        self.durable.insert(lba, self.blocks[&lba].clone());
                    }
                }
                Ok(Vec::new())
            }
            Command::SynchronizeCache { .. } if self.fail_flushes => Err(Sense::INTERNAL_FAILURE),
            Command::SynchronizeCache { .. } => {
                self.durable = self.blocks.clone();
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
                self.store(lba.0, new, &[]);
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
                for hole in vendor::decode_holes(out, RECORD).expect("well-formed") {
                    self.sequence += 1;
                    for lba in hole.start.0..hole.start.0 + hole.count {
                        let stored = Stored {
                            data: Vec::new(),
                            record: Vec::new(),
                            sequence: self.sequence,
                            hole: Some(hole.clone()),
                        };
                        self.versions.entry(lba).or_default().push(stored.clone());
                        self.blocks.insert(lba, stored);
                    }
                }
                Ok(Vec::new())
            }
            VendorCommand::TakePlace | VendorCommand::RegisterAttachment { .. } => Err(Sense::INVALID_OPCODE),
            VendorCommand::Verified { .. } => {
                self.verified.extend(vendor::decode_verified(out).expect("well-formed"));
                Ok(Vec::new())
            }
            VendorCommand::ConditionalWrite { lba, .. } => {
                let expected = ahs::expected_stamp(&command.ahs).expect("a conditional write names a stamp");
                let is = self.blocks.get(&lba.0).ok_or(Sense::UNRECOVERED_READ)?.stamp();
                if is != expected && is != records[8..32] {
                    return Err(Sense::MISCOMPARE);
                }
                self.store(lba.0, out, records);
                Ok(Vec::new())
            }
            VendorCommand::ReadVersion { lba } => {
                let bound = ahs::older_than(&command.ahs).filter(|&bound| bound > 0).unwrap_or(u64::MAX);
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
        let mut segments = Vec::new();
        if let Some(hole) = &stored.hole {
            Hole { covered_blocks: 1, store_sequence: stored.sequence, record: hole.clone() }.push(&mut segments);
        } else if self.sealed {
            assert!(SealRecord::decode(&stored.record).is_ok());
            let entry = [&stored.sequence.to_be_bytes()[..], &stored.record].concat();
            ahs::push_seal_records(&mut segments, entry.len(), &entry);
        }
        DataIn {
            task: TaskId(0),
            offset: (at as usize * self.block_bytes) as u32,
            data: Buffer::copy_from(&stored.data),
            ahs: segments.into(),
            sealed: self.sealed && stored.hole.is_none(),
            covers_bytes: self.block_bytes as u32,
        }
    }
}

fn plain(data: Vec<u8>) -> DataIn {
    DataIn {
        task: TaskId(0),
        offset: 0,
        covers_bytes: data.len() as u32,
        data: Buffer::copy_from(&data),
        ahs: bytes::Bytes::new(),
        sealed: false,
    }
}

//! The reference model: what every block may hold, after any history of writes, flushes and crashes.
//!
//! The store promises a prefix: the state after a crash is that after some write (in the order of store sequences), not
//! older than the last flush. So the model needs one number for what is durable.

use std::collections::{BTreeMap, HashMap};

use strongroom_block::{AttachId, BlockSize, Lba, Mode, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum};
use strongroom_store::Extent;

use crate::Random;

/// The attach id of everything that a model writes.
const ATTACH: AttachId = AttachId([0x5e; 16]);

/// What a block holds: which operation wrote it, or made a hole of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// Data of this operation.
    Data(u64),
    /// A hole. Which one is told by the sequence.
    Hole,
}

/// The bytes that operation `op` writes to block `lba`.
pub fn block_bytes(op: u64, lba: u64, block_size: BlockSize) -> Vec<u8> {
    let mut random = Random::new(op.wrapping_mul(0x9e37_79b9) ^ lba);
    let mut bytes: Vec<u8> = Vec::with_capacity(block_size.len());
    bytes.extend_from_slice(&op.to_be_bytes());
    bytes.extend_from_slice(&lba.to_be_bytes());
    while bytes.len() < block_size.len() {
        bytes.extend_from_slice(&random.number().to_be_bytes());
    }
    bytes
}

/// A seal record for a block (or, with no bytes, a hole), with a stamp of its own.
pub fn record_for(op: u64, index: u64, bytes: Option<&[u8]>) -> SealRecord {
    let stamp = Stamp { attach_id: ATTACH, counter: (op << 20) + index };
    let (flags, sum) = match bytes {
        Some(bytes) => (RecordFlags(0), keyless_checksum(bytes)),
        None => (RecordFlags(RecordFlags::HOLE), 0),
    };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 1, stamp, sum, [op as u8; 16])
}

/// Which operation wrote these bytes of block `lba`.
///
/// # Panics
/// If none did: that is the store serving wrong data.
pub fn content_of(bytes: &[u8], lba: u64) -> Content {
    let op = u64::from_be_bytes(bytes[..8].try_into().expect("8 bytes"));
    let block_size = BlockSize::new(bytes.len() as u64).expect("one block");
    assert!(bytes == block_bytes(op, lba, block_size), "block {lba} holds what nobody wrote there");
    Content::Data(op)
}

/// An operation that was submitted and not answered.
struct Pending {
    lba: u64,
    count: u64,
    /// What was durable when it was submitted: what its unit will tell of.
    durable: u64,
}

/// The model.
pub struct Model {
    block_size: BlockSize,
    /// Of each block: sequence to content, of everything answered (or seen) that could still count.
    answered: Vec<BTreeMap<u64, Content>>,
    pending: HashMap<u64, Pending>,
    /// Everything answered up to this sequence is durable.
    durable: u64,
    /// The highest sequence ever seen.
    highest: u64,
    /// Of writes that are not durable: what was durable when they were submitted.
    claims: BTreeMap<u64, u64>,
    /// Durable, and told of by something that is durable too.
    claimed: u64,
    retained: Retained,
}

/// What is known of older versions.
#[derive(Default)]
struct Retained {
    /// How many older versions the store keeps at least, before it lets the oldest go.
    budget: u64,
    /// How many versions became old at most with each sequence.
    weights: BTreeMap<u64, u64>,
    /// Of each block: feedback let go what is older than this.
    verified: HashMap<u64, u64>,
}

impl Model {
    /// A volume of `blocks`, all of which are one hole of sequence `hole`.
    pub fn new(blocks: u64, block_size: BlockSize, hole: u64) -> Model {
        let answered = (0..blocks).map(|_| BTreeMap::from([(hole, Content::Hole)])).collect();
        Model {
            block_size,
            answered,
            pending: HashMap::new(),
            durable: hole,
            highest: hole,
            claims: BTreeMap::new(),
            claimed: 0,
            retained: Retained::default(),
        }
    }

    /// Older versions are kept, so many of them.
    pub fn retains(&mut self, budget: u64) {
        self.retained.budget = budget;
    }

    /// The bytes of operation `op` on a range.
    pub fn bytes(&self, op: u64, lba: u64, count: u64) -> Vec<u8> {
        (lba..lba + count).flat_map(|lba| block_bytes(op, lba, self.block_size)).collect()
    }

    /// A write was submitted.
    pub fn submitted(&mut self, op: u64, lba: u64, count: u64) {
        self.pending.insert(op, Pending { lba, count, durable: self.durable });
    }

    /// A write failed; it must not have happened, nor may it ever.
    pub fn failed(&mut self, op: u64) {
        self.pending.remove(&op);
    }

    /// A write was answered with its first sequence.
    pub fn written(&mut self, op: u64, first: u64, fua: bool) {
        let Pending { lba, count, durable } = self.pending.remove(&op).expect("submitted before");
        for index in 0..count {
            self.note(lba + index, first + index, Content::Data(op));
            self.retained.weights.insert(first + index, 1);
        }
        self.claims.insert(first, durable);
        if fua {
            self.flushed(first + count - 1);
        }
    }

    /// A hole that was submitted like a write was answered with this sequence (0: there was nothing to do).
    pub fn holed(&mut self, op: u64, sequence: u64) {
        let Pending { lba, count, durable } = self.pending.remove(&op).expect("submitted before");
        if sequence > 0 {
            self.hole(lba, count, sequence);
            self.claims.insert(sequence, durable);
        }
    }

    /// A range became a hole.
    pub fn hole(&mut self, lba: u64, count: u64, sequence: u64) {
        self.retained.weights.insert(sequence, count);
        for lba in lba..lba + count {
            self.note(lba, sequence, Content::Hole);
        }
    }

    fn note(&mut self, lba: u64, sequence: u64, content: Content) {
        self.highest = self.highest.max(sequence);
        let old = self.answered[lba as usize].insert(sequence, content);
        assert!(old.is_none_or(|old| old == content), "sequence {sequence} names two versions of block {lba}");
    }

    /// What a flush submitted now will make durable.
    pub fn flush_mark(&self) -> u64 {
        self.highest
    }

    /// A flush was answered that was submitted when the mark was this.
    pub fn flushed(&mut self, mark: u64) {
        self.durable = self.durable.max(mark);
        let later = self.claims.split_off(&(mark + 1));
        let told = std::mem::replace(&mut self.claims, later);
        self.claimed = told.into_values().fold(self.claimed, u64::max);
    }

    /// Feedback was submitted: this version of a block opened.
    pub fn verified(&mut self, lba: u64, sequence: u64) {
        let known = self.retained.verified.entry(lba).or_default();
        *known = sequence.max(*known);
    }

    /// The version of a block before `older_than` that the store must still have if asked now.
    pub fn must_have(&self, lba: u64, older_than: u64) -> Option<u64> {
        let (&sequence, content) = self.answered[lba as usize].range(..older_than).next_back()?;
        let released = self.retained.verified.get(&lba).is_some_and(|&verified| sequence < verified);
        let Content::Data(_) = content else { return None };
        let later: u64 = self.retained.weights.range(sequence + 1..).map(|(_, weight)| weight).sum();
        let pending: u64 = self.pending.values().map(|pending| pending.count).sum();
        (!released && later + pending < self.retained.budget).then_some(sequence)
    }

    /// The newest answered sequence of each block of a range: what a read submitted now must at least see.
    pub fn floor(&self, lba: u64, count: u64) -> Vec<u64> {
        (lba..lba + count).map(|lba| *self.answered[lba as usize].keys().next_back().expect("never empty")).collect()
    }

    /// Checks the answer to a read of `lba` on; `floor` is what [`Model::floor`] said when it was submitted.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check_read(&mut self, lba: u64, floor: &[u64], extents: &[Extent]) {
        let blocks: Vec<_> = extents.iter().flat_map(|extent| flatten(extent, self.block_size)).collect();
        assert_eq!(blocks.len(), floor.len(), "the read covers what was asked");
        for (index, ((at, sequence, content), floor)) in blocks.into_iter().zip(floor).enumerate() {
            assert_eq!(at, lba + index as u64, "extents are in order");
            assert!(sequence >= *floor, "block {at}: version {sequence} is older than {floor}, which was answered");
            self.check_known(at, sequence, content);
        }
    }

    fn check_known(&mut self, lba: u64, sequence: u64, content: Content) {
        match self.answered[lba as usize].get(&sequence) {
            Some(known) => assert_eq!(*known, content, "block {lba}, version {sequence}"),
            None => {
                if let Content::Data(op) = content {
                    let known = self.pending.get(&op).is_some_and(|p| lba >= p.lba && lba - p.lba < p.count);
                    assert!(known, "block {lba} holds data of operation {op}, which never wrote it or failed");
                }
            }
        }
    }

    /// Checks an older version; returns its sequence.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check_version(&mut self, lba: u64, older_than: u64, extent: &Extent) -> u64 {
        let blocks = flatten(extent, self.block_size);
        let [(at, sequence, content)] = blocks[..] else { panic!("one block was asked for") };
        assert!(at == lba && sequence < older_than);
        if let Content::Data(op) = content {
            assert!(op > 0, "written by somebody");
        }
        if let Some(known) = self.answered[lba as usize].get(&sequence) {
            assert_eq!(*known, content, "block {lba}, version {sequence}");
        }
        sequence
    }

    /// Checks a snapshot of the whole volume, and tells what it holds: of each block the newest of some moment, at least
    /// `floor`, and nothing of operations from `before_op` on.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check_snapshot(&mut self, all: &[Extent], floor: &[u64], before_op: u64) -> Vec<(u64, u64, Content)> {
        let holds: Vec<(u64, u64, Content)> = all.iter().flat_map(|extent| flatten(extent, self.block_size)).collect();
        assert_eq!(holds.len(), self.answered.len(), "the whole volume was read");
        let newest = holds.iter().map(|&(_, sequence, _)| sequence).max().unwrap_or(0);
        for &(lba, sequence, content) in &holds {
            let least = self.answered[lba as usize].range(..=newest).next_back().map_or(0, |(&sequence, _)| sequence);
            assert!(sequence >= least, "a snapshot has version {sequence} of block {lba}, but not {least}");
            assert!(floor.get(lba as usize).is_none_or(|&floor| sequence >= floor), "block {lba} was written before");
            assert!(!matches!(content, Content::Data(op) if op >= before_op), "block {lba} was written afterwards");
        }
        holds
    }

    /// Checks the whole volume after a crash and takes over what survived. `all` are the extents of a read of it all.
    ///
    /// # Panics
    /// If anything flushed is lost, a write is there in part, or the state is not a prefix.
    pub fn after_crash(&mut self, all: &[Extent]) {
        let survived: Vec<(u64, u64, Content)> =
            all.iter().flat_map(|extent| flatten(extent, self.block_size)).collect();
        assert_eq!(survived.len(), self.answered.len(), "the whole volume was read");
        let newest = survived.iter().map(|&(_, sequence, _)| sequence).max().unwrap_or(0).max(self.durable);
        let mut firsts: HashMap<u64, u64> = HashMap::new();
        for &(lba, sequence, content) in &survived {
            let least = self.answered[lba as usize].range(..=newest).next_back().map_or(0, |(&sequence, _)| sequence);
            assert!(
                sequence >= least,
                "block {lba} has version {sequence}, but {least} was answered and {} (durable through {})",
                if least <= self.durable { "flushed" } else { "followed by something that survived" },
                self.durable
            );
            self.check_known(lba, sequence, content);
            if let Content::Data(op) = content
                && let Some(pending) = self.pending.get(&op)
            {
                let first = sequence - (lba - pending.lba);
                assert_eq!(*firsts.entry(op).or_insert(first), first, "operation {op} is torn");
            }
        }
        for (op, first) in firsts {
            let Pending { lba, count, .. } = self.pending[&op];
            for index in 0..count {
                let (_, sequence, _) = survived[(lba + index) as usize];
                assert!(sequence >= first + index, "operation {op} is torn at block {}", lba + index);
            }
        }
        // Whatever was on its way may be among the older versions now.
        let pending: u64 = self.pending.drain().map(|(_, pending)| pending.count).sum();
        for (lba, sequence, content) in survived {
            self.highest = self.highest.max(sequence);
            let answered = &mut self.answered[lba as usize];
            answered.split_off(&(newest + 1));
            answered.insert(sequence, content);
        }
        self.retained.weights.split_off(&(newest + 1));
        *self.retained.weights.entry(self.highest).or_default() += pending;
        self.claims.clear();
        self.durable = self.durable.max(newest);
    }

    /// The log was repaired with consent to loss: nothing has to be there.
    pub fn forget_claims(&mut self) {
        self.claims.clear();
        self.claimed = 0;
    }

    /// Checks one block after the disk lied: the answer may be an error, but not what was never there, nor anything older
    /// than what the disk itself still tells of.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn after_lie(&mut self, lba: u64, extents: &[Extent]) {
        let blocks: Vec<_> = extents.iter().flat_map(|extent| flatten(extent, self.block_size)).collect();
        let [(at, sequence, content)] = blocks[..] else { panic!("one block was asked for") };
        assert_eq!(at, lba);
        let least = self.answered[lba as usize].range(..=self.claimed).next_back().map_or(0, |(&sequence, _)| sequence);
        assert!(
            sequence >= least,
            "block {lba} has version {sequence} in silence, but {least} was flushed and told of"
        );
        self.check_known(lba, sequence, content);
    }

    /// The highest sequence seen so far; a new one must be larger.
    pub fn highest(&self) -> u64 {
        self.highest
    }
}

/// Address, sequence and content of every block of an extent.
fn flatten(extent: &Extent, block_size: BlockSize) -> Vec<(u64, u64, Content)> {
    match extent {
        Extent::Blocks { lba, data, sequences, records } => {
            assert_eq!(data.len(), sequences.len() * block_size.len());
            assert!(records.is_empty() || records.len() == sequences.len());
            let blocks = data.chunks_exact(block_size.len()).zip(sequences).enumerate();
            blocks
                .map(|(at, (bytes, sequence))| {
                    let lba = lba.0 + at as u64;
                    if let Some(record) = records.get(at) {
                        assert_eq!(record.checksum(), keyless_checksum(bytes), "the record is of another block");
                    }
                    (lba, sequence.0, content_of(bytes, lba))
                })
                .collect()
        }
        Extent::Hole { lba, count, sequence, hole } => {
            if let Some(hole) = hole {
                assert!(hole.covers(*lba) && hole.covers(Lba(lba.0 + count - 1)));
            }
            (lba.0..lba.0 + count).map(|lba| (lba, sequence.0, Content::Hole)).collect()
        }
    }
}

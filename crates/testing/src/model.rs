//! The reference model: what every block may hold, after any history of writes, flushes, rollbacks and crashes.
//!
//! The store promises a prefix: the state after a crash is that after some write (in the order of store sequences), not
//! older than the last flush, on all branches at once. So the model needs one number for what is durable.

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
    /// Neither: a sealed volume that was not formatted there.
    Nothing,
}

/// One block as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBlock {
    /// Which.
    pub lba: u64,
    /// Its version; 0 for what was never written.
    pub sequence: u64,
    /// What it holds.
    pub content: Content,
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

/// The stamp that operation `op` gives to the block at `index` in it.
pub(crate) fn stamp(op: u64, index: u64) -> Stamp {
    Stamp { attach_id: ATTACH, counter: (op << 20) + index }
}

/// A seal record for a block (or, with no bytes, a hole), with a stamp of its own.
pub fn record_for(op: u64, index: u64, bytes: Option<&[u8]>) -> SealRecord {
    let stamp = stamp(op, index);
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

/// Every block of a read, checked against its record.
///
/// # Panics
/// If a record is of another block, or nobody wrote the data.
pub fn held(extents: &[Extent], block_size: BlockSize) -> Vec<ReadBlock> {
    extents.iter().flat_map(|extent| flatten(extent, block_size)).collect()
}

fn flatten(extent: &Extent, block_size: BlockSize) -> Vec<ReadBlock> {
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
                    ReadBlock { lba, sequence: sequence.0, content: content_of(bytes, lba) }
                })
                .collect()
        }
        Extent::Hole { lba, count, sequence, hole } => {
            if let Some(hole) = hole {
                assert!(hole.covers(*lba) && hole.covers(Lba(lba.0 + count - 1)));
            }
            let hole = |lba| ReadBlock { lba, sequence: sequence.0, content: Content::Hole };
            (lba.0..lba.0 + count).map(hole).collect()
        }
    }
}

/// An operation that was submitted and not answered.
#[derive(Clone)]
struct Pending {
    branch: u32,
    /// First block and count; a hole request may have several.
    ranges: Vec<(u64, u64)>,
    /// What was durable when it was submitted: what its unit will tell of.
    durable: u64,
    /// Something else was under way at its blocks.
    contended: bool,
    /// Its condition cannot be met: it is never written.
    impossible: bool,
}

impl Pending {
    fn covers(&self, branch: u32, lba: u64) -> bool {
        self.branch == branch && self.ranges.iter().any(|&(start, count)| lba >= start && lba - start < count)
    }

    fn meets(&self, branch: u32, ranges: &[(u64, u64)]) -> bool {
        let meet = |&(start, count): &(u64, u64)| {
            self.ranges.iter().any(|&(other, blocks)| start < other + blocks && other < start + count)
        };
        self.branch == branch && ranges.iter().any(meet)
    }

    fn weight(&self) -> u64 {
        self.ranges.iter().map(|(_, count)| count).sum()
    }
}

/// Of each block of a branch: sequence to content, of everything answered (or seen) that could still count.
type Head = Vec<BTreeMap<u64, Content>>;

/// The model. Branch 0 is the volume.
#[derive(Clone)]
pub struct Model {
    block_size: BlockSize,
    /// Holes of a plain volume that touch become one, with the sequence of the newest.
    is_plain: bool,
    heads: BTreeMap<u32, Head>,
    /// Every version that was ever answered or seen, by sequence and block.
    ever: HashMap<(u64, u64), Content>,
    pending: HashMap<u64, Pending>,
    /// The first block of every operation.
    starts: HashMap<u64, u64>,
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

/// What is known of older versions, on branch 0.
#[derive(Clone, Default)]
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
        let head = (0..blocks).map(|_| BTreeMap::from([(hole, Content::Hole)])).collect();
        Model {
            block_size,
            is_plain: false,
            heads: BTreeMap::from([(0, head)]),
            ever: HashMap::new(),
            pending: HashMap::new(),
            starts: HashMap::new(),
            durable: hole,
            highest: hole,
            claims: BTreeMap::new(),
            claimed: 0,
            retained: Retained::default(),
        }
    }

    /// Whether it is of a plain volume.
    pub fn of_plain(self, is_plain: bool) -> Model {
        Model { is_plain, ..self }
    }

    /// Older versions are kept, this many of them.
    pub fn retains(&mut self, budget: u64) {
        self.retained.budget = budget;
    }

    /// Whether any older version must be there.
    pub fn demands_versions(&self) -> bool {
        self.retained.budget > 0
    }

    /// The bytes of operation `op` on a range.
    pub fn bytes(&self, op: u64, lba: u64, count: u64) -> Vec<u8> {
        (lba..lba + count).flat_map(|lba| block_bytes(op, lba, self.block_size)).collect()
    }

    /// The volume has this many blocks now; the new ones hold `content`.
    pub fn grow(&mut self, blocks: u64, content: Content) {
        for head in self.heads.values_mut() {
            head.resize_with(blocks as usize, || BTreeMap::from([(0, content)]));
        }
    }

    /// A branch holds this now, and everything that came before is durable: a clone was made, or rolled back.
    pub fn branch_holds(&mut self, branch: u32, holds: &[ReadBlock]) {
        let head = holds.iter().map(|held| BTreeMap::from([(held.sequence, held.content)])).collect();
        self.heads.insert(branch, head);
        self.flushed(self.highest);
    }

    /// A branch is gone, and everything that came before is durable.
    pub fn branch_gone(&mut self, branch: u32) {
        self.heads.remove(&branch);
        self.flushed(self.highest);
    }

    /// All branches.
    pub fn branches(&self) -> Vec<u32> {
        self.heads.keys().copied().collect()
    }

    /// A write of one range, or a hole of some, was submitted.
    pub fn submitted(&mut self, op: u64, branch: u32, ranges: &[(u64, u64)]) {
        let mut contended = false;
        for other in self.pending.values_mut().filter(|other| other.meets(branch, ranges)) {
            (other.contended, contended) = (true, true);
        }
        let pending = Pending { branch, ranges: ranges.to_vec(), durable: self.durable, contended, impossible: false };
        self.pending.insert(op, pending);
        self.starts.insert(op, ranges[0].0);
    }

    /// A write was submitted whose condition nothing can meet.
    pub fn cannot_be(&mut self, op: u64) {
        self.pending.get_mut(&op).expect("submitted before").impossible = true;
    }

    /// Whether something else was under way where this one is.
    pub fn is_contended(&self, op: u64) -> bool {
        self.pending[&op].contended
    }

    /// What blocks hold, of what was answered.
    pub fn contents(&self, branch: u32, lba: u64, count: u64) -> Vec<Content> {
        let blocks = self.heads[&branch][lba as usize..(lba + count) as usize].iter();
        blocks.map(|block| *block.values().next_back().expect("never empty")).collect()
    }

    /// What a block held before that, or what it holds if it never held anything else.
    pub fn content_before(&self, branch: u32, lba: u64) -> Content {
        let mut newest = self.heads[&branch][lba as usize].values().rev();
        let now = *newest.next().expect("never empty");
        newest.next().copied().unwrap_or(now)
    }

    /// The stamp under which a block was written; `None` for a hole.
    pub fn stamp(&self, content: Content, lba: u64) -> Option<Stamp> {
        match content {
            Content::Data(op) => Some(stamp(op, lba - self.starts[&op])),
            Content::Hole | Content::Nothing => None,
        }
    }

    /// What reads of a plain unit find.
    pub fn bytes_of(&self, contents: &[Content], lba: u64) -> Vec<u8> {
        let bytes = contents.iter().zip(lba..).flat_map(|(content, lba)| match *content {
            Content::Data(op) => block_bytes(op, lba, self.block_size),
            Content::Hole | Content::Nothing => vec![0; self.block_size.len()],
        });
        bytes.collect()
    }

    /// A write failed; it must not have happened, nor may it ever.
    pub fn failed(&mut self, op: u64) {
        self.pending.remove(&op);
    }

    /// A write was answered with its first sequence.
    pub fn written(&mut self, op: u64, first: u64, fua: bool) {
        let Pending { branch, ranges, durable, .. } = self.pending.remove(&op).expect("submitted before");
        let [(lba, count)] = ranges[..] else { panic!("a write has one range") };
        for index in 0..count {
            self.note(branch, lba + index, first + index, Content::Data(op));
            self.retained.weights.insert(first + index, 1);
        }
        self.claims.insert(first, durable);
        if fua {
            self.flushed(first + count - 1);
        }
    }

    /// Holes that were submitted were answered with the first one's sequence (0: there was nothing to do).
    pub fn holed(&mut self, op: u64, first: u64) {
        let Pending { branch, ranges, durable, .. } = self.pending.remove(&op).expect("submitted before");
        if first > 0 {
            for (sequence, (lba, count)) in (first..).zip(ranges) {
                self.hole(branch, lba, count, sequence);
            }
            self.claims.insert(first, durable);
        }
    }

    /// A range became a hole.
    pub fn hole(&mut self, branch: u32, lba: u64, count: u64, sequence: u64) {
        self.retained.weights.insert(sequence, count);
        for lba in lba..lba + count {
            self.note(branch, lba, sequence, Content::Hole);
        }
    }

    fn note(&mut self, branch: u32, lba: u64, sequence: u64, content: Content) {
        self.highest = self.highest.max(sequence);
        let head = self.heads.get_mut(&branch).expect("written to, so it is there");
        head[lba as usize].insert(sequence, content);
        let old = self.ever.insert((sequence, lba), content);
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
        let (&sequence, content) = self.heads[&0][lba as usize].range(..older_than).next_back()?;
        let released = self.retained.verified.get(&lba).is_some_and(|&verified| sequence < verified);
        let Content::Data(_) = content else { return None };
        let later: u64 = self.retained.weights.range(sequence + 1..).map(|(_, weight)| weight).sum();
        let pending: u64 = self.pending.values().map(Pending::weight).sum();
        (!released && later + pending < self.retained.budget).then_some(sequence)
    }

    /// The newest answered sequence of each block of a range: what a read submitted now must at least see.
    pub fn floor(&self, branch: u32, lba: u64, count: u64) -> Vec<u64> {
        let blocks = self.heads[&branch][lba as usize..(lba + count) as usize].iter();
        blocks.map(|block| *block.keys().next_back().expect("never empty")).collect()
    }

    /// Checks the answer to a read of `lba` on; `floor` is what [`Model::floor`] said when it was submitted.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check_read(&mut self, branch: u32, lba: u64, floor: &[u64], extents: &[Extent]) {
        let blocks = held(extents, self.block_size);
        assert_eq!(blocks.len(), floor.len(), "the read covers what was asked");
        for (index, (held, floor)) in blocks.into_iter().zip(floor).enumerate() {
            let ReadBlock { lba: at, sequence, .. } = held;
            assert_eq!(at, lba + index as u64, "extents are in order");
            assert!(
                sequence >= *floor,
                "block {at} of branch {branch}: version {sequence} is older than {floor}, answered"
            );
            self.known(branch, held).unwrap_or_else(|wrong| panic!("{wrong}"));
        }
    }

    /// Somebody wrote that there, or may have.
    fn known(&self, branch: u32, ReadBlock { lba, sequence, content }: ReadBlock) -> Result<(), String> {
        if let Some(known) = self.heads[&branch][lba as usize].get(&sequence) {
            return match *known == content {
                true => Ok(()),
                false => Err(format!("block {lba}, version {sequence}: {content:?} instead of {known:?}")),
            };
        }
        let possible = match content {
            Content::Data(op) => {
                self.pending.get(&op).is_some_and(|pending| pending.covers(branch, lba) && !pending.impossible)
            }
            Content::Hole => {
                // A later discard beside it may have been written over this hole, but never over data.
                let is_widened = || {
                    let before = self.heads[&branch][lba as usize].range(..sequence).next_back();
                    self.is_plain && before.is_some_and(|(_, content)| *content == Content::Hole)
                };
                self.pending.values().any(|pending| pending.covers(branch, lba)) || is_widened()
            }
            Content::Nothing => false,
        };
        match possible {
            true => Ok(()),
            false => Err(format!("block {lba} of branch {branch} holds {content:?}, version {sequence}, of nobody")),
        }
    }

    /// Checks an older version (older than zero: the newest of all); returns its sequence.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check_version(&mut self, lba: u64, older_than: u64, extent: &Extent) -> u64 {
        let blocks = flatten(extent, self.block_size);
        let [ReadBlock { lba: at, sequence, content }] = blocks[..] else { panic!("one block was asked for") };
        assert_eq!(at, lba, "the answer is of the block that was asked for");
        if older_than == 0 {
            self.known(0, blocks[0]).unwrap_or_else(|wrong| panic!("{wrong}"));
        } else {
            assert!(sequence < older_than, "block {lba}: version {sequence} is not older than {older_than}");
        }
        if let Content::Data(op) = content {
            assert!(op > 0, "written by somebody");
        }
        if let Some(known) = self.ever.get(&(sequence, lba)) {
            assert_eq!(*known, content, "block {lba}, version {sequence}");
        }
        sequence
    }

    /// Checks a snapshot of a whole branch when it is seen for the first time: it holds of each block the newest of some
    /// moment, at least `floor`, and nothing of operations from `before_op` on.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn check_snapshot(&mut self, branch: u32, holds: &[ReadBlock], floor: &[u64], before_op: u64) {
        let head = &self.heads[&branch];
        assert_eq!(holds.len(), head.len(), "the whole volume was read");
        let newest = holds.iter().map(|held| held.sequence).max().unwrap_or(0);
        for &ReadBlock { lba, sequence, content } in holds {
            let least = head[lba as usize].range(..=newest).next_back().map_or(0, |(&sequence, _)| sequence);
            assert!(sequence >= least, "a snapshot has version {sequence} of block {lba}, but not {least}");
            assert!(floor.get(lba as usize).is_none_or(|&floor| sequence >= floor), "block {lba} was written before");
            assert!(!matches!(content, Content::Data(op) if op >= before_op), "block {lba} was written afterwards");
        }
    }

    /// What is wrong with what the branches hold after a crash: anything flushed is lost, a write is there in part, or the
    /// state is not a prefix. `newest`: that sequence survived somewhere else.
    ///
    /// # Errors
    /// What is wrong.
    pub fn judge(&self, survived: &BTreeMap<u32, Vec<ReadBlock>>, newest: u64) -> Result<(), String> {
        if !survived.keys().eq(self.heads.keys()) {
            let there: Vec<_> = survived.keys().collect();
            return Err(format!("there are the branches {there:?} instead of {:?}", self.branches()));
        }
        let newest = self.newest(survived, newest);
        for (&branch, blocks) in survived {
            self.judge_branch(branch, blocks, newest)?;
        }
        Ok(())
    }

    fn newest(&self, survived: &BTreeMap<u32, Vec<ReadBlock>>, elsewhere: u64) -> u64 {
        let sequences = survived.values().flatten().map(|held| held.sequence);
        sequences.max().unwrap_or(0).max(self.durable).max(elsewhere)
    }

    fn judge_branch(&self, branch: u32, survived: &[ReadBlock], newest: u64) -> Result<(), String> {
        let head = &self.heads[&branch];
        if survived.len() != head.len() {
            return Err(format!("branch {branch} has {} blocks instead of {}", survived.len(), head.len()));
        }
        let mut firsts: HashMap<u64, u64> = HashMap::new();
        for &held in survived {
            let ReadBlock { lba, sequence, content } = held;
            let least = head[lba as usize].range(..=newest).next_back().map_or(0, |(&sequence, _)| sequence);
            if sequence < least {
                return Err(format!(
                    "block {lba} of branch {branch} has version {sequence}, but {least} was answered and {} (durable \
                     through {})",
                    if least <= self.durable { "flushed" } else { "followed by something that survived" },
                    self.durable
                ));
            }
            self.known(branch, held)?;
            if let Content::Data(op) = content
                && let Some(pending) = self.pending.get(&op).filter(|pending| pending.branch == branch)
            {
                let first = sequence - (lba - pending.ranges[0].0);
                if *firsts.entry(op).or_insert(first) != first {
                    return Err(format!("operation {op} is torn"));
                }
            }
        }
        for (op, first) in firsts {
            let (lba, count) = self.pending[&op].ranges[0];
            for index in 0..count {
                if survived[(lba + index) as usize].sequence < first + index {
                    return Err(format!("operation {op} is torn at block {}", lba + index));
                }
            }
        }
        Ok(())
    }

    /// Checks every branch after a crash, as [`Model::judge`], and takes over what survived.
    ///
    /// # Panics
    /// If anything is wrong.
    pub fn after_crash(&mut self, survived: &BTreeMap<u32, Vec<ReadBlock>>, newest: u64) {
        self.judge(survived, newest).unwrap_or_else(|wrong| panic!("{wrong}"));
        let newest = self.newest(survived, newest);
        // Everything that was on its way may be among the older versions now.
        let pending: u64 = self.pending.drain().map(|(_, pending)| pending.weight()).sum();
        for (branch, blocks) in survived {
            let head = self.heads.get_mut(branch).expect("just judged");
            for &ReadBlock { lba, sequence, content } in blocks {
                self.highest = self.highest.max(sequence);
                let answered = &mut head[lba as usize];
                answered.split_off(&(newest + 1));
                answered.insert(sequence, content);
                self.ever.insert((sequence, lba), content);
            }
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

    /// Checks one block of the volume after the disk lied: it may be an error, but not what was never there, nor anything
    /// older than what the disk itself still tells of.
    ///
    /// # Panics
    /// If it is wrong.
    pub fn after_lie(&mut self, ReadBlock { lba, sequence, content }: ReadBlock) {
        let least =
            self.heads[&0][lba as usize].range(..=self.claimed).next_back().map_or(0, |(&sequence, _)| sequence);
        assert!(
            sequence >= least,
            "block {lba} has version {sequence} in silence, but {least} was flushed and told of"
        );
        if let Some(known) = self.ever.get(&(sequence, lba)) {
            assert_eq!(*known, content, "block {lba}, version {sequence}");
        } else if let Content::Data(op) = content {
            let pending = self.pending.get(&op);
            assert!(pending.is_some_and(|pending| pending.covers(0, lba)), "block {lba} holds data of nobody: {op}");
        }
    }
}

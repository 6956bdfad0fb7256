//! What can be asked of a store, and what it answers.

use strongroom_block::{AttachId, Buffer, HoleRecord, Lba, SealRecord, Stamp, StoreSequence, Token, VolumeId};

use crate::view::{BranchId, SnapshotId};

/// Names a request of a sealed unit for good, so that the store executes it at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The stamp under which the request's first block (or hole) was sealed first. Block `i` of the request has this counter plus
    /// `i`, even if the request was sealed again since. Its attach id must be registered ([`Op::RegisterAttachment`]).
    pub operation: Stamp,
    /// `Some`: an earlier opening acknowledged the request and may have lost it; this was the sequence of its first block then.
    /// Only blocks (or holes) with nothing as new as that are written, and under their original sequences.
    pub replay: Option<StoreSequence>,
}

/// One request to a [`Store`](crate::Store).
#[derive(Clone, Debug)]
pub enum Op {
    /// The newest version of `count` blocks from `lba`. Answered by [`Outcome::Read`].
    Read {
        /// First block.
        lba: Lba,
        /// How many, at least one and at most [`Op::READ_BLOCKS_MAX`], and together at most
        /// [`Op::READ_BYTES_MAX`] bytes.
        count: u32,
    },
    /// The same from the medium, even if it is cached (the FUA bit of READ, and VERIFY: SBC-3 §5.8, §5.34).
    ReadMedium {
        /// First block.
        lba: Lba,
        /// As in [`Op::Read`].
        count: u32,
    },
    /// As [`Op::Read`], of several ranges: at least one, at most [`Op::RUNS_MAX`], together within its bounds. Answered by
    /// [`Outcome::Read`] with the extents of one range behind those of the other.
    ReadRuns {
        /// First block of each, and how many, at least one.
        runs: Vec<(Lba, u32)>,
    },
    /// The newest kept version of one block that is strictly older than `older_than` (zero: the newest of all).
    /// Answered by [`Outcome::Read`] with one extent of one block, or [`OpError::NoVersion`].
    ReadVersion {
        /// The block.
        lba: Lba,
        /// Only versions with a smaller sequence count; [`StoreSequence`] zero means no bound.
        older_than: StoreSequence,
    },
    /// Stores whole blocks from `lba` on: all of them or, after a crash, none. Answered by [`Outcome::Written`].
    Write {
        /// First block.
        lba: Lba,
        /// The blocks, in pieces cut anywhere (as they arrived); together a whole number of blocks, at most
        /// [`Op::WRITE_BYTES_MAX`]. Not copied.
        data: Vec<Buffer>,
        /// Sealed units: one record per block, in the form for rest. Plain units: empty.
        records: Vec<SealRecord>,
        /// Force unit access: durable before it completes.
        fua: bool,
        /// Sealed units: what the request is known by. `None`: it is executed each time it is submitted.
        origin: Option<Origin>,
    },
    /// Stores one sealed block if the block's newest version still has the stamp `expected`; else
    /// [`OpError::StampDiffers`].
    ConditionalWrite {
        /// The block.
        lba: Lba,
        /// The stamp that must be there; `None`: the block must be a hole.
        expected: Option<Stamp>,
        /// One block, in pieces cut anywhere.
        data: Vec<Buffer>,
        /// Its record.
        record: SealRecord,
        /// Force unit access.
        fua: bool,
        /// As in [`Op::Write`]. A replay is no longer held against `expected`: the condition held when it was executed.
        origin: Option<Origin>,
    },
    /// Plain units: stores `data` if the blocks now hold `compare`; else [`OpError::Miscompare`].
    CompareAndWrite {
        /// First block.
        lba: Lba,
        /// What must be there; as long as `data`.
        compare: Buffer,
        /// Whole blocks.
        data: Buffer,
        /// Force unit access.
        fua: bool,
    },
    /// Sealed units: ranges become holes, all of them at once. Answered by [`Outcome::Written`].
    Hole {
        /// The sealed ranges, in order; a later one wins where they overlap. At most [`Op::HOLES_MAX`].
        holes: Vec<HoleRecord>,
        /// As in [`Op::Write`], with holes for blocks.
        origin: Option<Origin>,
    },
    /// Sealed units: a range that holds no data becomes this hole; else [`OpError::NotAbsent`]. So absence can be
    /// resealed beside other writers. Answered by [`Outcome::Written`].
    ConditionalHole {
        /// The sealed range.
        hole: HoleRecord,
        /// As in [`Op::ConditionalWrite`].
        origin: Option<Origin>,
    },
    /// Sealed units: requests of this attach id may follow. To be sent before the first of them, and never for an attach id
    /// under which a request was sent already: its outcome would be unknown. Answered, when durable, by [`Outcome::Changed`].
    RegisterAttachment {
        /// Drawn at random by the initiator.
        attach_id: AttachId,
    },
    /// Plain units: a range becomes a hole and reads as zeros; its space returns. Answered by [`Outcome::Written`].
    Discard {
        /// First block.
        lba: Lba,
        /// How many.
        count: u64,
    },
    /// Makes durable everything that completed before this was submitted. Answered by [`Outcome::Flushed`].
    Flush,
    /// Feedback: these versions opened for a reader, so strictly older ones may go. Unknown pairs are ignored.
    /// Answered by [`Outcome::Verified`].
    Verified {
        /// Block and the sequence of the version that opened. At most [`Op::VERIFIED_MAX`].
        pairs: Vec<(Lba, StoreSequence)>,
    },
    /// Keeps the addressed branch as it is now, under a name. Takes the same time for a volume of any size. Ordered
    /// like a write: it holds what completed before it was submitted. Answered, when durable, by
    /// [`Outcome::SnapshotCreated`].
    SnapshotCreate {
        /// Unique in the store; 1 to [`Op::NAME_BYTES_MAX`] bytes.
        name: String,
    },
    /// Lets a snapshot go; what only it kept is freed bit by bit afterwards. Answered, when durable, by
    /// [`Outcome::Changed`].
    SnapshotDelete {
        /// Which; no clone may depend on it.
        id: SnapshotId,
    },
    /// The snapshot's branch becomes what the snapshot holds; everything written since, and in no other snapshot, is
    /// gone. Answered, when durable, by [`Outcome::Changed`].
    Rollback {
        /// Which; snapshots taken later stay.
        to: SnapshotId,
    },
    /// A branch of its own that begins as the snapshot and shares its blocks. Answered, when durable, by
    /// [`Outcome::CloneCreated`].
    CloneCreate {
        /// Where it begins.
        from: SnapshotId,
        /// Unique among clones; 1 to [`Op::NAME_BYTES_MAX`] bytes.
        name: String,
        /// Its name among machines. The sealing domain is the volume's: so it opens with the same keys.
        volume_id: VolumeId,
    },
    /// The volume becomes larger, never smaller. New blocks are zeros if it is plain, and not formatted if it is sealed.
    /// Answered, when durable, by [`Outcome::Changed`].
    Grow {
        /// The new number of blocks.
        blocks: u64,
    },
    /// Everything in the store goes, for good: all versions, and what the log still holds of older ones. A plain volume reads as zeros
    /// afterwards, a sealed one is not formatted. To the volume itself, which must have neither snapshots nor clones. What was
    /// taken in before is over first; what comes meanwhile is answered with [`OpError::Erasing`]. Once begun it cannot be
    /// stopped: a crash only puts it off. Answered, when durable, by [`Outcome::Changed`].
    Erase,
    /// As [`Op::Erase`], for sealed units whose block keys are wrapped under a key that the caller can destroy: nothing is overwritten.
    /// When nothing can undo it any more ([`Store::erase_awaits_key`](crate::Store::erase_awaits_key)) the caller destroys that key, and
    /// says so ([`Store::key_destroyed`](crate::Store::key_destroyed)); then everything is forgotten and its space given back.
    /// After a crash in between everything is overwritten, by the next opening.
    CryptoErase,
    /// Lets a clone go. Answered, when durable, by [`Outcome::Changed`].
    CloneDelete {
        /// Which; it may have no snapshots.
        branch: BranchId,
    },
}

impl Op {
    /// Upper bound on the blocks of one read.
    pub const READ_BLOCKS_MAX: u32 = 65536;
    /// Upper bound on the data of one read, in bytes. Larger reads are for the caller to cut.
    pub const READ_BYTES_MAX: usize = 64 << 20;
    /// Upper bound on the ranges of one read.
    pub const RUNS_MAX: usize = 64;
    /// Upper bound on the data of one write, in bytes. Larger writes are for the caller to cut.
    pub const WRITE_BYTES_MAX: usize = 16 << 20;
    /// Upper bound on the ranges of one hole request.
    pub const HOLES_MAX: usize = 4096;
    /// Upper bound on the pairs of one feedback request.
    pub const VERIFIED_MAX: usize = 65536;
    /// Upper bound on the name of a snapshot or clone, in bytes.
    pub const NAME_BYTES_MAX: usize = 128;
    /// Upper bound on the snapshots of a store.
    pub const SNAPSHOTS_MAX: usize = 1024;
    /// Upper bound on the clones of a store.
    pub const CLONES_MAX: usize = 256;
}

/// Some consecutive blocks of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Blocks with data.
    Blocks {
        /// First block.
        lba: Lba,
        /// The blocks' bytes, back to back; already checked against their keyless checksums.
        data: Buffer,
        /// One per block.
        sequences: Vec<StoreSequence>,
        /// Sealed units: one per block. Plain units: empty.
        records: Vec<SealRecord>,
    },
    /// Blocks without data.
    Hole {
        /// First block.
        lba: Lba,
        /// How many blocks of the read.
        count: u64,
        /// The version of the hole.
        sequence: StoreSequence,
        /// Sealed units: the record, whose range covers at least this extent. Plain units: `None`; they are zeros.
        hole: Option<HoleRecord>,
    },
}

/// How a request went well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// In order of address, covering exactly what was asked.
    Read(Vec<Extent>),
    /// Taken in (and durable, with force unit access).
    Written {
        /// The sequence of the first block (or hole); block `i` of the request has this plus `i`. Zero if every block
        /// was a repetition or nothing needed to change.
        first: StoreSequence,
        /// How many blocks were already there under the very same stamp, and not written again.
        repeated: u32,
        /// Of a replay: how many blocks (or holes) were left out, because the blocks hold something as new or newer.
        superseded: u32,
    },
    /// Everything that completed before the flush was submitted is durable.
    Flushed,
    /// The feedback was taken in.
    Verified {
        /// How many older versions it released.
        released: u64,
    },
    /// The snapshot is there, durably.
    SnapshotCreated {
        /// Its identity.
        id: SnapshotId,
    },
    /// The clone is there, durably.
    CloneCreated {
        /// Its branch.
        branch: BranchId,
    },
    /// What was asked for holds, durably.
    Changed,
}

/// How a request failed. The store is usable afterwards; only [`OpError::WritesRefused`] lasts until reopened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Outside the volume.
    #[error("blocks {lba} to {lba}+{count} are outside the volume; check the volume's size")]
    OutOfRange {
        /// First block asked for.
        lba: Lba,
        /// How many.
        count: u64,
    },
    /// The caller broke the contract of [`Op`].
    #[error("not a valid request to the store: {0}")]
    Misuse(&'static str),
    /// The stored bytes do not match their checksum, or cannot be read.
    #[error(
        "medium error at block {lba}: {reason}; run a check of the store and recover the block from a version or backup"
    )]
    Medium {
        /// The first bad block.
        lba: Lba,
        /// What went wrong.
        reason: String,
    },
    /// A block with neither record nor hole: a sealed volume that was never formatted there.
    #[error("block {lba} was never written nor sealed as a hole; format the volume from an initiator first")]
    NotFormatted {
        /// The first such block.
        lba: Lba,
    },
    /// No older version is kept.
    #[error("no version of block {lba} older than that is kept")]
    NoVersion {
        /// The block.
        lba: Lba,
    },
    /// COMPARE AND WRITE found something else.
    #[error("the blocks hold something else, first at byte {offset_bytes}")]
    Miscompare {
        /// Where the first difference is, in bytes from the start of the range.
        offset_bytes: u64,
    },
    /// A conditional write found another stamp.
    #[error("block {lba} was written by somebody else in the meantime; read it again and retry")]
    StampDiffers {
        /// The block.
        lba: Lba,
        /// The stamp that is there; `None`: a hole.
        found: Option<Stamp>,
    },
    /// The request's attach id is not known (any more). It was not executed now; whether it was before is unknown.
    #[error(
        "attach id {attach_id:?} is not registered; register a new one, and seal requests that were never sent under it"
    )]
    UnknownAttachment {
        /// The attach id of the request.
        attach_id: AttachId,
    },
    /// Some counters of the operation were completed and others were not: two requests have counters in common.
    #[error("the operation has counters in common with another one; number requests without overlaps")]
    OperationOverlaps {
        /// The operation.
        operation: Stamp,
    },
    /// A replay that cannot be put where it was. Nothing was executed.
    #[error("a lost write cannot be replayed: {0}")]
    ReplayRefused(&'static str),
    /// A replay one of whose blocks is lost: what is there now is newer, but was made from what was there before, on a condition. The
    /// other blocks were written, and it is not noted as executed: sent again it gets the same answer.
    #[error(
        "a crash took a write of block {lba}, and before it was replayed somebody wrote that block from what was there before; the write is lost"
    )]
    ReplayLost {
        /// The first such block.
        lba: Lba,
    },
    /// A range that should be absent holds data, or may.
    #[error("there is data in the range from block {lba} on; look again, and take smaller ranges")]
    NotAbsent {
        /// Its first block.
        lba: Lba,
    },
    /// A write to a snapshot.
    #[error("a snapshot cannot be written to; write to the volume, or to a clone of the snapshot")]
    ReadOnly,
    /// No such snapshot or branch.
    #[error("there is no such snapshot or clone (any more); list them and choose another")]
    NoSuchView,
    /// A snapshot or clone of that name exists.
    #[error("'{0}' exists already; choose another name")]
    NameTaken(String),
    /// Something depends on it.
    #[error("{0}")]
    Depended(&'static str),
    /// A limit of the store is reached.
    #[error("{0}")]
    TooMany(&'static str),
    /// Everything is being erased.
    #[error("the volume is being erased; wait until that is done")]
    Erasing,
    /// No space on the host. Nothing was changed; later requests work once there is space.
    #[error("no space left for the store; free some on its file system, then retry")]
    NoSpace,
    /// A sync or write failed before: nothing more is taken in until the store is reopened. Reads go on.
    #[error(
        "the store refuses writes because an earlier write or sync failed: {reason}; check the medium, then restart to reopen the volume"
    )]
    WritesRefused {
        /// What failed.
        reason: String,
    },
    /// Too many requests are queued; retry when some have completed.
    #[error("the store's queue is full; retry later")]
    Busy,
}

/// A finished request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's token.
    pub token: Token,
    /// How it went.
    pub result: Result<Outcome, OpError>,
}

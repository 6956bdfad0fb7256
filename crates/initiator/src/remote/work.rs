//! The values that go between the caller's side and the engine: requests ready to run, and what becomes of them.

use std::sync::mpsc::SyncSender;

use strongroom_block::{Buffer, BufferMut, DeviceError, HoleRecord, Lba, SealRecord, StoreSequence, Token};
use strongroom_scsi::provisioning::LbaStatus;

use super::sealing::Records;

/// A request, checked and (where it writes blocks) sealed.
#[derive(Debug)]
pub(super) struct NewOp {
    pub(super) reply: Reply,
    /// What it counts against the limit of bytes.
    pub(super) cost_bytes: usize,
    pub(super) work: Work,
}

/// Who waits for a request.
#[derive(Debug)]
pub(super) enum Reply {
    /// The device's consumer.
    Token(Token),
    /// A caller that blocks for an answer of its own.
    Caller(SyncSender<Result<Answer, DeviceError>>),
    /// The engine itself.
    Nobody,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Work {
    Read {
        lba: Lba,
        buffer: BufferMut,
    },
    Write {
        lba: Lba,
        data: Buffer,
        records: Option<Records>,
        fua: bool,
    },
    WritePart {
        lba: Lba,
        offset_bytes: u32,
        data: Buffer,
        fua: bool,
    },
    Flush,
    /// Discard on a sealed unit.
    Hole(HoleRecord),
    /// Discard on a plain unit.
    Discard {
        lba: Lba,
        count: u64,
    },
    /// How many blocks from `lba` on are proved absent (sealed units).
    ProbeHole {
        lba: Lba,
        count: u32,
    },
    /// What the target says of `lba` and what follows: a hint.
    LbaStatus {
        lba: Lba,
    },
    /// The newest version older than that (0: the newest).
    ReadVersion {
        lba: Lba,
        older_than: StoreSequence,
    },
    /// One sealed block, if the newest version still has that stamp.
    ConditionalWrite {
        lba: Lba,
        expected: [u8; 24],
        data: Buffer,
        records: Records,
    },
    /// Versions that opened.
    Verified {
        pairs: Vec<(Lba, StoreSequence)>,
    },
}

/// How a request ended.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Read(BufferMut),
    /// Blocks proved absent from the start of those that were asked for.
    HoleBlocks {
        absent: u64,
        asked: u32,
    },
    LbaStatus(Option<LbaStatus>),
    /// `None`: no such version.
    Version(Option<Version>),
}

/// One stored version, not opened.
#[derive(Clone, Debug)]
pub(super) enum Version {
    Block { sequence: StoreSequence, record: SealRecord, data: Buffer },
    Hole { sequence: StoreSequence, hole: HoleRecord },
}

/// A request that has ended: the caller's side tells whoever waits and gives its limits back.
#[derive(Debug)]
pub(super) struct FinishedOp {
    pub(super) reply: Reply,
    pub(super) cost_bytes: usize,
    pub(super) result: Result<Answer, DeviceError>,
    /// Of a read that failed: where it began, and its buffer.
    pub(super) failed_read: Option<(Lba, BufferMut)>,
}

//! The values that go between the caller's side and the engine: requests ready to run, and what becomes of them.

use std::sync::mpsc::SyncSender;

use strongroom_block::{
    AttachId, Buffer, BufferMut, DeviceError, Geometry, HoleRecord, Lba, SealRecord, StoreSequence, Token,
};
use strongroom_scsi::provisioning::LbaStatus;

use crate::pipeline::ahead::FetchId;
use crate::pipeline::losses::LostRequest;
use crate::pipeline::sealing::Records;

/// A request, checked and (where it writes blocks) sealed.
#[derive(Debug)]
pub(crate) struct NewOp {
    pub(crate) reply: Reply,
    /// What it counts against the limit of bytes.
    pub(crate) cost_bytes: usize,
    pub(crate) work: Work,
}

/// Who waits for a request.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The device's consumer.
    Token(Token),
    /// A caller that blocks for an answer of its own.
    Caller(SyncSender<Result<Answer, DeviceError>>),
    /// What is fetched ahead of sequential reads.
    Ahead(FetchId),
    /// The engine itself.
    Nobody,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Work {
    Read {
        lba: Lba,
        buffer: BufferMut,
    },
    /// What the target is to send, and nobody looks at.
    Fetch {
        lba: Lba,
        count: u32,
    },
    /// On a sealed unit without records it is plain, and sealed just before it is sent.
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
    /// How large the unit is now.
    Capacity,
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
    /// What blocks and absences are in a range of one transfer, and their data, opened.
    Survey {
        lba: Lba,
        count: u32,
        buffer: BufferMut,
    },
    /// As `ConditionalWrite`, but not made durable by itself; that somebody else wrote is an answer.
    ResealBlock {
        lba: Lba,
        expected: [u8; 24],
        data: Buffer,
        records: Records,
    },
    /// An absence, if there is no data; not kept to be sent again.
    ResealHole(HoleRecord),
    /// The target forgets everything: there are no keys of epochs before this one any more.
    CryptoErase {
        epoch: u32,
        blocks: u64,
    },
    /// Versions that opened.
    Verified {
        pairs: Vec<(Lba, StoreSequence)>,
    },
    /// The unit takes the place of the one whose successor it was made to be.
    TakePlace,
    /// The unit is to know an attach id before operations under it are sent.
    Register {
        attach_id: AttachId,
    },
}

impl Work {
    /// Whether it is cut into commands at the transfer limit.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self, Work::Read { .. } | Work::Fetch { .. } | Work::Write { .. } | Work::Discard { .. })
    }

    /// Whether the volume, or what the target keeps of it, is another after it, or is to last by it.
    pub(crate) fn changes(&self) -> bool {
        let maintains = matches!(
            self,
            Work::ResealBlock { .. }
                | Work::ResealHole(_)
                | Work::Flush
                | Work::Verified { .. }
                | Work::TakePlace
                | Work::Register { .. }
        );
        maintains || self.writes()
    }

    /// Whether blocks are others after it.
    pub(crate) fn writes(&self) -> bool {
        match self {
            Work::Write { .. }
            | Work::WritePart { .. }
            | Work::Hole(_)
            | Work::Discard { .. }
            | Work::CryptoErase { .. }
            | Work::ConditionalWrite { .. } => true,
            // What is sealed anew stays what it was.
            Work::ResealBlock { .. } | Work::ResealHole(_) => false,
            Work::Read { .. }
            | Work::Fetch { .. }
            | Work::Flush
            | Work::ProbeHole { .. }
            | Work::LbaStatus { .. }
            | Work::Capacity
            | Work::ReadVersion { .. }
            | Work::Survey { .. }
            | Work::Verified { .. }
            | Work::TakePlace
            | Work::Register { .. } => false,
        }
    }
}

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Read(BufferMut),
    /// Blocks proved absent from the start of those that were asked for.
    HoleBlocks {
        absent: u64,
        asked: u32,
        oldest_epoch: Option<u32>,
    },
    Survey(Survey),
    /// Whether it was still as expected.
    Resealed(bool),
    LbaStatus(Option<LbaStatus>),
    /// `None`: nothing that a disk can be.
    Capacity(Option<Geometry>),
    /// `None`: no such version.
    Version(Option<Version>),
}

/// One stored version, not opened.
#[derive(Clone, Debug)]
pub(crate) enum Version {
    Block { sequence: StoreSequence, record: SealRecord, data: Buffer },
    Hole { sequence: StoreSequence, hole: HoleRecord },
}

/// What a survey found.
#[derive(Debug)]
pub(crate) struct Survey {
    /// Of every block; zeros where one is absent.
    pub(crate) data: BufferMut,
    pub(crate) blocks: Vec<SurveyedBlock>,
    pub(crate) holes: Vec<SurveyedHole>,
}

#[derive(Debug)]
pub(crate) struct SurveyedBlock {
    pub(crate) lba: Lba,
    pub(crate) epoch: u32,
    pub(crate) stamp: [u8; 24],
}

#[derive(Debug)]
pub(crate) struct SurveyedHole {
    pub(crate) lba: Lba,
    pub(crate) count: u64,
    pub(crate) epoch: u32,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) enum FailedRequest {
    /// Where it began, and its buffer.
    Read(Lba, BufferMut),
    /// A write or a flush.
    Lost(LostRequest),
}

/// A request that has ended: the caller's side tells whoever waits and gives its limits back.
#[derive(Debug)]
pub(crate) struct FinishedOp {
    pub(crate) reply: Reply,
    pub(crate) cost_bytes: usize,
    pub(crate) result: Result<Answer, DeviceError>,
    /// What it was, if it failed and that matters to anybody.
    pub(crate) failed: Option<FailedRequest>,
}

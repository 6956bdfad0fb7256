//! What requests are answered with.

use strongroom_block::{Buffer, BufferMut, Geometry, HoleRecord, Lba, SealRecord, StoreSequence};
use strongroom_scsi::provisioning::LbaStatus;

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    Read(BufferMut),
    /// How many of the blocks that were asked for are proved absent, counted from the first.
    HoleBlocks {
        absent: u64,
        asked: u32,
        oldest_epoch: Option<u32>,
    },
    Survey(SurveyResult),
    /// Whether it was still as expected.
    Resealed(bool),
    LbaStatus(Option<LbaStatus>),
    /// `None`: no capacity that a disk can have.
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
pub(crate) struct SurveyResult {
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

//! What recovery yields: the parts of which an open store is made.

use crate::head::Head;
use crate::map::BlockMap;
use crate::operations::Operations;
use crate::segments::Segments;
use crate::superblock::Superblock;

/// What recovery found: everything that a store in memory is made of.
pub(crate) struct Recovered {
    pub(crate) superblock: Superblock,
    pub(crate) superblock_copy: usize,
    pub(crate) map: BlockMap,
    pub(crate) segments: Segments,
    pub(crate) operations: Operations,
    pub(crate) head: Head,
    pub(crate) checkpoint: CheckpointExtent,
    /// What an opening writes in the place of segment tables that were damaged, before anything else.
    pub(crate) fillers: Vec<Filler>,
    /// What is not as it was written, and costs nothing.
    pub(crate) notes: Vec<String>,
}

/// The checkpoint from which recovery began; empty if there was none.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointExtent {
    pub(crate) segments: Vec<u32>,
    /// About what the next one takes.
    pub(crate) bytes: u64,
    /// Bytes of the log that recovery read behind its beginning.
    pub(crate) replayed: u64,
}

/// A filler: where in the log it goes, and its bytes.
pub(crate) struct Filler {
    pub(crate) offset: u64,
    pub(crate) bytes: strongroom_block::BufferMut,
}

impl Filler {
    /// Behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

//! The parts of a store that other parts borrow together.

use super::io::IoQueue;
use super::refusal::WriteRefusal;
use super::volume::Volume;
use crate::map::BlockMap;
use crate::segments::Segments;

/// The log's medium: what it takes to append to the log.
pub(super) struct LogMedium {
    pub(super) segments: Segments,
    pub(super) io: IoQueue,
    pub(super) volume: Volume,
    /// Whether it may still be written.
    pub(super) refusal: WriteRefusal,
}

/// What it takes to read the log.
pub(super) struct ReadAccess<'a> {
    pub(super) map: &'a BlockMap,
    pub(super) medium: &'a mut LogMedium,
}

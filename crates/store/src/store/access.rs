//! The parts of a store that other parts borrow together.

use super::io::IoQueue;
use super::volume::Volume;
use crate::map::BlockMap;
use crate::segments::Segments;

/// What it takes to read the log.
pub(super) struct ReadAccess<'a> {
    pub(super) map: &'a BlockMap,
    pub(super) segments: &'a mut Segments,
    pub(super) io: &'a mut IoQueue,
    pub(super) volume: &'a Volume,
}

/// What it takes to append to the log.
pub(super) struct LogAccess<'a> {
    pub(super) segments: &'a mut Segments,
    pub(super) io: &'a mut IoQueue,
    pub(super) volume: &'a Volume,
}

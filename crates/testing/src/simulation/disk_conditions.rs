//! What may go wrong on the disk of a run, so that the store may answer with errors.

use crate::Faults;

/// What the disk may do.
#[derive(Default)]
pub(super) struct DiskConditions {
    /// Syncs may fail.
    pub(super) failing_syncs: bool,
    /// Reads may fail.
    pub(super) failing_reads: bool,
    /// The disk may be full.
    pub(super) fills_up: bool,
    /// The faults of a disk on which nothing goes wrong.
    pub(super) harmless: Faults,
    /// The disk lies, or will be damaged: what a branch held before may be back.
    pub(super) lies: bool,
    /// Whether the power may go in the middle of a change of views.
    pub(super) cuts: bool,
}

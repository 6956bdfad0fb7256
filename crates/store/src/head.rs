//! The end of the log.

/// Where the log ends, and the numbers it hands out.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// [`NO_SEGMENT`](crate::unit::NO_SEGMENT) until the first unit of an opening.
    pub(crate) segment: u32,
    /// Where the next unit goes, in 4 KiB blocks.
    pub(crate) block: u32,
    /// Which segment was the head before, and where it ended.
    pub(crate) prev_segment: u32,
    pub(crate) prev_end: u32,
    pub(crate) next_lsn: u64,
    /// The last unit written (of this opening; 0: none).
    pub(crate) last_lsn: u64,
    /// Last unit of the last whole group.
    pub(crate) completed_lsn: u64,
    /// The same, as of the start of the last sync that went well.
    pub(crate) durable_lsn: u64,
    pub(crate) next_sequence: u64,
    pub(crate) next_generation: u64,
    pub(crate) open_id: u64,
    pub(crate) open_epoch: u64,
}

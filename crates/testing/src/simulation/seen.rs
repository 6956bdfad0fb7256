//! What runs came across: a simulation that never cleans proves nothing about cleaning.

use strongroom_store::Stats;

/// Counts of what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Openings of the store.
    pub reopenings: u64,
    /// Openings that a crash cut short.
    pub cut_offs_while_opening: u64,
    /// Data written by requests, in bytes.
    pub written_bytes: u64,
    /// Copied by cleaning, in bytes.
    pub cleaned_bytes: u64,
    /// Blocks of data that reads found in memory.
    pub data_cache_hits: u64,
    /// Units that went to the log beside others.
    pub units_alongside: u64,
    /// Written as tables and notes, in bytes.
    pub table_bytes: u64,
    /// Older versions that the budget cost.
    pub versions_evicted: u64,
    /// Older versions that feedback let go.
    pub versions_released: u64,
    /// Older versions that had to be there, and were.
    pub versions_demanded: u64,
    /// Snapshots taken.
    pub snapshots: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Openings that began at one.
    pub from_checkpoints: u64,
    /// Requests refused after a failed sync.
    pub refusals: u64,
    /// Requests that found no space.
    pub full: u64,
    /// Reads that failed.
    pub failed_reads: u64,
    /// Runs in which a write went astray.
    pub strays: u64,
    /// Stores that were rightly not opened.
    pub refused_to_open: u64,
    /// Blocks that were rightly answered with an error.
    pub bad_blocks: u64,
    /// Stores that had to be rebuilt.
    pub repairs: u64,
    /// Blocks of which repair found nothing.
    pub not_formatted: u64,
    /// Offline checks.
    pub checks: u64,
    /// I/Os of the disk.
    pub ios: u64,
}

impl Seen {
    /// Takes over what a store counted.
    pub(super) fn add(&mut self, stats: Stats) {
        self.written_bytes += stats.written_bytes;
        self.cleaned_bytes += stats.cleaned_bytes;
        self.data_cache_hits += stats.data_cache_hits;
        self.units_alongside += stats.units_alongside;
        self.table_bytes += stats.table_bytes;
        self.versions_evicted += stats.versions_evicted;
        self.versions_released += stats.versions_released;
        self.checkpoints += stats.checkpoints;
        self.from_checkpoints += u64::from(stats.opened_from_checkpoint);
    }

    /// Adds another run's.
    pub fn merge(&mut self, other: Seen) {
        let Seen {
            reopenings,
            cut_offs_while_opening,
            written_bytes,
            cleaned_bytes,
            data_cache_hits,
            units_alongside,
            table_bytes,
            versions_evicted,
            versions_released,
            versions_demanded,
            snapshots,
            checkpoints,
            from_checkpoints,
            refusals,
            full,
            failed_reads,
            strays,
            refused_to_open,
            bad_blocks,
            repairs,
            not_formatted,
            checks,
            ios,
        } = other;
        self.reopenings += reopenings;
        self.cut_offs_while_opening += cut_offs_while_opening;
        self.written_bytes += written_bytes;
        self.cleaned_bytes += cleaned_bytes;
        self.data_cache_hits += data_cache_hits;
        self.units_alongside += units_alongside;
        self.table_bytes += table_bytes;
        self.versions_evicted += versions_evicted;
        self.versions_released += versions_released;
        self.versions_demanded += versions_demanded;
        self.snapshots += snapshots;
        self.checkpoints += checkpoints;
        self.from_checkpoints += from_checkpoints;
        self.refusals += refusals;
        self.full += full;
        self.failed_reads += failed_reads;
        self.strays += strays;
        self.refused_to_open += refused_to_open;
        self.bad_blocks += bad_blocks;
        self.repairs += repairs;
        self.not_formatted += not_formatted;
        self.checks += checks;
        self.ios += ios;
    }
}

//! What runs came across: a simulation that never cleans proves nothing about cleaning.

use strongroom_store::Stats;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of what happened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Seen {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Seen {
            /// Adds another run's.
            pub fn merge(&mut self, other: Seen) {
                $(self.$name += other.$name;)*
            }

            /// What never happened.
            pub fn never(&self) -> Vec<&'static str> {
                [$((stringify!($name), self.$name)),*].into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
            }
        }
    };
}

counters! {
    /// Openings of the store.
    reopenings,
    /// Openings that a crash cut short.
    cut_offs_while_opening,
    /// Data written by requests, in bytes.
    written_bytes,
    /// Copied by cleaning, in bytes.
    cleaned_bytes,
    /// Units that went to the log beside others.
    units_alongside,
    /// Blocks that reads found in the data cache.
    data_cache_hits,
    /// Written as tables and notes, in bytes.
    table_bytes,
    /// Older versions that the budget cost.
    versions_evicted,
    /// How many times older versions made way for a write.
    versions_made_way,
    /// Older versions that feedback let go.
    versions_released,
    /// Older versions that had to be there, and were.
    versions_demanded,
    /// Writes whose condition held.
    conditions_met,
    /// Writes whose condition did not.
    conditions_failed,
    /// Snapshots taken.
    snapshots,
    /// Snapshots deleted.
    snapshots_deleted,
    /// Rollbacks.
    rollbacks,
    /// Clones made.
    clones,
    /// Clones deleted.
    clones_deleted,
    /// Changes of views that a crash met, and that had happened.
    changes_survived,
    /// Changes of views that a crash met, and that had not.
    changes_lost,
    /// Growths answered.
    grown,
    /// Erases.
    erases,
    /// Erases that went on at an opening.
    erases_resumed,
    /// Requests refused because of an erase.
    refused_while_erasing,
    /// Snapshots that arrived at the other store in full.
    sent_in_full,
    /// Snapshots that arrived as a difference.
    sent_as_difference,
    /// Streams that went on where an earlier one stopped.
    sent_resumed,
    /// Crashes of the other store.
    replica_crashes,
    /// Streams that lost a frame, or in which a bit flipped, and that were refused.
    streams_refused,
    /// Checkpoints written.
    checkpoints,
    /// Openings that began at one.
    from_checkpoints,
    /// Scrubbed, in bytes.
    scrubbed_bytes,
    /// Requests refused after a failed sync.
    refusals,
    /// Requests refused because too many were queued.
    busy,
    /// Requests that found no space.
    full,
    /// Reads that failed.
    failed_reads,
    /// Runs in which a write went astray.
    strays,
    /// Stores that were rightly not opened.
    refused_to_open,
    /// Blocks that were rightly answered with an error.
    bad_blocks,
    /// Stores that had to be rebuilt.
    repairs,
    /// Blocks of which nothing was ever written or found.
    not_formatted,
    /// Offline checks.
    checks,
    /// Segment tables that were damaged after a crash.
    damaged_tables,
    /// Superblock copies that were.
    damaged_superblocks,
    /// I/Os of the disk.
    ios,
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
        self.versions_made_way += stats.versions_made_way;
        self.versions_released += stats.versions_released;
        self.checkpoints += stats.checkpoints;
        self.scrubbed_bytes += stats.scrubbed_bytes;
        self.from_checkpoints += u64::from(stats.opened_from_checkpoint);
    }
}

//! What the store reports about itself: counters, sizes, memory.

use super::Store;
use super::memory::{Admission, MemoryUse};
use super::space::log_free_bytes;
use crate::options::{SpaceState, Stats};

/// About what an I/O in flight takes in memory, in bytes.
const IO_BYTES: usize = 64;

impl Store {
    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        let memory = self.memory();
        let (reads, log, counts) = (&self.reader.counters, &self.log.counters, self.counts());
        Stats {
            blocks_mapped: self.views.map.blocks(),
            versions_retained: self.views.map.versions.len(),
            versions_pinned: self.views.map.versions.pinned(),
            versions_evicted: self.views.retention.evicted,
            versions_made_way: self.views.retention.made_way,
            versions_released: self.views.retention.released,
            holes: self.views.map.holes(),
            segments_total: u64::from(counts.total),
            segments_free: u64::from(counts.free),
            live_bytes: counts.live_bytes,
            used_bytes: u64::from(counts.used()) * counts.segment_bytes,
            index_bytes: memory.index_bytes + memory.hole_bytes + memory.version_bytes,
            hole_bytes: memory.hole_bytes,
            memory_bytes: memory.total(),
            record_cache_bytes: self.reader.records.bytes(),
            record_cache_bytes_max: self.reader.records.bytes_max(),
            data_cache_bytes: self.reader.data.bytes(),
            data_cache_bytes_max: self.reader.data.bytes_max(),
            written_bytes: log.written,
            appended_bytes: log.appended,
            units_alongside: log.units_alongside,
            cleaned_bytes: log.compacted,
            cleaning_read_bytes: self.compactor.read_bytes(),
            cleaning_io_errors: self.compactor.io_errors,
            table_bytes: log.tables,
            checkpoints: self.durability.checkpointer.finished,
            checkpoint_bytes: self.durability.checkpointer.written_bytes,
            opened_from_checkpoint: self.opening.from_checkpoint,
            syncs: self.durability.syncs.count,
            record_cache_hits: reads.record_cache_hits,
            record_cache_misses: reads.record_cache_misses,
            data_cache_hits: reads.data_cache_hits,
            data_cache_misses: reads.data_cache_misses,
            medium_errors: reads.medium_errors,
            poll_steps_max: self.poll_steps_max,
            scrubbed_bytes: self.scrub.bytes,
            scrub_passes: self.scrub.passes,
            scrub_bad_blocks: self.scrub.bad_count(),
            space: self.space.state(),
            room_bytes: self.space.room_bytes(&counts),
            log_free_bytes: log_free_bytes(&counts),
            host_free_bytes: self.space.host_free_bytes(),
            space_percent: self.space.percent(&counts, &self.volume),
            erasing: self.erase_progress(),
            writes_refused: self.requests.is_refused(),
        }
    }

    /// How much space there is. Changes when segments are opened and freed, and when writes are refused.
    pub fn space(&self) -> SpaceState {
        self.space.state()
    }

    /// How full the store is of what it can have, in percent; 0 while there is room for all of the volume. The host's file system counts with
    /// what it has left for others too.
    pub fn space_percent(&self) -> u8 {
        self.space.percent(&self.counts(), &self.volume)
    }

    /// What it holds in memory, by kind. Costs as much as [`Store::stats`]: little, but not for every request.
    pub fn memory(&self) -> MemoryUse {
        let other =
            self.views.retention.memory_bytes() + self.reader.read_memory_bytes() + self.io.in_flight() * IO_BYTES;
        MemoryUse {
            index_bytes: self.views.map.index_bytes(),
            hole_bytes: self.views.map.hole_bytes(),
            version_bytes: self.views.map.version_bytes(),
            segment_bytes: self.segments.memory_bytes(),
            cache_bytes: self.reader.cache_memory_bytes(),
            request_bytes: self.requests.bytes_in_flight() as u64,
            cleaning_bytes: self.compactor.memory_bytes(),
            other_bytes: other as u64,
        }
    }

    /// What it holds in memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory().total()
    }

    /// New bounds of the caches of record blocks and of data, in bytes. What is over a smaller bound is dropped at once. Data stays
    /// uncached where the store was opened with buffered I/O, or without a data cache: then the kernel caches it.
    pub fn set_cache_bytes(&mut self, record_bytes: usize, data_bytes: usize) {
        self.reader.set_cache_bytes(record_bytes, data_bytes);
    }

    /// Which requests it accepts from now on.
    pub fn set_admission(&mut self, admission: Admission) {
        self.requests.set_admission(admission);
    }

    /// Which requests it accepts.
    pub fn admission(&self) -> Admission {
        self.requests.admission()
    }
}

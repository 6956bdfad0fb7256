//! What the store reports about itself: counters, sizes, memory.

use super::Store;
use super::memory::MemoryUse;
use super::space::log_free_bytes;
use crate::options::{SpaceState, Stats};

/// About what an I/O in flight takes in memory, in bytes.
const IO_BYTES: usize = 64;

impl Store {
    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        let (engine, memory) = (&self.engine, self.memory());
        let (reads, log, counts) = (&engine.reader.counters, &engine.log.counters, engine.counts());
        Stats {
            blocks_mapped: engine.views.map.blocks(),
            versions_retained: engine.views.map.versions.len(),
            versions_pinned: engine.views.map.versions.pinned(),
            versions_evicted: engine.views.retention.evicted,
            versions_made_way: engine.views.retention.made_way,
            versions_released: engine.views.retention.released,
            holes: engine.views.map.holes(),
            segments_total: u64::from(counts.total),
            segments_free: u64::from(counts.free),
            live_bytes: counts.live_bytes,
            used_bytes: u64::from(counts.used()) * counts.segment_bytes,
            index_bytes: memory.index_bytes + memory.hole_bytes + memory.version_bytes,
            hole_bytes: memory.hole_bytes,
            memory_bytes: memory.total(),
            record_cache_bytes: engine.reader.records.bytes(),
            record_cache_bytes_max: engine.reader.records.bytes_max(),
            data_cache_bytes: engine.reader.data.bytes(),
            data_cache_bytes_max: engine.reader.data.bytes_max(),
            written_bytes: log.written,
            appended_bytes: log.appended,
            units_alongside: log.units_alongside,
            cleaned_bytes: log.compacted,
            cleaning_read_bytes: engine.reclaimer.compactor.read_bytes(),
            cleaning_io_errors: engine.reclaimer.compactor.io_errors,
            table_bytes: log.tables,
            checkpoints: engine.durability.checkpointer.finished,
            checkpoint_bytes: engine.durability.checkpointer.written_bytes,
            opened_from_checkpoint: engine.opening.from_checkpoint,
            syncs: engine.durability.syncs.count,
            record_cache_hits: reads.record_cache_hits,
            record_cache_misses: reads.record_cache_misses,
            data_cache_hits: reads.data_cache_hits,
            data_cache_misses: reads.data_cache_misses,
            medium_errors: reads.medium_errors,
            poll_steps_max: self.poll_steps_max,
            scrubbed_bytes: engine.scrub.bytes,
            scrub_passes: engine.scrub.passes,
            scrub_bad_blocks: engine.scrub.bad_count(),
            space: engine.reclaimer.space.state(),
            room_bytes: engine.reclaimer.space.room_bytes(&counts),
            log_free_bytes: log_free_bytes(&counts),
            host_free_bytes: engine.reclaimer.space.host_free_bytes(),
            space_percent: engine.reclaimer.space.percent(&counts, &engine.medium.volume),
            erasing: self.erase_progress(),
            writes_refused: engine.medium.refusal.is_active(),
        }
    }

    /// How much space there is. Changes when segments are opened and freed, and when writes are refused.
    pub fn space(&self) -> SpaceState {
        self.engine.reclaimer.space.state()
    }

    /// How full the store is of what it can have, in percent; 0 while there is room for all of the volume. The host's file system counts with
    /// what it has left for others too.
    pub fn space_percent(&self) -> u8 {
        self.engine.reclaimer.space.percent(&self.engine.counts(), &self.engine.medium.volume)
    }

    /// What it holds in memory, by kind. Costs as much as [`Store::stats`]: little, but not for every request.
    pub fn memory(&self) -> MemoryUse {
        let engine = &self.engine;
        let other = engine.views.retention.memory_bytes()
            + engine.reader.read_memory_bytes()
            + engine.medium.io.in_flight() * IO_BYTES;
        MemoryUse {
            index_bytes: engine.views.map.index_bytes(),
            hole_bytes: engine.views.map.hole_bytes(),
            version_bytes: engine.views.map.version_bytes(),
            segment_bytes: engine.medium.segments.memory_bytes(),
            cache_bytes: engine.reader.cache_memory_bytes(),
            request_bytes: engine.requests.bytes_in_flight() as u64,
            cleaning_bytes: engine.reclaimer.compactor.memory_bytes(),
            other_bytes: other as u64,
        }
    }
}

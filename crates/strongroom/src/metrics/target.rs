//! The metrics of a target: from its status report and from what its workers measure. Volumes that are open have metrics of their own; sessions
//! and initiators do not, for there can be any number of them.

use std::collections::BTreeMap;

use strongroom_metrics::Exposition;
use strongroom_target::admin::{SessionReport, StatusReport, StoreReport, VolumeReport};
use strongroom_target::{IterationTimes, MemoryReport, MetricsReport, Stats};

use super::{add_crypto, add_latencies, micros};

strongroom_metrics::metrics! { #[cfg(test)] ALL:
    BUILD = gauge "strongroom_target_build_info" ["version"] "Always 1; the program's version is a label.";
    UPTIME = gauge "strongroom_target_uptime_seconds" [] "Time since it began to serve.";
    WORKERS = gauge "strongroom_target_workers" [] "Threads that serve volumes.";
    CONNECTIONS = gauge "strongroom_target_connections" [] "Connections, those that are still logging in included.";
    ACCEPTED = counter "strongroom_target_connections_accepted" [] "Connections taken.";
    REFUSED = counter "strongroom_target_connections_refused" [] "Connections turned away because there was no place for them.";
    EVICTED = counter "strongroom_target_connections_evicted" [] "Connections that had proven nothing and were ended for another one.";
    SETUPS_FAILED = counter "strongroom_target_setups_failed" [] "Connections that ended before a login: failed handshakes, unknown peers, time-outs.";
    LOGINS = counter "strongroom_target_logins" [] "Logins that went through.";
    LOGINS_REFUSED = counter "strongroom_target_logins_refused" [] "Logins that access rules or limits refused.";
    MISBEHAVED = counter "strongroom_target_sessions_misbehaved" [] "Sessions ended because their initiator broke a rule.";
    SESSIONS = gauge "strongroom_target_sessions" ["transport"] "Sessions that are logged in, by what carries them.";
    COMMANDS = counter "strongroom_target_commands" [] "SCSI commands.";
    IN_FLIGHT = gauge "strongroom_target_commands_in_flight" [] "Commands that stores work on.";
    WAITING = gauge "strongroom_target_commands_waiting" [] "Commands that wait for memory.";
    LATENCY = histogram "strongroom_target_command_seconds" ["operation"] "Time from a command's arrival at its unit to the end of its operations.";
    ERRORS = counter "strongroom_target_command_errors" ["kind"] "Commands answered with an error, by SCSI status or sense key.";
    READ = counter "strongroom_target_read_bytes" [] "Bytes that initiators read.";
    WRITTEN = counter "strongroom_target_written_bytes" [] "Bytes that initiators wrote.";
    CRYPTO = counter "strongroom_target_channel_crypto_bytes" ["work"] "Bytes of cryptography for channels.";
    BACKGROUND_CRYPTO = counter "strongroom_target_background_crypto_bytes" ["work"] "Bytes of cryptography for verification, and for volumes that are opened at the target.";
    DATAGRAMS_DROPPED = counter "strongroom_target_datagrams_dropped" [] "Packets at the UDP ports that belong to no association.";
    PACKETS_SENT = counter "strongroom_target_ecl_packets_sent" [] "ECL packets sent.";
    PACKETS_LOST = counter "strongroom_target_ecl_packets_lost" [] "ECL packets sent that counted as lost.";
    BLACK_HOLES = counter "strongroom_target_ecl_black_holes" [] "Times that ECL packets had to become shorter, because longer ones vanished.";
    PACKETS_RECEIVED = counter "strongroom_target_ecl_packets_received" [] "ECL packets received and used.";
    BLOCKS_RECEIVED = counter "strongroom_target_ecl_received_bytes" [] "Bytes of sealed blocks received over ECL.";
    BLOCKS_COPIED = counter "strongroom_target_ecl_copied_bytes" [] "Of those, bytes that were copied after they had been received.";
    ROUND_TRIP = gauge "strongroom_target_ecl_round_trip_seconds" [] "Longest smoothed round trip of an ECL association.";
    WINDOW = gauge "strongroom_target_ecl_window_bytes" [] "Smallest congestion window of an ECL association.";
    MEMORY_BUDGET = gauge "strongroom_target_memory_budget_bytes" [] "Bound on the memory of the process.";
    MEMORY_RESERVE = gauge "strongroom_target_memory_reserve_bytes" [] "Memory that new work leaves to work that was accepted.";
    MEMORY_USED = gauge "strongroom_target_memory_used_bytes" ["class"] "Memory in use, by what holds it.";
    ITERATIONS = histogram "strongroom_target_iteration_cpu_seconds" [] "CPU time of the iterations of the workers' event loops.";
    ITERATION_LONGEST = gauge "strongroom_target_iteration_longest_seconds" [] "CPU time of the longest iteration since the start.";
    POLLS = counter "strongroom_target_busy_polls" ["outcome"] "Looks for work before a sleep, by what came of them.";
    POLL_TIME = counter "strongroom_target_busy_poll_seconds" [] "Time spent looking for work before a sleep.";
    DRAINS = gauge "strongroom_target_drains" [] "Drains in force.";
    SCHEDULE_FAILED = gauge "strongroom_target_snapshot_schedule_failed" ["volume"] "1 if the last run of the volume's schedule of snapshots failed.";
    VOLUMES = gauge "strongroom_target_volumes_open" [] "Volumes that are open.";
    VOLUME_SIZE = gauge "strongroom_target_volume_size_bytes" ["volume"] "Size of the volume.";
    VOLUME_SESSIONS = gauge "strongroom_target_volume_sessions" ["volume"] "Sessions that use the volume.";
    VOLUME_IN_FLIGHT = gauge "strongroom_target_volume_commands_in_flight" ["volume"] "Commands that the volume's store works on.";
    SPACE_USED = gauge "strongroom_target_volume_space_used_ratio" ["volume"] "Share of the store's space that is used, 0 to 1.";
    ROOM = gauge "strongroom_target_volume_room_bytes" ["volume"] "What may still be written to blocks that hold nothing.";
    LOG_FREE = gauge "strongroom_target_volume_log_free_bytes" ["volume"] "What the store's log alone has room for.";
    HOST_FREE = gauge "strongroom_target_volume_host_free_bytes" ["volume"] "What the host's file system has left; absent if the store took its space when it was made.";
    WRITES_REFUSED = gauge "strongroom_target_volume_writes_refused" ["volume"] "1 if the store refuses writes because a write or a sync failed.";
    MAPPED = gauge "strongroom_target_volume_mapped_blocks" ["volume"] "Blocks with data.";
    HOLES = gauge "strongroom_target_volume_hole_extents" ["volume"] "Runs of absent blocks.";
    RETAINED = gauge "strongroom_target_volume_versions_retained" ["volume"] "Older versions of blocks that are kept for recovery.";
    RETENTION = gauge "strongroom_target_volume_versions_retained_limit" ["volume"] "How many older versions are kept at most.";
    PINNED = gauge "strongroom_target_volume_versions_pinned" ["volume"] "Older versions of blocks that snapshots keep.";
    RELEASED = counter "strongroom_target_volume_versions_released" ["volume"] "Older versions let go because a reader verified a newer one.";
    VERSIONS_EVICTED = counter "strongroom_target_volume_versions_evicted" ["volume"] "Older versions let go for want of room.";
    SEGMENTS = gauge "strongroom_target_volume_segments" ["volume"] "Segments of the store's log.";
    SEGMENTS_FREE = gauge "strongroom_target_volume_segments_free" ["volume"] "Segments of the store's log that are free.";
    LIVE = gauge "strongroom_target_volume_live_bytes" ["volume"] "Bytes of blocks and records that are live.";
    USED = gauge "strongroom_target_volume_used_bytes" ["volume"] "Bytes of segments in use.";
    STORE_WRITTEN = counter "strongroom_target_volume_written_bytes" ["volume"] "Bytes of blocks written to the store.";
    APPENDED = counter "strongroom_target_volume_log_appended_bytes" ["volume"] "Bytes appended to the log for writes, records and padding included.";
    CLEANED = counter "strongroom_target_volume_log_cleaned_bytes" ["volume"] "Bytes appended to the log by compaction.";
    TABLES = counter "strongroom_target_volume_log_table_bytes" ["volume"] "Bytes of tables and notes appended to the log.";
    SYNCS = counter "strongroom_target_volume_syncs" ["volume"] "Syncs of the store.";
    INDEX = gauge "strongroom_target_volume_index_bytes" ["volume"] "Memory of the store's index.";
    CACHE = gauge "strongroom_target_volume_cache_bytes" ["volume", "cache"] "Memory of the store's caches.";
    CACHE_LIMIT = gauge "strongroom_target_volume_cache_limit_bytes" ["volume", "cache"] "Bound on the memory of the store's caches.";
    CACHE_LOOKUPS = counter "strongroom_target_volume_cache_lookups" ["volume", "cache", "result"] "Looks into the store's caches.";
    MEDIUM_ERRORS = counter "strongroom_target_volume_medium_errors" ["volume"] "Reads that found a block unreadable or not fitting its checksum.";
    SCRUB_PASSES = counter "strongroom_target_volume_scrub_passes" ["volume"] "How many times scrubbing went through the whole store.";
    SCRUBBED = counter "strongroom_target_volume_scrubbed_bytes" ["volume"] "Bytes read by scrubbing.";
    SCRUB_BAD = gauge "strongroom_target_volume_scrub_bad_blocks" ["volume"] "Blocks that scrubbing found to be bad.";
    VERIFIED = counter "strongroom_target_volume_verified_blocks" ["volume"] "Blocks that background verification opened.";
    UNAUTHENTIC = gauge "strongroom_target_volume_unauthentic_blocks" ["volume"] "Blocks that background verification could not authenticate, the first thousand.";
}

/// The metrics of a target at one moment.
pub(crate) fn exposition(report: &MetricsReport) -> Exposition {
    let mut exposition = Exposition::default();
    let MetricsReport { status, latencies, command_errors, packets } = report;
    let out = &mut exposition;
    add_process(out, status);
    add_counters(out, &status.counters);
    add_sessions(out, &status.sessions);
    add_latencies(out, &LATENCY, latencies);
    for (kind, count) in command_errors {
        out.add(&ERRORS, &[kind], *count);
    }
    out.add(&PACKETS_SENT, &[], packets.sent);
    out.add(&PACKETS_LOST, &[], packets.lost);
    out.add(&BLACK_HOLES, &[], packets.black_holes);
    out.add(&PACKETS_RECEIVED, &[], packets.received);
    out.add(&BLOCKS_RECEIVED, &[], packets.received_bytes);
    out.add(&BLOCKS_COPIED, &[], packets.copied_bytes);
    add_memory(out, &status.memory);
    add_iterations(out, &status.counters.iterations);
    for schedule in &status.schedules {
        out.add(&SCHEDULE_FAILED, &[&schedule.volume], schedule.error.is_some());
    }
    for volume in &status.volumes {
        add_volume(out, volume);
    }
    exposition
}

fn add_process(out: &mut Exposition, status: &StatusReport) {
    out.add(&BUILD, &[&status.version], 1_u64);
    out.add(&UPTIME, &[], status.uptime_s);
    out.add(&WORKERS, &[], status.workers);
    out.add(&DRAINS, &[], status.drains.len());
}

fn add_counters(out: &mut Exposition, counters: &Stats) {
    out.add(&CONNECTIONS, &[], counters.connections);
    out.add(&ACCEPTED, &[], counters.connections_accepted);
    out.add(&REFUSED, &[], counters.connections_refused);
    out.add(&EVICTED, &[], counters.connections_evicted);
    out.add(&SETUPS_FAILED, &[], counters.setups_failed);
    out.add(&LOGINS, &[], counters.logins);
    out.add(&LOGINS_REFUSED, &[], counters.logins_refused);
    out.add(&MISBEHAVED, &[], counters.misbehaved);
    out.add(&COMMANDS, &[], counters.commands);
    out.add(&READ, &[], counters.bytes_read);
    out.add(&WRITTEN, &[], counters.bytes_written);
    add_crypto(out, &CRYPTO, counters.crypto);
    add_crypto(out, &BACKGROUND_CRYPTO, counters.background_crypto);
    out.add(&DATAGRAMS_DROPPED, &[], counters.datagrams_dropped);
    out.add(&VOLUMES, &[], counters.volumes_open);
    let polls = &counters.busy_poll;
    for (outcome, count) in [("hit", polls.hits), ("miss", polls.misses), ("contended", polls.contended)] {
        out.add(&POLLS, &[outcome], count);
    }
    out.add(&POLL_TIME, &[], micros(polls.spent_us));
}

fn add_sessions(out: &mut Exposition, sessions: &[SessionReport]) {
    let mut by_transport = BTreeMap::from([("iscsi", 0_u64), ("ecl", 0)]);
    for session in sessions {
        *by_transport.entry(&session.transport).or_default() += 1;
    }
    for (transport, count) in by_transport {
        out.add(&SESSIONS, &[transport], count);
    }
    out.add(&IN_FLIGHT, &[], sessions.iter().map(|session| session.in_flight).sum::<usize>());
    out.add(&WAITING, &[], sessions.iter().map(|session| session.waiting).sum::<usize>());
    let associations = || sessions.iter().filter_map(|session| session.ecl.as_ref());
    out.add_known(&ROUND_TRIP, &[], associations().filter_map(|ecl| ecl.round_trip_us).max().map(micros));
    out.add_known(&WINDOW, &[], associations().map(|ecl| ecl.window_bytes).min());
}

fn add_memory(out: &mut Exposition, memory: &MemoryReport) {
    out.add(&MEMORY_BUDGET, &[], memory.budget_bytes);
    out.add(&MEMORY_RESERVE, &[], memory.reserve_bytes);
    let classes = [
        ("sessions", memory.sessions_bytes),
        ("commands", memory.commands_bytes),
        ("caches", memory.caches_bytes),
        ("stores", memory.stores_bytes),
    ];
    for (class, bytes) in classes {
        out.add(&MEMORY_USED, &[class], bytes);
    }
}

fn add_iterations(out: &mut Exposition, iterations: &IterationTimes) {
    let buckets = iterations.buckets.iter().map(|bucket| (bucket.up_to_us.map(micros), bucket.count));
    out.add_histogram(&ITERATIONS, &[], buckets, micros(iterations.total_us));
    out.add(&ITERATION_LONGEST, &[], micros(iterations.longest_us));
}

fn add_volume(out: &mut Exposition, volume: &VolumeReport) {
    let (labels, store) = ([volume.name.as_str()], &volume.store);
    out.add(&VOLUME_SIZE, &labels, volume.size_bytes);
    out.add(&VOLUME_SESSIONS, &labels, volume.sessions);
    out.add(&VOLUME_IN_FLIGHT, &labels, volume.in_flight);
    out.add(&RETENTION, &labels, volume.retention_blocks);
    out.add(&RETAINED, &labels, store.versions_retained);
    out.add(&PINNED, &labels, store.versions_pinned);
    out.add(&RELEASED, &labels, store.versions_released);
    out.add(&VERSIONS_EVICTED, &labels, store.versions_evicted);
    if let Some(verification) = &volume.verification {
        out.add(&VERIFIED, &labels, verification.opened);
        out.add(&UNAUTHENTIC, &labels, verification.bad_blocks.len());
    }
    add_store(out, labels, store);
    add_caches(out, &volume.name, store);
}

fn add_store(out: &mut Exposition, labels: [&str; 1], store: &StoreReport) {
    out.add(&SPACE_USED, &labels, f64::from(store.space_percent) / 100.0);
    out.add(&ROOM, &labels, store.room_bytes);
    out.add(&LOG_FREE, &labels, store.log_free_bytes);
    out.add_known(&HOST_FREE, &labels, store.host_free_bytes);
    out.add(&WRITES_REFUSED, &labels, store.writes_refused);
    out.add(&MAPPED, &labels, store.blocks_mapped);
    out.add(&HOLES, &labels, store.holes);
    out.add(&SEGMENTS, &labels, store.segments_total);
    out.add(&SEGMENTS_FREE, &labels, store.segments_free);
    out.add(&LIVE, &labels, store.live_bytes);
    out.add(&USED, &labels, store.used_bytes);
    out.add(&STORE_WRITTEN, &labels, store.written_bytes);
    out.add(&APPENDED, &labels, store.appended_bytes);
    out.add(&CLEANED, &labels, store.cleaned_bytes);
    out.add(&TABLES, &labels, store.table_bytes);
    out.add(&SYNCS, &labels, store.syncs);
    out.add(&INDEX, &labels, store.index_bytes);
    out.add(&MEDIUM_ERRORS, &labels, store.medium_errors);
    out.add(&SCRUB_PASSES, &labels, store.scrub_passes);
    out.add(&SCRUBBED, &labels, store.scrubbed_bytes);
    out.add(&SCRUB_BAD, &labels, store.scrub_bad_blocks);
}

fn add_caches(out: &mut Exposition, volume: &str, store: &StoreReport) {
    let caches = [
        (
            "record",
            store.record_cache_bytes,
            store.record_cache_bytes_max,
            [store.record_cache_hits, store.record_cache_misses],
        ),
        ("data", store.data_cache_bytes, store.data_cache_bytes_max, [store.data_cache_hits, store.data_cache_misses]),
    ];
    for (cache, bytes, limit_bytes, [hits, misses]) in caches {
        out.add(&CACHE, &[volume, cache], bytes);
        out.add(&CACHE_LIMIT, &[volume, cache], limit_bytes);
        out.add(&CACHE_LOOKUPS, &[volume, cache, "hit"], hits);
        out.add(&CACHE_LOOKUPS, &[volume, cache, "miss"], misses);
    }
}

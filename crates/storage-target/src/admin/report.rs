//! What `status` tells: plain data, made by the workers and put together by the admin thread. Numbers, names and limits;
//! never keys or data.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use strongroom_store::SpaceState;

use super::activity::{ActivityReport, LatencyReport};
use crate::budget::MemoryReport;
use crate::schedule::Schedule;
use crate::stats::Stats;

/// A target at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The version of the admin protocol: [`PROTOCOL`](super::PROTOCOL). 0: a target from before it had one.
    #[serde(default)]
    pub protocol: u32,
    /// The program's version.
    pub version: String,
    /// The process.
    pub pid: u32,
    /// Seconds since it started to serve; with it two reports give rates.
    pub uptime_s: f64,
    /// The directory with the volumes.
    pub root: String,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Its threads.
    pub workers: usize,
    /// Channels are offered.
    pub channels: bool,
    /// What is being drained, and where to.
    pub drains: Vec<DrainReport>,
    /// Schedules of snapshots, by volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleReport>,
    /// The memory budget and what is used of it.
    #[serde(default)]
    pub memory: MemoryReport,
    /// Counters since the start.
    pub counters: Stats,
    /// How long operations have taken since the start.
    #[serde(default)]
    pub latencies: Vec<LatencyReport>,
    /// Who is logged in.
    pub sessions: Vec<SessionReport>,
    /// Every volume that is open now.
    pub volumes: Vec<VolumeReport>,
}

/// One drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// The volume; `None` for all.
    pub volume: Option<String>,
    /// Where initiators are sent; `None`: away.
    pub to: Option<String>,
}

/// The schedule of snapshots of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleReport {
    /// The volume.
    pub volume: String,
    /// What it says.
    pub schedule: Schedule,
    /// When it is looked at next, in seconds since 1970.
    pub next_seconds: u64,
    /// When it was looked at last, in seconds since 1970; `None`: not since the target started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seconds: Option<u64>,
    /// What came of that, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_outcome: Option<String>,
    /// Why it failed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One session.
///
/// One field for each key of the JSON of a status report (docs/admin.md), which is flat; hence its number of fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its number, for `session drop`.
    pub id: u64,
    /// Where its oldest connection comes from; without a port while all connections are lost.
    pub address: SocketAddr,
    /// The configuration's name of its node; `None` over plain iSCSI.
    pub peer: Option<String>,
    /// The name it goes by.
    pub initiator: String,
    /// The volume; `None` for discovery.
    pub volume: Option<String>,
    /// May not write.
    pub read_only: bool,
    /// What protects the connection: `S0` (nothing) or the channel's scheme.
    pub scheme: String,
    /// What carries it: `iscsi` or `ecl`.
    #[serde(default = "iscsi")]
    pub transport: String,
    /// How its packets do, over ECL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecl: Option<EclReport>,
    /// Seconds since the login.
    pub age_s: f64,
    /// What the login settled, by the keys' names in RFC 7143.
    pub keys: Vec<(String, String)>,
    /// Its connections.
    #[serde(default)]
    pub connections: Vec<ConnectionReport>,
    /// The worker thread that it is with; a volume's need not be the same.
    #[serde(default)]
    pub worker: usize,
    /// Most commands in flight.
    pub queue_depth: u16,
    /// Commands that the store works on.
    pub in_flight: usize,
    /// Commands that wait for memory.
    pub waiting: usize,
    /// Commands since the login.
    pub commands: u64,
    /// Bytes read since the login.
    pub bytes_read: u64,
    /// Bytes written since the login.
    pub bytes_written: u64,
    /// PDUs rejected since the login.
    pub rejects: u64,
}

fn iscsi() -> String {
    "iscsi".to_owned()
}

/// The packets of an ECL association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EclReport {
    /// Bytes in a quantum: a block of the volume.
    pub quantum_bytes: u32,
    /// Longest packet that the path takes, as far as is known, in bytes.
    pub packet_bytes: usize,
    /// Packets sent since the login.
    pub packets_sent: u64,
    /// Of those, packets that counted as lost.
    pub packets_lost: u64,
    /// How often packets have had to become shorter, because those of one size vanished while shorter ones arrived.
    #[serde(default)]
    pub black_holes: u64,
    /// Quanta that were lost on the way here, and restored by parity.
    #[serde(default)]
    pub quanta_repaired: u64,
    /// Packets received and used.
    pub packets_received: u64,
    /// Bytes of sealed blocks received.
    #[serde(default)]
    pub received_bytes: u64,
    /// Of those, bytes that were copied, because they had arrived in segments or in one piece with their header.
    #[serde(default)]
    pub copied_bytes: u64,
    /// Smoothed round trip, in microseconds, once it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// Congestion window, in bytes; 0 where TCP carries the packets, which has its own.
    pub window_bytes: u32,
    /// How often the target has changed its keys.
    pub rekeys: u64,
    /// How often the initiator has.
    pub peer_rekeys: u64,
}

/// One connection of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionReport {
    /// Its name within the session.
    pub cid: u16,
    /// Where it comes from.
    pub address: SocketAddr,
    /// The cipher of its channel; `None` over plain iSCSI.
    #[serde(default)]
    pub suite: Option<String>,
    /// HeaderDigest: `None` or `CRC32C`.
    pub header_digest: String,
    /// DataDigest: `None` or `CRC32C`.
    pub data_digest: String,
    /// How often the target has changed the keys of the channel that it sends by.
    #[serde(default)]
    pub rekeys: u64,
    /// How often the initiator has.
    #[serde(default)]
    pub peer_rekeys: u64,
}

/// An open volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// `plain`, or `sealed (custody)`.
    pub kind: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// The worker that it belongs to.
    pub worker: usize,
    /// Sessions that use it.
    pub sessions: usize,
    /// Commands that its store works on.
    pub in_flight: usize,
    /// How its store is read and written: `direct-uring`, `direct`, `buffered` or `memory`.
    #[serde(default)]
    pub io: String,
    /// Why not in a better way, if there is one; for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_reason: Option<String>,
    /// How many older versions it keeps at most.
    #[serde(default)]
    pub retention_blocks: u64,
    /// Its store.
    pub store: StoreReport,
    /// Addresses of blocks that scrubbing found to be bad (the first thousand).
    pub bad_blocks: Vec<u64>,
    /// What background verification did since the volume was opened (custody `target`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<VerificationReport>,
    /// Scrubbing, and who holds writer leases.
    #[serde(default)]
    pub activity: ActivityReport,
    /// A snapshot that was received waits for sessions that see the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingReport>,
}

/// Sessions that see an older snapshot than the newest one that was received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingReport {
    /// The snapshot that they see.
    pub shown: String,
    /// Who they are: peer or initiator; for people.
    pub sessions: Vec<String>,
    /// Those whose connection is lost, and how long they have to come back; for people.
    #[serde(default)]
    pub absent: Vec<String>,
}

impl std::fmt::Display for WaitingReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let WaitingReport { shown, sessions, absent } = self;
        let all: Vec<&str> = sessions.iter().chain(absent).map(String::as_str).collect();
        let all = if all.is_empty() { "nobody any more, and is about to be seen".to_owned() } else { all.join(", ") };
        write!(f, "the newest snapshot waits for sessions that see '{shown}' until they detach: {all}")
    }
}

/// Background verification of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerificationReport {
    /// Blocks that opened.
    pub opened: u64,
    /// The next block to look at; those before it are done in this pass.
    #[serde(default)]
    pub next: u64,
    /// All of it is verified, and nothing was written since.
    #[serde(default)]
    pub is_done: bool,
    /// Addresses of blocks that do not open (the first thousand).
    pub bad_blocks: Vec<u64>,
}

/// A store's counters; see `strongroom_store::Stats` for what each means.
///
/// One field for each key of the JSON of a status report (docs/admin.md), which is flat; hence its number of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // As in `strongroom_store::Stats`.
pub struct StoreReport {
    pub space: SpaceReport,
    #[serde(default)]
    pub space_percent: u8,
    #[serde(default)]
    pub room_bytes: u64,
    #[serde(default)]
    pub log_free_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_free_bytes: Option<u64>,
    /// How far an erase is, in 65536ths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erasing: Option<u16>,
    #[serde(default)]
    pub writes_refused: bool,
    pub blocks_mapped: u64,
    pub versions_retained: u64,
    #[serde(default)]
    pub versions_pinned: u64,
    pub versions_evicted: u64,
    #[serde(default)]
    pub versions_released: u64,
    pub holes: u64,
    pub segments_total: u64,
    pub segments_free: u64,
    pub live_bytes: u64,
    pub used_bytes: u64,
    pub index_bytes: u64,
    #[serde(default)]
    pub record_cache_bytes: u64,
    #[serde(default)]
    pub record_cache_bytes_max: u64,
    #[serde(default)]
    pub record_cache_hits: u64,
    #[serde(default)]
    pub record_cache_misses: u64,
    #[serde(default)]
    pub data_cache_bytes: u64,
    #[serde(default)]
    pub data_cache_bytes_max: u64,
    #[serde(default)]
    pub data_cache_hits: u64,
    #[serde(default)]
    pub data_cache_misses: u64,
    pub written_bytes: u64,
    pub appended_bytes: u64,
    pub cleaned_bytes: u64,
    pub table_bytes: u64,
    pub syncs: u64,
    pub medium_errors: u64,
    pub scrub_passes: u64,
    pub scrubbed_bytes: u64,
    pub scrub_bad_blocks: u64,
}

/// How much space a store has left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpaceReport {
    /// Enough.
    #[default]
    Ample,
    /// Soon none.
    NearlyFull,
    /// Writes are refused.
    Full,
}

impl From<SpaceState> for SpaceReport {
    fn from(state: SpaceState) -> SpaceReport {
        match state {
            SpaceState::Ample => SpaceReport::Ample,
            SpaceState::NearlyFull => SpaceReport::NearlyFull,
            SpaceState::Full => SpaceReport::Full,
        }
    }
}

impl std::fmt::Display for SpaceReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SpaceReport::Ample => "ample",
            SpaceReport::NearlyFull => "nearly full",
            SpaceReport::Full => "FULL",
        })
    }
}

impl From<strongroom_store::Stats> for StoreReport {
    fn from(stats: strongroom_store::Stats) -> StoreReport {
        StoreReport {
            space: stats.space.into(),
            space_percent: stats.space_percent,
            room_bytes: stats.room_bytes,
            log_free_bytes: stats.log_free_bytes,
            host_free_bytes: stats.host_free_bytes,
            erasing: stats.erasing,
            writes_refused: stats.writes_refused,
            blocks_mapped: stats.blocks_mapped,
            versions_retained: stats.versions_retained,
            versions_pinned: stats.versions_pinned,
            versions_evicted: stats.versions_evicted,
            versions_released: stats.versions_released,
            holes: stats.holes,
            segments_total: stats.segments_total,
            segments_free: stats.segments_free,
            live_bytes: stats.live_bytes,
            used_bytes: stats.used_bytes,
            index_bytes: stats.index_bytes,
            record_cache_bytes: stats.record_cache_bytes,
            record_cache_bytes_max: stats.record_cache_bytes_max,
            record_cache_hits: stats.record_cache_hits,
            record_cache_misses: stats.record_cache_misses,
            data_cache_bytes: stats.data_cache_bytes,
            data_cache_bytes_max: stats.data_cache_bytes_max,
            data_cache_hits: stats.data_cache_hits,
            data_cache_misses: stats.data_cache_misses,
            written_bytes: stats.written_bytes,
            appended_bytes: stats.appended_bytes,
            cleaned_bytes: stats.cleaned_bytes,
            table_bytes: stats.table_bytes,
            syncs: stats.syncs,
            medium_errors: stats.medium_errors,
            scrub_passes: stats.scrub_passes,
            scrubbed_bytes: stats.scrubbed_bytes,
            scrub_bad_blocks: stats.scrub_bad_blocks,
        }
    }
}

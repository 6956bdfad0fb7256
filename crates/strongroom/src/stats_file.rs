//! Counters in a JSON file that is rewritten periodically: what monitoring reads of a process that serves.
//!
//! Absent: what is counted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use strongroom_block::{CryptoBytes, CryptoCounters};
use strongroom_initiator::{PacketStatus, PipelineStatus, PollCounters, RemoteDevice};

use crate::units::show_size;

/// How often an attachment's counters are written.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Writes counters; a reader never sees half of them.
pub(crate) fn write(path: &Path, counters: &impl Serialize) {
    write_text(path, &serde_json::to_string(counters).expect("numbers are representable"));
}

/// The same, of what is text already.
pub(crate) fn write_text(path: &Path, text: &str) {
    if let Err(error) = replace(path, text) {
        tracing::warn!(%error, path = %path.display(), "cannot write the counters");
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
    // Monitoring may be another user: a mode that somebody gave the file stays.
    if let Ok(old) = fs::symlink_metadata(path)
        && old.is_file()
    {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)
}

/// What an attachment tells of itself.
#[derive(Serialize)]
struct AttachmentStats {
    is_connected: bool,
    sessions: u64,
    connections: usize,
    unflushed_bytes: usize,
    #[serde(flatten)]
    engine: EngineStats,
    /// Blocks of which an older version was read, because the newest does not open.
    previous_reads: u64,
    /// How often this end, and the target, have changed keys on the connections that there are now.
    rekeys: u64,
    peer_rekeys: u64,
    /// How the packets do, over ECL; absent over iSCSI.
    #[serde(skip_serializing_if = "Option::is_none")]
    ecl: Option<EclStats>,
    /// How keys that a server lends stand; absent without such.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Keys>,
    pipeline: PipelineStats,
    busy_poll: BusyPollStats,
    /// Cryptography of this process, for channels and seals together: sent are `encrypted` and `mac_made`.
    crypto: Crypto,
}

/// The packets of the association that there is now, or was last.
#[derive(Serialize)]
struct EclStats {
    quantum_bytes: u32,
    /// Longest packet that the path takes, as far as is known.
    packet_bytes: usize,
    packets_sent: u64,
    packets_lost: u64,
    /// How often packets have had to become shorter, because those of one size vanished while shorter ones arrived.
    black_holes: u64,
    /// Quanta that were lost on the way here, and restored by parity.
    quanta_repaired: u64,
    packets_received: u64,
    /// Of quanta.
    received_bytes: u64,
    /// Of those, bytes that were copied: they had arrived in segments, or in one piece with their header.
    copied_bytes: u64,
    round_trip_us: Option<u64>,
    round_trip_min_us: Option<u64>,
    /// Congestion window.
    window_bytes: u32,
}

impl From<PacketStatus> for EclStats {
    fn from(status: PacketStatus) -> EclStats {
        let micros = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        EclStats {
            quantum_bytes: status.quantum_bytes,
            packet_bytes: status.packet_bytes,
            packets_sent: status.packets_sent,
            packets_lost: status.packets_lost,
            black_holes: status.black_holes,
            quanta_repaired: status.quanta_repaired,
            packets_received: status.packets_received,
            received_bytes: status.received_bytes,
            copied_bytes: status.copied_bytes,
            round_trip_us: micros(status.round_trip),
            round_trip_min_us: micros(status.smallest_round_trip),
            window_bytes: status.window_bytes,
        }
    }
}

/// The same for people.
pub(crate) fn packets_in_words(status: &PacketStatus) -> String {
    let lost = percent(status.packets_lost, status.packets_sent);
    let round_trip = status.round_trip.unwrap_or_default().as_secs_f64() * 1000.0;
    format!(
        "quantum {}, packets up to {} bytes{}, {lost} lost{}, {}, round trip {round_trip:.2} ms, congestion window {}",
        status.quantum_bytes,
        status.packet_bytes,
        reduced_in_words(status.black_holes),
        repaired_in_words(status.quanta_repaired),
        received_in_words(status.received_bytes, status.copied_bytes),
        window_in_words(status.window_bytes)
    )
}

/// How often packets have had to become shorter, if ever.
pub(crate) fn reduced_in_words(times: u64) -> String {
    match times {
        0 => String::new(),
        1 => " (longer ones vanished: reduced once)".to_owned(),
        _ => format!(" (longer ones vanished: reduced {times} times)"),
    }
}

/// What parity has restored, if anything.
pub(crate) fn repaired_in_words(quanta: u64) -> String {
    if quanta == 0 { String::new() } else { format!(" ({quanta} quanta to us restored by parity)") }
}

/// Bytes of blocks received, and the share of them that did not stay where they were received.
pub(crate) fn received_in_words(received_bytes: u64, copied_bytes: u64) -> String {
    format!("{} of blocks received ({} copied)", show_size(received_bytes), percent(copied_bytes, received_bytes))
}

/// A congestion window; of 0 bytes it is TCP's, which carries the packets.
pub(crate) fn window_in_words(bytes: u32) -> String {
    if bytes == 0 { "TCP's".to_owned() } else { show_size(bytes.into()) }
}

/// A share, for people.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    format!("{:.2}%", 100.0 * part as f64 / (whole.max(1)) as f64)
}

/// What busy polling came to.
#[derive(Serialize)]
struct BusyPollStats {
    /// In the device's thread, which has the connections.
    device: PollStats,
    /// Of threads that wait for completions.
    completions: PollStats,
}

/// Looks for work before a thread sleeps.
#[derive(Serialize)]
struct PollStats {
    polls: u64,
    hits: u64,
    misses: u64,
    contended: u64,
    spent_us: u64,
}

impl From<PollCounters> for PollStats {
    fn from(counters: PollCounters) -> PollStats {
        let PollCounters { polls, hits, misses, contended, spent } = counters;
        PollStats { polls, hits, misses, contended, spent_us: u64::try_from(spent.as_micros()).unwrap_or(u64::MAX) }
    }
}

/// Commands, and what became of those that did not succeed at once.
#[derive(Serialize)]
struct EngineStats {
    commands_sent: u64,
    commands_resent: u64,
    blocks_replayed: u64,
    blocks_superseded: u64,
    writes_repeated: u64,
    blocks_failed: u64,
    /// Blocks that did not authenticate and were fetched again, connections that were ended for that, and commands for which it helped.
    blocks_refetched: u64,
    refetch_connections: u64,
    refetches_succeeded: u64,
}

impl From<strongroom_initiator::EngineCounters> for EngineStats {
    fn from(stats: strongroom_initiator::EngineCounters) -> EngineStats {
        EngineStats {
            commands_sent: stats.commands_sent,
            commands_resent: stats.commands_resent,
            blocks_replayed: stats.blocks_replayed,
            blocks_superseded: stats.blocks_superseded,
            writes_repeated: stats.writes_repeated,
            blocks_failed: stats.blocks_failed,
            blocks_refetched: stats.blocks_refetched,
            refetch_connections: stats.refetch_connections,
            refetches_succeeded: stats.refetches_succeeded,
        }
    }
}

/// What the pipeline of the writes is at; what is not known, or not limited, is null.
#[derive(Serialize)]
struct PipelineStats {
    depth: Option<u32>,
    window_bytes: Option<u64>,
    /// Threads that seal; 0: who submits does.
    workers: u32,
    round_trip_s: Option<f64>,
    /// TCP's, now and the smallest.
    path_round_trip_s: Option<f64>,
    path_round_trip_min_s: Option<f64>,
    link_bytes_per_s: Option<f64>,
    seal_bytes_per_s: Option<f64>,
    congestion: Option<String>,
}

impl From<PipelineStatus> for PipelineStats {
    fn from(status: PipelineStatus) -> PipelineStats {
        PipelineStats {
            depth: status.depth,
            window_bytes: status.window_bytes,
            workers: status.workers,
            round_trip_s: status.round_trip.map(|time| time.as_secs_f64()),
            path_round_trip_s: status.path.map(|path| path.now.as_secs_f64()),
            path_round_trip_min_s: status.path.map(|path| path.smallest.as_secs_f64()),
            link_bytes_per_s: status.link_bytes_per_second,
            seal_bytes_per_s: status.seal_bytes_per_second,
            congestion: status.congestion,
        }
    }
}

#[derive(Serialize)]
struct Keys {
    /// The epoch that new writes are sealed under.
    epoch: u32,
    /// All that can be opened; none while there are no keys.
    epochs: Vec<u32>,
    lease_left_s: f64,
    /// Why the key server could last not be asked, or what it refused.
    trouble: Option<String>,
}

#[derive(Serialize)]
struct Crypto {
    encrypted_bytes: u64,
    decrypted_bytes: u64,
    mac_made_bytes: u64,
    mac_checked_bytes: u64,
}

fn stats(device: &RemoteDevice, counters: &CryptoCounters) -> AttachmentStats {
    let status = device.status();
    let CryptoBytes { encrypted, decrypted, mac_made, mac_checked } = counters.snapshot();
    AttachmentStats {
        is_connected: status.is_connected,
        sessions: status.connections,
        connections: status.wires,
        unflushed_bytes: status.unflushed_bytes,
        engine: status.engine.into(),
        previous_reads: device.previous_reads().count,
        rekeys: status.rekeys,
        peer_rekeys: status.peer_rekeys,
        ecl: status.packets.map(EclStats::from),
        keys: device.key_status().map(|keys| Keys {
            epoch: keys.epoch,
            epochs: keys.epochs,
            lease_left_s: keys.lease_left.as_secs_f64(),
            trouble: keys.trouble,
        }),
        pipeline: status.pipeline.into(),
        busy_poll: BusyPollStats { device: status.busy_poll.into(), completions: status.busy_poll_completions.into() },
        crypto: Crypto {
            encrypted_bytes: encrypted,
            decrypted_bytes: decrypted,
            mac_made_bytes: mac_made,
            mac_checked_bytes: mac_checked,
        },
    }
}

/// Writes an attachment's counters every second, and a last time when it is dropped.
pub(crate) struct AttachmentStatsFile {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl AttachmentStatsFile {
    /// Begins.
    pub(crate) fn start(
        path: PathBuf,
        device: &Arc<RemoteDevice>,
        counters: Arc<CryptoCounters>,
    ) -> std::io::Result<AttachmentStatsFile> {
        let (end, ended) = channel::<()>();
        let device = Arc::clone(device);
        let thread = std::thread::Builder::new().name("stats".into()).spawn(move || {
            loop {
                write(&path, &stats(&device, &counters));
                if ended.recv_timeout(WRITE_EVERY) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            write(&path, &stats(&device, &counters));
        })?;
        Ok(AttachmentStatsFile { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for AttachmentStatsFile {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! What a target has done and is doing, for metrics, the demo and people. Counters only; no names of keys, no data.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use strongroom_block::{CryptoBytes, CryptoCounters};
use strongroom_iscsi::target::Statistics;

use crate::iterations::IterationTimes;
use crate::polling::BusyPollReport;
use crate::unit::SessionKey;

/// A moment's picture of a target.
///
/// One field for each counter of the JSON of a status report (docs/admin.md), which is flat; hence its number of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Connections now, those still logging in included.
    pub connections: u64,
    /// Sessions in full-feature phase now.
    pub sessions: u64,
    /// Volumes open now.
    pub volumes_open: u64,
    /// Connections taken since the start.
    pub connections_accepted: u64,
    /// Connections turned away because there was no place for them.
    pub connections_refused: u64,
    /// Connections that had proven nothing and were ended because another one needed their place.
    #[serde(default)]
    pub connections_evicted: u64,
    /// Packets at the UDP ports that belong to no association.
    #[serde(default)]
    pub datagrams_dropped: u64,
    /// Logins that went through since the start.
    pub logins: u64,
    /// Logins that access rules or limits refused.
    pub logins_refused: u64,
    /// Connections that ended before a login: failed handshakes, unknown peers, garbage, time-outs.
    pub setups_failed: u64,
    /// Sessions ended because a peer broke a rule.
    pub misbehaved: u64,
    /// SCSI commands.
    pub commands: u64,
    /// Bytes of block data and parameters read by initiators.
    pub bytes_read: u64,
    /// Bytes of block data and parameters written by initiators.
    pub bytes_written: u64,
    #[serde(with = "CryptoFields")]
    /// Bytes of cryptography that this target did for channels: received are `decrypted` and `mac_checked`, sent the others.
    pub crypto: CryptoBytes,
    #[serde(default, with = "CryptoFields")]
    /// Bytes that it opened to verify volumes of custody `target` in the background, and that it opened and sealed of volumes that are
    /// opened at the target.
    pub background_crypto: CryptoBytes,
    /// CPU time of the iterations of the workers' event loops.
    #[serde(default)]
    pub iterations: IterationTimes,
    /// What busy polling came to in the workers.
    #[serde(default)]
    pub busy_poll: BusyPollReport,
}

/// How [`CryptoBytes`] is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "CryptoBytes")]
struct CryptoFields {
    #[serde(rename = "encrypted_bytes")]
    encrypted: u64,
    #[serde(rename = "decrypted_bytes")]
    decrypted: u64,
    #[serde(rename = "mac_made_bytes")]
    mac_made: u64,
    #[serde(rename = "mac_checked_bytes")]
    mac_checked: u64,
}

/// One session, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionInfo {
    /// Where it comes from.
    pub peer_address: SocketAddr,
    /// The configuration's name of its node; `None` over plain iSCSI.
    pub peer: Option<String>,
    /// The name it goes by.
    pub initiator_name: String,
    /// The volume; `None` for discovery.
    pub volume: Option<String>,
    /// May not write.
    pub read_only: bool,
}

/// Packets of ECL associations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Sent.
    pub sent: u64,
    /// Of those, packets that counted as lost.
    pub lost: u64,
    /// How often an association's packets had to become shorter, because those of one size vanished while shorter ones arrived.
    pub black_holes: u64,
    /// Received and used.
    pub received: u64,
    /// Bytes of sealed blocks received.
    pub received_bytes: u64,
    /// Of those, bytes that were copied.
    pub copied_bytes: u64,
}

/// The counters behind [`PacketCounts`].
#[derive(Debug, Default)]
struct PacketCounters {
    sent: AtomicU64,
    lost: AtomicU64,
    black_holes: AtomicU64,
    received: AtomicU64,
    received_bytes: AtomicU64,
    copied_bytes: AtomicU64,
}

/// The counters behind [`Stats`], shared by all workers.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) volumes_open: AtomicU64,
    pub(crate) connections_accepted: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) connections_evicted: AtomicU64,
    pub(crate) datagrams_dropped: AtomicU64,
    pub(crate) logins: AtomicU64,
    pub(crate) logins_refused: AtomicU64,
    pub(crate) setups_failed: AtomicU64,
    pub(crate) misbehaved: AtomicU64,
    pub(crate) commands: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    packets: PacketCounters,
    sessions: Mutex<BTreeMap<SessionKey, SessionInfo>>,
}

impl Counters {
    /// One more.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what a session did since `before`.
    pub(crate) fn add_session(&self, before: &Statistics, now: &Statistics) {
        let add = |counter: &AtomicU64, before: u64, now: u64| {
            if now > before {
                counter.fetch_add(now - before, Ordering::Relaxed);
            }
        };
        add(&self.commands, before.commands, now.commands);
        add(&self.bytes_read, before.bytes_read, now.bytes_read);
        add(&self.bytes_written, before.bytes_written, now.bytes_written);
    }

    /// Adds the packets that an association had since `before`.
    pub(crate) fn add_packets(&self, before: PacketCounts, now: PacketCounts) {
        let add = |counter: &AtomicU64, before: u64, now: u64| {
            counter.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
        };
        add(&self.packets.sent, before.sent, now.sent);
        add(&self.packets.lost, before.lost, now.lost);
        add(&self.packets.black_holes, before.black_holes, now.black_holes);
        add(&self.packets.received, before.received, now.received);
        add(&self.packets.received_bytes, before.received_bytes, now.received_bytes);
        add(&self.packets.copied_bytes, before.copied_bytes, now.copied_bytes);
    }

    /// Packets of all associations.
    pub(crate) fn packets(&self) -> PacketCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PacketCounts {
            sent: load(&self.packets.sent),
            lost: load(&self.packets.lost),
            black_holes: load(&self.packets.black_holes),
            received: load(&self.packets.received),
            received_bytes: load(&self.packets.received_bytes),
            copied_bytes: load(&self.packets.copied_bytes),
        }
    }

    pub(crate) fn session_begins(&self, key: SessionKey, info: SessionInfo) {
        Counters::count(&self.logins);
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).insert(key, info);
    }

    pub(crate) fn session_ends(&self, key: SessionKey) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    pub(crate) fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// `connections`: how many there are now.
    pub(crate) fn snapshot(
        &self,
        connections: usize,
        crypto: &CryptoCounters,
        background: &CryptoCounters,
        iterations: IterationTimes,
    ) -> Stats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            connections: connections as u64,
            sessions: self.sessions.lock().unwrap_or_else(PoisonError::into_inner).len() as u64,
            volumes_open: load(&self.volumes_open),
            connections_accepted: load(&self.connections_accepted),
            connections_refused: load(&self.connections_refused),
            connections_evicted: load(&self.connections_evicted),
            datagrams_dropped: load(&self.datagrams_dropped),
            logins: load(&self.logins),
            logins_refused: load(&self.logins_refused),
            setups_failed: load(&self.setups_failed),
            misbehaved: load(&self.misbehaved),
            commands: load(&self.commands),
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            crypto: crypto.snapshot(),
            background_crypto: background.snapshot(),
            iterations,
            busy_poll: BusyPollReport::default(),
        }
    }
}

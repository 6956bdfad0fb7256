//! `[limits]` of the configuration: how much initiators can take, and for how long keys serve.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use strongroom_channel::{ChannelLimits, GENERATION_TAGS_CAP};
use strongroom_store::OpenOptions;

use crate::budget::BUDGET_BYTES_MIN;
use crate::error::ConfigError;

/// Bounds on what initiators can take, all together unless said otherwise.
///
/// It mirrors the section `[limits]` of the configuration file, one field for each key; hence its number of fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections, those still logging in included, and sessions that wait for a connection to recover them.
    pub connections_max: usize,
    /// The share of these, in percent, of connections that have proven nothing: those still logging in, discovery sessions, and plain
    /// sessions without CHAP. A quarter of the share stays free of plain sessions. Where there is no place left, connections that are
    /// logging in and discovery sessions are ended first.
    pub unauthenticated_percent: u8,
    /// Connections from one address that have proven nothing (over IPv6: from one /64 network).
    pub connections_per_address_max: usize,
    /// How long a discovery session lasts at most, in seconds.
    pub discovery_timeout_s: u64,
    /// From a connection's first byte to the end of its login, in seconds.
    pub login_timeout_s: u64,
    /// Connections of one session (MaxConnections).
    pub session_connections_max: u16,
    /// How long the tasks of a lost connection are kept for an initiator that recovers it (error recovery level 2), in seconds.
    pub time2retain_s: u16,
    /// Commands in flight per session. Many are needed where the way is long: 64 KiB each fill 1 Gbit/s over a round trip of 128 ms
    /// with 250.
    pub queue_depth: u16,
    /// Write data that one session can pin, in bytes: so much that it was asked for, and so much that it sends unasked.
    pub write_memory_bytes: u64,
    /// Read data that one session can pin, in bytes.
    pub read_memory_bytes: u64,
    /// Memory of the whole process for sessions, commands, caches and indexes, in bytes; default: half of what the machine, or its
    /// control group, has. New work waits or is refused when it is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Checksums and seal records that each open volume may keep in memory, in bytes.
    pub record_cache_bytes: usize,
    /// Data that each open volume may keep in memory, in bytes; 0: none. Where I/O is not direct the kernel caches instead.
    pub data_cache_bytes: usize,
    /// Of the time of a volume that is never idle, how much scrubbing may take, in percent, at most 50; 0: only idle volumes are
    /// scrubbed.
    pub scrub_share: u8,
    /// A connection on which nothing moved for so long is pinged, in seconds; as long again without an answer ends it.
    pub ping_after_s: u64,
    /// A volume that no session uses is closed after this many seconds (and can then be deleted while the target runs).
    pub idle_close_s: u64,
    /// Tags (one for each PDU, or two) after which the target changes the keys of what it sends through a channel; at most 2^23.
    pub rekey_tags: u64,
    /// Bytes after which it does; at most 64 GiB.
    pub rekey_bytes: u64,
    /// How old such keys may become while they are in use, in seconds; 0: as old as the connection.
    pub rekey_after_s: u64,
    /// A transfer from another target (`strongroom volume send --to`) of which no data arrived for so long is ended, in seconds.
    pub transfer_stall_s: u64,
    /// How long a graceful stop waits for initiators to finish, in seconds.
    pub stop_timeout_s: u64,
}

/// Most that `scrub_share` may be, in percent.
const SCRUB_SHARE_MAX: u8 = 50;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 1024,
            unauthenticated_percent: 75,
            connections_per_address_max: 256,
            discovery_timeout_s: 60,
            login_timeout_s: 15,
            session_connections_max: 4,
            time2retain_s: 20,
            queue_depth: 1000,
            write_memory_bytes: 64 << 20,
            read_memory_bytes: 64 << 20,
            memory_bytes: None,
            record_cache_bytes: OpenOptions::RECORD_CACHE_BYTES_DEFAULT,
            data_cache_bytes: OpenOptions::DATA_CACHE_BYTES_DEFAULT,
            scrub_share: 5,
            ping_after_s: 30,
            idle_close_s: 10,
            rekey_tags: ChannelLimits::default().rekey_tags,
            rekey_bytes: ChannelLimits::default().rekey_bytes,
            rekey_after_s: 3600,
            transfer_stall_s: 120,
            stop_timeout_s: 10,
        }
    }
}

impl Limits {
    /// As a duration.
    pub fn login_timeout(&self) -> Duration {
        Duration::from_secs(self.login_timeout_s)
    }

    /// As a duration.
    pub(crate) fn discovery_timeout(&self) -> Duration {
        Duration::from_secs(self.discovery_timeout_s)
    }

    /// As a duration.
    pub(crate) fn transfer_stall(&self) -> Duration {
        Duration::from_secs(self.transfer_stall_s)
    }

    /// When channels change keys.
    pub(crate) fn channel(&self) -> ChannelLimits {
        ChannelLimits { rekey_tags: self.rekey_tags, rekey_bytes: self.rekey_bytes, ..ChannelLimits::default() }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            ("connections_max", self.connections_max as u64),
            ("unauthenticated_percent", self.unauthenticated_percent.into()),
            ("connections_per_address_max", self.connections_per_address_max as u64),
            ("discovery_timeout_s", self.discovery_timeout_s),
            ("login_timeout_s", self.login_timeout_s),
            ("session_connections_max", self.session_connections_max.into()),
            ("queue_depth", self.queue_depth.into()),
            ("ping_after_s", self.ping_after_s),
            ("transfer_stall_s", self.transfer_stall_s),
        ];
        for (field, value) in positive {
            if value == 0 {
                return Err(ConfigError::value(
                    format!("limits.{field}"),
                    "must be at least 1; leave it out for the default",
                ));
            }
        }
        if self.unauthenticated_percent > 100 {
            return Err(ConfigError::value("limits.unauthenticated_percent", "must be 1 to 100"));
        }
        if self.memory_bytes.is_some_and(|bytes| bytes < BUDGET_BYTES_MIN) {
            let problem = format!("must be at least {BUDGET_BYTES_MIN}; leave it out for half of the machine's memory");
            return Err(ConfigError::value("limits.memory_bytes", problem));
        }
        if self.scrub_share > SCRUB_SHARE_MAX {
            let problem = format!("must be 0 to {SCRUB_SHARE_MAX} (percent of time); 0 scrubs only idle volumes");
            return Err(ConfigError::value("limits.scrub_share".to_owned(), problem));
        }
        let at_most = [
            ("rekey_tags", self.rekey_tags, GENERATION_TAGS_CAP / 2),
            ("rekey_bytes", self.rekey_bytes, ChannelLimits::default().rekey_bytes),
        ];
        for (field, value, most) in at_most {
            if value == 0 || value > most {
                let problem = format!("must be 1 to {most}: keys that serve for longer lose their strength");
                return Err(ConfigError::value(format!("limits.{field}"), problem));
            }
        }
        for (field, value) in
            [("write_memory_bytes", self.write_memory_bytes), ("read_memory_bytes", self.read_memory_bytes)]
        {
            if value < u64::from(crate::TRANSFER_BYTES_MAX) {
                let problem = format!("must be at least {} (one largest transfer)", crate::TRANSFER_BYTES_MAX);
                return Err(ConfigError::value(format!("limits.{field}"), problem));
            }
        }
        Ok(())
    }
}

//! Which initiator a process is to be, and how it attaches: what the order `attach` carries (`protocol`).
//!
//! Absent: the initiators themselves (`driver`, `libiscsi`, `nbd`, `stream`).

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::stream::protection::Protection;

/// With which initiator, and how it attaches: what `attach` carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "engine")]
pub enum Engine {
    /// Strongroom's own.
    Strongroom(Box<AttachSettings>),
    /// The stock one, libiscsi: plain iSCSI, any target.
    Libiscsi {
        /// `address:port`.
        portal: String,
        /// The target's iSCSI name.
        target_name: String,
        /// The logical unit.
        lun: u16,
        /// The name to log in by.
        initiator_name: String,
        /// Offer InitialR2T=Yes, for targets that refuse No.
        initial_r2t: bool,
    },
    /// No initiator at all: messages to a receiver.
    Stream {
        /// Where it listens, `address:port`.
        address: String,
        /// What stands between.
        protection: Protection,
    },
    /// An NBD server on a Unix socket, used in blocks of some size.
    Nbd {
        /// The socket.
        socket: PathBuf,
        /// Bytes of a block.
        block_bytes: u64,
    },
}

/// How our own initiator attaches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttachSettings {
    /// The volume.
    pub url: String,
    /// The name to log in by; the usual one if none is given.
    pub initiator_name: Option<String>,
    /// What target names begin with, if not as usual.
    pub base_name: Option<String>,
    /// The protected channel to the target.
    pub channel: ChannelSettings,
    /// How blocks are sealed.
    pub sealing: SealingSettings,
    /// Make the whole volume absent first.
    pub format: bool,
    /// Refuse to write.
    pub read_only: bool,
    /// TCP connections of the session; 0 counts as 1.
    pub connections: u16,
    /// The depth of the pipeline, as on the command line; `auto` if none is given.
    pub pipeline: Option<String>,
    /// Busy polling, as on the command line; as usual if none is given.
    pub busy_poll: Option<String>,
    /// I/Os that are offered at once, where that is more than usual.
    pub in_flight: u32,
    /// Bytes of one command at most, if not as usual.
    pub transfer_bytes_max: Option<u64>,
}

/// Who we are, who the target is, and what the channel between them protects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChannelSettings {
    /// The file with our identity.
    pub identity: Option<PathBuf>,
    /// The target's public lines, any of these.
    pub target_keys: Vec<String>,
    /// What the channel protects, by its scheme's name; as usual if none is given.
    pub scheme: Option<String>,
    /// The channel's cipher suite; as usual if none is given.
    pub suite: Option<String>,
    /// Take suites that are for benchmarks alone.
    pub benchmark_suites: bool,
}

/// The keys and the mode of sealed blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SealingSettings {
    /// The file with the volume's key.
    pub key_file: Option<PathBuf>,
    /// Blocks that share a block key (custody `target`); one for each if none is given.
    pub blocks_per_key: Option<NonZeroU32>,
    /// The volume is sealed in the mode authenticate-only.
    pub authenticate_only: bool,
}

//! How to start a peer.

use std::path::PathBuf;

use super::serve::Backing;
use crate::cpu::Placement;

/// How to start a peer.
#[derive(Clone, Debug)]
pub struct PeerOptions {
    /// Our binary: it has the stock initiators' processes in it.
    pub lab_binary: PathBuf,
    /// What lies beneath the volume.
    pub backing: Backing,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Block sizes of the volumes to serve, one each.
    pub block_sizes: Vec<u64>,
    /// Who runs where.
    pub placement: Placement,
    /// Where to work; must exist. Disk-backed volumes are here.
    pub directory: PathBuf,
    /// A directory in memory.
    pub memory: PathBuf,
}

//! What every peer needs to serve one volume: a place, a file to keep it in, an address, and programs to run.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cpu::Placement;
use crate::engine::Engine;
use crate::namespaces::Namespaces;
use crate::{Background, BenchError};

/// How long a daemon may take to be ready.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(20);
/// What every peer's target is called.
pub(super) const TARGET_NAME: &str = "iqn.2026-11.org.strongroom.bench:disk";
/// Where iSCSI listens in a namespace of its own.
pub(super) const ISCSI_PORT: u16 = 3260;

/// What a peer's volume lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file in memory (tmpfs).
    Memory,
    /// A file on disk, through the page cache as the peers do it.
    Disk,
}

impl Backing {
    /// As in results.
    pub fn name(self) -> &'static str {
        match self {
            Backing::Memory => "memory",
            Backing::Disk => "disk",
        }
    }

    /// A contender's name on this: tables tell contenders apart by their names alone.
    pub fn label(self, contender: &str) -> String {
        match self {
            Backing::Memory => contender.to_owned(),
            Backing::Disk => format!("{contender}, disk"),
        }
    }
}

/// A volume to be served.
pub(super) struct Request<'a> {
    pub(super) backing: Backing,
    pub(super) bytes: u64,
    pub(super) block_bytes: u64,
    /// For sockets, configuration and logs of this volume's daemons alone.
    pub(super) directory: &'a Path,
    /// A directory in memory.
    pub(super) memory: &'a Path,
    pub(super) placement: &'a Placement,
}

impl Request<'_> {
    pub(super) fn target_cpus(&self) -> &[usize] {
        &self.placement.target
    }

    /// For what stands on the initiators' side in front of all of them.
    pub(super) fn initiator_cpus(&self) -> &[usize] {
        &self.placement.initiators
    }

    /// A sparse file of the volume's size, with `more` bytes for what the peer itself keeps in it.
    pub(super) fn volume_file_with(&self, more: u64) -> Result<VolumeFile, BenchError> {
        let name = self.directory.file_name().unwrap_or_default().to_string_lossy();
        let path = match self.backing {
            Backing::Disk => self.directory.join("volume"),
            Backing::Memory => self.memory.join(format!("strongroom-bench-{}-{name}", std::process::id())),
        };
        let made = File::create(&path).and_then(|file| file.set_len(self.bytes + more));
        made.map_err(|error| BenchError::file(&path, error))?;
        Ok(VolumeFile { path })
    }

    /// A sparse file of the volume's size.
    pub(super) fn volume_file(&self) -> Result<VolumeFile, BenchError> {
        self.volume_file_with(0)
    }
}

/// The file behind a volume; gone when dropped.
#[derive(Debug)]
pub(super) struct VolumeFile {
    pub(super) path: PathBuf,
}

impl Drop for VolumeFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A volume that is served. Fields in the order in which they have to go.
#[derive(Debug)]
pub(super) struct Served {
    /// What stands in front of the initiators.
    pub(super) initiator_side: Vec<Background>,
    /// Everything from where the initiators' side ends to the medium, front first.
    pub(super) target: Vec<Background>,
    /// The files that hold the volume.
    pub(super) files: Vec<VolumeFile>,
    /// Where all of it runs, if not in ours.
    pub(super) namespaces: Option<Namespaces>,
    /// What comes before an initiator's command.
    pub(super) prefix: Vec<String>,
    /// `address:port`, for initiators; for NBD the socket's path.
    pub(super) portal: String,
    pub(super) protocol: Protocol,
}

/// What an initiator has to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Iscsi { lun: u16, initial_r2t: bool },
    Nbd { block_bytes: u64 },
}

impl Served {
    /// An iSCSI target in our own namespace; processes and files are added by the caller.
    pub(super) fn iscsi(address: SocketAddr, lun: u16, initial_r2t: bool) -> Served {
        Served {
            initiator_side: Vec::new(),
            target: Vec::new(),
            files: Vec::new(),
            namespaces: None,
            prefix: Vec::new(),
            portal: address.to_string(),
            protocol: Protocol::Iscsi { lun, initial_r2t },
        }
    }

    /// How an initiator of this name attaches.
    pub(super) fn engine(&self, initiator_name: String) -> Engine {
        match self.protocol {
            Protocol::Iscsi { lun, initial_r2t } => Engine::Libiscsi {
                portal: self.portal.clone(),
                target_name: TARGET_NAME.to_owned(),
                lun,
                initiator_name,
                initial_r2t,
            },
            Protocol::Nbd { block_bytes } => Engine::Nbd { socket: PathBuf::from(&self.portal), block_bytes },
        }
    }
}

/// An address of this machine that nobody listens at. Somebody else could take it before we do; the peer then says so.
pub(super) fn free_address() -> Result<SocketAddr, BenchError> {
    let listener =
        TcpListener::bind("127.0.0.1:0").map_err(|error| BenchError::system("cannot find a free port", error))?;
    listener.local_addr().map_err(|error| BenchError::system("cannot find a free port", error))
}

//! What else offers a volume at an NBD socket, for programs that use ours there: nbdkit with a disk in its own memory, which has no network, no
//! store and no protection behind it, and qemu-nbd with LUKS on an iSCSI target, which encrypts and authenticates nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fio::{FioJob, FioLength, FioVolume};
use crate::peers::{Peer, PeerKind, PeerOptions};
use crate::programs::{is_installed, program};
use crate::schedule::Watch;
use crate::{Background, BenchError, Contender, Pattern};

use super::served::{FILL_BYTES, FILL_DEPTH};

/// How long one may take to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// What qemu-nbd is called in results.
pub(crate) const QEMU_LUKS: &str = "qemu-nbd with LUKS, over tgt";

/// One that serves. Fields in the order in which they have to go.
#[derive(Debug)]
pub struct Rival {
    processes: Processes,
    socket: PathBuf,
    directory: PathBuf,
    bytes: u64,
}

#[derive(Debug)]
enum Processes {
    NbdKit(Background),
    Qemu(Box<Peer>),
}

/// Whether they can be started here.
///
/// # Errors
/// [`BenchError::Asked`], with what is missing and how to get it.
pub(super) fn check() -> Result<(), BenchError> {
    if !is_installed("nbdkit") {
        let problem = "there is no nbdkit; install it with scripts/deps.sh (Debian: nbdkit)";
        return Err(BenchError::Asked(problem.into()));
    }
    PeerKind::QemuLuks.check()
}

impl Rival {
    /// Starts both, with volumes that are written once.
    ///
    /// # Errors
    /// If one does not start, with what it said; [`BenchError::Stopped`].
    pub fn start_all(options: &PeerOptions, watch: &dyn Watch) -> Result<Vec<Rival>, BenchError> {
        let rivals = vec![Rival::nbdkit(options)?, Rival::qemu_luks(options)?];
        rivals.iter().try_for_each(|rival| rival.fill(watch))?;
        Ok(rivals)
    }

    fn nbdkit(options: &PeerOptions) -> Result<Rival, BenchError> {
        let directory = options.directory.join("nbdkit");
        fs::create_dir_all(&directory).map_err(|error| BenchError::file(&directory, error))?;
        let socket = directory.join("socket");
        let mut command = program("nbdkit", &[]);
        command.args(["--foreground", "--unix"]).arg(&socket).args(["memory", &options.volume_bytes.to_string()]);
        let mut process = Background::start("nbdkit", command, &options.placement.initiators, &directory)?;
        process.wait_until(READY_TIMEOUT, |_| socket.exists().then_some(()))?;
        let processes = Processes::NbdKit(process);
        Ok(Rival { processes, socket, directory, bytes: options.volume_bytes })
    }

    fn qemu_luks(options: &PeerOptions) -> Result<Rival, BenchError> {
        let peer = Peer::start(&PeerKind::QemuLuks, options)?;
        let socket = peer.nbd_socket().expect("qemu-nbd listens at a socket").to_owned();
        let (directory, bytes) = (options.directory.clone(), options.volume_bytes);
        Ok(Rival { processes: Processes::Qemu(Box::new(peer)), socket, directory, bytes })
    }

    fn fill(&self, watch: &dyn Watch) -> Result<(), BenchError> {
        let job = FioJob {
            volume: self.volume(),
            volume_bytes: self.bytes,
            pattern: Pattern::SeqWrite,
            size: FILL_BYTES,
            depth: FILL_DEPTH,
            is_direct: true,
            length: FioLength::WholeFile,
            seed: 0,
        };
        job.start(&[], &self.directory)?.finish(watch).map(drop)
    }

    /// What results call it, and what protects its blocks: scheme and suite.
    pub(super) fn names(&self) -> (&'static str, &'static str, &'static str) {
        match self.processes {
            Processes::NbdKit(_) => ("nbdkit, in its own memory", "plain", "none"),
            Processes::Qemu(_) => (QEMU_LUKS, "LUKS", "aes-256-xts"),
        }
    }

    /// The volume, for fio.
    pub(super) fn volume(&self) -> FioVolume {
        FioVolume::Nbd { socket: self.socket.clone() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// For logs.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The processes of the target, and those in front of the program.
    pub(super) fn pids(&self) -> (Vec<u32>, Vec<u32>) {
        match &self.processes {
            Processes::NbdKit(process) => (Vec::new(), process.pids()),
            Processes::Qemu(peer) => (peer.target_pids(), peer.initiator_side_pids()),
        }
    }
}

//! Other people's targets and stacks as contenders: started here, driven by a stock initiator, stopped when dropped.
//!
//! ```text
//! tgt, istgt            targets of the distribution, plain iSCSI
//! stunnel, wireguard    the same tgt behind what people put around iSCSI today: TLS 1.3, and a VPN in user space
//! qemu                  the same tgt beneath QEMU's LUKS driver: sealed at the initiator, authenticated nowhere
//! custom                any other target, by a command line
//! ```
//!
//! All take part as processes; nothing of theirs is in this build. Absent: what is measured (`rawio`).

mod custom;
mod istgt;
mod options;
mod qemu;
mod serve;
mod stock;
mod stunnel;
mod tgt;
mod wireguard;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

pub use custom::CustomPeer;
pub use options::PeerOptions;
pub use serve::Backing;

use strongroom_initiator::DEFAULT_BASE_IQN;

use self::serve::{Protocol, Request, Served, free_address};
use self::stock::StockInitiators;
use crate::engine::Engine;
use crate::programs::is_installed;
use crate::{BenchError, Contender, Identity, InitiatorProcess, Ours, TargetWork, libiscsi};

/// What results call them, where a report asks for them.
pub(crate) const TGT_TUNED: &str = "tgt tuned";
pub(crate) const STUNNEL: &str = "stunnel + tgt";
pub(crate) const QEMU_LUKS: &str = "QEMU LUKS + tgt";
/// Our plain volume, used by the stock initiator.
pub const OURS_PLAIN: &str = "Strongroom plain";
/// The same, of a target that polls.
pub const OURS_POLLING: &str = "Strongroom polling";
/// Our sealed volume, used by our own initiator.
pub const OURS_SEALED: &str = "Strongroom sealed";

/// A target, or a stack with a target at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// tgt as it comes.
    TgtDefault,
    /// tgt that takes 256 KiB in one PDU.
    TgtTuned,
    /// istgt.
    Istgt,
    /// stunnel in front of the tuned tgt.
    Stunnel,
    /// wireguard-go in front of the tuned tgt.
    WireGuard,
    /// QEMU's block layer over the tuned tgt, without encryption: what QEMU itself costs.
    QemuRaw,
    /// QEMU's LUKS driver over the tuned tgt.
    QemuLuks,
    /// Any other.
    Custom(CustomPeer),
}

impl PeerKind {
    /// Those that need no command line.
    pub const KNOWN: [PeerKind; 7] = [
        PeerKind::TgtDefault,
        PeerKind::TgtTuned,
        PeerKind::Istgt,
        PeerKind::Stunnel,
        PeerKind::WireGuard,
        PeerKind::QemuRaw,
        PeerKind::QemuLuks,
    ];

    /// As on the command line.
    pub fn word(&self) -> &str {
        match self {
            PeerKind::TgtDefault => "tgt-default",
            PeerKind::TgtTuned => "tgt",
            PeerKind::Istgt => "istgt",
            PeerKind::Stunnel => "stunnel",
            PeerKind::WireGuard => "wireguard",
            PeerKind::QemuRaw => "qemu-raw",
            PeerKind::QemuLuks => "qemu-luks",
            PeerKind::Custom(peer) => &peer.name,
        }
    }

    /// By its word.
    ///
    /// # Errors
    /// [`BenchError::Asked`], with all there are.
    pub fn of_word(word: &str) -> Result<PeerKind, BenchError> {
        PeerKind::KNOWN.into_iter().find(|kind| kind.word() == word).ok_or_else(|| {
            let words: Vec<String> = PeerKind::KNOWN.iter().map(|kind| kind.word().to_owned()).collect();
            let words = words.join(", ");
            BenchError::Asked(format!("'{word}' is no peer; choose from {words}, or give --peer NAME=COMMAND"))
        })
    }

    /// As tables name it, and what protects it.
    fn names(&self) -> (String, &'static str) {
        let (name, scheme) = match self {
            PeerKind::TgtDefault => ("tgt default", "S0"),
            PeerKind::TgtTuned => (TGT_TUNED, "S0"),
            PeerKind::Istgt => ("istgt", "S0"),
            PeerKind::Stunnel => (STUNNEL, "TLS"),
            PeerKind::WireGuard => ("WireGuard + tgt", "VPN"),
            PeerKind::QemuRaw => ("QEMU raw + tgt", "S0"),
            PeerKind::QemuLuks => (QEMU_LUKS, "LUKS"),
            PeerKind::Custom(peer) => return (peer.name.clone(), "S0"),
        };
        (name.to_owned(), scheme)
    }

    /// The suite that the ends agree on, where something encrypts.
    fn suite(&self) -> Option<&'static str> {
        match self {
            PeerKind::Stunnel => Some("aes-256-gcm"),
            PeerKind::WireGuard => Some("chacha20-poly1305"),
            PeerKind::QemuLuks => Some("aes-256-xts"),
            _ => None,
        }
    }

    /// Programs that it takes, with the Debian packages that have them.
    fn programs(&self) -> Vec<(String, &'static str)> {
        let tgt = [("tgtd", "tgt"), ("tgtadm", "tgt")];
        let more: &[(&str, &str)] = match self {
            PeerKind::TgtDefault | PeerKind::TgtTuned => &[],
            PeerKind::Istgt => return vec![("istgt".into(), "istgt")],
            PeerKind::Stunnel => &[("stunnel", "stunnel4"), ("openssl", "openssl")],
            PeerKind::WireGuard => &[("wg", "wireguard-tools"), ("ip", "iproute2")],
            PeerKind::QemuRaw | PeerKind::QemuLuks => &[("qemu-nbd", "qemu-utils"), ("qemu-img", "qemu-utils")],
            PeerKind::Custom(_) => return Vec::new(),
        };
        let mut all: Vec<_> = tgt.iter().chain(more).map(|(name, package)| ((*name).to_owned(), *package)).collect();
        if *self == PeerKind::WireGuard {
            all.push((wireguard::program_name(), "wireguard-go"));
        }
        all
    }

    /// Whether it can be started here.
    ///
    /// # Errors
    /// [`BenchError::Asked`], with what is missing and how to get it.
    pub fn check(&self) -> Result<(), BenchError> {
        let name = self.names().0;
        let uses_libiscsi = !matches!(self, PeerKind::QemuRaw | PeerKind::QemuLuks);
        if uses_libiscsi && let Err(missing) = libiscsi::available() {
            return Err(BenchError::Asked(format!("{name}: {missing}")));
        }
        for (program, package) in self.programs() {
            if !is_installed(&program) {
                return Err(BenchError::Asked(format!(
                    "{name}: there is no {program}; install the peers with scripts/deps.sh --bench (Debian: {package})"
                )));
            }
        }
        if *self == PeerKind::WireGuard {
            wireguard::check()?;
        }
        Ok(())
    }

    /// Adds the versions of what takes part.
    pub fn add_programs(&self, machine: &mut crate::Machine) {
        for (program, _) in self.programs() {
            match program.as_str() {
                "tgtd" | "qemu-nbd" => machine.add_program(&program, &["--version"]),
                "istgt" => machine.add_program(&program, &["-V"]),
                "stunnel" => machine.add_program(&program, &["-version"]),
                _ => {}
            }
        }
    }

    fn start(&self, request: &Request<'_>) -> Result<Served, BenchError> {
        match self {
            PeerKind::TgtDefault => tgt::start(request, free_address()?, false, &[]),
            PeerKind::TgtTuned => tgt::start(request, free_address()?, true, &[]),
            PeerKind::Istgt => istgt::start(request, free_address()?),
            PeerKind::Stunnel => stunnel::start(request),
            PeerKind::WireGuard => wireguard::start(request),
            PeerKind::QemuRaw => qemu::start(request, false),
            PeerKind::QemuLuks => qemu::start(request, true),
            PeerKind::Custom(peer) => peer.start(request, free_address()?),
        }
    }
}

/// A peer that runs, and its initiators.
#[derive(Debug)]
pub struct Peer {
    identity: Identity,
    /// By bytes of a block. The initiators leave first.
    volumes: BTreeMap<u64, (StockInitiators, Served)>,
}

impl Peer {
    /// Starts one daemon for each block size.
    ///
    /// # Errors
    /// If something is missing, with what to install, or does not start, with what it said.
    pub fn start(kind: &PeerKind, options: &PeerOptions) -> Result<Peer, BenchError> {
        kind.check()?;
        let (contender, scheme) = kind.names();
        let contender = options.backing.label(&contender);
        let identity =
            Identity { contender, scheme: scheme.into(), medium: options.backing.name().into(), ..Identity::default() };
        let mut volumes = BTreeMap::new();
        for &block_bytes in &options.block_sizes {
            let name = format!("{}-{}-{block_bytes}", kind.word(), options.backing.name());
            let directory = options.directory.join(&name);
            fs::create_dir_all(&directory).map_err(|error| BenchError::file(&directory, error))?;
            let request = Request {
                backing: options.backing,
                bytes: options.volume_bytes,
                block_bytes,
                directory: &directory,
                memory: &options.memory,
                placement: &options.placement,
            };
            let served = kind.start(&request)?;
            let initiators = StockInitiators::new(options, name, served.prefix.clone(), kind.suite());
            volumes.insert(block_bytes, (initiators, served));
        }
        Ok(Peer { identity, volumes })
    }
}

impl Peer {
    /// Where its NBD server listens, if it has one.
    pub(crate) fn nbd_socket(&self) -> Option<&Path> {
        self.volumes.values().find_map(|(_, served)| match served.protocol {
            Protocol::Nbd { .. } => Some(Path::new(&served.portal)),
            Protocol::Iscsi { .. } => None,
        })
    }
}

impl Contender for Peer {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn target_pids(&self) -> Vec<u32> {
        self.volumes.values().flat_map(|(_, served)| &served.target).flat_map(crate::Background::pids).collect()
    }

    fn initiator_side_pids(&self) -> Vec<u32> {
        self.volumes.values().flat_map(|(_, served)| &served.initiator_side).flat_map(crate::Background::pids).collect()
    }

    fn initiators(&mut self, count: u32, size: u64) -> Result<&mut [InitiatorProcess], BenchError> {
        let block_bytes = fitting(self.volumes.keys().copied(), size)?;
        // Those of other volumes leave: an idle session must not take part.
        self.volumes
            .iter_mut()
            .filter(|(of, _)| **of != block_bytes)
            .for_each(|(_, (initiators, _))| initiators.leave());
        let (initiators, served) = self.volumes.get_mut(&block_bytes).expect("it was just found");
        initiators.attach(count, |name| served.engine(name))
    }
}

/// A plain volume of ours, used by the stock initiator, like the peers.
#[derive(Debug)]
pub struct OursByStock {
    identity: Identity,
    volumes: BTreeMap<u64, StockInitiators>,
    ours: Ours,
}

impl OursByStock {
    /// Takes over a target of ours; nothing else may use its volumes.
    ///
    /// # Errors
    /// [`BenchError::Asked`] without libiscsi.
    pub fn new(ours: Ours, options: &PeerOptions) -> Result<OursByStock, BenchError> {
        libiscsi::available().map_err(|missing| BenchError::Asked(missing.to_string()))?;
        let identity = Identity {
            contender: options.backing.label(OURS_PLAIN),
            medium: options.backing.name().into(),
            ..ours.identity().clone()
        };
        let initiators = |block: &u64| {
            let name = format!("ours-{}-{block}", identity.medium);
            (*block, StockInitiators::new(options, name, Vec::new(), None))
        };
        let volumes = options.block_sizes.iter().map(initiators).collect();
        Ok(OursByStock { identity, volumes, ours })
    }

    /// The same under another name in results.
    #[must_use]
    pub fn named(mut self, contender: &str) -> OursByStock {
        contender.clone_into(&mut self.identity.contender);
        self
    }

    /// The same as one of several releases.
    #[must_use]
    pub fn of_release(mut self, release: &str) -> OursByStock {
        self.identity = self.identity.of_release(release);
        self
    }
}

impl Contender for OursByStock {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn target_pids(&self) -> Vec<u32> {
        self.ours.target_pids()
    }

    fn initiators(&mut self, count: u32, size: u64) -> Result<&mut [InitiatorProcess], BenchError> {
        let block_bytes = fitting(self.volumes.keys().copied(), size)?;
        self.volumes.iter_mut().filter(|(of, _)| **of != block_bytes).for_each(|(_, initiators)| initiators.leave());
        let (portal, volume) = (self.ours.address().to_owned(), Ours::volume_name(block_bytes));
        let target_name = format!("{DEFAULT_BASE_IQN}:{volume}");
        let initiators = self.volumes.get_mut(&block_bytes).expect("it was just found");
        initiators.attach(count, |initiator_name| Engine::Libiscsi {
            portal: portal.clone(),
            target_name: target_name.clone(),
            lun: 0,
            initiator_name,
            initial_r2t: false,
        })
    }

    fn target_work(&mut self) -> Option<TargetWork> {
        self.ours.target_work()
    }
}

/// The largest of some block sizes that divides an I/O.
fn fitting(block_sizes: impl Iterator<Item = u64>, size: u64) -> Result<u64, BenchError> {
    let found = block_sizes.filter(|block_bytes| size.is_multiple_of(*block_bytes)).max();
    found.ok_or_else(|| BenchError::Asked(format!("there is no volume for I/Os of {size} bytes")))
}

//! A real target in this process, keys, and a wire that can be cut and tampered with.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net;
use strongroom_block::{BlockKeyWrap, Custody, Lba, WrapError};
use strongroom_handshake::NodeKey;
use strongroom_initiator::{
    AttachError, AttachOptions, KeyFileSource, LeaseOptions, RemoteDevice, Timeouts, VolumeUrl, read_blocking,
};
use strongroom_net::NetError;
use strongroom_seal::{KeyPurpose, KeyWrapper, SealContext, VolumeKeyFile, VolumeSealer, WrappingKey};
use strongroom_target::admin::EclReport;
use strongroom_target::config::{PeerRule, PlainRule};
use strongroom_target::{
    Catalogue, ChapSecrets, Config, MemoryReport, SealedSpec, StartError, Stats, Target, TargetHandle, TargetOptions,
    Volume, VolumeSpec,
};

pub(crate) const ALICE: &str = "iqn.2026-11.org.example:alice";
pub(crate) const BOB: &str = "iqn.2026-11.org.example:bob";
/// Writes plain volumes by stock iSCSI; every other name may only read them.
pub(crate) const STOCK: &str = "iqn.2026-11.org.example:stock";
pub(crate) const SIZE: u64 = 16 << 20;

pub(crate) fn key_of(seed: u8) -> Arc<NodeKey> {
    Arc::new(NodeKey::from_seed(&[seed; 32]))
}

/// A target whose address stays the same over restarts.
pub(crate) struct Host {
    target: Option<TargetHandle>,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    _port: OwnedFd,
    change: fn(&mut Config),
    /// What the next reload reads.
    next_config: Arc<Mutex<Option<Config>>>,
}

impl Host {
    pub(crate) fn start(volumes: &[VolumeSpec]) -> Host {
        Host::start_with(volumes, |_| {})
    }

    /// With another configuration than the usual one.
    pub(crate) fn start_with(volumes: &[VolumeSpec], change: fn(&mut Config)) -> Host {
        Host::start_on("127.0.0.1:0".parse().unwrap(), volumes, change)
    }

    /// The same at another address of the network namespace that the calling thread is in.
    pub(crate) fn start_on(address: SocketAddr, volumes: &[VolumeSpec], change: fn(&mut Config)) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        for spec in volumes {
            catalogue.create(spec).unwrap();
        }
        for (name, seed) in [("volume.key", 7), ("wrong.key", 8)] {
            let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[seed; 32]);
            std::fs::write(dir.path().join(name), keys.to_text().as_bytes()).unwrap();
            std::fs::set_permissions(dir.path().join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let next_config = Arc::default();
        let (port, address) = reserve(address);
        let target = serve(dir.path(), address, change, &next_config);
        Host { target: Some(target), dir, address, _port: port, change, next_config }
    }

    /// The configuration that it began with.
    pub(crate) fn config(&self) -> Config {
        config(self.dir.path(), self.address, self.change)
    }

    /// Has it read another one.
    pub(crate) fn reload(&self, config: Config) {
        *self.next_config.lock().unwrap() = Some(config);
        self.target.as_ref().expect("it runs").reload().unwrap();
    }

    /// What the target counts.
    pub(crate) fn stats(&self) -> Stats {
        self.target.as_ref().expect("it runs").stats()
    }

    /// The packets of its only session, which is over ECL.
    pub(crate) fn association(&self) -> EclReport {
        let report = self.target.as_ref().expect("it runs").reporter().report();
        let [session] = &report.status.sessions[..] else { panic!("one session: {:?}", report.status.sessions) };
        session.ecl.expect("it is over ECL")
    }

    /// What it holds in memory.
    pub(crate) fn memory(&self) -> MemoryReport {
        self.target.as_ref().expect("it runs").reporter().report().status.memory
    }

    pub(crate) fn stop(&mut self) {
        self.target.take().unwrap().stop();
    }

    pub(crate) fn start_again(&mut self) {
        self.target = Some(serve(self.dir.path(), self.address, self.change, &self.next_config));
    }

    pub(crate) fn url(&self, volume: &str) -> VolumeUrl {
        format!("strongroom://{}/{volume}", self.address).parse().unwrap()
    }

    pub(crate) fn plain_url(&self, volume: &str) -> VolumeUrl {
        format!("iscsi://{}/iqn.2026-11.org.strongroom:{volume}/0", self.address).parse().unwrap()
    }

    /// What alice attaches a volume with.
    pub(crate) fn options(&self, url: VolumeUrl) -> AttachOptions {
        let mut options = AttachOptions::new(url);
        options.iscsi.initiator_name = ALICE.into();
        // Most tests have several attachments of a volume; those about writer leases (`leases`) say otherwise.
        options.lease = LeaseOptions::shared();
        options.channel.node_key = Some(key_of(0xa1));
        options.channel.target_keys = vec![key_of(0x7a).public()];
        options.sealing.key_source = Some(Arc::new(KeyFileSource::new(self.dir.path().join("volume.key"))));
        // Custody `target` needs no key of an initiator, and a plain volume none at all.
        if ["disk", "trusted"].contains(&options.url.file_name()) || !options.url.is_channel() {
            options.sealing.key_source = None;
        }
        options.timeouts = Timeouts {
            connect: Duration::from_secs(10),
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_millis(200),
            ..Timeouts::default()
        };
        options
    }

    pub(crate) fn bobs_options(&self, url: VolumeUrl) -> AttachOptions {
        let mut options = self.options(url);
        options.iscsi.initiator_name = BOB.into();
        options.channel.node_key = Some(key_of(0xb0));
        options
    }

    pub(crate) fn attach(&self, volume: &str) -> RemoteDevice {
        RemoteDevice::attach(self.options(self.url(volume))).unwrap()
    }

    pub(crate) fn attach_error(&self, change: impl FnOnce(&mut AttachOptions)) -> AttachError {
        let mut options = self.options(self.url("vault"));
        change(&mut options);
        RemoteDevice::attach(options).unwrap_err()
    }
}

/// Wraps block keys as targets do, and remembers them in the clear, for tests to look for.
pub(crate) struct SpyingWrapper {
    wrapper: KeyWrapper,
    remembers: bool,
}

static BLOCK_KEYS: Mutex<Vec<([u8; 32], [u8; 40])>> = Mutex::new(Vec::new());

impl SpyingWrapper {
    fn of(volume: &Volume) -> SpyingWrapper {
        let domain = volume.sealed.as_ref().expect("only sealed volumes wrap").domain;
        let wrapper = KeyWrapper::new(&WrappingKey::new([0x3c; 32]), domain);
        SpyingWrapper { wrapper, remembers: volume.name.as_str() == "trusted" }
    }

    /// Every block key that any target of this process was sent so far for a volume `trusted`, raw and wrapped.
    pub(crate) fn seen() -> Vec<([u8; 32], [u8; 40])> {
        BLOCK_KEYS.lock().unwrap().clone()
    }
}

impl BlockKeyWrap for SpyingWrapper {
    fn wrap(&self, key: &[u8; 32]) -> Result<[u8; 40], WrapError> {
        let wrapped = self.wrapper.wrap(key)?;
        if self.remembers {
            BLOCK_KEYS.lock().unwrap().push((*key, wrapped));
        }
        Ok(wrapped)
    }

    fn unwrap(&self, wrapped: &[u8; 40]) -> Result<[u8; 32], WrapError> {
        self.wrapper.unwrap(wrapped)
    }
}

/// A volume of custody `target`, by the name that needs no key here.
pub(crate) fn trusted() -> VolumeSpec {
    let sealed = SealedSpec { wrapping_key: Some("/nonexistent/wrap.key".into()), ..SealedSpec::new(Custody::Target) };
    VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("trusted", SIZE) }
}

fn config(root: &Path, address: SocketAddr, change: fn(&mut Config)) -> Config {
    let mut config = Config::new(root);
    config.listen = vec![address];
    config.workers = Some(1);
    config.limits.stop_timeout_s = 1;
    for (initiators, read_only) in [([ALICE, BOB, STOCK].map(Into::into).to_vec(), false), (vec!["*".into()], true)] {
        config.plain.push(PlainRule { initiators, volumes: vec!["*".into()], read_only, ..PlainRule::default() });
    }
    for (name, seed, initiator) in [("alice", 0xa1, ALICE), ("bob", 0xb0, BOB)] {
        config.peers.push(PeerRule {
            name: name.into(),
            key: key_of(seed).public().to_string(),
            initiators: vec![initiator.into()],
            volumes: vec!["*".into()],
            ..PeerRule::default()
        });
    }
    change(&mut config);
    config
}

/// What another test starts holds, until it runs, copies of all sockets that are open here: the last target's for one.
fn serve(
    root: &Path,
    address: SocketAddr,
    change: fn(&mut Config),
    next_config: &Arc<Mutex<Option<Config>>>,
) -> TargetHandle {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match Target::start(target_options(root, address, change, next_config)) {
            // A UDP port may be an initiator's for a while, which the system has chosen.
            Err(StartError::Net(NetError::AddressTaken { .. } | NetError::UdpPortTaken { .. }))
                if Instant::now() < end =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            started => return started.unwrap(),
        }
    }
}

fn target_options(
    root: &Path,
    address: SocketAddr,
    change: fn(&mut Config),
    next_config: &Arc<Mutex<Option<Config>>>,
) -> TargetOptions {
    let mut options = TargetOptions::new(config(root, address, change));
    options.wraps = Some(Arc::new(|volume| Ok(Arc::new(SpyingWrapper::of(volume)))));
    options.resealers = Some(Arc::new(|volume, counters| {
        let sealed = volume.sealed.as_ref().expect("only sealed volumes are opened");
        let path = sealed.opened_with.as_ref().expect("it is opened here");
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let keys = VolumeKeyFile::parse(&text).map_err(|error| error.to_string())?;
        let context = SealContext::new(sealed.domain, volume.geometry.block_size, sealed.epoch);
        Ok(Arc::new(VolumeSealer::blind(&keys, context, counters).map_err(|error| error.to_string())?))
    }));
    options.node_key = Some(NodeKey::from_seed(&[0x7a; 32]));
    let next_config = next_config.clone();
    options.reread = Some(Arc::new(move || {
        let config = next_config.lock().unwrap().clone().ok_or("nothing new")?;
        Ok((config, ChapSecrets::default()))
    }));
    options
}

/// The address, with a port that nobody else is given while the socket is there; a target may listen on it meanwhile.
fn reserve(address: SocketAddr) -> (OwnedFd, SocketAddr) {
    let family = if address.is_ipv4() { net::AddressFamily::INET } else { net::AddressFamily::INET6 };
    let socket = net::socket(family, net::SocketType::STREAM, None).unwrap();
    net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    net::bind(&socket, &address).unwrap();
    let address = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap();
    (socket, address)
}

/// One message on the wire: a TLS record, or a frame.
pub(crate) struct Message<'a> {
    /// The clear first byte.
    pub(crate) kind: u8,
    /// Where the header is, in `bytes`; empty in a TLS record.
    pub(crate) header: std::ops::Range<usize>,
    /// Where the data is, in `bytes`; empty in a TLS record.
    pub(crate) data: std::ops::Range<usize>,
    /// What is passed on; empty: nothing.
    pub(crate) bytes: &'a mut Vec<u8>,
    /// Whether the stream ends behind it.
    pub(crate) is_last: &'a mut bool,
}

impl Message<'_> {
    /// Whether it is a frame, not a part of the handshake.
    pub(crate) fn is_frame(&self) -> bool {
        self.kind >= 0x40
    }

    /// Whether it carries block data of a sealed unit, under any scheme.
    pub(crate) fn has_blocks(&self) -> bool {
        matches!(self.kind, 0x52 | 0x56 | 0x57 | 0x59 | 0x5a)
    }
}

const PREFIX_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

type Tamper = Box<dyn FnMut(&mut Message<'_>) + Send>;

/// Somebody in the middle: passes whole messages on, after `towards_initiator` or `towards_target` had a look.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    pub(crate) towards_initiator: Arc<Mutex<Option<Tamper>>>,
    pub(crate) towards_target: Arc<Mutex<Option<Tamper>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    is_down: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Wire {
    pub(crate) fn before(host: &Host) -> Wire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = Wire {
            address: listener.local_addr().unwrap(),
            towards_initiator: Arc::default(),
            towards_target: Arc::default(),
            open: Arc::default(),
            is_down: Arc::default(),
            ended: Arc::default(),
        };
        let target = host.address;
        let (down, up) = (wire.towards_initiator.clone(), wire.towards_target.clone());
        let (open, is_down, ended) = (wire.open.clone(), wire.is_down.clone(), wire.ended.clone());
        std::thread::spawn(move || {
            for initiator in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let initiator = initiator.unwrap();
                if is_down.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(target) = TcpStream::connect(target) else { continue };
                // Messages are passed on one by one, and nobody waits for the last one's acknowledgement.
                for stream in [&initiator, &target] {
                    stream.set_nodelay(true).unwrap();
                }
                open.lock().unwrap().extend([initiator.try_clone().unwrap(), target.try_clone().unwrap()]);
                let (from, to, tamper) = (initiator.try_clone().unwrap(), target.try_clone().unwrap(), up.clone());
                std::thread::spawn(move || pass_on(from, to, &tamper));
                let tamper = down.clone();
                std::thread::spawn(move || pass_on(target, initiator, &tamper));
            }
        });
        wire
    }

    pub(crate) fn url(&self, volume: &str) -> VolumeUrl {
        format!("strongroom://{}/{volume}", self.address).parse().unwrap()
    }

    /// Cuts every connection.
    pub(crate) fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts every connection, and lets no other through until it is up again.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
        if is_down {
            self.cut();
        }
    }

    /// Cuts the connection that was made last.
    pub(crate) fn cut_one(&self) {
        let mut open = self.open.lock().unwrap();
        let from = open.len().saturating_sub(2);
        for stream in open.drain(from..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn tamper_towards_initiator(&self, tamper: impl FnMut(&mut Message<'_>) + Send + 'static) {
        *self.towards_initiator.lock().unwrap() = Some(Box::new(tamper));
    }

    pub(crate) fn tamper_towards_target(&self, tamper: impl FnMut(&mut Message<'_>) + Send + 'static) {
        *self.towards_target.lock().unwrap() = Some(Box::new(tamper));
    }

    pub(crate) fn behave(&self) {
        *self.towards_initiator.lock().unwrap() = None;
        *self.towards_target.lock().unwrap() = None;
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.cut();
        let _ = TcpStream::connect(self.address);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, tamper: &Mutex<Option<Tamper>>) {
    while let Some(mut bytes) = read_message(&mut from) {
        let mut is_last = false;
        if let Some(tamper) = &mut *tamper.lock().unwrap() {
            let (header, data) = parts(&bytes);
            tamper(&mut Message { kind: bytes[0], header, data, bytes: &mut bytes, is_last: &mut is_last });
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
        if is_last {
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn read_message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 5];
    from.read_exact(&mut bytes).ok()?;
    let message_bytes = if bytes[0] < 0x40 {
        5 + usize::from(u16::from_be_bytes([bytes[3], bytes[4]]))
    } else {
        bytes.resize(PREFIX_BYTES, 0);
        from.read_exact(&mut bytes[5..]).ok()?;
        let (header, data) = lengths(&bytes);
        let tags = match bytes[0] {
            0x57 | 0x59 => 2,
            0x58 if data > 0 => 2,
            _ => 1,
        };
        PREFIX_BYTES + header + data + tags * TAG_BYTES
    };
    let start = bytes.len();
    bytes.resize(message_bytes, 0);
    from.read_exact(&mut bytes[start..]).ok()?;
    Some(bytes)
}

/// Of header and data, as a frame's prefix says.
fn lengths(bytes: &[u8]) -> (usize, usize) {
    let header = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    (header, u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize)
}

fn parts(bytes: &[u8]) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
    if bytes[0] < 0x40 {
        return (0..0, 0..0);
    }
    let (header, data) = lengths(bytes);
    let header_end = PREFIX_BYTES + header;
    // Data that is encrypted with the header lies before the tag, all other behind it (docs/protocol.md, Frames).
    let is_inside = matches!(bytes[0], 0x51 | 0x53..=0x56);
    let data_at = if is_inside { header_end } else { header_end + TAG_BYTES };
    (PREFIX_BYTES..header_end, data_at..data_at + data)
}

/// Changes `block` so that no CRC-64 of it changes: a difference in the kernel of a linear map.
pub(crate) fn keep_the_checksum(block: &mut [u8], checksum: impl Fn(&[u8]) -> u64) {
    let zero = vec![0; block.len()];
    let base = checksum(&zero);
    let mut rows: Vec<(u64, u128)> = Vec::new();
    for bit in 0..65 {
        let mut probe = zero.clone();
        probe[bit / 8] ^= 1 << (bit % 8);
        let (mut vector, mut combination) = (checksum(&probe) ^ base, 1_u128 << bit);
        for (other, with) in &rows {
            if vector ^ other < vector {
                vector ^= other;
                combination ^= with;
            }
        }
        if vector == 0 {
            for at in (0..65).filter(|at| combination >> at & 1 == 1) {
                block[at / 8] ^= 1 << (at % 8);
            }
            return;
        }
        rows.push((vector, combination));
        rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.0));
    }
    unreachable!("65 vectors of 64 bits are dependent");
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first byte of a block.
pub(crate) fn mark(device: &RemoteDevice, lba: u64) -> u8 {
    read_blocking(device, Lba(lba), 1).unwrap()[0]
}

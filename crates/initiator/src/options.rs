//! What an attachment is made from: where, as whom, with which keys, within which limits.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{CryptoCounters, Mode, Suite};
use strongroom_channel::{ChannelLimits, Scheme};
use strongroom_handshake::{NodeKey, PublicKey};

use strongroom_iscsi::DigestOffer;
use strongroom_net::BusyPoll;

use crate::chap::ChapAccount;
use crate::{DEFAULT_BASE_IQN, ExpectedUnit, KeySource, LeaseOptions, Pipeline, VolumeUrl};

/// Everything that [`crate::RemoteDevice::attach`] needs.
#[derive(Clone)]
pub struct AttachOptions {
    /// The volume.
    pub url: VolumeUrl,
    /// The session.
    pub iscsi: IscsiOptions,
    /// The channel of a `strongroom://` URL, and who is at its ends.
    pub channel: ChannelOptions,
    /// The seals of blocks.
    pub sealing: SealingOptions,
    /// Take suites that are for benchmarks alone, of a channel and of a volume.
    pub benchmark_suites: bool,
    /// What is known of the volume beforehand.
    pub expected: ExpectedUnit,
    /// Refuse every write here already.
    pub read_only: bool,
    /// How the volume is to be had for writing, where it is not `read_only`.
    pub lease: LeaseOptions,
    /// How many writes and reads are under way at once, and how many threads seal ahead.
    pub pipeline: Pipeline,
    /// Fetch blocks ahead of sequential reads, as many as the way there and back holds. Only for who is alone, or reads what does not
    /// change: what another initiator writes in between is not seen, which a block device shared by several must not do. A file system
    /// that no cluster shares is alone, a snapshot does not change, and `copy` has its own reads under way.
    pub readahead: bool,
    /// Whether the device's thread, and the threads that wait for completions, look for them for a short while before they sleep.
    pub busy_poll: BusyPoll,
    /// Limits of the queues.
    pub limits: Limits,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// Faults for simulations that must find them.
    #[doc(hidden)]
    pub faults: SimulatedFaults,
    /// Where the bytes of our cryptography are counted.
    pub counters: Arc<CryptoCounters>,
}

/// How a session is made.
#[derive(Clone, Debug)]
pub struct IscsiOptions {
    /// What the names of the target's volumes begin with; a volume's name follows after a colon.
    pub base_iqn: String,
    /// Our iSCSI name. A target binds a node key to the names it may use.
    pub initiator_name: String,
    /// Our account, for an `iscsi://` target that wants one.
    pub chap: Option<ChapAccount>,
    /// CRC32C digests of headers and data, over `iscsi://`.
    pub digests: DigestOffer,
    /// TCP connections of the session (MC/S, RFC 7143 §4.2.2), where the target takes as many; commands are spread over them. Worth it
    /// where one connection's window or loss is the limit: over long ways, and over several links. Each has its own handshake.
    pub connections: u16,
    /// ErrorRecoveryLevel to propose, 0 to 2. `None`: 2 with several connections, 1 with digests, else 0. From 1 on the target
    /// keeps what it has sent until it is acknowledged, which costs it memory and some work per command.
    pub recovery_level: Option<u8>,
}

impl Default for IscsiOptions {
    fn default() -> IscsiOptions {
        IscsiOptions {
            base_iqn: DEFAULT_BASE_IQN.to_owned(),
            initiator_name: default_initiator_name(None),
            chap: None,
            digests: DigestOffer::Allow,
            connections: 1,
            recovery_level: None,
        }
    }
}

/// Who is at the ends of a channel, and what it protects.
#[derive(Clone, Default)]
pub struct ChannelOptions {
    /// Our identity; needed for `strongroom://`.
    pub node_key: Option<Arc<NodeKey>>,
    /// The target's identity, any of these; needed for `strongroom://`.
    pub target_keys: Vec<PublicKey>,
    /// What the channel protects; `None` chooses by the volume's mode: see [`AttachOptions::scheme`].
    pub scheme: Option<Scheme>,
    /// The cipher of the channel. How a volume's blocks are sealed is the volume's own.
    pub suite: Suite,
    /// When we change the keys of what we send.
    pub rekey: Rekey,
}

/// How blocks are sealed and opened.
#[derive(Clone)]
pub struct SealingOptions {
    /// Where the volume key comes from; needed for sealed volumes of the blind custodies.
    pub key_source: Option<Arc<dyn KeySource>>,
    /// What sealing must do. A sealed volume that claims another mode is refused, unless we are `read_only`: only the target
    /// says which it is, and authenticate-only would send it plaintext.
    pub mode: Mode,
    /// Consecutive blocks that share a block key (custody `target`), at most. A peer that learns the key of one opens the others: more than
    /// one is for benchmarks alone, and needs `benchmark_suites`.
    pub blocks_per_key: NonZeroU32,
    /// Tell the target which versions opened, so that it need not keep older ones.
    pub verified_feedback: bool,
    /// What a read does with a block that does not open.
    pub damaged_reads: DamagedReads,
}

impl Default for SealingOptions {
    fn default() -> SealingOptions {
        SealingOptions {
            key_source: None,
            mode: Mode::Encrypt,
            blocks_per_key: NonZeroU32::MIN,
            verified_feedback: true,
            damaged_reads: DamagedReads::default(),
        }
    }
}

/// Faults that a simulation injects and must find.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulatedFaults {
    /// What a flush makes durable is taken to be what was acknowledged when its response arrives, not when it was sent.
    pub marks_flushes_late: bool,
    /// A request that is sealed again does not keep its operation id, so that the target takes it for a new one.
    pub forgets_operations: bool,
}

impl AttachOptions {
    /// The defaults for the volume at `url`.
    pub fn new(url: VolumeUrl) -> AttachOptions {
        let (scheme, suite) = (url.scheme(), url.suite().unwrap_or_default());
        let pipeline = url.pipeline().unwrap_or_default();
        AttachOptions {
            url,
            iscsi: IscsiOptions::default(),
            channel: ChannelOptions { scheme, suite, ..ChannelOptions::default() },
            sealing: SealingOptions::default(),
            benchmark_suites: false,
            expected: ExpectedUnit::default(),
            read_only: false,
            lease: LeaseOptions::default(),
            pipeline,
            readahead: false,
            busy_poll: BusyPoll::default(),
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            faults: SimulatedFaults::default(),
            counters: Arc::new(CryptoCounters::new()),
        }
    }

    /// The name of the target that serves the volume.
    pub(crate) fn target_name(&self) -> String {
        self.url.target_name(&self.iscsi.base_iqn)
    }

    /// The scheme that is offered to the target: the one that was chosen, else S2-5, or S1-2 for a volume that is not
    /// encrypted. Never another one: what a target does not admit is not negotiated down.
    pub fn scheme(&self) -> Scheme {
        self.channel.scheme.unwrap_or(match self.sealing.mode {
            Mode::Encrypt => Scheme::Lazy,
            Mode::AuthenticateOnly => Scheme::LazyAuth,
        })
    }
}

impl fmt::Debug for AttachOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachOptions")
            .field("url", &self.url)
            .field("initiator_name", &self.iscsi.initiator_name)
            .field("scheme", &self.channel.scheme)
            .field("read_only", &self.read_only)
            .field("pipeline", &self.pipeline)
            .field("limits", &self.limits)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// FirstBurstLength that we offer, in bytes: up to this a write's data goes with its command, in one round trip, where the target
/// agrees; what is longer waits for an R2T, which takes another.
pub fn first_burst_bytes() -> u64 {
    u64::from(strongroom_iscsi::Offer::default().first_burst_bytes)
}

/// `iqn.2026-11.org.strongroom:initiator.HOSTNAME`, and behind a dot the fingerprint of the identity that proves it, if there is one: several
/// users of a machine have names of their own.
pub fn default_initiator_name(identity: Option<&PublicKey>) -> String {
    let node = rustix::system::uname();
    let host = node.nodename().to_string_lossy().to_lowercase();
    let host: String = host.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let fingerprint = identity.map(|key| format!(".{}", key.fingerprint())).unwrap_or_default();
    format!("{DEFAULT_BASE_IQN}:initiator.{host}{fingerprint}")
}

/// Named limits of the queues; each is counted before work is done for a request. Where [`Pipeline::Auto`] finds a way whose product
/// of bandwidth and delay is too large for them, those in bytes grow with it, to [`Limits::PINNED_BYTES_MAX`] each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests taken in and not completed; `submit` waits beyond that.
    pub requests_max: usize,
    /// Bytes of block data in those requests. One request may be larger, alone. What is sealed by the pipeline is there twice, plain
    /// and sealed.
    pub request_bytes_max: usize,
    /// Commands in flight at the target.
    pub commands_max: usize,
    /// Bytes of one READ or WRITE; larger requests are split. The target's own limit counts too.
    pub transfer_bytes_max: u32,
    /// Writes that the target has acknowledged and not yet made durable are kept here, in bytes, and sent again to a
    /// target that was restarted. At half of it we flush by ourselves; at the bound, writes wait for that flush.
    pub unflushed_bytes_max: usize,
}

impl Limits {
    /// To how much a limit in bytes may grow by itself.
    pub const PINNED_BYTES_MAX: usize = 512 << 20;
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            requests_max: 2048,
            request_bytes_max: 32 << 20,
            commands_max: 1000,
            transfer_bytes_max: 1 << 20,
            unflushed_bytes_max: 64 << 20,
        }
    }
}

/// When we change the keys of what we send through a channel; the target has limits of its own for what it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rekey {
    /// After this many tags: one for each PDU, or two. At most 2^23.
    pub tags: u64,
    /// Before they have protected more bytes than that. At most 64 GiB.
    pub bytes: u64,
    /// After so long in use; zero: as long as the connection.
    pub after: Duration,
}

impl Default for Rekey {
    fn default() -> Rekey {
        let limits = ChannelLimits::default();
        Rekey { tags: limits.rekey_tags, bytes: limits.rekey_bytes, after: Duration::from_secs(3600) }
    }
}

/// What a read does with a block whose newest version does not open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DamagedReads {
    /// It fails, and names the block.
    #[default]
    Fail,
    /// It goes back to the newest older version that opens, as in the lazy-crypto paper (§3.2.2); each such block is logged and
    /// counted. Only where the volume's description allows it. A peer that can damage blocks on the wire or in the store can
    /// then choose, among the versions that are kept, which one is read. Only with `read_only`: what was read cannot be written
    /// back, and so become the newest.
    Previous,
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call to the end of login and inquiry, for one try.
    pub connect: Duration,
    /// While the connection is lost, requests wait so long; then they fail with `Unreachable`. Zero waits for ever.
    pub give_up: Duration,
    /// The first pause between tries; doubles with each.
    pub backoff_min: Duration,
    /// The longest pause between tries.
    pub backoff_max: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            connect: Duration::from_secs(15),
            give_up: Duration::from_secs(300),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
        }
    }
}

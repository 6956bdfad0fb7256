//! How to reach a volume: the arguments that every command with a URL shares, turned into what the initiator needs.
//!
//! Absent: the connection itself.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use strongroom_block::{Custody, DeviceErrorKind, Lba, Mode, SealingDomain, Suite};
use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_initiator::chap::{ChapAccount, Credentials};
use strongroom_initiator::{
    AttachOptions, BusyPoll, DamagedReads, DigestOffer, DiscoverOptions, ExpectedUnit, KeyFileSource, KeyServerSource,
    KeySource, KnownVolumes, Pipeline, RemoteDevice, Scheme, SealedClaims, VolumeUrl, default_initiator_name, inquire,
    read_blocking,
};
use strongroom_keyserver::Client;

use crate::command_line::option;
use crate::key_server::KeyServerArgs;
use crate::keys::{KEYS, parse_public_key};
use crate::units::{parse_duration, parse_size};
use crate::writer::{self, WayOut};
use crate::{config, keys};
use strongroom_keyfiles::volume_records::{self, Domain, Others};

/// The heading in `--help` for the options of the connection.
const CONNECTION: &str = "Connection";

/// As whom, with which keys, and how patiently.
#[derive(Args, Clone)]
#[command(next_help_heading = CONNECTION)]
pub struct AccessArgs {
    /// The file with this node's identity [default: ~/.config/strongroom/identity].
    #[arg(long, value_name = "FILE", env = "STRONGROOM_IDENTITY", help_heading = KEYS)]
    pub(crate) identity: Option<PathBuf>,
    #[command(flatten)]
    target: TargetKeyArgs,
    /// The file with the volume's key, for a sealed volume of custody `keyfile`.
    #[arg(long = "key-file", visible_alias = "key", value_name = "FILE", env = "STRONGROOM_KEY_FILE", help_heading = KEYS)]
    pub key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) key_server: KeyServerArgs,
    /// What the key server calls the volume's keys, if not as the URL calls the volume: for clones.
    #[arg(long, value_name = "NAME", help_heading = KEYS)]
    pub(crate) key_name: Option<String>,
    /// The volume is one that was made with `--authenticate-only`: the target can read what is written to it.
    ///
    /// Without this such a volume is only attached read-only, so that a target cannot persuade an initiator to go without encryption.
    #[arg(long)]
    pub authenticate_only: bool,
    /// What the channel protects, and how long with one key.
    #[command(flatten)]
    pub channel: ChannelArgs,
    /// If the newest version of a block does not open, read the newest older one that does, where the volume allows it (`strongroom
    /// volume access --previous-versions`); each such block is logged and counted. Only where nothing is written: `attach --read-only`,
    /// the source of `copy`. Without this the read fails.
    #[arg(long)]
    pub(crate) previous_versions: bool,
    /// How many writes are under way at once: `auto` measures the link and finds it by itself; a number chooses it, 1 for one after the
    /// other without overlap; 8/2 also says how many threads seal. A URL can say it too: ?pipeline=8 [default: auto].
    #[arg(long, value_name = "DEPTH", env = "STRONGROOM_PIPELINE")]
    pub pipeline: Option<Pipeline>,
    /// What both ends are called.
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    chap: ChapArgs,
    /// What is negotiated for the iSCSI session, and how its answers are waited for.
    #[command(flatten)]
    pub session: SessionArgs,
    /// How long requests wait for a target that is away before they fail; 0 waits for ever.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// How long one try to connect and log in may take.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub(crate) connect_timeout: Duration,
    /// The volume at this URL was replaced by a new one: forget what is recorded of the old one.
    #[arg(long)]
    pub(crate) forget_volume: bool,
}

/// How the target proves itself in a channel.
#[derive(Args, Clone)]
#[command(next_help_heading = KEYS)]
pub(crate) struct TargetKeyArgs {
    /// The target's public line, as `strongroom identity show` prints it there; can be repeated.
    #[arg(long = "target-key", value_name = "KEY", value_parser = parse_public_key, help_heading = KEYS)]
    target_keys: Vec<PublicKey>,
    /// The file that lists known targets, one `HOST[:PORT] KEY` a line [default: ~/.config/strongroom/known_targets].
    #[arg(long = "known", value_name = "FILE", env = "STRONGROOM_KNOWN_TARGETS", help_heading = KEYS)]
    known_targets: Option<PathBuf>,
}

/// What the channel protects, and how long with one key.
#[derive(Args, Clone)]
#[command(next_help_heading = CONNECTION)]
pub struct ChannelArgs {
    /// What the channel of a strongroom:// URL protects, by the paper's name or by what it does: S1-1 (mac-all), S1-2 (lazy-auth), S2-1
    /// (encrypt-all), S2-3 (lazy-decrypt+mac-all), S2-5 (lazy); S2-2, S2-4 and S2-6 are the paper's names for S2-1, S2-3 and S2-5 where
    /// hardware does the cryptography. A URL can say it too: ?scheme=S2-5 [default: S2-5; S1-2 with --authenticate-only].
    #[arg(long, value_name = "SCHEME", env = "STRONGROOM_SCHEME")]
    pub scheme: Option<Scheme>,
    /// Change the keys of the channel after so long in use; 0 keeps them as long as the connection.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub(crate) rekey_after: Duration,
    /// Change them before they have protected more than this, at most 64GiB.
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = parse_size)]
    pub(crate) rekey_bytes: u64,
    /// The channel's cipher: aes-256-gcm, aes-128-gcm, or chacha20-poly1305 where a processor has no AES instructions. A URL can say it
    /// too: ?suite=aes-128-gcm. How blocks are sealed is the volume's own [default: aes-256-gcm].
    #[arg(long = "channel-suite", value_name = "SUITE", env = "STRONGROOM_CHANNEL_SUITE")]
    pub suite: Option<Suite>,
}

/// What both ends are called.
#[derive(Args, Clone)]
#[command(next_help_heading = CONNECTION)]
pub struct NameArgs {
    /// The iSCSI name to log in by [default: one made from this machine's name and the identity's fingerprint].
    #[arg(long, value_name = "IQN")]
    pub initiator_name: Option<String>,
    /// What the names of the target's volumes begin with, if not as usual.
    #[arg(long, value_name = "IQN")]
    pub base_name: Option<String>,
}

/// The proofs of plain iSCSI.
#[derive(Args, Clone)]
#[command(next_help_heading = CONNECTION)]
struct ChapArgs {
    /// The name to prove ourselves by with CHAP, at an iscsi:// target that wants it.
    #[arg(long, value_name = "NAME", requires = "chap_secret_file")]
    chap_user: Option<String>,
    /// The file with the secret that belongs to it: one line, readable by its owner alone.
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_secret_file: Option<PathBuf>,
    /// The file with the secret that the target has to prove in turn (mutual CHAP).
    #[arg(long, value_name = "FILE", requires = "chap_user")]
    chap_target_secret_file: Option<PathBuf>,
    /// The name that the target must give then [default: any].
    #[arg(long, value_name = "NAME", requires = "chap_target_secret_file")]
    chap_target_user: Option<String>,
}

/// What is negotiated for the iSCSI session, and how its answers are waited for.
#[derive(Args, Clone)]
#[command(next_help_heading = CONNECTION)]
pub struct SessionArgs {
    /// CRC32C digests of headers and data at an iscsi:// target.
    #[arg(long, value_name = "WHETHER", default_value = "allow")]
    pub(crate) digests: DigestArg,
    /// TCP connections of one session, over which commands are spread: for long ways and for several links. A target that takes
    /// fewer says so in the log.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=CONNECTIONS_MAX))]
    pub connections: u16,
    /// The error recovery level to ask for: 1 mends damaged data within a command, 2 keeps the session when a connection is
    /// lost [default: 2 with several connections, 1 with digests, else 0].
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) recovery_level: Option<u8>,
    /// Look for completions for a short while before threads sleep: `off`, `auto` (while the expected wait is below 200 microseconds), or the
    /// longest expected wait in microseconds. Saves wake-ups where few requests are in flight; costs processor time meanwhile.
    #[arg(long, value_name = "WAIT", env = "STRONGROOM_BUSY_POLL", default_value_t)]
    pub busy_poll: BusyPoll,
}

/// More connections of one session than that do not make it faster.
const CONNECTIONS_MAX: i64 = 32;

/// What an initiator says to digests.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum DigestArg {
    /// None.
    Never,
    /// Only if the target insists.
    Allow,
    /// If the target has them.
    Prefer,
    /// Or no session.
    Require,
}

impl TargetKeyArgs {
    /// The options that say the same: the file of known targets, and the keys.
    pub(crate) fn to_options(&self) -> (Option<OsString>, Vec<OsString>) {
        let known = self.known_targets.as_ref().map(|file| option("known", file));
        (known, self.target_keys.iter().map(|key| option("target-key", key.to_string())).collect())
    }

    /// The keys that the target may have.
    pub(crate) fn of_target(&self, host: &str, port: u16) -> Result<Vec<PublicKey>> {
        if !self.target_keys.is_empty() {
            return Ok(self.target_keys.clone());
        }
        let known = self.known_targets.clone().unwrap_or_else(keys::default_known_targets);
        keys::known_keys(&known, keys::Whose::Target, host, port)
    }
}

impl AccessArgs {
    /// The file with this node's identity.
    pub fn identity_file(&self) -> PathBuf {
        self.identity.clone().unwrap_or_else(keys::default_identity)
    }

    /// What the initiator needs to attach the volume at `url`.
    pub(crate) fn options(&self, url: &VolumeUrl) -> Result<AttachOptions> {
        let mut options = AttachOptions::new(url.clone());
        self.fill_session(&mut options)?;
        if url.is_channel() {
            options.expected = self.known_volumes()?.expected(&url.place());
        }
        if self.authenticate_only {
            options.sealing.mode = Mode::AuthenticateOnly;
        }
        options.sealing.key_source = self.key_source()?;
        Ok(options)
    }

    /// Where the volume's keys come from, if any are needed.
    fn key_source(&self) -> Result<Option<Arc<dyn KeySource>>> {
        Ok(match (&self.key_file, self.key_server.is_given()) {
            (None, false) => None,
            (Some(path), false) => Some(Arc::new(KeyFileSource::new(path))),
            (None, true) => Some(Arc::new(KeyServerSource::new(self.key_client()?, self.key_name.clone()))),
            (Some(_), true) => bail!(
                "a volume's key is in a file or at a key server: leave out --key-file (STRONGROOM_KEY_FILE) or --key-server \
                 (STRONGROOM_KEY_SERVER)"
            ),
        })
    }

    /// Calls the key server.
    pub(crate) fn key_client(&self) -> Result<Client> {
        self.key_server.client(self.identity.as_deref(), self.target.known_targets.as_deref())
    }

    /// The part that has nothing to do with one volume.
    fn fill_session(&self, options: &mut AttachOptions) -> Result<()> {
        if let Some(base) = &self.names.base_name {
            options.iscsi.base_iqn.clone_from(base);
        }
        if let (Some(scheme), false) = (self.channel.scheme, options.url.is_channel()) {
            bail!("an iscsi:// URL is plain iSCSI, scheme S0; for scheme {scheme} use a strongroom:// URL");
        }
        options.channel.scheme = one_of("scheme", options.url.scheme(), self.channel.scheme)?;
        options.channel.suite = one_of("suite", options.url.suite(), self.channel.suite)?.unwrap_or_default();
        options.pipeline = one_of("pipeline", options.url.pipeline(), self.pipeline)?.unwrap_or_default();
        options.busy_poll = self.session.busy_poll;
        options.iscsi.chap = self.chap_account()?;
        options.iscsi.digests = match self.session.digests {
            DigestArg::Never => DigestOffer::Never,
            DigestArg::Allow => DigestOffer::Allow,
            DigestArg::Prefer => DigestOffer::Prefer,
            DigestArg::Require => DigestOffer::Require,
        };
        options.channel.rekey.after = self.channel.rekey_after;
        options.channel.rekey.bytes = self.channel.rekey_bytes;
        if self.previous_versions {
            options.sealing.damaged_reads = DamagedReads::Previous;
        }
        options.iscsi.connections = self.session.connections;
        options.iscsi.recovery_level = self.session.recovery_level;
        options.timeouts.give_up = self.timeout;
        options.timeouts.connect = self.connect_timeout;
        if options.url.is_channel() {
            let identity = self.identity_file();
            options.channel.node_key = Some(Arc::new(keys::read_identity(&identity)?));
            options.channel.target_keys = self.keys_of_target(options.url.host(), options.url.port())?;
        }
        options.iscsi.initiator_name = self.initiator_name_as(options.channel.node_key.as_deref());
        Ok(())
    }

    /// The name to log in by, with this identity.
    fn initiator_name_as(&self, identity: Option<&NodeKey>) -> String {
        let usual = || default_initiator_name(identity.map(NodeKey::public).as_ref());
        self.names.initiator_name.clone().unwrap_or_else(usual)
    }

    /// What a question to the portal of `url` needs, through a channel or over plain iSCSI.
    pub(crate) fn portal(&self, url: &VolumeUrl, in_channel: bool) -> Result<DiscoverOptions> {
        let (node_key, target_keys) = if in_channel {
            let identity = self.identity_file();
            (Some(Arc::new(keys::read_identity(&identity)?)), self.keys_of_target(url.host(), url.port())?)
        } else {
            (None, Vec::new())
        };
        Ok(DiscoverOptions {
            host: url.host().to_owned(),
            port: url.port(),
            initiator_name: self.initiator_name_as(node_key.as_deref()),
            node_key,
            chap: self.chap_account()?,
            target_keys,
            timeout: self.connect_timeout,
        })
    }

    /// The CHAP account, if one was given.
    pub(crate) fn chap_account(&self) -> Result<Option<ChapAccount>> {
        self.chap.account()
    }

    /// The keys that the target may have.
    pub fn keys_of_target(&self, host: &str, port: u16) -> Result<Vec<PublicKey>> {
        self.target.of_target(host, port)
    }

    /// Attaches, and remembers what a sealed volume claims to be, so that the next time it cannot claim otherwise.
    pub(crate) fn attach(&self, options: AttachOptions) -> Result<Arc<RemoteDevice>> {
        self.attach_with(options, WayOut::of("then try again"))
    }

    /// The same, where somebody else may have the volume.
    pub(crate) fn attach_with(&self, options: AttachOptions, way_out: WayOut) -> Result<Arc<RemoteDevice>> {
        let url = options.url.clone();
        let device = writer::attach(options, way_out)?;
        if let Some(sealed) = device.unit().sealed {
            let mut known = self.known_volumes()?;
            if known.remember(&url.place(), sealed.claims) {
                write_known_volumes(&known)?;
            }
        }
        Ok(Arc::new(device))
    }

    /// Attaches for reading and writing: a sealed volume must open with our key in at least one of a few places. What was
    /// written with another key than the rest would be lost to everybody who has the right one.
    pub(crate) fn attach_for_use(&self, options: AttachOptions, way_out: WayOut) -> Result<Arc<RemoteDevice>> {
        let device = self.attach_with(options, way_out)?;
        let unit = device.unit();
        if unit.sealed.is_none() {
            return Ok(device);
        }
        let mut refusal = None;
        let last = unit.geometry.blocks - 1;
        for lba in [0, last / 2, last] {
            match read_blocking(&*device, Lba(lba), 1) {
                Ok(_) => return Ok(device),
                Err(error) if error.kind == DeviceErrorKind::Medium => refusal = refusal.or(Some(error)),
                Err(error) => return Err(error).context("cannot read from the volume"),
            }
        }
        let refusal = refusal.expect("three reads failed");
        Err(refusal).context(
            "nothing that was tried on the volume opens: this is not the key that it was formatted with, or it is not \
             formatted yet (strongroom volume format), or this copy of the key file is older than that (take \
             the one that it was formatted with, or run: strongroom key record), or it is damaged (strongroom volume recover)",
        )
    }

    fn known_volumes(&self) -> Result<KnownVolumes> {
        let path = known_volumes_path();
        let text = if path.exists() {
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?
        } else {
            String::new()
        };
        KnownVolumes::parse(&text).with_context(|| path.display().to_string())
    }

    /// Another place than these that a volume of this sealing domain was seen at.
    pub(crate) fn seen_elsewhere(&self, domain: SealingDomain, urls: [&VolumeUrl; 2]) -> Result<Option<String>> {
        let known = self.known_volumes()?;
        let places = urls.map(VolumeUrl::place);
        Ok(known.seen_elsewhere(domain, &places.each_ref().map(String::as_str)).map(str::to_owned))
    }

    /// A volume was resealed into another one, which was seen at `next` and has replaced it under its URL.
    pub(crate) fn replace_known(&self, url: &VolumeUrl, next: &VolumeUrl, claims: Option<SealedClaims>) -> Result<()> {
        let mut known = self.known_volumes()?;
        known.forget(&next.place());
        match claims {
            Some(claims) => {
                if let Some(path) = self.key_file.as_deref().filter(|_| claims.custody == Custody::KeyFile) {
                    volume_records::forget_others(path, &[url.file_name()], claims.domain)?;
                }
                known.remember(&url.place(), claims)
            }
            None => known.forget(&url.place()),
        };
        write_known_volumes(&known)
    }

    /// Has the key file, if there is one, record the volume at `url`, if its key is in a file.
    pub(crate) fn record_volume(
        &self,
        url: &VolumeUrl,
        names: &[&str],
        domain: Domain<'_>,
        others: Others,
    ) -> Result<()> {
        let Some(path) = &self.key_file else { return Ok(()) };
        let mut options = self.options(url)?;
        if others == Others::Keep {
            // It has that name for a while only.
            options.expected = ExpectedUnit::default();
        }
        let unit = inquire(options).with_context(|| format!("cannot ask for {url}"))?;
        match unit.sealed {
            Some(sealed) if sealed.claims.custody == Custody::KeyFile => {
                Ok(volume_records::record(path, sealed.claims.domain, names, domain, others)?)
            }
            _ => Ok(()),
        }
    }

    /// With `--forget-volume`, forgets the volume at `url`.
    pub(crate) fn forget_if_asked(&self, url: &VolumeUrl) -> Result<()> {
        if self.forget_volume {
            let mut known = self.known_volumes()?;
            if known.forget(&url.place()) {
                write_known_volumes(&known)?;
            }
        }
        Ok(())
    }
}

impl ChapArgs {
    /// If one was given.
    fn account(&self) -> Result<Option<ChapAccount>> {
        let (Some(name), Some(file)) = (&self.chap_user, &self.chap_secret_file) else { return Ok(None) };
        let ourselves = Credentials { name: name.clone(), secret: keys::read_chap_secret(file)? };
        let target = match &self.chap_target_secret_file {
            Some(file) => {
                let secret = keys::read_chap_secret(file)?;
                if secret == ourselves.secret {
                    bail!("both CHAP secrets are the same, so each side could impersonate the other; change one");
                }
                Some(Credentials { name: self.chap_target_user.clone().unwrap_or_default(), secret })
            }
            None => None,
        };
        Ok(Some(ChapAccount { ourselves, target }))
    }
}

/// What URL or argument says; both only if they say the same.
fn one_of<T: PartialEq + std::fmt::Display>(what: &str, in_url: Option<T>, given: Option<T>) -> Result<Option<T>> {
    match (in_url, given) {
        (Some(in_url), Some(given)) if in_url != given => {
            bail!("the URL says {what} {in_url}, and {given} was asked for beside it; leave one of them out")
        }
        (in_url, given) => Ok(in_url.or(given)),
    }
}

fn known_volumes_path() -> PathBuf {
    config::personal_dir().join("known_volumes")
}

/// Replaces the file as a whole, so that a reader never sees half of it.
fn write_known_volumes(known: &KnownVolumes) -> Result<()> {
    let path = known_volumes_path();
    let directory = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(directory)?;
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(known.to_string().as_bytes())?;
        file.persist(&path)?;
        Ok(())
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

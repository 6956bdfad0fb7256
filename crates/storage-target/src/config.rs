//! The configuration of a target: one TOML file, everything in it checked before anything starts.
//!
//! Reading files (the node key, wrapping keys) is the binary's: this room gets paths and hands them on.

mod busy_poll;
mod channels;
mod limits;
mod portals;
mod suites;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_iscsi::DigestOffer;
use strongroom_metrics::MetricsAddress;
use strongroom_net::BusyPoll;

use crate::access::network::Network;
use crate::error::ConfigError;
use crate::names::{self, VolumeName};
use crate::roles::PeerRole;
pub use limits::Limits;
pub(crate) use portals::Portal;
pub use portals::{FIRST_GROUP, PortalGroupRule};
pub use suites::SuiteRule;

/// The default prefix of target names.
pub const BASE_NAME_DEFAULT: &str = "iqn.2026-11.org.strongroom";

/// What a target needs to know to start.
///
/// It mirrors the top level of the configuration file, one field for each key or table; hence its number of fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The directory with one directory per volume.
    pub root: PathBuf,
    /// Where to listen; plain iSCSI and channels share the port. These portals are group 1.
    #[serde(default = "listen_default")]
    pub listen: Vec<SocketAddr>,
    /// Addresses to tell in discovery, `host:port`; empty: those of `listen`, as the initiator reaches them.
    #[serde(default)]
    pub advertise: Vec<String>,
    /// Further portal groups.
    #[serde(default, rename = "portal_group")]
    pub portal_groups: Vec<PortalGroupRule>,
    /// Where people manage this storage, told to initiators in VPD page 85h; without it there is no such page.
    #[serde(default)]
    pub management_url: Option<String>,
    /// Prefix of target names: a volume's target is `<base_name>:<volume>`.
    #[serde(default = "base_name_default")]
    pub base_name: String,
    /// File with this target's node key, read by the binary. Without it there are no channels, and no sealed volumes.
    #[serde(default)]
    pub node_key: Option<PathBuf>,
    /// The socket for `strongroom status` and the like; default `.admin.sock` in `root`.
    #[serde(default)]
    pub admin_socket: Option<PathBuf>,
    /// Where to answer those who collect metrics; without it nobody is.
    #[serde(default)]
    pub metrics: Option<MetricsAddress>,
    /// Worker threads; default one per processor.
    #[serde(default)]
    pub workers: Option<usize>,
    /// Keep each worker on its processor.
    #[serde(default)]
    pub pin_workers: bool,
    /// Serve sealed volumes over ECL, too: it needs the UDP ports of the same numbers as the TCP ports.
    #[serde(default = "ecl_default")]
    pub ecl: bool,
    /// What lies beneath the workers.
    #[serde(default)]
    pub runtime: RuntimeKind,
    /// Whether workers that have nothing to do look for work for a short while before they sleep.
    #[serde(default, with = "busy_poll")]
    pub busy_poll: BusyPoll,
    /// Bounds on what initiators can take.
    #[serde(default)]
    pub limits: Limits,
    /// The schemes that channels may have, by the paper's names or the ones that say what they do, the preferred one first;
    /// a volume can ask for more than that (see [`Protection`](crate::Protection)).
    #[serde(default = "channels::schemes_default")]
    pub schemes: Vec<String>,
    /// The cipher suites that channels may have, likewise: aes-256-gcm, aes-128-gcm, chacha20-poly1305.
    #[serde(default)]
    pub suites: SuiteRule,
    /// Who may come through a channel.
    #[serde(default, rename = "peer")]
    pub peers: Vec<PeerRule>,
    /// Who may use plain volumes over plain iSCSI.
    #[serde(default, rename = "plain")]
    pub plain: Vec<PlainRule>,
    /// Who can prove itself by CHAP over plain iSCSI.
    #[serde(default)]
    pub chap: Vec<ChapRule>,
    /// The `[[chap]]` users who may ask for targets over plain iSCSI; empty: everybody may.
    #[serde(default)]
    pub discovery_chap: Vec<String>,
    /// CRC32C digests of headers and data over plain iSCSI.
    #[serde(default)]
    pub digests: DigestRule,
    /// Answer `SendTargets=All` in a normal session too, which RFC 7143 forbids and some test suites want.
    #[serde(default)]
    pub send_targets_all: bool,
}

/// What a target says to digests over plain iSCSI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DigestRule {
    /// None: an initiator that insists does without or stays out.
    Never,
    /// As the initiator prefers.
    #[default]
    Allow,
    /// An initiator without is refused.
    Require,
}

impl DigestRule {
    /// As the session machine has it.
    pub(crate) fn offer(self) -> DigestOffer {
        match self {
            DigestRule::Never => DigestOffer::Never,
            DigestRule::Allow => DigestOffer::Allow,
            DigestRule::Require => DigestOffer::Require,
        }
    }
}

/// What lies beneath the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeKind {
    /// The better one, with the other as fallback.
    #[default]
    Auto,
    /// epoll.
    Epoll,
    /// io_uring, or an error.
    IoUring,
}

/// A node that may come through a channel: what a person puts into the file for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerRule {
    /// A name for people and logs.
    pub name: String,
    /// Its public key, as `strongroom identity show` prints it.
    pub key: String,
    /// The iSCSI initiator names that this key may use; `*` for any. Empty: names that end in the key's fingerprint, as those do that our
    /// initiators have unless told otherwise.
    #[serde(default)]
    pub initiators: Vec<String>,
    /// The volumes it may use; `*` for all. A volume can name further peers itself.
    #[serde(default)]
    pub volumes: Vec<String>,
    /// It may read only.
    #[serde(default)]
    pub read_only: bool,
    /// The volumes into which it may send snapshots (`strongroom volume send --to`), independently of `volumes`; `*` for all.
    #[serde(default)]
    pub receive: Vec<String>,
    /// `operator`: it may make, change and delete volumes, and say who may use them, independently of `volumes`.
    #[serde(default, skip_serializing_if = "PeerRole::is_usual")]
    pub role: PeerRole,
}

/// Initiators that may use plain volumes over plain iSCSI. Nothing proves their names but CHAP, and nothing protects what they
/// read and write: use it in trusted networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlainRule {
    /// Initiator names; `*` for any.
    pub initiators: Vec<String>,
    /// Plain volumes; `*` for all.
    pub volumes: Vec<String>,
    /// They may read only.
    #[serde(default)]
    pub read_only: bool,
    /// They must come from one of these addresses or networks (`192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`); empty: from anywhere.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// They must prove to be one of these `[[chap]]` users; empty: nothing is to be proven.
    #[serde(default)]
    pub chap: Vec<String>,
}

/// A user of CHAP. Secrets are in files that only their owner can read; the binary reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChapRule {
    /// The name that the initiator gives (CHAP_N).
    pub user: String,
    /// The file with the secret that it proves.
    pub secret_file: PathBuf,
    /// The name that this target gives to an initiator that has it prove itself; default: `base_name`.
    #[serde(default)]
    pub target_user: Option<String>,
    /// The file with the secret that this target then proves; without it such initiators are refused.
    #[serde(default)]
    pub target_secret_file: Option<PathBuf>,
}

fn listen_default() -> Vec<SocketAddr> {
    vec![SocketAddr::from(([0, 0, 0, 0], strongroom_iscsi::DEFAULT_PORT))]
}

fn ecl_default() -> bool {
    true
}

fn base_name_default() -> String {
    BASE_NAME_DEFAULT.to_owned()
}

impl Config {
    /// The defaults for volumes under `root`: listens everywhere, admits nobody.
    pub fn new(root: impl Into<PathBuf>) -> Config {
        Config {
            root: root.into(),
            listen: listen_default(),
            advertise: Vec::new(),
            portal_groups: Vec::new(),
            management_url: None,
            base_name: base_name_default(),
            node_key: None,
            admin_socket: None,
            metrics: None,
            workers: None,
            pin_workers: false,
            ecl: ecl_default(),
            runtime: RuntimeKind::default(),
            busy_poll: BusyPoll::default(),
            limits: Limits::default(),
            schemes: channels::schemes_default(),
            suites: SuiteRule::default(),
            peers: Vec::new(),
            plain: Vec::new(),
            chap: Vec::new(),
            discovery_chap: Vec::new(),
            digests: DigestRule::default(),
            send_targets_all: false,
        }
    }

    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`], which says where and what to do.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    /// Checks every value. [`Config::parse`] does; call it again after changing values.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.root.as_os_str().is_empty() {
            return Err(ConfigError::value("root", "is empty; name the directory that holds the volumes"));
        }
        if self.listen.is_empty() {
            return Err(ConfigError::value("listen", "is empty; give an address, for instance \"0.0.0.0:3260\""));
        }
        if !names::is_iscsi_name(&self.base_name) || !self.base_name.starts_with("iqn.") {
            let problem = format!("'{}' is no iSCSI name; use for instance \"{BASE_NAME_DEFAULT}\"", self.base_name);
            return Err(ConfigError::value("base_name", problem));
        }
        if self.base_name.len() + 2 * (1 + names::VOLUME_NAME_BYTES_MAX) > strongroom_iscsi::NAME_BYTES_MAX {
            return Err(ConfigError::value("base_name", "is too long to put a volume's name behind it; shorten it"));
        }
        if self.workers == Some(0) {
            return Err(ConfigError::value("workers", "must be at least 1; leave it out for one per processor"));
        }
        for (index, address) in self.advertise.iter().enumerate() {
            check_host_port(address)
                .map_err(|problem| ConfigError::value(format!("advertise[{index}]"), problem.to_string()))?;
        }
        self.check_portals()?;
        if let Some(url) = &self.management_url {
            check_url(url)?;
        }
        self.limits.check()?;
        self.channel_schemes()?;
        self.channel_suites()?;
        self.check_peers()?;
        for (index, rule) in self.plain.iter().enumerate() {
            let at = format!("plain[{index}]");
            check_initiators(&at, &rule.initiators)?;
            check_volumes(&at, "volumes", &rule.volumes)?;
        }
        Ok(())
    }

    /// Takes over from `old` what cannot change while a target runs. Tells which of it would be different.
    pub(crate) fn keep_constants_of(&mut self, old: &Config) -> Vec<String> {
        let mut kept = Vec::new();
        let mut keep = |name: &str, is_same: bool| {
            if !is_same {
                kept.push(name.to_owned());
            }
        };
        keep("root", self.root == old.root);
        keep("listen", self.listen == old.listen);
        keep("portal_group", self.portal_groups == old.portal_groups);
        keep("management_url", self.management_url == old.management_url);
        keep("base_name", self.base_name == old.base_name);
        keep("node_key", self.node_key == old.node_key);
        keep("admin_socket", self.admin_socket == old.admin_socket);
        keep("metrics", self.metrics == old.metrics);
        keep("workers", self.workers == old.workers);
        keep("pin_workers", self.pin_workers == old.pin_workers);
        keep("ecl", self.ecl == old.ecl);
        keep("runtime", self.runtime == old.runtime);
        keep("busy_poll", self.busy_poll == old.busy_poll);
        self.root.clone_from(&old.root);
        self.listen.clone_from(&old.listen);
        self.portal_groups.clone_from(&old.portal_groups);
        self.management_url.clone_from(&old.management_url);
        self.base_name.clone_from(&old.base_name);
        self.node_key.clone_from(&old.node_key);
        self.admin_socket.clone_from(&old.admin_socket);
        self.metrics.clone_from(&old.metrics);
        (self.workers, self.pin_workers, self.runtime) = (old.workers, old.pin_workers, old.runtime);
        self.ecl = old.ecl;
        self.busy_poll = old.busy_poll;
        kept
    }

    /// Names of the settings in which it differs from `old`.
    pub(crate) fn differences(&self, old: &Config) -> Vec<String> {
        let changes = [
            ("advertise", self.advertise != old.advertise),
            ("limits", self.limits != old.limits),
            ("peer", self.peers != old.peers),
            ("plain", self.plain != old.plain),
            ("chap", self.chap != old.chap),
            ("discovery_chap", self.discovery_chap != old.discovery_chap),
            ("digests", self.digests != old.digests),
            ("send_targets_all", self.send_targets_all != old.send_targets_all),
        ];
        changes.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name.to_owned()).collect()
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        for (index, peer) in self.peers.iter().enumerate() {
            let at = format!("peer[{index}] ('{}')", peer.name);
            if peer.name.is_empty() || peer.name.chars().any(char::is_control) {
                return Err(ConfigError::value(at, "needs a name that a person can read in a log"));
            }
            let earlier = &self.peers[..index];
            if earlier.iter().any(|other| other.name == peer.name) {
                return Err(ConfigError::value(at, "there is another peer of this name; give each its own"));
            }
            if earlier.iter().any(|other| other.key.trim() == peer.key.trim()) {
                return Err(ConfigError::value(at, "another peer has the same key; merge the two"));
            }
            if !peer.initiators.is_empty() {
                check_initiators(&at, &peer.initiators)?;
            }
            check_volumes(&at, "volumes", &peer.volumes)?;
            check_volumes(&at, "receive", &peer.receive)?;
        }
        self.check_chap()
    }

    fn check_chap(&self) -> Result<(), ConfigError> {
        for (index, rule) in self.chap.iter().enumerate() {
            let at = format!("chap[{index}]");
            if rule.user.is_empty() || rule.user.len() > strongroom_iscsi::chap::NAME_BYTES_MAX {
                return Err(ConfigError::value(format!("{at}.user"), "must be a name of 1 to 255 bytes"));
            }
            if self.chap[..index].iter().any(|other| other.user == rule.user) {
                return Err(ConfigError::value(
                    format!("{at}.user"),
                    "another [[chap]] has the same user; merge the two",
                ));
            }
        }
        for (index, rule) in self.plain.iter().enumerate() {
            for address in &rule.addresses {
                let at = format!("plain[{index}].addresses");
                address.parse::<Network>().map_err(|problem| ConfigError::value(at, problem.to_string()))?;
            }
        }
        let lists = self.plain.iter().enumerate().map(|(index, rule)| (format!("plain[{index}].chap"), &rule.chap));
        for (at, users) in lists.chain([("discovery_chap".to_owned(), &self.discovery_chap)]) {
            if let Some(unknown) = users.iter().find(|user| !self.chap.iter().any(|rule| rule.user == **user)) {
                let problem = format!("'{}' is the user of no [[chap]]; add one", names::for_log(unknown));
                return Err(ConfigError::value(at, problem));
            }
        }
        Ok(())
    }
}

/// An address that initiators cannot be sent to.
#[derive(Debug, thiserror::Error)]
#[error("'{address}' is not host:port; write for instance \"storage.example:3260\" or \"[2001:db8::1]:3260\"")]
pub struct AddressError {
    address: String,
}

/// Whether it can stand in a TargetAddress.
pub(crate) fn check_host_port(address: &str) -> Result<(), AddressError> {
    let good = |host: &str, port: &str| {
        let named = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
        // RFC 7143 §13.8: an IPv6 address stands in brackets.
        let literal = !host.contains(':') || (host.starts_with('[') && host.ends_with(']'));
        named && literal && port.parse::<u16>().is_ok_and(|port| port != 0)
    };
    match address.rsplit_once(':') {
        Some((host, port)) if good(host, port) => Ok(()),
        _ => Err(AddressError { address: address.to_owned() }),
    }
}

/// Whether it can stand in VPD page 85h.
fn check_url(url: &str) -> Result<(), ConfigError> {
    let fits = url.len() <= strongroom_scsi::inquiry::MANAGEMENT_URL_BYTES_MAX
        && url.bytes().all(|byte| byte.is_ascii_graphic());
    if fits && url.contains("://") {
        return Ok(());
    }
    let problem = "is no URL of at most 255 ASCII characters; write for instance \"https://storage.example/\"";
    Err(ConfigError::value("management_url", problem))
}

fn check_initiators(at: &str, initiators: &[String]) -> Result<(), ConfigError> {
    if initiators.is_empty() {
        let problem = "is empty; list the initiator names (iqn....) that may be used, or \"*\" for any";
        return Err(ConfigError::value(format!("{at}.initiators"), problem));
    }
    match initiators.iter().find(|name| *name != "*" && !names::is_iscsi_name(name)) {
        Some(bad) => {
            let problem = format!(
                "'{}' is no iSCSI name; write for instance \"iqn.2026-11.org.example:host\", in lower case",
                names::for_log(bad)
            );
            Err(ConfigError::value(format!("{at}.initiators"), problem))
        }
        None => Ok(()),
    }
}

fn check_volumes(at: &str, field: &str, volumes: &[String]) -> Result<(), ConfigError> {
    for volume in volumes.iter().filter(|volume| *volume != "*") {
        VolumeName::new(volume).map_err(|error| ConfigError::value(format!("{at}.{field}"), error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
        root = "/srv/volumes"
        listen = ["0.0.0.0:3260", "[::]:3260"]
        advertise = ["storage.example:3260"]
        node_key = "/etc/strongroom/node.key"
        workers = 4
        runtime = "io-uring"

        [limits]
        queue_depth = 64

        [[peer]]
        name = "alice"
        key = "strongroom-ed25519 AAAA"
        initiators = ["iqn.2026-11.org.example:alice"]
        volumes = ["data", "logs"]

        [[plain]]
        initiators = ["*"]
        volumes = ["scratch"]
        read_only = true
        chap = ["backup"]

        [[chap]]
        user = "backup"
        secret_file = "/etc/strongroom/chap/backup"
        target_secret_file = "/etc/strongroom/chap/target"
    "#;

    #[test]
    fn a_full_configuration_reads() {
        let config = Config::parse(FULL).unwrap();
        assert_eq!(config.limits, Limits { queue_depth: 64, ..Limits::default() });
        assert_eq!(config.peers[0].volumes, ["data", "logs"]);
        assert_eq!(config.runtime, RuntimeKind::IoUring);
        assert!(config.plain[0].read_only);
        let again = Config::parse(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn only_the_root_is_needed() {
        let config = Config::parse("root = '/srv'").unwrap();
        assert_eq!(config, Config::new("/srv"));
        assert_eq!(config.listen[0].port(), 3260);
    }

    #[test]
    fn mistakes_say_where() {
        let cases = [
            ("", "root"),
            ("root = '/srv'\nlisen = []", "lisen"),
            ("root = '/srv'\nlisten = []", "listen"),
            ("root = '/srv'\nbase_name = 'host'", "base_name"),
            ("root = '/srv'\nworkers = 0", "workers"),
            ("root = '/srv'\nadvertise = ['x']", "advertise[0]"),
            ("root = '/srv'\nmanagement_url = 'x'", "management_url"),
            ("root = '/srv'\nmetrics = '0.0.0.0:9464'", "loopback"),
            ("root = '/srv'\n[limits]\nqueue_depth = 0", "limits.queue_depth"),
            ("root = '/srv'\n[limits]\nunauthenticated_percent = 101", "limits.unauthenticated_percent"),
            ("root = '/srv'\n[limits]\nmemory_bytes = 1", "limits.memory_bytes"),
            ("root = '/srv'\n[limits]\ndiscovery_timeout_s = 0", "limits.discovery_timeout_s"),
            ("root = '/srv'\n[limits]\nread_memory_bytes = 1", "limits.read_memory_bytes"),
            ("root = '/srv'\n[limits]\nscrub_share = 51", "limits.scrub_share"),
            ("root = '/srv'\n[limits]\nrekey_tags = 0", "limits.rekey_tags"),
            ("root = '/srv'\n[limits]\nrekey_bytes = 68719476737", "limits.rekey_bytes"),
            ("root = '/srv'\n[[plain]]\ninitiators = []\nvolumes = ['a']", "plain[0].initiators"),
            ("root = '/srv'\n[[plain]]\ninitiators = ['Host']\nvolumes = ['a']", "plain[0].initiators"),
            ("root = '/srv'\n[[plain]]\ninitiators = ['*']\nvolumes = ['../a']", "plain[0].volumes"),
            ("root = '/srv'\n[[plain]]\ninitiators = ['*']\nvolumes = ['a']\nchap = ['bob']", "plain[0].chap"),
            (
                "root = '/srv'\n[[plain]]\ninitiators = ['*']\nvolumes = ['a']\naddresses = ['here']",
                "plain[0].addresses",
            ),
            ("root = '/srv'\ndiscovery_chap = ['bob']", "discovery_chap"),
            ("root = '/srv'\n[[chap]]\nuser = ''\nsecret_file = '/s'", "chap[0].user"),
            ("root = '/srv'\n[[peer]]\nname = ''\nkey = 'k'\ninitiators = ['*']", "peer[0]"),
            ("root = '/srv'\n[[peer]]\nname = 'a'\nkey = 'k'\nreceive = ['../a']", "receive"),
        ];
        for (text, place) in cases {
            let message = Config::parse(text).unwrap_err().to_string();
            assert!(message.contains(place), "{text:?}: {message}");
        }
        let twice = "root = '/srv'\n[[peer]]\nname = 'a'\nkey = 'k'\ninitiators = ['*']\n";
        let second = "[[peer]]\nname = 'b'\nkey = 'k'\ninitiators = ['*']\n";
        assert!(Config::parse(&format!("{twice}{second}")).unwrap_err().to_string().contains("same key"));
    }
}

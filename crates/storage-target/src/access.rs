//! Who may use what: node keys bound to initiator names and volumes, and the list for plain iSCSI.

mod chap;
pub(crate) mod network;
mod peers;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use strongroom_handshake::PublicKey;
use strongroom_iscsi::LoginStatus;
use strongroom_iscsi::target::ChapPolicy;

use crate::config::{Config, PeerRule, PlainRule};
use crate::error::ConfigError;
use crate::names::{VolumeName, for_log};
use crate::pairing::{ConfiguredPeers, PairedPeer};
use crate::protection::ProtectionUnmet;
use crate::volume::Volume;
use chap::ChapUsers;
use peers::rule_of;

pub use chap::{ChapDemand, ChapSecrets};
pub use network::{Network, NetworkError};

/// What a connection has proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A channel with the holder of this key.
    Channel(PublicKey),
    /// To be this CHAP user, over plain iSCSI.
    Chap(Arc<str>),
    /// Nothing: plain iSCSI.
    Plain,
}

/// The rules of a configuration, ready to be asked, and the peers that have joined by invitation.
#[derive(Clone, Debug)]
pub struct AccessRules {
    peers: HashMap<PublicKey, PeerRule>,
    /// As the peer database has them.
    database: Arc<[PairedPeer]>,
    /// Of these, those whose name and key the configuration does not have: what it says of a peer is all that counts.
    paired: HashMap<PublicKey, PeerRule>,
    plain: Vec<(PlainRule, Vec<Network>)>,
    chap: ChapUsers,
    discovery_chap: Vec<String>,
}

/// Somebody is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// May not write.
    pub read_only: bool,
}

/// Somebody is not, and why: for the log, where the keeper of the target reads it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The key is in no peer's rule (any more).
    #[error(
        "neither a [[peer]] of the configuration nor one that was invited has this key; invite it (strongroom invite), or add a [[peer]] with the line \
         `key = \"{0}\"`"
    )]
    UnknownPeer(PublicKey),
    /// A known node under another's name.
    #[error(
        "the peer '{peer}' used the initiator name '{initiator}', which its key is not bound to ({bound}); have the name added to the \
         peer's `initiators` if it is right, and look into it if not"
    )]
    ForeignName {
        /// The peer's name in the configuration.
        peer: String,
        /// The name that it used.
        initiator: String,
        /// Which names it is bound to.
        bound: String,
    },
    /// The volume is not for this peer.
    #[error("the peer '{peer}' may not use the volume '{volume}'; add the volume to its `volumes` if it should")]
    NotForPeer {
        /// The peer's name in the configuration.
        peer: String,
        /// The volume.
        volume: String,
    },
    /// The volume is sealed and the session plain.
    #[error(
        "the volume '{volume}' is sealed and refuses plain sessions; attach it with a strongroom:// URL and a node key"
    )]
    SealedNeedsChannel {
        /// The volume.
        volume: String,
    },
    /// The session has less protection than the volume asks for.
    #[error("the volume '{volume}' cannot be used so: {reason}")]
    Unprotected {
        /// The volume.
        volume: String,
        /// What is missing, and which schemes give it.
        reason: ProtectionUnmet,
    },
    /// The rules for this initiator want CHAP.
    #[error(
        "the initiator '{initiator}' has to prove itself by CHAP, as one of the `chap` users of its [[plain]] rule"
    )]
    ChapNeeded {
        /// The name that it used.
        initiator: String,
    },
    /// The volume is not for this initiator.
    #[error(
        "the initiator '{initiator}' may not use the volume '{volume}' over plain iSCSI; add it to a [[plain]] rule or to \
         the volume's `initiators` if it should"
    )]
    NotForInitiator {
        /// The name that it used.
        initiator: String,
        /// The volume.
        volume: String,
    },
}

impl Refusal {
    /// What the initiator is told.
    pub fn status(&self) -> LoginStatus {
        match self {
            Refusal::UnknownPeer(_) | Refusal::ChapNeeded { .. } => LoginStatus::AUTHENTICATION_FAILED,
            _ => LoginStatus::AUTHORIZATION_FAILED,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Channel(key) => key.fmt(f),
            Identity::Chap(user) => write!(f, "CHAP user {}", for_log(user)),
            Identity::Plain => f.write_str("plain"),
        }
    }
}

impl AccessRules {
    /// The rules of a configuration, with the secrets that it names.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a key that is none, or a secret that is missing.
    pub fn new(config: &Config, secrets: &ChapSecrets) -> Result<AccessRules, ConfigError> {
        let mut peers = HashMap::new();
        for (index, rule) in config.peers.iter().enumerate() {
            let at = format!("peer[{index}] ('{}').key", rule.name);
            let key: PublicKey = rule.key.parse().map_err(|error| ConfigError::value(&at, format!("{error}")))?;
            if peers.insert(key, rule.clone()).is_some() {
                return Err(ConfigError::value(at, "another peer has the same key; merge the two"));
            }
        }
        let chap = ChapUsers::new(config, secrets)?;
        let networks = |rule: &PlainRule| {
            let read = rule.addresses.iter().map(|address| address.parse::<Network>());
            read.collect::<Result<_, _>>().map_err(|problem| ConfigError::value("plain.addresses", problem.to_string()))
        };
        let plain =
            config.plain.iter().map(|rule| Ok((rule.clone(), networks(rule)?))).collect::<Result<_, ConfigError>>()?;
        let (database, paired) = (Arc::default(), HashMap::new());
        Ok(AccessRules { peers, database, paired, plain, chap, discovery_chap: config.discovery_chap.clone() })
    }

    /// The same rules with these peers of the database in place of the ones before.
    pub(crate) fn with_database(mut self, database: Arc<[PairedPeer]>) -> AccessRules {
        let counts = database.iter().filter(|peer| !self.overrides(peer));
        self.paired = counts.map(|peer| (peer.key, rule_of(peer))).collect();
        self.database = database;
        self
    }

    /// The peers of the database, those that the configuration overrides included.
    pub(crate) fn database(&self) -> &Arc<[PairedPeer]> {
        &self.database
    }

    /// Whether the configuration has a peer of this one's name or key: then nothing that the database says of it counts.
    pub(crate) fn overrides(&self, peer: &PairedPeer) -> bool {
        self.has_key(&peer.key) || self.has_name(peer.name.as_str())
    }

    /// Whether a node with this key may connect at all.
    pub fn knows(&self, key: &PublicKey) -> bool {
        self.peer(key).is_some()
    }

    fn peer(&self, key: &PublicKey) -> Option<&PeerRule> {
        self.peers.get(key).or_else(|| self.paired.get(key))
    }

    /// Whether the node with this key may send snapshots into any volume.
    pub(crate) fn may_send(&self, key: &PublicKey) -> bool {
        self.peer(key).is_some_and(|peer| !peer.receive.is_empty())
    }

    /// Whether the node with this key may send snapshots into the volume of this name, which need not be there.
    pub fn may_send_into(&self, key: &PublicKey, volume: &VolumeName) -> bool {
        self.peer(key).is_some_and(|peer| lists(&peer.receive, volume.as_str()))
    }

    /// Whether `identity` may call itself `initiator`.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check_name(&self, identity: &Identity, initiator: &str) -> Result<(), Refusal> {
        match identity {
            Identity::Plain | Identity::Chap(_) => Ok(()),
            Identity::Channel(key) => self.peer_under_name(*key, initiator).map(|_| ()),
        }
    }

    /// What an initiator that asks for targets over plain iSCSI has to prove; `None` for nothing.
    pub fn chap_for_discovery(&self) -> Option<ChapDemand> {
        let users = self.discovery_chap.clone();
        (!users.is_empty()).then_some(ChapDemand { users, is_required: true })
    }

    /// What `initiator` has to prove over plain iSCSI before it may use `volume`; `None` for nothing. Where a rule without
    /// CHAP fits too it need not, but may: another rule may allow more.
    pub fn chap_for(&self, from: IpAddr, initiator: &str, volume: &Volume) -> Option<ChapDemand> {
        // As in `admit`: a snapshot is for those whom its volume is for.
        let base = volume.name.volume();
        let rules = || self.rules_for(from, initiator, base.as_str());
        let users: Vec<String> = rules().flat_map(|rule| rule.chap.iter().cloned()).collect();
        let is_required = rules().all(|rule| !rule.chap.is_empty()) && !lists(&volume.access.initiators, initiator);
        (!users.is_empty()).then_some(ChapDemand { users, is_required })
    }

    /// Whether what proves `user` under `old` rules would prove it under these.
    pub fn proves_as(&self, old: &AccessRules, user: &str) -> bool {
        self.chap.secret_of(user).is_some_and(|secret| old.chap.secret_of(user) == Some(secret))
    }

    /// What the session machine needs to see to a demand; `random` must be fresh.
    pub fn chap_policy(&self, demand: &ChapDemand, random: [u8; 33]) -> ChapPolicy {
        self.chap.policy(demand, random)
    }

    fn rules_for<'a>(
        &'a self,
        from: IpAddr,
        initiator: &'a str,
        volume: &'a str,
    ) -> impl Iterator<Item = &'a PlainRule> + Clone {
        let is_from = move |networks: &[Network]| networks.is_empty() || networks.iter().any(|one| one.contains(from));
        let near = self.plain.iter().filter(move |(_, networks)| is_from(networks)).map(|(rule, _)| rule);
        near.filter(move |rule| lists(&rule.initiators, initiator) && lists(&rule.volumes, volume))
    }

    /// Whether `identity`, calling itself `initiator` and coming from an address, may use `volume`.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn admit(
        &self,
        identity: &Identity,
        from: IpAddr,
        initiator: &str,
        volume: &Volume,
    ) -> Result<Admission, Refusal> {
        // A snapshot is for those whom its volume is for.
        let base = volume.name.volume();
        let name = base.as_str();
        let read_only = match identity {
            Identity::Channel(key) => {
                let peer = self.peer_under_name(*key, initiator)?;
                // A successor is only for the node that fills it, never for others by a general rule.
                let is_named = volume.access.peers.contains(&peer.name);
                let may = lists(&peer.volumes, name) || lists(&volume.access.peers, &peer.name);
                if !(if volume.succeeds.is_some() { is_named } else { may }) {
                    return Err(Refusal::NotForPeer { peer: peer.name.clone(), volume: name.to_owned() });
                }
                peer.read_only
            }
            Identity::Plain | Identity::Chap(_) if volume.sealed.is_some() || volume.succeeds.is_some() => {
                return Err(Refusal::SealedNeedsChannel { volume: name.to_owned() });
            }
            Identity::Plain | Identity::Chap(_) => {
                let is_proven = |rule: &&PlainRule| match identity {
                    _ if rule.chap.is_empty() => true,
                    Identity::Chap(user) => rule.chap.iter().any(|listed| **listed == **user),
                    _ => false,
                };
                let mut rules = self.rules_for(from, initiator, name).filter(is_proven);
                let by_volume = lists(&volume.access.initiators, initiator);
                // Several rules may apply: a right to write by one of them is enough.
                match rules.clone().count() {
                    0 if !by_volume => {
                        if self.rules_for(from, initiator, name).next().is_some() {
                            return Err(Refusal::ChapNeeded { initiator: for_log(initiator) });
                        }
                        let initiator = for_log(initiator);
                        return Err(Refusal::NotForInitiator { initiator, volume: name.to_owned() });
                    }
                    _ => !by_volume && rules.all(|rule| rule.read_only),
                }
            }
        };
        let is_still = volume.name.snapshot().is_some() || volume.successor.is_some();
        Ok(Admission { read_only: read_only || volume.access.read_only || is_still })
    }

    /// The name of a peer, for logs.
    pub fn peer_name<'a>(&'a self, identity: &'a Identity) -> Option<&'a str> {
        match identity {
            Identity::Channel(key) => self.peer(key).map(|peer| peer.name.as_str()),
            Identity::Chap(user) => Some(user),
            Identity::Plain => None,
        }
    }

    fn peer_under_name(&self, key: PublicKey, initiator: &str) -> Result<&PeerRule, Refusal> {
        let peer = self.peer(&key).ok_or(Refusal::UnknownPeer(key))?;
        let own = format!(".{}", key.fingerprint());
        let is_bound = match peer.initiators.as_slice() {
            [] => initiator.ends_with(&own),
            listed => lists(listed, initiator),
        };
        if is_bound {
            return Ok(peer);
        }
        let bound = match peer.initiators.as_slice() {
            [] => format!("it may use any that ends in {own}"),
            listed => format!("it may use {}", listed.join(", ")),
        };
        Err(Refusal::ForeignName { peer: peer.name.clone(), initiator: for_log(initiator), bound })
    }
}

impl ConfiguredPeers for AccessRules {
    fn has_name(&self, name: &str) -> bool {
        self.peers.values().any(|peer| peer.name == name)
    }

    fn has_key(&self, key: &PublicKey) -> bool {
        self.peers.contains_key(key)
    }
}

fn lists(list: &[String], name: &str) -> bool {
    list.iter().any(|entry| entry == "*" || entry == name)
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, Custody, Geometry, Mode, SealingDomain, Suite, VolumeId};

    use strongroom_iscsi::chap::Secret;

    use super::*;
    use crate::config::ChapRule;
    use crate::volume::{Access, Sealed};

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7));
    const ALICE_BYTES: [u8; 32] = [1; 32];

    fn volume(name: &str, sealed: bool) -> Volume {
        Volume {
            name: VolumeName::new(name).unwrap(),
            id: VolumeId([1; 16]),
            geometry: Geometry::from_bytes(1 << 20, BlockSize::DEFAULT).unwrap(),
            sealed: sealed.then_some(Sealed {
                custody: Custody::KeyFile,
                domain: SealingDomain([2; 16]),
                suite: Suite::Aes256Gcm,
                mode: Mode::Encrypt,
                epoch: 1,
                wrapping_key: None,
                opened_with: None,
            }),
            retention_percent: 10,
            spare_percent: strongroom_store::CreateOptions::SPARE_PERCENT_DEFAULT,
            medium: strongroom_store::Medium::Directory,
            io: strongroom_store::IoChoice::Auto,
            clone_of: None,
            snapshots: Vec::new(),
            schedule: None,
            successor: None,
            succeeds: None,
            access: Access::default(),
        }
    }

    fn rules() -> AccessRules {
        let mut config = Config::new("/srv");
        config.peers.push(PeerRule {
            name: "alice".into(),
            key: PublicKey::from_bytes(ALICE_BYTES).to_string(),
            initiators: vec!["iqn.2026-11.org.example:alice".into()],
            volumes: vec!["data".into()],
            ..PeerRule::default()
        });
        config.plain.push(PlainRule {
            initiators: vec!["iqn.2026-11.org.example:old".into()],
            volumes: vec!["*".into()],
            read_only: true,
            ..PlainRule::default()
        });
        AccessRules::new(&config, &ChapSecrets::default()).unwrap()
    }

    #[test]
    fn a_key_is_bound_to_its_names_and_volumes() {
        let rules = rules();
        let alice = Identity::Channel(PublicKey::from_bytes(ALICE_BYTES));
        let name = "iqn.2026-11.org.example:alice";
        assert_eq!(rules.admit(&alice, HERE, name, &volume("data", true)), Ok(Admission { read_only: false }));
        // A general rule, or a star, is not enough where the volume is to take another one's place.
        let mut next = Volume { succeeds: VolumeName::new("old").ok(), ..volume("data", true) };
        assert!(
            rules.admit(&alice, HERE, name, &next).is_err()
                && rules.admit(&Identity::Plain, HERE, name, &next).is_err()
        );
        next.access.peers = vec!["*".into()];
        assert!(rules.admit(&alice, HERE, name, &next).is_err());
        next.access.peers = vec!["alice".into()];
        assert!(rules.admit(&alice, HERE, name, &next).is_ok());
        assert!(matches!(
            rules.admit(&alice, HERE, "iqn.2026-11.org.example:bob", &volume("data", true)),
            Err(Refusal::ForeignName { .. })
        ));
        assert!(matches!(rules.admit(&alice, HERE, name, &volume("other", true)), Err(Refusal::NotForPeer { .. })));
        let mut other = volume("other", false);
        other.access.peers.push("alice".into());
        assert!(rules.admit(&alice, HERE, name, &other).is_ok());
        let stranger = Identity::Channel(PublicKey::from_bytes([9; 32]));
        assert!(matches!(rules.admit(&stranger, HERE, name, &volume("data", true)), Err(Refusal::UnknownPeer(_))));
    }

    #[test]
    fn a_peer_without_listed_names_has_those_with_its_fingerprint() {
        let mut config = Config::new("/srv");
        for (name, bytes) in [("alice", ALICE_BYTES), ("bob", [2; 32])] {
            let key = PublicKey::from_bytes(bytes).to_string();
            let (initiators, volumes) = (Vec::new(), vec!["data".into()]);
            config.peers.push(PeerRule { name: name.into(), key, initiators, volumes, ..PeerRule::default() });
        }
        config.check().unwrap();
        let rules = AccessRules::new(&config, &ChapSecrets::default()).unwrap();
        let alice = Identity::Channel(PublicKey::from_bytes(ALICE_BYTES));
        let named =
            |bytes| format!("iqn.2026-11.org.strongroom:initiator.host.{}", PublicKey::from_bytes(bytes).fingerprint());
        assert!(rules.admit(&alice, HERE, &named(ALICE_BYTES), &volume("data", true)).is_ok());
        for foreign in [
            named([2; 32]),
            "iqn.2026-11.org.strongroom:initiator.host".into(),
            "iqn.2026-11.org.strongroom:0101010101010101".into(),
        ] {
            let refusal = rules.admit(&alice, HERE, &foreign, &volume("data", true)).unwrap_err();
            assert!(refusal.to_string().contains("any that ends in .0101010101010101"), "{foreign}: {refusal}");
        }
    }

    #[test]
    fn what_the_configuration_says_of_a_peer_overrides_the_database() {
        let paired = |name: &str, byte| PairedPeer {
            name: name.parse().unwrap(),
            key: PublicKey::from_bytes([byte; 32]),
            volumes: vec!["*".into()],
            read_only: false,
            role: crate::roles::PeerRole::Operator,
            since: 0,
        };
        // Another node of alice's name, alice's key under another name, and one of its own.
        let database: Arc<[PairedPeer]> = vec![paired("alice", 7), paired("other", 1), paired("bob", 2)].into();
        let rules = rules().with_database(Arc::clone(&database));
        let operators = [1, 2, 7].map(|byte| rules.operator(&PublicKey::from_bytes([byte; 32])));
        assert_eq!(operators, [None, Some("bob"), None]);
        let named = |byte| {
            format!("iqn.2026-11.org.strongroom:initiator.host.{}", PublicKey::from_bytes([byte; 32]).fingerprint())
        };
        let admit = |byte, name: &str, volume_name: &str| {
            let identity = Identity::Channel(PublicKey::from_bytes([byte; 32]));
            rules.admit(&identity, HERE, name, &volume(volume_name, true))
        };
        assert!(!rules.knows(&PublicKey::from_bytes([7; 32])));
        assert!(matches!(admit(7, &named(7), "data"), Err(Refusal::UnknownPeer(_))));
        let alice = "iqn.2026-11.org.example:alice";
        assert!(admit(1, alice, "data").is_ok() && matches!(admit(1, alice, "x"), Err(Refusal::NotForPeer { .. })));
        assert_eq!(admit(2, &named(2), "x"), Ok(Admission { read_only: false }));
        assert!(matches!(admit(2, alice, "x"), Err(Refusal::ForeignName { .. })));
        assert_eq!(rules.peer_name(&Identity::Channel(PublicKey::from_bytes([2; 32]))), Some("bob"));
        let overridden: Vec<bool> = database.iter().map(|peer| rules.overrides(peer)).collect();
        assert_eq!(overridden, [true, true, false]);
    }

    #[test]
    fn plain_sessions_get_what_the_list_says_and_never_a_sealed_volume() {
        let rules = rules();
        let old = "iqn.2026-11.org.example:old";
        assert_eq!(rules.admit(&Identity::Plain, HERE, old, &volume("x", false)), Ok(Admission { read_only: true }));
        let refusal = rules.admit(&Identity::Plain, HERE, old, &volume("x", true)).unwrap_err();
        assert!(refusal.to_string().contains("strongroom://"), "{refusal}");
        assert_eq!(refusal.status(), LoginStatus::AUTHORIZATION_FAILED);
        let new = "iqn.2026-11.org.example:new";
        assert!(matches!(
            rules.admit(&Identity::Plain, HERE, new, &volume("x", false)),
            Err(Refusal::NotForInitiator { .. })
        ));
        let mut open = volume("x", false);
        open.access.initiators.push("*".into());
        assert_eq!(rules.admit(&Identity::Plain, HERE, new, &open), Ok(Admission { read_only: false }));
        open.access.read_only = true;
        assert_eq!(rules.admit(&Identity::Plain, HERE, new, &open), Ok(Admission { read_only: true }));
    }

    #[test]
    fn a_key_that_is_none_says_where() {
        let mut config = Config::new("/srv");
        config.peers.push(PeerRule {
            name: "alice".into(),
            key: "ssh-ed25519 AAAA".into(),
            initiators: vec!["*".into()],
            volumes: vec![],
            ..PeerRule::default()
        });
        let message = AccessRules::new(&config, &ChapSecrets::default()).unwrap_err().to_string();
        assert!(message.contains("peer[0] ('alice').key"), "{message}");
    }

    fn with_chap(bobs: Option<(&[u8], Option<&[u8]>)>) -> Result<AccessRules, ConfigError> {
        let mut config = Config::new("/srv");
        let rule = |volumes: &str, chap: &[&str], read_only| PlainRule {
            initiators: vec!["*".into()],
            volumes: vec![volumes.into()],
            read_only,
            addresses: Vec::new(),
            chap: chap.iter().map(|user| (*user).to_owned()).collect(),
        };
        config.plain = vec![rule("x", &["bob"], false), rule("y", &[], true), rule("y", &["bob"], false)];
        config.chap = vec![ChapRule { user: "bob".into(), ..ChapRule::default() }];
        config.discovery_chap = vec!["bob".into()];
        let mut read = ChapSecrets::default();
        if let Some((secret, target)) = bobs {
            let of = |bytes: &[u8]| Secret::new(bytes).unwrap();
            read.insert("bob", of(secret), target.map(of));
        }
        AccessRules::new(&config, &read)
    }

    #[test]
    fn chap_is_wanted_where_every_rule_wants_it() {
        let rules = with_chap(Some((b"the secret of bob", None))).unwrap();
        let (bob, eve) = (Identity::Chap("bob".into()), Identity::Chap("eve".into()));
        let initiator = "iqn.2026-11.org.example:any";
        let demand = |is_required| Some(ChapDemand { users: vec!["bob".into()], is_required });
        assert_eq!(rules.chap_for_discovery(), demand(true));
        let (mut x, y) = (volume("x", false), volume("y", false));
        assert_eq!(rules.chap_for(HERE, initiator, &x), demand(true));
        assert_eq!(rules.chap_for(HERE, initiator, &y), demand(false));
        assert_eq!(rules.chap_for(HERE, initiator, &volume("z", false)), None);
        let may_write = Ok(Admission { read_only: false });
        assert_eq!(rules.admit(&bob, HERE, initiator, &x), may_write);
        for nobody in [Identity::Plain, eve] {
            let refusal = rules.admit(&nobody, HERE, initiator, &x).unwrap_err();
            assert_eq!(refusal.status(), LoginStatus::AUTHENTICATION_FAILED, "{refusal}");
            assert_eq!(rules.admit(&nobody, HERE, initiator, &y), Ok(Admission { read_only: true }));
        }
        assert_eq!(rules.admit(&bob, HERE, initiator, &y), may_write);
        assert!(rules.admit(&bob, HERE, initiator, &volume("x", true)).is_err(), "CHAP is no channel");
        let monday = x.as_snapshot(&x.name.at(&VolumeName::new("monday").unwrap()));
        assert_eq!(rules.chap_for(HERE, initiator, &monday), demand(true), "what `admit` then asks for");
        x.access.initiators.push("*".into());
        assert_eq!(rules.chap_for(HERE, initiator, &x), demand(false));
    }

    #[test]
    fn secrets_must_be_there_and_differ() {
        let message = with_chap(None).unwrap_err().to_string();
        assert!(message.contains("chap[0] ('bob').secret_file"), "{message}");
        let same: &[u8] = b"one secret for both";
        let message = with_chap(Some((same, Some(same)))).unwrap_err().to_string();
        assert!(message.contains("target_secret_file"), "{message}");
    }

    #[test]
    fn a_rule_may_be_for_some_addresses() {
        let mut config = Config::new("/srv");
        let mut rule = PlainRule { initiators: vec!["*".into()], volumes: vec!["*".into()], ..PlainRule::default() };
        rule.addresses = vec!["192.0.2.0/24".into(), "2001:db8::1".into()];
        config.plain.push(rule);
        let rules = AccessRules::new(&config, &ChapSecrets::default()).unwrap();
        let from = |address: &str| {
            rules
                .admit(&Identity::Plain, address.parse().unwrap(), "iqn.2026-11.org.example:x", &volume("x", false))
                .is_ok()
        };
        assert!(from("192.0.2.200") && from("2001:db8::1"));
        assert!(!from("198.51.100.1") && !from("2001:db8::2"));
    }
}

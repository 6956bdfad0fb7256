//! What peers are, besides what they may use: operators, and those that the database has.

use strongroom_handshake::PublicKey;

use super::{AccessRules, lists};
use crate::config::PeerRule;
use crate::pairing::PairedPeer;
use crate::roles::PeerRole;
use crate::volume::Volume;

impl AccessRules {
    /// The name of the node with this key, if it is an operator.
    pub(crate) fn operator(&self, key: &PublicKey) -> Option<&str> {
        self.peer(key).filter(|peer| peer.role == PeerRole::Operator).map(|peer| peer.name.as_str())
    }

    /// Whether there is a peer of this name.
    pub(crate) fn has_peer(&self, name: &str) -> bool {
        self.rule_of_name(name).is_some()
    }

    /// By what the peer of this name may use a volume, if it may; for people.
    pub(crate) fn right_of(&self, name: &str, volume: &Volume) -> Option<&'static str> {
        let rule = self.rule_of_name(name)?;
        let is_configured = self.peers.values().any(|peer| peer.name == name);
        match (lists(&rule.volumes, volume.name.as_str()), is_configured) {
            (true, true) => Some("its [[peer]] in the configuration says so; change it there, then: strongroom reload"),
            (true, false) => Some("it may use every volume ('*'); to end that: strongroom peer deny NAME --volume '*'"),
            (false, _) => lists(&volume.access.peers, name).then_some("the volume says so (strongroom volume access)"),
        }
    }

    fn rule_of_name(&self, name: &str) -> Option<&PeerRule> {
        self.peers.values().chain(self.paired.values()).find(|peer| peer.name == name)
    }
}

/// What the database says of a peer, as the configuration would. It logs in by names that end in its key's fingerprint.
pub(super) fn rule_of(peer: &PairedPeer) -> PeerRule {
    PeerRule {
        name: peer.name.to_string(),
        key: peer.key.to_string(),
        initiators: Vec::new(),
        volumes: peer.volumes.clone(),
        read_only: peer.read_only,
        receive: Vec::new(),
        role: peer.role,
    }
}

//! The peer database in use: which invitations and peers there may be, and what each change does to them. Every change is on the disk before
//! anything comes of it.
//!
//! Absent: connections, and what the configuration says, of which the callers bring the names and keys.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use strongroom_handshake::{PairingBinding, PairingKey, PairingProof, PublicKey};

use super::database::{InvitationRecord, PairedPeer, PeerDatabase};
use super::error::{PairingError, PeerDatabaseError};
use super::message::PairingRefusal;
use super::names::PeerName;
use super::{DATABASE_NAME, EXPIRES_S_MAX, EXPIRES_S_MIN, INVITATIONS_MAX, PEERS_MAX, REMEMBERED_S, VOLUMES_MAX};
use crate::roles::PeerRole;

/// What an administrator wants to have taken up.
pub(crate) struct NewInvitation {
    pub(crate) name: PeerName,
    /// Checked; `*` for all.
    pub(crate) volumes: Vec<String>,
    pub(crate) read_only: bool,
    pub(crate) role: PeerRole,
    /// For how long.
    pub(crate) expires_s: u64,
    pub(crate) key: PairingKey,
}

/// The peers of the configuration: a name or key that is there is not taken a second time.
pub(crate) trait ConfiguredPeers {
    fn has_name(&self, name: &str) -> bool;
    fn has_key(&self, key: &PublicKey) -> bool;
}

/// What became of a node that took up an invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joining {
    pub(crate) peer: PairedPeer,
    /// It had joined before, and asks again.
    pub(crate) was_joined: bool,
}

/// A change of one peer.
pub(crate) enum PeerChange {
    Remove,
    Rename(PeerName),
    /// It may use these volumes, too, and from now on only read, or write.
    Allow {
        volumes: Vec<String>,
        read_only: Option<bool>,
    },
    /// It may not use these any more.
    Deny(Vec<String>),
    Role(PeerRole),
}

/// The database of a running target.
#[derive(Debug)]
pub(crate) struct PeerRegistry {
    path: PathBuf,
    database: Mutex<PeerDatabase>,
    /// Until when an invitation is remembered; asked for each connection.
    invites_until: AtomicU64,
}

impl PeerRegistry {
    /// Reads the database among the volumes of `root`.
    pub(crate) fn open(root: &Path) -> Result<PeerRegistry, PeerDatabaseError> {
        let path = root.join(DATABASE_NAME);
        let database = PeerDatabase::read(&path)?;
        let invites_until = AtomicU64::new(remembered_until(&database));
        Ok(PeerRegistry { path, database: Mutex::new(database), invites_until })
    }

    pub(crate) fn peers(&self) -> Arc<[PairedPeer]> {
        self.database().peers.clone().into()
    }

    /// Those that can still be used.
    pub(crate) fn invitations(&self, now_s: u64) -> Vec<InvitationRecord> {
        let open = |invitation: &&InvitationRecord| invitation.is_open(now_s);
        self.database().invitations.iter().filter(open).cloned().collect()
    }

    /// Whether a node that nobody knows may come and say that it was invited.
    pub(crate) fn is_inviting(&self, now_s: u64) -> bool {
        now_s < self.invites_until.load(Ordering::Relaxed)
    }

    /// Gives out an invitation. Returns when it expires.
    pub(crate) fn invite(
        &self,
        new: NewInvitation,
        configured: &dyn ConfiguredPeers,
        now_s: u64,
    ) -> Result<u64, PairingError> {
        if !(EXPIRES_S_MIN..=EXPIRES_S_MAX).contains(&new.expires_s) {
            return Err(PairingError::Expiry);
        }
        check_volume_count(&new.volumes, new.role)?;
        self.change(|database| {
            let name = new.name.to_string();
            if configured.has_name(&name) {
                return Err(PairingError::Configured { name });
            }
            if database.peers.iter().any(|peer| peer.name == new.name) {
                return Err(PairingError::NameTaken { name });
            }
            if database.invitations.iter().any(|other| other.name == new.name && other.is_open(now_s)) {
                return Err(PairingError::Invited { name });
            }
            database.forget(now_s);
            database.make_room(now_s)?;
            let expires_at = now_s + new.expires_s;
            database.invitations.push(InvitationRecord {
                name: new.name,
                volumes: new.volumes,
                read_only: new.read_only,
                role: new.role,
                expires_at,
                key: new.key,
                used_by: None,
            });
            Ok(expires_at)
        })
    }

    /// Ends an invitation that nobody has used.
    pub(crate) fn revoke(&self, name: &PeerName, now_s: u64) -> Result<(), PairingError> {
        self.change(|database| {
            let before = database.invitations.len();
            database.invitations.retain(|invitation| invitation.name != *name || !invitation.is_open(now_s));
            match database.invitations.len() == before {
                true => Err(PairingError::NotInvited { name: name.to_string() }),
                false => Ok(()),
            }
        })
    }

    /// A node with this key brings a proof. Which invitation it is of, if any, is found by trying all of them: an invitation that is not there
    /// is answered as one whose proof is wrong, and as late. The same node gets the same answer again.
    pub(crate) fn join(
        &self,
        node: PublicKey,
        proof: &PairingProof,
        binding: &PairingBinding,
        configured: &dyn ConfiguredPeers,
        now_s: u64,
    ) -> Result<Joining, PairingRefusal> {
        let mut database = self.database();
        let mut found = None;
        for (index, invitation) in database.invitations.iter().enumerate() {
            if invitation.key.is_proven_by(proof, binding) {
                found = Some(index);
            }
        }
        let invitation = found.map(|index| &database.invitations[index]).ok_or(PairingRefusal::NotValid)?;
        let known = database.peers.iter().find(|peer| peer.key == node);
        match (invitation.used_by, known) {
            (Some(user), Some(peer)) if user == node => return Ok(Joining { peer: peer.clone(), was_joined: true }),
            (Some(_), _) => return Err(PairingRefusal::Used),
            (None, _) if now_s >= invitation.expires_at => return Err(PairingRefusal::Expired),
            (None, Some(_)) => return Err(PairingRefusal::KnownNode),
            (None, None) if configured.has_key(&node) => return Err(PairingRefusal::KnownNode),
            (None, None) => {}
        }
        let is_taken = database.peers.iter().any(|peer| peer.name == invitation.name);
        if is_taken || configured.has_name(invitation.name.as_str()) {
            return Err(PairingRefusal::NameTaken);
        }
        if database.peers.len() >= PEERS_MAX {
            return Err(PairingRefusal::Full);
        }
        let peer = PairedPeer {
            name: invitation.name.clone(),
            key: node,
            volumes: invitation.volumes.clone(),
            read_only: invitation.read_only,
            role: invitation.role,
            since: now_s,
        };
        let mut next = database.clone();
        next.peers.push(peer.clone());
        next.invitations[found.expect("looked at above")].used_by = Some(node);
        if let Err(error) = self.replace(&mut database, next) {
            tracing::error!(%error, "a node was invited, and cannot be noted");
            return Err(PairingRefusal::Failed);
        }
        Ok(Joining { peer, was_joined: false })
    }

    /// Changes one peer.
    pub(crate) fn change_peer(
        &self,
        name: &str,
        change: PeerChange,
        configured: &dyn ConfiguredPeers,
    ) -> Result<(), PairingError> {
        self.change(|database| {
            let at = database.peers.iter().position(|peer| peer.name.as_str() == name).ok_or_else(|| {
                let name = crate::names::for_log(name);
                if configured.has_name(&name) {
                    PairingError::Configured { name }
                } else {
                    PairingError::Missing { name }
                }
            })?;
            match change {
                PeerChange::Remove => drop(database.peers.remove(at)),
                PeerChange::Rename(to) => {
                    let is_taken = database.peers.iter().any(|peer| peer.name == to);
                    if is_taken || configured.has_name(to.as_str()) {
                        return Err(PairingError::NameTaken { name: to.to_string() });
                    }
                    database.peers[at].name = to;
                }
                PeerChange::Allow { volumes, read_only } => {
                    let peer = &mut database.peers[at];
                    let more = volumes.into_iter().filter(|volume| !peer.volumes.contains(volume)).collect::<Vec<_>>();
                    peer.volumes.extend(more);
                    peer.read_only = read_only.unwrap_or(peer.read_only);
                    check_volume_count(&peer.volumes, peer.role)?;
                }
                PeerChange::Deny(volumes) => {
                    if volumes.is_empty() {
                        return Err(PairingError::NoVolumes);
                    }
                    database.peers[at].volumes.retain(|volume| !volumes.contains(volume));
                }
                PeerChange::Role(role) => database.peers[at].role = role,
            }
            Ok(())
        })
    }

    fn database(&self) -> MutexGuard<'_, PeerDatabase> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One change at a time; on the disk before it counts, and not at all if it cannot be.
    fn change<T>(&self, change: impl FnOnce(&mut PeerDatabase) -> Result<T, PairingError>) -> Result<T, PairingError> {
        let mut database = self.database();
        let mut next = database.clone();
        let outcome = change(&mut next)?;
        self.replace(&mut database, next)?;
        Ok(outcome)
    }

    fn replace(&self, database: &mut PeerDatabase, next: PeerDatabase) -> Result<(), PeerDatabaseError> {
        next.write(&self.path)?;
        *database = next;
        self.invites_until.store(remembered_until(database), Ordering::Relaxed);
        Ok(())
    }
}

impl InvitationRecord {
    /// Whether it can be used.
    fn is_open(&self, now_s: u64) -> bool {
        self.used_by.is_none() && now_s < self.expires_at
    }

    fn remembered_until(&self) -> u64 {
        self.expires_at.saturating_add(REMEMBERED_S)
    }
}

impl PeerDatabase {
    /// Lets go what is not remembered any longer.
    fn forget(&mut self, now_s: u64) {
        self.invitations.retain(|invitation| now_s < invitation.remembered_until());
    }

    /// What cannot be used makes way, the oldest first.
    fn make_room(&mut self, now_s: u64) -> Result<(), PairingError> {
        if self.invitations.len() < INVITATIONS_MAX {
            return Ok(());
        }
        let over = self.invitations.iter().position(|invitation| !invitation.is_open(now_s));
        let over = over.ok_or(PairingError::TooMany { what: "invitations", limit: INVITATIONS_MAX })?;
        self.invitations.remove(over);
        Ok(())
    }
}

fn remembered_until(database: &PeerDatabase) -> u64 {
    database.invitations.iter().map(InvitationRecord::remembered_until).max().unwrap_or(0)
}

/// An operator need not use any volume.
fn check_volume_count(volumes: &[String], role: PeerRole) -> Result<(), PairingError> {
    match volumes.len() {
        0 if role == PeerRole::Initiator => Err(PairingError::NoVolumes),
        count if count > VOLUMES_MAX => Err(PairingError::TooMany { what: "volumes of one peer", limit: VOLUMES_MAX }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use strongroom_handshake::PairingSecret;

    use super::*;

    const NOW: u64 = 1_795_900_000;

    /// A configuration with one peer, 'configured'.
    struct OneConfigured;

    impl ConfiguredPeers for OneConfigured {
        fn has_name(&self, name: &str) -> bool {
            name == "configured"
        }

        fn has_key(&self, key: &PublicKey) -> bool {
            *key == node(0xcc)
        }
    }

    fn node(byte: u8) -> PublicKey {
        PublicKey::from_bytes([byte; PublicKey::BYTES])
    }

    fn key(byte: u8) -> PairingKey {
        PairingSecret::from_bytes([byte; PairingSecret::BYTES]).key()
    }

    fn registry() -> (tempfile::TempDir, PeerRegistry) {
        let dir = tempfile::tempdir().unwrap();
        let registry = PeerRegistry::open(dir.path()).unwrap();
        (dir, registry)
    }

    fn invite(registry: &PeerRegistry, name: &str, secret: u8, now_s: u64) -> Result<u64, PairingError> {
        let (volumes, key) = (vec!["vault".into()], key(secret));
        let role = PeerRole::Initiator;
        let new = NewInvitation { name: name.parse().unwrap(), volumes, read_only: false, role, expires_s: 3600, key };
        registry.invite(new, &OneConfigured, now_s)
    }

    fn join(registry: &PeerRegistry, who: u8, secret: u8, now_s: u64) -> Result<Joining, PairingRefusal> {
        let binding = PairingBinding::new(&[who; 32], node(who), node(0x7a));
        registry.join(node(who), &key(secret).prove(&binding), &binding, &OneConfigured, now_s)
    }

    #[test]
    fn an_invitation_is_for_one_node_which_may_ask_again() {
        let (dir, registry) = registry();
        assert!(!registry.is_inviting(NOW));
        assert_eq!(invite(&registry, "alice", 1, NOW).unwrap(), NOW + 3600);
        assert!(registry.is_inviting(NOW) && registry.invitations(NOW).len() == 1);
        let joined = join(&registry, 0xa1, 1, NOW + 1).unwrap();
        assert_eq!((joined.peer.name.as_str(), joined.peer.key, joined.was_joined), ("alice", node(0xa1), false));
        assert!(registry.invitations(NOW + 1).is_empty());
        // After a restart, and after it would have expired, too.
        let again = PeerRegistry::open(dir.path()).unwrap();
        assert!(join(&again, 0xa1, 1, NOW + 4000).unwrap().was_joined);
        assert_eq!(again.peers().len(), 1);
        assert_eq!(join(&again, 0xb0, 1, NOW + 2), Err(PairingRefusal::Used));
        assert!(!again.is_inviting(NOW + 3600 + REMEMBERED_S));
    }

    #[test]
    fn attack_pairing_guessed_expired_and_revoked_invitations() {
        let (_dir, registry) = registry();
        invite(&registry, "alice", 1, NOW).unwrap();
        assert_eq!(join(&registry, 0xa1, 2, NOW), Err(PairingRefusal::NotValid));
        assert_eq!(join(&registry, 0xa1, 1, NOW + 3600), Err(PairingRefusal::Expired));
        registry.revoke(&"alice".parse().unwrap(), NOW).unwrap();
        // No word of what there was.
        assert_eq!(join(&registry, 0xa1, 1, NOW), Err(PairingRefusal::NotValid));
        assert!(matches!(registry.revoke(&"alice".parse().unwrap(), NOW), Err(PairingError::NotInvited { .. })));
        assert!(registry.peers().is_empty());
    }

    #[test]
    fn attack_pairing_a_removed_peer_does_not_come_back_with_its_invitation() {
        let (_dir, registry) = registry();
        invite(&registry, "alice", 1, NOW).unwrap();
        join(&registry, 0xa1, 1, NOW).unwrap();
        registry.change_peer("alice", PeerChange::Remove, &OneConfigured).unwrap();
        assert_eq!(join(&registry, 0xa1, 1, NOW), Err(PairingRefusal::Used));
    }

    #[test]
    fn names_and_keys_are_taken_once() {
        let (_dir, registry) = registry();
        let configured = invite(&registry, "configured", 1, NOW).unwrap_err().to_string();
        assert!(configured.contains("[[peer]]") && configured.contains("reload"), "{configured}");
        invite(&registry, "alice", 1, NOW).unwrap();
        assert!(matches!(invite(&registry, "alice", 2, NOW), Err(PairingError::Invited { .. })));
        assert_eq!(join(&registry, 0xcc, 1, NOW), Err(PairingRefusal::KnownNode), "the configuration has its key");
        join(&registry, 0xa1, 1, NOW).unwrap();
        assert!(matches!(invite(&registry, "alice", 3, NOW), Err(PairingError::NameTaken { .. })));
        invite(&registry, "bob", 4, NOW).unwrap();
        assert_eq!(join(&registry, 0xa1, 4, NOW), Err(PairingRefusal::KnownNode));
        // That used nothing up.
        join(&registry, 0xb0, 4, NOW).unwrap();
        let rename = |to: &str| PeerChange::Rename(to.parse().unwrap());
        for taken in ["alice", "configured"] {
            let refused = registry.change_peer("bob", rename(taken), &OneConfigured);
            assert!(matches!(refused, Err(PairingError::NameTaken { .. })));
        }
        registry.change_peer("bob", rename("robert"), &OneConfigured).unwrap();
        let missing = registry.change_peer("bob", PeerChange::Remove, &OneConfigured).unwrap_err();
        assert!(matches!(missing, PairingError::Missing { .. }));
        let configured = registry.change_peer("configured", PeerChange::Remove, &OneConfigured).unwrap_err();
        assert!(configured.to_string().contains("reload"), "{configured}");
    }

    #[test]
    fn invitations_are_bounded_and_what_is_over_makes_way() {
        let (_dir, registry) = registry();
        for number in 0..INVITATIONS_MAX {
            invite(&registry, &format!("n{number}"), number as u8, NOW).unwrap();
        }
        assert!(matches!(invite(&registry, "more", 100, NOW), Err(PairingError::TooMany { .. })));
        join(&registry, 0xa1, 7, NOW).unwrap();
        invite(&registry, "more", 100, NOW).unwrap();
        assert_eq!(registry.database().invitations.len(), INVITATIONS_MAX);
        // Much later nothing of them is left.
        invite(&registry, "last", 101, NOW + 3600 + REMEMBERED_S).unwrap();
        assert_eq!(registry.database().invitations.len(), 1);
    }

    #[test]
    fn what_cannot_be_written_does_not_count() {
        let (dir, registry) = registry();
        invite(&registry, "alice", 1, NOW).unwrap();
        std::fs::remove_dir_all(dir.path()).unwrap();
        assert_eq!(join(&registry, 0xa1, 1, NOW), Err(PairingRefusal::Failed));
        assert!(matches!(invite(&registry, "bob", 2, NOW), Err(PairingError::Database(_))));
        std::fs::create_dir(dir.path()).unwrap();
        assert!(!join(&registry, 0xa1, 1, NOW).unwrap().was_joined);
    }

    #[test]
    fn rights_are_given_and_taken() {
        let (_dir, registry) = registry();
        invite(&registry, "alice", 1, NOW).unwrap();
        join(&registry, 0xa1, 1, NOW).unwrap();
        let change = |change| registry.change_peer("alice", change, &OneConfigured);
        change(PeerChange::Allow { volumes: vec!["vault".into(), "logs".into()], read_only: Some(true) }).unwrap();
        assert_eq!(
            (&registry.peers()[0].volumes[..], registry.peers()[0].read_only),
            (&["vault".to_owned(), "logs".into()][..], true)
        );
        change(PeerChange::Deny(vec!["vault".into()])).unwrap();
        assert_eq!(registry.peers()[0].volumes, ["logs"]);
        let many = (0..VOLUMES_MAX).map(|number| format!("v{number}")).collect();
        assert!(matches!(
            change(PeerChange::Allow { volumes: many, read_only: None }),
            Err(PairingError::TooMany { .. })
        ));
        assert!(matches!(change(PeerChange::Deny(Vec::new())), Err(PairingError::NoVolumes)));
    }
}

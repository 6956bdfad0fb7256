//! The sessions that use a unit: their nexuses, whether they may write, and their pending unit attentions. Also nexuses whose session has
//! ended while tasks of theirs are still executing.

use rustc_hash::FxHashMap;
use strongroom_scsi::{NexusId, Sense, UnitAttention, UnitAttentions};

use super::task::SessionKey;
use crate::access::Identity;
use crate::open_units::Origin;

/// A session that uses the unit.
pub(super) struct User {
    pub(super) nexus: NexusId,
    /// The proven identity: a nexus consists of names that any initiator can claim.
    pub(super) origin: Origin,
    pub(super) read_only: bool,
    /// Its initiator has logged out: it does not come back for what it saw.
    pub(super) has_logged_out: bool,
    pub(super) attentions: UnitAttentions,
}

/// All sessions of a unit.
#[derive(Default)]
pub(crate) struct Users {
    active: FxHashMap<SessionKey, User>,
    /// Sessions that have ended while tasks of theirs are executing.
    leaving: FxHashMap<SessionKey, NexusId>,
}

impl Users {
    pub(super) fn attach(&mut self, key: SessionKey, nexus: NexusId, origin: Origin, read_only: bool) {
        let attentions = UnitAttentions::at_power_on();
        let user = User { nexus, origin, read_only, has_logged_out: false, attentions };
        self.active.insert(key, user);
    }

    pub(super) fn detach(&mut self, key: SessionKey) -> Option<User> {
        self.active.remove(&key)
    }

    /// A session has ended, and tasks of it are executing.
    pub(super) fn leave(&mut self, key: SessionKey, nexus: NexusId) {
        self.leaving.insert(key, nexus);
    }

    /// Drops the ended sessions for which `has_tasks` is false.
    pub(super) fn drop_left(&mut self, has_tasks: impl Fn(SessionKey) -> bool) {
        if !self.leaving.is_empty() {
            self.leaving.retain(|key, _| has_tasks(*key));
        }
    }

    pub(super) fn get(&self, key: SessionKey) -> Option<&User> {
        self.active.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: SessionKey) -> Option<&mut User> {
        self.active.get_mut(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionKey, &User)> {
        self.active.iter().map(|(key, user)| (*key, user))
    }

    pub(super) fn nexus(&self, key: SessionKey) -> Option<&NexusId> {
        self.active.get(&key).map(|user| &user.nexus)
    }

    /// Every session of a nexus, ended ones that have tasks executing included.
    pub(super) fn of_nexus(&self, nexus: &NexusId) -> Vec<SessionKey> {
        let active = self.active.iter().map(|(key, user)| (key, &user.nexus));
        active.chain(&self.leaving).filter(|(_, its)| *its == nexus).map(|(key, _)| *key).collect()
    }

    /// The ended sessions that have tasks executing.
    pub(super) fn leaving(&self) -> impl Iterator<Item = SessionKey> {
        self.leaving.keys().copied()
    }

    /// The initiator of a session has logged out: it does not come back for what it saw. [`super::Unit::detach`] follows.
    pub(crate) fn logged_out(&mut self, key: SessionKey) {
        if let Some(user) = self.active.get_mut(&key) {
            user.has_logged_out = true;
        }
    }

    /// The access rules have changed: whether the session may write from now on.
    pub(crate) fn set_read_only(&mut self, key: SessionKey, read_only: bool) {
        if let Some(user) = self.active.get_mut(&key) {
            user.read_only = read_only;
        }
    }

    /// The session's pending unit attention, which is gone with that.
    pub(super) fn take_attention(&mut self, key: SessionKey) -> Option<Sense> {
        self.active.get_mut(&key).and_then(|user| user.attentions.take())
    }

    /// Establishes a unit attention for every session that `concerns` selects.
    pub(super) fn establish(&mut self, attention: UnitAttention, concerns: impl Fn(SessionKey, &User) -> bool) {
        for (key, user) in &mut self.active {
            if concerns(*key, user) {
                user.attentions.establish(attention);
            }
        }
    }

    /// Establishes a unit attention for every session.
    pub(super) fn establish_for_all(&mut self, attention: UnitAttention) {
        self.establish(attention, |_, _| true);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// How many sessions use the unit.
    pub(crate) fn len(&self) -> usize {
        self.active.len()
    }

    /// Whether a session uses the unit.
    pub(crate) fn contains(&self, key: SessionKey) -> bool {
        self.active.contains_key(&key)
    }

    /// The keys of all sessions.
    pub(crate) fn keys(&self) -> Vec<SessionKey> {
        self.active.keys().copied().collect()
    }

    /// The keys of all sessions, ended ones that have tasks executing included.
    pub(crate) fn keys_with_tasks(&self) -> Vec<SessionKey> {
        self.active.keys().chain(self.leaving.keys()).copied().collect()
    }

    /// Every session with its nexus and identity.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionKey, &NexusId, &Identity)> {
        self.active.iter().map(|(key, user)| (*key, &user.nexus, &user.origin.identity))
    }

    /// The session of a nexus, and its identity.
    pub(crate) fn session_of(&self, nexus: &NexusId) -> Option<(SessionKey, Identity)> {
        self.iter().find(|(_, user)| user.nexus == *nexus).map(|(key, user)| (key, user.origin.identity.clone()))
    }

    /// Whether tasks of an earlier session of this nexus are still executing.
    pub(crate) fn is_leaving(&self, nexus: &NexusId) -> bool {
        self.leaving.values().any(|leaving| leaving == nexus)
    }

    /// The unit attention that the session's next command would be answered with.
    pub(crate) fn pending_attention(&self, key: SessionKey) -> Option<Sense> {
        self.active.get(&key).and_then(|user| user.attentions.peek())
    }
}

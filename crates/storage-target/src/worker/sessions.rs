//! The sessions of a worker: found by key, driven in the order in which they became ready.

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;

use super::session::Session;
use crate::connection_slots::{SlotKind, SlotNeed};
use crate::unit::SessionKey;

/// A session that is being driven is checked out: it is not in the table meanwhile.
#[derive(Default)]
pub(super) struct Sessions {
    table: FxHashMap<SessionKey, Box<Session>>,
    ready: VecDeque<SessionKey>,
    /// Unauthenticated discovery sessions, the oldest first.
    discoveries: BTreeSet<SessionKey>,
}

impl Sessions {
    /// Takes a new session in. `is_evicted_first`: it is an unauthenticated discovery session.
    pub(super) fn insert(&mut self, session: Box<Session>, is_evicted_first: bool) {
        if is_evicted_first {
            self.discoveries.insert(session.key);
        }
        self.check_in(session);
    }

    /// Takes a session out of the table to drive it.
    pub(super) fn check_out(&mut self, key: SessionKey) -> Option<Box<Session>> {
        self.table.remove(&key)
    }

    pub(super) fn check_in(&mut self, session: Box<Session>) {
        self.table.insert(session.key, session);
    }

    /// A session that is checked out has ended.
    pub(super) fn forget(&mut self, session: &Session) {
        self.discoveries.remove(&session.key);
    }

    pub(super) fn get(&self, key: SessionKey) -> Option<&Session> {
        self.table.get(&key).map(|session| &**session)
    }

    pub(super) fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.table.get_mut(&key).map(|session| &mut **session)
    }

    /// A session, which will be driven. `None`: it is not here.
    pub(super) fn get_mut_ready(&mut self, key: SessionKey) -> Option<&mut Session> {
        let session = self.table.get_mut(&key)?;
        mark(&mut self.ready, session);
        Some(session)
    }

    /// The same for all sessions.
    pub(super) fn change_all(&mut self, mut change: impl FnMut(&mut Session)) {
        for session in self.table.values_mut() {
            change(session);
            mark(&mut self.ready, session);
        }
    }

    /// Has a session driven that is checked out.
    pub(super) fn mark_checked_out(&mut self, session: &mut Session) {
        mark(&mut self.ready, session);
    }

    /// The next session that waits to be driven.
    pub(super) fn pop_ready(&mut self) -> Option<SessionKey> {
        self.ready.pop_front()
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.table.values().map(|session| &**session)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = SessionKey> {
        self.table.keys().copied()
    }

    pub(super) fn find_mut(&mut self, matches: impl Fn(&Session) -> bool) -> Option<&mut Session> {
        self.table.values_mut().map(|session| &mut **session).find(|session| matches(session))
    }

    /// The oldest unauthenticated discovery session; it is no longer counted as one.
    pub(super) fn pop_discovery(&mut self) -> Option<SessionKey> {
        self.discoveries.pop_first()
    }

    /// The session without a connection that is evicted first.
    pub(super) fn vacant_for(&self, need: SlotNeed) -> Option<SessionKey> {
        let may_evict_proven = need == SlotNeed::Proven;
        let vacant = self.iter().filter(|session| !session.machine.is_closed()).filter_map(|session| {
            let vacancy = session.vacancy.as_ref()?;
            let is_proven = vacancy.slot.kind() == SlotKind::VacantProven;
            (may_evict_proven || !is_proven).then_some((is_proven, vacancy.since, session.key))
        });
        vacant.min().map(|(_, _, key)| key)
    }

    /// All sessions, out of the table: the worker ends.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Box<Session>> + use<> {
        std::mem::take(&mut self.table).into_values()
    }
}

fn mark(ready: &mut VecDeque<SessionKey>, session: &mut Session) {
    if !std::mem::replace(&mut session.is_ready, true) {
        ready.push_back(session.key);
    }
}

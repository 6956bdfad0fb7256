//! Sessions at work: what their machines tell, their connections' coming and going, and their end.

use std::collections::HashMap;

use strongroom_iscsi::target::{ConnectionId, Event};
use strongroom_iscsi::{CloseReason, target as iscsi};

use super::connection::{Connection, Stage};
use super::crossing::Notice;
use super::session::{Admitted, Session};
use super::{Flow, Timer, Worker, set_timer};
use crate::budget::{MemoryClass, SESSION_BYTES};
use crate::names::{VolumeName, for_log};
use crate::stats::{Counters, SessionInfo};
use crate::unit::SessionKey;

impl Worker {
    /// A login is over: its connection makes a session, or is one more of one.
    pub(super) fn logged_in(&mut self, connection: &mut Connection) -> Flow {
        let Stage::Admitted { key, joins, admitted } = std::mem::replace(&mut connection.stage, Stage::Before) else {
            return Flow::Over;
        };
        let Some(login) = connection.login.take() else { return Flow::Over };
        let digests = login.agreed().map(|agreed| agreed.digests).unwrap_or_default();
        let id = if joins {
            let Some(session) = self.sessions.get_mut(&key) else { return Flow::Over };
            if !session.machine.has_place_for(&login) {
                // It went, or others came, while this one logged in.
                tracing::warn!(address = %connection.peer, "a connection came too late for its session");
                return Flow::Over;
            }
            let id = session.machine.add_connection(self.now, *login);
            session.connections.push((id, connection.key));
            let (initiator, cid) = (for_log(&session.initiator_name), session.machine.cid(id));
            tracing::info!(address = %connection.peer, initiator, cid, "a connection joined its session");
            id
        } else {
            let (machine, id) = iscsi::Session::new(self.now, *login);
            let proven = (connection.identity.clone(), connection.peer.ip(), connection.link.scheme());
            let budget = &self.shared.budget;
            // Reserved when it was admitted.
            let own = connection.session_memory.take();
            let own = own.unwrap_or_else(|| budget.charge(MemoryClass::Sessions, SESSION_BYTES));
            let memory = (own, budget.charge(MemoryClass::Commands, 0));
            let mut session = Session::new(key, machine, admitted, proven, self.now, memory);
            session.connections.push((id, connection.key));
            if session.volume.is_none() {
                self.note_discovery(&mut session, connection);
            }
            self.announce(&session, connection);
            self.sessions.insert(key, Box::new(session));
            id
        };
        connection.stage = Stage::InSession { session: key, id };
        let place = self.sessions.get(&key).and_then(|session| session.place.as_ref());
        if place.is_some_and(|place| place.holds_block_keys) {
            connection.link.wipe_headers();
        }
        connection.link.login_finished(digests);
        self.check_segments(key);
        // What changed since it was admitted was told to hold.
        self.recheck_session(key, &mut HashMap::new());
        if let Some(session) = self.sessions.get_mut(&key) {
            session.touch(&mut self.touched_sessions);
        }
        Flow::Stay
    }

    fn announce(&self, session: &Session, connection: &Connection) {
        let peer = self.settings.rules.peer_name(&connection.identity).map(str::to_owned);
        let info = SessionInfo {
            peer_address: connection.peer,
            peer: peer.clone(),
            initiator_name: for_log(&session.initiator_name),
            volume: session.volume.as_ref().map(ToString::to_string),
            read_only: session.read_only,
        };
        tracing::info!(
            address = %info.peer_address,
            peer = peer.as_deref().unwrap_or("plain"),
            initiator = info.initiator_name,
            volume = info.volume.as_deref().unwrap_or("(discovery)"),
            read_only = info.read_only,
            "logged in"
        );
        self.shared.counters.session_begins(session.key, info);
    }

    /// A sealed block goes in one piece: an initiator that takes less cannot be served.
    fn check_segments(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(&key) else { return };
        let Some(place) = session.place.as_ref().filter(|place| place.sealed.is_some()) else { return };
        if place.sealed_blocks_max(&session.machine) == 0 {
            session.machine.close("the initiator's MaxRecvDataSegmentLength is less than a block; it must be raised");
        }
    }

    /// Moves one session forward as far as it goes.
    pub(super) fn drive_session(&mut self, key: SessionKey) {
        let Some(mut session) = self.sessions.remove(&key) else { return };
        session.touched = false;
        while let Some(event) = session.machine.poll_event() {
            match event {
                Event::SendTargets(id, question) => self.send_targets(&session, id, question),
                Event::Command(command) => self.command(&mut session, command),
                Event::TaskManagement(request) => self.task_management(&mut session, request),
                Event::ConnectionClosed { connection, reason } => {
                    self.connection_closed(&mut session, connection, &reason);
                }
                Event::Closed(reason) => return self.session_closed(session, &reason),
            }
        }
        for (id, connection) in &session.connections {
            let Some(connection) = self.connections.get_mut(connection) else { continue };
            connection.transmit(&mut self.runtime, Some((&mut session.machine, *id)));
        }
        // After that: what has left makes room, and nothing else would bring the session here again.
        for (id, connection) in &session.connections {
            let accepts = session.accepts_input(*id);
            let Some(connection) = self.connections.get_mut(connection) else { continue };
            connection.hold_back(&mut self.runtime, accepts);
        }
        session.count(&self.shared.counters);
        self.bound_memory(&mut session);
        // What is sent makes room for commands that wait for memory, and what is done for those that wait for the store.
        if session.may_start_queued(self.read_bytes_max()) {
            self.start_queued(&mut session);
        }
        self.count_vacant(&mut session, false);
        let wanted = [session.machine.poll_timeout(), session.ends_at].into_iter().flatten().min();
        set_timer(&mut self.timers, Timer::Session(key), &mut session.armed, wanted);
        self.sessions.insert(key, session);
    }

    fn connection_closed(&mut self, session: &mut Session, id: ConnectionId, reason: &CloseReason) {
        let initiator = for_log(&session.initiator_name);
        let Some(at) = session.connections.iter().position(|(other, _)| *other == id) else { return };
        let (_, key) = session.connections.swap_remove(at);
        let Some(connection) = self.connections.remove(&key) else { return };
        tracing::info!(address = %connection.peer, initiator, %reason, "a connection of a session ended");
        self.finish(connection, Some((&mut session.machine, id)));
    }

    fn session_closed(&mut self, mut session: Box<Session>, reason: &CloseReason) {
        let (initiator, address) = (for_log(&session.initiator_name), session.address);
        let volume = session.volume.as_ref().map_or("", VolumeName::as_str);
        match reason {
            CloseReason::Misbehaved(_) => {
                Counters::count(&self.shared.counters.misbehaved);
                tracing::warn!(%address, initiator, %reason, "session ended");
            }
            _ => tracing::info!(%address, initiator, volume, %reason, "session ended"),
        }
        session.count(&self.shared.counters);
        for (id, key) in std::mem::take(&mut session.connections) {
            if let Some(connection) = self.connections.remove(&key) {
                self.finish(connection, Some((&mut session.machine, id)));
            }
        }
        self.count_vacant(&mut session, true);
        self.discoveries.remove(&session.key);
        set_timer(&mut self.timers, Timer::Session(session.key), &mut session.armed, None);
        self.retries.extend(session.joining.drain(..));
        if let Some(place) = &session.place {
            self.leave_unit(place, session.key);
        }
        self.shared.counters.session_ends(session.key);
    }

    /// Ends another session than the one being driven.
    pub(super) fn end_session(&mut self, key: SessionKey, why: &'static str) {
        if let Some(session) = self.sessions.get_mut(&key) {
            session.machine.close(why);
            return session.touch(&mut self.touched_sessions);
        }
        if self.abroad.contains_key(&key) {
            return self.tell_session(key, Notice::End { why });
        }
        // It may still be on its way in.
        let is_it = |stage: &Stage| matches!(stage, Stage::Admitted { key: of, joins: false, .. } if *of == key);
        if let Some(connection) = self.connections.values_mut().find(|connection| is_it(&connection.stage)) {
            connection.refuse();
            connection.touch(&mut self.touched);
        }
    }

    /// Answers a login for a session of its own.
    pub(super) fn admit_new(&mut self, connection: &mut Connection, key: SessionKey, admitted: Admitted) {
        let tsih = self.shared.tsih();
        if let Some(login) = &mut connection.login {
            login.accept(tsih);
        }
        connection.stage = Stage::Admitted { key, joins: false, admitted };
    }
}

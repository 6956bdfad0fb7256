//! Sessions and their connections: how a session begins, is driven, sends through its connections, and ends.

use std::net::SocketAddr;

use strongroom_ecl::login::{Carrier, LoginAnswer, LoginGrant as EclGrant};
use strongroom_ecl::{Config, Datagram, EclKeys, Parity, PathReduction, Scheme, target as ecl};
use strongroom_iscsi::CloseReason;
use strongroom_iscsi::target::{self as iscsi, ConnectionId, Login};
use strongroom_net::PacketSplit;

use super::Worker;
use super::connection::{Connection, Disposition, LoginStage};
use super::ecl_session::{EclSession, PacketCarrier};
use super::grant::LoginGrant;
use super::login_machine::LoginMachine;
use super::login_policy::DescribedVolumes;
use super::session::Session;
use super::session_end::SessionEnd;
use super::session_machine::{SessionEvent, SessionMachine};
use super::timers::Timer;
use crate::budget::{MemoryClass, SESSION_BYTES};
use crate::connection_slots::SlotKind;
use crate::names::{VolumeName, for_log};
use crate::stats::{Counters, SessionInfo};
use crate::unit::SessionKey;

impl Worker {
    /// A login is over: its connection begins a session, or joins one.
    pub(super) fn logged_in(&mut self, connection: &mut Connection) -> Disposition {
        let LoginStage::Admitted { key, joins, grant } = std::mem::replace(&mut connection.stage, LoginStage::Unnamed)
        else {
            return Disposition::End;
        };
        let Some(login) = connection.login.take() else { return Disposition::End };
        let digests = login.digests();
        let id = match (login, joins) {
            (LoginMachine::Iscsi(login), true) => self.join(connection, key, *login),
            (LoginMachine::Iscsi(login), false) => {
                let (machine, id) = iscsi::Session::new(self.now, *login);
                Some(self.begin(connection, key, grant, (machine.into(), id)))
            }
            (LoginMachine::Ecl(login), _) => self.associate(connection, key, &grant, login.wishes()).map(|machine| {
                let id = ConnectionId::ONLY;
                self.begin(connection, key, grant, (machine.into(), id))
            }),
        };
        let Some(id) = id else { return Disposition::End };
        connection.stage = LoginStage::InSession { session: key, id };
        let unit = self.routing.sessions.get(key).and_then(|session| session.unit.as_ref());
        if unit.is_some_and(|unit| unit.has_block_keys) {
            connection.link.wipe_headers();
        }
        connection.link.login_finished(digests);
        if let Some(session) = self.routing.sessions.get_mut_ready(key) {
            check_segments(session);
        }
        // The administrator who changed rules since it was admitted was told that they hold.
        self.logins.policy.recheck(key, &mut self.routing, &self.connections, &mut DescribedVolumes::new());
        Disposition::Keep
    }

    fn join(&mut self, connection: &Connection, key: SessionKey, login: Login) -> Option<ConnectionId> {
        let session = self.routing.sessions.get_mut(key)?;
        let machine = session.machine.iscsi_mut()?;
        if !machine.has_place_for(&login) {
            // It ended, or others joined, while this one logged in.
            tracing::warn!(address = %connection.peer, "a connection came too late for its session");
            return None;
        }
        let id = machine.add_connection(self.now, login);
        let cid = machine.cid(id);
        session.connections.push((id, connection.key));
        let initiator = for_log(&session.peer.initiator_name);
        tracing::info!(address = %connection.peer, initiator, cid, "a connection joined its session");
        Some(id)
    }

    fn begin(
        &mut self,
        connection: &mut Connection,
        key: SessionKey,
        grant: LoginGrant,
        (machine, id): (SessionMachine, ConnectionId),
    ) -> ConnectionId {
        let proven = (connection.identity.clone(), connection.peer.ip(), connection.link.scheme());
        let budget = &self.services.budget;
        // Reserved when it was admitted.
        let own = connection.session_memory.take();
        let own = own.unwrap_or_else(|| budget.charge(MemoryClass::Sessions, SESSION_BYTES));
        let memory = (own, budget.charge(MemoryClass::Commands, 0));
        let mut session = Session::new(key, machine, grant, proven, self.now, memory);
        session.connections.push((id, connection.key));
        let mut is_evicted_first = false;
        if session.unit.is_none() {
            session.ends_at = Some(self.now + self.logins.policy.limits().discovery_timeout());
            is_evicted_first = connection.slot.kind() == SlotKind::Arriving;
        }
        self.announce(&session, connection);
        self.routing.sessions.insert(Box::new(session), is_evicted_first);
        id
    }

    /// Grants an association: its keys, its number and what its initiator may send. The answer goes by the connection, and then the
    /// packets, if that is to be their `carrier`.
    fn associate(
        &mut self,
        connection: &mut Connection,
        key: SessionKey,
        grant: &LoginGrant,
        (carrier, parity): (Carrier, Option<Parity>),
    ) -> Option<EclSession> {
        let (block_bytes, entry_bytes) = grant.unit.as_ref()?.sealed?;
        let (secret, suite) = (connection.link.take_ecl_secret()?, connection.link.suite()?);
        let scheme = Scheme::from_number(connection.link.scheme()? as u8).ok()?;
        // What comes from the initiator has no store sequence in front of its record.
        let head_bytes = Datagram::head_bytes(entry_bytes - 8);
        let split = PacketSplit { head_bytes, quantum_bytes: block_bytes as usize };
        let (carrier, connection_id, peer) = match carrier {
            Carrier::Udp => {
                let socket = self.network.datagrams.socket_at(connection.portal.address)?;
                let id = self.network.datagrams.begin(key, socket, split)?;
                let local = self.network.runtime.local(connection.stream.id()).map(|address| address.ip());
                (PacketCarrier::Udp { socket, local }, id, SocketAddr::new(connection.peer.ip(), 0))
            }
            // No datagram finds it, so its number need not differ from others.
            Carrier::Stream => (PacketCarrier::Stream, getrandom::u32().ok()?, connection.peer),
        };
        let is_stream = matches!(carrier, PacketCarrier::Stream);
        let keys = EclKeys::new(*secret.bytes(), scheme, suite);
        let limits = self.logins.policy.limits();
        let mut config = Config::new(keys, connection_id, peer, block_bytes);
        (config.is_stream, config.parity) = (is_stream, parity);
        let promise = self.services.budget.promise(limits.write_memory_bytes);
        config.window_bytes = promise.bytes();
        config.transfer_bytes_max = crate::TRANSFER_BYTES_MAX.min(u32::try_from(promise.bytes()).unwrap_or(u32::MAX));
        config.queue_depth = config.queue_depth.min(limits.queue_depth);
        config.holds_keys = grant.unit.as_ref()?.has_block_keys;
        let answer = LoginAnswer::Granted(EclGrant {
            udp_port: if is_stream { 0 } else { connection.portal.address.port() },
            connection_id,
            quantum_bytes: block_bytes,
            window_bytes: config.window_bytes,
            transfer_bytes_max: config.transfer_bytes_max,
            queue_depth: config.queue_depth,
            portal_group_tag: connection.portal.group,
        });
        connection.link.send_message(&answer.encode());
        if is_stream {
            connection.link.begin_packets();
        }
        let machine = ecl::Session::new(self.now, &config);
        Some(EclSession::new(machine, (connection_id, block_bytes), carrier, promise))
    }

    fn announce(&self, session: &Session, connection: &Connection) {
        let peer = self.logins.policy.peer_name(&connection.identity).map(str::to_owned);
        let info = SessionInfo {
            peer_address: connection.peer,
            peer: peer.clone(),
            initiator_name: for_log(&session.peer.initiator_name),
            volume: session.volume().map(ToString::to_string),
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
        self.services.metrics.counters.session_begins(session.key, info);
    }

    /// Lets one session advance as far as it can, and sends what it has to send.
    pub(super) fn drive_session(&mut self, key: SessionKey) {
        let Some(mut session) = self.routing.sessions.check_out(key) else { return };
        session.is_ready = false;
        while let Some(event) = self.routing.next_event(self.now, &mut session) {
            match event {
                SessionEvent::SendTargets(id, question) => self.send_targets(&session, id, question),
                SessionEvent::ConnectionClosed(id, reason) => self.connection_closed(&mut session, id, &reason),
                SessionEvent::PathReduced(reduction) => warn_of_path(&session, reduction),
                SessionEvent::Closed(reason) => return self.session_closed(session, &reason),
            }
        }
        for (id, connection) in &session.connections {
            let Some(connection) = self.connections.get_mut(*connection) else { continue };
            connection.transmit(self.now, &mut self.network.runtime, Some((&mut session.machine, *id)));
        }
        if self.network.datagrams.transmit(self.now, &mut session) {
            self.routing.sessions.mark_checked_out(&mut session);
        }
        // After that: what was sent makes room, and nothing else would drive the session again. A connection stops reading from a peer
        // that does not take its answers.
        for (id, connection) in &session.connections {
            let accepts = session.accepts_input(*id);
            let Some(connection) = self.connections.get_mut(*connection) else { continue };
            connection.stream.set_receiving(&mut self.network.runtime, accepts);
        }
        self.routing.advance(self.now, &mut session);
        self.logins.slots.keep_slot(&mut session, self.now);
        let wanted = session.poll_timeout();
        self.timers.set(Timer::Session(key), &mut session.armed, wanted);
        self.routing.sessions.check_in(session);
    }

    fn connection_closed(&mut self, session: &mut Session, id: ConnectionId, reason: &CloseReason) {
        let initiator = for_log(&session.peer.initiator_name);
        let Some(at) = session.connections.iter().position(|(other, _)| *other == id) else { return };
        let (_, key) = session.connections.swap_remove(at);
        let Some(connection) = self.connections.check_out(key) else { return };
        tracing::info!(address = %connection.peer, initiator, %reason, "a connection of a session ended");
        self.finish(connection, Some((&mut session.machine, id)));
    }

    fn session_closed(&mut self, mut session: Box<Session>, reason: &SessionEnd) {
        let (initiator, address) = (for_log(&session.peer.initiator_name), session.peer.address);
        let counters = &self.services.metrics.counters;
        match reason {
            SessionEnd::Misbehaved(_) => {
                Counters::count(&counters.misbehaved);
                tracing::warn!(%address, initiator, %reason, "session ended");
            }
            _ => {
                let volume = session.volume().map_or("", VolumeName::as_str);
                tracing::info!(%address, initiator, volume, %reason, "session ended");
            }
        }
        session.count(counters);
        if let Some(association) = session.machine.ecl() {
            self.network.datagrams.end(association.connection_id());
            // Its goodbye.
            self.network.datagrams.transmit(self.now, &mut session);
        }
        for (id, key) in std::mem::take(&mut session.connections) {
            if let Some(connection) = self.connections.check_out(key) {
                self.finish(connection, Some((&mut session.machine, id)));
            }
        }
        session.vacancy = None;
        self.routing.sessions.forget(&session);
        self.timers.set(Timer::Session(session.key), &mut session.armed, None);
        self.routing.retry_logins(session.joining.drain(..));
        if let Some(address) = &session.unit {
            // An initiator that is asked to log out, by a drain or because the target stops, comes back.
            let is_asked = self.stop.is_some() || self.services.drain().of(&address.volume).is_some();
            if matches!(reason, SessionEnd::LoggedOut) && !is_asked {
                self.routing.logged_out(address, session.key);
            }
            self.routing.leave_unit(self.now, address, session.key);
            self.flush_to(address.unit_worker);
        }
        self.services.metrics.counters.session_ends(session.key);
    }
}

/// Packets of one size do not arrive any more, while shorter ones do.
fn warn_of_path(session: &Session, PathReduction { from_bytes, to_bytes }: PathReduction) {
    tracing::warn!(
        address = %session.peer.address,
        initiator = for_log(&session.peer.initiator_name),
        volume = session.volume().map_or("", VolumeName::as_str),
        from_bytes,
        to_bytes,
        "ECL packets as long as before do not reach the initiator any more, and shorter ones do: a link on the path has a smaller MTU now. Nothing \
         is lost; blocks travel in shorter packets, which is slower. Find that link, or set the MTU of both ends to what the path carries"
    );
}

/// A sealed block is sent in one PDU: an initiator that takes less cannot be served.
fn check_segments(session: &mut Session) {
    let Some(unit) = session.unit.as_ref().filter(|unit| unit.sealed.is_some()) else { return };
    if unit.sealed_blocks_max(&session.machine) == 0 {
        session.machine.close("the initiator's MaxRecvDataSegmentLength is less than a block; it must be raised");
    }
}

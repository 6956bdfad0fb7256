//! One connection: its stream, its link, and its login until it belongs to a session. It moves between workers before its login is
//! answered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use strongroom_iscsi::target::{ConnectionId, LoginRequested};
use strongroom_iscsi::{CloseReason, LoginStatus};
use strongroom_net::{DetachedChannel, Link, Runtime, StreamId};

use super::grant::{LoginGrant, UnitAddress};
use super::login_machine::LoginMachine;
use super::session_machine::SessionMachine;
use super::stream_sender::StreamSender;
use crate::access::Identity;
use crate::budget::Charge;
use crate::config::Portal;
use crate::connection_slots::ConnectionSlot;
use crate::names::VolumeName;
use crate::open_units::Origin;
use crate::settings::Settings;
use crate::unit::SessionKey;

/// PDUs, or packets, handed to the runtime together.
const BATCH_PDUS: usize = 32;

/// Names a connection; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionKey(pub(crate) u64);

/// Where a connection belongs after it was driven.
pub(super) enum Disposition {
    Keep,
    /// Another worker has its volume or its session.
    HandOver(usize),
    /// It carries a transfer or an operator's requests, or its node says that it was invited: no worker serves it.
    HandToHandler,
    End,
}

pub(super) struct Connection {
    pub(super) key: ConnectionKey,
    pub(super) stream: StreamSender,
    pub(super) peer: SocketAddr,
    /// The portal that accepted it.
    pub(super) portal: Portal,
    pub(super) link: Link,
    pub(super) identity: Identity,
    /// From the link's handshake until the session.
    pub(super) login: Option<LoginMachine>,
    pub(super) stage: LoginStage,
    /// It waits to be driven.
    pub(super) is_ready: bool,
    /// The deadline for which its timer is set.
    pub(super) armed: Option<Instant>,
    /// Bytes were received or sent since its session was told.
    pub(super) has_progressed: bool,
    /// It was sent to the worker of the session that it would join.
    pub(super) is_directed: bool,
    pub(super) slot: ConnectionSlot,
    /// For the session that its login makes.
    pub(super) session_memory: Option<Charge>,
}

/// How far the login has come.
pub(super) enum LoginStage {
    /// It has requested nothing yet.
    Unnamed,
    /// It has to prove its identity, by the secrets of these settings.
    Proving { request: LoginRequested, asked_under: Arc<Settings> },
    /// The login waits: for the volume to be opened, or for the tasks of the session or connection that it replaces.
    /// `store`: the volume that has the store; another one for a clone or a snapshot.
    Waiting { request: LoginRequested, target_name: String, store: VolumeName },
    /// On the way to full-feature phase with the login answered; `key` names its session, which exists already if the connection `joins` it.
    Admitted { key: SessionKey, joins: bool, grant: LoginGrant },
    /// One of a session.
    InSession { session: SessionKey, id: ConnectionId },
}

impl LoginStage {
    /// The session that it belongs to.
    pub(super) fn session(&self) -> Option<(SessionKey, ConnectionId)> {
        match self {
            LoginStage::InSession { session, id } => Some((*session, *id)),
            _ => None,
        }
    }

    /// Leaves [`LoginStage::Waiting`]; `None` in any other stage, which stays.
    pub(super) fn take_waiting(&mut self) -> Option<LoginRequested> {
        match std::mem::replace(self, LoginStage::Unnamed) {
            LoginStage::Waiting { request, .. } => Some(request),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Connection {
    pub(super) fn new(
        key: ConnectionKey,
        stream: StreamId,
        (peer, portal): (SocketAddr, Portal),
        link: Link,
        slot: ConnectionSlot,
    ) -> Connection {
        Connection {
            key,
            stream: StreamSender::new(stream),
            peer,
            portal,
            link,
            identity: Identity::Plain,
            login: None,
            stage: LoginStage::Unnamed,
            is_ready: false,
            armed: None,
            has_progressed: false,
            is_directed: false,
            slot,
            session_memory: None,
        }
    }

    /// What the access rules are asked about.
    pub(super) fn origin(&self) -> Origin {
        Origin { identity: self.identity.clone(), from: self.peer.ip(), scheme: self.link.scheme() }
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.link.handle_input(bytes);
        self.has_progressed = true;
    }

    /// The peer took what waited for it: it is alive, and more can be sent.
    pub(super) fn send_low(&mut self) {
        self.stream.low();
        self.has_progressed = true;
    }

    /// The stream failed underneath.
    pub(super) fn lost(&mut self, reason: String) {
        match &mut self.login {
            Some(login) => login.handle_closed(CloseReason::ConnectionLost(reason.clone())),
            None if self.stage.session().is_none() => self.link.handle_eof(),
            None => {}
        }
        self.stream.failed(reason);
    }

    /// The target stops or drains, or the slot is needed: a connection without a session is turned away.
    pub(super) fn refuse(&mut self) {
        match &mut self.login {
            Some(login) => login.reject(LoginStatus::SERVICE_UNAVAILABLE),
            None if self.stage.session().is_none() => self.link.handle_eof(),
            None => {}
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let login = self.login.as_ref().and_then(|login| login.poll_timeout());
        [self.link.poll_timeout(), login].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.link.handle_timeout(now);
        if let Some(login) = &mut self.login {
            login.handle_timeout(now);
        }
    }

    /// The session that it is about to begin.
    pub(super) fn new_session(&self) -> Option<(SessionKey, &LoginGrant)> {
        match &self.stage {
            LoginStage::Admitted { key, joins: false, grant } => Some((*key, grant)),
            _ => None,
        }
    }

    /// The session that it is about to begin with a unit.
    pub(super) fn new_unit_session(&self) -> Option<(SessionKey, UnitAddress)> {
        self.new_session().and_then(|(key, grant)| Some((key, grant.unit.clone()?)))
    }

    /// The name that a login claims.
    pub(super) fn initiator_name(&self) -> &str {
        match &self.stage {
            LoginStage::Unnamed | LoginStage::InSession { .. } => "",
            LoginStage::Proving { request, .. } | LoginStage::Waiting { request, .. } => &request.initiator_name,
            LoginStage::Admitted { grant, .. } => &grant.initiator_name,
        }
    }

    /// Sends what the login, or the session, and the link have, as far as the stream takes it.
    pub(super) fn transmit(
        &mut self,
        now: Instant,
        runtime: &mut Runtime,
        mut session: Option<(&mut SessionMachine, ConnectionId)>,
    ) {
        while self.stream.accepts() {
            let mut made = 0;
            while made < BATCH_PDUS && self.make_next(now, &mut session) {
                made += 1;
            }
            self.stream.send(runtime, &mut self.link);
            if made < BATCH_PDUS {
                return;
            }
        }
        if let Some((SessionMachine::Ecl(association), _)) = session {
            association.is_held_up(now);
        }
    }

    /// Gives the link the next PDU or packet. False: there is none.
    fn make_next(&mut self, now: Instant, session: &mut Option<(&mut SessionMachine, ConnectionId)>) -> bool {
        let pdu = match (session, &mut self.login) {
            (Some((SessionMachine::Ecl(association), _)), _) => {
                let Some(packet) = association.poll_packet(now) else { return false };
                self.link.send_packet(packet);
                return true;
            }
            (Some((SessionMachine::Iscsi(session), id)), _) => session.poll_transmit(*id),
            (None, Some(login)) => login.poll_transmit(),
            (None, None) => None,
        };
        let Some(pdu) = pdu else { return false };
        self.link.send_pdu(pdu);
        true
    }

    /// Sends the last PDUs or packets and closes the link and the stream.
    pub(super) fn close(
        &mut self,
        now: Instant,
        runtime: &mut Runtime,
        mut session: Option<(&mut SessionMachine, ConnectionId)>,
    ) {
        if self.stream.failure().is_some() {
            return;
        }
        // After `Closed` only small answers are left.
        while self.make_next(now, &mut session) {}
        if session.is_none()
            && let Some(refusal) = self.login.as_mut().and_then(LoginMachine::take_refusal)
        {
            self.link.send_message(&refusal);
        }
        self.link.close();
        self.stream.close(runtime, &mut self.link);
    }

    /// What a handler needs of it, if it is for one.
    pub(super) fn into_detached(self) -> Option<(DetachedChannel, ConnectionSlot)> {
        let mut channel = self.link.into_detached()?;
        channel.unsent.splice(0..0, self.stream.into_unsent());
        Some((channel, self.slot))
    }
}

//! One connection: its stream, its link, and its login until it belongs to a session. Moves between workers before its login is
//! answered.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use strongroom_block::Buffer;
use strongroom_iscsi::CloseReason;
use strongroom_iscsi::target::{self as iscsi, ConnectionId, Login, LoginRequested};
use strongroom_net::{DetachedStream, Link, Runtime, SendState, StreamId, TransferChannel};

use super::crossing::Place as UnitPlace;
use super::session::Admitted;
use crate::access::Identity;
use crate::budget::Charge;
use crate::config::Portal;
use crate::names::VolumeName;
use crate::neighbours::Origin;
use crate::places::Place;
use crate::server::Settings;
use crate::unit::SessionKey;

/// PDUs handed to the runtime together.
const BATCH_PDUS: usize = 32;

/// Names a connection; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnectionKey(pub(crate) u64);

pub(super) struct Connection {
    pub(super) key: ConnectionKey,
    pub(super) stream: StreamId,
    pub(super) peer: SocketAddr,
    /// Where it reached us.
    pub(super) portal: Portal,
    pub(super) link: Link,
    pub(super) identity: Identity,
    /// From the link's handshake until the session.
    pub(super) login: Option<Box<Login>>,
    pub(super) stage: Stage,
    pub(super) touched: bool,
    pub(super) send_full: bool,
    pub(super) armed: Option<Instant>,
    receiving: bool,
    /// Something came, or left, since its session was told.
    pub(super) moved: bool,
    /// It was sent to the worker of the session that it would join.
    pub(super) is_directed: bool,
    /// Why the stream is gone: nothing can be sent.
    pub(super) stream_lost: Option<String>,
    out: Vec<Buffer>,
    pub(super) place: Place,
    /// For the session that its login makes.
    pub(super) session_memory: Option<Charge>,
}

/// How far the login has come.
pub(super) enum Stage {
    /// Nothing was asked yet.
    Before,
    /// It has to prove who it is, by the secrets of these settings.
    Proving { request: LoginRequested, asked_under: Arc<Settings> },
    /// The login waits: for the volume to be opened, or for the tasks of the session or connection that it replaces.
    /// `store`: the volume that has the store; another one for a clone or a snapshot.
    Waiting { request: LoginRequested, target_name: String, store: VolumeName },
    /// On the way to full-feature phase with the login answered; `key` names its session, which is there already if it `joins` it.
    Admitted { key: SessionKey, joins: bool, admitted: Admitted },
    /// One of a session.
    InSession { session: SessionKey, id: ConnectionId },
}

impl Stage {
    /// The session that it belongs to.
    pub(super) fn session(&self) -> Option<(SessionKey, ConnectionId)> {
        match self {
            Stage::InSession { session, id } => Some((*session, *id)),
            _ => None,
        }
    }
}

/// A connection between two workers.
pub(crate) struct Moved {
    pub(super) stream: DetachedStream,
    pub(super) connection: Box<Connection>,
}

impl Connection {
    /// Whom the access rules are asked about.
    pub(super) fn origin(&self) -> Origin {
        Origin { identity: self.identity.clone(), from: self.peer.ip(), scheme: self.link.scheme() }
    }

    pub(super) fn new(
        key: ConnectionKey,
        stream: StreamId,
        peer: SocketAddr,
        portal: Portal,
        link: Link,
        place: Place,
    ) -> Connection {
        Connection {
            key,
            stream,
            peer,
            portal,
            link,
            identity: Identity::Plain,
            login: None,
            stage: Stage::Before,
            touched: false,
            send_full: false,
            armed: None,
            receiving: true,
            moved: false,
            is_directed: false,
            stream_lost: None,
            out: Vec::new(),
            place,
            session_memory: None,
        }
    }

    /// Has it driven in this turn.
    pub(super) fn touch(&mut self, touched: &mut VecDeque<ConnectionKey>) {
        if !std::mem::replace(&mut self.touched, true) {
            touched.push_back(self.key);
        }
    }

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.link.handle_input(bytes);
        self.moved = true;
    }

    /// The peer took what waited for it: it is alive, and there is room again.
    pub(super) fn send_low(&mut self) {
        self.send_full = false;
        self.moved = true;
    }

    /// The stream failed underneath.
    pub(super) fn lost(&mut self, reason: String) {
        match &mut self.login {
            Some(login) => login.handle_closed(CloseReason::ConnectionLost(reason.clone())),
            None if self.stage.session().is_none() => self.link.handle_eof(),
            None => {}
        }
        self.stream_lost = Some(reason);
    }

    /// The target stops, or drains: who is not in yet need not come in.
    pub(super) fn refuse(&mut self) {
        match &mut self.login {
            Some(login) => login.reject(strongroom_iscsi::LoginStatus::SERVICE_UNAVAILABLE),
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

    /// The session that it would begin with a unit.
    pub(super) fn admitted_to(&self) -> Option<(SessionKey, UnitPlace)> {
        match &self.stage {
            Stage::Admitted { key, joins: false, admitted } => Some((*key, admitted.place.clone()?)),
            _ => None,
        }
    }

    /// The name that a login goes by.
    pub(super) fn initiator_name(&self) -> &str {
        match &self.stage {
            Stage::Before | Stage::InSession { .. } => "",
            Stage::Proving { request, .. } | Stage::Waiting { request, .. } => &request.initiator_name,
            Stage::Admitted { admitted, .. } => &admitted.initiator_name,
        }
    }

    /// Sends what the login, or the session, and the link have, as far as the stream takes it.
    pub(super) fn transmit(&mut self, runtime: &mut Runtime, mut session: Option<(&mut iscsi::Session, ConnectionId)>) {
        while !self.send_full && self.stream_lost.is_none() {
            let mut pdus = 0;
            while pdus < BATCH_PDUS {
                let pdu = match (&mut session, &mut self.login) {
                    (Some((session, id)), _) => session.poll_transmit(*id),
                    (None, Some(login)) => login.poll_transmit(),
                    (None, None) => None,
                };
                let Some(pdu) = pdu else { break };
                pdus += 1;
                self.link.send_pdu(pdu);
            }
            self.link.poll_transmit(&mut self.out);
            if !self.out.is_empty() {
                self.send_full = runtime.send(self.stream, &mut self.out) == SendState::Full;
            }
            if pdus < BATCH_PDUS {
                return;
            }
        }
    }

    /// The last words, then the end of the stream.
    pub(super) fn say_goodbye(&mut self, runtime: &mut Runtime, session: Option<(&mut iscsi::Session, ConnectionId)>) {
        if self.stream_lost.is_some() {
            return;
        }
        // After `Closed` only small answers are left.
        match (session, &mut self.login) {
            (Some((session, id)), _) => {
                while let Some(pdu) = session.poll_transmit(id) {
                    self.link.send_pdu(pdu);
                }
            }
            (None, Some(login)) => {
                while let Some(pdu) = login.poll_transmit() {
                    self.link.send_pdu(pdu);
                }
            }
            (None, None) => {}
        }
        self.link.close();
        self.link.poll_transmit(&mut self.out);
        let _ = runtime.send(self.stream, &mut self.out);
        runtime.close(self.stream);
    }

    /// What a transfer needs of it.
    pub(super) fn into_transfer(self) -> Option<(TransferChannel, Place)> {
        let mut transfer = self.link.into_transfer()?;
        transfer.unsent.splice(0..0, self.out);
        Some((transfer, self.place))
    }

    /// Stops reading from a peer that does not take its answers.
    pub(super) fn hold_back(&mut self, runtime: &mut Runtime, accepts: bool) {
        if accepts != self.receiving {
            self.receiving = accepts;
            runtime.set_receiving(self.stream, accepts);
        }
    }
}

//! iSCSI as the transport of a nexus: the session machine of `strongroom_iscsi`, over one or several links.
//!
//! Where the target takes several connections per session, further wires are asked for once the unit has answered by the first, and again
//! when one was lost; at error recovery level 2 the session survives that, else it ends with any of them.

mod connection;
mod further;
mod login;

use std::time::Instant;

use strongroom_block::{Buffer, Custody};
use strongroom_handshake::PublicKey;
use strongroom_iscsi::initiator::{ConnectionId, Event, Session};
use strongroom_iscsi::{Agreed, CloseReason};
use strongroom_net::{LinkEvent, StreamId};

use self::further::FurtherConnections;
use self::login::login_config;
use crate::chap::ChapAccount;
use crate::error::login_error;
use crate::session::link::link_lost;
use crate::session::transport::{InitiatorPort, SessionChange, SessionTransport, Wire, WireFailure};
use crate::{AttachError, AttachOptions};

pub(crate) use self::connection::IscsiConnection;

/// See the module.
#[derive(Debug)]
pub(crate) struct IscsiTransport {
    /// The leading one first, until it is lost.
    wires: Vec<Wire<IscsiConnection>>,
    /// Sockets of wires that are gone.
    ended: Vec<StreamId>,
    further: FurtherConnections,
    /// Who holds the unit's keys, if it is sealed: see [`IscsiConnection::protect`].
    custody: Option<Custody>,
    was_suspended: bool,
    /// Who the target has proven to be on the first wire.
    target_key: Option<PublicKey>,
    session: Option<Session>,
    login_failure: Option<AttachError>,
}

impl IscsiTransport {
    fn with_id(&self, id: ConnectionId) -> Option<usize> {
        self.wires.iter().position(|wire| wire.connection.id == Some(id))
    }

    fn start_session(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        port: &InitiatorPort,
    ) -> Result<(), AttachError> {
        let connection = &mut self.wires[0].connection;
        connection.id = Some(ConnectionId::LEADING);
        self.target_key = connection.link.peer();
        let config = login_config(options, port, connection.link.in_channel())?;
        self.session = Some(Session::new(now, config));
        Ok(())
    }

    /// Brings a further wire into the session.
    fn join(&mut self, now: Instant, options: &AttachOptions, at: usize) -> Result<(), AttachError> {
        let session = self.session.as_mut().expect("looked at by the caller");
        let connection = &mut self.wires[at].connection;
        // Several keys may be the target's; a session has one.
        if self.target_key.is_some() && connection.link.peer() != self.target_key {
            return Err(AttachError::Handshake("a further connection came to another target than the first".into()));
        }
        let chap = options.iscsi.chap.as_ref().map(ChapAccount::login).transpose()?;
        let id = session.add_connection(now, chap).map_err(|error| AttachError::Unreachable(error.to_string()))?;
        connection.id = Some(id);
        Ok(())
    }

    fn logged_in(&mut self, agreed: &Agreed, options: &AttachOptions) {
        self.wires[0].is_in_session = true;
        self.wires[0].connection.link.login_finished(agreed.digests);
        self.further.agreed(agreed.connections_max, options.iscsi.connections);
    }

    fn joined(&mut self, now: Instant, options: &AttachOptions, id: ConnectionId, agreed: &Agreed) -> SessionChange {
        if let Some(at) = self.with_id(id) {
            self.wires[at].is_in_session = true;
            self.wires[at].connection.link.login_finished(agreed.digests);
        }
        self.further.joined(now, options.timeouts.backoff_min);
        if std::mem::take(&mut self.was_suspended) { SessionChange::Continued } else { SessionChange::None }
    }

    /// The session goes on without one of its connections, or did not get it.
    fn connection_lost(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        id: ConnectionId,
        reason: &CloseReason,
    ) -> SessionChange {
        let Some(session) = &self.session else { return SessionChange::ConnectionLost };
        let is_suspended = session.is_suspended();
        if let CloseReason::LoginRefused(status) = reason
            && !is_suspended
        {
            self.further.refused(status, session);
        }
        if let Some(at) = self.with_id(id) {
            self.ended.push(self.wires.remove(at).stream);
            self.delay_wires(now, options);
        }
        if !is_suspended {
            tracing::info!(%reason, "a connection of the session is lost; its commands take another");
            return SessionChange::ConnectionLost;
        }
        match std::mem::replace(&mut self.was_suspended, true) {
            true => SessionChange::ConnectionLost,
            false => SessionChange::Suspended(reason.to_string()),
        }
    }
}

impl SessionTransport for IscsiTransport {
    type Session = Session;
    type Connection = IscsiConnection;

    fn connection(now: Instant, options: &AttachOptions) -> Result<IscsiConnection, AttachError> {
        IscsiConnection::new(now, options)
    }

    fn new(options: &AttachOptions, wire: Wire<IscsiConnection>) -> IscsiTransport {
        IscsiTransport {
            wires: vec![wire],
            ended: Vec::new(),
            further: FurtherConnections::new(options.timeouts.backoff_min),
            custody: None,
            was_suspended: false,
            target_key: None,
            session: None,
            login_failure: None,
        }
    }

    fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    fn target_key(&self) -> Option<PublicKey> {
        self.target_key
    }

    fn wires(&self) -> &[Wire<IscsiConnection>] {
        &self.wires
    }

    fn wire(&mut self, at: usize) -> &mut Wire<IscsiConnection> {
        &mut self.wires[at]
    }

    fn add_wire(&mut self, mut wire: Wire<IscsiConnection>) {
        wire.connection.protect(self.custody);
        self.wires.push(wire);
    }

    fn next_wire_at(&self) -> Option<Instant> {
        self.further.due(self.session.as_ref()?, self.wires.len())
    }

    fn allow_wires(&mut self, now: Instant) {
        self.further.now(now);
    }

    fn delay_wires(&mut self, now: Instant, options: &AttachOptions) {
        self.further.later(now, options.timeouts.backoff_max);
    }

    fn take_ended(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.ended)
    }

    fn is_suspended(&self) -> bool {
        self.was_suspended
    }

    fn rekeys(&self) -> (u64, u64) {
        let rekeys = self.wires.iter().map(|wire| wire.connection.link.rekeys());
        rekeys.fold((0, 0), |(ours, theirs), (our, their)| (ours + our, theirs + their))
    }

    fn protect(&mut self, custody: Option<Custody>) {
        self.custody = custody;
        self.wires.iter_mut().for_each(|wire| wire.connection.protect(custody));
    }

    fn handle_input(&mut self, now: Instant, stream: StreamId, bytes: &[u8]) {
        let Some(wire) = self.wires.iter_mut().find(|wire| wire.stream == stream) else { return };
        wire.connection.link.handle_input(bytes);
        if let (Some(session), Some(id)) = (&mut self.session, wire.connection.id) {
            session.handle_progress_on(now, id);
        }
    }

    fn handle_eof(&mut self, at: usize) {
        self.wires[at].connection.link.handle_eof();
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.wires.iter_mut().for_each(|wire| wire.connection.link.handle_timeout(now));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.wires.iter().filter_map(|wire| wire.connection.link.poll_timeout()).min()
    }

    fn has_input(&self) -> bool {
        self.wires.iter().any(|wire| wire.is_connected && wire.connection.link.has_events())
    }

    fn process_wire(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        port: &InitiatorPort,
        at: usize,
    ) -> Result<(), WireFailure> {
        while let Some(event) = self.wires[at].connection.link.poll_event() {
            match event {
                LinkEvent::Established { .. } if self.session.is_none() => {
                    self.start_session(now, options, port).map_err(WireFailure::Session)?;
                }
                LinkEvent::Established { .. } => self.join(now, options, at).map_err(WireFailure::Connection)?,
                LinkEvent::Pdu(pdu) => {
                    if let (Some(session), Some(id)) = (&mut self.session, self.wires[at].connection.id) {
                        session.handle_pdu_on(now, id, pdu);
                    }
                }
                LinkEvent::Corrupt(pdu) => {
                    if let (Some(session), Some(id)) = (&mut self.session, self.wires[at].connection.id) {
                        session.handle_corrupt_pdu_on(now, id, &pdu);
                    }
                }
                // Of ECL, which this is not.
                LinkEvent::Message(_) | LinkEvent::Packet(_) => {}
                LinkEvent::Ended(end) => return Err(WireFailure::Connection(link_lost(&end))),
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, now: Instant, options: &AttachOptions, event: Event) -> SessionChange {
        match event {
            Event::LoggedIn { agreed, .. } => {
                self.logged_in(&agreed, options);
                SessionChange::LoggedIn
            }
            Event::ConnectionJoined { id, agreed } => self.joined(now, options, id, &agreed),
            Event::ConnectionLost { id, reason } => self.connection_lost(now, options, id, &reason),
            Event::LoginFailed { status, redirect, reason } => {
                self.login_failure = Some(login_error(status, redirect, reason.as_deref()));
                SessionChange::None
            }
            // SendTargets and echoes are not asked for here; the rest is told in SCSI terms.
            _ => SessionChange::None,
        }
    }

    fn explained(&mut self, error: AttachError) -> AttachError {
        self.login_failure.take().unwrap_or(error)
    }

    fn wire_ended(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        at: usize,
        error: AttachError,
    ) -> Option<AttachError> {
        let wire = self.wires.remove(at);
        self.ended.push(wire.stream);
        let Some(session) = &mut self.session else { return Some(error) };
        if let Some(id) = wire.connection.id {
            session.handle_closed_on(now, id, CloseReason::ConnectionLost(error.to_string()));
            if session.is_closed() {
                return Some(self.explained(error));
            }
        } else {
            tracing::debug!(%error, "a further connection could not be made");
        }
        self.delay_wires(now, options);
        None
    }

    fn poll_transmit(&mut self, at: usize, bytes_max: usize) -> Vec<Buffer> {
        let connection = &mut self.wires[at].connection;
        let mut made_bytes = 0;
        if let (Some(session), Some(id)) = (&mut self.session, connection.id) {
            while made_bytes < bytes_max
                && let Some(pdu) = session.poll_transmit_on(id)
            {
                made_bytes += pdu.data.len();
                connection.link.send_pdu(pdu);
            }
        }
        connection.take_output()
    }

    fn close(&mut self) {
        self.wires.iter_mut().for_each(|wire| wire.connection.link.close());
    }
}

//! An ECL association as the transport of a nexus, for simulations. Its login is over: the simulation holds the login's TCP connection, and gives
//! both ends the same keys. Datagrams go past the nexus.

use std::time::Instant;

use strongroom_block::{Buffer, Custody};
use strongroom_ecl::initiator::{EclEvent, Session};
use strongroom_ecl::{Config, Datagram, Transmit};
use strongroom_handshake::PublicKey;
use strongroom_net::StreamId;

use crate::session::transport::{InitiatorPort, SessionChange, SessionTransport, Wire, WireFailure};
use crate::{AttachError, AttachOptions};

/// What the login has settled, until the session begins.
#[derive(Debug)]
pub(super) struct LoginConnection {
    pub(super) config: Option<Config>,
    pub(super) target_key: PublicKey,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Association {
    /// The connection of the login, until it is lost.
    wires: Vec<Wire<LoginConnection>>,
    ended: Vec<StreamId>,
    session: Option<Session>,
}

impl Association {
    /// Takes a packet. Whether it was used.
    pub(super) fn handle_datagram(&mut self, now: Instant, datagram: Datagram) -> bool {
        let Some(session) = &mut self.session else { return false };
        let before = session.statistics().packets_received;
        session.handle_datagram(now, datagram);
        session.statistics().packets_received > before
    }

    /// The next packet to send.
    pub(super) fn poll_datagram(&mut self, now: Instant) -> Option<Transmit> {
        self.session.as_mut()?.poll_transmit(now)
    }
}

impl SessionTransport for Association {
    type Session = Session;
    type Connection = LoginConnection;

    fn connection(_: Instant, _: &AttachOptions) -> Result<LoginConnection, AttachError> {
        unreachable!("a simulation makes its connections")
    }

    fn new(_: &AttachOptions, wire: Wire<LoginConnection>) -> Association {
        Association { wires: vec![wire], ended: Vec::new(), session: None }
    }

    fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    fn session_mut(&mut self) -> Option<&mut Session> {
        self.session.as_mut()
    }

    fn target_key(&self) -> Option<PublicKey> {
        self.wires.first().map(|wire| wire.connection.target_key)
    }

    fn wires(&self) -> &[Wire<LoginConnection>] {
        &self.wires
    }

    fn wire(&mut self, at: usize) -> &mut Wire<LoginConnection> {
        &mut self.wires[at]
    }

    fn add_wire(&mut self, _: Wire<LoginConnection>) {
        unreachable!("an association has one connection");
    }

    fn next_wire_at(&self) -> Option<Instant> {
        None
    }

    fn allow_wires(&mut self, _: Instant) {}

    fn delay_wires(&mut self, _: Instant, _: &AttachOptions) {}

    fn take_ended(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.ended)
    }

    fn is_suspended(&self) -> bool {
        false
    }

    fn rekeys(&self) -> (u64, u64) {
        self.session.as_ref().map_or((0, 0), |session| {
            let statistics = session.statistics();
            (statistics.rekeys, statistics.peer_rekeys)
        })
    }

    fn protect(&mut self, _: Option<Custody>) {}

    fn handle_input(&mut self, _: Instant, _: StreamId, _: &[u8]) {}

    fn handle_eof(&mut self, _: usize) {}

    fn handle_timeout(&mut self, _: Instant) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn has_input(&self) -> bool {
        false
    }

    fn process_wire(
        &mut self,
        now: Instant,
        _: &AttachOptions,
        _: &InitiatorPort,
        at: usize,
    ) -> Result<(), WireFailure> {
        if let Some(config) = self.wires[at].connection.config.take() {
            self.session = Some(Session::new(now, &config));
        }
        Ok(())
    }

    fn handle_event(&mut self, _: Instant, _: &AttachOptions, event: EclEvent) -> SessionChange {
        match event {
            EclEvent::Established => SessionChange::LoggedIn,
            EclEvent::PathReduced(_) => SessionChange::None,
        }
    }

    fn explained(&mut self, error: AttachError) -> AttachError {
        error
    }

    fn wire_ended(&mut self, _: Instant, _: &AttachOptions, at: usize, error: AttachError) -> Option<AttachError> {
        self.ended.push(self.wires.remove(at).stream);
        Some(error)
    }

    fn poll_transmit(&mut self, _: usize, _: usize) -> Vec<Buffer> {
        Vec::new()
    }

    fn close(&mut self) {}
}

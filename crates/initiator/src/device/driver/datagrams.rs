//! The datagrams of the device's thread, for a transport that has them: the socket, and what it has not taken.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strongroom_net::{DatagramId, Runtime, UdpPacket, UdpPath, UdpSent, UdpSocket, UdpTransmit};

use super::{Driver, SessionState};
use crate::AttachError;
use crate::pipeline::engine::Engine;
use crate::session::nexus::Nexus;
use crate::session::transport::SessionTransport;

/// Packets that are made together: they leave in few calls.
const BATCH_PACKETS: usize = 64;
/// Batches, and calls that receive, in a row before anything else is looked at.
const CALLS_IN_A_ROW: usize = 16;
/// How long the answer to a logout is waited for, where nobody else waits for it.
const LOGOUT_MAX: Duration = Duration::from_millis(500);
/// A socket that is full is tried again after this time; a device sends what is in its queue faster.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// See the module.
pub(super) struct DatagramSocket {
    id: DatagramId,
    socket: UdpSocket,
    path: UdpPath,
    backlog: VecDeque<UdpTransmit>,
    /// The socket was full: not before.
    blocked_until: Option<Instant>,
    arrived: Vec<UdpPacket>,
}

impl DatagramSocket {
    /// Sends what there is. True: there is more.
    fn transmit<T: SessionTransport>(
        &mut self,
        now: Instant,
        nexus: &mut Nexus<T>,
        mut engine: Option<&mut Engine>,
    ) -> bool {
        if self.blocked_until.take_if(|until| *until <= now).is_none() && self.blocked_until.is_some() {
            return false;
        }
        for _ in 0..CALLS_IN_A_ROW {
            while self.backlog.len() < BATCH_PACKETS
                && let Some(transmit) = nexus.poll_packet(now)
            {
                self.backlog.push_back(transmit);
            }
            if self.backlog.is_empty() {
                return false;
            }
            let bytes: usize = self.backlog.iter().map(UdpTransmit::len_bytes).sum();
            if self.socket.send(self.path, &mut self.backlog) == UdpSent::Full {
                self.blocked_until = Some(now + FULL_PAUSE);
                return false;
            }
            if let Some(engine) = engine.as_deref_mut() {
                engine.in_flight.transmitted(now, bytes);
            }
        }
        true
    }

    /// Until when the socket takes nothing.
    pub(super) fn blocked_until(&self) -> Option<Instant> {
        self.blocked_until
    }

    /// Sends the last packets of a session, and is gone.
    pub(super) fn close<T: SessionTransport>(mut self, runtime: &mut Runtime, nexus: &mut Nexus<T>) {
        self.blocked_until = None;
        self.transmit(Instant::now(), nexus, None);
        runtime.ignore_datagrams(self.id);
    }
}

impl<T: SessionTransport> Driver<T> {
    /// Opens the socket as soon as it is known where datagrams go.
    pub(super) fn open_datagrams(&mut self, now: Instant) {
        let SessionState::Active(nexus) = &mut self.state else { return };
        let Some(peer) = nexus.datagram_peer().filter(|_| self.datagrams.is_none()) else { return };
        // From the same address as the login: the target takes packets from no other.
        let local = nexus.wires().first().and_then(|wire| self.runtime.local(wire.stream)).map(|local| local.ip());
        let opened = UdpSocket::connect(peer, local).and_then(|socket| {
            let id = self.runtime.watch_datagrams(&socket)?;
            Ok(DatagramSocket {
                id,
                socket,
                path: UdpPath { peer, local: None },
                backlog: VecDeque::new(),
                blocked_until: None,
                arrived: Vec::new(),
            })
        });
        match opened {
            Ok(socket) => self.datagrams = Some(socket),
            Err(error) => self.lose(now, AttachError::Unreachable(error.to_string())),
        }
    }

    /// Packets wait in the socket.
    pub(super) fn receive_datagrams(&mut self, now: Instant) {
        let (Some(datagrams), SessionState::Active(nexus)) = (&mut self.datagrams, &mut self.state) else { return };
        if let Some(split) = nexus.packet_split() {
            datagrams.socket.expect(split);
        }
        for _ in 0..CALLS_IN_A_ROW {
            if !datagrams.socket.receive(&mut datagrams.arrived) {
                break;
            }
            datagrams.arrived.drain(..).for_each(|packet| nexus.handle_packet(now, packet));
        }
        if let Some(notice) = nexus.process(now, &self.options, &self.port, self.attachment.engine.as_mut()) {
            self.act(now, notice);
        }
    }

    /// Waits until the target has said that the session is over: the end of its connection could overtake a logout that goes by datagrams,
    /// and look like a loss.
    pub(super) fn await_logout(&mut self) {
        let until = Instant::now() + LOGOUT_MAX;
        while self.datagrams.is_some() {
            let now = Instant::now();
            let next = self.next_timeout().map_or(until, |at| at.min(until));
            if now >= until || self.runtime.poll(Some(next.saturating_duration_since(now))).is_err() {
                return;
            }
            self.receive();
            let now = Instant::now();
            if let SessionState::Active(nexus) = &mut self.state {
                nexus.handle_timeout(now);
            }
            self.process(now);
            self.transmit_datagrams(now);
        }
    }

    /// Sends what the session has for the socket.
    pub(super) fn transmit_datagrams(&mut self, now: Instant) {
        self.has_more = false;
        if let (Some(datagrams), SessionState::Active(nexus)) = (&mut self.datagrams, &mut self.state) {
            self.has_more = datagrams.transmit(now, nexus, self.attachment.engine.as_mut());
        }
    }
}

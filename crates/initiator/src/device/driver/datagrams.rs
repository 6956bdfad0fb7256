//! The datagrams of the device's thread, for a transport that has them: the socket, and what it has not taken.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strongroom_net::{DatagramId, NetError, Runtime, UdpPacket, UdpPath, UdpSent, UdpSocket, UdpTransmit};

use crate::AttachError;
use crate::pipeline::engine::Engine;
use crate::session::nexus::Nexus;
use crate::session::transport::SessionTransport;

/// Packets that are made together: they leave in few calls.
const BATCH_PACKETS: usize = 64;
/// Batches, and calls that receive, in a row before anything else is looked at.
const CALLS_IN_A_ROW: usize = 16;
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
    /// For a session that knows by now where its datagrams go; `None` for another one.
    ///
    /// # Errors
    /// [`AttachError::Unreachable`].
    pub(super) fn open<T: SessionTransport>(
        runtime: &mut Runtime,
        nexus: &Nexus<T>,
    ) -> Result<Option<DatagramSocket>, AttachError> {
        let Some(peer) = nexus.datagram_peer() else { return Ok(None) };
        // From the same address as the login: the target takes packets from no other.
        let local = nexus.wires().first().and_then(|wire| runtime.local(wire.stream)).map(|local| local.ip());
        let unreachable = |error: NetError| AttachError::Unreachable(error.to_string());
        let socket = UdpSocket::connect(peer, local).map_err(unreachable)?;
        let id = runtime.watch_datagrams(&socket).map_err(unreachable)?;
        let path = UdpPath { peer, local: None };
        Ok(Some(DatagramSocket {
            id,
            socket,
            path,
            backlog: VecDeque::new(),
            blocked_until: None,
            arrived: Vec::new(),
        }))
    }

    /// Sends what there is. True: there is more.
    pub(super) fn transmit<T: SessionTransport>(
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
                && let Some(transmit) = nexus.transport_mut().poll_packet(now)
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

    /// Takes what waits in the socket.
    pub(super) fn receive<T: SessionTransport>(&mut self, now: Instant, nexus: &mut Nexus<T>) {
        if let Some(split) = nexus.packet_split() {
            self.socket.expect(split);
        }
        for _ in 0..CALLS_IN_A_ROW {
            if !self.socket.receive(&mut self.arrived) {
                return;
            }
            self.arrived.drain(..).for_each(|packet| nexus.transport_mut().handle_packet(now, packet));
        }
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

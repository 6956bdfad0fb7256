//! The UDP ports of a worker: which association a packet belongs to, and what associations send.
//!
//! Every worker has a socket at each port; the kernel hands it the packets whose connection id, modulo the number of workers, is the worker's
//! number. A packet that names no association costs a look-up and is never answered.

use std::net::SocketAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;
use strongroom_ecl::Datagram;
use strongroom_net::{DatagramId, NetError, PacketSplit, Runtime, UdpPacket, UdpSocket};

use super::ecl_session::PacketCarrier;
use super::session::Session;
use super::sessions::Sessions;
use crate::stats::Counters;
use crate::unit::SessionKey;

/// Calls that receive in a row before other work gets its turn.
const RECEIVES_IN_A_ROW: usize = 8;

/// The sockets and associations of one worker.
pub(super) struct Datagrams {
    /// The worker's number and how many there are.
    worker: (u32, u32),
    sockets: Vec<PortalSocket>,
    associations: FxHashMap<u32, SessionKey>,
    /// What a call brings.
    arrived: Vec<UdpPacket>,
}

struct PortalSocket {
    id: DatagramId,
    /// Of the portal, as it was bound.
    address: SocketAddr,
    socket: UdpSocket,
}

impl Datagrams {
    pub(super) fn new(
        runtime: &mut Runtime,
        (worker, workers): (usize, usize),
        sockets: Vec<UdpSocket>,
    ) -> Result<Datagrams, NetError> {
        let watch = |socket: UdpSocket| -> Result<PortalSocket, NetError> {
            let (id, address) = (runtime.watch_datagrams(&socket)?, socket.local_address());
            Ok(PortalSocket { id, address, socket })
        };
        Ok(Datagrams {
            worker: (worker as u32, workers as u32),
            sockets: sockets.into_iter().map(watch).collect::<Result<_, NetError>>()?,
            associations: FxHashMap::default(),
            arrived: Vec::new(),
        })
    }

    /// The socket at a portal.
    pub(super) fn socket_at(&self, portal: SocketAddr) -> Option<usize> {
        self.sockets.iter().position(|socket| socket.address == portal)
    }

    /// A connection id for a session, and packets that will be split so at a socket. `None`: there is no randomness.
    pub(super) fn begin(&mut self, session: SessionKey, socket: usize, split: PacketSplit) -> Option<u32> {
        let (worker, workers) = self.worker;
        let id = loop {
            let mut random = [0; 4];
            getrandom::fill(&mut random).ok()?;
            let random = u32::from_ne_bytes(random) / workers;
            // The kernel finds this worker by it.
            let Some(id) = random.checked_mul(workers).and_then(|id| id.checked_add(worker)) else { continue };
            if !self.associations.contains_key(&id) {
                break id;
            }
        };
        self.associations.insert(id, session);
        self.sockets[socket].socket.expect(split);
        Some(id)
    }

    pub(super) fn end(&mut self, connection_id: u32) {
        self.associations.remove(&connection_id);
    }

    pub(super) fn stop(&mut self, runtime: &mut Runtime) {
        self.sockets.iter().for_each(|socket| runtime.ignore_datagrams(socket.id));
    }

    /// Packets wait in a socket.
    pub(super) fn receive(&mut self, now: Instant, id: DatagramId, sessions: &mut Sessions, counters: &Counters) {
        let Some(PortalSocket { socket, .. }) = self.sockets.iter_mut().find(|socket| socket.id == id) else { return };
        for _ in 0..RECEIVES_IN_A_ROW {
            if !socket.receive(&mut self.arrived) {
                break;
            }
            for packet in self.arrived.drain(..) {
                let key = Datagram::connection_id(&packet.head).and_then(|id| self.associations.get(&id));
                let session = key.and_then(|key| sessions.get_mut_ready(*key));
                match session.and_then(|session| session.machine.ecl_mut()) {
                    Some(association) => association.handle_packet(now, packet),
                    None => Counters::count(&counters.datagrams_dropped),
                }
            }
        }
    }

    /// Sends what a session has, if it is an association. True: there is more.
    pub(super) fn transmit(&mut self, now: Instant, session: &mut Session) -> bool {
        let Some(association) = session.machine.ecl_mut() else { return false };
        let PacketCarrier::Udp { socket, local } = association.carrier() else { return false };
        association.transmit(now, &mut self.sockets[socket].socket, local)
    }
}

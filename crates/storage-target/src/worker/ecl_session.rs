//! An ECL association at a worker: its machine, the packets that wait for the socket, and what it has done. The socket is the worker's; or the
//! connection of the login carries its packets.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use strongroom_ecl::{Datagram, Ecn, PathReduction, Transmit, target as ecl};
use strongroom_iscsi::target::{Command, Response, Statistics, TaskId, TaskManagement};
use strongroom_net::{LinkPacket, UdpPacket, UdpPath, UdpSent, UdpSocket, UdpTransmit};
use strongroom_scsi::transport::target::Event;

use super::session_end::SessionEnd;
use crate::admin::EclReport;
use crate::budget::WritePromise;
use crate::stats::PacketCounts;

/// Packets that are made together: they leave in few calls.
const BATCH_PACKETS: usize = 64;
/// Batches in a row before other sessions get their turn.
const BATCHES_IN_A_ROW: usize = 8;
/// A socket that is full is tried again after this time; a device sends what is in its queue faster.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// How often timers are looked at while the connection that carries the packets takes none.
const HELD_UP_PAUSE: Duration = Duration::from_secs(1);
/// Timers are not set closer than this: pacing releases several packets at a time.
const TIMER_MIN: Duration = Duration::from_micros(20);

/// What an association tells.
pub(super) enum EclEvent {
    Command(Command),
    TaskManagement(TaskManagement),
    PathReduced(PathReduction),
    Closed(SessionEnd),
}

/// What carries the packets of an association.
#[derive(Clone, Copy)]
pub(super) enum PacketCarrier {
    /// One of the worker's sockets, and our address that the initiator has called.
    Udp { socket: usize, local: Option<IpAddr> },
    /// The connection of the login.
    Stream,
}

pub(super) struct EclSession {
    pub(super) machine: ecl::Session,
    connection_id: u32,
    quantum_bytes: u32,
    carrier: PacketCarrier,
    /// Packets that the socket has not taken.
    backlog: VecDeque<UdpTransmit>,
    wake_at: Option<Instant>,
    done: Statistics,
    /// Of the write data that its credits allow.
    _promise: WritePromise,
}

impl EclSession {
    /// Of an association that was just granted.
    pub(super) fn new(
        machine: ecl::Session,
        (connection_id, quantum_bytes): (u32, u32),
        carrier: PacketCarrier,
        promise: WritePromise,
    ) -> EclSession {
        EclSession {
            machine,
            connection_id,
            quantum_bytes,
            carrier,
            backlog: VecDeque::new(),
            wake_at: None,
            done: Statistics::default(),
            _promise: promise,
        }
    }

    pub(super) fn connection_id(&self) -> u32 {
        self.connection_id
    }

    pub(super) fn carrier(&self) -> PacketCarrier {
        self.carrier
    }

    /// What it has done, as sessions of either transport count it.
    pub(super) fn done(&self) -> Statistics {
        self.done
    }

    pub(super) fn handle_packet(&mut self, now: Instant, packet: UdpPacket) {
        let UdpPacket { source, ecn, head, rest } = packet;
        self.machine.handle_datagram(now, Datagram { source, ecn: Ecn::from_bits(ecn), head, rest });
    }

    pub(super) fn poll_event(&mut self) -> Option<EclEvent> {
        Some(match self.machine.poll_event()? {
            Event::Command(command) => {
                self.done.commands += 1;
                self.done.bytes_written += command.data.iter().map(|part| part.data.len() as u64).sum::<u64>();
                EclEvent::Command(command)
            }
            Event::TaskManagement(request) => EclEvent::TaskManagement(request),
            Event::Closed { reason, .. } => {
                EclEvent::Closed(self.machine.close_reason().map_or(SessionEnd::Other(reason), SessionEnd::from))
            }
            Event::Transport(reduction) => EclEvent::PathReduced(reduction),
        })
    }

    pub(super) fn complete(&mut self, task: TaskId, response: Response) -> bool {
        self.done.bytes_read += response.data.iter().map(|part| part.data().len() as u64).sum::<u64>();
        self.machine.complete(task, response)
    }

    /// Memory of its commands, and of packets that the socket has not taken, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let backlog = self.backlog.iter().map(|packet| packet.head.len() as u64).sum::<u64>();
        self.machine.memory_bytes() + backlog
    }

    /// The next packet. `None`: there is none now; [`EclSession::poll_timeout`] tells when to ask again.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let packet = self.machine.poll_transmit(now);
        if packet.is_none() {
            self.wake_at = self.machine.poll_timeout().map(|at| at.max(now + TIMER_MIN));
        }
        packet
    }

    /// Sends what it has by a socket. True: there is more, which others do not wait for.
    pub(super) fn transmit(&mut self, now: Instant, socket: &mut UdpSocket, local: Option<IpAddr>) -> bool {
        for _ in 0..BATCHES_IN_A_ROW {
            while self.backlog.len() < BATCH_PACKETS
                && let Some(Transmit { head, payload }) = self.poll_transmit(now)
            {
                self.backlog.push_back(UdpTransmit { head, payload });
            }
            // There are none before the initiator's address is known.
            let Some(peer) = self.machine.peer().filter(|_| !self.backlog.is_empty()) else { return false };
            if socket.send(UdpPath { peer, local }, &mut self.backlog) == UdpSent::Full {
                self.wake_at = Some(now + FULL_PAUSE);
                return false;
            }
        }
        self.wake_at = Some(now);
        true
    }

    /// The next packet for the connection of the login, if that carries them.
    pub(super) fn poll_packet(&mut self, now: Instant) -> Option<LinkPacket> {
        match self.carrier {
            PacketCarrier::Udp { .. } => None,
            PacketCarrier::Stream => {
                self.poll_transmit(now).map(|Transmit { head, payload }| LinkPacket { head, payload })
            }
        }
    }

    /// The connection takes no packets now. It tells when it does; until then, timers matter only if they end the association.
    pub(super) fn is_held_up(&mut self, now: Instant) {
        if matches!(self.carrier, PacketCarrier::Stream) {
            self.wake_at = Some(now + HELD_UP_PAUSE);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Its packets so far.
    pub(super) fn packets(&self) -> PacketCounts {
        let measured = self.machine.statistics();
        PacketCounts {
            sent: measured.packets_sent,
            lost: measured.packets_lost,
            black_holes: measured.black_holes,
            received: measured.packets_received,
            received_bytes: measured.received_bytes(),
            copied_bytes: measured.copied_bytes,
        }
    }

    /// What `status` shows.
    pub(super) fn report(&self) -> EclReport {
        let measured = self.machine.statistics();
        EclReport {
            quantum_bytes: self.quantum_bytes,
            packet_bytes: measured.packet_bytes,
            packets_sent: measured.packets_sent,
            packets_lost: measured.packets_lost,
            black_holes: measured.black_holes,
            quanta_repaired: measured.quanta_repaired,
            packets_received: measured.packets_received,
            received_bytes: measured.received_bytes(),
            copied_bytes: measured.copied_bytes,
            round_trip_us: measured.rtt.map(|rtt| rtt.as_micros() as u64),
            window_bytes: measured.window_bytes,
            rekeys: measured.rekeys,
            peer_rekeys: measured.peer_rekeys,
        }
    }
}

//! What a nexus needs of a transport: a session in SCSI terms, and the connections that carry it. iSCSI (`iscsi`) implements it; a second
//! transport needs nothing else of this crate but to be chosen where the device's thread is started.
//!
//! Machines without I/O: the driver owns the sockets and knows each connection by its [`StreamId`].

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Custody};
use strongroom_handshake::PublicKey;
use strongroom_net::{PacketSplit, StreamId, UdpPacket, UdpTransmit};
use strongroom_scsi::transport::initiator::Session;

use crate::pipeline::stamps::random;
use crate::{AttachError, AttachOptions};

/// The initiator port: what all sessions of one attachment have in common; by it and our name the target recognizes them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitiatorPort {
    pub(crate) isid: [u8; 6],
}

impl InitiatorPort {
    /// Of a new attachment: of the type "random" (RFC 7143 §11.12.5), so that no two attachments share a nexus; kept over reconnects.
    pub(crate) fn random() -> InitiatorPort {
        let mut isid: [u8; 6] = random();
        isid[0] = 0x80;
        InitiatorPort { isid }
    }
}

/// A session with a target and its connections.
pub(crate) trait SessionTransport: Sized {
    /// The session as the nexus sees it.
    type Session: Session;
    /// What the transport keeps for each wire: framing, channel, the connection's name in the session.
    type Connection: Debug;

    /// The transport's part of a connection that is being made.
    ///
    /// # Errors
    /// The options do not suffice.
    fn connection(now: Instant, options: &AttachOptions) -> Result<Self::Connection, AttachError>;

    /// No session yet; its first wire is being connected.
    fn new(options: &AttachOptions, wire: Wire<Self::Connection>) -> Self;

    /// The session, once its first connection stands.
    fn session(&self) -> Option<&Self::Session>;

    /// See [`SessionTransport::session`].
    fn session_mut(&mut self) -> Option<&mut Self::Session>;

    /// Who the target has proven to be.
    fn target_key(&self) -> Option<PublicKey>;

    /// Its wires, the leading one first until it is lost.
    fn wires(&self) -> &[Wire<Self::Connection>];

    /// One of them.
    fn wire(&mut self, at: usize) -> &mut Wire<Self::Connection>;

    /// A further wire is being connected.
    fn add_wire(&mut self, wire: Wire<Self::Connection>);

    /// When a further wire is to be connected, if one is missing.
    fn next_wire_at(&self) -> Option<Instant>;

    /// A further wire may be connected from now on.
    fn allow_wires(&mut self, now: Instant);

    /// A further wire could not be connected, or was lost: the next try waits.
    fn delay_wires(&mut self, now: Instant, options: &AttachOptions);

    /// Sockets of wires that are gone, to be closed.
    fn take_ended(&mut self) -> Vec<StreamId>;

    /// Whether the session stands without a connection.
    fn is_suspended(&self) -> bool;

    /// How often we and the target have changed the keys of the wires that there are.
    fn rekeys(&self) -> (u64, u64);

    /// Parameters of a sealed unit are to be protected, and block keys wiped, on all wires. `custody`: who holds the unit's keys, if it is
    /// sealed.
    fn protect(&mut self, custody: Option<Custody>);

    /// Bytes from the target.
    fn handle_input(&mut self, now: Instant, stream: StreamId, bytes: &[u8]);

    /// The target sends no more on a connection.
    fn handle_eof(&mut self, at: usize);

    /// The time of `poll_timeout` has come. The session's timers are apart.
    fn handle_timeout(&mut self, now: Instant);

    /// When `handle_timeout` wants to be called next.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Whether some wire has something for [`SessionTransport::process_wire`].
    fn has_input(&self) -> bool;

    /// Moves what a wire has received into the session, which begins with the first connection.
    ///
    /// # Errors
    /// [`WireFailure`]; the session may have events from before it.
    fn process_wire(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        port: &InitiatorPort,
        at: usize,
    ) -> Result<(), WireFailure>;

    /// An event of the session that concerns the transport alone.
    fn handle_event(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        event: <Self::Session as Session>::TransportEvent,
    ) -> SessionChange;

    /// The refusal of the login, if there was one; otherwise `error`, which followed.
    fn explained(&mut self, error: AttachError) -> AttachError;

    /// A wire is over. Returns an error if the session is over with it.
    fn wire_ended(
        &mut self,
        now: Instant,
        options: &AttachOptions,
        at: usize,
        error: AttachError,
    ) -> Option<AttachError>;

    /// Makes what is to be sent on a wire, up to about `bytes_max`; empty when there is no more.
    fn poll_transmit(&mut self, at: usize, bytes_max: usize) -> Vec<Buffer>;

    /// Where datagrams are to go, once it is known; asked for until it is. A transport without datagrams never says.
    fn datagram_peer(&self) -> Option<SocketAddr> {
        None
    }

    /// How most datagrams are split.
    fn packet_split(&self) -> Option<PacketSplit> {
        None
    }

    /// A datagram from the target, or from who claims to be it.
    fn handle_packet(&mut self, _now: Instant, _packet: UdpPacket) {}

    /// The next datagram to send, if one may be sent now.
    fn poll_packet(&mut self, _now: Instant) -> Option<UdpTransmit> {
        None
    }

    /// How its datagrams do.
    fn packet_status(&self) -> Option<PacketStatus> {
        None
    }

    /// Says goodbye on every wire: what `poll_transmit` then has is the last.
    fn close(&mut self);
}

/// One connection of a session, or one that is being made: its socket, and what the transport keeps for it.
#[derive(Debug)]
pub(crate) struct Wire<C> {
    /// The driver's name for the socket.
    pub(crate) stream: StreamId,
    /// Where it leads, or is tried just now.
    pub(crate) address: SocketAddr,
    /// Further addresses of the same host, the next one last.
    pub(crate) others: Vec<SocketAddr>,
    pub(crate) is_connected: bool,
    /// The socket takes no more now.
    pub(crate) is_blocked: bool,
    /// Its login is over: commands may go by it.
    pub(crate) is_in_session: bool,
    pub(crate) connection: C,
}

impl<C> Wire<C> {
    /// For a socket that is being connected to `address`.
    pub(crate) fn new(stream: StreamId, address: SocketAddr, connection: C) -> Wire<C> {
        Wire {
            stream,
            address,
            others: Vec::new(),
            is_connected: false,
            is_blocked: false,
            is_in_session: false,
            connection,
        }
    }
}

/// How the packets of an ECL association do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketStatus {
    /// Bytes in a quantum: a block of the volume.
    pub quantum_bytes: u32,
    /// Longest packet that the path takes, as far as is known, in bytes.
    pub packet_bytes: usize,
    /// Packets sent.
    pub packets_sent: u64,
    /// Of those, packets that counted as lost.
    pub packets_lost: u64,
    /// How often packets have had to become shorter, because those of one size vanished while shorter ones arrived.
    pub black_holes: u64,
    /// Quanta that were lost on the way here, and restored by parity.
    pub quanta_repaired: u64,
    /// Packets received and used.
    pub packets_received: u64,
    /// Bytes of quanta received.
    pub received_bytes: u64,
    /// Of those, bytes that were copied: they had arrived in segments, or in one piece with their header.
    pub copied_bytes: u64,
    /// Smoothed round trip, once it was measured.
    pub round_trip: Option<Duration>,
    /// The smallest round trip.
    pub smallest_round_trip: Option<Duration>,
    /// Congestion window, in bytes; 0 where TCP carries the packets, which has its own.
    pub window_bytes: u32,
}

/// Why a wire gives no more.
#[derive(Debug)]
pub(crate) enum WireFailure {
    /// This connection has ended, or could not join the session.
    Connection(AttachError),
    /// The session cannot begin.
    Session(AttachError),
}

/// What an event of the transport means for the nexus.
#[derive(Debug)]
pub(crate) enum SessionChange {
    None,
    /// The login is over: the unit can be asked.
    LoggedIn,
    /// A connection is lost, and its commands take another.
    ConnectionLost,
    /// The last connection is lost, and the session is not: the tasks wait for a new one.
    Suspended(String),
    /// The session goes on.
    Continued,
}

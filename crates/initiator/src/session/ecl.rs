//! ECL as the transport of a nexus: the session machine of `strongroom_ecl`. Its only wire is the connection of its login, whose end is the end
//! of the session; what the session says goes by datagrams, for which the driver has a socket, or by the wire, as the URL says.

use std::net::SocketAddr;
use std::time::Instant;

use strongroom_block::{Buffer, Custody};
use strongroom_ecl::initiator::{EclEvent, Session};
use strongroom_ecl::login::{Carrier, LoginAnswer, LoginGrant, LoginRequest};
use strongroom_ecl::{Config, Datagram, EclKeys, Ecn, PathReduction, RekeyLimits, Scheme, Transmit};
use strongroom_handshake::{HandshakeError, PublicKey};
use strongroom_iscsi::{Digests, LoginStatus};
use strongroom_net::{
    Link, LinkEnd, LinkEvent, LinkPacket, PacketSplit, ProtocolUse, StreamId, UdpPacket, UdpTransmit,
};

use crate::error::login_error;
use crate::pipeline::stamps::random;
use crate::session::link::{link, link_lost};
use crate::session::transport::{InitiatorPort, PacketStatus, SessionChange, SessionTransport, Wire, WireFailure};
use crate::url::Transport;
use crate::{AttachError, AttachOptions};

/// The login's connection: its link, and what waits for the socket.
#[derive(Debug)]
pub(crate) struct EclConnection {
    link: Link,
    out: Vec<Buffer>,
}

/// An association and where it leads.
#[derive(Debug)]
struct Association {
    session: Session,
    carrier: Carrier,
    peer: SocketAddr,
    quantum_bytes: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct EclTransport {
    /// One, until it is lost.
    wires: Vec<Wire<EclConnection>>,
    /// The socket of a wire that is gone.
    ended: Vec<StreamId>,
    /// Who the target has proven to be.
    target_key: Option<PublicKey>,
    association: Option<Association>,
    /// Bytes in front of a quantum, once the unit has said who holds its keys.
    head_bytes: Option<usize>,
    /// The time of the last call that gave one.
    now: Option<Instant>,
}

impl EclTransport {
    /// The target has answered the login.
    fn answered(&mut self, now: Instant, options: &AttachOptions, message: &[u8]) -> Result<(), AttachError> {
        let malformed = |why: String| AttachError::Unreachable(format!("the login failed: {why}"));
        if self.association.is_some() {
            return Err(malformed("a message behind the answer".to_owned()));
        }
        match LoginAnswer::decode(message).map_err(|error| malformed(error.to_string()))? {
            LoginAnswer::Granted(grant) => {
                self.association = Some(self.associate(now, options, &grant).map_err(malformed)?);
                Ok(())
            }
            LoginAnswer::Refused { status, reason } => {
                let status = LoginStatus(status);
                let is_moved = [LoginStatus::TARGET_MOVED_TEMPORARILY, LoginStatus::TARGET_MOVED_PERMANENTLY];
                Err(match is_moved.contains(&status) {
                    true => login_error(status, Some(reason), None),
                    false => login_error(status, None, Some(reason.as_str()).filter(|reason| !reason.is_empty())),
                })
            }
        }
    }

    fn associate(&mut self, now: Instant, options: &AttachOptions, grant: &LoginGrant) -> Result<Association, String> {
        let wire = &mut self.wires[0];
        let secret = wire.connection.link.take_ecl_secret().ok_or("it was answered before")?;
        let scheme = Scheme::from_number(options.scheme() as u8).map_err(|error| error.to_string())?;
        let (carrier, mut peer) = (carrier(options), wire.address);
        match carrier {
            Carrier::Udp => peer.set_port(grant.udp_port),
            Carrier::Stream => wire.connection.link.begin_packets(),
        }
        let keys = EclKeys::new(*secret.bytes(), scheme, options.channel.suite);
        let mut config = Config::new(keys, grant.connection_id, peer, grant.quantum_bytes);
        config.window_bytes = grant.window_bytes;
        config.transfer_bytes_max = grant.transfer_bytes_max;
        config.queue_depth = grant.queue_depth;
        config.is_stream = carrier == Carrier::Stream;
        config.parity = options.url.parameters().parity;
        // With custody `target`, which is the one without a source of keys, they travel in records.
        config.holds_keys = options.sealing.key_source.is_none();
        config.rekey = RekeyLimits { packets: options.channel.rekey.tags, bytes: options.channel.rekey.bytes };
        config.seed = u64::from_ne_bytes(random());
        let session = Session::new(now, &config);
        Ok(Association { session, carrier, peer, quantum_bytes: grant.quantum_bytes })
    }

    /// Gives the wire about `bytes_max` of what the session says, if the wire carries that.
    fn send_packets(&mut self, bytes_max: usize) {
        let (Some(now), Some(association), Some(wire)) = (self.now, &mut self.association, self.wires.first_mut())
        else {
            return;
        };
        let mut made_bytes = 0;
        while association.carrier == Carrier::Stream
            && made_bytes < bytes_max
            && let Some(transmit) = association.session.poll_transmit(now)
        {
            made_bytes += transmit.len_bytes();
            let Transmit { head, payload } = transmit;
            wire.connection.link.send_packet(LinkPacket { head, payload });
        }
    }
}

/// What the URL wants to carry the packets.
fn carrier(options: &AttachOptions) -> Carrier {
    match options.url.transport() {
        Transport::EclTcp => Carrier::Stream,
        Transport::Ecl | Transport::Iscsi => Carrier::Udp,
    }
}

impl SessionTransport for EclTransport {
    type Session = Session;
    type Connection = EclConnection;

    fn connection(now: Instant, options: &AttachOptions) -> Result<EclConnection, AttachError> {
        let link = link(now, options, ProtocolUse::Only)?;
        Ok(EclConnection { link, out: Vec::new() })
    }

    fn new(_options: &AttachOptions, wire: Wire<EclConnection>) -> EclTransport {
        EclTransport {
            wires: vec![wire],
            ended: Vec::new(),
            target_key: None,
            association: None,
            head_bytes: None,
            now: None,
        }
    }

    fn session(&self) -> Option<&Session> {
        self.association.as_ref().map(|association| &association.session)
    }

    fn session_mut(&mut self) -> Option<&mut Session> {
        self.association.as_mut().map(|association| &mut association.session)
    }

    fn target_key(&self) -> Option<PublicKey> {
        self.target_key
    }

    fn wires(&self) -> &[Wire<EclConnection>] {
        &self.wires
    }

    fn wire(&mut self, at: usize) -> &mut Wire<EclConnection> {
        &mut self.wires[at]
    }

    fn add_wire(&mut self, _wire: Wire<EclConnection>) {
        unreachable!("none is asked for");
    }

    fn next_wire_at(&self) -> Option<Instant> {
        None
    }

    fn allow_wires(&mut self, _now: Instant) {}

    fn delay_wires(&mut self, _now: Instant, _options: &AttachOptions) {}

    fn take_ended(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.ended)
    }

    fn is_suspended(&self) -> bool {
        false
    }

    fn rekeys(&self) -> (u64, u64) {
        let statistics = self.session().map(Session::statistics).unwrap_or_default();
        (statistics.rekeys, statistics.peer_rekeys)
    }

    /// Everything but sealed blocks is encrypted under every scheme.
    fn protect(&mut self, custody: Option<Custody>) {
        let Some(custody) = custody else { return };
        // Towards an initiator a record is behind its store sequence.
        self.head_bytes = Some(Datagram::head_bytes(8 + custody.record_bytes_in_channel()));
    }

    fn handle_input(&mut self, _now: Instant, stream: StreamId, bytes: &[u8]) {
        if let Some(wire) = self.wires.iter_mut().find(|wire| wire.stream == stream) {
            wire.connection.link.handle_input(bytes);
        }
    }

    fn handle_eof(&mut self, at: usize) {
        self.wires[at].connection.link.handle_eof();
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = Some(now);
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
        self.now = Some(now);
        while let Some(event) = self.wires[at].connection.link.poll_event() {
            match event {
                LinkEvent::Established { peer } => {
                    self.target_key = peer;
                    let request = LoginRequest {
                        carrier: carrier(options),
                        parity: options.url.parameters().parity,
                        isid: port.isid,
                        initiator_name: options.iscsi.initiator_name.clone(),
                        target_name: options.target_name(),
                    };
                    self.wires[at].connection.link.send_message(&request.encode());
                }
                LinkEvent::Message(message) => {
                    self.answered(now, options, &message).map_err(WireFailure::Session)?;
                }
                LinkEvent::Ended(end) => return Err(WireFailure::Connection(login_lost(&end, options))),
                LinkEvent::Packet(LinkPacket { head, payload }) => {
                    if let Some(association) = &mut self.association {
                        let source = association.peer;
                        let datagram = Datagram { source, ecn: Ecn::NotCapable, head, rest: payload };
                        association.session.handle_datagram(now, datagram);
                    }
                }
                LinkEvent::Pdu(_) | LinkEvent::Corrupt(_) => {}
            }
        }
        Ok(())
    }

    fn handle_event(&mut self, _now: Instant, options: &AttachOptions, event: EclEvent) -> SessionChange {
        match event {
            EclEvent::PathReduced(reduction) => {
                warn_of_path(options, reduction);
                SessionChange::None
            }
            EclEvent::Established => {
                for wire in &mut self.wires {
                    wire.is_in_session = true;
                    wire.connection.link.login_finished(Digests::default());
                }
                SessionChange::LoggedIn
            }
        }
    }

    fn explained(&mut self, error: AttachError) -> AttachError {
        error
    }

    fn wire_ended(
        &mut self,
        now: Instant,
        _options: &AttachOptions,
        at: usize,
        error: AttachError,
    ) -> Option<AttachError> {
        self.ended.push(self.wires.remove(at).stream);
        if let Some(session) = self.session_mut() {
            session.close(now, "the connection of its login has ended");
        }
        Some(error)
    }

    fn poll_transmit(&mut self, at: usize, bytes_max: usize) -> Vec<Buffer> {
        self.send_packets(bytes_max);
        let connection = &mut self.wires[at].connection;
        connection.link.poll_transmit(&mut connection.out);
        std::mem::take(&mut connection.out)
    }

    fn datagram_peer(&self) -> Option<SocketAddr> {
        let association = self.association.as_ref()?;
        (association.carrier == Carrier::Udp).then_some(association.peer)
    }

    fn packet_split(&self) -> Option<PacketSplit> {
        let quantum_bytes = self.association.as_ref()?.quantum_bytes as usize;
        Some(PacketSplit { head_bytes: self.head_bytes?, quantum_bytes })
    }

    fn handle_packet(&mut self, now: Instant, packet: UdpPacket) {
        let UdpPacket { source, ecn, head, rest } = packet;
        if let Some(session) = self.session_mut() {
            session.handle_datagram(now, Datagram { source, ecn: Ecn::from_bits(ecn), head, rest });
        }
    }

    fn poll_packet(&mut self, now: Instant) -> Option<UdpTransmit> {
        let transmit = self.session_mut()?.poll_transmit(now)?;
        Some(UdpTransmit { head: transmit.head, payload: transmit.payload })
    }

    fn packet_status(&self) -> Option<PacketStatus> {
        let Association { session, quantum_bytes, .. } = self.association.as_ref()?;
        let measured = session.statistics();
        Some(PacketStatus {
            quantum_bytes: *quantum_bytes,
            packet_bytes: measured.packet_bytes,
            packets_sent: measured.packets_sent,
            packets_lost: measured.packets_lost,
            black_holes: measured.black_holes,
            quanta_repaired: measured.quanta_repaired,
            packets_received: measured.packets_received,
            received_bytes: measured.received_bytes(),
            copied_bytes: measured.copied_bytes,
            round_trip: measured.rtt,
            smallest_round_trip: measured.rtt_min,
            window_bytes: measured.window_bytes,
        })
    }

    fn close(&mut self) {
        if let (Some(now), Some(session)) = (self.now, self.session_mut()) {
            session.close(now, "detached");
        }
        self.send_packets(usize::MAX);
        self.wires.iter_mut().for_each(|wire| wire.connection.link.close());
    }
}

/// Packets of one size do not arrive any more, while shorter ones do.
fn warn_of_path(options: &AttachOptions, PathReduction { from_bytes, to_bytes }: PathReduction) {
    tracing::warn!(
        url = %options.url,
        from_bytes,
        to_bytes,
        "ECL packets as long as before do not reach the target any more, and shorter ones do: a link on the path has a smaller MTU now. Nothing is \
         lost; blocks travel in shorter packets, which is slower. Find that link, or set the MTU of both ends to what the path carries"
    );
}

/// The error of a login's link that has ended.
fn login_lost(end: &LinkEnd, options: &AttachOptions) -> AttachError {
    match end {
        LinkEnd::Handshake(HandshakeError::NoCommonScheme) => AttachError::Unreachable(format!(
            "it does not offer ECL with the scheme {} and the suite {}: ECL is switched off there (ecl = false in its configuration), it does \
             not admit these, or it is an older Strongroom; use a strongroom:// URL (iSCSI), or have its administrator look",
            options.scheme(),
            options.channel.suite
        )),
        _ => link_lost(end),
    }
}

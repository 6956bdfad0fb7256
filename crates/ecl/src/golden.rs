//! Compares what this crate sends and takes with the vectors of `docs/ecl.md`, which an independent implementation computed.

use std::time::Instant;

use strongroom_block::{
    AttachId, Buffer, HoleRecord, Lba, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite, keyless_checksum,
};
use strongroom_scsi::transport::{Residual, Written};

use crate::acknowledgement::{Acknowledgement, EcnCounts};
use crate::body::{ResponseBody, hole_body};
use crate::connection::Outgoing;
use crate::header::{ClearHeader, Flags, HEADER_BYTES, Header, Operation, PacketType, Segment};
use crate::keys::{Direction, EclKeys, ReceiveKeys, RekeyLimits, SendKeys};
use crate::login::{Carrier, LoginAnswer, LoginGrant, LoginRequest};
use crate::parity::Parity;
use crate::parity::sender::ParityPlan;
use crate::quantum;
use crate::scheme::Scheme;
use crate::tag::SinkTag;

const DOCUMENT: &str = include_str!("../../../docs/ecl.md");
const CONNECTION_ID: u32 = 0x0a0b_0c0d;
const SINK: SinkTag = SinkTag::new(3, 9);

/// The bytes of a row of the document's last table.
fn vector(name: &str) -> Vec<u8> {
    let start = format!("| {name} | `");
    let row = DOCUMENT.lines().find_map(|line| line.strip_prefix(&start));
    let hex = row.unwrap_or_else(|| panic!("docs/ecl.md has no vector '{name}'")).trim_end_matches("` |");
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn keys(scheme: Scheme) -> EclKeys {
    EclKeys::new(std::array::from_fn(|at| at as u8), scheme, Suite::Aes256Gcm)
}

fn record() -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([0x11; 16]), counter: 34 };
    sealed(RecordFlags::default(), stamp, keyless_checksum(&[0xa5; 512]))
}

fn sealed(flags: RecordFlags, stamp: Stamp, checksum: u64) -> SealRecord {
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 3, stamp, checksum, [0x55; 16])
}

/// Keys of a sender that has changed them this often.
fn send_keys(scheme: Scheme, direction: Direction, generation: u8) -> SendKeys {
    let limits = RekeyLimits { packets: 1, ..RekeyLimits::default() };
    let mut sender = SendKeys::new(&keys(scheme), direction, CONNECTION_ID, limits);
    for number in 0..u64::from(generation) {
        sender.seal(number, &mut vec![0; HEADER_BYTES]);
        sender.acknowledged(number);
        assert_eq!(u64::from(sender.generation_byte()), number + 1);
    }
    sender
}

/// A packet of the document, up to its payload.
struct PacketVector<'a> {
    name: &'a str,
    scheme: Scheme,
    direction: Direction,
    generation: u8,
    number: u64,
    sink: SinkTag,
    header: Header,
    body: &'a [u8],
}

impl PacketVector<'_> {
    /// Checks that it is sent, and opened, as the document has it.
    #[allow(clippy::disallowed_methods)] // An Instant has no other beginning.
    fn check(&self) {
        let &PacketVector { name, scheme, direction, generation, number, sink, header, body } = self;
        let packet_type = match header.operation {
            Operation::Command | Operation::DataOut | Operation::DataIn | Operation::Parity => PacketType::Data,
            _ => PacketType::Message,
        };
        let clear = ClearHeader {
            packet_type,
            generation,
            protected_bytes: (HEADER_BYTES + body.len()) as u16,
            connection_id: CONNECTION_ID,
            packet_number: number as u32,
            sink,
        };
        let plain = [&header.encode(&clear)[..], body].concat();
        let mut head = plain.clone();
        send_keys(scheme, direction, generation).seal(number, &mut head);
        assert_eq!(head, vector(name), "{name}");
        assert_eq!(ClearHeader::decode(&head), Some(clear));
        let mut receiver = ReceiveKeys::new(&keys(scheme), direction, CONNECTION_ID);
        assert_eq!(receiver.open(Instant::now(), generation, number, &mut head), Ok(Ok(())), "{name}");
        assert_eq!(head[..plain.len()], plain[..], "{name}");
        assert_eq!(Header::decode(head.first_chunk().expect("64 bytes")), Ok(header), "{name}");
    }
}

/// Of S2-5, in the first generation.
fn check_lazy(name: &str, direction: Direction, number: u64, sink: SinkTag, header: Header, body: &[u8]) {
    PacketVector { name, scheme: Scheme::Lazy, direction, generation: 0, number, sink, header, body }.check();
}

#[test]
fn secrets_are_as_documented() {
    for (name, scheme) in [("S2-5", Scheme::Lazy), ("S1-2", Scheme::LazyAuth)] {
        for (to, direction) in [("target", Direction::ToTarget), ("initiator", Direction::ToInitiator)] {
            let derived = keys(scheme).secret_and_iv(direction, CONNECTION_ID, 0);
            assert_eq!(derived, vector(&format!("{name} secret_0 and iv_0, to the {to}")), "{name}, {to}");
        }
    }
    let next = keys(Scheme::Lazy).secret_and_iv(Direction::ToTarget, CONNECTION_ID, 1);
    assert_eq!(next, vector("S2-5 secret_1 and iv_1, to the target"));
}

#[test]
fn packets_to_the_target_are_as_documented() {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (0x8a, 7, 1);
    let header = Header {
        task: 5,
        flags: Flags(Flags::SEALED | Flags::WRITE | 1 << Flags::ATTRIBUTE_SHIFT),
        order_epoch: 2,
        length: 512,
        specific: cdb,
        ..Header::new(Operation::Command)
    };
    for (name, scheme, generation, number) in [
        ("S2-5 COMMAND with quantum 0, packet 2^32 + 2", Scheme::Lazy, 0, (1 << 32) + 2),
        ("S1-2 COMMAND with quantum 0, packet 2^32 + 2", Scheme::LazyAuth, 0, (1 << 32) + 2),
        ("S2-5 COMMAND with quantum 0, packet 2^20, generation 1", Scheme::Lazy, 1, 1 << 20),
    ] {
        let (direction, sink, record) = (Direction::ToTarget, SINK, record());
        let body = record.as_bytes();
        PacketVector { name, scheme, direction, generation, number, sink, header, body }.check();
    }
}

#[test]
fn segments_are_as_documented() {
    let quantum = [[0xa5; 512], [0x5a; 512]].concat();
    let record = record().with_checksum(keyless_checksum(&quantum));
    let segment = Segment { index: 1, count: 2 };
    let specific = quantum::specific_of(segment, &quantum[segment.range(quantum.len())]);
    let header = Header { task: 5, quantum: 1, segment, length: 1024, specific, ..Header::new(Operation::DataOut) };
    let name = "S2-5 DATA OUT, segment 1 of 2, packet 4";
    check_lazy(name, Direction::ToTarget, 4, SINK, header, record.as_bytes());
}

#[test]
fn parity_is_as_documented() {
    let mut plan = ParityPlan::new(Parity::new(4, 2));
    [0, 1, 3].into_iter().for_each(|quantum| plan.sent(quantum));
    let member = |quantum: u32| {
        let data = [[0x11, 0x22, 0, 0x84][quantum as usize]; 512];
        let stamp = Stamp { attach_id: AttachId([0x11; 16]), counter: 34 + u64::from(quantum) };
        let record = sealed(RecordFlags::default(), stamp, keyless_checksum(&data));
        let sequence = 77 + u64::from(quantum);
        ([&sequence.to_be_bytes()[..], record.as_bytes()].concat().into(), Buffer::copy_from(&data))
    };
    for (name, number, byte) in [
        ("S2-5 PARITY P of quanta 0, 1 and 3, packet 5", 5, 0xb7),
        ("S2-5 PARITY Q of quanta 0, 1 and 3, packet 6", 6, 0x01),
    ] {
        let content = plan.next().expect("P and Q are owed");
        let Outgoing { header, sink, body, payload } = content.packet((SINK, 5), 512, member);
        assert_eq!(payload[..], [byte; 512], "{name}");
        check_lazy(name, Direction::ToInitiator, number, sink, header, &body);
    }
}

#[test]
fn holes_are_as_documented() {
    let stamp = Stamp { attach_id: AttachId([0x11; 16]), counter: 35 };
    let record = sealed(RecordFlags(RecordFlags::HOLE), stamp, 0);
    let body = hole_body(5, StoreSequence(78), &HoleRecord { start: Lba(100), count: 64, record });
    let header = Header { task: 5, quantum: 2, credits: 1024, length: 5 * 512, ..Header::new(Operation::HoleIn) };
    check_lazy("S2-5 HOLE IN, packet 7", Direction::ToInitiator, 7, SINK, header, &body);
}

#[test]
fn packets_to_the_initiator_are_as_documented() {
    let to_initiator = |name: &str, number, sink, header, body: &[u8]| {
        check_lazy(name, Direction::ToInitiator, number, sink, header, body);
    };
    let data_in = Header { task: 5, quantum: 1, credits: 1024, length: 512, ..Header::new(Operation::DataIn) };
    let entry = [&77u64.to_be_bytes()[..], record().as_bytes()].concat();
    to_initiator("S2-5 DATA IN, packet 0", 0, SINK, data_in, &entry);
    let with_status = Header { flags: Flags(Flags::STATUS), ..data_in };
    to_initiator("S2-5 DATA IN with the status, packet 3", 3, SINK, with_status, &entry);

    let ecn = EcnCounts { capable_0: 7, capable_1: 0, congestion_experienced: 1 };
    let acknowledgement = Acknowledgement { ranges: vec![(7, 9), (4, 4)], delay_us: 250, ecn };
    let mut body = Vec::new();
    acknowledgement.encode(&mut body);
    let header = Header { flags: Flags(Flags::ACKNOWLEDGEMENT), ..Header::new(Operation::Acknowledge) };
    let name = "S2-5 ACKNOWLEDGE of 7 to 9 and 4, from the target, packet 1";
    to_initiator(name, 1, SinkTag::NONE, header, &body);

    let response = ResponseBody {
        status: 0,
        residual: Residual::Underflow(100),
        covered_bytes: 412,
        written: Some(Written { is_repeat: false, first: StoreSequence(78), superseded: 2 }),
        sense: vec![0x70, 0, 5],
    };
    let (specific, body) = response.encode();
    let header = Header { task: 5, credits: 2048, specific, ..Header::new(Operation::Response) };
    to_initiator("S2-5 RESPONSE, packet 2", 2, SINK, header, &body);
}

#[test]
fn logins_are_as_documented() {
    let request = LoginRequest {
        carrier: Carrier::Udp,
        parity: None,
        isid: [0x80, 1, 2, 3, 4, 5],
        initiator_name: "iqn.i".into(),
        target_name: "iqn.t".into(),
    };
    assert_eq!(request.encode(), vector("LOGIN REQUEST"));
    let other = LoginRequest { carrier: Carrier::Stream, parity: Parity::new(8, 2), ..request };
    assert_eq!(other.encode(), vector("LOGIN REQUEST, packets over the connection, parity 8+2"));
    let grant = LoginGrant {
        udp_port: 3260,
        connection_id: CONNECTION_ID,
        quantum_bytes: 4096,
        window_bytes: 1 << 26,
        transfer_bytes_max: 1 << 25,
        queue_depth: 128,
        portal_group_tag: 1,
    };
    assert_eq!(LoginAnswer::Granted(grant).encode(), vector("LOGIN ANSWER, granted"));
    let refused = LoginAnswer::Refused { status: 0x0202, reason: "no".into() };
    assert_eq!(refused.encode(), vector("LOGIN ANSWER, refused"));
}

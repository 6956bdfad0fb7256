//! A target that sends the right data in the wrong pieces. A wire that edits the PDUs of a plain session stands for it: what reaches the
//! initiator is what such a target would send. The session has to notice, for a plain volume has no seals.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use strongroom_block::{Buffer, DeviceErrorKind, Lba};
use strongroom_initiator::{DigestOffer, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_target::VolumeSpec;

use super::BLOCK;
use crate::support::{Host, SIZE};

const HEADER_BYTES: usize = 48;
const DATA_IN: u8 = 0x25;
const RESPONSE: u8 = 0x21;
/// Blocks of the read.
const COUNT: u64 = 16;

/// A PDU without digests (RFC 7143 §11.2): header, and data without its padding.
#[derive(Clone)]
struct Pdu {
    header: [u8; HEADER_BYTES],
    segments: Vec<u8>,
    data: Vec<u8>,
}

impl Pdu {
    fn read(from: &mut TcpStream) -> Option<Pdu> {
        let mut header = [0; HEADER_BYTES];
        from.read_exact(&mut header).ok()?;
        let mut segments = vec![0; usize::from(header[4]) * 4];
        from.read_exact(&mut segments).ok()?;
        let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; length.next_multiple_of(4)];
        from.read_exact(&mut data).ok()?;
        data.truncate(length);
        Some(Pdu { header, segments, data })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.to_vec();
        bytes[5..8].copy_from_slice(&(self.data.len() as u32).to_be_bytes()[1..]);
        bytes.extend_from_slice(&self.segments);
        bytes.extend_from_slice(&self.data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    fn field(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.header[at..at + 4].try_into().unwrap())
    }

    fn with_field(mut self, at: usize, value: u32) -> Pdu {
        self.header[at..at + 4].copy_from_slice(&value.to_be_bytes());
        self
    }

    fn task(&self) -> u32 {
        self.field(16)
    }

    /// DataSN of a Data-In, ExpDataSN of a response.
    fn number(&self) -> u32 {
        self.field(36)
    }

    fn numbered(self, number: u32) -> Pdu {
        self.with_field(36, number)
    }

    fn offset(&self) -> u32 {
        self.field(40)
    }

    fn at(self, offset: u32) -> Pdu {
        self.with_field(40, offset)
    }

    /// Two pieces in the place of one; the second ends the sequence, and has the status if there is one.
    fn split(&self) -> (Pdu, Pdu) {
        let half = self.data.len() / 2;
        let (mut first, mut second) = (self.clone(), self.clone());
        first.header[1] = 0;
        first.data.truncate(half);
        second.data.drain(..half);
        let (number, offset) = (self.number() + 1, self.offset() + half as u32);
        (first, second.numbered(number).at(offset))
    }
}

/// What is sent instead of one Data-In.
type Change = fn(&Pdu) -> Vec<Pdu>;

/// Passes everything on, with the next large Data-In changed.
fn wire_before(there: SocketAddr, change: &Arc<Mutex<Option<Change>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (here, change) = (listener.local_addr().unwrap(), change.clone());
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(there) else { return };
            let (mut up_from, mut up_to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut up_from, &mut up_to);
                let _ = up_to.shutdown(Shutdown::Both);
            });
            let change = change.clone();
            std::thread::spawn(move || pass(far, near, &change));
        }
    });
    here
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: &Mutex<Option<Change>>) {
    // By how many the pieces of a task are more than the target has sent: its response counts them.
    let mut more: HashMap<u32, u32> = HashMap::new();
    while let Some(pdu) = Pdu::read(&mut from) {
        let is_large = pdu.opcode() == DATA_IN && pdu.data.len() >= 2 * BLOCK;
        let change = if is_large { change.lock().unwrap().take() } else { None };
        let sent = match change {
            Some(change) => {
                let sent = change(&pdu);
                *more.entry(pdu.task()).or_default() += sent.len() as u32 - 1;
                sent
            }
            None if [DATA_IN, RESPONSE].contains(&pdu.opcode()) => {
                let number = pdu.number() + more.get(&pdu.task()).copied().unwrap_or(0);
                vec![pdu.numbered(number)]
            }
            None => vec![pdu],
        };
        if sent.iter().any(|pdu| to.write_all(&pdu.bytes()).is_err()) {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Each change, and whether the session has to notice it.
const CHANGES: [(&str, Change, bool); 10] = [
    ("nothing", |pdu| vec![pdu.clone()], false),
    ("two pieces instead of one", |pdu| [pdu.split().0, pdu.split().1].into(), false),
    ("a gap at the beginning", |pdu| vec![pdu.split().1.numbered(pdu.number())], true),
    (
        "an overlap",
        |pdu| {
            let ((first, second), number) = (pdu.split(), pdu.number());
            vec![first.clone(), first.numbered(number + 1), second.numbered(number + 2)]
        },
        true,
    ),
    (
        "an overlap by part of a piece",
        |pdu| {
            let (first, second) = pdu.split();
            let offset = second.offset() - BLOCK as u32;
            vec![first, second.at(offset)]
        },
        true,
    ),
    (
        "pieces in another order",
        |pdu| {
            let (mut first, mut second) = pdu.split();
            std::mem::swap(&mut first.header[1], &mut second.header[1]);
            vec![second.numbered(pdu.number()), first.numbered(pdu.number() + 1)]
        },
        true,
    ),
    ("a piece beyond the end", |pdu| vec![pdu.clone().at(pdu.offset() + (1 << 20))], true),
    (
        "more than was asked for",
        |pdu| {
            let mut piece = pdu.clone();
            piece.data.extend_from_slice(&pdu.data);
            vec![piece]
        },
        true,
    ),
    (
        "a number left out",
        |pdu| {
            let (first, second) = pdu.split();
            vec![first, second.numbered(pdu.number() + 2)]
        },
        true,
    ),
    ("a piece of a task that is not", |pdu| vec![pdu.clone().with_field(16, 0x7fff_fff0)], true),
];

#[test]
fn attack_target_sends_malformed_answers() {
    let host = Host::start(&[VolumeSpec::plain("disk", SIZE)]);
    let content: Vec<u8> = (0..COUNT as usize * BLOCK).map(|at| (at / 97 + at / BLOCK) as u8).collect();
    let direct = RemoteDevice::attach(host.options(host.plain_url("disk"))).unwrap();
    write_blocking(&direct, Lba(0), Buffer::copy_from(&content), false).unwrap();
    flush_blocking(&direct).unwrap();
    direct.detach().unwrap();
    for (name, change, is_malformed) in CHANGES {
        let armed = Arc::new(Mutex::new(None));
        let address = wire_before(host.address, &armed);
        let url = format!("iscsi://{address}/iqn.2026-11.org.strongroom:disk/0").parse().unwrap();
        let mut options = host.options(url);
        options.iscsi.digests = DigestOffer::Never;
        let device = RemoteDevice::attach(options).unwrap();
        *armed.lock().unwrap() = Some(change);
        let result = read_blocking(&device, Lba(0), COUNT);
        assert!(armed.lock().unwrap().is_none(), "{name}: nothing was changed");
        let ended = device.status().connections > 1;
        match result {
            Ok(data) => {
                assert!(data[..] == content[..], "{name}: wrong data");
                assert_eq!(ended, is_malformed, "{name}: {:?}", device.status().last_loss);
            }
            Err(error) => assert!(is_malformed && error.kind == DeviceErrorKind::Medium, "{name}: {error}"),
        }
        assert!(read_blocking(&device, Lba(0), COUNT).unwrap()[..] == content[..], "{name}: afterwards");
        device.detach().unwrap();
    }
}

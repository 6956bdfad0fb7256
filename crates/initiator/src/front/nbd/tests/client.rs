//! A client of few words: it sends what a test says, also what it should not, and takes replies apart.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::PATIENCE;

const SIMPLE_REPLY: u32 = 0x6744_6698;
const CHUNK: u32 = 0x668e_33ef;

/// A connection in which requests can be sent; over Unix sockets or through TLS.
pub(super) struct Client<S> {
    pub(super) stream: S,
    cookie: u64,
    pub(super) size_bytes: u64,
    pub(super) flags: u16,
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) error: u32,
    /// Of a read, holes filled in; otherwise the payload.
    pub(super) data: Vec<u8>,
    pub(super) holes: usize,
}

pub(super) const READ: u16 = 0;
pub(super) const WRITE: u16 = 1;
pub(super) const DISC: u16 = 2;
pub(super) const FLUSH: u16 = 3;
pub(super) const TRIM: u16 = 4;
pub(super) const WRITE_ZEROES: u16 = 6;
pub(super) const BLOCK_STATUS: u16 = 7;
pub(super) const FUA: u16 = 1;
pub(super) const NO_HOLE: u16 = 2;
pub(super) const DF: u16 = 4;

pub(super) fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

impl Client<UnixStream> {
    /// With simple replies, or with chunks and block status.
    pub(super) fn new(path: &Path, is_structured: bool) -> Client<UnixStream> {
        Client::try_over(connect(path), is_structured).expect("it is served")
    }
}

impl<S: Read + Write> Client<S> {
    /// Negotiates over a stream whose greeting is still to come.
    pub(super) fn try_over(mut stream: S, is_structured: bool) -> io::Result<Client<S>> {
        greet(&mut stream)?;
        Client::negotiate(stream, is_structured)
    }

    /// Where requests can follow at once, as was agreed otherwise.
    pub(super) fn without_negotiation(stream: S, size_bytes: u64, flags: u16) -> Client<S> {
        Client { stream, cookie: 0, size_bytes, flags }
    }

    /// The rest of it.
    pub(super) fn negotiate(mut stream: S, is_structured: bool) -> io::Result<Client<S>> {
        if is_structured {
            assert_eq!(option(&mut stream, 8, b"")?.0, 1);
            let context = b"base:allocation";
            let query = [&0_u32.to_be_bytes()[..], &1_u32.to_be_bytes(), &15_u32.to_be_bytes(), context].concat();
            assert_eq!(option(&mut stream, 10, &query)?.0, 4);
            assert_eq!(option_reply(&mut stream)?.0, 1);
        }
        let (kind, info) = option(&mut stream, 7, &[0; 6])?;
        assert_eq!(kind, 3, "{}", String::from_utf8_lossy(&info));
        assert_eq!(option_reply(&mut stream)?.0, 1);
        let size_bytes = u64::from_be_bytes(info[2..10].try_into().unwrap());
        let flags = u16::from_be_bytes(info[10..].try_into().unwrap());
        Ok(Client { stream, cookie: 0, size_bytes, flags })
    }

    /// Sends a request, with these data behind it; its cookie.
    pub(super) fn send(&mut self, flags: u16, kind: u16, offset: u64, len: u32, data: &[u8]) -> u64 {
        self.cookie += 1;
        let mut bytes = header(flags, kind, self.cookie, offset, len);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).unwrap();
        self.cookie
    }

    pub(super) fn request(&mut self, flags: u16, kind: u16, offset: u64, len: u32, data: &[u8]) -> Reply {
        let cookie = self.send(flags, kind, offset, len, data);
        let (answered, reply) = self.reply(if kind == READ { len } else { 0 });
        assert_eq!(answered, cookie);
        reply
    }

    #[track_caller]
    pub(super) fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let reply = self.request(0, READ, offset, len, b"");
        assert_eq!((reply.error, reply.data.len()), (0, len as usize));
        reply.data
    }

    #[track_caller]
    pub(super) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) {
        assert_eq!(self.request(flags, WRITE, offset, data.len() as u32, data).error, 0);
    }

    #[track_caller]
    pub(super) fn done(&mut self, flags: u16, kind: u16, offset: u64, len: u32) {
        assert_eq!(self.request(flags, kind, offset, len, b"").error, 0);
    }

    /// The next whole reply: its cookie, and what it says. `read_bytes`: of the data of a simple reply.
    pub(super) fn reply(&mut self, read_bytes: u32) -> (u64, Reply) {
        let mut reply = Reply { error: 0, data: Vec::new(), holes: 0 };
        loop {
            let magic = self.u32();
            if magic == SIMPLE_REPLY {
                reply.error = self.u32();
                let cookie = self.u64();
                if reply.error == 0 {
                    reply.data = self.bytes(read_bytes as usize);
                }
                return (cookie, reply);
            }
            assert_eq!(magic, CHUNK);
            let (flags, kind) = (self.u16(), self.u16());
            let (cookie, len) = (self.u64(), self.u32() as usize);
            let payload = self.bytes(len);
            match kind {
                0 => {}
                1 => reply.data.extend_from_slice(&payload[8..]),
                2 => {
                    reply.holes += 1;
                    let hole = u32::from_be_bytes(payload[8..].try_into().unwrap());
                    reply.data.resize(reply.data.len() + hole as usize, 0);
                }
                5 => reply.data = payload,
                0x8001 => reply.error = u32::from_be_bytes(payload[..4].try_into().unwrap()),
                _ => panic!("a chunk of type {kind:#x}"),
            }
            if flags & 1 != 0 {
                return (cookie, reply);
            }
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes(8).try_into().unwrap())
    }
}

pub(super) fn header(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

/// Takes the server's greeting and sends flags.
pub(super) fn greet(stream: &mut (impl Read + Write)) -> io::Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\0\x03");
    stream.write_all(&[0, 0, 0, 3])
}

/// Sends an option; type and data of the first reply.
pub(super) fn option(stream: &mut (impl Read + Write), option: u32, data: &[u8]) -> io::Result<(u32, Vec<u8>)> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes)?;
    option_reply(stream)
}

fn option_reply(stream: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    let mut head = [0; 20];
    stream.read_exact(&mut head)?;
    let field = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let mut data = vec![0; field(16) as usize];
    stream.read_exact(&mut data)?;
    Ok((field(12), data))
}

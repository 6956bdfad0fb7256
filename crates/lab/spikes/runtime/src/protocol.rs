//! What client and servers agree on, and the measuring of a process's own CPU time.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

pub const REQUEST_BYTES: usize = 48;
pub const REPLY_BYTES_MAX: usize = 64 << 10;
/// Replies handed to the kernel in one vectored write.
pub const SLICES_MAX: usize = 64;
pub const FILE_BYTES: u64 = 64 << 20;

pub static MEMORY: [u8; REPLY_BYTES_MAX] = [7; REPLY_BYTES_MAX];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Memory,
    File,
    /// The server's CPU microseconds so far, as eight bytes.
    CpuTime,
}

#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub kind: Kind,
    pub len_bytes: usize,
    pub offset: u64,
}

impl Request {
    pub fn encode(self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&(self.len_bytes as u32).to_be_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Request {
        let kind = match bytes[0] {
            0 => Kind::Memory,
            1 => Kind::File,
            _ => Kind::CpuTime,
        };
        let len_bytes = u32::from_be_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let offset = u64::from_be_bytes(bytes[8..16].try_into().unwrap());
        Request { kind, len_bytes, offset }
    }

    /// The reply, unless it must be read from the file.
    pub fn at_once(self) -> Option<Bytes> {
        match self.kind {
            Kind::Memory => Some(Bytes::from_static(&MEMORY[..self.len_bytes])),
            Kind::File => None,
            Kind::CpuTime => Some(Bytes::copy_from_slice(&cpu_microseconds().to_be_bytes())),
        }
    }
}

/// Bytes that may end in the midst of a request.
#[derive(Default)]
pub struct Input(Vec<u8>);

impl Input {
    pub fn feed(&mut self, bytes: &[u8], mut each: impl FnMut(Request)) {
        let mut rest = bytes;
        if !self.0.is_empty() {
            let count = (REQUEST_BYTES - self.0.len()).min(rest.len());
            self.0.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            if self.0.len() < REQUEST_BYTES {
                return;
            }
            each(Request::decode(&self.0));
            self.0.clear();
        }
        let mut whole = rest.chunks_exact(REQUEST_BYTES);
        whole.by_ref().for_each(|bytes| each(Request::decode(bytes)));
        self.0.extend_from_slice(whole.remainder());
    }
}

/// Replies in order, for the hand-made servers.
#[derive(Default)]
pub struct Output {
    parts: VecDeque<Bytes>,
    front_offset: usize,
}

impl Output {
    pub fn push(&mut self, part: Bytes) {
        self.parts.push_back(part);
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn fill<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>) {
        slices.extend(self.parts.iter().take(SLICES_MAX).map(|part| IoSlice::new(part)));
        if let Some(first) = slices.first_mut() {
            *first = IoSlice::new(&self.parts[0][self.front_offset..]);
        }
    }

    pub fn advance(&mut self, sent: usize) {
        self.front_offset += sent;
        while let Some(front) = self.parts.front() {
            if self.front_offset < front.len() {
                return;
            }
            self.front_offset -= front.len();
            self.parts.pop_front();
        }
    }
}

pub fn pin(cpu: usize) {
    // SAFETY: a zeroed cpu_set_t is an empty set, and it outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0, "pin to processor {cpu}");
    }
}

/// User and system time of this process, all threads, those that ended included.
pub fn cpu_microseconds() -> u64 {
    // SAFETY: getrusage fills the struct it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    micros(usage.ru_utime) + micros(usage.ru_stime)
}

/// A cheap, repeatable walk over the file.
pub struct Offsets(u64);

impl Offsets {
    /// Another walk for each `seed`, so that readers side by side do not warm the caches for each other.
    pub fn new(seed: usize) -> Offsets {
        Offsets(0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95))
    }

    pub fn next(&mut self, len_bytes: usize) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (FILE_BYTES / len_bytes as u64) * len_bytes as u64
    }
}

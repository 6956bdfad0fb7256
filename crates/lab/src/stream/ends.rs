//! The two ends of a stream, for each protection: messages in at one, bytes counted at the other.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use strongroom_block::{Buffer, CryptoCounters};
use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, FrameKind};

use super::protection::Protection;
use super::tls::{self, Tls};

/// What travels in the place of a header: as long as iSCSI's with one seal record.
const HEADER: [u8; 48 + 96] = [6; 48 + 96];
/// Bytes that are taken in at once.
const INPUT_BYTES: usize = 256 << 10;
/// Both ends have the same secret without a handshake: nothing here is secret.
const EXPORTER: [u8; 32] = [7; 32];

/// Writes messages.
pub(crate) struct Sender {
    stream: TcpStream,
    inner: Protected,
    out: Vec<Buffer>,
}

enum Protected {
    Bare,
    Channel { channel: Box<Channel>, data: Buffer },
    Tls(Box<Tls>),
}

fn counters() -> Arc<CryptoCounters> {
    Arc::new(CryptoCounters::new())
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Sender {
    /// At this end of a connection just made.
    pub(crate) fn new(protection: Protection, mut stream: TcpStream) -> io::Result<Sender> {
        stream.set_nodelay(true)?;
        let inner = match protection {
            Protection::Tcp => Protected::Bare,
            Protection::Tls => Protected::Tls(Box::new(tls::client(&mut stream)?)),
            Protection::Channel(scheme, suite) => {
                let keys = ChannelKeys::new(EXPORTER, scheme).with_suite(suite);
                let mut channel = Box::new(Channel::initiator(keys, ChannelLimits::default(), counters()));
                let mut byte = [0];
                while !channel.is_confirmed() {
                    stream.read_exact(&mut byte)?;
                    channel.handle_input(&byte).map_err(other)?;
                }
                Protected::Channel { channel, data: Buffer::empty() }
            }
        };
        Ok(Sender { stream, inner, out: Vec::new() })
    }

    /// Writes one message, which may wait.
    pub(crate) fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match &mut self.inner {
            Protected::Bare => self.stream.write_all(message),
            Protected::Tls(tls) => tls.send(message, &mut self.stream),
            Protected::Channel { channel, data } => {
                // The message is in a shared buffer from the second one on, as block data is.
                if data.len() != message.len() {
                    *data = Buffer::copy_from(message);
                }
                channel.encode(FrameKind::Sealed, &HEADER, data.clone(), &mut self.out).map_err(other)?;
                write_all(&mut self.stream, &mut self.out)
            }
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Protected::Tls(tls) = &mut self.inner {
            tls.close(&mut self.stream);
        }
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}

/// Writes all buffers with as few calls as it takes.
fn write_all(stream: &mut TcpStream, buffers: &mut Vec<Buffer>) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = buffers.iter().map(|buffer| IoSlice::new(buffer)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let written = stream.write_vectored(rest)?;
        IoSlice::advance_slices(&mut rest, written);
    }
    buffers.clear();
    Ok(())
}

/// Takes messages in.
pub(crate) struct Receiver {
    stream: TcpStream,
    inner: Protected,
}

impl Receiver {
    /// At this end of a connection just accepted.
    pub(crate) fn new(protection: Protection, mut stream: TcpStream) -> io::Result<Receiver> {
        stream.set_nodelay(true)?;
        let inner = match protection {
            Protection::Tcp => Protected::Bare,
            Protection::Tls => Protected::Tls(Box::new(tls::server(&mut stream)?)),
            Protection::Channel(scheme, suite) => {
                let mut out = Vec::new();
                let keys = ChannelKeys::new(EXPORTER, scheme).with_suite(suite);
                let channel = Box::new(Channel::target(keys, ChannelLimits::default(), counters(), &mut out));
                write_all(&mut stream, &mut out)?;
                Protected::Channel { channel, data: Buffer::empty() }
            }
        };
        Ok(Receiver { stream, inner })
    }

    /// Takes in everything until the sender goes; how many bytes of messages that was.
    pub(crate) fn take_all(mut self) -> io::Result<u64> {
        let mut input = vec![0; INPUT_BYTES];
        let mut total = 0u64;
        loop {
            let taken = match &mut self.inner {
                Protected::Bare => match self.stream.read(&mut input)? {
                    0 => None,
                    count => Some(count as u64),
                },
                Protected::Tls(tls) => tls.receive(&mut self.stream, &mut input)?,
                Protected::Channel { channel, .. } => take_frames(channel, &mut self.stream, &mut input)?,
            };
            match taken {
                Some(bytes) => total += bytes,
                None => return Ok(total),
            }
        }
    }
}

/// One read, and all frames that end in it. What is long goes right into its final place, as in the product's driver.
fn take_frames(channel: &mut Channel, stream: &mut TcpStream, input: &mut [u8]) -> io::Result<Option<u64>> {
    let direct = channel.input_space().filter(|space| space.len() >= input.len()).is_some();
    if direct {
        let space = channel.input_space().expect("it was there just now");
        let count = stream.read(space)?;
        channel.input_filled(count).map_err(other)?;
        return Ok((count > 0).then(|| taken(channel)));
    }
    let count = stream.read(input)?;
    let mut rest = &input[..count];
    let mut bytes = 0;
    while !rest.is_empty() {
        let used = channel.handle_input(rest).map_err(other)?;
        rest = &rest[used..];
        bytes += taken(channel);
    }
    Ok((count > 0).then_some(bytes))
}

fn taken(channel: &mut Channel) -> u64 {
    let mut bytes = 0;
    while let Some(frame) = channel.poll_frame() {
        bytes += frame.data.len() as u64;
    }
    bytes
}

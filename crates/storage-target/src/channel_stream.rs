//! A channel over a socket, blocking: frames out and in, for connections that no worker serves. The same at both ends.
//!
//! Absent: what the frames mean, which each protocol says (`transfers`, `pairing`, `operators`).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use strongroom_block::Buffer;
use strongroom_channel::{Channel, ChannelError, Frame, FrameKind};
use strongroom_net::DetachedChannel;

/// Bytes read from the socket at once.
const INPUT_BYTES: usize = 64 << 10;
/// How long one that is refused has to take in why.
const LINGER: Duration = Duration::from_secs(2);
/// Keys of a channel serve for so long.
const REKEY_AFTER: Duration = Duration::from_secs(3600);

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("it said something that is no message of this protocol")]
    Malformed,
    #[error("it said nothing for too long")]
    TimedOut,
    #[error("the connection was closed")]
    Closed,
    #[error("the connection failed: {0}")]
    Io(io::Error),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> ConnectionError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ConnectionError::TimedOut,
            _ => ConnectionError::Io(error),
        }
    }
}

pub(crate) struct ChannelStream {
    stream: TcpStream,
    channel: Channel,
    input: Vec<u8>,
    /// What was read and not taken yet.
    rest: Range<usize>,
    rekey_at: Instant,
}

impl ChannelStream {
    /// Takes over from the handshake; sends what that left.
    pub(crate) fn new(
        stream: TcpStream,
        channel: DetachedChannel,
        deadline: Instant,
    ) -> Result<ChannelStream, ConnectionError> {
        let DetachedChannel { channel, unsent, unread, .. } = channel;
        let rest = 0..unread.len();
        let input = if unread.is_empty() { vec![0; INPUT_BYTES] } else { unread };
        let mut connection = ChannelStream { stream, channel, input, rest, rekey_at: Instant::now() + REKEY_AFTER };
        connection.write(&unsent, deadline)?;
        Ok(connection)
    }

    /// Sends one frame, all of it encrypted.
    pub(crate) fn send(&mut self, message: &[u8], data: &[u8], deadline: Instant) -> Result<(), ConnectionError> {
        let mut out = Vec::new();
        if Instant::now() >= self.rekey_at {
            self.channel.rekey(&mut out);
            self.rekey_at = Instant::now() + REKEY_AFTER;
        }
        let data = if data.is_empty() { Buffer::default() } else { Buffer::copy_from(data) };
        self.channel.encode(FrameKind::Private, message, data, &mut out)?;
        self.write(&out, deadline)
    }

    /// The next frame.
    pub(crate) fn receive(&mut self, deadline: Instant) -> Result<Frame, ConnectionError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            self.stream.set_read_timeout(Some(remaining(deadline)?))?;
            self.read()?;
        }
    }

    /// The next frame if it is here already.
    pub(crate) fn receive_ready(&mut self) -> Result<Option<Frame>, ConnectionError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            self.stream.set_nonblocking(true)?;
            let read = self.read();
            self.stream.set_nonblocking(false)?;
            match read {
                Err(ConnectionError::TimedOut) => return Ok(None),
                read => read?,
            }
        }
    }

    /// Says goodbye, and gives the other end a moment to take in the last message.
    pub(crate) fn close(mut self) {
        let mut out = Vec::new();
        self.channel.close(&mut out);
        let deadline = Instant::now() + LINGER;
        if self.write(&out, deadline).is_err() || self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        // What was said last would be lost with what nobody read.
        while let Ok(remaining) = remaining(deadline)
            && self.stream.set_read_timeout(Some(remaining)).is_ok()
            && matches!(self.stream.read(&mut self.input), Ok(count) if count > 0)
        {}
    }

    fn take(&mut self) -> Result<Option<Frame>, ConnectionError> {
        while !self.rest.is_empty() {
            self.rest.start += self.channel.handle_input(&self.input[self.rest.clone()])?;
            if let Some(frame) = self.channel.poll_frame() {
                return Ok(Some(frame));
            }
        }
        if self.channel.is_closed_by_peer() { Err(ConnectionError::Closed) } else { Ok(None) }
    }

    /// Waits for bytes. There is room: all that was read is taken.
    fn read(&mut self) -> Result<(), ConnectionError> {
        self.input.resize(INPUT_BYTES, 0);
        loop {
            match self.stream.read(&mut self.input) {
                Ok(0) => {
                    self.channel.handle_eof()?;
                    return Err(ConnectionError::Closed);
                }
                Ok(count) => {
                    self.rest = 0..count;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn write(&mut self, buffers: &[Buffer], deadline: Instant) -> Result<(), ConnectionError> {
        for buffer in buffers {
            let mut rest = &buffer[..];
            while !rest.is_empty() {
                self.stream.set_write_timeout(Some(remaining(deadline)?))?;
                match self.stream.write(rest) {
                    Ok(0) => return Err(ConnectionError::Closed),
                    Ok(count) => rest = &rest[count..],
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}

fn remaining(deadline: Instant) -> Result<Duration, ConnectionError> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(ConnectionError::TimedOut) } else { Ok(remaining.max(Duration::from_millis(1))) }
}

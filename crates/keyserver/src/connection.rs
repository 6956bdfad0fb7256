//! One TCP connection, blocking: handshake, channel, messages. The same code at both ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::{Buffer, CryptoCounters};
use strongroom_channel::{Channel, ChannelError, ChannelLimits, FrameKind};
use strongroom_handshake::{Handshake, HandshakeError, NodeKey, PeerPolicy, Protocols, PublicKey};
use zeroize::{Zeroize, Zeroizing};

use crate::protocol::{BULK_BYTES_MAX, Encoded, MESSAGE_BYTES_MAX};

/// How long a peer that is refused has to take in why.
const LINGER: Duration = Duration::from_secs(2);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the key server does not admit this node, '{0}'")]
    NotAdmitted(PublicKey),
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("the other end did not answer in time; check that it runs, and the network between")]
    TimedOut,
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

/// A message that arrived; wiped when it is dropped, but for its bulk, which holds keys only between a primary and its standby,
/// whose memory is locked.
pub(crate) struct Message {
    header: Option<Bytes>,
    pub(crate) bulk: Buffer,
}

impl Message {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.header.as_deref().unwrap_or_default()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // The buffer is not shared: the channel passed it on.
        if let Some(Ok(mut header)) = self.header.take().map(Bytes::try_into_mut) {
            header[..].zeroize();
        }
    }
}

pub(crate) struct Connection {
    stream: TcpStream,
    channel: Channel,
    peer: PublicKey,
    input: Zeroizing<Vec<u8>>,
    /// What was read and not taken yet.
    rest: std::ops::Range<usize>,
}

fn limits(bulk_bytes_max: usize) -> ChannelLimits {
    ChannelLimits { header_bytes_max: MESSAGE_BYTES_MAX, data_bytes_max: bulk_bytes_max, ..ChannelLimits::default() }
}

impl Connection {
    /// A client's end: the server must have one of the `expected` keys.
    pub(crate) fn connect(
        stream: TcpStream,
        node: &NodeKey,
        expected: &[PublicKey],
        deadline: Instant,
    ) -> Result<Connection, ConnectionError> {
        stream.set_nodelay(true)?;
        let mut handshake = Handshake::initiator(node, expected, Protocols::Keys)?;
        let mut input = Zeroizing::new(vec![0; 16 << 10]);
        let (mut stream, mut channel, mut peer) = (stream, None::<Channel>, None);
        loop {
            send_all(&mut stream, handshake.poll_transmit(), deadline)?;
            let count = read(&mut stream, &mut input, deadline)?;
            if count == 0 {
                return Err(handshake.handle_eof().into());
            }
            let mut taken = 0;
            while taken < count {
                let step = match handshake.handle_input(&input[taken..count]) {
                    Ok(step) => step,
                    Err(error) => {
                        let _ = send_all(&mut stream, handshake.poll_transmit(), deadline);
                        // Before the handshake is finished an attacker on the path can forge it.
                        let is_proven = channel.is_some();
                        return Err(match error {
                            HandshakeError::RefusedByTarget { own } if is_proven => ConnectionError::NotAdmitted(own),
                            error => error.into(),
                        });
                    }
                };
                if let Some(finished) = handshake.finished() {
                    send_all(&mut stream, handshake.poll_transmit(), deadline)?;
                    peer = Some(finished.peer);
                    let counters = Arc::new(CryptoCounters::new());
                    channel = Some(Channel::initiator(finished.keys, limits(BULK_BYTES_MAX), counters));
                }
                taken += step;
                if step == 0 {
                    let Some(channel) = channel.as_mut() else { return Err(HandshakeError::NotTls.into()) };
                    taken += channel.handle_input(&input[taken..count])?;
                    if channel.is_confirmed() {
                        break;
                    }
                }
            }
            if channel.as_ref().is_some_and(Channel::is_confirmed) {
                let channel = channel.take().expect("just looked at");
                let peer = peer.expect("known with the channel");
                return Ok(Connection { stream, channel, peer, input, rest: taken..count });
            }
        }
    }

    /// A server's end. The stream ends if the handshake takes longer than until `deadline`.
    pub(crate) fn accept(
        stream: TcpStream,
        node: &NodeKey,
        policy: Arc<dyn PeerPolicy>,
        deadline: Instant,
    ) -> Result<Connection, ConnectionError> {
        stream.set_nodelay(true)?;
        let mut stream = stream;
        let mut handshake = Handshake::target(node, policy, Protocols::Keys)?;
        let mut input = Zeroizing::new(vec![0; 16 << 10]);
        loop {
            let count = read(&mut stream, &mut input, deadline)?;
            if count == 0 {
                return Err(handshake.handle_eof().into());
            }
            let mut taken = 0;
            while taken < count {
                match handshake.handle_input(&input[taken..count]) {
                    Ok(step) => taken += step,
                    Err(error) => {
                        let _ = send_all(&mut stream, handshake.poll_transmit(), deadline);
                        // Else the alert could be lost with unread bytes of the peer.
                        let _ = stream.shutdown(Shutdown::Write);
                        let deadline = deadline.min(Instant::now() + LINGER);
                        while read(&mut stream, &mut input, deadline).is_ok_and(|count| count > 0) {}
                        return Err(error.into());
                    }
                }
                if let Some(finished) = handshake.finished() {
                    send_all(&mut stream, handshake.poll_transmit(), deadline)?;
                    let mut out = Vec::new();
                    let counters = Arc::new(CryptoCounters::new());
                    let channel = Channel::target(finished.keys, limits(0), counters, &mut out);
                    for buffer in out {
                        send_all(&mut stream, Some(&buffer[..]), deadline)?;
                    }
                    return Ok(Connection { stream, channel, peer: finished.peer, input, rest: taken..count });
                }
            }
            send_all(&mut stream, handshake.poll_transmit(), deadline)?;
        }
    }

    /// Who the other end has proven to be.
    pub(crate) fn peer(&self) -> PublicKey {
        self.peer
    }

    pub(crate) fn send(&mut self, encoded: &Encoded, deadline: Instant) -> Result<(), ConnectionError> {
        let mut out = Vec::new();
        // The channel copies both before it encrypts its copy.
        let bulk = if encoded.bulk.is_empty() { Buffer::default() } else { Buffer::copy_from(&encoded.bulk) };
        self.channel.encode(FrameKind::Private, &encoded.message, bulk, &mut out)?;
        for buffer in out {
            send_all(&mut self.stream, Some(&buffer[..]), deadline)?;
        }
        Ok(())
    }

    /// The next message; `None` when the other end has said goodbye. Its first byte may come until `deadline`, and once
    /// it has, the message may take `message_timeout`.
    pub(crate) fn receive(
        &mut self,
        deadline: Instant,
        message_timeout: Duration,
    ) -> Result<Option<Message>, ConnectionError> {
        let mut deadline = deadline;
        let mut begun = !self.rest.is_empty();
        loop {
            while !self.rest.is_empty() {
                let taken = self.channel.handle_input(&self.input[self.rest.clone()])?;
                self.rest.start += taken;
                if let Some(frame) = self.channel.poll_frame() {
                    return Ok(Some(Message { header: Some(frame.header), bulk: frame.data }));
                }
            }
            if self.channel.is_closed_by_peer() {
                return Ok(None);
            }
            let count = read(&mut self.stream, &mut self.input, deadline)?;
            if count == 0 {
                self.channel.handle_eof()?;
                return Ok(None);
            }
            if !begun {
                (begun, deadline) = (true, Instant::now() + message_timeout);
            }
            self.rest = 0..count;
        }
    }

    /// Says goodbye.
    pub(crate) fn close(mut self) {
        let mut out = Vec::new();
        self.channel.close(&mut out);
        let deadline = Instant::now() + Duration::from_millis(200);
        for buffer in out {
            if send_all(&mut self.stream, Some(&buffer[..]), deadline).is_err() {
                return;
            }
        }
    }
}

fn remaining(deadline: Instant) -> Result<Duration, ConnectionError> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(ConnectionError::TimedOut) } else { Ok(remaining.max(Duration::from_millis(1))) }
}

fn read(stream: &mut TcpStream, into: &mut [u8], deadline: Instant) -> Result<usize, ConnectionError> {
    loop {
        stream.set_read_timeout(Some(remaining(deadline)?))?;
        match stream.read(into) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return Ok(result?),
        }
    }
}

fn send_all(stream: &mut TcpStream, bytes: Option<impl AsRef<[u8]>>, deadline: Instant) -> Result<(), ConnectionError> {
    let Some(bytes) = bytes else { return Ok(()) };
    let mut rest = bytes.as_ref();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(remaining(deadline)?))?;
        match stream.write(rest) {
            Ok(0) => return Err(io::Error::from(ErrorKind::WriteZero).into()),
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

//! The sending end of a transfer, blocking. Absent: where the stream comes from, and trying again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_handshake::{NodeKey, PublicKey};
use strongroom_net::{LinkEnd, LinkOptions, LinkPurpose, ProtocolUse, TRANSFER_PIECE_BYTES_MAX};

use super::connection::Connection;
use super::message::{Message, RefusalCode};
use crate::channel_stream::ConnectionError;
use crate::dial::{Dial, DialError, dial};

/// The receiving end may say nothing for so long: it opens or closes a store meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// How long a piece may take to leave.
const SEND_PATIENCE: Duration = Duration::from_secs(120);
/// After so long without anything to send the other end hears that we are here.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(5);

/// Where a snapshot is sent, and as whom.
#[derive(Clone, Debug)]
pub struct Destination {
    /// A host's name or address.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
    /// The volume there.
    pub volume: String,
    /// Who we are.
    pub node: Arc<NodeKey>,
    /// The keys that the target may have.
    pub expected: Vec<PublicKey>,
    /// How long connecting and the handshake may take.
    pub connect_timeout: Duration,
}

/// Why a transfer could not be made, or was broken off.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// Nobody answers there, or the name is none.
    #[error("{0}")]
    Unreachable(String),
    /// The handshake failed.
    #[error("{0}")]
    Handshake(LinkEnd),
    /// The target said no.
    #[error("the target refused: {text}")]
    Refused {
        /// Why, for programs.
        code: RefusalCode,
        /// Why, for people.
        text: String,
    },
    /// The connection was lost.
    #[error("the connection to the target broke: {0}")]
    Broken(String),
    /// The target said what it must not.
    #[error("the target does not keep to the protocol ({0}); use the same version of Strongroom on both sides")]
    Misbehaved(&'static str),
}

impl TransferError {
    /// Whether trying again may help, without a change by an administrator.
    pub fn may_pass(&self) -> bool {
        match self {
            TransferError::Unreachable(_) | TransferError::Broken(_) => true,
            TransferError::Refused { code, .. } => code.may_pass(),
            TransferError::Handshake(end) => matches!(end, LinkEnd::TimedOut { .. } | LinkEnd::Truncated),
            TransferError::Misbehaved(_) => false,
        }
    }
}

impl From<ConnectionError> for TransferError {
    fn from(error: ConnectionError) -> TransferError {
        match error {
            ConnectionError::Malformed => TransferError::Misbehaved("a message could not be read"),
            error => TransferError::Broken(error.to_string()),
        }
    }
}

impl From<DialError> for TransferError {
    fn from(error: DialError) -> TransferError {
        match error {
            DialError::Unreachable(problem) => TransferError::Unreachable(problem),
            DialError::Handshake(end) => TransferError::Handshake(end),
            DialError::Broken(problem) => TransferError::Broken(problem),
        }
    }
}

/// How a transfer begins.
#[derive(Debug)]
pub enum Begun {
    /// The snapshot is there already.
    WasThere,
    /// A stream that begins at this position is wanted.
    At {
        /// What [`strongroom_store::Sender::new`] wants.
        position: u64,
        /// Takes it.
        outgoing: Box<Outgoing>,
    },
}

/// A transfer under way.
pub struct Outgoing {
    connection: Connection,
    window_bytes: u64,
    sent: u64,
    acknowledged: u64,
    /// Where a stream would go on now.
    position: u64,
    spoke: Instant,
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").field("sent", &self.sent).field("acknowledged", &self.acknowledged).finish()
    }
}

impl Outgoing {
    /// Connects, and asks where a stream with this beginning (its first frame, in full) shall go on.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn begin(to: &Destination, begin: &[u8]) -> Result<Begun, TransferError> {
        let mut connection = connect(to)?;
        let hello = Message::Hello { volume: to.volume.clone(), begin: begin.to_vec() };
        let sent = connection.send(&hello, &[], Instant::now() + SEND_PATIENCE);
        // One that turned us away has said why.
        let answer = loop {
            match connection.receive(Instant::now() + SILENCE_MAX) {
                Ok((Message::KeepAlive, _)) => {}
                Ok((message, _)) => break message,
                Err(error) => {
                    sent?;
                    return Err(error.into());
                }
            }
        };
        match answer {
            Message::Position { position, window_bytes } => {
                let window_bytes = u64::from(window_bytes);
                let outgoing =
                    Outgoing { connection, window_bytes, sent: 0, acknowledged: 0, position, spoke: Instant::now() };
                Ok(Begun::At { position, outgoing: Box::new(outgoing) })
            }
            Message::Done { was_there: true, .. } => Ok(Begun::WasThere),
            Message::Refused { code, text } => Err(TransferError::Refused { code, text }),
            _ => Err(TransferError::Misbehaved("it answered HELLO with something else")),
        }
    }

    /// Sends the next bytes of the stream; none: only shows that we are here. Waits while too many are on their way.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        if bytes.is_empty() && self.spoke.elapsed() >= KEEP_ALIVE_AFTER {
            self.say(&Message::KeepAlive, &[])?;
        }
        for piece in bytes.chunks(TRANSFER_PIECE_BYTES_MAX) {
            while let Some((message, _)) = self.connection.receive_ready()? {
                self.hear(message)?;
            }
            while self.sent - self.acknowledged + piece.len() as u64 > self.window_bytes
                && self.sent > self.acknowledged
            {
                self.wait()?;
            }
            self.say(&Message::Data { offset: self.sent }, piece)?;
            self.sent += piece.len() as u64;
        }
        Ok(())
    }

    /// All was sent: waits until the snapshot is there, durably.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn finish(mut self) -> Result<(), TransferError> {
        self.say(&Message::End { bytes: self.sent }, &[])?;
        loop {
            match self.connection.receive(Instant::now() + SILENCE_MAX)? {
                (Message::Done { was_there: false, .. }, _) => return Ok(()),
                (message, _) => self.hear(message)?,
            }
        }
    }

    /// Bytes of the stream that are durable at the other end.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Where a stream would go on that were begun now, as far as the other end has told.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn wait(&mut self) -> Result<(), TransferError> {
        let (message, _) = self.connection.receive(Instant::now() + SILENCE_MAX)?;
        self.hear(message)
    }

    fn hear(&mut self, message: Message) -> Result<(), TransferError> {
        match message {
            Message::Ack { offset, position } if offset >= self.acknowledged && offset <= self.sent => {
                (self.acknowledged, self.position) = (offset, position.max(self.position));
                Ok(())
            }
            Message::Ack { .. } => Err(TransferError::Misbehaved("it acknowledged what was not sent")),
            Message::Refused { code, text } => Err(TransferError::Refused { code, text }),
            Message::KeepAlive => Ok(()),
            _ => Err(TransferError::Misbehaved("that message has no place there")),
        }
    }

    /// If it cannot be said, the other end may have told why before it closed.
    fn say(&mut self, message: &Message, data: &[u8]) -> Result<(), TransferError> {
        self.spoke = Instant::now();
        let Err(error) = self.connection.send(message, data, Instant::now() + SEND_PATIENCE) else { return Ok(()) };
        while let Ok(Some((message, _))) = self.connection.receive_ready() {
            self.hear(message)?;
        }
        Err(error.into())
    }
}

/// Connects to any of the host's addresses, and shakes hands.
fn connect(to: &Destination) -> Result<Connection, TransferError> {
    let options =
        LinkOptions { setup_timeout: to.connect_timeout, transfers: ProtocolUse::Only, ..LinkOptions::default() };
    let how = Dial { host: &to.host, port: to.port, node: &to.node, expected: &to.expected };
    let (stream, channel, deadline) = dial(&how, options, LinkPurpose::Transfer)?;
    Ok(Connection::new(stream, channel, deadline)?)
}

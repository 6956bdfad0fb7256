//! The operator's end, blocking: connects, asks, and takes answers in their parts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_handshake::{HandshakeError, NodeKey, PublicKey};
use strongroom_net::{LinkEnd, LinkOptions, LinkPurpose, OPERATOR_MESSAGE_BYTES_MAX, ProtocolUse};

use super::error::OperatorError;
use super::message::{decode_reply, encode};
use crate::admin::{Reply, Request};
use crate::channel_stream::ChannelStream;
use crate::dial::{Dial, DialError, dial};

/// Longest answer that is taken, in bytes.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// How long a request may take to leave.
const SEND_PATIENCE: Duration = Duration::from_secs(30);

/// A target, and as whom it is asked.
#[derive(Clone, Debug)]
pub struct OperatorDestination {
    /// A host's name or address.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
    /// Who we are.
    pub node: Arc<NodeKey>,
    /// The keys that the target may have.
    pub expected: Vec<PublicKey>,
    /// How long connecting and the handshake may take.
    pub connect_timeout: Duration,
}

/// A connection to a target of which this node is an operator.
pub struct OperatorClient(ChannelStream);

impl std::fmt::Debug for OperatorClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperatorClient")
    }
}

impl OperatorClient {
    /// Connects. Whether this node is an operator is found out with the first request.
    ///
    /// # Errors
    /// [`OperatorError`].
    pub fn connect(to: &OperatorDestination) -> Result<OperatorClient, OperatorError> {
        let options =
            LinkOptions { setup_timeout: to.connect_timeout, operators: ProtocolUse::Only, ..LinkOptions::default() };
        let how = Dial { host: &to.host, port: to.port, node: &to.node, expected: &to.expected };
        let dialled = dial(&how, options, LinkPurpose::Operator).map_err(|error| match error {
            DialError::Unreachable(problem) => OperatorError::Unreachable(problem),
            DialError::Handshake(LinkEnd::Handshake(HandshakeError::NoCommonScheme)) => OperatorError::NoOperators,
            DialError::Handshake(end) => OperatorError::Handshake(end),
            DialError::Broken(problem) => OperatorError::Unreachable(problem),
        });
        let (stream, channel, deadline) = dialled?;
        Ok(OperatorClient(ChannelStream::new(stream, channel, deadline)?))
    }

    /// Asks for one thing, and waits for the answer for so long.
    ///
    /// # Errors
    /// [`OperatorError`]; after anything but [`OperatorError::Refused`] the connection is of no use any more.
    pub fn ask(&mut self, request: &Request, patience: Duration) -> Result<Reply, OperatorError> {
        let line = encode(request);
        if line.len() > OPERATOR_MESSAGE_BYTES_MAX {
            return Err(OperatorError::TooLong);
        }
        // One that does not want to hear us has said why.
        let sent = self.0.send(&line, &[], Instant::now() + SEND_PATIENCE);
        let deadline = Instant::now() + patience;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let part = match self.0.receive(deadline) {
                Ok(part) => part,
                Err(error) => {
                    sent?;
                    return Err(error.into());
                }
            };
            if line.len() + part.header.len() > REPLY_BYTES_MAX {
                return Err(OperatorError::Misbehaved);
            }
            line.extend_from_slice(&part.header);
        }
        match decode_reply(&line)? {
            Reply::Error(text) => Err(OperatorError::Refused(text)),
            reply => Ok(reply),
        }
    }
}

//! The invited node's end of a pairing, blocking: finds the target that its invitation names, and joins it.
//!
//! Absent: what is kept of it afterwards (`known_targets`), which the caller writes.

use std::time::{Duration, Instant};

use strongroom_handshake::{HandshakeError, Invitation, NodeKey, PublicKey};
use strongroom_net::{DetachedChannel, LinkEnd, LinkOptions, LinkPurpose, ProtocolUse};

use super::message::{Malformed, Message, PairingRefusal};
use crate::channel_stream::{ChannelStream, ConnectionError};
use crate::dial::{Dial, DialError, dial};
use crate::roles::PeerRole;

/// How long the target may take for its answer, which it writes to its disk first.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// A node that is a peer of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// What the target calls it.
    pub name: String,
    /// The volumes that it may use; `*` for all.
    pub volumes: Vec<String>,
    /// It may read only.
    pub read_only: bool,
    /// What it is to the target.
    pub role: PeerRole,
    /// It had joined before, with the same invitation.
    pub was_joined: bool,
    /// The address at which the target was, `host:port`.
    pub address: String,
}

/// Why a node has not joined.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Nobody answers there, or the name is none.
    #[error("{0}. If the target has another address from here: --address HOST[:PORT]")]
    Unreachable(String),
    /// Another target than the one that gave out the invitation.
    #[error(
        "at {address} is another target than the one that the invitation is from: it presented the key '{presented}'. Nothing was told to it. Ask \
         for an invitation from that target if it is the right one; otherwise an attacker is in the middle"
    )]
    OtherTarget {
        /// Where it is.
        address: String,
        /// What it presented.
        presented: PublicKey,
    },
    /// The target does not know of any invitation.
    #[error(
        "the target at {address} takes up no invitations now: this one is forgotten or was revoked, or the target's version has none; ask for another \
         one (strongroom invite)"
    )]
    NoInvitations {
        /// Where it is.
        address: String,
    },
    /// The handshake failed.
    #[error("cannot join the target at {address}: {end}")]
    Handshake {
        /// Where it is.
        address: String,
        /// Why.
        end: LinkEnd,
    },
    /// The connection was lost; perhaps with the answer.
    #[error(
        "the connection to the target broke ({0}); join again with the same invitation: if it was taken up already, the target says so"
    )]
    Broken(String),
    /// The target said no.
    #[error("the target refused: {0}")]
    Refused(PairingRefusal),
    /// The target said what it must not.
    #[error("the target does not keep to the protocol; use the same version of Strongroom on both sides")]
    Misbehaved,
}

impl From<ConnectionError> for JoinError {
    fn from(error: ConnectionError) -> JoinError {
        JoinError::Broken(error.to_string())
    }
}

impl From<Malformed> for JoinError {
    fn from(_: Malformed) -> JoinError {
        JoinError::Misbehaved
    }
}

/// Joins the target that an invitation is from, at the first of `addresses` (each `host:port`) where it is. `timeout` is for each of them.
///
/// # Errors
/// [`JoinError`], of the last address.
///
/// # Panics
/// If there is no address.
pub fn join(
    invitation: &Invitation,
    addresses: &[String],
    node: &NodeKey,
    timeout: Duration,
) -> Result<Joined, JoinError> {
    let mut failure = None;
    for address in addresses {
        match join_at(invitation, address, node, timeout) {
            // It may be another target.
            Err(
                error @ (JoinError::Unreachable(_) | JoinError::OtherTarget { .. } | JoinError::NoInvitations { .. }),
            ) => failure = Some(error),
            outcome => return outcome,
        }
    }
    Err(failure.expect("an invitation has an address"))
}

fn join_at(invitation: &Invitation, address: &str, node: &NodeKey, timeout: Duration) -> Result<Joined, JoinError> {
    let (stream, mut channel, deadline) = connect(invitation, address, node, timeout)?;
    let binding = channel.binding.take().expect("the channel of a pairing has one");
    let mut stream = ChannelStream::new(stream, channel, deadline)?;
    let proof = invitation.secret.key().prove(&binding);
    stream.send(&Message::Join(proof).encode(), &[], deadline)?;
    let answer = Message::decode(&stream.receive(Instant::now() + ANSWER_PATIENCE)?.header)?;
    match answer {
        Message::Joined(joined) => {
            stream.close();
            Ok(Joined {
                name: joined.name.to_string(),
                volumes: joined.volumes,
                read_only: joined.read_only,
                role: joined.role,
                was_joined: joined.was_joined,
                address: address.to_owned(),
            })
        }
        Message::Refused(refusal) => Err(JoinError::Refused(refusal)),
        Message::Join(_) => Err(JoinError::Misbehaved),
    }
}

fn connect(
    invitation: &Invitation,
    address: &str,
    node: &NodeKey,
    timeout: Duration,
) -> Result<(std::net::TcpStream, DetachedChannel, Instant), JoinError> {
    let unusable = || JoinError::Unreachable(format!("'{address}' is no address"));
    let (host, port) = address.rsplit_once(':').ok_or_else(unusable)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let to = Dial { host, port: port.parse().map_err(|_| unusable())?, node, expected: &[invitation.target] };
    let options = LinkOptions { setup_timeout: timeout, pairings: ProtocolUse::Only, ..LinkOptions::default() };
    let at = address.to_owned();
    dial(&to, options, LinkPurpose::Pairing).map_err(|error| match error {
        DialError::Unreachable(problem) => JoinError::Unreachable(problem),
        DialError::Broken(problem) => JoinError::Broken(problem),
        DialError::Handshake(LinkEnd::Handshake(HandshakeError::WrongTarget { presented })) => {
            JoinError::OtherTarget { address: at, presented }
        }
        DialError::Handshake(LinkEnd::Handshake(HandshakeError::NoCommonScheme)) => {
            JoinError::NoInvitations { address: at }
        }
        DialError::Handshake(end) => JoinError::Handshake { address: at, end },
    })
}

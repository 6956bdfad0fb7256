//! How an association ends and who is to blame, and why a packet counts as not received.

use crate::header::HeaderError;

/// What a peer did that no rule allows, in a packet that is authentic; the association ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerMisbehaved {
    /// A header with a field that cannot be.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A body that is too short or too long, or says what cannot be.
    #[error("a packet has a malformed body: {0}")]
    Body(&'static str),
    /// A packet that this end never takes.
    #[error("a packet with the operation code {0}, which only the other end may send")]
    WrongWay(u8),
    /// An acknowledgement of a packet that was not sent.
    #[error("an acknowledgement of packet {0}, which was not sent")]
    NeverSent(u64),
    /// Data beyond what the credits allow, outside its transfer, or for a task that takes none.
    #[error("data of the transfer with the tag {tag:08x}: {why}")]
    Data {
        /// The data sink tag.
        tag: u32,
        /// The rule it broke.
        why: &'static str,
    },
    /// A command that contradicts itself or the rules of numbering.
    #[error("the command {number}: {why}")]
    Command {
        /// Its number.
        number: u64,
        /// The rule it broke.
        why: &'static str,
    },
    /// Too many packets under one generation of keys.
    #[error("the peer did not change its keys in time")]
    RekeyOverdue,
}

/// Why an association is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The initiator logged out.
    #[error("logged out")]
    LoggedOut,
    /// The peer broke the protocol.
    #[error("the peer broke the protocol: {0}")]
    Misbehaved(#[from] PeerMisbehaved),
    /// The other end ended it.
    #[error("the peer ended the association")]
    ClosedByPeer,
    /// This end ended it; the text says why.
    #[error("{0}")]
    ClosedHere(String),
    /// No packet came back although the login succeeded.
    #[error(
        "no UDP packet came back from the target within {0} s, though its TCP port answers: a firewall may drop UDP. Open its UDP \
         port, or use an ecl+tcp:// URL, or strongroom:// (iSCSI), which need TCP only"
    )]
    UdpBlocked(u64),
    /// A stream that carries packets brought what is none of the peer's.
    #[error("the connection was damaged on the way: what arrived is no packet of the peer's")]
    StreamDamaged,
    /// An association that worked is silent.
    #[error("the peer has not answered any packet for {0} s")]
    PeerSilent(u64),
    /// The peer did not log out within the time that it was given.
    #[error("the initiator did not log out in time")]
    DrainTimedOut,
    /// The logout was not answered.
    #[error("the target did not answer the logout")]
    LogoutTimedOut,
}

/// Why an arrived packet counts as if it had been lost: nothing of it was used, and it is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Dropped {
    /// Shorter than any packet, of another version, or with lengths that contradict each other.
    #[error("not a packet of this version")]
    Malformed,
    /// For another association.
    #[error("for another association")]
    OtherAssociation,
    /// It comes from another address than the peer's.
    #[error("from another address than the peer's")]
    OtherSource,
    /// Its tag does not fit, or its keys are not known here.
    #[error("not authentic")]
    NotAuthentic,
    /// It came before, or is too old to tell.
    #[error("replayed, or too old to tell")]
    Replayed,
    /// Its quantum or segment does not match its checksum.
    #[error("damaged on the way: a checksum does not match")]
    Checksum,
    /// There is no room for it now.
    #[error("no room for it now")]
    NoRoom,
}

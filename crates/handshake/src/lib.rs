//! The handshake room: TLS 1.3 between two nodes that know each other's public keys, and nothing after it.
//!
//! `docs/protocol.md` is the specification. Each node has an Ed25519 key ([`NodeKey`]); people exchange the one-line
//! [`PublicKey`]s as they do SSH's. A [`Handshake`] takes and gives bytes; when it is finished it hands out
//! [`ChannelKeys`](strongroom_channel::ChannelKeys), and the TLS record layer is never used. What else nodes do with their keys is here too:
//! the text and the proof of an invitation ([`Invitation`], `docs/pairing.md`), and a secret text from one node to another ([`SharedKey`]).
//!
//! Deliberately absent: sockets, files, time-outs, access lists (the caller's [`PeerPolicy`]), and what comes after.
//! This room is not pure: rustls draws randomness from the operating system itself.

mod error;
mod handshake;
mod invitation;
mod node_key;
mod pairing;
mod public_key;
mod shared_key;
mod verify;

pub use error::{HandshakeError, KeyTextError, TlsError};
pub use handshake::{
    ECL_EXPORTER_LABEL, EXPORTER_LABEL, EclSecret, Finished, HANDSHAKE_BYTES_MAX, Handshake, KEYS_ALPN, OPERATOR_ALPN,
    Offer, PAIRING_ALPN, PeerPolicy, Protocol, Protocols, TRANSFER_ALPN, alpn, ecl_alpn,
};
pub use invitation::{
    INVITATION_ADDRESS_BYTES_MAX, INVITATION_ADDRESSES_MAX, INVITATION_TEXT_BYTES_MAX, Invitation, InvitationTextError,
    is_address,
};
pub use node_key::{NODE_KEY_FILE_BYTES_MAX, NodeKey};
pub use pairing::{PairingBinding, PairingKey, PairingProof, PairingSecret};
pub use public_key::PublicKey;
pub use shared_key::{SHARED_TEXT_BYTES_MAX, SharedKey, SharedKeyError};

/// Seeds the random generator of the calling thread. AWS-LC gathers entropy when a thread first uses it, for tens of milliseconds of CPU
/// time: a thread on which others wait does that before it serves any of them.
pub fn seed_thread() {
    aws_lc_rs::rand::fill(&mut [0]).expect("the operating system gives randomness");
}

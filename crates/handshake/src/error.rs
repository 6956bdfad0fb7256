//! Why a handshake ended, for the person who has to do something about it.

use std::fmt;

use crate::PublicKey;

/// Text that is not the key it should be. Never shows a byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyTextError {
    /// Not a public key line.
    #[error("not a Strongroom public key; expected 'strongroom-ed25519 ' and 44 characters, as 'identity show' prints")]
    NotAPublicKey,
    /// A public key line whose key is cut or has been altered.
    #[error("the public key is cut off or altered; copy the whole line again")]
    MalformedPublicKey,
    /// Not a node key file.
    #[error("not a Strongroom node key file; make one with 'strongroom identity new'")]
    NotANodeKey,
    /// Larger than any node key file.
    #[error("a node key file is at most 16 KiB; this is something else")]
    TooLong,
    /// A private key of another kind, or a damaged one.
    #[error("the node key file is damaged or of another kind than Ed25519; restore it from its copy or make a new one")]
    MalformedNodeKey,
}

/// What the TLS library said, for the log.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsError(pub(crate) rustls::Error);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::error::Error for TlsError {}

/// Why a handshake failed. It is over then: send what [`poll_transmit`](crate::Handshake::poll_transmit) still has (the
/// alert that tells the peer) and close.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum HandshakeError {
    /// At the target: an initiator whose key it does not know.
    #[error(
        "refused an unknown peer; to admit it, invite it (strongroom invite), or add a [[peer]] with key = \"{key}\" to the configuration"
    )]
    UnknownPeer {
        /// What it presented. It was not made to prove that it holds the private key.
        key: PublicKey,
    },
    /// At the initiator: a target with another key than the expected one.
    #[error(
        "the target presented the key '{presented}', which is not the expected one. If the target was set up again, \
         compare this line with its 'strongroom identity show' and use it; otherwise an attacker is in the middle"
    )]
    WrongTarget {
        /// What it presented.
        presented: PublicKey,
    },
    /// At the initiator: the target refused our key.
    #[error(
        "the target does not know this node; ask its administrator for an invitation (strongroom invite; strongroom join), or to add a [[peer]] with \
         key = \"{own}\" to its configuration"
    )]
    RefusedByTarget {
        /// Our key, as the administrator needs it.
        own: PublicKey,
    },
    /// At the target: the initiator refused our key.
    #[error("the initiator expected another target key; it should be given this target's: '{own}'")]
    RefusedByInitiator {
        /// Our key, as the initiator needs it.
        own: PublicKey,
    },
    /// The peer speaks no TLS, or another version, other algorithms, certificates, or another protocol above it.
    #[error(
        "the peer speaks no TLS that Strongroom accepts ({reason}); run compatible Strongroom versions on both ends"
    )]
    Incompatible {
        /// What does not fit.
        reason: &'static str,
    },
    /// The two ends have no scheme or no suite in common, or not even a version of the protocol.
    #[error(
        "the two nodes have no scheme and cipher suite in common: choose a --scheme that the target's 'schemes' setting \
         admits (S2-5 if in doubt) and a --channel-suite that its 'suites' setting does (aes-256-gcm if in doubt), and run \
         compatible Strongroom versions on both ends"
    )]
    NoCommonScheme,
    /// The peer violated TLS, or an attacker changed its bytes.
    #[error("the TLS handshake failed: {0}; try again, and look for what stands between the two nodes")]
    Tls(#[source] TlsError),
    /// Bytes that cannot be TLS.
    #[error("the peer sent something that is not TLS; check address and port")]
    NotTls,
    /// More bytes than any handshake needs.
    #[error("the peer sent more than {limit} bytes without finishing the handshake")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The stream ended in the middle.
    #[error("the peer closed the connection during the handshake; check that it runs Strongroom and look at its log")]
    Truncated,
    /// The stream ended after the initiator had finished, and before the target confirmed.
    #[error(
        "the target closed the connection instead of confirming it: most likely it does not know this node; ask its \
         administrator for an invitation (strongroom invite; strongroom join), or to add a [[peer]] with key = \"{own}\" to its configuration, or \
         look at its log"
    )]
    NotConfirmed {
        /// Our key.
        own: PublicKey,
    },
    /// The caller gave an initiator no target key to expect.
    #[error("no target key was given; get the line that 'strongroom identity show' prints on the target")]
    NoTargetKey,
}

//! Why a request of an operator came to nothing, at its own end.

use strongroom_net::LinkEnd;

use crate::channel_stream::ConnectionError;

/// Why a request of an operator came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Nobody answers there, or the name is none.
    #[error("{0}")]
    Unreachable(String),
    /// The handshake failed.
    #[error("{0}")]
    Handshake(LinkEnd),
    /// A target that does not have the protocol.
    #[error("the target knows no operators: it is of an older version; bring it to this one")]
    NoOperators,
    /// The target said no, and why.
    #[error("the target refused: {0}")]
    Refused(String),
    /// The connection was lost.
    #[error(
        "the connection to the target broke, and what was asked for may be done or not: {0}; look with `strongroom volume list --target`, \
         then try again"
    )]
    Broken(String),
    /// A request that is too long.
    #[error("the request is too long; name fewer peers")]
    TooLong,
    /// The target said what it must not.
    #[error("the target answered something that is no answer; use the same version of Strongroom on both sides")]
    Misbehaved,
}

impl From<ConnectionError> for OperatorError {
    fn from(error: ConnectionError) -> OperatorError {
        match error {
            ConnectionError::Malformed => OperatorError::Misbehaved,
            error => OperatorError::Broken(error.to_string()),
        }
    }
}

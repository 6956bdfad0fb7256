//! Why a request of an operator came to nothing, at its own end.

use strongroom_block::foreign;
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
    #[error("the target refused: {}", foreign(.0))]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A target whose refusal looks like output of the command.
    #[test]
    fn attack_operator_target_forges_lines_of_output() {
        let error = OperatorError::Refused("no\n'vault' was created\u{1b}[2J".to_owned());
        assert_eq!(error.to_string(), r"the target refused: no\u{a}'vault' was created\u{1b}[2J");
    }
}

//! Why a target did not do what an administrative request asked for.

use crate::config::AddressError;
use crate::error::{CatalogueError, ConfigError, ProviderError};
use crate::operate::error::OperationError;
use crate::pairing::PairingError;
use crate::volume::NotSendable;

/// Why a request failed. Its text goes to the client as [`super::Reply::Error`].
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// An operation on a volume as a whole.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// Reading the configuration again.
    #[error(transparent)]
    Reload(#[from] ReloadError),
    /// A drain to an address that initiators cannot be sent to.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Ending sessions without saying which.
    #[error("say which sessions: an id, an initiator, a peer or a volume")]
    NoSessionFilter,
    /// Ending a drain that is not in force.
    #[error("nothing of that is being drained; `strongroom status` shows what is")]
    NotDrained,
    /// Sending a snapshot on a connection that is used for other requests.
    #[error("a stream is asked for on a connection of its own")]
    SendAmongRequests,
    /// The same of receiving one.
    #[error("a stream is sent on a connection of its own")]
    ReceiveAmongRequests,
    /// A volume of which no stream may leave this target.
    #[error(transparent)]
    NotSendable(#[from] NotSendable),
    /// Going on with a stream of another snapshot.
    #[error("that position is of another snapshot than {snapshot}; name the one that was being sent")]
    OtherSnapshot {
        /// The snapshot that was asked for.
        snapshot: String,
    },
    /// Going on with a stream that builds on another snapshot.
    #[error("that position is of a transfer that builds on something else than --from says; leave --from out")]
    OtherBase,
    /// Peers and invitations.
    #[error(transparent)]
    Pairing(#[from] PairingError),
    /// A reception.
    #[error("{0}")]
    Reception(String),
}

impl From<CatalogueError> for RequestError {
    fn from(error: CatalogueError) -> RequestError {
        RequestError::Operation(error.into())
    }
}

/// Why the configuration was not read again. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The target was started from settings, not from a file.
    #[error("this target was started without a configuration to read again")]
    NoReader,
    /// The file, or a secret that it names, cannot be read; in the words of the binary, which reads them.
    #[error(transparent)]
    Unreadable(#[from] ProviderError),
    /// A value that cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

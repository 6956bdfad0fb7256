//! Why an administrator's request about peers or invitations was not carried out.

use std::io;
use std::path::PathBuf;

use crate::error::CatalogueError;

/// A request about peers or invitations that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum PairingError {
    /// Not a name for a peer.
    #[error(
        "'{name}' cannot name a peer: use 1 to {max} of letters, digits, '-', '_' and '.', starting with a letter or digit",
        max = super::names::PeerName::BYTES_MAX
    )]
    Name {
        /// What was given, shortened.
        name: String,
    },
    /// A peer has the name.
    #[error(
        "there is a peer '{name}' already; choose another name, give it volumes with `strongroom peer allow {name} --volume VOLUME`, or \
         `strongroom peer remove {name}` first"
    )]
    NameTaken {
        /// The name.
        name: String,
    },
    /// An invitation has the name.
    #[error("there is an invitation for '{name}' already; `strongroom invite revoke {name}` ends it")]
    Invited {
        /// The name.
        name: String,
    },
    /// An invitation or a right for no volume.
    #[error("name the volumes, with --volume; '*' is all of them")]
    NoVolumes,
    /// A name that is no volume's, or a volume that is not there.
    #[error(transparent)]
    Volume(#[from] CatalogueError),
    /// There are as many as there may be.
    #[error("there are {limit} {what} already, and no more may be; end some first")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// An invitation for too short or too long.
    #[error("an invitation is good for one minute to seven days; choose --expires within that")]
    Expiry,
    /// An address that cannot be told to a node.
    #[error(
        "'{address}' is no address that an invitation can name; write for instance --address storage.example or --address [2001:db8::1]:3260"
    )]
    Address {
        /// What was given, shortened.
        address: String,
    },
    /// It is not known where initiators reach this target.
    #[error(
        "this target listens at every address, and its machine's name is none that could be told; say where initiators reach it: --address HOST[:PORT]"
    )]
    NoAddress,
    /// A target that cannot prove who it is.
    #[error(
        "this target has no identity, so no peer can come to it; make one with `strongroom identity new` and name its file as `node_key`"
    )]
    NoIdentity,
    /// Neither the database nor the configuration has the peer.
    #[error("there is no peer '{name}'; `strongroom peer list` shows which there are")]
    Missing {
        /// The name.
        name: String,
    },
    /// It is for the configuration to say.
    #[error("the peer '{name}' is in the configuration; change its [[peer]] there, then: strongroom reload")]
    Configured {
        /// The name.
        name: String,
    },
    /// No invitation is out for that name.
    #[error("there is no invitation for '{name}'; `strongroom invite list` shows which there are")]
    NotInvited {
        /// The name.
        name: String,
    },
    /// The database.
    #[error(transparent)]
    Database(#[from] PeerDatabaseError),
}

/// A peer database that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PeerDatabaseError {
    /// What is in it cannot be.
    #[error(
        "the peer database {} cannot be used: {problem}; bring it back from a backup, or move it away, after which every peer has to be \
         invited again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The kernel refused. Nothing was changed.
    #[error("cannot {what} the peer database {}: {source}", path.display())]
    Io {
        /// To do what.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

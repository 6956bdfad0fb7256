//! What the driver is started with. Absent: reading it from a command line.

use std::path::PathBuf;

use strongroom_target::operators::OperatorDestination;

use crate::program::Program;

/// Which services there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// Those of the controller and of a node.
    All,
    /// Makes and deletes volumes, and says which node may use them.
    Controller,
    /// Attaches and mounts them on this node.
    Node,
}

impl Services {
    pub(crate) fn has_controller(self) -> bool {
        self != Services::Node
    }

    pub(crate) fn has_node(self) -> bool {
        self != Services::Controller
    }
}

/// What the driver is started with.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// The socket to listen at.
    pub socket: PathBuf,
    /// Which services there are.
    pub services: Services,
    /// The target, and as whom it is asked.
    pub target: OperatorDestination,
    /// What that target is called in topologies.
    pub target_name: String,
    /// The driver's name among drivers.
    pub driver_name: String,
    /// This node's name, which is that of its peer at the target; not for a controller.
    pub node_id: Option<String>,
    /// What the names of volumes begin with that the driver makes.
    pub volume_prefix: String,
    /// Where a node keeps directories of attachments, and secrets while they are needed: on a tmpfs.
    pub state_dir: PathBuf,
    /// How commands are run on a node.
    pub program: Program,
}

/// Why the driver does not start.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A value that cannot be.
    #[error("{0}")]
    Option(String),
    /// The socket.
    #[error("cannot listen at {}: {source}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another driver has the socket.
    #[error("another process listens at {}; end it, or choose another socket", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// The directory for attachments and secrets.
    #[error("{} cannot be used: {source}; name a directory on a tmpfs, such as one in /run, with --state-dir", path.display())]
    State {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The runtime, or a connection.
    #[error("the driver cannot serve: {0}")]
    Serve(String),
}

//! The CSI driver (Container Storage Interface 1.13): Kubernetes and other orchestrators make volumes at a target, and nodes attach and mount
//! them. `docs/csi.md` is the guide.
//!
//! [`Driver`] is all that the command needs. The controller is an operator of the target (`docs/operators.md`) and has no keys; a node runs the
//! program's own commands for what needs keys and devices, each attachment in a process of its own. Neither remembers anything: what there is,
//! the target and the kernel say. Inside: `server` has the socket and the runtime, `identity`, `controller` and `node` the services, `target`
//! and `program` what they use, and `spec` the specification's messages.
//!
//! Deliberately absent: keys, the data path, and threads that move data; the runtime is for gRPC alone.

mod blocking;
mod capabilities;
mod controller;
mod error;
mod identity;
mod in_flight;
mod mounts;
mod names;
mod node;
mod options;
mod paging;
mod parameters;
mod program;
mod secrets;
mod server;
mod sizes;
pub mod spec;
mod target;

pub use names::PREFIX_BYTES_MAX;
pub use options::{DriverError, DriverOptions, Services};
pub use program::{AttachmentHome, Program};
pub use server::{Driver, REQUEST_BYTES_MAX};

//! The initiator's end of an association: the session as the engine sees it, its tasks, and the numbering of commands.

mod functions;
mod numbering;
mod session;
mod task;
mod transport;

pub use session::{EclEvent, Session};

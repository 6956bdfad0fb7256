//! The target's end of an association: the session as the logical unit sees it, its tasks, and the order of commands.

mod functions;
mod order;
mod respond;
mod session;
mod table;
mod task_set;
mod transport;
mod write;

pub use session::Session;

//! The initiator's side of one session: commands in, events out, and back. Making connections, retrying and time-outs of
//! commands are the application's business.
//!
//! A connection's login is a machine of its own (`login`, `chap`). Commands are in `task_set`, the data of one in `task`, the command window
//! in `window`; what a connection sends and has seen is in `connection`, small requests are made in `requests`. Task management is in
//! `functions`, text and echoes are in `text_exchange`, and the tasks of lost connections in `reassign`.

mod chap;
mod connection;
mod connection_id;
mod connections;
mod functions;
mod login;
mod reassign;
mod requests;
mod session;
mod submission;
mod task;
mod task_set;
mod text_exchange;
mod types;
mod window;

pub use connection_id::ConnectionId;
pub use session::Session;
pub use types::{
    Attribute, ChapLogin, Command, Completed, Config, DataContent, DataIn, Direction, Event, SendTargets, SessionKind,
    SubmitError, TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskFunction, TaskId, TaskManagementResult, WriteRecords,
    WriteSource,
};

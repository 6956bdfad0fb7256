//! The target's side of one session: PDUs of its connections in, events out, and back. No SCSI semantics: the application executes
//! commands and carries out task management functions.
//!
//! A connection's login is a machine of its own (`login`, `chap`). After it the session decides which request is executed next (`order`,
//! `reorder`), executes tasks (`task_set`: write data in `write`, responses in `respond`, their memory in `memory`), ends them for task
//! management and for connections that go (`functions`), and answers on its connections (`connections`, `outbox`, `text_exchange`).
//! What may have to be sent again is in `retransmit` and, of lost connections, in `lost`.

mod chap;
mod connection;
mod connection_id;
mod connections;
mod functions;
mod login;
mod lost;
mod memory;
mod order;
mod outbox;
mod refusal;
mod reorder;
mod respond;
mod retransmit;
mod segment;
mod sense;
mod session;
mod task;
mod task_set;
mod tasks;
mod text_exchange;
mod types;
mod write;

pub use chap::{ChapPolicy, ChapUser};
pub use connection_id::{ConnectionId, MayAdd};
pub use login::Login;
pub use session::Session;
pub use types::{
    ANSWERS_BYTES_HIGH, ANSWERS_BYTES_MAX, ANSWERS_HIGH, ANSWERS_MAX, Command, Config, Direction, Event,
    IMMEDIATE_TASKS_MAX, LoginEvent, LoginRequested, MANAGEMENTS_MAX, ManagementFunction, ManagementId, ReadPart,
    Response, SendTargets, SessionKind, Statistics, TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskId, TaskManagement,
    TaskManagementResult, WriteSegment,
};

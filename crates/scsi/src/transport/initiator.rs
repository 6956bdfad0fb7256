//! The initiator's side of a transport: what the engine hands to a session, and what it takes back.

use std::fmt;

use bytes::Bytes;
use strongroom_block::Buffer;

/// Names a task of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// What a write sends.
#[derive(Clone, Debug)]
pub struct WriteSource {
    /// All of it. Sent without a copy.
    pub data: Buffer,
    /// The seal records of its blocks; `None` for plain data.
    pub records: Option<WriteRecords>,
}

impl WriteSource {
    /// Plain data.
    pub fn plain(data: Buffer) -> WriteSource {
        WriteSource { data, records: None }
    }
}

/// Seal records of whole blocks.
#[derive(Clone)]
pub struct WriteRecords {
    /// Bytes in a block.
    pub block_bytes: u32,
    /// Bytes in an encoded record.
    pub record_bytes: u32,
    /// The records, one per block, back to back.
    pub bytes: Bytes,
}

impl fmt::Debug for WriteRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteRecords")
            .field("block_bytes", &self.block_bytes)
            .field("record_bytes", &self.record_bytes)
            .field("bytes", &format_args!("{} bytes", self.bytes.len()))
            .finish()
    }
}

/// Why a session did not take a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The session is not logged in, or no longer.
    #[error("the session is not logged in; wait for LoggedIn")]
    NotLoggedIn,
    /// The session has as many tasks as it can hold.
    #[error("the session's queue is full; wait for a completion")]
    QueueFull,
    /// The command contradicts itself: a wrong length, records that do not fit the data, or sealed data where the transport carries none.
    #[error("the command cannot be sent: {0}")]
    Malformed(&'static str),
}

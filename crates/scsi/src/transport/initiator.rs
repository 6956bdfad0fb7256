//! The initiator's side of a transport: what the engine hands to a session, and what it takes back.

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::{Buffer, StoreSequence};

use super::{
    Direction, Lun, Parameters, Residual, SealRecords, TaskAttribute, TaskFunction, TaskManagementResult, Written,
};

/// Names a task of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

/// A SCSI command to send.
#[derive(Clone, Debug)]
pub struct Command {
    /// Logical unit.
    pub lun: Lun,
    /// The command.
    pub cdb: [u8; 16],
    /// How it may be ordered.
    pub attribute: TaskAttribute,
    /// Which way the data flows.
    pub direction: Direction,
    /// Bytes to transfer. For a write, the length of its data.
    pub expected_bytes: u32,
    /// The data of a write.
    pub write: Option<WriteSource>,
    /// What it carries beside the CDB.
    pub parameters: Parameters,
    /// The block size of a read of sealed blocks, in bytes, so that holes can be counted; `None` on a plain unit.
    pub sealed_block_bytes: Option<u32>,
}

impl Command {
    /// A command without data.
    pub fn without_data(lun: Lun, cdb: [u8; 16]) -> Command {
        Command {
            lun,
            cdb,
            attribute: TaskAttribute::Simple,
            direction: Direction::None,
            expected_bytes: 0,
            write: None,
            parameters: Parameters::default(),
            sealed_block_bytes: None,
        }
    }

    /// A command that returns up to `expected_bytes`.
    pub fn read(lun: Lun, cdb: [u8; 16], expected_bytes: u32) -> Command {
        Command { direction: Direction::Read, expected_bytes, ..Command::without_data(lun, cdb) }
    }

    /// A command that takes `data`.
    ///
    /// # Panics
    /// If the data is 4 GiB or longer.
    pub fn write(lun: Lun, cdb: [u8; 16], data: WriteSource) -> Command {
        let expected_bytes = u32::try_from(data.data.len()).expect("a transfer is less than 4 GiB");
        Command { direction: Direction::Write, expected_bytes, write: Some(data), ..Command::without_data(lun, cdb) }
    }
}

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

/// Part of what a read returns.
#[derive(Clone, Debug)]
pub struct DataIn {
    /// The task.
    pub task: TaskId,
    /// Where it belongs, in bytes from the start of the transfer.
    pub offset: u32,
    /// How much of the transfer it stands for, in bytes.
    pub covers_bytes: u32,
    /// What it is.
    pub content: DataContent,
}

impl DataIn {
    /// The bytes; none for a hole.
    pub fn data(&self) -> &[u8] {
        match &self.content {
            DataContent::Plain(data) | DataContent::Sealed { data, .. } => data,
            DataContent::Hole { .. } => &[],
        }
    }
}

/// The content of a [`DataIn`].
#[derive(Clone)]
pub enum DataContent {
    /// Bytes that the transport protected.
    Plain(Buffer),
    /// Whole sealed blocks, which the transport left to their records.
    Sealed {
        /// The blocks.
        data: Buffer,
        /// One entry per block: store sequence and record.
        records: SealRecords,
    },
    /// Absent blocks.
    Hole {
        /// When the hole was stored.
        sequence: StoreSequence,
        /// The encoded [`HoleRecord`](strongroom_block::HoleRecord) that says so, which nobody has looked at.
        record: Bytes,
    },
}

impl fmt::Debug for DataContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataContent::Plain(data) => f.debug_tuple("Plain").field(data).finish(),
            DataContent::Sealed { data, records } => {
                f.debug_struct("Sealed").field("data", data).field("records", records).finish()
            }
            DataContent::Hole { sequence, record } => {
                let record = format_args!("{} bytes", record.len());
                f.debug_struct("Hole").field("sequence", sequence).field("record", &record).finish()
            }
        }
    }
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The task.
    pub task: TaskId,
    /// SCSI status; 0 is GOOD. Meaningless unless `response` is 0.
    pub status: u8,
    /// The service response; 0: the command was completed at the target. Anything else: it failed on the way, and its outcome is unknown.
    pub response: u8,
    /// Sense data; empty for none.
    pub sense: Vec<u8>,
    /// Expected against wanted length, as the target has it.
    pub residual: Residual,
    /// How much of the transfer was moved here, holes included, in bytes.
    pub moved_bytes: u32,
    /// Where a write of sealed blocks or holes was stored, if the target says so.
    pub written: Option<Written>,
}

/// What a session tells the initiator. `T`: events of the transport itself.
#[derive(Debug)]
pub enum Event<T> {
    /// Part of what a read returns, in order and without gaps.
    DataIn(DataIn),
    /// A command is over.
    Completed(Completed),
    /// The answer to [`Session::manage_task`]. When it is `Complete`, the tasks concerned are gone and named here; they get no
    /// `Completed`.
    TaskManagementDone {
        /// As `manage_task` returned it.
        id: TaskId,
        /// The result.
        result: TaskManagementResult,
        /// Tasks that it ended.
        ended: Vec<TaskId>,
    },
    /// The target asks for a logout: call [`Session::logout`] once the tasks are done.
    LogoutRequested {
        /// How long the target waits.
        within: Duration,
    },
    /// Sense data of a logical unit that no command asked for.
    AsyncSense {
        /// Logical unit.
        lun: Lun,
        /// The sense data.
        sense: Vec<u8>,
    },
    /// The session is over; tasks without `Completed` have an unknown outcome. Always the last event.
    Closed {
        /// Why, for people.
        reason: String,
    },
    /// Something that only the transport's driver understands: a login succeeded or failed, a connection was lost.
    Transport(T),
}

/// A session with a target, as the initiator sees it: one I_T nexus. Login, connections and frames are the implementation's.
///
/// A machine without I/O: its driver gives it what arrives and the time, and sends what it has.
pub trait Session {
    /// Events that concern the transport's driver alone.
    type TransportEvent;

    /// Takes a command, to be sent when the target's window allows; answered by `Completed`.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    fn submit(&mut self, command: Command) -> Result<TaskId, SubmitError>;

    /// Sends a task management function; `task` names the one of `AbortTask` and `QueryTask`. Answered by `TaskManagementDone` with the
    /// name that is returned here.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    fn manage_task(&mut self, function: TaskFunction, lun: Lun, task: Option<TaskId>) -> Result<TaskId, SubmitError>;

    /// The next event.
    fn poll_event(&mut self) -> Option<Event<Self::TransportEvent>>;

    /// Logs out; `Closed` follows when the target has answered, or not in time. Commands that are not over are lost.
    fn logout(&mut self, now: Instant);

    /// Whether `Closed` was emitted.
    fn is_closed(&self) -> bool;

    /// How long the target asked to be left alone before a new session.
    fn reconnect_after(&self) -> Duration;

    /// The time of `poll_timeout` has come.
    fn handle_timeout(&mut self, now: Instant);

    /// When `handle_timeout` wants to be called next.
    fn poll_timeout(&self) -> Option<Instant>;
}

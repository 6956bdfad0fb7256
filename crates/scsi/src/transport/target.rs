//! The target's side of a transport: what a session hands to a logical unit, and what it takes back.

use std::time::{Duration, Instant};

use strongroom_block::{Buffer, BufferMut, HoleRecord, StoreSequence};

use super::{Direction, Lun, Parameters, SealRecords, StoredRecords, TaskAttribute, TaskManagementResult, Written};

/// Names a task of one session from its command to its completion. Never reused while a late completion could still name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// A SCSI command.
#[derive(Debug)]
pub struct Command {
    /// Names the task in `complete`.
    pub task: TaskId,
    /// Logical unit.
    pub lun: Lun,
    /// The command, or its first 16 bytes.
    pub cdb: [u8; 16],
    /// What it carries beside the CDB.
    pub parameters: Parameters,
    /// How it may be ordered.
    pub attribute: TaskAttribute,
    /// Which way the data flows.
    pub direction: Direction,
    /// Bytes that the initiator expects to transfer. For a write, exactly this many bytes are in `data`.
    pub expected_bytes: u32,
    /// Sent outside the command window.
    pub immediate: bool,
    /// The data of a write, in order and without gaps, as it arrived.
    pub data: Vec<WriteSegment>,
}

impl Command {
    /// The write data as one buffer; copies only if it arrived in several segments.
    pub fn gather(&self) -> Buffer {
        match self.data.as_slice() {
            [] => Buffer::empty(),
            [only] => only.data.clone(),
            _ => {
                let mut all = BufferMut::zeroed(self.data_bytes());
                self.copy_data(&mut all);
                all.freeze()
            }
        }
    }

    /// The same, where it may hold block keys: a copy is wiped when its last reference is dropped.
    pub fn gather_wiped(&self) -> Buffer {
        if self.data.len() < 2 {
            return self.gather();
        }
        let mut all = vec![0; self.data_bytes()];
        self.copy_data(&mut all);
        Buffer::from(strongroom_block::wiped(all))
    }

    fn data_bytes(&self) -> usize {
        self.data.iter().map(|segment| segment.data.len()).sum()
    }

    fn copy_data(&self, all: &mut [u8]) {
        for segment in &self.data {
            let at = segment.offset as usize;
            all[at..at + segment.data.len()].copy_from_slice(&segment.data);
        }
    }
}

/// A part of a write's data, as it arrived.
#[derive(Clone, Debug)]
pub struct WriteSegment {
    /// Where it belongs, in bytes from the start of the transfer.
    pub offset: u32,
    /// The bytes; not necessarily whole blocks where there are no records.
    pub data: Buffer,
    /// The seal records of its blocks. Present exactly when the transport left the data to them and protected only the records.
    pub records: Option<SealRecords>,
}

/// Names a task management request of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManagementId(pub u64);

/// A task management function to carry out.
#[derive(Debug)]
pub struct TaskManagement {
    /// Names it in `answer_task_management`.
    pub id: ManagementId,
    /// What to do.
    pub function: ManagementFunction,
    /// Tasks of this session that the function ends and that the logical unit is executing: stop them. When the answer is
    /// `Complete` the session forgets them and ignores their completion.
    pub tasks: Vec<TaskId>,
}

/// What the target has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementFunction {
    /// Stop one task.
    AbortTask(TaskId),
    /// Stop this initiator's tasks on a logical unit.
    AbortTaskSet(Lun),
    /// End an auto contingent allegiance.
    ClearAca(Lun),
    /// Stop all tasks on a logical unit, of every initiator (other sessions: `abort_tasks`).
    ClearTaskSet(Lun),
    /// Reset a logical unit (other sessions: `abort_tasks`).
    LogicalUnitReset(Lun),
    /// Reset every logical unit.
    TargetWarmReset,
    /// Reset every logical unit and close every session (`close`) after answering.
    TargetColdReset,
    /// Answer `Succeeded` if this initiator has tasks on a logical unit (`any` says whether it has), `Complete` if not; or
    /// that there is no such unit.
    QueryTaskSet {
        /// Which.
        lun: Lun,
        /// Whether this session has tasks there.
        any: bool,
    },
    /// Stop this initiator's tasks on every logical unit and do what the loss of its nexus does.
    NexusReset,
    /// The connection that brought these tasks is gone: stop them. Their responses are not needed.
    ConnectionEnded,
    /// Answer `Succeeded` with the unit attention that is pending (`answer_query`), or `Complete` if there is none.
    QueryAsyncEvent(Lun),
}

/// The answer to a command.
#[derive(Debug, Default)]
pub struct Response {
    /// SCSI status; 0 is GOOD.
    pub status: u8,
    /// Sense data; empty for none.
    pub sense: Vec<u8>,
    /// What a read returns, in order. What exceeds the expected length is not sent.
    pub data: Vec<ReadPart>,
    /// Where a write of sealed blocks or holes was stored. A transport that cannot say so leaves it out.
    pub written: Option<Written>,
    /// Bytes that the command wants to transfer, for the residual. `None`: what `data` covers for a read, what arrived for a
    /// write.
    pub wanted_bytes: Option<u64>,
}

impl Response {
    /// GOOD, with nothing to return.
    pub fn good() -> Response {
        Response::default()
    }

    /// GOOD, with plain data.
    pub fn good_data(data: Buffer) -> Response {
        Response { data: vec![ReadPart::Plain(data)], ..Response::default() }
    }

    /// TASK ABORTED: another session ended the command, and its initiator shall be told.
    pub fn task_aborted() -> Response {
        Response { status: 0x40, ..Response::default() }
    }

    /// TASK SET FULL: there is no room now, and later there may be.
    pub fn task_set_full() -> Response {
        Response { status: 0x28, ..Response::default() }
    }

    /// CHECK CONDITION with sense data.
    pub fn check_condition(sense: Vec<u8>) -> Response {
        Response { status: 0x02, sense, ..Response::default() }
    }
}

/// A part of what a read returns.
#[derive(Debug)]
pub enum ReadPart {
    /// Bytes that the transport protects and cuts as it likes.
    Plain(Buffer),
    /// Whole sealed blocks, which the transport leaves to their records and does not cut.
    Sealed {
        /// The blocks.
        data: Buffer,
        /// One record per block.
        records: StoredRecords,
    },
    /// Absent blocks.
    Hole {
        /// How much of the transfer they are, in bytes.
        covers_bytes: u32,
        /// How many blocks they are.
        covered_blocks: u32,
        /// When the hole was stored.
        sequence: StoreSequence,
        /// The range that it belongs to, with its seal record. Not in place: a vector that grows would leave copies of a block key.
        record: Box<HoleRecord>,
    },
}

impl ReadPart {
    /// The bytes; none for a hole.
    pub fn data(&self) -> &[u8] {
        match self {
            ReadPart::Plain(data) | ReadPart::Sealed { data, .. } => data,
            ReadPart::Hole { .. } => &[],
        }
    }

    /// How much of the transfer it stands for, in bytes.
    ///
    /// # Panics
    /// If that is 4 GiB or more: no transfer is as long.
    pub fn covers_bytes(&self) -> u32 {
        match self {
            ReadPart::Plain(data) | ReadPart::Sealed { data, .. } => {
                u32::try_from(data.len()).expect("a transfer is less than 4 GiB")
            }
            ReadPart::Hole { covers_bytes, .. } => *covers_bytes,
        }
    }
}

/// What a session tells the target. `T`: events of the transport itself.
#[derive(Debug)]
pub enum Event<T> {
    /// A SCSI command, with all its write data. Answer with [`Session::complete`].
    Command(Command),
    /// Answer with [`Session::answer_task_management`] or [`Session::answer_query`].
    TaskManagement(TaskManagement),
    /// The session is over; all its tasks are gone. Always the last event.
    Closed {
        /// The initiator broke the protocol.
        misbehaved: bool,
        /// Why, for the log.
        reason: String,
    },
    /// Something that only the transport's driver understands: a connection ended, a discovery request.
    Transport(T),
}

/// A session of one initiator, as the target sees it: one I_T nexus. Login, connections and frames are the implementation's.
///
/// A machine without I/O: its driver gives it what arrives and the time, and sends what it has.
pub trait Session {
    /// Events that concern the transport's driver alone.
    type TransportEvent;

    /// The next event.
    fn poll_event(&mut self) -> Option<Event<Self::TransportEvent>>;

    /// Answers a command. False when the task is gone (aborted, or the session closed): nothing will be sent.
    ///
    /// # Panics
    /// If the task was completed before: a command has one answer.
    fn complete(&mut self, task: TaskId, response: Response) -> bool;

    /// Answers a task management request. With `Complete`, the tasks that it named are forgotten.
    fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult);

    /// Answers a query with `Succeeded` and what was found: for `QueryAsyncEvent` sense key, code and qualifier.
    fn answer_query(&mut self, id: ManagementId, found: [u8; 3]);

    /// Another session ends the tasks on a logical unit (`None`: on all). Returns those that the logical unit is executing: stop them,
    /// and complete them with TASK ABORTED.
    fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId>;

    /// Most sealed blocks that fit one [`ReadPart`], given the block size and the length of an entry (sequence and record). 0 when the
    /// initiator takes less than a block.
    fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize;

    /// Bytes of read data that have not left yet.
    fn unsent_bytes(&self) -> u64;

    /// Memory that the session's commands occupy, in bytes.
    fn memory_bytes(&self) -> u64;

    /// Asks the initiator to log out within `grace`, for a drain; then ends the session.
    fn request_logout(&mut self, now: Instant, grace: Duration);

    /// Ends the session now. `why` is for the log.
    fn close(&mut self, why: String);

    /// Whether `Closed` was emitted.
    fn is_closed(&self) -> bool;

    /// The time of `poll_timeout` has come.
    fn handle_timeout(&mut self, now: Instant);

    /// When `handle_timeout` wants to be called next.
    fn poll_timeout(&self) -> Option<Instant>;
}

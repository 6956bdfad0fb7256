//! What goes in and out of an initiator session: configuration, commands, events.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::ConnectionId;
use crate::chap::{Algorithm, Challenge, Credentials};
pub use crate::pdu::Attribute;
pub use crate::target::{SendTargets, SessionKind, TargetEntry};
use crate::{Agreed, CloseReason, LoginStatus, Lun, Offer, Residual, ahs};
pub use strongroom_scsi::transport::initiator::{SubmitError, TaskId, WriteRecords, WriteSource};
pub use strongroom_scsi::transport::{Direction, TaskFunction, TaskManagementResult};

/// Most tasks that a session holds at once, those that wait for the command window included.
pub const TASKS_MAX: usize = 1024;
/// Longest text of one negotiation or text exchange, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024 * 1024;

/// How an initiator session behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// InitiatorName.
    pub initiator_name: String,
    /// The initiator's part of the session's name. Keep it over a reconnect, so that the new session replaces the old.
    pub isid: [u8; 6],
    /// What the session is for.
    pub kind: SessionKind,
    /// How to prove who we are, and have the target prove who it is; not inside a channel, which has done both.
    pub chap: Option<ChapLogin>,
    /// PDUs travel inside a Strongroom channel: sealed segments and longer headers are allowed.
    pub in_channel: bool,
    /// What the initiator declares and would like.
    pub offer: Offer,
    /// From the start to full-feature phase.
    pub login_timeout: Duration,
    /// A connection on which nothing moved for so long is pinged.
    pub ping_after: Duration,
    /// A connection on which nothing moved for so long after a ping is closed.
    pub ping_timeout: Duration,
    /// How long the target may take to answer a logout.
    pub logout_timeout: Duration,
}

impl Config {
    /// A session with the defaults.
    pub fn new(initiator_name: impl Into<String>, isid: [u8; 6], kind: SessionKind) -> Config {
        Config {
            initiator_name: initiator_name.into(),
            isid,
            kind,
            chap: None,
            in_channel: false,
            offer: Offer::default(),
            login_timeout: Duration::from_secs(15),
            ping_after: Duration::from_secs(5),
            ping_timeout: Duration::from_secs(10),
            logout_timeout: Duration::from_secs(5),
        }
    }
}

/// What an initiator brings to CHAP. The challenge must be fresh for each login.
#[derive(Clone, Debug)]
pub struct ChapLogin {
    /// How we prove ourselves.
    pub ourselves: Credentials,
    /// What the target has to prove; `None` asks it for nothing. An empty name takes any.
    pub target: Option<Credentials>,
    /// What we offer, the best first.
    pub algorithms: Vec<Algorithm>,
    /// What the target has to answer.
    pub challenge: Challenge,
}

/// A SCSI command to send.
#[derive(Clone)]
pub struct Command {
    /// Logical unit.
    pub lun: Lun,
    /// The command.
    pub cdb: [u8; 16],
    /// How it may be ordered.
    pub attribute: Attribute,
    /// Which way the data flows.
    pub direction: Direction,
    /// Bytes to move. For a write, the length of its data.
    pub expected_bytes: u32,
    /// The data of a write.
    pub write: Option<WriteSource>,
    /// Header segments to go with the command PDU (an expected stamp, a store sequence); empty for none.
    pub ahs: Bytes,
    /// The block size of a read of sealed blocks, in bytes, so that holes can be counted; `None` on a plain unit.
    pub sealed_block_bytes: Option<u32>,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("lun", &self.lun)
            .field("cdb", &self.cdb)
            .field("attribute", &self.attribute)
            .field("direction", &self.direction)
            .field("expected_bytes", &self.expected_bytes)
            .field("write", &self.write)
            .field("ahs", &ahs::Redacted(&self.ahs))
            .field("sealed_block_bytes", &self.sealed_block_bytes)
            .finish()
    }
}

impl Command {
    /// A command without data.
    pub fn without_data(lun: Lun, cdb: [u8; 16]) -> Command {
        Command {
            lun,
            cdb,
            attribute: Attribute::Simple,
            direction: Direction::None,
            expected_bytes: 0,
            write: None,
            ahs: Bytes::new(),
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

/// What the application is told.
#[derive(Debug)]
pub enum Event {
    /// Full-feature phase.
    LoggedIn {
        /// What was settled.
        agreed: Agreed,
        /// The target's part of the session's name.
        tsih: u16,
        /// The target portal group.
        portal_group_tag: Option<u16>,
    },
    /// The target refused; `Closed` follows.
    LoginFailed {
        /// Why.
        status: LoginStatus,
        /// Where to go instead, when the status says that the target has moved.
        redirect: Option<String>,
        /// What the target says of it beside the status, if it says anything: text from a peer.
        reason: Option<String>,
    },
    /// Part of what a read returns, in order and without gaps.
    DataIn(DataIn),
    /// A command is over.
    Completed(Completed),
    /// The answer to `send_targets`.
    TargetsListed(Vec<TargetEntry>),
    /// The answer to `echo`.
    Echoed {
        /// As `echo` returned it.
        tag: u32,
        /// How much of the data came back.
        bytes: usize,
    },
    /// The answer to `manage_task`. When it is `Complete`, the tasks concerned are gone and named here; they get no
    /// `Completed`.
    TaskManagementDone {
        /// As `manage_task` returned it.
        id: TaskId,
        /// What became of it.
        result: TaskManagementResult,
        /// Tasks that it ended.
        ended: Vec<TaskId>,
    },
    /// The target asks for a logout (it will drain): call `logout` once the tasks are done.
    LogoutRequested {
        /// How long the target waits.
        within: Duration,
    },
    /// Sense data of a unit that no command asked for (asynchronous event).
    AsyncSense {
        /// Logical unit.
        lun: Lun,
        /// The sense data.
        sense: Vec<u8>,
    },
    /// A further connection is in full-feature phase.
    ConnectionJoined {
        /// Which.
        id: ConnectionId,
        /// What holds on it.
        agreed: Agreed,
    },
    /// A connection is gone and the session is not: its login failed, or its tasks are moved to another one (error recovery
    /// level 2). Where none is left, make one: see [`super::Session::is_suspended`].
    ConnectionLost {
        /// Which; it may be used again.
        id: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
    /// The session is over; tasks without `Completed` have an unknown outcome. Always the last event.
    Closed(CloseReason),
}

/// Part of what a read returns.
#[derive(Clone)]
pub struct DataIn {
    /// The task.
    pub task: TaskId,
    /// Where it belongs, in bytes from the start of the transfer.
    pub offset: u32,
    /// The bytes; none for a hole.
    pub data: Buffer,
    /// The header segments: seal records of exactly these blocks, or a hole; empty on a plain unit.
    pub ahs: Bytes,
    /// Whether the frame left the data as it was (SEALED).
    pub sealed: bool,
    /// How much of the transfer it stands for, in bytes.
    pub covers_bytes: u32,
}

impl fmt::Debug for DataIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataIn")
            .field("task", &self.task)
            .field("offset", &self.offset)
            .field("data", &self.data)
            .field("ahs", &ahs::Redacted(&self.ahs))
            .field("sealed", &self.sealed)
            .field("covers_bytes", &self.covers_bytes)
            .finish()
    }
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The task.
    pub task: TaskId,
    /// SCSI status; 0 is GOOD. Meaningless unless `response` is 0.
    pub status: u8,
    /// iSCSI response; 0: the command was completed at the target.
    pub response: u8,
    /// Sense data; empty for none.
    pub sense: Vec<u8>,
    /// Expected against wanted length, as the target has it.
    pub residual: Residual,
    /// How much of the transfer was moved here, holes included, in bytes.
    pub moved_bytes: u32,
    /// The header segments of the SCSI Response ([`crate::ahs::Written`]); empty for none, and outside a channel.
    pub ahs: Bytes,
}

//! What goes in and out of an initiator session: configuration, commands, events.

use std::time::Duration;

use super::connection_id::ConnectionId;
use crate::chap::{Algorithm, Challenge, Credentials};
pub use crate::pdu::Attribute;
pub use crate::target::{SendTargets, SessionKind, TargetEntry};
use crate::{Agreed, CloseReason, LoginStatus, Lun, Offer};
pub use strongroom_scsi::transport::initiator::{
    Command, Completed, DataContent, DataIn, SubmitError, TaskId, WriteRecords, WriteSource,
};
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

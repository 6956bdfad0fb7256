//! What goes in and out of a target session: configuration, events, responses.

use std::time::Duration;

use super::connection_id::ConnectionId;
use crate::{CloseReason, Offer, Residual};

pub use strongroom_scsi::transport::target::{
    Command, ManagementFunction, ManagementId, ReadPart, Response, TaskId, TaskManagement, WriteSegment,
};
pub use strongroom_scsi::transport::{Direction, TaskManagementResult};

/// Most tasks that a session can hold at once; a slot's index has 10 bits in a target transfer tag.
pub const TASKS_MAX: usize = 1024;
/// Immediate commands that may wait outside the command window; more are rejected (RFC 7143 §4.2.2.1).
pub const IMMEDIATE_TASKS_MAX: usize = 16;
/// Task management requests that may wait for the application.
pub const MANAGEMENTS_MAX: usize = 16;
/// Small answers (pings, rejects, text) that may wait for the peer to read before the session ends as flooded.
pub const ANSWERS_MAX: usize = 1024;
/// Answers that wait beyond which [`super::Session::accepts_input`] asks the driver to stop reading.
pub const ANSWERS_HIGH: usize = 256;
/// Upper bound on the data of answers that wait for the peer to read, in bytes: pings are echoed whole.
pub const ANSWERS_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes that wait beyond which [`super::Session::accepts_input`] asks the driver to stop reading.
pub const ANSWERS_BYTES_HIGH: usize = 1024 * 1024;
/// Longest text of one negotiation or text exchange, in bytes; RFC 7143 §6.1 wants at least 8192.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// How a target session behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// PDUs travel inside a Strongroom channel: sealed segments and longer headers are allowed.
    pub in_channel: bool,
    /// TargetPortalGroupTag, declared in the first login response.
    pub portal_group_tag: u16,
    /// What the target declares and would like.
    pub offer: Offer,
    /// Commands that may be outstanding; clipped to [`TASKS_MAX`] less [`IMMEDIATE_TASKS_MAX`].
    pub queue_depth: u16,
    /// From the first byte to full-feature phase.
    pub login_timeout: Duration,
    /// A connection on which nothing moved for so long is pinged.
    pub ping_after: Duration,
    /// A connection on which nothing moved for so long after a ping is closed.
    pub ping_timeout: Duration,
    /// Longest write of one command, in bytes; a longer one is answered with CHECK CONDITION. Tell initiators by VPD B0h.
    pub transfer_bytes_max: u32,
    /// Upper bound on memory that the initiator can pin by solicited writes, in bytes, until they are answered; further writes wait
    /// for their R2T. Data that comes in shorter PDUs than it could may take twice as much. As much again may come on top by
    /// unsolicited data: near that bound [`super::Session::accepts_input`] asks the driver to stop reading, beyond it writes are
    /// answered with TASK SET FULL. And as much behind a command that is missing, when the session ends.
    pub write_memory_bytes_max: u64,
    /// Answer `SendTargets=All` in a normal session too, which RFC 7143 Appendix C forbids and some test suites want.
    pub send_targets_all_in_normal_session: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            in_channel: false,
            portal_group_tag: 1,
            offer: Offer::default(),
            queue_depth: (TASKS_MAX - IMMEDIATE_TASKS_MAX) as u16,
            login_timeout: Duration::from_secs(15),
            ping_after: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(30),
            transfer_bytes_max: 32 * 1024 * 1024,
            write_memory_bytes_max: 64 * 1024 * 1024,
            send_targets_all_in_normal_session: false,
        }
    }
}

/// What a login tells the application.
#[derive(Debug)]
pub enum LoginEvent {
    /// An initiator names itself and what it wants. Answer with `accept`, `accept_into` (where it names a session), `reject`,
    /// `redirect` or `require_chap`, at once or later; the login may be moved to another thread in between.
    Requested(LoginRequested),
    /// What `require_chap` asked for was done. Answer as `Requested`, but for `require_chap`.
    Authenticated {
        /// The CHAP name that was proven; `None` where CHAP was not required and the initiator offered none.
        user: Option<String>,
    },
    /// Full-feature phase: make a session of it, or add it to one, before another PDU is taken or sent. Always the last event.
    Done,
    /// It failed. Send what `poll_transmit` still gives, then close the connection. Always the last event.
    Closed(CloseReason),
}

/// What a session tells the application.
#[derive(Debug)]
pub enum Event {
    /// Answer with `send_targets`.
    SendTargets(ConnectionId, SendTargets),
    /// A SCSI command, all its write data included. Answer with `complete`.
    Command(Command),
    /// Answer with `answer_task_management`.
    TaskManagement(TaskManagement),
    /// A connection is over, and the session goes on. Send what `poll_transmit` still gives, then close it.
    ConnectionClosed {
        /// Which.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
    /// The session is over; every task is gone and late completions are ignored. Send what `poll_transmit` still gives on each
    /// connection, then close it. Always the last event.
    Closed(CloseReason),
}

/// Who wants in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginRequested {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias, for people.
    pub initiator_alias: Option<String>,
    /// The initiator's part of the session's name; with its name and the portal group the nexus. A new login of the same
    /// nexus replaces the old session (RFC 7143 §6.3.5): close that one.
    pub isid: [u8; 6],
    /// The session that it wants to join by a further connection; 0 for a new one. Only who has proven to be the initiator of that
    /// session may be let in: names prove nothing.
    pub tsih: u16,
    /// The connection's name within its session.
    pub cid: u16,
    /// What for.
    pub kind: SessionKind,
}

/// What a session is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionKind {
    /// To ask for targets only.
    Discovery,
    /// To use a target.
    Normal {
        /// TargetName.
        target_name: String,
    },
}

/// A question for targets (RFC 7143 Appendix C).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendTargets {
    /// Every target that this initiator may see.
    All,
    /// The addresses of one.
    Named(String),
    /// The addresses of the target of this session.
    ThisTarget,
}

/// A target and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetEntry {
    /// TargetName.
    pub name: String,
    /// Each `host:port,portal-group`, an IPv6 host in brackets.
    pub addresses: Vec<String>,
}

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Commands handed to the application.
    pub commands: u64,
    /// Bytes of write data received.
    pub bytes_written: u64,
    /// Bytes of read data sent, holes not counted.
    pub bytes_read: u64,
    /// PDUs rejected.
    pub rejects: u64,
    /// Commands ignored because their CmdSN was outside the window.
    pub ignored: u64,
    /// Commands with a residual.
    pub residuals: u64,
}

impl Statistics {
    pub(super) fn count_residual(&mut self, residual: Residual) {
        self.residuals += u64::from(residual != Residual::None);
    }
}

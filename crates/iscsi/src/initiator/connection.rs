//! One connection of a session (RFC 7143 §4.2.2): what is its own, and how commands are spread over several.
//!
//! A command's PDUs all take the connection that the command went by (connection allegiance, §4.2.2.3): it is chosen when the
//! command is submitted, the one that has the fewest bytes to move. CmdSN, the command window and the tasks are the session's.

use std::collections::VecDeque;
use std::time::Instant;

use strongroom_block::Buffer;

use super::login::Login;
use super::reassign::Lost;
use super::recover::Recovery;
use super::transmit::Burst;
use super::{ChapLogin, Command, Config, Event, Phase, Session, SubmitError};
use crate::liveness::Liveness;
use crate::login::Agreed;
use crate::pdu::Bhs;
use crate::slots::Key;
use crate::{CloseReason, Serial};

/// What a command counts beside its data when connections are compared, in bytes: headers, and the work at both ends.
const COMMAND_COST_BYTES: u64 = 1024;

/// Names a connection of a session; goes out as its CID. [`ConnectionId::LEADING`] is the one that the session begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u16);

impl ConnectionId {
    /// The first connection of a session.
    pub const LEADING: ConnectionId = ConnectionId(0);
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Until full-feature phase.
    pub(super) login: Option<Box<Login>>,
    /// When the login must be over.
    pub(super) deadline: Option<Instant>,
    pub(super) liveness: Liveness,
    /// What this login settled: the session's values, and its own segment lengths and digests.
    pub(super) agreed: Agreed,
    /// Small requests; the numbers of immediate ones are put in when they leave.
    pub(super) requests: VecDeque<(Bhs, Buffer)>,
    /// Commands that wait for the command window.
    pub(super) waiting: VecDeque<Key>,
    /// Commands to send once more, under the number that they have.
    pub(super) retries: VecDeque<Key>,
    /// Data-Out sequences in the order in which they became due.
    pub(super) bursts: VecDeque<Burst>,
    /// Whether the next turn is a burst's, when a command could go too.
    pub(super) burst_turn: bool,
    pub(super) exp_stat_sn: Serial,
    pub(super) ping_tag: Option<u32>,
    /// Of PDUs that were damaged on the way, from error recovery level 1 on.
    pub(super) recovery: Option<Box<Recovery>>,
    /// What its tasks have to move, in bytes.
    pub(super) load_bytes: u64,
}

impl Connection {
    pub(super) fn new(now: Instant, id: ConnectionId, config: &Config, login: Login) -> Connection {
        Connection {
            id,
            login: Some(Box::new(login)),
            deadline: Some(now + config.login_timeout),
            liveness: Liveness::new(now, config.ping_after, config.ping_timeout),
            agreed: Agreed::default(),
            requests: VecDeque::new(),
            waiting: VecDeque::new(),
            retries: VecDeque::new(),
            bursts: VecDeque::new(),
            burst_turn: false,
            exp_stat_sn: Serial(0),
            ping_tag: None,
            recovery: None,
            load_bytes: 0,
        }
    }

    /// Queues the first request of the login.
    pub(super) fn start_login(&mut self, config: &Config) {
        if let Some(login) = &mut self.login {
            self.requests.push_back(login.start(config));
        }
    }

    /// Full-feature phase begins.
    pub(super) fn enter(&mut self, agreed: Agreed, has_digests: bool) {
        self.recovery = (agreed.error_recovery_level > 0 && has_digests).then(Box::default);
        (self.login, self.deadline, self.agreed) = (None, None, agreed);
    }

    pub(super) fn is_in(&self) -> bool {
        self.login.is_none()
    }
}

/// What a command counts for its connection.
pub(super) fn cost_bytes(command: &Command) -> u64 {
    COMMAND_COST_BYTES + u64::from(command.expected_bytes)
}

impl Session {
    /// Begins a further login into this session, on a connection that was just made; its first request waits in
    /// `poll_transmit_on`. After [`Event::ConnectionLost`] of the last connection it continues the session. `chap` must be a
    /// fresh one, where the session has one at all.
    ///
    /// # Errors
    /// [`SubmitError::NotLoggedIn`] if the session is not in full-feature phase, and [`SubmitError::QueueFull`] if it has as many
    /// connections as were agreed on.
    pub fn add_connection(&mut self, now: Instant, chap: Option<ChapLogin>) -> Result<ConnectionId, SubmitError> {
        if self.phase != Phase::FullFeature {
            return Err(SubmitError::NotLoggedIn);
        }
        // Without any connection left, the login of a lost one's CID stands for its logout (RFC 7143 §6.3.4).
        let is_reinstated = self.connections.is_empty();
        let id = match self.lost.first().filter(|_| is_reinstated) {
            Some(lost) => lost.id,
            None => {
                if self.connections.len() >= usize::from(self.agreed.connections_max) {
                    return Err(SubmitError::QueueFull);
                }
                let is_free = |id: &ConnectionId| {
                    self.connections.iter().all(|connection| connection.id != *id)
                        && self.lost.iter().all(|lost| lost.id != *id)
                };
                (0..=u16::MAX).map(ConnectionId).find(is_free).ok_or(SubmitError::QueueFull)?
            }
        };
        self.config.chap = chap;
        let login = Login::joining(&self.config, id.0, &self.agreed, self.tsih);
        let mut connection = Connection::new(now, id, &self.config, login);
        connection.start_login(&self.config);
        self.connections.push(connection);
        Ok(id)
    }

    /// The connections that are there, those that are logging in included.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.iter().map(|connection| connection.id)
    }

    /// Whether the session is alive without any connection: make one and [`Session::add_connection`].
    pub fn is_suspended(&self) -> bool {
        self.phase == Phase::FullFeature && !self.connections.iter().any(Connection::is_in)
    }

    /// When a session without a connection may be continued: Time2Wait after the loss (RFC 7143 §13.15). `None`: it is not in
    /// that state.
    pub fn continues_at(&self) -> Option<Instant> {
        self.lost.first().filter(|_| self.is_suspended()).map(Lost::due)
    }

    /// What was settled on a connection, once it is in full-feature phase.
    pub fn agreed_on(&self, id: ConnectionId) -> Option<&Agreed> {
        let connection = self.connections.iter().find(|connection| connection.id == id);
        connection.filter(|connection| connection.is_in()).map(|connection| &connection.agreed)
    }

    pub(super) fn index_of(&self, id: ConnectionId) -> Option<usize> {
        self.connections.iter().position(|connection| connection.id == id)
    }

    /// The connection with the least to move; `None` while there is none.
    pub(super) fn least_loaded(&self) -> Option<usize> {
        if let [connection] = &self.connections[..] {
            return connection.is_in().then_some(0);
        }
        let connections = self.connections.iter().enumerate();
        let open = connections.filter(|(_, connection)| connection.is_in());
        open.min_by_key(|(_, connection)| connection.load_bytes).map(|(at, _)| at)
    }

    /// A connection is gone. Its login was not over, or the session can do without it; else the session is over as well.
    pub(super) fn lose(&mut self, now: Instant, at: usize, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        let connection = &self.connections[at];
        if self.phase != Phase::FullFeature {
            // A target that was asked to end the session may close the others before it answers.
            if self.phase == Phase::LoggingOut && self.connections.len() > 1 {
                self.connections.remove(at);
                return;
            }
            return self.end(reason);
        }
        let id = connection.id;
        if !connection.is_in() {
            self.connections.remove(at);
            let is_refused = matches!(reason, CloseReason::LoginRefused(_));
            self.events.push_back(Event::ConnectionLost { id, reason: reason.clone() });
            // The target no longer knows the session.
            if is_refused && self.connections.is_empty() {
                return self.end(reason);
            }
            return self.recover(now);
        }
        let others = self.connections.iter().filter(|connection| connection.is_in()).count() > 1;
        let is_kept = others || self.agreed.time2retain_s > 0;
        if self.agreed.error_recovery_level < 2 || !is_kept {
            return self.end(reason);
        }
        let connection = self.connections.remove(at);
        self.events.push_back(Event::ConnectionLost { id, reason });
        self.orphan(now, connection);
    }
}

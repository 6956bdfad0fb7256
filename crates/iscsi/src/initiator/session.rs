//! The session: its state, and what a driver and the application call. What answers do is in `answers`.

mod answers;
mod transport;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use super::connection::Connection;
use super::connection_id::ConnectionId;
use super::connections::Connections;
use super::functions::FunctionTable;
use super::login::Login;
use super::reassign::Reassignments;
use super::requests::{self, SNACK_STATUS, key_of};
use super::submission::check_command;
use super::task_set::TaskSet;
use super::text_exchange::Exchanges;
use super::types::{
    ChapLogin, Command, Config, Event, SendTargets, SubmitError, TASKS_MAX, TaskFunction, TaskId, TaskManagementResult,
};
use crate::liveness::Verdict;
use crate::login::Agreed;
use crate::pdu::{Answer, LogoutReason, Pdu, TAG_NONE};
use crate::text::Pairs;
use crate::{CloseReason, Lun};

/// An initiator's session machine; see the crate's first page for how to drive it.
///
/// It begins with one connection, which the methods that name none are about. Where `LoggedIn` says that more were agreed on,
/// [`Session::add_connection`] makes them; each has its own `poll_transmit` and takes what arrives by `handle_pdu_on`.
#[derive(Debug)]
pub struct Session {
    config: Config,
    phase: Phase,
    /// Of a logout.
    deadline: Option<Instant>,
    /// What the leading login settled.
    agreed: Agreed,
    tsih: u16,
    connections: Connections,
    tasks: TaskSet,
    functions: FunctionTable,
    exchanges: Exchanges,
    /// At error recovery level 2.
    reassignments: Reassignments,
    logout_tag: Option<u32>,
    reconnect_after: Duration,
    events: VecDeque<Event>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Login,
    FullFeature,
    LoggingOut,
    Closed,
}

impl Session {
    /// A session on a connection that was made at `now`; its first request waits in `poll_transmit`.
    pub fn new(now: Instant, mut config: Config) -> Session {
        config.offer = config.offer.clamped(config.in_channel);
        let login = Login::new(&config, ConnectionId::LEADING.0);
        let leading = Connection::new(now, ConnectionId::LEADING, &config, login);
        Session {
            deadline: None,
            phase: Phase::Login,
            config,
            agreed: Agreed::default(),
            tsih: 0,
            connections: Connections::new(leading),
            tasks: TaskSet::new(),
            functions: FunctionTable::default(),
            exchanges: Exchanges::default(),
            reassignments: Reassignments::default(),
            logout_tag: None,
            reconnect_after: Duration::ZERO,
            events: VecDeque::new(),
        }
    }

    /// Takes a PDU from the peer, on the leading connection.
    pub fn handle_pdu(&mut self, now: Instant, pdu: Pdu) {
        self.handle_pdu_on(now, ConnectionId::LEADING, pdu);
    }

    /// Takes a PDU from the peer, on any connection; ignored if that is not there any more.
    pub fn handle_pdu_on(&mut self, now: Instant, id: ConnectionId, pdu: Pdu) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.liveness.moved(now);
        let outcome = match connection.login {
            Some(_) => self.take_login(now, id, &pdu),
            None => self.take_answer(now, id, pdu),
        };
        let Err(misbehaved) = outcome else { return };
        // In a login into the session only that connection is given up.
        match self.connections.get(id).filter(|connection| !connection.is_in_full_feature_phase()) {
            Some(_) => self.lose(now, id, CloseReason::Misbehaved(misbehaved)),
            None => self.end(CloseReason::Misbehaved(misbehaved)),
        }
    }

    /// Takes a PDU of the leading connection whose data was damaged on the way, as its digest shows. At error recovery level 1 it
    /// is requested again; at level 0 the session ends, and the commands in flight are to be sent again in a new one.
    pub fn handle_corrupt_pdu(&mut self, now: Instant, pdu: &Pdu) {
        self.handle_corrupt_pdu_on(now, ConnectionId::LEADING, pdu);
    }

    /// As [`Session::handle_corrupt_pdu`], on any connection.
    pub fn handle_corrupt_pdu_on(&mut self, now: Instant, id: ConnectionId, pdu: &Pdu) {
        let Some(connection) = self.connections.get_mut(id) else { return };
        connection.liveness.moved(now);
        let Ok(answer) = Answer::decode(&pdu.bhs) else { return self.end(CloseReason::Damaged) };
        if !connection.count_damaged() {
            return self.end(CloseReason::Damaged);
        }
        let stat_sn = answer.sequence().stat_sn;
        let outcome = match answer {
            // The data is not needed; its status counts all the same.
            Answer::DataIn(header) if self.tasks.is_over(header.initiator_task_tag) => match header.status {
                Some(_) => connection.take_stat_sn(stat_sn).map(drop),
                None => Ok(()),
            },
            Answer::DataIn(header) => self.tasks.request_missing(connection, &header, true),
            _ => connection.snack(SNACK_STATUS, TAG_NONE, stat_sn.0, 1),
        };
        if let Err(misbehaved) = outcome {
            self.end(CloseReason::Misbehaved(misbehaved));
        }
    }

    /// Bytes moved on the leading connection, either way: the peer is alive, even if no PDU is complete.
    pub fn handle_progress(&mut self, now: Instant) {
        self.handle_progress_on(now, ConnectionId::LEADING);
    }

    /// Bytes moved on a connection, either way.
    pub fn handle_progress_on(&mut self, now: Instant, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(id) {
            connection.liveness.moved(now);
        }
    }

    /// The session's only connection ended underneath, or its framing failed, and no other will follow. Emits `Closed` unless
    /// that was already done.
    pub fn handle_closed(&mut self, reason: CloseReason) {
        self.end(reason);
    }

    /// A connection ended underneath, or its framing failed. At error recovery level 2 the session goes on
    /// ([`Event::ConnectionLost`]), as it does without a connection whose login was not over; else `Closed` follows.
    pub fn handle_closed_on(&mut self, now: Instant, id: ConnectionId, reason: CloseReason) {
        self.lose(now, id, reason);
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase == Phase::LoggingOut && self.deadline.is_some_and(|at| now >= at) {
            return self.end(CloseReason::PeerSilent);
        }
        let ids: Vec<ConnectionId> = self.connections.ids().rev().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            if !connection.is_in_full_feature_phase() {
                if connection.deadline.is_some_and(|deadline| now >= deadline) {
                    self.lose(now, id, CloseReason::LoginTimedOut);
                }
                continue;
            }
            match connection.liveness.look(now) {
                Verdict::Alive => {}
                Verdict::Ping => connection.ping(self.tasks.tags.next()),
                Verdict::Dead => self.lose(now, id, CloseReason::PeerSilent),
            }
        }
        self.recover(now);
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let reassignments = match self.reassignments.is_idle() {
            true => None,
            false => self.reassignments.timeout(self.connections.least_loaded().is_some()),
        };
        [self.connections.timeout(), self.deadline, reassignments].into_iter().flatten().min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU to send on the leading connection.
    pub fn poll_transmit(&mut self) -> Option<Pdu> {
        self.poll_transmit_on(ConnectionId::LEADING)
    }

    /// The next PDU to send on a connection: small requests first, then commands and the data of writes in turn.
    pub fn poll_transmit_on(&mut self, id: ConnectionId) -> Option<Pdu> {
        let connection = self.connections.get_mut(id)?;
        if let Some(request) = connection.next_request(self.tasks.window.cmd_sn(), &mut self.functions) {
            return Some(request);
        }
        if self.phase != Phase::FullFeature || !connection.is_in_full_feature_phase() {
            return None;
        }
        self.tasks.next_pdu(connection)
    }

    /// Sends a command, at once or when the target's command window lets it.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn submit(&mut self, command: Command) -> Result<TaskId, SubmitError> {
        self.check_logged_in()?;
        if self.tasks.len() >= TASKS_MAX {
            return Err(SubmitError::QueueFull);
        }
        check_command(&command, &self.config, &self.agreed).map_err(SubmitError::Malformed)?;
        let connection = self.connections.least_loaded_mut().ok_or(SubmitError::NotLoggedIn)?;
        Ok(self.tasks.submit(connection, command))
    }

    /// Commands in flight or waiting.
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
    }

    /// Has the target send `data` back, as much of it as fits into one of our segments (NOP-Out, RFC 7143 §11.18); answered by
    /// `Echoed` under the tag that this returns. Touches no logical unit. It goes by the leading connection.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn echo(&mut self, data: Buffer) -> Result<u32, SubmitError> {
        self.check_logged_in()?;
        let connection = self.connections.get_mut(ConnectionId::LEADING).ok_or(SubmitError::NotLoggedIn)?;
        if data.len() > self.agreed.send_segment_bytes_max as usize {
            return Err(SubmitError::Malformed("an echo is one segment, and the target takes no longer ones"));
        }
        self.exchanges.start_echo(connection, &mut self.tasks.tags, data).ok_or(SubmitError::QueueFull)
    }

    /// Asks for targets; answered by `TargetsListed`. One question at a time.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn send_targets(&mut self, question: &SendTargets) -> Result<(), SubmitError> {
        self.check_logged_in()?;
        if self.exchanges.has_text() {
            return Err(SubmitError::QueueFull);
        }
        let mut pairs = Pairs::default();
        pairs.push(
            "SendTargets",
            match question {
                SendTargets::All => "All",
                SendTargets::Named(name) => name,
                SendTargets::ThisTarget => "",
            },
        );
        let connection = self.connections.least_loaded_mut().ok_or(SubmitError::NotLoggedIn)?;
        let text = Buffer::from(Bytes::from(pairs.encode()));
        self.exchanges.start_text(connection, &mut self.tasks.tags, text, true);
        Ok(())
    }

    /// Sends a task management function; `task` names the one of `AbortTask`. Answered by `TaskManagementDone` with the
    /// name that is returned here.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn manage_task(
        &mut self,
        function: TaskFunction,
        lun: Lun,
        task: Option<TaskId>,
    ) -> Result<TaskId, SubmitError> {
        self.check_logged_in()?;
        if self.functions.is_full() {
            return Err(SubmitError::QueueFull);
        }
        let least_loaded = self.connections.least_loaded().ok_or(SubmitError::NotLoggedIn)?;
        let tag = self.tasks.tags.next();
        let names_task = matches!(function, TaskFunction::AbortTask | TaskFunction::QueryTask);
        let key = match task {
            None if names_task => {
                return Err(SubmitError::Malformed("the function is about a task, and none is named"));
            }
            Some(task) if names_task => Some(key_of(task)),
            _ => None,
        };
        let referenced = key.and_then(|key| self.tasks.get(key));
        if function == TaskFunction::AbortTask && referenced.is_none_or(|task| task.cmd_sn.is_none()) {
            // Over already, or never sent: the target need not be asked.
            let ended = key.filter(|key| self.tasks.forget(&mut self.connections, *key)).and(task);
            let result = match ended {
                Some(_) => TaskManagementResult::Complete,
                None => TaskManagementResult::TaskDoesNotExist,
            };
            let ended = ended.into_iter().collect();
            self.events.push_back(Event::TaskManagementDone { id: TaskId(tag), result, ended });
            return Ok(TaskId(tag));
        }
        let lun = referenced.map_or(lun, |task| task.command.lun);
        let about = key.map(|key| (key, referenced.and_then(|task| task.cmd_sn).unwrap_or_default(), 0));
        let request = requests::task_management(tag, function.into(), lun, about);
        // RFC 7143 §11.5.1: a task is aborted on the connection that it goes by.
        let allegiant = referenced.map(|task| task.connection).filter(|id| self.connections.get(*id).is_some());
        let id = allegiant.unwrap_or(least_loaded);
        self.functions.add(tag, id, function, lun, key, self.tasks.window.cmd_sn());
        if let Some(connection) = self.connections.get_mut(id) {
            connection.request_header(request);
        }
        Ok(TaskId(tag))
    }

    /// Logs out; `Closed` follows when the target has answered, or not in time. Commands that are not over are lost.
    pub fn logout(&mut self, now: Instant) {
        match self.phase {
            Phase::Closed | Phase::LoggingOut => {}
            Phase::Login => self.end(CloseReason::LoggedOut),
            Phase::FullFeature => {
                let Some(connection) = self.connections.least_loaded_mut() else {
                    return self.end(CloseReason::LoggedOut);
                };
                let tag = self.tasks.tags.next();
                connection.request_header(requests::logout(tag, LogoutReason::CloseSession, connection.id.0));
                self.connections.forget_waiting();
                self.logout_tag = Some(tag);
                self.deadline = Some(now + self.config.logout_timeout);
                self.phase = Phase::LoggingOut;
            }
        }
    }

    /// What the login settled; `None` before full-feature phase.
    pub fn agreed(&self) -> Option<&Agreed> {
        matches!(self.phase, Phase::FullFeature | Phase::LoggingOut).then_some(&self.agreed)
    }

    /// How long the target asked us to wait before a new session: from its logout response, or the asynchronous message that
    /// announced the end (RFC 7143 §11.9.1, Time2Wait).
    pub fn reconnect_after(&self) -> Duration {
        self.reconnect_after
    }

    /// How long the application may expect a logout to take.
    pub fn logout_timeout(&self) -> Duration {
        self.config.logout_timeout
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Begins a further login into this session, on a connection that was just made; its first request waits in
    /// `poll_transmit_on`. After [`Event::ConnectionLost`] of the last connection it continues the session. `chap` must be a
    /// fresh one, where the session has one at all.
    ///
    /// # Errors
    /// [`SubmitError::NotLoggedIn`] if the session is not in full-feature phase, and [`SubmitError::QueueFull`] if it has as many
    /// connections as were agreed on.
    pub fn add_connection(&mut self, now: Instant, chap: Option<ChapLogin>) -> Result<ConnectionId, SubmitError> {
        self.check_logged_in()?;
        // Without any connection left, the login of a lost one's CID stands for its logout (RFC 7143 §6.3.4).
        let is_reinstated = self.connections.is_empty();
        let id = match self.reassignments.first().filter(|_| is_reinstated) {
            Some((lost, _)) => lost,
            None => {
                if self.connections.len() >= usize::from(self.agreed.connections_max) {
                    return Err(SubmitError::QueueFull);
                }
                let is_free =
                    |id: &ConnectionId| self.connections.get(*id).is_none() && !self.reassignments.is_lost(*id);
                (0..=u16::MAX).map(ConnectionId).find(is_free).ok_or(SubmitError::QueueFull)?
            }
        };
        self.config.chap = chap;
        let login = Login::joining(&self.config, id.0, &self.agreed, self.tsih);
        self.connections.add(Connection::new(now, id, &self.config, login));
        Ok(id)
    }

    /// The connections that are there, those that are logging in included.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.ids()
    }

    /// Whether the session is alive without any connection: make one and [`Session::add_connection`].
    pub fn is_suspended(&self) -> bool {
        self.phase == Phase::FullFeature && self.connections.in_full_feature_phase() == 0
    }

    /// When a session without a connection may be continued: Time2Wait after the loss (RFC 7143 §13.15). `None`: it is not in
    /// that state.
    pub fn continues_at(&self) -> Option<Instant> {
        self.reassignments.first().filter(|_| self.is_suspended()).map(|(_, due)| due)
    }

    /// What was settled on a connection, once it is in full-feature phase.
    pub fn agreed_on(&self, id: ConnectionId) -> Option<&Agreed> {
        let connection = self.connections.get(id).filter(|connection| connection.is_in_full_feature_phase());
        connection.map(|connection| &connection.agreed)
    }

    fn check_logged_in(&self) -> Result<(), SubmitError> {
        match self.phase {
            Phase::FullFeature => Ok(()),
            _ => Err(SubmitError::NotLoggedIn),
        }
    }
}

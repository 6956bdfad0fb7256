//! The initiator's side of one session: commands in, events out, and back. Making connections, retrying and time-outs of
//! commands are the application's business. The login is in `login` and `chap`, what arrives in `receive`, what is sent in
//! `transmit`; task management is in `manage`, several connections are in `connection`, damaged PDUs in `recover`, lost connections in `reassign`.

mod chap;
mod connection;
mod login;
mod manage;
mod reassign;
mod receive;
mod recover;
mod transmit;
mod transport;
mod types;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use self::connection::{Connection, cost_bytes};
use self::login::{Login, LoginOutcome};
use self::manage::Management;
use self::reassign::{Lost, Reassign};
use self::recover::Early;
use crate::liveness::Verdict;
use crate::login::Agreed;
use crate::pdu::LoginResponse;
use crate::pdu::{LogoutReason, LogoutRequest, NopOut, Pdu, TAG_NONE, TextRequest};
use crate::slots::{INDEX_BITS, Key, Slots};
use crate::text::{Collector, Pairs};
use crate::{CloseReason, Lun, PeerMisbehaved, Serial};

pub use connection::ConnectionId;
pub use types::{
    Attribute, ChapLogin, Command, Completed, Config, DataContent, DataIn, Direction, Event, SendTargets, SessionKind,
    SubmitError, TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskFunction, TaskId, TaskManagementResult, WriteRecords,
    WriteSource,
};

/// Small requests that may wait to be sent; a target that makes us answer more pings than it reads is given up.
const REQUESTS_MAX: usize = 256;
/// Tags of requests that are not commands: the top bit is set, a command's is clear.
const CONTROL_TAG: u32 = 0x8000_0000;

/// An initiator's session machine; see the crate's first page for how to drive it.
///
/// It begins with one connection, which the methods that name none are about. Where `LoggedIn` says that more were agreed on,
/// [`Session::add_connection`] makes them; each has its own `poll_transmit_on` and takes what arrives by `handle_pdu_on`.
#[derive(Debug)]
pub struct Session {
    config: Config,
    phase: Phase,
    /// Of a logout.
    deadline: Option<Instant>,
    /// What the leading login settled.
    agreed: Agreed,
    tsih: u16,
    connections: Vec<Connection>,
    events: VecDeque<Event>,

    cmd_sn: Serial,
    exp_cmd_sn: Serial,
    max_cmd_sn: Serial,

    tasks: Slots<Task>,
    next_control: u32,
    managements: Vec<Management>,
    question: Option<Question>,
    /// Tags of echoes under way.
    echoes: VecDeque<u32>,
    logout_tag: Option<u32>,
    reconnect_after: Duration,

    /// At error recovery level 2: connections whose tasks were not taken over yet, commands that have no connection now, and
    /// reassignments in flight.
    lost: Vec<Lost>,
    homeless: Vec<Key>,
    reassigns: Vec<Reassign>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Login,
    FullFeature,
    LoggingOut,
    Closed,
}

#[derive(Debug)]
struct Task {
    command: Command,
    /// The connection that it goes by.
    via: ConnectionId,
    /// That connection is lost.
    is_orphan: bool,
    /// `None` until it was sent.
    cmd_sn: Option<Serial>,
    /// How much of a read arrived, holes included, or how much of a write was asked for, in bytes.
    moved: u32,
    next_data_sn: u32,
    next_r2t_sn: u32,
    /// It was reassigned: R2Ts count from any number, and ask for what the target lacks.
    is_r2t_sn_open: bool,
    was_reassigned: bool,
    r2ts_open: u32,
    /// What is missing of a read has been asked for.
    is_asked_again: bool,
    /// The target asked whether its data came, under this tag.
    acknowledging: Option<u32>,
    /// The answer, where it came before all of the data.
    early: Option<Early>,
}

/// A text exchange: the answer may come in parts.
#[derive(Debug)]
struct Question {
    tag: u32,
    /// `None`: the connection was lost, and it is to be requested again.
    via: Option<ConnectionId>,
    text: Buffer,
    collector: Collector,
    pairs: Vec<Pairs>,
    /// By the application; else by the target, which wanted one.
    is_asked: bool,
}

impl Session {
    /// A session on a connection that was made at `now`; its first request waits in `poll_transmit`.
    pub fn new(now: Instant, mut config: Config) -> Session {
        config.offer = config.offer.clamped(config.in_channel);
        let connection =
            Connection::new(now, ConnectionId::LEADING, &config, Login::new(&config, ConnectionId::LEADING.0));
        let mut session = Session {
            deadline: None,
            phase: Phase::Login,
            config,
            agreed: Agreed::default(),
            tsih: 0,
            connections: vec![connection],
            events: VecDeque::new(),
            cmd_sn: Serial(1),
            exp_cmd_sn: Serial(1),
            max_cmd_sn: Serial(1),
            tasks: Slots::new(),
            next_control: 0,
            managements: Vec::new(),
            question: None,
            echoes: VecDeque::new(),
            logout_tag: None,
            reconnect_after: Duration::ZERO,
            lost: Vec::new(),
            homeless: Vec::new(),
            reassigns: Vec::new(),
        };
        session.connections[0].start_login(&session.config);
        session
    }

    /// Takes a PDU from the peer, on the leading connection.
    pub fn handle_pdu(&mut self, now: Instant, pdu: Pdu) {
        self.handle_pdu_on(now, ConnectionId::LEADING, pdu);
    }

    /// Takes a PDU from the peer, on any connection; ignored if that is not there any more.
    pub fn handle_pdu_on(&mut self, now: Instant, id: ConnectionId, pdu: Pdu) {
        let Some(at) = self.index_of(id) else { return };
        let connection = &mut self.connections[at];
        connection.liveness.moved(now);
        let outcome = match connection.login {
            Some(_) => self.handle_login_pdu(now, at, &pdu),
            None => self.handle_answer(now, at, pdu),
        };
        if let Err(misbehaved) = outcome {
            self.misbehaved(now, id, misbehaved);
        }
    }

    fn handle_login_pdu(&mut self, now: Instant, at: usize, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let response = Login::decode(pdu)?;
        let connection = &mut self.connections[at];
        let Some(login) = &mut connection.login else { return Ok(()) };
        if login.take_first_answer() {
            // The target's numbers start here.
            connection.exp_stat_sn = response.sequence.stat_sn;
        }
        if self.phase == Phase::Login {
            self.max_cmd_sn = self.cmd_sn;
        }
        self.take_numbers(at, response.sequence, true)?;
        self.take_login(now, at, &response, &pdu.data)
    }

    fn take_login(
        &mut self,
        now: Instant,
        at: usize,
        response: &LoginResponse,
        data: &[u8],
    ) -> Result<(), PeerMisbehaved> {
        let connection = &mut self.connections[at];
        let Some(login) = &mut connection.login else { return Ok(()) };
        match login.take(response, data)? {
            LoginOutcome::Request(bhs, text) => connection.requests.push_back((bhs, text)),
            LoginOutcome::Refused { status, redirect, reason } => {
                if self.phase == Phase::Login {
                    self.events.push_back(Event::LoginFailed { status, redirect, reason });
                }
                self.lose(now, at, CloseReason::LoginRefused(status));
            }
            LoginOutcome::Entered { agreed, tsih, portal_group_tag } if self.phase == Phase::Login => {
                connection.enter(agreed.clone(), !self.config.in_channel);
                self.phase = Phase::FullFeature;
                self.tsih = tsih;
                self.agreed = agreed.clone();
                self.events.push_back(Event::LoggedIn { agreed, tsih, portal_group_tag });
            }
            LoginOutcome::Entered { agreed, tsih, .. } => {
                // What a command was checked against must hold on every connection.
                if agreed.send_segment_bytes_max < self.agreed.send_segment_bytes_max {
                    return Err(PeerMisbehaved::Login("a further connection takes less data per PDU than the first"));
                }
                if tsih != self.tsih {
                    return Err(PeerMisbehaved::Login("a further connection is in another session"));
                }
                let id = connection.id;
                connection.enter(agreed.clone(), !self.config.in_channel);
                self.events.push_back(Event::ConnectionJoined { id, agreed });
                self.joined(now, id);
            }
        }
        Ok(())
    }

    /// A rule was broken. In a login into the session only that connection is given up.
    fn misbehaved(&mut self, now: Instant, id: ConnectionId, misbehaved: PeerMisbehaved) {
        match self.index_of(id).filter(|at| !self.connections[*at].is_in()) {
            Some(at) => self.lose(now, at, CloseReason::Misbehaved(misbehaved)),
            None => self.end(CloseReason::Misbehaved(misbehaved)),
        }
    }

    /// Bytes moved on the leading connection, either way: the peer is alive, even if no PDU is complete.
    pub fn handle_progress(&mut self, now: Instant) {
        self.handle_progress_on(now, ConnectionId::LEADING);
    }

    /// Bytes moved on a connection, either way.
    pub fn handle_progress_on(&mut self, now: Instant, id: ConnectionId) {
        if let Some(at) = self.index_of(id) {
            self.connections[at].liveness.moved(now);
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
        if let Some(at) = self.index_of(id) {
            self.lose(now, at, reason);
        }
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase == Phase::LoggingOut && self.deadline.is_some_and(|at| now >= at) {
            return self.end(CloseReason::PeerSilent);
        }
        for at in (0..self.connections.len()).rev() {
            let Some(connection) = self.connections.get_mut(at) else { continue };
            if !connection.is_in() {
                if connection.deadline.is_some_and(|deadline| now >= deadline) {
                    self.lose(now, at, CloseReason::LoginTimedOut);
                }
                continue;
            }
            match connection.liveness.look(now) {
                Verdict::Alive => {}
                Verdict::Ping => self.ping(at),
                Verdict::Dead => self.lose(now, at, CloseReason::PeerSilent),
            }
        }
        self.recover(now);
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of = |connection: &Connection| match connection.is_in() {
            true => Some(connection.liveness.deadline()),
            false => connection.deadline,
        };
        let connections = self.connections.iter().filter_map(of).min();
        let deadline = self.deadline.map_or(connections, |at| Some(connections.map_or(at, |other| other.min(at))));
        if self.lost.is_empty() {
            return deadline;
        }
        [deadline, self.recovery_due()].into_iter().flatten().min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
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
        self.check_command(&command).map_err(SubmitError::Malformed)?;
        let at = self.least_loaded().ok_or(SubmitError::NotLoggedIn)?;
        let connection = &mut self.connections[at];
        connection.load_bytes += cost_bytes(&command);
        let task = Task {
            command,
            via: connection.id,
            is_orphan: false,
            cmd_sn: None,
            moved: 0,
            next_data_sn: 0,
            next_r2t_sn: 0,
            is_r2t_sn_open: false,
            was_reassigned: false,
            r2ts_open: 0,
            is_asked_again: false,
            acknowledging: None,
            early: None,
        };
        let key = self.tasks.insert_with(|_| task);
        connection.waiting.push_back(key);
        Ok(task_id(key))
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
        let at = self.index_of(ConnectionId::LEADING).ok_or(SubmitError::NotLoggedIn)?;
        if data.len() > self.agreed.send_segment_bytes_max as usize {
            return Err(SubmitError::Malformed("an echo is one segment, and the target takes no longer ones"));
        }
        if self.echoes.len() >= REQUESTS_MAX {
            return Err(SubmitError::QueueFull);
        }
        let tag = self.control_tag();
        self.echoes.push_back(tag);
        self.connections[at].requests.push_back((nop_out(tag, true, Serial(0)), data));
        Ok(tag)
    }

    /// Asks for targets; answered by `TargetsListed`. One question at a time.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing was sent.
    pub fn send_targets(&mut self, question: &SendTargets) -> Result<(), SubmitError> {
        self.check_logged_in()?;
        if self.question.is_some() {
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
        let at = self.least_loaded().ok_or(SubmitError::NotLoggedIn)?;
        self.ask(at, Buffer::from(Bytes::from(pairs.encode())), true);
        Ok(())
    }

    /// Logs out; `Closed` follows when the target has answered, or not in time. Commands that are not over are lost.
    pub fn logout(&mut self, now: Instant) {
        match self.phase {
            Phase::Closed | Phase::LoggingOut => {}
            Phase::Login => self.end(CloseReason::LoggedOut),
            Phase::FullFeature => {
                let Some(at) = self.least_loaded() else { return self.end(CloseReason::LoggedOut) };
                let tag = self.control_tag();
                let request = LogoutRequest {
                    immediate: true,
                    reason: LogoutReason::CloseSession as u8,
                    initiator_task_tag: tag,
                    cid: self.connections[at].id.0,
                    cmd_sn: Serial(0),
                    exp_stat_sn: Serial(0),
                };
                self.connections[at].requests.push_back((request.encode(), Buffer::empty()));
                self.connections.iter_mut().for_each(|connection| connection.waiting.clear());
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

    fn check_logged_in(&self) -> Result<(), SubmitError> {
        match self.phase {
            Phase::FullFeature => Ok(()),
            _ => Err(SubmitError::NotLoggedIn),
        }
    }

    fn check_command(&self, command: &Command) -> Result<(), &'static str> {
        if self.config.kind == SessionKind::Discovery {
            return Err("a discovery session takes no commands");
        }
        if (command.direction == Direction::Write) != command.write.is_some() {
            return Err("a write has data and nothing else has");
        }
        let block_bytes = match &command.write {
            None => command.sealed_block_bytes,
            Some(source) if source.data.len() != command.expected_bytes as usize => {
                return Err("the length of its data is not the expected one");
            }
            Some(WriteSource { records: None, .. }) => None,
            Some(WriteSource { data, records: Some(records) }) => {
                let (block, record) = (records.block_bytes as usize, records.record_bytes as usize);
                if block == 0 || record == 0 || record > u8::MAX as usize || data.len() % block != 0 {
                    return Err("sealed data must be whole blocks");
                }
                if data.len() / block * record != records.bytes.len() {
                    return Err("there must be one record per block");
                }
                if !self.agreed.max_burst_bytes.is_multiple_of(records.block_bytes) {
                    return Err("the target's MaxBurstLength is not a multiple of the block size");
                }
                if self.agreed.send_segment_bytes_max < records.block_bytes {
                    return Err("the target takes less than a block per PDU");
                }
                Some(records.block_bytes)
            }
        };
        if block_bytes.is_some() && !self.config.in_channel {
            return Err("sealed blocks travel inside a channel only; use a strongroom:// URL");
        }
        Ok(())
    }

    fn ping(&mut self, at: usize) {
        let tag = self.control_tag();
        let connection = &mut self.connections[at];
        connection.ping_tag = Some(tag);
        connection.requests.push_back((nop_out(tag, true, Serial(0)), Buffer::empty()));
    }

    /// Uses up the number of a command that did not arrive and will not be sent again: commands behind it would wait for it for ever
    /// (RFC 7143 §4.2.2.1).
    fn fill(&mut self, at: usize, cmd_sn: Serial) {
        let nop = nop_out(self.control_tag(), false, cmd_sn);
        self.connections[at].requests.push_back((nop, Buffer::empty()));
    }

    /// Begins a text exchange, by the application or because the target wants one.
    fn ask(&mut self, at: usize, text: Buffer, is_asked: bool) {
        let tag = self.control_tag();
        let via = Some(self.connections[at].id);
        let (collector, pairs) = (Collector::default(), Vec::new());
        self.question = Some(Question { tag, via, text: text.clone(), collector, pairs, is_asked });
        self.send_text(at, tag, TAG_NONE, text);
    }

    fn send_text(&mut self, at: usize, tag: u32, target_transfer_tag: u32, text: Buffer) {
        let request = TextRequest {
            immediate: true,
            is_final: true,
            continues: false,
            lun: Lun(0),
            initiator_task_tag: tag,
            target_transfer_tag,
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
        };
        self.connections[at].requests.push_back((request.encode(), text));
    }

    fn control_tag(&mut self) -> u32 {
        let tag = CONTROL_TAG | self.next_control;
        // The largest would be the tag that names nothing.
        self.next_control = (self.next_control + 1) % (CONTROL_TAG - 1);
        tag
    }

    /// Forgets a task and its data. False if it was gone.
    fn forget(&mut self, key: Key) -> bool {
        let Some(task) = self.tasks.remove(key) else { return false };
        let at = self.index_of(task.via).filter(|_| !task.is_orphan);
        if let Some(at) = at {
            if let Some(early) = &task.early {
                // Beyond anything that is missing at most by as much as was seen already.
                let _ = self.take_stat_sn(at, early.stat_sn);
            }
            let connection = &mut self.connections[at];
            if let Some(tag) = task.acknowledging {
                // The status says as much, and nothing may come after that (RFC 7143 §11.7.2).
                connection.requests.retain(|(bhs, _)| !recover::is_acknowledgement(bhs, tag));
            }
            connection.load_bytes = connection.load_bytes.saturating_sub(cost_bytes(&task.command));
            if task.cmd_sn.is_none() {
                connection.waiting.retain(|waiting| *waiting != key);
            }
            if let Some(cmd_sn) = task.cmd_sn.filter(|_| connection.retries.contains(&key)) {
                connection.retries.retain(|retry| *retry != key);
                self.fill(at, cmd_sn);
            }
            let connection = &mut self.connections[at];
            if task.command.write.is_some() {
                connection.bursts.retain(|burst| burst.key != key);
            }
        }
        self.homeless.retain(|homeless| *homeless != key);
        true
    }

    fn check_flood(&self, at: usize) -> Result<(), PeerMisbehaved> {
        match self.connections[at].requests.len() >= REQUESTS_MAX {
            true => Err(PeerMisbehaved::Flood { what: "requests", limit: REQUESTS_MAX }),
            false => Ok(()),
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        self.phase = Phase::Closed;
        self.deadline = None;
        self.connections.clear();
        self.lost.clear();
        self.homeless.clear();
        self.reassigns.clear();
        self.tasks.clear();
        self.managements.clear();
        self.question = None;
        self.echoes.clear();
        self.events.push_back(Event::Closed(reason));
    }
}

/// A NOP-Out that wants an answer under `tag`.
fn nop_out(tag: u32, immediate: bool, cmd_sn: Serial) -> crate::pdu::Bhs {
    let nop = NopOut {
        immediate,
        lun: Lun(0),
        initiator_task_tag: tag,
        target_transfer_tag: TAG_NONE,
        cmd_sn,
        exp_stat_sn: Serial(0),
    };
    nop.encode()
}

/// A task's name is its initiator task tag. The top bit is clear: never a control request's tag, never the tag that names nothing.
fn task_id(key: Key) -> TaskId {
    TaskId((key.generation << INDEX_BITS | key.index) & !CONTROL_TAG)
}

fn key_of(task: TaskId) -> Key {
    Key { index: task.0 & ((1 << INDEX_BITS) - 1), generation: task.0 >> INDEX_BITS }
}

//! The target's side of one session: PDUs in, events out, and back. No SCSI semantics: the application executes commands
//! and says what became of task management. The login is in `login` and `chap`, arriving write data in `write`, what is sent back in
//! `respond`, task management in `manage`, text and SendTargets in `question`.

mod chap;
mod login;
mod manage;
mod question;
mod recover;
mod respond;
mod types;
mod write;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use self::login::Login;
use self::manage::Management;
use self::question::Question;
use self::recover::Recovery;
use self::write::Receiving;
use crate::liveness::{Liveness, Verdict};
use crate::login::Agreed;
use crate::pdu::{
    AsyncEvent, AsyncMessage, Attribute, Bhs, LogoutReason, LogoutRequest, LogoutResponse, LogoutResult, Lun, NopIn,
    NopOut, Pdu, PduError, Reject, RejectReason, Request, ScsiCommand, Sequence, TAG_NONE,
};
use crate::slots::{Key, Slots};
use crate::{CloseReason, PeerMisbehaved, Serial, ahs};

pub use self::chap::{ChapPolicy, ChapUser};
pub use crate::pdu::TaskManagementResult;
pub use types::{
    ANSWERS_BYTES_HIGH, ANSWERS_BYTES_MAX, ANSWERS_HIGH, ANSWERS_MAX, Command, Config, DataSegment, Direction, Event,
    IMMEDIATE_TASKS_MAX, LoginRequested, MANAGEMENTS_MAX, ManagementFunction, ManagementId, Response, SendTargets,
    SessionKind, Statistics, TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskId, TaskManagement, WriteSegment,
};

/// Tasks that ended while data for them may still come; their late Data-Out is dropped without a word.
const ENDED_MAX: usize = 256;

/// A target's session machine; see the crate's first page for how to drive it.
#[derive(Debug)]
pub struct Session {
    config: Config,
    phase: Phase,
    deadline: Option<Deadline>,
    liveness: Liveness,
    agreed: Agreed,
    discovery: bool,
    target_name: Option<String>,
    cid: u16,

    events: VecDeque<Event>,
    answers: VecDeque<Waiting>,
    /// How many of `answers` the peer can cause without bound of its own (all but R2Ts).
    answers_counted: usize,
    answers_bytes: usize,

    stat_sn: Serial,
    exp_cmd_sn: Serial,
    /// Tasks that take a place in the command window.
    window_taken: u32,
    immediate_tasks: usize,
    /// Commands inside the window that came before one that is missing; `None` for one that was aborted unseen.
    held: Vec<(Serial, Option<Pdu>)>,

    tasks: Slots<Task>,
    by_tag: HashMap<u32, Key>,
    ended: VecDeque<u32>,
    /// Writes that wait for memory before their first R2T.
    unadmitted: VecDeque<Key>,
    /// Memory promised to solicited writes, in bytes.
    reserved_bytes: u64,
    /// Tasks with something to send, in turn.
    responding: VecDeque<Key>,

    managements: Vec<Management>,
    next_management: u64,
    question: Option<Question>,
    ping_tag: u32,
    /// At error recovery level 1.
    recovery: Option<Box<Recovery>>,
    statistics: Statistics,
}

#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    FullFeature,
    Closed,
}

#[derive(Debug)]
enum Deadline {
    Login(Instant),
    Drain(Instant),
}

/// A task from its command PDU until the last PDU of its response was taken.
struct Task {
    initiator_task_tag: u32,
    lun: Lun,
    attribute: Attribute,
    direction: Direction,
    expected_bytes: u32,
    cdb: [u8; 16],
    ahs: Bytes,
    immediate: bool,
    /// Memory reserved for it, in bytes.
    reserved_bytes: u64,
    r2t_count: u32,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Its write data is not there yet; the application does not know of it.
    Receiving(Receiving),
    /// With the application.
    Executing,
    /// Being answered.
    Responding(respond::Responding),
}

/// A small answer that waits to be sent. Numbers are put in when it leaves.
#[derive(Debug)]
struct Waiting {
    bhs: Bhs,
    data: Buffer,
    kind: AnswerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerKind {
    /// Uses up a StatSN.
    Numbered,
    /// Shows the next StatSN.
    R2t,
    /// Shows the next StatSN, and says nothing about whether the connection moves.
    Ping,
}

impl Session {
    /// A session on a connection that was made at `now`.
    pub fn new(now: Instant, mut config: Config) -> Session {
        config.offer = config.offer.clamped(config.in_channel);
        config.queue_depth = config.queue_depth.clamp(1, (TASKS_MAX - IMMEDIATE_TASKS_MAX) as u16);
        Session {
            deadline: Some(Deadline::Login(now + config.login_timeout)),
            liveness: Liveness::new(now, config.ping_after, config.ping_timeout),
            phase: Phase::Login(Box::new(Login::new(&config.offer))),
            config,
            agreed: Agreed::default(),
            discovery: false,
            target_name: None,
            cid: 0,
            events: VecDeque::new(),
            answers: VecDeque::new(),
            answers_counted: 0,
            answers_bytes: 0,
            stat_sn: Serial(0),
            exp_cmd_sn: Serial(0),
            window_taken: 0,
            immediate_tasks: 0,
            held: Vec::new(),
            tasks: Slots::new(),
            by_tag: HashMap::new(),
            ended: VecDeque::new(),
            unadmitted: VecDeque::new(),
            reserved_bytes: 0,
            responding: VecDeque::new(),
            managements: Vec::new(),
            next_management: 0,
            question: None,
            ping_tag: 0,
            recovery: None,
            statistics: Statistics::default(),
        }
    }

    /// Takes a PDU from the peer.
    pub fn handle_pdu(&mut self, now: Instant, pdu: Pdu) {
        self.liveness.moved(now);
        let outcome = match self.phase {
            Phase::Closed => return,
            Phase::Login(_) => self.handle_login_pdu(pdu),
            Phase::FullFeature => self.handle_full_feature_pdu(pdu),
        };
        if let Err(misbehaved) = outcome {
            self.end(CloseReason::Misbehaved(misbehaved));
        }
    }

    /// Takes a PDU whose data was damaged on the way, as its digest shows (RFC 7143 §7.8): the initiator is told. At error recovery
    /// level 1 what is missing is recovered; at level 0 nothing is recovered within a session, and it ends.
    pub fn handle_corrupt_pdu(&mut self, now: Instant, pdu: &Pdu) {
        self.liveness.moved(now);
        if self.is_closed() {
            return;
        }
        let told = self.reject(pdu, RejectReason::DataDigestError);
        if told.is_err() || !self.recover_from(pdu) {
            self.end(CloseReason::Damaged);
        }
    }

    /// Bytes moved on the connection, either way: the peer is alive, even if no PDU is complete.
    pub fn handle_progress(&mut self, now: Instant) {
        self.liveness.moved(now);
    }

    /// The connection ended underneath, or its framing failed. Emits `Closed` unless that was already done.
    pub fn handle_closed(&mut self, reason: CloseReason) {
        self.answers.clear();
        self.end(reason);
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        match self.deadline {
            Some(Deadline::Login(at)) if now >= at => return self.end(CloseReason::LoginTimedOut),
            Some(Deadline::Drain(at)) if now >= at => {
                self.announce(AsyncEvent::ConnectionDropped, [self.cid, 2, 0]);
                return self.end(CloseReason::DrainTimedOut);
            }
            _ => {}
        }
        if matches!(self.phase, Phase::FullFeature) {
            match self.liveness.look(now) {
                Verdict::Alive => {}
                Verdict::Ping => self.ping(),
                Verdict::Dead => self.end(CloseReason::PeerSilent),
            }
        }
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let deadline = self.deadline.as_ref().map(|(Deadline::Login(at) | Deadline::Drain(at))| *at);
        match self.phase {
            Phase::Closed => None,
            Phase::Login(_) => deadline,
            Phase::FullFeature => {
                Some(deadline.map_or(self.liveness.deadline(), |at| at.min(self.liveness.deadline())))
            }
        }
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU to send. Numbers and residuals are settled now, so do not poll more than the connection takes.
    pub fn poll_transmit(&mut self) -> Option<Pdu> {
        let Some(recovery) = &mut self.recovery else { return self.next_pdu() };
        if let Some(mut again) = recovery.next_again() {
            self.liveness.sent();
            // Its own number stays, those of the command window are today's.
            let stat_sn = again.bhs.u32_at(24);
            self.numbers().put(&mut again.bhs);
            again.bhs.set_u32(24, stat_sn);
            return Some(again);
        }
        let pdu = self.next_pdu()?;
        if let Some(recovery) = &mut self.recovery {
            recovery.keep(&pdu);
        }
        Some(pdu)
    }

    fn next_pdu(&mut self) -> Option<Pdu> {
        let Some(mut waiting) = self.answers.pop_front() else { return self.next_response() };
        let numbers = match waiting.kind {
            AnswerKind::Numbered => self.use_numbers(),
            AnswerKind::R2t | AnswerKind::Ping => self.numbers(),
        };
        if waiting.kind != AnswerKind::R2t {
            self.answers_counted -= 1;
            self.answers_bytes -= waiting.data.len();
        }
        if waiting.kind != AnswerKind::Ping {
            self.liveness.sent();
        }
        numbers.put(&mut waiting.bhs);
        Some(Pdu::new(waiting.bhs, Bytes::new(), waiting.data, false))
    }

    /// False while so many answers wait that the driver should not read on.
    pub fn accepts_input(&self) -> bool {
        self.answers_counted < ANSWERS_HIGH && self.answers_bytes < ANSWERS_BYTES_HIGH
    }

    /// Asks the initiator to log out within `grace`, by an asynchronous message, for a drain; then drops the connection. A
    /// login that is not finished is refused.
    pub fn request_logout(&mut self, now: Instant, grace: Duration) {
        match self.phase {
            Phase::Closed => {}
            Phase::Login(_) => self.reject_login(crate::LoginStatus::SERVICE_UNAVAILABLE),
            Phase::FullFeature => {
                let seconds = u16::try_from(grace.as_secs().max(1)).unwrap_or(u16::MAX);
                self.announce(AsyncEvent::LogoutRequested, [0, 0, seconds]);
                self.deadline = Some(Deadline::Drain(now + grace));
            }
        }
    }

    /// Ends the session now, telling the initiator that the connection drops. `why` is for the log.
    pub fn close(&mut self, why: impl Into<String>) {
        match self.phase {
            Phase::Closed => return,
            Phase::Login(_) => {}
            Phase::FullFeature => self.announce(AsyncEvent::ConnectionDropped, [self.cid, 2, 0]),
        }
        self.end(CloseReason::ClosedHere(why.into()));
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// What the login settled; `None` before full-feature phase.
    pub fn agreed(&self) -> Option<&Agreed> {
        matches!(self.phase, Phase::FullFeature).then_some(&self.agreed)
    }

    /// Most sealed blocks that fit one Data-In, given the block size and the length of an entry (sequence and record). 0
    /// when the initiator takes less than a block.
    pub fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        let by_segment = self.agreed.send_segment_bytes_max.min(self.agreed.max_burst_bytes) / block_bytes.max(1);
        (by_segment as usize).min(ahs::seal_records_max(entry_bytes.max(1), 0))
    }

    /// Counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn handle_full_feature_pdu(&mut self, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let max_bytes = self.config.offer.recv_segment_bytes_max.max(crate::login::LOGIN_SEGMENT_BYTES) as usize;
        if pdu.data.len() > max_bytes {
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let request = match Request::decode(&pdu.bhs) {
            Ok(request) => request,
            Err(PduError::Opcode(_)) => return self.reject(&pdu, RejectReason::CommandNotSupported),
            Err(_) => return self.reject(&pdu, RejectReason::InvalidPduField),
        };
        if pdu.sealed {
            self.check_sealed(&request, &pdu)?;
        }
        if let Some(recovery) = &mut self.recovery {
            let exp_stat_sn = Serial(pdu.bhs.u32_at(28));
            if !self.stat_sn.is_before(exp_stat_sn) {
                recovery.acknowledge(exp_stat_sn);
            }
        }
        let cmd_sn = match &request {
            Request::DataOut(data_out) => return self.handle_data_out(*data_out, pdu),
            Request::Snack(snack) => return self.handle_snack(*snack, &pdu),
            Request::Login(_) => return self.reject(&pdu, RejectReason::ProtocolError),
            _ if pdu.bhs.is_immediate() => return self.execute(request, pdu),
            Request::NopOut(request) => request.cmd_sn,
            Request::ScsiCommand(request) => request.cmd_sn,
            Request::TaskManagement(request) => request.cmd_sn,
            Request::Text(request) => request.cmd_sn,
            Request::Logout(request) => request.cmd_sn,
        };
        // RFC 7143 §4.2.2.1: a command outside the window is ignored without an answer.
        let is_new = self.held.iter().all(|(held, _)| *held != cmd_sn);
        if !cmd_sn.is_within(self.exp_cmd_sn, self.max_cmd_sn()) || !is_new {
            self.statistics.ignored += 1;
            return Ok(());
        }
        if cmd_sn != self.exp_cmd_sn {
            self.held.push((cmd_sn, Some(pdu)));
            return Ok(());
        }
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        self.execute(request, pdu)?;
        self.release_held()
    }

    /// Executes what was held back, as far as nothing is missing any more.
    pub(in crate::target) fn release_held(&mut self) -> Result<(), PeerMisbehaved> {
        while let Some(at) = self.held.iter().position(|(cmd_sn, _)| *cmd_sn == self.exp_cmd_sn) {
            let (_, pdu) = self.held.swap_remove(at);
            self.exp_cmd_sn = self.exp_cmd_sn.next();
            let Some(pdu) = pdu else { continue };
            let request = Request::decode(&pdu.bhs)?;
            self.execute(request, pdu)?;
        }
        Ok(())
    }

    fn execute(&mut self, request: Request, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        if matches!(self.phase, Phase::Closed) {
            return Ok(());
        }
        let is_for_discovery = matches!(request, Request::NopOut(_) | Request::Text(_) | Request::Logout(_));
        if self.discovery && !is_for_discovery {
            return self.reject(&pdu, RejectReason::CommandNotSupported);
        }
        match request {
            Request::NopOut(nop) => self.handle_nop(nop, pdu),
            Request::ScsiCommand(command) => self.handle_command(command, pdu),
            Request::TaskManagement(request) => self.handle_task_management(request, &pdu),
            Request::Text(text) => self.handle_text(text, pdu),
            Request::Logout(logout) => self.handle_logout(logout),
            Request::DataOut(_) | Request::Snack(_) | Request::Login(_) => unreachable!("sorted out before"),
        }
    }

    fn handle_nop(&mut self, nop: NopOut, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        if nop.initiator_task_tag == TAG_NONE {
            return Ok(()); // The answer to our ping; that something came is all that it says.
        }
        let echo_bytes = pdu.data.len().min(self.agreed.send_segment_bytes_max as usize);
        let answer = NopIn {
            lun: Lun(0),
            initiator_task_tag: nop.initiator_task_tag,
            target_transfer_tag: TAG_NONE,
            sequence: Sequence::default(),
        };
        self.answer(answer.encode(), pdu.data.slice(..echo_bytes), AnswerKind::Numbered)
    }

    fn handle_command(&mut self, command: ScsiCommand, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let tag = command.initiator_task_tag;
        if tag == TAG_NONE || (command.read && command.write) {
            return self.reject(&pdu, RejectReason::InvalidPduField);
        }
        if self.by_tag.contains_key(&tag) {
            return self.reject(&pdu, RejectReason::TaskInProgress);
        }
        if command.immediate {
            if self.immediate_tasks >= IMMEDIATE_TASKS_MAX {
                return self.reject(&pdu, RejectReason::TooManyImmediateCommands);
            }
            self.immediate_tasks += 1;
        } else {
            self.window_taken += 1;
        }
        let direction = match (command.read, command.write) {
            (true, _) => Direction::Read,
            (_, true) => Direction::Write,
            _ => Direction::None,
        };
        let task = Task {
            initiator_task_tag: tag,
            lun: command.lun,
            attribute: command.attribute,
            direction,
            expected_bytes: if direction == Direction::None { 0 } else { command.expected_data_transfer_bytes },
            cdb: command.cdb,
            ahs: pdu.ahs.clone(),
            immediate: command.immediate,
            reserved_bytes: 0,
            r2t_count: 0,
            state: State::Receiving(Receiving::default()),
        };
        self.ended.retain(|ended| *ended != tag);
        let key = self.tasks.insert_with(|_| task);
        self.by_tag.insert(tag, key);
        self.start_receiving(key, command.is_final, pdu);
        Ok(())
    }

    fn handle_logout(&mut self, logout: LogoutRequest) -> Result<(), PeerMisbehaved> {
        let result = match logout.reason {
            reason if reason == LogoutReason::CloseSession as u8 => LogoutResult::Closed,
            reason if reason == LogoutReason::CloseConnection as u8 && logout.cid == self.cid => LogoutResult::Closed,
            reason if reason == LogoutReason::CloseConnection as u8 => LogoutResult::CidNotFound,
            _ => LogoutResult::RecoveryNotSupported,
        };
        let answer = LogoutResponse {
            result,
            initiator_task_tag: logout.initiator_task_tag,
            sequence: Sequence::default(),
            time2wait_s: 0,
            time2retain_s: 0,
        };
        self.answer(answer.encode(), Buffer::empty(), AnswerKind::Numbered)?;
        if result == LogoutResult::Closed {
            self.end(CloseReason::LoggedOut);
        }
        Ok(())
    }

    /// Tells the peer that one of its PDUs was not taken. The session goes on.
    fn reject(&mut self, pdu: &Pdu, reason: RejectReason) -> Result<(), PeerMisbehaved> {
        self.statistics.rejects += 1;
        let answer = Reject { reason: reason as u8, sequence: Sequence::default() };
        let header = Buffer::from(Bytes::copy_from_slice(&pdu.bhs.0));
        self.answer(answer.encode(), header, AnswerKind::Numbered)
    }

    fn announce(&mut self, event: AsyncEvent, parameters: [u16; 3]) {
        let message = AsyncMessage { event, sequence: Sequence::default(), parameters };
        // A flooded session is about to end anyway; the message is a courtesy.
        let _ = self.answer(message.encode(), Buffer::empty(), AnswerKind::Numbered);
    }

    fn ping(&mut self) {
        self.ping_tag = self.ping_tag.wrapping_add(1) & 0x00ff_ffff;
        let ping = NopIn {
            lun: Lun(0),
            initiator_task_tag: TAG_NONE,
            // The top bit keeps pings apart from the tags of R2Ts.
            target_transfer_tag: 0x8000_0000 | self.ping_tag,
            sequence: Sequence::default(),
        };
        let _ = self.answer(ping.encode(), Buffer::empty(), AnswerKind::Ping);
    }

    fn answer(&mut self, bhs: Bhs, data: Buffer, kind: AnswerKind) -> Result<(), PeerMisbehaved> {
        if kind != AnswerKind::R2t {
            if self.answers_counted >= ANSWERS_MAX {
                return Err(PeerMisbehaved::Flood { what: "answers", limit: ANSWERS_MAX });
            }
            if self.answers_bytes + data.len() > ANSWERS_BYTES_MAX {
                return Err(PeerMisbehaved::Flood { what: "bytes of answers", limit: ANSWERS_BYTES_MAX });
            }
            self.answers_counted += 1;
            self.answers_bytes += data.len();
        }
        self.answers.push_back(Waiting { bhs, data, kind });
        Ok(())
    }

    /// The end of the session. What waits in `answers` may still be sent; tasks are gone.
    fn end(&mut self, reason: CloseReason) {
        if matches!(self.phase, Phase::Closed) {
            return;
        }
        self.phase = Phase::Closed;
        self.deadline = None;
        self.answers.retain(|waiting| waiting.kind == AnswerKind::Numbered);
        self.answers_counted = self.answers.len();
        self.answers_bytes = self.answers.iter().map(|waiting| waiting.data.len()).sum();
        self.held.clear();
        self.tasks.clear();
        self.by_tag.clear();
        self.unadmitted.clear();
        self.responding.clear();
        self.managements.clear();
        self.question = None;
        self.recovery = None;
        self.reserved_bytes = 0;
        self.events.push_back(Event::Closed(reason));
    }

    /// The last CmdSN that fits: each task outstanding takes one place of the queue until its status has left.
    fn max_cmd_sn(&self) -> Serial {
        let free = u32::from(self.config.queue_depth) - self.window_taken;
        self.exp_cmd_sn.plus(free).previous()
    }

    fn numbers(&self) -> Sequence {
        Sequence { stat_sn: self.stat_sn, exp_cmd_sn: self.exp_cmd_sn, max_cmd_sn: self.max_cmd_sn() }
    }

    fn use_numbers(&mut self) -> Sequence {
        let numbers = self.numbers();
        self.stat_sn = self.stat_sn.next();
        numbers
    }

    /// Forgets a task and gives back what it held.
    fn remove_task(&mut self, key: Key) -> Option<Task> {
        let task = self.tasks.remove(key)?;
        self.by_tag.remove(&task.initiator_task_tag);
        if task.immediate {
            self.immediate_tasks -= 1;
        } else {
            self.window_taken -= 1;
        }
        self.release_memory(task.reserved_bytes);
        Some(task)
    }

    /// Late data for a task that ended early is expected, not an error.
    fn remember_ended(&mut self, initiator_task_tag: u32) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(initiator_task_tag);
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("initiator_task_tag", &self.initiator_task_tag)
            .field("lun", &self.lun)
            .field("direction", &self.direction)
            .field("expected_bytes", &self.expected_bytes)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl TaskId {
    fn of(key: Key) -> TaskId {
        TaskId(u64::from(key.generation) << 32 | u64::from(key.index))
    }

    fn key(self) -> Key {
        Key { index: self.0 as u32, generation: (self.0 >> 32) as u32 }
    }
}

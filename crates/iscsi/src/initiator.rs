//! The initiator's side of one session: commands in, events out, and back. Reconnecting, retrying and time-outs of commands
//! are the application's business. The login is in `login` and `chap`, what arrives in `receive`, what is sent in `transmit`.

mod chap;
mod login;
mod receive;
mod recover;
mod transmit;
mod types;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use self::login::Login;
use self::recover::Recovery;
use self::transmit::Burst;
use crate::liveness::{Liveness, Verdict};
use crate::login::Agreed;
use crate::pdu::{Bhs, LogoutReason, LogoutRequest, NopOut, Pdu, TAG_NONE, TaskManagementRequest, TextRequest};
use crate::slots::{INDEX_BITS, Key, Slots};
use crate::text::{Collector, Pairs};
use crate::{CloseReason, Lun, PeerMisbehaved, Serial};

pub use types::{
    Attribute, ChapLogin, Command, Completed, Config, DataIn, Direction, Event, SendTargets, SessionKind, SubmitError,
    TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskFunction, TaskId, TaskManagementResult, WriteRecords, WriteSource,
};

/// Small requests that may wait to be sent; a target that makes us answer more pings than it reads is given up.
const REQUESTS_MAX: usize = 256;
/// Task management requests in flight.
const MANAGEMENTS_MAX: usize = 16;
/// Tags of requests that are not commands: the top bit is set, a command's is clear.
const CONTROL_TAG: u32 = 0x8000_0000;

/// An initiator's session machine; see the crate's first page for how to drive it.
#[derive(Debug)]
pub struct Session {
    config: Config,
    phase: Phase,
    deadline: Option<Instant>,
    liveness: Liveness,
    agreed: Agreed,

    events: VecDeque<Event>,
    /// Small requests, all immediate; numbers are put in when they leave.
    requests: VecDeque<(Bhs, Buffer)>,
    /// Commands that wait for the command window.
    waiting: VecDeque<Key>,
    /// Data-Out sequences in the order in which they became due.
    bursts: VecDeque<Burst>,
    /// Whether the next turn is a burst's, when a command could go too.
    burst_turn: bool,

    cmd_sn: Serial,
    max_cmd_sn: Serial,
    exp_stat_sn: Serial,

    tasks: Slots<Task>,
    next_control: u32,
    managements: Vec<Management>,
    question: Option<Question>,
    ping_tag: Option<u32>,
    logout_tag: Option<u32>,
    /// At error recovery level 1.
    recovery: Option<Box<Recovery>>,
    /// Commands to send once more, under the number that they have.
    retries: VecDeque<Key>,
}

#[derive(Debug)]
enum Phase {
    Login(Box<Login>),
    FullFeature,
    LoggingOut,
    Closed,
}

#[derive(Debug)]
struct Task {
    command: Command,
    /// `None` until it was sent.
    cmd_sn: Option<Serial>,
    /// How much of a read arrived, holes included, or how much of a write was asked for, in bytes.
    moved: u32,
    next_data_sn: u32,
    next_r2t_sn: u32,
    r2ts_open: u32,
    /// What is missing of a read has been asked for.
    is_asked_again: bool,
    /// The status, where it came before all of the data: how many Data-In PDUs there are, and the rest.
    early: Option<(u32, Completed)>,
}

#[derive(Debug)]
struct Management {
    tag: u32,
    function: TaskFunction,
    lun: Lun,
    task: Option<Key>,
    /// Commands from this one on were sent behind the request, and are not concerned.
    before: Serial,
}

/// A text exchange: the answer may come in parts.
#[derive(Debug)]
struct Question {
    tag: u32,
    collector: Collector,
    pairs: Vec<Pairs>,
    /// By the application; else by the target, which wanted one.
    is_asked: bool,
}

impl Session {
    /// A session on a connection that was made at `now`; its first request waits in `poll_transmit`.
    pub fn new(now: Instant, mut config: Config) -> Session {
        config.offer = config.offer.clamped(config.in_channel);
        let login = Login::new(&config);
        let mut session = Session {
            deadline: Some(now + config.login_timeout),
            liveness: Liveness::new(now, config.ping_after, config.ping_timeout),
            phase: Phase::Login(Box::new(login)),
            config,
            agreed: Agreed::default(),
            events: VecDeque::new(),
            requests: VecDeque::new(),
            waiting: VecDeque::new(),
            bursts: VecDeque::new(),
            burst_turn: false,
            cmd_sn: Serial(1),
            max_cmd_sn: Serial(1),
            exp_stat_sn: Serial(0),
            tasks: Slots::new(),
            next_control: 0,
            managements: Vec::new(),
            question: None,
            ping_tag: None,
            logout_tag: None,
            recovery: None,
            retries: VecDeque::new(),
        };
        session.start_login();
        session
    }

    /// Takes a PDU from the peer.
    pub fn handle_pdu(&mut self, now: Instant, pdu: Pdu) {
        self.liveness.moved(now);
        let outcome = match self.phase {
            Phase::Closed => return,
            Phase::Login(_) => self.handle_login_pdu(&pdu),
            Phase::FullFeature | Phase::LoggingOut => self.handle_answer(pdu),
        };
        if let Err(misbehaved) = outcome {
            self.end(CloseReason::Misbehaved(misbehaved));
        }
    }

    /// Bytes moved on the connection, either way: the peer is alive, even if no PDU is complete.
    pub fn handle_progress(&mut self, now: Instant) {
        self.liveness.moved(now);
    }

    /// The connection ended underneath, or its framing failed. Emits `Closed` unless that was already done.
    pub fn handle_closed(&mut self, reason: CloseReason) {
        self.end(reason);
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_late = self.deadline.is_some_and(|at| now >= at);
        match self.phase {
            Phase::Closed => return,
            Phase::Login(_) if is_late => return self.end(CloseReason::LoginTimedOut),
            Phase::LoggingOut if is_late => return self.end(CloseReason::PeerSilent),
            Phase::Login(_) => return,
            Phase::LoggingOut | Phase::FullFeature => {}
        }
        match self.liveness.look(now) {
            Verdict::Alive => {}
            Verdict::Ping => self.ping(),
            Verdict::Dead => self.end(CloseReason::PeerSilent),
        }
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closed => None,
            Phase::Login(_) => self.deadline,
            Phase::FullFeature | Phase::LoggingOut => {
                let alive = self.liveness.deadline();
                Some(self.deadline.map_or(alive, |at| at.min(alive)))
            }
        }
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
        let task = Task {
            command,
            cmd_sn: None,
            moved: 0,
            next_data_sn: 0,
            next_r2t_sn: 0,
            r2ts_open: 0,
            is_asked_again: false,
            early: None,
        };
        let key = self.tasks.insert_with(|_| task);
        self.waiting.push_back(key);
        Ok(TaskId::of(key))
    }

    /// Commands in flight or waiting.
    pub fn outstanding(&self) -> usize {
        self.tasks.len()
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
        let tag = self.control_tag();
        self.question = Some(Question { tag, collector: Collector::default(), pairs: Vec::new(), is_asked: true });
        self.send_text(tag, TAG_NONE, Buffer::from(Bytes::from(pairs.encode())));
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
        if self.managements.len() >= MANAGEMENTS_MAX {
            return Err(SubmitError::QueueFull);
        }
        let tag = self.control_tag();
        let names_task = matches!(function, TaskFunction::AbortTask | TaskFunction::QueryTask);
        let key = match task {
            None if names_task => {
                return Err(SubmitError::Malformed("the function is about a task, and none is named"));
            }
            Some(task) if names_task => Some(task.key()),
            _ => None,
        };
        let referenced = key.and_then(|key| self.tasks.get(key));
        if function == TaskFunction::AbortTask && referenced.is_none_or(|task| task.cmd_sn.is_none()) {
            // Over already, or never sent: nobody has to be asked.
            let ended = key.filter(|key| self.forget(*key)).map(TaskId::of);
            let result = match ended {
                Some(_) => TaskManagementResult::Complete,
                None => TaskManagementResult::TaskDoesNotExist,
            };
            let ended = ended.into_iter().collect();
            self.events.push_back(Event::TaskManagementDone { id: TaskId(tag), result, ended });
            return Ok(TaskId(tag));
        }
        let lun = referenced.map_or(lun, |task| task.command.lun);
        let request = TaskManagementRequest {
            immediate: true,
            function: function as u8,
            lun,
            initiator_task_tag: tag,
            referenced_task_tag: key.map_or(TAG_NONE, |key| TaskId::of(key).0),
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
            ref_cmd_sn: referenced.and_then(|task| task.cmd_sn).unwrap_or_default(),
            exp_data_sn: 0,
        };
        self.managements.push(Management { tag, function, lun, task: key, before: self.cmd_sn });
        self.requests.push_back((request.encode(), Buffer::empty()));
        Ok(TaskId(tag))
    }

    /// Logs out; `Closed` follows when the target has answered, or not in time. Commands that are not over are lost.
    pub fn logout(&mut self, now: Instant) {
        match self.phase {
            Phase::Closed | Phase::LoggingOut => {}
            Phase::Login(_) => self.end(CloseReason::LoggedOut),
            Phase::FullFeature => {
                let tag = self.control_tag();
                let request = LogoutRequest {
                    immediate: true,
                    reason: LogoutReason::CloseSession as u8,
                    initiator_task_tag: tag,
                    cid: 0,
                    cmd_sn: Serial(0),
                    exp_stat_sn: Serial(0),
                };
                self.requests.push_back((request.encode(), Buffer::empty()));
                self.waiting.clear();
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

    /// How long the application may expect a logout to take.
    pub fn logout_timeout(&self) -> Duration {
        self.config.logout_timeout
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
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
        if !command.ahs.len().is_multiple_of(4) {
            return Err("its header segments are not padded to four bytes");
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
        let ahs_max = if self.config.in_channel { AHS_BYTES_MAX } else { crate::pdu::PLAIN_AHS_BYTES_MAX };
        if command.ahs.len() > ahs_max {
            return Err("its header segments are too long");
        }
        Ok(())
    }

    fn ping(&mut self) {
        let tag = self.control_tag();
        self.ping_tag = Some(tag);
        self.send_nop(NopOut {
            immediate: true,
            lun: Lun(0),
            initiator_task_tag: tag,
            target_transfer_tag: TAG_NONE,
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
        });
    }

    fn send_nop(&mut self, nop: NopOut) {
        self.requests.push_back((nop.encode(), Buffer::empty()));
    }

    fn send_text(&mut self, tag: u32, target_transfer_tag: u32, text: Buffer) {
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
        self.requests.push_back((request.encode(), text));
    }

    fn control_tag(&mut self) -> u32 {
        let tag = CONTROL_TAG | self.next_control;
        // The largest would be the tag that names nothing.
        self.next_control = (self.next_control + 1) % (CONTROL_TAG - 1);
        tag
    }

    /// Forgets a task and its data. False if it was gone.
    fn forget(&mut self, key: Key) -> bool {
        let was_there = self.tasks.remove(key);
        if let Some(task) = &was_there {
            if task.cmd_sn.is_none() {
                self.waiting.retain(|waiting| *waiting != key);
            }
            self.retries.retain(|retry| *retry != key);
            if task.command.write.is_some() {
                self.bursts.retain(|burst| burst.key != key);
            }
        }
        was_there.is_some()
    }

    fn check_flood(&self) -> Result<(), PeerMisbehaved> {
        match self.requests.len() >= REQUESTS_MAX {
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
        self.requests.clear();
        self.waiting.clear();
        self.retries.clear();
        self.bursts.clear();
        self.tasks.clear();
        self.managements.clear();
        self.question = None;
        self.events.push_back(Event::Closed(reason));
    }
}

/// Room that a command leaves for the seal records of its immediate data, at worst.
const AHS_BYTES_MAX: usize = 4096;

impl TaskId {
    fn of(key: Key) -> TaskId {
        // The top bit is clear: never a control request's tag, never the tag that names nothing.
        TaskId((key.generation << INDEX_BITS | key.index) & !CONTROL_TAG)
    }

    fn key(self) -> Key {
        Key { index: self.0 & ((1 << INDEX_BITS) - 1), generation: self.0 >> INDEX_BITS }
    }
}

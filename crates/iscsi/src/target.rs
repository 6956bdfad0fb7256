//! The target's side of one session: PDUs of its connections in, events out, and back. No SCSI semantics: the application executes
//! commands and says what became of task management. A connection's login is a machine of its own (`login`, `chap`); how connections
//! come and go is in `connection`, the order of commands in `order` and `held`, arriving write data in `write`, what is sent back in `respond`
//! and `outbox`, task management in `manage`, error recovery in `recover` and `kept`, text and SendTargets in `question`.

mod chap;
mod connection;
mod login;
mod manage;
mod order;
mod outbox;
mod question;
mod recover;
mod refusal;
mod reorder;
mod respond;
mod retransmit;
mod types;
mod write;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::Buffer;

use self::connection::{Connection, Lost};
use self::manage::{Barrier, Management};
use self::outbox::{AnswerKind, Window};
use self::reorder::HeldCommands;
use self::write::Receiving;
use crate::liveness::Verdict;
use crate::login::Agreed;
use crate::pdu::fields::{self, Field};
use crate::pdu::{AsyncEvent, Attribute, Bhs, Lun, NopIn, Pdu, Reject, RejectReason, Sequence, TAG_NONE};
use crate::slots::{Key, Slots};
use crate::{CloseReason, PeerMisbehaved, Serial, ahs};

pub use self::chap::{ChapPolicy, ChapUser};
pub use self::connection::{ConnectionId, MayAdd};
pub use self::login::Login;
pub use types::{
    ANSWERS_BYTES_HIGH, ANSWERS_BYTES_MAX, ANSWERS_HIGH, ANSWERS_MAX, Command, Config, DataSegment, Direction, Event,
    IMMEDIATE_TASKS_MAX, LoginEvent, LoginRequested, MANAGEMENTS_MAX, ManagementFunction, ManagementId, Response,
    SendTargets, SessionKind, Statistics, TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskId, TaskManagement,
    TaskManagementResult, WriteSegment,
};

/// Tasks that ended while data for them may still come; their late Data-Out is dropped without a word.
const ENDED_MAX: usize = TASKS_MAX;

/// A target's session machine; see the crate's first page for how to drive it.
#[derive(Debug)]
pub struct Session {
    config: Config,
    kind: SessionKind,
    tsih: u16,
    /// What the leading login settled for the whole session.
    agreed: Agreed,
    /// The time as it was last told.
    now: Instant,
    is_closed: bool,
    drain_until: Option<Instant>,
    connections: Vec<Connection>,
    next_connection: u32,
    /// At error recovery level 2.
    lost: Vec<Lost>,
    /// Below that: when the session ends unless the connection has come that its last one makes way for.
    vacant_until: Option<Instant>,
    damaged: u32,
    events: VecDeque<Event>,

    exp_cmd_sn: Serial,
    /// Tasks that take a place in the command window.
    window_taken: u32,
    immediate_tasks: usize,
    held: HeldCommands,
    /// Requests over many tasks that came before some of these.
    early: Vec<(ConnectionId, Pdu)>,

    tasks: Slots<Task>,
    by_tag: HashMap<u32, Key>,
    ended: VecDeque<u32>,
    /// Writes that wait for memory before their first R2T.
    unadmitted: VecDeque<Key>,
    /// Upper bound on what follows, in bytes; at most that of the configuration.
    write_memory_max: u64,
    /// Memory promised to solicited writes, in bytes.
    reserved_bytes: u64,
    /// Memory for what commands may send, or have sent, without being asked, in bytes.
    unsolicited_bytes: u64,
    /// Read data of answers that has not left, in bytes.
    unsent_bytes: u64,

    managements: Vec<Management>,
    next_management: u64,
    barriers: Vec<Barrier>,
    statistics: Statistics,
}

/// A task from its command PDU until the last PDU of its response was taken.
struct Task {
    /// Where its data and its answer belong.
    connection: ConnectionId,
    initiator_task_tag: u32,
    lun: Lun,
    attribute: Attribute,
    direction: Direction,
    expected_bytes: u32,
    cdb: [u8; 16],
    ahs: Bytes,
    cmd_sn: Serial,
    immediate: bool,
    /// Memory reserved for it, in bytes.
    reserved_bytes: u64,
    /// Memory for what it may send, or has sent, without being asked, in bytes.
    unsolicited_bytes: u64,
    r2t_count: u32,
    state: TaskState,
}

#[derive(Debug)]
enum TaskState {
    /// Its write data is not there yet; the application does not know of it.
    Receiving(Receiving),
    /// With the application.
    Executing,
    /// Being answered.
    Responding(respond::Responding),
}

impl Session {
    fn empty(now: Instant, login: &Login) -> Session {
        Session {
            config: login.config.clone(),
            kind: login.kind.clone(),
            tsih: login.tsih.unwrap_or(0),
            agreed: login.agreed.clone(),
            now,
            is_closed: false,
            drain_until: None,
            connections: Vec::new(),
            next_connection: 0,
            lost: Vec::new(),
            vacant_until: None,
            damaged: 0,
            events: VecDeque::new(),
            exp_cmd_sn: login.window.exp_cmd_sn,
            window_taken: 0,
            immediate_tasks: 0,
            held: HeldCommands::default(),
            early: Vec::new(),
            tasks: Slots::new(),
            by_tag: HashMap::new(),
            ended: VecDeque::new(),
            unadmitted: VecDeque::new(),
            write_memory_max: login.config.write_memory_bytes_max,
            reserved_bytes: 0,
            unsolicited_bytes: 0,
            unsent_bytes: 0,
            managements: Vec::new(),
            next_management: 0,
            barriers: Vec::new(),
            statistics: Statistics::default(),
        }
    }

    /// Takes a PDU from the peer.
    pub fn handle_pdu(&mut self, now: Instant, connection: ConnectionId, pdu: Pdu) {
        self.now = now;
        let Some(open) = self.connection_mut(connection).filter(|open| !open.is_leaving) else { return };
        open.liveness.moved(now);
        if let Err(misbehaved) = self.take_pdu(connection, pdu) {
            self.end(CloseReason::Misbehaved(misbehaved));
        }
    }

    /// Takes a PDU whose data was damaged on the way, as its digest shows (RFC 7143 §7.8): the initiator is told. From error
    /// recovery level 1 on what is missing is recovered; at level 0 nothing is recovered within a session, and it ends.
    pub fn handle_corrupt_pdu(&mut self, now: Instant, connection: ConnectionId, pdu: &Pdu) {
        self.now = now;
        let Some(open) = self.connection_mut(connection).filter(|open| !open.is_leaving) else { return };
        open.liveness.moved(now);
        let told = self.reject(connection, pdu, RejectReason::DataDigestError);
        if told.is_err() || !self.recover_from(connection, pdu) {
            self.end(CloseReason::Damaged);
        }
    }

    /// Bytes moved on a connection, either way: the peer is alive, even if no PDU is complete.
    pub fn handle_progress(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(connection) = self.connection_mut(connection) {
            connection.liveness.moved(now);
        }
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.is_closed {
            return;
        }
        if self.drain_until.is_some_and(|at| now >= at) {
            self.announce(AsyncEvent::ConnectionDropped, |cid| [cid, 2, 0]);
            return self.end(CloseReason::DrainTimedOut);
        }
        if self.vacant_until.is_some_and(|at| now >= at) {
            return self.end(CloseReason::NotRecovered);
        }
        if !self.lost.is_empty() {
            self.expire_lost();
        }
        let ids: Vec<ConnectionId> = self.connections.iter().map(|connection| connection.id).collect();
        for id in ids {
            match self.connection_mut(id).map(|connection| connection.liveness.look(now)) {
                None | Some(Verdict::Alive) => {}
                Some(Verdict::Ping) => drop(self.ping(id)),
                Some(Verdict::Dead) => self.lose(id, CloseReason::PeerSilent),
            }
        }
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let alive = self.connections.iter().map(|connection| connection.liveness.deadline()).min();
        [self.drain_until, self.vacant_until, self.lost_deadline(), alive].into_iter().flatten().min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU to send on a connection. Numbers and residuals are settled now, so do not poll more than the connection takes.
    /// A connection that is over may still have last words.
    pub fn poll_transmit(&mut self, connection: ConnectionId) -> Option<Pdu> {
        let window = self.window();
        let at = self.connections.iter().position(|open| open.id == connection)?;
        let open = &mut self.connections[at];
        if let Some(mut again) = open.kept.as_mut().and_then(|kept| kept.next_again()) {
            open.liveness.sent();
            // Its own number stays, those of the command window are today's.
            let stat_sn = fields::STAT_SN.get(&again.bhs);
            open.outbox.numbers(window).put(&mut again.bhs);
            fields::STAT_SN.put(&mut again.bhs, stat_sn);
            return Some(again);
        }
        let (pdu, covers_bytes) = match open.outbox.pop(window) {
            Some((pdu, kind)) => {
                if kind != AnswerKind::Ping {
                    open.liveness.sent();
                }
                (pdu, 0)
            }
            None if self.connection(connection).is_none() => {
                self.connections.remove(at);
                return None;
            }
            None => self.next_response(connection)?,
        };
        if let Some(kept) = self.connection_mut(connection).and_then(|open| open.kept.as_mut()) {
            kept.keep(&pdu, covers_bytes);
        }
        Some(pdu)
    }

    /// False while so many answers wait, or so much data that came unasked, or early, that the driver should not read on.
    pub fn accepts_input(&self, connection: ConnectionId) -> bool {
        self.connection(connection).is_some_and(|connection| connection.outbox.has_room())
            && !self.is_full_of_data()
            && !self.waits_for_others(connection)
    }

    /// Asks the initiator to log out within `grace`, by an asynchronous message, for a drain; then drops the session.
    pub fn request_logout(&mut self, now: Instant, grace: Duration) {
        self.now = now;
        if self.is_closed {
            return;
        }
        let seconds = u16::try_from(grace.as_secs().max(1)).unwrap_or(u16::MAX);
        self.announce(AsyncEvent::LogoutRequested, |_| [0, 0, seconds]);
        self.drain_until = Some(now + grace);
    }

    /// Ends the session now, telling the initiator that its connections drop. `why` is for the log.
    pub fn close(&mut self, why: impl Into<String>) {
        if !self.is_closed {
            self.announce(AsyncEvent::ConnectionDropped, |cid| [cid, 2, 0]);
            self.end(CloseReason::ClosedHere(why.into()));
        }
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// What its login settled for a connection.
    pub fn agreed(&self, connection: ConnectionId) -> Option<&Agreed> {
        self.connection(connection).map(|connection| &connection.agreed)
    }

    /// What the leading login settled for all connections.
    pub fn session_keys(&self) -> &Agreed {
        &self.agreed
    }

    /// Its handle, which further connections name.
    pub fn tsih(&self) -> u16 {
        self.tsih
    }

    /// Most sealed blocks that fit one Data-In on whichever connection, given the block size and the length of an entry (sequence and
    /// record). 0 when the initiator takes less than a block.
    pub fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        let segments = self.connections.iter().map(|connection| connection.agreed.send_segment_bytes_max);
        let segment_bytes = segments.min().unwrap_or(self.agreed.send_segment_bytes_max);
        let by_segment = segment_bytes.min(self.agreed.max_burst_bytes) / block_bytes.max(1);
        (by_segment as usize).min(ahs::seal_records_max(entry_bytes.max(1), 0))
    }

    /// Commands that the application has.
    pub fn executing(&self) -> usize {
        self.tasks.iter().filter(|(_, task)| matches!(task.state, TaskState::Executing)).count()
    }

    /// Counters.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Tells the peer that one of its PDUs was not taken. The session goes on.
    fn reject(&mut self, id: ConnectionId, pdu: &Pdu, reason: RejectReason) -> Result<(), PeerMisbehaved> {
        self.statistics.rejects += 1;
        let answer = Reject { reason: reason as u8, sequence: Sequence::default() };
        let header = Buffer::from(Bytes::copy_from_slice(&pdu.bhs.0));
        self.answer(id, answer.encode(), header, AnswerKind::Numbered)
    }

    /// Asks for a sign of life; returns the tag that the answer will have.
    fn ping(&mut self, id: ConnectionId) -> Option<u32> {
        let connection = self.connection_mut(id)?;
        connection.ping_tag = connection.ping_tag.wrapping_add(1) & 0x00ff_ffff;
        // The top bit keeps pings apart from the tags of R2Ts.
        let target_transfer_tag = 0x8000_0000 | connection.ping_tag;
        let ping =
            NopIn { lun: Lun(0), initiator_task_tag: TAG_NONE, target_transfer_tag, sequence: Sequence::default() };
        self.answer(id, ping.encode(), Buffer::empty(), AnswerKind::Ping).ok()?;
        Some(target_transfer_tag)
    }

    /// A connection that is gone is told nothing.
    fn answer(&mut self, id: ConnectionId, bhs: Bhs, data: Buffer, kind: AnswerKind) -> Result<(), PeerMisbehaved> {
        match self.connection_mut(id) {
            Some(connection) => connection.outbox.push(bhs, data, kind),
            None => Ok(()),
        }
    }

    /// The end of the session. What waits in the outboxes may still be sent; tasks are gone.
    fn end(&mut self, reason: CloseReason) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.close_all_connections();
        self.held.clear();
        self.early.clear();
        self.tasks.clear();
        self.by_tag.clear();
        self.unadmitted.clear();
        self.managements.clear();
        self.barriers.clear();
        (self.reserved_bytes, self.unsolicited_bytes, self.unsent_bytes) = (0, 0, 0);
        self.events.push_back(Event::Closed(reason));
    }

    /// What the command window is now. Each task outstanding takes one place of the queue until its status has left.
    fn window(&self) -> Window {
        let free = u32::from(self.config.queue_depth) - self.window_taken;
        Window { exp_cmd_sn: self.exp_cmd_sn, max_cmd_sn: self.exp_cmd_sn.plus(free).previous() }
    }

    fn numbers(&self, id: ConnectionId) -> Sequence {
        let window = self.window();
        self.connection(id).map(|connection| connection.outbox.numbers(window)).unwrap_or_default()
    }

    fn use_numbers(&mut self, id: ConnectionId) -> Sequence {
        let window = self.window();
        self.connection_mut(id).map(|connection| connection.outbox.use_numbers(window)).unwrap_or_default()
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
        if let TaskState::Responding(responding) = &task.state {
            self.unsent_bytes -= responding.held_bytes();
        }
        self.unsolicited_bytes -= task.unsolicited_bytes;
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

impl Login {
    /// Lets the connection into `session`, which the initiator has named by its TSIH: the application has seen that it belongs to
    /// the same initiator, and that the session takes it ([`Session::may_add`]).
    pub fn accept_into(&mut self, session: &Session) {
        self.join(session.session_keys(), session.window(), session.tsih());
    }
}

/// Slot index in the low half, generation above.
fn task_id(key: Key) -> TaskId {
    TaskId(u64::from(key.generation) << 32 | u64::from(key.index))
}

fn key_of(task: TaskId) -> Key {
    Key { index: task.0 as u32, generation: (task.0 >> 32) as u32 }
}

//! The session: its state, and what a driver and the application call. What requests do is in `requests`.

mod requests;
mod transport;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::connection_id::{ConnectionId, MayAdd};
use super::connections::Connections;
use super::functions::{FunctionOrigin, FunctionTable};
use super::login::Login;
use super::lost::LostConnections;
use super::order::{CommandOrder, DataArrival};
use super::task_set::TaskSet;
use super::types::{
    Config, Event, ManagementId, Response, SessionKind, Statistics, TargetEntry, TaskId, TaskManagementResult,
};
use crate::liveness::Verdict;
use crate::login::Agreed;
use crate::pdu::{self, AsyncEvent, Lun, Pdu, RejectReason, Request};
use crate::{CloseReason, ahs};

/// PDUs that may be damaged in one session before it ends; an initiator of ours counts likewise.
const DAMAGED_MAX: u32 = 4096;

/// A target's session machine; see the crate's first page for how to drive it.
#[derive(Debug)]
pub struct Session {
    config: Config,
    kind: SessionKind,
    tsih: u16,
    /// What the leading login settled for the whole session.
    agreed: Agreed,
    /// The time at the last call that had it.
    now: Instant,
    is_closed: bool,
    drain_until: Option<Instant>,
    /// Below error recovery level 2: when the session ends unless the connection has come that its last one makes way for.
    vacant_until: Option<Instant>,
    damaged: u32,
    connections: Connections,
    /// At error recovery level 2.
    lost: LostConnections,
    order: CommandOrder,
    tasks: TaskSet,
    functions: FunctionTable,
    events: VecDeque<Event>,
}

impl Session {
    /// A session of its leading connection.
    ///
    /// # Panics
    /// If the login is not [`super::LoginEvent::Done`].
    pub fn new(now: Instant, login: Login) -> (Session, ConnectionId) {
        let (config, agreed) = (login.config.clone(), login.agreed.clone());
        let mut session = Session {
            kind: login.kind.clone(),
            tsih: login.tsih.unwrap_or(0),
            now,
            is_closed: false,
            drain_until: None,
            vacant_until: None,
            damaged: 0,
            connections: Connections::default(),
            lost: LostConnections::default(),
            order: CommandOrder::new(login.window.exp_cmd_sn, &agreed, config.write_memory_bytes_max),
            tasks: TaskSet::new(&config, &agreed),
            functions: FunctionTable::default(),
            events: VecDeque::new(),
            config,
            agreed,
        };
        let id = session.add_connection(now, login);
        (session, id)
    }

    /// Whether a connection with this CID may join (RFC 7143 §6.3.4). One that has it already is replaced, as if it had been logged
    /// out: at error recovery level 2 for recovery, below that with its tasks.
    pub fn may_add(&mut self, now: Instant, cid: u16) -> MayAdd {
        self.now = now;
        if self.is_closed || self.kind == SessionKind::Discovery {
            return MayAdd::Over;
        }
        if let Some((id, is_leaving)) = self.connections.with_cid(cid).map(|old| (old.id, old.is_leaving)) {
            if self.agreed.error_recovery_level == 2 && !is_leaving {
                self.lose(id, replaced());
            } else if !is_leaving {
                if self.connections.count() == 1 {
                    // Its login may fail.
                    self.vacant_until = Some(now + self.config.login_timeout);
                }
                self.end_connection_tasks(id, FunctionOrigin::ConnectionEnd { closes: id, cid });
            }
            if self.connections.get(id).is_some() {
                return MayAdd::Later;
            }
        }
        if self.functions.is_ending(cid) {
            return MayAdd::Later;
        }
        if self.connections.count() >= usize::from(self.agreed.connections_max.max(1)) {
            MayAdd::TooMany
        } else {
            MayAdd::Yes
        }
    }

    /// Whether a login that `may_add` let begin may still become a connection: the session may have ended meanwhile, and others come, one
    /// with the same CID among them.
    pub fn has_place_for(&self, login: &Login) -> bool {
        let is_full = self.connections.count() >= usize::from(self.agreed.connections_max.max(1));
        !self.is_closed && !is_full && self.connections.with_cid(login.cid()).is_none()
    }

    /// Adds a connection whose login is done, after [`Login::accept_into`].
    ///
    /// # Panics
    /// If the login is not [`super::LoginEvent::Done`].
    pub fn add_connection(&mut self, now: Instant, login: Login) -> ConnectionId {
        assert!(login.agreed().is_some(), "a login is over before its connection is used");
        self.now = now;
        self.vacant_until = None;
        self.connections.add(now, login, &self.config)
    }

    /// How many connections there are.
    pub fn connections_count(&self) -> usize {
        self.connections.count()
    }

    /// The CID of a connection.
    pub fn cid(&self, connection: ConnectionId) -> Option<u16> {
        self.connections.get(connection).map(|connection| connection.cid)
    }

    /// Takes a PDU from the peer.
    pub fn handle_pdu(&mut self, now: Instant, connection: ConnectionId, pdu: Pdu) {
        self.now = now;
        let Some(open) = self.connections.listening(connection) else { return };
        open.liveness.moved(now);
        if let Err(misbehaved) = self.take_pdu(connection, pdu) {
            self.end(CloseReason::Misbehaved(misbehaved));
        }
    }

    /// Takes a PDU whose data was damaged, as its digest shows (RFC 7143 §7.8): the initiator is told. From error recovery level 1
    /// on what is missing is recovered; at level 0 nothing is recovered within a session, and it ends.
    pub fn handle_corrupt_pdu(&mut self, now: Instant, connection: ConnectionId, pdu: &Pdu) {
        self.now = now;
        let Some(open) = self.connections.listening(connection) else { return };
        open.liveness.moved(now);
        let is_told = self.connections.reject(connection, pdu, RejectReason::DataDigestError).is_ok();
        if self.agreed.error_recovery_level > 0 {
            self.damaged += 1;
        }
        if !is_told || self.agreed.error_recovery_level == 0 || self.damaged > DAMAGED_MAX {
            return self.end(CloseReason::Damaged);
        }
        // A command was not received: its CmdSN stays open until the initiator sends it again.
        let Ok(Request::DataOut(header)) = Request::decode(&pdu.bhs) else { return };
        let is_kept = match self.order.offer_data(connection, header, pdu.clone(), true) {
            Ok(DataArrival::Due(pdu)) => {
                self.tasks.lose_data(&mut self.connections, connection, &header, pdu.data.len());
                true
            }
            Ok(DataArrival::Waits) => true,
            Ok(DataArrival::Refused(pdu)) => {
                self.connections.reject(connection, &pdu, RejectReason::InvalidPduField).is_ok()
            }
            Err(_) => false,
        };
        if !is_kept {
            self.end(CloseReason::Damaged);
        }
    }

    /// Bytes moved on a connection, either way: the peer is alive, even if no PDU is complete.
    pub fn handle_progress(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.liveness.moved(now);
        }
    }

    /// The connection ended underneath, or its framing failed. Below error recovery level 2 the session ends with it; emits
    /// `ConnectionClosed` or `Closed` unless that was already done.
    pub fn handle_closed(&mut self, now: Instant, connection: ConnectionId, reason: CloseReason) {
        self.now = now;
        let Some(gone) = self.connections.any_mut(connection) else { return };
        gone.outbox.clear();
        if gone.is_over {
            return self.connections.remove(connection);
        }
        self.lose(connection, reason);
    }

    /// The time of `poll_timeout` has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        if self.is_closed {
            return;
        }
        if self.drain_until.is_some_and(|at| now >= at) {
            self.connections.announce(AsyncEvent::ConnectionDropped, |cid| [cid, 2, 0]);
            return self.end(CloseReason::DrainTimedOut);
        }
        if self.vacant_until.is_some_and(|at| now >= at) {
            return self.end(CloseReason::NotRecovered);
        }
        if !self.lost.is_empty() {
            while let Some(lost) = self.lost.take_expired(now) {
                self.end_connection_tasks(lost.id, FunctionOrigin::ConnectionEnd { closes: lost.id, cid: lost.cid });
            }
            if self.connections.count() == 0 && self.lost.is_empty() && !self.is_closed {
                self.end(CloseReason::NotRecovered);
            }
        }
        for id in self.connections.ids() {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            match connection.liveness.look(now) {
                Verdict::Alive => {}
                Verdict::Ping => drop(connection.ping()),
                Verdict::Dead => self.lose(id, CloseReason::PeerSilent),
            }
        }
    }

    /// When `handle_timeout` wants to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_closed {
            return None;
        }
        let deadlines = [self.drain_until, self.vacant_until, self.lost.deadline(), self.connections.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next PDU to send on a connection. Numbers and residuals are settled now, so do not poll more than the connection takes.
    /// A connection that is over may still have answers to send.
    pub fn poll_transmit(&mut self, connection: ConnectionId) -> Option<Pdu> {
        let window = self.order.window(self.tasks.table());
        let open = self.connections.any_mut(connection)?;
        if let Some(pdu) = open.next_answer(window) {
            return Some(pdu);
        }
        if open.is_over {
            self.connections.remove(connection);
            return None;
        }
        self.tasks.next_response(&mut self.connections, connection, self.order.exp_cmd_sn())
    }

    /// False while so many answers wait, or so much data that was unsolicited or came early, that the driver should not read on.
    pub fn accepts_input(&self, connection: ConnectionId) -> bool {
        let Some(open) = self.connections.get(connection) else { return false };
        // Data of this connection waits for a missing command, which a slower one brings, for each brings its own in order (RFC 7143
        // §4.2.2.1). Not once something was lost: the command may then come again on any connection, and memory is the limit.
        let waits_for_others = self.order.is_nearly_full(connection)
            && self.damaged == 0
            && self.connections.are_all_sound()
            && self.connections.iter().any(|other| !self.order.buffer().has_some_of(other.id));
        let is_full_of_data = self.order.buffer().is_empty() && self.tasks.is_full_of_data();
        open.outbox.has_room() && !is_full_of_data && !waits_for_others
    }

    /// Asks the initiator to log out within `grace`, by an asynchronous message, for a drain; then drops the session.
    pub fn request_logout(&mut self, now: Instant, grace: Duration) {
        self.now = now;
        if self.is_closed {
            return;
        }
        let seconds = u16::try_from(grace.as_secs().max(1)).unwrap_or(u16::MAX);
        self.connections.announce(AsyncEvent::LogoutRequested, |_| [0, 0, seconds]);
        self.drain_until = Some(now + grace);
    }

    /// Ends the session now, telling the initiator that its connections drop. `why` is for the log.
    pub fn close(&mut self, why: impl Into<String>) {
        if !self.is_closed {
            self.connections.announce(AsyncEvent::ConnectionDropped, |cid| [cid, 2, 0]);
            self.end(CloseReason::ClosedHere(why.into()));
        }
    }

    /// Whether `Closed` was emitted.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// What its login settled for a connection.
    pub fn agreed(&self, connection: ConnectionId) -> Option<&Agreed> {
        self.connections.get(connection).map(|connection| &connection.agreed)
    }

    /// What the leading login settled for all connections.
    pub fn session_keys(&self) -> &Agreed {
        &self.agreed
    }

    /// Its handle, which further connections name.
    pub fn tsih(&self) -> u16 {
        self.tsih
    }

    /// Most sealed blocks that fit one Data-In on any of the connections, given the block size and the length of an entry (sequence and
    /// record). 0 when the initiator takes less than a block.
    pub fn sealed_blocks_max(&self, block_bytes: u32, entry_bytes: usize) -> usize {
        let segment_bytes = self.connections.segment_bytes_min().unwrap_or(self.agreed.send_segment_bytes_max);
        let by_segment = segment_bytes.min(self.agreed.max_burst_bytes) / block_bytes.max(1);
        (by_segment as usize).min(ahs::seal_records_max(entry_bytes.max(1), 0))
    }

    /// Commands that the application has.
    pub fn executing(&self) -> usize {
        self.tasks.table().executing_count()
    }

    /// Counters.
    pub fn statistics(&self) -> Statistics {
        Statistics { rejects: self.connections.rejects(), ignored: self.order.ignored(), ..self.tasks.statistics() }
    }

    /// A smaller bound on the memory that writes may pin than [`Config::write_memory_bytes_max`], where many sessions share it. What is
    /// there already stays, and so does what commands may hold behind a missing one: only further writes are held back.
    pub fn set_write_memory_max(&mut self, bytes: u64) {
        self.tasks.set_memory_max(&mut self.connections, bytes);
    }

    /// Answers a `Command`. False when the task is gone (aborted, or the session closed): nothing will be sent.
    ///
    /// # Panics
    /// If the task was completed before: a command has one answer.
    pub fn complete(&mut self, task: TaskId, response: Response) -> bool {
        self.tasks.complete(&mut self.connections, task, response)
    }

    /// Answers `SendTargets`.
    pub fn send_targets(&mut self, connection: ConnectionId, targets: &[TargetEntry]) {
        let exchange = self.connections.get_mut(connection).and_then(|connection| connection.text.as_mut());
        if exchange.is_some_and(|exchange| exchange.set_targets(targets))
            && let Err(flood) = self.connections.send_text(connection)
        {
            self.end(CloseReason::Misbehaved(flood));
        }
    }

    /// Answers a `TaskManagement`. With `Complete`, the tasks that it named are forgotten, and those whose response was being sent are
    /// cut off.
    pub fn answer_task_management(&mut self, id: ManagementId, result: TaskManagementResult) {
        self.answer_function(id, result.into(), [0; 3]);
    }

    /// Answers a query with `Succeeded`, and with what was found: for `QueryAsyncEvent` sense key, code and qualifier.
    pub fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        self.answer_function(id, pdu::TaskManagementResult::Succeeded, found);
    }

    /// Another session clears or resets a logical unit, or all: tasks whose data is still arriving end with the status TASK
    /// ABORTED (TAS=1). Returns those that the application has, which ends them in the same way when they have no effect
    /// any more: an initiator that was told so sends them again. Responses that are being sent are completed.
    pub fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        self.tasks.abort_for_others(&mut self.connections, lun)
    }
}

impl Login {
    /// Lets the connection into `session`, which the initiator has named by its TSIH: the application has seen that it belongs to
    /// the same initiator, and that the session takes it ([`Session::may_add`]).
    pub fn accept_into(&mut self, session: &Session) {
        self.join(session.session_keys(), session.order.window(session.tasks.table()), session.tsih());
    }
}

fn replaced() -> CloseReason {
    CloseReason::ClosedHere("replaced by a new connection with the same CID".to_owned())
}

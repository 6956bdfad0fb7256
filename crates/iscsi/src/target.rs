//! The target's side of one session: PDUs of its connections in, events out, and back. No SCSI semantics: the application executes
//! commands and carries out task management functions.
//!
//! A connection's login is a machine of its own (`login`, `chap`). After it the session decides which request is executed next (`order`,
//! `reorder`), executes tasks (`task_set`: write data in `write`, responses in `respond`, their memory in `memory`), ends them for task
//! management and for connections that go (`functions`), and answers on its connections (`connections`, `outbox`, `text_exchange`).
//! What may have to be sent again is in `retransmit` and, of lost connections, in `lost`.

mod chap;
mod connection;
mod connection_id;
mod connections;
mod functions;
mod login;
mod lost;
mod memory;
mod order;
mod outbox;
mod refusal;
mod reorder;
mod respond;
mod retransmit;
mod segment;
mod sense;
mod task;
mod task_set;
mod tasks;
mod text_exchange;
mod transport;
mod types;
mod write;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use self::connections::Connections;
use self::functions::{FunctionOrigin, FunctionTable, needs_level_2};
use self::lost::{LostConnection, LostConnections};
use self::order::{Arrival, CommandOrder, DataArrival, DueRequest};
use self::reorder::DataOutPdu;
use self::task_set::TaskSet;
use self::text_exchange::SendTargetsScope;
use crate::liveness::Verdict;
use crate::login::{Agreed, LOGIN_SEGMENT_BYTES};
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    self, AsyncEvent, LogoutReason, LogoutRequest, LogoutResult, Lun, Pdu, PduError, RejectReason, Request, TAG_NONE,
    TaskFunction, TaskManagementRequest,
};
use crate::slots::Key;
use crate::{CloseReason, PeerMisbehaved, ahs};

pub use self::chap::{ChapPolicy, ChapUser};
pub use self::connection_id::{ConnectionId, MayAdd};
pub use self::login::Login;
pub use types::{
    ANSWERS_BYTES_HIGH, ANSWERS_BYTES_MAX, ANSWERS_HIGH, ANSWERS_MAX, Command, Config, Direction, Event,
    IMMEDIATE_TASKS_MAX, LoginEvent, LoginRequested, MANAGEMENTS_MAX, ManagementFunction, ManagementId, ReadPart,
    Response, SendTargets, SessionKind, Statistics, TASKS_MAX, TEXT_BYTES_MAX, TargetEntry, TaskId, TaskManagement,
    TaskManagementResult, WriteSegment,
};

/// PDUs that may be damaged in one session before it ends; an initiator of ours counts likewise.
const DAMAGED_MAX: u32 = 4096;
/// As much of Time2Wait as counts when the initiator wants more than we do, in seconds: it must not choose how long a session without a
/// connection stays.
const TIME2WAIT_MAX_S: u16 = 5;

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
    /// If the login is not [`LoginEvent::Done`].
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
    /// If the login is not [`LoginEvent::Done`].
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

    /// Memory that commands of this session take, in bytes: write data that is there or was requested, and responses that wait to be
    /// sent.
    pub fn memory_bytes(&self) -> u64 {
        self.tasks.memory().total() + self.order.buffer().memory_bytes()
    }

    /// Bytes of read data that were not sent yet.
    pub fn unsent_bytes(&self) -> u64 {
        self.tasks.memory().unsent()
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
        let Some(pending) = self.functions.take(id) else { return };
        match (pending.origin, result) {
            (FunctionOrigin::Request { connection, initiator_task_tag, .. }, result)
                if result != TaskManagementResult::Complete =>
            {
                let answered = self.connections.answer_function(connection, initiator_task_tag, result.into(), [0; 3]);
                self.end_on_flood(answered);
            }
            // A connection is closed independently of the answer about its tasks.
            (origin, _) => self.carry_out(origin, pending.tasks),
        }
    }

    /// Answers a query with `Succeeded`, and with what was found: for `QueryAsyncEvent` sense key, code and qualifier.
    pub fn answer_query(&mut self, id: ManagementId, found: [u8; 3]) {
        let Some(pending) = self.functions.take(id) else { return };
        if let FunctionOrigin::Request { connection, initiator_task_tag, .. } = pending.origin {
            let result = pdu::TaskManagementResult::Succeeded;
            let answered = self.connections.answer_function(connection, initiator_task_tag, result, found);
            self.end_on_flood(answered);
        }
    }

    /// Another session clears or resets a logical unit, or all: tasks whose data is still arriving end with the status TASK
    /// ABORTED (TAS=1). Returns those that the application has, which ends them in the same way when they have no effect
    /// any more: an initiator that was told so sends them again. Responses that are being sent are completed.
    pub fn abort_tasks(&mut self, lun: Option<Lun>) -> Vec<TaskId> {
        self.tasks.abort_for_others(&mut self.connections, lun)
    }

    fn take_pdu(&mut self, id: ConnectionId, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let max_bytes = self.config.offer.recv_segment_bytes_max.max(LOGIN_SEGMENT_BYTES) as usize;
        if pdu.data.len() > max_bytes {
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let request = match Request::decode(&pdu.bhs) {
            Ok(request) => request,
            Err(PduError::Opcode(_)) => {
                return self.connections.reject(id, &pdu, RejectReason::CommandNotSupported);
            }
            Err(_) => return self.connections.reject(id, &pdu, RejectReason::InvalidPduField),
        };
        if pdu.sealed {
            write::check_sealed(&request, &pdu, self.config.in_channel)?;
        }
        if let Some(connection) = self.connections.get_mut(id) {
            connection.acknowledge(fields::EXP_STAT_SN.get(&pdu.bhs));
        }
        match &request {
            Request::DataOut(_) | Request::Snack(_) | Request::Login(_) => return self.execute(id, request, pdu),
            Request::TaskManagement(function) => {
                let window = self.order.window(self.tasks.table());
                if self.order.is_early(function, window) {
                    // What it is about has not all come.
                    return match self.order.hold_function(id, pdu) {
                        None => Ok(()),
                        Some(pdu) => self.connections.reject(id, &pdu, RejectReason::TooManyImmediateCommands),
                    };
                }
            }
            _ => {}
        }
        if pdu.bhs.is_immediate() {
            self.execute(id, request, pdu)?;
        } else {
            let window = self.order.window(self.tasks.table());
            match self.order.arrive(id, fields::CMD_SN.get(&pdu.bhs), pdu, window)? {
                Arrival::Due(pdu) => self.execute(id, request, pdu)?,
                Arrival::NotDue => return Ok(()),
            }
        }
        // What waited, as far as nothing is missing any more.
        while let Some(DueRequest { connection, pdu, data }) = self.order.next_due() {
            let request = Request::decode(&pdu.bhs)?;
            self.execute(connection, request, pdu)?;
            for DataOutPdu { header, pdu, is_damaged } in data {
                if is_damaged {
                    self.tasks.lose_data(&mut self.connections, connection, &header, pdu.data.len());
                } else {
                    let command = self.tasks.take_data_out(&mut self.connections, connection, &header, pdu)?;
                    self.events.extend(command.map(Event::Command));
                }
            }
        }
        Ok(())
    }

    fn execute(&mut self, id: ConnectionId, request: Request, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        if self.is_closed {
            return Ok(());
        }
        let is_for_units = matches!(request, Request::ScsiCommand(_) | Request::TaskManagement(_));
        if self.kind == SessionKind::Discovery && is_for_units {
            return self.connections.reject(id, &pdu, RejectReason::CommandNotSupported);
        }
        let connections = &mut self.connections;
        match request {
            Request::NopOut(nop) if nop.initiator_task_tag == TAG_NONE => {
                // The answer to our ping: everything that was sent before it has arrived.
                self.functions.take_ping_answer(id, nop.target_transfer_tag);
                connections.send_due_responses(&mut self.functions)
            }
            Request::NopOut(nop) => connections.get_mut(id).map_or(Ok(()), |open| open.echo(&nop, &pdu.data)),
            Request::ScsiCommand(command) => {
                let command = self.tasks.start(connections, &mut self.lost, id, &command, pdu)?;
                self.events.extend(command.map(Event::Command));
                Ok(())
            }
            Request::DataOut(header) => match self.order.offer_data(id, header, pdu, false)? {
                DataArrival::Due(pdu) => {
                    let command = self.tasks.take_data_out(connections, id, &header, pdu)?;
                    self.events.extend(command.map(Event::Command));
                    Ok(())
                }
                DataArrival::Waits => Ok(()),
                DataArrival::Refused(pdu) => connections.reject(id, &pdu, RejectReason::InvalidPduField),
            },
            Request::Snack(snack) => match self.tasks.take_snack(connections, id, &snack) {
                true => Ok(()),
                false => connections.reject(id, &pdu, RejectReason::SnackReject),
            },
            Request::TaskManagement(request) => self.handle_function(id, request, &pdu),
            Request::Text(text) => {
                let all_in_normal_session = self.config.send_targets_all_in_normal_session;
                let scope = SendTargetsScope { kind: &self.kind, all_in_normal_session };
                let wanted = connections.take_text(id, &text, &pdu, scope)?;
                self.events.extend(wanted.map(|targets| Event::SendTargets(id, targets)));
                Ok(())
            }
            Request::Logout(logout) => self.handle_logout(id, logout),
            Request::Login(_) => connections.reject(id, &pdu, RejectReason::ProtocolError),
        }
    }

    fn handle_function(
        &mut self,
        id: ConnectionId,
        request: TaskManagementRequest,
        pdu: &Pdu,
    ) -> Result<(), PeerMisbehaved> {
        if self.functions.is_full() {
            return self.connections.reject(id, pdu, RejectReason::TooManyImmediateCommands);
        }
        let (tag, lun) = (request.initiator_task_tag, request.lun);
        let code = TaskFunction::from_code(request.function)
            .filter(|function| !needs_level_2(*function) || self.agreed.protocol_level >= 2);
        let Some(code) = code else {
            return self.connections.answer_function(id, tag, pdu::TaskManagementResult::NotSupported, [0; 3]);
        };
        let referenced = self.tasks.table().key_of(request.referenced_task_tag);
        let (function, keys) = match (code, referenced) {
            (TaskFunction::AbortTask, Some(key)) if self.tasks.table().is_executing(key) => {
                (ManagementFunction::AbortTask(TaskId::from(key)), vec![key])
            }
            (TaskFunction::AbortTask, Some(key)) => {
                self.tasks.abort(&mut self.connections, key);
                return self.connections.answer_function(id, tag, pdu::TaskManagementResult::Complete, [0; 3]);
            }
            (TaskFunction::AbortTask, None) => {
                // Answered already, or not here yet: the initiator waits for a response that is on its way, or for none.
                let window = self.order.window(self.tasks.table());
                let result = match self.order.abort_unseen(&request, window) {
                    true => pdu::TaskManagementResult::Complete,
                    false => pdu::TaskManagementResult::TaskDoesNotExist,
                };
                return self.connections.answer_function(id, tag, result, [0; 3]);
            }
            (TaskFunction::TaskReassign, _) => {
                let (connections, lost) = (&mut self.connections, &mut self.lost);
                let (result, task) = self.tasks.reassign(connections, lost, id, &request);
                connections.answer_function(id, tag, result, [0; 3])?;
                let command = task.and_then(|key| self.tasks.go_on(connections, key));
                self.events.extend(command.map(Event::Command));
                return Ok(());
            }
            (TaskFunction::QueryTask, key) => {
                let is_there = key.and_then(|key| self.tasks.table().get(key)).is_some_and(|task| task.lun == lun);
                let result = match is_there {
                    true => pdu::TaskManagementResult::Succeeded,
                    false => pdu::TaskManagementResult::Complete,
                };
                return self.connections.answer_function(id, tag, result, [0; 3]);
            }
            (code, _) => self.tasks.table().function_for_many(code, &request),
        };
        let executing = self.tasks.freeze(&mut self.connections, &keys);
        let concerns_many = !matches!(function, ManagementFunction::AbortTask(_)) && !keys.is_empty();
        let origin = FunctionOrigin::Request { connection: id, initiator_task_tag: tag, concerns_many };
        self.events.push_back(self.functions.ask(origin, function, keys, executing));
        Ok(())
    }

    fn handle_logout(&mut self, id: ConnectionId, logout: LogoutRequest) -> Result<(), PeerMisbehaved> {
        const SESSION: u8 = LogoutReason::CloseSession as u8;
        const CONNECTION: u8 = LogoutReason::CloseConnection as u8;
        const RECOVERY: u8 = LogoutReason::RemoveForRecovery as u8;
        let (tag, cid) = (logout.initiator_task_tag, logout.cid);
        let named = self.connections.with_cid(cid).filter(|connection| !connection.is_leaving);
        let named = named.map(|connection| connection.id);
        let is_last = named.is_some() && self.connections.count() == 1;
        let result = match logout.reason {
            SESSION => LogoutResult::Closed,
            CONNECTION if is_last => LogoutResult::Closed,
            CONNECTION => match named.or_else(|| self.lost.take_cid(cid).map(|lost| lost.id)) {
                // Answered when its tasks have ended.
                Some(closes) => {
                    let origin = FunctionOrigin::Logout { connection: id, initiator_task_tag: tag, closes, cid };
                    self.end_connection_tasks(closes, origin);
                    return Ok(());
                }
                None => LogoutResult::CidNotFound,
            },
            RECOVERY if self.agreed.error_recovery_level < 2 => LogoutResult::RecoveryNotSupported,
            RECOVERY if named.is_none() && !self.lost.has_cid(cid) => LogoutResult::CidNotFound,
            RECOVERY => LogoutResult::Closed,
            _ => LogoutResult::RecoveryNotSupported,
        };
        self.connections.answer_logout(id, tag, result, &self.agreed)?;
        match (result, named) {
            (LogoutResult::Closed, Some(named)) if logout.reason == RECOVERY => {
                self.lose(named, CloseReason::LoggedOut);
            }
            (LogoutResult::Closed, _) if logout.reason != RECOVERY => self.end(CloseReason::LoggedOut),
            _ => {}
        }
        Ok(())
    }

    /// A connection is lost. At error recovery level 2 its tasks wait for another one; below that the session ends.
    fn lose(&mut self, id: ConnectionId, reason: CloseReason) {
        if self.agreed.error_recovery_level < 2 {
            return self.end(reason);
        }
        let Some(connection) = self.connections.any_mut(id) else { return };
        let cid = connection.cid;
        let (retransmit, repeats) = connection.set_aside();
        self.tasks.set_aside(&repeats);
        // The initiator sends again, under the same number, what it has not seen acknowledged.
        self.order.forget(id);
        let wait_s = self.agreed.time2wait_s.min(TIME2WAIT_MAX_S.max(self.config.offer.time2wait_s));
        let seconds = u64::from(wait_s) + u64::from(self.agreed.time2retain_s);
        let until = self.now + Duration::from_secs(seconds);
        self.lost.add(LostConnection { id, cid, until, retransmit, repeats });
        while let Some(oldest) = self.lost.take_excess(usize::from(self.agreed.connections_max.max(1))) {
            let origin = FunctionOrigin::ConnectionEnd { closes: oldest.id, cid: oldest.cid };
            self.end_connection_tasks(oldest.id, origin);
        }
        self.close_connection(id, reason);
    }

    /// Ends the tasks of a connection, which accepts nothing any more: none may take effect once the initiator knows that it is gone.
    /// `origin` is answered when the application has none of them any more.
    fn end_connection_tasks(&mut self, id: ConnectionId, origin: FunctionOrigin) {
        if let Some(connection) = self.connections.any_mut(id) {
            connection.is_leaving = true;
        }
        self.order.end(id);
        let keys = self.tasks.table().keys_on(id);
        let executing = self.tasks.freeze(&mut self.connections, &keys);
        if executing.is_empty() {
            return self.carry_out(origin, keys);
        }
        let function = ManagementFunction::ConnectionEnded;
        self.events.push_back(self.functions.ask(origin, function, keys, executing));
    }

    /// Tasks have ended at the application: none of `keys` can have an effect any more.
    fn carry_out(&mut self, origin: FunctionOrigin, keys: Vec<Key>) {
        for key in keys {
            self.tasks.abort(&mut self.connections, key);
        }
        match origin {
            FunctionOrigin::Request { connection, initiator_task_tag, concerns_many } => {
                let pings = if concerns_many { self.connections.ping_others(connection) } else { Vec::new() };
                self.functions.hold_response(connection, initiator_task_tag, pings);
                let sent = self.connections.send_due_responses(&mut self.functions);
                self.end_on_flood(sent);
            }
            FunctionOrigin::Logout { connection, initiator_task_tag, closes, .. } => {
                let (result, keys) = (LogoutResult::Closed, &self.agreed);
                match self.connections.answer_logout(connection, initiator_task_tag, result, keys) {
                    Ok(()) => self.close_connection(closes, CloseReason::LoggedOut),
                    Err(flood) => self.end(CloseReason::Misbehaved(flood)),
                }
            }
            FunctionOrigin::ConnectionEnd { closes, .. } => self.close_connection(closes, replaced()),
        }
    }

    /// Ends one connection. Its last answers may still be sent.
    fn close_connection(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(turns) = self.connections.close(id) else { return };
        self.tasks.forget_turns(turns);
        self.events.push_back(Event::ConnectionClosed { connection: id, reason });
        self.functions.drop_connection(id);
        let sent = self.connections.send_due_responses(&mut self.functions);
        self.end_on_flood(sent);
    }

    fn end_on_flood(&mut self, answered: Result<(), PeerMisbehaved>) {
        if let Err(flood) = answered {
            self.end(CloseReason::Misbehaved(flood));
        }
    }

    /// The end of the session. What waits in the outboxes may still be sent; tasks are gone.
    fn end(&mut self, reason: CloseReason) {
        if std::mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.connections.close_all();
        self.lost.clear();
        self.order.clear();
        self.tasks.clear();
        self.functions.clear();
        self.events.push_back(Event::Closed(reason));
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

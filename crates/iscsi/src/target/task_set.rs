//! The tasks of a session in execution: arriving write data until a command is complete, responses until they are sent, and what error
//! recovery does to both (RFC 7143 §7). Their order is decided in `order`; what each connection has of its own is in `connections`.

use super::connection::Connection;
use super::connection_id::ConnectionId;
use super::connections::Connections;
use super::lost::LostConnections;
use super::memory::{SessionMemory, Solicitation};
use super::respond::{RepeatedResponse, ResponsePdu, ResponseTransfer, Turn, can_send};
use super::retransmit::Resumption;
use super::segment::DataSegment;
use super::sense::{self, Sense};
use super::task::{Task, TaskPhase};
use super::tasks::TaskTable;
use super::types::{Command, Config, Direction, Response, Statistics, TaskId};
use super::write::{DataOutFault, Unsolicited, WriteLimits, WriteNeed, memory_bytes};
use crate::login::Agreed;
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    DataIn, DataOut, Lun, Pdu, RejectReason, ScsiCommand, ScsiResponse, Sequence, SnackRequest, TAG_NONE,
    TaskManagementRequest, TaskManagementResult,
};
use crate::slots::Key;
use crate::{PeerMisbehaved, Serial, ahs};

/// All tasks of a session, with the memory that they take.
#[derive(Debug)]
pub(super) struct TaskSet {
    table: TaskTable,
    memory: SessionMemory,
    limits: WriteLimits,
    in_channel: bool,
    max_burst_bytes: u32,
    error_recovery_level: u8,
    /// Counts what is done here; rejects and ignored commands are counted where they happen.
    statistics: Statistics,
}

impl TaskSet {
    pub(super) fn new(config: &Config, session: &Agreed) -> TaskSet {
        TaskSet {
            table: TaskTable::new(config.queue_depth),
            memory: SessionMemory::new(config.write_memory_bytes_max),
            limits: WriteLimits::new(config, session),
            in_channel: config.in_channel,
            max_burst_bytes: session.max_burst_bytes,
            error_recovery_level: session.error_recovery_level,
            statistics: Statistics::default(),
        }
    }

    pub(super) fn table(&self) -> &TaskTable {
        &self.table
    }

    pub(super) fn memory(&self) -> &SessionMemory {
        &self.memory
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// Sets the bound on the memory of writes.
    pub(super) fn set_memory_max(&mut self, connections: &mut Connections, bytes: u64) {
        if self.memory.set_max(bytes) {
            self.admit(connections);
        }
    }

    /// Whether there is so much unsolicited data that no more should be read before some of it is done with. Not while a write lacks
    /// data: it would wait without end.
    pub(super) fn is_full_of_data(&self) -> bool {
        self.memory.is_nearly_full() && !self.table.any_receiving()
    }

    /// Starts the task of a command whose turn has come; returns the command if it needs no more data.
    pub(super) fn start(
        &mut self,
        connections: &mut Connections,
        lost: &mut LostConnections,
        id: ConnectionId,
        command: &ScsiCommand,
        pdu: Pdu,
    ) -> Result<Option<Command>, PeerMisbehaved> {
        let tag = command.initiator_task_tag;
        let fault = if tag == TAG_NONE || (command.read && command.write) {
            Some(RejectReason::InvalidPduField)
        } else if self.table.key_of(tag).is_some() || self.is_repeated(connections, tag) {
            Some(RejectReason::TaskInProgress)
        } else if command.immediate && !self.table.admits_immediate() {
            Some(RejectReason::TooManyImmediateCommands)
        } else {
            None
        };
        if let Some(reason) = fault {
            connections.reject(id, &pdu, reason)?;
            return Ok(None);
        }
        connections.retire_tag(tag);
        lost.retire_tag(tag);
        let task = Task::new(id, command, &pdu);
        let (direction, expected) = (task.direction, task.expected_bytes);
        let key = self.table.insert(task);
        if direction != Direction::Write {
            if pdu.data.is_empty() {
                return Ok(self.hand_over(key));
            }
            self.fail(connections, key, sense::UNEXPECTED_UNSOLICITED_DATA);
            return Ok(None);
        }
        let unsolicited = match Unsolicited::of(expected, command.is_final, &pdu, &self.limits) {
            Ok(unsolicited) => unsolicited,
            Err(sense) => {
                self.fail(connections, key, sense);
                return Ok(None);
            }
        };
        let unsolicited_bytes = unsolicited.memory_bytes(&self.limits);
        if !self.memory.admit_unsolicited(unsolicited_bytes) {
            self.fail_with(connections, key, Response::task_set_full());
            return Ok(None);
        }
        let Some(task) = self.table.get_mut(key) else { return Ok(None) };
        task.unsolicited_bytes = unsolicited_bytes;
        let Some(transfer) = task.receiving() else { return Ok(None) };
        transfer.start(&unsolicited, pdu);
        Ok(self.go_on(connections, key))
    }

    /// Takes write data; returns the command if it is complete with it.
    pub(super) fn take_data_out(
        &mut self,
        connections: &mut Connections,
        id: ConnectionId,
        header: &DataOut,
        pdu: Pdu,
    ) -> Result<Option<Command>, PeerMisbehaved> {
        let tag = header.initiator_task_tag;
        // RFC 7143 §4.2.2: data comes on the connection that brought the command.
        let key = self.key_on(id, tag);
        let task = key.and_then(|key| Some((key, self.table.get_mut(key)?)));
        let Some((key, Task { expected_bytes, r2t_count, phase: TaskPhase::Receiving(transfer), .. })) = task else {
            if !self.table.has_ended(tag) {
                connections.reject(id, &pdu, RejectReason::InvalidPduField)?;
            }
            return Ok(None);
        };
        let len = pdu.data.len();
        if transfer.is_broken() {
            return Ok(self.skip_data(connections, key, header, len));
        }
        match transfer.check(header, len, *expected_bytes, *r2t_count) {
            Ok(()) => {}
            Err(DataOutFault::NoSequence) => {
                connections.reject(id, &pdu, RejectReason::InvalidPduField)?;
                return Ok(None);
            }
            Err(DataOutFault::Fails(sense)) => {
                self.fail(connections, key, sense);
                return Ok(None);
            }
        }
        if len > 0 && !self.count_memory(key, header.target_transfer_tag == TAG_NONE, memory_bytes(&pdu)) {
            self.fail_with(connections, key, Response::task_set_full());
            return Ok(None);
        }
        let is_over = self.table.receiving(key).is_some_and(|transfer| transfer.take(header, pdu));
        Ok(if is_over { self.go_on(connections, key) } else { None })
    }

    /// Counts memory that the data of a write takes; false if there is none.
    fn count_memory(&mut self, key: Key, is_unsolicited: bool, bytes: u64) -> bool {
        let Some(task) = self.table.get_mut(key) else { return false };
        let Task { phase: TaskPhase::Receiving(transfer), unsolicited_bytes, reserved_bytes, .. } = task else {
            return false;
        };
        match is_unsolicited {
            true => {
                let used = &mut transfer.unsolicited_memory;
                self.memory.grow(Solicitation::Unsolicited, used, unsolicited_bytes, bytes)
            }
            false => self.memory.grow(Solicitation::Solicited, &mut transfer.solicited_memory, reserved_bytes, bytes),
        }
    }

    /// Data of a write was damaged: the rest of the open sequences is dropped, and all of it is requested again when they are over. Data
    /// must come in order here.
    pub(super) fn lose_data(&mut self, connections: &mut Connections, id: ConnectionId, header: &DataOut, len: usize) {
        let Some(key) = self.key_on(id, header.initiator_task_tag) else { return };
        let Some(transfer) = self.table.receiving(key) else { return };
        if transfer.break_off(header.target_transfer_tag) {
            let command = self.skip_data(connections, key, header, len);
            debug_assert!(command.is_none(), "data is missing");
        }
    }

    /// Counts a Data-Out whose data cannot be used.
    fn skip_data(&mut self, connections: &mut Connections, key: Key, header: &DataOut, len: usize) -> Option<Command> {
        let is_over = self.table.receiving(key)?.skip(header, len);
        if is_over { self.go_on(connections, key) } else { None }
    }

    fn key_on(&self, id: ConnectionId, tag: u32) -> Option<Key> {
        let key = self.table.key_of(tag)?;
        self.table.get(key).filter(|task| task.connection == id).map(|_| key)
    }

    /// Hands a write over when it is complete; else requests more, once there is memory for it.
    pub(super) fn go_on(&mut self, connections: &mut Connections, key: Key) -> Option<Command> {
        let task = self.table.get_mut(key)?;
        let expected = task.expected_bytes;
        let transfer = task.receiving()?;
        match transfer.need(expected) {
            WriteNeed::Nothing => return self.hand_over(key),
            WriteNeed::MoreData => {}
            WriteNeed::R2ts => self.request_data(connections, key),
            WriteNeed::Memory => {
                if !std::mem::replace(&mut transfer.waits_for_memory, true) {
                    self.memory.wait(key);
                }
                self.admit(connections);
            }
        }
        None
    }

    /// Reserves memory for waiting writes in order, entire transfers at a time, so that none starves half way.
    fn admit(&mut self, connections: &mut Connections) {
        while let Some(key) = self.memory.first_waiting() {
            if let Some(Task { phase: TaskPhase::Receiving(transfer), expected_bytes, reserved_bytes, .. }) =
                self.table.get_mut(key)
            {
                let wanted = self.limits.memory_for(*expected_bytes);
                if !self.memory.reserve(wanted) {
                    return;
                }
                transfer.is_admitted = true;
                *reserved_bytes = wanted;
                self.memory.stop_waiting();
                self.request_data(connections, key);
            } else {
                self.memory.stop_waiting();
            }
        }
    }

    /// Sends R2Ts until as many are in flight as agreed.
    fn request_data(&mut self, connections: &mut Connections, key: Key) {
        let Some(task) = self.table.get_mut(key) else { return };
        let id = task.connection;
        if !connections.is_listening(id) {
            // Requested when another connection takes the task over.
            return;
        }
        let (names, expected) = ((key, task.initiator_task_tag, task.lun), task.expected_bytes);
        let TaskPhase::Receiving(transfer) = &mut task.phase else { return };
        while let Some(r2t) = transfer.next_r2t(names, expected, task.r2t_count, &self.limits) {
            task.r2t_count += 1;
            connections.send_r2t(id, &r2t);
        }
    }

    /// Gives a command to the application.
    fn hand_over(&mut self, key: Key) -> Option<Command> {
        let task = self.table.get_mut(key)?;
        let TaskPhase::Receiving(transfer) = std::mem::replace(&mut task.phase, TaskPhase::Executing) else {
            return None;
        };
        self.statistics.commands += 1;
        self.statistics.bytes_written += u64::from(transfer.received());
        Some(Command {
            task: TaskId::from(key),
            lun: task.lun,
            cdb: task.cdb,
            parameters: ahs::parameters(&std::mem::take(&mut task.ahs)),
            attribute: task.attribute,
            direction: task.direction,
            expected_bytes: task.expected_bytes,
            immediate: task.immediate,
            data: transfer.into_segments(),
        })
    }

    /// The application answers a command; false if the task is gone.
    ///
    /// # Panics
    /// If the task was completed before.
    pub(super) fn complete(&mut self, connections: &mut Connections, task: TaskId, response: Response) -> bool {
        let key = Key::from(task);
        if self.table.get(key).is_none() {
            return false;
        }
        assert!(self.table.is_executing(key), "a command is completed once");
        self.respond(connections, key, response);
        true
    }

    /// Ends a task whose data never reached the application.
    fn fail(&mut self, connections: &mut Connections, key: Key, sense: Sense) {
        self.fail_with(connections, key, Response::check_condition(sense.encode()));
    }

    /// The same, with any status.
    fn fail_with(&mut self, connections: &mut Connections, key: Key, response: Response) {
        let Some(task) = self.table.get(key) else { return };
        let tag = task.initiator_task_tag;
        connections.withdraw_r2ts(tag);
        self.table.remember_ended(tag);
        self.respond(connections, key, Response { wanted_bytes: Some(0), ..response });
    }

    fn respond(&mut self, connections: &mut Connections, key: Key, response: Response) {
        let Some(task) = self.table.get_mut(key) else { return };
        let id = task.connection;
        let is_sendable = sendability(connections, id, self.in_channel);
        let transfer =
            ResponseTransfer::new(response, task.direction, task.expected_bytes, self.in_channel, is_sendable);
        self.statistics.count_residual(transfer.residual());
        self.memory.add_unsent(transfer.unsent_bytes());
        task.phase = TaskPhase::Responding(transfer);
        let reserved_bytes = std::mem::take(&mut task.reserved_bytes);
        // Its data is released, though the response may wait long: for a connection that takes the task over.
        self.memory.release_unsolicited(std::mem::take(&mut task.unsolicited_bytes));
        connections.take_turn(id, Turn::Task(key));
        self.release_reserved(connections, reserved_bytes);
    }

    fn release_reserved(&mut self, connections: &mut Connections, bytes: u64) {
        if bytes > 0 {
            self.memory.release_reserved(bytes);
            self.admit(connections);
        }
    }

    /// Sends a response once more, of a task that is over.
    fn repeat(&mut self, connections: &mut Connections, id: ConnectionId, mut repeated: RepeatedResponse) {
        repeated.transfer.require(sendability(connections, id, self.in_channel));
        self.memory.add_unsent(repeated.transfer.unsent_bytes());
        connections.take_turn(id, Turn::Repeat(Box::new(repeated)));
    }

    /// Has a response of `key` go back to what has to be sent once more, on a connection.
    fn restart_response(
        &mut self,
        connections: &Connections,
        key: Key,
        id: ConnectionId,
        resumption: Option<Resumption>,
        snack_tag: u32,
    ) {
        let Some(transfer) = self.table.responding(key) else { return };
        let before = transfer.unsent_bytes();
        transfer.resume(resumption);
        transfer.set_snack_tag(snack_tag);
        transfer.require(sendability(connections, id, self.in_channel));
        let after = transfer.unsent_bytes();
        self.memory.release_unsent(before);
        self.memory.add_unsent(after);
    }

    /// A connection is lost; these responses, which it was repeating, are not sent by it.
    pub(super) fn set_aside(&mut self, repeats: &[RepeatedResponse]) {
        for repeated in repeats {
            self.memory.release_unsent(repeated.transfer.unsent_bytes());
        }
    }

    /// The responses of a closed connection are not sent.
    pub(super) fn forget_turns(&mut self, turns: impl IntoIterator<Item = Turn>) {
        for turn in turns {
            if let Turn::Repeat(repeated) = turn {
                self.memory.release_unsent(repeated.transfer.unsent_bytes());
            }
        }
    }

    /// The next PDU of the response whose turn it is on a connection.
    pub(super) fn next_response(
        &mut self,
        connections: &mut Connections,
        id: ConnectionId,
        exp_cmd_sn: Serial,
    ) -> Option<Pdu> {
        loop {
            let connection = connections.get_mut(id)?;
            let mut turn = connection.responding.pop_front()?;
            connection.liveness.sent();
            let segment_bytes_max = connection.agreed.send_segment_bytes_max;
            let (transfer, tag, r2t_count, stat_sn, lun) = match &mut turn {
                Turn::Task(key) => {
                    let Some(task) = self.table.get_mut(*key) else { continue };
                    let (tag, r2t_count, lun) = (task.initiator_task_tag, task.r2t_count, task.lun);
                    let Some(transfer) = task.responding() else { continue };
                    (transfer, tag, r2t_count, None, Some(lun))
                }
                Turn::Repeat(repeated) => {
                    let RepeatedResponse { initiator_task_tag, r2t_count, stat_sn, transfer } = &mut **repeated;
                    (transfer, *initiator_task_tag, *r2t_count, *stat_sn, None)
                }
            };
            return Some(match transfer.next_pdu(tag, r2t_count, segment_bytes_max, self.max_burst_bytes) {
                ResponsePdu::Status { mut header, ahs, data, snack_tag } => {
                    self.end_turn(turn);
                    let numbers = self.numbers(connection, exp_cmd_sn, stat_sn.is_none());
                    header.sequence = Sequence { stat_sn: stat_sn.unwrap_or(numbers.stat_sn), ..numbers };
                    let mut bhs = header.encode();
                    ScsiResponse::put_snack_tag(&mut bhs, snack_tag);
                    let pdu = Pdu::new(bhs, ahs, data, false);
                    connection.store(&pdu, 0);
                    pdu
                }
                ResponsePdu::Data { header, segment, is_last_of_burst } => {
                    let asks = lun.filter(|_| self.error_recovery_level > 0 && is_last_of_burst);
                    self.data_in(connection, turn, header, segment, (exp_cmd_sn, asks))
                }
            });
        }
    }

    /// A Data-In; the last one may carry the status. `asks`: the unit of a task whose initiator shall acknowledge data.
    fn data_in(
        &mut self,
        connection: &mut Connection,
        turn: Turn,
        mut header: DataIn,
        segment: DataSegment,
        (exp_cmd_sn, asks): (Serial, Option<Lun>),
    ) -> Pdu {
        let DataSegment { data, ahs, sealed, covers_bytes } = segment;
        self.statistics.bytes_read += data.len() as u64;
        self.memory.release_unsent(data.len() as u64);
        if header.status.is_some() {
            // The place that becomes free shows in MaxCmdSN of this very PDU.
            self.end_turn(turn);
            header.sequence = self.numbers(connection, exp_cmd_sn, true);
        } else {
            // RFC 7143 §11.7.4: StatSN is reserved without the S bit.
            header.sequence = Sequence { stat_sn: Serial(0), ..self.numbers(connection, exp_cmd_sn, false) };
            connection.responding.push_back(turn);
        }
        let mut bhs = header.encode();
        if let Some(lun) = asks {
            // Once per burst at most (§11.7.2). The task's own tag names it.
            DataIn::ask_acknowledgement(&mut bhs, lun, header.initiator_task_tag);
        }
        let pdu = Pdu::new(bhs, ahs, data, sealed);
        connection.store(&pdu, covers_bytes);
        pdu
    }

    /// The sequence numbers of the next PDU of a connection; `uses` a StatSN.
    fn numbers(&self, connection: &mut Connection, exp_cmd_sn: Serial, uses: bool) -> Sequence {
        let window = self.table.window(exp_cmd_sn);
        match uses {
            true => connection.outbox.use_numbers(window),
            false => connection.outbox.numbers(window),
        }
    }

    /// A response is complete: what is left of it is dropped, and the task ends.
    fn end_turn(&mut self, turn: Turn) {
        match turn {
            Turn::Task(key) => drop(self.remove(key)),
            Turn::Repeat(repeated) => self.memory.release_unsent(repeated.transfer.unsent_bytes()),
        }
    }

    /// Forgets a task and releases what it held, but for reserved memory, which the caller releases.
    fn remove(&mut self, key: Key) -> Option<Task> {
        let mut task = self.table.remove(key)?;
        if let Some(transfer) = task.responding() {
            self.memory.release_unsent(transfer.unsent_bytes());
        }
        self.memory.release_unsolicited(task.unsolicited_bytes);
        Some(task)
    }

    /// Ends a task without a response.
    pub(super) fn abort(&mut self, connections: &mut Connections, key: Key) {
        let Some(task) = self.remove(key) else { return };
        self.release_reserved(connections, task.reserved_bytes);
        self.table.remember_ended(task.initiator_task_tag);
        connections.forget_task(task.connection, task.initiator_task_tag);
    }

    /// Ends the tasks among `keys` whose data is still arriving: they must not start once a function that ends them was asked for.
    /// Returns those that the application has.
    pub(super) fn freeze(&mut self, connections: &mut Connections, keys: &[Key]) -> Vec<TaskId> {
        let mut executing = Vec::new();
        for &key in keys {
            if self.table.is_receiving(key) {
                self.abort(connections, key);
            } else if self.table.is_executing(key) {
                executing.push(TaskId::from(key));
            }
        }
        executing
    }

    /// Another session ended the tasks of a unit: those whose data is still arriving get the status TASK ABORTED. Returns those that
    /// the application has.
    pub(super) fn abort_for_others(&mut self, connections: &mut Connections, lun: Option<Lun>) -> Vec<TaskId> {
        let mut executing = Vec::new();
        for key in self.table.keys_of(lun) {
            if self.table.is_executing(key) {
                executing.push(TaskId::from(key));
            } else if self.table.is_receiving(key) {
                self.fail_with(connections, key, Response::task_aborted());
            }
        }
        executing
    }

    /// Whether the response to an older task of this tag is being sent once more.
    fn is_repeated(&self, connections: &Connections, tag: u32) -> bool {
        self.error_recovery_level > 0 && connections.repeats(tag)
    }

    /// Takes a SNACK (RFC 7143 §11.16); false if what it asks for cannot be sent.
    pub(super) fn take_snack(&mut self, connections: &mut Connections, id: ConnectionId, snack: &SnackRequest) -> bool {
        const R_DATA: u8 = 3;
        match snack.kind {
            R_DATA => self.segment_again(connections, id, snack),
            _ => connections.get_mut(id).is_none_or(|connection| connection.grant_snack(snack)),
        }
    }

    /// R-Data SNACK (RFC 7143 §11.16.3): the initiator takes other lengths than before, and has thrown away what of a read it did not
    /// acknowledge. It is segmented again, and the status comes in a SCSI Response that has the SNACK's tag. False if that cannot be.
    fn segment_again(&mut self, connections: &mut Connections, id: ConnectionId, snack: &SnackRequest) -> bool {
        let (tag, snack_tag) = (snack.initiator_task_tag, snack.target_transfer_tag);
        if [0, TAG_NONE].contains(&snack_tag) || self.is_repeated(connections, tag) {
            return false;
        }
        let Some(buffer) = connections.any_mut(id).and_then(|connection| connection.retransmit.as_mut()) else {
            return false;
        };
        if let Some(key) = self.table.key_of(tag) {
            let task = self.table.get(key).filter(|task| task.connection == id && task.direction == Direction::Read);
            let Some(Task { phase: TaskPhase::Responding(transfer), .. }) = task else { return false };
            let position = transfer.position();
            let resumption = if buffer.has_sent(tag) { buffer.take_unacknowledged(tag) } else { Some(position) };
            let is_stored = resumption.is_some();
            if is_stored {
                self.restart_response(connections, key, id, resumption, snack_tag);
            }
            return is_stored;
        }
        let Some(answer) = buffer.answer_to(tag).cloned() else { return false };
        let Some(resumption) = buffer.take_unacknowledged(tag) else { return false };
        let Some(mut repeated) = RepeatedResponse::of(tag, &answer, Some(resumption)) else { return false };
        // §11.16.3: under the number that the status had.
        repeated.stat_sn = Some(fields::STAT_SN.get(&answer.bhs));
        repeated.transfer.set_snack_tag(snack_tag);
        self.repeat(connections, id, repeated);
        true
    }

    /// TASK REASSIGN (RFC 7143 §7.2.2): a task of a lost connection goes on with the one that asks. The result is sent first; then
    /// what is still missing of a write, the task that is returned, may be requested.
    pub(super) fn reassign(
        &mut self,
        connections: &mut Connections,
        lost: &mut LostConnections,
        id: ConnectionId,
        request: &TaskManagementRequest,
    ) -> (TaskManagementResult, Option<Key>) {
        if self.error_recovery_level < 2 {
            return (TaskManagementResult::ReassignNotSupported, None);
        }
        let (tag, first) = (request.referenced_task_tag, request.exp_data_sn);
        let Some(key) = self.table.key_of(tag) else {
            return match lost.response_to(tag, first) {
                Some(repeated) => {
                    self.repeat(connections, id, repeated);
                    (TaskManagementResult::Complete, None)
                }
                None => (TaskManagementResult::TaskDoesNotExist, None),
            };
        };
        let Some(task) = self.table.get_mut(key).filter(|task| lost.contains(task.connection)) else {
            return (TaskManagementResult::TaskStillAllegiant, None);
        };
        let from = std::mem::replace(&mut task.connection, id);
        match &mut task.phase {
            TaskPhase::Receiving(transfer) => transfer.start_over(),
            TaskPhase::Executing => {}
            TaskPhase::Responding(transfer) => {
                let resumption = lost.resume(from, tag, first, transfer.position());
                self.restart_response(connections, key, id, resumption, 0);
                connections.take_turn(id, Turn::Task(key));
            }
        }
        (TaskManagementResult::Complete, Some(key))
    }

    /// The session is over.
    pub(super) fn clear(&mut self) {
        self.table.clear();
        self.memory.clear();
    }
}

/// Whether a segment can be sent on a connection.
fn sendability(connections: &Connections, id: ConnectionId, in_channel: bool) -> impl Fn(&DataSegment) -> bool {
    let segment_bytes_max = connections.get(id).map(|connection| connection.agreed.send_segment_bytes_max);
    move |segment: &DataSegment| can_send(segment, segment_bytes_max, in_channel)
}

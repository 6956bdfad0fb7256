//! The commands of a session: their slots, their place in the command window, and what their answers do to them.

use std::collections::VecDeque;

use super::connection::{Connection, NextTurn, REQUESTS_MAX};
use super::connection_id::ConnectionId;
use super::connections::Connections;
use super::functions::Ends;
use super::requests::{self, ControlTags, SNACK_DATA, key_of, task_id};
use super::task::{EarlyResponse, PduData, Task, misplaced};
use super::types::{Command, Completed, DataIn, Direction, Event, TaskId};
use super::window::CommandWindow;
use crate::login::Agreed;
use crate::pdu::{self, Pdu, R2t, ScsiCommand, ScsiResponse};
use crate::slots::{Key, Slots};
use crate::{PeerMisbehaved, Residual, Serial};

/// A response that stands for "unknown": the task was gone when it was to be reassigned (RFC 7143 §11.4.3: target failure).
const RESPONSE_TARGET_FAILURE: u8 = 1;

/// All commands that are not over.
#[derive(Debug)]
pub(super) struct TaskSet {
    slots: Slots<Task>,
    pub(super) window: CommandWindow,
    pub(super) tags: ControlTags,
    /// Commands that have no connection at present.
    unassigned: Vec<Key>,
}

impl TaskSet {
    pub(super) fn new() -> TaskSet {
        TaskSet {
            slots: Slots::new(),
            window: CommandWindow::new(),
            tags: ControlTags::default(),
            unassigned: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Task> {
        self.slots.get(key)
    }

    pub(super) fn has_unassigned(&self) -> bool {
        !self.unassigned.is_empty()
    }

    /// Whether the task of this tag is over.
    pub(super) fn is_over(&self, initiator_task_tag: u32) -> bool {
        self.slots.get(key_of(TaskId(initiator_task_tag))).is_none()
    }

    /// Adds a command, to be sent on a connection when the window lets it.
    pub(super) fn submit(&mut self, connection: &mut Connection, command: Command) -> TaskId {
        connection.add_load(&command);
        let key = self.slots.insert_with(|_| Task::new(command, connection.id));
        connection.waiting.push_back(key);
        task_id(key)
    }

    /// The next PDU of a command or a write on a connection.
    pub(super) fn next_pdu(&mut self, connection: &mut Connection) -> Option<Pdu> {
        match connection.next_turn(self.window.is_open()) {
            NextTurn::Command => self.next_command(connection),
            NextTurn::Burst => self.next_data_out(connection),
            NextTurn::Nothing => None,
        }
    }

    fn next_command(&mut self, connection: &mut Connection) -> Option<Pdu> {
        let key = connection.retries.pop_front().or_else(|| connection.waiting.pop_front())?;
        let task = self.slots.get_mut(key)?;
        let cmd_sn = task.cmd_sn.unwrap_or(self.window.cmd_sn());
        let (PduData { data, ahs, sealed }, burst) = task.start_write(key, &connection.agreed);
        let command = &task.command;
        let header = ScsiCommand {
            immediate: false,
            is_final: burst.is_none(),
            read: command.direction == Direction::Read,
            write: command.direction == Direction::Write,
            attribute: command.attribute,
            lun: command.lun,
            initiator_task_tag: task_id(key).0,
            expected_data_transfer_bytes: command.expected_bytes,
            cmd_sn,
            exp_stat_sn: connection.exp_stat_sn,
            cdb: command.cdb,
        };
        connection.bursts.extend(burst);
        if task.cmd_sn.replace(cmd_sn).is_none() {
            self.window.advance();
        }
        Some(Pdu::new(header.encode(), ahs, data, sealed))
    }

    fn next_data_out(&mut self, connection: &mut Connection) -> Option<Pdu> {
        let burst = connection.bursts.front_mut()?;
        let (key, exp_stat_sn) = (burst.key, connection.exp_stat_sn);
        let task = self.slots.get_mut(key).expect("a task's bursts go with it");
        let (pdu, is_final) = task.next_data_out(burst, exp_stat_sn, task_id(key).0, &connection.agreed);
        if is_final {
            connection.bursts.pop_front();
        }
        Some(pdu)
    }

    /// Takes read data; the command is over if its status came with it.
    pub(super) fn take_data_in(
        &mut self,
        connections: &mut Connections,
        id: ConnectionId,
        header: &pdu::DataIn,
        pdu: Pdu,
        events: &mut VecDeque<Event>,
    ) -> Result<(), PeerMisbehaved> {
        let task_tag = header.initiator_task_tag;
        let (name, key) = (TaskId(task_tag), key_of(TaskId(task_tag)));
        let task = self.slots.get_mut(key).filter(|task| task.is_on(id));
        let task = task.ok_or(PeerMisbehaved::UnknownTask { what: "a Data-In", task_tag })?;
        let asked = pdu::DataIn::asked_acknowledgement(&pdu.bhs).filter(|_| header.status.is_none());
        let (covers_bytes, content) = task.take_data_in(header, pdu).map_err(|why| misplaced(task_tag, why))?;
        if covers_bytes > 0 {
            let offset = header.buffer_offset;
            events.push_back(Event::DataIn(DataIn { task: name, offset, covers_bytes, content }));
        }
        if let Some(EarlyResponse { stat_sn, completed, .. }) = task.take_early_response() {
            if let Some(connection) = connections.get_mut(id) {
                connection.take_stat_sn(stat_sn)?;
            }
            self.finish(connections, Completed { task: name, ..completed }, events);
        } else if let Some((status, residual)) = header.status {
            let (sense, written) = (Vec::new(), None);
            let completed = Completed { task: name, status, response: 0, sense, residual, moved_bytes: 0, written };
            self.finish(connections, completed, events);
        }
        if let Some((lun, target_transfer_tag)) = asked
            && let Some(task) = self.slots.get_mut(key)
            && let Some(connection) = connections.get_mut(id)
        {
            // RFC 7143 §11.7.2. One that finds many requests waiting is left out: a later one, or the status, says as much.
            task.acknowledging = Some(target_transfer_tag);
            if connection.missing.is_some() && connection.requests_waiting() <= REQUESTS_MAX / 2 {
                connection.request_header(requests::data_ack(lun, target_transfer_tag, task.next_data_sn()));
            }
        }
        Ok(())
    }

    /// Takes a SCSI Response: the command is over.
    pub(super) fn take_response(
        &mut self,
        connections: &mut Connections,
        id: ConnectionId,
        completed: Completed,
        events: &mut VecDeque<Event>,
    ) -> Result<(), PeerMisbehaved> {
        let recovers = connections.get(id).is_some_and(|connection| connection.missing.is_some());
        match self.slots.get(key_of(completed.task)) {
            Some(task) if task.is_on(id) => {}
            // Damaged, and sent again when the task had ended.
            None if recovers => return Ok(()),
            _ => {
                let task_tag = completed.task.0;
                return Err(PeerMisbehaved::UnknownTask { what: "a SCSI response", task_tag });
            }
        }
        self.finish(connections, completed, events);
        Ok(())
    }

    /// A task is over. How much of its data was moved is known here.
    fn finish(&mut self, connections: &mut Connections, completed: Completed, events: &mut VecDeque<Event>) {
        let key = key_of(completed.task);
        let moved_bytes = self.slots.get(key).map_or(0, Task::moved_bytes);
        self.forget(connections, key);
        events.push_back(Event::Completed(Completed { moved_bytes, ..completed }));
    }

    /// Takes an R2T: its data is sent in turn. An R2T may cross the end of its task; there is nothing to send then.
    pub(super) fn take_r2t(
        &mut self,
        connection: &mut Connection,
        header: &R2t,
        session: &Agreed,
    ) -> Result<(), PeerMisbehaved> {
        let task_tag = header.initiator_task_tag;
        let key = key_of(TaskId(task_tag));
        let Some(task) = self.slots.get_mut(key).filter(|task| task.is_on(connection.id)) else { return Ok(()) };
        let burst = task.take_r2t(key, header, connection.missing.is_some(), session);
        connection.bursts.push_back(burst.map_err(|why| misplaced(task_tag, why))?);
        Ok(())
    }

    /// Whether a SCSI Response arrived before the data, which was damaged and comes again; then it is kept until that is there.
    pub(super) fn hold_early(
        &mut self,
        id: ConnectionId,
        header: &ScsiResponse,
        completed: impl FnOnce() -> Completed,
    ) -> bool {
        let key = key_of(TaskId(header.initiator_task_tag));
        let task = self.slots.get_mut(key).filter(|task| task.is_on(id));
        let Some(task) = task.filter(|task| task.command.direction == Direction::Read) else { return false };
        if header.exp_data_sn <= task.next_data_sn() {
            return false;
        }
        // Only reads have data that may be missing, and their responses have no header segments.
        let completed = Completed { written: None, ..completed() };
        let (stat_sn, data_pdus) = (header.sequence.stat_sn, header.exp_data_sn);
        task.hold_response(EarlyResponse { stat_sn, data_pdus, completed });
        true
    }

    /// Whether a Data-In is the one that is awaited. If not, it came before, or others before it are missing, which are requested again.
    pub(super) fn is_in_sequence(
        &mut self,
        connection: &mut Connection,
        header: &pdu::DataIn,
    ) -> Result<bool, PeerMisbehaved> {
        let Some(task) = self.slots.get_mut(key_of(TaskId(header.initiator_task_tag))) else { return Ok(false) };
        if header.data_sn == task.next_data_sn() {
            task.is_requested_again = false;
            return Ok(true);
        }
        if header.data_sn > task.next_data_sn() {
            self.request_missing(connection, header, false)?;
        }
        Ok(false)
    }

    /// Requests everything of a read from the first Data-In on that is missing.
    pub(super) fn request_missing(
        &mut self,
        connection: &mut Connection,
        header: &pdu::DataIn,
        is_damaged: bool,
    ) -> Result<(), PeerMisbehaved> {
        let tag = header.initiator_task_tag;
        let Some(task) = self.slots.get_mut(key_of(TaskId(tag))) else { return Ok(()) };
        let begin = task.next_data_sn();
        if header.data_sn < begin {
            // It came before.
            return Ok(());
        }
        // What was sent before the request reached the target is still on its way.
        let is_new = is_damaged && header.data_sn == begin;
        if is_new || !task.is_requested_again {
            task.is_requested_again = true;
            connection.snack(SNACK_DATA, tag, begin, 0)?;
        }
        Ok(())
    }

    /// The target has found a command damaged: it is sent again. Write data it requests again by itself.
    pub(super) fn send_again(
        &mut self,
        connection: &mut Connection,
        key: Key,
        cmd_sn: Serial,
    ) -> Result<(), PeerMisbehaved> {
        let Some(task) = self.slots.get(key) else {
            connection.check_flood()?;
            connection.request_header(requests::filler(self.tags.next(), cmd_sn));
            return Ok(());
        };
        let is_its = task.cmd_sn.is_some() && task.connection == connection.id;
        if is_its && !connection.retries.contains(&key) {
            connection.bursts.retain(|burst| burst.key != key);
            connection.retries.push_back(key);
        }
        Ok(())
    }

    /// Forgets the tasks that a function has ended; returns them.
    pub(super) fn end(&mut self, connections: &mut Connections, ends: Ends) -> Vec<TaskId> {
        let mut keys = Vec::new();
        match ends {
            Ends::Nothing => {}
            Ends::Task(key) => keys.push(key),
            Ends::Before(before, lun) => {
                let is_before = |task: &Task| task.cmd_sn.is_some_and(|cmd_sn| cmd_sn.is_before(before));
                let is_of = |task: &Task| lun.is_none_or(|lun| lun == task.command.lun);
                let ended = self.slots.iter().filter(|(_, task)| is_before(task) && is_of(task));
                keys.extend(ended.map(|(key, _)| key));
            }
        }
        keys.into_iter().filter(|key| self.forget(connections, *key)).map(task_id).collect()
    }

    /// Forgets a task and its data. False if it was gone.
    pub(super) fn forget(&mut self, connections: &mut Connections, key: Key) -> bool {
        let Some(task) = self.slots.remove(key) else { return false };
        self.unassigned.retain(|unassigned| *unassigned != key);
        let Some(connection) = connections.get_mut(task.connection).filter(|_| !task.is_orphan) else { return true };
        if let Some(stat_sn) = task.early_stat_sn() {
            // Beyond anything that is missing at most by as much as was seen already.
            let _ = connection.take_stat_sn(stat_sn);
        }
        if let Some(tag) = task.acknowledging {
            // The status says as much, and nothing may come after that (RFC 7143 §11.7.2).
            connection.withdraw_data_ack(tag);
        }
        connection.remove_load(&task.command);
        match task.cmd_sn {
            None => connection.waiting.retain(|waiting| *waiting != key),
            Some(cmd_sn) if connection.retries.contains(&key) => {
                connection.retries.retain(|retry| *retry != key);
                connection.request_header(requests::filler(self.tags.next(), cmd_sn));
            }
            Some(_) => {}
        }
        if task.command.write.is_some() {
            connection.bursts.retain(|burst| burst.key != key);
        }
        true
    }

    /// A connection is lost: what it did not send goes by another one, and the tasks that it sent wait.
    pub(super) fn lose_connection(&mut self, connection: Connection) {
        self.unassigned.extend(connection.waiting);
        let sent: Vec<Key> =
            self.slots.iter().filter(|(_, task)| task.is_on(connection.id)).map(|(key, _)| key).collect();
        for key in sent {
            self.slots.get_mut(key).expect("just listed").is_orphan = true;
        }
    }

    /// Gives commands without a connection one, if there is any.
    pub(super) fn assign(&mut self, connections: &mut Connections) {
        for key in std::mem::take(&mut self.unassigned) {
            self.adopt(connections, key);
        }
    }

    /// Gives a command that the target does not have a connection.
    fn adopt(&mut self, connections: &mut Connections, key: Key) {
        let Some(connection) = connections.least_loaded_mut() else { return self.unassigned.push(key) };
        let Some(task) = self.slots.get_mut(key) else { return };
        task.connection = connection.id;
        connection.add_load(&task.command);
        match task.cmd_sn {
            None => connection.waiting.push_back(key),
            Some(_) => connection.retries.push_back(key),
        }
    }

    /// A task that a lost connection has left behind.
    pub(super) fn orphan_of(&self, id: ConnectionId) -> Option<Key> {
        self.slots.iter().find(|(_, task)| task.connection == id && task.is_orphan).map(|(key, _)| key)
    }

    /// Has a task of a lost connection go on with another one. Returns the tag of the reassignment and the connection, if the target has
    /// the task: what never arrived there is sent under its old number (RFC 7143 §7.2.1).
    pub(super) fn take_over(&mut self, connections: &mut Connections, key: Key) -> Option<(u32, ConnectionId)> {
        let connection = connections.least_loaded_mut()?;
        let tag = self.tags.next();
        let task = self.slots.get_mut(key)?;
        task.is_orphan = false;
        let cmd_sn = task.cmd_sn.expect("what was not sent is no orphan");
        if !self.window.has_arrived(cmd_sn) {
            self.adopt(connections, key);
            return None;
        }
        task.reassign(connection.id);
        connection.add_load(&task.command);
        let (function, lun) = (pdu::TaskFunction::TaskReassign, task.command.lun);
        let about = Some((key, cmd_sn, task.next_data_sn()));
        connection.request_header(requests::task_management(tag, function, lun, about));
        Some((tag, connection.id))
    }

    /// A task ended at the target with an unknown result.
    pub(super) fn end_unknown(&mut self, connections: &mut Connections, key: Key, events: &mut VecDeque<Event>) {
        if !self.forget(connections, key) {
            return;
        }
        events.push_back(Event::Completed(Completed {
            task: task_id(key),
            status: 0,
            response: RESPONSE_TARGET_FAILURE,
            sense: Vec::new(),
            residual: Residual::None,
            moved_bytes: 0,
            written: None,
        }));
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.unassigned.clear();
    }
}

//! What an initiator is told in full-feature phase. Data must come in order and whole, by the connection that its command took.

use std::time::{Duration, Instant};

use strongroom_block::Buffer;

use super::recover::Early;
use super::transmit::Burst;
use super::{
    Completed, ConnectionId, DataContent, DataIn, Direction, Event, Phase, Question, Session, TEXT_BYTES_MAX,
    TargetEntry, Task, TaskId, TaskManagementResult, key_of,
};
use crate::ahs::{self, Hole};
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    self, Answer, AsyncEvent, AsyncMessage, Bhs, LogoutResponse, LogoutResult, NopIn, NopOut, Opcode, Pdu, PduError,
    R2t, ScsiResponse, Sequence, TAG_NONE, TaskManagementResponse, TextResponse,
};
use crate::text::Pairs;
use crate::{CloseReason, PeerMisbehaved, Serial};

impl Session {
    pub(super) fn handle_answer(&mut self, now: Instant, at: usize, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let max_bytes = self.config.offer.recv_segment_bytes_max.max(crate::login::LOGIN_SEGMENT_BYTES) as usize;
        if pdu.data.len() > max_bytes {
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let answer = Answer::decode(&pdu.bhs)?;
        let is_data = matches!(answer, Answer::DataIn(_));
        if pdu.sealed && !(self.config.in_channel && is_data) {
            return Err(PeerMisbehaved::OutOfPlace { what: "a sealed PDU", expected: "block data of a read" });
        }
        let uses_stat_sn = match &answer {
            Answer::DataIn(data_in) => data_in.status.is_some(),
            Answer::R2t(_) => false,
            Answer::NopIn(nop) => nop.initiator_task_tag != TAG_NONE,
            _ => true,
        };
        let recovers = self.connections[at].recovery.is_some();
        if recovers {
            let is_awaited = match &answer {
                Answer::DataIn(header) if self.is_over(header) => {
                    self.end_early(at, header);
                    false
                }
                Answer::DataIn(header) => self.is_in_sequence(at, header),
                Answer::ScsiResponse(header) => !self.keep_early(at, header, sense_of(&pdu.data)),
                _ => true,
            };
            // One that comes again, or too early, is as if it had not come.
            if !is_awaited || (uses_stat_sn && !self.take_stat_sn(at, answer.sequence().stat_sn)?) {
                return self.take_numbers(at, answer.sequence(), false);
            }
        }
        self.take_numbers(at, answer.sequence(), uses_stat_sn && !recovers)?;
        match answer {
            Answer::DataIn(header) => self.handle_data_in(at, header, pdu),
            Answer::ScsiResponse(header) => self.handle_response(at, header, &pdu),
            Answer::R2t(header) => self.handle_r2t(at, header),
            Answer::NopIn(header) => self.handle_nop_in(at, header, pdu.data.len()),
            Answer::TaskManagement(header) => self.handle_management_response(now, at, header),
            Answer::Text(header) => self.handle_text_response(at, header, &pdu),
            Answer::Logout(header) => self.handle_logout_response(now, at, header),
            Answer::AsyncMessage(header) => self.handle_async(now, at, header, &pdu),
            Answer::Reject(header) => self.handle_reject(now, at, header.reason, &pdu),
            Answer::Login(_) => {
                Err(PeerMisbehaved::OutOfPlace { what: "a login response", expected: "full-feature phase" })
            }
        }
    }

    /// Takes over the command window and checks the place of the answer.
    pub(super) fn take_numbers(
        &mut self,
        at: usize,
        numbers: Sequence,
        uses_stat_sn: bool,
    ) -> Result<(), PeerMisbehaved> {
        // RFC 7143 §4.2.2.1: a pair that contradicts itself is ignored; the window never shrinks.
        let is_sound = !numbers.max_cmd_sn.is_before(numbers.exp_cmd_sn.previous());
        if is_sound && self.max_cmd_sn.is_before(numbers.max_cmd_sn) {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
        // Never beyond what was sent: that would make a lost command one that arrived.
        if is_sound && self.exp_cmd_sn.is_before(numbers.exp_cmd_sn) && !self.cmd_sn.is_before(numbers.exp_cmd_sn) {
            self.exp_cmd_sn = numbers.exp_cmd_sn;
        }
        if uses_stat_sn {
            // A stream loses nothing, so a gap is the target's miscount; ours never miscounts, others may.
            let exp_stat_sn = &mut self.connections[at].exp_stat_sn;
            if self.config.in_channel && numbers.stat_sn != *exp_stat_sn {
                return Err(PeerMisbehaved::StatSn { found: numbers.stat_sn.0, expected: exp_stat_sn.0 });
            }
            if !numbers.stat_sn.is_before(*exp_stat_sn) {
                *exp_stat_sn = numbers.stat_sn.next();
            }
        }
        Ok(())
    }

    fn handle_data_in(&mut self, at: usize, header: pdu::DataIn, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let task_tag = header.initiator_task_tag;
        let task_id = TaskId(task_tag);
        let key = key_of(task_id);
        let misplaced = |why| PeerMisbehaved::Data { task_tag, why };
        let id = self.connections[at].id;
        let task = self.tasks.get_mut(key).filter(|task| task.is_at(id));
        let task = task.ok_or(PeerMisbehaved::UnknownTask { what: "a Data-In", task_tag })?;
        if task.command.direction != Direction::Read {
            return Err(misplaced("data for a command that reads none"));
        }
        let asked = pdu::DataIn::asked_acknowledgement(&pdu.bhs).filter(|_| header.status.is_none());
        let (covers_bytes, content) = content_of(pdu, task.command.sealed_block_bytes).map_err(misplaced)?;
        if covers_bytes > 0 || header.status.is_none() {
            if header.data_sn != task.next_data_sn {
                return Err(misplaced("DataSN out of order"));
            }
            if header.buffer_offset != task.moved {
                return Err(misplaced("a gap or an overlap"));
            }
            if covers_bytes == 0 || covers_bytes > task.command.expected_bytes - task.moved {
                return Err(misplaced("nothing, or more than was asked for"));
            }
            task.next_data_sn += 1;
            task.moved += covers_bytes;
            let offset = header.buffer_offset;
            self.events.push_back(Event::DataIn(DataIn { task: task_id, offset, covers_bytes, content }));
        }
        let next_data_sn = task.next_data_sn;
        if let Some(Early { stat_sn, completed, .. }) = task.early.take_if(|early| early.data_pdus <= next_data_sn) {
            self.take_stat_sn(at, stat_sn)?;
            self.finish(Completed { task: task_id, ..completed });
        } else if let Some((status, residual)) = header.status {
            let sense = Vec::new();
            self.finish(Completed {
                task: task_id,
                status,
                response: 0,
                sense,
                residual,
                moved_bytes: 0,
                written: None,
            });
        }
        if let Some((lun, target_transfer_tag)) = asked {
            self.acknowledge_data(at, key, lun, target_transfer_tag);
        }
        Ok(())
    }

    fn handle_response(&mut self, at: usize, header: ScsiResponse, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let task_tag = header.initiator_task_tag;
        let connection = &self.connections[at];
        match self.tasks.get(key_of(TaskId(task_tag))) {
            Some(task) if task.is_at(connection.id) => {}
            // Damaged, and sent again when the task had ended.
            None if connection.recovery.is_some() => return Ok(()),
            _ => return Err(PeerMisbehaved::UnknownTask { what: "a SCSI response", task_tag }),
        }
        let ScsiResponse { status, response, residual, .. } = header;
        let written = if self.config.in_channel { ahs::written(&pdu.ahs).unwrap_or_default() } else { None };
        let (task, sense) = (TaskId(task_tag), sense_of(&pdu.data));
        self.finish(Completed { task, status, response, sense, residual, moved_bytes: 0, written });
        Ok(())
    }

    /// A task is over. How much of its data was moved is known here.
    fn finish(&mut self, completed: Completed) {
        let key = key_of(completed.task);
        let moved_bytes = self.tasks.get(key).map_or(0, |task| task.moved);
        self.forget(key);
        self.events.push_back(Event::Completed(Completed { moved_bytes, ..completed }));
    }

    fn handle_r2t(&mut self, at: usize, header: R2t) -> Result<(), PeerMisbehaved> {
        let task_tag = header.initiator_task_tag;
        let misplaced = |why| PeerMisbehaved::Data { task_tag, why };
        let key = key_of(TaskId(task_tag));
        // An R2T may cross the end of its task; there is nothing to send then.
        let connection = &mut self.connections[at];
        let Some(task) = self.tasks.get_mut(key).filter(|task| task.is_at(connection.id)) else { return Ok(()) };
        let Some(source) = &task.command.write else { return Err(misplaced("an R2T for a command that writes none")) };
        let desired = header.desired_data_transfer_bytes;
        let end = u64::from(header.buffer_offset) + u64::from(desired);
        // Damaged data is asked for again, from where it is missing on.
        let is_placed = match connection.recovery.is_some() || task.was_reassigned {
            true => header.buffer_offset <= task.moved,
            false => header.buffer_offset == task.moved,
        };
        if std::mem::take(&mut task.is_r2t_sn_open) {
            task.next_r2t_sn = header.r2t_sn;
        }
        if header.r2t_sn != task.next_r2t_sn || !is_placed {
            return Err(misplaced("an R2T out of order"));
        }
        if desired == 0 || desired > self.agreed.max_burst_bytes || end > u64::from(task.command.expected_bytes) {
            return Err(misplaced("an R2T for nothing, for more than a burst, or past the end"));
        }
        if task.r2ts_open >= u32::from(self.agreed.max_outstanding_r2t) {
            return Err(misplaced("more R2Ts than MaxOutstandingR2T"));
        }
        if let Some(records) = &source.records
            && (!header.buffer_offset.is_multiple_of(records.block_bytes)
                || !desired.is_multiple_of(records.block_bytes))
        {
            return Err(misplaced("an R2T that is not for whole blocks"));
        }
        task.next_r2t_sn = task.next_r2t_sn.wrapping_add(1);
        task.r2ts_open += 1;
        task.moved = task.moved.max(end as u32);
        connection.bursts.push_back(Burst {
            key,
            lun: header.lun,
            target_transfer_tag: header.target_transfer_tag,
            next_data_sn: 0,
            offset: header.buffer_offset,
            end: end as u32,
        });
        Ok(())
    }

    fn handle_nop_in(&mut self, at: usize, header: NopIn, bytes: usize) -> Result<(), PeerMisbehaved> {
        let connection = &mut self.connections[at];
        if header.initiator_task_tag != TAG_NONE {
            if connection.ping_tag == Some(header.initiator_task_tag) {
                connection.ping_tag = None;
            }
            if let Some(found) = self.echoes.iter().position(|tag| *tag == header.initiator_task_tag) {
                self.echoes.remove(found);
                self.events.push_back(Event::Echoed { tag: header.initiator_task_tag, bytes });
            }
            return Ok(());
        }
        if header.target_transfer_tag == TAG_NONE {
            return Ok(()); // Only news of the command window.
        }
        self.check_flood(at)?;
        let nop = NopOut {
            immediate: true,
            lun: header.lun,
            initiator_task_tag: TAG_NONE,
            target_transfer_tag: header.target_transfer_tag,
            cmd_sn: Serial(0),
            exp_stat_sn: Serial(0),
        };
        self.connections[at].requests.push_back((nop.encode(), Buffer::empty()));
        Ok(())
    }

    fn handle_management_response(
        &mut self,
        now: Instant,
        at: usize,
        header: TaskManagementResponse,
    ) -> Result<(), PeerMisbehaved> {
        let tag = header.initiator_task_tag;
        if !self.reassigns.is_empty() && self.handle_reassigned(now, tag, header.result) {
            return Ok(());
        }
        let via = Some(self.connections[at].id);
        let at = self.managements.iter().position(|management| management.tag == tag && management.via == via);
        let at = at.ok_or(PeerMisbehaved::UnknownTask { what: "a task management response", task_tag: tag })?;
        self.end_management(at, header.result.into());
        Ok(())
    }

    fn handle_text_response(&mut self, at: usize, header: TextResponse, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let unknown = PeerMisbehaved::UnknownTask { what: "a text response", task_tag: header.initiator_task_tag };
        let via = Some(self.connections[at].id);
        let question =
            self.question.as_mut().filter(|question| question.tag == header.initiator_task_tag && question.via == via);
        let question = question.ok_or(unknown)?;
        let tag = question.tag;
        if let Some(pairs) = question.collector.push(&pdu.data, header.continues, TEXT_BYTES_MAX)? {
            question.pairs.push(pairs);
            if question.pairs.len() > TEXT_ROUNDS_MAX {
                return Err(PeerMisbehaved::Flood { what: "text responses", limit: TEXT_ROUNDS_MAX });
            }
        }
        if header.is_final && !header.continues {
            let question = self.question.take().expect("looked at above");
            if question.is_asked {
                self.events.push_back(Event::TargetsListed(targets_of(&question)));
            }
            return Ok(());
        }
        self.check_flood(at)?;
        self.send_text(at, tag, header.target_transfer_tag, Buffer::empty());
        Ok(())
    }

    fn handle_logout_response(
        &mut self,
        now: Instant,
        at: usize,
        header: LogoutResponse,
    ) -> Result<(), PeerMisbehaved> {
        if self.handle_removed(now, self.connections[at].id, &header) {
            return Ok(());
        }
        if self.logout_tag != Some(header.initiator_task_tag) {
            let task_tag = header.initiator_task_tag;
            return Err(PeerMisbehaved::UnknownTask { what: "a logout response", task_tag });
        }
        self.reconnect_after = seconds(header.time2wait_s);
        match header.result {
            LogoutResult::Closed => self.end(CloseReason::LoggedOut),
            _ => self.end(CloseReason::ClosedHere("the target did not clean up at logout".into())),
        }
        Ok(())
    }

    fn handle_async(&mut self, now: Instant, at: usize, header: AsyncMessage, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        match header.event {
            AsyncEvent::ScsiEvent => {
                let sense = sense_of(&pdu.data);
                self.events.push_back(Event::AsyncSense { lun: fields::LUN.get(&pdu.bhs), sense });
            }
            AsyncEvent::LogoutRequested => {
                let within = seconds(header.parameters[2]);
                self.events.push_back(Event::LogoutRequested { within });
            }
            AsyncEvent::ConnectionDropped | AsyncEvent::AllConnectionsDropped => {
                self.reconnect_after = seconds(header.parameters[1]);
                let reason = match self.phase {
                    Phase::LoggingOut => CloseReason::LoggedOut,
                    _ => CloseReason::DroppedByTarget,
                };
                // It names one connection, which need not be this one.
                let one = self.index_of(ConnectionId(header.parameters[0]));
                match one.filter(|_| header.event == AsyncEvent::ConnectionDropped) {
                    Some(dropped) => self.lose(now, dropped, reason),
                    None => self.end(reason),
                }
            }
            // RFC 7143 §11.9.1: it must be granted, and we have nothing to ask for. An exchange that is open serves as well.
            AsyncEvent::NegotiationRequested if self.question.is_none() && matches!(self.phase, Phase::FullFeature) => {
                self.check_flood(at)?;
                self.ask(at, Buffer::empty(), false);
            }
            // No fast abort was agreed on, and vendors' news are not for us.
            AsyncEvent::NegotiationRequested | AsyncEvent::TasksTerminated | AsyncEvent::VendorSpecific => {}
        }
        Ok(())
    }

    fn handle_reject(&mut self, now: Instant, at: usize, reason: u8, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let Some(header) = pdu.data.first_chunk().map(|bytes| Bhs(*bytes)) else {
            return Err(PeerMisbehaved::Rejected { reason, opcode: 0xff });
        };
        let tag = header.initiator_task_tag();
        let recovers = self.connections[at].recovery.is_some();
        let is_damaged = recovers && reason == pdu::RejectReason::DataDigestError as u8;
        match header.opcode() {
            Some(Opcode::ScsiCommand) if is_damaged => {
                self.send_again(at, key_of(TaskId(tag)), fields::CMD_SN.get(&header))
            }
            // For data of a task that has ended meanwhile.
            Some(Opcode::Snack) if tag != TAG_NONE && self.tasks.get(key_of(TaskId(tag))).is_none() => Ok(()),
            // The target asks again for what it misses; data of a command that it did not get goes with that once more.
            Some(Opcode::DataOut) if recovers => Ok(()),
            Some(Opcode::TaskManagementRequest) => {
                if self.handle_reassigned(now, tag, pdu::TaskManagementResult::Rejected) {
                    return Ok(());
                }
                if let Some(at) = self.managements.iter().position(|management| management.tag == tag) {
                    self.end_management(at, TaskManagementResult::Rejected);
                }
                Ok(())
            }
            Some(Opcode::NopOut) => Ok(()),
            // Data for a task that the target has ended meanwhile.
            Some(Opcode::DataOut) if self.tasks.get(key_of(TaskId(tag))).is_none() => Ok(()),
            // The outcome of anything else would be unknown: better a new session.
            _ => Err(PeerMisbehaved::Rejected { reason, opcode: header.opcode_bits() }),
        }
    }
}

impl Task {
    /// Whether it was sent, and its answers come by that connection.
    pub(super) fn is_at(&self, id: ConnectionId) -> bool {
        self.via == id && self.cmd_sn.is_some() && !self.is_orphan
    }
}

fn seconds(count: u16) -> Duration {
    Duration::from_secs(u64::from(count))
}

/// Parts of one text exchange.
const TEXT_ROUNDS_MAX: usize = 1024;

/// How much of a transfer a Data-In stands for, in bytes, and what it brings.
fn content_of(pdu: Pdu, block_bytes: Option<u32>) -> Result<(u32, DataContent), &'static str> {
    let len = pdu.data.len() as u32;
    let Some(block_bytes) = block_bytes.filter(|bytes| *bytes > 0) else {
        return if pdu.sealed { Err("sealed data for a plain read") } else { Ok((len, DataContent::Plain(pdu.data))) };
    };
    if len > 0 {
        let records = ahs::seal_records(pdu.ahs).map_err(|_| "malformed seal records")?;
        let fits = |count: usize| count as u64 * u64::from(block_bytes) == u64::from(len);
        return match records {
            Some(records) if pdu.sealed && fits(records.count()) => {
                Ok((len, DataContent::Sealed { data: pdu.data, records }))
            }
            _ => Err("sealed data that is not whole blocks with a record each"),
        };
    }
    match Hole::covered_blocks(&pdu.ahs) {
        Some(blocks) => {
            let covers_bytes = blocks.checked_mul(block_bytes).ok_or("a hole longer than any transfer")?;
            let (sequence, record) = ahs::hole_record(pdu.ahs);
            Ok((covers_bytes, DataContent::Hole { sequence, record }))
        }
        None => Ok((0, DataContent::Plain(pdu.data))),
    }
}

/// Sense data behind its two bytes of length; what a sloppy length leaves.
fn sense_of(data: &[u8]) -> Vec<u8> {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return Vec::new() };
    let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
    rest[..len].to_vec()
}

fn targets_of(question: &Question) -> Vec<TargetEntry> {
    let mut targets: Vec<TargetEntry> = Vec::new();
    for (key, value) in question.pairs.iter().flat_map(Pairs::iter) {
        match key {
            "TargetName" => targets.push(TargetEntry { name: value.to_owned(), addresses: Vec::new() }),
            "TargetAddress" => {
                if let Some(target) = targets.last_mut() {
                    target.addresses.push(value.to_owned());
                }
            }
            _ => {}
        }
    }
    targets
}

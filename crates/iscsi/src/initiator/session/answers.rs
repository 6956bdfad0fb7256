//! What a session does for each answer, and how its connections end.

use std::time::{Duration, Instant};

use strongroom_block::Buffer;

use super::{Phase, Session};
use crate::initiator::connection::Connection;
use crate::initiator::connection_id::ConnectionId;
use crate::initiator::login::{Login, LoginOutcome};
use crate::initiator::requests::{self, key_of};
use crate::initiator::types::{Completed, Event, TaskId, TaskManagementResult};
use crate::login::LOGIN_SEGMENT_BYTES;
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    self, Answer, AsyncEvent, AsyncMessage, Bhs, LogoutResult, Opcode, Pdu, PduError, ScsiResponse, TAG_NONE,
};
use crate::{CloseReason, PeerMisbehaved, ahs};

impl Session {
    pub(super) fn take_login(&mut self, now: Instant, id: ConnectionId, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let response = Login::decode(pdu)?;
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        let Some(login) = &mut connection.login else { return Ok(()) };
        if login.take_first_answer() {
            // The target's numbers start here.
            connection.exp_stat_sn = response.sequence.stat_sn;
        }
        if self.phase == Phase::Login {
            self.tasks.window.restart();
        }
        self.tasks.window.update(response.sequence);
        connection.count_stat_sn(response.sequence, self.config.in_channel)?;
        let Some(login) = &mut connection.login else { return Ok(()) };
        match login.take(&response, &pdu.data)? {
            LoginOutcome::Request(bhs, text) => connection.request(bhs, text),
            LoginOutcome::Refused { status, redirect, reason } => {
                if self.phase == Phase::Login {
                    self.events.push_back(Event::LoginFailed { status, redirect, reason });
                }
                self.lose(now, id, CloseReason::LoginRefused(status));
            }
            LoginOutcome::Entered { agreed, tsih, portal_group_tag } if self.phase == Phase::Login => {
                connection.enter(agreed.clone(), self.config.in_channel);
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
                connection.enter(agreed.clone(), self.config.in_channel);
                self.events.push_back(Event::ConnectionJoined { id, agreed });
                self.reassignments.joined(id);
                self.recover(now);
            }
        }
        Ok(())
    }

    /// Takes a PDU in full-feature phase: checks its place, and counts its numbers.
    pub(super) fn take_answer(&mut self, now: Instant, id: ConnectionId, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let max_bytes = self.config.offer.recv_segment_bytes_max.max(LOGIN_SEGMENT_BYTES) as usize;
        if pdu.data.len() > max_bytes {
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let answer = Answer::decode(&pdu.bhs)?;
        let in_channel = self.config.in_channel;
        if pdu.sealed && !(in_channel && matches!(answer, Answer::DataIn(_))) {
            return Err(PeerMisbehaved::OutOfPlace { what: "a sealed PDU", expected: "block data of a read" });
        }
        let uses_stat_sn = match &answer {
            Answer::DataIn(data_in) => data_in.status.is_some(),
            Answer::R2t(_) => false,
            Answer::NopIn(nop) => nop.initiator_task_tag != TAG_NONE,
            _ => true,
        };
        let numbers = answer.sequence();
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        if connection.missing.is_none() {
            self.tasks.window.update(numbers);
            if uses_stat_sn {
                connection.count_stat_sn(numbers, in_channel)?;
            }
            return self.execute(now, id, answer, pdu);
        }
        let is_awaited = match &answer {
            Answer::DataIn(header) if self.tasks.is_over(header.initiator_task_tag) => {
                if uses_stat_sn {
                    connection.take_stat_sn(numbers.stat_sn)?;
                }
                false
            }
            Answer::DataIn(header) => self.tasks.is_in_sequence(connection, header)?,
            Answer::ScsiResponse(header) => !self.tasks.hold_early(id, header, || completed(header, &pdu, in_channel)),
            _ => true,
        };
        // One that comes again, or too early, is as if it had not come.
        let is_due = is_awaited && (!uses_stat_sn || connection.take_stat_sn(numbers.stat_sn)?);
        self.tasks.window.update(numbers);
        if is_due { self.execute(now, id, answer, pdu) } else { Ok(()) }
    }

    pub(super) fn execute(
        &mut self,
        now: Instant,
        id: ConnectionId,
        answer: Answer,
        pdu: Pdu,
    ) -> Result<(), PeerMisbehaved> {
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        match answer {
            Answer::DataIn(header) => {
                self.tasks.take_data_in(&mut self.connections, id, &header, pdu, &mut self.events)
            }
            Answer::ScsiResponse(header) => {
                let completed = completed(&header, &pdu, self.config.in_channel);
                self.tasks.take_response(&mut self.connections, id, completed, &mut self.events)
            }
            Answer::R2t(header) => self.tasks.take_r2t(connection, &header, &self.agreed),
            Answer::NopIn(header) if header.initiator_task_tag != TAG_NONE => {
                let (tag, bytes) = (header.initiator_task_tag, pdu.data.len());
                connection.take_ping_answer(tag);
                if self.exchanges.take_echo(tag) {
                    self.events.push_back(Event::Echoed { tag, bytes });
                }
                Ok(())
            }
            Answer::NopIn(header) => connection.answer_ping(&header),
            Answer::TaskManagement(header) => {
                let (tag, result) = (header.initiator_task_tag, header.result);
                if self.end_reassignment(now, tag, result) || self.end_function(tag, Some(id), result.into()) {
                    return Ok(());
                }
                Err(unknown_task("a task management response", tag))
            }
            Answer::Text(header) => {
                let targets = self.exchanges.take_text(connection, &header, &pdu.data)?;
                self.events.extend(targets.map(Event::TargetsListed));
                Ok(())
            }
            Answer::Logout(header) => {
                match self.reassignments.take_logout_response(now, id, &header) {
                    Some(true) => self.recover(now),
                    Some(false) => self.end(closed_here("the target does not recover connections after all")),
                    None if self.logout_tag == Some(header.initiator_task_tag) => {
                        self.reconnect_after = seconds(header.time2wait_s);
                        self.end(logged_out(header.result));
                    }
                    None => return Err(unknown_task("a logout response", header.initiator_task_tag)),
                }
                Ok(())
            }
            Answer::AsyncMessage(header) => self.take_async_message(now, id, &header, &pdu),
            Answer::Reject(header) => self.take_reject(now, id, header.reason, &pdu),
            Answer::Login(_) => {
                Err(PeerMisbehaved::OutOfPlace { what: "a login response", expected: "full-feature phase" })
            }
        }
    }

    pub(super) fn take_async_message(
        &mut self,
        now: Instant,
        id: ConnectionId,
        header: &AsyncMessage,
        pdu: &Pdu,
    ) -> Result<(), PeerMisbehaved> {
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
                let dropped = ConnectionId(header.parameters[0]);
                match header.event == AsyncEvent::ConnectionDropped && self.connections.get(dropped).is_some() {
                    true => self.lose(now, dropped, reason),
                    false => self.end(reason),
                }
            }
            // RFC 7143 §11.9.1: it must be granted, and we have nothing to ask for. An exchange that is open serves as well.
            AsyncEvent::NegotiationRequested if !self.exchanges.has_text() && self.phase == Phase::FullFeature => {
                let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
                connection.check_flood()?;
                self.exchanges.start_text(connection, &mut self.tasks.tags, Buffer::empty(), false);
            }
            // No fast abort was agreed on, and vendors' news are not for us.
            AsyncEvent::NegotiationRequested | AsyncEvent::TasksTerminated | AsyncEvent::VendorSpecific => {}
        }
        Ok(())
    }

    pub(super) fn take_reject(
        &mut self,
        now: Instant,
        id: ConnectionId,
        reason: u8,
        pdu: &Pdu,
    ) -> Result<(), PeerMisbehaved> {
        let Some(header) = pdu.data.first_chunk().map(|bytes| Bhs(*bytes)) else {
            return Err(PeerMisbehaved::Rejected { reason, opcode: 0xff });
        };
        let Some(connection) = self.connections.get_mut(id) else { return Ok(()) };
        let tag = header.initiator_task_tag();
        let recovers = connection.missing.is_some();
        let is_damaged = recovers && reason == pdu::RejectReason::DataDigestError as u8;
        let is_over = self.tasks.is_over(tag);
        match header.opcode() {
            Some(Opcode::ScsiCommand) if is_damaged => {
                self.tasks.send_again(connection, key_of(TaskId(tag)), fields::CMD_SN.get(&header))
            }
            // For data of a task that has ended meanwhile.
            Some(Opcode::Snack) if tag != TAG_NONE && is_over => Ok(()),
            // The target requests again what it misses; data of a command that it did not get goes with that once more. Or the target has
            // ended the task meanwhile.
            Some(Opcode::DataOut) if recovers || is_over => Ok(()),
            Some(Opcode::TaskManagementRequest) => {
                let result = pdu::TaskManagementResult::Rejected;
                let _ = self.end_reassignment(now, tag, result) || self.end_function(tag, None, result.into());
                Ok(())
            }
            Some(Opcode::NopOut) => Ok(()),
            // The outcome of anything else would be unknown: better a new session.
            _ => Err(PeerMisbehaved::Rejected { reason, opcode: header.opcode_bits() }),
        }
    }

    /// A task management function is answered; `on`: on this connection. False if there is none with this tag.
    pub(super) fn end_function(&mut self, tag: u32, on: Option<ConnectionId>, result: TaskManagementResult) -> bool {
        let Some(pending) = self.functions.take(tag, on) else { return false };
        let ended = match result {
            TaskManagementResult::Complete => self.tasks.end(&mut self.connections, pending.ends()),
            _ => Vec::new(),
        };
        self.events.push_back(Event::TaskManagementDone { id: TaskId(tag), result, ended });
        true
    }

    /// A reassignment is answered; false if there is none with this tag.
    pub(super) fn end_reassignment(&mut self, now: Instant, tag: u32, result: pdu::TaskManagementResult) -> bool {
        let Some(key) = self.reassignments.take(tag) else { return false };
        match result {
            pdu::TaskManagementResult::Complete => {}
            pdu::TaskManagementResult::TaskDoesNotExist => {
                self.tasks.end_unknown(&mut self.connections, key, &mut self.events);
            }
            _ if self.phase == Phase::FullFeature => {
                self.end(closed_here("the target does not reassign tasks after all"));
            }
            _ => {}
        }
        self.recover(now);
        true
    }

    /// A connection is gone. Its login was not over, or the session can do without it; else the session is over as well.
    pub(super) fn lose(&mut self, now: Instant, id: ConnectionId, reason: CloseReason) {
        let Some(is_in) = self.connections.get(id).map(Connection::is_in_full_feature_phase) else { return };
        if self.phase != Phase::FullFeature {
            // A target that was asked to end the session may close the others before it answers.
            if self.phase == Phase::LoggingOut && self.connections.len() > 1 {
                self.connections.remove(id);
                return;
            }
            return self.end(reason);
        }
        if !is_in {
            self.connections.remove(id);
            let is_refused = matches!(reason, CloseReason::LoginRefused(_));
            self.events.push_back(Event::ConnectionLost { id, reason: reason.clone() });
            // The target no longer knows the session.
            if is_refused && self.connections.is_empty() {
                return self.end(reason);
            }
            return self.recover(now);
        }
        let can_go_on = self.connections.in_full_feature_phase() > 1 || self.agreed.time2retain_s > 0;
        if self.agreed.error_recovery_level < 2 || !can_go_on {
            return self.end(reason);
        }
        let Some(connection) = self.connections.remove(id) else { return };
        self.events.push_back(Event::ConnectionLost { id, reason });
        self.reassignments.lose(now, id, &self.agreed);
        self.tasks.lose_connection(connection);
        // What these did, or were answered on that connection, remains unknown.
        for pending in self.functions.lose_connection(id) {
            let (id, result) = (TaskId(pending.tag), TaskManagementResult::Rejected);
            self.events.push_back(Event::TaskManagementDone { id, result, ended: Vec::new() });
        }
        self.exchanges.lose_connection(id);
        self.recover(now);
    }

    /// Does everything that is due for lost connections.
    pub(super) fn recover(&mut self, now: Instant) {
        if self.reassignments.is_idle() && !self.tasks.has_unassigned() {
            return;
        }
        if self.reassignments.is_expired(now) {
            return self.end(CloseReason::PeerSilent);
        }
        let Some(id) = self.connections.least_loaded() else { return };
        self.tasks.assign(&mut self.connections);
        if let Some(connection) = self.connections.get_mut(id) {
            self.exchanges.repeat_text(connection, &mut self.tasks.tags);
            for pending in self.functions.repeat_on(id) {
                let function = pending.function.into();
                connection.request_header(requests::task_management(pending.tag, function, pending.lun, None));
            }
        }
        self.reassignments.log_out_due(now, &mut self.connections, id, &mut self.tasks.tags);
        self.reassignments.reassign_due(now, &mut self.tasks, &mut self.connections);
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        if self.is_closed() {
            return;
        }
        self.phase = Phase::Closed;
        self.deadline = None;
        self.connections.clear();
        self.reassignments.clear();
        self.tasks.clear();
        self.functions.clear();
        self.exchanges.clear();
        self.events.push_back(Event::Closed(reason));
    }
}

/// What a SCSI Response says of its command. Header segments are taken inside a channel only.
fn completed(header: &ScsiResponse, pdu: &Pdu, in_channel: bool) -> Completed {
    Completed {
        task: TaskId(header.initiator_task_tag),
        status: header.status,
        response: header.response,
        sense: sense_of(&pdu.data),
        residual: header.residual,
        moved_bytes: 0,
        written: if in_channel { ahs::written(&pdu.ahs).unwrap_or_default() } else { None },
    }
}

fn unknown_task(what: &'static str, task_tag: u32) -> PeerMisbehaved {
    PeerMisbehaved::UnknownTask { what, task_tag }
}

/// How the session ends when the target has answered its logout.
fn logged_out(result: LogoutResult) -> CloseReason {
    match result {
        LogoutResult::Closed => CloseReason::LoggedOut,
        _ => closed_here("the target did not clean up at logout"),
    }
}

fn closed_here(why: &str) -> CloseReason {
    CloseReason::ClosedHere(why.to_owned())
}

fn seconds(count: u16) -> Duration {
    Duration::from_secs(u64::from(count))
}

/// Sense data behind its two bytes of length; what a wrong length leaves.
fn sense_of(data: &[u8]) -> Vec<u8> {
    let Some((len, rest)) = data.split_first_chunk::<2>() else { return Vec::new() };
    let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
    rest[..len].to_vec()
}

//! What a session does for each request, and how its connections and tasks end.

use std::time::Duration;

use super::{Session, replaced};
use crate::login::LOGIN_SEGMENT_BYTES;
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    self, LogoutReason, LogoutRequest, LogoutResult, Pdu, PduError, RejectReason, Request, TAG_NONE, TaskFunction,
    TaskManagementRequest,
};
use crate::slots::Key;
use crate::target::connection_id::ConnectionId;
use crate::target::functions::{FunctionOrigin, needs_level_2};
use crate::target::lost::LostConnection;
use crate::target::order::{Arrival, DataArrival, DueRequest};
use crate::target::reorder::DataOutPdu;
use crate::target::text_exchange::SendTargetsScope;
use crate::target::types::{Event, ManagementFunction, ManagementId, SessionKind, TaskId};
use crate::target::write::check_sealed;
use crate::{CloseReason, PeerMisbehaved};

/// As much of Time2Wait as counts when the initiator wants more than we do, in seconds: it must not choose how long a session without a
/// connection stays.
const TIME2WAIT_MAX_S: u16 = 5;

impl Session {
    pub(super) fn take_pdu(&mut self, id: ConnectionId, pdu: Pdu) -> Result<(), PeerMisbehaved> {
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
            check_sealed(&request, &pdu, self.config.in_channel)?;
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

    pub(super) fn execute(&mut self, id: ConnectionId, request: Request, pdu: Pdu) -> Result<(), PeerMisbehaved> {
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

    pub(super) fn handle_function(
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

    pub(super) fn handle_logout(&mut self, id: ConnectionId, logout: LogoutRequest) -> Result<(), PeerMisbehaved> {
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
    pub(super) fn lose(&mut self, id: ConnectionId, reason: CloseReason) {
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
    pub(super) fn end_connection_tasks(&mut self, id: ConnectionId, origin: FunctionOrigin) {
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

    /// The application has answered a function.
    pub(super) fn answer_function(&mut self, id: ManagementId, result: pdu::TaskManagementResult, found: [u8; 3]) {
        let Some(pending) = self.functions.take(id) else { return };
        match pending.origin {
            FunctionOrigin::Request { connection, initiator_task_tag, .. }
                if result != pdu::TaskManagementResult::Complete =>
            {
                if let Err(flood) = self.connections.answer_function(connection, initiator_task_tag, result, found) {
                    self.end(CloseReason::Misbehaved(flood));
                }
            }
            // A connection is closed independently of the answer about its tasks.
            origin => self.carry_out(origin, pending.tasks),
        }
    }

    /// Tasks have ended at the application: none of `keys` can have an effect any more.
    pub(super) fn carry_out(&mut self, origin: FunctionOrigin, keys: Vec<Key>) {
        for key in keys {
            self.tasks.abort(&mut self.connections, key);
        }
        match origin {
            FunctionOrigin::Request { connection, initiator_task_tag, concerns_many } => {
                let pings = if concerns_many { self.connections.ping_others(connection) } else { Vec::new() };
                self.functions.hold_response(connection, initiator_task_tag, pings);
                if let Err(flood) = self.connections.send_due_responses(&mut self.functions) {
                    self.end(CloseReason::Misbehaved(flood));
                }
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
    pub(super) fn close_connection(&mut self, id: ConnectionId, reason: CloseReason) {
        let Some(turns) = self.connections.close(id) else { return };
        self.tasks.forget_turns(turns);
        self.events.push_back(Event::ConnectionClosed { connection: id, reason });
        self.functions.drop_connection(id);
        if let Err(flood) = self.connections.send_due_responses(&mut self.functions) {
            self.end(CloseReason::Misbehaved(flood));
        }
    }

    /// The end of the session. What waits in the outboxes may still be sent; tasks are gone.
    pub(super) fn end(&mut self, reason: CloseReason) {
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

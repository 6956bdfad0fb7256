//! Commands in the order of their CmdSN, whichever connection of the session they came by (RFC 7143 §4.2.2.1), and the requests that are
//! answered at once.

use super::connection::ConnectionId;
use super::outbox::AnswerKind;
use super::reorder::{HeldData, OutOfOrderCommand};
use super::write::Receiving;
use super::{Direction, IMMEDIATE_TASKS_MAX, MANAGEMENTS_MAX, Session, Task, TaskState, manage};
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    Lun, NopIn, NopOut, Pdu, PduError, RejectReason, Request, ScsiCommand, Sequence, TAG_NONE, TaskManagementRequest,
};
use crate::{PeerMisbehaved, Serial};

impl Session {
    pub(super) fn take_pdu(&mut self, id: ConnectionId, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let max_bytes = self.config.offer.recv_segment_bytes_max.max(crate::login::LOGIN_SEGMENT_BYTES) as usize;
        if pdu.data.len() > max_bytes {
            return Err(PduError::DataTooLong { len_bytes: pdu.data.len(), max_bytes }.into());
        }
        let request = match Request::decode(&pdu.bhs) {
            Ok(request) => request,
            Err(PduError::Opcode(_)) => return self.reject(id, &pdu, RejectReason::CommandNotSupported),
            Err(_) => return self.reject(id, &pdu, RejectReason::InvalidPduField),
        };
        if pdu.sealed {
            self.check_sealed(&request, &pdu)?;
        }
        self.take_acknowledgement(id, fields::EXP_STAT_SN.get(&pdu.bhs));
        let cmd_sn = match &request {
            Request::DataOut(data_out) => {
                return match self.held.write_of(id, data_out) {
                    Some(at) => self.hold_data(id, at, HeldData { header: *data_out, pdu, is_damaged: false }),
                    None => self.handle_data_out(id, *data_out, pdu),
                };
            }
            Request::Snack(snack) => return self.handle_snack(id, *snack, &pdu),
            Request::Login(_) => return self.reject(id, &pdu, RejectReason::ProtocolError),
            Request::TaskManagement(request) if self.is_early(request) => {
                // What it is about has not all come.
                if self.early.len() >= MANAGEMENTS_MAX {
                    return self.reject(id, &pdu, RejectReason::TooManyImmediateCommands);
                }
                self.early.push((id, pdu));
                return Ok(());
            }
            _ if pdu.bhs.is_immediate() => return self.execute(id, request, pdu),
            Request::NopOut(request) => request.cmd_sn,
            Request::ScsiCommand(request) => request.cmd_sn,
            Request::TaskManagement(request) => request.cmd_sn,
            Request::Text(request) => request.cmd_sn,
            Request::Logout(request) => request.cmd_sn,
        };
        // RFC 7143 §4.2.2.1: a command outside the window is ignored without an answer.
        if !cmd_sn.is_within(self.exp_cmd_sn, self.window().max_cmd_sn) || self.held.has(cmd_sn) {
            self.statistics.ignored += 1;
            return Ok(());
        }
        if cmd_sn != self.exp_cmd_sn {
            self.held.insert(cmd_sn, id, pdu);
            return self.check_held();
        }
        self.exp_cmd_sn = self.exp_cmd_sn.next();
        self.execute(id, request, pdu)?;
        self.release_held()
    }

    fn take_acknowledgement(&mut self, id: ConnectionId, exp_stat_sn: Serial) {
        let Some(connection) = self.connection_mut(id) else { return };
        if let Some(kept) = &mut connection.kept
            && !connection.outbox.stat_sn().is_before(exp_stat_sn)
        {
            kept.acknowledge(exp_stat_sn);
        }
    }

    /// Whether an immediate function over many tasks came before commands that were sent before it: by a faster connection, or because
    /// they were damaged on the way and will be sent again.
    fn is_early(&self, request: &TaskManagementRequest) -> bool {
        let is_ahead = self.exp_cmd_sn.is_before(request.cmd_sn);
        request.immediate
            && manage::is_for_many(request.function)
            && (self.agreed.connections_max > 1 || self.agreed.error_recovery_level > 0)
            && is_ahead
            && request.cmd_sn.previous().is_within(self.exp_cmd_sn, self.window().max_cmd_sn)
    }

    /// Executes what was held back, as far as nothing is missing any more.
    pub(super) fn release_held(&mut self) -> Result<(), PeerMisbehaved> {
        loop {
            self.release_early()?;
            let Some(OutOfOrderCommand { connection, pdu, data, .. }) = self.held.take(self.exp_cmd_sn) else {
                return Ok(());
            };
            self.exp_cmd_sn = self.exp_cmd_sn.next();
            let (Some(id), Some(pdu)) = (connection, pdu) else { continue };
            let request = Request::decode(&pdu.bhs)?;
            self.execute(id, request, pdu)?;
            for HeldData { header, pdu, is_damaged } in data {
                match is_damaged {
                    true => self.data_lost(id, header, pdu.data.len()),
                    false => self.handle_data_out(id, header, pdu)?,
                }
            }
        }
    }

    /// Keeps unsolicited data with its command.
    pub(super) fn hold_data(&mut self, id: ConnectionId, at: usize, data: HeldData) -> Result<(), PeerMisbehaved> {
        if !self.held.may_have(at, data.pdu.data.len(), self.agreed.first_burst_bytes) {
            return self.reject(id, &data.pdu, RejectReason::InvalidPduField);
        }
        self.held.add(at, data);
        self.check_held()
    }

    /// Commands that wait for one before them hold no more data than writes may.
    fn check_held(&self) -> Result<(), PeerMisbehaved> {
        if self.held.memory_bytes() > self.config.write_memory_bytes_max {
            let what = "more write data behind a command that is missing than a session may hold";
            return Err(PeerMisbehaved::OutOfPlace { what, expected: "that command" });
        }
        Ok(())
    }

    fn release_early(&mut self) -> Result<(), PeerMisbehaved> {
        let exp_cmd_sn = self.exp_cmd_sn;
        let is_due = |pdu: &Pdu| !exp_cmd_sn.is_before(fields::CMD_SN.get(&pdu.bhs));
        while let Some(at) = self.early.iter().position(|(_, pdu)| is_due(pdu)) {
            let (id, pdu) = self.early.remove(at);
            let request = Request::decode(&pdu.bhs)?;
            self.execute(id, request, pdu)?;
        }
        Ok(())
    }

    fn execute(&mut self, id: ConnectionId, request: Request, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        if self.is_closed {
            return Ok(());
        }
        let is_for_discovery = matches!(request, Request::NopOut(_) | Request::Text(_) | Request::Logout(_));
        if self.is_discovery() && !is_for_discovery {
            return self.reject(id, &pdu, RejectReason::CommandNotSupported);
        }
        match request {
            Request::NopOut(nop) => self.handle_nop(id, nop, pdu),
            Request::ScsiCommand(command) => self.handle_command(id, command, pdu),
            Request::TaskManagement(request) => self.handle_task_management(id, request, &pdu),
            Request::Text(text) => self.handle_text(id, text, pdu),
            Request::Logout(logout) => self.handle_logout(id, logout),
            Request::DataOut(_) | Request::Snack(_) | Request::Login(_) => unreachable!("sorted out before"),
        }
    }

    fn handle_nop(&mut self, id: ConnectionId, nop: NopOut, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        if nop.initiator_task_tag == TAG_NONE {
            // The answer to our ping: something came, and everything that went before has arrived.
            self.take_pong(id, nop.target_transfer_tag);
            return Ok(());
        }
        let Some(connection) = self.connection(id) else { return Ok(()) };
        let echo_bytes = pdu.data.len().min(connection.agreed.send_segment_bytes_max as usize);
        let answer = NopIn {
            lun: Lun(0),
            initiator_task_tag: nop.initiator_task_tag,
            target_transfer_tag: TAG_NONE,
            sequence: Sequence::default(),
        };
        self.answer(id, answer.encode(), pdu.data.slice(..echo_bytes), AnswerKind::Numbered)
    }

    fn handle_command(&mut self, id: ConnectionId, command: ScsiCommand, pdu: Pdu) -> Result<(), PeerMisbehaved> {
        let tag = command.initiator_task_tag;
        if tag == TAG_NONE || (command.read && command.write) {
            return self.reject(id, &pdu, RejectReason::InvalidPduField);
        }
        if self.by_tag.contains_key(&tag) || self.is_answered_again(tag) {
            return self.reject(id, &pdu, RejectReason::TaskInProgress);
        }
        if command.immediate {
            if self.immediate_tasks >= IMMEDIATE_TASKS_MAX {
                return self.reject(id, &pdu, RejectReason::TooManyImmediateCommands);
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
            connection: id,
            initiator_task_tag: tag,
            lun: command.lun,
            attribute: command.attribute,
            direction,
            expected_bytes: if direction == Direction::None { 0 } else { command.expected_data_transfer_bytes },
            cdb: command.cdb,
            ahs: pdu.ahs.clone(),
            cmd_sn: command.cmd_sn,
            immediate: command.immediate,
            reserved_bytes: 0,
            unsolicited_bytes: 0,
            r2t_count: 0,
            state: TaskState::Receiving(Receiving::default()),
        };
        self.ended.retain(|ended| *ended != tag);
        self.retire_tag(tag);
        let key = self.tasks.insert_with(|_| task);
        self.by_tag.insert(tag, key);
        self.start_receiving(key, command.is_final, pdu);
        Ok(())
    }
}

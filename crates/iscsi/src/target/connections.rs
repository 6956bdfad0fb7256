//! The connections of a session: which there are, and what is said on one or on all of them.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::connection::Connection;
use super::connection_id::ConnectionId;
use super::functions::FunctionTable;
use super::login::Login;
use super::outbox::AnswerKind;
use super::respond::Turn;
use super::text_exchange::{SendTargetsScope, TextExchange, TextOutcome};
use super::types::{Config, SendTargets};
use crate::PeerMisbehaved;
use crate::login::Agreed;
use crate::pdu::{
    AsyncEvent, AsyncMessage, Bhs, LogoutResponse, LogoutResult, Pdu, R2t, Reject, RejectReason, Sequence,
    TaskManagementResponse, TaskManagementResult, TextRequest,
};

/// All connections of a session that are not gone.
#[derive(Debug, Default)]
pub(super) struct Connections {
    list: Vec<Connection>,
    next_id: u32,
    rejects: u64,
}

impl Connections {
    pub(super) fn add(&mut self, now: Instant, login: Login, config: &Config) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.list.push(Connection::new(now, id, login, config));
        id
    }

    /// A connection that still talks.
    pub(super) fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.list.iter().find(|connection| connection.id == id && !connection.is_over)
    }

    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.list.iter_mut().find(|connection| connection.id == id && !connection.is_over)
    }

    /// A connection from which PDUs are accepted.
    pub(super) fn listening(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.get_mut(id).filter(|connection| !connection.is_leaving)
    }

    /// Any connection, even one of which only last answers are left.
    pub(super) fn any_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.list.iter_mut().find(|connection| connection.id == id)
    }

    /// The connection with this CID, unless it is over.
    pub(super) fn with_cid(&self, cid: u16) -> Option<&Connection> {
        self.list.iter().find(|connection| connection.cid == cid && !connection.is_over)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.list.iter()
    }

    /// How many accept PDUs.
    pub(super) fn count(&self) -> usize {
        self.list.iter().filter(|connection| !connection.is_leaving).count()
    }

    pub(super) fn ids(&self) -> Vec<ConnectionId> {
        self.list.iter().map(|connection| connection.id).collect()
    }

    /// PDUs rejected so far.
    pub(super) fn rejects(&self) -> u64 {
        self.rejects
    }

    /// Whether a connection accepts PDUs, and so R2Ts are of use on it.
    pub(super) fn is_listening(&self, id: ConnectionId) -> bool {
        self.list.iter().any(|connection| connection.id == id && !connection.is_leaving)
    }

    /// Whether no connection was ever lost or closed.
    pub(super) fn are_all_sound(&self) -> bool {
        self.list.len() == self.next_id as usize
            && self.list.iter().all(|connection| !connection.is_over && !connection.is_leaving)
    }

    /// When the next of them has to be pinged or given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.list.iter().map(|connection| connection.liveness.deadline()).min()
    }

    /// The longest data segment that every connection takes, in bytes; `None` without a connection.
    pub(super) fn segment_bytes_min(&self) -> Option<u32> {
        self.list.iter().map(|connection| connection.agreed.send_segment_bytes_max).min()
    }

    /// Queues an answer. A connection that is gone is told nothing.
    pub(super) fn answer(
        &mut self,
        id: ConnectionId,
        bhs: Bhs,
        data: Buffer,
        kind: AnswerKind,
    ) -> Result<(), PeerMisbehaved> {
        match self.get_mut(id) {
            Some(connection) => connection.outbox.push(bhs, data, kind),
            None => Ok(()),
        }
    }

    /// Rejects a PDU. The session goes on.
    pub(super) fn reject(&mut self, id: ConnectionId, pdu: &Pdu, reason: RejectReason) -> Result<(), PeerMisbehaved> {
        self.rejects += 1;
        let answer = Reject { reason: reason as u8, sequence: Sequence::default() };
        let header = Buffer::from(Bytes::copy_from_slice(&pdu.bhs.0));
        self.answer(id, answer.encode(), header, AnswerKind::Numbered)
    }

    /// Queues an R2T.
    pub(super) fn send_r2t(&mut self, id: ConnectionId, r2t: &R2t) {
        self.answer(id, r2t.encode(), Buffer::empty(), AnswerKind::R2t)
            .expect("R2Ts are bounded by the tasks and not counted");
    }

    /// Withdraws R2Ts of a task that were not sent yet.
    pub(super) fn withdraw_r2ts(&mut self, initiator_task_tag: u32) {
        for connection in &mut self.list {
            connection.outbox.withdraw_r2ts(initiator_task_tag);
        }
    }

    /// Answers a task management request (RFC 7143 §11.6).
    pub(super) fn answer_function(
        &mut self,
        id: ConnectionId,
        initiator_task_tag: u32,
        result: TaskManagementResult,
        additional: [u8; 3],
    ) -> Result<(), PeerMisbehaved> {
        let answer = TaskManagementResponse { result, additional, initiator_task_tag, sequence: Sequence::default() };
        self.answer(id, answer.encode(), Buffer::empty(), AnswerKind::Numbered)
    }

    /// Sends the responses to functions that no longer wait for pings.
    pub(super) fn send_due_responses(&mut self, functions: &mut FunctionTable) -> Result<(), PeerMisbehaved> {
        while let Some((id, tag)) = functions.next_response() {
            self.answer_function(id, tag, TaskManagementResult::Complete, [0; 3])?;
        }
        Ok(())
    }

    /// Answers a logout request (RFC 7143 §11.15).
    pub(super) fn answer_logout(
        &mut self,
        id: ConnectionId,
        initiator_task_tag: u32,
        result: LogoutResult,
        session: &Agreed,
    ) -> Result<(), PeerMisbehaved> {
        let answer = LogoutResponse {
            result,
            initiator_task_tag,
            sequence: Sequence::default(),
            time2wait_s: session.time2wait_s,
            time2retain_s: session.time2retain_s,
        };
        self.answer(id, answer.encode(), Buffer::empty(), AnswerKind::Numbered)
    }

    /// Takes a text request, and answers it unless the application has to be asked for targets.
    pub(super) fn take_text(
        &mut self,
        id: ConnectionId,
        request: &TextRequest,
        pdu: &Pdu,
        scope: SendTargetsScope<'_>,
    ) -> Result<Option<SendTargets>, PeerMisbehaved> {
        let Some(connection) = self.get_mut(id) else { return Ok(None) };
        let segment_bytes_max = &mut connection.agreed.send_segment_bytes_max;
        match TextExchange::take(&mut connection.text, request, &pdu.data, scope, segment_bytes_max)? {
            TextOutcome::Answer => self.send_text(id).map(|()| None),
            TextOutcome::AskTargets(targets) => Ok(Some(targets)),
            TextOutcome::Reject(reason) => self.reject(id, pdu, reason).map(|()| None),
        }
    }

    /// Sends the next part of a connection's text answer.
    pub(super) fn send_text(&mut self, id: ConnectionId) -> Result<(), PeerMisbehaved> {
        let Some(connection) = self.get_mut(id) else { return Ok(()) };
        let segment_bytes_max = connection.agreed.send_segment_bytes_max;
        let Some(exchange) = connection.text.as_mut() else { return Ok(()) };
        let (answer, part, is_over) = exchange.next_part(segment_bytes_max);
        if is_over {
            connection.text = None;
        }
        connection.outbox.push(answer.encode(), part, AnswerKind::Numbered)
    }

    /// Tells every connection about an event; the parameters depend on its CID.
    pub(super) fn announce(&mut self, event: AsyncEvent, parameters: impl Fn(u16) -> [u16; 3]) {
        for connection in self.list.iter_mut().filter(|connection| !connection.is_leaving) {
            let message = AsyncMessage { event, sequence: Sequence::default(), parameters: parameters(connection.cid) };
            // A flooded session is about to end anyway; the message is a courtesy.
            let _ = connection.outbox.push(message.encode(), Buffer::empty(), AnswerKind::Numbered);
        }
    }

    /// Pings every connection but one; returns which, and under which tags.
    pub(super) fn ping_others(&mut self, id: ConnectionId) -> Vec<(ConnectionId, u32)> {
        let others = self.list.iter_mut().filter(|other| other.id != id && !other.is_leaving);
        others.filter_map(|other| other.ping().map(|tag| (other.id, tag))).collect()
    }

    /// Has a response sent in turn with others. Nothing happens if the connection is gone: the one that takes the task over takes its
    /// response, too.
    pub(super) fn take_turn(&mut self, id: ConnectionId, turn: Turn) {
        if let Some(connection) = self.get_mut(id) {
            connection.responding.push_back(turn);
        }
    }

    /// The tag names another task from now on: no connection may send again what it named before.
    pub(super) fn retire_tag(&mut self, tag: u32) {
        for buffer in self.list.iter_mut().filter_map(|connection| connection.retransmit.as_mut()) {
            buffer.retire(tag);
        }
    }

    /// Whether the response to an older task of this tag is being sent once more.
    pub(super) fn repeats(&self, tag: u32) -> bool {
        let is_its = |turn: &Turn| matches!(turn, Turn::Repeat(repeated) if repeated.initiator_task_tag == tag);
        self.list.iter().any(|connection| connection.responding.iter().any(is_its))
    }

    /// Forgets a task that was aborted.
    pub(super) fn forget_task(&mut self, id: ConnectionId, tag: u32) {
        self.withdraw_r2ts(tag);
        if let Some(buffer) = self.get_mut(id).and_then(|connection| connection.retransmit.as_mut()) {
            buffer.forget(tag);
        }
    }

    /// Closes a connection; returns the responses that it will not send, or `None` if it was closed before. Its last answers may
    /// still be sent.
    pub(super) fn close(&mut self, id: ConnectionId) -> Option<VecDeque<Turn>> {
        let turns = self.get_mut(id)?.close();
        self.list.retain(|connection| connection.id != id || !connection.outbox.is_empty());
        Some(turns)
    }

    pub(super) fn close_all(&mut self) {
        for connection in &mut self.list {
            connection.close();
        }
        self.list.retain(|connection| !connection.outbox.is_empty());
    }

    /// A connection has nothing more to say.
    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.list.retain(|connection| connection.id != id);
    }
}

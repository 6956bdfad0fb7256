//! Text exchanges in full-feature phase (RFC 7143 §11.10): SendTargets, and a polite answer to every other key.

use bytes::Bytes;
use strongroom_block::Buffer;

use super::connection::ConnectionId;
use super::outbox::AnswerKind;
use super::{Event, SendTargets, Session, SessionKind, TEXT_BYTES_MAX, TargetEntry};
use crate::PeerMisbehaved;
use crate::login::number;
use crate::pdu::{Pdu, RejectReason, Sequence, TAG_NONE, TextRequest, TextResponse};
use crate::text::{Collector, Pairs};

/// Tags of text exchanges; apart from those of R2Ts (top bit clear) and pings (next bit clear).
const TEXT_TAG: u32 = 0xc000_0000;

/// The exchange that is open. There is one at a time on a connection: a new one ends the one before.
#[derive(Debug)]
pub(super) struct Question {
    initiator_task_tag: u32,
    collector: Collector,
    /// Answers to the other keys, which go in front of the targets.
    answers: Pairs,
    /// Whether the application has been asked.
    asked: bool,
    is_final: bool,
    /// What is still to be sent.
    rest: Buffer,
}

impl Session {
    /// Answers `SendTargets`.
    pub fn send_targets(&mut self, connection: ConnectionId, targets: &[TargetEntry]) {
        let Some(question) = self.question_of(connection).filter(|question| question.asked) else { return };
        question.asked = false;
        let mut pairs = std::mem::take(&mut question.answers);
        for target in targets {
            pairs.push("TargetName", &target.name);
            for address in &target.addresses {
                pairs.push("TargetAddress", address);
            }
        }
        question.rest = Buffer::from(Bytes::from(pairs.encode()));
        self.send_text(connection);
    }

    fn question_of(&mut self, id: ConnectionId) -> Option<&mut Question> {
        self.connection_mut(id).and_then(|connection| connection.question.as_mut())
    }

    pub(super) fn handle_text(
        &mut self,
        id: ConnectionId,
        request: TextRequest,
        pdu: Pdu,
    ) -> Result<(), PeerMisbehaved> {
        let tag = request.initiator_task_tag;
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        if connection.question.as_ref().is_some_and(|question| question.asked) {
            // RFC 7143 §11.10: one request at a time.
            return self.reject(id, &pdu, RejectReason::ProtocolError);
        }
        if request.target_transfer_tag == TAG_NONE {
            connection.question = Some(Question {
                initiator_task_tag: tag,
                collector: Collector::default(),
                answers: Pairs::default(),
                asked: false,
                is_final: false,
                rest: Buffer::empty(),
            });
        }
        let Some(question) = connection.question.as_mut().filter(|question| {
            question.initiator_task_tag == tag && [TAG_NONE, TEXT_TAG].contains(&request.target_transfer_tag)
        }) else {
            return self.reject(id, &pdu, RejectReason::InvalidPduField);
        };
        if !question.rest.is_empty() {
            // The initiator asks for the rest of our answer (the C bit).
            self.send_text(id);
            return Ok(());
        }
        question.is_final = request.is_final;
        let Some(pairs) = question.collector.push(&pdu.data, request.continues, TEXT_BYTES_MAX)? else {
            self.send_text(id);
            return Ok(());
        };
        self.answer_keys(id, &pairs);
        Ok(())
    }

    fn answer_keys(&mut self, id: ConnectionId, pairs: &Pairs) {
        let mut answers = Pairs::default();
        let mut wanted = None;
        for (key, value) in pairs.iter() {
            match (key, value) {
                (_, "NotUnderstood" | "Irrelevant" | "Reject") => {}
                ("SendTargets", value) => match self.scope(value) {
                    Some(scope) => wanted = Some(scope),
                    None => answers.push(key, "Reject"),
                },
                ("MaxRecvDataSegmentLength", value) => match number(value).filter(|max| (512..1 << 24).contains(max)) {
                    // May be declared again at any time (RFC 7143 §13.12).
                    Some(max) => {
                        if let Some(connection) = self.connection_mut(id) {
                            connection.agreed.send_segment_bytes_max = max;
                        }
                    }
                    None => answers.push(key, "Reject"),
                },
                ("InitiatorAlias", _) => {}
                ("InitiatorName" | "TargetName" | "SessionType" | "AuthMethod" | "HeaderDigest" | "DataDigest", _) => {
                    answers.push(key, "Reject");
                }
                _ => answers.push(key, "NotUnderstood"),
            }
        }
        let Some(question) = self.question_of(id) else { return };
        if let Some(scope) = wanted {
            question.answers = answers;
            question.asked = true;
            self.events.push_back(Event::SendTargets(id, scope));
        } else {
            question.rest = Buffer::from(Bytes::from(answers.encode()));
            self.send_text(id);
        }
    }

    /// RFC 7143 Appendix C: all targets are for discovery sessions, the session's own for normal ones.
    fn scope(&self, value: &str) -> Option<SendTargets> {
        match value {
            "All" if self.is_discovery() || self.config.send_targets_all_in_normal_session => Some(SendTargets::All),
            "All" => None,
            "" if !self.is_discovery() => Some(SendTargets::ThisTarget),
            "" => None,
            name if self.is_discovery() => Some(SendTargets::Named(name.to_owned())),
            name => match &self.kind {
                SessionKind::Normal { target_name } if target_name == name => Some(SendTargets::ThisTarget),
                _ => None,
            },
        }
    }

    /// Sends the next part of the open exchange's answer, or an empty one that lets the initiator go on.
    fn send_text(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection_mut(id) else { return };
        let part_bytes = connection.agreed.send_segment_bytes_max as usize;
        let Some(question) = connection.question.as_mut() else { return };
        let part = question.rest.slice(..question.rest.len().min(part_bytes));
        question.rest = question.rest.slice(part.len()..);
        let continues = !question.rest.is_empty();
        let is_final = question.is_final && !continues;
        let answer = TextResponse {
            is_final,
            continues,
            initiator_task_tag: question.initiator_task_tag,
            target_transfer_tag: if is_final { TAG_NONE } else { TEXT_TAG },
            sequence: Sequence::default(),
        };
        if is_final {
            connection.question = None;
        }
        if let Err(flood) = self.answer(id, answer.encode(), part, AnswerKind::Numbered) {
            self.end(crate::CloseReason::Misbehaved(flood));
        }
    }
}

//! A text exchange of one connection in full-feature phase (RFC 7143 §11.10): SendTargets, and an answer to every other key.

use bytes::Bytes;
use strongroom_block::Buffer;

use super::types::{SendTargets, SessionKind, TEXT_BYTES_MAX, TargetEntry};
use crate::PeerMisbehaved;
use crate::login::number;
use crate::pdu::{RejectReason, Sequence, TAG_NONE, TextRequest, TextResponse};
use crate::text::{Collector, Pairs};

/// Tags of text exchanges; apart from those of R2Ts (top bit clear) and pings (next bit clear).
const TEXT_TAG: u32 = 0xc000_0000;

/// The exchange that is open. There is one at a time on a connection: a new one ends the one before.
#[derive(Debug)]
pub(super) struct TextExchange {
    initiator_task_tag: u32,
    collector: Collector,
    /// Answers to the other keys, which precede the targets.
    answers: Pairs,
    /// Whether the application was asked for targets and has not answered.
    is_asked: bool,
    is_final: bool,
    /// What is still to be sent.
    rest: Buffer,
}

/// What follows from a text request.
pub(super) enum TextOutcome {
    /// Send the next part of the answer.
    Answer,
    /// Ask the application for targets.
    AskTargets(SendTargets),
    /// The request is out of place.
    Reject(RejectReason),
}

/// What a session's kind and configuration let SendTargets ask for (RFC 7143 Appendix C).
#[derive(Clone, Copy)]
pub(super) struct SendTargetsScope<'a> {
    pub(super) kind: &'a SessionKind,
    pub(super) all_in_normal_session: bool,
}

impl SendTargetsScope<'_> {
    /// All targets are for discovery sessions, the session's own for normal ones.
    fn of(self, value: &str) -> Option<SendTargets> {
        match (self.kind, value) {
            (SessionKind::Discovery, "All") => Some(SendTargets::All),
            (SessionKind::Discovery, "") => None,
            (SessionKind::Discovery, name) => Some(SendTargets::Named(name.to_owned())),
            (SessionKind::Normal { .. }, "All") => self.all_in_normal_session.then_some(SendTargets::All),
            (SessionKind::Normal { .. }, "") => Some(SendTargets::ThisTarget),
            (SessionKind::Normal { target_name }, name) => (target_name == name).then_some(SendTargets::ThisTarget),
        }
    }
}

impl TextExchange {
    fn new(initiator_task_tag: u32) -> TextExchange {
        TextExchange {
            initiator_task_tag,
            collector: Collector::default(),
            answers: Pairs::default(),
            is_asked: false,
            is_final: false,
            rest: Buffer::empty(),
        }
    }

    /// Takes a request into the exchange that is `open` on a connection, or begins one. A new MaxRecvDataSegmentLength replaces
    /// `segment_bytes_max`.
    pub(super) fn take(
        open: &mut Option<TextExchange>,
        request: &TextRequest,
        data: &[u8],
        scope: SendTargetsScope<'_>,
        segment_bytes_max: &mut u32,
    ) -> Result<TextOutcome, PeerMisbehaved> {
        let tag = request.initiator_task_tag;
        if open.as_ref().is_some_and(|exchange| exchange.is_asked) {
            // RFC 7143 §11.10: one request at a time.
            return Ok(TextOutcome::Reject(RejectReason::ProtocolError));
        }
        if request.target_transfer_tag == TAG_NONE {
            *open = Some(TextExchange::new(tag));
        }
        let Some(exchange) = open.as_mut().filter(|exchange| {
            exchange.initiator_task_tag == tag && [TAG_NONE, TEXT_TAG].contains(&request.target_transfer_tag)
        }) else {
            return Ok(TextOutcome::Reject(RejectReason::InvalidPduField));
        };
        if !exchange.rest.is_empty() {
            // The initiator asks for the rest of our answer (the C bit).
            return Ok(TextOutcome::Answer);
        }
        exchange.is_final = request.is_final;
        let Some(pairs) = exchange.collector.push(data, request.continues, TEXT_BYTES_MAX)? else {
            return Ok(TextOutcome::Answer);
        };
        Ok(exchange.answer_keys(&pairs, scope, segment_bytes_max))
    }

    fn answer_keys(&mut self, pairs: &Pairs, scope: SendTargetsScope<'_>, segment_bytes_max: &mut u32) -> TextOutcome {
        let mut answers = Pairs::default();
        let mut wanted = None;
        for (key, value) in pairs.iter() {
            match (key, value) {
                (_, "NotUnderstood" | "Irrelevant" | "Reject") => {}
                ("SendTargets", value) => match scope.of(value) {
                    Some(targets) => wanted = Some(targets),
                    None => answers.push(key, "Reject"),
                },
                // May be declared again at any time (RFC 7143 §13.12).
                ("MaxRecvDataSegmentLength", value) => match number(value).filter(|max| (512..1 << 24).contains(max)) {
                    Some(max) => *segment_bytes_max = max,
                    None => answers.push(key, "Reject"),
                },
                ("InitiatorAlias", _) => {}
                ("InitiatorName" | "TargetName" | "SessionType" | "AuthMethod" | "HeaderDigest" | "DataDigest", _) => {
                    answers.push(key, "Reject");
                }
                _ => answers.push(key, "NotUnderstood"),
            }
        }
        match wanted {
            Some(targets) => {
                self.answers = answers;
                self.is_asked = true;
                TextOutcome::AskTargets(targets)
            }
            None => {
                self.rest = Buffer::from(Bytes::from(answers.encode()));
                TextOutcome::Answer
            }
        }
    }

    /// The application's answer to SendTargets; false if it was not asked.
    pub(super) fn set_targets(&mut self, targets: &[TargetEntry]) -> bool {
        if !std::mem::replace(&mut self.is_asked, false) {
            return false;
        }
        let mut pairs = std::mem::take(&mut self.answers);
        for target in targets {
            pairs.push("TargetName", &target.name);
            for address in &target.addresses {
                pairs.push("TargetAddress", address);
            }
        }
        self.rest = Buffer::from(Bytes::from(pairs.encode()));
        true
    }

    /// The next part of the answer, or an empty one that lets the initiator go on. True if the exchange is over with it.
    pub(super) fn next_part(&mut self, segment_bytes_max: u32) -> (TextResponse, Buffer, bool) {
        let part = self.rest.slice(..self.rest.len().min(segment_bytes_max as usize));
        self.rest = self.rest.slice(part.len()..);
        let continues = !self.rest.is_empty();
        let is_final = self.is_final && !continues;
        let answer = TextResponse {
            is_final,
            continues,
            initiator_task_tag: self.initiator_task_tag,
            target_transfer_tag: if is_final { TAG_NONE } else { TEXT_TAG },
            sequence: Sequence::default(),
        };
        (answer, part, is_final)
    }
}

//! Small answers of one connection that wait to be sent, and its StatSN. Bounded: a peer that does not read its answers is stopped.

use std::collections::VecDeque;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::types::{ANSWERS_BYTES_HIGH, ANSWERS_BYTES_MAX, ANSWERS_HIGH, ANSWERS_MAX};
use crate::pdu::{Bhs, Pdu, Sequence};
use crate::{PeerMisbehaved, Serial};

/// What the session shows of its command window on every PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) exp_cmd_sn: Serial,
    pub(super) max_cmd_sn: Serial,
}

/// A small answer. Numbers are put in when it leaves.
#[derive(Debug)]
struct Waiting {
    bhs: Bhs,
    data: Buffer,
    kind: AnswerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerKind {
    /// Uses up a StatSN.
    Numbered,
    /// Shows the next StatSN.
    R2t,
    /// Shows the next StatSN, and says nothing about whether the connection moves.
    Ping,
}

#[derive(Debug)]
pub(super) struct Outbox {
    waiting: VecDeque<Waiting>,
    /// How many of them the peer can cause without bound of its own (all but R2Ts), and their data in bytes.
    counted: usize,
    counted_bytes: usize,
    stat_sn: Serial,
}

impl Outbox {
    /// The first answer has the number `stat_sn`.
    pub(super) fn new(stat_sn: Serial) -> Outbox {
        Outbox { waiting: VecDeque::new(), counted: 0, counted_bytes: 0, stat_sn }
    }

    /// The number that the next numbered answer will have.
    pub(super) fn stat_sn(&self) -> Serial {
        self.stat_sn
    }

    pub(super) fn push(&mut self, bhs: Bhs, data: Buffer, kind: AnswerKind) -> Result<(), PeerMisbehaved> {
        if kind != AnswerKind::R2t {
            if self.counted >= ANSWERS_MAX {
                return Err(PeerMisbehaved::Flood { what: "answers", limit: ANSWERS_MAX });
            }
            if self.counted_bytes + data.len() > ANSWERS_BYTES_MAX {
                return Err(PeerMisbehaved::Flood { what: "bytes of answers", limit: ANSWERS_BYTES_MAX });
            }
            self.counted += 1;
            self.counted_bytes += data.len();
        }
        self.waiting.push_back(Waiting { bhs, data, kind });
        Ok(())
    }

    /// The next one, numbered.
    pub(super) fn pop(&mut self, window: Window) -> Option<(Pdu, AnswerKind)> {
        let mut waiting = self.waiting.pop_front()?;
        let numbers = match waiting.kind {
            AnswerKind::Numbered => self.use_numbers(window),
            AnswerKind::R2t | AnswerKind::Ping => self.numbers(window),
        };
        if waiting.kind != AnswerKind::R2t {
            self.counted -= 1;
            self.counted_bytes -= waiting.data.len();
        }
        numbers.put(&mut waiting.bhs);
        Some((Pdu::new(waiting.bhs, Bytes::new(), waiting.data, false), waiting.kind))
    }

    /// False while so much waits that no more should be read from the peer.
    pub(super) fn has_room(&self) -> bool {
        self.counted < ANSWERS_HIGH && self.counted_bytes < ANSWERS_BYTES_HIGH
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        (self.counted, self.counted_bytes) = (0, 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Withdraws R2Ts of a task that have not left yet.
    pub(super) fn withdraw_r2ts(&mut self, initiator_task_tag: u32) {
        self.waiting.retain(|waiting| {
            waiting.kind != AnswerKind::R2t || waiting.bhs.initiator_task_tag() != initiator_task_tag
        });
    }

    /// The connection ends: only what still says something is sent.
    pub(super) fn keep_last_words(&mut self) {
        self.waiting.retain(|waiting| waiting.kind == AnswerKind::Numbered);
        self.counted = self.waiting.len();
        self.counted_bytes = self.waiting.iter().map(|waiting| waiting.data.len()).sum();
    }

    pub(super) fn numbers(&self, window: Window) -> Sequence {
        Sequence { stat_sn: self.stat_sn, exp_cmd_sn: window.exp_cmd_sn, max_cmd_sn: window.max_cmd_sn }
    }

    pub(super) fn use_numbers(&mut self, window: Window) -> Sequence {
        let numbers = self.numbers(window);
        self.stat_sn = self.stat_sn.next();
        numbers
    }
}

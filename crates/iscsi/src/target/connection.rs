//! One connection of a session: what it has of its own, and what it sends (RFC 7143 §4.2). Its commands are ordered with those of the
//! other connections in `order`.

use std::collections::VecDeque;
use std::time::Instant;

use strongroom_block::Buffer;

use super::connection_id::ConnectionId;
use super::login::Login;
use super::outbox::{AnswerKind, Outbox, Window};
use super::respond::{RepeatedResponse, Turn};
use super::retransmit::RetransmitBuffer;
use super::text_exchange::TextExchange;
use super::types::Config;
use crate::liveness::Liveness;
use crate::login::Agreed;
use crate::pdu::fields::{self, Field};
use crate::pdu::{Lun, NopIn, NopOut, Pdu, Sequence, SnackRequest, TAG_NONE};
use crate::{PeerMisbehaved, Serial};

/// A connection after its login.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    pub(super) cid: u16,
    pub(super) agreed: Agreed,
    pub(super) liveness: Liveness,
    pub(super) outbox: Outbox,
    /// The responses that it sends in turn.
    pub(super) responding: VecDeque<Turn>,
    /// From error recovery level 1 on.
    pub(super) retransmit: Option<Box<RetransmitBuffer>>,
    pub(super) text: Option<TextExchange>,
    ping_tag: u32,
    /// It accepts nothing any more: it is over but for its last answers, or will be when its tasks have ended.
    pub(super) is_leaving: bool,
    /// Nothing but `outbox` is left of it.
    pub(super) is_over: bool,
}

impl Connection {
    /// The connection of a login that is done.
    pub(super) fn new(now: Instant, id: ConnectionId, login: Login, config: &Config) -> Connection {
        Connection {
            id,
            cid: login.cid(),
            liveness: Liveness::new(now, config.ping_after, config.ping_timeout),
            outbox: login.outbox,
            responding: VecDeque::new(),
            retransmit: (login.agreed.error_recovery_level > 0).then(Box::default),
            agreed: login.agreed,
            text: None,
            ping_tag: 0,
            is_leaving: false,
            is_over: false,
        }
    }

    /// Asks for a sign of life; returns the tag that the answer will have.
    pub(super) fn ping(&mut self) -> Option<u32> {
        self.ping_tag = self.ping_tag.wrapping_add(1) & 0x00ff_ffff;
        // The top bit keeps pings apart from the tags of R2Ts.
        let target_transfer_tag = 0x8000_0000 | self.ping_tag;
        let ping =
            NopIn { lun: Lun(0), initiator_task_tag: TAG_NONE, target_transfer_tag, sequence: Sequence::default() };
        self.outbox.push(ping.encode(), Buffer::empty(), AnswerKind::Ping).ok()?;
        Some(target_transfer_tag)
    }

    /// Answers a ping of the initiator, with as much of its data as one PDU takes (RFC 7143 §11.19).
    pub(super) fn echo(&mut self, nop: &NopOut, data: &Buffer) -> Result<(), PeerMisbehaved> {
        let echo_bytes = data.len().min(self.agreed.send_segment_bytes_max as usize);
        let answer = NopIn {
            lun: Lun(0),
            initiator_task_tag: nop.initiator_task_tag,
            target_transfer_tag: TAG_NONE,
            sequence: Sequence::default(),
        };
        self.outbox.push(answer.encode(), data.slice(..echo_bytes), AnswerKind::Numbered)
    }

    /// The initiator has every answer before this one. A number that was not used yet is ignored.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: Serial) {
        if let Some(retransmit) = &mut self.retransmit
            && !self.outbox.stat_sn().is_before(exp_stat_sn)
        {
            retransmit.acknowledge(exp_stat_sn);
        }
    }

    /// Grants a SNACK, but for R-Data (RFC 7143 §11.16); false if what it asks for is not stored.
    pub(super) fn grant_snack(&mut self, snack: &SnackRequest) -> bool {
        const DATA_OR_R2T: u8 = 0;
        const STATUS: u8 = 1;
        const DATA_ACK: u8 = 2;
        let next = self.outbox.stat_sn();
        match (&mut self.retransmit, snack.kind) {
            (Some(buffer), DATA_OR_R2T) => {
                buffer.send_sequence(snack.initiator_task_tag, snack.begin_run, snack.run_length)
            }
            (Some(buffer), DATA_ACK) => buffer.acknowledge_data(snack.target_transfer_tag, snack.begin_run),
            (Some(buffer), STATUS) => buffer.send_answers(Serial(snack.begin_run), snack.run_length, next),
            _ => false,
        }
    }

    /// The next PDU that is no response of a task: one that is sent again, or a small answer.
    pub(super) fn next_answer(&mut self, window: Window) -> Option<Pdu> {
        if let Some(mut repeated) = self.retransmit.as_mut().and_then(|buffer| buffer.next_again()) {
            self.liveness.sent();
            // It keeps its StatSN and shows the current command window.
            let stat_sn = fields::STAT_SN.get(&repeated.bhs);
            Sequence { stat_sn, ..self.outbox.numbers(window) }.put(&mut repeated.bhs);
            return Some(repeated);
        }
        let (pdu, kind) = self.outbox.pop(window)?;
        if kind != AnswerKind::Ping {
            self.liveness.sent();
        }
        self.store(&pdu, 0);
        Some(pdu)
    }

    /// Stores a PDU that is being sent, in case it has to be sent again.
    pub(super) fn store(&mut self, pdu: &Pdu, covers_bytes: u32) {
        if let Some(buffer) = &mut self.retransmit {
            buffer.keep(pdu, covers_bytes);
        }
    }

    /// The connection is lost: takes out what may have to be sent again on another one. The responses of tasks stay.
    pub(super) fn set_aside(&mut self) -> (Option<Box<RetransmitBuffer>>, Vec<RepeatedResponse>) {
        let mut repeats = Vec::new();
        for turn in std::mem::take(&mut self.responding) {
            match turn {
                Turn::Repeat(repeated) => repeats.push(*repeated),
                Turn::Task(_) => self.responding.push_back(turn),
            }
        }
        (self.retransmit.take(), repeats)
    }

    /// The connection is over but for its last answers; returns the responses that it will not send.
    pub(super) fn close(&mut self) -> VecDeque<Turn> {
        (self.is_leaving, self.is_over) = (true, true);
        self.outbox.keep_last_words();
        self.text = None;
        self.retransmit = None;
        std::mem::take(&mut self.responding)
    }
}

//! One connection of a session (RFC 7143 §4.2.2): its login, its requests, and which answers it has seen.
//!
//! A command's PDUs all take the connection that the command went by (connection allegiance, §4.2.2.3). CmdSN, the command window and the
//! tasks are the session's.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::connection_id::ConnectionId;
use super::functions::FunctionTable;
use super::login::Login;
use super::requests::{self, is_data_ack};
use super::task::Burst;
use super::types::{Command, Config};
use crate::liveness::Liveness;
use crate::login::Agreed;
use crate::pdu::fields::{self, Field};
use crate::pdu::{Bhs, NopIn, Opcode, Pdu, Sequence, TAG_NONE};
use crate::slots::Key;
use crate::{PeerMisbehaved, Serial};

/// Small requests that may wait to be sent; a target that makes us answer more pings than it reads is given up.
pub(super) const REQUESTS_MAX: usize = 256;
/// What a command counts beside its data when connections are compared, in bytes: headers, and the work at both ends.
const COMMAND_COST_BYTES: u64 = 1024;
/// PDUs that may be damaged on one connection before it is given up.
const DAMAGED_MAX: u32 = 4096;
/// How far beyond a StatSN that is missing others may be.
const BEYOND_MAX: u32 = 1024;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnectionId,
    /// Until full-feature phase.
    pub(super) login: Option<Box<Login>>,
    /// When the login must be over.
    pub(super) deadline: Option<Instant>,
    pub(super) liveness: Liveness,
    /// What this login settled: the session's values, and its own segment lengths and digests.
    pub(super) agreed: Agreed,
    /// Small requests; the numbers of immediate ones are put in when they leave.
    requests: VecDeque<(Bhs, Buffer)>,
    /// Commands that wait for the command window.
    pub(super) waiting: VecDeque<Key>,
    /// Commands to send once more, under the number that they have.
    pub(super) retries: VecDeque<Key>,
    /// Data-Out sequences in the order in which they became due.
    pub(super) bursts: VecDeque<Burst>,
    /// Whether the next turn is a burst's, when a command could go too.
    burst_turn: bool,
    pub(super) exp_stat_sn: Serial,
    ping_tag: Option<u32>,
    /// What is missing, from error recovery level 1 on.
    pub(super) missing: Option<Box<MissingAnswers>>,
    /// What its tasks have to move, in bytes.
    load_bytes: u64,
}

/// Answers that are known to be missing, because their PDUs were damaged.
#[derive(Debug, Default)]
pub(super) struct MissingAnswers {
    /// StatSNs that were seen beyond one that is missing.
    beyond: Vec<Serial>,
    damaged: u32,
}

/// What a connection sends next beside small requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTurn {
    Command,
    Burst,
    Nothing,
}

impl Connection {
    /// A connection whose login begins.
    pub(super) fn new(now: Instant, id: ConnectionId, config: &Config, mut login: Login) -> Connection {
        let first_request = login.start(config);
        Connection {
            id,
            login: Some(Box::new(login)),
            deadline: Some(now + config.login_timeout),
            liveness: Liveness::new(now, config.ping_after, config.ping_timeout),
            agreed: Agreed::default(),
            requests: VecDeque::from([first_request]),
            waiting: VecDeque::new(),
            retries: VecDeque::new(),
            bursts: VecDeque::new(),
            burst_turn: false,
            exp_stat_sn: Serial(0),
            ping_tag: None,
            missing: None,
            load_bytes: 0,
        }
    }

    /// Full-feature phase begins. Nothing is damaged inside a channel.
    pub(super) fn enter(&mut self, agreed: Agreed, in_channel: bool) {
        self.missing = (agreed.error_recovery_level > 0 && !in_channel).then(Box::default);
        (self.login, self.deadline, self.agreed) = (None, None, agreed);
    }

    pub(super) fn is_in_full_feature_phase(&self) -> bool {
        self.login.is_none()
    }

    /// When it has to be pinged or given up.
    pub(super) fn timeout(&self) -> Option<Instant> {
        if self.is_in_full_feature_phase() { Some(self.liveness.deadline()) } else { self.deadline }
    }

    /// Queues a small request.
    pub(super) fn request(&mut self, bhs: Bhs, data: Buffer) {
        self.requests.push_back((bhs, data));
    }

    /// Queues a small request without data.
    pub(super) fn request_header(&mut self, bhs: Bhs) {
        self.request(bhs, Buffer::empty());
    }

    /// Fails while so many requests wait that the target must be flooding us.
    pub(super) fn check_flood(&self) -> Result<(), PeerMisbehaved> {
        match self.requests.len() >= REQUESTS_MAX {
            true => Err(PeerMisbehaved::Flood { what: "requests", limit: REQUESTS_MAX }),
            false => Ok(()),
        }
    }

    pub(super) fn requests_waiting(&self) -> usize {
        self.requests.len()
    }

    /// Withdraws a Data ACK that was not sent yet.
    pub(super) fn withdraw_data_ack(&mut self, target_transfer_tag: u32) {
        self.requests.retain(|(bhs, _)| !is_data_ack(bhs, target_transfer_tag));
    }

    pub(super) fn ping(&mut self, tag: u32) {
        self.ping_tag = Some(tag);
        self.request_header(requests::ping(tag));
    }

    /// Answers the target's ping; without a tag it only has news of the command window.
    pub(super) fn answer_ping(&mut self, ping: &NopIn) -> Result<(), PeerMisbehaved> {
        if ping.target_transfer_tag != TAG_NONE {
            self.check_flood()?;
            self.request_header(requests::ping_answer(ping.target_transfer_tag, ping.lun));
        }
        Ok(())
    }

    /// A ping was answered.
    pub(super) fn take_ping_answer(&mut self, tag: u32) {
        if self.ping_tag == Some(tag) {
            self.ping_tag = None;
        }
    }

    /// The next small request, with its numbers.
    pub(super) fn next_request(&mut self, cmd_sn: Serial, functions: &mut FunctionTable) -> Option<Pdu> {
        let (mut bhs, data) = self.requests.pop_front()?;
        let tag = bhs.initiator_task_tag();
        if bhs.opcode() != Some(Opcode::NopOut) || Some(tag) != self.ping_tag {
            self.liveness.sent();
        }
        // Immediate ones show the next CmdSN and do not use it up; one that is not takes the place of a lost command.
        if bhs.opcode() != Some(Opcode::Snack) && bhs.is_immediate() {
            fields::CMD_SN.put(&mut bhs, cmd_sn);
        }
        functions.sent(tag, cmd_sn);
        fields::EXP_STAT_SN.put(&mut bhs, self.exp_stat_sn);
        Some(Pdu::new(bhs, Bytes::new(), data, false))
    }

    /// Whose turn it is: commands and the data of writes go in turn.
    pub(super) fn next_turn(&mut self, is_window_open: bool) -> NextTurn {
        let has_command = (is_window_open && !self.waiting.is_empty()) || !self.retries.is_empty();
        let turn = match (has_command, !self.bursts.is_empty()) {
            (false, false) => return NextTurn::Nothing,
            (true, false) => NextTurn::Command,
            (false, true) => NextTurn::Burst,
            (true, true) => {
                self.burst_turn = !self.burst_turn;
                if self.burst_turn { NextTurn::Burst } else { NextTurn::Command }
            }
        };
        self.liveness.sent();
        turn
    }

    /// Takes a command over.
    pub(super) fn add_load(&mut self, command: &Command) {
        self.load_bytes += cost_bytes(command);
    }

    /// A command is over.
    pub(super) fn remove_load(&mut self, command: &Command) {
        self.load_bytes = self.load_bytes.saturating_sub(cost_bytes(command));
    }

    pub(super) fn load_bytes(&self) -> u64 {
        self.load_bytes
    }

    /// Counts the StatSN of an answer where none can be missing: a stream loses nothing, so a gap is the target's miscount; ours never
    /// miscounts, others may.
    pub(super) fn count_stat_sn(&mut self, numbers: Sequence, in_channel: bool) -> Result<(), PeerMisbehaved> {
        if in_channel && numbers.stat_sn != self.exp_stat_sn {
            return Err(PeerMisbehaved::StatSn { found: numbers.stat_sn.0, expected: self.exp_stat_sn.0 });
        }
        if !numbers.stat_sn.is_before(self.exp_stat_sn) {
            self.exp_stat_sn = numbers.stat_sn.next();
        }
        Ok(())
    }

    /// Counts the StatSN of an answer where some may be missing; false if the answer arrived before.
    pub(super) fn take_stat_sn(&mut self, stat_sn: Serial) -> Result<bool, PeerMisbehaved> {
        let Connection { missing: Some(missing), exp_stat_sn, .. } = self else { return Ok(true) };
        if stat_sn.is_before(*exp_stat_sn) || missing.beyond.contains(&stat_sn) {
            return Ok(false);
        }
        if exp_stat_sn.steps_to(stat_sn) > BEYOND_MAX {
            return Err(PeerMisbehaved::StatSn { found: stat_sn.0, expected: exp_stat_sn.0 });
        }
        missing.beyond.push(stat_sn);
        while let Some(at) = missing.beyond.iter().position(|seen| seen == exp_stat_sn) {
            missing.beyond.swap_remove(at);
            *exp_stat_sn = exp_stat_sn.next();
        }
        Ok(true)
    }

    /// A PDU was damaged; false if that cannot be recovered from.
    pub(super) fn count_damaged(&mut self) -> bool {
        let Some(missing) = &mut self.missing else { return false };
        missing.damaged += 1;
        missing.damaged <= DAMAGED_MAX
    }

    /// Sends SNACK requests (RFC 7143 §11.16).
    pub(super) fn snack(
        &mut self,
        kind: u8,
        initiator_task_tag: u32,
        begin_run: u32,
        run_length: u32,
    ) -> Result<(), PeerMisbehaved> {
        self.check_flood()?;
        self.request_header(requests::snack(kind, initiator_task_tag, begin_run, run_length));
        Ok(())
    }
}

/// What a command counts for its connection.
fn cost_bytes(command: &Command) -> u64 {
    COMMAND_COST_BYTES + u64::from(command.expected_bytes)
}

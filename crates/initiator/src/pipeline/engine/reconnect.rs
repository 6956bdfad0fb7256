//! Connections that come and go beneath the engine: what is sent again, what is replayed, and what fails when nobody waits any longer.

use std::sync::Arc;

use strongroom_block::{DeviceError, Lba};

use super::command::CommandKind;
use super::finish::lost_request;
use super::{Engine, Op, OpWork, Phase, Ready};
use crate::pipeline::request::{FailedRequest, FinishedOp, Reply, Work};
use crate::pipeline::unflushed::{Piece, PieceContent, Stored};
use crate::pipeline::unit::UnitDescription;
use crate::pipeline::write_order::{Range, WriteOrder};

impl Engine {
    /// A connection to the unit stands. `restarted`: the target may have lost what was not flushed.
    pub(crate) fn connected(&mut self, unit: Arc<UnitDescription>, restarted: bool) {
        self.unit = unit;
        self.phase = Phase::Up;
        self.refetching.connected();
        self.replay_due |= restarted;
        if self.replay_due {
            self.begin_replay();
        }
    }

    /// Sends again what the log has, as soon as there are keys for all of it.
    pub(super) fn begin_replay(&mut self) {
        self.phase = Phase::Replaying;
        let pieces = self.log.pieces(self.block_bytes());
        let mut works = Vec::with_capacity(pieces.len());
        for piece in pieces {
            works.push(self.replay_work(piece));
        }
        if !works.is_empty() {
            tracing::info!(pieces = works.len(), bytes = self.log.bytes(), "sending unflushed writes again");
        }
        for (range, work, stored) in works {
            self.replay(range, work, stored);
        }
        self.replay_done_if_empty();
    }

    fn replay_work(&self, Piece { what, stored }: Piece) -> (Range, Work, Option<Stored>) {
        match what {
            PieceContent::Write { lba, data, records } => {
                let range = Range::new(lba, (data.len() / self.block_bytes()) as u64);
                (range, Work::Write { lba, data, records, fua: false }, stored)
            }
            PieceContent::Hole(hole) => (Range::new(hole.start, hole.count), Work::Hole(hole), stored),
            PieceContent::Discard(range) => {
                (range, Work::Discard { lba: Lba(range.start), count: range.end - range.start }, stored)
            }
        }
    }

    fn replay(&mut self, range: Range, work: Work, stored: Option<Stored>) {
        self.counters.blocks_replayed += range.end - range.start;
        self.replay_ops += 1;
        let key = self.ops.insert(Op {
            reply: Reply::Nobody,
            cost_bytes: 0,
            work: OpWork::Plain(work),
            holds: None,
            is_replay: true,
            stored,
            outstanding: 0,
            cursor: range,
            error: None,
        });
        self.start(key);
    }

    pub(super) fn replay_done_if_empty(&mut self) {
        if self.phase == Phase::Replaying && self.replay_ops == 0 {
            let superseded = std::mem::take(&mut self.replay_superseded);
            tracing::info!(
                superseded,
                "unflushed writes are with the target again, but for blocks that hold something newer"
            );
            self.replay_due = false;
            self.without_keys_since = None;
            self.phase = Phase::Up;
        }
    }

    /// One of the connections is gone, whether the session is or not. A machine resumed from a snapshot has lost them all: what it
    /// seals from here on is not sealed as another copy of it does.
    pub(crate) fn connection_lost(&self) {
        if let Some(sealing) = &self.sealing {
            sealing.renew(None);
        }
    }

    /// The session is gone; what was in flight has an unknown outcome and will be sent again, as it was.
    pub(crate) fn disconnected(&mut self) {
        self.connection_lost();
        self.phase = Phase::Down;
        self.was_reset = false;
        self.in_flight = 0;
        self.writing_bytes = 0;
        self.delayed.clear();
        self.awaiting_keys.clear();
        self.lease.disconnected();
        self.refetching.disconnected();
        self.replay_ready.clear();
        self.registrations.disconnected();
        self.registration_ready = None;
        self.replay_ops = 0;
        self.replay_superseded = 0;
        self.replay_waits = None;
        self.writes.disconnected();
        self.reads.disconnected();
        let ops = &mut self.ops;
        self.commands.retain(|_, command| !ops[command.op].is_replay);
        ops.retain(|_, op| !op.is_replay);
        let mut again: Vec<(u64, usize)> = Vec::with_capacity(self.commands.len());
        for (key, command) in &mut self.commands {
            command.may_be_done |= command.sent && command.kind.writes();
            command.sent = false;
            command.error = None;
            command.flight = None;
            // These are not in the log, and the target may have forgotten them. A sealed unit knows whether it has; on a plain one whether
            // a part is still there is seen by reading the block.
            match (command.kind, &self.ops[command.op].work) {
                (CommandKind::Flush { .. }, OpWork::Part(_)) if self.sealing.is_some() => {
                    (command.kind, command.may_be_done) = (CommandKind::PartWrite, true);
                }
                (CommandKind::Flush { .. }, OpWork::Part(_)) => command.kind = CommandKind::PartRead,
                (CommandKind::Flush { .. }, OpWork::Plain(Work::ConditionalWrite { .. })) => {
                    (command.kind, command.may_be_done) = (CommandKind::Conditional, true);
                }
                _ => {}
            }
            if let OpWork::Asking(_, found) = &mut self.ops[command.op].work {
                found.forget();
            }
            // What is being sealed comes when it is.
            if !command.sealing.is_pending() {
                again.push((command.sequence, key));
            }
        }
        again.sort_unstable();
        self.ready = Ready::default();
        for (_, key) in again {
            self.ready.add_last(key, self.commands[key].kind);
        }
        // Feedback is a courtesy; what was on its way is forgotten, and a flush of ours is made anew when needed.
        self.forget_own_ops();
    }

    /// Drops requests that nobody waits for.
    fn forget_own_ops(&mut self) {
        let own: Vec<usize> =
            self.ops.iter().filter(|(_, op)| matches!(op.reply, Reply::Nobody)).map(|(key, _)| key).collect();
        for key in own {
            self.commands.retain(|_, command| command.op != key);
            self.ops.remove(key);
        }
        self.ready.retain(|key| self.commands.contains(key));
        self.own_flush = false;
        if let Some(verified) = &mut self.verified {
            verified.sent_or_lost();
        }
    }

    /// Every request fails: the connection did not come back in time, or the device is being detached.
    pub(crate) fn fail_all(&mut self, error: &DeviceError) {
        self.disconnected();
        self.commands.clear();
        self.unsealed.clear();
        self.ready = Ready::default();
        self.writes.clear();
        self.reads.clear();
        self.order = WriteOrder::default();
        let block_bytes = self.block_bytes();
        for op in std::mem::take(&mut self.ops) {
            let (_, Op { reply, cost_bytes, work, .. }) = op;
            let failed = lost_request(&work, block_bytes).map(FailedRequest::Lost);
            self.finished.push(FinishedOp { reply, cost_bytes, result: Err(error.clone()), failed });
        }
    }

    /// Every request fails, and what would be sent again to a restarted target is forgotten.
    pub(crate) fn abandon(&mut self, error: &DeviceError) {
        self.log.give_up();
        self.fail_all(error);
    }
}

//! Connections and keys that come and go beneath the engine: what is sent again, what is replayed, and what fails.

use std::sync::Arc;

use strongroom_block::DeviceError;

use super::Engine;
use crate::pipeline::operation::{Discard, Hole, Operation, Write};
use crate::pipeline::request::Purpose;
use crate::pipeline::unflushed::{Piece, PieceContent};
use crate::pipeline::unit::UnitDescription;

impl Engine {
    /// A connection to the unit stands. `restarted`: the target may have lost what was not flushed.
    pub(crate) fn connected(&mut self, unit: Arc<UnitDescription>, restarted: bool) {
        self.table.capabilities = self.windows.capabilities(&unit, self.table.capabilities.has_lba_status);
        self.unit = unit;
        self.refetching.connected();
        if self.replay.connected(restarted) {
            self.begin_replay();
        }
    }

    /// Sends again what the log has, as soon as there are keys for all of it.
    fn begin_replay(&mut self) {
        self.replay.begin();
        let block_bytes = self.unit.geometry.block_size.len();
        let pieces = self.flushes.log.pieces(block_bytes);
        if !pieces.is_empty() {
            tracing::info!(pieces = pieces.len(), bytes = self.flushes.log.bytes(), "sending unflushed writes again");
        }
        for Piece { what, stored } in pieces {
            self.replay.add_request();
            let (blocks, operation): (u64, Operation) = match what {
                PieceContent::Write { lba, data, records } => {
                    ((data.len() / block_bytes) as u64, Write { lba, data, records, fua: false }.into())
                }
                PieceContent::Hole(hole) => (hole.count, Hole(hole).into()),
                PieceContent::Discard(range) => {
                    let count = range.end - range.start;
                    (count, Discard { lba: strongroom_block::Lba(range.start), count }.into())
                }
            };
            self.counters.blocks_replayed += blocks;
            self.table.begin_own(operation, Purpose::Replay, stored);
        }
        self.replay.end_if_complete();
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
        self.replay.disconnected();
        self.in_flight.disconnected();
        self.key_questions.disconnected();
        self.lease.disconnected();
        self.refetching.disconnected();
        self.attach_ids.disconnected();
        self.windows.disconnected();
        self.table.disconnected();
        self.flushes.own_ended();
        if let Some(feedback) = &mut self.feedback {
            feedback.sent_or_lost();
        }
    }

    /// Every request fails: the connection did not come back in time, or the device is being detached.
    pub(crate) fn fail_all(&mut self, error: &DeviceError) {
        self.disconnected();
        self.windows.clear();
        self.table.fail_all(error);
    }

    /// Every request fails, and what would be sent again to a restarted target is forgotten.
    pub(crate) fn abandon(&mut self, error: &DeviceError) {
        self.flushes.log.give_up();
        self.fail_all(error);
    }

    /// Keys were asked for, are others, or gone: reads whose question was answered are tried once more, and what was sealed under older
    /// keys is made durable, so that it need not be sent again when they are destroyed.
    pub(crate) fn keys_changed(&mut self) {
        for key in self.key_questions.take_answered(self.sealing.as_deref()) {
            if let Some(command) = self.table.commands.get(key) {
                self.table.queue.add_first(key, &command.plan);
            }
        }
        if self.replay.missing_keys.take().is_some() && self.replay.requests == 0 {
            self.begin_replay();
        }
        if self.flushes.can_flush_log() {
            self.begin_own_flush();
        }
    }

    /// Whether a command failed for keys that come again, and is part of a replay: what the application believes to be written is not
    /// lost because a key server is not back yet.
    pub(super) fn waits_with_replay(&mut self, key: usize, error: &DeviceError) -> bool {
        let (_, request) = self.table.both(key);
        let waits = request.is_replay() && self.sealing.as_ref().is_some_and(|sealing| sealing.is_passing(error));
        if waits {
            self.table.queue.replay.push_front(key);
            self.replay.missing_keys = Some(error.clone());
        }
        waits
    }

    /// While a replay waits for keys, reads and writes fail for lack of them, as they would without it. Flushes wait, as long as requests
    /// wait for a lost connection.
    pub(super) fn fail_without_keys(&mut self) {
        let Some(error) = self.replay.missing_keys.clone() else { return };
        while let Some(key) = self.table.queue.take_data() {
            self.fail_command(key, error.clone());
        }
        let Some(now) = self.now else { return };
        self.replay.without_keys_since.get_or_insert(now);
        if self.replay.patience_ends().is_none_or(|at| at > now) {
            return;
        }
        let commands: Vec<usize> =
            self.table.queue.others().filter(|key| self.table.is_requested_flush(*key)).collect();
        for key in self.table.queue.take_others(|key| commands.contains(&key)) {
            let message = format!(
                "what was written before is not durable: the target was restarted and forgot it, and it cannot be sent again before there \
                 are keys; it is kept until then: {}",
                error.message
            );
            tracing::error!(message, "a flush fails");
            self.fail_command(key, DeviceError { message, ..error.clone() });
        }
    }
}

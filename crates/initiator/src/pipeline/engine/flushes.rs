//! What is not durable yet: the log of unflushed writes, the flushes that bound it, and what the next flush must report.

use strongroom_block::DeviceError;

use super::request_table::RequestTable;
use crate::pipeline::unflushed::UnflushedLog;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    pub(super) log: UnflushedLog,
    /// A flush of the engine's own is on its way.
    own_in_flight: bool,
    /// A flush of the engine's own failed: the next flush of the application says so, once.
    lost: Option<DeviceError>,
    /// A planted fault, for tests of tests: a flush covers what was acknowledged before its response, not before it was sent.
    pub(super) marks_late: bool,
}

impl Flushes {
    pub(super) fn new(marks_late: bool) -> Flushes {
        Flushes { marks_late, ..Flushes::default() }
    }

    /// Whether the log is half full, and no own flush is on its way. `bytes_max`: the log's limit.
    pub(super) fn wants_own_flush(&self, bytes_max: usize) -> bool {
        self.can_flush_log() && self.log.bytes() >= bytes_max / 2
    }

    /// Whether an own flush would make something durable, and none is on its way.
    pub(super) fn can_flush_log(&self) -> bool {
        !self.own_in_flight && self.log.bytes() > 0
    }

    pub(super) fn own_begins(&mut self) {
        self.own_in_flight = true;
    }

    /// The own flush has ended, or was forgotten with its connection.
    pub(super) fn own_ended(&mut self) {
        self.own_in_flight = false;
    }

    /// A flush with this mark succeeded.
    pub(super) fn flushed(&mut self, mark: u64) {
        let mark = if self.marks_late { self.log.mark() } else { mark };
        self.log.flushed(mark);
    }

    /// Acknowledged writes may be lost; the next flush says so.
    pub(super) fn set_lost(&mut self, error: DeviceError) {
        self.lost.get_or_insert(error);
    }

    /// What a flush that begins now has to report.
    pub(super) fn take_lost(&mut self) -> Option<DeviceError> {
        self.lost.take()
    }

    /// What was acknowledged and is not durable is never sent again: others own the volume. The flushes that wait say so, or else the next one.
    pub(super) fn give_up(&mut self, table: &mut RequestTable, error: &DeviceError) {
        if self.log.bytes() == 0 {
            return;
        }
        let bytes = self.log.bytes();
        tracing::error!(bytes, %error, "writes that were acknowledged and not flushed may be lost: they are not sent again");
        self.log.give_up();
        let lost = lost(error);
        if !table.fail_waiting_flushes(&lost) {
            self.set_lost(lost);
        }
    }

    /// Everything on the volume was erased: nothing of it can be lost any more.
    pub(super) fn erased(&mut self) {
        self.log.give_up();
        self.lost = None;
    }
}

/// The error of a flush that cannot promise what was written before it.
pub(super) fn lost(error: &DeviceError) -> DeviceError {
    let message = format!("writes since the last flush may be lost: {}", error.message);
    DeviceError { message, ..error.clone() }
}

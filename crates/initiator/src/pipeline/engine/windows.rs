//! The windows of writes and reads, and the limits that follow from them.

use std::time::Instant;

use super::command::Sent;
use crate::pipeline::command_plan::CommandPlan;
use crate::pipeline::operation::execute::Capabilities;
use crate::pipeline::unit::UnitDescription;
use crate::pipeline::{PathSample, Window};
use crate::{Limits, Pipeline, PipelineStatus};

/// Bytes that one probe for holes asks for, at most.
const PROBE_BYTES_MAX: u64 = 32 << 20;
/// Requests are taken in for this many windows, if that is more than their limit.
const REQUEST_WINDOWS: usize = 2;
/// The log of unflushed writes may hold this many windows of writes, if that is more than its limit: half of them begin a flush,
/// and what comes while it is in flight finds room in the other half.
const UNFLUSHED_WINDOWS: usize = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Windows {
    pub(super) writes: Window,
    pub(super) reads: Window,
    limits: Limits,
}

impl Windows {
    pub(super) fn new(pipeline: Pipeline, limits: Limits) -> Windows {
        Windows { writes: Window::new(pipeline), reads: Window::of_reads(pipeline), limits }
    }

    /// How requests to `unit` are split.
    pub(super) fn capabilities(&self, unit: &UnitDescription, has_lba_status: bool) -> Capabilities {
        let shift = unit.geometry.block_size.shift();
        let theirs = unit.transfer_blocks_max.map_or(u64::MAX, u64::from);
        Capabilities {
            transfer_blocks: (u64::from(self.limits.transfer_bytes_max) >> shift).min(theirs).max(1),
            unmap_blocks: unit.unmap_blocks_max.map(u64::from),
            probe_blocks: (PROBE_BYTES_MAX >> shift).min(theirs),
            has_lba_status,
        }
    }

    /// Commands in flight at once.
    pub(super) fn commands_max(&self) -> usize {
        self.limits.commands_max
    }

    /// The window that limits a command, if one does.
    pub(super) fn of(&mut self, plan: &CommandPlan) -> Option<&mut Window> {
        match plan {
            _ if plan.writes() => Some(&mut self.writes),
            _ if plan.reads() => Some(&mut self.reads),
            _ => None,
        }
    }

    /// A command was answered. `moved`: its data went over the link, all of it.
    pub(super) fn answered(&mut self, now: Instant, plan: &CommandPlan, sent: &Sent, moved: bool) {
        if let (Some(window), Some(flight)) = (self.of(plan), &sent.flight) {
            window.answered(now, flight, moved);
        }
    }

    /// A command was not sent after all.
    pub(super) fn not_sent(&mut self, plan: &CommandPlan, sent: &Sent) {
        if let (Some(window), Some(flight)) = (self.of(plan), &sent.flight) {
            window.not_sent(flight);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [&self.writes, &self.reads].into_iter().filter_map(Window::poll_timeout).min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.writes.handle_timeout(now);
        self.reads.handle_timeout(now);
    }

    pub(super) fn disconnected(&mut self) {
        self.writes.disconnected();
        self.reads.disconnected();
    }

    pub(super) fn clear(&mut self) {
        self.writes.clear();
        self.reads.clear();
    }

    /// What the kernel says about the connection.
    pub(crate) fn path(&mut self, sample: PathSample) {
        self.writes.path(sample);
        self.reads.path(sample);
    }

    /// What is known about writes.
    pub(crate) fn status(&self) -> PipelineStatus {
        self.writes.status()
    }

    /// Threads that should seal, of `workers_max`; 0: the submitter of a write had better seal it.
    pub(crate) fn workers(&self, seal_bytes_per_second: f64, workers_max: u32) -> u32 {
        self.writes.workers(seal_bytes_per_second, workers_max)
    }

    /// Bytes that are to be fetched ahead of sequential reads; 0 where the path is short.
    pub(crate) fn ahead_bytes(&self) -> u64 {
        self.reads.window_bytes().unwrap_or(0).saturating_mul(REQUEST_WINDOWS as u64)
    }

    /// Bytes of requests to take in, so that there is always something to send.
    pub(crate) fn request_bytes_max(&self) -> usize {
        let windows = [&self.writes, &self.reads].into_iter().filter_map(Window::window_bytes);
        let window = windows.max().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        self.limits.request_bytes_max.max(window.saturating_mul(REQUEST_WINDOWS).min(Limits::PINNED_BYTES_MAX))
    }

    /// What may be unflushed. While a flush is in flight, a round trip and its work at the target, writes go on.
    pub(super) fn unflushed_bytes_max(&self) -> usize {
        let fixed = self.limits.unflushed_bytes_max;
        let window = self.writes.window_bytes().map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        fixed.max(window.saturating_mul(UNFLUSHED_WINDOWS).min(Limits::PINNED_BYTES_MAX))
    }
}

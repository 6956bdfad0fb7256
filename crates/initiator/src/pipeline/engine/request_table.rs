//! The requests that were taken in, the commands that they are split into, and the answers: who waits for whom, and when a request has
//! ended. Absent: when a command may be sent, and what its end means.

use std::sync::Arc;
use std::time::Instant;

use slab::Slab;
use strongroom_block::{DeviceError, Stamp};

use super::command::{Command, SealingState};
use super::command_queue::CommandQueue;
use super::fetches::Fetches;
use crate::pipeline::command_plan::{CommandKind, CommandPlan};
use crate::pipeline::meter::RequestMeter;
use crate::pipeline::operation::Operation;
use crate::pipeline::operation::execute::{Capabilities, Execute, FirstRecord};
use crate::pipeline::outcome::Retries;
use crate::pipeline::request::{FailedRequest, FinishedRequest, NewRequest, Purpose, Reply};
use crate::pipeline::unflushed::Stored;
use crate::pipeline::write_order::{Range, WriteOrder};

/// Commands of one request in flight or ready at once; the rest of a huge request is split off as these complete.
const COMMANDS_PER_REQUEST_MAX: u32 = 32;

/// One request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) reply: Reply,
    cost_bytes: usize,
    pub(super) operation: Operation,
    /// The blocks concerned.
    pub(super) range: Range,
    /// It holds its range against other writers.
    excludes_writers: bool,
    /// Of a replay to a sealed unit: how the unit knows it.
    pub(super) stored: Option<Stored>,
    /// Commands made and not completed.
    outstanding: u32,
    /// What no command was made for yet.
    remaining: Option<Range>,
    error: Option<DeviceError>,
    /// When the engine took it in.
    began: Option<Instant>,
}

impl Request {
    /// Whether the engine itself waits for it.
    pub(super) fn is_own(&self) -> bool {
        matches!(self.reply, Reply::Engine(_))
    }

    pub(super) fn is_replay(&self) -> bool {
        matches!(self.reply, Reply::Engine(Purpose::Replay))
    }

    /// The first record that a command writes, as it is sealed now.
    pub(super) fn first_record(&self, command: &Command, block_bytes: usize) -> Option<FirstRecord> {
        match command.sealing.done() {
            Some(sealed) => Some((sealed.records.first_stamp(), sealed.records.epoch())),
            None => self.operation.first_record(&command.plan, block_bytes),
        }
    }

    fn ended(self, result: Result<(), DeviceError>, block_bytes: usize) -> FinishedRequest {
        let Request { reply, cost_bytes, operation, .. } = self;
        let (result, failed) = match result {
            Ok(()) => (Ok(operation.answer()), None),
            Err(error) => {
                let lost = operation.lost_request(block_bytes).map(FailedRequest::Lost);
                let read = || operation.into_failed_read().map(|(lba, buffer)| FailedRequest::Read(lba, buffer));
                (Err(error), lost.or_else(read))
            }
        };
        FinishedRequest { reply, cost_bytes, result, failed }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RequestTable {
    pub(super) requests: Slab<Request>,
    pub(super) commands: Slab<Command>,
    pub(super) queue: CommandQueue,
    order: WriteOrder,
    next_sequence: u64,
    pub(super) capabilities: Capabilities,
    block_bytes: usize,
    is_sealed: bool,
    finished: Vec<FinishedRequest>,
    /// What ended of the engine's own requests.
    own_ended: Vec<Purpose>,
    /// Measures requests.
    pub(crate) meter: Arc<RequestMeter>,
    /// The time by which they are measured.
    pub(crate) now: Option<Instant>,
}

impl RequestTable {
    pub(super) fn new(capabilities: Capabilities, block_bytes: usize, is_sealed: bool) -> RequestTable {
        RequestTable {
            requests: Slab::new(),
            commands: Slab::new(),
            queue: CommandQueue::default(),
            order: WriteOrder::default(),
            next_sequence: 0,
            capabilities,
            block_bytes,
            is_sealed,
            finished: Vec::new(),
            own_ended: Vec::new(),
            meter: Arc::default(),
            now: None,
        }
    }

    fn request(&self, new: NewRequest, stored: Option<Stored>) -> Request {
        let NewRequest { reply, cost_bytes, operation } = new;
        let range = operation.range(self.block_bytes);
        Request {
            reply,
            cost_bytes,
            operation,
            range,
            excludes_writers: false,
            stored,
            outstanding: 0,
            remaining: Some(range),
            error: None,
            began: self.now,
        }
    }

    /// A request has ended.
    fn ended(&mut self, request: Request, result: Result<(), DeviceError>) {
        self.measure(&request, result.as_ref().err());
        self.finished.push(request.ended(result, self.block_bytes));
    }

    fn measure(&self, request: &Request, error: Option<&DeviceError>) {
        let time = request.began.zip(self.now).map(|(began, now)| now.saturating_duration_since(began));
        let bytes = request.range.count() * self.block_bytes as u64;
        self.meter.ended(request.operation.io_kind(), time, bytes, error.map(|error| error.kind));
    }

    /// Takes a request in: it begins when no earlier writer of its blocks is left.
    pub(super) fn insert(&mut self, new: NewRequest) {
        let request = self.request(new, None);
        if !request.operation.is_supported(&self.capabilities) {
            return self.finished.push(request.ended(Ok(()), self.block_bytes));
        }
        let (range, excludes_writers) = (request.range, request.operation.effect().excludes_writers());
        let key = self.requests.insert(Request { excludes_writers, ..request });
        if !excludes_writers || self.order.acquire(key, range) {
            self.cut(key);
        }
    }

    /// Ends a request that is not begun.
    pub(super) fn refuse(&mut self, new: NewRequest, error: DeviceError) {
        let request = self.request(new, None);
        self.ended(request, Err(error));
    }

    /// Begins a request of the engine's own; it waits for no writer. `stored`: how the unit knows what is replayed.
    pub(super) fn begin_own(&mut self, operation: Operation, purpose: Purpose, stored: Option<Stored>) {
        let new = NewRequest { reply: Reply::Engine(purpose), cost_bytes: 0, operation };
        let request = self.request(new, stored);
        let key = self.requests.insert(request);
        self.cut(key);
    }

    /// Makes the next commands of a request, and ends it if there is nothing left to do.
    pub(super) fn cut(&mut self, key: usize) {
        loop {
            let request = &mut self.requests[key];
            let is_cut = request.remaining.is_none() || request.error.is_some();
            if is_cut || request.outstanding >= COMMANDS_PER_REQUEST_MAX {
                return self.finish_if_done(key);
            }
            let plan = request.operation.next_command(&self.capabilities, &mut request.remaining);
            self.make_command(key, plan);
        }
    }

    /// Makes a command of a request.
    pub(super) fn make_command(&mut self, key: usize, plan: CommandPlan) -> usize {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let request = &mut self.requests[key];
        request.outstanding += 1;
        let is_unsealed = self.is_sealed && plan.writes() && request.operation.is_plain_write();
        let is_replay = request.is_replay();
        let stored = request.stored.map(|stored| stored.offset(plan.lba_or_zero().0 - request.range.start));
        let command = self.commands.insert(Command {
            request: key,
            plan,
            operation_id: stored.map(|stored| stored.operation),
            may_be_done: false,
            refusals: 0,
            sequence,
            tries: 0,
            retries: Retries::default(),
            sent: None,
            sealing: if is_unsealed { SealingState::Due } else { SealingState::AsSubmitted },
            is_ahead: false,
            fetches: Fetches::default(),
            asked_for_keys: false,
        });
        match plan.kind {
            CommandKind::Registration => self.queue.registration = Some(command),
            _ if is_replay => self.queue.replay.push_back(command),
            _ if is_unsealed => self.queue.unsealed.push_back(command),
            _ => self.queue.add(command, &self.commands),
        }
        command
    }

    /// A command that was sent before, or nearly, is the first of its kind to be sent.
    pub(super) fn requeue(&mut self, key: usize) {
        let command = &self.commands[key];
        if command.plan.kind == CommandKind::Registration {
            self.queue.registration = Some(key);
        } else if self.requests[command.request].is_replay() {
            self.queue.replay.push_front(key);
        } else {
            self.queue.add_first(key, &command.plan);
        }
    }

    /// The command and its request.
    pub(super) fn both(&mut self, key: usize) -> (&mut Command, &mut Request) {
        let command = &mut self.commands[key];
        let request = &mut self.requests[command.request];
        (command, request)
    }

    /// A command has ended.
    pub(super) fn remove_command(&mut self, key: usize) -> Command {
        let command = self.commands.remove(key);
        self.requests[command.request].outstanding -= 1;
        command
    }

    /// The operation id of a command, if it writes something sealed.
    pub(super) fn operation_id(&self, key: usize) -> Option<Stamp> {
        if !self.is_sealed {
            return None;
        }
        let command = &self.commands[key];
        let (stamp, _) = self.requests[command.request].first_record(command, self.block_bytes)?;
        Some(command.operation_id.unwrap_or(stamp))
    }

    /// Bytes of data that a command moves; what it says besides is not counted.
    pub(super) fn data_bytes(&self, key: usize) -> u64 {
        u64::from(self.commands[key].plan.data_blocks) * self.block_bytes as u64
    }

    /// A request fails, once its outstanding commands have ended.
    pub(super) fn fail(&mut self, key: usize, error: DeviceError) {
        self.requests[key].error.get_or_insert(error);
        self.finish_if_done(key);
    }

    /// The flushes that callers wait for fail; whether there are any.
    pub(super) fn fail_waiting_flushes(&mut self, error: &DeviceError) -> bool {
        let flushes = |request: &&mut Request| request.operation.is_flush() && !request.is_own();
        let mut any = false;
        for request in self.requests.iter_mut().map(|(_, request)| request).filter(flushes) {
            request.error.get_or_insert_with(|| error.clone());
            any = true;
        }
        any
    }

    /// Ends a request with nothing outstanding and nothing left to split off.
    pub(super) fn finish_if_done(&mut self, key: usize) {
        let request = &self.requests[key];
        let has_more = request.remaining.is_some() && request.error.is_none();
        if request.outstanding > 0 || has_more {
            return;
        }
        let mut request = self.requests.remove(key);
        let (range, excludes_writers) = (request.range, request.excludes_writers);
        if let Reply::Engine(purpose) = request.reply {
            self.measure(&request, request.error.as_ref());
            self.own_ended.push(purpose);
        } else {
            let result = request.error.take().map_or(Ok(()), Err);
            self.ended(request, result);
        }
        if excludes_writers {
            for granted in self.order.release(range) {
                self.cut(granted);
            }
        }
    }

    /// What has ended since the last call.
    pub(crate) fn take_finished(&mut self) -> Vec<FinishedRequest> {
        std::mem::take(&mut self.finished)
    }

    /// One of the engine's own requests that have ended.
    pub(super) fn take_own_ended(&mut self) -> Option<Purpose> {
        self.own_ended.pop()
    }

    /// Requests that a caller waits for.
    pub(crate) fn has_waiting_callers(&self) -> bool {
        self.requests.iter().any(|(_, request)| !matches!(request.reply, Reply::Engine(_) | Reply::Ahead(_)))
    }

    /// Whether the target has writes that it has not answered.
    pub(crate) fn has_unanswered_writes(&self) -> bool {
        self.commands.iter().any(|(_, command)| command.sent.is_some() && command.plan.writes())
    }

    /// A flush that a caller waits for.
    pub(super) fn is_requested_flush(&self, key: usize) -> bool {
        let command = &self.commands[key];
        command.plan.is_flush() && !self.requests[command.request].is_own()
    }

    /// Whether such a flush is ready to be sent.
    pub(super) fn has_requested_flush(&self) -> bool {
        self.queue.others().any(|key| self.is_requested_flush(key))
    }

    /// When the oldest command in flight was sent.
    pub(super) fn oldest_sent(&self) -> Option<Instant> {
        self.commands.iter().filter_map(|(_, command)| command.sent.as_ref()?.at).min()
    }

    /// The session is gone: what was in flight has an unknown outcome and is ready again, in the old order. The engine's own requests are
    /// forgotten; they are made again when they are needed.
    pub(super) fn disconnected(&mut self) {
        self.requests.retain(|_, request| !request.is_own());
        let requests = &mut self.requests;
        self.commands.retain(|_, command| requests.contains(command.request));
        self.queue.disconnected();
        let mut again: Vec<(u64, usize)> = Vec::with_capacity(self.commands.len());
        for (key, command) in &mut self.commands {
            let operation = &mut self.requests[command.request].operation;
            command.may_be_done |= command.sent.take().is_some() && command.plan.writes();
            if command.plan.is_flush()
                && let Some(plan) = operation.instead_of_lost_flush(self.is_sealed)
            {
                // What it was to make durable is not in the log, and the target may have forgotten it.
                command.plan = plan;
                command.may_be_done |= plan.writes();
            }
            operation.restart();
            // What is being sealed is queued when that is done.
            if !command.sealing.is_pending() {
                again.push((command.sequence, key));
            }
        }
        again.sort_unstable();
        for (_, key) in again {
            self.queue.add_last(key, &self.commands[key].plan);
        }
        self.own_ended.clear();
    }

    /// Every request fails.
    pub(super) fn fail_all(&mut self, error: &DeviceError) {
        self.commands.clear();
        self.queue = CommandQueue::default();
        self.order = WriteOrder::default();
        for (_, request) in std::mem::take(&mut self.requests) {
            self.ended(request, Err(error.clone()));
        }
    }
}

//! The door between callers and the engine's thread: requests in, within named limits, and completions out.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use strongroom_block::{BufferMut, Completion, DeviceError, DeviceErrorKind, Geometry, Lba, Token};
use strongroom_net::{BusyPoll, Waker};

use crate::completion::{CompletionQueue, device_error, lock};
use crate::device::failed_reads::{FailedRead, FailedReads};
use crate::pipeline::ahead::{Fetch, Read, ReadAhead, Served, Settled};
use crate::pipeline::answer::Answer;
use crate::pipeline::losses::{LostRequest, WriteLosses};
use crate::pipeline::meter::RequestMeter;
use crate::pipeline::operation::execute::{Effect, Execute};
use crate::pipeline::operation::{Operation, Read as ReadBlocks};
use crate::pipeline::request::{FailedRequest, FinishedRequest, NewRequest, Reply};
use crate::{Limits, Pipeline};

/// Shared by the device's handle and the engine's thread.
pub(super) struct Intake {
    state: Mutex<IntakeQueue>,
    room: Condvar,
    pub(super) completions: CompletionQueue,
    /// Reads for which older versions of blocks are looked for, if that is done.
    pub(super) failed_reads: OnceLock<FailedReads>,
    /// What was fetched ahead, if that is done.
    ahead: OnceLock<Mutex<ReadAhead>>,
    waker: Waker,
    limits: Limits,
    /// A write of up to this many bytes is sealed by its submitter, a larger one by the pipeline.
    seal_here_bytes_max: AtomicUsize,
    /// What the device has grown to since it was attached, in blocks; 0: it has not.
    grown_blocks: AtomicU64,
    /// What users' writes and flushes came to that failed.
    losses: Mutex<WriteLosses>,
    /// Measures requests; the engine's thread writes to it.
    pub(super) meter: Arc<RequestMeter>,
}

#[derive(Default)]
struct IntakeQueue {
    queue: Vec<NewRequest>,
    requests: usize,
    bytes: usize,
    /// The limit of bytes; grows with what is under way.
    bytes_max: usize,
    /// Set while every new request fails at once: the connection was given up, refused, or the device is detached.
    refusing: Option<DeviceError>,
    detaching: bool,
    abandoned: bool,
    keys_changed: bool,
}

impl IntakeQueue {
    /// As [`Intake::settle`]; whether there is something new for the engine.
    fn settle(&mut self, settled: Settled, completions: &mut Vec<Completion>) -> bool {
        completions.extend(settled.served.into_iter().map(done));
        let is_new = !settled.lost.is_empty();
        self.read_plainly(settled.lost);
        is_new
    }

    fn read_plainly(&mut self, reads: Vec<Read>) {
        for Read { token, lba, buffer } in reads {
            let cost_bytes = buffer.len();
            self.requests += 1;
            self.bytes += cost_bytes;
            self.queue.push(NewRequest {
                reply: Reply::Token(token),
                cost_bytes,
                operation: ReadBlocks { lba, buffer }.into(),
            });
        }
    }
}

fn done(read: Read) -> Completion {
    Completion { token: read.token, result: Ok(Some(read.buffer)) }
}

impl std::fmt::Debug for Intake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.state);
        f.debug_struct("Intake").field("requests", &state.requests).field("bytes", &state.bytes).finish_non_exhaustive()
    }
}

impl Intake {
    pub(super) fn new(waker: Waker, limits: Limits, pipeline: Pipeline, busy_poll: BusyPoll) -> Intake {
        let seal_here_bytes_max = match pipeline {
            Pipeline::Auto => usize::MAX,
            Pipeline::Fixed { .. } => 0,
        };
        Intake {
            state: Mutex::new(IntakeQueue { bytes_max: limits.request_bytes_max, ..IntakeQueue::default() }),
            room: Condvar::new(),
            completions: CompletionQueue::new(busy_poll),
            failed_reads: OnceLock::new(),
            ahead: OnceLock::new(),
            waker,
            limits,
            seal_here_bytes_max: AtomicUsize::new(seal_here_bytes_max),
            grown_blocks: AtomicU64::new(0),
            losses: Mutex::default(),
            meter: Arc::default(),
        }
    }

    /// The shape, as it is now, of the device that was attached with that one.
    pub(super) fn grown(&self, attached: Geometry) -> Geometry {
        Geometry { blocks: attached.blocks.max(self.grown_blocks.load(Ordering::Relaxed)), ..attached }
    }

    /// From now on the device has this many blocks, unless it has more.
    pub(super) fn grow_to(&self, blocks: u64) {
        self.grown_blocks.fetch_max(blocks, Ordering::Relaxed);
        if let Some(ahead) = self.ahead.get() {
            lock(ahead).grow_to(blocks);
        }
    }

    /// Bytes of one READ or WRITE.
    pub(super) fn transfer_bytes_max(&self) -> u64 {
        self.limits.transfer_bytes_max.into()
    }

    /// Counts a request of `cost_bytes`; waits while the queue is at its limit. Must be followed by [`Intake::push`] or
    /// [`Intake::release`].
    pub(super) fn admit(&self, cost_bytes: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(error) = &state.refusing {
                return Err(error.clone());
            }
            let room = state.requests < self.limits.requests_max
                && (state.bytes == 0 || state.bytes + cost_bytes <= state.bytes_max);
            if room {
                state.requests += 1;
                state.bytes += cost_bytes;
                return Ok(());
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Bytes of requests that are taken in at once.
    pub(super) fn bytes_max(&self) -> usize {
        lock(&self.state).bytes_max
    }

    /// Whether the submitter of a write of this size seals it.
    pub(super) fn is_sealed_here(&self, bytes: usize) -> bool {
        bytes <= self.seal_here_bytes_max.load(Ordering::Relaxed)
    }

    /// What the pipeline found: who seals what, and how many bytes of requests there should be.
    pub(super) fn adapt(&self, seal_here_bytes_max: usize, bytes_max: usize) {
        self.seal_here_bytes_max.store(seal_here_bytes_max, Ordering::Relaxed);
        let mut state = lock(&self.state);
        let has_grown = bytes_max > std::mem::replace(&mut state.bytes_max, bytes_max);
        drop(state);
        if has_grown {
            self.room.notify_all();
        }
    }

    /// Hands a request that was admitted to the engine.
    pub(super) fn push(&self, op: NewRequest) {
        lock(&self.state).queue.push(op);
        self.waker.wake();
    }

    /// Gives an admitted request's share back.
    pub(super) fn release(&self, cost_bytes: usize) {
        let mut state = lock(&self.state);
        state.requests -= 1;
        state.bytes -= cost_bytes;
        drop(state);
        self.room.notify_all();
    }

    /// From now on sequential reads are fetched ahead.
    pub(super) fn fetch_ahead(&self, ahead: ReadAhead) {
        assert!(self.ahead.set(Mutex::new(ahead)).is_ok(), "a device is attached once");
    }

    /// How far ahead.
    pub(super) fn set_ahead_bytes(&self, bytes: u64) {
        if let Some(ahead) = self.ahead.get() {
            lock(ahead).set_bytes_max(bytes);
        }
    }

    /// Serves a read from what was fetched ahead, or gives it back. Fetches more.
    pub(super) fn read_ahead(&self, token: Token, lba: Lba, buffer: BufferMut) -> Option<(Lba, BufferMut)> {
        let Some(ahead) = self.ahead.get() else { return Some((lba, buffer)) };
        let mut fetches = Vec::new();
        let served = lock(ahead).read(Read { token, lba, buffer }, &mut fetches);
        let plain = match served {
            Served::Now(read) => {
                self.completions.push(done(read));
                None
            }
            Served::Later => None,
            Served::Not(Read { lba, buffer, .. }) => Some((lba, buffer)),
        };
        for fetch in fetches {
            self.fetch(ahead, fetch);
        }
        plain
    }

    fn fetch(&self, ahead: &Mutex<ReadAhead>, fetch: Fetch) {
        let Fetch { id, lba, count } = fetch;
        let block_bytes = lock(ahead).block_bytes();
        let cost_bytes = count as usize * block_bytes;
        let mut state = lock(&self.state);
        // Half of the room is left to those who ask.
        let has_room =
            2 * state.requests < self.limits.requests_max && 2 * (state.bytes + cost_bytes) <= state.bytes_max;
        if has_room && state.refusing.is_none() {
            state.requests += 1;
            state.bytes += cost_bytes;
            let operation = ReadBlocks { lba, buffer: BufferMut::zeroed(cost_bytes) }.into();
            state.queue.push(NewRequest { reply: Reply::Ahead(id), cost_bytes, operation });
            drop(state);
            return self.waker.wake();
        }
        drop(state);
        let settled = lock(ahead).arrived(id, None);
        self.settle(settled);
    }

    /// A write of `token` is submitted.
    pub(super) fn writing(&self, token: Token, lba: Lba, count: u64) {
        if let Some(ahead) = self.ahead.get() {
            let settled = lock(ahead).writing(token, lba, count);
            self.settle(settled);
        }
    }

    /// What was fetched ahead is dropped.
    pub(super) fn forget_ahead(&self) {
        if let Some(ahead) = self.ahead.get() {
            let settled = lock(ahead).clear();
            self.settle(settled);
        }
    }

    /// Tells who is served. Reads whose data will not come ahead are let in: nobody can be made to wait for room here.
    fn settle(&self, settled: Settled) {
        self.completions.append(&mut settled.served.into_iter().map(done).collect());
        if !settled.lost.is_empty() {
            lock(&self.state).read_plainly(settled.lost);
            self.waker.wake();
        }
    }

    /// Runs a request and blocks for its answer.
    pub(super) fn ask(&self, operation: impl Into<Operation>, cost_bytes: usize) -> Result<Answer, DeviceError> {
        let operation = operation.into();
        let writes = operation.effect() == Effect::Blocks;
        if writes {
            self.forget_ahead();
        }
        let answer = self.ask_device(operation, cost_bytes);
        if writes {
            self.forget_ahead();
        }
        answer
    }

    fn ask_device(&self, operation: Operation, cost_bytes: usize) -> Result<Answer, DeviceError> {
        let (sender, receiver) = sync_channel(1);
        self.admit(cost_bytes)?;
        self.push(NewRequest { reply: Reply::Caller(sender), cost_bytes, operation });
        receiver.recv().unwrap_or_else(|_| Err(detached()))
    }

    /// What users' writes and flushes came to that failed.
    pub(super) fn losses(&self) -> WriteLosses {
        lock(&self.losses).clone()
    }

    /// A request that ended without reaching the engine.
    pub(super) fn fail(&self, token: Token, lost: Option<LostRequest>, error: DeviceError) {
        if let Some(request) = lost {
            lock(&self.losses).record(request, &error);
        }
        if let Some(ahead) = self.ahead.get() {
            let settled = lock(ahead).written(token);
            self.settle(settled);
        }
        self.completions.push(Completion { token, result: Err(error) });
    }

    /// New requests, for the engine.
    pub(super) fn take(&self) -> Vec<NewRequest> {
        std::mem::take(&mut lock(&self.state).queue)
    }

    /// Tells callers what has ended, and gives their shares back.
    pub(super) fn finish(&self, finished: Vec<FinishedRequest>) {
        if finished.is_empty() {
            return;
        }
        let mut completions = Vec::with_capacity(finished.len());
        let mut is_woken = false;
        let mut state = lock(&self.state);
        for FinishedRequest { reply, cost_bytes, result, failed } in finished {
            if let (Err(error), Some(FailedRequest::Lost(request)), Reply::Token(_)) = (&result, &failed, &reply) {
                lock(&self.losses).record(*request, error);
            }
            match reply {
                Reply::Engine(_) => continue,
                Reply::Ahead(id) => {
                    let data = match result {
                        Ok(Answer::Read(data)) => Some(data),
                        _ => None,
                    };
                    let ahead = self.ahead.get().expect("a fetch was started by it");
                    let settled = lock(ahead).arrived(id, data);
                    is_woken |= state.settle(settled, &mut completions);
                }
                Reply::Token(token) => {
                    if let Some(ahead) = self.ahead.get() {
                        let settled = lock(ahead).written(token);
                        is_woken |= state.settle(settled, &mut completions);
                    }
                    let result = result.map(|answer| match answer {
                        Answer::Read(buffer) => Some(buffer),
                        _ => None,
                    });
                    completions.extend(self.look_further(token, result, failed));
                }
                Reply::Caller(sender) => {
                    // The caller may have gone.
                    let _ = sender.try_send(result);
                }
            }
            state.requests -= 1;
            state.bytes -= cost_bytes;
        }
        drop(state);
        self.room.notify_all();
        if is_woken {
            self.waker.wake();
        }
        self.completions.append(&mut completions);
    }

    /// The completion of a request; `None` if an older version is looked for. That asks for places of its own, so the request's
    /// are free from here on.
    fn look_further(
        &self,
        token: Token,
        result: Result<Option<BufferMut>, DeviceError>,
        failed: Option<FailedRequest>,
    ) -> Option<Completion> {
        match (result, failed, self.failed_reads.get()) {
            (Err(error), Some(FailedRequest::Read(lba, buffer)), Some(failed_reads))
                if error.kind == DeviceErrorKind::Medium =>
            {
                let refused = failed_reads.push(FailedRead { token, lba, buffer, error }).err();
                refused.map(|FailedRead { token, error, .. }| Completion { token, result: Err(error) })
            }
            (result, ..) => Some(Completion { token, result }),
        }
    }

    /// From now on new requests fail with `error` (`None`: they are taken again, unless they were given up for good).
    pub(super) fn refuse(&self, error: Option<DeviceError>) {
        let mut state = lock(&self.state);
        if !state.abandoned {
            state.refusing = error;
        }
        drop(state);
        self.room.notify_all();
    }

    /// Tells the engine's thread that keys have come or gone, or were asked for.
    pub(super) fn keys_changed(&self) {
        lock(&self.state).keys_changed = true;
        self.waker.wake();
    }

    /// Whether they have since the last call.
    pub(super) fn take_keys_changed(&self) -> bool {
        std::mem::take(&mut lock(&self.state).keys_changed)
    }

    /// Asks the engine's thread to end.
    pub(super) fn detach(&self) {
        let mut state = lock(&self.state);
        state.detaching = true;
        state.refusing = Some(detached());
        drop(state);
        self.room.notify_all();
        self.waker.wake();
    }

    /// Fails everything, from now on.
    pub(super) fn abandon(&self) {
        let mut state = lock(&self.state);
        state.abandoned = true;
        state.refusing = Some(abandoned());
        drop(state);
        self.room.notify_all();
        self.waker.wake();
    }

    pub(super) fn is_abandoned(&self) -> bool {
        lock(&self.state).abandoned
    }

    /// Whether nothing more comes of it.
    pub(super) fn is_ending(&self) -> bool {
        let state = lock(&self.state);
        state.detaching || state.abandoned
    }

    pub(super) fn is_detaching(&self) -> bool {
        lock(&self.state).detaching
    }
}

pub(super) fn abandoned() -> DeviceError {
    let message = "the volume was detached by force: what was not written is lost; attach it again";
    device_error(DeviceErrorKind::Unreachable, None, message)
}

pub(super) fn detached() -> DeviceError {
    device_error(DeviceErrorKind::Refused, None, "the volume was detached; attach it again")
}

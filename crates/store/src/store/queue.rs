//! The queue of writes: the first request is checked against the operation windows (at most once) and against its condition before it is
//! appended.
//!
//! Only the first request is checked, with no append in flight: so what the windows and the index say includes everything before it, and
//! nothing can come between the check and the write.

use std::collections::VecDeque;

use strongroom_block::{Lba, Stamp, StoreSequence};

use super::access::LogMedium;
use super::conditions::judge;
use super::read_parts::Wanted;
use super::reception::would_lose;
use super::replay::{self, Comparison};
use super::request::{Content, Gate, UnitLimits, WriteRequest};
use super::requests::Requests;
use super::submit::check;
use super::update::WindowEntry;
use super::volume::Volume;
use crate::catalogue::{Change, NodeId};
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::map::BlockMap;
use crate::op::{Extent, OpError, Origin, Outcome};
use crate::operations::{Operations, Standing};
use crate::planted::PlantedFault;
use crate::steps;

/// Steps that comparing replays may take in one poll.
const REPLAY_STEPS_PER_POLL: u64 = 8192;

/// The answer to a request that left the queue.
pub(super) type Answer = Box<(WriteRequest, Result<Outcome, OpError>)>;

/// The result of checking the first request against the operation windows.
pub(super) enum Check {
    /// It goes on to its condition and to the log.
    Passed,
    /// It was executed before, and what its holes cover is still being hidden.
    WaitsForHiding,
    /// The next poll goes on with the check.
    WaitsForPoll,
    /// The bases of these versions have to be read under this ticket.
    NeedsBases(u64, Vec<(u64, Version)>),
    /// It is answered; if it succeeded, when all that was appended is durable.
    Answered(Answer),
}

/// How the check of a condition begins.
pub(super) enum ConditionCheck {
    /// It holds.
    Holds,
    Answered(Answer),
    /// What is there has to be read.
    Read {
        ticket: u64,
        node: NodeId,
        lba: Lba,
        count: u32,
        wanted: Wanted,
    },
}

/// Writes that wait for the log, and the operation windows.
pub(super) struct WriteQueue {
    queue: VecDeque<WriteRequest>,
    pub(super) operations: Operations,
    next_ticket: u64,
    /// The first sequence of this opening: smaller ones are of earlier openings.
    first_sequence: u64,
    /// Steps that this poll has spent on comparing replays.
    replay_steps: u64,
}

impl WriteQueue {
    pub(super) fn new(operations: Operations, first_sequence: u64) -> WriteQueue {
        WriteQueue { queue: VecDeque::new(), operations, next_ticket: 0, first_sequence, replay_steps: 0 }
    }

    pub(super) fn new_poll(&mut self) {
        self.replay_steps = 0;
    }

    /// The log begins again after an erase: the windows are empty.
    pub(super) fn begin_log(&mut self, operations: Operations, first_sequence: u64) {
        (self.operations, self.first_sequence) = (operations, first_sequence);
    }

    /// Queues a write.
    ///
    /// # Errors
    /// The refusal of writes; [`OpError::Misuse`] if its operation cannot be one.
    pub(super) fn enqueue(&mut self, medium: &LogMedium, request: WriteRequest) -> Result<(), OpError> {
        medium.refusal.check_writable()?;
        if let Some(Origin { operation, .. }) = request.origin {
            check(medium.volume.is_sealed(), "an operation of a plain unit")?;
            let fits = operation.counter.checked_add(request.asked).is_some() && request.asked > 0;
            check(fits, "an operation without blocks, or with counters beyond their end")?;
        }
        self.queue.push_back(request);
        Ok(())
    }

    /// Puts back a request that was taken out: part of it is appended.
    pub(super) fn push_front(&mut self, request: WriteRequest) {
        self.queue.push_front(request);
    }

    pub(super) fn front(&self) -> Option<&WriteRequest> {
        self.queue.front()
    }

    pub(super) fn pop(&mut self) -> Option<WriteRequest> {
        self.queue.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Answers the first request, which leaves the queue.
    pub(super) fn answer_front(&mut self, requests: &mut Requests, result: Result<Outcome, OpError>) {
        let request = self.pop().expect("the caller saw it");
        requests.complete(request.token, request.bytes, result);
    }

    /// Fails everything that is queued; whether that was anything.
    pub(super) fn fail_all(&mut self, requests: &mut Requests, error: &OpError) -> bool {
        let any = !self.queue.is_empty();
        for request in self.queue.drain(..) {
            requests.complete(request.token, request.bytes, Err(error.clone()));
        }
        any
    }

    fn answer(&mut self, result: Result<Outcome, OpError>) -> Answer {
        let request = self.queue.pop_front().expect("the caller saw it");
        Box::new((request, result))
    }

    fn new_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    /// Why the first request can never be executed: its branch was deleted, or its change cannot be made. Assigns the number of a
    /// branch that it creates.
    pub(super) fn rejection(&mut self, map: &BlockMap) -> Option<OpError> {
        let next_branch = map.catalogue.next_branch();
        if let Content::Change(change) = &mut self.queue.front_mut()?.content
            && let Change::CloneCreate { branch, .. } | Change::ReceiveBegin { branch, .. } = &mut **change
        {
            *branch = next_branch;
        }
        let request = self.queue.front()?;
        match &request.content {
            Content::Change(change) => map.catalogue.check(change).err().or_else(|| would_lose(map, change)),
            _ => map.catalogue.head(request.branch).is_none().then_some(OpError::NoSuchView),
        }
    }

    /// Whether the first request is blocks without a condition.
    pub(super) fn front_is_data(&self) -> bool {
        let is_data = |op: &WriteRequest| matches!((&op.content, &op.gate), (Content::Blocks { .. }, Gate::Open));
        self.queue.front().is_some_and(is_data)
    }

    /// Whether at least half a unit of blocks without conditions is queued.
    pub(super) fn has_half_a_unit(&self, limits: &UnitLimits) -> bool {
        let mut bytes = u64::from(limits.unit_blocks) * RECORD_BLOCK as u64 / 2;
        for request in &self.queue {
            let Content::Blocks { count, .. } = request.content else { return false };
            if !matches!(request.gate, Gate::Open) {
                return false;
            }
            bytes = bytes.saturating_sub(u64::from(count - request.done) * u64::from(limits.block_bytes));
            if bytes == 0 {
                return true;
            }
        }
        false
    }

    /// Whether the first request discards plain blocks none of which has data.
    pub(super) fn front_discards_nothing(&self, map: &BlockMap, volume: &Volume) -> bool {
        let Some(request) = self.queue.front() else { return false };
        let Content::Holes(holes) = &request.content else { return false };
        if volume.is_sealed() {
            return false;
        }
        let path = map.catalogue.head(request.branch).map_or_else(Vec::new, |node| map.path(node));
        holes.iter().all(|&(start, count, _)| path.iter().all(|table| !table.index.any_in(start, start + count)))
    }

    /// Whether a request may share a unit with others as far as operation windows are concerned: it is certainly no repetition. Others
    /// wait until they are the first.
    pub(super) fn is_new(&self, request: &WriteRequest, volume: &Volume) -> bool {
        match (&request.content, request.origin) {
            _ if request.checked => true,
            (&Content::Register(id), _) => !self.operations.is_registered(request.branch, id),
            (_, Some(Origin { replay: Some(_), .. })) => false,
            (_, Some(Origin { operation, .. })) => {
                self.standing(request.branch, operation, request.asked, volume) == Standing::New
            }
            (_, None) => true,
        }
    }

    /// The same of the first request.
    pub(super) fn front_is_new(&self, volume: &Volume) -> bool {
        self.queue.front().is_some_and(|request| self.is_new(request, volume))
    }

    fn standing(&self, branch: u32, operation: Stamp, count: u64, volume: &Volume) -> Standing {
        match self.operations.standing(branch, operation, count) {
            Standing::Completed | Standing::Overlaps if volume.has_planted(PlantedFault::WindowIgnored) => {
                Standing::New
            }
            Standing::Overlaps if volume.has_planted(PlantedFault::AnyForAll) => Standing::Completed,
            standing => standing,
        }
    }

    /// Checks the first request against the windows. `hides`: holes are still hiding blocks.
    pub(super) fn check_front(&mut self, map: &BlockMap, volume: &Volume, hides: bool) -> Check {
        let request = self.queue.front().expect("the caller saw it");
        if request.checked {
            return Check::Passed;
        }
        let result = match (&request.content, request.origin) {
            (&Content::Register(id), _) if self.operations.is_registered(request.branch, id) => Ok(Outcome::Changed),
            (_, Some(Origin { operation, replay })) => {
                match self.standing(request.branch, operation, request.asked, volume) {
                    Standing::Unknown => Err(OpError::UnknownAttachment { attach_id: operation.attach_id }),
                    Standing::Overlaps => Err(OpError::OperationOverlaps { operation }),
                    // Readers may still see what its holes hide.
                    Standing::Completed if hides => return Check::WaitsForHiding,
                    Standing::Completed => {
                        let repeated = request.asked as u32;
                        Ok(Outcome::Written { first: StoreSequence(0), repeated, superseded: 0 })
                    }
                    Standing::New => {
                        match replay.map_or(Ok(Check::Passed), |first| self.prepare_replay(map, volume, first)) {
                            Ok(Check::Passed) => return self.pass(),
                            Ok(check) => return check,
                            Err(error) => Err(error),
                        }
                    }
                }
            }
            _ => return self.pass(),
        };
        Check::Answered(self.answer(result))
    }

    fn pass(&mut self) -> Check {
        self.queue.front_mut().expect("just seen").checked = true;
        Check::Passed
    }

    /// Compares the first request, a replay, with what was written since, and leaves out what is superseded.
    fn prepare_replay(&mut self, map: &BlockMap, volume: &Volume, first: StoreSequence) -> Result<Check, OpError> {
        let request = self.queue.front_mut().expect("the caller saw it");
        replay::check_sequences(map, request, first, self.first_sequence)?;
        let node = map.catalogue.head(request.branch).expect("the caller saw the branch");
        let mut check = request.replay_check.take().unwrap_or_default();
        let before = steps::steps_taken();
        let left = REPLAY_STEPS_PER_POLL.saturating_sub(self.replay_steps);
        let comparison = replay::compare(map, volume, node, request, &mut check, left);
        self.replay_steps += steps::steps_taken() - before;
        let lost = match comparison {
            Comparison::Lost(lba) => Some(lba),
            Comparison::NotLost => None,
            Comparison::NeedsBases(versions) => {
                request.replay_check = Some(check);
                let ticket = self.new_ticket();
                let request = self.queue.front_mut().expect("just seen");
                request.gate = Gate::Reading(Box::new(Gate::Superseded), ticket);
                return Ok(Check::NeedsBases(ticket, versions));
            }
            Comparison::Unfinished => {
                request.replay_check = Some(check);
                return Ok(Check::WaitsForPoll);
            }
        };
        let (mut plan, content) = replay::plan(map, volume, node, request, first)?;
        plan.lost = lost;
        if let Some(lba) = lost {
            if plan.sequences.is_empty() {
                return Err(OpError::ReplayLost { lba });
            }
            // Its answer must be the same if it is sent again: so it is not noted as executed.
            request.origin = None;
        }
        request.replay = Some(Box::new(plan));
        if let Some(content) = content {
            request.content = content;
        }
        Ok(Check::Passed)
    }

    /// Begins to check the condition of the first request.
    pub(super) fn begin_condition(&mut self, map: &BlockMap, volume: &Volume) -> ConditionCheck {
        let ticket = self.new_ticket();
        let request = self.queue.front_mut().expect("the caller saw it");
        let gate = std::mem::replace(&mut request.gate, Gate::Open);
        if volume.has_planted(PlantedFault::ConditionIgnored) {
            return ConditionCheck::Holds;
        }
        let node = map.catalogue.head(request.branch).expect("the caller saw the branch");
        let (lba, count) = match &request.content {
            Content::Blocks { addresses, count, .. } => (Lba(addresses.at(0)), *count),
            Content::Holes(holes) => {
                let mut held = holes.iter().filter(|(start, count, _)| map.may_hold(node, *start, *count));
                return match held.next() {
                    Some(&(start, ..)) => {
                        ConditionCheck::Answered(self.answer(Err(OpError::NotAbsent { lba: Lba(start) })))
                    }
                    None => ConditionCheck::Holds,
                };
            }
            Content::Change(_) | Content::Register(_) => unreachable!("neither has a condition"),
        };
        let wanted = if matches!(gate, Gate::Compare(_)) { Wanted::Data } else { Wanted::Records };
        request.gate = Gate::Reading(Box::new(gate), ticket);
        ConditionCheck::Read { ticket, node, lba, count, wanted }
    }

    /// What the first request replaces was read. `bases`: the base of each block, 0 if it is unknown; none on a plain volume. Returns the
    /// answer if the condition does not hold.
    pub(super) fn condition_read(
        &mut self,
        ticket: u64,
        extents: Result<Vec<Extent>, OpError>,
        bases: &[u64],
    ) -> Option<Answer> {
        let waits = |request: &&mut WriteRequest| matches!(request.gate, Gate::Reading(_, of) if of == ticket);
        // The request may have failed meanwhile.
        let request = self.queue.front_mut().filter(waits)?;
        let Gate::Reading(gate, _) = std::mem::replace(&mut request.gate, Gate::Open) else {
            unreachable!("just seen")
        };
        if let Gate::Superseded = *gate {
            request.replay_check.as_mut().expect("it is being compared").bases_read(bases);
            return None;
        }
        if let (Some(base), [found, ..]) = (&mut request.base, bases) {
            *base = *found;
        }
        let Content::Blocks { addresses, .. } = &request.content else { unreachable!("only blocks have conditions") };
        let result = judge(*gate, Lba(addresses.at(0)), extents)?;
        Some(self.answer(result))
    }

    /// A request is appended as a whole, or about to be.
    pub(super) fn note(&mut self, request: &WriteRequest) -> Option<WindowEntry> {
        let entry = request.window_entry();
        match entry {
            Some(WindowEntry::Operation { branch, operation, count }) => self.operations.note(branch, operation, count),
            Some(WindowEntry::Registration { branch, attach_id }) => self.operations.register(branch, attach_id),
            None => {}
        }
        entry
    }

    /// A request was not appended after all.
    pub(super) fn take_back(&mut self, entry: WindowEntry) {
        match entry {
            WindowEntry::Operation { branch, operation, count } => self.operations.take_back(branch, operation, count),
            WindowEntry::Registration { branch, attach_id } => self.operations.unregister(branch, attach_id),
        }
    }
}

//! At most once: the first queued request is held against the operation windows before anything else is asked of it. And replays:
//! what an earlier opening acknowledged and a crash took is written again, under the sequences that it had.
//!
//! Looked at with no append in flight: so what the windows say is in the log, or behind this request in the queue.

use strongroom_block::{AttachId, Buffer, Lba, SealRecord, Stamp, StoreSequence};

use super::Store;
use super::append::{Addresses, Content, WriteOp, slice_pieces};
use super::superseded::Judgement;
use crate::catalogue::NodeId;
use crate::op::{OpError, Origin, Outcome};
use crate::operations::Standing;
use crate::planted::PlantedFault;
use crate::steps;

/// What becomes of the first queued request.
pub(super) enum Verdict {
    /// It goes on to its condition and to the log.
    Goes,
    /// It was executed before, and what that hides is still being hidden.
    Waits,
    /// Something was begun for it, which may be over already.
    Again,
    /// It was answered.
    Ended,
}

/// What a request adds to the operation windows when it is placed in the log.
#[derive(Clone, Copy, Debug)]
pub(super) enum Noted {
    Operation { branch: u32, operation: Stamp, count: u64 },
    Registration { branch: u32, attach_id: AttachId },
}

/// A replay that was looked at: what is left of it is written under the sequences that it had.
pub(super) struct Replayed {
    /// Of the blocks or holes that are left.
    pub(super) sequences: Vec<u64>,
    /// Of the first one of the whole request.
    first: StoreSequence,
    superseded: u32,
    /// The first block that is neither written nor superseded.
    pub(super) lost: Option<Lba>,
}

impl Replayed {
    pub(super) fn outcome(&self) -> Outcome {
        Outcome::Written { first: self.first, repeated: 0, superseded: self.superseded }
    }
}

impl WriteOp {
    /// How many counters it has: one for each block or hole.
    pub(super) fn counters(&self) -> u64 {
        match &self.content {
            Content::Blocks { count, .. } => u64::from(*count),
            Content::Holes(holes) => holes.len() as u64,
            Content::Change(_) | Content::Register(_) => 0,
        }
    }

    fn noted(&self) -> Option<Noted> {
        let branch = self.branch;
        match (&self.content, self.origin) {
            (&Content::Register(attach_id), _) => Some(Noted::Registration { branch, attach_id }),
            (_, Some(Origin { operation, .. })) => Some(Noted::Operation { branch, operation, count: self.asked }),
            _ => None,
        }
    }
}

impl Store {
    /// Whether a request may share a unit with others, as far as operation windows are concerned: it is certainly not a
    /// repetition. Others wait until they are the first.
    pub(super) fn is_new(&self, op: &WriteOp) -> bool {
        match (&op.content, op.origin) {
            _ if op.checked => true,
            (&Content::Register(id), _) => !self.operations.is_registered(op.branch, id),
            (_, Some(Origin { replay: Some(_), .. })) => false,
            (_, Some(Origin { operation, .. })) => self.standing(op.branch, operation, op.asked) == Standing::New,
            (_, None) => true,
        }
    }

    /// The same of the first request.
    pub(super) fn front_is_new(&self) -> bool {
        self.queue.front().is_some_and(|op| self.is_new(op))
    }

    fn standing(&self, branch: u32, operation: Stamp, count: u64) -> Standing {
        match self.operations.standing(branch, operation, count) {
            Standing::Completed | Standing::Overlaps if self.options.planted.has(PlantedFault::WindowIgnored) => {
                Standing::New
            }
            Standing::Overlaps if self.options.planted.has(PlantedFault::AnyForAll) => Standing::Completed,
            standing => standing,
        }
    }

    /// Holds the first request against the windows.
    pub(super) fn check_front(&mut self) -> Verdict {
        let op = self.queue.front().expect("the caller saw it");
        if op.checked {
            return Verdict::Goes;
        }
        let answer = match (&op.content, op.origin) {
            (&Content::Register(id), _) if self.operations.is_registered(op.branch, id) => Ok(Outcome::Changed),
            (_, Some(Origin { operation, replay })) => match self.standing(op.branch, operation, op.asked) {
                Standing::Unknown => Err(OpError::UnknownAttachment { attach_id: operation.attach_id }),
                Standing::Overlaps => Err(OpError::OperationOverlaps { operation }),
                // Readers may still see what its holes hide.
                Standing::Completed if self.hiding.is_busy() => return Verdict::Waits,
                Standing::Completed => {
                    let repeated = op.asked as u32;
                    Ok(Outcome::Written { first: StoreSequence(0), repeated, superseded: 0 })
                }
                Standing::New => match replay.map_or(Ok(Verdict::Goes), |first| self.prepare_replay(first)) {
                    Ok(Verdict::Goes) => return self.passes(),
                    Ok(verdict) => return verdict,
                    Err(error) => Err(error),
                },
            },
            _ => return self.passes(),
        };
        let op = self.queue.pop_front().expect("just seen");
        match answer {
            // Whoever sent it need not keep it for a replay.
            Ok(outcome) => self.complete_when_durable(self.head.completed_lsn, op.token, op.bytes, outcome),
            Err(error) => self.complete(op.token, op.bytes, Err(error)),
        }
        Verdict::Ended
    }

    fn passes(&mut self) -> Verdict {
        self.queue.front_mut().expect("just seen").checked = true;
        Verdict::Goes
    }

    /// A request is in the log as a whole, or on its way there.
    pub(super) fn note(&mut self, op: &WriteOp) -> Option<Noted> {
        let noted = op.noted();
        match noted {
            Some(Noted::Operation { branch, operation, count }) => self.operations.note(branch, operation, count),
            Some(Noted::Registration { branch, attach_id }) => self.operations.register(branch, attach_id),
            None => {}
        }
        noted
    }

    /// It is not there after all.
    pub(super) fn take_back(&mut self, noted: Noted) {
        match noted {
            Noted::Operation { branch, operation, count } => self.operations.take_back(branch, operation, count),
            Noted::Registration { branch, attach_id } => self.operations.unregister(branch, attach_id),
        }
    }

    /// Leaves out of the first request, a replay, what is superseded.
    fn prepare_replay(&mut self, first: StoreSequence) -> Result<Verdict, OpError> {
        let op = self.queue.front().expect("the caller saw it");
        let (branch, count) = (op.branch, op.asked);
        let end = first.0.checked_add(count).filter(|_| first.0 > 0);
        if end.is_none_or(|end| end > self.first_sequence) {
            return Err(OpError::ReplayRefused("its sequence is not one of an earlier opening"));
        }
        let range = first.0..first.0 + count;
        if range.start < self.map.catalogue.head_begins(branch) {
            let later = "a snapshot, clone or rollback was made since it was acknowledged; write it again if it is still wanted";
            return Err(OpError::ReplayRefused(later));
        }
        let node = self.map.catalogue.head(branch).expect("the caller saw the branch");
        let lost = match self.judge_replay(node) {
            Judgement::Lost(lba) => Some(lba),
            Judgement::NotLost => None,
            Judgement::Again => return Ok(Verdict::Again),
            Judgement::Waits => return Ok(Verdict::Waits),
        };
        let op = self.queue.front().expect("the caller saw it");
        let nodes = self.map.catalogue.nodes_with(&range);
        let replayed = match &op.content {
            Content::Holes(holes) => {
                // Each hole has a sequence of its own. What is newer in its range stays, without being counted.
                if range
                    .clone()
                    .any(|sequence| nodes.iter().any(|&node| self.map.table(node).holes.sealed(sequence).is_some()))
                {
                    return Err(OpError::ReplayRefused(TAKEN));
                }
                debug_assert_eq!(holes.len() as u64, count);
                (Replayed { sequences: range.collect(), first, superseded: 0, lost }, None)
            }
            Content::Blocks { addresses, pieces, items, .. } => {
                let lba = addresses.at(0);
                self.blocks_left(node, &nodes, lba, range, pieces, items)?
            }
            Content::Change(_) | Content::Register(_) => unreachable!("only what writes has an origin"),
        };
        let op = self.queue.front_mut().expect("just seen");
        let (mut replayed, content) = replayed;
        replayed.lost = lost;
        if let Some(lba) = lost {
            if replayed.sequences.is_empty() {
                return Err(OpError::ReplayLost { lba });
            }
            // Its answer must be the same if it is sent again: so it is not noted as executed.
            op.origin = None;
        }
        op.replayed = Some(Box::new(replayed));
        if let Some(content) = content {
            op.content = content;
        }
        Ok(Verdict::Goes)
    }

    /// The blocks of a replay that nothing as new is at.
    fn blocks_left(
        &self,
        node: NodeId,
        nodes: &[NodeId],
        lba: u64,
        range: std::ops::Range<u64>,
        pieces: &[Buffer],
        items: &[u8],
    ) -> Result<(Replayed, Option<Content>), OpError> {
        let block_bytes = self.layout.block_bytes as usize;
        let item_bytes = self.layout.item_bytes as usize;
        let mut replayed =
            Replayed { sequences: Vec::new(), first: StoreSequence(range.start), superseded: 0, lost: None };
        let (mut lbas, mut left, mut left_items) = (Vec::new(), Vec::new(), Vec::new());
        let (mut nearby, end) = (Vec::new(), lba + (range.end - range.start));
        for (at, sequence) in range.enumerate() {
            let lba = lba + at as u64;
            if at == 0 || lba.is_multiple_of(LOOKED_AT_ONCE) {
                nearby = self.map.with_data_in(nodes, lba, end.min(lba + LOOKED_AT_ONCE));
            }
            // The nodes above have nothing as new: the head began when they ended.
            let newest = self.map.newest_in(node, lba);
            if newest >= sequence && !self.options.planted.has(PlantedFault::StaleReplay) {
                replayed.superseded += 1;
                continue;
            }
            let is_here =
                |&node: &NodeId| self.map.table(node).index.find(lba).is_some_and(|it| it.sequence() == sequence);
            steps::count(nearby.len() as u64);
            if nearby.iter().any(is_here) || self.map.versions.find(lba, sequence).is_some() {
                return Err(OpError::ReplayRefused(TAKEN));
            }
            lbas.push(lba);
            replayed.sequences.push(sequence);
            left_items.extend_from_slice(&items[at * item_bytes..][..item_bytes]);
            slice_pieces(pieces, at * block_bytes, (at + 1) * block_bytes, &mut left);
        }
        let count = lbas.len() as u32;
        let addresses = Addresses::Each(lbas);
        Ok((replayed, Some(Content::Blocks { addresses, pieces: left, items: left_items, count })))
    }
}

/// Blocks of a replay for which the nodes of other branches are looked through at once.
const LOOKED_AT_ONCE: u64 = 64;

/// Sequences name versions, in all branches: a forged one must not meet what another branch has.
const TAKEN: &str = "its sequence names something else";

/// The sealed ranges of a request, as they go into the log.
pub(super) type Holes = Vec<(u64, u64, Option<SealRecord>)>;

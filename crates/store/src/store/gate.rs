//! Writes with a condition: the first queued request waits here until what is stored now was looked at.
//!
//! Only the first request of the queue is looked at, with no append in flight: so nothing can come between the look and
//! the write.

use strongroom_block::{Buffer, HoleRecord, Lba, Stamp};

use super::Store;
use super::append::{Content, WriteOp};
use super::read::{Owner, Wanted};
use crate::op::{Extent, OpError, Outcome};
use crate::planted::PlantedFault;

/// What must hold before a queued request may be written.
pub(super) enum Gate {
    /// Nothing (any more).
    Open,
    /// The newest version must have this stamp, or be a hole.
    Stamp { expected: Option<Stamp> },
    /// The blocks must hold this.
    Compare(Buffer),
    /// The range must hold no data.
    Absent,
    /// None: a replay that is newer than what it would replace. What is there is looked at.
    Superseded,
    /// The look is under way; the number tells it from looks for requests that failed meanwhile.
    Reading(Box<Gate>, u64),
}

impl Store {
    /// Looks at what the first queued request replaces.
    pub(super) fn start_gate(&mut self) -> bool {
        let ticket = self.next_look;
        self.next_look += 1;
        let op = self.queue.front_mut().expect("the caller saw it");
        let gate = std::mem::replace(&mut op.gate, Gate::Open);
        if self.options.planted.has(PlantedFault::ConditionIgnored) {
            return true;
        }
        let branch = op.branch;
        let node = self.map.catalogue.head(branch).expect("the caller saw the branch");
        let (lba, count) = match &op.content {
            Content::Blocks { addresses, count, .. } => (Lba(addresses.at(0)), *count),
            Content::Holes(holes) => {
                if let Some(&(start, ..)) =
                    holes.iter().find(|(start, count, _)| self.map.may_hold(node, *start, *count))
                {
                    let op = self.queue.pop_front().expect("just seen");
                    self.complete(op.token, op.bytes, Err(OpError::NotAbsent { lba: Lba(start) }));
                }
                return true;
            }
            Content::Change(_) | Content::Register(_) => unreachable!("neither has a condition"),
        };
        let wanted = if matches!(gate, Gate::Compare(_)) { Wanted::Data } else { Wanted::Records };
        let op = self.queue.front_mut().expect("the caller saw it");
        op.gate = Gate::Reading(Box::new(gate), ticket);
        self.start_read(Owner::Gate(ticket), node, &[(lba, count)], wanted);
        true
    }

    /// `bases`: of each block what it was made from, 0 if that is not known; nothing on a plain unit.
    pub(super) fn gate_read_finished(&mut self, ticket: u64, extents: Result<Vec<Extent>, OpError>, bases: &[u64]) {
        let waits = |op: &&mut WriteOp| matches!(op.gate, Gate::Reading(_, of) if of == ticket);
        // The request may have failed while the look was under way.
        let Some(op) = self.queue.front_mut().filter(waits) else { return };
        let Gate::Reading(gate, _) = std::mem::replace(&mut op.gate, Gate::Open) else { unreachable!("just seen") };
        if let Gate::Superseded = *gate {
            op.judging.as_mut().expect("it is looked at for that").found(bases);
            return;
        }
        if let (Some(base), [found, ..]) = (&mut op.base, bases) {
            *base = *found;
        }
        let Content::Blocks { addresses, .. } = &op.content else { unreachable!("only blocks have conditions") };
        let verdict = judge(*gate, Lba(addresses.at(0)), extents);
        let Some(result) = verdict else { return };
        let op = self.queue.pop_front().expect("just seen");
        match result {
            // A repetition must be as durable as the caller wants the write to be.
            Ok(outcome) if op.fua => {
                let lsn = self.head.completed_lsn;
                self.complete_when_durable(lsn, op.token, op.bytes, outcome);
            }
            result => self.complete(op.token, op.bytes, result),
        }
    }

    pub(super) fn hole_record(&self, sequence: u64) -> Option<HoleRecord> {
        let hole = self.map.sealed_hole(sequence)?;
        let record = hole.record.clone()?;
        Some(HoleRecord { start: Lba(hole.start), count: hole.count, record })
    }
}

/// How a request with a condition ends; `None`: it is written.
fn judge(gate: Gate, lba: Lba, extents: Result<Vec<Extent>, OpError>) -> Option<Result<Outcome, OpError>> {
    match gate {
        Gate::Stamp { expected } => {
            let extents = match extents {
                Ok(extents) => extents,
                Err(error) => return Some(Err(error)),
            };
            let found = stamps_of(&extents).next().flatten();
            (found != expected).then_some(Err(OpError::StampDiffers { lba, found }))
        }
        Gate::Compare(compare) => match extents {
            Err(error) => Some(Err(error)),
            Ok(extents) => first_difference(&extents, &compare)
                .map(|offset_bytes| Err(OpError::Miscompare { offset_bytes: offset_bytes as u64 })),
        },
        Gate::Open | Gate::Absent | Gate::Superseded | Gate::Reading(..) => None,
    }
}

/// The stamp of each block; `None` for holes.
fn stamps_of(extents: &[Extent]) -> impl Iterator<Item = Option<Stamp>> {
    extents.iter().flat_map(|extent| {
        let (records, holes) = match extent {
            Extent::Blocks { records, .. } => (records.as_slice(), 0),
            Extent::Hole { count, .. } => (&[][..], *count as usize),
        };
        records.iter().map(|record| Some(record.stamp())).chain(std::iter::repeat_n(None, holes))
    })
}

/// The first byte that differs; holes are zeros.
fn first_difference(extents: &[Extent], compare: &[u8]) -> Option<usize> {
    let block_count: usize = extents
        .iter()
        .map(|extent| match extent {
            Extent::Blocks { sequences, .. } => sequences.len(),
            Extent::Hole { count, .. } => *count as usize,
        })
        .sum();
    let block_bytes = compare.len() / block_count.max(1);
    let mut at = 0;
    for extent in extents {
        let different = match extent {
            Extent::Blocks { data, .. } => data.iter().zip(&compare[at..]).position(|(a, b)| a != b),
            Extent::Hole { count, .. } => {
                compare[at..at + *count as usize * block_bytes].iter().position(|&byte| byte != 0)
            }
        };
        if let Some(offset) = different {
            return Some(at + offset);
        }
        at += match extent {
            Extent::Blocks { data, .. } => data.len(),
            Extent::Hole { count, .. } => *count as usize * block_bytes,
        };
    }
    None
}

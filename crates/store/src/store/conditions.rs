//! Conditions of writes: whether what was read satisfies them.

use strongroom_block::{Lba, Stamp};

use super::request::Gate;
use crate::op::{Extent, OpError, Outcome};

/// The answer to a request whose condition does not hold; `None`: it holds.
pub(super) fn judge(gate: Gate, lba: Lba, extents: Result<Vec<Extent>, OpError>) -> Option<Result<Outcome, OpError>> {
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

//! Writes with a condition in the simulation: on what blocks hold (plain units), on the stamp of one (sealed ones). What must come of
//! one is known if nothing else was under way at its blocks; one that nothing could meet must never be written.

use strongroom_block::{Buffer, Lba, Stamp};
use strongroom_store::Op;

use super::asked::{Asked, Condition};
use super::expectation::Expectation;
use crate::{Content, Random};

/// Upper bound on the blocks of one comparison.
const BLOCKS_MAX: u64 = 3;

impl Expectation {
    /// A write with a condition by operation `op`, noted in the model; `None` where nothing was ever written.
    pub(super) fn conditional(&mut self, op: u64, branch: u32, random: &mut Random) -> Option<(Asked, Op)> {
        let sealed = self.volume.kind.is_sealed();
        let (lba, count) = self.volume.range(if sealed { 1 } else { BLOCKS_MAX }, random);
        let held = self.model.contents(branch, lba, count);
        if held.contains(&Content::Nothing) {
            return None;
        }
        let mut wanted = held.clone();
        let impossible = match random.below(4) {
            0 => true,
            1 => {
                let at = random.below(count);
                wanted[at as usize] = self.model.content_before(branch, lba + at);
                false
            }
            _ => false,
        };
        let fua = random.once_in(6);
        self.model.submitted(op, branch, &[(lba, count)]);
        if impossible {
            self.model.cannot_be(op);
        }
        let data = Buffer::copy_from(&self.model.bytes(op, lba, count));
        if sealed {
            let stamp = self.model.stamp(held[0], lba);
            let never = Stamp { counter: u64::MAX >> 1, ..crate::model::stamp(0, 0) };
            let expected = if impossible { Some(never) } else { self.model.stamp(wanted[0], lba) };
            let record = self.volume.record(op, 0, Some(&data));
            let condition = Condition { fua, impossible, holds: expected == stamp, differs_at: 0, stamp };
            let request = Op::ConditionalWrite { lba: Lba(lba), expected, data: vec![data], record, fua, origin: None };
            return Some((Asked::Condition(condition), request));
        }
        let there = self.model.bytes_of(&held, lba);
        let mut compare = self.model.bytes_of(&wanted, lba);
        if impossible {
            let at = random.below(compare.len() as u64) as usize;
            compare[at] ^= 1;
        }
        let differs_at = there.iter().zip(&compare).position(|(there, wanted)| there != wanted);
        let holds = differs_at.is_none();
        let differs_at = differs_at.unwrap_or(0) as u64;
        let request = Op::CompareAndWrite { lba: Lba(lba), compare: Buffer::copy_from(&compare), data, fua };
        Some((Asked::Condition(Condition { fua, impossible, holds, differs_at, stamp: None }), request))
    }
}

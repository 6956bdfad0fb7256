//! Passing over damage for a read-only opening: unreadable record blocks are skipped and noted.

use super::scan::{Chain, Scanner};
use crate::error::StoreError;
use crate::layout::RECORD_BLOCK;
use crate::unit::UnitHeader;

impl Scanner<'_> {
    /// Where the chain stopped before what was durable: it goes on at the next unit of this opening that is intact, if damage may be passed
    /// over. False if there is none.
    pub(super) fn pass_over(&mut self, chain: &mut Chain, durable: u64) -> Result<bool, StoreError> {
        let lsn = chain.last.map_or(0, |(_, lsn)| lsn);
        if self.damage.is_none() || lsn >= durable.max(self.durable_claimed_beyond(chain)?) {
            return Ok(false);
        }
        let mut candidates: Vec<(u64, u32, u32, UnitHeader)> = Vec::new();
        for segment in [Some(chain.segment), chain.next_segment].into_iter().flatten() {
            let from = if segment == chain.segment { chain.block } else { 0 };
            for block in from..self.layout.segment_blocks() {
                let header = self.header_at(segment, block)?.map(|(header, _)| header);
                let ours = |header: &UnitHeader| header.open_id == self.superblock.open_id && header.lsn > lsn;
                if let Some(header) = header.filter(ours)
                    && self.unit_at(segment, block)?.is_some()
                {
                    candidates.push((header.lsn, segment, block, header));
                    break;
                }
            }
        }
        for (&segment, header) in &self.first_units {
            if header.open_id == self.superblock.open_id && header.lsn > lsn {
                candidates.push((header.lsn, segment, 0, *header));
            }
        }
        candidates.sort_unstable_by_key(|&(lsn, ..)| lsn);
        for (_, segment, block, header) in candidates {
            if self.unit_at(segment, block)?.is_some() {
                let what = format!("units {} to {} of the log", lsn + 1, header.prev_lsn);
                self.pass(chain.segment, chain.block, what);
                *chain = Chain::at(segment, block, header.generation, header.prev_lsn, None);
                return Ok(true);
            }
        }
        self.pass(chain.segment, chain.block, format!("all units of the log behind unit {lsn}"));
        Ok(false)
    }

    /// Notes that a unit is intact.
    pub(super) fn intact(&mut self, header: &UnitHeader) {
        if let Some(damage) = &mut self.damage {
            damage.seen(header);
        }
    }

    /// Notes what is passed over at a place.
    pub(super) fn pass(&mut self, segment: u32, block: u32, what: String) {
        let at = u64::from(block) * RECORD_BLOCK as u64;
        if let Some(damage) = &mut self.damage {
            damage.note(format!("{what}, from byte {at} of segment {segment} on"));
        }
    }

    /// The next intact unit of a generation in a segment from a block on, before `end`.
    pub(super) fn next_intact(
        &mut self,
        segment: u32,
        from: u32,
        end: u32,
        generation: u64,
    ) -> Result<Option<u32>, StoreError> {
        for block in from..end {
            if self.unit_at(segment, block)?.is_some_and(|unit| unit.header.generation == generation) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

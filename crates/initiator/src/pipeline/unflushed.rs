//! Writes that the target has acknowledged and may still lose: kept until a flush covers them, sent again after a restart.
//!
//! A unit with a write cache (WCE) acknowledges before data is durable. When the target's process or machine restarts, what
//! was not flushed may be gone, and no error tells the application, which rightly believes that its next `fsync` covers it.
//! So "survives a target restart" needs a copy here. Sealed writes are kept as they were sent, with their operation id and the
//! store sequence that the target answered: it stores a replayed block only where nothing newer is, even if other initiators
//! wrote or replay meanwhile, and not at all if it still has the write.
//!
//! What is replayed, and when:
//! - only if the store's incarnation in page 0xC0 has changed: otherwise nothing was lost, however often the connection broke or
//!   the volume was closed. A target that does not name an incarnation gets a replay after every reconnect: losing acknowledged
//!   data is worse;
//! - of each block only the newest write, so that a block of a plain unit never steps back to an older one on the way. A sealed
//!   hole is sent whole, since its seal covers the whole range: its sequence keeps it from newer blocks;
//! - all of it, before anything else is sent on the new connection. Requests that were in flight come after;
//! - under the current epoch. If the lease of the keys has ended, it waits until there are keys again (a power cut takes target and
//!   key server, and the target may be back first), and so do flushes, while reads and writes fail; if they were taken back, it is
//!   lost, and the next flush says so;
//! - the log has a limit in bytes. At half of it the engine flushes by itself; at the limit writes wait for that flush.
//!
//! After a flush that failed the log is given up (the next flush of the application says so): the target must be reopened.

use std::collections::{BTreeMap, VecDeque};

use strongroom_block::{AttachId, Buffer, HoleRecord, Lba, Stamp, StoreSequence};

use crate::pipeline::sealing::Records;
use crate::pipeline::write_order::Range;

/// What an entry counts at least, in bytes: bookkeeping, and holes that have no data.
const ENTRY_BYTES_MIN: usize = 512;

/// One acknowledged write.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) range: Range,
    pub(crate) what: Logged,
    /// `None` on a plain unit.
    pub(crate) stored: Option<Stored>,
}

/// How the unit knows a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The operation id: of the first block; each further block has the next counter.
    pub(crate) operation: Stamp,
    /// The store sequence of the first block; each further block has the next one.
    pub(crate) first: StoreSequence,
}

impl Stored {
    /// Of the block that is `blocks` behind the first.
    pub(crate) fn offset(self, blocks: u64) -> Stored {
        let operation = Stamp { counter: self.operation.counter.wrapping_add(blocks), ..self.operation };
        Stored { operation, first: StoreSequence(self.first.0.wrapping_add(blocks)) }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Logged {
    /// Whole blocks, as sent.
    Write { data: Buffer, records: Option<Records> },
    /// A sealed absence.
    Hole(HoleRecord),
    /// Blocks of a plain unit that read as zeros.
    Discard,
}

impl Entry {
    #[cfg(test)]
    pub(crate) fn write(
        lba: Lba,
        block_bytes: usize,
        data: Buffer,
        records: Option<Records>,
        stored: Option<Stored>,
    ) -> Entry {
        let range = Range::new(lba, (data.len() / block_bytes) as u64);
        Entry { range, what: Logged::Write { data, records }, stored }
    }

    fn cost_bytes(&self) -> usize {
        match &self.what {
            Logged::Write { data, records } => {
                ENTRY_BYTES_MIN.max(data.len() + records.as_ref().map_or(0, |records| records.len()))
            }
            Logged::Hole(_) | Logged::Discard => ENTRY_BYTES_MIN,
        }
    }
}

/// The writes since the last flush, oldest first.
#[derive(Debug, Default)]
pub(crate) struct UnflushedLog {
    entries: VecDeque<Entry>,
    /// Entries dropped from the front so far: entry `i` has the number `dropped + i`.
    dropped: u64,
    bytes: usize,
}

impl UnflushedLog {
    pub(crate) fn push(&mut self, entry: Entry) {
        self.bytes += entry.cost_bytes();
        self.entries.push_back(entry);
    }

    /// What they pin, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A flush sent now covers everything before this mark.
    pub(crate) fn mark(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// A flush with this mark succeeded.
    pub(crate) fn flushed(&mut self, mark: u64) {
        while self.dropped < mark {
            let Some(entry) = self.entries.pop_front() else { break };
            self.bytes -= entry.cost_bytes();
            self.dropped += 1;
        }
    }

    /// Nothing of it will be replayed.
    pub(crate) fn give_up(&mut self) {
        self.flushed(self.mark());
    }

    /// The attach ids of the operations that may be replayed.
    pub(crate) fn attach_ids(&self) -> impl Iterator<Item = AttachId> {
        self.entries.iter().filter_map(|entry| entry.stored).map(|stored| stored.operation.attach_id)
    }

    /// The newest write of each block, oldest first, in disjoint pieces, but for sealed holes: they come whole if anything of them is
    /// left.
    pub(crate) fn pieces(&self, block_bytes: usize) -> Vec<Piece> {
        let mut covered = Covered::default();
        let mut pieces = Vec::new();
        for entry in self.entries.iter().rev() {
            let uncovered = covered.add(entry.range);
            if let Logged::Hole(hole) = &entry.what {
                if !uncovered.is_empty() {
                    pieces.push(Piece { what: PieceContent::Hole(hole.clone()), stored: entry.stored });
                }
                continue;
            }
            for range in uncovered {
                let from = range.start - entry.range.start;
                let stored = entry.stored.map(|stored| stored.offset(from));
                let what = match &entry.what {
                    Logged::Write { data, records } => {
                        let from = from as usize;
                        let count = (range.end - range.start) as usize;
                        let all = (entry.range.end - entry.range.start) as usize;
                        let records = records.as_ref().map(|records| {
                            let each = records.len() / all;
                            records.slice(from * each..(from + count) * each)
                        });
                        let data = data.slice(from * block_bytes..(from + count) * block_bytes);
                        PieceContent::Write { lba: Lba(range.start), data, records }
                    }
                    Logged::Hole(_) | Logged::Discard => PieceContent::Discard(range),
                };
                pieces.push(Piece { what, stored });
            }
        }
        pieces.reverse();
        pieces
    }
}

/// Something to send again.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) what: PieceContent,
    pub(crate) stored: Option<Stored>,
}

#[derive(Clone, Debug)]
pub(crate) enum PieceContent {
    Write {
        lba: Lba,
        data: Buffer,
        records: Option<Records>,
    },
    /// Sealed units.
    Hole(HoleRecord),
    /// Plain units.
    Discard(Range),
}

/// Disjoint ranges, start to end.
#[derive(Debug, Default)]
struct Covered(BTreeMap<u64, u64>);

impl Covered {
    /// Adds `range`; returns the parts that were not covered before.
    fn add(&mut self, range: Range) -> Vec<Range> {
        let mut uncovered = Vec::new();
        let (mut at, mut merged) = (range.start, range);
        // Everything that touches the range, from the one that may reach into it.
        let first = self.0.range(..=range.start).next_back().filter(|(_, end)| **end >= range.start);
        let from = first.map_or(range.start, |(start, _)| *start);
        let touching: Vec<(u64, u64)> = self.0.range(from..=range.end).map(|(&start, &end)| (start, end)).collect();
        for (start, end) in touching {
            if start > at {
                uncovered.push(Range { start: at, end: start });
            }
            at = at.max(end);
            merged = Range { start: merged.start.min(start), end: merged.end.max(end) };
            self.0.remove(&start);
        }
        if at < range.end {
            uncovered.push(Range { start: at, end: range.end });
        }
        self.0.insert(merged.start, merged.end);
        uncovered
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a replay leaves every block as the newest logged write did, and that a flush drops exactly what it covers.
    use super::*;
    use proptest::prelude::*;

    const BLOCK: usize = 4;

    fn write(lba: u64, count: usize, mark: u8) -> Entry {
        let records = Records::new(vec![mark; count * 2].into());
        let stamp = Stamp { attach_id: AttachId([1; 16]), counter: u64::from(mark) << 32 };
        let stored = Stored { operation: stamp, first: StoreSequence(u64::from(mark) << 32) };
        Entry::write(Lba(lba), BLOCK, Buffer::copy_from(&vec![mark; count * BLOCK]), Some(records), Some(stored))
    }

    #[test]
    fn a_flush_drops_what_came_before_its_mark() {
        let mut log = UnflushedLog::default();
        log.push(write(0, 1, 1));
        let mark = log.mark();
        log.push(write(1, 1, 2));
        log.flushed(mark);
        assert_eq!(log.pieces(BLOCK).len(), 1);
        assert_eq!(log.bytes(), ENTRY_BYTES_MIN);
        log.flushed(mark);
        assert_eq!(log.pieces(BLOCK).len(), 1, "an older flush drops nothing more");
        log.give_up();
        assert_eq!((log.bytes(), log.pieces(BLOCK).len()), (0, 0));
    }

    /// The rest of it was overwritten, and a seal covers its whole range only.
    #[test]
    fn a_sealed_hole_is_replayed_whole_before_what_was_written_into_it() {
        let stamp = Stamp { attach_id: AttachId([2; 16]), counter: 9 };
        let flags = strongroom_block::RecordFlags(strongroom_block::RecordFlags::HOLE);
        let (suite, mode) = (strongroom_block::Suite::Aes256Gcm, strongroom_block::Mode::Encrypt);
        let record = strongroom_block::SealRecord::new(suite, mode, flags, 1, stamp, 0, [0; 16]);
        let hole = HoleRecord { start: Lba(0), count: 4, record };
        let stored = Some(Stored { operation: stamp, first: StoreSequence(5) });
        let mut log = UnflushedLog::default();
        log.push(Entry { range: Range::new(Lba(0), 4), what: Logged::Hole(hole.clone()), stored });
        log.push(write(1, 1, 7));
        let pieces = log.pieces(BLOCK);
        assert!(matches!(&pieces[0].what, PieceContent::Hole(whole) if *whole == hole));
        assert_eq!(pieces[0].stored, stored);
        assert!(matches!(pieces[1].what, PieceContent::Write { lba: Lba(1), .. }));
        assert_eq!(pieces.len(), 2);
        // Nothing is left of it.
        log.push(write(0, 4, 8));
        assert!(log.pieces(BLOCK).iter().all(|piece| matches!(piece.what, PieceContent::Write { .. })));
    }

    proptest! {
        #[test]
        fn the_newest_write_of_each_block_is_replayed_once(
            writes in proptest::collection::vec((0u64..32, 1usize..8, any::<bool>()), 0..40),
        ) {
            let mut log = UnflushedLog::default();
            let mut model: BTreeMap<u64, Option<u8>> = BTreeMap::new();
            for (at, &(lba, count, discard)) in writes.iter().enumerate() {
                let mark = at as u8 + 1;
                if discard {
                    let range = Range::new(Lba(lba), count as u64);
                    log.push(Entry { range, what: Logged::Discard, stored: None });
                } else {
                    log.push(write(lba, count, mark));
                }
                for block in lba..lba + count as u64 {
                    model.insert(block, (!discard).then_some(mark));
                }
            }
            let mut seen: BTreeMap<u64, Option<u8>> = BTreeMap::new();
            for piece in log.pieces(BLOCK) {
                match piece.what {
                    PieceContent::Write { lba, data, records } => {
                        let (stored, begun) = (piece.stored.unwrap(), writes[usize::from(data[0]) - 1].0);
                        let first = (u64::from(data[0]) << 32) + lba.0 - begun;
                        prop_assert_eq!((stored.operation.counter, stored.first.0), (first, first));
                        let records = records.unwrap();
                        for (at, block) in data.chunks(BLOCK).enumerate() {
                            prop_assert_eq!(&records[at * 2..at * 2 + 2], &[block[0]; 2][..]);
                            prop_assert!(seen.insert(lba.0 + at as u64, Some(block[0])).is_none());
                        }
                    }
                    PieceContent::Discard(range) => {
                        for block in range.start..range.end {
                            prop_assert!(seen.insert(block, None).is_none());
                        }
                    }
                    PieceContent::Hole(_) => prop_assert!(false, "none was logged"),
                }
            }
            prop_assert_eq!(seen, model);
        }
    }
}

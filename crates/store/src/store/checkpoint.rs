//! Checkpoints: the index in segments of its own, so that opening need not read every record block.
//!
//! Taken when the log has grown by 32 times what the last one took: so they cost at most 1/32 of what is
//! appended. Written in pieces, one in each poll, from the index as it is then; what changed meanwhile follows from the log
//! behind the begin. A piece has 32 KiB, or as much as the log has grown more than the checkpoint since it began: under heavy
//! writes it keeps up, and opening never finds a log much longer than was meant. A round names it when it is whole. One that cannot be finished is given up, and
//! nothing is lost: the log has everything.

use std::io;

use strongroom_block::BufferMut;

use super::log::is_no_space;
use super::{Purpose, Store};
use crate::backend::Io;
use crate::catalogue::NodeId;
use crate::checkpoint::{Block, Content, HOLES_MAX, ROWS_MAX, Row, Runs};
use crate::holes::{Hole, HolesAt};
use crate::layout::RECORD_BLOCK;
use crate::planted::PlantedFault;
use crate::steps;
use crate::superblock::CheckpointAt;
use crate::unit::Place;

/// 4 KiB blocks of one piece, at least.
const PIECE_BLOCKS: u32 = 8;
/// ... and at most, where the log runs ahead: what one poll may take to put together.
const PIECE_BLOCKS_MAX: u32 = 96;
/// Entries of the index and retained versions that one piece looks at, at most. Without this limit 96 blocks full of long runs would
/// describe millions of entries in one poll.
const PIECE_STEPS_MAX: usize = 32768;
/// The log grows by so many times a checkpoint's size before the next one.
const LOG_PER_CHECKPOINT: u64 = 32;
/// ... and at least by this much, or an eighth of the store if that is less.
const LOG_LEAST_BYTES: u64 = 64 << 20;

/// How far a checkpoint is.
enum Cursor {
    Node { node: NodeId, branches: Vec<u32>, lba: u64 },
    Holes { node: NodeId, at: HolesAt },
    Versions { lba: u64, sequence: u64 },
    Description,
    Done,
}

/// What comes next in one.
enum Next {
    /// Branch and content of a block.
    Block(u32, Content),
    /// Enough was looked at; in the next poll perhaps.
    Later,
    End,
}

/// One being written.
struct Writing {
    begin_lsn: u64,
    begin_generation: u64,
    /// The last one is being filled.
    rows: Vec<Row>,
    cursor: Cursor,
    in_flight: bool,
    /// Where its description is.
    at: Option<CheckpointAt>,
}

/// All about checkpoints.
#[derive(Default)]
pub(crate) struct Checkpoints {
    writing: Option<Writing>,
    /// The segments of the one that the superblock names, or is about to.
    named: Vec<u32>,
    /// Of the one before, until the superblock is durable.
    outdated: Vec<u32>,
    /// What the last one took.
    last_bytes: u64,
    /// Bytes appended to the log in this opening when the last one began, less what recovery had to read after its begin.
    begun_at: i128,
    /// Generation of the segment with the last unit that is in the index.
    pub(super) applied_generation: u64,
    /// A piece may be written in this poll.
    pub(super) may_write: bool,
    /// The round on its way names the one that is whole.
    in_round: bool,
    /// The next round is to name none, and the one on its way does: what the last one takes is needed for data.
    drop_wanted: bool,
    drop_in_round: bool,
    /// None was possible for want of space; tried again when the log has grown.
    retry_at: u64,
}

impl Checkpoints {
    /// After recovery, from a checkpoint in these segments, or none; `replayed` bytes of the log were read.
    pub(crate) fn recovered(segments: Vec<u32>, bytes: u64, replayed: u64) -> Checkpoints {
        let begun_at = -i128::from(replayed);
        Checkpoints { named: segments, last_bytes: bytes, begun_at, ..Checkpoints::default() }
    }

    /// One is whole, or the last one is to go, and that wants a round.
    pub(super) fn wants_round(&self) -> bool {
        self.drop_wanted || self.is_whole()
    }

    fn is_whole(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| matches!(writing.cursor, Cursor::Done) && !writing.in_flight)
    }

    /// Has more to write than this poll allowed.
    pub(super) fn goes_on(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !writing.in_flight && !matches!(writing.cursor, Cursor::Done))
    }
}

impl Store {
    pub(super) fn log_bytes(&self) -> u64 {
        self.stats.appended_bytes + self.stats.cleaned_bytes + self.stats.table_bytes
    }

    fn checkpoint_due(&self) -> bool {
        let store_bytes = u64::from(self.layout.segments) * u64::from(self.layout.segment_bytes);
        let least = (store_bytes / 8).clamp(u64::from(self.layout.segment_bytes), LOG_LEAST_BYTES);
        let least = self.options.checkpoint_log_bytes.unwrap_or(least);
        let grown = i128::from(self.log_bytes()) - self.checkpoints.begun_at;
        grown >= i128::from(least.max(LOG_PER_CHECKPOINT * self.checkpoints.last_bytes))
            && self.log_bytes() >= self.checkpoints.retry_at
    }

    pub(super) fn drive_checkpoint(&mut self) -> bool {
        let halted = self.refused.is_some() || self.round.is_opening() || self.cleaner.stop;
        if halted || !self.checkpoints.may_write {
            return false;
        }
        if self.checkpoints.writing.is_none() {
            if self.head.completed_lsn == 0 || self.checkpoints.applied_generation == 0 || !self.checkpoint_due() {
                return false;
            }
            self.checkpoints.begun_at = i128::from(self.log_bytes());
            self.checkpoints.writing = Some(Writing {
                begin_lsn: self.head.completed_lsn,
                begin_generation: self.checkpoints.applied_generation,
                rows: Vec::new(),
                cursor: Cursor::Node { node: 0, branches: Vec::new(), lba: 0 },
                in_flight: false,
                at: None,
            });
        }
        if !self.checkpoints.goes_on() {
            return false;
        }
        self.checkpoints.may_write = false;
        let mut writing = self.checkpoints.writing.take().expect("it goes on");
        let kept = self.write_piece(&mut writing);
        self.checkpoints.writing = Some(writing);
        if !kept {
            self.give_checkpoint_up();
        }
        true
    }

    /// Writes the next piece; false if there is no space for it.
    fn write_piece(&mut self, writing: &mut Writing) -> bool {
        let full = writing.rows.last().is_none_or(|row| row.blocks == self.layout.segment_blocks());
        if full && !self.checkpoint_segment(writing) {
            return false;
        }
        let row = *writing.rows.last().expect("just made sure of");
        let most = self.piece_blocks(writing).min(self.layout.segment_blocks() - row.blocks);
        let mut piece = Vec::new();
        let (mut blocks, mut fuel) = (0, PIECE_STEPS_MAX);
        while blocks < most {
            let Some((branch, content)) = self.next_content(writing, &mut fuel) else { break };
            let block = self.checkpoint_block(writing, branch, content);
            let place = Place { store_id: self.info.store_id, segment: row.segment, block: row.blocks + blocks };
            piece.extend_from_slice(&block.encode(place, &self.layout));
            blocks += 1;
        }
        if matches!(writing.cursor, Cursor::Description) && blocks < most {
            let description = writing.rows.len().div_ceil(ROWS_MAX) as u32;
            if blocks + description > self.layout.segment_blocks() - row.blocks {
                // In one piece, so in a segment of its own.
                writing.rows.last_mut().expect("just seen").blocks += blocks;
                let room = self.checkpoint_segment(writing);
                return room && (blocks == 0 || self.write_checkpoint(writing, row, &piece));
            }
            writing.rows.last_mut().expect("just seen").blocks += blocks;
            let block = row.blocks + blocks;
            let (segment, generation, begin_lsn) = (row.segment, row.generation, writing.begin_lsn);
            writing.at = Some(CheckpointAt { segment, block, generation, begin_lsn });
            let (begin_generation, total) = (writing.begin_generation, writing.rows.len() as u64);
            for (at, rows) in writing.rows.chunks(ROWS_MAX).enumerate() {
                let content = Content::Description { begin_generation, total, rows: rows.to_vec() };
                let place = Place { store_id: self.info.store_id, segment, block: block + at as u32 };
                piece.extend_from_slice(&self.checkpoint_block(writing, 0, content).encode(place, &self.layout));
            }
            writing.cursor = Cursor::Done;
        } else {
            writing.rows.last_mut().expect("just seen").blocks += blocks;
            if blocks == 0 {
                return true;
            }
        }
        self.write_checkpoint(writing, row, &piece)
    }

    /// How large the next piece is, in 4 KiB blocks.
    fn piece_blocks(&self, writing: &Writing) -> u32 {
        let written: u64 = writing.rows.iter().map(|row| u64::from(row.blocks)).sum();
        let grown = (i128::from(self.log_bytes()) - self.checkpoints.begun_at) / RECORD_BLOCK as i128;
        let ahead = grown - i128::from(written);
        ahead.clamp(i128::from(PIECE_BLOCKS), i128::from(PIECE_BLOCKS_MAX)) as u32
    }

    fn checkpoint_block(&self, writing: &Writing, branch: u32, content: Content) -> Block {
        let generation = writing.rows.last().expect("it has a segment").generation;
        let next_generation = self.head.next_generation;
        Block { begin_lsn: writing.begin_lsn, generation, next_generation, branch, content }
    }

    fn write_checkpoint(&mut self, writing: &mut Writing, row: Row, piece: &[u8]) -> bool {
        self.stats.checkpoint_bytes += piece.len() as u64;
        writing.in_flight = true;
        let offset = self.layout.block_at(row.segment, row.blocks);
        self.start_io(Purpose::Checkpoint, Io::Write { offset, buffers: vec![BufferMut::copy_from(piece).freeze()] });
        true
    }

    /// Takes another segment, from the far end of the free ones.
    fn checkpoint_segment(&mut self, writing: &mut Writing) -> bool {
        if self.segments.free_count() <= self.reserved_segments() + 1 {
            return false;
        }
        let generation = self.head.next_generation;
        let Some(segment) = self.segments.open_for_checkpoint(generation) else { return false };
        self.head.next_generation += 1;
        writing.rows.push(Row { segment, blocks: 0, generation });
        true
    }

    pub(super) fn checkpoint_written(&mut self, result: io::Result<()>) {
        if let Some(writing) = &mut self.checkpoints.writing {
            writing.in_flight = false;
        }
        match result {
            Ok(()) => {}
            Err(error) if is_no_space(&error) => self.give_checkpoint_up(),
            Err(error) => self.refuse_writes("writing a checkpoint", &error),
        }
    }

    fn give_checkpoint_up(&mut self) {
        let writing = self.checkpoints.writing.take().expect("one is being written");
        tracing::debug!(volume = %self.info.volume_id, "no space for a checkpoint now");
        self.checkpoints.retry_at = self.log_bytes() + u64::from(self.layout.segment_bytes);
        self.release_checkpoint(writing.rows.iter().map(|row| row.segment).collect());
    }

    /// Nothing else makes room for a request that waits: checkpoints go. `None` if there is none to go; else whether that has just begun
    /// (or waits for a write in flight).
    pub(super) fn drop_checkpoints(&mut self) -> Option<bool> {
        if let Some(writing) = &self.checkpoints.writing {
            let begins = !writing.in_flight;
            if begins {
                self.give_checkpoint_up();
            }
            return Some(begins);
        }
        if self.checkpoints.named.is_empty() || self.checkpoints.drop_wanted || self.round.blocked {
            return None;
        }
        tracing::warn!(volume = %self.info.volume_id, "the checkpoint goes, because its space is needed for data");
        self.checkpoints.drop_wanted = true;
        // Another one follows no sooner than it would have.
        self.checkpoints.begun_at = i128::from(self.log_bytes());
        Some(true)
    }

    fn release_checkpoint(&mut self, segments: Vec<u32>) {
        for segment in segments {
            self.segments.end_checkpoint(segment);
            self.round.releasing.push_back(segment);
        }
    }

    /// A table is being begun: if a checkpoint is whole by now, the round that it belongs to makes both durable.
    pub(super) fn checkpoint_at_table(&mut self) {
        self.checkpoints.drop_in_round = std::mem::take(&mut self.checkpoints.drop_wanted);
        self.checkpoints.in_round = !self.checkpoints.drop_in_round && self.checkpoints.is_whole();
    }

    /// What the superblock of a round names.
    pub(super) fn checkpoint_for_superblock(&mut self) -> Option<CheckpointAt> {
        if std::mem::take(&mut self.checkpoints.drop_in_round) {
            let named = std::mem::take(&mut self.checkpoints.named);
            self.checkpoints.outdated.extend(named);
            return None;
        }
        let whole = self.checkpoints.writing.as_ref().is_some_and(|writing| matches!(writing.cursor, Cursor::Done));
        let too_early = whole && self.options.planted.has(PlantedFault::CheckpointTooEarly);
        if (std::mem::take(&mut self.checkpoints.in_round) || too_early)
            && let Some(writing) = self.checkpoints.writing.take()
        {
            self.stats.checkpoints += 1;
            self.checkpoints.last_bytes =
                writing.rows.iter().map(|row| u64::from(row.blocks) * RECORD_BLOCK as u64).sum();
            let segments = writing.rows.iter().map(|row| row.segment).collect();
            let outdated = std::mem::replace(&mut self.checkpoints.named, segments);
            self.checkpoints.outdated.extend(outdated);
            return writing.at;
        }
        self.superblock.checkpoint
    }

    /// The superblock of a round is durable: the checkpoint before is not needed any more.
    pub(super) fn checkpoint_named(&mut self) {
        let outdated = std::mem::take(&mut self.checkpoints.outdated);
        self.release_checkpoint(outdated);
    }

    /// The next block's content and branch; `None` when only the description is left, or all `fuel` is used.
    fn next_content(&self, writing: &mut Writing, fuel: &mut usize) -> Option<(u32, Content)> {
        loop {
            match &mut writing.cursor {
                Cursor::Node { node, branches, lba } => match self.next_runs(node, branches, lba, fuel) {
                    Next::Block(branch, content) => return Some((branch, content)),
                    Next::Later => return None,
                    Next::End => {
                        let node = self.map.table_from(*node).map_or(NodeId::MAX, |(node, _)| node);
                        writing.cursor = Cursor::Holes { node, at: HolesAt::START };
                    }
                },
                Cursor::Holes { node, at } => match self.next_holes(*node, at, fuel) {
                    Next::Block(branch, content) => return Some((branch, content)),
                    Next::Later => return None,
                    Next::End if *node == NodeId::MAX => writing.cursor = Cursor::Versions { lba: 0, sequence: 0 },
                    Next::End => writing.cursor = Cursor::Node { node: *node + 1, branches: Vec::new(), lba: 0 },
                },
                Cursor::Versions { lba, sequence } => {
                    if *fuel == 0 {
                        return None;
                    }
                    let mut versions = self.map.versions.from(*lba, *sequence).peekable();
                    let Some(&(branch, ..)) = versions.peek() else {
                        writing.cursor = Cursor::Description;
                        return None;
                    };
                    let mut runs = Runs::new(self.layout);
                    let mut next = (u64::MAX, 0);
                    for (of, at, version) in versions {
                        steps::count(1);
                        if *fuel == 0 || of != branch || !runs.push(at, version) {
                            next = (at, version.sequence());
                            break;
                        }
                        *fuel -= 1;
                    }
                    (*lba, *sequence) = next;
                    return Some((branch, Content::Runs(runs.runs)));
                }
                Cursor::Description | Cursor::Done => return None,
            }
        }
    }

    /// Blocks of the node at the cursor, or, if that is gone, of the next one. Parents come before their children, and
    /// blocks move from parents to children only: so none is missed.
    fn next_runs(&self, node: &mut NodeId, branches: &mut Vec<u32>, lba: &mut u64, fuel: &mut usize) -> Next {
        let Some((at, table)) = self.map.table_from(*node) else { return Next::End };
        let labels = self.map.labels(at);
        if at != *node || (branches.is_empty() && *lba == 0) {
            (*node, *lba) = (at, 0);
            *branches = labels.branches();
        }
        while let Some(&branch) = branches.last() {
            let mut runs = Runs::new(self.layout);
            let mut next = None;
            table.index.visit_from(*lba, |lba, version| {
                // One without would be in no checkpoint, and nobody would know.
                let label = labels.branch(version.sequence()).expect("a table has what is in its labels");
                let fits = *fuel > 0 && (label != branch || runs.push(lba, version));
                *fuel = fuel.saturating_sub(1);
                next = Some(lba).filter(|_| !fits);
                fits
            });
            match next {
                Some(next) => *lba = next,
                None => {
                    branches.pop();
                    *lba = if branches.is_empty() { u64::MAX } else { 0 };
                }
            }
            if !runs.runs.is_empty() {
                return Next::Block(branch, Content::Runs(runs.runs));
            }
            if *fuel == 0 {
                return Next::Later;
            }
        }
        Next::End
    }

    /// The next holes of a node, if it is still there.
    fn next_holes(&self, node: NodeId, at: &mut HolesAt, fuel: &mut usize) -> Next {
        let Some((_, table)) = self.map.table_from(node).filter(|&(of, _)| of == node) else { return Next::End };
        let labels = self.map.labels(node);
        let mut holes: Vec<Hole> = Vec::new();
        let mut branch = None;
        let next = table.holes.visit(*at, fuel, |hole| {
            let label = labels.branch(hole.sequence).expect("a table has what is in its labels");
            let fits = holes.len() < HOLES_MAX && *branch.get_or_insert(label) == label;
            holes.extend(Some(hole).filter(|_| fits));
            fits
        });
        match (branch, next) {
            (Some(branch), next) => {
                // Behind everything: the next call finds no more.
                *at = next.unwrap_or(HolesAt::Entries(u64::MAX));
                Next::Block(branch, Content::Holes(holes))
            }
            (None, Some(next)) => {
                *at = next;
                Next::Later
            }
            (None, None) => Next::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use strongroom_block::{BlockSize, Buffer, Geometry, Lba, Token, VolumeId};

    use super::*;
    use crate::op::Op;
    use crate::options::{CreateOptions, OpenOptions, UnitKind};

    const BLOCKS: u64 = 32768;

    fn write(store: &mut Store, lba: u64, count: usize) {
        let data = vec![Buffer::copy_from(&vec![1; count * 4096])];
        store.submit(Token(lba), Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None });
    }

    /// However much is written in each poll: a checkpoint of 160 KiB is whole before the log has grown by 4 MiB.
    #[test]
    fn the_log_does_not_run_away_from_a_checkpoint() {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
        let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
        let never = OpenOptions { checkpoint_log_bytes: Some(u64::MAX), ..OpenOptions::default() };
        let mut store = Store::open_in_memory(&create, &never, Arc::new(|| {})).unwrap();
        let mut answers = Vec::new();
        // In an order in which no two blocks lie side by side.
        for at in 0..BLOCKS {
            write(&mut store, at * 2731 % BLOCKS, 1);
            if at % 32 == 31 {
                store.poll_completions(&mut answers);
            }
        }
        store.options.checkpoint_log_bytes = Some(1);
        let (mut begin, mut at) = (None, 0);
        while !store.checkpoints.wants_round() && store.stats().checkpoints == 0 {
            for _ in 0..16 {
                write(&mut store, at, 16);
                at = (at + 16) % BLOCKS;
            }
            store.poll_completions(&mut answers);
            if store.checkpoints.writing.is_some() {
                begin.get_or_insert(store.log_bytes());
            }
        }
        assert!(answers.iter().all(|answer| answer.result.is_ok()));
        assert!(store.stats().checkpoint_bytes > 140 << 10, "{:?}", store.stats());
        let grown = store.log_bytes() - begin.expect("one was begun");
        assert!(grown < 4 << 20, "the log grew by {grown} bytes");
    }
}

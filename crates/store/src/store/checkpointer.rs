//! The checkpointer: writes the index into segments of its own, so that opening need not read every record block.
//!
//! A checkpoint is taken when the log has grown by 32 times what the last one took: so checkpoints cost at most 1/32 of what is appended.
//! It is written in pieces, one in each poll, from the index as it is then; what changed meanwhile follows from the log behind the
//! beginning. A piece has 32 KiB, or as much as the log has grown more than the checkpoint since it began: under heavy writes it keeps up,
//! and opening never finds a log much longer than intended. A round names it when it is complete. One that cannot be finished is given
//! up, and nothing is lost: the log has everything.

use std::io;

use strongroom_block::{BufferMut, VolumeId};

use super::access::ReadAccess;
use super::appender::is_no_space;
use super::checkpoint_content::{ContentWalk, Cursor};
use super::io::Purpose;
use super::policy::CheckpointSpace;
use super::volume::Volume;
use crate::backend::Io;
use crate::checkpoint::{Block, Content, ROWS_MAX, Row};
use crate::head::Head;
use crate::layout::{Layout, RECORD_BLOCK};
use crate::recover::CheckpointExtent;
use crate::segments::Segments;
use crate::superblock::CheckpointAt;
use crate::unit::LogAddress;

/// 4 KiB blocks of one piece, at least.
const PIECE_BLOCKS: u32 = 8;
/// ... and at most, where the log grows faster: about 2 ms of CPU time to put together where every block lies alone.
const PIECE_BLOCKS_MAX: u32 = 32;
/// Entries of the index and retained versions that one piece looks at, at most. Without this limit 32 blocks full of long runs would
/// describe millions of entries in one poll.
const PIECE_STEPS_MAX: usize = 32768;
/// The log grows by this multiple of a checkpoint's size before the next one.
const LOG_PER_CHECKPOINT: u64 = 32;
/// ... and at least by this much, or an eighth of the store if that is less.
const LOG_LEAST_BYTES: u64 = 64 << 20;

/// A checkpoint being written.
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

impl Writing {
    fn is_complete(&self) -> bool {
        matches!(self.cursor, Cursor::Done)
    }

    fn segments(&self) -> Vec<u32> {
        self.rows.iter().map(|row| row.segment).collect()
    }

    fn blocks(&self) -> u64 {
        self.rows.iter().map(|row| u64::from(row.blocks)).sum()
    }

    /// The row of the segment that is being filled.
    fn row(&mut self) -> &mut Row {
        self.rows.last_mut().expect("it has a segment")
    }

    fn encode(
        &self,
        branch: u32,
        content: Content,
        place: LogAddress,
        next_generation: u64,
        layout: &Layout,
    ) -> Vec<u8> {
        let generation = self.rows.last().expect("it has a segment").generation;
        let begin_lsn = self.begin_lsn;
        let block = Block { begin_lsn, generation, next_generation, branch, content };
        block.encode(place, layout)
    }
}

/// What the rest of the store tells the checkpointer about the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointContext {
    /// How far the log has grown in this opening, in bytes.
    pub(super) log_bytes: u64,
    /// Generation of the segment with the last unit that is in the index; 0: none of this opening is.
    pub(super) applied_generation: u64,
    /// Free segments that a checkpoint leaves alone.
    pub(super) reserve: u32,
}

/// The checkpoint that the superblock names, and the one being written.
pub(super) struct Checkpointer {
    /// For messages.
    volume_id: VolumeId,
    segment_bytes: u64,
    /// By how much the log must grow before another checkpoint, at least; `None`: see [`LOG_LEAST_BYTES`].
    log_bytes_least: Option<u64>,
    writing: Option<Writing>,
    /// The segments of the one that the superblock names, or is about to.
    named: Vec<u32>,
    /// Of the one before, until the superblock is durable.
    outdated: Vec<u32>,
    /// The size of the last one, in bytes.
    last_bytes: u64,
    /// Bytes appended to the log in this opening when the last one began, less what recovery had to read after its beginning.
    begun_at: i128,
    /// A piece may be written in this poll.
    may_write: bool,
    /// The round in progress names the one that is complete.
    in_round: bool,
    /// The next round is to name none, and the one in progress does: the space of the last one is needed for data.
    drop_wanted: bool,
    drop_in_round: bool,
    /// None was possible for want of space; tried again when the log has grown.
    retry_at: u64,
    /// Checkpoints finished, and bytes written for checkpoints, since the store was opened.
    pub(super) finished: u64,
    pub(super) written_bytes: u64,
}

impl Checkpointer {
    pub(super) fn new(volume: &Volume, log_bytes_least: Option<u64>, recovered: CheckpointExtent) -> Checkpointer {
        Checkpointer {
            volume_id: volume.info.volume_id,
            segment_bytes: volume.segment_bytes(),
            log_bytes_least,
            writing: None,
            named: recovered.segments,
            outdated: Vec::new(),
            last_bytes: recovered.bytes,
            begun_at: -i128::from(recovered.replayed),
            may_write: false,
            in_round: false,
            drop_wanted: false,
            drop_in_round: false,
            retry_at: 0,
            finished: 0,
            written_bytes: 0,
        }
    }

    /// The log begins again after an erase. Counters go on.
    pub(super) fn begin_log(&mut self, volume: &Volume) {
        let (finished, written_bytes) = (self.finished, self.written_bytes);
        let new = Checkpointer::new(volume, self.log_bytes_least, CheckpointExtent::default());
        *self = Checkpointer { finished, written_bytes, ..new };
    }

    pub(super) fn new_poll(&mut self) {
        self.may_write = true;
    }

    /// Whether a checkpoint is complete, or the last one is to be dropped: both need a round.
    pub(super) fn wants_round(&self) -> bool {
        self.drop_wanted || self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_complete() && !writing.in_flight)
    }

    /// Whether it has more to write than this poll allowed.
    pub(super) fn goes_on(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !writing.in_flight && !writing.is_complete())
    }

    #[cfg(test)]
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    #[cfg(test)]
    pub(super) fn set_log_bytes_least(&mut self, least: u64) {
        self.log_bytes_least = Some(least);
    }

    fn is_due(&self, log_bytes: u64, layout: &Layout) -> bool {
        let segment_bytes = u64::from(layout.segment_bytes);
        let least = (u64::from(layout.segments) * segment_bytes / 8).clamp(segment_bytes, LOG_LEAST_BYTES);
        let least = self.log_bytes_least.unwrap_or(least);
        let grown = i128::from(log_bytes) - self.begun_at;
        grown >= i128::from(least.max(LOG_PER_CHECKPOINT * self.last_bytes)) && log_bytes >= self.retry_at
    }

    /// Begins a checkpoint if one is due, and writes its next piece. Whether it did. Segments that it gives up are added to `released`.
    pub(super) fn advance(
        &mut self,
        access: &mut ReadAccess<'_>,
        head: &mut Head,
        context: &CheckpointContext,
        released: &mut Vec<u32>,
    ) -> bool {
        if !self.may_write {
            return false;
        }
        if self.writing.is_none() {
            let is_possible = head.completed_lsn > 0 && context.applied_generation > 0;
            if !is_possible || !self.is_due(context.log_bytes, &access.medium.volume.layout) {
                return false;
            }
            self.begun_at = i128::from(context.log_bytes);
            self.writing = Some(Writing {
                begin_lsn: head.completed_lsn,
                begin_generation: context.applied_generation,
                rows: Vec::new(),
                cursor: Cursor::START,
                in_flight: false,
                at: None,
            });
        }
        if !self.goes_on() {
            return false;
        }
        self.may_write = false;
        let mut writing = self.writing.take().expect("it goes on");
        let fits = self.write_piece(access, head, context, &mut writing);
        self.writing = Some(writing);
        if !fits {
            self.give_up(&mut access.medium.segments, context.log_bytes, released);
        }
        true
    }

    /// Writes the next piece; false if there is no space for it.
    fn write_piece(
        &mut self,
        access: &mut ReadAccess<'_>,
        head: &mut Head,
        context: &CheckpointContext,
        writing: &mut Writing,
    ) -> bool {
        let layout = access.medium.volume.layout;
        let is_full = writing.rows.last().is_none_or(|row| row.blocks == layout.segment_blocks());
        if is_full && !open_segment(&mut access.medium.segments, head, context.reserve, writing) {
            return false;
        }
        let row = *writing.row();
        let most = self.piece_blocks(writing, context.log_bytes).min(layout.segment_blocks() - row.blocks);
        let place = |block| LogAddress { store_id: access.medium.volume.info.store_id, segment: row.segment, block };
        let walk = ContentWalk { map: access.map, layout };
        let mut piece = Vec::with_capacity(most as usize * RECORD_BLOCK);
        let (mut blocks, mut fuel) = (0, PIECE_STEPS_MAX);
        while blocks < most {
            let Some((branch, content)) = walk.next_content(&mut writing.cursor, &mut fuel) else { break };
            let place = place(row.blocks + blocks);
            piece.extend_from_slice(&writing.encode(branch, content, place, head.next_generation, &layout));
            blocks += 1;
        }
        writing.row().blocks += blocks;
        if matches!(writing.cursor, Cursor::Description) && blocks < most {
            let description = writing.rows.len().div_ceil(ROWS_MAX) as u32;
            if blocks + description > layout.segment_blocks() - row.blocks {
                // In one piece, so in a segment of its own.
                let room = open_segment(&mut access.medium.segments, head, context.reserve, writing);
                if room && blocks > 0 {
                    self.write(access, writing, row, &piece);
                }
                return room;
            }
            let block = row.blocks + blocks;
            let (segment, generation, begin_lsn) = (row.segment, row.generation, writing.begin_lsn);
            writing.at = Some(CheckpointAt { segment, block, generation, begin_lsn });
            let (begin_generation, total) = (writing.begin_generation, writing.rows.len() as u64);
            for (at, rows) in writing.rows.chunks(ROWS_MAX).enumerate() {
                let content = Content::Description { begin_generation, total, rows: rows.to_vec() };
                let place = place(block + at as u32);
                piece.extend_from_slice(&writing.encode(0, content, place, head.next_generation, &layout));
            }
            writing.cursor = Cursor::Done;
        } else if blocks == 0 {
            return true;
        }
        self.write(access, writing, row, &piece);
        true
    }

    /// The size of the next piece, in 4 KiB blocks.
    fn piece_blocks(&self, writing: &Writing, log_bytes: u64) -> u32 {
        let grown = (i128::from(log_bytes) - self.begun_at) / RECORD_BLOCK as i128;
        let ahead = grown - i128::from(writing.blocks());
        ahead.clamp(i128::from(PIECE_BLOCKS), i128::from(PIECE_BLOCKS_MAX)) as u32
    }

    fn write(&mut self, access: &mut ReadAccess<'_>, writing: &mut Writing, row: Row, piece: &[u8]) {
        self.written_bytes += piece.len() as u64;
        writing.in_flight = true;
        let offset = access.medium.volume.layout.block_at(row.segment, row.blocks);
        let buffers = vec![BufferMut::copy_from(piece).freeze()];
        access.medium.io.start(Purpose::Checkpoint, Io::Write { offset, buffers });
    }

    /// A piece was written, or not.
    ///
    /// # Errors
    /// The result's, if it is not want of space.
    pub(super) fn piece_written(
        &mut self,
        segments: &mut Segments,
        log_bytes: u64,
        result: io::Result<()>,
        released: &mut Vec<u32>,
    ) -> io::Result<()> {
        if let Some(writing) = &mut self.writing {
            writing.in_flight = false;
        }
        match result {
            Err(error) if is_no_space(&error) => {
                self.give_up(segments, log_bytes, released);
                Ok(())
            }
            result => result,
        }
    }

    fn give_up(&mut self, segments: &mut Segments, log_bytes: u64, released: &mut Vec<u32>) {
        let writing = self.writing.take().expect("one is being written");
        tracing::debug!(volume = %self.volume_id, "no space for a checkpoint now");
        self.retry_at = log_bytes + self.segment_bytes;
        release(segments, writing.segments(), released);
    }

    /// Whether dropping checkpoints makes room. `round_blocked`: there is no space for the table of a round.
    pub(super) fn space(&self, round_blocked: bool) -> CheckpointSpace {
        match &self.writing {
            Some(writing) if writing.in_flight => CheckpointSpace::Writing,
            Some(_) => CheckpointSpace::Droppable,
            None if self.named.is_empty() || self.drop_wanted || round_blocked => CheckpointSpace::Nothing,
            None => CheckpointSpace::Droppable,
        }
    }

    /// Nothing else makes room for a request: the checkpoint being written is given up, or the last one is to be dropped by a round.
    pub(super) fn drop_for_space(&mut self, segments: &mut Segments, log_bytes: u64, released: &mut Vec<u32>) {
        if self.writing.is_some() {
            return self.give_up(segments, log_bytes, released);
        }
        tracing::warn!(volume = %self.volume_id, "dropping the checkpoint, because its space is needed for data");
        self.drop_wanted = true;
        // Another one follows no sooner than it would have.
        self.begun_at = i128::from(log_bytes);
    }

    /// A round begins: if a checkpoint is complete by now, the round makes both durable.
    pub(super) fn round_begins(&mut self) {
        self.drop_in_round = std::mem::take(&mut self.drop_wanted);
        self.in_round = !self.drop_in_round && self.is_complete();
    }

    /// What the superblock of a round names; `current` is what it names now. `too_early`: a planted fault.
    pub(super) fn named_by_round(&mut self, current: Option<CheckpointAt>, too_early: bool) -> Option<CheckpointAt> {
        if std::mem::take(&mut self.drop_in_round) {
            self.outdated.append(&mut self.named);
            return None;
        }
        let too_early = too_early && self.writing.as_ref().is_some_and(Writing::is_complete);
        if (std::mem::take(&mut self.in_round) || too_early)
            && let Some(writing) = self.writing.take()
        {
            self.finished += 1;
            self.last_bytes = writing.blocks() * RECORD_BLOCK as u64;
            let outdated = std::mem::replace(&mut self.named, writing.segments());
            self.outdated.extend(outdated);
            return writing.at;
        }
        current
    }

    /// The superblock of a round is durable: the checkpoint before is not needed any more.
    pub(super) fn round_ended(&mut self, segments: &mut Segments, released: &mut Vec<u32>) {
        release(segments, std::mem::take(&mut self.outdated), released);
    }
}

fn release(segments: &mut Segments, of: Vec<u32>, released: &mut Vec<u32>) {
    for segment in of {
        segments.end_checkpoint(segment);
        released.push(segment);
    }
}

/// Takes another segment, from the far end of the free ones; false if only the reserve is left.
fn open_segment(segments: &mut Segments, head: &mut Head, reserve: u32, writing: &mut Writing) -> bool {
    if segments.free_count() <= reserve + 1 {
        return false;
    }
    let generation = head.next_generation;
    let Some(segment) = segments.open_for_checkpoint(generation) else { return false };
    head.next_generation += 1;
    writing.rows.push(Row { segment, blocks: 0, generation });
    true
}

#[cfg(test)]
mod tests;

//! Reading a checkpoint: everything in it must be whole, or the log is read instead.

use std::collections::BTreeMap;

use strongroom_block::BufferMut;

use super::Extent;
use super::load::Loader;
use crate::backend::{Backend, Io, IoDone, blocking};
use crate::checkpoint::{Block, Content, Row, place_of};
use crate::layout::{Layout, RECORD_BLOCK};
use crate::superblock::Superblock;
use crate::unit::LogAddress;

/// A block is told of again when nodes are merged while the checkpoint is written, and once for each version that is kept of it: all
/// that is told of is no more than this many times what the log holds. More is not believed: it would take long.
const REWRITTEN_MAX: u64 = 8;
/// About how many times what runs take now they took in version 2.
const OLD_PER_NEW: u64 = 3;

/// What a checkpoint says of itself.
pub(super) struct Description {
    pub(super) begin_lsn: u64,
    pub(super) begin_generation: u64,
    pub(super) rows: Vec<Row>,
}

/// The description of the checkpoint that the superblock names.
///
/// # Errors
/// Why it cannot be used.
pub(super) fn describe(backend: &mut dyn Backend, superblock: &Superblock) -> Result<Description, &'static str> {
    let at = superblock.checkpoint.ok_or("there is none")?;
    let layout = superblock.layout();
    let mut rows: Vec<Row> = Vec::new();
    let mut place = place_of(at, superblock.store_id);
    loop {
        if place.block >= layout.segment_blocks() {
            return Err("its description runs over its segment");
        }
        let bytes = read(backend, layout.block_at(place.segment, place.block), 1)?;
        let block =
            Block::decode(&bytes, place, &layout, at.begin_lsn, at.generation).ok_or("its description is damaged")?;
        let Content::Description { begin_generation, total, rows: more } = block.content else {
            return Err("its description is something else");
        };
        if more.is_empty() {
            return Err("its description is cut off");
        }
        rows.extend(more);
        place.block += 1;
        if rows.len() as u64 >= total {
            let possible = |row: &Row| row.segment < layout.segments && row.blocks <= layout.segment_blocks();
            let mut segments: Vec<u32> = rows.iter().map(|row| row.segment).collect();
            segments.sort_unstable();
            let twice = segments.windows(2).any(|pair| pair[0] == pair[1]);
            let whole = rows.len() as u64 == total && rows.iter().all(possible) && !twice;
            let description = Description { begin_lsn: at.begin_lsn, begin_generation, rows };
            return whole.then_some(description).ok_or("its description says what cannot be");
        }
    }
}

/// Takes everything in a checkpoint in, and returns about how many bytes one like it takes now. `used`: the segments that count, by
/// what the table and the tail say.
///
/// # Errors
/// Why it cannot be used; the loader is then spoilt.
pub(super) fn load(
    backend: &mut dyn Backend,
    superblock: &Superblock,
    description: &Description,
    used: &BTreeMap<u32, Extent>,
    loader: &mut Loader,
) -> Result<u64, &'static str> {
    if description.rows.iter().any(|row| used.contains_key(&row.segment)) {
        return Err("the log has taken one of its segments");
    }
    // By segment; 0: it does not count.
    let mut generations = vec![0; superblock.segments as usize];
    for (&segment, extent) in used {
        generations[segment as usize] = extent.generation;
    }
    let layout = superblock.layout();
    let mut blocks_left = REWRITTEN_MAX * layout.blocks_at_most();
    let mut bytes_now = 0;
    let mut segments = ReadAhead::new(backend, layout, &description.rows);
    for row in &description.rows {
        let bytes = segments.next()?;
        for (at, bytes) in bytes.chunks_exact(RECORD_BLOCK).enumerate() {
            let place = LogAddress { store_id: superblock.store_id, segment: row.segment, block: at as u32 };
            let block =
                Block::decode(bytes, place, &layout, description.begin_lsn, row.generation).ok_or("it is damaged")?;
            let old = matches!(block.content, Content::OldRuns(_));
            bytes_now += RECORD_BLOCK as u64 / if old { OLD_PER_NEW } else { 1 };
            // What lay in a segment that was reused since then is outdated; something later replaces it.
            let counts = |segment: u32| (1..block.next_generation).contains(&generations[segment as usize]);
            match block.content {
                Content::Runs(runs) | Content::OldRuns(runs) => {
                    for run in runs {
                        blocks_left = blocks_left.checked_sub(u64::from(run.count)).ok_or("it says too much")?;
                        loader.run(block.branch, run, counts).ok_or("it says what cannot be")?;
                    }
                }
                Content::Holes(holes) => {
                    for hole in holes {
                        loader.hole_from_checkpoint(block.branch, hole, counts).ok_or("it says what cannot be")?;
                    }
                }
                Content::Description { .. } => return Err("a description amid it"),
            }
        }
    }
    Ok(bytes_now)
}

/// Reads the segments of a checkpoint, one after the other: while one is taken in, the next are on their way.
struct ReadAhead<'a> {
    backend: &'a mut dyn Backend,
    layout: Layout,
    rows: &'a [Row],
    told: usize,
    submitted: usize,
    arrived: BTreeMap<u64, Option<BufferMut>>,
}

/// How many segments are read at a time.
const READS_IN_FLIGHT: usize = 4;

impl<'a> ReadAhead<'a> {
    fn new(backend: &'a mut dyn Backend, layout: Layout, rows: &'a [Row]) -> ReadAhead<'a> {
        ReadAhead { backend, layout, rows, told: 0, submitted: 0, arrived: BTreeMap::new() }
    }

    fn next(&mut self) -> Result<BufferMut, &'static str> {
        while self.submitted < self.rows.len().min(self.told + READS_IN_FLIGHT) {
            let row = self.rows[self.submitted];
            let (offset, len) = (self.layout.segment_at(row.segment), row.blocks as usize * RECORD_BLOCK);
            self.backend.submit(self.submitted as u64, Io::Read { offset, buffer: BufferMut::zeroed(len) });
            self.submitted += 1;
        }
        loop {
            if let Some(bytes) = self.arrived.remove(&(self.told as u64)) {
                self.told += 1;
                return bytes.ok_or("it cannot be read");
            }
            self.take();
        }
    }

    fn take(&mut self) {
        let mut done = Vec::new();
        if self.backend.poll(&mut done) == 0 {
            self.backend.wait();
        }
        self.arrived.extend(done.into_iter().map(|IoDone { token, result }| (token, result.ok().flatten())));
    }
}

impl Drop for ReadAhead<'_> {
    /// Leaves nothing in flight for the next user of the backend.
    fn drop(&mut self) {
        while self.told + self.arrived.len() < self.submitted {
            self.take();
        }
    }
}

fn read(backend: &mut dyn Backend, offset: u64, blocks: u32) -> Result<BufferMut, &'static str> {
    let buffer = BufferMut::zeroed(blocks as usize * RECORD_BLOCK);
    let read = blocking(backend, Io::Read { offset, buffer });
    read.ok().flatten().ok_or("it cannot be read")
}

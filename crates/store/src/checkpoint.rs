//! The bytes of a checkpoint: blocks of 4 KiB in segments of their own, each with its checksum. What they mean is told in
//! `docs/store-format.md`, "Checkpoint"; writing is in `store/checkpoint.rs`, reading in `recover/checkpoint.rs`.

mod runs;

pub(crate) use runs::Runs;
use strongroom_block::SealRecord;

use crate::holes::{Hole, ItemPlace};
use crate::index::Version;
use crate::layout::{Layout, RECORD_BLOCK, be_u16, be_u32, be_u64};
use crate::superblock::CheckpointAt;
use crate::unit::{LogAddress, place_checksum};

pub(crate) const MAGIC: [u8; 4] = *b"SRcp";
/// Bytes in front of the items.
const HEADER: usize = 64;
/// Bytes of a run of blocks in version 2.
const OLD_RUN: usize = 24;
/// Bytes of a hole.
const HOLE: usize = 136;
/// With the bytes of its record: it was written on condition that there was no data.
const HOLE_CONDITIONAL: u64 = 1 << 63;
/// Bytes of a row of the description.
const ROW: usize = 16;
/// Holes in one block.
pub(crate) const HOLES_MAX: usize = (RECORD_BLOCK - HEADER) / HOLE;
/// Rows in one block.
pub(crate) const ROWS_MAX: usize = (RECORD_BLOCK - HEADER) / ROW;

/// Consecutive blocks whose versions lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) lba: u64,
    pub(crate) count: u32,
    pub(crate) first: Version,
}

/// One of the segments that hold a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) segment: u32,
    /// How many 4 KiB blocks of it are used.
    pub(crate) blocks: u32,
    pub(crate) generation: u64,
}

/// What a block holds.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Runs(Vec<Run>),
    /// The same, as version 2 had them. Only read.
    OldRuns(Vec<Run>),
    Holes(Vec<Hole>),
    Description {
        /// Segments opened earlier hold nothing that is not in the checkpoint.
        begin_generation: u64,
        /// Of all blocks of the description.
        total: u64,
        rows: Vec<Row>,
    },
}

/// One block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Names the checkpoint.
    pub(crate) begin_lsn: u64,
    /// Of the segment that it lies in.
    pub(crate) generation: u64,
    /// Every segment opened before it was written has a smaller generation: what it says of later ones is outdated.
    pub(crate) next_generation: u64,
    /// Of its runs or holes.
    pub(crate) branch: u32,
    pub(crate) content: Content,
}

impl Block {
    /// Its 4096 bytes at a place.
    pub(crate) fn encode(&self, place: LogAddress, layout: &Layout) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD_BLOCK);
        out.resize(HEADER, 0);
        let (kind, count) = match &self.content {
            Content::Runs(runs) => {
                runs::encode(runs, layout, &mut out);
                (4, runs.len())
            }
            Content::OldRuns(_) => unreachable!("no such block is written any more"),
            Content::Holes(holes) => {
                for hole in holes {
                    let record = hole.record.as_ref().map_or(&[][..], SealRecord::as_bytes);
                    let end = out.len() + HOLE;
                    for number in [hole.start, hole.count, hole.sequence] {
                        out.extend_from_slice(&number.to_be_bytes());
                    }
                    out.extend_from_slice(&hole.place.segment.to_be_bytes());
                    out.extend_from_slice(&hole.place.item_at.to_be_bytes());
                    let flag = if hole.is_conditional { HOLE_CONDITIONAL } else { 0 };
                    out.extend_from_slice(&(record.len() as u64 | flag).to_be_bytes());
                    out.extend_from_slice(record);
                    out.resize(end, 0);
                }
                (2, holes.len())
            }
            Content::Description { begin_generation, total, rows } => {
                out[48..56].copy_from_slice(&begin_generation.to_be_bytes());
                out[56..64].copy_from_slice(&total.to_be_bytes());
                for row in rows {
                    out.extend_from_slice(&row.segment.to_be_bytes());
                    out.extend_from_slice(&row.blocks.to_be_bytes());
                    out.extend_from_slice(&row.generation.to_be_bytes());
                }
                (3, rows.len())
            }
        };
        assert!(out.len() <= RECORD_BLOCK, "no more items than fit");
        out.resize(RECORD_BLOCK, 0);
        out[..4].copy_from_slice(&MAGIC);
        out[4] = kind;
        out[6..8].copy_from_slice(&(count as u16).to_be_bytes());
        out[16..24].copy_from_slice(&self.generation.to_be_bytes());
        out[24..32].copy_from_slice(&self.begin_lsn.to_be_bytes());
        out[32..40].copy_from_slice(&self.next_generation.to_be_bytes());
        out[40..44].copy_from_slice(&self.branch.to_be_bytes());
        let sum = place_checksum(&out, place);
        out[8..16].copy_from_slice(&sum.to_be_bytes());
        out
    }

    /// From 4096 bytes at a place. `None` if they are no block of this checkpoint.
    pub(crate) fn decode(
        bytes: &[u8],
        place: LogAddress,
        layout: &Layout,
        begin_lsn: u64,
        generation: u64,
    ) -> Option<Block> {
        let whole = bytes.len() == RECORD_BLOCK
            && bytes[..4] == MAGIC
            && be_u64(bytes, 8) == place_checksum(bytes, place)
            && (be_u64(bytes, 16), be_u64(bytes, 24)) == (generation, begin_lsn);
        whole.then(|| Block::decode_content(bytes, layout)).flatten()
    }

    /// What 4096 bytes say, wherever they are.
    pub(crate) fn decode_content(bytes: &[u8], layout: &Layout) -> Option<Block> {
        let count = usize::from(be_u16(bytes, 6));
        let items = |size: usize| Some(bytes.get(HEADER..HEADER + count * size)?.chunks_exact(size));
        let content = match bytes[4] {
            1 => Content::OldRuns(items(OLD_RUN)?.map(decode_old_run).collect::<Option<_>>()?),
            2 => Content::Holes(items(HOLE)?.map(decode_hole).collect::<Option<_>>()?),
            3 => {
                let row =
                    |row: &[u8]| Row { segment: be_u32(row, 0), blocks: be_u32(row, 4), generation: be_u64(row, 8) };
                let rows = items(ROW)?.map(row).collect();
                Content::Description { begin_generation: be_u64(bytes, 48), total: be_u64(bytes, 56), rows }
            }
            4 => Content::Runs(runs::decode(bytes, count, layout)?),
            _ => return None,
        };
        Some(Block {
            begin_lsn: be_u64(bytes, 24),
            generation: be_u64(bytes, 16),
            next_generation: be_u64(bytes, 32),
            branch: be_u32(bytes, 40),
            content,
        })
    }
}

fn decode_old_run(bytes: &[u8]) -> Option<Run> {
    let first = be_u64(bytes, 0);
    let (lba, count) = (first & 0xffff_ffff_ffff, (first >> 48) as u32);
    (count > 0).then_some(Run { lba, count, first: Version::from_raw(be_u64(bytes, 8), be_u64(bytes, 16)) })
}

fn decode_hole(bytes: &[u8]) -> Option<Hole> {
    let len = be_u64(bytes, 32);
    let record = match (len & !HOLE_CONDITIONAL) as usize {
        0 => None,
        len => Some(SealRecord::decode(bytes.get(40..40usize.checked_add(len)?)?).ok()?),
    };
    let (start, count) = (be_u64(bytes, 0), be_u64(bytes, 8));
    start.checked_add(count).filter(|_| count > 0)?;
    let place = ItemPlace { segment: be_u32(bytes, 24), item_at: be_u32(bytes, 28) };
    let is_conditional = len & HOLE_CONDITIONAL != 0;
    let possible = record.is_some() || !is_conditional;
    possible.then(|| Hole::new(start, count, be_u64(bytes, 16), record, place).conditional(is_conditional))
}

/// For fuzzing: makes the checksum of a block fit.
pub(crate) fn fit_checksum(block: &mut [u8], place: LogAddress) {
    let sum = place_checksum(block, place);
    block[8..16].copy_from_slice(&sum.to_be_bytes());
}

/// The place of a description.
pub(crate) fn place_of(at: CheckpointAt, store_id: crate::options::StoreId) -> LogAddress {
    LogAddress { store_id, segment: at.segment, block: at.block }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::StoreId;
    use strongroom_block::{AttachId, Mode, RecordFlags, Stamp, Suite};

    const LAYOUT: Layout = Layout { segment_bytes: 1 << 20, segments: 8, block_bytes: 4096, item_bytes: 56 };
    const PLACE: LogAddress = LogAddress { store_id: StoreId([3; 16]), segment: 5, block: 7 };
    const STAMP: Stamp = Stamp { attach_id: AttachId([1; 16]), counter: 2 };

    #[test]
    fn decodes_as_encoded_and_knows_its_place() {
        let mut runs = Runs::new(LAYOUT);
        for at in 0..10 {
            assert!(
                runs.push(100 + at, Version::new(&LAYOUT, 50 + at, 2, 8192 + 4096 * at as u32, 128 + 56 * at as u32))
            );
        }
        assert!(runs.push(900, Version::new(&LAYOUT, 1, 3, 4096, 128)));
        assert_eq!(runs.runs.iter().map(|run| run.count).collect::<Vec<_>>(), [10, 1]);
        let hole = Hole::new(5, 6, 7, None, ItemPlace { segment: 1, item_at: 160 });
        let record =
            SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(RecordFlags::HOLE), 1, STAMP, 0, [2; 16]);
        let sealed = Hole::new(15, 6, 8, Some(record), ItemPlace { segment: 1, item_at: 320 }).conditional(true);
        let rows = vec![Row { segment: 4, blocks: 9, generation: 11 }];
        let contents = [
            Content::Runs(runs.runs),
            Content::Holes(vec![hole, sealed]),
            Content::Description { begin_generation: 3, total: 1, rows },
        ];
        for content in contents {
            let block = Block { begin_lsn: 77, generation: 12, next_generation: 13, branch: 2, content };
            let bytes = block.encode(PLACE, &LAYOUT);
            let again = Block::decode(&bytes, PLACE, &LAYOUT, 77, 12).expect("just encoded");
            assert_eq!(again.encode(PLACE, &LAYOUT), bytes);
            if let Content::Holes(holes) = &again.content {
                assert_eq!([false, true], [0, 1].map(|at: usize| holes[at].is_conditional));
            }
            assert!(Block::decode(&bytes, LogAddress { block: 8, ..PLACE }, &LAYOUT, 77, 12).is_none());
            assert!(
                Block::decode(&bytes, PLACE, &LAYOUT, 78, 12).is_none()
                    && Block::decode(&bytes, PLACE, &LAYOUT, 77, 11).is_none()
            );
            for at in 0..200 {
                let mut bad = bytes.clone();
                bad[at] ^= 4;
                assert!(Block::decode(&bad, PLACE, &LAYOUT, 77, 12).is_none(), "byte {at}");
            }
        }
    }
}

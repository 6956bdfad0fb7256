//! Ranges of bytes, as programs have them, in terms of blocks, and the requests of the device that read, write and discard them.
//!
//! Parts of blocks are replaced in the block, atomically with respect to every other writer ([`Request::WritePart`]), so ranges need not be
//! aligned. Long ones become several requests, between which those of others find their way in.

use std::ops::Range;
use std::sync::OnceLock;

use strongroom_block::{Buffer, BufferMut, Geometry, Lba, Request};

/// Data of one request of the device, in bytes.
const PART_BYTES_MAX: usize = 1 << 20;

/// A range of bytes that lies inside the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct ByteRange {
    pub(super) geometry: Geometry,
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

/// How a range becomes zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zeros {
    /// Its whole blocks are forgotten.
    Discarded,
    /// Zeros are written.
    Written,
}

impl ByteRange {
    /// The blocks that it touches.
    pub(super) fn blocks(&self) -> Range<u64> {
        let shift = self.geometry.block_size.shift();
        self.offset >> shift..(self.offset + self.len_bytes).div_ceil(1 << shift)
    }

    /// Bytes of its first block that lie before it.
    pub(super) fn skip_bytes(&self) -> usize {
        (self.offset & (u64::from(self.geometry.block_size.bytes()) - 1)) as usize
    }

    /// Blocks of one request.
    fn part_blocks(&self) -> u64 {
        (PART_BYTES_MAX >> self.geometry.block_size.shift()) as u64
    }

    fn parts(&self, blocks_max: u64) -> impl Iterator<Item = RangePart> + use<> {
        cut_at_blocks(self.geometry, self.offset, self.len_bytes, blocks_max)
    }

    /// Reads the blocks that it touches, in their order.
    pub(super) fn reads(&self) -> impl ExactSizeIterator<Item = Request> + use<> {
        let (blocks, part, shift) = (self.blocks(), self.part_blocks(), self.geometry.block_size.shift());
        let count = (blocks.end - blocks.start).div_ceil(part) as usize;
        (0..count).map(move |index| {
            let first = blocks.start + index as u64 * part;
            let count = part.min(blocks.end - first);
            // A read that succeeds fills all of it.
            Request::Read { lba: Lba(first), buffer: BufferMut::to_fill((count << shift) as usize) }
        })
    }

    /// Writes `data`, which is as long as the range.
    pub(super) fn writes(&self, data: &Buffer, fua: bool) -> impl Iterator<Item = Request> + use<> {
        let (shift, data) = (self.geometry.block_size.shift(), data.clone());
        let slice = move |at: u64, len: u64| data.slice(at as usize..(at + len) as usize);
        self.parts(self.part_blocks()).map(move |part| match part {
            RangePart::Whole { lba, count, at } => Request::Write { lba, data: slice(at, count << shift), fua },
            RangePart::Piece { lba, offset_bytes, at, len_bytes } => {
                Request::WritePart { lba, offset_bytes, data: slice(at, len_bytes), fua }
            }
        })
    }

    /// Forgets its whole blocks.
    pub(super) fn discards(&self) -> impl Iterator<Item = Request> + use<> {
        self.parts(u64::MAX).filter_map(|part| match part {
            RangePart::Whole { lba, count, .. } => Some(Request::Discard { lba, count }),
            RangePart::Piece { .. } => None,
        })
    }

    /// Makes zeros of it. `fua` does not concern what is discarded.
    pub(super) fn zeros(&self, zeros: Zeros, fua: bool) -> impl Iterator<Item = Request> + use<> {
        let shift = self.geometry.block_size.shift();
        let blocks_max = if zeros == Zeros::Written { self.part_blocks() } else { u64::MAX };
        self.parts(blocks_max).map(move |part| match part {
            RangePart::Whole { lba, count, .. } if zeros == Zeros::Written => {
                Request::Write { lba, data: zero_bytes().slice(..(count << shift) as usize), fua }
            }
            RangePart::Whole { lba, count, .. } => Request::Discard { lba, count },
            RangePart::Piece { lba, offset_bytes, len_bytes, .. } => {
                Request::WritePart { lba, offset_bytes, data: zero_bytes().slice(..len_bytes as usize), fua }
            }
        })
    }
}

/// As many as a part may have; no request needs zeros of its own.
fn zero_bytes() -> &'static Buffer {
    static ZEROS: OnceLock<Buffer> = OnceLock::new();
    ZEROS.get_or_init(|| BufferMut::zeroed(PART_BYTES_MAX).freeze())
}

/// A part of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangePart {
    /// Whole blocks.
    Whole {
        lba: Lba,
        count: u64,
        /// Where they begin in the range, in bytes.
        at: u64,
    },
    /// A piece of one block.
    Piece {
        lba: Lba,
        /// Where it begins in the block, in bytes.
        offset_bytes: u32,
        /// Where it begins in the range, in bytes.
        at: u64,
        len_bytes: u64,
    },
}

/// Cuts a range of bytes into what a block device takes: a piece of a block, whole blocks, a piece of a block. At most
/// `blocks_max` blocks at once.
pub(super) fn cut_at_blocks(
    geometry: Geometry,
    offset: u64,
    len_bytes: u64,
    blocks_max: u64,
) -> impl Iterator<Item = RangePart> + use<> {
    let (block_bytes, end) = (u64::from(geometry.block_size.bytes()), offset + len_bytes);
    let mut next = offset;
    std::iter::from_fn(move || {
        let (lba, within, at) = (Lba(next / block_bytes), next % block_bytes, next - offset);
        let rest = end - next;
        if rest == 0 {
            return None;
        }
        if within == 0 && rest >= block_bytes {
            let count = (rest / block_bytes).min(blocks_max);
            next += count * block_bytes;
            return Some(RangePart::Whole { lba, count, at });
        }
        let len_bytes = (block_bytes - within).min(rest);
        next += len_bytes;
        Some(RangePart::Piece { lba, offset_bytes: within as u32, at, len_bytes })
    })
}

#[cfg(test)]
mod tests {
    //! Proves that a range is covered by its parts.

    use proptest::prelude::*;
    use strongroom_block::BlockSize;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_cut_at_blocks_without_gap_or_overlap(
            offset in 0_u64..100_000,
            len in 0_u64..100_000,
            blocks_max in 1_u64..30,
        ) {
            let geometry = Geometry::from_bytes(1 << 20, BlockSize::DEFAULT).unwrap();
            let mut end = offset;
            for part in cut_at_blocks(geometry, offset, len, blocks_max) {
                let (start, at, bytes) = match part {
                    RangePart::Whole { lba, count, at } => {
                        prop_assert!(count > 0 && count <= blocks_max);
                        (lba.0 * 4096, at, count * 4096)
                    }
                    RangePart::Piece { lba, offset_bytes, at, len_bytes } => {
                        let within = u64::from(offset_bytes);
                        prop_assert!(len_bytes > 0 && len_bytes < 4096 && within + len_bytes <= 4096);
                        (lba.0 * 4096 + within, at, len_bytes)
                    }
                };
                prop_assert_eq!((start, at), (end, end - offset));
                end += bytes;
            }
            prop_assert_eq!(end, offset + len);
        }
    }
}

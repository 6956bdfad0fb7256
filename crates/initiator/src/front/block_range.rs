//! Ranges of bytes, as programs have them, in terms of blocks.

use strongroom_block::{Geometry, Lba};

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
) -> impl Iterator<Item = RangePart> {
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

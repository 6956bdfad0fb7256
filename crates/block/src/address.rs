//! Where a block is: logical block addresses, block sizes and the shape of a volume.

use std::fmt;

/// A logical block address: an index of whole blocks from the start of a logical unit, not bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl Lba {
    /// The address `count` blocks further on; `None` past the end of the address space.
    pub fn checked_add(self, count: u64) -> Option<Lba> {
        self.0.checked_add(count).map(Lba)
    }
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Why a geometry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The block size is not a power of two from 512 to 65536.
    #[error("block size {0} is not a power of two from 512 to 65536; choose for instance 4096")]
    BlockSize(u64),
    /// The volume's size is not a whole number of blocks.
    #[error("size {size_bytes} is not a multiple of the block size {block_size}; use {}", whole(*size_bytes, *block_size))]
    NotWholeBlocks {
        /// The size asked for, in bytes.
        size_bytes: u64,
        /// The block size, in bytes.
        block_size: u64,
    },
    /// The volume would have no block.
    #[error("a volume needs at least one block; give a larger size")]
    Empty,
}

/// The sizes nearest to one that is no whole number of blocks.
fn whole(size_bytes: u64, block_size: u64) -> String {
    let below = size_bytes / block_size * block_size;
    let above = below.saturating_add(block_size);
    if below == 0 { above.to_string() } else { format!("{below} or {above}") }
}

/// The size of a block in bytes: a power of two from 512 to 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockSize(u8);

impl BlockSize {
    /// The smallest block, in bytes.
    pub const MIN_BYTES: u32 = 512;
    /// The largest block, in bytes.
    pub const MAX_BYTES: u32 = 65536;
    /// 4096 bytes, the default.
    pub const DEFAULT: BlockSize = BlockSize(12);

    /// A block size of `size_bytes`.
    ///
    /// # Errors
    /// [`GeometryError::BlockSize`] unless it is a power of two from 512 to 65536.
    pub fn new(size_bytes: u64) -> Result<BlockSize, GeometryError> {
        let in_range = (u64::from(Self::MIN_BYTES)..=u64::from(Self::MAX_BYTES)).contains(&size_bytes);
        if in_range && size_bytes.is_power_of_two() {
            Ok(BlockSize(size_bytes.trailing_zeros() as u8))
        } else {
            Err(GeometryError::BlockSize(size_bytes))
        }
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        1 << self.0
    }

    /// In bytes, for indexing.
    #[allow(clippy::len_without_is_empty)] // A block is never empty.
    pub const fn len(self) -> usize {
        1 << self.0
    }

    /// The power of two.
    pub const fn shift(self) -> u32 {
        self.0 as u32
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// The shape of a logical unit: how large a block is and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in one block.
    pub block_size: BlockSize,
    /// How many blocks there are.
    pub blocks: u64,
}

impl Geometry {
    /// A volume of `size_bytes`.
    ///
    /// # Errors
    /// [`GeometryError`] if the size is not a positive whole number of blocks.
    pub fn from_bytes(size_bytes: u64, block_size: BlockSize) -> Result<Geometry, GeometryError> {
        if size_bytes == 0 {
            return Err(GeometryError::Empty);
        }
        if !size_bytes.is_multiple_of(u64::from(block_size.bytes())) {
            return Err(GeometryError::NotWholeBlocks { size_bytes, block_size: u64::from(block_size.bytes()) });
        }
        Ok(Geometry { block_size, blocks: size_bytes >> block_size.shift() })
    }

    /// The size in bytes.
    pub fn bytes(self) -> u64 {
        self.blocks << self.block_size.shift()
    }

    /// Whether `count` blocks from `lba` lie inside.
    pub fn contains(self, lba: Lba, count: u64) -> bool {
        lba.0.checked_add(count).is_some_and(|end| end <= self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        for good in [512, 1024, 4096, 65536] {
            assert_eq!(u64::from(BlockSize::new(good).unwrap().bytes()), good);
        }
        for bad in [0, 1, 256, 513, 4097, 131_072] {
            assert_eq!(BlockSize::new(bad), Err(GeometryError::BlockSize(bad)));
        }
    }

    #[test]
    fn a_ragged_size_names_the_nearest_whole_ones() {
        let error = Geometry::from_bytes(10_000, BlockSize::DEFAULT).unwrap_err();
        assert!(error.to_string().contains("8192 or 12288"), "{error}");
        assert_eq!(Geometry::from_bytes(0, BlockSize::DEFAULT), Err(GeometryError::Empty));
    }

    #[test]
    fn containment_does_not_overflow() {
        let geometry = Geometry::from_bytes(8192, BlockSize::DEFAULT).unwrap();
        assert!(geometry.contains(Lba(0), 2));
        assert!(!geometry.contains(Lba(1), 2));
        assert!(!geometry.contains(Lba(u64::MAX), 2));
    }
}

//! READ CAPACITY (10) and (16) data (SBC-3 §5.15, §5.16).

use strongroom_block::{BlockSize, Geometry};

use crate::bytes::{be32, be64};

/// READ CAPACITY (10) data. A unit of more than 2^32 blocks says 0xffffffff, so that the initiator asks with (16).
pub fn read_capacity_10(geometry: Geometry) -> Vec<u8> {
    let last = u32::try_from(geometry.blocks.saturating_sub(1)).unwrap_or(u32::MAX);
    [last.to_be_bytes(), geometry.block_size.bytes().to_be_bytes()].concat()
}

/// Last LBA and block length of READ CAPACITY (10) data; the address 0xffffffff means "ask with (16)".
pub fn parse_read_capacity_10(bytes: &[u8]) -> Option<(u32, u32)> {
    Some((be32(bytes, 0)?, be32(bytes, 4)?))
}

/// READ CAPACITY (16) data, as far as we use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadCapacity16 {
    /// Address of the last block.
    pub last_lba: u64,
    /// Bytes in a block.
    pub block_bytes: u32,
    /// LBPME: the unit is thin and can UNMAP.
    pub provisioned: bool,
    /// LBPRZ: unmapped blocks read as zeros.
    pub reads_zeros: bool,
    /// LBPPBE: the physical block is 2^this logical blocks.
    pub physical_exponent: u8,
}

impl ReadCapacity16 {
    /// Encoded length in bytes.
    pub const BYTES: usize = 32;

    /// Of a unit of ours. `thin` says LBPME and LBPRZ.
    pub fn of(geometry: Geometry, thin: bool) -> ReadCapacity16 {
        // Sectors smaller than 4 KiB are stored together: tell initiators to align.
        let physical_exponent = 12u32.saturating_sub(geometry.block_size.shift()) as u8;
        ReadCapacity16 {
            last_lba: geometry.blocks.saturating_sub(1),
            block_bytes: geometry.block_size.bytes(),
            provisioned: thin,
            reads_zeros: thin,
            physical_exponent,
        }
    }

    /// As parameter data.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.last_lba.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.block_bytes.to_be_bytes());
        bytes[13] = self.physical_exponent & 0x0f;
        bytes[14] = u8::from(self.provisioned) << 7 | u8::from(self.reads_zeros) << 6;
        bytes
    }

    /// Reads it; 12 bytes suffice, as old targets send no more.
    pub fn parse(bytes: &[u8]) -> Option<ReadCapacity16> {
        let flags = bytes.get(14).copied().unwrap_or(0);
        Some(ReadCapacity16 {
            last_lba: be64(bytes, 0)?,
            block_bytes: be32(bytes, 8)?,
            provisioned: flags & 0x80 != 0,
            reads_zeros: flags & 0x40 != 0,
            physical_exponent: bytes.get(13).copied().unwrap_or(0) & 0x0f,
        })
    }

    /// The geometry, if the block size is one that we can use and the address space does not overflow.
    pub fn geometry(&self) -> Option<Geometry> {
        let block_size = BlockSize::new(self.block_bytes.into()).ok()?;
        let blocks = self.last_lba.checked_add(1)?;
        blocks.checked_mul(block_size.bytes().into())?;
        Some(Geometry { block_size, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 0x1_0000_0001 };
        assert_eq!(read_capacity_10(geometry), [0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 0]);
        let bytes = ReadCapacity16::of(geometry, true).encode();
        assert_eq!(bytes[..16], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0xc0, 0]);
        assert_eq!(ReadCapacity16::parse(&bytes).unwrap().geometry(), Some(geometry));
    }

    #[test]
    fn small_sectors_tell_their_physical_block() {
        let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: 8 };
        assert_eq!(ReadCapacity16::of(geometry, false).encode()[13..15], [3, 0]);
    }

    #[test]
    fn a_hostile_capacity_does_not_overflow() {
        let hostile = ReadCapacity16 { last_lba: u64::MAX, ..ReadCapacity16::parse(&[0; 32]).unwrap() };
        assert_eq!(ReadCapacity16 { block_bytes: 4096, ..hostile }.geometry(), None);
        assert_eq!(ReadCapacity16 { block_bytes: 4096, last_lba: u64::MAX - 1, ..hostile }.geometry(), None);
    }
}

//! What a server offers, and what it has agreed on with a client.

use strongroom_block::BlockSize;

use crate::PAYLOAD_BYTES_MAX;
use crate::wire::transmission_flag;

/// The smallest block size that clients are told to prefer: that of pages and file systems, in bytes.
const PREFERRED_BLOCK_BYTES_MIN: u32 = 4096;

/// The export. There is one; the empty name stands for it as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its size, which clients keep to for as long as they are connected.
    pub size_bytes: u64,
    /// What requests should be multiples of. Others are served, but cost more.
    pub block_size: BlockSize,
    /// Nothing may be written.
    pub read_only: bool,
    /// Blocks are zeroed in less time than it takes to write them.
    pub fast_zero: bool,
}

impl Export {
    pub(crate) fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags for a client that takes replies in this format.
    pub fn flags(&self, format: ReplyFormat) -> u16 {
        use transmission_flag::{
            CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_DF, SEND_FAST_ZERO, SEND_FLUSH, SEND_FUA, SEND_TRIM,
            SEND_WRITE_ZEROES,
        };
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN;
        if self.read_only {
            flags |= READ_ONLY;
        } else {
            flags |= SEND_TRIM | SEND_WRITE_ZEROES;
            if self.fast_zero {
                flags |= SEND_FAST_ZERO;
            }
        }
        if format != ReplyFormat::Simple {
            flags |= SEND_DF;
        }
        flags
    }

    /// Minimum and preferred block size, and the maximum payload, in bytes.
    pub(crate) fn size_constraints(&self) -> [u32; 3] {
        let minimum = self.block_size.bytes();
        [minimum, minimum.max(PREFERRED_BLOCK_BYTES_MIN), PAYLOAD_BYTES_MAX]
    }
}

/// How replies look, and with the last one requests too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyFormat {
    /// A header of 16 bytes, and the data of a read.
    Simple,
    /// Chunks where there are data or a text; simple replies for the rest.
    Structured,
    /// Chunks with 64-bit lengths, for everything.
    Extended,
}

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    /// How replies look.
    pub format: ReplyFormat,
    /// The client may ask what is allocated.
    pub has_allocation: bool,
    /// The client may not write.
    pub read_only: bool,
    /// The client may ask for zeros that take less time than a write.
    pub fast_zero: bool,
}

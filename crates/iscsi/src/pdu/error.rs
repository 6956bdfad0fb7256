//! Why bytes are not a PDU.

use crate::ahs;

/// Why bytes are not a PDU. Who sent them misbehaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PduError {
    /// An opcode that RFC 7143 does not define, or that this direction does not know.
    #[error("opcode 0x{0:02x} is not one that this side may be sent")]
    Opcode(u8),
    /// A field with a value that has no meaning.
    #[error("{field} has the value 0x{value:x}, which has no meaning")]
    Field {
        /// The field's name in RFC 7143.
        field: &'static str,
        /// What was in it.
        value: u32,
    },
    /// More data than this side said it would receive.
    #[error("a data segment of {len_bytes} bytes; this side receives at most {max_bytes}")]
    DataTooLong {
        /// What the header said.
        len_bytes: usize,
        /// MaxRecvDataSegmentLength.
        max_bytes: usize,
    },
    /// The header digest does not fit the header: where the next PDU begins cannot be told.
    #[error("a header whose CRC32C digest is wrong: it was damaged on the way")]
    HeaderDigest,
    /// The additional header segments do not parse.
    #[error(transparent)]
    Ahs(#[from] ahs::AhsError),
    /// A channel frame whose header is shorter than 48 bytes or longer than its limit.
    #[error("a header of {0} bytes; it must have 48 to 65535")]
    HeaderLength(usize),
    /// A channel frame whose parts contradict each other.
    #[error("{field} is {stated} but the frame carries {carried}")]
    FrameLength {
        /// Which length.
        field: &'static str,
        /// What the header says.
        stated: usize,
        /// What came.
        carried: usize,
    },
}

//! Protocol data units as values: the basic header segment, its additional segments and the data. Framing on a stream is
//! in `framer`; what a unit means is the sessions' business.

mod answers;
mod requests;
mod session_answers;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use strongroom_block::Buffer;

pub use answers::{
    Answer, AsyncEvent, AsyncMessage, DataIn, NopIn, R2t, Reject, RejectReason, ScsiResponse, Sequence,
    TaskManagementResponse, TaskManagementResult,
};
pub use requests::{
    DataOut, LoginRequest, LogoutReason, LogoutRequest, NopOut, Request, ScsiCommand, Snack, TaskFunction,
    TaskManagementRequest, TextRequest,
};

pub use session_answers::{LoginResponse, LogoutResponse, LogoutResult, TextResponse};
pub use strongroom_scsi::transport::{Lun, TaskAttribute as Attribute};

use crate::ahs;

/// Bytes in a basic header segment.
pub const BHS_BYTES: usize = 48;
/// The tag that names nothing (RFC 7143 §11.19).
pub const TAG_NONE: u32 = 0xffff_ffff;
/// Upper bound on a DataSegmentLength: three bytes.
pub const DATA_SEGMENT_BYTES_MAX: usize = 0xff_ffff;
/// Upper bound on all additional header segments of a plain PDU: 255 words (RFC 7143 §11.2.1.5).
pub const PLAIN_AHS_BYTES_MAX: usize = 255 * 4;
/// Upper bound on a header (BHS and AHSs) inside a channel: its length is two bytes in the frame's prefix.
pub const CHANNEL_HEADER_BYTES_MAX: usize = 65535;

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

/// What a PDU is (RFC 7143 §11.2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // The RFC's names.
pub enum Opcode {
    NopOut = 0x00,
    ScsiCommand = 0x01,
    TaskManagementRequest = 0x02,
    LoginRequest = 0x03,
    TextRequest = 0x04,
    DataOut = 0x05,
    LogoutRequest = 0x06,
    Snack = 0x10,
    NopIn = 0x20,
    ScsiResponse = 0x21,
    TaskManagementResponse = 0x22,
    LoginResponse = 0x23,
    TextResponse = 0x24,
    DataIn = 0x25,
    LogoutResponse = 0x26,
    R2t = 0x31,
    AsyncMessage = 0x32,
    Reject = 0x3f,
}

impl Opcode {
    /// From the low six bits of a header's first byte.
    pub const fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0x00 => Opcode::NopOut,
            0x01 => Opcode::ScsiCommand,
            0x02 => Opcode::TaskManagementRequest,
            0x03 => Opcode::LoginRequest,
            0x04 => Opcode::TextRequest,
            0x05 => Opcode::DataOut,
            0x06 => Opcode::LogoutRequest,
            0x10 => Opcode::Snack,
            0x20 => Opcode::NopIn,
            0x21 => Opcode::ScsiResponse,
            0x22 => Opcode::TaskManagementResponse,
            0x23 => Opcode::LoginResponse,
            0x24 => Opcode::TextResponse,
            0x25 => Opcode::DataIn,
            0x26 => Opcode::LogoutResponse,
            0x31 => Opcode::R2t,
            0x32 => Opcode::AsyncMessage,
            0x3f => Opcode::Reject,
            _ => return None,
        })
    }
}

/// A basic header segment: 48 bytes whose meaning depends on the opcode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub [u8; BHS_BYTES]);

impl Bhs {
    /// Where ExpCmdSN of an answer lies, MaxCmdSN behind it and StatSN in front of it.
    const STAT_SN: usize = 24;

    pub(crate) const fn new(opcode: Opcode) -> Bhs {
        let mut bytes = [0; BHS_BYTES];
        bytes[0] = opcode as u8;
        Bhs(bytes)
    }

    /// The opcode, if RFC 7143 defines it.
    pub const fn opcode(&self) -> Option<Opcode> {
        Opcode::from_bits(self.0[0] & 0x3f)
    }

    /// The opcode's six bits, defined or not.
    pub const fn opcode_bits(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// The I bit: deliver at once, outside the command window.
    pub const fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// TotalAHSLength in bytes. Zero inside a channel, where the frame's prefix counts.
    pub const fn total_ahs_bytes(&self) -> usize {
        self.0[4] as usize * 4
    }

    /// DataSegmentLength in bytes, without padding.
    pub const fn data_segment_bytes(&self) -> usize {
        (self.0[5] as usize) << 16 | (self.0[6] as usize) << 8 | self.0[7] as usize
    }

    /// The initiator task tag.
    pub fn initiator_task_tag(&self) -> u32 {
        self.u32_at(16)
    }

    pub(crate) fn set_data_segment_bytes(&mut self, len_bytes: usize) {
        assert!(len_bytes <= DATA_SEGMENT_BYTES_MAX, "segments are cut far below three bytes of length");
        self.0[5..8].copy_from_slice(&(len_bytes as u32).to_be_bytes()[1..]);
    }

    pub(crate) fn lun(&self) -> Lun {
        Lun(u64::from_be_bytes(self.0[8..16].try_into().expect("8 bytes")))
    }

    pub(crate) fn set_lun(&mut self, lun: Lun) {
        self.0[8..16].copy_from_slice(&lun.0.to_be_bytes());
    }

    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.0[at..at + 4].try_into().expect("4 bytes"))
    }

    pub(crate) fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.0[at..at + 2].try_into().expect("2 bytes"))
    }

    pub(crate) fn set_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
}

impl fmt::Debug for Bhs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode() {
            Some(opcode) => write!(f, "Bhs({opcode:?}, tag {:08x})", self.initiator_task_tag()),
            None => write!(f, "Bhs(opcode 0x{:02x})", self.opcode_bits()),
        }
    }
}

/// One protocol data unit.
///
/// Lengths inside `bhs`: DataSegmentLength always equals `data.len()`. TotalAHSLength is zero until the framer of a
/// plain stream writes it, and zero inside a channel, where the frame's prefix counts. `Debug` shows no content.
#[derive(Clone, PartialEq, Eq)]
pub struct Pdu {
    /// The basic header segment.
    pub bhs: Bhs,
    /// The additional header segments, back to back, each padded to four bytes; read them with [`ahs::list`].
    pub ahs: Bytes,
    /// The data segment, without padding.
    pub data: Buffer,
    /// Inside a channel: the data is block data that the seal records in `ahs` protect, so the frame leaves it as it is
    /// (frame type SEALED). Never set on a plain stream.
    pub sealed: bool,
}

impl fmt::Debug for Pdu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pdu")
            .field("bhs", &self.bhs)
            .field("ahs", &ahs::Redacted(&self.ahs))
            .field("data", &self.data)
            .field("sealed", &self.sealed)
            .finish()
    }
}

impl Pdu {
    /// A PDU; sets DataSegmentLength.
    pub fn new(mut bhs: Bhs, ahs: Bytes, data: Buffer, sealed: bool) -> Pdu {
        debug_assert!(ahs.len().is_multiple_of(4), "header segments are padded");
        bhs.0[4] = 0;
        bhs.set_data_segment_bytes(data.len());
        Pdu { bhs, ahs, data, sealed }
    }

    /// A PDU of a header alone.
    pub fn header_only(bhs: Bhs) -> Pdu {
        Pdu::new(bhs, Bytes::new(), Buffer::empty(), false)
    }

    /// The PDU that a channel frame carries: `header` is BHS and AHSs, `sealed` says which frame type it was.
    ///
    /// # Errors
    /// [`PduError`] if the lengths contradict each other or a header segment does not parse.
    pub fn from_channel_frame(header: Bytes, data: Buffer, sealed: bool) -> Result<Pdu, PduError> {
        if !(BHS_BYTES..=CHANNEL_HEADER_BYTES_MAX).contains(&header.len()) {
            return Err(PduError::HeaderLength(header.len()));
        }
        let bhs = Bhs(header[..BHS_BYTES].try_into().expect("48 bytes"));
        if bhs.total_ahs_bytes() != 0 {
            return Err(PduError::FrameLength { field: "TotalAHSLength", stated: bhs.total_ahs_bytes(), carried: 0 });
        }
        if bhs.data_segment_bytes() != data.len() {
            let stated = bhs.data_segment_bytes();
            return Err(PduError::FrameLength { field: "DataSegmentLength", stated, carried: data.len() });
        }
        let ahs = header.slice(BHS_BYTES..);
        ahs::check(&ahs)?;
        Ok(Pdu { bhs, ahs, data, sealed })
    }

    /// Appends the header of this PDU as a channel frame carries it: BHS and AHSs.
    pub fn channel_header(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bhs.0);
        out.extend_from_slice(&self.ahs);
    }

    /// Bytes of header: BHS and AHSs.
    pub fn header_bytes(&self) -> usize {
        BHS_BYTES + self.ahs.len()
    }
}

//! A basic header segment as bytes, the opcodes, and the limits of headers (RFC 7143 §11.2). Which fields a header has is in `fields`.

use std::fmt;

/// Bytes in a basic header segment.
pub const BHS_BYTES: usize = 48;
/// The tag that names nothing (RFC 7143 §11.19).
pub const TAG_NONE: u32 = 0xffff_ffff;
/// Upper bound on a DataSegmentLength: three bytes.
pub const DATA_SEGMENT_BYTES_MAX: usize = 0xff_ffff;
/// Bytes of data segment that every side takes before a login settles more (RFC 7143 §13.12).
pub const LOGIN_SEGMENT_BYTES: u32 = 8192;
/// Upper bound on all additional header segments of a plain PDU: 255 words (RFC 7143 §11.2.1.5).
pub const PLAIN_AHS_BYTES_MAX: usize = 255 * 4;
/// Upper bound on a header (BHS and AHSs) inside a channel: its length is two bytes in the frame's prefix.
pub const CHANNEL_HEADER_BYTES_MAX: usize = 65535;

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

    pub(crate) fn set_data_segment_bytes(&mut self, len_bytes: usize) {
        assert!(len_bytes <= DATA_SEGMENT_BYTES_MAX, "segments are cut far below three bytes of length");
        self.0[5..8].copy_from_slice(&(len_bytes as u32).to_be_bytes()[1..]);
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

//! Protocol data units as values: the basic header segment, its additional segments and the data. Framing on a stream is
//! in `framer`; what a unit means is the sessions' business.

mod answer_codes;
mod answers;
pub(crate) mod bhs;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod request_codes;
mod requests;
mod session_answers;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use strongroom_block::Buffer;

pub use answer_codes::{AsyncEvent, LogoutResult, RejectReason, TaskManagementResult};
pub use answers::{Answer, AsyncMessage, DataIn, NopIn, R2t, Reject, ScsiResponse, TaskManagementResponse};
pub use bhs::{
    BHS_BYTES, Bhs, CHANNEL_HEADER_BYTES_MAX, DATA_SEGMENT_BYTES_MAX, Opcode, PLAIN_AHS_BYTES_MAX, TAG_NONE,
};
pub use error::PduError;
pub use fields::Sequence;
pub use request_codes::{LogoutReason, TaskFunction};
pub use requests::{
    DataOut, LoginRequest, LogoutRequest, NopOut, Request, ScsiCommand, SnackRequest, TaskManagementRequest,
    TextRequest,
};
pub use session_answers::{LoginResponse, LogoutResponse, TextResponse};
pub use strongroom_scsi::transport::{Lun, TaskAttribute as Attribute};

use crate::ahs;

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

//! The write data of a command, as far as its CDB says how much there must be.

use strongroom_block::Buffer;
use strongroom_scsi::Sense;
use strongroom_scsi::transport::Direction;
use strongroom_scsi::transport::target as transport;

/// The first `bytes` of the write data, in one piece.
pub(super) fn gather(request: &transport::Command, bytes: u64) -> Result<Buffer, Sense> {
    leading(&request.gather(), bytes)
}

/// The same, where a transfer of another length means that the initiator meant another command.
pub(super) fn gather_exactly(request: &transport::Command, bytes: u64) -> Result<Buffer, Sense> {
    let expected = if request.direction == Direction::Write { u64::from(request.expected_bytes) } else { 0 };
    if expected == bytes { gather(request, bytes) } else { Err(Sense::INVALID_FIELD_IN_CDB) }
}

/// The first `bytes` of what arrived.
pub(super) fn leading(all: &Buffer, bytes: u64) -> Result<Buffer, Sense> {
    let len = usize::try_from(bytes).map_err(|_| Sense::INVALID_FIELD_IN_CDB)?;
    if all.len() < len {
        return Err(Sense::NOT_ENOUGH_DATA);
    }
    Ok(all.slice(..len))
}

/// The first `bytes` of a write's data, as they arrived: never copied.
pub(super) fn pieces(request: &transport::Command, bytes: u64) -> Result<Vec<Buffer>, Sense> {
    let mut left = bytes as usize;
    let mut pieces = Vec::with_capacity(request.data.len());
    for segment in &request.data {
        let take = segment.data.len().min(left);
        if take > 0 {
            pieces.push(segment.data.slice(..take));
            left -= take;
        }
    }
    if left == 0 { Ok(pieces) } else { Err(Sense::NOT_ENOUGH_DATA) }
}

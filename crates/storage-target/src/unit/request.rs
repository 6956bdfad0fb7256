//! A command as it arrived, and its write data, as far as its CDB says how much there must be.

use strongroom_block::Buffer;
use strongroom_scsi::Sense;
use strongroom_scsi::transport::Direction;
use strongroom_scsi::transport::target as transport;

/// A command for the medium, and what its session's channel does.
pub(super) struct Request<'a> {
    pub(super) command: &'a transport::Command,
    /// Most sealed blocks that one PDU of the session takes.
    pub(super) sealed_blocks_max: usize,
    /// Sealed blocks that it writes were checked on arrival: versions that they replace need not be retained for readers to verify.
    pub(super) is_checked: bool,
}

impl Request<'_> {
    /// The first `bytes` of the write data, in one piece.
    pub(super) fn gather(&self, bytes: u64) -> Result<Buffer, Sense> {
        gather(self.command, bytes)
    }

    /// The same, where a transfer of another length means that the initiator meant another command.
    pub(super) fn gather_exactly(&self, bytes: u64) -> Result<Buffer, Sense> {
        let is_write = self.command.direction == Direction::Write;
        let expected = if is_write { u64::from(self.command.expected_bytes) } else { 0 };
        if expected == bytes { self.gather(bytes) } else { Err(Sense::INVALID_FIELD_IN_CDB) }
    }

    /// The first `bytes` of the write data, as they arrived: never copied.
    pub(super) fn pieces(&self, bytes: u64) -> Result<Vec<Buffer>, Sense> {
        let mut left = bytes as usize;
        let mut pieces = Vec::with_capacity(self.command.data.len());
        for segment in &self.command.data {
            let take = segment.data.len().min(left);
            if take > 0 {
                pieces.push(segment.data.slice(..take));
                left -= take;
            }
        }
        if left == 0 { Ok(pieces) } else { Err(Sense::NOT_ENOUGH_DATA) }
    }
}

/// The first `bytes` of a command's write data, in one piece.
pub(super) fn gather(command: &transport::Command, bytes: u64) -> Result<Buffer, Sense> {
    leading(&command.gather(), bytes)
}

/// The first `bytes` of what arrived.
pub(super) fn leading(all: &Buffer, bytes: u64) -> Result<Buffer, Sense> {
    let len = usize::try_from(bytes).map_err(|_| Sense::INVALID_FIELD_IN_CDB)?;
    if all.len() < len {
        return Err(Sense::NOT_ENOUGH_DATA);
    }
    Ok(all.slice(..len))
}

//! Which requests a device takes: inside the volume, in whole blocks, and writes only where it is writable.

use strongroom_block::{DeviceError, DeviceErrorKind, Geometry, Lba, Request};

use crate::completion::device_error;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) geometry: Geometry,
    pub(super) read_only: bool,
}

impl Bounds {
    pub(super) fn check_writable(&self, lba: Option<Lba>) -> Result<(), DeviceError> {
        if self.read_only {
            return Err(device_error(DeviceErrorKind::ReadOnly, lba, "the volume was attached read-only"));
        }
        Ok(())
    }

    /// Whole blocks inside the volume.
    pub(super) fn check_blocks(&self, lba: Lba, len_bytes: usize) -> Result<(), DeviceError> {
        let block_bytes = self.geometry.block_size.len();
        if len_bytes == 0 || !len_bytes.is_multiple_of(block_bytes) {
            let message = format!("{len_bytes} bytes are not whole blocks of {block_bytes}");
            return Err(device_error(DeviceErrorKind::OutOfRange, Some(lba), message));
        }
        self.check_range(lba, (len_bytes / block_bytes) as u64)
    }

    pub(super) fn check_range(&self, lba: Lba, count: u64) -> Result<(), DeviceError> {
        if count > 0 && self.geometry.contains(lba, count) {
            return Ok(());
        }
        let message = format!("{count} blocks from {lba} on are not inside the {} blocks", self.geometry.blocks);
        Err(device_error(DeviceErrorKind::OutOfRange, Some(lba), message))
    }

    /// What a request costs of the queue's limit in bytes, if it is valid.
    pub(super) fn check(&self, request: &Request) -> Result<usize, DeviceError> {
        match request {
            Request::Read { lba, buffer } => self.check_blocks(*lba, buffer.len()).map(|()| buffer.len()),
            Request::Write { lba, data, .. } => {
                self.check_writable(Some(*lba))?;
                self.check_blocks(*lba, data.len()).map(|()| data.len())
            }
            Request::WritePart { lba, offset_bytes, data, .. } => {
                self.check_writable(Some(*lba))?;
                self.check_range(*lba, 1)?;
                let block_bytes = self.geometry.block_size.len();
                if data.is_empty() || *offset_bytes as usize + data.len() > block_bytes {
                    let message = "the part is not inside the block";
                    return Err(device_error(DeviceErrorKind::OutOfRange, Some(*lba), message));
                }
                // Old block, new block, and what is sent.
                Ok(3 * block_bytes)
            }
            Request::Flush => Ok(0),
            Request::Discard { lba, count } => {
                self.check_writable(Some(*lba))?;
                self.check_range(*lba, *count).map(|()| 0)
            }
        }
    }
}

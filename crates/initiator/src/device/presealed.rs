//! For load generators: writes that are sealed long before they are sent, and blocks that are fetched and not opened, so that what a
//! target can do is told apart from how fast initiators seal and open. To the wire and to the target they are what others are: real
//! blocks, each sealed once under a stamp of its own, for its own address.

use std::sync::Arc;

use strongroom_block::{Buffer, DeviceError, DeviceErrorKind, Lba, Token};

use super::{RemoteDevice, UnitDescription};
use crate::completion::device_error;
use crate::pipeline::operation::{Fetch, Operation, Write};
use crate::pipeline::request::{NewRequest, Reply};
use crate::pipeline::sealing::{Records, SealedBlocks};

/// Whole blocks that were sealed and not sent. Gone when it is submitted: no stamp is used twice.
#[derive(Debug)]
pub struct SealedWrite {
    /// Of the attachment that it was sealed for.
    unit: Arc<UnitDescription>,
    lba: Lba,
    data: Buffer,
    /// `None` on a plain unit.
    records: Option<Records>,
}

impl RemoteDevice {
    /// Seals whole blocks for `lba` on, to be written by [`RemoteDevice::submit_sealed`]: soon, and in the order in which they were sealed, for a
    /// target keeps which stamps were used as a bounded number of ranges.
    ///
    /// # Errors
    /// `OutOfRange`, `ReadOnly`, or `NoKey`.
    pub fn seal(&self, lba: Lba, plain: &Buffer) -> Result<SealedWrite, DeviceError> {
        self.bounds().check_writable(Some(lba))?;
        self.bounds().check_blocks(lba, plain.len())?;
        let unit = self.unit.clone();
        let Some(sealing) = &self.sealing else {
            return Ok(SealedWrite { unit, lba, data: plain.clone(), records: None });
        };
        let SealedBlocks { data, records } = sealing.seal(lba, plain)?;
        Ok(SealedWrite { unit, lba, data, records: Some(records) })
    }

    /// Writes what was sealed before; it completes as any other write does. Refused if it was sealed for another attachment.
    pub fn submit_sealed(&self, token: Token, write: SealedWrite) {
        let SealedWrite { unit, lba, data, records } = write;
        if !Arc::ptr_eq(&unit, &self.unit) {
            let message = "the blocks were sealed for another attachment; submit them there, or seal them again";
            return self.intake.fail(token, None, device_error(DeviceErrorKind::Refused, Some(lba), message));
        }
        let cost_bytes = data.len();
        self.intake.writing(token, lba, (cost_bytes / self.unit.geometry.block_size.len()) as u64);
        self.submit_operation(token, cost_bytes, Write { lba, data, records, fua: false }.into());
    }

    /// Has the target send blocks, sees that each comes whole and with its record, and drops them: they are not opened, and the target is not
    /// told that they do. Completes without data.
    pub fn submit_fetch(&self, token: Token, lba: Lba, count: u32) {
        if let Err(error) = self.bounds().check_range(lba, u64::from(count)) {
            return self.intake.fail(token, None, error);
        }
        let cost_bytes = (count as usize) << self.unit.geometry.block_size.shift();
        self.submit_operation(token, cost_bytes, Fetch { lba, count }.into());
    }

    fn submit_operation(&self, token: Token, cost_bytes: usize, operation: Operation) {
        match self.intake.admit(cost_bytes) {
            Ok(()) => self.intake.push(NewRequest { reply: Reply::Token(token), cost_bytes, operation }),
            Err(error) => self.intake.fail(token, None, error),
        }
    }
}

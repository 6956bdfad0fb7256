//! Blocks that are fetched and not opened: that they come whole, and with what opens them.

use strongroom_block::{DeviceError, Lba};

use super::command::Place;
use crate::pipeline::sealing::{medium, not_decoded, read_entry};

impl Place<'_> {
    /// Whether each block of a transfer that begins at `first` came with a record, or its absence with a seal. Nothing is opened.
    pub(super) fn came_whole(&self, first: Lba) -> Result<(), DeviceError> {
        if self.sealing.is_none() {
            return Ok(());
        }
        let (lba, count) = self.blocks_covered(first)?;
        if self.data_in.data.is_empty() {
            return self.hole(lba).map(drop);
        }
        let entries = self.records(lba)?;
        if (entries.count() as u64, (self.data_in.data.len() as u64) >> self.shift) != (count, count) {
            return Err(medium(lba, "the target sent blocks without their seal records"));
        }
        let decoded = (lba.0..).map(Lba).zip(entries.iter()).map(|(lba, entry)| (lba, read_entry(entry)));
        for (lba, decoded) in decoded {
            decoded.map_err(|error| not_decoded(lba, &error))?;
        }
        Ok(())
    }
}

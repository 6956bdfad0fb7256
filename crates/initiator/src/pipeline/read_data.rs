//! One Data-In of a command: where its blocks belong, and whether they open.

use std::time::Instant;

use strongroom_block::{Buffer, DeviceError, HoleRecord, Lba, SealRecord, StoreSequence};
use strongroom_scsi::transport::SealRecords;
use strongroom_scsi::transport::initiator::{DataContent, DataIn};

use crate::pipeline::answer::Version;
use crate::pipeline::feedback::VerifiedFeedback;
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::sealing::{Sealing, medium, not_decoded, read_entry};

/// Data that has arrived.
pub(crate) struct ReadData<'a> {
    /// `None` on a plain unit.
    pub(crate) sealing: Option<&'a Sealing>,
    /// Of the block size.
    pub(crate) shift: u32,
    pub(crate) data_in: &'a DataIn,
    pub(crate) now: Instant,
    /// Learns which versions opened.
    pub(crate) feedback: Option<&'a mut VerifiedFeedback>,
}

impl ReadData<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.data_in.data()
    }

    /// Blocks that are absent: a record of their absence came in place of data.
    pub(crate) fn is_absent(&self) -> bool {
        self.bytes().is_empty()
    }

    /// The first block and the count of blocks, for a transfer that begins at `first`.
    pub(crate) fn blocks_covered(&self, first: Lba) -> Result<(Lba, u64), DeviceError> {
        let (offset, covers) = (u64::from(self.data_in.offset), u64::from(self.data_in.covers_bytes));
        let mask = (1_u64 << self.shift) - 1;
        if covers == 0 || (offset | covers) & mask != 0 {
            return Err(medium(first, "the target sent a piece that is not whole blocks"));
        }
        Ok((Lba(first.0 + (offset >> self.shift)), covers >> self.shift))
    }

    /// Opens (on a plain unit copies) into `out`, which is the whole transfer of a command that begins at `first`. Versions that open go into
    /// the feedback; `opened` is called with each.
    pub(crate) fn open_into(
        &mut self,
        first: Lba,
        out: &mut [u8],
        mut opened: impl FnMut(Lba, &SealRecord),
    ) -> Result<(), ReadFault> {
        let mut feedback = self.feedback.take();
        let now = self.now;
        let result = self.open_each(first, out, |lba, record, sequence| {
            if let Some(feedback) = &mut feedback {
                feedback.note(now, lba, sequence);
            }
            opened(lba, record);
        });
        self.feedback = feedback;
        result
    }

    /// As [`ReadData::open_into`], without feedback: the block is about to be replaced.
    pub(crate) fn open_each(
        &self,
        first: Lba,
        out: &mut [u8],
        opened: impl FnMut(Lba, &SealRecord, StoreSequence),
    ) -> Result<(), ReadFault> {
        let from = self.data_in.offset as usize;
        let data = self.bytes();
        let Some(sealing) = self.sealing else {
            let out =
                out.get_mut(from..from + data.len()).ok_or_else(|| medium(first, "more data than was asked for"))?;
            out.copy_from_slice(data);
            return Ok(());
        };
        let (lba, count) = self.blocks_covered(first)?;
        let out = out
            .get_mut(from..from + self.data_in.covers_bytes as usize)
            .ok_or_else(|| medium(lba, "more data than was asked for"))?;
        if data.is_empty() {
            let hole = self.hole(lba)?;
            sealing.open_hole(lba, count, &hole)?;
            out.fill(0);
            return Ok(());
        }
        let entries = self.records(lba)?;
        sealing.open(lba, entries, data, out, opened)
    }

    /// Whether each block of a transfer that begins at `first` came with a record, or its absence with a seal. Nothing is opened.
    pub(crate) fn check_complete(&self, first: Lba) -> Result<(), DeviceError> {
        if self.sealing.is_none() {
            return Ok(());
        }
        let (lba, count) = self.blocks_covered(first)?;
        if self.bytes().is_empty() {
            return self.hole(lba).map(drop);
        }
        let entries = self.records(lba)?;
        if (entries.count() as u64, (self.bytes().len() as u64) >> self.shift) != (count, count) {
            return Err(medium(lba, "the target sent blocks without their seal records"));
        }
        let decoded = (lba.0..).map(Lba).zip(entries.iter()).map(|(lba, entry)| (lba, read_entry(entry)));
        for (lba, decoded) in decoded {
            decoded.map_err(|error| not_decoded(lba, &error))?;
        }
        Ok(())
    }

    /// The record of absence, which a part without data must have.
    pub(crate) fn hole(&self, lba: Lba) -> Result<HoleRecord, DeviceError> {
        match &self.data_in.content {
            DataContent::Hole { record, .. } => {
                HoleRecord::decode(record).map_err(|_| medium(lba, "the target sent a malformed hole"))
            }
            _ => Err(medium(lba, "the target sent neither a block nor the seal of its absence")),
        }
    }

    fn records(&self, lba: Lba) -> Result<&SealRecords, DeviceError> {
        match &self.data_in.content {
            DataContent::Sealed { records, .. } => Ok(records),
            _ => Err(medium(lba, "the target sent block data outside its seal")),
        }
    }

    /// The one version that READ VERSION returns, not opened.
    pub(crate) fn version(&self, lba: Lba) -> Result<Version, DeviceError> {
        let data = self.bytes();
        if let DataContent::Hole { sequence, .. } = self.data_in.content {
            return Ok(Version::Hole { sequence, hole: self.hole(lba)? });
        }
        let entries = self.records(lba)?;
        let entry = entries.iter().next().ok_or_else(|| medium(lba, "the target sent a block without its record"))?;
        let (sequence, record) = read_entry(entry).map_err(|error| not_decoded(lba, &error))?;
        if data.len() != 1 << self.shift {
            return Err(medium(lba, "the target sent a version of the wrong length"));
        }
        Ok(Version::Block { sequence, record, data: Buffer::copy_from(data) })
    }
}

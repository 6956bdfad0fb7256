//! A part of a read in the form of PDUs: data and header segments. Here the records of a logical unit become header segments.

use std::fmt;

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_scsi::transport::target::ReadPart;

use crate::ahs;

/// A part of a read as PDUs take it. One with header segments is one PDU; others are cut.
pub(super) struct DataSegment {
    /// The bytes; none for a hole.
    pub(super) data: Buffer,
    /// Header segments that belong to exactly this data: seal records, or a hole.
    pub(super) ahs: Bytes,
    /// The channel leaves the data to its seal records.
    pub(super) sealed: bool,
    /// How much of the transfer it stands for, in bytes: `data.len()` unless it is a hole.
    pub(super) covers_bytes: u32,
}

impl fmt::Debug for DataSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSegment")
            .field("data", &self.data)
            .field("ahs", &ahs::Redacted(&self.ahs))
            .field("sealed", &self.sealed)
            .field("covers_bytes", &self.covers_bytes)
            .finish()
    }
}

impl DataSegment {
    /// Plain bytes.
    pub(super) fn plain(data: Buffer) -> DataSegment {
        let covers_bytes = u32::try_from(data.len()).expect("a transfer is less than 4 GiB");
        DataSegment { data, ahs: Bytes::new(), sealed: false, covers_bytes }
    }

    /// Whether it may be cut.
    pub(super) fn is_plain(&self) -> bool {
        self.ahs.is_empty() && !self.sealed && self.covers_bytes as usize == self.data.len()
    }
}

impl From<ReadPart> for DataSegment {
    fn from(part: ReadPart) -> DataSegment {
        let covers_bytes = part.covers_bytes();
        match part {
            ReadPart::Plain(data) => DataSegment { data, ahs: Bytes::new(), sealed: false, covers_bytes },
            ReadPart::Sealed { data, records } => {
                DataSegment { data, ahs: ahs::stored_records_segment(records), sealed: true, covers_bytes }
            }
            ReadPart::Hole { covered_blocks, sequence, record, .. } => {
                let ahs = ahs::hole_segment(covered_blocks, sequence, &record);
                DataSegment { data: Buffer::empty(), ahs, sealed: false, covers_bytes }
            }
        }
    }
}

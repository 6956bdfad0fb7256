//! READ and READ VERSION.

use strongroom_block::{HoleRecord, Lba};
use strongroom_scsi::Sense;
use strongroom_scsi::transport::target::{ReadPart, Response};
use strongroom_scsi::transport::{Direction, StoredRecords};
use strongroom_store::{Extent, Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// Blocks that are being read.
pub(crate) struct Read {
    wanted_bytes: u64,
    sealed_blocks_max: usize,
}

impl Read {
    /// READ.
    pub(super) fn plan(
        lba: Lba,
        count: u32,
        fua: bool,
        request: &Request<'_>,
        medium: &mut Medium,
    ) -> Result<Plan<Read>, Sense> {
        let transfer = medium.transfer(lba, count, request, Direction::Read)?;
        if let Some(response) = transfer.nothing() {
            return Ok(Plan::Answer(response));
        }
        medium.state.count_read(transfer.blocks);
        let read = Read { wanted_bytes: transfer.wanted_bytes, sealed_blocks_max: request.sealed_blocks_max };
        let count = transfer.blocks;
        Ok(Plan::Start(read, if fua { Op::ReadMedium { lba, count } } else { Op::Read { lba, count } }))
    }

    /// READ VERSION.
    pub(super) fn plan_version(lba: Lba, request: &Request<'_>, medium: &Medium) -> Result<Plan<Read>, Sense> {
        let transfer = medium.transfer(lba, 1, request, Direction::Read)?;
        if transfer.blocks == 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let older_than = request.command.parameters.older_than.unwrap_or_default();
        let read = Read { wanted_bytes: transfer.wanted_bytes, sealed_blocks_max: request.sealed_blocks_max };
        Ok(Plan::Start(read, Op::ReadVersion { lba, older_than }))
    }

    pub(super) fn advance(self, outcome: Outcome, medium: &Medium) -> Advance<Read> {
        let Outcome::Read(extents) = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        let data = match medium.volume.sealed {
            Some(_) => sealed_parts(extents, self.sealed_blocks_max, medium),
            None => Ok(medium.plain_parts(&extents)),
        };
        match data {
            Ok(data) => Advance::Done(Response { data, wanted_bytes: Some(self.wanted_bytes), ..Response::default() }),
            Err(sense) => Advance::from(sense),
        }
    }
}

/// The data of a sealed read: blocks with their records, cut to what the transport takes in one part, and holes with theirs.
fn sealed_parts(extents: Vec<Extent>, sealed_blocks_max: usize, medium: &Medium) -> Result<Vec<ReadPart>, Sense> {
    let (volume, codec) = (&medium.volume, &medium.codec);
    let entry_bytes = 8 + medium.sealed()?.custody.record_bytes_in_channel();
    let per_segment = sealed_blocks_max.max(1);
    let mut parts = Vec::new();
    for extent in extents {
        match extent {
            Extent::Blocks { lba, data, sequences, records } => {
                let (data, records) = codec.blocks_for_channel(volume, lba, data, records)?;
                let mut entries = sequences.into_iter().zip(&records);
                for first in (0..records.len()).step_by(per_segment) {
                    let end = records.len().min(first + per_segment);
                    let taken = entries.by_ref().take(end - first);
                    let stored = StoredRecords::new(entry_bytes, taken, codec.has_block_keys());
                    let range = first << medium.shift()..end << medium.shift();
                    parts.push(ReadPart::Sealed { data: data.slice(range), records: stored });
                }
            }
            Extent::Hole { count, sequence, hole, .. } => {
                let hole = hole.ok_or(Sense::INTERNAL_FAILURE)?;
                let record = codec.record_for_channel(volume, &hole.record)?;
                let covered_blocks = u32::try_from(count).map_err(|_| Sense::INTERNAL_FAILURE)?;
                let record = Box::new(HoleRecord { start: hole.start, count: hole.count, record });
                let covers_bytes = covered_blocks << medium.shift();
                parts.push(ReadPart::Hole { covers_bytes, covered_blocks, sequence, record });
            }
        }
    }
    Ok(parts)
}

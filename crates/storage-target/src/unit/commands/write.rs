//! WRITE, WRITE ATOMIC, CONDITIONAL WRITE and COMPARE AND WRITE: one operation of the store. After a write of sealed blocks that were checked
//! on arrival, the versions that it replaced are released before it is answered.

use strongroom_block::{IoKind, Lba, SealRecord, Stamp, StoreSequence, keyless_checksum};
use strongroom_scsi::Sense;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::transport::{Direction, Written};
use strongroom_store::{Op, Outcome};

use crate::unit::medium::{Medium, Transfer};
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// Most bytes that one COMPARE AND WRITE compares.
pub(crate) const COMPARE_BYTES_MAX: u32 = 128 * 1024;

/// Blocks that are being written.
pub(crate) struct Write {
    wanted_bytes: u64,
    /// Only if the blocks are as expected.
    is_conditional: bool,
    stage: WriteStage,
}

enum WriteStage {
    Writing,
    /// Sealed blocks that were checked on arrival.
    WritingChecked {
        lba: Lba,
        count: u64,
    },
    /// The versions that they replaced go.
    Releasing {
        written: Option<Written>,
    },
}

impl Write {
    /// WRITE of whole blocks, at least one.
    pub(super) fn plan(
        lba: Lba,
        transfer: &Transfer,
        fua: bool,
        request: &Request<'_>,
        medium: &mut Medium,
    ) -> Result<Plan<Write>, Sense> {
        let data = request.pieces(medium.bytes(transfer.blocks))?;
        let (data, records, origin) = match medium.volume.sealed {
            Some(_) => {
                let records = records_of(request, transfer.blocks, medium)?;
                let origin = medium.origin_of(request, &records[0])?;
                let (data, records) = medium.codec.blocks_for_store(&medium.volume, lba, data, records)?;
                (data, records, origin)
            }
            None => (data, Vec::new(), None),
        };
        medium.state.count_write(transfer.blocks);
        let is_checked = request.is_checked && !records.is_empty();
        let stage = WriteStage::first(is_checked, lba, records.len() as u64);
        let write = Write { wanted_bytes: transfer.wanted_bytes, is_conditional: false, stage };
        let fua = medium.state.forces_unit_access(fua);
        Ok(Plan::Start(write, Op::Write { lba, data, records, fua, origin }))
    }

    /// CONDITIONAL WRITE.
    pub(super) fn plan_conditional(
        lba: Lba,
        count: u32,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<Write>, Sense> {
        medium.check_range(lba, count.into())?;
        if count != 1 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(10, None));
        }
        let expected = request.command.parameters.expected_stamp.ok_or(Sense::INVALID_FIELD_IN_CDB)?;
        let transfer = medium.transfer(lba, 1, request, Direction::Write)?;
        if transfer.blocks != 1 {
            return Err(Sense::NOT_ENOUGH_DATA);
        }
        let data = vec![request.gather(transfer.wanted_bytes)?];
        let records = records_of(request, 1, medium)?;
        let (data, mut records) = medium.codec.blocks_for_store(&medium.volume, lba, data, records)?;
        let record = records.remove(0);
        let origin = medium.origin_of(request, &record)?;
        let expected = (expected != [0; Stamp::BYTES]).then(|| Stamp::from_bytes(expected));
        let fua = medium.state.forces_unit_access(false);
        let op = Op::ConditionalWrite { lba, expected, data, record, fua, origin };
        let stage = WriteStage::first(request.is_checked, lba, 1);
        Ok(Plan::Start(Write { wanted_bytes: transfer.wanted_bytes, is_conditional: true, stage }, op))
    }

    /// COMPARE AND WRITE.
    pub(super) fn plan_compare(
        lba: Lba,
        count: u8,
        fua: bool,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<Write>, Sense> {
        if u32::from(count) > (COMPARE_BYTES_MAX / medium.volume.geometry.block_size.bytes()).min(255) {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(13, None));
        }
        medium.check_range(lba, count.into())?;
        let half = medium.bytes(count.into()) as usize;
        let both = request.gather_exactly(2 * half as u64)?;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let fua = medium.state.forces_unit_access(fua);
        let op = Op::CompareAndWrite { lba, compare: both.slice(..half), data: both.slice(half..2 * half), fua };
        let write = Write { wanted_bytes: 2 * half as u64, is_conditional: true, stage: WriteStage::Writing };
        Ok(Plan::Start(write, op))
    }

    /// What its latency counts as.
    pub(super) fn io_kind(&self) -> IoKind {
        if self.is_conditional { IoKind::ConditionalWrite } else { IoKind::Write }
    }

    pub(super) fn advance(self, outcome: Outcome, medium: &Medium) -> Advance<Write> {
        let wanted_bytes = self.wanted_bytes;
        let done = |written| Advance::Done(Response { wanted_bytes: Some(wanted_bytes), written, ..Response::good() });
        match (self.stage, &outcome) {
            (WriteStage::Writing, Outcome::Written { .. }) => done(medium.where_written(&outcome)),
            (WriteStage::WritingChecked { lba, count }, &Outcome::Written { first, .. }) => {
                let written = medium.where_written(&outcome);
                if first == StoreSequence(0) {
                    return done(written);
                }
                let pairs = (0..count).map(|at| (Lba(lba.0 + at), StoreSequence(first.0 + at))).collect();
                let stage = WriteStage::Releasing { written };
                let write = Write { wanted_bytes, is_conditional: self.is_conditional, stage };
                Advance::Again(write, Op::Verified { pairs })
            }
            (WriteStage::Releasing { written }, Outcome::Verified { .. }) => done(written),
            _ => Advance::Done(medium.unexpected_outcome()),
        }
    }
}

impl WriteStage {
    fn first(is_checked: bool, lba: Lba, count: u64) -> WriteStage {
        if is_checked { WriteStage::WritingChecked { lba, count } } else { WriteStage::Writing }
    }
}

/// The records of a write's first `blocks` blocks, checked, in the form for rest.
fn records_of(request: &Request<'_>, blocks: u32, medium: &Medium) -> Result<Vec<SealRecord>, Sense> {
    let (volume, sealed) = (&medium.volume, medium.sealed()?);
    let block_len = volume.geometry.block_size.len();
    let mut records = Vec::with_capacity(blocks as usize);
    for segment in request.command.data.iter().filter(|segment| !segment.data.is_empty()) {
        let entries = segment.records.as_ref().ok_or(Sense::INVALID_SEAL_RECORD)?;
        let whole = segment.data.len().is_multiple_of(block_len);
        if !whole
            || entries.entry_bytes() != sealed.custody.record_bytes_in_channel()
            || entries.count() != segment.data.len() / block_len
        {
            return Err(Sense::INVALID_SEAL_RECORD);
        }
        for (entry, block) in entries.iter().zip(segment.data.chunks_exact(block_len)) {
            let record = SealRecord::decode(entry).map_err(|_| Sense::INVALID_SEAL_RECORD)?;
            if record.flags().is_hole() {
                return Err(Sense::INVALID_SEAL_RECORD);
            }
            if record.checksum() != keyless_checksum(block) {
                tracing::warn!(volume = %volume.name, "a block does not fit its keyless checksum on arrival");
                return Err(Sense::CHECKSUM_ON_ARRIVAL);
            }
            records.push(medium.codec.record_for_store(volume, sealed, &record)?);
        }
    }
    if records.len() < blocks as usize {
        return Err(Sense::NOT_ENOUGH_DATA);
    }
    records.truncate(blocks as usize);
    Ok(records)
}

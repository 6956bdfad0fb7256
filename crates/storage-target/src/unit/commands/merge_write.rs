//! ORWRITE, and writes of parts of blocks: what is stored is read, changed, and written if nothing else was written in between.

use strongroom_block::{Buffer, BufferMut, Lba};
use strongroom_scsi::transport::Direction;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, Status};
use strongroom_store::{Extent, Op, OpError, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;
use crate::unit::response::status;

/// How often it starts again because another command wrote in between; then the initiator is told BUSY.
const ATTEMPTS_MAX: u32 = 64;

/// How new data goes into what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    /// ORWRITE: its bits are set.
    Or,
    /// A write whose last block is not whole: it takes the place of as much as there is of it.
    Front,
}

/// A change of what is stored: the new data, and where it goes.
pub(crate) struct MergeWrite {
    merge: Merge,
    lba: Lba,
    blocks: u32,
    data: Buffer,
    fua: bool,
    wanted_bytes: u64,
    attempts: u32,
    stage: MergeStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MergeStage {
    Reading,
    Writing,
}

impl MergeWrite {
    /// ORWRITE.
    pub(super) fn plan_or(
        lba: Lba,
        count: u32,
        fua: bool,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<MergeWrite>, Sense> {
        let transfer = medium.transfer(lba, count, request, Direction::Write)?;
        if let Some(response) = transfer.nothing() {
            return Ok(Plan::Answer(response));
        }
        let data = request.gather(medium.bytes(transfer.blocks))?;
        let fua = medium.state.forces_unit_access(fua);
        Ok(MergeWrite::start(Merge::Or, (lba, transfer.blocks), data, fua, transfer.wanted_bytes))
    }

    /// A write for which the initiator sends less than the CDB says, and not whole blocks: what it sends is written and nothing else
    /// (RFC 7143 §11.4.5.1), all at once.
    pub(super) fn plan_front(
        lba: Lba,
        wanted_bytes: u64,
        fua: bool,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<MergeWrite>, Sense> {
        let data = request.gather(wanted_bytes.min(request.command.expected_bytes.into()))?;
        let blocks = (data.len() as u64).div_ceil(1 << medium.shift()) as u32;
        Ok(MergeWrite::start(Merge::Front, (lba, blocks), data, fua, wanted_bytes))
    }

    fn start(merge: Merge, (lba, blocks): (Lba, u32), data: Buffer, fua: bool, wanted_bytes: u64) -> Plan<MergeWrite> {
        let stage = MergeStage::Reading;
        let write = MergeWrite { merge, lba, blocks, data, fua, wanted_bytes, attempts: 0, stage };
        Plan::Start(write, Op::Read { lba, count: blocks })
    }

    pub(super) fn advance(self, outcome: Outcome, medium: &Medium) -> Advance<MergeWrite> {
        match (self.stage, outcome) {
            (MergeStage::Reading, Outcome::Read(extents)) => self.write(&extents, medium),
            (MergeStage::Writing, Outcome::Written { .. }) => {
                Advance::Done(Response { wanted_bytes: Some(self.wanted_bytes), ..Response::good() })
            }
            _ => Advance::Done(medium.unexpected_outcome()),
        }
    }

    /// What is stored was read: it is written with the change, if it is still there.
    fn write(self, extents: &[Extent], medium: &Medium) -> Advance<MergeWrite> {
        let mut compare = BufferMut::zeroed((self.blocks as usize) << medium.shift());
        let mut at = 0;
        for part in medium.plain_parts(extents) {
            compare[at..at + part.data().len()].copy_from_slice(part.data());
            at += part.data().len();
        }
        let mut data = BufferMut::zeroed(compare.len());
        data.copy_from_slice(&compare);
        match self.merge {
            Merge::Or => data.iter_mut().zip(self.data.iter()).for_each(|(to, new)| *to |= new),
            Merge::Front => data[..self.data.len()].copy_from_slice(&self.data),
        }
        let op = Op::CompareAndWrite { lba: self.lba, compare: compare.freeze(), data: data.freeze(), fua: self.fua };
        Advance::Again(MergeWrite { stage: MergeStage::Writing, ..self }, op)
    }

    pub(super) fn failed(self, error: &OpError, medium: &Medium) -> Advance<MergeWrite> {
        let is_overtaken = self.stage == MergeStage::Writing && matches!(error, OpError::Miscompare { .. });
        if !is_overtaken {
            return Advance::Done(medium.failure(error));
        }
        let attempts = self.attempts + 1;
        if attempts >= ATTEMPTS_MAX {
            return Advance::Done(status(Status::Busy));
        }
        let op = Op::Read { lba: self.lba, count: self.blocks };
        Advance::Again(MergeWrite { attempts, stage: MergeStage::Reading, ..self }, op)
    }
}

//! VERIFY and PRE-FETCH: blocks are read from the medium slice by slice, and compared where the initiator says with what.

use strongroom_block::{Buffer, Lba};
use strongroom_scsi::Sense;
use strongroom_scsi::transport::target::Response;
use strongroom_store::{Extent, Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// Most bytes that one PRE-FETCH reads: it is a hint, and must not wipe out caches.
const PREFETCH_BYTES_MAX: u64 = 16 << 20;

/// What is still to be read, and what it must be (repeated).
pub(crate) struct Verify {
    lba: Lba,
    left: u32,
    compare: Option<Buffer>,
    compared_bytes: usize,
    slice_blocks: u32,
    wanted_bytes: Option<u64>,
}

impl Verify {
    /// VERIFY.
    pub(super) fn plan(
        lba: Lba,
        count: u32,
        byte_check: u8,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<Verify>, Sense> {
        medium.check_range(lba, count.into())?;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let compare = match byte_check {
            0 => None,
            1 => Some(request.gather(medium.bytes(count))?),
            3 => Some(request.gather(medium.bytes(1))?),
            _ => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(2))),
        };
        let (verify, op) = Verify::begin(lba, count, compare, None, medium);
        Ok(Plan::Start(verify, op))
    }

    /// PRE-FETCH. A hint: what is read here is in the host's cache afterwards. GOOD, not CONDITION MET, since nothing promises that it stays.
    pub(super) fn plan_prefetch(lba: Lba, count: u32, immediate: bool, medium: &Medium) -> Result<Plan<Verify>, Sense> {
        medium.check_range(lba, count.into())?;
        let blocks = medium.volume.geometry.blocks;
        let wanted = if count == 0 { blocks - lba.0.min(blocks) } else { count.into() };
        let count = wanted.min(PREFETCH_BYTES_MAX >> medium.shift()) as u32;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let (verify, op) = Verify::begin(lba, count, None, None, medium);
        Ok(Plan::start(verify, op, immediate))
    }

    /// Begins with `count` (at least one) blocks.
    pub(super) fn begin(
        lba: Lba,
        count: u32,
        compare: Option<Buffer>,
        wanted_bytes: Option<u64>,
        medium: &Medium,
    ) -> (Verify, Op) {
        let slice_blocks = medium.slice_blocks().max(1);
        let first = count.min(slice_blocks);
        let (next, left) = (Lba(lba.0 + u64::from(first)), count - first);
        let verify = Verify { lba: next, left, compare, compared_bytes: 0, slice_blocks, wanted_bytes };
        (verify, Op::ReadMedium { lba, count: first })
    }

    pub(super) fn advance(mut self, outcome: Outcome, medium: &Medium) -> Advance<Verify> {
        let Outcome::Read(extents) = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        if let Err(sense) = self.compare(&extents, medium) {
            return Advance::from(sense);
        }
        if self.left == 0 {
            return Advance::Done(Response { wanted_bytes: self.wanted_bytes, ..Response::good() });
        }
        let (lba, count) = (self.lba, self.left.min(self.slice_blocks));
        self.lba = Lba(lba.0 + u64::from(count));
        self.left -= count;
        Advance::Again(self, Op::ReadMedium { lba, count })
    }

    fn compare(&mut self, extents: &[Extent], medium: &Medium) -> Result<(), Sense> {
        let Some(compare) = &self.compare else { return Ok(()) };
        for part in medium.plain_parts(extents) {
            let expected = compare.iter().cycle().skip(self.compared_bytes % compare.len());
            if let Some(at) = part.data().iter().zip(expected).position(|(found, expected)| found != expected) {
                return Err(Sense::MISCOMPARE.at(Lba((self.compared_bytes + at) as u64)));
            }
            self.compared_bytes += part.data().len();
        }
        Ok(())
    }
}

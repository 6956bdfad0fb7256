//! UNMAP, and WRITE SAME with UNMAP: ranges are discarded slice by slice.

use std::collections::VecDeque;

use strongroom_block::Lba;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, provisioning};
use strongroom_store::{Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// Blocks with data that are discarded in one operation, about; those without cost nothing.
const DISCARD_BLOCKS: u64 = 16384;

/// What is still to be discarded.
pub(crate) struct Unmap {
    ranges: VecDeque<(Lba, u64)>,
}

impl Unmap {
    /// UNMAP.
    pub(super) fn plan(
        anchor: bool,
        parameter_list_len: u16,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<Unmap>, Sense> {
        if anchor {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(0)));
        }
        let list = request.gather(parameter_list_len.into())?;
        let ranges = provisioning::parse_unmap(&list).map_err(|error| match error {
            provisioning::UnmapError::Truncated => Sense::PARAMETER_LIST_LENGTH,
            provisioning::UnmapError::TooMany => Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(2),
        })?;
        // SBC-3 §5.28: nothing is unmapped if any range lies outside.
        for (lba, count) in &ranges {
            medium.check_range(*lba, u64::from(*count))?;
        }
        let ranges = ranges.into_iter().filter(|(_, count)| *count > 0);
        Ok(Unmap::begin(ranges.map(|(lba, count)| (lba, count.into())).collect(), medium))
    }

    /// Begins to discard ranges, none of them empty.
    pub(super) fn begin(ranges: VecDeque<(Lba, u64)>, medium: &Medium) -> Plan<Unmap> {
        let mut unmap = Unmap { ranges };
        match unmap.next(medium) {
            Some(op) => Plan::Start(unmap, op),
            None => Plan::Answer(Response::good()),
        }
    }

    pub(super) fn advance(mut self, outcome: &Outcome, medium: &Medium) -> Advance<Unmap> {
        let Outcome::Written { .. } = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        match self.next(medium) {
            Some(op) => Advance::Again(self, op),
            None => Advance::Done(Response::good()),
        }
    }

    /// Discards the next slice; `None`: nothing is left.
    fn next(&mut self, medium: &Medium) -> Option<Op> {
        let (lba, blocks) = self.ranges.pop_front()?;
        let count = medium.store.discard_slice(lba, blocks, DISCARD_BLOCKS);
        if count < blocks {
            self.ranges.push_front((Lba(lba.0 + count), blocks - count));
        }
        Some(Op::Discard { lba, count })
    }
}

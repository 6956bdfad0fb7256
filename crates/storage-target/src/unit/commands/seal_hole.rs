//! SEAL HOLE: ranges of a sealed unit without data, each with its seal record.

use strongroom_block::{HoleRecord, Stamp};
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, vendor};
use strongroom_store::{Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// Holes that are being written.
pub(crate) struct SealHole {
    wanted_bytes: u64,
}

impl SealHole {
    pub(super) fn plan(
        parameter_list_len: u32,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<SealHole>, Sense> {
        let sealed = medium.sealed()?;
        let list = medium.parameter_list(parameter_list_len, request)?;
        let holes =
            vendor::decode_holes(&list, sealed.custody.record_bytes_in_channel()).map_err(|error| match error {
                vendor::ParameterError::Length { .. } => Sense::PARAMETER_LIST_LENGTH,
                vendor::ParameterError::Entry { .. } => Sense::INVALID_SEAL_RECORD,
            })?;
        // By reference: what is moved out of a vector leaves its bytes, and so block keys, in it.
        let check = |hole: &HoleRecord| {
            medium.check_range(hole.start, hole.count)?;
            medium.codec.check_hole(&medium.volume, hole)?;
            let record = medium.codec.record_for_store(&medium.volume, sealed, &hole.record)?;
            Ok(HoleRecord { record, ..*hole })
        };
        let mut holes = holes.iter().map(check).collect::<Result<Vec<_>, Sense>>()?;
        let origin = medium.origin_of(request, &holes[0].record)?;
        let op = match request.command.parameters.expected_stamp {
            None => Op::Hole { holes, origin },
            // Only absence can be expected of a range.
            Some(expected) if expected == [0; Stamp::BYTES] && holes.len() == 1 => {
                Op::ConditionalHole { hole: holes.remove(0), origin }
            }
            Some(_) => return Err(Sense::INVALID_FIELD_IN_CDB),
        };
        Ok(Plan::Start(SealHole { wanted_bytes: parameter_list_len.into() }, op))
    }

    pub(super) fn advance(self, outcome: &Outcome, medium: &Medium) -> Advance<SealHole> {
        let Outcome::Written { .. } = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        let written = medium.where_written(outcome);
        Advance::Done(Response { wanted_bytes: Some(self.wanted_bytes), written, ..Response::good() })
    }
}

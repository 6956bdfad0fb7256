//! VERIFIED: an initiator has opened the newest versions of blocks, so that older ones may go.

use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, vendor};
use strongroom_store::{Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// Older versions that are being released.
pub(crate) struct Verified {
    wanted_bytes: u64,
}

impl Verified {
    pub(super) fn plan(
        parameter_list_len: u32,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<Verified>, Sense> {
        let list = medium.parameter_list(parameter_list_len, request)?;
        let pairs = vendor::decode_verified(&list).map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
        for (lba, _) in &pairs {
            medium.check_range(*lba, 1)?;
        }
        Ok(Plan::Start(Verified { wanted_bytes: parameter_list_len.into() }, Op::Verified { pairs }))
    }

    pub(super) fn advance(self, outcome: &Outcome, medium: &Medium) -> Advance<Verified> {
        let Outcome::Verified { .. } = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        Advance::Done(Response { wanted_bytes: Some(self.wanted_bytes), ..Response::good() })
    }
}

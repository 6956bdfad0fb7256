//! REGISTER ATTACHMENT: a sealed unit executes no write of an attachment that it does not know.

use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Sense, vendor};
use strongroom_store::{Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

/// An attachment that is being registered.
pub(crate) struct RegisterAttachment;

impl RegisterAttachment {
    pub(super) fn plan(
        parameter_list_len: u32,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<RegisterAttachment>, Sense> {
        let list = medium.parameter_list(parameter_list_len, request)?;
        let attach_id = vendor::decode_attach_id(&list).map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
        Ok(Plan::Start(RegisterAttachment, Op::RegisterAttachment { attach_id }))
    }

    pub(super) fn advance(outcome: &Outcome, medium: &Medium) -> Advance<RegisterAttachment> {
        let Outcome::Changed = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        Advance::Done(Response::good())
    }
}

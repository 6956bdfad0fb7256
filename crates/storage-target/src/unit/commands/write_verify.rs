//! WRITE AND VERIFY: a durable write, and then a VERIFY of what was written.

use strongroom_block::{Buffer, Lba};
use strongroom_scsi::Sense;
use strongroom_store::{Op, Outcome};

use super::verify::Verify;
use crate::unit::medium::{Medium, Transfer};
use crate::unit::plan::{Advance, Plan};
use crate::unit::request::Request;

pub(crate) enum WriteVerify {
    Writing { lba: Lba, count: u32, compare: Option<Buffer>, wanted_bytes: u64 },
    Verifying(Verify),
}

impl WriteVerify {
    /// WRITE AND VERIFY of whole blocks, at least one.
    pub(super) fn plan(
        lba: Lba,
        transfer: &Transfer,
        byte_check: u8,
        request: &Request<'_>,
        medium: &Medium,
    ) -> Result<Plan<WriteVerify>, Sense> {
        let &Transfer { blocks: count, wanted_bytes, .. } = transfer;
        let data = request.gather(medium.bytes(count))?;
        let compare = (byte_check == 1).then(|| data.clone());
        let write = WriteVerify::Writing { lba, count, compare, wanted_bytes };
        // It is the medium that is verified, so to the medium it goes.
        Ok(Plan::Start(write, Op::Write { lba, data: vec![data], records: Vec::new(), fua: true, origin: None }))
    }

    pub(super) fn advance(self, outcome: Outcome, medium: &Medium) -> Advance<WriteVerify> {
        match (self, outcome) {
            (WriteVerify::Writing { lba, count, compare, wanted_bytes }, Outcome::Written { .. }) => {
                let (verify, op) = Verify::begin(lba, count, compare, Some(wanted_bytes), medium);
                Advance::Again(WriteVerify::Verifying(verify), op)
            }
            (WriteVerify::Verifying(verify), outcome) => verify.advance(outcome, medium).map(WriteVerify::Verifying),
            _ => Advance::Done(medium.unexpected_outcome()),
        }
    }
}

//! SYNCHRONIZE CACHE, START STOP UNIT with START=0, and the flush that makes durable what another command did before that is answered (WCE=0).

use strongroom_block::Lba;
use strongroom_scsi::Sense;
use strongroom_scsi::transport::Written;
use strongroom_scsi::transport::target::Response;
use strongroom_store::{Op, Outcome};

use crate::unit::medium::Medium;
use crate::unit::plan::{Advance, Plan};

/// The store is being flushed.
pub(crate) enum Flush {
    /// Then GOOD is answered.
    Answer { wanted_bytes: Option<u64>, written: Option<Written> },
    /// Then the unit is stopped.
    Stop,
}

impl Flush {
    /// SYNCHRONIZE CACHE.
    pub(super) fn plan(lba: Lba, count: u32, immediate: bool, medium: &Medium) -> Result<Plan<Flush>, Sense> {
        // The whole log is synced. The range must lie inside the unit all the same.
        medium.check_range(lba, count.into())?;
        Ok(Plan::start(Flush::Answer { wanted_bytes: None, written: None }, Op::Flush, immediate))
    }

    /// START STOP UNIT. Stopping makes durable first what was written (SBC-3 §5.25, NO_FLUSH=0). There is no medium to eject.
    pub(super) fn plan_start_stop(
        power_condition: u8,
        load_eject: bool,
        start: bool,
        medium: &mut Medium,
    ) -> Result<Plan<Flush>, Sense> {
        if power_condition != 0 || start {
            medium.state.started |= start && power_condition == 0;
            return Ok(Plan::Answer(Response::good()));
        }
        match load_eject {
            true if medium.state.is_removal_prevented() => Err(Sense::REMOVAL_PREVENTED),
            true => Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(4, Some(1))),
            false => Ok(Plan::Start(Flush::Stop, Op::Flush)),
        }
    }

    pub(super) fn advance(self, outcome: &Outcome, medium: &mut Medium) -> Advance<Flush> {
        let Outcome::Flushed = outcome else { return Advance::Done(medium.unexpected_outcome()) };
        Advance::Done(match self {
            Flush::Answer { wanted_bytes, written } => Response { wanted_bytes, written, ..Response::good() },
            Flush::Stop => {
                medium.state.started = false;
                Response::good()
            }
        })
    }
}

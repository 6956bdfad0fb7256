//! What a command becomes once a logical unit has looked at it: a response, or work for the store.

use strongroom_scsi::Sense;
use strongroom_scsi::transport::target::Response;
use strongroom_store::Op;

use super::response::check_condition;
use super::work::Work;

/// What became of a command.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The response, at once.
    Answer(Response),
    /// [`super::Unit::poll`] will give it.
    Later,
    /// The peer broke the frame discipline of sealed units: end its connection.
    Violation(&'static str),
}

/// What a command turns into once it is admitted.
pub(super) enum Plan {
    Answer(Response),
    Start(Work, Op),
    /// Start, and answer GOOD at once.
    Background(Work, Op),
    /// Start, and answer GOOD when no crash can undo it any more.
    WhenCertain(Work, Op),
    Violation(&'static str),
    /// Its response waits for something.
    Delayed,
}

impl From<Sense> for Plan {
    fn from(sense: Sense) -> Plan {
        Plan::Answer(check_condition(sense))
    }
}

impl From<Option<Response>> for Plan {
    fn from(response: Option<Response>) -> Plan {
        response.map_or(Plan::Delayed, Plan::Answer)
    }
}

//! What a command becomes once a logical unit has looked at it, and how one that runs goes on. `P` is the type of the running command: each
//! command has its own, and all of them together are a [`super::commands::BlockCommand`].

use strongroom_scsi::Sense;
use strongroom_scsi::transport::target::Response;
use strongroom_store::Op;

use super::response::check_condition;

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
pub(super) enum Plan<P> {
    Answer(Response),
    Start(P, Op),
    /// Start, and answer GOOD at once.
    Background(P, Op),
    /// Start, and answer GOOD when no crash can undo it any more.
    WhenCertain(P, Op),
    Violation(&'static str),
    /// Its response waits for something.
    Delayed,
}

impl<P> Plan<P> {
    /// Starts; with IMMED the answer does not wait for the end.
    pub(super) fn start(command: P, op: Op, immediate: bool) -> Plan<P> {
        if immediate { Plan::Background(command, op) } else { Plan::Start(command, op) }
    }

    /// The same plan, of a command that is one of several kinds.
    pub(super) fn map<Q>(self, kind: impl FnOnce(P) -> Q) -> Plan<Q> {
        match self {
            Plan::Answer(response) => Plan::Answer(response),
            Plan::Start(command, op) => Plan::Start(kind(command), op),
            Plan::Background(command, op) => Plan::Background(kind(command), op),
            Plan::WhenCertain(command, op) => Plan::WhenCertain(kind(command), op),
            Plan::Violation(what) => Plan::Violation(what),
            Plan::Delayed => Plan::Delayed,
        }
    }
}

impl<P> From<Sense> for Plan<P> {
    fn from(sense: Sense) -> Plan<P> {
        Plan::Answer(check_condition(sense))
    }
}

impl<P> From<Option<Response>> for Plan<P> {
    fn from(response: Option<Response>) -> Plan<P> {
        response.map_or(Plan::Delayed, Plan::Answer)
    }
}

impl<P> From<Result<Response, Sense>> for Plan<P> {
    fn from(answer: Result<Response, Sense>) -> Plan<P> {
        answer.map_or_else(Plan::from, Plan::Answer)
    }
}

/// How a command goes on after one of its operations.
pub(super) enum Advance<P> {
    /// With another operation.
    Again(P, Op),
    Done(Response),
}

impl<P> Advance<P> {
    /// The same, of a command that is one of several kinds.
    pub(super) fn map<Q>(self, kind: impl FnOnce(P) -> Q) -> Advance<Q> {
        match self {
            Advance::Again(command, op) => Advance::Again(kind(command), op),
            Advance::Done(response) => Advance::Done(response),
        }
    }
}

impl<P> From<Sense> for Advance<P> {
    fn from(sense: Sense) -> Advance<P> {
        Advance::Done(check_condition(sense))
    }
}

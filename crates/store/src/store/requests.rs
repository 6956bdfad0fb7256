//! The requests that were accepted and have not completed: limits, admission, completions.

use strongroom_block::Token;

use super::memory::Admission;
use crate::op::{Completion, Op, OpError, Outcome};
use crate::options::OpenOptions;

/// Accepted requests and their completions.
pub(super) struct Requests {
    ops_max: usize,
    bytes_max: usize,
    admission: Admission,
    ops_in_flight: usize,
    bytes_in_flight: usize,
    /// Completions that were not polled.
    done: Vec<Completion>,
}

impl Requests {
    pub(super) fn new(options: &OpenOptions) -> Requests {
        Requests {
            ops_max: options.queue_ops_max,
            bytes_max: options.queue_bytes_max.max(Op::READ_BYTES_MAX),
            admission: Admission::default(),
            ops_in_flight: 0,
            bytes_in_flight: 0,
            done: Vec::new(),
        }
    }

    /// Whether another request of this size fits into the limits.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        self.ops_in_flight < self.ops_max && self.bytes_in_flight + bytes <= self.bytes_max
    }

    pub(super) fn admits(&self, op: &Op) -> bool {
        self.admission.admits(op)
    }

    pub(super) fn set_admission(&mut self, admission: Admission) {
        self.admission = admission;
    }

    /// A request is accepted.
    pub(super) fn accept(&mut self, bytes: usize) {
        self.ops_in_flight += 1;
        self.bytes_in_flight += bytes;
    }

    /// A request that was not accepted is answered.
    pub(super) fn reject(&mut self, token: Token, error: OpError) {
        self.done.push(Completion { token, result: Err(error) });
    }

    /// Completes an accepted request.
    pub(super) fn complete(&mut self, token: Token, bytes: usize, result: Result<Outcome, OpError>) {
        self.ops_in_flight -= 1;
        self.bytes_in_flight -= bytes;
        self.done.push(Completion { token, result });
    }

    /// Moves all completions to the end of `completions`; returns their number.
    pub(super) fn take_done(&mut self, completions: &mut Vec<Completion>) -> usize {
        let count = self.done.len();
        completions.append(&mut self.done);
        count
    }

    /// The result of one request, if it has completed.
    pub(super) fn take_result(&mut self, token: Token) -> Option<Result<Outcome, OpError>> {
        let at = self.done.iter().position(|completion| completion.token == token)?;
        Some(self.done.remove(at).result)
    }

    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    pub(super) fn ops_in_flight(&self) -> usize {
        self.ops_in_flight
    }

    pub(super) fn bytes_in_flight(&self) -> usize {
        self.bytes_in_flight
    }
}

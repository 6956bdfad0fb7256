//! Counts the steps that one call takes in the store: work in proportion to the volume is done in slices.

use strongroom_store::steps_taken;

/// Steps that one call of a worker or a store may take.
const STEPS_MAX: u64 = 12_000;

/// Counts the steps of calls.
#[derive(Debug, Default)]
pub(super) struct StepCounter {
    /// The most steps of one call.
    pub(super) most: u64,
}

impl StepCounter {
    /// Counts those of one call.
    pub(super) fn count<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let before = steps_taken();
        let result = call();
        let steps = steps_taken() - before;
        self.most = steps.max(self.most);
        assert!(steps <= STEPS_MAX, "one call of a unit took {steps} steps in the store: it is to be done in slices");
        result
    }
}

//! Counts the steps that one call takes in the store: work in proportion to the volume is done in slices.

use strongroom_store::steps_taken;

/// A poll of a store may walk over this many entries for a piece of a checkpoint.
const CHECKPOINT_STEPS: u64 = 32_768;
/// It hides this many blocks, or does as many steps. The last slice, of 1,024 blocks, may take ten steps for each: one to hide it, eight to sweep
/// the order of versions, one to evict another.
const HIDING_STEPS: u64 = 8192 + 10 * 1024;
/// A call of a unit polls its store again until it has done this many.
const UNIT_STEPS: u64 = 2048;
/// Steps that one call of a worker or a store may take: about 2 ms of the 10 ms that an iteration may take (an optimised build took 2.3 ms for
/// 44,491).
const STEPS_MAX: u64 = CHECKPOINT_STEPS + HIDING_STEPS + UNIT_STEPS;

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

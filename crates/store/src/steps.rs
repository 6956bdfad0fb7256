//! Steps: units of work that the store counts, so that a test can tell work in slices from work that takes as long as the volume is
//! large. One step is about one entry, chunk or segment looked at. Counted per thread: a store runs on one at a time.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Counts work.
pub(crate) fn count(steps: u64) {
    STEPS.set(STEPS.get() + steps);
}

/// The steps that stores took on this thread so far. The difference of two calls is the work of what was done in between.
pub fn steps_taken() -> u64 {
    STEPS.get()
}

//! Time since the machine was started, including the time for which it slept: a lease must end on a machine that sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(Duration);

impl BootTime {
    pub(crate) fn now() -> BootTime {
        let time = clock_gettime(ClockId::Boottime);
        BootTime(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32))
    }

    pub(crate) fn until(self, later: BootTime) -> Duration {
        later.0.saturating_sub(self.0)
    }

    pub(crate) fn after(self, duration: Duration) -> BootTime {
        BootTime(self.0.saturating_add(duration))
    }
}

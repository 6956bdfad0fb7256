//! Until when initiators may still write under an old epoch: those that cannot reach the server go on for a lease. Time is an
//! argument, and monotonic: what the wall clock does cannot shorten a lease.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strongroom_block::SealingDomain;

/// What was given out, since the server started. What was before is taken to have been at the start.
pub(crate) struct Leases {
    started: Instant,
    volumes: Mutex<HashMap<SealingDomain, Given>>,
}

#[derive(Clone, Copy)]
struct Given {
    /// The last time that somebody was told what the current epoch is.
    last: Instant,
    /// When those who know an older one have given up.
    settled: Instant,
}

impl Leases {
    pub(crate) fn new(now: Instant) -> Leases {
        Leases { started: now, volumes: Mutex::default() }
    }

    fn with<T>(&self, domain: SealingDomain, lease: Duration, work: impl FnOnce(&mut Given) -> T) -> T {
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        let at_start = Given { last: self.started, settled: self.started + lease };
        work(volumes.entry(domain).or_insert(at_start))
    }

    /// Somebody was told the current epoch.
    pub(crate) fn given(&self, domain: SealingDomain, lease: Duration, now: Instant) {
        self.with(domain, lease, |given| given.last = given.last.max(now));
    }

    /// A new epoch began: whoever was told before knows an older one.
    pub(crate) fn rotated(&self, domain: SealingDomain, lease: Duration) {
        self.with(domain, lease, |given| given.settled = given.settled.max(given.last + lease));
    }

    /// A volume is new: nobody was told anything.
    pub(crate) fn created(&self, domain: SealingDomain, lease: Duration, now: Instant) {
        let long_ago = now.checked_sub(lease).unwrap_or(now);
        self.with(domain, lease, |given| *given = Given { last: long_ago, settled: now });
    }

    /// How long until nobody writes under an older epoch any more.
    pub(crate) fn settles_in(&self, domain: SealingDomain, lease: Duration, now: Instant) -> Duration {
        self.with(domain, lease, |given| given.settled.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(100);
    const DOMAIN: SealingDomain = SealingDomain([1; 16]);

    #[test]
    fn an_old_epoch_is_settled_a_lease_after_it_was_last_given_out() {
        let (start, second) = (Instant::now() + LEASE, Duration::from_secs(1));
        let leases = Leases::new(start);
        assert_eq!(leases.settles_in(DOMAIN, LEASE, start), LEASE, "what was given out before the start is not known");
        leases.created(DOMAIN, LEASE, start);
        leases.rotated(DOMAIN, LEASE);
        assert_eq!(leases.settles_in(DOMAIN, LEASE, start), Duration::ZERO, "nobody ever had it");
        leases.given(DOMAIN, LEASE, start + second);
        leases.rotated(DOMAIN, LEASE);
        leases.given(DOMAIN, LEASE, start + 50 * second);
        assert_eq!(leases.settles_in(DOMAIN, LEASE, start + 51 * second), LEASE - 50 * second);
        assert_eq!(leases.settles_in(DOMAIN, LEASE, start + 200 * second), Duration::ZERO);
        leases.rotated(DOMAIN, LEASE);
        assert_eq!(leases.settles_in(DOMAIN, LEASE, start + 50 * second), LEASE);
    }
}

//! Until when initiators may still write under an old epoch: those that cannot reach the server go on for a lease. Time is an
//! argument, and monotonic: what the wall clock does cannot shorten a lease.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use strongroom_block::SealingDomain;

/// What was given out, since this server began to give keys out. What was before is taken to have been at that time, and for the
/// longest lease that ever was.
pub(crate) struct Leases(Mutex<Inner>);

struct Inner {
    began: Instant,
    /// For how long keys are given out now.
    lent: Duration,
    /// The longest that some may still be out for, and until when.
    longest: Duration,
    longest_until: Instant,
    margin: Duration,
    volumes: HashMap<SealingDomain, LeaseTimes>,
}

#[derive(Clone, Copy)]
struct LeaseTimes {
    /// The last time that any client was told the current epoch.
    last: Instant,
    /// When those who know an older one have given up.
    settled: Instant,
}

impl Inner {
    fn longest(&self, now: Instant) -> Duration {
        if now < self.longest_until { self.longest.max(self.lent) } else { self.lent }
    }

    /// A lease, what clocks may differ by meanwhile, and what is still under way when it ends.
    fn term(&self, now: Instant) -> Duration {
        let lease = self.longest(now);
        lease + lease / 64 + self.margin
    }

    fn volume(&mut self, domain: SealingDomain, now: Instant) -> &mut LeaseTimes {
        let settled = self.began + self.term(now);
        self.volumes.entry(domain).or_insert(LeaseTimes { last: self.began, settled })
    }
}

impl Leases {
    /// `longest`: that was ever lent, as it is stored.
    pub(crate) fn new(longest: Duration, now: Instant) -> Leases {
        Leases(Mutex::new(Inner {
            began: now,
            lent: Duration::ZERO,
            longest,
            longest_until: now + longest,
            margin: Duration::ZERO,
            volumes: HashMap::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long keys are given out from now on; what is out stays out.
    pub(crate) fn lend(&self, lent: Duration, margin: Duration, now: Instant) {
        let mut inner = self.lock();
        let longest = inner.longest(now);
        if longest > lent {
            (inner.longest, inner.longest_until) = (longest, now + longest);
        }
        (inner.lent, inner.margin) = (lent, margin);
    }

    /// The longest that keys may be out for: to be stored before any more are.
    pub(crate) fn longest(&self, now: Instant) -> Duration {
        self.lock().longest(now)
    }

    /// Another server gave keys out until now, or it is not known any more what this one did.
    pub(crate) fn restart(&self, longest: Duration, now: Instant) {
        let mut inner = self.lock();
        let longest = longest.max(inner.longest(now));
        (inner.began, inner.longest, inner.longest_until) = (now, longest, now + longest);
        inner.volumes.clear();
    }

    /// A client was told the current epoch.
    pub(crate) fn given(&self, domain: SealingDomain, now: Instant) {
        let mut inner = self.lock();
        let given = inner.volume(domain, now);
        given.last = given.last.max(now);
    }

    /// A new epoch began: clients that were told before know an older one.
    pub(crate) fn rotated(&self, domain: SealingDomain, now: Instant) {
        let mut inner = self.lock();
        let term = inner.term(now);
        let given = inner.volume(domain, now);
        given.settled = given.settled.max(given.last + term);
    }

    /// A volume is new: no client was told anything, unless it had the domain of one that was destroyed.
    pub(crate) fn created(&self, domain: SealingDomain, now: Instant) {
        let mut inner = self.lock();
        let long_ago = now.checked_sub(inner.term(now)).unwrap_or(now);
        inner.volumes.entry(domain).or_insert(LeaseTimes { last: long_ago, settled: now });
    }

    /// How long until no client writes under an older epoch any more.
    pub(crate) fn settles_in(&self, domain: SealingDomain, now: Instant) -> Duration {
        self.lock().volume(domain, now).settled.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(6400);
    const MARGIN: Duration = Duration::from_secs(50);
    const TERM: Duration = Duration::from_secs(6400 + 100 + 50);
    const SECOND: Duration = Duration::from_secs(1);
    const DOMAIN: SealingDomain = SealingDomain([1; 16]);

    fn leases(longest: Duration) -> (Leases, Instant) {
        let start = Instant::now() + 10 * LEASE;
        let leases = Leases::new(longest, start);
        leases.lend(LEASE, MARGIN, start);
        (leases, start)
    }

    #[test]
    fn an_old_epoch_is_settled_a_lease_after_it_was_last_given_out() {
        let (leases, start) = leases(Duration::ZERO);
        assert_eq!(leases.settles_in(DOMAIN, start), TERM, "what was given out before the start is not known");
        let other = SealingDomain([2; 16]);
        leases.created(other, start);
        leases.rotated(other, start);
        assert_eq!(leases.settles_in(other, start), Duration::ZERO, "no client ever had it");
        leases.given(other, start + SECOND);
        leases.rotated(other, start + 2 * SECOND);
        leases.given(other, start + 50 * SECOND);
        assert_eq!(leases.settles_in(other, start + 51 * SECOND), TERM - 50 * SECOND);
        leases.created(other, start + 51 * SECOND);
        assert_eq!(leases.settles_in(other, start + 51 * SECOND), TERM - 50 * SECOND, "the domain had keys before");
        assert_eq!(leases.settles_in(other, start + 2 * TERM), Duration::ZERO);
        leases.rotated(other, start + 60 * SECOND);
        assert_eq!(leases.settles_in(other, start + 50 * SECOND), TERM);
    }

    #[test]
    fn a_shorter_lease_does_not_shorten_those_that_are_out() {
        let (leases, start) = leases(Duration::ZERO);
        leases.created(DOMAIN, start);
        leases.given(DOMAIN, start);
        leases.lend(SECOND, MARGIN, start);
        leases.rotated(DOMAIN, start);
        assert_eq!(leases.settles_in(DOMAIN, start), TERM);
        assert_eq!((leases.longest(start), leases.longest(start + 2 * LEASE)), (LEASE, SECOND));
    }

    #[test]
    fn what_was_lent_before_a_start_or_a_promotion_is_waited_for() {
        let (leases, start) = leases(2 * LEASE);
        let later = start + 3 * LEASE;
        assert!(leases.settles_in(DOMAIN, start) > 2 * LEASE, "a longer lease was stored");
        assert_eq!(leases.settles_in(DOMAIN, later), Duration::ZERO);
        leases.restart(LEASE, later);
        assert_eq!(leases.settles_in(DOMAIN, later), TERM, "the primary gave keys out until now");
    }
}

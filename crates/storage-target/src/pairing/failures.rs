//! Counts proofs that failed, by the address that they came from: one that guesses is soon not listened to any more.
//!
//! The secret has 128 bits; this keeps guesses from costing the target work, and its log lines.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Failures of one address within [`WINDOW`]; after them it is refused unheard.
pub(super) const FAILURES_MAX: u32 = 5;
/// How long a failure counts, from the first one on.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are counted. When there are more, the oldest are forgotten.
const ADDRESSES_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct ProofFailures {
    by_address: HashMap<IpAddr, (Instant, u32)>,
}

impl ProofFailures {
    pub(super) fn may_try(&self, now: Instant, address: IpAddr) -> bool {
        let counts = |(since, count): &(Instant, u32)| *count >= FAILURES_MAX && now.duration_since(*since) < WINDOW;
        !self.by_address.get(&address).is_some_and(counts)
    }

    pub(super) fn note(&mut self, now: Instant, address: IpAddr) {
        if self.by_address.len() >= ADDRESSES_MAX && !self.by_address.contains_key(&address) {
            self.by_address.retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
            if self.by_address.len() >= ADDRESSES_MAX {
                let oldest = self.by_address.iter().min_by_key(|(_, (since, _))| *since).map(|(address, _)| *address);
                oldest.map(|address| self.by_address.remove(&address));
            }
        }
        let (since, count) = self.by_address.entry(address).or_insert((now, 0));
        if now.duration_since(*since) >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_heard_again_after_a_minute_and_the_table_is_bounded() {
        let (start, mut failures) = (Instant::now(), ProofFailures::default());
        let (eve, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        for _ in 0..FAILURES_MAX {
            assert!(failures.may_try(start, eve));
            failures.note(start, eve);
        }
        assert!(!failures.may_try(start + WINDOW / 2, eve) && failures.may_try(start, other));
        assert!(failures.may_try(start + WINDOW, eve));
        for number in 0..2 * ADDRESSES_MAX as u32 {
            failures.note(start + Duration::from_millis(u64::from(number)), IpAddr::from(number.to_be_bytes()));
        }
        assert_eq!(failures.by_address.len(), ADDRESSES_MAX);
    }
}

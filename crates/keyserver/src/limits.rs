//! How every identity behaves: its connections, its requests a second, its refusals a minute. Time is an argument.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strongroom_handshake::PublicKey;

use crate::config::Limits;

/// Refusals are counted over this time.
const WINDOW: Duration = Duration::from_secs(60);
/// Requests are averaged over this time.
const BURST: Duration = Duration::from_secs(10);
/// Identities that are remembered; idle ones are forgotten beyond.
const REMEMBERED_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Conduct(Mutex<HashMap<PublicKey, Counts>>);

struct Counts {
    connections: usize,
    /// When the average would allow the next request.
    due: Instant,
    window: Instant,
    refusals: u32,
    untold: u32,
}

/// What follows from a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Consequence {
    /// It gets a line of its own in the log.
    pub(crate) told: bool,
    /// Refusals of an earlier minute that got none.
    pub(crate) untold_before: u32,
    /// The connection is ended, after a while.
    pub(crate) ended: bool,
}

impl Conduct {
    fn with<T>(&self, identity: &PublicKey, now: Instant, work: impl FnOnce(&mut Counts) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED_MAX {
            all.retain(|_, counts| counts.connections > 0 || now.duration_since(counts.window) < WINDOW);
        }
        work(all.entry(*identity).or_insert(Counts { connections: 0, due: now, window: now, refusals: 0, untold: 0 }))
    }

    /// One more connection, unless it has too many.
    pub(crate) fn connect(&self, identity: &PublicKey, limits: &Limits, now: Instant) -> bool {
        self.with(identity, now, |counts| {
            let fits = counts.connections < limits.connections_per_identity;
            counts.connections += usize::from(fits);
            fits
        })
    }

    pub(crate) fn disconnect(&self, identity: &PublicKey, now: Instant) {
        self.with(identity, now, |counts| counts.connections = counts.connections.saturating_sub(1));
    }

    /// How long a request has to wait for its turn.
    pub(crate) fn request(&self, identity: &PublicKey, limits: &Limits, now: Instant) -> Duration {
        let each = Duration::from_secs(1) / limits.requests_per_second;
        self.with(identity, now, |counts| {
            counts.due = counts.due.max(now) + each;
            counts.due.saturating_duration_since(now + BURST)
        })
    }

    pub(crate) fn refusal(&self, identity: &PublicKey, limits: &Limits, now: Instant) -> Consequence {
        self.with(identity, now, |counts| {
            let mut untold_before = 0;
            if now.duration_since(counts.window) >= WINDOW {
                untold_before = std::mem::take(&mut counts.untold);
                (counts.window, counts.refusals) = (now, 0);
            }
            counts.refusals = counts.refusals.saturating_add(1);
            let told = counts.refusals <= limits.refusals_per_minute;
            counts.untold += u32::from(!told);
            Consequence { told, untold_before, ended: counts.refusals >= limits.refusals_per_minute }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: PublicKey = PublicKey::from_bytes([7; 32]);

    #[test]
    fn refusals_are_told_up_to_a_number_and_then_counted() {
        let (conduct, limits, now) =
            (Conduct::default(), Limits { refusals_per_minute: 3, ..Limits::default() }, Instant::now());
        let consequences: Vec<_> = (0..5).map(|_| conduct.refusal(&WHO, &limits, now)).collect();
        assert_eq!(consequences.iter().filter(|consequence| consequence.told).count(), 3);
        assert_eq!(consequences.iter().filter(|consequence| consequence.ended).count(), 3);
        let later = conduct.refusal(&WHO, &limits, now + WINDOW);
        assert_eq!(later, Consequence { told: true, untold_before: 2, ended: false });
    }

    #[test]
    fn requests_wait_beyond_a_burst() {
        let (conduct, limits, now) =
            (Conduct::default(), Limits { requests_per_second: 2, ..Limits::default() }, Instant::now());
        assert!((0..20).all(|_| conduct.request(&WHO, &limits, now).is_zero()));
        assert_eq!(conduct.request(&WHO, &limits, now), Duration::from_millis(500));
        assert!(conduct.request(&WHO, &limits, now + BURST).is_zero());
    }

    #[test]
    fn connections_of_one_identity_are_bounded() {
        let limits = Limits { connections_per_identity: 2, ..Limits::default() };
        let (conduct, now) = (Conduct::default(), Instant::now());
        assert!(conduct.connect(&WHO, &limits, now) && conduct.connect(&WHO, &limits, now));
        assert!(!conduct.connect(&WHO, &limits, now));
        conduct.disconnect(&WHO, now);
        assert!(conduct.connect(&WHO, &limits, now));
    }
}

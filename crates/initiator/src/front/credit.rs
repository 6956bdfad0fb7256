//! How much one client of a front end may have in flight: requests that were received and whose replies it has not taken yet. Nothing more is
//! taken from a client that has used this up; the memory for it is bounded, and others have their own.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::completion::lock;

/// What a client may use at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct CreditLimits {
    /// Requests.
    pub(super) requests_max: usize,
    /// Bytes of data of requests and replies. A single request may have more.
    pub(super) bytes_max: usize,
}

/// What a request uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    requests: usize,
    bytes: usize,
}

impl Cost {
    /// Both together.
    pub(super) fn and(self, other: Cost) -> Cost {
        Cost { requests: self.requests + other.requests, bytes: self.bytes + other.bytes }
    }
}

/// Of one client.
#[derive(Debug)]
pub(super) struct Credit {
    limits: CreditLimits,
    state: Mutex<CreditState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct CreditState {
    used: Cost,
    is_given_up: bool,
}

impl Credit {
    pub(super) fn new(limits: CreditLimits) -> Credit {
        Credit { limits, state: Mutex::default(), released: Condvar::new() }
    }

    /// Waits until there is room for a request with this much data. `None`: the connection was given up.
    pub(super) fn acquire(&self, bytes: usize) -> Option<Cost> {
        let mut state = lock(&self.state);
        loop {
            if state.is_given_up {
                return None;
            }
            let used = state.used;
            let has_room = used.requests < self.limits.requests_max
                && (used.bytes == 0 || used.bytes + bytes <= self.limits.bytes_max);
            if has_room {
                let cost = Cost { requests: 1, bytes };
                state.used = used.and(cost);
                return Some(cost);
            }
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A reply was sent.
    pub(super) fn release(&self, cost: Cost) {
        if cost == Cost::default() {
            return;
        }
        let mut state = lock(&self.state);
        state.used.requests -= cost.requests;
        state.used.bytes -= cost.bytes;
        drop(state);
        self.released.notify_all();
    }

    /// Waits until everything was answered, or given up.
    pub(super) fn wait_until_unused(&self) {
        let mut state = lock(&self.state);
        while !state.is_given_up && state.used.requests > 0 {
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nobody waits any more: the client is gone.
    pub(super) fn give_up(&self) {
        lock(&self.state).is_given_up = true;
        self.released.notify_all();
    }

    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> usize {
        lock(&self.state).used.bytes
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a client waits for room, and how much there is.

    use std::sync::Arc;

    use super::*;

    const REQUESTS_MAX: usize = 128;
    const BYTES_MAX: usize = 16 << 20;

    #[test]
    fn a_request_waits_for_room() {
        let credit = Arc::new(Credit::new(CreditLimits { requests_max: REQUESTS_MAX, bytes_max: BYTES_MAX }));
        let large = credit.acquire(2 * BYTES_MAX).expect("a single one may be larger");
        let waiting = {
            let credit = credit.clone();
            std::thread::spawn(move || credit.acquire(1))
        };
        credit.release(large);
        let cost = waiting.join().unwrap().expect("there is room");
        assert_eq!(credit.used_bytes(), 1);
        credit.release(cost);
        let all: Vec<Cost> = (0..REQUESTS_MAX).map(|_| credit.acquire(0).unwrap()).collect();
        let waiting = {
            let credit = credit.clone();
            std::thread::spawn(move || (credit.acquire(0), credit.wait_until_unused()))
        };
        credit.give_up();
        assert_eq!(waiting.join().unwrap().0, None, "it does not wait for what is given up");
        all.into_iter().for_each(|cost| credit.release(cost));
    }
}

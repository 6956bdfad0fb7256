//! How much one client may have in flight: requests that were received and whose replies the kernel has not taken yet. A client that does not
//! read its replies is not read from either, once this is used up; the memory for it is bounded, and others have their own.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::completion::lock;

/// Requests of one client.
const REQUESTS_MAX: usize = 128;
/// Bytes of data of one client's requests and replies. A single request may have more.
const BYTES_MAX: usize = 16 << 20;

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
#[derive(Debug, Default)]
pub(super) struct Credit {
    state: Mutex<CreditState>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct CreditState {
    used: Cost,
    is_given_up: bool,
}

impl Credit {
    /// Waits until there is room for a request with this much data. `None`: the connection was given up.
    pub(super) fn acquire(&self, bytes: usize) -> Option<Cost> {
        let mut state = lock(&self.state);
        loop {
            if state.is_given_up {
                return None;
            }
            let used = state.used;
            let has_room = used.requests < REQUESTS_MAX && (used.bytes == 0 || used.bytes + bytes <= BYTES_MAX);
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

    #[test]
    fn a_request_waits_for_room() {
        let credit = Arc::new(Credit::default());
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

//! Whether requests are answered while nothing keeps them from it.
//!
//! A request may wait for a connection, for the target, for its store or for keys. While all of them are there, it is answered soon:
//! [`ANSWERED_WITHIN`] is far more than what ends in an answer takes, and far less than the minute after which an initiator gives up a
//! connection over which nothing is answered. That minute hides a lost response from the checker of histories: the request is sent again.

use std::collections::BTreeMap;

use super::clock::{SECOND, Time};

/// A request is answered within this time while nothing stands in its way. The longest that it may take: three tries that are aborted, eight
/// more after pauses of 30 to 110 ms, and pauses of half a second before tries of a target that is busy, which it is for milliseconds; the
/// delays of the network add 20 ms to each. An overlapping write waits for up to three of these.
pub(super) const ANSWERED_WITHIN: Time = 5 * SECOND;

/// Since when nothing stands in the way of the requests of each initiator, by its number, and over which connection.
#[derive(Debug, Default)]
pub(super) struct AnswerWatch {
    free_since: BTreeMap<u64, (u64, Time)>,
    /// The longest that a request has waited with nothing in its way.
    pub(super) longest: Time,
}

impl AnswerWatch {
    /// Looks at an initiator. `free`: its connection, if nothing stands in the way of answers; `oldest`: when it submitted the oldest
    /// request that is not answered.
    ///
    /// # Panics
    /// If that is not answered for too long.
    pub(super) fn look(&mut self, now: Time, initiator: u64, free: Option<u64>, oldest: Option<Time>) {
        let Some(connection) = free else {
            self.free_since.remove(&initiator);
            return;
        };
        let (of, since) = self.free_since.entry(initiator).or_insert((connection, now));
        if *of != connection {
            (*of, *since) = (connection, now);
        }
        let Some(oldest) = oldest else { return };
        let waited = now - oldest.max(*since);
        self.longest = self.longest.max(waited);
        assert!(
            waited <= ANSWERED_WITHIN,
            "initiator {initiator}: a request is not answered for {waited} ns although its connection {connection} stands"
        );
    }
}

#[cfg(test)]
mod tests {
    //! Proves that only time without any obstacle counts, and that it counts.
    use super::*;

    #[test]
    fn a_request_that_waits_for_nothing_is_found() {
        let mut watch = AnswerWatch::default();
        watch.look(0, 1, Some(7), Some(0));
        watch.look(ANSWERED_WITHIN, 1, Some(7), Some(0));
        // An obstacle, another connection, and an answer each begin anew.
        watch.look(ANSWERED_WITHIN, 1, None, Some(0));
        watch.look(2 * ANSWERED_WITHIN, 1, Some(7), Some(0));
        watch.look(3 * ANSWERED_WITHIN, 1, Some(8), Some(0));
        watch.look(4 * ANSWERED_WITHIN, 1, Some(8), Some(3 * ANSWERED_WITHIN));
        watch.look(5 * ANSWERED_WITHIN, 1, Some(8), None);
        assert_eq!(watch.longest, ANSWERED_WITHIN);
        let late = || watch.look(5 * ANSWERED_WITHIN, 1, Some(8), Some(3 * ANSWERED_WITHIN));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(late)).expect_err("it waits for nothing");
    }
}

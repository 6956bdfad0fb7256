//! Feedback to the target: which versions opened, so that it need not keep the ones before them.
//!
//! Kept off the hot path and bounded on every side: a table of what was told lately, batches of pairs, one message in flight,
//! a pause between messages. All of it may be lost; it only costs the target space for a while.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strongroom_block::{Lba, StoreSequence};

/// Pairs in one message.
const BATCH_PAIRS: usize = 1024;
/// Pairs waiting; more are dropped (they are seen again at the next read).
const WAITING_PAIRS_MAX: usize = 16 * 1024;
/// Remembered pairs, a power of two.
const TOLD_PAIRS: usize = 64 * 1024;
/// From the first pair of a batch to its message, if the batch is not full before.
const PAUSE: Duration = Duration::from_millis(500);

/// Versions that opened and were not told yet.
#[derive(Debug, Default)]
pub(crate) struct VerifiedFeedback {
    waiting: VecDeque<(Lba, StoreSequence)>,
    told: ToldPairs,
    due: Option<Instant>,
    in_flight: bool,
}

/// Pairs that were told lately, or wait. Each block has one slot, which it shares with the blocks that are [`TOLD_PAIRS`] and multiples of that
/// away: neighbouring blocks have neighbouring slots, so that a sequential read, which looks here once for each block, finds them in the
/// cache. A pair that was pushed out is told once more.
#[derive(Debug, Default)]
struct ToldPairs(Vec<(Lba, StoreSequence)>);

impl ToldPairs {
    /// Whether the pair is new; it is remembered.
    fn insert(&mut self, lba: Lba, sequence: StoreSequence) -> bool {
        if self.0.is_empty() {
            // No version has this sequence.
            self.0.resize(TOLD_PAIRS, (Lba(0), StoreSequence(0)));
        }
        let slot = &mut self.0[lba.0 as usize % TOLD_PAIRS];
        std::mem::replace(slot, (lba, sequence)) != (lba, sequence)
    }
}

impl VerifiedFeedback {
    /// A version opened.
    pub(crate) fn note(&mut self, now: Instant, lba: Lba, sequence: StoreSequence) {
        if sequence == StoreSequence(0) || self.waiting.len() >= WAITING_PAIRS_MAX || !self.told.insert(lba, sequence) {
            return;
        }
        self.waiting.push_back((lba, sequence));
        if self.waiting.len() >= BATCH_PAIRS {
            self.due = Some(now);
        } else if self.due.is_none() {
            self.due = Some(now + PAUSE);
        }
    }

    /// Pairs that were not told yet, or are being told.
    pub(crate) fn pending(&self) -> usize {
        self.waiting.len() + usize::from(self.in_flight)
    }

    /// When the next message is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.in_flight)
    }

    /// The next message's pairs, if it is due and none is in flight: by block, and of one block the last that was noted.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Vec<(Lba, StoreSequence)>> {
        if self.due()? > now {
            return None;
        }
        let count = self.waiting.len().min(BATCH_PAIRS);
        let mut pairs: Vec<(Lba, StoreSequence)> = self.waiting.drain(..count).collect();
        pairs.reverse();
        pairs.sort_by_key(|(lba, _)| *lba);
        pairs.dedup_by_key(|(lba, _)| *lba);
        let pause = if self.waiting.len() >= BATCH_PAIRS { Duration::ZERO } else { PAUSE };
        self.due = (!self.waiting.is_empty()).then(|| now + pause);
        self.in_flight = !pairs.is_empty();
        (!pairs.is_empty()).then_some(pairs)
    }

    /// The message in flight has ended, one way or the other.
    pub(crate) fn sent_or_lost(&mut self) {
        self.in_flight = false;
    }
}

#[cfg(test)]
mod tests {
    //! Proves that feedback is batched, not repeated, and bounded.
    use super::*;

    #[test]
    fn batched_once_and_bounded() {
        let start = Instant::now();
        let mut feedback = VerifiedFeedback::default();
        assert_eq!(feedback.take_due(start), None);
        for round in 0..2 {
            for lba in 0..10 {
                feedback.note(start, Lba(lba), StoreSequence(lba + 1));
            }
            assert_eq!(feedback.take_due(start), None, "not at once, round {round}");
        }
        let pairs = feedback.take_due(start + PAUSE).unwrap();
        assert_eq!(pairs.len(), 10);
        feedback.note(start, Lba(3), StoreSequence(4));
        assert_eq!(feedback.due(), None, "told already");
        feedback.note(start, Lba(3), StoreSequence(9));
        assert_eq!(feedback.due(), None, "one message at a time");
        feedback.sent_or_lost();
        assert_eq!(feedback.take_due(start + PAUSE), Some(vec![(Lba(3), StoreSequence(9))]));
        feedback.sent_or_lost();
        feedback.note(start, Lba(5), StoreSequence(8));
        feedback.note(start, Lba(5), StoreSequence(12));
        let due = feedback.due().unwrap();
        assert_eq!(
            feedback.take_due(due),
            Some(vec![(Lba(5), StoreSequence(12))]),
            "of one block, what was noted last"
        );
        feedback.sent_or_lost();
        for lba in 0..2 * WAITING_PAIRS_MAX as u64 {
            feedback.note(start, Lba(lba), StoreSequence(77));
        }
        assert!(feedback.waiting.len() <= WAITING_PAIRS_MAX);
    }
}

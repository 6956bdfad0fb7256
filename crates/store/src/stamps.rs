//! Tells writes that cannot be repetitions from those that may be, without a look at the medium.
//!
//! Counters under one attach id only grow at the writer. A write whose counter is above all seen of its attach id was
//! never here; only the others need a look at the block's newest record.

use std::collections::{HashMap, VecDeque};

use strongroom_block::{AttachId, Stamp};

/// Upper bound on remembered attach ids.
const ATTACH_IDS_MAX: usize = 4096;

/// The highest counter seen of each recent attach id.
#[derive(Default)]
pub(crate) struct StampFilter {
    highest: HashMap<AttachId, u64>,
    order: VecDeque<AttachId>,
    forgot: bool,
}

impl StampFilter {
    /// Whether a write of this stamp may have been seen before.
    pub(crate) fn may_be_repeated(&self, stamp: Stamp) -> bool {
        self.highest.get(&stamp.attach_id).map_or(self.forgot, |&highest| stamp.counter <= highest)
    }

    /// Notes a stamp.
    pub(crate) fn note(&mut self, stamp: Stamp) {
        if let Some(highest) = self.highest.get_mut(&stamp.attach_id) {
            *highest = (*highest).max(stamp.counter);
            return;
        }
        if self.order.len() == ATTACH_IDS_MAX {
            let oldest = self.order.pop_front().expect("not empty");
            self.highest.remove(&oldest);
            self.forgot = true;
        }
        self.order.push_back(stamp.attach_id);
        self.highest.insert(stamp.attach_id, stamp.counter);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_calls_a_repetition_new() {
        let mut filter = StampFilter::default();
        let stamp = |id: u128, counter| Stamp { attach_id: AttachId(id.to_be_bytes()), counter };
        assert!(!filter.may_be_repeated(stamp(1, 0)));
        filter.note(stamp(1, 5));
        assert!(filter.may_be_repeated(stamp(1, 5)) && filter.may_be_repeated(stamp(1, 2)));
        assert!(!filter.may_be_repeated(stamp(1, 6)) && !filter.may_be_repeated(stamp(2, 1)));
        for id in 2..5000 {
            filter.note(stamp(id, 0));
        }
        assert!(filter.may_be_repeated(stamp(1, 7)), "forgotten, so unknown");
        assert!(filter.order.len() <= ATTACH_IDS_MAX);
    }
}

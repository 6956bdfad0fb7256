//! Where stamps come from: an attach id and a counter, renewed before either could serve too long.

use std::fmt;

use strongroom_block::{AttachId, Stamp};

/// Bytes sealed under one attach id before a new one is drawn: 64 GiB.
pub const ATTACH_ID_BYTES_MAX: u64 = 64 << 30;
/// What a stamp counts at least against that bound, in bytes, so that records without data (holes) are bounded too.
pub const STAMP_CHARGE_BYTES_MIN: u64 = 512;

/// Gives every write of one attachment its own stamp.
///
/// A stamp is the nonce of the blind custodies: one that repeats under the same key would be catastrophic. Therefore:
/// - `fresh_id` must draw from the operating system's generator every time;
/// - there is one source per attachment (it is not `Clone`);
/// - after anything that could repeat this process's state (fork, resume of a virtual machine's snapshot, restored
///   checkpoint) call [`StampSource::renew`] before the next stamp;
/// - a retried write sends the *same* ciphertext under the same stamp, or seals again under a new one.
pub struct StampSource {
    fresh_id: Box<dyn FnMut() -> AttachId + Send>,
    attach_id: AttachId,
    counter: u64,
    charged_bytes: u64,
    limit_bytes: u64,
}

impl fmt::Debug for StampSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StampSource")
            .field("attach_id", &self.attach_id)
            .field("counter", &self.counter)
            .field("charged_bytes", &self.charged_bytes)
            .finish_non_exhaustive()
    }
}

/// Consecutive stamps of one attach id, for the blocks of one request in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StampRun {
    attach_id: AttachId,
    next: u64,
    end: u64,
}

impl Iterator for StampRun {
    type Item = Stamp;

    fn next(&mut self) -> Option<Stamp> {
        if self.next == self.end {
            return None;
        }
        let stamp = Stamp { attach_id: self.attach_id, counter: self.next };
        self.next += 1;
        Some(stamp)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.end - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for StampRun {}

impl StampSource {
    /// A source that has drawn its first attach id.
    pub fn new(fresh_id: impl FnMut() -> AttachId + Send + 'static) -> StampSource {
        Self::with_limit(ATTACH_ID_BYTES_MAX, fresh_id)
    }

    /// The same with another bound than [`ATTACH_ID_BYTES_MAX`] (a smaller one: tests).
    ///
    /// # Panics
    /// If the bound is larger than [`ATTACH_ID_BYTES_MAX`].
    pub fn with_limit(limit_bytes: u64, mut fresh_id: impl FnMut() -> AttachId + Send + 'static) -> StampSource {
        assert!(limit_bytes <= ATTACH_ID_BYTES_MAX, "an attach id serves at most 64 GiB");
        let attach_id = fresh_id();
        StampSource { fresh_id: Box::new(fresh_id), attach_id, counter: 0, charged_bytes: 0, limit_bytes }
    }

    /// The stamp of one record that seals `bytes` (0 for a hole).
    pub fn take(&mut self, bytes: u64) -> Stamp {
        self.take_run(1, bytes).next().expect("a run of one")
    }

    /// The stamps of `count` records that seal `bytes_each`, in order. Renews the attach id first if it would serve
    /// for more than its bound.
    ///
    /// # Panics
    /// If the run alone is larger than the bound (64 GiB).
    pub fn take_run(&mut self, count: u32, bytes_each: u64) -> StampRun {
        let charge = u64::from(count).saturating_mul(bytes_each.max(STAMP_CHARGE_BYTES_MIN));
        assert!(charge <= self.limit_bytes, "one request seals far less than an attach id may serve");
        if self.charged_bytes.saturating_add(charge) > self.limit_bytes {
            self.renew();
        }
        self.charged_bytes = self.charged_bytes.saturating_add(charge);
        let start = self.counter;
        self.counter += u64::from(count);
        StampRun { attach_id: self.attach_id, next: start, end: self.counter }
    }

    /// Draws a new attach id: after a fork, a resume, or anything else that could repeat state.
    pub fn renew(&mut self) {
        self.attach_id = (self.fresh_id)();
        self.counter = 0;
        self.charged_bytes = 0;
    }

    /// The attach id in use.
    pub fn attach_id(&self) -> AttachId {
        self.attach_id
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn counting_ids() -> impl FnMut() -> AttachId + Send + 'static {
        let mut next = 0u128;
        move || {
            next += 1;
            AttachId(next.to_be_bytes())
        }
    }

    #[test]
    fn no_stamp_repeats_across_renewals_and_holes() {
        let mut source = StampSource::with_limit(10 * 4096, counting_ids());
        let mut seen = HashSet::new();
        for round in 0..100 {
            for stamp in source.take_run(round % 7, 4096) {
                assert!(seen.insert(stamp));
            }
            assert!(seen.insert(source.take(0)));
            if round % 13 == 0 {
                source.renew();
            }
        }
    }

    #[test]
    fn the_attach_id_is_renewed_at_its_bound() {
        let mut source = StampSource::with_limit(4 * 4096, counting_ids());
        let first = source.attach_id();
        assert!(source.take_run(4, 4096).all(|stamp| stamp.attach_id == first));
        let next = source.take(4096);
        assert_ne!(next.attach_id, first);
        assert_eq!(next.counter, 0);
    }

    #[test]
    fn records_without_data_use_the_bound_up_too() {
        let mut source = StampSource::with_limit(2 * STAMP_CHARGE_BYTES_MIN, counting_ids());
        let first = source.attach_id();
        assert_eq!(source.take(0).attach_id, first);
        assert_eq!(source.take(0).attach_id, first);
        assert_ne!(source.take(0).attach_id, first);
    }

    #[test]
    fn one_run_has_one_attach_id_and_counts_up() {
        let mut source = StampSource::new(counting_ids());
        source.take(4096);
        let run: Vec<Stamp> = source.take_run(3, 4096).collect();
        assert_eq!(run.iter().map(|stamp| stamp.counter).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(source.take_run(3, 4096).len(), 3);
    }
}

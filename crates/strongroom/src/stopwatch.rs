//! A stopwatch for work that takes nanoseconds, and how fast this machine seals by it.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{AttachId, BlockSize, CryptoCounters, Lba, SealingDomain, Stamp, Suite};
use strongroom_seal::{BlindKeys, SealContext, VolumeKey};

/// How long one round of [`best_ns`] lasts at least.
const ROUND: Duration = Duration::from_millis(3);

/// Nanoseconds that `work` takes, the best of `rounds`: on a shared machine noise only ever adds.
pub fn best_ns<R>(rounds: u32, mut work: impl FnMut() -> R) -> f64 {
    let mut repeat = 1u32;
    let mut best = f64::MAX;
    let mut round = 0;
    while round < rounds {
        let start = Instant::now();
        for _ in 0..repeat {
            black_box(work());
        }
        let elapsed = start.elapsed();
        if elapsed < ROUND && repeat < 1 << 24 {
            repeat *= 2;
            continue;
        }
        best = best.min(elapsed.as_nanos() as f64 / f64::from(repeat));
        round += 1;
    }
    best
}

/// Bytes a second at which one thread of this process seals blocks of `block_size`.
pub fn seal_rate(suite: Suite, block_size: BlockSize) -> f64 {
    let context = SealContext::new(SealingDomain([1; 16]), block_size, 1).with_suite(suite);
    let keys = BlindKeys::new(&VolumeKey::new([2; 32]), context, Arc::new(CryptoCounters::new()));
    let mut block = vec![3; block_size.len()];
    let mut counter = 0;
    let ns = best_ns(5, || {
        counter += 1;
        keys.seal(Lba(0), Stamp { attach_id: AttachId([4; 16]), counter }, &mut block)
    });
    block_size.len() as f64 / (ns / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn much_more_work_takes_longer() {
        let work = |count: u32| move || (0..count).fold(0u32, |sum, at| black_box(sum.wrapping_mul(31) ^ at));
        assert!(best_ns(3, work(2_000_000)) > best_ns(3, work(10_000)));
    }
}

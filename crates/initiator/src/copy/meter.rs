//! How far, how fast, how long yet; and whether anything moves at all.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::resume::Noted;
use super::{CHUNK_BYTES, CopyError, Phase, Progress};

/// How often progress is told.
pub(super) const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The rate that is shown is that of so long.
const RATE_OVER: Duration = Duration::from_secs(3);
/// The time that is left is told from the rate of so long: a link that falters for a moment does not make it jump.
const LEFT_OVER: Duration = Duration::from_secs(20);
/// Nothing moved for so long: that is told.
const STALL: Duration = Duration::from_secs(2);

/// Counts and times.
#[derive(Debug)]
pub(super) struct Meter {
    phase: Phase,
    started: Instant,
    moved: Instant,
    done_bytes: u64,
    hole_bytes: u64,
    total_bytes: u64,
    /// Bytes of data by time, of the last [`LEFT_OVER`].
    samples: VecDeque<(Instant, u64)>,
}

impl Meter {
    /// Begins where an earlier copy ended; what that had done is no rate of this one.
    pub(super) fn new(phase: Phase, total_bytes: u64, begun: Noted) -> Meter {
        Meter::at(Instant::now(), phase, total_bytes, begun)
    }

    fn at(now: Instant, phase: Phase, total_bytes: u64, begun: Noted) -> Meter {
        let Noted { done_bytes, hole_bytes, .. } = begun;
        let samples = VecDeque::from([(now, done_bytes - hole_bytes)]);
        Meter { phase, started: now, moved: now, done_bytes, hole_bytes, total_bytes, samples }
    }

    pub(super) fn add(&mut self, bytes: u64, absent: bool) {
        self.add_at(Instant::now(), bytes, absent);
    }

    fn add_at(&mut self, now: Instant, bytes: u64, absent: bool) {
        if bytes > 0 {
            self.moved = now;
        }
        self.done_bytes += bytes;
        self.hole_bytes += if absent { bytes } else { 0 };
    }

    fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    pub(super) fn hole_bytes(&self) -> u64 {
        self.hole_bytes
    }

    fn look(&mut self, now: Instant) -> Progress {
        let data_bytes = self.done_bytes - self.hole_bytes;
        self.samples.push_back((now, data_bytes));
        while self.samples.len() > 2 && now - self.samples[1].0 >= LEFT_OVER {
            self.samples.pop_front();
        }
        let rate_over = |time: Duration| {
            let since = self.samples.iter().rev().find(|(at, _)| now - *at >= time).or(self.samples.front());
            let (at, before) = since.copied().unwrap_or((now, data_bytes));
            let seconds = (now - at).as_secs_f64();
            if seconds > 0.0 { (data_bytes - before) as f64 / seconds } else { 0.0 }
        };
        let still = now - self.moved;
        let stalled_for = if still >= STALL { still } else { Duration::ZERO };
        let rate = rate_over(LEFT_OVER);
        let left = (self.total_bytes - self.done_bytes) as f64;
        let time_left = (rate > 0.0 && stalled_for.is_zero()).then(|| Duration::try_from_secs_f64(left / rate).ok());
        Progress {
            phase: self.phase,
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
            hole_bytes: self.hole_bytes,
            bytes_per_second: rate_over(RATE_OVER),
            time_left: time_left.flatten(),
            stalled_for,
            elapsed: now - self.started,
        }
    }
}

/// Tells somebody, not too often; they may end the copy.
pub(super) struct ProgressReporter<'a> {
    pub(super) meter: Meter,
    told: Instant,
    told_bytes: u64,
    progress: &'a mut dyn FnMut(&Progress) -> ControlFlow<()>,
}

impl<'a> ProgressReporter<'a> {
    pub(super) fn new(meter: Meter, progress: &'a mut dyn FnMut(&Progress) -> ControlFlow<()>) -> ProgressReporter<'a> {
        let begun = meter.done_bytes();
        ProgressReporter { meter, told: Instant::now(), told_bytes: begun, progress }
    }

    /// Tells, if it is time to.
    pub(super) fn tell(&mut self) -> Result<(), CopyError> {
        if self.told.elapsed() < PROGRESS_INTERVAL { Ok(()) } else { self.tell_now() }
    }

    /// The same between two pieces, and if much was moved: a caller that limits the rate must not be told too late.
    pub(super) fn tell_moved(&mut self) -> Result<(), CopyError> {
        if self.meter.done_bytes() - self.told_bytes < CHUNK_BYTES { self.tell() } else { self.tell_now() }
    }

    pub(super) fn tell_now(&mut self) -> Result<(), CopyError> {
        let now = Instant::now();
        (self.told, self.told_bytes) = (now, self.meter.done_bytes());
        match (self.progress)(&self.meter.look(now)) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CopyError::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Looks each tenth of a second while `bytes` are done in each.
    fn pass(meter: &mut Meter, now: &mut Instant, tenths: u32, bytes: u64) -> Progress {
        let mut last = None;
        for _ in 0..tenths {
            *now += Duration::from_millis(100);
            meter.add_at(*now, bytes, false);
            last = Some(meter.look(*now));
        }
        last.expect("at least one")
    }

    #[test]
    fn rate_and_time_left_follow_a_link_that_slows_down() {
        let mut now = Instant::now();
        let mut meter = Meter::at(now, Phase::Copying, 1000 * MIB, Noted::default());
        let fast = pass(&mut meter, &mut now, 300, MIB);
        assert!((fast.bytes_per_second / MIB as f64 - 10.0).abs() < 0.5, "{fast:?}");
        let left = fast.time_left.unwrap().as_secs_f64();
        assert!((65.0..75.0).contains(&left), "700 MiB at 10 MiB/s: {left}");
        // Ten times slower: the rate says so within seconds, the time left follows more slowly and then fully.
        let slow = pass(&mut meter, &mut now, 40, MIB / 10);
        assert!((slow.bytes_per_second / MIB as f64 - 1.0).abs() < 0.2, "{slow:?}");
        assert!(slow.time_left.unwrap().as_secs_f64() < 120.0, "{slow:?}");
        let later = pass(&mut meter, &mut now, 250, MIB / 10);
        let left = later.time_left.unwrap().as_secs_f64();
        assert!((600.0..720.0).contains(&left), "670 MiB at 1 MiB/s: {left}");
    }

    #[test]
    fn a_stall_is_told_and_promises_nothing() {
        let mut now = Instant::now();
        let mut meter = Meter::at(now, Phase::Copying, 1000 * MIB, Noted::default());
        pass(&mut meter, &mut now, 100, MIB);
        let brief = pass(&mut meter, &mut now, 15, 0);
        assert!(brief.stalled_for.is_zero() && brief.time_left.is_some(), "{brief:?}");
        let stalled = pass(&mut meter, &mut now, 600, 0);
        assert_eq!((stalled.bytes_per_second, stalled.time_left), (0.0, None), "{stalled:?}");
        assert!(stalled.stalled_for >= Duration::from_secs(60), "{stalled:?}");
        let again = pass(&mut meter, &mut now, 50, MIB);
        assert!(again.stalled_for.is_zero() && again.bytes_per_second > 9.0 * MIB as f64, "{again:?}");
    }

    #[test]
    fn what_was_done_before_is_no_rate() {
        let now = Instant::now();
        let begun = Noted { done_bytes: 900 * MIB, hole_bytes: 100 * MIB, crc64: 0 };
        let mut meter = Meter::at(now, Phase::Copying, 1000 * MIB, begun);
        let look = meter.look(now + Duration::from_millis(100));
        assert_eq!((look.done_bytes, look.bytes_per_second, look.time_left), (900 * MIB, 0.0, None));
    }
}

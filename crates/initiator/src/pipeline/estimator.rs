//! Finds what the link carries and how long the way is, from when commands were sent and answered, and how many bytes should be under
//! way so that the link is full and hardly anything queues.
//!
//! It reasons as BBR does, with commands for packets and without pacing. The rate is the largest of the last rounds (a round is the
//! time from a command's sending to its answer), measured over the longer of the times in which what was answered was sent and was
//! answered, so that answers that come in a heap do not count as speed. The base round trip is the smallest of the last rounds,
//! without the command's own transfer. The window is what [`ideal_depth`] makes of both. It grows by two thirds each round while the
//! rate grows with it; then it probes upwards every few rounds and, to see the base round trip again, drains the queue that this made.
//! Where round trips stay far above the base the link has become slower, or the way longer: the queue is drained, and whichever it
//! was is measured anew: but only if TCP's own round trips, where the kernel tells, have become longer too. If they have not, a packet was
//! lost, and the answers that wait for it come in a heap. What they are the answers to has left the link meanwhile, and as much may follow,
//! at the link's rate, or each loss would leave it idle for a round trip. A round in which whoever writes had less to write than the window says nothing about the link.
//!
//! On a way of less than a millisecond nothing is limited: what queues there queues in the target. No clock inside: time is an
//! argument. Absent: who may send (`window`).

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::model::{Bounds, Conditions, ideal_depth};

/// Rounds whose largest rate counts.
const RATE_ROUNDS: usize = 10;
/// Rounds whose smallest round trip counts: two drained ones are among them.
const TRIP_ROUNDS: usize = 24;
/// A way that is shorter than this, in seconds, is none.
const NEAR_S: f64 = 0.001;
/// The first window, in bytes: what TCP sends in its first round trips is less.
const WINDOW_BYTES_FIRST: u64 = 256 << 10;
/// Upper bound on the window, in bytes: 10 Gbit/s over 400 ms.
const WINDOW_BYTES_MAX: u64 = 512 << 20;
/// How much a round's rate must grow for the window to grow on.
const GROWTH: f64 = 1.25;
/// Rounds without such growth that end it.
const FLAT_ROUNDS_MAX: u32 = 3;
/// How much faster what a probe sent must be for the window to grow again.
const PROBE_FOUND: f64 = 1.15;
/// The window of a round of growth, as a multiple of what fills the link as far as it is known: what queues at its end is less than
/// routers mostly hold.
const GROWING: f64 = 1.5;
/// TCP's round trip is so many times its smallest when there is a queue.
const QUEUED: f64 = 1.25;
/// Window of each round of a cycle, as a multiple of what fills the link: the probe, its answers, the drain, and the rest.
const STEPS: [f64; 10] = [1.33, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Round trips of a whole round that are so many times the base are not our own queue's: in one round, or in two in a row.
const LATE_AT_ONCE: f64 = 4.0;
const LATE: f64 = 2.0;
/// Over what time the mean rate is taken.
const MEAN_TIME: Duration = Duration::from_millis(200);
/// Lateness that is nobody's, in seconds: other processes, interrupts.
const JITTER_S: f64 = 0.002;

/// What may be sent beyond the window while answers are held up, as a multiple of what fills the link.
const HELD_UP_MAX: f64 = 1.0;
/// Least time between two such commands, in seconds.
const HELD_UP_STEP_S: f64 = 0.0005;
/// Round trips until an answer is missed, with the queue that the window makes.
const OVERDUE: f64 = 1.125;

/// A command under way, as it was when it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    at: Instant,
    /// Of data.
    pub(super) bytes: u64,
    /// What had been answered by then, in bytes, and when the last of it was.
    delivered: u64,
    delivered_at: Instant,
    /// When what was answered last had been sent.
    first_sent: Instant,
}

/// What the kernel says about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathSample {
    /// TCP's smoothed round trip.
    pub(crate) round_trip: Duration,
    /// The smallest that it has seen in the last minutes.
    pub(crate) smallest: Duration,
}

#[derive(Debug)]
pub(super) struct Estimator {
    delivered: u64,
    delivered_at: Option<Instant>,
    first_sent: Option<Instant>,
    phase: Phase,
    window_bytes: u64,
    /// What fills the link, as far as it is known: with so much under way a round tells of the link, whoever ended it.
    full_bytes: u64,
    rates: Recent<RATE_ROUNDS>,
    trips: Recent<TRIP_ROUNDS>,
    round: Round,
    /// The largest command of the round before, in bytes.
    unit_bytes: u64,
    path: Option<PathSample>,
    mean: Mean,
    /// When what is under way was sent, as far as answers come in the order of sending.
    sent_at: VecDeque<Instant>,
    /// What may be under way beside the window: so much has left the link though its answers are held up.
    held_up_bytes: u64,
}

/// What was answered on average: what sealing has to keep up with, of which a heap of answers says nothing.
#[derive(Debug, Default)]
struct Mean {
    since: Option<(Instant, u64)>,
    bytes_per_second: f64,
}

impl Mean {
    fn take(&mut self, now: Instant, delivered: u64) {
        let (at, before) = *self.since.get_or_insert((now, delivered));
        let time = now.saturating_duration_since(at);
        if time >= MEAN_TIME {
            self.bytes_per_second = (delivered - before) as f64 / time.as_secs_f64();
            self.since = Some((now, delivered));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Growing {
        best_rate: f64,
        flat_rounds: u32,
    },
    /// Nothing counts before the window has room again.
    Draining {
        is_drained: bool,
        /// What is seen then replaces what was known.
        anew: bool,
    },
    Steady {
        step: usize,
        rate_before: f64,
        late_rounds: u32,
    },
}

/// One round's measurements: rates in bytes per second, times in seconds.
#[derive(Debug)]
struct Round {
    /// It ends with the answer to a command that was sent when so many bytes had been answered.
    begun_at_bytes: u64,
    /// The window held something back.
    is_limited: bool,
    rate: f64,
    trip: f64,
    unit_bytes: u64,
}

impl Round {
    fn begin(begun_at_bytes: u64) -> Round {
        Round { begun_at_bytes, is_limited: false, rate: 0.0, trip: f64::INFINITY, unit_bytes: 0 }
    }
}

/// The last values, at most `N`.
#[derive(Debug, Default)]
struct Recent<const N: usize>(VecDeque<f64>);

impl<const N: usize> Recent<N> {
    fn push(&mut self, value: f64) {
        if self.0.len() == N {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }

    fn only(&mut self, value: f64) {
        self.0.clear();
        self.0.push_back(value);
    }

    fn max(&self) -> Option<f64> {
        self.0.iter().copied().max_by(f64::total_cmp)
    }

    fn min(&self) -> Option<f64> {
        self.0.iter().copied().min_by(f64::total_cmp)
    }
}

impl Default for Estimator {
    fn default() -> Estimator {
        Estimator {
            delivered: 0,
            delivered_at: None,
            first_sent: None,
            phase: Phase::Growing { best_rate: 0.0, flat_rounds: 0 },
            window_bytes: WINDOW_BYTES_FIRST,
            full_bytes: u64::MAX,
            rates: Recent::default(),
            trips: Recent::default(),
            round: Round::begin(0),
            unit_bytes: 0,
            path: None,
            mean: Mean::default(),
            sent_at: VecDeque::new(),
            held_up_bytes: 0,
        }
    }
}

impl Estimator {
    /// Bytes that may be under way; `None`: the way is short, and nothing need be limited.
    pub(super) fn window_bytes(&self) -> Option<u64> {
        let is_near = self.is_near() || (self.path.is_none() && self.trips.min().is_some_and(|trip| trip < NEAR_S));
        (!is_near).then_some(self.window_bytes)
    }

    /// Bytes that may be under way beside the window.
    pub(super) fn held_up_bytes(&self) -> u64 {
        self.held_up_bytes
    }

    /// Since when answers have been missed, the link's rate, a command's time on the link, and the most that may be sent meanwhile.
    /// `None` while nothing is under way, where not enough is known, and if TCP sees a queue too.
    fn missed(&self) -> Option<(Instant, f64, f64, u64)> {
        if self.is_near() || self.path_is_late() != Some(false) || matches!(self.phase, Phase::Draining { .. }) {
            return None;
        }
        let (rate, way) = (self.rate()?, self.round_trip()?);
        let unit_s = self.unit_bytes.max(self.round.unit_bytes) as f64 / rate;
        let due = Duration::try_from_secs_f64(OVERDUE * way + unit_s).ok()?;
        let since = self.delivered_at?.max(*self.sent_at.front()? + due);
        Some((since, rate, unit_s, self.filling(HELD_UP_MAX)))
    }

    /// When one more command may be sent although nothing is answered.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let (since, rate, unit_s, most) = self.missed()?;
        if self.held_up_bytes >= most {
            return None;
        }
        let seconds = (self.held_up_bytes as f64 / rate + unit_s.max(HELD_UP_STEP_S)).max(unit_s + JITTER_S);
        Some(since + Duration::try_from_secs_f64(seconds).ok()?)
    }

    /// What has left the link is counted, if answers are held up.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let Some((since, rate, unit_s, most)) = self.missed() else { return };
        let missed_s = now.saturating_duration_since(since).as_secs_f64();
        if missed_s >= unit_s + JITTER_S {
            self.held_up_bytes = ((rate * missed_s) as u64).min(most);
        }
    }

    /// Whether TCP's round trip has become longer than it was at its shortest; it has no share of what waits in our own socket, or for
    /// a packet that was lost. `None` where the kernel does not tell.
    fn path_is_late(&self) -> Option<bool> {
        self.path.map(|path| path.round_trip.as_secs_f64() > QUEUED * path.smallest.as_secs_f64() + JITTER_S)
    }

    /// The kernel says that the way is short.
    fn is_near(&self) -> bool {
        self.path.is_some_and(|path| path.smallest.as_secs_f64() < NEAR_S)
    }

    /// Whether a round has ended in which the window was what limited.
    pub(super) fn is_measured(&self) -> bool {
        !matches!(self.phase, Phase::Growing { best_rate: 0.0, .. })
    }

    /// Commands in so many bytes, of the size that they have lately.
    pub(super) fn units_in(&self, bytes: u64) -> u32 {
        let unit_bytes = self.unit_bytes.max(self.round.unit_bytes).max(1);
        u32::try_from(bytes.div_ceil(unit_bytes)).unwrap_or(u32::MAX)
    }

    /// What was answered on average, where the way is short; else what the link carries; in bytes per second.
    pub(super) fn status_rate(&self) -> Option<f64> {
        if self.is_near() { Some(self.mean.bytes_per_second).filter(|rate| *rate > 0.0) } else { self.rate() }
    }

    /// What the link carries, in bytes per second.
    fn rate(&self) -> Option<f64> {
        self.rates.max().or((self.round.rate > 0.0).then_some(self.round.rate))
    }

    /// The way there and back without a queue, in seconds.
    pub(super) fn round_trip(&self) -> Option<f64> {
        let smallest = self.path.map_or(0.0, |path| path.smallest.as_secs_f64());
        self.trips.min().map(|trip| trip.max(smallest))
    }

    pub(super) fn path_round_trip(&self) -> Option<(Duration, Duration)> {
        self.path.map(|path| (path.round_trip, path.smallest))
    }

    /// Threads that seal as fast as the link carries, and a little faster: what it carries is not seen before.
    pub(super) fn workers(&self, seal_bytes_per_second: f64, workers_max: u32) -> u32 {
        let rate = self.mean.bytes_per_second;
        if rate <= 0.0 || seal_bytes_per_second <= 0.0 {
            return 1;
        }
        let bounds = Bounds { c_max: workers_max, ..Bounds::default() };
        let conditions =
            Conditions { seal_bytes_per_second_per_worker: seal_bytes_per_second, ..conditions(0.0, rate * GROWTH, 1) };
        ideal_depth(&conditions, &bounds).c
    }

    pub(super) fn path(&mut self, sample: PathSample) {
        self.path = Some(sample);
    }

    /// The window had no room for a command.
    pub(super) fn held_back(&mut self) {
        self.round.is_limited = true;
    }

    /// A command is sent, and `under_way_bytes` were before it.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, under_way_bytes: u64) -> Flight {
        if under_way_bytes == 0 {
            (self.delivered_at, self.first_sent) = (Some(now), Some(now));
        }
        self.round.is_limited |= under_way_bytes.saturating_add(bytes) >= self.full_bytes;
        if let Phase::Draining { is_drained, .. } = &mut self.phase
            && !std::mem::replace(is_drained, true)
        {
            // There is room again: from here on answers tell of the link as it is.
            self.round = Round { is_limited: true, ..Round::begin(self.delivered) };
        }
        self.sent_at.push_back(now);
        Flight {
            at: now,
            bytes,
            delivered: self.delivered,
            delivered_at: self.delivered_at.unwrap_or(now),
            first_sent: self.first_sent.unwrap_or(now),
        }
    }

    /// The command that was sent last was not sent after all.
    pub(super) fn not_sent(&mut self) {
        self.sent_at.pop_back();
    }

    /// A command is no longer under way; `moved`: its data went over the link, all of it.
    pub(super) fn answered(&mut self, now: Instant, flight: &Flight, moved: bool) {
        self.sent_at.pop_front();
        self.held_up_bytes = 0;
        if !moved {
            return;
        }
        self.delivered += flight.bytes;
        (self.delivered_at, self.first_sent) = (Some(now), Some(flight.at));
        self.mean.take(now, self.delivered);
        if self.is_near() {
            // There is no window to find.
            return;
        }
        let sending = flight.at.saturating_duration_since(flight.first_sent);
        let answering = now.saturating_duration_since(flight.delivered_at);
        let seconds = sending.max(answering).as_secs_f64();
        let trip = now.saturating_duration_since(flight.at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let rate = (self.delivered - flight.delivered) as f64 / seconds;
        // Where the rate is not known yet a command's own transfer is taken for part of the way, at most.
        let transfer = flight.bytes as f64 / self.rate().unwrap_or(rate).max(rate);
        let is_of_round = flight.delivered >= self.round.begun_at_bytes;
        match self.phase {
            Phase::Draining { is_drained: false, .. } => return,
            Phase::Draining { .. } if !is_of_round => return,
            _ => self.round.take(flight.bytes, rate, trip - transfer.min(trip / 2.0)),
        }
        if is_of_round {
            self.end_round();
        }
    }

    /// Whatever is under way will not be answered.
    pub(super) fn disconnected(&mut self) {
        self.round = Round::begin(self.delivered);
        (self.delivered_at, self.first_sent) = (None, None);
        self.sent_at.clear();
        self.held_up_bytes = 0;
        // TCP begins anew, and so does this; the way is likely the same.
        self.phase = Phase::Growing { best_rate: 0.0, flat_rounds: 0 };
    }

    fn end_round(&mut self) {
        let round = std::mem::replace(&mut self.round, Round::begin(self.delivered));
        self.unit_bytes = round.unit_bytes;
        let base = self.round_trip();
        if round.is_limited || self.rates.max().is_none_or(|rate| round.rate > rate) {
            self.rates.push(round.rate);
        }
        self.trips.push(round.trip);
        if round.is_limited {
            self.turn(&round, base);
        }
        self.full_bytes = if self.rate().is_some() { self.filling(1.0) } else { u64::MAX };
    }

    /// What follows from a round that tells of the link.
    fn turn(&mut self, round: &Round, base: Option<f64>) {
        match self.phase {
            Phase::Growing { best_rate, flat_rounds } => self.grow(round, best_rate, flat_rounds),
            Phase::Draining { anew: false, .. } => self.steady(0),
            Phase::Draining { anew: true, .. } => {
                self.rates.only(round.rate);
                self.trips.only(round.trip);
                self.grow_from(round.rate);
            }
            Phase::Steady { step, rate_before, late_rounds } => {
                let lateness = base.map_or(0.0, |base| (round.trip - JITTER_S) / base);
                // A packet that was lost costs a round trip or two; four are not its doing, whatever TCP sees.
                let is_lost = self.path_is_late() == Some(false);
                let late_rounds = if lateness > LATE && !is_lost { late_rounds + 1 } else { 0 };
                if late_rounds > 1 || lateness > LATE_AT_ONCE {
                    tracing::debug!(lateness, rate = round.rate, "the link has changed: it is measured anew");
                    self.rates.only(round.rate);
                    return self.drain(true);
                }
                if step == 1 && round.rate > PROBE_FOUND * rate_before {
                    return self.grow_from(round.rate);
                }
                self.steady((step + 1) % STEPS.len());
                if let Phase::Steady { rate_before: before, late_rounds: late, .. } = &mut self.phase {
                    *late = late_rounds;
                    if step == 0 {
                        *before = rate_before;
                    }
                }
            }
        }
    }

    fn grow(&mut self, round: &Round, best_rate: f64, flat_rounds: u32) {
        let has_grown = round.rate >= GROWTH * best_rate;
        let flat_rounds = if has_grown { 0 } else { flat_rounds + 1 };
        let best_rate = best_rate.max(round.rate);
        if flat_rounds >= FLAT_ROUNDS_MAX || self.path_is_late() == Some(true) {
            return self.drain(false);
        }
        self.phase = Phase::Growing { best_rate, flat_rounds };
        self.window_bytes = self.window_bytes.max(self.filling(GROWING)).min(WINDOW_BYTES_MAX);
    }

    fn grow_from(&mut self, rate: f64) {
        self.phase = Phase::Growing { best_rate: rate, flat_rounds: 0 };
        self.window_bytes = self.filling(GROWING);
    }

    fn drain(&mut self, anew: bool) {
        self.phase = Phase::Draining { is_drained: false, anew };
        self.window_bytes = self.filling(STEPS[2]);
    }

    fn steady(&mut self, step: usize) {
        self.phase = Phase::Steady { step, rate_before: self.rate().unwrap_or(0.0), late_rounds: 0 };
        self.window_bytes = self.filling(STEPS[step]);
    }

    /// `gain` times the bytes that fill the link, and two commands at least.
    fn filling(&self, gain: f64) -> u64 {
        let (Some(rate), Some(way)) = (self.rate(), self.round_trip()) else { return self.window_bytes };
        let unit_bytes = self.unit_bytes.max(1);
        let bounds = Bounds { n_max: u32::MAX, c_max: 1, bytes_max: WINDOW_BYTES_MAX };
        let full = u64::from(ideal_depth(&conditions(way, rate, unit_bytes), &bounds).n) * unit_bytes;
        ((full as f64 * gain) as u64).max(2 * unit_bytes)
    }
}

impl Round {
    fn take(&mut self, bytes: u64, rate: f64, trip: f64) {
        self.rate = self.rate.max(rate);
        self.trip = self.trip.min(trip);
        self.unit_bytes = self.unit_bytes.max(bytes);
    }
}

/// A command of `block_bytes` on a way of `way_s` seconds, there and back with whatever it waits for.
fn conditions(way_s: f64, link_bytes_per_second: f64, block_bytes: u64) -> Conditions {
    Conditions {
        rtt: Duration::from_secs_f64(way_s),
        link_bytes_per_second,
        seal_bytes_per_second_per_worker: f64::INFINITY,
        target_bytes_per_second: f64::INFINITY,
        block_bytes,
        round_trips: 1,
    }
}

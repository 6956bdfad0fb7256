//! Finds what the link carries and how long the way is, from when commands were sent and answered, and how many bytes should be under
//! way so that the link is full and hardly anything queues.
//!
//! It reasons as BBR does, with commands for packets and without pacing. The rate is the largest of the last rounds (a round is the
//! time from a command's sending to its answer), measured over the longer of the times in which what was answered was sent and was
//! answered, so that answers that come in a heap do not count as speed. The base round trip is the smallest of the last rounds,
//! without the command's own transfer. The window is what [`ideal_depth`] makes of both. It grows by two thirds each round while the
//! rate grows with it; then it probes upwards every few rounds and, to see the base round trip again, drains the queue that this made.
//! Where round trips stay far above the base the link has become slower, or the way longer: the queue is drained, and whichever it
//! was is measured again: but only if TCP's own round trips, where the kernel tells, have become longer too. If they have not, a packet was
//! lost, and the answers behind it wait for it. What they are the answers to has left the link meanwhile, and where TCP has sent something
//! again lately as much may follow, or each loss would leave the link idle for a round trip. Nor does a round tell of the link in which TCP
//! itself paused (BBR looks at the way with an empty pipe every ten seconds), or in which the writer had less to write than the window.
//!
//! On a way of less than a millisecond nothing is limited: what queues there queues in the target. No clock inside: time is an
//! argument. Absent: who may send (`window`).

#[cfg(test)]
mod tests;
mod under_way;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use under_way::UnderWay;

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
/// TCP's round trip is this many times its smallest when there is a queue.
const QUEUED: f64 = 1.25;
/// Window of each round of a cycle, as a multiple of what fills the link: the probe, its answers, the drain, and the rest.
const STEPS: [f64; 10] = [1.33, 1.0, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Round trips of a whole round that are this many times the base are not our own queue's: in one round, or in two in a row.
const LATE_AT_ONCE: f64 = 4.0;
const LATE: f64 = 2.0;
/// Over what time the mean rate is taken.
const MEAN_TIME: Duration = Duration::from_millis(200);
/// Lateness that is nobody's, in seconds: other processes, interrupts.
const JITTER_S: f64 = 0.002;

/// What may be under way beyond the window because its answers are overdue, as a multiple of what fills the link: what is lost twice
/// arrives two round trips late.
const OVERDUE_MAX: f64 = 2.0;
/// Round trips until an answer is overdue, with the queue that the window makes.
const OVERDUE: f64 = 1.125;
/// As fast as this, as a multiple of the link's rate, what is overdue is followed by more: what was in doubt for a while does not go all at
/// once.
const OVERDUE_PACE: f64 = 1.25;
/// Rounds after something was sent again in which answers may wait for a packet that was lost.
const LOSSY_ROUNDS: u32 = 100;
/// Rounds that a pause of TCP's has a part in: the one in which it was seen, and the next.
const PAUSED_ROUNDS: u32 = 2;

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
    /// Bytes that wait in the socket: they have not been on the link.
    pub(crate) unsent_bytes: u64,
    /// Segments that TCP has sent again so far.
    pub(crate) retransmits: u64,
    /// Congestion control sends nothing just now, in order to see the way without a queue.
    pub(crate) is_paused: bool,
}

#[derive(Debug)]
pub(super) struct Estimator {
    delivery: Delivery,
    phase: Phase,
    window_bytes: u64,
    /// What fills the link, as far as it is known: with so much under way a round tells of the link, however it ended.
    full_bytes: u64,
    rates: Recent<RATE_ROUNDS>,
    trips: Recent<TRIP_ROUNDS>,
    round: Round,
    /// The largest command of the round before, in bytes.
    unit_bytes: u64,
    path: Option<PathSample>,
    mean: Mean,
    under_way: UnderWay,
    /// What is under way comes from the other end, which alone knows what it sends again.
    is_of_reads: bool,
    /// Rounds in which answers may still wait for what was lost.
    lossy_rounds: u32,
    /// Rounds that say nothing because TCP paused.
    paused_rounds: u32,
}

/// What was answered so far.
#[derive(Debug, Default)]
struct Delivery {
    bytes: u64,
    /// When the last of it was.
    at: Option<Instant>,
    /// When what was answered last had been sent.
    first_sent: Option<Instant>,
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
        restarts: bool,
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
    /// It ends with the answer to a command that was sent when this many bytes had been answered.
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
            delivery: Delivery::default(),
            phase: Phase::Growing { best_rate: 0.0, flat_rounds: 0 },
            window_bytes: WINDOW_BYTES_FIRST,
            full_bytes: u64::MAX,
            rates: Recent::default(),
            trips: Recent::default(),
            round: Round::begin(0),
            unit_bytes: 0,
            path: None,
            mean: Mean::default(),
            under_way: UnderWay::default(),
            is_of_reads: false,
            lossy_rounds: 0,
            paused_rounds: 0,
        }
    }
}

impl Estimator {
    pub(super) fn of_reads() -> Estimator {
        Estimator { is_of_reads: true, ..Estimator::default() }
    }

    /// Bytes that may be under way; `None`: the way is short, and nothing need be limited.
    pub(super) fn window_bytes(&self) -> Option<u64> {
        let is_near = self.is_near() || (self.path.is_none() && self.trips.min().is_some_and(|trip| trip < NEAR_S));
        (!is_near).then_some(self.window_bytes)
    }

    /// Bytes that may be under way beside the window: they have left the link, though their answers wait for a packet that was lost.
    pub(super) fn overdue_bytes(&self) -> u64 {
        let sent = self.under_way.bytes().saturating_sub(self.path.map_or(0, |path| path.unsent_bytes));
        match self.under_way.overdue_bytes().min(sent) {
            0 => 0,
            overdue => overdue.min(self.filling(OVERDUE_MAX)),
        }
    }

    /// After what time an answer is overdue; `None` where its lateness would not be a loss's doing.
    fn due(&self) -> Option<Duration> {
        let path = self.path?;
        let may_lose = self.lossy_rounds > 0 || (self.is_of_reads && self.path_is_late() == Some(false));
        if !may_lose || self.paused_rounds > 0 || self.is_near() {
            return None;
        }
        let unit_s = self.unit_bytes.max(self.round.unit_bytes) as f64 / self.rate()?;
        let queue_s = path.round_trip.saturating_sub(path.smallest).as_secs_f64();
        Duration::try_from_secs_f64(OVERDUE * self.round_trip()? + queue_s + unit_s + JITTER_S).ok()
    }

    /// When one more command may be sent although nothing is answered.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.under_way.next_look(self.due()?)
    }

    /// Sees which answers are overdue.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let is_growing = matches!(self.phase, Phase::Growing { .. });
        let rate = if is_growing { f64::INFINITY } else { self.rate().unwrap_or(0.0) * OVERDUE_PACE };
        self.under_way.look(now, self.due(), rate);
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

    /// Commands in this many bytes, of the size that they have lately.
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
        if self.path.is_some_and(|before| sample.retransmits > before.retransmits) {
            self.lossy_rounds = LOSSY_ROUNDS;
        }
        if sample.is_paused {
            self.paused_rounds = PAUSED_ROUNDS;
        }
        self.path = Some(sample);
    }

    /// The window had no room for a command.
    pub(super) fn held_back(&mut self) {
        self.round.is_limited = true;
    }

    /// A command is sent, and `under_way_bytes` were before it.
    pub(super) fn sent(&mut self, now: Instant, bytes: u64, under_way_bytes: u64) -> Flight {
        if under_way_bytes == 0 {
            (self.delivery.at, self.delivery.first_sent) = (Some(now), Some(now));
        }
        self.round.is_limited |= under_way_bytes.saturating_add(bytes) >= self.full_bytes;
        if let Phase::Draining { is_drained, .. } = &mut self.phase
            && !std::mem::replace(is_drained, true)
        {
            // There is room again: from here on answers tell of the link as it is.
            self.round = Round { is_limited: true, ..Round::begin(self.delivery.bytes) };
        }
        self.under_way.add(now, bytes);
        Flight {
            at: now,
            bytes,
            delivered: self.delivery.bytes,
            delivered_at: self.delivery.at.unwrap_or(now),
            first_sent: self.delivery.first_sent.unwrap_or(now),
        }
    }

    /// It was not sent after all.
    pub(super) fn not_sent(&mut self, flight: &Flight) {
        self.under_way.remove(flight.at, flight.bytes);
    }

    /// A command is no longer under way; `moved`: its data went over the link, all of it.
    pub(super) fn answered(&mut self, now: Instant, flight: &Flight, moved: bool) {
        self.under_way.remove(flight.at, flight.bytes);
        self.handle_timeout(now);
        if !moved {
            return;
        }
        self.delivery.bytes += flight.bytes;
        (self.delivery.at, self.delivery.first_sent) = (Some(now), Some(flight.at));
        self.mean.take(now, self.delivery.bytes);
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
        let rate = (self.delivery.bytes - flight.delivered) as f64 / seconds;
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

    /// What is in flight will not be answered.
    pub(super) fn disconnected(&mut self) {
        self.round = Round::begin(self.delivery.bytes);
        (self.delivery.at, self.delivery.first_sent) = (None, None);
        self.under_way = UnderWay::default();
        // TCP starts over, and so does this; the path is likely the same.
        self.phase = Phase::Growing { best_rate: 0.0, flat_rounds: 0 };
    }

    fn end_round(&mut self) {
        let round = std::mem::replace(&mut self.round, Round::begin(self.delivery.bytes));
        self.unit_bytes = round.unit_bytes;
        let base = self.round_trip();
        if round.is_limited || self.rates.max().is_none_or(|rate| round.rate > rate) {
            self.rates.push(round.rate);
        }
        self.trips.push(round.trip);
        self.lossy_rounds = self.lossy_rounds.saturating_sub(1);
        let paused = self.paused_rounds > 0;
        self.paused_rounds = self.paused_rounds.saturating_sub(1);
        if round.is_limited && !paused {
            self.turn(&round, base);
        }
        self.full_bytes = if self.rate().is_some() { self.filling(1.0) } else { u64::MAX };
    }

    /// What follows from a round that tells of the link.
    fn turn(&mut self, round: &Round, base: Option<f64>) {
        match self.phase {
            Phase::Growing { best_rate, flat_rounds } => self.grow(round, best_rate, flat_rounds),
            Phase::Draining { restarts: false, .. } => self.steady(0),
            Phase::Draining { restarts: true, .. } => {
                self.rates.only(round.rate);
                self.trips.only(round.trip);
                self.grow_from(round.rate);
            }
            Phase::Steady { step, rate_before, late_rounds } => {
                let lateness = base.map_or(0.0, |base| (round.trip - JITTER_S) / base);
                // A packet that was lost costs a round trip or two; four have another cause, even if TCP sees a loss.
                let is_lost = self.path_is_late() == Some(false);
                let late_rounds = if lateness > LATE && !is_lost { late_rounds + 1 } else { 0 };
                if late_rounds > 1 || lateness > LATE_AT_ONCE {
                    tracing::debug!(lateness, rate = round.rate, "the link has changed: it is measured again");
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

    fn drain(&mut self, restarts: bool) {
        self.phase = Phase::Draining { is_drained: false, restarts };
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

/// A command of `block_bytes` on a way of `way_s` seconds, there and back, waiting included.
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

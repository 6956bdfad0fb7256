//! Congestion control and round-trip times: BBR and CUBIC of s2n-quic-core behind one trait of ours, which nothing else of this crate looks
//! behind. Time is passed in; what is random comes from a seed.

use std::fmt;
use std::time::{Duration, Instant};

use num_rational::Ratio;
use s2n_quic_core::event::builder::{BbrState, SlowStartExitCause};
use s2n_quic_core::packet::number::PacketNumberSpace;
use s2n_quic_core::random;
use s2n_quic_core::recovery::bandwidth::{Bandwidth, RateSample};
use s2n_quic_core::recovery::congestion_controller::{CongestionController, Publisher};
use s2n_quic_core::recovery::{CubicCongestionController, RttEstimator, bbr, cubic};
use s2n_quic_core::time::{Clock, NoopClock, Timestamp};

use crate::acknowledgement::ACK_DELAY_MAX;

/// A round trip is taken for this long before one was measured. A storage network is no dial-up line: RFC 9002's 333 ms would make the
/// first probe time-out a second.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Which congestion control an association uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionAlgorithm {
    /// BBR version 2: by measured bandwidth and round-trip time; keeps going where packets are lost by accident.
    #[default]
    Bbr,
    /// CUBIC (RFC 9438): by losses; fair beside TCP with CUBIC.
    Cubic,
}

/// What a controller wants to know again when a packet was acknowledged or lost.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SentInfo {
    Bbr(<bbr::BbrCongestionController as CongestionController>::PacketInfo),
    Cubic,
    Uncontrolled,
}

/// How much may be in flight, and when the next packet may leave.
pub(crate) trait CongestionControl: fmt::Debug + Send {
    /// A packet leaves. `is_app_limited`: nothing more waits to be sent.
    fn on_sent(&mut self, now: Instant, bytes: usize, is_app_limited: bool, rtt: &RoundTrip) -> SentInfo;
    /// The round-trip time has a new sample, of a packet that was sent at `sent`.
    fn on_round_trip(&mut self, sent: Instant, now: Instant, rtt: &RoundTrip);
    /// Packets were acknowledged; the newest of them was sent at `sent`.
    fn on_acknowledged(&mut self, sent: Instant, bytes: usize, newest: SentInfo, now: Instant, rtt: &RoundTrip);
    /// A packet is lost. `is_burst_start`: the one before it was not.
    fn on_lost(&mut self, bytes: u32, info: SentInfo, is_persistent: bool, is_burst_start: bool, now: Instant);
    /// The network marked this number of further packets.
    fn on_marked(&mut self, count: u64, now: Instant);
    /// A packet is neither lost nor acknowledged, and no longer in flight.
    fn on_discarded(&mut self, bytes: usize);
    /// Packets have at most this size from now on.
    fn on_packet_size(&mut self, bytes: u16);
    /// The congestion window in bytes; 0: there is none here.
    fn window_bytes(&self) -> u32;
    /// Bytes in flight.
    fn in_flight_bytes(&self) -> u32;
    /// Whether no further packet may leave now, except one for a fast retransmission.
    fn is_limited(&self) -> bool;
    /// When the next packet may leave; `None`: now.
    fn departs_at(&self) -> Option<Instant>;
}

/// Makes a controller for packets of `packet_bytes`.
pub(crate) fn controller(
    algorithm: CongestionAlgorithm,
    now: Instant,
    packet_bytes: u16,
    seed: u64,
) -> Box<dyn CongestionControl> {
    let (epoch, random) = (Epoch(now), Seeded(seed));
    match algorithm {
        CongestionAlgorithm::Bbr => Box::new(Adapter {
            inner: bbr::BbrCongestionController::new(packet_bytes, bbr::ApplicationSettings::default()),
            epoch,
            random,
            wrap: SentInfo::Bbr,
            unwrap: |info| match info {
                SentInfo::Bbr(info) => info,
                SentInfo::Cubic | SentInfo::Uncontrolled => unreachable!("made by this controller"),
            },
        }),
        CongestionAlgorithm::Cubic => Box::new(Adapter {
            inner: CubicCongestionController::new(packet_bytes, cubic::ApplicationSettings::default()),
            epoch,
            random,
            wrap: |()| SentInfo::Cubic,
            unwrap: |_| (),
        }),
    }
}

/// For packets that a stream carries: it controls congestion by itself, and says when it takes no more.
#[derive(Debug, Default)]
pub(crate) struct Uncontrolled {
    in_flight_bytes: u32,
}

impl CongestionControl for Uncontrolled {
    fn on_sent(&mut self, _: Instant, bytes: usize, _: bool, _: &RoundTrip) -> SentInfo {
        self.in_flight_bytes += bytes as u32;
        SentInfo::Uncontrolled
    }

    fn on_round_trip(&mut self, _: Instant, _: Instant, _: &RoundTrip) {}

    fn on_acknowledged(&mut self, _: Instant, bytes: usize, _: SentInfo, _: Instant, _: &RoundTrip) {
        self.on_discarded(bytes);
    }

    fn on_lost(&mut self, bytes: u32, _: SentInfo, _: bool, _: bool, _: Instant) {
        self.on_discarded(bytes as usize);
    }

    fn on_marked(&mut self, _: u64, _: Instant) {}

    fn on_discarded(&mut self, bytes: usize) {
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(bytes as u32);
    }

    fn on_packet_size(&mut self, _: u16) {}

    fn window_bytes(&self) -> u32 {
        0
    }

    fn in_flight_bytes(&self) -> u32 {
        self.in_flight_bytes
    }

    fn is_limited(&self) -> bool {
        false
    }

    fn departs_at(&self) -> Option<Instant> {
        None
    }
}

/// The library's time for ours.
#[derive(Clone, Copy, Debug)]
struct Epoch(Instant);

impl Epoch {
    fn timestamp(self, at: Instant) -> Timestamp {
        // From one second on, because the library has no time before its zero.
        NoopClock.get_time() + Duration::from_secs(1) + at.saturating_duration_since(self.0)
    }

    fn instant(self, at: Timestamp) -> Instant {
        let zero = NoopClock.get_time() + Duration::from_secs(1);
        self.0 + at.saturating_duration_since(zero)
    }
}

/// A generator of numbers that nobody has to be unable to guess: it spreads BBR's probes.
#[derive(Debug)]
struct Seeded(u64);

impl random::Generator for Seeded {
    fn public_random_fill(&mut self, dest: &mut [u8]) {
        for byte in dest {
            // SplitMix64.
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *byte = (mixed ^ (mixed >> 31)) as u8;
        }
    }

    fn private_random_fill(&mut self, dest: &mut [u8]) {
        self.public_random_fill(dest);
    }
}

/// Takes the library's events and does nothing with them.
struct NoEvents;

impl Publisher for NoEvents {
    fn on_slow_start_exited(&mut self, _: SlowStartExitCause, _: u32) {}
    fn on_delivery_rate_sampled(&mut self, _: RateSample) {}
    fn on_pacing_rate_updated(&mut self, _: Bandwidth, _: u32, _: Ratio<u64>) {}
    fn on_bbr_state_changed(&mut self, _: BbrState) {}
}

/// A controller of the library.
#[derive(Debug)]
struct Adapter<C: CongestionController> {
    inner: C,
    epoch: Epoch,
    random: Seeded,
    wrap: fn(C::PacketInfo) -> SentInfo,
    unwrap: fn(SentInfo) -> C::PacketInfo,
}

impl<C: CongestionController> CongestionControl for Adapter<C> {
    fn on_sent(&mut self, now: Instant, bytes: usize, is_app_limited: bool, rtt: &RoundTrip) -> SentInfo {
        let now = self.epoch.timestamp(now);
        (self.wrap)(self.inner.on_packet_sent(now, bytes, Some(is_app_limited), &rtt.estimator, &mut NoEvents))
    }

    fn on_round_trip(&mut self, sent: Instant, now: Instant, rtt: &RoundTrip) {
        let (sent, now) = (self.epoch.timestamp(sent), self.epoch.timestamp(now));
        self.inner.on_rtt_update(sent, now, &rtt.estimator, &mut NoEvents);
    }

    fn on_acknowledged(&mut self, sent: Instant, bytes: usize, newest: SentInfo, now: Instant, rtt: &RoundTrip) {
        let (sent, now) = (self.epoch.timestamp(sent), self.epoch.timestamp(now));
        let newest = (self.unwrap)(newest);
        self.inner.on_ack(sent, bytes, newest, &rtt.estimator, &mut self.random, now, &mut NoEvents);
    }

    fn on_lost(&mut self, bytes: u32, info: SentInfo, is_persistent: bool, is_burst_start: bool, now: Instant) {
        let (info, now) = ((self.unwrap)(info), self.epoch.timestamp(now));
        self.inner.on_packet_lost(bytes, info, is_persistent, is_burst_start, &mut self.random, now, &mut NoEvents);
    }

    fn on_marked(&mut self, count: u64, now: Instant) {
        self.inner.on_explicit_congestion(count, self.epoch.timestamp(now), &mut NoEvents);
    }

    fn on_discarded(&mut self, bytes: usize) {
        self.inner.on_packet_discarded(bytes, &mut NoEvents);
    }

    fn on_packet_size(&mut self, bytes: u16) {
        self.inner.on_mtu_update(bytes, &mut NoEvents);
    }

    fn window_bytes(&self) -> u32 {
        self.inner.congestion_window()
    }

    fn in_flight_bytes(&self) -> u32 {
        self.inner.bytes_in_flight()
    }

    fn is_limited(&self) -> bool {
        self.inner.is_congestion_limited() && !self.inner.requires_fast_retransmission()
    }

    fn departs_at(&self) -> Option<Instant> {
        self.inner.earliest_departure_time().map(|at| self.epoch.instant(at))
    }
}

/// The round-trip time (RFC 9002 §5).
#[derive(Debug)]
pub(crate) struct RoundTrip {
    estimator: RttEstimator,
    epoch: Epoch,
}

impl RoundTrip {
    pub(crate) fn new(now: Instant) -> RoundTrip {
        RoundTrip { estimator: RttEstimator::new(INITIAL_RTT), epoch: Epoch(now) }
    }

    /// A packet was acknowledged `sample` after it had been sent, of which the peer says that it waited `delay`.
    pub(crate) fn update(&mut self, sample: Duration, delay: Duration, now: Instant) {
        // RFC 9002 §5.3: the peer's delay counts up to what it may be, and never makes a sample shorter than the shortest.
        let delay = delay.min(ACK_DELAY_MAX);
        let is_first = !self.has_sample();
        let adjusted = match sample.checked_sub(delay) {
            Some(adjusted) if !is_first && adjusted >= self.estimator.min_rtt() => adjusted,
            _ => sample,
        };
        let now = self.epoch.timestamp(now);
        self.estimator.update_rtt(Duration::ZERO, adjusted, now, true, PacketNumberSpace::ApplicationData);
    }

    pub(crate) fn has_sample(&self) -> bool {
        self.estimator.first_rtt_sample().is_some()
    }

    /// When the first sample was taken.
    pub(crate) fn first_sample_at(&self) -> Option<Instant> {
        self.estimator.first_rtt_sample().map(|at| self.epoch.instant(at))
    }

    pub(crate) fn smoothed(&self) -> Duration {
        self.estimator.smoothed_rtt()
    }

    /// The shortest sample so far.
    pub(crate) fn shortest(&self) -> Duration {
        self.estimator.min_rtt()
    }

    /// How long a packet may stay behind later ones before it counts as lost (RFC 9002 §6.1.2).
    pub(crate) fn loss_delay(&self) -> Duration {
        let longest = self.estimator.smoothed_rtt().max(self.estimator.latest_rtt());
        (longest * 9 / 8).max(Duration::from_millis(1))
    }

    /// The probe time-out (RFC 9002 §6.2.1), before it is doubled.
    pub(crate) fn probe_timeout(&self) -> Duration {
        self.estimator.pto_period(1, PacketNumberSpace::ApplicationData) + ACK_DELAY_MAX
    }

    /// Losses over a longer time than this are persistent congestion (RFC 9002 §7.6.1).
    pub(crate) fn persistent_congestion(&self) -> Duration {
        self.probe_timeout() * 3
    }

    /// The next sample starts over (RFC 9002 §5.2): the path may have changed.
    pub(crate) fn start_over(&mut self) {
        self.estimator.on_persistent_congestion();
    }
}

#[cfg(test)]
mod tests {
    //! Proves that both controllers do what a controller does behind our trait: grow with acknowledgements, count what is in flight, and take
    //! losses.
    use super::*;

    #[allow(clippy::disallowed_methods)]
    fn test_now() -> Instant {
        Instant::now()
    }

    #[test]
    fn windows_grow_and_shrink() {
        for algorithm in [CongestionAlgorithm::Bbr, CongestionAlgorithm::Cubic] {
            let mut now = test_now();
            let mut rtt = RoundTrip::new(now);
            let mut controller = controller(algorithm, now, 1200, 1);
            let initial = controller.window_bytes();
            for _ in 0..8 {
                let sent = now;
                let mut infos = Vec::new();
                while !controller.is_limited() {
                    infos.push(controller.on_sent(sent, 1200, false, &rtt));
                }
                now += Duration::from_millis(10);
                rtt.update(Duration::from_millis(10), Duration::ZERO, now);
                controller.on_round_trip(sent, now, &rtt);
                for info in infos {
                    controller.on_acknowledged(sent, 1200, info, now, &rtt);
                }
            }
            let grown = controller.window_bytes();
            assert!(grown > 2 * initial, "{algorithm:?}: {initial} to {grown} bytes");
            assert_eq!(controller.in_flight_bytes(), 0);
            let sent = now;
            let infos: Vec<SentInfo> = (0..8).map(|_| controller.on_sent(sent, 1200, false, &rtt)).collect();
            now += Duration::from_millis(500);
            for (at, info) in infos.into_iter().enumerate() {
                controller.on_lost(1200, info, true, at == 0, now);
            }
            assert_eq!(controller.in_flight_bytes(), 0);
            // The library's BBR takes losses into its model of the path and knows no persistent congestion.
            if algorithm == CongestionAlgorithm::Cubic {
                assert!(controller.window_bytes() < grown, "{algorithm:?}: persistent congestion");
            }
        }
    }

    #[test]
    fn a_round_trip_is_not_shortened_by_what_the_peer_says() {
        let now = test_now();
        let mut rtt = RoundTrip::new(now);
        rtt.update(Duration::from_millis(10), Duration::from_millis(9), now);
        assert_eq!(rtt.shortest(), Duration::from_millis(10));
        rtt.update(Duration::from_millis(10), Duration::from_secs(1), now);
        assert_eq!(rtt.shortest(), Duration::from_millis(10));
        assert!(rtt.probe_timeout() > Duration::from_millis(10) && rtt.loss_delay() > Duration::from_millis(10));
    }
}

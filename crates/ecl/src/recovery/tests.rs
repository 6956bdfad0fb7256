//! Proves the rules of RFC 9002: packet and time thresholds, probe time-outs, persistent congestion, what marks of the network do, and that
//! nobody acknowledges what was not sent.

use super::*;
use crate::acknowledgement::EcnCounts;
use crate::congestion::{CongestionAlgorithm, Uncontrolled, controller};

const MS: Duration = Duration::from_millis(1);

struct Sender {
    now: Instant,
    recovery: Recovery<u64>,
    control: Box<dyn CongestionControl>,
}

impl Sender {
    #[allow(clippy::disallowed_methods)]
    fn new() -> Sender {
        let now = Instant::now();
        let control = controller(CongestionAlgorithm::Cubic, now, 1200, 1);
        Sender { now, recovery: Recovery::new(now), control }
    }

    fn send(&mut self) -> u64 {
        let number = self.recovery.next_number();
        let info = self.control.on_sent(self.now, 1200, false, &self.recovery.rtt);
        let packet = SentPacket { content: number, at: self.now, bytes: 1200, info, is_probe: false };
        self.recovery.sent(Some(packet));
        number
    }

    fn send_many(&mut self, count: usize) {
        for _ in 0..count {
            self.send();
        }
    }

    fn acknowledge(&mut self, ranges: &[(u64, u64)]) -> (Vec<u64>, Vec<u64>) {
        self.acknowledge_marked(ranges, 0)
    }

    /// `marks`: how many packets so far the network has marked.
    fn acknowledge_marked(&mut self, ranges: &[(u64, u64)], marks: u32) -> (Vec<u64>, Vec<u64>) {
        let ecn = EcnCounts { congestion_experienced: marks, ..EcnCounts::default() };
        let acknowledgement = Acknowledgement { ranges: ranges.to_vec(), delay_us: 0, ecn };
        let verdicts = self.recovery.acknowledge(self.now, &acknowledgement, &mut *self.control).expect("was sent");
        split(verdicts)
    }

    fn time_passes(&mut self, by: Duration) -> Vec<u64> {
        self.now += by;
        split(self.recovery.handle_timeout(self.now, &mut *self.control)).1
    }
}

fn split(verdicts: Vec<Verdict<u64>>) -> (Vec<u64>, Vec<u64>) {
    let (mut acknowledged, mut lost) = (Vec::new(), Vec::new());
    for verdict in verdicts {
        match verdict {
            Verdict::Acknowledged(number, packet) => {
                assert_eq!(number, packet.content);
                acknowledged.push(number);
            }
            Verdict::Lost(packet) => lost.push(packet.content),
        }
    }
    (acknowledged, lost)
}

#[test]
fn three_later_packets_prove_a_loss() {
    let mut sender = Sender::new();
    sender.send_many(5);
    sender.now += 10 * MS;
    assert_eq!(sender.acknowledge(&[(2, 2)]), (vec![2], vec![]), "it may be late");
    assert_eq!(sender.acknowledge(&[(2, 3)]), (vec![3], vec![0]));
    assert_eq!(sender.acknowledge(&[(0, 0)]), (vec![], vec![]), "it was late after all; nothing happens twice");
    assert_eq!(sender.acknowledge(&[(1, 4)]), (vec![1, 4], vec![]));
    assert!(!sender.recovery.has_in_flight() && sender.recovery.deadline().is_none());
    assert_eq!(sender.control.in_flight_bytes(), 0);
}

#[test]
fn time_proves_a_loss_too() {
    let mut sender = Sender::new();
    sender.send();
    sender.send();
    sender.now += 10 * MS;
    assert_eq!(sender.acknowledge(&[(1, 1)]), (vec![1], vec![]));
    let due = sender.recovery.deadline().expect("it waits for packet 0");
    let wait = due - sender.now;
    assert!(wait <= 2 * MS, "9/8 of a round trip after it left: {wait:?}");
    assert_eq!(sender.time_passes(wait), [0]);
}

#[test]
fn silence_is_probed_with_growing_patience() {
    let mut sender = Sender::new();
    sender.send();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let due = sender.recovery.deadline().expect("in flight");
        let wait = due - sender.now;
        waits.push(wait);
        assert!(!sender.recovery.wants_probe());
        assert!(sender.time_passes(wait).is_empty(), "a time-out proves no loss");
        assert!(sender.recovery.wants_probe());
        assert_eq!(sender.recovery.oldest_contents().next(), Some(&0));
        sender.send();
        sender.send();
    }
    assert!(waits.windows(2).all(|pair| pair[1] == pair[0] * 2), "{waits:?}");
}

#[test]
fn losses_over_a_long_time_are_persistent_congestion() {
    let mut sender = Sender::new();
    for _ in 0..40 {
        let number = sender.send();
        sender.now += 10 * MS;
        sender.acknowledge(&[(number, number)]);
    }
    let before = sender.control.window_bytes();
    let first = sender.send();
    sender.now += sender.recovery.rtt.persistent_congestion() + MS;
    sender.send_many(3);
    let last = sender.send();
    sender.now += 10 * MS;
    let (_, lost) = sender.acknowledge(&[(last, last)]);
    assert_eq!(lost, [first, first + 1]);
    assert!(sender.control.window_bytes() <= 2 * 1200, "from {before} to {}", sender.control.window_bytes());
}

/// Sends a window in each of eight round trips of 10 ms, in which the network marks `marked` packets of a hundred and loses `lost`. The
/// window at the end.
fn window_after(marked: u64, lost: u64) -> u32 {
    let mut sender = Sender::new();
    let (mut marks, mut at) = (0, 0_u64);
    for _ in 0..8 {
        let first = sender.recovery.next_number();
        while !sender.control.is_limited() {
            sender.send();
        }
        sender.now += 10 * MS;
        for number in first..sender.recovery.next_number() {
            at += 1;
            marks += u32::from(at % 100 < marked);
            if at % 100 >= lost {
                sender.acknowledge_marked(&[(number, number)], marks);
            }
        }
    }
    sender.control.window_bytes()
}

#[test]
fn a_mark_reduces_the_window_as_a_loss_does() {
    let (free, marked, lost) = (window_after(0, 0), window_after(2, 0), window_after(0, 2));
    assert!(marked * 2 < free && lost * 2 < free, "{free} bytes, marked {marked}, lost {lost}");
    assert!(marked.abs_diff(lost) * 4 < lost, "alike: marked {marked}, lost {lost}");
}

/// Counts marks; nothing is limited.
#[derive(Debug, Default)]
struct MarkCounter {
    inner: Uncontrolled,
    marks: Vec<u64>,
}

impl CongestionControl for MarkCounter {
    fn on_sent(&mut self, now: Instant, bytes: usize, is_app_limited: bool, rtt: &RoundTrip) -> SentInfo {
        self.inner.on_sent(now, bytes, is_app_limited, rtt)
    }

    fn on_round_trip(&mut self, _: Instant, _: Instant, _: &RoundTrip) {}

    fn on_acknowledged(&mut self, sent: Instant, bytes: usize, newest: SentInfo, now: Instant, rtt: &RoundTrip) {
        self.inner.on_acknowledged(sent, bytes, newest, now, rtt);
    }

    fn on_lost(&mut self, bytes: u32, info: SentInfo, is_persistent: bool, is_burst_start: bool, now: Instant) {
        self.inner.on_lost(bytes, info, is_persistent, is_burst_start, now);
    }

    fn on_marked(&mut self, count: u64, _: Instant) {
        self.marks.push(count);
    }

    fn on_discarded(&mut self, bytes: usize) {
        self.inner.on_discarded(bytes);
    }

    fn on_packet_size(&mut self, _: u16) {}

    fn window_bytes(&self) -> u32 {
        0
    }

    fn in_flight_bytes(&self) -> u32 {
        self.inner.in_flight_bytes()
    }

    fn is_limited(&self) -> bool {
        false
    }

    fn departs_at(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn marks_count_once_and_for_no_more_packets_than_are_acknowledged_with_them() {
    let mut sender = Sender::new();
    let mut counter = MarkCounter::default();
    sender.send_many(12);
    sender.now += 10 * MS;
    let mut acknowledge = |ranges: &[(u64, u64)], marks| {
        let ecn = EcnCounts { congestion_experienced: marks, ..EcnCounts::default() };
        let acknowledgement = Acknowledgement { ranges: ranges.to_vec(), delay_us: 0, ecn };
        sender.recovery.acknowledge(sender.now, &acknowledgement, &mut counter).expect("was sent");
        std::mem::take(&mut counter.marks)
    };
    assert_eq!(acknowledge(&[(0, 1)], 1), [1]);
    assert_eq!(acknowledge(&[(0, 1)], 1), [], "the same again");
    assert_eq!(acknowledge(&[(0, 1)], 9), [], "nothing is newly acknowledged");
    assert_eq!(acknowledge(&[(0, 3)], 9), [2], "two are");
    assert_eq!(acknowledge(&[(6, 7), (0, 3)], 10), [1]);
    assert_eq!(acknowledge(&[(5, 5), (0, 3)], 9), [], "it was overtaken");
    assert_eq!(acknowledge(&[(5, 8), (0, 3)], 10), [], "no mark since");
    assert_eq!(acknowledge(&[(5, 11), (0, 3)], 11), [1]);
}

#[test]
fn acknowledgements_are_not_waited_for() {
    let mut sender = Sender::new();
    sender.recovery.sent(None);
    assert!(sender.recovery.deadline().is_none());
    assert_eq!(sender.send(), 1);
    sender.recovery.sent(None);
    sender.now += MS;
    assert_eq!(sender.acknowledge(&[(0, 2)]), (vec![1], vec![]));
    assert_eq!(sender.recovery.oldest_number(), 3);
}

#[test]
fn attack_ecl_acknowledgement_of_what_was_not_sent() {
    let mut sender = Sender::new();
    sender.send();
    let forged = Acknowledgement { ranges: vec![(0, 1)], delay_us: 0, ecn: EcnCounts::default() };
    let answer = sender.recovery.acknowledge(sender.now, &forged, &mut *sender.control);
    assert!(matches!(answer, Err(PeerMisbehaved::NeverSent(1))));
    assert!(sender.recovery.has_in_flight(), "nothing was taken from it");
}

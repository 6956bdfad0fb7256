//! Proves the rules of RFC 9002: packet and time thresholds, probe time-outs, persistent congestion, and that nobody acknowledges what was
//! not sent.

use super::*;
use crate::acknowledgement::EcnCounts;
use crate::congestion::{CongestionAlgorithm, controller};

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
        let acknowledgement = Acknowledgement { ranges: ranges.to_vec(), delay_us: 0, ecn: EcnCounts::default() };
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

//! What a link is like.

use std::time::Duration;

use str0m_netem::{Bitrate, DataSize, GilbertElliot, LossModel, NetemConfig, Probability, RandomLoss};

use crate::LabError;
use crate::emulator::Way;

/// Longest one-way delay.
const DELAY_MAX: Duration = Duration::from_millis(200);

/// IPv4's 20 bytes, TCP's 20, and 12 of timestamps (RFC 7323), in every full packet.
const PACKET_HEADER_BYTES: f64 = 52.0;

/// Packets may be later than they should by this part of the delay, and by [`GRAIN_MAX`] at most, so that several arrive at once.
const GRAINS: u32 = 128;
const GRAIN_MAX: Duration = Duration::from_micros(500);

/// What routers keep on a short way too, in milliseconds of the rate: several programs' trains at once.
const QUEUE_MS_MIN: u64 = 5;

/// How packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Loss {
    /// Only what the queue has no room for.
    #[default]
    None,
    /// Each packet by itself, with this probability.
    Random(f32),
    /// In bursts of this many packets on average (the Gilbert-Elliott model); the probability is of all packets.
    Bursts {
        /// Share of all packets.
        share: f32,
        /// Packets in a burst, on average; from 1.
        length: f32,
    },
}

/// What decides how fast TCP sends, in both ends' namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Congestion {
    /// As the machine has it.
    #[default]
    Inherited,
    /// CUBIC (RFC 9438).
    Cubic,
    /// BBR.
    Bbr,
    /// Reno (RFC 5681).
    Reno,
}

impl Congestion {
    /// As the kernel names it.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Congestion::Inherited => None,
            Congestion::Cubic => Some("cubic"),
            Congestion::Bbr => Some("bbr"),
            Congestion::Reno => Some("reno"),
        }
    }
}

/// A link, the same in both directions, each with its own random choices.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// One way, 0 to 200 ms.
    pub delay: Duration,
    /// The delay of each packet differs by up to this, either way; what was sent first still arrives first.
    pub jitter: Duration,
    /// Random losses.
    pub loss: Loss,
    /// Share of packets that arrive twice.
    pub duplicate: f32,
    /// One packet in this many overtakes its predecessor; from 2.
    pub reorder_gap: Option<u32>,
    /// Bits of IP packets in a second, their headers included; as fast as it goes if `None`. What of it is left for TCP's payload is
    /// [`Profile::payload_bits_per_s`].
    pub rate_bits_per_s: Option<u64>,
    /// Bytes that wait for the link at most, besides those under way; what does not fit is lost. The product of rate and round
    /// trip if `None`, and what the link carries in 5 ms, or 64 KiB, at least.
    pub queue_bytes: Option<u64>,
    /// Bytes of the largest IP packet.
    pub mtu: u16,
    /// Where the random choices start from.
    pub seed: u64,
    /// TCP's congestion control at both ends.
    pub congestion: Congestion,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: Loss::None,
            duplicate: 0.0,
            reorder_gap: None,
            rate_bits_per_s: None,
            queue_bytes: None,
            mtu: 1500,
            seed: 1,
            congestion: Congestion::Inherited,
        }
    }
}

impl Profile {
    /// Bytes that are under way in one direction when the link is full, without those that wait.
    pub fn flight_bytes(&self) -> u64 {
        let longest = self.delay + self.jitter;
        (self.rate_bits_per_s.unwrap_or(0) as f64 / 8.0 * longest.as_secs_f64()) as u64
    }

    /// Bytes that wait at most.
    pub fn queue_bytes(&self) -> u64 {
        let least = self.rate_bits_per_s.unwrap_or(0) / 8 * QUEUE_MS_MIN / 1000;
        self.queue_bytes.unwrap_or_else(|| (2 * self.flight_bytes()).max(least).max(65_536))
    }

    /// What of the rate is left for the payload of TCP, in bits per second: a full packet has 52 bytes of headers (IPv4, and TCP with its
    /// timestamps). `None` without a rate.
    pub fn payload_bits_per_s(&self) -> Option<f64> {
        let mtu = f64::from(self.mtu);
        self.rate_bits_per_s.map(|rate| rate as f64 * (mtu - PACKET_HEADER_BYTES) / mtu)
    }

    /// Whether it can be.
    ///
    /// # Errors
    /// What cannot be, and what can.
    pub fn check(&self) -> Result<(), LabError> {
        let refuse = |what: String| Err(LabError::Profile(what));
        if self.delay > DELAY_MAX {
            return refuse(format!("a delay of {:?} is more than {DELAY_MAX:?}", self.delay));
        }
        if self.jitter > self.delay {
            return refuse(format!("a jitter of {:?} is more than the delay of {:?}", self.jitter, self.delay));
        }
        let shares = match self.loss {
            Loss::None => vec![self.duplicate],
            Loss::Random(share) => vec![self.duplicate, share],
            Loss::Bursts { share, length } if length >= 1.0 => vec![self.duplicate, share],
            Loss::Bursts { length, .. } => return refuse(format!("bursts of {length} packets: give 1 or more")),
        };
        if let Some(share) = shares.iter().find(|share| !(0.0..1.0).contains(*share)) {
            return refuse(format!("a share of {} % of the packets: give 0 to 99", share * 100.0));
        }
        if self.reorder_gap.is_some_and(|gap| gap < 2) {
            return refuse("a packet can overtake another only every 2 packets or more".into());
        }
        if self.rate_bits_per_s.is_some_and(|rate| rate < 8_000) {
            return refuse("a rate below 8 kbit/s carries nothing here".into());
        }
        if !(576..=9000).contains(&self.mtu) {
            return refuse(format!("an MTU of {}: give 576 to 9000", self.mtu));
        }
        Ok(())
    }

    /// What carries one direction.
    pub(crate) fn way(&self, direction: u64) -> Way {
        Way { model: self.model(direction), grain: (self.delay / GRAINS).min(GRAIN_MAX) }
    }

    /// The model of one direction.
    fn model(&self, direction: u64) -> NetemConfig {
        let mut model = NetemConfig::new()
            .latency(self.delay)
            .jitter(self.jitter)
            .loss(self.loss_model())
            .duplicate(Probability::new(self.duplicate))
            .seed(self.seed.wrapping_mul(2).wrapping_add(direction));
        if let Some(gap) = self.reorder_gap {
            model = model.reorder_gap(gap);
        }
        if let Some(rate) = self.rate_bits_per_s {
            // The model counts what is under way as queued.
            let held = self.queue_bytes() + self.flight_bytes();
            model = model.link(Bitrate::from(rate), DataSize::bytes(i64::try_from(held).unwrap_or(i64::MAX)));
        }
        model
    }

    fn loss_model(&self) -> LossModel {
        match self.loss {
            Loss::None => LossModel::None,
            Loss::Random(share) => RandomLoss::new(Probability::new(share)).into(),
            Loss::Bursts { share, length } => {
                // In a bad state everything is lost: its share of the time is the share of the loss.
                let between = length * (1.0 - share) / share.max(f32::MIN_POSITIVE);
                GilbertElliot::new()
                    .good_duration(between)
                    .bad_duration(length)
                    .loss_in_bad(Probability::ONE)
                    .loss_in_good(Probability::ZERO)
                    .into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_cannot_be_is_refused() {
        let link = Profile::default();
        for bad in [
            Profile { delay: Duration::from_millis(201), ..link.clone() },
            Profile { jitter: Duration::from_millis(1), ..link.clone() },
            Profile { loss: Loss::Random(1.0), ..link.clone() },
            Profile { loss: Loss::Bursts { share: 0.1, length: 0.5 }, ..link.clone() },
            Profile { reorder_gap: Some(1), ..link.clone() },
            Profile { rate_bits_per_s: Some(10), ..link.clone() },
            Profile { mtu: 100, ..link.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        link.check().unwrap();
    }

    #[test]
    fn headers_are_part_of_the_rate() {
        assert_eq!(Profile::default().payload_bits_per_s(), None);
        let gigabit = Profile { rate_bits_per_s: Some(1_000_000_000), ..Profile::default() };
        assert!((gigabit.payload_bits_per_s().unwrap() / 1e6 - 965.3).abs() < 0.1);
        let jumbo = Profile { mtu: 9000, ..gigabit };
        assert!((jumbo.payload_bits_per_s().unwrap() / 1e6 - 994.2).abs() < 0.1);
    }

    /// Packets of 1000 bytes, one each millisecond, through a direction; when each arrived, by its number.
    fn carried(profile: &Profile, count: u16) -> Vec<(u16, Duration)> {
        use std::time::Instant;
        use str0m_netem::{Input, Netem, Output};
        let begun = Instant::now();
        let mut link = Netem::new(profile.model(0));
        let mut arrived = Vec::new();
        for step in 0..u64::from(count) + 1000 {
            let now = begun + Duration::from_millis(step);
            link.handle_input(Input::Timeout(now));
            while let Some(output) = link.poll_output() {
                if let Output::Packet::<Vec<u8>>(packet) = output {
                    arrived.push((u16::from_be_bytes([packet[0], packet[1]]), now - begun));
                }
            }
            if step < u64::from(count) {
                let mut packet = vec![0; 1000];
                packet[..2].copy_from_slice(&(step as u16).to_be_bytes());
                link.handle_input(Input::Packet(now, packet));
            }
        }
        arrived
    }

    #[test]
    fn losses_come_as_often_and_as_many_at_once_as_asked_for() {
        let count = 50_000;
        let link = Profile::default();
        let runs = |arrived: &[(u16, Duration)]| {
            let gaps: Vec<usize> = arrived.windows(2).map(|two| usize::from(two[1].0 - two[0].0) - 1).collect();
            let bursts = gaps.iter().filter(|gap| **gap > 0).count();
            gaps.iter().sum::<usize>() as f64 / bursts.max(1) as f64
        };
        let single = carried(&Profile { loss: Loss::Random(0.02), ..link.clone() }, count);
        let share = 1.0 - single.len() as f64 / f64::from(count);
        assert!((0.015..0.025).contains(&share), "{share}");
        assert!(runs(&single) < 1.2);
        let bursts = carried(&Profile { loss: Loss::Bursts { share: 0.02, length: 5.0 }, ..link.clone() }, count);
        let share = 1.0 - bursts.len() as f64 / f64::from(count);
        assert!((0.014..0.026).contains(&share), "{share}");
        assert!((4.0..6.0).contains(&runs(&bursts)), "{}", runs(&bursts));
        let again = carried(&Profile { loss: Loss::Random(0.02), ..link.clone() }, count);
        assert_eq!(single, again, "the same seed, the same losses");
        let other = carried(&Profile { loss: Loss::Random(0.02), seed: 2, ..link }, count);
        assert_ne!(single, other);
    }

    #[test]
    fn what_arrives_is_late_by_the_delay_and_waits_for_the_rate() {
        let delay = Duration::from_millis(40);
        let free = carried(&Profile { delay, ..Profile::default() }, 500);
        assert!(free.iter().all(|(number, at)| *at == delay + Duration::from_millis(u64::from(*number))));
        // Half of what is sent: the queue fills, and what does not fit is lost.
        let rate = Profile { rate_bits_per_s: Some(4_000_000), queue_bytes: Some(20_000), delay, ..Profile::default() };
        let slow = carried(&rate, 2000);
        let carried_bytes = slow.iter().filter(|(_, at)| at.as_secs() < 1).count() * 1000;
        assert!((440_000..=500_000).contains(&carried_bytes), "{carried_bytes} bytes in a second of 4 Mbit");
        let late = slow.iter().map(|(number, at)| *at - Duration::from_millis(u64::from(*number))).max().unwrap();
        assert!(late > delay && late <= delay + Duration::from_millis(2 * 20 + 5), "{late:?}: the queue is bounded");
    }

    #[test]
    fn packets_overtake_and_double_only_if_asked_to() {
        let count = 5000;
        let order = |arrived: &[(u16, Duration)]| arrived.windows(2).filter(|two| two[0].0 > two[1].0).count();
        let delay = Duration::from_millis(20);
        let jitter = Duration::from_millis(10);
        let steady = carried(&Profile { delay, jitter, ..Profile::default() }, count);
        assert_eq!((steady.len(), order(&steady)), (usize::from(count), 0));
        let mixed = carried(&Profile { delay, reorder_gap: Some(10), duplicate: 0.05, ..Profile::default() }, count);
        assert!(order(&mixed) > 300, "{}", order(&mixed));
        assert!((5150..5350).contains(&mixed.len()), "{}", mixed.len());
    }
}

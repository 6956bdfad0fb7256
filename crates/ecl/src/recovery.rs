//! What was sent and is not settled: acknowledged, lost, or due for a probe (RFC 9002). What a packet carried comes back with the verdict;
//! whether it is sent again is decided elsewhere.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::acknowledgement::Acknowledgement;
use crate::congestion::{CongestionControl, RoundTrip, SentInfo};
use crate::error::PeerMisbehaved;

/// A packet is lost when this much later ones have arrived (RFC 9002 §6.1.1, kPacketThreshold).
const PACKET_THRESHOLD: u64 = 3;
/// Packets that leave when a probe time-out expires (RFC 9002 §6.2.4).
const PROBES_PER_TIMEOUT: u32 = 2;
/// The probe time-out is doubled at most this often.
const DOUBLINGS_MAX: u32 = 10;

/// A packet that its sender waits for.
#[derive(Debug)]
pub(crate) struct SentPacket<C> {
    pub(crate) content: C,
    pub(crate) at: Instant,
    pub(crate) bytes: u16,
    pub(crate) info: SentInfo,
    /// It looks for a larger MTU: its loss says nothing about congestion (RFC 8899 §3).
    pub(crate) is_probe: bool,
}

#[derive(Debug)]
enum Sent<C> {
    InFlight(SentPacket<C>),
    /// An acknowledgement, which nobody waits for.
    NotCounted,
    Settled,
}

/// A packet and what became of it.
#[derive(Debug)]
pub(crate) enum Verdict<C> {
    Acknowledged(u64, SentPacket<C>),
    Lost(SentPacket<C>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Recovery<C> {
    /// From `first_number` on, without gaps.
    packets: VecDeque<Sent<C>>,
    first_number: u64,
    in_flight: usize,
    largest_acknowledged: Option<u64>,
    pub(crate) rtt: RoundTrip,
    /// When the next packet counts as lost.
    loss_at: Option<Instant>,
    /// When the last packet left that is waited for.
    last_sent_at: Option<Instant>,
    timeouts: u32,
    /// Packets that may leave now even if the congestion window is full.
    probes: u32,
    marks_seen: u32,
}

impl<C: Clone> Recovery<C> {
    pub(crate) fn new(now: Instant) -> Recovery<C> {
        Recovery {
            packets: VecDeque::new(),
            first_number: 0,
            in_flight: 0,
            largest_acknowledged: None,
            rtt: RoundTrip::new(now),
            loss_at: None,
            last_sent_at: None,
            timeouts: 0,
            probes: 0,
            marks_seen: 0,
        }
    }

    /// The number of the next packet.
    pub(crate) fn next_number(&self) -> u64 {
        self.first_number + self.packets.len() as u64
    }

    /// The oldest packet that is in flight, or the next one.
    pub(crate) fn oldest_number(&self) -> u64 {
        self.first_number
    }

    /// A packet leaves; `None`: nobody waits for it.
    pub(crate) fn sent(&mut self, packet: Option<SentPacket<C>>) {
        match packet {
            Some(packet) => {
                self.last_sent_at = Some(packet.at);
                self.probes = self.probes.saturating_sub(1);
                self.in_flight += 1;
                self.packets.push_back(Sent::InFlight(packet));
            }
            None if self.packets.is_empty() => self.first_number += 1,
            None => self.packets.push_back(Sent::NotCounted),
        }
    }

    pub(crate) fn has_in_flight(&self) -> bool {
        self.in_flight > 0
    }

    /// Probe time-outs since a packet was acknowledged.
    pub(crate) fn timeouts_in_a_row(&self) -> u32 {
        self.timeouts
    }

    /// Whether a packet may leave although the congestion window is full.
    pub(crate) fn wants_probe(&self) -> bool {
        self.probes > 0
    }

    /// What the oldest packets in flight carry: that is what a probe sends.
    pub(crate) fn oldest_contents(&self) -> impl Iterator<Item = &C> {
        self.packets.iter().filter_map(|sent| match sent {
            Sent::InFlight(packet) => Some(&packet.content),
            _ => None,
        })
    }

    /// Takes an acknowledgement; returns the verdicts, acknowledged packets first.
    ///
    /// # Errors
    /// [`PeerMisbehaved::NeverSent`].
    pub(crate) fn acknowledge(
        &mut self,
        now: Instant,
        acknowledgement: &Acknowledgement,
        control: &mut dyn CongestionControl,
    ) -> Result<Vec<Verdict<C>>, PeerMisbehaved> {
        let largest = acknowledgement.largest();
        if largest >= self.next_number() {
            return Err(PeerMisbehaved::NeverSent(largest));
        }
        let mut verdicts = Vec::new();
        let mut acknowledged_bytes = 0;
        // The oldest range first, so that the last verdict is the newest packet.
        for (first, last) in acknowledgement.ranges.iter().rev() {
            for number in (*first).max(self.first_number)..=*last {
                let at = (number - self.first_number) as usize;
                if matches!(self.packets[at], Sent::InFlight(_))
                    && let Sent::InFlight(packet) = std::mem::replace(&mut self.packets[at], Sent::Settled)
                {
                    self.in_flight -= 1;
                    acknowledged_bytes += usize::from(packet.bytes);
                    verdicts.push(Verdict::Acknowledged(number, packet));
                }
            }
        }
        if let Some(Verdict::Acknowledged(newest, packet)) = verdicts.last() {
            if *newest == largest {
                let delay = Duration::from_micros(acknowledgement.delay_us.into());
                self.rtt.update(now.saturating_duration_since(packet.at), delay, now);
                control.on_round_trip(packet.at, now, &self.rtt);
            }
            control.on_acknowledged(packet.at, acknowledged_bytes, packet.info, now, &self.rtt);
            self.timeouts = 0;
            self.probes = 0;
            // RFC 9000 §13.4.2.1: an acknowledgement that another one has overtaken says less than is known.
            if Some(largest) > self.largest_acknowledged {
                let marks = u64::from(acknowledgement.ecn.congestion_experienced.wrapping_sub(self.marks_seen));
                self.marks_seen = acknowledgement.ecn.congestion_experienced;
                // Never more than what was acknowledged just now: a peer cannot make up marks of packets to come.
                let marks = marks.min(verdicts.len() as u64);
                if marks > 0 {
                    control.on_marked(marks, now);
                }
            }
        }
        self.largest_acknowledged = self.largest_acknowledged.max(Some(largest));
        self.detect_lost(now, control, &mut verdicts);
        Ok(verdicts)
    }

    /// Declares packets lost that are too far behind (RFC 9002 §6.1).
    fn detect_lost(&mut self, now: Instant, control: &mut dyn CongestionControl, verdicts: &mut Vec<Verdict<C>>) {
        self.loss_at = None;
        let Some(largest) = self.largest_acknowledged else { return self.trim() };
        let loss_delay = self.rtt.loss_delay();
        let mut run = LostRun::default();
        let mut lost = Vec::new();
        let end = (largest + 1).saturating_sub(self.first_number) as usize;
        for at in 0..end.min(self.packets.len()) {
            let number = self.first_number + at as u64;
            match &self.packets[at] {
                Sent::NotCounted => {}
                Sent::Settled => run.ends(),
                Sent::InFlight(packet) => {
                    let due = packet.at + loss_delay;
                    if number + PACKET_THRESHOLD > largest && due > now {
                        self.loss_at = Some(self.loss_at.map_or(due, |earlier| earlier.min(due)));
                        run.ends();
                        continue;
                    }
                    let is_counted = self.rtt.first_sample_at().is_some_and(|first| packet.at > first);
                    let is_start = run.goes_on(packet.at, is_counted);
                    if let Sent::InFlight(packet) = std::mem::replace(&mut self.packets[at], Sent::Settled) {
                        lost.push((packet, is_start));
                    }
                }
            }
        }
        let is_persistent = run.longest > self.rtt.persistent_congestion();
        for (packet, is_start) in lost {
            self.in_flight -= 1;
            match packet.is_probe {
                true => control.on_discarded(packet.bytes.into()),
                false => control.on_lost(packet.bytes.into(), packet.info, is_persistent, is_start, now),
            }
            verdicts.push(Verdict::Lost(packet));
        }
        if is_persistent {
            self.rtt.start_over();
        }
        self.trim();
    }

    fn trim(&mut self) {
        while let Some(Sent::Settled | Sent::NotCounted) = self.packets.front() {
            self.packets.pop_front();
            self.first_number += 1;
        }
    }

    /// The time of `deadline` may have come; returns what was lost.
    pub(crate) fn handle_timeout(&mut self, now: Instant, control: &mut dyn CongestionControl) -> Vec<Verdict<C>> {
        let mut verdicts = Vec::new();
        if self.loss_at.is_some_and(|at| at <= now) {
            self.detect_lost(now, control, &mut verdicts);
        } else if self.probe_at().is_some_and(|at| at <= now) {
            self.timeouts = (self.timeouts + 1).min(DOUBLINGS_MAX);
            self.probes = PROBES_PER_TIMEOUT;
            // The next time-out counts from here, also where nothing can be sent.
            self.last_sent_at = Some(now);
        }
        verdicts
    }

    fn probe_at(&self) -> Option<Instant> {
        let sent_at = self.last_sent_at.filter(|_| self.in_flight > 0)?;
        Some(sent_at + self.rtt.probe_timeout() * (1 << self.timeouts))
    }

    /// When `handle_timeout` wants to be called next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.loss_at.or_else(|| self.probe_at())
    }

    /// When the oldest packet in flight left.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        self.packets.iter().find_map(|sent| match sent {
            Sent::InFlight(packet) => Some(packet.at),
            _ => None,
        })
    }
}

/// Packets that were lost one after the other, and over how long a time.
#[derive(Default)]
struct LostRun {
    /// When the first of them left that counts for persistent congestion.
    counted_since: Option<Instant>,
    is_running: bool,
    longest: Duration,
}

impl LostRun {
    /// One more is lost. True if the one before it was not.
    fn goes_on(&mut self, at: Instant, is_counted: bool) -> bool {
        if is_counted {
            let since = *self.counted_since.get_or_insert(at);
            self.longest = self.longest.max(at.saturating_duration_since(since));
        }
        !std::mem::replace(&mut self.is_running, true)
    }

    fn ends(&mut self) {
        (self.counted_since, self.is_running) = (None, false);
    }
}

#[cfg(test)]
mod tests;

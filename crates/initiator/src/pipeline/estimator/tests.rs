//! Proves, on a simulated link, that `auto` fills it for every size of blocks, never falls behind the best depth that could have been
//! chosen, follows a link that changes, and does not make others wait.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::PathSample;
use crate::pipeline::{Flight, Pipeline, Window};

/// One direction that takes bytes one after the other, and a way there and back; time counts in nanoseconds from 0.
struct Link {
    bytes_per_second: f64,
    way_ns: u64,
    /// When what was sent so far has left.
    free_at: u64,
    /// Share of the commands of which a packet is lost: their answers come a round trip later, and those after them not before them.
    loss: f64,
    /// What decides which, and before when nothing is answered.
    random: u64,
    held_until: u64,
    /// Commands of which a packet was sent again.
    retransmits: u64,
    tells_retransmits: bool,
    /// Answers come so much sooner or later, at most, and not one before another.
    jitter_ns: u64,
    /// What queues does so behind TCP.
    is_target: bool,
    /// TCP sends nothing until then.
    paused_until: u64,
}

impl Link {
    fn new(bytes_per_second: f64, one_way_ms: f64) -> Link {
        Link {
            bytes_per_second,
            way_ns: (2e6 * one_way_ms) as u64,
            free_at: 0,
            loss: 0.0,
            random: 1,
            held_until: 0,
            retransmits: 0,
            tells_retransmits: true,
            jitter_ns: 0,
            is_target: false,
            paused_until: 0,
        }
    }

    /// Packets of 1448 bytes of a command of `block` bytes are lost with this probability.
    fn lossy(self, share: f64, block: u64, seed: u64) -> Link {
        let packets = block.div_ceil(1448) as f64;
        Link { loss: 1.0 - (1.0 - share).powf(packets), random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, ..self }
    }

    /// When the answer to a command sent now is there.
    fn send(&mut self, now: u64, bytes: u64) -> u64 {
        self.free_at =
            self.free_at.max(now).max(self.paused_until) + (bytes as f64 / self.bytes_per_second * 1e9) as u64;
        // Xorshift: the same losses each time.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if ((self.random >> 11) as f64) < self.loss * (1_u64 << 53) as f64 {
            self.held_until = self.held_until.max(self.free_at + 2 * self.way_ns);
            self.retransmits += 1;
        }
        let jitter = (self.random >> 20) % (2 * self.jitter_ns + 1);
        let arrives = self.held_until.max(self.free_at + self.way_ns + jitter - self.jitter_ns);
        if self.jitter_ns > 0 {
            self.held_until = arrives;
        }
        arrives
    }

    /// What somebody else's packet would wait for.
    fn queue_ns(&self, now: u64) -> u64 {
        if now < self.paused_until { 0 } else { self.free_at.saturating_sub(now) }
    }

    /// What waits in the socket while TCP pauses.
    fn unsent_bytes(&self, now: u64) -> u64 {
        let waiting = if now < self.paused_until { self.free_at.saturating_sub(self.paused_until) } else { 0 };
        (waiting as f64 / 1e9 * self.bytes_per_second) as u64
    }
}

/// Writes as fast as the window lets it, of one size.
struct Sim {
    link: Link,
    window: Window,
    begun: Instant,
    now: u64,
    block: u64,
    answers: BinaryHeap<Reverse<(u64, u64)>>,
    flights: VecDeque<(u64, Flight)>,
    sent: u64,
    answered: u64,
    /// By tenths of a second: bytes answered, and the longest queue that a command found, in nanoseconds.
    tenths: Vec<(u64, u64)>,
    tells_path: bool,
    tells_pauses: bool,
    path_told_at: u64,
    /// Blocks that the application has under way at most.
    depth_max: usize,
}

impl Sim {
    fn new(pipeline: Pipeline, link: Link, block: u64) -> Sim {
        Sim {
            link,
            window: Window::new(pipeline),
            begun: Instant::now(),
            now: 0,
            block,
            answers: BinaryHeap::new(),
            flights: VecDeque::new(),
            sent: 0,
            answered: 0,
            tenths: Vec::new(),
            tells_path: false,
            tells_pauses: true,
            path_told_at: 0,
            depth_max: usize::MAX,
        }
    }

    fn time(&self) -> Instant {
        self.begun + Duration::from_nanos(self.now)
    }

    fn tenth(&mut self) -> &mut (u64, u64) {
        let at = (self.now / 100_000_000) as usize;
        self.tenths.resize((at + 1).max(self.tenths.len()), (0, 0));
        &mut self.tenths[at]
    }

    fn run(&mut self, seconds: f64) {
        let end = self.now + (seconds * 1e9) as u64;
        loop {
            while self.answers.len() < self.depth_max && self.window.may_send(self.block) {
                let queue = self.link.queue_ns(self.now);
                let seen = &mut self.tenth().1;
                *seen = (*seen).max(queue);
                let flight = self.window.sent(self.time(), self.block);
                let at = self.link.send(self.now, self.block);
                self.flights.push_back((self.sent, flight));
                self.answers.push(Reverse((at, self.sent)));
                self.sent += 1;
            }
            let next = self.answers.peek().map(|Reverse((at, _))| *at).filter(|at| *at <= end);
            let wakes = self.window.poll_timeout().map(|at| (at - self.begun).as_nanos() as u64);
            if let Some(at) = wakes.filter(|at| *at <= next.unwrap_or(end)) {
                // A clock that is read again has moved on.
                self.now = at.max(self.now + 1000);
                self.tell_path();
                self.window.handle_timeout(self.time());
                continue;
            }
            if next.is_none() {
                break;
            }
            let Reverse((at, number)) = self.answers.pop().unwrap();
            self.now = self.now.max(at);
            let place = self.flights.iter().position(|(sent, _)| *sent == number).unwrap();
            let (_, flight) = self.flights.remove(place).unwrap();
            self.tell_path();
            self.window.answered(self.time(), &flight, true);
            self.answered += self.block;
            self.tenth().0 += self.block;
        }
        self.now = end;
    }

    /// What the kernel says, as often as it is asked.
    fn tell_path(&mut self) {
        if !self.tells_path || self.path_told_at > 0 && self.now < self.path_told_at + 50_000_000 {
            return;
        }
        self.path_told_at = self.now;
        let smallest = Duration::from_nanos(self.link.way_ns);
        let queue = if self.link.is_target { 0 } else { self.link.queue_ns(self.now) };
        self.window.path(PathSample {
            round_trip: smallest + Duration::from_nanos(queue),
            smallest,
            unsent_bytes: self.link.unsent_bytes(self.now),
            retransmits: if self.link.tells_retransmits { self.link.retransmits } else { 0 },
            is_paused: self.tells_pauses && self.now < self.link.paused_until,
        });
    }

    /// Bytes per second answered between two times, in seconds.
    fn rate(&self, from: f64, to: f64) -> f64 {
        let range = (from * 10.0) as usize..((to * 10.0) as usize).min(self.tenths.len());
        self.tenths[range].iter().map(|tenth| tenth.0).sum::<u64>() as f64 / (to - from)
    }

    /// The longest queue between two times, in seconds.
    fn queue(&self, from: f64, to: f64) -> f64 {
        let range = (from * 10.0) as usize..((to * 10.0) as usize).min(self.tenths.len());
        self.tenths[range].iter().map(|tenth| tenth.1).max().unwrap_or(0) as f64 / 1e9
    }
}

const MBIT: f64 = 1e6 / 8.0;

fn auto(link: Link, block: u64) -> Sim {
    Sim::new(Pipeline::Auto, link, block)
}

#[test]
fn it_fills_links_of_every_length_and_queues_little() {
    for (mbit, one_way_ms) in
        [(100.0, 64.0), (1000.0, 64.0), (1000.0, 8.0), (10.0, 32.0), (100.0, 4.0), (2_000.0, 50.0)]
    {
        for block in [64 << 10, 256 << 10, 1 << 20] {
            for tells_path in [false, true] {
                let mut sim = auto(Link::new(mbit * MBIT, one_way_ms), block);
                sim.tells_path = tells_path;
                sim.run(30.0);
                let (rate, queue) = (sim.rate(20.0, 30.0) / (mbit * MBIT), sim.queue(20.0, 30.0));
                let what = format!("{mbit} Mbit/s, {one_way_ms} ms, {block} bytes: {:.3}, queue {queue:.4} s", rate);
                assert!(rate > 0.95, "{what}");
                // A command more or less is what it is; beside that less than half a round trip.
                let transfer = block as f64 / (mbit * MBIT);
                assert!(queue <= one_way_ms / 1e3 + 2.5 * transfer, "{what}");
            }
        }
    }
}

#[test]
fn no_fixed_depth_is_better_by_a_tenth() {
    for (mbit, one_way_ms) in [(100.0, 64.0), (100.0, 2.0), (20.0, 16.0), (1000.0, 8.0)] {
        for block in [16 << 10, 64 << 10, 512 << 10] {
            let mut sim = auto(Link::new(mbit * MBIT, one_way_ms), block);
            sim.run(20.0);
            let is = sim.rate(10.0, 20.0);
            for depth in [1, 2, 5, 10, 64, 256, 1000] {
                let fixed = Pipeline::Fixed { depth, workers: 1 };
                let mut sim = Sim::new(fixed, Link::new(mbit * MBIT, one_way_ms), block);
                sim.run(20.0);
                let best = sim.rate(10.0, 20.0);
                assert!(
                    is > 0.9 * best,
                    "{mbit} Mbit/s, {one_way_ms} ms, {block} bytes, depth {depth}: {is}, not {best}"
                );
            }
        }
    }
}

/// What a read loses is sent again by the other end, of which TCP here tells nothing.
#[test]
fn reads_fill_a_link_that_loses_packets() {
    let mut link = Link::new(100.0 * MBIT, 64.0).lossy(0.001, 64 << 10, 1);
    link.tells_retransmits = false;
    let mut sim = auto(link, 64 << 10);
    (sim.window, sim.tells_path) = (Window::of_reads(Pipeline::Auto), true);
    sim.run(20.0);
    assert!(sim.rate(8.0, 20.0) > 0.8 * 100.0 * MBIT, "{}", sim.rate(8.0, 20.0));
}

/// What is lost arrives a round trip later, and all that follows waits for it: that is no other link, nor a reason to leave this one idle.
#[test]
fn no_fixed_depth_is_better_by_a_tenth_where_packets_are_lost() {
    const SEEDS: u64 = 3;
    for (mbit, one_way_ms, share, kib) in [
        (20.0, 64.0, 0.001, 64),
        (100.0, 64.0, 0.001, 64),
        (100.0, 8.0, 0.001, 64),
        (20.0, 64.0, 0.01, 64),
        (100.0, 64.0, 0.01, 64),
        (100.0, 64.0, 0.01, 256),
        (100.0, 8.0, 0.01, 64),
        (1000.0, 64.0, 0.01, 256),
        (100.0, 64.0, 0.05, 64),
    ] {
        let block = kib << 10;
        // From the beginning, and later on: what was lost while the link was looked for must not stay.
        let (mut is, mut best, mut crowded) = ([0.0; 2], [0.0_f64; 2], 0);
        for seed in 1..=SEEDS {
            let mut run = |pipeline| {
                let link = Link::new(mbit * MBIT, one_way_ms).lossy(share, block, seed);
                let mut sim = Sim::new(pipeline, link, block);
                sim.tells_path = true;
                sim.run(25.0);
                if pipeline == Pipeline::Auto {
                    let limit = one_way_ms * 1e6 + 2.5 * block as f64 / (mbit * MBIT) * 1e9;
                    crowded += sim.tenths[50..].iter().filter(|tenth| tenth.1 as f64 > limit).count();
                }
                [sim.rate(5.0, 10.0), sim.rate(10.0, 25.0)]
            };
            let found = run(Pipeline::Auto);
            let fixed = [4, 10, 64, 1000].map(|depth| run(Pipeline::Fixed { depth, workers: 1 }));
            for at in 0..2 {
                is[at] += found[at];
                best[at] += fixed.iter().map(|rates| rates[at]).fold(0.0, f64::max);
            }
        }
        let what = format!(
            "{mbit} Mbit/s, {one_way_ms} ms, {kib} KiB, loss {share}: {is:?}, best {best:?}, {crowded} tenths of a second with a queue"
        );
        assert!((0..2).all(|at| is[at] > 0.9 * best[at]), "{what}");
        // A heap of answers lets as many commands go at once; that passes.
        assert!(crowded as u64 * 4 < SEEDS * 200, "{what}");
    }
}

#[test]
fn no_fixed_depth_is_better_by_a_tenth_where_delays_vary() {
    for (mbit, one_way_ms, jitter_ms) in [(100.0, 64.0, 10.0), (1000.0, 64.0, 5.0), (100.0, 8.0, 4.0)] {
        let run = |pipeline| {
            let link = Link { jitter_ns: (jitter_ms * 1e6) as u64, ..Link::new(mbit * MBIT, one_way_ms) };
            let mut sim = Sim::new(pipeline, link, 64 << 10);
            sim.tells_path = true;
            sim.run(20.0);
            sim.rate(10.0, 20.0)
        };
        let is = run(Pipeline::Auto);
        let best = [10, 100, 1000].map(|depth| run(Pipeline::Fixed { depth, workers: 1 }));
        let best = best.into_iter().fold(0.0, f64::max);
        assert!(is > 0.9 * best, "{mbit} Mbit/s, {one_way_ms} ms, jitter {jitter_ms} ms: {is}, not {best}");
    }
}

/// BBR empties the pipe for a fifth of a second every ten, to see the way. That is no slower link, and what is then given to the socket
/// has not left; nor where the kernel does not say why nothing is sent.
#[test]
fn a_pause_of_tcps_is_neither_another_link_nor_a_loss() {
    for (mbit, one_way_ms) in [(1000.0, 64.0), (100.0, 64.0), (1000.0, 16.0), (100.0, 8.0)] {
        for (block, tells_pauses) in [(64 << 10, true), (1 << 20, true), (64 << 10, false)] {
            let mut sim = auto(Link::new(mbit * MBIT, one_way_ms), block);
            (sim.tells_path, sim.tells_pauses) = (true, tells_pauses);
            // Something was lost while the link was looked for: from here on the answers' lateness might be a loss's.
            sim.run(2.0);
            sim.link.retransmits += 1;
            let pause_ns = sim.link.way_ns + 200_000_000;
            for _ in 0..3 {
                sim.run(8.0);
                sim.link.retransmits += 1;
                sim.link.paused_until = sim.now + pause_ns;
                sim.run(2.0);
            }
            let (rate, queue) = (sim.rate(12.0, 32.0) / (mbit * MBIT), sim.queue(12.0, 32.0));
            let what = format!("{mbit} Mbit/s, {one_way_ms} ms, {block} bytes: {rate:.3}, queue {queue:.3} s");
            assert!(!tells_pauses || rate > 0.95 * (1.0 - pause_ns as f64 / 1e10), "{what}");
            // All that the window holds went to the socket, and then to the link at once; no more than that.
            let transfer = block as f64 / (mbit * MBIT);
            // The kernel is asked every 50 ms.
            let unseen_s = if tells_pauses || one_way_ms > 50.0 { 0.0 } else { 0.05 };
            assert!(queue < 2.0 * one_way_ms / 1e3 * 2.2 + unseen_s + 2.5 * transfer, "{what}");
        }
    }
}

#[test]
fn a_fixed_depth_is_kept_to() {
    for depth in [1, 2, 10] {
        let mut sim = Sim::new(Pipeline::Fixed { depth, workers: 1 }, Link::new(1000.0 * MBIT, 64.0), 16 << 10);
        sim.run(2.0);
        assert_eq!(sim.answers.len(), depth as usize);
        let each = 0.128 + (16 << 10) as f64 / (1000.0 * MBIT);
        let ideal = f64::from(depth) * (16 << 10) as f64 / each;
        assert!((sim.rate(0.0, 2.0) / ideal - 1.0).abs() < 0.15, "{depth}");
    }
}

#[test]
fn it_follows_a_link_that_becomes_ten_times_slower_and_fast_again() {
    let (fast, slow) = (100.0 * MBIT, 10.0 * MBIT);
    for tells_path in [false, true] {
        let mut sim = auto(Link::new(fast, 32.0), 64 << 10);
        sim.tells_path = tells_path;
        sim.run(10.0);
        sim.link.bytes_per_second = slow;
        sim.run(10.0);
        // What was under way at the change takes ten times as long; five seconds later the queue is gone.
        assert!(sim.rate(15.0, 20.0) > 0.9 * slow, "{} of {slow}", sim.rate(15.0, 20.0));
        assert!(sim.queue(15.0, 20.0) < 0.2, "{}", sim.queue(15.0, 20.0));
        sim.link.bytes_per_second = fast;
        sim.run(10.0);
        assert!(sim.rate(25.0, 30.0) > 0.9 * fast, "{} of {fast}", sim.rate(25.0, 30.0));
    }
}

/// A target that writes to disks that are busy: TCP sees nothing of it.
#[test]
fn it_follows_a_target_that_becomes_ten_times_slower() {
    let (fast, slow) = (100.0 * MBIT, 10.0 * MBIT);
    let mut sim = auto(Link::new(fast, 32.0), 64 << 10);
    (sim.tells_path, sim.link.is_target) = (true, true);
    sim.run(10.0);
    sim.link.bytes_per_second = slow;
    sim.run(10.0);
    assert!(sim.rate(15.0, 20.0) > 0.9 * slow, "{} of {slow}", sim.rate(15.0, 20.0));
    assert!(sim.queue(15.0, 20.0) < 0.2, "{}", sim.queue(15.0, 20.0));
}

#[test]
fn it_follows_a_way_that_becomes_longer_or_shorter() {
    let rate = 100.0 * MBIT;
    let mut sim = auto(Link::new(rate, 10.0), 64 << 10);
    for one_way_ms in [10.0, 80.0, 10.0] {
        sim.link.way_ns = (2e6 * one_way_ms) as u64;
        let begun = sim.now as f64 / 1e9;
        sim.run(15.0);
        let (is, queue) = (sim.rate(begun + 8.0, begun + 15.0), sim.queue(begun + 8.0, begun + 15.0));
        assert!(is > 0.9 * rate, "{one_way_ms} ms: {is} of {rate}");
        assert!(queue < one_way_ms / 1e3 + 0.02, "{one_way_ms} ms: {queue}");
    }
}

#[test]
fn an_application_that_offers_too_much_and_not_more_is_held_back_too() {
    // Two and a half times what fills the link: less than the window may have been before the link was known.
    let mut sim = auto(Link::new(100.0 * MBIT, 64.0), 64 << 10);
    sim.depth_max = 64;
    sim.run(20.0);
    assert!(sim.rate(10.0, 20.0) > 0.95 * 100.0 * MBIT);
    assert!(sim.queue(10.0, 20.0) < 0.08, "{}", sim.queue(10.0, 20.0));
    assert!(sim.window.window_bytes().unwrap() < 3 << 20);
}

#[test]
fn a_short_way_limits_nothing() {
    let mut window = Window::new(Pipeline::Auto);
    let (round_trip, smallest) = (Duration::from_micros(300), Duration::from_micros(50));
    window.path(PathSample { round_trip, smallest, unsent_bytes: 0, retransmits: 0, is_paused: false });
    let now = Instant::now();
    for _ in 0..10_000 {
        assert!(window.may_send(1 << 20));
        window.sent(now, 1 << 20);
    }
    assert_eq!((window.window_bytes(), window.status().depth), (None, None));
}

#[test]
fn few_writes_do_not_mislead_the_estimator() {
    // One block every 50 ms for a minute, then as fast as it goes: the window has not shrunk to what was written.
    let mut sim = auto(Link::new(100.0 * MBIT, 32.0), 64 << 10);
    sim.run(10.0);
    sim.depth_max = 0;
    sim.run(1.0);
    let before = sim.window.window_bytes().unwrap();
    for _ in 0..1200 {
        let flight = sim.window.sent(sim.time(), 4096);
        sim.now += 50_000_000 + sim.link.way_ns;
        sim.window.answered(sim.time(), &flight, true);
    }
    assert!(sim.window.window_bytes().unwrap() > before / 2, "{:?} after {before}", sim.window.window_bytes());
}

#[test]
fn workers_are_as_many_as_keep_up_with_the_link() {
    let mut sim = auto(Link::new(1000.0 * MBIT, 4.0), 64 << 10);
    sim.run(5.0);
    for (seal, workers_max, workers) in [(3e9, 8, 0), (60e6, 8, 3), (20e6, 4, 4), (0.0, 8, 0)] {
        assert_eq!(sim.window.workers(seal, workers_max), workers, "{seal}");
    }
    assert_eq!(Window::new(Pipeline::Fixed { depth: 1, workers: 4 }).workers(1e6, 8), 0, "no overlap");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// On every link, and with commands of different sizes and answers that come late now and then.
    #[test]
    fn any_link_is_filled(
        kbit in 3.5f64..6.0,
        one_way_ms in 1.0f64..100.0,
        block in prop_oneof![Just(16_u64 << 10), Just(64 << 10), Just(1 << 20)],
    ) {
        let rate = 10f64.powf(kbit) * 1e3 / 8.0;
        let mut sim = auto(Link::new(rate, one_way_ms), block);
        // Long enough for rounds of a whole command's transfer.
        let seconds = 20.0 + 400.0 * block as f64 / rate;
        sim.run(seconds);
        let is = sim.rate(seconds / 2.0, seconds.floor());
        prop_assert!(is > 0.9 * rate * (1.0 - 2.0 * block as f64 / rate / seconds), "{is} of {rate}");
    }
}

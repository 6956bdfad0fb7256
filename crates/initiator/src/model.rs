//! How fast writes go over a long way, and how many must be under way: the WAN paper's equations, and the form with two knobs.
//!
//! "The WAN paper" is Kamisaka, Yamaguchi, Oguchi, *Implementation and Evaluation of Secure and Optimized IP-SAN Mechanism*. Its
//! section VI models one process that encrypts a block, sends it, and waits (equations (1) to (3)), two that take turns (4), and how
//! many can (5), (6): [`Paper`]. There *n* is one knob: each process has one block under way and encrypts the next by itself.
//!
//! The pipeline has two knobs, because encrypting costs a processor and waiting costs only memory: *n* writes under way, *c* workers
//! that seal ahead ([`Depth`]). [`Conditions`] is the same model in that form. Pure: no clock, no sockets; times are [`Duration`],
//! rates bytes per second, sizes bytes.

use std::time::Duration;

/// The quantities of the WAN paper's section VI, in its terms.
///
/// `RTT` is the whole round trip, both ways. The paper's figures are labelled by the *one-way* delay: "64 ms" is an `rtt` of 128 ms,
/// and only so do its values of *n* follow from equation (6) (see this module's tests).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paper {
    /// RTT: from one end to the other and back.
    pub rtt: Duration,
    /// SOCKET: what a plain TCP connection carries below iSCSI, in bytes per second.
    pub socket: f64,
    /// ENC_TH: what the initiator encrypts, in bytes per second.
    pub enc_th: f64,
    /// DEC_TH: what the target decrypts, in bytes per second; infinite for a target that does not.
    pub dec_th: f64,
}

impl Paper {
    /// Equation (2): TRANSFER = DATASIZE / SOCKET, in seconds.
    pub fn transfer(&self, block: f64) -> f64 {
        block / self.socket
    }

    /// ENC of equations (1), (5), (6): one block's encryption, in seconds.
    pub fn enc(&self, block: f64) -> f64 {
        block / self.enc_th
    }

    /// DEC of equations (1), (5), (6): one block's decryption, in seconds.
    pub fn dec(&self, block: f64) -> f64 {
        block / self.dec_th
    }

    /// Equation (1): 1CYCLE = 2·RTT + TRANSFER + ENC + DEC, in seconds: encrypt, command and R2T (one RTT), data and response
    /// (another), decrypt.
    pub fn one_cycle(&self, block: f64) -> f64 {
        2.0 * self.rtt.as_secs_f64() + self.transfer(block) + self.enc(block) + self.dec(block)
    }

    /// Equation (3): throughput one at a time without overlap, BLOCK / 1CYCLE, in bytes per second.
    pub fn throughput_without_overlap(&self, block: f64) -> f64 {
        block / self.one_cycle(block)
    }

    /// Equation (4): throughput of two that take turns (OP-2), BLOCK / (RTT + TRANSFER + ENC), in bytes per second: the next block
    /// is encrypted while the one before it is waited for, and decryption hides behind encryption.
    pub fn throughput_with_overlap(&self, block: f64) -> f64 {
        block / (self.rtt.as_secs_f64() + self.transfer(block) + self.enc(block))
    }

    /// The left side of equation (5), 2·RTT + DEC: how long one block's process waits in a cycle, in seconds.
    pub fn waiting(&self, block: f64) -> f64 {
        2.0 * self.rtt.as_secs_f64() + self.dec(block)
    }

    /// Equations (5) and (6): n = (2·RTT + DEC) / (ENC + TRANSFER): this many processes fill the waiting time, and up to
    /// this number the throughput grows n times.
    pub fn ideal_n(&self, block: f64) -> f64 {
        self.waiting(block) / (self.enc(block) + self.transfer(block))
    }

    /// What follows from (3) and (6) for OP-`n`: `n` times equation (3), as far as filling the waiting goes: what the initiator
    /// encrypts and the link carries one after the other, BLOCK / (ENC + TRANSFER), is the end of it.
    pub fn throughput_of(&self, n: u32, block: f64) -> f64 {
        let linear = f64::from(n) * self.throughput_without_overlap(block);
        linear.min(block / (self.enc(block) + self.transfer(block)))
    }
}

/// What a write meets on its way, for the form with two knobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// From one end to the other and back, on a link without a queue.
    pub rtt: Duration,
    /// What the link carries in the direction of the writes, in bytes per second of payload.
    pub link_bytes_per_second: f64,
    /// What one worker seals, in bytes per second.
    pub seal_bytes_per_second_per_worker: f64,
    /// What the target does with a block before it answers, in bytes per second: opens it, stores it. Infinite if that is no matter.
    pub target_bytes_per_second: f64,
    /// Bytes of one write.
    pub block_bytes: u64,
    /// Round trips that a write takes: 1 if its data goes with its command, 2 if it waits for an R2T.
    pub round_trips: u32,
}

/// What the two knobs must not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Writes under way: what the target's command window and ours admit.
    pub n_max: u32,
    /// Workers: the processors that may seal.
    pub c_max: u32,
    /// Bytes of writes under way.
    pub bytes_max: u64,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { n_max: 1024, c_max: 64, bytes_max: 256 << 20 }
    }
}

/// The two knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    /// Writes under way at once.
    pub n: u32,
    /// Workers that seal ahead.
    pub c: u32,
}

/// What limits a throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// Waiting for answers: more writes under way would help.
    Latency,
    /// What the link carries.
    Link,
    /// What the workers seal.
    Sealing,
    /// What the target opens or stores.
    Target,
}

impl Bottleneck {
    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Bottleneck::Latency => "latency",
            Bottleneck::Link => "link",
            Bottleneck::Sealing => "sealing",
            Bottleneck::Target => "target",
        }
    }
}

/// How much more than what just fills the link is kept under way, so that an answer that is late by a little leaves no gap. The queue
/// that this builds adds at most this share to others' round trips.
const SLACK: f64 = 0.125;

/// Bytes that are sealed as one, as volumes have them if nothing else is asked for.
pub const SEALED_BLOCK_BYTES: u64 = 4096;
/// What a sealed block brings along: its seal record and its place in the header segment.
const RECORD_BYTES: u64 = 64;
/// What a command, its answer and their frames cost.
const COMMAND_BYTES: u64 = 256;

/// What remains for block data, in bytes per second, of a connection that carries `payload` bytes per second, with writes of
/// `block_bytes`: seal records and commands take their part.
pub fn block_data_rate(payload: f64, block_bytes: u64) -> f64 {
    let overhead = block_bytes.div_ceil(SEALED_BLOCK_BYTES) * RECORD_BYTES + COMMAND_BYTES;
    payload * block_bytes as f64 / (block_bytes + overhead) as f64
}

impl Conditions {
    fn block(&self) -> f64 {
        self.block_bytes as f64
    }

    /// A write's time from the first byte sent to its answer, in seconds, if nothing else is on the way: equation (1) without ENC,
    /// with as many round trips as it takes.
    pub fn flight(&self) -> f64 {
        f64::from(self.round_trips) * self.rtt.as_secs_f64()
            + self.block() / self.link_bytes_per_second
            + self.block() / self.target_bytes_per_second
    }

    /// Bytes per second of one at a time without overlap: seal, send, wait. Equation (3).
    pub fn throughput_without_overlap(&self) -> f64 {
        self.block() / (self.flight() + self.block() / self.seal_bytes_per_second_per_worker)
    }

    /// Bytes per second with `depth`, and what limits them: n blocks in each flight, but no more than the link, the workers and the
    /// target manage. With one write under way nothing is sealed ahead.
    pub fn throughput(&self, depth: Depth) -> (f64, Bottleneck) {
        if depth.n <= 1 {
            let one = self.throughput_without_overlap();
            let waiting = f64::from(self.round_trips) * self.rtt.as_secs_f64();
            return (one, self.largest_share(waiting));
        }
        let candidates = [
            (f64::from(depth.n) * self.block() / self.flight(), Bottleneck::Latency),
            (self.link_bytes_per_second, Bottleneck::Link),
            (f64::from(depth.c.max(1)) * self.seal_bytes_per_second_per_worker, Bottleneck::Sealing),
            (self.target_bytes_per_second, Bottleneck::Target),
        ];
        candidates.into_iter().min_by(|one, other| one.0.total_cmp(&other.0)).expect("there are four")
    }

    /// The same for `--pipeline n`, the paper's OP-n: n counts from the beginning of a write's sealing, so that a cycle is equation (1)'s,
    /// with ENC in it.
    pub fn throughput_of_fixed(&self, depth: Depth) -> (f64, Bottleneck) {
        let cycles = (f64::from(depth.n) * self.throughput_without_overlap(), Bottleneck::Latency);
        let rest = self.throughput(depth);
        if depth.n > 1 && cycles.0 < rest.0 { cycles } else { rest }
    }

    /// Bytes per second of several initiators together over one link, `one` being what one does that has it for itself.
    ///
    /// Each alone is as regular as a clock, but they do not know of each other, and where they meet one waits. How long is what mean value
    /// analysis says (Reiser and Lavenberg, *Mean-Value Analysis of Closed Multichain Queuing Networks*, JACM 27(2), 1980, with one class):
    /// what an initiator meets at the link is what all others have there on average. The link is the queue; the rest of a write's cycle is
    /// delay.
    pub fn throughput_of_several(&self, one: f64, depth: Depth, initiators: u32) -> f64 {
        if initiators <= 1 {
            return one;
        }
        let service = self.block() / self.link_bytes_per_second;
        let elsewhere = (f64::from(depth.n) * self.block() / one - service).max(0.0);
        let (mut queued, mut rate) = (0.0, 0.0);
        for customers in 1..=u64::from(depth.n) * u64::from(initiators) {
            let at_link = service * (1.0 + queued);
            rate = customers as f64 / (at_link + elsewhere);
            queued = rate * at_link;
        }
        rate * self.block()
    }

    fn largest_share(&self, waiting: f64) -> Bottleneck {
        let shares = [
            (waiting, Bottleneck::Latency),
            (self.block() / self.link_bytes_per_second, Bottleneck::Link),
            (self.block() / self.seal_bytes_per_second_per_worker, Bottleneck::Sealing),
            (self.block() / self.target_bytes_per_second, Bottleneck::Target),
        ];
        shares.into_iter().max_by(|one, other| one.0.total_cmp(&other.0)).expect("there are four").1
    }

    /// Bytes that are under way when the link is just full: the product of bandwidth and delay, for all round trips of a write.
    pub fn bandwidth_delay_bytes(&self) -> f64 {
        self.link_bytes_per_second * f64::from(self.round_trips) * self.rtt.as_secs_f64()
    }

    /// Bytes of memory that the pipeline holds with `depth`: each write under way sealed, and for each worker one block that it
    /// seals, plain and sealed.
    pub fn memory_bytes(&self, depth: Depth) -> u64 {
        (u64::from(depth.n) + 2 * u64::from(depth.c)) * self.block_bytes
    }
}

/// The depth that fills what is slowest (link, all workers, target) and queues hardly anything: *c* workers seal as fast as that
/// goes, *n* blocks bridge a write's flight at that rate (equation (6) with sealing taken out of the cycle), and an eighth more.
///
/// Never more than `bounds`; *n* at least 2, so that sealing overlaps sending, unless the bounds say 1; rates that are zero, negative
/// or not numbers, as before a first measurement, count as unlimited, and a link of unlimited rate gives the bounds' *n*.
pub fn ideal_depth(conditions: &Conditions, bounds: &Bounds) -> Depth {
    let usable = |rate: f64| if rate > 0.0 { rate } else { f64::INFINITY };
    let conditions = Conditions {
        link_bytes_per_second: usable(conditions.link_bytes_per_second),
        seal_bytes_per_second_per_worker: usable(conditions.seal_bytes_per_second_per_worker),
        target_bytes_per_second: usable(conditions.target_bytes_per_second),
        block_bytes: conditions.block_bytes.max(1),
        ..*conditions
    };
    let c_max = bounds.c_max.max(1);
    let seal = conditions.seal_bytes_per_second_per_worker;
    let outside = conditions.link_bytes_per_second.min(conditions.target_bytes_per_second);
    let c = if outside.is_infinite() { c_max } else { at_least_one((outside / seal).ceil(), c_max) };
    let goal = outside.min(f64::from(c) * seal);
    let n_max = bounds.n_max.min(u32::try_from(bounds.bytes_max / conditions.block_bytes).unwrap_or(u32::MAX)).max(1);
    let n = if goal.is_infinite() {
        n_max
    } else {
        let filling = conditions.flight() * goal / conditions.block();
        at_least_one((filling * (1.0 + SLACK)).ceil(), n_max)
    };
    Depth { n: n.max(2).min(n_max), c }
}

/// A number that was rounded up, within 1 and `max`.
fn at_least_one(wanted: f64, max: u32) -> u32 {
    if wanted >= f64::from(max) { max } else { (wanted as u32).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: f64 = 1024.0;
    const MIB: f64 = 1024.0 * KIB;

    /// 64 ms one way. Encryption at 10.82 MB/s is printed in the paper (VI.B); SOCKET is not, and 2.30 MiB/s is the value that gives
    /// all three of its n.
    fn papers_64_ms() -> Paper {
        Paper { rtt: Duration::from_millis(128), socket: 2.30 * MIB, enc_th: 10.82 * MIB, dec_th: 10.82 * MIB }
    }

    #[test]
    fn equation_6_gives_the_papers_n() {
        let paper = papers_64_ms();
        for (block, n) in [(32.0, 15.7), (64.0, 7.9), (128.0, 4.1)] {
            assert_eq!((paper.ideal_n(block * KIB) * 10.0).round() / 10.0, n, "{block} KiB");
        }
        // With 64 ms as the whole round trip no link gives them: the label is one way.
        let fits = |socket: f64| {
            let other = Paper { rtt: Duration::from_millis(64), socket: socket * MIB, ..paper };
            [(32.0, 15.7), (64.0, 7.9), (128.0, 4.1)].iter().all(|(b, n)| (other.ideal_n(b * KIB) - n).abs() <= 0.05)
        };
        assert!((10..2000).all(|hundredths| !fits(f64::from(hundredths) / 100.0)));
    }

    #[test]
    fn equations_1_to_4_by_hand() {
        // A second each way of 1 MiB: 2·RTT 0.4 s, TRANSFER 0.5 s, ENC 0.25 s, DEC 0.1 s.
        let paper = Paper { rtt: Duration::from_millis(200), socket: 2.0 * MIB, enc_th: 4.0 * MIB, dec_th: 10.0 * MIB };
        let near = |is: f64, should: f64| assert!((is - should).abs() < 1e-9 * should, "{is}, not {should}");
        near(paper.transfer(MIB), 0.5);
        near(paper.one_cycle(MIB), 1.25);
        near(paper.throughput_without_overlap(MIB), MIB / 1.25);
        near(paper.throughput_with_overlap(MIB), MIB / 0.95);
        near(paper.waiting(MIB), 0.5);
        near(paper.ideal_n(MIB), 0.5 / 0.75);
    }

    #[test]
    fn op_n_is_linear_to_n_and_flat_beyond() {
        // Figure 16: linear to OP-10 at 16 and 32 KiB; no more than OP-8 brings at 64 KiB, OP-4 at 128 KiB.
        let paper = papers_64_ms();
        let gain =
            |from: u32, to: u32, kib: f64| paper.throughput_of(to, kib * KIB) / paper.throughput_of(from, kib * KIB);
        for kib in [16.0, 32.0] {
            assert!((gain(2, 10, kib) - 5.0).abs() < 1e-9, "{kib} KiB");
        }
        assert!((gain(2, 8, 64.0) - 4.0).abs() < 1e-9);
        assert!(gain(8, 10, 64.0) < 1.15);
        assert!((gain(2, 4, 128.0) - 2.0).abs() < 1e-9);
        assert!(gain(6, 10, 128.0) < 1.01);
    }

    fn gigabit_64_ms(block_bytes: u64) -> Conditions {
        Conditions {
            rtt: Duration::from_millis(128),
            link_bytes_per_second: 118e6,
            seal_bytes_per_second_per_worker: 3e9,
            target_bytes_per_second: f64::INFINITY,
            block_bytes,
            round_trips: 1,
        }
    }

    #[test]
    fn the_two_knob_form_is_the_papers_with_one_worker_and_two_round_trips() {
        let paper = papers_64_ms();
        for block in [16.0 * KIB, 64.0 * KIB, MIB] {
            let conditions = Conditions {
                rtt: paper.rtt,
                link_bytes_per_second: paper.socket,
                seal_bytes_per_second_per_worker: paper.enc_th,
                target_bytes_per_second: paper.dec_th,
                block_bytes: block as u64,
                round_trips: 2,
            };
            let (two, one) = (conditions.throughput_without_overlap(), paper.throughput_without_overlap(block));
            assert!((two - one).abs() < 1e-6 * one, "{block}: {two}, not {one}");
            let depth = Depth { n: 4, c: 1 };
            let (fixed, limit) = conditions.throughput_of_fixed(depth);
            let (four, linear) = (paper.throughput_of(4, block), 4.0 * one);
            if four >= linear {
                assert!(
                    (fixed - four).abs() < 1e-6 * four && limit == Bottleneck::Latency,
                    "{block}: {fixed}, not {four}"
                );
            }
            assert!(fixed <= conditions.throughput(depth).0, "sealing ahead of the window is no slower");
        }
    }

    #[test]
    fn several_initiators_wait_for_each_other_at_the_link() {
        // 64 KiB over 16 ms, of which the link takes 5.6: measured were 5.2 MiB/s of two that write one at a time, 8.8 of four.
        let link = 11.286 * MIB;
        let conditions =
            Conditions { rtt: Duration::from_millis(16), link_bytes_per_second: link, ..gigabit_64_ms(65536) };
        let depth = Depth { n: 1, c: 1 };
        let (one, _) = conditions.throughput(depth);
        let of = |count: u32| conditions.throughput_of_several(one, depth, count) / MIB;
        assert!((of(1) - one / MIB).abs() < 1e-9);
        assert!((5.2..5.5).contains(&of(2)) && (8.8..9.3).contains(&of(4)), "{} {}", of(2), of(4));
        assert!(of(100) > 11.2 && of(100) <= 11.287, "the link is the end of it: {}", of(100));
        let far = Conditions { rtt: Duration::from_millis(500), ..conditions };
        let (one, _) = far.throughput(depth);
        assert!((far.throughput_of_several(one, depth, 4) / one - 4.0).abs() < 0.01, "they hardly meet");
    }

    #[test]
    fn the_ideal_depth_fills_the_link_and_hardly_more() {
        for block_bytes in [16 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let conditions = gigabit_64_ms(block_bytes);
            let depth = ideal_depth(&conditions, &Bounds { n_max: 4096, ..Bounds::default() });
            assert_eq!(depth.c, 1, "one worker seals far more than 1 Gbit/s");
            assert_eq!(conditions.throughput(depth), (118e6, Bottleneck::Link), "{block_bytes}");
            let fewer = Depth { n: depth.n * 5 / 6, ..depth };
            assert!(conditions.throughput(fewer).0 < 118e6 || depth.n < 20, "{block_bytes}: {depth:?} is too much");
            // The queue adds an eighth to a round trip, and a block or two because blocks are whole.
            let under_way = f64::from(depth.n) * conditions.block_bytes as f64;
            let queue = under_way - conditions.bandwidth_delay_bytes();
            assert!(queue <= 0.125 * conditions.bandwidth_delay_bytes() + 2.5 * block_bytes as f64, "{block_bytes}");
        }
    }

    #[test]
    fn slow_sealing_gets_workers_and_is_then_the_goal() {
        let slow = Conditions { seal_bytes_per_second_per_worker: 30e6, ..gigabit_64_ms(65536) };
        assert_eq!(ideal_depth(&slow, &Bounds::default()).c, 4);
        let two = ideal_depth(&slow, &Bounds { c_max: 2, ..Bounds::default() });
        assert_eq!(two.c, 2);
        assert_eq!(slow.throughput(two), (60e6, Bottleneck::Sealing));
        assert!(two.n < ideal_depth(&slow, &Bounds::default()).n, "no more is kept under way than can be sealed");
        let opened = Conditions { target_bytes_per_second: 10e6, ..gigabit_64_ms(65536) };
        assert_eq!(opened.throughput(ideal_depth(&opened, &Bounds::default())).1, Bottleneck::Target);
    }

    #[test]
    fn bounds_hold_for_every_measurement() {
        let bounds = Bounds { n_max: 32, c_max: 3, bytes_max: 1 << 20 };
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-3, 1.0, 1e18] {
            for seal in [0.0, f64::NAN, f64::INFINITY, 1.0, 1e12] {
                for rtt in [Duration::ZERO, Duration::from_micros(1), Duration::MAX] {
                    for block_bytes in [0, 1, 512, 65536, 1 << 20, u64::MAX] {
                        let conditions = Conditions {
                            rtt,
                            link_bytes_per_second: rate,
                            seal_bytes_per_second_per_worker: seal,
                            block_bytes,
                            ..gigabit_64_ms(1)
                        };
                        let depth = ideal_depth(&conditions, &bounds);
                        let bytes = u64::from(depth.n).saturating_mul(block_bytes);
                        assert!((1..=32).contains(&depth.n) && (1..=3).contains(&depth.c), "{depth:?} {conditions:?}");
                        assert!(depth.n == 1 || bytes <= 1 << 20, "{depth:?} {conditions:?}");
                    }
                }
            }
        }
        let near = Conditions { rtt: Duration::from_micros(50), ..gigabit_64_ms(65536) };
        assert_eq!(ideal_depth(&near, &Bounds::default()), Depth { n: 2, c: 1 });
        assert_eq!(ideal_depth(&gigabit_64_ms(65536), &Bounds { n_max: 1, ..bounds }).n, 1);
    }

    #[test]
    fn what_one_at_a_time_waits_for_is_named() {
        let one = Depth { n: 1, c: 1 };
        assert_eq!(gigabit_64_ms(65536).throughput(one).1, Bottleneck::Latency);
        let slow = Conditions { link_bytes_per_second: 1e5, ..gigabit_64_ms(65536) };
        assert_eq!(slow.throughput(one).1, Bottleneck::Link);
        assert_eq!(gigabit_64_ms(65536).memory_bytes(Depth { n: 10, c: 2 }), 14 * 65536);
    }
}

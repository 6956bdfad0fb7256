//! `strongroom plan`: what the WAN paper's model says of a link, before or beside a measurement of it.
//!
//! Absent: the model (`strongroom_initiator::model`) and the measurement (`strongroom_initiator::measure_path`).

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use strongroom_block::{BlockSize, Suite};
use strongroom_initiator::model::{
    Bottleneck, Bounds, Conditions, Depth, Paper, SEALED_BLOCK_BYTES, block_data_rate, ideal_depth,
};
use strongroom_initiator::{PathLimits, PathMeasurement, VolumeUrl, first_burst_bytes, measure_path};

use crate::access::AccessArgs;
use crate::plot::{Chart, Figure, Look, Series, Value, draw};
use crate::stopwatch::seal_rate;
use crate::units::{long_size, parse_duration, parse_rate, parse_size, show_size};

/// Payload of a full TCP segment with time stamps in an IP packet of 1500 bytes.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
/// Columns of the longest bar.
const BAR: usize = 40;

/// Predict how fast writes go over a long way, one at a time and pipelined, and which depth fills the link.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom plan --rtt 128ms --rate 1Gbit --block 64KiB\n  \
    strongroom plan --measure strongroom://storage/vault --block 64KiB\n  \
    strongroom plan --rtt 128ms --rate 100Mbit --block 32KiB --seal-rate 11MiB --open-at-target --round-trips 2 --plot plan.svg\n\n\
    The round trip is there and back; the WAN paper's figures are labelled by one way, so its 64 ms is --rtt 128ms here.")]
pub(crate) struct PlanArgs {
    /// The round trip, there and back.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, required_unless_present = "measure")]
    rtt: Option<Duration>,
    /// What the link carries, in bits of IP packets a second.
    #[arg(long, value_name = "RATE", value_parser = parse_rate, required_unless_present = "measure")]
    rate: Option<u64>,
    /// Measure round trip and rate at this target instead of being told. Nothing is attached, read or written: data is echoed by the
    /// target (NOP-Out), at most --measure-bytes each way, and the rate is that of the slower direction.
    #[arg(long, value_name = "URL")]
    measure: Option<VolumeUrl>,
    /// What a measurement may send.
    #[arg(long, value_name = "SIZE", default_value = "128MiB", value_parser = parse_size)]
    measure_bytes: u64,
    /// Bytes of one write.
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = parse_size)]
    block: u64,
    /// The cipher of the volume; how fast this machine seals by it is measured.
    #[arg(id = "volume_suite", long = "suite", value_name = "SUITE", default_value = "aes-256-gcm")]
    suite: Suite,
    /// Bytes a second that one worker seals, instead of measuring it.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    seal_rate: Option<u64>,
    /// The target opens what arrives (a volume made with --open-at-target), as fast as we seal.
    #[arg(long)]
    open_at_target: bool,
    /// Round trips that a write takes: 1 if its data goes with its command, 2 if it waits to be asked for (R2T) [default: 1 up to
    /// the length of a first burst, 2 beyond].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=2))]
    round_trips: Option<u32>,
    /// Workers that may seal [default: this machine's processors].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// One JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// Draw throughput against depth into this file, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    access: AccessArgs,
}

/// Runs the command.
pub(crate) fn run(args: &PlanArgs) -> Result<()> {
    if !(512..=16 << 20).contains(&args.block) || !args.block.is_multiple_of(512) {
        bail!("writes of {} bytes cannot be planned; give --block 512 to 16MiB, a multiple of 512", args.block);
    }
    let measured = args.measure.as_ref().map(|url| args.measure(url)).transpose()?;
    let plan = Plan::new(args, measured.as_ref())?;
    if let Some(path) = &args.plot {
        fs::write(path, draw(&plan.figure())).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        println!("{}", plan.to_json(measured.as_ref()));
    } else {
        print!("{}", plan.in_words(measured.as_ref()));
    }
    Ok(())
}

impl PlanArgs {
    fn measure(&self, url: &VolumeUrl) -> Result<PathMeasurement> {
        let options = self.access.portal(url, url.is_channel())?;
        let limits = PathLimits { bytes_max: self.measure_bytes, ..PathLimits::default() };
        measure_path(&options, limits).with_context(|| format!("cannot measure the way to {}", url.host()))
    }
}

/// What is known, and what follows.
struct Plan {
    conditions: Conditions,
    bounds: Bounds,
    ideal: Depth,
    suite: Suite,
    seal_is_measured: bool,
    /// What the paper's equations make of the same numbers.
    paper: Paper,
}

impl Plan {
    fn new(args: &PlanArgs, measured: Option<&PathMeasurement>) -> Result<Plan> {
        let rtt = args.rtt.or(measured.map(|path| path.rtt)).context("give --rtt, or --measure URL")?;
        let told = args.rate.map(|bits| bits as f64 / 8.0 * PAYLOAD_SHARE);
        let payload = told.or(measured.map(|path| path.bytes_per_second)).context("give --rate, or --measure URL")?;
        let block_size = BlockSize::new(args.block.min(SEALED_BLOCK_BYTES).next_power_of_two())?;
        let seal = args.seal_rate.map_or_else(|| seal_rate(args.suite, block_size), |rate| rate as f64);
        if payload <= 0.0 || seal <= 0.0 {
            bail!("a rate of 0 cannot be planned; give --rate and --seal-rate above 0");
        }
        let conditions = Conditions {
            rtt,
            link_bytes_per_second: block_data_rate(payload, args.block),
            seal_bytes_per_second_per_worker: seal,
            target_bytes_per_second: if args.open_at_target { seal } else { f64::INFINITY },
            block_bytes: args.block,
            round_trips: args.round_trips.unwrap_or(if args.block <= first_burst_bytes() { 1 } else { 2 }),
        };
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let bounds = Bounds { c_max: args.workers.unwrap_or(processors), n_max: 4096, ..Bounds::default() };
        let paper = Paper {
            rtt,
            socket: conditions.link_bytes_per_second,
            enc_th: seal,
            dec_th: conditions.target_bytes_per_second,
        };
        let ideal = ideal_depth(&conditions, &bounds);
        Ok(Plan { conditions, bounds, ideal, suite: args.suite, seal_is_measured: args.seal_rate.is_none(), paper })
    }

    /// 1, 2, 4, … and the ideal one, in order.
    fn depths(&self) -> Vec<u32> {
        let top = (2 * self.ideal.n).min(self.bounds.n_max).max(16);
        let mut depths: Vec<u32> = (0..).map(|power| 1 << power).take_while(|n| *n <= top).collect();
        depths.push(self.ideal.n);
        depths.sort_unstable();
        depths.dedup();
        depths
    }

    fn at(&self, n: u32) -> (f64, Bottleneck) {
        self.conditions.throughput(Depth { n, c: self.ideal.c })
    }

    fn in_words(&self, measured: Option<&PathMeasurement>) -> String {
        let mut out = String::new();
        let conditions = &self.conditions;
        let block = long_size(conditions.block_bytes);
        let mbit = |bytes_per_second: f64| bytes_per_second * 8.0 / 1e6;
        if let Some(path) = measured {
            let settled = if path.is_settled { "" } else { "; it was still growing, so the path may carry more" };
            let _ = writeln!(
                out,
                "Measured by echoes, {} each way in {:.1} s: round trip {:.2} ms, the slower direction {:.1} Mbit/s of payload{settled}.",
                show_size(path.bytes),
                path.elapsed.as_secs_f64(),
                path.rtt.as_secs_f64() * 1e3,
                mbit(path.bytes_per_second)
            );
        }
        let whence = if self.seal_is_measured { "measured here" } else { "as told" };
        let _ = writeln!(
            out,
            "Writes of {block}, {} round trip{} of {:.2} ms each; the link carries {:.1} Mbit/s of block data; one worker seals {} a second \
             ({}, {whence}); {}.\n",
            conditions.round_trips,
            if conditions.round_trips == 1 { "" } else { "s" },
            conditions.rtt.as_secs_f64() * 1e3,
            mbit(conditions.link_bytes_per_second),
            show_size(conditions.seal_bytes_per_second_per_worker as u64),
            self.suite,
            if conditions.target_bytes_per_second.is_finite() {
                "the target opens them, as fast"
            } else {
                "the target stores them as they arrive"
            }
        );
        self.write_predictions(&mut out);
        out
    }

    /// The predicted rates: one write at a time, the ideal depth, the paper's equations, and a bar for each depth.
    fn write_predictions(&self, out: &mut String) {
        let conditions = &self.conditions;
        let (alone, alone_limit) = self.at(1);
        let (full, full_limit) = self.at(self.ideal.n);
        let mib = |rate: f64| rate / f64::from(1 << 20);
        let _ = writeln!(out, "  one at a time    {:>9.3} MiB/s  (limit: {})", mib(alone), alone_limit.name());
        let _ = writeln!(
            out,
            "  pipelined        {:>9.3} MiB/s  (limit: {}): {:.1} times as fast",
            mib(full),
            full_limit.name(),
            full / alone
        );
        let _ = writeln!(
            out,
            "  ideal            n = {} writes under way, c = {} worker{} sealing; {} of memory (--pipeline {}/{})",
            self.ideal.n,
            self.ideal.c,
            if self.ideal.c == 1 { "" } else { "s" },
            show_size(conditions.memory_bytes(self.ideal)),
            self.ideal.n,
            self.ideal.c
        );
        let block = conditions.block_bytes as f64;
        let _ = writeln!(
            out,
            "  the WAN paper    equation (3): {:.3} MiB/s, (4): {:.3} MiB/s, (6): n = {:.1} (two round trips a write, no workers apart)\n",
            mib(self.paper.throughput_without_overlap(block)),
            mib(self.paper.throughput_with_overlap(block)),
            self.paper.ideal_n(block)
        );
        let _ = writeln!(out, "  {:>5}  {:>9}", "n", "MiB/s");
        for n in self.depths() {
            let (rate, limit) = self.at(n);
            let bar = "#".repeat(((rate / full * BAR as f64).round() as usize).clamp(1, BAR));
            let mark = if n == self.ideal.n { " <- ideal" } else { "" };
            let _ = writeln!(out, "  {n:>5}  {:>9.3}  {bar:<BAR$} {}{mark}", mib(rate), limit.name());
        }
    }

    fn to_json(&self, measured: Option<&PathMeasurement>) -> serde_json::Value {
        let conditions = &self.conditions;
        let finite = |rate: f64| rate.is_finite().then_some(rate);
        let block = conditions.block_bytes as f64;
        let (pipelined, limit) = self.at(self.ideal.n);
        json!({
            "rtt_ms": conditions.rtt.as_secs_f64() * 1e3,
            "link_bytes_per_second": conditions.link_bytes_per_second,
            "seal_bytes_per_second_per_worker": conditions.seal_bytes_per_second_per_worker,
            "target_bytes_per_second": finite(conditions.target_bytes_per_second),
            "suite": self.suite.name(),
            "block_bytes": conditions.block_bytes,
            "round_trips": conditions.round_trips,
            "one_at_a_time_bytes_per_second": self.at(1).0,
            "pipelined_bytes_per_second": pipelined,
            "limit": limit.name(),
            "n": self.ideal.n,
            "c": self.ideal.c,
            "memory_bytes": conditions.memory_bytes(self.ideal),
            "paper": {
                "equation_3_bytes_per_second": self.paper.throughput_without_overlap(block),
                "equation_4_bytes_per_second": self.paper.throughput_with_overlap(block),
                "equation_6_n": self.paper.ideal_n(block),
            },
            "by_depth": self.depths().iter().map(|&n| json!({ "n": n, "bytes_per_second": self.at(n).0 })).collect::<Vec<_>>(),
            "measured": measured.map(|path| json!({
                "rtt_ms": path.rtt.as_secs_f64() * 1e3,
                "bytes_per_second": path.bytes_per_second,
                "bytes": path.bytes,
                "seconds": path.elapsed.as_secs_f64(),
                "is_settled": path.is_settled,
            })),
        })
    }

    fn figure(&self) -> Figure {
        let depths = self.depths();
        let value = |rate: f64| {
            let mib = rate / f64::from(1 << 20);
            Some(Value::Measured { middle: mib, low: mib, high: mib })
        };
        let link = self.conditions.link_bytes_per_second;
        let series = vec![
            Series { name: "the link".into(), values: depths.iter().map(|_| value(link)).collect() },
            Series { name: "predicted".into(), values: depths.iter().map(|&n| value(self.at(n).0)).collect() },
        ];
        Figure {
            name: "plan".into(),
            title: format!(
                "writes of {} over a round trip of {:.1} ms",
                long_size(self.conditions.block_bytes),
                self.conditions.rtt.as_secs_f64() * 1e3
            ),
            note: format!("The WAN paper's model with two knobs; ideal: n = {}, c = {}.", self.ideal.n, self.ideal.c),
            charts: vec![Chart {
                title: "Throughput by writes under way".into(),
                axis: "MiB/s".into(),
                groups: depths.iter().map(u32::to_string).collect(),
                series,
                look: Look::Lines,
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        plan: PlanArgs,
    }

    #[test]
    fn the_arguments_do_not_contradict_each_other() {
        <Line as clap::CommandFactory>::command().debug_assert();
    }

    fn plan(text: &str) -> Plan {
        let line = Line::parse_from(std::iter::once("plan").chain(text.split_whitespace()));
        Plan::new(&line.plan, None).unwrap()
    }

    #[test]
    fn a_long_link_is_filled_by_many_writes_and_not_by_one() {
        let plan = plan("--rtt 128ms --rate 1Gbit --block 64KiB --seal-rate 2GiB --workers 2");
        assert!((200..320).contains(&plan.ideal.n) && plan.ideal.c == 1, "{:?}", plan.ideal);
        let words = plan.in_words(None);
        for part in ["1 round trip of 128.00 ms", "limit: latency", "limit: link", "<- ideal", "equation (3)"] {
            assert!(words.contains(part), "{part} is not in:\n{words}");
        }
        let json = plan.to_json(None);
        assert_eq!((json["n"].as_u64(), json["round_trips"].as_u64()), (Some(plan.ideal.n.into()), Some(1)));
        assert!(json["target_bytes_per_second"].is_null() && json["measured"].is_null());
        assert!(draw(&plan.figure()).starts_with("<svg"));
    }

    #[test]
    fn the_papers_setting_gives_the_papers_n() {
        // SOCKET of 2.30 MiB/s, with what our records and headers would take of it put on top.
        let text = "--rtt 128ms --rate 20.3Mbit --block 32KiB --seal-rate 11345592 --open-at-target --round-trips 2";
        let n = plan(text).paper.ideal_n(32768.0);
        assert!((15.4..16.0).contains(&n), "{n}");
    }

    #[test]
    fn large_writes_wait_for_an_r2t() {
        assert_eq!(plan("--rtt 1ms --rate 1Gbit --block 16MiB --seal-rate 1GiB").conditions.round_trips, 2);
    }
}

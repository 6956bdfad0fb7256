//! `strongroom-lab link`: a shell, or a command, at one end of an emulated wide-area link.
//!
//! Absent: the link (`strongroom_wan`).

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use strongroom_wan::{Congestion, End, Lab, Loss, Profile};

use strongroom::units::{parse_duration, parse_rate, parse_share, parse_size};

/// A wide-area link on this machine, and a shell at its near end; $WAN_FAR is the address of the far end. Needs root.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    strongroom-lab link --delay 64ms --rate 1Gbit\n  \
    strongroom-lab link --delay 20ms --rate 100Mbit --loss 1% --measure 10\n  \
    strongroom-lab link --far 'exec strongroom serve --root /srv/volumes --listen 10.216.0.2:3260' -- sh transfer.sh\n\n\
    In the shell, `ip netns exec $WAN_FAR_NS COMMAND` runs something at the far end, and `ip link set wan0 down` cuts the link.")]
pub(crate) struct LinkCommandArgs {
    /// One way, to 200ms
    #[arg(long, value_name = "TIME", default_value = "64ms", value_parser = parse_duration)]
    delay: Duration,
    #[command(flatten)]
    link: LinkArgs,
    /// Measure what the link alone carries for this many seconds, and end
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["far", "command"])]
    measure: Option<usize>,
    /// A shell command that runs at the far end meanwhile
    #[arg(long, value_name = "COMMAND")]
    far: Option<String>,
    /// What runs at the near end; a shell if not given
    #[arg(last = true)]
    command: Vec<String>,
}

/// What a link is like, beside its delay.
#[derive(Args, Debug)]
pub(crate) struct LinkArgs {
    /// How much each packet's delay differs, either way
    #[arg(long, value_name = "TIME", default_value = "0ms", value_parser = parse_duration)]
    jitter: Duration,
    /// Bits of IP packets in a second, each way, headers included: TCP's payload is 96.5 % of it with packets of 1500 bytes; or `unlimited`
    #[arg(long, value_name = "RATE", default_value = "1Gbit")]
    rate: LinkRate,
    /// What waits for the link at most; the product of rate and round trip if not given, and 5 ms of the rate or 64 KiB at least
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    queue: Option<u64>,
    /// Share of the packets that is lost
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = parse_share)]
    loss: f32,
    /// Losses come in bursts of this many packets on average
    #[arg(long, value_name = "PACKETS")]
    burst: Option<f32>,
    /// Share of the packets that arrives twice
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = parse_share)]
    duplicate: f32,
    /// One packet in this many overtakes another
    #[arg(long, value_name = "PACKETS")]
    reorder: Option<u32>,
    /// The largest packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u16,
    /// TCP's congestion control at both ends; as the machine has it if not given
    #[arg(long, value_enum)]
    congestion: Option<CongestionArg>,
    /// Where the random choices start from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CongestionArg {
    Cubic,
    Bbr,
    Reno,
}

/// Bits in a second; `None` if nothing limits it but this machine.
#[derive(Debug, Clone, Copy)]
struct LinkRate(Option<u64>);

impl std::str::FromStr for LinkRate {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkRate, String> {
        if text.eq_ignore_ascii_case("unlimited") {
            return Ok(LinkRate(None));
        }
        let advice = |wrong| format!("{wrong}, or unlimited");
        parse_rate(text).map(|rate| LinkRate(Some(rate))).map_err(advice)
    }
}

impl LinkArgs {
    /// `1000 Mbit/s of IP packets each way, at most 965 of TCP payload`.
    pub(super) fn rate_in_words(&self) -> String {
        let link = self.profile();
        match (link.rate_bits_per_s, link.payload_bits_per_s()) {
            (Some(rate), Some(payload)) => {
                let (rate, payload, mtu) = (rate as f64 / 1e6, payload / 1e6, self.mtu);
                format!("{rate} Mbit/s of IP packets each way, at most {payload:.1} of TCP payload at an MTU of {mtu}")
            }
            _ => format!("no limit but this machine's, at an MTU of {}", self.mtu),
        }
    }

    /// The link, without a delay.
    pub(super) fn profile(&self) -> Profile {
        Profile {
            delay: Duration::ZERO,
            jitter: self.jitter,
            loss: match (self.loss, self.burst) {
                (0.0, _) => Loss::None,
                (share, None) => Loss::Random(share),
                (share, Some(length)) => Loss::Bursts { share, length },
            },
            duplicate: self.duplicate,
            reorder_gap: self.reorder,
            rate_bits_per_s: self.rate.0,
            queue_bytes: self.queue,
            mtu: self.mtu,
            seed: self.seed,
            congestion: match self.congestion {
                None => Congestion::Inherited,
                Some(CongestionArg::Cubic) => Congestion::Cubic,
                Some(CongestionArg::Bbr) => Congestion::Bbr,
                Some(CongestionArg::Reno) => Congestion::Reno,
            },
        }
    }

    /// Whether packets are lost only where the queue is full.
    pub(super) fn is_lossless(&self) -> bool {
        self.loss == 0.0
    }

    /// `loss 1 %`, `loss 1 % in bursts of 3 packets`.
    pub(super) fn loss_in_words(&self) -> String {
        let bursts = self.burst.map_or_else(String::new, |length| format!(" in bursts of {length} packets"));
        format!("loss {} %{bursts}", self.loss * 100.0)
    }
}

/// Runs the command; what the command at the near end said with its exit status is an error unless it is success.
pub(crate) fn run(args: &LinkCommandArgs) -> Result<()> {
    let lab = Lab::new(&Profile { delay: args.delay, ..args.link.profile() })?;
    if let Some(seconds) = args.measure {
        println!("the link: {}", args.link.rate_in_words());
        return measure(&lab, seconds);
    }
    let mut far = match &args.far {
        Some(line) => Some(
            lab.command(End::Far, "/bin/sh").args(["-c", line]).spawn().context("cannot run the far end's command")?,
        ),
        None => None,
    };
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
    let (program, arguments) = args.command.split_first().map_or((&shell, &[][..]), |(first, rest)| (first, rest));
    let mut near = lab.command(End::Near, program);
    near.args(arguments);
    near.env("WAN_FAR", End::Far.address().to_string()).env("WAN_NEAR", End::Near.address().to_string());
    near.env("WAN_FAR_NS", lab.namespace(End::Far)).env("WAN_NEAR_NS", lab.namespace(End::Near));
    if args.command.is_empty() {
        eprintln!("lab: {} one way; the far end is {}. `exit` ends it.", Words(args.delay), End::Far.address());
    }
    let status = near.status().with_context(|| format!("cannot run {program}"));
    if let Some(far) = &mut far {
        // What `sh -c` runs replaces it if it is one command; otherwise it ends with its namespace's processes' sockets.
        let _ = far.kill();
        let _ = far.wait();
    }
    for (name, end) in [("to the far end", End::Near), ("back", End::Far)] {
        let counts = lab.counts(end);
        eprintln!("lab: {name}: {} packets sent, {} arrived", counts.offered_packets, counts.delivered_packets);
    }
    let status = status?;
    if !status.success() && !args.command.is_empty() {
        bail!("{program} failed ({status})");
    }
    Ok(())
}

fn measure(lab: &Lab, seconds: usize) -> Result<()> {
    if seconds < 2 {
        bail!("TCP does not find its rate in {seconds} s: give --measure 2 or more");
    }
    let mut trips = lab.measure_round_trips(10)?;
    trips.sort();
    match trips.get(trips.len() / 2) {
        Some(median) => println!("round trip: {} (median of {})", Words(*median), trips.len()),
        None => println!("round trip: none of 10 datagrams came back"),
    }
    let stream = lab.measure_stream(seconds)?;
    for (second, bytes) in stream.bytes_by_second.iter().enumerate() {
        println!("second {:>3}: {:>7.1} Mbit/s of TCP payload", second + 1, *bytes as f64 * 8.0 / 1e6);
    }
    println!("second half: {:.1} Mbit/s", stream.bits_per_s(seconds / 2) / 1e6);
    for (name, end) in [("out", End::Near), ("back", End::Far)] {
        let counts = lab.counts(end);
        println!("{name}: {} packets sent, {} arrived", counts.offered_packets, counts.delivered_packets);
    }
    Ok(())
}

/// A time as people write it.
struct Words(Duration);

impl std::fmt::Display for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ms", self.0.as_secs_f64() * 1e3)
    }
}

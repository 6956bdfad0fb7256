//! `strongroom-lab wan`: the WAN paper's experiment over an emulated link.
//!
//! Absent: how it is measured (`strongroom_lab::wan`), and the link (`strongroom_wan`).

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use strongroom_block::Suite;
use strongroom_lab::wan::{self, Setting, WanContender, WanPlan};
use strongroom_lab::{Hosts, InitiatorPool, Ours, OursOptions, Setup};
use strongroom_wan::{End, Lab};

use super::link::LinkArgs;
use super::site::Site;
use super::{PlacementArgs, RunArgs, parse_io_size};
use strongroom::units::{long_size, parse_duration, parse_size};

/// Block size of the volumes.
const BLOCK_BYTES: u64 = 4096;
/// Round trips of a measurement, and of a quick one.
const ROUND_TRIPS: u32 = 40;
const QUICK_ROUND_TRIPS: u32 = 12;
/// What the quick form has of each.
const QUICK_DELAYS: &[u64] = &[0, 1, 8, 64];
const QUICK_SIZES: &[u64] = &[16 << 10, 64 << 10, 256 << 10, 1 << 20];
const QUICK_SETTINGS: &[Setting] = &[
    Setting::EagerOneAtATime,
    Setting::SealedOneAtATime,
    Setting::Fixed(2),
    Setting::Fixed(6),
    Setting::Fixed(10),
    Setting::Auto,
];

/// Sequential writes over a long way, one at a time and pipelined, beside the WAN paper's model (its Figures 9 to 16). Needs root.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom-lab wan --quick --rate 100Mbit --json wan.jsonl\n  \
    strongroom-lab wan --rate 1Gbit --runs 3 --json wan.jsonl && strongroom-lab report wan.jsonl --html wan.html --plots plots\n  \
    strongroom-lab wan --quick --name wan-loss --loss 0.1% --jitter 1ms --json wan.jsonl --append\n  \
    strongroom-lab wan --quick --name wan-many --initiators 1,2,4 --targets 2 --json wan.jsonl --append\n  \
    strongroom-lab wan --quick --name wan-paper --suites 3des --json wan.jsonl --append")]
pub(crate) struct WanArgs {
    /// A few minutes instead of an hour: fewer delays, sizes and settings.
    #[arg(long)]
    quick: bool,
    /// One-way delays [default: 0ms,1ms,2ms,4ms,8ms,16ms,32ms,64ms].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_duration)]
    delays: Vec<Duration>,
    /// Bytes of one write [default: 16k to 2m].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_io_size)]
    sizes: Vec<u64>,
    /// What is compared: S2-1 and S2-5 (one write at a time), OP-2, OP-4 and so on, auto [default: all of the paper's, and auto].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    settings: Vec<Setting>,
    /// Cipher suites of channels and volumes; 3des is the WAN paper's own.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "aes-256-gcm")]
    suites: Vec<Suite>,
    /// Initiators at once.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    initiators: Vec<u32>,
    /// Targets at once; initiators take turns among them.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    targets: u32,
    /// Bytes of each target's volume.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    volume_size: u64,
    /// How long the plain TCP connection sends that the model's SOCKET is measured by.
    #[arg(long, value_name = "SECONDS", default_value_t = 4)]
    socket_seconds: usize,
    /// What results call this: `wan`, or a name that begins with `wan-`.
    #[arg(long, default_value = "wan")]
    name: String,
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    placement: PlacementArgs,
}

/// Runs the command.
pub(crate) fn run(args: &WanArgs) -> Result<()> {
    let plan = args.plan()?;
    let mut progress = args.run.progress(Some(&plan.placement))?;
    let site = Site::new(args.run.work_dir.as_deref())?;
    // Before the lab's: its threads and processes end first.
    let lab = Lab::new(&plan.link_at(Duration::ZERO))?;
    let mut contenders = args.contenders(&plan, &lab, &site)?;
    let outcome = wan::run(&plan, &lab, &mut contenders, &mut progress);
    drop(contenders);
    args.run.conclude(progress, outcome)
}

impl WanArgs {
    fn plan(&self) -> Result<WanPlan> {
        if self.name != "wan" && !self.name.starts_with("wan-") {
            bail!("results named '{}' would not be reported as this experiment; give --name wan or wan-…", self.name);
        }
        let (time, warm_up) = self.run.times()?;
        let link = self.link.profile();
        if link.rate_bits_per_s.is_none() {
            bail!("what auto is offered follows from the link's rate; give one, for instance --rate 10Gbit");
        }
        let loss = if self.link.is_lossless() { String::new() } else { format!(", {}", self.link.loss_in_words()) };
        let jitter = if link.jitter.is_zero() { String::new() } else { format!(", jitter {:?}", link.jitter) };
        let congestion = link.congestion.name().unwrap_or("the machine's congestion control");
        let or = |given: &[u64], quick: &[u64], all: Vec<u64>| match (given.is_empty(), self.quick) {
            (false, _) => given.to_vec(),
            (true, true) => quick.to_vec(),
            (true, false) => all,
        };
        let given: Vec<u64> = self.delays.iter().map(|delay| delay.as_micros() as u64).collect();
        let quick: Vec<u64> = QUICK_DELAYS.iter().map(|ms| ms * 1000).collect();
        let delays = or(&given, &quick, [0, 1, 2, 4, 8, 16, 32, 64].map(|ms| ms * 1000).to_vec());
        Ok(WanPlan {
            bench: self.name.clone(),
            link_in_words: format!(
                "{}, queue {}, {congestion}{loss}{jitter}",
                self.link.rate_in_words(),
                match link.queue_bytes {
                    Some(bytes) => long_size(bytes),
                    None => "rate times round trip, and 5 ms of the rate at least".into(),
                }
            ),
            link,
            delays: delays.into_iter().map(Duration::from_micros).collect(),
            sizes: or(&self.sizes, QUICK_SIZES, (14..=21).map(|shift| 1 << shift).collect()),
            initiators: self.initiators.clone(),
            runs: if self.quick { 1 } else { self.run.runs },
            time: if self.quick { time.min(Duration::from_secs(1)) } else { time },
            round_trips: if self.quick { QUICK_ROUND_TRIPS } else { ROUND_TRIPS },
            warm_up,
            socket_seconds: self.socket_seconds,
            first_burst_bytes: strongroom_initiator::first_burst_bytes(),
            placement: self.placement.placement()?,
        })
    }

    fn settings(&self) -> Vec<Setting> {
        match (self.settings.is_empty(), self.quick) {
            (false, _) => self.settings.clone(),
            (true, true) => QUICK_SETTINGS.to_vec(),
            (true, false) => Setting::all(),
        }
    }

    /// Targets of each kind once, and initiators for every setting.
    fn contenders(&self, plan: &WanPlan, lab: &Lab, site: &Site) -> Result<Vec<WanContender>> {
        let lab_binary = std::env::current_exe().context("cannot find this program's own file")?;
        let hosts = Hosts {
            target: Some((lab.namespace(End::Far), IpAddr::V4(End::Far.address()))),
            initiators: Some(lab.namespace(End::Near)),
        };
        let size_max = plan.sizes.iter().copied().max().unwrap_or(BLOCK_BYTES);
        let mut kinds: Vec<(Setup, Rc<Vec<Ours>>)> = Vec::new();
        let mut contenders = Vec::new();
        for &suite in &self.suites {
            for setting in self.settings() {
                let setup = Setup { suite, ..Setup::new(setting.scheme()) };
                let targets = match kinds.iter().find(|(kind, _)| *kind == setup) {
                    Some((_, targets)) => Rc::clone(targets),
                    None => {
                        let mut started = Vec::new();
                        for number in 0..self.targets {
                            started.push(Ours::start(OursOptions {
                                lab_binary: lab_binary.clone(),
                                product: None,
                                setup,
                                medium: "memory".into(),
                                volume_bytes: self.volume_size,
                                block_sizes: vec![BLOCK_BYTES],
                                further_volumes: Vec::new(),
                                placement: plan.placement.clone(),
                                directory: site.directory(&format!("{}-{number}", setup.file_name()))?,
                                serve_args: Vec::new(),
                                hosts: hosts.clone(),
                            })?);
                        }
                        let started = Rc::new(started);
                        kinds.push((setup, Rc::clone(&started)));
                        started
                    }
                };
                let name = setting.to_string().replace(' ', "-");
                let directory = site.directory(&format!("{name}-{suite}"))?;
                let pool = InitiatorPool::new(&lab_binary, &directory, Some(plan.placement.clone()), &name)
                    .in_namespace(hosts.initiators.clone());
                let contender = WanContender::new(setting, suite, targets, pool, size_max);
                contenders.push(if self.suites.len() > 1 { contender.named_by_suite() } else { contender });
            }
        }
        Ok(contenders)
    }
}

//! What each experiment measures: its contenders, and the grids and paths that they are measured over by turns.

use std::fs;
use std::time::Duration;

use strongroom_channel::Scheme;
use strongroom_wan::Loss;

use super::flood::{DISCARDED, UNDISTURBED};
use super::path::PathConditions;
use super::{EclExperiment, EclPlan};
use crate::rawio::RawioPlan;
use crate::{
    BenchError, Cell, Contender, Grid, Hosts, Ours, OursOptions, Pattern, ProcessKind, SchemeChoice, Setup,
    TargetTerms, check_processes, short_size,
};

/// Bytes of a block, and of a quantum, where nothing else is said.
const BLOCK_BYTES: u64 = 4096;
/// What the target may use of its processor where it has to be the bottleneck, in percent: initiators that seal have a whole one.
const QUOTA_PERCENT: u32 = 40;
/// The quanta paper's lengths of packets.
const MTUS: [u32; 5] = [1500, 2048, 4300, 9000, 16_000];
/// Those over which quanta are compared: the paper's 5000, and one below and above.
const QUANTUM_MTUS: [u32; 3] = [1500, 5000, 9000];
/// 4 KiB reads a second over lossy links, which every contender sustains.
const LOSSY_RATE: u32 = 1000;
/// The same of 64 KiB.
const LOSSY_LARGE_RATE: u32 = 200;
/// Quanta and packets of parity in a group, where there is parity.
const PARITY: (u8, u8) = (8, 1);
/// A link that is the bottleneck, in bits per second.
const SLOW: u64 = 100_000_000;

const RANDOM: [Pattern; 2] = [Pattern::RandRead, Pattern::RandWrite];

const S0: SchemeChoice = SchemeChoice::Plain;
const S2_1: SchemeChoice = SchemeChoice::Channel(Scheme::EncryptAll);
const S2_5: SchemeChoice = SchemeChoice::Channel(Scheme::Lazy);
const ECL: SchemeChoice = SchemeChoice::Ecl(Scheme::Lazy);
const ECL_S1_2: SchemeChoice = SchemeChoice::Ecl(Scheme::LazyAuth);

/// ECL in the quanta paper's own form.
pub(crate) const IN_FRAMES: &str = "ECL-S2-5 in Ethernet frames";

/// How many reads of `size` bytes a second are asked for over lossy links.
pub(crate) fn lossy_rate(size: u64) -> u32 {
    if size > BLOCK_BYTES { LOSSY_LARGE_RATE } else { LOSSY_RATE }
}

/// One contender of a series.
#[derive(Clone, Debug)]
pub(super) struct ContenderChoice {
    name: String,
    setup: Setup,
}

/// A grid over one path.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) path: PathConditions,
    /// What differs from trial to trial along the horizontal axis of a figure, as `1500 B`; empty where nothing does.
    pub(super) group: String,
    /// What differs from chart to chart.
    pub(super) chart: String,
    pub(super) grid: Grid,
    /// See [`RawioPlan::rate`].
    pub(super) rate: u32,
}

/// What is measured by turns, of contenders that are started once.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// What results call it.
    pub(super) bench: &'static str,
    pub(super) contenders: Vec<ContenderChoice>,
    /// Of both ends.
    pub(super) busy_poll: &'static str,
    pub(super) trials: Vec<Trial>,
    /// Each cell is measured half as often as usual, because there are many.
    pub(super) is_broad: bool,
    /// Measurements last this many times as long as usual, and warm-ups as well.
    pub(super) longer: u32,
    /// What else uses the path.
    pub(super) company: Company,
    /// The same I/O is done on a file on the local disk as well.
    pub(super) is_beside_disk: bool,
    /// What is read is compared, and what was written is read back.
    pub(super) is_verified: bool,
}

/// What else uses a path while something is measured over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    Nothing,
    /// A TCP connection from the initiators' end.
    TcpConnection,
    /// Packets to the target's UDP port, or to a socket beside it.
    Flood,
}

/// The series of an experiment.
pub(super) fn of(experiment: EclExperiment) -> Vec<Series> {
    match experiment {
        EclExperiment::Goals => goals(),
        EclExperiment::Figures => vec![packets(), quanta()],
        EclExperiment::Depths => vec![depths()],
        EclExperiment::Loss => vec![lossy(), lossy_with_parity(), long_link()],
        EclExperiment::Fairness => vec![beside_tcp(), several()],
        EclExperiment::Flood => vec![flooded()],
        // They are mounted (`files`).
        EclExperiment::Files => Vec::new(),
        EclExperiment::Verify => vec![verified(), verified_over_lossy_link()],
    }
}

/// What was asked of the target's CPU time, where the target is the bottleneck, and of latency.
fn goals() -> Vec<Series> {
    const SEQUENTIAL: [Pattern; 2] = [Pattern::SeqRead, Pattern::SeqWrite];
    let limited = TargetTerms { process: None, quota_percent: Some(QUOTA_PERCENT) };
    let software = TargetTerms { process: Some(ProcessKind::Software), quota_percent: Some(QUOTA_PERCENT) };
    let at =
        |patterns: &[Pattern], size, depth, initiators| Trial::usual(grid(patterns, &[size], &[depth], &[initiators]));
    let fast = [S0, S2_1, S2_5, ECL];
    vec![
        Series::new("ecl-64k", &fast, limited, vec![at(&SEQUENTIAL, 65_536, 16, 1)]),
        Series::new("ecl-64k-software", &[S2_1, S2_5, ECL], software, vec![at(&SEQUENTIAL, 65_536, 16, 1)]),
        Series::new("ecl-4k", &fast, limited, vec![at(&RANDOM, 4096, 64, 1), at(&RANDOM, 4096, 128, 1)]),
        Series::new("ecl-4k-four", &fast, limited, vec![at(&RANDOM, 4096, 16, 4)]),
        Series::new("ecl-latency", &fast, TargetTerms::default(), vec![at(&RANDOM, 4096, 1, 1)]),
        Series {
            busy_poll: "auto",
            ..Series::new("ecl-latency-polling", &fast, TargetTerms::default(), vec![at(&RANDOM, 4096, 1, 1)])
        },
    ]
}

/// The quanta paper's Figures 6 to 9: reads and writes over the length of packets; ECL also as the paper has it, without IP and UDP.
fn packets() -> Series {
    let patterns = [Pattern::SeqRead, Pattern::SeqWrite];
    let mut series = Series::new("ecl-mtu", &[S0, S2_1, S2_5, ECL], TargetTerms::default(), cables(&MTUS, &patterns));
    series.contenders.push(in_frames());
    Series { is_broad: true, is_beside_disk: true, ..series }
}

/// ECL whose packets are Ethernet frames.
fn in_frames() -> ContenderChoice {
    ContenderChoice { name: IN_FRAMES.to_owned(), setup: Setup { has_frames: true, ..Setup::new(ECL) } }
}

/// The quanta paper's Figure 10, and 8 and 9 for every quantum.
fn quanta() -> Series {
    let patterns = [Pattern::SeqRead, Pattern::SeqWrite];
    let mut series = Series::new("ecl-quantum", &[], TargetTerms::default(), cables(&QUANTUM_MTUS, &patterns));
    for scheme in [S2_5, ECL] {
        series.contenders.extend([512, 1024, 2048, 4096].map(|bytes| ContenderChoice {
            name: format!("{}, {}", scheme.name(), short_size(bytes)),
            setup: Setup { seal_bytes: Some(bytes), ..Setup::new(scheme) },
        }));
    }
    Series { is_broad: true, ..series }
}

/// 64 KiB I/Os over packets of every length, with and without offloads.
fn cables(mtus: &[u32], patterns: &[Pattern]) -> Vec<Trial> {
    let trial = |mtu: u32, has_offloads: bool| Trial {
        path: PathConditions::Cable { mtu, has_offloads },
        group: format!("{mtu} B"),
        chart: if has_offloads { "with offloads".into() } else { "without offloads".into() },
        grid: grid(patterns, &[65_536], &[16], &[1]),
        rate: 0,
    };
    let trials = |has_offloads: bool| mtus.iter().map(move |mtu| (*mtu, has_offloads));
    [true, false].into_iter().flat_map(trials).map(|(mtu, has_offloads)| trial(mtu, has_offloads)).collect()
}

/// 4 KiB I/Os with longer and longer queues.
fn depths() -> Series {
    let trial = Trial::usual(grid(&RANDOM, &[4096], &[1, 4, 16, 64, 128], &[1]));
    let series = Series::new("ecl-depths", &[S0, S2_1, S2_5, ECL_S1_2, ECL], TargetTerms::default(), vec![trial]);
    Series { is_broad: true, ..series }
}

/// 4 KiB reads at a rate that all sustain, over links that lose packets.
fn lossy() -> Series {
    let losses = [
        ("0 % lost", Loss::None),
        ("0.5 % lost", Loss::Random(0.005)),
        ("1 % lost", Loss::Random(0.01)),
        ("1 % lost in bursts of 5", Loss::Bursts { share: 0.01, length: 5.0 }),
        ("2 % lost", Loss::Random(0.02)),
    ];
    let trial = |(rtt_us, rtt): (u64, &str), (group, loss): (&str, Loss)| Trial {
        path: PathConditions::Link { delay: Duration::from_micros(rtt_us / 2), loss, rate_bits_per_s: None, mtu: 9000 },
        group: group.to_owned(),
        chart: format!("round trip {rtt}"),
        grid: grid(&[Pattern::RandRead], &[4096], &[128], &[1]),
        rate: LOSSY_RATE,
    };
    let round_trips = [(100, "0.1 ms"), (1000, "1 ms"), (20_000, "20 ms")];
    let trials = round_trips.into_iter().flat_map(|rtt| losses.map(|loss| trial(rtt, loss))).collect();
    Series { is_broad: true, longer: 4, ..Series::new("ecl-loss", &[S2_5, ECL], TargetTerms::default(), trials) }
}

/// 64 KiB reads at a rate that all sustain, over links that lose packets, with parity and without.
fn lossy_with_parity() -> Series {
    let trial = |(rtt_us, rtt): (u64, &str)| Trial {
        path: PathConditions::Link {
            delay: Duration::from_micros(rtt_us / 2),
            loss: Loss::Random(0.01),
            rate_bits_per_s: None,
            mtu: 9000,
        },
        group: "1 % lost".to_owned(),
        chart: format!("round trip {rtt}"),
        grid: grid(&[Pattern::RandRead], &[65_536], &[32], &[1]),
        rate: LOSSY_LARGE_RATE,
    };
    let trials = [(1000, "1 ms"), (20_000, "20 ms")].map(trial).to_vec();
    let mut series = Series::new("ecl-loss-parity", &[S2_5, ECL, ECL], TargetTerms::default(), trials);
    series.contenders[1].setup.parity = Some(PARITY);
    series.contenders[2].name = format!("{}, no parity", ECL.name());
    Series { is_broad: true, longer: 4, ..series }
}

/// Writes over a long link that loses packets, as many under way as the link holds and more.
fn long_link() -> Series {
    let trial = |(group, loss): (&str, Loss)| Trial {
        path: PathConditions::Link { delay: Duration::from_millis(64), loss, rate_bits_per_s: Some(SLOW), mtu: 9000 },
        group: group.to_owned(),
        chart: "64 ms one way".to_owned(),
        grid: grid(&[Pattern::SeqWrite], &[65_536], &[64], &[1]),
        rate: 0,
    };
    let trials = [("0 % lost", Loss::None), ("1 % lost", Loss::Random(0.01))].map(trial).to_vec();
    Series { is_broad: true, longer: 16, ..Series::new("ecl-long", &[S2_5, ECL], TargetTerms::default(), trials) }
}

fn bottleneck(initiators: &[u32]) -> Trial {
    Trial {
        path: PathConditions::Link {
            delay: Duration::from_millis(10),
            loss: Loss::None,
            rate_bits_per_s: Some(SLOW),
            mtu: 9000,
        },
        group: String::new(),
        chart: String::new(),
        grid: grid(&[Pattern::SeqWrite], &[65_536], &[16], initiators),
        rate: 0,
    }
}

/// Writes beside a TCP connection, both through one bottleneck.
fn beside_tcp() -> Series {
    let series = Series::new("ecl-beside-tcp", &[S2_5, ECL], TargetTerms::default(), vec![bottleneck(&[1])]);
    Series { is_broad: true, longer: 12, company: Company::TcpConnection, ..series }
}

/// Several initiators through one bottleneck.
fn several() -> Series {
    let series = Series::new("ecl-several", &[S2_5, ECL], TargetTerms::default(), vec![bottleneck(&[1, 2, 4, 8])]);
    Series { is_broad: true, longer: 6, ..series }
}

/// 4 KiB reads while the target's port is flooded, while the flood goes to another socket, and without it. Initiators do not open what they
/// read: the target is to be the bottleneck.
fn flooded() -> Series {
    let trial = Trial::usual(grid(&[Pattern::RandRead], &[4096], &[64], &[1]));
    let mut series = Series::new("ecl-flood", &[ECL, ECL, ECL], TargetTerms::default(), vec![trial]);
    series.contenders[1].name = DISCARDED.to_owned();
    series.contenders[2].name = UNDISTURBED.to_owned();
    Series { company: Company::Flood, longer: 2, ..series }
}

/// Reads and writes that are compared, over a cable, as UDP and as Ethernet frames.
fn verified() -> Series {
    let trial = Trial::usual(grid(&RANDOM, &[4096, 65_536], &[16], &[1]));
    let mut series = Series::new("ecl-verify", &[ECL], TargetTerms::default(), vec![trial]);
    series.contenders.push(in_frames());
    Series { is_broad: true, is_verified: true, ..series }
}

/// The same over a link that loses packets, with parity and without.
fn verified_over_lossy_link() -> Series {
    let trial = Trial {
        path: PathConditions::Link {
            delay: Duration::from_micros(500),
            loss: Loss::Random(0.02),
            rate_bits_per_s: None,
            mtu: 9000,
        },
        group: String::new(),
        chart: String::new(),
        grid: grid(&RANDOM, &[4096, 65_536], &[16], &[1]),
        rate: 0,
    };
    let mut series = Series::new("ecl-verify-loss", &[ECL, ECL], TargetTerms::default(), vec![trial]);
    series.contenders[1].setup.parity = Some(PARITY);
    series.contenders[1].name = format!("{}, parity", ECL.name());
    Series { is_broad: true, longer: 4, is_verified: true, ..series }
}

fn grid(patterns: &[Pattern], sizes: &[u64], depths: &[u32], initiators: &[u32]) -> Grid {
    Grid {
        patterns: patterns.to_vec(),
        sizes: sizes.to_vec(),
        depths: depths.to_vec(),
        initiators: initiators.to_vec(),
    }
}

impl Trial {
    fn usual(grid: Grid) -> Trial {
        Trial { path: PathConditions::USUAL, group: String::new(), chart: String::new(), grid, rate: 0 }
    }

    /// What follows a measurement's name.
    pub(super) fn in_words(&self) -> String {
        [&self.group, &self.chart].iter().filter(|part| !part.is_empty()).map(|part| format!(", {part}")).collect()
    }

    /// Tells a cell what it was measured over. What differs from trial to trial is in its pattern, by which rows of a table differ.
    pub(super) fn describe(&self, cell: &mut Cell) {
        let beside = cell.link.tcp_beside_mib_s;
        cell.link = self.path.describe();
        cell.link.tcp_beside_mib_s = beside;
        if !self.group.is_empty() {
            cell.key.pattern = format!("{}: {}, {}", self.group, cell.key.pattern, self.chart);
        }
    }
}

impl Series {
    fn new(bench: &'static str, schemes: &[SchemeChoice], terms: TargetTerms, trials: Vec<Trial>) -> Series {
        let contender = |scheme: &SchemeChoice| ContenderChoice {
            name: scheme.name().to_owned(),
            setup: Setup::new(*scheme).with_target(terms),
        };
        let contenders = schemes.iter().map(contender).collect();
        Series {
            bench,
            contenders,
            busy_poll: "off",
            trials,
            is_broad: false,
            longer: 1,
            company: Company::Nothing,
            is_beside_disk: false,
            is_verified: false,
        }
    }

    fn runs(&self, plan: &EclPlan) -> u32 {
        if self.is_broad { plan.runs.div_ceil(2) } else { plan.runs }
    }

    /// How many measurements a trial is.
    pub(super) fn steps_of(&self, plan: &EclPlan, trial: &Trial) -> usize {
        trial.grid.points().len()
            * (self.contenders.len() + usize::from(self.is_beside_disk))
            * self.runs(plan) as usize
    }

    /// How many measurements there are.
    pub(super) fn steps(&self, plan: &EclPlan) -> usize {
        self.trials.iter().map(|trial| self.steps_of(plan, trial)).sum()
    }

    /// A trial's measurements.
    pub(super) fn rawio(&self, plan: &EclPlan, trial: &Trial) -> RawioPlan {
        RawioPlan {
            bench: self.bench.to_owned(),
            grid: trial.grid.clone(),
            runs: self.runs(plan),
            time: plan.time * self.longer,
            warm_up: plan.warm_up * self.longer,
            verify: self.is_verified,
            parts: false,
            sealed_beforehand_bytes: (self.company == Company::Flood).then_some(plan.volume_bytes),
            rate: trial.rate,
            is_prorated: trial.grid.patterns == [Pattern::SeqWrite],
            placement: Some(plan.placement.clone()),
        }
    }

    /// A target for each contender.
    ///
    /// # Errors
    /// If one does not start, or its process cannot be had here.
    pub(super) fn start(&self, plan: &EclPlan, hosts: &Hosts) -> Result<Vec<Box<dyn Contender>>, BenchError> {
        let mut started: Vec<Box<dyn Contender>> = Vec::new();
        let kinds: Vec<ProcessKind> = self.contenders.iter().map(|choice| choice.setup.target_process()).collect();
        check_processes(&plan.lab_binary, &kinds)?;
        for ContenderChoice { name, setup } in &self.contenders {
            let file_name = name.replace(|character: char| !character.is_ascii_alphanumeric(), "-");
            let directory = plan.directory.join(format!("{}-{file_name}", self.bench));
            fs::create_dir_all(&directory).map_err(|error| BenchError::file(&directory, error))?;
            let ours = Ours::start(OursOptions {
                lab_binary: plan.lab_binary.clone(),
                product: None,
                setup: *setup,
                medium: "memory".into(),
                volume_bytes: plan.volume_bytes,
                block_sizes: vec![BLOCK_BYTES],
                further_volumes: Vec::new(),
                placement: plan.placement.clone(),
                directory,
                serve_args: vec!["--busy-poll".into(), self.busy_poll.into()],
                hosts: hosts.clone(),
            })?;
            // Over a slow link filling takes as long as it takes.
            let is_slow = matches!(self.trials[0].path, PathConditions::Link { .. });
            let fills = if is_slow { 1 } else { plan.fills };
            started.push(Box::new(ours.named(name, "memory").with_busy_poll(self.busy_poll).with_fills(fills)));
        }
        Ok(started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_trial_to_trial_is_in_the_pattern() {
        let packets = packets();
        assert_eq!(packets.trials.len(), 10);
        let mut cell = Cell::default();
        cell.key.pattern = "seqread".into();
        packets.trials[9].describe(&mut cell);
        assert_eq!(cell.key.pattern, "16000 B: seqread, without offloads");
        assert_eq!((cell.link.mtu, cell.link.offloads), (Some(16_000), Some(false)));
        let mut cell = Cell::default();
        cell.link.tcp_beside_mib_s = Some(5.0);
        bottleneck(&[1]).describe(&mut cell);
        assert_eq!((cell.key.pattern.as_str(), cell.link.tcp_beside_mib_s), ("", Some(5.0)));
        assert_eq!(cell.link.delay_ms, Some(10.0));
    }

    #[test]
    fn parity_is_compared_with_none() {
        let contenders = lossy_with_parity().contenders;
        let parity: Vec<_> = contenders.iter().map(|choice| (choice.name.as_str(), choice.setup.parity)).collect();
        assert_eq!(parity, [("S2-5", None), ("ECL-S2-5", Some(PARITY)), ("ECL-S2-5, no parity", None)]);
    }

    #[test]
    fn quanta_are_compared_in_both_transports() {
        let names: Vec<String> = quanta().contenders.into_iter().map(|choice| choice.name).collect();
        assert_eq!((names.len(), names[0].as_str(), names[7].as_str()), (8, "S2-5, 512", "ECL-S2-5, 4k"));
    }
}

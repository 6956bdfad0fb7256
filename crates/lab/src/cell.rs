//! One measured cell, which is one line of JSON: what was run, what came out, and how much of it can be believed.
//!
//! A file of results begins with a line about the machine and has one line for every cell and run. Everything that is shown
//! (tables, plots, the report) is made from such lines alone. Absent: medians over runs, which are the report's.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::latency::Latencies;
use crate::machine::Machine;
use crate::profile::shares::CellProfile;
use crate::window::Used;

/// One cell and run. Numbers that an experiment does not have stay `None` and are not written. In a file all groups lie side by side in
/// one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
    /// What was measured.
    #[serde(flatten)]
    pub key: CellKey,
    /// The emulated link that it was measured over.
    #[serde(flatten)]
    pub link: LinkConditions,
    /// How a program reached the volume.
    #[serde(flatten)]
    pub access: ProgramAccess,
    /// What moved.
    #[serde(flatten)]
    pub throughput: Throughput,
    /// How long I/Os took.
    #[serde(flatten)]
    pub latency: LatencyQuantiles,
    /// What it cost in CPU time.
    #[serde(flatten)]
    pub cpu: CpuCost,
    /// What it cost in cryptography.
    #[serde(flatten)]
    pub crypto: CryptoPerByte,
    /// What the WAN paper's model says.
    #[serde(flatten)]
    pub model: ModelPrediction,
    /// Where its CPU time went, if perf looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Box<CellProfile>>,
    /// Blocks (of 512 bytes) whose content was compared with the expected one; `None`: nothing was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<u64>,
    /// Why the cell says nothing. Its numbers must not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What was measured, of which contender, and in which repetition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CellKey {
    /// The experiment: `rawio`, `stream`, `btio`, …
    pub bench: String,
    /// What was measured, as tables name it: `S2-5`, `tgt tuned`, `stunnel + tgt`. Compared only within one file.
    pub contender: String,
    /// The paper's row, or the nearest word: `S0`, `S2-5`, `TLS`, `ESP`.
    pub scheme: String,
    /// The cipher suite that the two ends agreed on; `none` where nothing is encrypted.
    pub suite: String,
    /// The paper's name for the row, S2-2 for S2-1 done by hardware; empty where it has none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub row: String,
    /// `hardware` or `software`: whether both ends might use the processor's AES instructions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// The same of the target, where it is not what `process` says; `process` is the initiators' then.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target_process: String,
    /// How much of its processor the target might use, in percent; absent: all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_quota_percent: Option<u32>,
    /// `seqread`, `seqwrite`, `randread`, `randwrite`, or the experiment's own word.
    pub pattern: String,
    /// Bytes of one I/O or message.
    pub size: u64,
    /// I/Os in flight for each initiator.
    pub depth: u32,
    /// Initiators at once.
    pub initiators: u32,
    /// Which repetition, from 0.
    pub run: u32,
    /// The medium beneath the target's store: `memory`, `directory`, …
    pub medium: String,
}

/// The path between both ends: the emulated link of `wan`, a cable or a link of `ecl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkConditions {
    /// Its one-way delay, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
    /// Its other properties, in words.
    #[serde(rename = "link", skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Targets at once; initiators take turns among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<u32>,
    /// The longest packet, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether trains of packets cross a cable as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offloads: Option<bool>,
    /// Packets that the link loses, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_percent: Option<f64>,
    /// What a TCP connection carried meanwhile over the same link, in MiB/s of payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_beside_mib_s: Option<f64>,
}

/// How a program reached the volume in the `attach` experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProgramAccess {
    /// `file` (in FUSE), `nbd` (at a socket), `ext4` (by `--mount`), or `client`: our own initiator, without FUSE.
    #[serde(rename = "access", skip_serializing_if = "String::is_empty")]
    pub way: String,
    /// Which of several releases of the product served and attached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// With which further arguments it was attached, by their name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub attached_with: String,
}

/// What moved between the beginning and the end of the measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throughput {
    /// How long the measurement lasted, in seconds.
    pub elapsed_s: f64,
    /// I/Os (or messages) that completed in that time.
    pub ios: u64,
    /// Bytes of block data moved in that time.
    pub bytes: u64,
    /// Throughput of all initiators together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_s: Option<f64>,
    /// I/Os a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<f64>,
    /// Of several initiators: Jain's index of the bytes that each moved. 1: all the same; 1/n: one of n had everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fairness: Option<f64>,
}

/// How long I/Os took, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyQuantiles {
    /// The median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_us: Option<f64>,
    /// The longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
}

/// CPU time of both ends, for the work done and for each second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CpuCost {
    /// CPU time of the target's processes for each GiB moved, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu_s_per_gib: Option<f64>,
    /// CPU time of the target's processes for 1000 I/Os, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu_ms_per_kio: Option<f64>,
    /// The same of all initiators together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_cpu_s_per_gib: Option<f64>,
    /// The same of all initiators together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_cpu_ms_per_kio: Option<f64>,
    /// How busy the target's cores were, with all that ran on them: 0 to 1. A ratio of throughputs says something about the
    /// target only where this is at least 0.95.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_busy: Option<f64>,
    /// How busy the initiators' cores were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_busy: Option<f64>,
    /// The share of all cores that was taken by what is not part of the measurement, stolen time included: noise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_busy: Option<f64>,
    /// How busy all processors were that both ends and programs may use: 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub all_busy: Option<f64>,
    /// How busy the busiest thread of an attachment was: 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busiest_thread: Option<f64>,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub busiest_thread_name: String,
    /// CPU seconds of the initiators' processes in each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_cpu: Option<f64>,
    /// The same of the targets'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu: Option<f64>,
}

/// Bytes of cryptography for each byte of block data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CryptoPerByte {
    /// Bytes that the target encrypted, decrypted or authenticated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_crypto_per_byte: Option<f64>,
    /// The same of the initiators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_crypto_per_byte: Option<f64>,
    /// Bytes that the initiators encrypted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_encrypted_per_byte: Option<f64>,
}

/// What the WAN paper's model says of a cell of `wan`, and what was measured of the link for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelPrediction {
    /// What the link's rate leaves for TCP's payload in full packets, in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_payload_mib_s: Option<f64>,
    /// What one plain TCP connection carried over the same link: SOCKET of the WAN paper's equation (2), in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mib_s: Option<f64>,
    /// The throughput that the model predicts, in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_mib_s: Option<f64>,
    /// What limits it, by the model: latency, link, sealing, target.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limit: String,
    /// How many writes in flight fill the waiting, by equation (6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ideal_n: Option<f64>,
    /// Bytes of IP packets that the initiators' end sent for each byte of block data: headers and retransmissions included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_per_byte: Option<f64>,
}

impl Throughput {
    /// `ios` I/Os of `bytes` bytes in all within `elapsed_s` seconds.
    pub fn new(ios: u64, bytes: u64, elapsed_s: f64) -> Throughput {
        let rate = |amount: f64| (elapsed_s > 0.0).then_some(amount / elapsed_s);
        let mib_s = rate(bytes as f64 / f64::from(1 << 20));
        Throughput { elapsed_s, ios, bytes, mib_s, iops: rate(ios as f64), fairness: None }
    }
}

impl From<&Latencies> for LatencyQuantiles {
    fn from(latencies: &Latencies) -> LatencyQuantiles {
        LatencyQuantiles {
            p50_us: latencies.quantile_us(0.5),
            p99_us: latencies.quantile_us(0.99),
            p999_us: latencies.quantile_us(0.999),
            max_us: None,
        }
    }
}

impl CpuCost {
    /// What `used` is for the work done. The window and the count of I/Os may differ a little in length, so rates are compared.
    pub fn new(used: &Used, throughput: &Throughput) -> CpuCost {
        let gib_s = throughput.mib_s.map(|mib_s| mib_s / 1024.0).filter(|rate| *rate > 0.0);
        let kio_s = throughput.iops.map(|iops| iops / 1000.0).filter(|rate| *rate > 0.0);
        let per = |cpu_s: Option<f64>, rate: Option<f64>| Some(cpu_s? / used.wall_s / rate?);
        CpuCost {
            target_cpu_s_per_gib: per(used.target_cpu_s, gib_s),
            target_cpu_ms_per_kio: per(used.target_cpu_s, kio_s).map(|s| s * 1000.0),
            initiator_cpu_s_per_gib: per(used.initiator_cpu_s, gib_s),
            initiator_cpu_ms_per_kio: per(used.initiator_cpu_s, kio_s).map(|s| s * 1000.0),
            target_busy: used.target_busy,
            initiator_busy: used.initiator_busy,
            foreign_busy: used.foreign_busy,
            all_busy: used.all_busy,
            busiest_thread: None,
            busiest_thread_name: String::new(),
            initiator_cpu: used.initiator_cpu_s.map(|cpu_s| cpu_s / used.wall_s),
            target_cpu: used.target_cpu_s.map(|cpu_s| cpu_s / used.wall_s),
        }
    }
}

impl Cell {
    /// A cell without numbers yet.
    pub fn empty(key: CellKey) -> Cell {
        Cell { key, ..Cell::default() }
    }

    /// Puts in what moved and what it cost.
    pub fn set_measured(&mut self, throughput: Throughput, latencies: &Latencies, used: &Used) {
        self.cpu = CpuCost::new(used, &throughput);
        self.throughput = throughput;
        self.latency = latencies.into();
    }

    /// The same cell without numbers, because of this.
    pub fn failed(self, error: impl std::fmt::Display) -> Cell {
        Cell { key: self.key, link: self.link, access: self.access, error: Some(error.to_string()), ..Cell::default() }
    }

    /// What was measured for this cell: a measurement that failed is a cell without numbers. One that was stopped stays an error.
    pub(crate) fn or_failed(self, measured: Result<Cell, BenchError>) -> Result<Cell, BenchError> {
        match measured {
            Err(error) if !matches!(error, BenchError::Stopped) => Ok(self.failed(error)),
            measured => measured,
        }
    }
}

/// A line of a file of results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// What the cells below were measured on.
    Machine {
        /// See there.
        machine: Box<Machine>,
    },
    /// A cell.
    Cell(Box<Cell>),
}

/// What a file of results holds.
#[derive(Clone, Debug, Default)]
pub struct Results {
    /// Each machine line: more than one if runs were put into one file.
    pub machines: Vec<Machine>,
    /// All cells, in the order in which they were measured.
    pub cells: Vec<Cell>,
}

impl Results {
    /// Reads a file of results.
    ///
    /// # Errors
    /// [`BenchError::File`] or [`BenchError::Results`], which names the line.
    pub fn read(path: &Path) -> Result<Results, BenchError> {
        let file = File::open(path).map_err(|error| BenchError::file(path, error))?;
        let mut results = Results::default();
        for (number, line) in (1..).zip(BufReader::new(file).lines()) {
            let line = line.map_err(|error| BenchError::file(path, error))?;
            if line.trim().is_empty() {
                continue;
            }
            let wrong = |problem: String| BenchError::Results { path: path.to_owned(), line: number, problem };
            match serde_json::from_str(&line).map_err(|error| wrong(error.to_string()))? {
                Line::Machine { machine } => results.machines.push(*machine),
                Line::Cell(cell) if cell.key.bench.is_empty() => return Err(wrong("it names no bench".into())),
                Line::Cell(cell) => results.cells.push(*cell),
            }
        }
        Ok(results)
    }

    /// The experiments in it, in the order in which they were run.
    pub fn benches(&self) -> Vec<String> {
        let mut benches: Vec<String> = Vec::new();
        for cell in &self.cells {
            if !benches.contains(&cell.key.bench) {
                benches.push(cell.key.bench.clone());
            }
        }
        benches
    }
}

/// Where lines go as they are measured, so that nothing is lost when a run is stopped.
#[derive(Debug)]
pub struct ResultsFile {
    path: PathBuf,
    file: File,
}

impl ResultsFile {
    /// Makes the file, or adds to it, beginning with the machine.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn create(path: &Path, append: bool, machine: &Machine) -> Result<ResultsFile, BenchError> {
        let file = File::options().create(true).write(true).append(append).truncate(!append).open(path);
        let file = file.map_err(|error| BenchError::file(path, error))?;
        let mut results = ResultsFile { path: path.to_owned(), file };
        results.line(&Line::Machine { machine: Box::new(machine.clone()) })?;
        Ok(results)
    }

    /// Adds a cell.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn cell(&mut self, cell: &Cell) -> Result<(), BenchError> {
        self.line(&Line::Cell(Box::new(cell.clone())))
    }

    fn line(&mut self, line: &Line) -> Result<(), BenchError> {
        let mut text = serde_json::to_string(line).expect("a line has only numbers and text");
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(|error| BenchError::file(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_absent_numbers_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        let key = CellKey { bench: "rawio".into(), ..CellKey::default() };
        let mut good = Cell::empty(key.clone());
        good.throughput.mib_s = Some(1.5);
        let bad = Cell::empty(key).failed("it fell over");
        let mut file = ResultsFile::create(&path, false, &Machine::default()).unwrap();
        file.cell(&good).unwrap();
        drop(file);
        ResultsFile::create(&path, true, &Machine::default()).unwrap().cell(&bad).unwrap();
        let results = Results::read(&path).unwrap();
        assert_eq!((results.machines.len(), results.cells), (2, vec![good, bad]));
        assert!(!std::fs::read_to_string(&path).unwrap().contains("p999_us"));
    }

    #[test]
    fn cost_is_cpu_time_over_what_moved() {
        let throughput = Throughput::new(2000, 2 << 30, 2.0);
        let used = Used { wall_s: 2.0, target_cpu_s: Some(1.0), initiator_cpu_s: Some(3.0), ..Used::default() };
        let mut cell = Cell::default();
        cell.set_measured(throughput, &Latencies::default(), &used);
        assert_eq!((cell.throughput.mib_s, cell.throughput.iops), (Some(1024.0), Some(1000.0)));
        assert_eq!((cell.cpu.target_cpu_s_per_gib, cell.cpu.initiator_cpu_s_per_gib), (Some(0.5), Some(1.5)));
        assert_eq!(cell.cpu.target_cpu_ms_per_kio, Some(500.0));
        let failed = cell.failed("no");
        let throughput = failed.throughput;
        assert_eq!((throughput.mib_s, throughput.bytes, failed.error.as_deref()), (None, 0, Some("no")));
    }

    #[test]
    fn nothing_moved_costs_nothing_that_can_be_told() {
        let throughput = Throughput::new(0, 0, 1.0);
        let cpu = CpuCost::new(&Used { wall_s: 1.0, target_cpu_s: Some(1.0), ..Used::default() }, &throughput);
        assert_eq!((throughput.mib_s, cpu.target_cpu_s_per_gib), (Some(0.0), None));
    }

    /// As files of results have been since there are any: docs/bench.
    #[test]
    fn a_line_has_all_groups_side_by_side() {
        let line = r#"{"bench":"wan","contender":"auto","size":4096,"elapsed_s":2,"mib_s":1.5,"p50_us":7,"target_busy":1,"link":"1 Gbit/s","delay_ms":8,"model_mib_s":3.5,"limit":"link","verified":9}"#;
        let Line::Cell(cell) = serde_json::from_str(line).unwrap() else { panic!("it is a cell") };
        assert_eq!((cell.key.size, cell.throughput.elapsed_s, cell.latency.p50_us), (4096, 2.0, Some(7.0)));
        assert_eq!(
            (cell.link.description.as_str(), cell.link.delay_ms, cell.verified),
            ("1 Gbit/s", Some(8.0), Some(9))
        );
        assert_eq!((cell.model.model_mib_s, cell.model.limit.as_str()), (Some(3.5), "link"));
        let written: serde_json::Value = serde_json::from_str(&serde_json::to_string(&cell).unwrap()).unwrap();
        let read: serde_json::Value = serde_json::from_str(line).unwrap();
        for (name, value) in read.as_object().unwrap() {
            assert_eq!(written[name].as_f64(), value.as_f64(), "{name}");
            assert_eq!(written[name].as_str(), value.as_str(), "{name}");
        }
    }

    #[test]
    fn a_strange_line_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.jsonl");
        for strange in ["{}", "[1]", "no"] {
            std::fs::write(&path, format!("{{\"bench\":\"rawio\"}}\n{strange}\n")).unwrap();
            let error = Results::read(&path).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{error}");
        }
    }
}

//! One measured cell, which is one line of JSON: what was run, what came out, and how much of it can be believed.
//!
//! A file of results begins with a line about the machine and has one line for every cell and run. Everything that is shown
//! (tables, plots, the report) is made from such lines alone. Absent: medians over runs, which are the report's.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::machine::Machine;

/// One cell and run. Fields that an experiment does not have stay `None` and are not written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cell {
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
    /// What lies beneath the target: `memory`, `directory`, …
    pub medium: String,
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
    /// Median latency, in microseconds.
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
    /// Bytes that the target encrypted, decrypted or authenticated for each byte of block data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_crypto_per_byte: Option<f64>,
    /// The same of the initiators.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_crypto_per_byte: Option<f64>,
    /// Bytes that the initiators encrypted for each byte of block data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_encrypted_per_byte: Option<f64>,
    /// Over an emulated link: its one-way delay, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<f64>,
    /// What else the link is like, in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub link: String,
    /// Targets at once; initiators take turns among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub targets: Option<u32>,
    /// What the link's rate leaves for TCP's payload in full packets, in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_payload_mib_s: Option<f64>,
    /// What one plain TCP connection carried over the same link: SOCKET of the WAN paper's equation (2), in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mib_s: Option<f64>,
    /// What the WAN paper's model says that this setting does, in MiB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_mib_s: Option<f64>,
    /// What limits it, by the model: latency, link, sealing, target.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub limit: String,
    /// How many writes under way fill the waiting, by equation (6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ideal_n: Option<f64>,
    /// CPU seconds of the initiators' processes in each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator_cpu: Option<f64>,
    /// The same of the targets'.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_cpu: Option<f64>,
    /// Bytes of IP packets that the initiators' end sent for each byte of block data: headers and what was sent again included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_per_byte: Option<f64>,
    /// Blocks (of 512 bytes) whose content was compared with what it has to be; `None`: nobody looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified: Option<u64>,
    /// Why the cell says nothing. Its numbers must not be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
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
                Line::Cell(cell) if cell.bench.is_empty() => return Err(wrong("it names no bench".into())),
                Line::Cell(cell) => results.cells.push(*cell),
            }
        }
        Ok(results)
    }

    /// The experiments in it, in the order in which they were run.
    pub fn benches(&self) -> Vec<String> {
        let mut benches: Vec<String> = Vec::new();
        for cell in &self.cells {
            if !benches.contains(&cell.bench) {
                benches.push(cell.bench.clone());
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
        let good = Cell { bench: "rawio".into(), mib_s: Some(1.5), ..Cell::default() };
        let bad = Cell { bench: "rawio".into(), error: Some("it fell over".into()), ..Cell::default() };
        let mut file = ResultsFile::create(&path, false, &Machine::default()).unwrap();
        file.cell(&good).unwrap();
        drop(file);
        ResultsFile::create(&path, true, &Machine::default()).unwrap().cell(&bad).unwrap();
        let results = Results::read(&path).unwrap();
        assert_eq!((results.machines.len(), results.cells), (2, vec![good, bad]));
        assert!(!std::fs::read_to_string(&path).unwrap().contains("p999_us"));
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

//! Stock initiators of one volume, in processes of their own, started as they are needed.

use std::path::PathBuf;

use super::options::PeerOptions;
use crate::cpu::Placement;
use crate::engine::Engine;
use crate::programs::program;
use crate::{BenchError, InitiatorProcess};

/// What they are called, before their number.
const INITIATOR_NAME: &str = "iqn.2026-11.org.strongroom:bench-stock";

/// The processes, and whether the volume has been filled.
#[derive(Debug)]
pub(super) struct StockInitiators {
    lab_binary: PathBuf,
    directory: PathBuf,
    placement: Placement,
    name: String,
    /// What comes before their command.
    prefix: Vec<String>,
    /// What their bytes are encrypted with on the way, which they cannot know.
    suite: Option<&'static str>,
    processes: Vec<InitiatorProcess>,
    is_filled: bool,
}

impl StockInitiators {
    pub(super) fn new(
        options: &PeerOptions,
        name: String,
        prefix: Vec<String>,
        suite: Option<&'static str>,
    ) -> StockInitiators {
        StockInitiators {
            lab_binary: options.lab_binary.clone(),
            directory: options.directory.clone(),
            placement: options.placement.clone(),
            name,
            prefix,
            suite,
            processes: Vec::new(),
            is_filled: false,
        }
    }

    /// All leave.
    pub(super) fn leave(&mut self) {
        self.processes.clear();
    }

    /// `count` of them, attached as `engine` says for each name; the first one ever fills the volume.
    pub(super) fn attach(
        &mut self,
        count: u32,
        engine: impl Fn(String) -> Engine,
    ) -> Result<&mut [InitiatorProcess], BenchError> {
        self.processes.truncate(count as usize);
        while self.processes.len() < count as usize {
            let index = self.processes.len();
            let mut command = program(&self.lab_binary.display().to_string(), &self.prefix);
            command.args(["--log", "error", "initiator"]);
            let name = format!("initiator-{}-{index}", self.name);
            let cpu = Some(self.placement.initiator(index));
            let mut process = InitiatorProcess::start(&name, command, cpu, &self.directory)?;
            let engine = engine(format!("{INITIATOR_NAME}-{index}"));
            process.attach(serde_json::to_value(engine).expect("plain data"))?;
            if let Some(suite) = self.suite {
                suite.clone_into(&mut process.volume.suite);
            }
            if !self.is_filled {
                process.fill()?;
                self.is_filled = true;
            }
            self.processes.push(process);
        }
        Ok(&mut self.processes)
    }
}

//! `stream`: the lazy-crypto paper's Figure 2 (ttcp). Messages of one size through one connection, bare and protected in each
//! way, without iSCSI and without a disk: what protection alone costs.
//!
//! The receiver is a process, the sender another; each message is written by itself, as ttcp did.

mod ends;
pub(crate) mod protection;
mod tls;

use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::cell::CellKey;
use crate::engine::Engine;
use crate::ours::InitiatorPool;
use crate::protocol::{IoJob, Outcome, Volume};
use crate::rawio::{self, RawioPlan};
use crate::schedule::Watch;
use crate::{
    Background, BenchError, Cell, Contender, Grid, Identity, InitiatorProcess, Pattern, Placement, ProcessKind,
};

pub use protection::Protection;

use ends::{Receiver, Sender};

/// How long the receiver may take to listen.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

/// What to measure.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    /// The binary: it is both ends.
    pub lab_binary: PathBuf,
    /// What to compare.
    pub protections: Vec<Protection>,
    /// With the processor's AES instructions or without.
    pub processes: Vec<ProcessKind>,
    /// Bytes of a message.
    pub sizes: Vec<u64>,
    /// Repetitions.
    pub runs: u32,
    /// How long each measurement lasts.
    pub time: Duration,
    /// How long it runs before.
    pub warm_up: Duration,
    /// Who runs where.
    pub placement: Placement,
    /// For logs.
    pub directory: PathBuf,
}

/// Measures all of it.
///
/// # Errors
/// As [`rawio::run`].
pub fn run(plan: &StreamPlan, watch: &mut dyn Watch) -> Result<(), BenchError> {
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for (at, &process) in plan.processes.iter().enumerate() {
        // Bare TCP is the same in every process.
        for &protection in plan.protections.iter().filter(|it| at == 0 || **it != Protection::Tcp) {
            contenders.push(Box::new(Stream::start(plan, protection, process)?));
        }
    }
    let grid =
        Grid { patterns: vec![Pattern::SeqWrite], sizes: plan.sizes.clone(), depths: vec![1], initiators: vec![1] };
    let rawio = RawioPlan {
        bench: "stream".into(),
        grid,
        runs: plan.runs,
        time: plan.time,
        warm_up: plan.warm_up,
        verify: false,
        parts: false,
        sealed_beforehand_bytes: None,
        rate: 0,
        is_prorated: false,
        placement: Some(plan.placement.clone()),
    };
    rawio::run(&rawio, &mut contenders, &mut AsMessages(watch))
}

/// Calls the cells what they are: messages, not writes, and no queue.
struct AsMessages<'a>(&'a mut dyn Watch);

impl Watch for AsMessages<'_> {
    fn step(&mut self, done: usize, total: usize, left: Option<Duration>, what: &str) {
        self.0.step(done, total, left, what);
    }
    fn cell(&mut self, cell: &Cell) -> Result<(), BenchError> {
        let key = CellKey { pattern: "messages".into(), depth: 0, ..cell.key.clone() };
        self.0.cell(&Cell { key, ..cell.clone() })
    }
    fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }
}

/// A receiver in a process of its own, and its sender.
struct Stream {
    identity: Identity,
    initiators: InitiatorPool,
    receiver: Background,
    engine: Engine,
}

impl Stream {
    fn start(plan: &StreamPlan, protection: Protection, process: ProcessKind) -> Result<Stream, BenchError> {
        let mut name = protection.name();
        let mut command = Command::new(&plan.lab_binary);
        command.args(["--log", "error", "receiver", &name]);
        process.apply(&mut command);
        if process == ProcessKind::Software && protection != Protection::Tcp {
            name += " software";
        }
        let label = format!("receiver-{}", name.replace(' ', "-"));
        let mut receiver = Background::start(&label, command, &plan.placement.target, &plan.directory)?;
        let address = receiver.wait_until(READY_TIMEOUT, |receiver| {
            receiver.log().lines().find_map(|line| line.strip_prefix("receiving on ").map(str::to_owned))
        })?;
        let placement = Some(plan.placement.clone());
        let initiators = InitiatorPool::new(&plan.lab_binary, &plan.directory, placement, &name.replace(' ', "-"));
        let identity = Identity {
            contender: name,
            scheme: protection.scheme().into(),
            row: String::new(),
            process: process.name().into(),
            medium: "nothing".into(),
            ..Identity::default()
        };
        let engine = Engine::Stream { address, protection };
        Ok(Stream { identity, initiators: initiators.of_kind(process), receiver, engine })
    }
}

impl Contender for Stream {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn target_pids(&self) -> Vec<u32> {
        self.receiver.pids()
    }

    fn initiators(&mut self, count: u32, _size: u64) -> Result<&mut [InitiatorProcess], BenchError> {
        let engine = &self.engine;
        self.initiators.attach_with(count, self.identity.contender.as_str(), false, |_, _| engine.clone())
    }
}

/// The receiver's process: takes in what is sent, one connection after the other, until it is killed.
///
/// # Errors
/// If it cannot listen.
pub fn receive(protection: Protection, mut said: impl Write) -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(said, "receiving on {}", listener.local_addr()?)?;
    said.flush()?;
    for stream in listener.incoming() {
        // A sender that ends closes its connection; the next one opens another.
        if let Err(error) = Receiver::new(protection, stream?).and_then(Receiver::take_all) {
            writeln!(said, "{error}")?;
        }
    }
    Ok(())
}

/// A sender, attached to a receiver; the counterpart of a load on a volume.
pub(crate) struct StreamLoad {
    sender: Sender,
    job: IoJob,
    message: Vec<u8>,
    messages: u64,
    marked: Instant,
    error: Option<String>,
}

/// Messages that are written before looking for orders.
const BATCH_BYTES: u64 = 256 << 10;

impl StreamLoad {
    pub(crate) fn new(address: &str, protection: Protection, job: IoJob) -> Result<StreamLoad, String> {
        let connected = TcpStream::connect(address).and_then(|stream| Sender::new(protection, stream));
        let sender = connected.map_err(|error| format!("cannot reach the receiver at {address}: {error}"))?;
        let message = (0..job.size).map(|at| crate::pattern::mix(at) as u8).collect();
        Ok(StreamLoad { sender, job, message, messages: 0, marked: Instant::now(), error: None })
    }

    pub(crate) fn step(&mut self) {
        for _ in 0..(BATCH_BYTES / self.job.size).max(1) {
            if self.error.is_some() {
                // Orders still come; there is nothing else to do.
                return std::thread::sleep(Duration::from_millis(1));
            }
            match self.sender.send(&self.message) {
                Ok(()) => self.messages += 1,
                Err(error) => self.error = Some(error.to_string()),
            }
        }
    }

    pub(crate) fn mark(&mut self) {
        self.messages = 0;
        self.marked = Instant::now();
    }

    pub(crate) fn stop(self) -> Outcome {
        Outcome {
            elapsed_ns: self.marked.elapsed().as_nanos() as u64,
            ios: self.messages,
            bytes: self.messages * self.job.size,
            errors: u64::from(self.error.is_some()),
            first_error: self.error,
            ..Outcome::default()
        }
    }
}

/// What a stream is to those who think of volumes: large enough for any message.
pub(crate) fn as_volume(protection: Protection) -> Volume {
    Volume { bytes: 1 << 30, block_bytes: 1, suite: protection.suite().into() }
}

/// Sends some bytes to a receiver in this process and waits until they were taken in: for the tests of the ends.
#[cfg(test)]
fn sent_and_received(protection: Protection, sizes: &[usize]) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let receiver = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        Receiver::new(protection, stream).and_then(Receiver::take_all).unwrap()
    });
    let mut sender = Sender::new(protection, TcpStream::connect(address).unwrap()).unwrap();
    for size in sizes {
        sender.send(&vec![7; *size]).unwrap();
    }
    drop(sender);
    receiver.join().unwrap()
}

#[cfg(test)]
mod tests {
    use strongroom_block::Suite;

    use super::*;

    #[test]
    fn every_protection_carries_every_byte() {
        let sizes = [512, 1, 65536, 1 << 20, 4096];
        let total: usize = sizes.iter().sum();
        let with_suites = |it: Protection| Suite::ALL.map(|suite| it.with_suite(suite));
        for protection in Protection::all().into_iter().flat_map(with_suites) {
            assert_eq!(sent_and_received(protection, &sizes), total as u64, "{protection:?}");
            assert_eq!(protection.name().parse::<Protection>().unwrap(), protection);
        }
        assert!("ssl".parse::<Protection>().unwrap_err().to_string().contains("S2-5"));
    }
}

//! The lab: what Strongroom costs, measured from outside, and beside the programs that it is compared with.
//!
//! ```text
//! grid, schedule      what to measure, in which order: repetitions interleave the contenders
//! contender           whom to measure: a target in processes of its own (or elsewhere, by URL), and its initiators
//! engine              which initiator a process is to be, and how it attaches
//! initiator, driver   initiators in processes of their own: the runner's end, and the process itself
//! peers, libiscsi, nbd other people's targets and stacks as contenders, and the drivers for their initiators
//! btio, dbench        the papers' applications
//! attach, attachment  what a program feels on an attached volume: fio on the file in FUSE and on ext4
//! fio                 what fio is told, and what it says
//! ecl, namespaces     the transport ECL beside iSCSI over TCP, over cables and links between two network namespaces
//! wan                 the WAN paper's experiment over an emulated link, beside its model
//! setup, processor    what a contender of ours is made of: scheme, suite, custody; with AES instructions or without
//! start               how targets of ours are started, of which release; the first second of both ends
//! profile             where it went: samples of both ends by perf, sorted by stage
//! quota               a share of a processor for a target: it is the bottleneck while initiators seal
//! window, cpu         what it cost: CPU time of each end, how busy each processor was
//! cell                what came out: one line of JSON for each cell and run
//! report              tables, plots and words, from such lines alone
//! ```
//!
//! `benches/sealing` prints what sealing, opening and framing cost per block. `spikes` holds comparisons with rival libraries and
//! runtimes: workspaces of their own, so that those never enter the main build. Deliberately absent: the command line and the
//! progress bar (`main.rs` and `commands`), and rival libraries and engines: those take part as processes only.

pub mod attach;
mod attachment;
pub mod btio;
mod cell;
mod contender;
pub mod cpu;
pub mod dbench;
pub mod driver;
pub mod ecl;
pub mod engine;
mod error;
mod fio;
mod grid;
mod initiator;
mod latency;
pub mod libiscsi;
mod machine;
mod namespaces;
mod nbd;
mod ours;
mod pattern;
pub mod peers;
mod process;
mod processor;
pub mod profile;
mod programs;
pub mod protocol;
mod quota;
pub mod rawio;
pub mod report;
mod schedule;
mod schemes;
mod setup;
mod start;
pub mod stream;
pub mod wan;
mod window;

pub use cell::{
    Cell, CellKey, CpuCost, CryptoPerByte, LatencyQuantiles, Line, LinkConditions, ModelPrediction, ProgramAccess,
    Results, ResultsFile, Throughput,
};
pub use contender::{Contender, Identity, TargetWork};
pub use cpu::Placement;
pub use error::BenchError;
pub use grid::{DEPTH_MAX, Grid, INITIATORS_MAX, Pattern, Point, SIZE_MAX, SIZE_MIN, short_size};
pub use initiator::InitiatorProcess;
pub use latency::{Latencies, LatencyCounts};
pub use machine::Machine;
pub use ours::{Elsewhere, FURTHER_BLOCK_BYTES, Hosts, InitiatorPool, Ours, OursOptions};
pub use process::{Background, PRODUCT, Product};
pub use processor::{MASKED_RATE_MAX, ProcessKind, check as check_processes};
pub use quota::CpuQuota;
pub use schedule::{MeasurementStep, Watch, interleaved, measure_all, pause};
pub use schemes::SchemeChoice;
pub use setup::{Setup, TargetTerms};
pub use start::{StartPlan, measure_just_started};
pub use window::{Used, Window};

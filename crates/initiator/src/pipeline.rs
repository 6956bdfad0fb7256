//! The pipeline: splits requests into SCSI commands, seals blocks ahead and opens those that arrive, keeps as many commands in flight as
//! the path holds, and sends them again after a reconnect.
//!
//! ```text
//! sealing (c workers, or the caller's thread) -> sealed ahead -> [ window: at most n ] -> in flight -> answered
//! ```
//!
//! `engine` decides what is sent when. It is a machine without clock, threads and sockets; `crate::device` drives it. `window` limits what may be
//! in flight, and `estimator` finds that limit from the path; both count commands: a request of one block is one, a larger one is
//! split at the transfer limit. [`crate::model`] computes what fills a path in theory. Here: the depth that a person can choose.

pub(crate) mod ahead;
pub(crate) mod answer;
pub(crate) mod boot_time;
pub(crate) mod command_plan;
pub(crate) mod current_keys;
pub(crate) mod engine;
mod estimator;
pub(crate) mod feedback;
pub(crate) mod key_renewal;
pub(crate) mod losses;
pub(crate) mod meter;
pub(crate) mod operation;
pub(crate) mod outcome;
pub(crate) mod read_data;
pub(crate) mod read_fault;
pub(crate) mod request;
pub(crate) mod seal_threads;
pub(crate) mod sealing;
pub(crate) mod stamps;
pub(crate) mod unflushed;
pub(crate) mod unit;
mod window;
pub(crate) mod write_order;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub(crate) use estimator::{Flight, PathSample};
pub(crate) use window::Window;

/// Upper bound on the depth that can be chosen: what sessions hold of commands.
pub const DEPTH_MAX: u32 = 1000;
/// Upper bound on the workers that can be chosen.
pub const WORKERS_MAX: u32 = 64;

/// How deep the pipeline is: the paper's OP-n, or found by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// Round trip, link rate and sealing rate are measured all the time, and depth and workers follow from the model.
    #[default]
    Auto,
    /// At most `depth` writes between the beginning of their sealing and their acknowledgement, and as many reads. A depth of 1 is no
    /// overlap at all: seal, send, wait. From 2 on up to `workers` threads seal while others are under way.
    Fixed {
        /// Commands at once, 1 to [`DEPTH_MAX`].
        depth: u32,
        /// Threads that seal, 1 to [`WORKERS_MAX`].
        workers: u32,
    },
}

impl Pipeline {
    /// `depth` at once, with a worker for each as far as there are processors.
    pub fn fixed(depth: u32) -> Pipeline {
        Pipeline::Fixed { depth, workers: depth.min(processors()).max(1) }
    }
}

/// Processors that this process may use, 1 at least.
pub(crate) fn processors() -> u32 {
    // Asked once: the answer takes several files.
    static COUNT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u32).min(WORKERS_MAX))
}

/// Not a depth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no depth of a pipeline; say 'auto', or how many writes may be under way at once, 1 to {DEPTH_MAX}, for instance 8 (and \
     how many threads seal them: 8/2)"
)]
pub struct PipelineError(String);

impl FromStr for Pipeline {
    type Err = PipelineError;

    fn from_str(text: &str) -> Result<Pipeline, PipelineError> {
        let wrong = || PipelineError(text.to_owned());
        let number =
            |text: &str, most: u32| text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or_else(wrong);
        match text.split_once('/') {
            _ if text.eq_ignore_ascii_case("auto") => Ok(Pipeline::Auto),
            None => number(text, DEPTH_MAX).map(Pipeline::fixed),
            Some((depth, workers)) => {
                Ok(Pipeline::Fixed { depth: number(depth, DEPTH_MAX)?, workers: number(workers, WORKERS_MAX)? })
            }
        }
    }
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pipeline::Auto => f.write_str("auto"),
            fixed @ Pipeline::Fixed { depth, .. } if *fixed == Pipeline::fixed(*depth) => write!(f, "{depth}"),
            Pipeline::Fixed { depth, workers } => write!(f, "{depth}/{workers}"),
        }
    }
}

/// What a pipeline is at, for people and metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineStatus {
    /// Writes that may be under way at once now; `None` where nothing limits them but the queues: no long way was found.
    pub depth: Option<u32>,
    /// Bytes of writes that may be under way at once now; `None` likewise, and for a depth that was chosen.
    pub window_bytes: Option<u64>,
    /// Threads that may seal at once; 0: who submits a write seals it.
    pub workers: u32,
    /// The round trip of a write beside its own transfer, the target's work included, on a link without a queue; `None` until one was
    /// measured.
    pub round_trip: Option<Duration>,
    /// TCP's round trip now and its smallest, where the kernel tells.
    pub path: Option<PathRoundTrip>,
    /// What the link carries, in bytes per second of block data; on a short way what was written lately. `None` until it was measured.
    pub link_bytes_per_second: Option<f64>,
    /// What one thread seals, in bytes per second; `None` until it was measured.
    pub seal_bytes_per_second: Option<f64>,
    /// TCP's congestion control, where the kernel tells.
    pub congestion: Option<String>,
}

/// Round trips as the kernel measures them, without what waits at either end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRoundTrip {
    /// Smoothed.
    pub now: Duration,
    /// The smallest of the last minutes.
    pub smallest: Duration,
}

#[cfg(test)]
mod tests {
    //! Proves that a pipeline means what it says, and prints as it parses.
    use super::*;

    #[test]
    fn what_parses_prints_the_same() {
        for (text, pipeline) in [
            ("auto", Pipeline::Auto),
            ("1", Pipeline::Fixed { depth: 1, workers: 1 }),
            ("1000", Pipeline::fixed(1000)),
            ("8/64", Pipeline::Fixed { depth: 8, workers: 64 }),
        ] {
            assert_eq!((text.parse(), pipeline.to_string().as_str()), (Ok(pipeline), text));
        }
        assert_eq!("10".parse::<Pipeline>().unwrap(), Pipeline::fixed(10));
        assert_eq!("10".parse::<Pipeline>().unwrap().to_string(), "10");
        for text in ["", "0", "1001", "8/0", "8/65", "-1", "x", "8/", "/2", "deep"] {
            assert!(text.parse::<Pipeline>().unwrap_err().to_string().contains("say 'auto'"), "{text}");
        }
    }
}

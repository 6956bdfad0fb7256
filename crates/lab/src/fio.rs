//! fio as the program that uses a volume: what it is told, and what it says of it in JSON.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cell::{LatencyQuantiles, Throughput};
use crate::process::Background;
use crate::programs::program;
use crate::schedule::{Watch, pause};
use crate::{BenchError, Pattern};

/// How often it is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much longer than it was told it may take: it starts, and makes durable what it wrote.
const GRACE: Duration = Duration::from_secs(60);
/// How long it may take over a whole file.
const WHOLE_FILE_MAX: Duration = Duration::from_secs(600);
/// Largest value of its option `randseed` that all versions take.
const SEED_MAX: u64 = u32::MAX as u64;

/// How much one job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FioLength {
    /// I/O for `time`, of which the first `warm_up` does not count.
    Timed {
        /// Does not count.
        warm_up: Duration,
        /// Counts.
        time: Duration,
    },
    /// The whole file once, with all that was written made durable within the time that counts.
    WholeFile,
}

/// What fio uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FioVolume {
    /// A file.
    File(PathBuf),
    /// The default export of the NBD server at a Unix socket.
    Nbd {
        /// The socket.
        socket: PathBuf,
    },
}

/// One job: I/Os of one kind on one volume.
#[derive(Clone, Debug)]
pub(crate) struct FioJob {
    /// The volume.
    pub(crate) volume: FioVolume,
    /// Its bytes, from the beginning, that are used.
    pub(crate) volume_bytes: u64,
    pub(crate) pattern: Pattern,
    /// Bytes of one I/O.
    pub(crate) size: u64,
    /// I/Os in flight.
    pub(crate) depth: u32,
    /// Past the kernel's page cache, asynchronously; else through it, one after the other.
    pub(crate) is_direct: bool,
    pub(crate) length: FioLength,
    /// For the order of random I/Os.
    pub(crate) seed: u64,
}

/// What a job came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FioOutcome {
    pub(crate) throughput: Throughput,
    /// From the call to the completion of an I/O.
    pub(crate) latency: LatencyQuantiles,
}

/// A job that runs.
pub(crate) struct FioRun {
    process: Background,
    output: PathBuf,
    pattern: Pattern,
    begun: Instant,
    /// How long it may take.
    limit: Duration,
}

impl FioJob {
    /// Starts it on `cpus` (anywhere, if there are none), with its log and results in `directory`.
    ///
    /// # Errors
    /// If fio cannot be started.
    pub(crate) fn start(&self, cpus: &[usize], directory: &Path) -> Result<FioRun, BenchError> {
        let output = directory.join("fio.json");
        // What an earlier job said must not be taken for this one's.
        match std::fs::remove_file(&output) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(BenchError::file(&output, error)),
            _ => {}
        }
        let limit = GRACE
            + match self.length {
                FioLength::Timed { warm_up, time } => warm_up + time,
                FioLength::WholeFile => WHOLE_FILE_MAX,
            };
        let process = Background::start("fio", self.command(&output), cpus, directory)?;
        Ok(FioRun { process, output, pattern: self.pattern, begun: Instant::now(), limit })
    }

    /// fio's command line.
    fn command(&self, output: &Path) -> Command {
        let mut command = program("fio", &[]);
        let pattern = match self.pattern {
            Pattern::SeqRead => "read",
            Pattern::SeqWrite => "write",
            Pattern::RandRead => "randread",
            Pattern::RandWrite => "randwrite",
        };
        command.arg("--output-format=json").arg(format!("--output={}", output.display()));
        command.arg("--name=program");
        let depth = format!("--iodepth={}", self.depth);
        // An engine's own options are known behind it alone.
        match (&self.volume, self.is_direct) {
            (FioVolume::Nbd { socket }, _) => {
                command.args(["--ioengine=nbd", &depth]);
                command.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
            }
            (FioVolume::File(file), is_direct) => {
                match is_direct {
                    true => command.args(["--direct=1", "--ioengine=libaio", &depth]),
                    false => command.args(["--direct=0", "--ioengine=psync"]),
                };
                command.arg(format!("--filename={}", file.display()));
            }
        }
        command.args([format!("--rw={pattern}"), format!("--bs={}", self.size)]);
        command.arg(format!("--size={}", self.volume_bytes));
        command.arg(format!("--randseed={}", self.seed % SEED_MAX)).args(["--norandommap", "--thread"]);
        // Latencies from the call on, not from when the kernel has taken it; and nothing of the file in the page cache.
        command.args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99:99.9", "--invalidate=1"]);
        match self.length {
            FioLength::Timed { warm_up, time } => {
                command.arg("--time_based").arg(format!("--runtime={}ms", time.as_millis()));
                command.arg(format!("--ramp_time={}ms", warm_up.as_millis()));
            }
            FioLength::WholeFile if self.pattern.is_write() => drop(command.arg("--end_fsync=1")),
            FioLength::WholeFile => {}
        }
        command
    }
}

impl FioRun {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`BenchError::Stopped`], or what went wrong, with its log.
    pub(crate) fn finish(mut self, watch: &dyn Watch) -> Result<FioOutcome, BenchError> {
        while !self.process.has_ended() {
            if self.begun.elapsed() > self.limit {
                return Err(self.process.problem("it does not end"));
            }
            pause(LOOK_EVERY, watch)?;
        }
        let said = std::fs::read_to_string(&self.output).unwrap_or_default();
        FioOutcome::parse(&said, self.pattern).map_err(|problem| self.process.problem(&problem))
    }
}

impl FioOutcome {
    /// From fio's JSON, before which there can be lines of warnings.
    fn parse(said: &str, pattern: Pattern) -> Result<FioOutcome, String> {
        let json = said.find('{').map_or("", |begin| &said[begin..]);
        let said: Value = serde_json::from_str(json).map_err(|error| format!("it gave no results ({error})"))?;
        let job = &said["jobs"][0];
        if job["error"].as_i64() != Some(0) {
            return Err(format!("its I/O failed (error {})", job["error"]));
        }
        let side = &job[if pattern.is_write() { "write" } else { "read" }];
        let number = |value: &Value, what: &str| value.as_f64().ok_or_else(|| format!("its results have no {what}"));
        let bytes = number(&side["io_bytes"], "io_bytes")?;
        let ios = number(&side["total_ios"], "total_ios")?;
        let elapsed_s = number(&side["runtime"], "runtime")? / 1000.0;
        if bytes <= 0.0 || elapsed_s <= 0.0 {
            return Err("it moved nothing in its time; give more --seconds".into());
        }
        let quantile_us = |name: &str| side["lat_ns"]["percentile"][name].as_f64().map(|ns| ns / 1000.0);
        Ok(FioOutcome {
            throughput: Throughput::new(ios as u64, bytes as u64, elapsed_s),
            latency: LatencyQuantiles {
                p50_us: quantile_us("50.000000"),
                p99_us: quantile_us("99.000000"),
                p999_us: quantile_us("99.900000"),
                max_us: side["lat_ns"]["max"].as_f64().map(|ns| ns / 1000.0),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> FioJob {
        FioJob {
            volume: FioVolume::File("/run/vault/vault".into()),
            volume_bytes: 1 << 20,
            pattern: Pattern::RandRead,
            size: 4096,
            depth: 16,
            is_direct: true,
            length: FioLength::Timed { warm_up: Duration::from_millis(300), time: Duration::from_secs(1) },
            seed: 7,
        }
    }

    fn words(job: &FioJob) -> Vec<String> {
        let command = job.command(Path::new("/tmp/fio.json"));
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn direct_and_buffered_jobs_are_told_apart() {
        let direct = words(&job());
        for word in ["--rw=randread", "--direct=1", "--iodepth=16", "--runtime=1000ms", "--ramp_time=300ms"] {
            assert!(direct.iter().any(|has| has == word), "{word} in {direct:?}");
        }
        assert!(!direct.iter().any(|word| word.contains("end_fsync")), "{direct:?}");
        let pass = FioJob { pattern: Pattern::SeqWrite, is_direct: false, length: FioLength::WholeFile, ..job() };
        let buffered = words(&pass);
        for word in ["--rw=write", "--direct=0", "--ioengine=psync", "--end_fsync=1"] {
            assert!(buffered.iter().any(|has| has == word), "{word} in {buffered:?}");
        }
        assert!(!buffered.iter().any(|word| word.contains("iodepth") || word.contains("runtime")), "{buffered:?}");
    }

    #[test]
    fn nbd_servers_are_used_by_their_sockets() {
        let said = words(&FioJob { volume: FioVolume::Nbd { socket: "/run/a.sock".into() }, ..job() });
        for word in ["--uri=nbd+unix:///?socket=/run/a.sock", "--ioengine=nbd", "--iodepth=16", "--size=1048576"] {
            assert!(said.iter().any(|has| has == word), "{word} in {said:?}");
        }
        assert!(!said.iter().any(|word| word.contains("filename") || word.contains("direct")), "{said:?}");
    }

    #[test]
    fn results_are_read_and_failures_are_told() {
        let said = r#"fio: a warning
            {"jobs":[{"error":0,"read":{"io_bytes":4096000,"total_ios":1000,"runtime":500,
            "lat_ns":{"max":900000,"percentile":{"50.000000":79000,"99.000000":120000,"99.900000":200000}}}}]}"#;
        let outcome = FioOutcome::parse(said, Pattern::RandRead).unwrap();
        assert_eq!((outcome.throughput.iops, outcome.throughput.bytes), (Some(2000.0), 4_096_000));
        assert_eq!((outcome.latency.p50_us, outcome.latency.p999_us), (Some(79.0), Some(200.0)));
        let failed = |said: &str, part: &str| {
            let problem = FioOutcome::parse(said, Pattern::RandRead).unwrap_err();
            assert!(problem.contains(part), "{problem}");
        };
        failed("fio: engine libaio not loadable", "no results");
        failed(r#"{"jobs":[{"error":5,"read":{}}]}"#, "error 5");
        failed(r#"{"jobs":[{"error":0,"read":{"io_bytes":0,"total_ios":0,"runtime":0}}]}"#, "give more --seconds");
    }
}

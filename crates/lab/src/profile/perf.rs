//! perf, which samples what the processors execute: run, and its text read. Absent: what a sample means (`stages`).
//!
//! Samples are taken of processors, not of processes: a timer that follows a process is set again at each context switch, and what that
//! costs would count to the process.

use std::path::Path;
use std::time::Duration;

use crate::BenchError;
use crate::programs::{is_installed, program, run};

/// Samples a second and processor. Not a multiple of the usual frequencies of timers, so that samples do not fall in step with them.
const FREQUENCY: &str = "1999";
/// By the clock: not every machine lets its guests count cycles.
const EVENT: &str = "cpu-clock";
/// How stacks are found: by unwind tables, from a copy of this many bytes; functions keep no frame pointers.
const CALL_GRAPH: &str = "dwarf,8192";
/// Pages of 4 KiB between perf and the kernel, for each processor.
const BUFFER_PAGES: &str = "2048";

/// System calls that are counted by name: those that requests cause. The others are counted together, because perf needs seconds to begin
/// to count every call that there is.
const NAMED_CALLS: &[&str] = &[
    "clock_nanosleep",
    "epoll_wait",
    "epoll_pwait",
    "fallocate",
    "fdatasync",
    "fsync",
    "futex",
    "io_uring_enter",
    "ioctl",
    "madvise",
    "mmap",
    "munmap",
    "poll",
    "ppoll",
    "pread64",
    "preadv",
    "preadv2",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sched_yield",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "splice",
    "timerfd_settime",
    "write",
    "writev",
];
/// Counts every call.
const ANY_CALL: &str = "raw_syscalls:sys_enter";
/// What the others are called in a report.
const OTHER_CALLS: &str = "others";

/// What was executing at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// In which process.
    pub(crate) pid: u32,
    /// The function that was executing, then who had called it.
    pub(crate) chain: Vec<CallSite>,
}

/// One instruction of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallSite {
    /// In the program: its offset in the file. In the kernel: its address.
    pub(crate) address: u64,
    /// The symbol that it belongs to.
    pub(crate) symbol: String,
    /// The file that it was loaded from, or `[kernel.kallsyms]` or a module of the kernel in brackets.
    pub(crate) object: String,
}

impl CallSite {
    pub(crate) fn is_kernel(&self) -> bool {
        self.object.starts_with('[') && self.object != "[vdso]" && self.object != "[unknown]"
    }
}

/// Holds that perf is there.
///
/// # Errors
/// [`BenchError::Asked`], which says what to install.
pub(crate) fn check() -> Result<(), BenchError> {
    let missing = "perf is missing, which samples what both ends execute; on Debian: apt-get install linux-perf";
    if !is_installed("perf") {
        return Err(BenchError::Asked(missing.into()));
    }
    // Distributions have a script of this name, which looks for the perf of the running kernel.
    let mut perf = program("perf", &[]);
    perf.arg("--version");
    run(perf).map(drop).map_err(|error| BenchError::Asked(format!("{missing} ({error})")))
}

/// Samples processors for a while, into `file`.
///
/// # Errors
/// If perf may not, or cannot.
pub(crate) fn record(cpus: &[usize], time: Duration, file: &Path) -> Result<(), BenchError> {
    let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
    let mut perf = program("perf", &[]);
    perf.args(["record", "--quiet", "--event", EVENT, "--freq", FREQUENCY, "--call-graph", CALL_GRAPH]);
    perf.args(["--mmap-pages", BUFFER_PAGES, "--cpu", &list.join(","), "--output"]).arg(file);
    perf.args(["--", "sleep", &time.as_secs_f64().to_string()]);
    run(perf).map(drop).map_err(|error| {
        BenchError::Asked(format!(
            "perf cannot sample the processors; it needs root, or kernel.perf_event_paranoid below 1 (sysctl): {error}"
        ))
    })
}

/// The samples in `file` of the processes `pids`.
///
/// # Errors
/// If perf cannot read it.
pub(crate) fn samples(file: &Path, pids: &[u32]) -> Result<Vec<Sample>, BenchError> {
    let mut perf = program("perf", &[]);
    // Inlined functions are found by ourselves: perf takes minutes for a program of this size.
    perf.args(["script", "--no-inline", "--fields", "pid,ip,sym,dso", "--input"]).arg(file);
    Ok(parse(&run(perf)?, pids))
}

/// System calls a second of some processes, by name; `None` where the kernel does not let them be counted.
pub(crate) fn system_calls(pids: &[u32], time: Duration) -> Option<Vec<(String, f64)>> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut perf = program("perf", &[]);
    let named = NAMED_CALLS.iter().map(|call| format!("syscalls:sys_enter_{call}"));
    let events: Vec<String> = named.chain([ANY_CALL.to_owned()]).collect();
    // Counts go to perf's standard error, which is ours to read here.
    perf.args(["stat", "--field-separator", ",", "--event", &events.join(","), "--log-fd", "1"]);
    perf.args(["--pid", &pids.join(","), "--", "sleep", &time.as_secs_f64().to_string()]);
    Some(parse_counts(&run(perf).ok()?, time))
}

/// Blocks of lines: the process, then a line for each place; an empty line ends each.
fn parse(text: &str, pids: &[u32]) -> Vec<Sample> {
    let mut samples: Vec<Sample> = Vec::new();
    let mut is_wanted = false;
    for line in text.lines() {
        if line.starts_with(['\t', ' ']) && line.contains('(') {
            if let (true, Some(place), Some(sample)) = (is_wanted, parse_place(line), samples.last_mut()) {
                sample.chain.push(place);
            }
        } else if let Ok(pid) = line.trim().parse() {
            is_wanted = pids.contains(&pid);
            if is_wanted {
                samples.push(Sample { pid, chain: Vec::new() });
            }
        }
    }
    samples
}

/// `d18ae3 store::Store::poll (/usr/bin/strongroom)`. A symbol may have spaces and brackets of its own.
fn parse_place(line: &str) -> Option<CallSite> {
    let (address, rest) = line.trim().split_once(' ')?;
    let (symbol, object) = rest.rsplit_once(" (")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    Some(CallSite { address, symbol: symbol.to_owned(), object: object.strip_suffix(')')?.to_owned() })
}

/// `1234,,syscalls:sys_enter_futex,…`, the most frequent first.
fn parse_counts(text: &str, time: Duration) -> Vec<(String, f64)> {
    let count = |line: &str| {
        let mut fields = line.split(',');
        let count: f64 = fields.next()?.parse().ok()?;
        Some((fields.nth(1)?.to_owned(), count / time.as_secs_f64()))
    };
    let (all, named): (Vec<_>, Vec<_>) =
        text.lines().filter_map(count).filter(|(_, count)| *count > 0.0).partition(|(event, _)| event == ANY_CALL);
    let named = named
        .into_iter()
        .filter_map(|(event, count)| event.strip_prefix("syscalls:sys_enter_").map(|name| (name.to_owned(), count)));
    let mut counts: Vec<(String, f64)> = named.collect();
    let others = all.iter().map(|(_, count)| count).sum::<f64>() - counts.iter().map(|(_, count)| count).sum::<f64>();
    if others > 0.0 {
        counts.push((OTHER_CALLS.to_owned(), others));
    }
    counts.sort_by(|a, b| b.1.total_cmp(&a.1));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_their_chains_and_others_are_left_out() {
        let text = "   12 \n\tffffffff816c441f tcp_sendmsg ([kernel.kallsyms])\n\t          d18ae3 \
                    <a::B as c::D<(u8, u8)>>::next (inlined) (/bin/lab binary)\n\tffffffffffffffff [unknown] ([unknown])\n\n\
                    99 \n\t  1 other (/bin/other)\n\n12 \n\n";
        let samples = parse(text, &[12]);
        assert_eq!((samples.len(), samples[0].chain.len(), samples[1].chain.len()), (2, 3, 0));
        let [kernel, ours, unknown] = &samples[0].chain[..] else { panic!("{samples:?}") };
        assert!(kernel.is_kernel() && kernel.symbol == "tcp_sendmsg" && kernel.address == 0xffff_ffff_816c_441f);
        assert_eq!((&*ours.symbol, &*ours.object), ("<a::B as c::D<(u8, u8)>>::next (inlined)", "/bin/lab binary"));
        assert!(!ours.is_kernel() && ours.address == 0x00d1_8ae3 && !unknown.is_kernel());
    }

    #[test]
    fn system_calls_are_told_for_each_second() {
        let text = "# started\n\n10,,syscalls:sys_enter_read,5,100.00,,\n<not counted>,,syscalls:sys_enter_iopl,0,100.00,,\n\
                    0,,syscalls:sys_enter_open,5,100.00,,\n40,,syscalls:sys_enter_futex,5,100.00,,\n\
                    53,,raw_syscalls:sys_enter,5,100.00,,\n";
        let counts = parse_counts(text, Duration::from_millis(500));
        assert_eq!(counts, [("futex".to_owned(), 80.0), ("read".to_owned(), 20.0), ("others".to_owned(), 6.0)]);
    }
}

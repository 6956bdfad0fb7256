//! Processors: which there are, keeping a process on some of them, and how long each and each process was busy.
//!
//! Process times are from the process's own CPU clock: in nanoseconds, where `/proc/PID/stat` has hundredths of a second, and with the
//! threads that have ended, which vanish from `/proc/PID/task`.

#![allow(unsafe_code)] // A process's CPU clock is libc's; rustix has no name for it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::BenchError;

/// The processors that we may run on, in ascending order.
pub fn available() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// Who runs where: the target's processors and the initiators', apart where there are two or more. Without any nothing is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// For the target's processes. One, so that how busy it is means something.
    pub target: Vec<usize>,
    /// For the initiators' processes, one after the other.
    pub initiators: Vec<usize>,
}

impl Placement {
    /// The last processor for the target (interrupts like the first), the others for initiators.
    pub fn usual() -> Placement {
        let mut initiators = available();
        let target = initiators.pop().unwrap_or(0);
        if initiators.is_empty() {
            initiators.push(target);
        }
        Placement { target: vec![target], initiators }
    }

    /// Everything runs where the kernel puts it.
    pub fn anywhere() -> Placement {
        Placement { target: Vec::new(), initiators: Vec::new() }
    }

    /// Whether there is anything to be kept.
    pub fn is_pinned(&self) -> bool {
        !self.target.is_empty() && !self.initiators.is_empty()
    }

    /// In words.
    pub fn in_words(&self) -> String {
        if !self.is_pinned() {
            return format!("nothing; both ends and programs share {} processors", available().len());
        }
        let list = |cpus: &[usize]| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let shared = if self.target == self.initiators { " (the only one: both ends share it)" } else { "" };
        format!("target on processor {}, initiators on {}{shared}", list(&self.target), list(&self.initiators))
    }

    /// Where the `index`th initiator runs, if that is chosen.
    pub fn initiator(&self, index: usize) -> usize {
        self.initiators[index % self.initiators.len()]
    }
}

/// Runs `start` with this thread kept on `cpus`; what it starts inherits that, from its first instruction on.
///
/// # Errors
/// If a processor is not there or not ours.
pub fn on_cpus<T>(cpus: &[usize], start: impl FnOnce() -> T) -> Result<T, BenchError> {
    let failed = |error| BenchError::system(format!("cannot run on processors {cpus:?}"), error);
    let before = sched_getaffinity(None).map_err(failed)?;
    let mut wanted = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        wanted.set(cpu);
    }
    sched_setaffinity(None, &wanted).map_err(failed)?;
    let started = start();
    sched_setaffinity(None, &before).map_err(failed)?;
    Ok(started)
}

/// User and system time that a process has used, its ended threads included.
///
/// # Errors
/// If there is no such process (any more).
pub fn process_time(pid: u32) -> Result<Duration, BenchError> {
    let failed =
        |error: std::io::Error| BenchError::system(format!("cannot read the CPU clock of process {pid}"), error);
    let mut clock = 0;
    // SAFETY: the clock's id is written into `clock`, which is there until the call returns.
    let error = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if error != 0 {
        return Err(failed(std::io::Error::from_raw_os_error(error)));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written into `time`, which is there until the call returns.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(failed(std::io::Error::last_os_error()));
    }
    Ok(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
}

/// User and system time of some processes together.
///
/// # Errors
/// As [`process_time`].
pub fn processes_time(pids: &[u32]) -> Result<Duration, BenchError> {
    pids.iter().map(|&pid| process_time(pid)).sum()
}

/// The children of a process, and theirs: for servers that fork.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> = lists
            .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect();
        found.extend(children);
        at += 1;
    }
    found
}

/// CPU time of each thread of some processes until some moment.
#[derive(Clone, Debug)]
pub struct ThreadTimes {
    at: Instant,
    /// By thread id: its name, and its time in nanoseconds.
    threads: BTreeMap<u32, (String, u64)>,
}

impl ThreadTimes {
    /// Now. Of a kernel that does not tell there are none.
    pub fn now(pids: &[u32]) -> ThreadTimes {
        let tasks =
            pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten());
        let of_task = |task: fs::DirEntry| {
            let id = task.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned();
            // Time on a processor, time that it waited for one, and how often it ran.
            let times = fs::read_to_string(task.path().join("schedstat")).ok()?;
            Some((id, (name, times.split_ascii_whitespace().next()?.parse().ok()?)))
        };
        ThreadTimes { threads: tasks.filter_map(of_task).collect(), at: Instant::now() }
    }

    /// The thread that was busiest since `before`, and how busy it was, from 0 to 1.
    pub fn busiest_since(&self, before: &ThreadTimes) -> Option<(String, f64)> {
        let wall_ns = (self.at - before.at).as_nanos() as f64;
        let spent = self.threads.iter().map(|(id, (name, time))| {
            let earlier = before.threads.get(id).map_or(0, |(_, time)| *time);
            (time.saturating_sub(earlier), name)
        });
        let (most, name) = spent.max()?;
        (wall_ns > 0.0).then(|| (name.clone(), (most as f64 / wall_ns).min(1.0)))
    }
}

/// How long each processor was idle until some moment, in ticks, and how much of it was stolen.
#[derive(Clone, Debug)]
pub struct CoreTimes {
    at: Instant,
    /// By processor: idle (exact, unlike the sampled counts of what is busy), stolen.
    cores: Vec<Option<(f64, f64)>>,
}

impl CoreTimes {
    /// Now.
    pub fn now() -> CoreTimes {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let mut cores = Vec::new();
        for line in text.lines() {
            let mut fields = line.split_ascii_whitespace();
            let Some(cpu) = fields.next().and_then(|name| name.strip_prefix("cpu")?.parse::<usize>().ok()) else {
                continue;
            };
            let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
            // user nice system idle iowait irq softirq steal
            if let [_, _, _, idle, iowait, _, _, steal, ..] = ticks[..] {
                cores.resize(cores.len().max(cpu + 1), None);
                cores[cpu] = Some((idle + iowait, steal));
            }
        }
        CoreTimes { at: Instant::now(), cores }
    }

    /// How busy `cpus` were on average since `before`, from 0 to 1.
    pub fn busy_since(&self, before: &CoreTimes, cpus: &[usize]) -> Option<f64> {
        let idle = self.share(before, cpus, |(idle, _)| idle)?;
        let stolen = self.stolen_since(before, cpus)?;
        Some((1.0 - idle - stolen).clamp(0.0, 1.0))
    }

    /// How much of `cpus` was stolen by the machine beneath since `before`, from 0 to 1.
    pub fn stolen_since(&self, before: &CoreTimes, cpus: &[usize]) -> Option<f64> {
        self.share(before, cpus, |(_, stolen)| stolen)
    }

    fn share(&self, before: &CoreTimes, cpus: &[usize], field: fn((f64, f64)) -> f64) -> Option<f64> {
        let wall_s = (self.at - before.at).as_secs_f64();
        if cpus.is_empty() || wall_s <= 0.0 {
            return None;
        }
        let mut ticks = 0.0;
        for &cpu in cpus {
            let core = |times: &CoreTimes| times.cores.get(cpu).copied().flatten();
            ticks += field(core(self)?) - field(core(before)?);
        }
        let share = ticks / rustix::param::clock_ticks_per_second() as f64 / wall_s / cpus.len() as f64;
        Some(share.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_busy_process_shows_on_its_processor_and_in_its_time() {
        let cpu = Placement::usual().target[0];
        let before = CoreTimes::now();
        let mut child =
            on_cpus(&[cpu], || Command::new("sh").args(["-c", "while :; do :; done"]).spawn()).unwrap().unwrap();
        let allowed = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        // On a machine that is busy already it may take a while to get its turn.
        let begun = Instant::now();
        while process_time(child.id()).unwrap() < Duration::from_millis(100) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it runs and uses no time");
            std::thread::sleep(Duration::from_millis(20));
        }
        let after = CoreTimes::now();
        let busy = after.busy_since(&before, &[cpu]).unwrap();
        let busy_s = busy * (after.at - before.at).as_secs_f64();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(allowed.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{allowed}");
        // The kernel counts in hundredths of a second, and others may have had more of the processor, or nobody.
        assert!(busy_s > 0.05, "{busy_s} s, a share of {busy}");
        assert!(process_time(child.id()).is_err(), "it is gone");
    }

    #[test]
    fn the_busiest_thread_is_found() {
        let begin = ThreadTimes::now(&[std::process::id()]);
        if begin.threads.is_empty() {
            return;
        }
        let spinner = std::thread::Builder::new().name("spinner".into());
        let pids = [std::process::id()];
        let found = spinner
            .spawn(move || {
                let before = ThreadTimes::now(&pids);
                let own_time = || {
                    ThreadTimes::now(&pids).threads[&rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()].1
                };
                let target = own_time() + 100_000_000;
                while own_time() < target {}
                ThreadTimes::now(&pids).busiest_since(&before)
            })
            .unwrap()
            .join()
            .unwrap();
        let (_, share) = found.unwrap();
        assert!(share > 0.0 && share <= 1.0, "{share}");
        assert_eq!(ThreadTimes::now(&[]).busiest_since(&begin), None);
    }

    #[test]
    fn children_of_children_are_found() {
        let mut child = Command::new("sh").args(["-c", "sh -c 'sleep 20; :' & wait"]).spawn().unwrap();
        let begun = Instant::now();
        while descendants(child.id()).len() < 3 {
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", descendants(child.id()));
            std::thread::sleep(Duration::from_millis(5));
        }
        for pid in descendants(child.id()) {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        }
        child.wait().unwrap();
    }

    #[test]
    fn both_ends_are_apart_where_there_is_room() {
        let placement = Placement::usual();
        if available().len() > 1 {
            assert!(!placement.initiators.contains(&placement.target[0]));
        }
        assert_eq!(placement.initiator(0), placement.initiator(placement.initiators.len()));
        assert!(placement.is_pinned() && !Placement::anywhere().is_pinned());
        assert!(Placement::anywhere().in_words().starts_with("nothing; "));
    }
}

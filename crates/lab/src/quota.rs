//! A share of a processor for a process: the kernel's CPU bandwidth control, by a cgroup of version 1 or 2.
//!
//! With it a target is the bottleneck while its initiators really seal, on a machine where they would be slower otherwise.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::BenchError;

/// The period of the bandwidth control, in microseconds: a process that has used up its share goes on in the next one. Short, so that the client's
/// latency does not consist of such waits.
const PERIOD_US: u64 = 5_000;
/// The kernel grants no less in a period.
const QUOTA_MIN_US: u64 = 1_000;
/// How long to try to remove a cgroup whose processes are just ending.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where cgroups with the cpu controller are made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

/// A cgroup for one process and what it starts. Removed when dropped, after the processes have ended or been put back.
#[derive(Debug)]
pub struct CpuQuota {
    hierarchy: Hierarchy,
    directory: PathBuf,
    percent: u32,
}

impl CpuQuota {
    /// Makes a cgroup that will be limited to `percent` of one processor.
    ///
    /// # Errors
    /// [`BenchError::Asked`] where there is no cpu controller, or it is not ours to use.
    pub fn create(percent: u32) -> Result<CpuQuota, BenchError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let Some(hierarchy) = find(&mounts, &own, |path| fs::read_to_string(path).unwrap_or_default()) else {
            return Err(refused(
                "this system has neither a mounted cpu hierarchy (v1) nor cpu in a cgroup.controllers (v2)",
            ));
        };
        let parent = match &hierarchy {
            Hierarchy::V1(parent) | Hierarchy::V2(parent) => parent,
        };
        if let Hierarchy::V2(root) = &hierarchy {
            fs::write(root.join("cgroup.subtree_control"), "+cpu").map_err(|error| at(root, &error))?;
        }
        let name = format!("strongroom-lab-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = parent.join(name);
        fs::create_dir(&directory).map_err(|error| at(&directory, &error))?;
        let quota = CpuQuota { hierarchy, directory, percent };
        quota.limit()?;
        Ok(quota)
    }

    /// Puts a process into it, with all its threads and what it starts from now on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn add(&self, pid: u32) -> Result<(), BenchError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// From now on the limit holds.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn limit(&self) -> Result<(), BenchError> {
        let (quota_us, period_us) = microseconds(self.percent);
        match &self.hierarchy {
            Hierarchy::V1(_) => {
                self.write("cpu.cfs_period_us", &period_us.to_string())?;
                self.write("cpu.cfs_quota_us", &quota_us.to_string())
            }
            Hierarchy::V2(_) => self.write("cpu.max", &format!("{quota_us} {period_us}")),
        }
    }

    /// From now on it does not: while a volume is filled, for instance.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lift(&self) -> Result<(), BenchError> {
        match &self.hierarchy {
            Hierarchy::V1(_) => self.write("cpu.cfs_quota_us", "-1"),
            Hierarchy::V2(_) => self.write("cpu.max", "max"),
        }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn write(&self, file: &str, text: &str) -> Result<(), BenchError> {
        let path = self.directory.join(file);
        fs::write(&path, text).map_err(|error| at(&path, &error))
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        let begun = Instant::now();
        while fs::remove_dir(&self.directory).is_err() && self.directory.exists() {
            // What still runs goes back to where cgroups of its own are not needed, at full speed.
            let (Hierarchy::V1(parent) | Hierarchy::V2(parent)) = &self.hierarchy;
            for pid in fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
            if begun.elapsed() > REMOVE_TIMEOUT {
                eprintln!("the cgroup {} could not be removed; remove it by rmdir", self.directory.display());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Quota and period for a share of one processor: 5 ms, or longer where the share of that would be less than the kernel takes.
fn microseconds(percent: u32) -> (u64, u64) {
    let percent = u64::from(percent.max(1));
    let period_us = PERIOD_US.max((QUOTA_MIN_US * 100).div_ceil(percent));
    (period_us * percent / 100, period_us)
}

/// The hierarchy with the cpu controller: version 1 beside our own cgroup there, where that can be seen, version 2 below its root, since a
/// cgroup with processes of its own has no limited children.
fn find(mounts: &str, own: &str, read: impl Fn(&Path) -> String) -> Option<Hierarchy> {
    let mut mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind, options) = (Path::new(fields.next()?), fields.next()?, fields.next()?);
        Some((path, kind, options))
    });
    mounts.find_map(|(path, kind, options)| match kind {
        "cgroup" if options.split(',').any(|option| option == "cpu") => {
            let ours = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                fields.next()?.split(',').any(|controller| controller == "cpu").then(|| fields.next())?
            });
            let below = path.join(ours.unwrap_or_default().trim_start_matches('/'));
            Some(Hierarchy::V1(if below.is_dir() { below } else { path.to_owned() }))
        }
        "cgroup2" => {
            let controllers = read(&path.join("cgroup.controllers"));
            controllers.split_ascii_whitespace().any(|name| name == "cpu").then(|| Hierarchy::V2(path.to_owned()))
        }
        _ => None,
    })
}

fn at(path: &Path, error: &io::Error) -> BenchError {
    refused(&format!("{}: {error}", path.display()))
}

fn refused(problem: &str) -> BenchError {
    BenchError::Asked(format!(
        "--target-quota cannot limit the target: {problem}; it needs root and the cpu controller of cgroups, version 1 or 2"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_short_and_quotas_not_below_the_kernels_least() {
        assert_eq!(microseconds(50), (2_500, 5_000));
        assert_eq!(microseconds(100), (5_000, 5_000));
        assert_eq!(microseconds(10), (1_000, 10_000));
        for percent in 1..=100 {
            let (quota_us, period_us) = microseconds(percent);
            assert!(
                quota_us >= QUOTA_MIN_US && (quota_us * 100).div_ceil(period_us) == u64::from(percent),
                "{percent}"
            );
        }
    }

    #[test]
    fn the_controller_is_found_in_either_version() {
        let v1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /nowhere/cpuset cgroup rw,cpuset 0 0\n\
                  cgroup /nowhere/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup2 /nowhere/unified cgroup2 rw 0 0\n";
        let own = "1:cpu,cpuacct:/\n0::/\n";
        assert_eq!(find(v1, own, |_| "cpu".into()), Some(Hierarchy::V1("/nowhere/cpu".into())));
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(find(v2, "0::/user\n", |_| "cpuset cpu io".into()), Some(Hierarchy::V2("/sys/fs/cgroup".into())));
        assert_eq!(find(v2, "0::/user\n", |_| "cpuset io".into()), None);
        let error = refused("no").to_string();
        assert!(error.contains("root") && error.contains("--target-quota"), "{error}");
    }

    /// By the kernel's own account of the process's CPU time: what a process would take more of is kept from it.
    #[test]
    fn a_process_gets_its_share_and_no_more() {
        const PERCENT: u32 = 20;
        let quota = match CpuQuota::create(PERCENT) {
            Ok(quota) => quota,
            Err(error) => {
                println!("skipped: quotas were not tested: {error}");
                return;
            }
        };
        let directory = quota.directory().to_owned();
        let mut busy = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        quota.add(busy.id()).unwrap();
        let used = |time: Duration| {
            let before = (Instant::now(), crate::cpu::process_time(busy.id()).unwrap());
            thread::sleep(time);
            let after = (Instant::now(), crate::cpu::process_time(busy.id()).unwrap());
            (after.1 - before.1).as_secs_f64() / (after.0 - before.0).as_secs_f64()
        };
        let share = used(Duration::from_secs(1));
        assert!(share < 1.3 * f64::from(PERCENT) / 100.0, "it took {share} of a processor");
        quota.lift().unwrap();
        quota.limit().unwrap();
        let share = used(Duration::from_secs(1));
        assert!(share < 1.3 * f64::from(PERCENT) / 100.0, "it took {share} of a processor when limited again");
        // Dropped while it runs: it is put back, and the cgroup is gone.
        drop(quota);
        assert!(!directory.exists());
        busy.kill().unwrap();
        busy.wait().unwrap();
    }
}

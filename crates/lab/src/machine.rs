//! What a run was measured on: processors, kernel, versions, congestion control; gathered once, written with the results.

use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::cpu;

/// The machine, as far as it matters for numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The processor's name, as the kernel gives it.
    pub cpu: String,
    /// How many processors we may use.
    pub cpus: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel name and release.
    pub kernel: String,
    /// TCP congestion control.
    pub congestion_control: String,
    /// Name and version of Strongroom, and whether it was built with optimisation.
    pub strongroom: String,
    /// Other programs that took part: name and version.
    pub programs: Vec<String>,
    /// Whether the machine is virtual.
    pub is_virtual: bool,
    /// Load average of the last minute when the run began: what else went on.
    pub load_before: f64,
    /// When, in UTC.
    pub date: String,
    /// The command line.
    pub command: String,
    /// What the ends were pinned to, in words.
    pub pinning: String,
}

impl Machine {
    /// Describes this machine. What cannot be found out is left empty.
    pub fn look() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpuinfo_field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(": ")).map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
        };
        let memory_kib = read("/proc/meminfo")
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_ascii_whitespace().next()?.parse::<u64>().ok());
        let system = rustix::system::uname();
        let load = read("/proc/loadavg");
        Machine {
            cpu: cpuinfo_field("model name"),
            cpus: cpu::available().len(),
            memory_mib: memory_kib.unwrap_or(0) / 1024,
            kernel: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
            strongroom: format!("strongroom {}{}", env!("CARGO_PKG_VERSION"), unoptimised()),
            programs: Vec::new(),
            is_virtual: cpuinfo_field("flags").split(' ').any(|flag| flag == "hypervisor"),
            load_before: load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
            date: said_by("date", &["-u", "+%Y-%m-%d %H:%M UTC"]).unwrap_or_default(),
            command: std::env::args().skip(1).fold("strongroom-lab".to_owned(), |line, word| line + " " + &word),
            pinning: String::new(),
        }
    }

    /// Adds a program's version, by what it says itself: the first line of its output.
    pub fn add_program(&mut self, name: &str, arguments: &[&str]) {
        if let Some(version) = said_by(name, arguments)
            && !self.programs.contains(&version)
        {
            self.programs.push(version);
        }
    }
}

fn unoptimised() -> &'static str {
    if cfg!(debug_assertions) { " (built without optimisation: numbers say nothing)" } else { "" }
}

/// The first line that a program prints, on either stream.
fn said_by(name: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(name).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let mut machine = Machine::look();
        assert!(machine.kernel.starts_with("Linux ") && machine.memory_mib > 0 && machine.cpus > 0);
        machine.add_program("echo", &["echo 1.0\nmore"]);
        machine.add_program("echo", &["echo 1.0"]);
        machine.add_program("no-such-program", &[]);
        assert_eq!(machine.programs, ["echo 1.0"]);
    }
}

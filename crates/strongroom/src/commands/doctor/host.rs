//! The machine as its kernel describes it in files, and what follows from them. A test gives another directory in place of `/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;

/// Least limit of open files: each connection takes one, each open volume several.
const OPEN_FILES_MIN: u64 = 65_536;
/// Least MTU: smaller ones cost a packet for each part of a block.
const MTU_MIN: u32 = 1500;
/// The bit of CAP_IPC_LOCK in a set of capabilities.
const CAP_IPC_LOCK: u32 = 14;
/// Least kernel that receives UDP packets in trains (UDP_GRO), and sends them so.
const UDP_OFFLOAD_SINCE: (u32, u32) = (5, 0);
/// Permissions of the group and of others.
const OTHERS: u32 = 0o077;
/// Of these, to write.
const OTHERS_WRITE: u32 = 0o022;

/// How it stands with one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FindingState {
    Ok,
    Attention,
    /// The machine does not say.
    Unknown,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) state: FindingState,
    /// For people.
    pub(super) found: String,
    /// What to change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, state: FindingState::Ok, found: found.into(), advice: None }
    }

    fn unknown(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, state: FindingState::Unknown, found: found.into(), advice: None }
    }

    pub(super) fn attention(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { check, state: FindingState::Attention, found: found.into(), advice: Some(advice.into()) }
    }
}

/// A machine.
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    pub(super) fn this_machine() -> Host {
        Host { root: "/".into() }
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    /// All checks that need no configuration.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings =
            vec![self.io_uring(), self.fuse(), self.loop_devices(), self.udp_offload(), self.open_files()];
        findings.extend([self.locked_memory(), self.congestion_control(), self.mtu(), self.clock(), self.swap()]);
        findings
    }

    fn io_uring(&self) -> Finding {
        let check = "io_uring";
        match self.read("proc/sys/kernel/io_uring_disabled").as_deref() {
            Some("0") => Finding::ok(check, "allowed"),
            Some(value) => Finding::attention(
                check,
                format!("kernel.io_uring_disabled is {value}"),
                "set kernel.io_uring_disabled = 0 in /etc/sysctl.d; without it sockets use epoll, and stores are slower",
            ),
            None => Finding::unknown(check, "this kernel does not say whether it is allowed (before 6.6)"),
        }
    }

    fn fuse(&self) -> Finding {
        let check = "FUSE";
        match self.root.join("dev/fuse").exists() {
            true => Finding::ok(check, "/dev/fuse"),
            false => Finding::attention(
                check,
                "no /dev/fuse",
                "modprobe fuse, and install fuse3: `strongroom attach` needs it (a target does not)",
            ),
        }
    }

    fn loop_devices(&self) -> Finding {
        let check = "loop devices";
        match self.root.join("dev/loop-control").exists() {
            true => Finding::ok(check, "/dev/loop-control"),
            false => Finding::attention(
                check,
                "no /dev/loop-control",
                "modprobe loop: `strongroom attach --mount` needs it (a target does not)",
            ),
        }
    }

    fn udp_offload(&self) -> Finding {
        let check = "UDP GSO and GRO";
        let Some(release) = self.read("proc/sys/kernel/osrelease") else {
            return Finding::unknown(check, "the kernel's release is not known");
        };
        let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version >= UDP_OFFLOAD_SINCE {
            Finding::ok(check, format!("kernel {release}"))
        } else {
            Finding::attention(check, format!("kernel {release}"), "use a kernel of 5.0 or newer for ECL (ecl:// URLs)")
        }
    }

    /// The hard limit of a resource of this process; the inner `None`: unlimited.
    fn limit(&self, name: &str) -> Option<Option<u64>> {
        let limits = self.read("proc/self/limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let hard = line.split_whitespace().nth(1)?;
        if hard == "unlimited" { Some(None) } else { hard.parse().ok().map(Some) }
    }

    fn open_files(&self) -> Finding {
        let check = "open files";
        match self.limit("Max open files") {
            None => Finding::unknown(check, "the limit is not known"),
            Some(None) => Finding::ok(check, "unlimited"),
            Some(Some(limit)) if limit >= OPEN_FILES_MIN => Finding::ok(check, limit.to_string()),
            Some(Some(limit)) => Finding::attention(
                check,
                limit.to_string(),
                format!("raise the hard limit to {OPEN_FILES_MIN} at least (ulimit -Hn, or LimitNOFILE= of the unit)"),
            ),
        }
    }

    fn may_lock_memory(&self) -> Option<bool> {
        let status = self.read("proc/self/status")?;
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
        let set = u64::from_str_radix(set.trim(), 16).ok()?;
        Some(set >> CAP_IPC_LOCK & 1 == 1 || self.limit("Max locked memory")?.is_none())
    }

    fn locked_memory(&self) -> Finding {
        let check = "locked memory";
        match self.may_lock_memory() {
            None => Finding::unknown(check, "the limit is not known"),
            Some(true) => Finding::ok(check, "any amount"),
            Some(false) => Finding::attention(
                check,
                "limited",
                "run as root, or raise the limit to unlimited (ulimit -l, LimitMEMLOCK=infinity): keys may reach the swap",
            ),
        }
    }

    fn congestion_control(&self) -> Finding {
        let check = "congestion control";
        match self.read("proc/sys/net/ipv4/tcp_congestion_control") {
            None => Finding::unknown(check, "not known"),
            Some(name) if ["cubic", "bbr"].contains(&name.as_str()) => Finding::ok(check, name),
            Some(name) => Finding::attention(
                check,
                name,
                "set net.ipv4.tcp_congestion_control to cubic or bbr: others fill long links slowly (docs/wan.md)",
            ),
        }
    }

    fn mtu(&self) -> Finding {
        let check = "MTU";
        let Ok(entries) = fs::read_dir(self.root.join("sys/class/net")) else {
            return Finding::unknown(check, "the network interfaces are not known");
        };
        let mut interfaces: Vec<(String, u32)> = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| self.read(&format!("sys/class/net/{name}/operstate")).as_deref() == Some("up"))
            .filter_map(|name| Some((name.clone(), self.read(&format!("sys/class/net/{name}/mtu"))?.parse().ok()?)))
            .collect();
        interfaces.sort();
        let found = interfaces.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect::<Vec<_>>().join(", ");
        if interfaces.is_empty() {
            Finding::unknown(check, "no network interface is up")
        } else if interfaces.iter().all(|(_, mtu)| *mtu >= MTU_MIN) {
            Finding::ok(check, found)
        } else {
            Finding::attention(
                check,
                found,
                format!("an MTU below {MTU_MIN} costs packets; raise it, or shorten the tunnel that it is for"),
            )
        }
    }

    fn clock(&self) -> Finding {
        let check = "clock";
        if self.root.join("run/systemd/timesync/synchronized").exists() {
            return Finding::ok(check, "synchronized");
        }
        let said = Command::new("timedatectl").args(["show", "--property=NTPSynchronized", "--value"]).output();
        match said.ok().filter(|output| output.status.success()).map(|output| output.stdout) {
            Some(value) if value.trim_ascii() == b"yes" => Finding::ok(check, "synchronized"),
            Some(_) => Finding::attention(
                check,
                "not synchronized",
                "enable NTP (timedatectl set-ntp true): key leases, schedules of snapshots and logs depend on the time",
            ),
            None => Finding::unknown(check, "timedatectl does not say whether it is synchronized"),
        }
    }

    fn swap(&self) -> Finding {
        let check = "swap";
        let Some(swaps) = self.read("proc/swaps") else { return Finding::unknown(check, "not known") };
        let devices: Vec<&str> = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        if devices.is_empty() {
            return Finding::ok(check, "none");
        }
        if self.may_lock_memory() == Some(true) {
            return Finding::ok(
                check,
                format!("{}; the memory of Strongroom's processes is locked", devices.join(", ")),
            );
        }
        Finding::attention(
            check,
            devices.join(", "),
            "let the processes lock their memory, or encrypt the swap: it may get keys and data",
        )
    }

    /// Who else may read or write what belongs to a configuration, and to the volumes.
    pub(super) fn permissions(&self, config: &Path, volumes: Option<&Path>) -> Vec<Finding> {
        let mut findings = Vec::new();
        let directory = config.parent().filter(|directory| directory.is_dir());
        findings.push(match directory {
            None => Finding::unknown("configuration", format!("{} is not there", config.display())),
            Some(directory) => {
                let open = open_files(directory);
                if open.is_empty() {
                    Finding::ok("configuration", directory.display().to_string())
                } else {
                    let all = open.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ");
                    let found = "others may read secrets or change the configuration";
                    Finding::attention("configuration", found, format!("chmod go= {all}"))
                }
            }
        });
        findings.push(match volumes.map(|path| (path, mode(path))) {
            None => Finding::unknown("volumes", "no target is configured here"),
            Some((path, None)) => Finding::unknown("volumes", format!("{} is not there", path.display())),
            Some((path, Some(mode))) if mode & OTHERS == 0 => Finding::ok("volumes", path.display().to_string()),
            Some((path, Some(mode))) => Finding::attention(
                "volumes",
                format!("{} has the mode {mode:o}", path.display()),
                format!("chmod go= {}", path.display()),
            ),
        });
        findings
    }
}

fn mode(path: &Path) -> Option<u32> {
    Some(fs::metadata(path).ok()?.permissions().mode() & 0o7777)
}

/// Files of a directory, and of those in it, that others may write, or that are secrets by their names and that others may read.
fn open_files(directory: &Path) -> Vec<PathBuf> {
    let mut open = Vec::new();
    let mut paths: Vec<PathBuf> = vec![directory.to_owned()];
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries(directory) {
        if path.is_dir() {
            paths.extend(entries(&path));
        }
        paths.push(path);
    }
    for path in paths {
        let Some(mode) = mode(&path) else { continue };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let in_chap = path.parent().is_some_and(|parent| parent.ends_with("chap"));
        let is_secret = path.is_file() && (name.ends_with(".key") || name.ends_with("identity") || in_chap);
        let forbidden = if is_secret { OTHERS } else { OTHERS_WRITE };
        if mode & forbidden != 0 {
            open.push(path);
        }
    }
    open.sort();
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let directory = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host { root: directory.path().to_owned() };
        (directory, host)
    }

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max locked memory         8388608              8388608              bytes\n\
        Max open files            1024                 524288               files\n";

    #[test]
    fn a_machine_that_is_fit_needs_nothing() {
        let (_directory, host) = host(&[
            ("proc/sys/kernel/io_uring_disabled", "0\n"),
            ("dev/fuse", ""),
            ("dev/loop-control", ""),
            ("proc/sys/kernel/osrelease", "6.12.5-amd64\n"),
            ("proc/self/limits", LIMITS),
            ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
            ("proc/sys/net/ipv4/tcp_congestion_control", "bbr\n"),
            ("sys/class/net/eth0/operstate", "up\n"),
            ("sys/class/net/eth0/mtu", "9000\n"),
            ("sys/class/net/wlan0/operstate", "down\n"),
            ("sys/class/net/wlan0/mtu", "576\n"),
            ("run/systemd/timesync/synchronized", ""),
            ("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"),
        ]);
        for finding in host.findings() {
            assert_eq!((finding.state, &finding.advice), (FindingState::Ok, &None), "{finding:?}");
        }
    }

    #[test]
    fn what_is_unfit_is_named_with_what_to_do() {
        let (_directory, host) = host(&[
            ("proc/sys/kernel/io_uring_disabled", "2\n"),
            ("proc/sys/kernel/osrelease", "4.19.0\n"),
            ("proc/self/limits", &LIMITS.replace("524288", "4096  ")),
            ("proc/self/status", "CapEff:\t0000000000000000\n"),
            ("proc/sys/net/ipv4/tcp_congestion_control", "reno\n"),
            ("sys/class/net/tun0/operstate", "up\n"),
            ("sys/class/net/tun0/mtu", "1280\n"),
            ("run/systemd/timesync/synchronized", ""),
            ("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"),
        ]);
        let findings = host.findings();
        let states: Vec<&str> =
            findings.iter().filter(|one| one.state == FindingState::Attention).map(|one| one.check).collect();
        let of_the_kernel = ["io_uring", "FUSE", "loop devices", "UDP GSO and GRO", "open files", "locked memory"];
        assert_eq!(states, [&of_the_kernel[..], &["congestion control", "MTU", "swap"]].concat());
        assert!(findings.iter().all(|one| one.advice.is_some() == (one.state == FindingState::Attention)));
    }

    #[test]
    fn secrets_that_others_can_read_are_named() {
        let (directory, host) = host(&[
            ("etc/strongroom.toml", ""),
            ("etc/identity", ""),
            ("etc/vault.key", ""),
            ("etc/chap/bob", ""),
            ("srv/volumes/x", ""),
        ]);
        let path = |name: &str| directory.path().join(name);
        let set = |name: &str, mode| fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        for (name, mode) in
            [("etc", 0o755), ("etc/strongroom.toml", 0o644), ("etc/chap", 0o755), ("srv/volumes", 0o700)]
        {
            set(name, mode);
        }
        ["etc/identity", "etc/vault.key", "etc/chap/bob"].iter().for_each(|name| set(name, 0o600));
        let states = || {
            let findings = host.permissions(&path("etc/strongroom.toml"), Some(&path("srv/volumes")));
            findings.into_iter().map(|one| (one.state, one.advice.unwrap_or_default())).collect::<Vec<_>>()
        };
        assert!(states().iter().all(|(state, _)| *state == FindingState::Ok));
        set("etc/chap/bob", 0o640);
        set("etc/strongroom.toml", 0o664);
        set("srv/volumes", 0o750);
        let [(FindingState::Attention, files), (FindingState::Attention, volumes)] = &states()[..] else { panic!() };
        assert!(
            files.contains("chap/bob") && files.contains("strongroom.toml") && !files.contains("identity"),
            "{files}"
        );
        assert!(volumes.starts_with("chmod go= ") && volumes.ends_with("srv/volumes"), "{volumes}");
    }
}

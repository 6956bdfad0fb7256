//! Two network namespaces and the link between them.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::emulator::{self, Counts, DirectionControl};
use crate::{LabError, Profile};

/// Where iproute2 keeps the names of namespaces.
const NAMESPACES: &str = "/run/netns";

/// Begins the names of ours.
const PREFIX: &str = "srwan-";

/// Most that a TCP socket of the lab may buffer, bytes: 1 Gbit/s over 128 ms is 16 MB, and queues and losses take as much again.
const SOCKET_BYTES_MAX: u64 = 64 << 20;

/// Packets that the kernel keeps for us while we are not looking.
const DEVICE_QUEUE_PACKETS: u32 = 10_000;

/// Laboratories of this process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// One of the two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Where initiators are.
    Near,
    /// Where targets are.
    Far,
}

impl End {
    /// Its address in every laboratory; they cannot see each other.
    pub fn address(self) -> Ipv4Addr {
        match self {
            End::Near => Ipv4Addr::new(10, 216, 0, 1),
            End::Far => Ipv4Addr::new(10, 216, 0, 2),
        }
    }

    /// The other one.
    pub fn opposite(self) -> End {
        match self {
            End::Near => End::Far,
            End::Far => End::Near,
        }
    }

    fn word(self) -> &'static str {
        match self {
            End::Near => "near",
            End::Far => "far",
        }
    }
}

/// A link, its ends, and the threads that carry its packets. All of it is gone when this is dropped.
#[derive(Debug)]
pub struct Lab {
    number: u32,
    /// From near to far, and back.
    directions: [Arc<DirectionControl>; 2],
    carriers: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Lab {
    /// Makes namespaces, devices and the link.
    ///
    /// # Errors
    /// Without root, or where the kernel or iproute2 cannot; if the profile is refused ([`Profile::check`]).
    pub fn new(profile: &Profile) -> Result<Lab, LabError> {
        profile.check()?;
        remove_stale();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut lab = Lab { number, directions: Default::default(), carriers: Vec::new() };
        for end in [End::Near, End::Far] {
            ip(&["netns", "add", &lab.namespace(end)])?;
            ip(&["-n", &lab.namespace(end), "link", "set", "lo", "up"])?;
        }
        let near = Arc::new(lab.device(End::Near, profile)?);
        let far = Arc::new(lab.device(End::Far, profile)?);
        for (direction, from, to) in [(0, near.clone(), far.clone()), (1, far, near)] {
            let (way, shared) = (profile.way(direction), lab.directions[direction as usize].clone());
            let name = format!("link-{}", ["out", "back"][direction as usize]);
            let carrier = thread::Builder::new().name(name).spawn(move || emulator::run(&from, &to, way, &shared));
            lab.carriers.push(carrier.map_err(|error| LabError::setup("start a thread", error))?);
        }
        Ok(lab)
    }

    /// The name of an end's namespace, for `ip netns exec`.
    pub fn namespace(&self, end: End) -> String {
        format!("{PREFIX}{}-{}-{}", std::process::id(), self.number, end.word())
    }

    /// A command that runs `program` at an end.
    pub fn command(&self, end: End, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(end), program]);
        command
    }

    /// Runs `work` in a thread that is at an end, and so are the sockets that it makes.
    ///
    /// # Errors
    /// If no thread can be put there.
    pub fn at<T: Send + 'static>(
        &self,
        end: End,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, LabError> {
        let name = self.namespace(end);
        let path = PathBuf::from(NAMESPACES).join(&name);
        let place = File::open(&path).map_err(|error| LabError::setup(format!("open {}", path.display()), error))?;
        let (told, tell) = std::sync::mpsc::channel();
        let thread = thread::Builder::new().name(name).spawn(move || {
            let moved = move_into_link_name_space(place.as_fd(), Some(LinkNameSpaceType::Network));
            let is_there = moved.is_ok();
            let _ = told.send(moved);
            if !is_there {
                // This thread is not joined: its starter already has the error.
                std::panic::resume_unwind(Box::new("not at its end"));
            }
            work()
        });
        let thread = thread.map_err(|error| LabError::setup("start a thread", error))?;
        let moved = tell.recv().unwrap_or(Err(rustix::io::Errno::CHILD));
        moved.map_err(|error| LabError::setup("enter a network namespace", error.into()))?;
        Ok(thread)
    }

    /// The link becomes another; packets under way arrive as they would have.
    ///
    /// # Errors
    /// If the profile is refused. MTU and congestion control stay as they are.
    pub fn change(&self, profile: &Profile) -> Result<(), LabError> {
        profile.check()?;
        for (direction, shared) in (0..).zip(&self.directions) {
            *shared.way.lock().unwrap_or_else(PoisonError::into_inner) = Some(profile.way(direction));
        }
        Ok(())
    }

    /// Cuts or restores the link: nothing passes, and neither end is notified.
    pub fn set_down(&self, is_down: bool) {
        for shared in &self.directions {
            shared.down.store(is_down, Ordering::Relaxed);
        }
    }

    /// What crossed so far from an end to the other.
    pub fn counts(&self, from: End) -> Counts {
        self.directions[from as usize].counts()
    }

    fn device(&self, end: End, profile: &Profile) -> Result<SyncDevice, LabError> {
        let (mtu, congestion) = (profile.mtu, profile.congestion.name());
        let made = self.at(end, move || {
            for (name, value) in [
                ("core/rmem_max", SOCKET_BYTES_MAX.to_string()),
                ("core/wmem_max", SOCKET_BYTES_MAX.to_string()),
                ("ipv4/tcp_rmem", format!("4096 131072 {SOCKET_BYTES_MAX}")),
                ("ipv4/tcp_wmem", format!("4096 131072 {SOCKET_BYTES_MAX}")),
            ] {
                // Some kernels keep a limit for the whole machine; then it is not ours to raise.
                let _ = fs::write(format!("/proc/sys/net/{name}"), value);
            }
            if let Some(name) = congestion {
                let file = "/proc/sys/net/ipv4/tcp_congestion_control";
                fs::write(file, name).map_err(|error| LabError::Setup {
                    what: format!("choose {name} in {file}"),
                    error,
                    advice: "; a namespace may choose among net.ipv4.tcp_allowed_congestion_control",
                })?;
            }
            DeviceBuilder::new()
                .name("wan0")
                .ipv4(end.address(), 24, None)
                .mtu(mtu)
                .with(|options| {
                    options.offload(true).tx_queue_len(DEVICE_QUEUE_PACKETS);
                })
                .build_sync()
                .map_err(|error| LabError::setup("make a TUN device", error))
        })?;
        made.join().map_err(|_| LabError::setup("make a TUN device", std::io::Error::other("its thread panicked")))?
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for shared in &self.directions {
            shared.stop.store(true, Ordering::Relaxed);
        }
        for carrier in self.carriers.drain(..) {
            let _ = carrier.join();
        }
        for end in [End::Near, End::Far] {
            let _ = ip(&["netns", "delete", &self.namespace(end)]);
        }
    }
}

/// Namespaces of laboratories whose process is gone.
fn remove_stale() {
    for entry in fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner =
            name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), LabError> {
    let command = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|error| LabError::setup(format!("run `{command}`"), error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabError::Program { command, said: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

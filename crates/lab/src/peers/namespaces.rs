//! Two network namespaces with a cable between them, for what works only between two hosts. Removed when dropped.

use std::net::Ipv4Addr;
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::BenchError;
use crate::programs::{program, run};

/// Addresses of the cable: nobody else can be in these namespaces.
pub(super) const INITIATOR: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 1);
/// See [`INITIATOR`].
pub(super) const TARGET: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 2);
/// Jumbo frames, so that the tunnel's packets can be large.
const CABLE_MTU: &str = "9000";

/// A pair of namespaces.
#[derive(Debug)]
pub(super) struct Namespaces {
    /// At most 12 characters, so that interfaces can be named after it.
    name: String,
}

impl Namespaces {
    /// Makes them, with their cable.
    ///
    /// # Errors
    /// Without root, or without `ip`.
    pub(super) fn new() -> Result<Namespaces, BenchError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sr{}n{}", id() % 1_000_000, NEXT.fetch_add(1, Ordering::Relaxed) % 1000);
        let namespaces = Namespaces { name };
        let (target, initiator) = (namespaces.target(), namespaces.initiator());
        let needs_root = |error| {
            BenchError::Asked(format!("two network namespaces are needed, which takes root and iproute2: {error}"))
        };
        ip(&["netns", "add", &target]).map_err(needs_root)?;
        ip(&["netns", "add", &initiator])?;
        ip(&["-n", &target, "link", "add", &target, "type", "veth", "peer", "name", &initiator, "netns", &initiator])?;
        for (side, address) in [(&target, TARGET), (&initiator, INITIATOR)] {
            ip(&["-n", side, "link", "set", "lo", "up"])?;
            ip(&["-n", side, "link", "set", side, "mtu", CABLE_MTU, "up"])?;
            ip(&["-n", side, "address", "add", &format!("{address}/24"), "dev", side])?;
        }
        Ok(namespaces)
    }

    /// The target's; its end of the cable has the same name.
    pub(super) fn target(&self) -> String {
        format!("{}t", self.name)
    }

    /// The initiators'.
    pub(super) fn initiator(&self) -> String {
        format!("{}i", self.name)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for side in [self.target(), self.initiator()] {
            // Not there if making them failed.
            let _ = ip(&["netns", "delete", &side]);
        }
    }
}

/// What runs a command in a namespace.
pub(super) fn inside(namespace: &str) -> Vec<String> {
    ["ip", "netns", "exec", namespace].map(str::to_owned).to_vec()
}

/// `ip` with some arguments.
pub(super) fn ip(arguments: &[&str]) -> Result<String, BenchError> {
    let mut command: Command = program("ip", &[]);
    command.args(arguments);
    run(command)
}

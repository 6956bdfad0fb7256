//! Two network namespaces with a cable between them, for what works only between two hosts. Removed when dropped.

use std::net::Ipv4Addr;
use std::process::{Command, id};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::BenchError;
use crate::ecl::ethernet;
use crate::programs::{program, run};

/// Addresses of the cable: nobody else can be in these namespaces.
pub(crate) const INITIATOR: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 1);
/// See [`INITIATOR`].
pub(crate) const TARGET: Ipv4Addr = Ipv4Addr::new(10, 213, 0, 2);
/// What `ethtool -K` switches at both ends of a cable: segmentation of TCP and UDP by the device, and putting together what arrives.
const OFFLOADS: [&str; 4] = ["tso", "gso", "gro", "tx-udp-segmentation"];

/// A pair of namespaces.
#[derive(Debug)]
pub(crate) struct Namespaces {
    /// At most 12 characters, so that interfaces can be named after it.
    name: String,
}

impl Namespaces {
    /// Makes them, with a cable that takes packets of `mtu` bytes.
    ///
    /// # Errors
    /// Without root, or without `ip`.
    pub(crate) fn new(mtu: u32) -> Result<Namespaces, BenchError> {
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
        namespaces.set_mtu(mtu)?;
        for (side, address) in [(&target, TARGET), (&initiator, INITIATOR)] {
            ip(&["-n", side, "link", "set", "lo", "up"])?;
            // By which frames find their end.
            let mac = ethernet::mac_address(address).map(|byte| format!("{byte:02x}")).join(":");
            ip(&["-n", side, "link", "set", side, "address", &mac])?;
            ip(&["-n", side, "link", "set", side, "up"])?;
            ip(&["-n", side, "address", "add", &format!("{address}/24"), "dev", side])?;
        }
        Ok(namespaces)
    }

    /// From now on the cable takes packets of this length. Connections that there are keep the lengths that they agreed on.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), BenchError> {
        let set = |side: String| ip(&["-n", &side, "link", "set", &side, "mtu", &mtu.to_string()]).map(drop);
        [self.target(), self.initiator()].into_iter().try_for_each(set)
    }

    /// Whether trains of packets cross the cable as one, as they do by default, or packet by packet.
    ///
    /// # Errors
    /// Without ethtool.
    pub(crate) fn set_offloads(&self, is_on: bool) -> Result<(), BenchError> {
        let set = |side: String| {
            let mut command = program("ethtool", &inside(&side));
            command.args(["-K", &side]);
            for offload in OFFLOADS {
                command.args([offload, if is_on { "on" } else { "off" }]);
            }
            run(command).map(drop)
        };
        [self.target(), self.initiator()].into_iter().try_for_each(set)
    }

    /// The target's; its end of the cable has the same name.
    pub(crate) fn target(&self) -> String {
        format!("{}t", self.name)
    }

    /// The initiators'.
    pub(crate) fn initiator(&self) -> String {
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
pub(crate) fn inside(namespace: &str) -> Vec<String> {
    ["ip", "netns", "exec", namespace].map(str::to_owned).to_vec()
}

/// `ip` with some arguments.
pub(crate) fn ip(arguments: &[&str]) -> Result<String, BenchError> {
    let mut command: Command = program("ip", &[]);
    command.args(arguments);
    run(command)
}

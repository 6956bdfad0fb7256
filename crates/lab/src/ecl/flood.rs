//! Measurements while somebody floods the target's UDP port with packets that belong to no association, and beside a socket that only
//! discards the same flood on the target's processor.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::process::command_in;
use crate::rawio::{self, RawioPlan};
use crate::schedule::Watch;
use crate::{Background, BenchError, Contender, Hosts, Placement};

/// Where the flood goes while a contender of this name is measured.
pub(crate) const DISCARDED: &str = "ECL-S2-5 beside a socket that discards";
pub(super) const UNDISTURBED: &str = "ECL-S2-5 without a flood";
/// Packets a second: about a tenth of a processor in the kernel alone.
const RATE: u32 = 50_000;
const PACKET_BYTES: usize = 1200;
/// Packets go in bursts, as often as this.
const BURST_EVERY: Duration = Duration::from_millis(1);
/// Where the socket that discards is.
const DISCARD_PORT: u16 = 9;

/// Where processes of a flood run.
pub(super) struct FloodSite<'a> {
    pub(super) lab_binary: &'a Path,
    pub(super) directory: &'a Path,
    pub(super) placement: &'a Placement,
    pub(super) hosts: &'a Hosts,
}

/// Measures all of it, with the flood that belongs to each contender.
///
/// # Errors
/// As [`rawio::run`].
pub(super) fn run(
    plan: &RawioPlan,
    site: &FloodSite<'_>,
    contenders: &mut [Box<dyn Contender>],
    watch: &mut dyn Watch,
) -> Result<(), BenchError> {
    rawio::run_with(plan, contenders, watch, |contender, point, cell, watch| {
        contender.initiators(point.initiators, point.size)?;
        let _processes = site.start(contender)?;
        rawio::measure(plan, contender, point, cell, watch)
    })
}

impl FloodSite<'_> {
    /// What floods, and what discards; both end when they are dropped.
    fn start(&self, contender: &dyn Contender) -> Result<Vec<Background>, BenchError> {
        let name = &contender.identity().contender;
        if name == UNDISTURBED {
            return Ok(Vec::new());
        }
        let target = contender.address().ok_or_else(|| BenchError::Asked(format!("{name} has no address")))?;
        let mut processes = Vec::new();
        let mut to = target;
        if name == DISCARDED {
            to.set_port(DISCARD_PORT);
            let namespace = self.hosts.target.as_ref().map(|(namespace, _)| namespace.as_str());
            let mut discard = self.command(namespace);
            discard.args(["discard", &to.to_string()]);
            processes.push(Background::start("discard", discard, &self.placement.target, self.directory)?);
        }
        let mut flood = self.command(self.hosts.initiators.as_deref());
        flood.args(["flood", &to.to_string()]);
        processes.push(Background::start("flood", flood, &self.placement.initiators, self.directory)?);
        Ok(processes)
    }

    fn command(&self, namespace: Option<&str>) -> Command {
        command_in(namespace, self.lab_binary)
    }
}

/// Sends packets that look like ECL's and belong to no association, until it is ended.
///
/// # Errors
/// If there is no socket to be had.
pub fn flood(to: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(to)?;
    // Version 1, data; the protected length of a header with a seal record.
    let mut packet = vec![0x5a; PACKET_BYTES];
    packet[..4].copy_from_slice(&[0x11, 0, 0, 120]);
    let burst = RATE / (Duration::from_secs(1).as_micros() / BURST_EVERY.as_micros()) as u32;
    let (mut next_at, mut number) = (Instant::now(), 0u32);
    loop {
        for _ in 0..burst {
            number = number.wrapping_add(1);
            packet[4..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
            // Refused where nobody listens yet, or any more.
            let _ = socket.send(&packet);
        }
        next_at += BURST_EVERY;
        std::thread::sleep(next_at.saturating_duration_since(Instant::now()));
    }
}

/// Takes packets and does nothing with them, until it is ended.
///
/// # Errors
/// If the port cannot be had.
pub fn discard(at: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind(at)?;
    let mut packet = [0; 65_536];
    loop {
        // Errors are those of packets before.
        let _ = socket.recv(&mut packet);
    }
}

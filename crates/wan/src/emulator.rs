//! One direction of a link: packets out of one TUN device, through the model, into the other.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use str0m_netem::{Input, Netem, NetemConfig, Output};
use tun_rs::{GROTable, SyncDevice, VIRTIO_NET_HDR_LEN};

/// Longest sleep: how soon a change of the link, and its end, are noticed.
const ATTENTION: Duration = Duration::from_millis(20);

/// Reads of the device before the model's clock is looked at again. Each brings up to 64 KiB.
const READS_MAX: usize = 16;

/// Packets handed over at once.
const BATCH_MAX: usize = 128;

/// Segments that one read can bring: 64 KiB in the smallest packets that are worth it.
const SEGMENTS_MAX: usize = 128;

/// Spare buffers that are kept.
const SPARE_MAX: usize = 4096;

/// What one direction did so far, in packets and bytes of IP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken from the sending end.
    pub offered_packets: u64,
    /// Their bytes.
    pub offered_bytes: u64,
    /// Handed to the receiving end, doubles counted twice.
    pub delivered_packets: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
}

/// What others say to a direction, and what it says to them.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
    /// Everything is lost, as if the cable were cut.
    pub(crate) down: AtomicBool,
    pub(crate) model: Mutex<Option<NetemConfig>>,
    offered_packets: AtomicU64,
    offered_bytes: AtomicU64,
    delivered_packets: AtomicU64,
    delivered_bytes: AtomicU64,
}

impl Shared {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            offered_packets: self.offered_packets.load(Ordering::Relaxed),
            offered_bytes: self.offered_bytes.load(Ordering::Relaxed),
            delivered_packets: self.delivered_packets.load(Ordering::Relaxed),
            delivered_bytes: self.delivered_bytes.load(Ordering::Relaxed),
        }
    }
}

/// A packet behind the room that the device wants in front of it.
#[derive(Debug, Clone)]
struct Packet(Vec<u8>);

impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        &self.0[VIRTIO_NET_HDR_LEN..]
    }
}

/// Runs until told to stop.
///
/// # Errors
/// If a device fails.
pub(crate) fn run(from: &SyncDevice, to: &SyncDevice, model: NetemConfig, shared: &Arc<Shared>) -> io::Result<()> {
    from.set_nonblocking(true)?;
    Direction {
        from,
        to,
        shared,
        netem: Netem::new(model),
        gro: GROTable::new(),
        raw: vec![0; VIRTIO_NET_HDR_LEN + 65_535],
        segments: vec![Vec::new(); SEGMENTS_MAX],
        sizes: vec![0; SEGMENTS_MAX],
        spare: Vec::new(),
        due: Vec::new(),
    }
    .run()
}

struct Direction<'a> {
    from: &'a SyncDevice,
    to: &'a SyncDevice,
    shared: &'a Arc<Shared>,
    netem: Netem<Packet>,
    gro: GROTable,
    raw: Vec<u8>,
    segments: Vec<Vec<u8>>,
    sizes: Vec<usize>,
    spare: Vec<Vec<u8>>,
    due: Vec<Vec<u8>>,
}

impl Direction<'_> {
    fn run(mut self) -> io::Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.wait()?;
            let changed = self.shared.model.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(model) = changed {
                self.netem.set_config(model);
            }
            for _ in 0..READS_MAX {
                if !self.read()? {
                    break;
                }
            }
            self.hand_over()?;
        }
        Ok(())
    }

    /// Until there is something to read or to hand over.
    fn wait(&mut self) -> io::Result<()> {
        let wait = match self.netem.is_empty() {
            true => ATTENTION,
            false => self.netem.poll_timeout().saturating_duration_since(Instant::now()).min(ATTENTION),
        };
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there may be more.
    fn read(&mut self) -> io::Result<bool> {
        let room = VIRTIO_NET_HDR_LEN + 65_535;
        for segment in &mut self.segments {
            if segment.len() < room.min(9_100) {
                let mut buffer = self.spare.pop().unwrap_or_default();
                buffer.resize(room.min(9_100), 0);
                *segment = buffer;
            }
        }
        let read = self.from.recv_multiple(&mut self.raw, &mut self.segments, &mut self.sizes, VIRTIO_NET_HDR_LEN);
        let count = match read {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // What is no packet is not carried.
            Err(error) if error.raw_os_error().is_none() => return Ok(true),
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let is_down = self.shared.down.load(Ordering::Relaxed);
        for at in 0..count {
            let size = self.sizes[at];
            self.shared.offered_packets.fetch_add(1, Ordering::Relaxed);
            self.shared.offered_bytes.fetch_add(size as u64, Ordering::Relaxed);
            if is_down {
                continue;
            }
            let mut packet = std::mem::take(&mut self.segments[at]);
            packet.truncate(VIRTIO_NET_HDR_LEN + size);
            self.netem.handle_input(Input::Packet(now, Packet(packet)));
        }
        Ok(true)
    }

    /// Everything that is due by now.
    fn hand_over(&mut self) -> io::Result<()> {
        self.netem.handle_input(Input::Timeout(Instant::now()));
        loop {
            while self.due.len() < BATCH_MAX {
                match self.netem.poll_output() {
                    Some(Output::Packet(packet)) => self.due.push(packet.0),
                    Some(Output::Timeout(_)) | None => break,
                }
            }
            if self.due.is_empty() {
                return Ok(());
            }
            if !self.shared.down.load(Ordering::Relaxed) {
                let bytes: usize = self.due.iter().map(|packet| packet.len() - VIRTIO_NET_HDR_LEN).sum();
                self.shared.delivered_packets.fetch_add(self.due.len() as u64, Ordering::Relaxed);
                self.shared.delivered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                match self.to.send_multiple(&mut self.gro, &mut self.due, VIRTIO_NET_HDR_LEN) {
                    // The end has gone down, or has no room: a link does not wait for it.
                    Ok(_) => {}
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BADFD.raw_os_error()) => {
                        return Err(error);
                    }
                    Err(_) => {}
                }
            }
            let room = SPARE_MAX.saturating_sub(self.spare.len());
            self.spare.extend(self.due.drain(..).take(room));
        }
    }
}

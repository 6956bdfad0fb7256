//! One direction of a link: packets out of one TUN device, through the model, into the other.
//!
//! The kernel hands over trains of packets and takes them (`train`); the model loses, delays and counts each packet by itself. So a
//! gigabit costs some thousand system calls a second, not a hundred thousand.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use str0m_netem::{Input, Netem, NetemConfig, Output};
use tun_rs::{SyncDevice, VIRTIO_NET_HDR_LEN};

use crate::train::{Packet, Train};

/// Longest sleep: how soon a change of the link, and its end, are noticed.
const ATTENTION: Duration = Duration::from_millis(20);

/// Reads of the device before the model's clock is looked at again. Each brings up to 64 KiB.
const READS_MAX: usize = 16;

/// What a read can bring.
const READ_BYTES_MAX: usize = VIRTIO_NET_HDR_LEN + 65_535;

/// What is shorter is kept in memory of its own size, so that the large buffers are for large trains.
const SHORT_BYTES: usize = 16 << 10;

/// Spare large buffers that are kept.
const SPARE_MAX: usize = 256;

/// Upper bound on the memory of trains of which something is under way, in bytes. Where a queue takes only some packets of each it is
/// reached long before the queue's own limit; what comes then is lost.
const PINNED_BYTES_MAX: usize = 1 << 30;

/// How much before others a carrier gets a processor (`nice`): a link is not slower because its ends are busy.
const PRECEDENCE: i32 = -10;

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
pub(crate) struct DirectionControl {
    pub(crate) stop: AtomicBool,
    /// Everything is lost, as if the cable were cut.
    pub(crate) down: AtomicBool,
    pub(crate) way: Mutex<Option<Way>>,
    offered_packets: AtomicU64,
    offered_bytes: AtomicU64,
    delivered_packets: AtomicU64,
    delivered_bytes: AtomicU64,
}

impl DirectionControl {
    pub(crate) fn counts(&self) -> Counts {
        Counts {
            offered_packets: self.offered_packets.load(Ordering::Relaxed),
            offered_bytes: self.offered_bytes.load(Ordering::Relaxed),
            delivered_packets: self.delivered_packets.load(Ordering::Relaxed),
            delivered_bytes: self.delivered_bytes.load(Ordering::Relaxed),
        }
    }
}

/// What a direction is to be like.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) model: NetemConfig,
    /// What is due within this time may wait for what comes after it, so that both go as one train.
    pub(crate) grain: Duration,
}

/// Runs until told to stop.
///
/// # Errors
/// If a device fails.
pub(crate) fn run(from: &SyncDevice, to: &SyncDevice, way: Way, shared: &Arc<DirectionControl>) -> io::Result<()> {
    from.set_nonblocking(true)?;
    // Where it may not, it is a thread like others.
    let _ = rustix::process::nice(PRECEDENCE);
    Direction {
        from,
        to,
        shared,
        netem: Netem::new(way.model),
        grain: way.grain,
        handed_over_at: Instant::now(),
        buffer: Vec::new(),
        pinned_bytes: 0,
        spare: Vec::new(),
        head: Vec::new(),
    }
    .run()
}

struct Direction<'a> {
    from: &'a SyncDevice,
    to: &'a SyncDevice,
    shared: &'a Arc<DirectionControl>,
    netem: Netem<Packet>,
    grain: Duration,
    handed_over_at: Instant,
    /// Of the next read.
    buffer: Vec<u8>,
    pinned_bytes: usize,
    spare: Vec<Vec<u8>>,
    /// Headers of what is handed over.
    head: Vec<u8>,
}

impl Direction<'_> {
    fn run(mut self) -> io::Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.wait()?;
            let changed = self.shared.way.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(way) = changed {
                self.netem.set_config(way.model);
                self.grain = way.grain;
            }
            for _ in 0..READS_MAX {
                if !self.read()? {
                    break;
                }
            }
            if Instant::now() >= self.next_hand_over() {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    /// Until there is something to read or to hand over.
    fn wait(&mut self) -> io::Result<()> {
        let wait = match self.netem.is_empty() {
            true => ATTENTION,
            false => self.next_hand_over().saturating_duration_since(Instant::now()).min(ATTENTION),
        };
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// When something is due, and the last time was long enough ago.
    fn next_hand_over(&self) -> Instant {
        self.netem.poll_timeout().max(self.handed_over_at + self.grain)
    }

    /// Whether there may be more.
    fn read(&mut self) -> io::Result<bool> {
        if self.buffer.len() < READ_BYTES_MAX {
            self.buffer = self.spare.pop().unwrap_or_else(|| vec![0; READ_BYTES_MAX]);
        }
        let size = match self.from.recv(&mut self.buffer) {
            Ok(size) => size,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let bytes = match size {
            ..=SHORT_BYTES => self.buffer[..size].to_vec(),
            _ => std::mem::take(&mut self.buffer),
        };
        let train = match Train::new(bytes, size) {
            Ok(train) => Rc::new(train),
            // What is no packet is not carried.
            Err(bytes) => {
                self.keep(bytes);
                return Ok(true);
            }
        };
        let count = train.count();
        let bytes: usize = (0..count).map(|at| train.packet_bytes(at)).sum();
        self.shared.offered_packets.fetch_add(count as u64, Ordering::Relaxed);
        self.shared.offered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.pinned_bytes += train.memory_bytes();
        if !self.shared.down.load(Ordering::Relaxed) && self.pinned_bytes <= PINNED_BYTES_MAX {
            let now = Instant::now();
            for at in 0..count {
                self.netem.handle_input(Input::Packet(now, Packet { train: Rc::clone(&train), at }));
            }
        }
        self.release(train);
        Ok(true)
    }

    /// Everything that is due by now.
    fn hand_over(&mut self) -> io::Result<()> {
        let now = Instant::now();
        self.netem.handle_input(Input::Timeout(now));
        self.handed_over_at = now;
        // Packets of one train that follow each other.
        let mut due: Option<(Rc<Train>, Range<usize>)> = None;
        while let Some(Output::Packet(packet)) = self.netem.poll_output() {
            match &mut due {
                Some((train, packets)) if Rc::ptr_eq(train, &packet.train) && packets.end == packet.at => {
                    packets.end += 1;
                }
                _ => {
                    let first = packet.at..packet.at + 1;
                    if let Some((train, packets)) = due.replace((packet.train, first)) {
                        self.send(train, packets)?;
                    }
                }
            }
        }
        due.map_or(Ok(()), |(train, packets)| self.send(train, packets))
    }

    fn send(&mut self, train: Rc<Train>, packets: Range<usize>) -> io::Result<()> {
        if !self.shared.down.load(Ordering::Relaxed) {
            let bytes: usize = packets.clone().map(|at| train.packet_bytes(at)).sum();
            self.shared.delivered_packets.fetch_add(packets.len() as u64, Ordering::Relaxed);
            self.shared.delivered_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            let mut head = std::mem::take(&mut self.head);
            let rest = train.part(packets, &mut head);
            match self.to.send_vectored(&[IoSlice::new(&head), IoSlice::new(rest)]) {
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BADFD.raw_os_error()) => {
                    return Err(error);
                }
                // The end has gone down, or has no room: a link does not wait for it.
                Ok(_) | Err(_) => {}
            }
            self.head = head;
        }
        self.release(train);
        Ok(())
    }

    /// A train of which nothing is under way any more leaves its memory.
    fn release(&mut self, train: Rc<Train>) {
        if let Ok(train) = Rc::try_unwrap(train) {
            self.pinned_bytes -= train.memory_bytes();
            self.keep(train.into_bytes());
        }
    }

    fn keep(&mut self, bytes: Vec<u8>) {
        if bytes.len() == READ_BYTES_MAX && self.spare.len() < SPARE_MAX {
            self.spare.push(bytes);
        }
    }
}

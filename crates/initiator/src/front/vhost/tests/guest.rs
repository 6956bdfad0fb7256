//! A guest for tests: memory in a memfd, queues that are built by hand, and a front end that shares both over a real connection. It uses nothing
//! of this workspace, so that the tests of the program can have it too.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// Entries of a queue, and requests that it has room for.
pub(crate) const QUEUE_SIZE: u16 = 64;
pub(crate) const SLOTS: u16 = 16;
/// Data of one request.
pub(crate) const SLOT_BYTES: u32 = 256 << 10;

pub(crate) const READ: u32 = 0;
pub(crate) const WRITE: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const IDENTIFY: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

/// Flags of descriptors.
pub(crate) const NEXT: u16 = 1;
pub(crate) const DEVICE_WRITES: u16 = 2;

const MEMORY_BEGIN: u64 = 0x10_0000;
const QUEUE_BYTES: u64 = 8 << 20;
/// Where things lie in a queue's memory.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADERS: u64 = 0x4000;
const DATA: u64 = 0x10_0000;
/// Of a header and a status.
const HEADER_ROOM: u64 = 64;
const STATUS: u64 = 32;

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a request came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GuestReply {
    pub(crate) status: u8,
    pub(crate) data: Vec<u8>,
}

struct GuestQueue {
    kick: EventFd,
    call: EventFd,
    /// Index of the available ring.
    available: u16,
    /// Used entries that were seen.
    seen: u16,
}

/// See the module.
pub(crate) struct Guest {
    memory: GuestMemoryMmap<()>,
    queues: Vec<GuestQueue>,
    /// What the front end keeps while there is no back end.
    inflight: Option<(VhostUserInflight, File)>,
    /// Features that it does not accept.
    pub(crate) refused_features: u64,
    connection: Option<(Frontend, UnixStream)>,
}

impl Guest {
    /// A guest with this many queues, and no back end yet.
    pub(crate) fn new(queues: usize) -> Guest {
        let len = QUEUE_BYTES as usize * queues;
        let file: OwnedFd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        file.set_len(len as u64).unwrap();
        let range = (GuestAddress(MEMORY_BEGIN), len, Some(FileOffset::new(file, 0)));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let queue = |_| GuestQueue { kick: event(), call: event(), available: 0, seen: 0 };
        let queues = (0..queues).map(queue).collect();
        Guest { memory, queues, inflight: None, refused_features: 0, connection: None }
    }

    /// Connects, as a front end does at its start and whenever it has lost its back end.
    pub(crate) fn connect(&mut self, path: &Path) {
        self.try_connect(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    pub(crate) fn try_connect(&mut self, path: &Path) -> Result<(), vhost::Error> {
        self.connection = None;
        let begun = Instant::now();
        let mut frontend = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break Frontend::from_stream(stream, self.queues.len() as u64),
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{}: {error}", path.display()),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        frontend.set_owner()?;
        let features = frontend.get_features()? & !self.refused_features;
        frontend.set_features(features)?;
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        assert!(frontend.get_queue_num()? >= self.queues.len() as u64);
        let (ours, theirs) = UnixStream::pair().unwrap();
        frontend.set_backend_request_fd(&theirs)?;
        if self.inflight.is_none() {
            let wanted = VhostUserInflight::new(0, 0, self.queues.len() as u16, QUEUE_SIZE);
            self.inflight = Some(frontend.get_inflight_fd(&wanted)?);
        }
        let (inflight, file) = self.inflight.as_ref().unwrap();
        frontend.set_inflight_fd(inflight, file.as_raw_fd())?;
        let regions: Vec<_> =
            self.memory.iter().map(|region| VhostUserMemoryRegionInfo::from_guest_region(region).unwrap()).collect();
        frontend.set_mem_table(&regions)?;
        for index in 0..self.queues.len() {
            self.start_queue(&mut frontend, index)?;
        }
        self.connection = Some((frontend, ours));
        Ok(())
    }

    fn start_queue(&self, frontend: &mut Frontend, index: usize) -> Result<(), vhost::Error> {
        let address = |offset| {
            let at = GuestAddress(queue_begin(index) + offset);
            self.memory.get_host_address(at).unwrap() as u64
        };
        frontend.set_vring_num(index, QUEUE_SIZE)?;
        // All that a front end knows when it has lost its back end.
        frontend.set_vring_base(index, self.used_index(index))?;
        let config = VringConfigData {
            queue_max_size: QUEUE_SIZE,
            queue_size: QUEUE_SIZE,
            flags: 0,
            desc_table_addr: address(0),
            used_ring_addr: address(USED),
            avail_ring_addr: address(AVAILABLE),
            log_addr: None,
        };
        frontend.set_vring_addr(index, &config)?;
        frontend.set_vring_kick(index, &self.queues[index].kick)?;
        frontend.set_vring_call(index, &self.queues[index].call)?;
        frontend.set_vring_enable(index, true)
    }

    /// Ends the connection. The guest, its queues and what the front end keeps stay.
    pub(crate) fn disconnect(&mut self) {
        self.connection = None;
    }

    pub(crate) fn frontend(&mut self) -> &mut Frontend {
        &mut self.connection.as_mut().expect("it is connected").0
    }

    /// Stops a queue, and returns where it would go on.
    pub(crate) fn stop_queue(&mut self, index: usize) -> u32 {
        self.frontend().get_vring_base(index).unwrap()
    }

    pub(crate) fn restart_queue(&mut self, index: usize) {
        let (mut frontend, channel) = self.connection.take().unwrap();
        self.start_queue(&mut frontend, index).unwrap();
        self.connection = Some((frontend, channel));
    }

    /// Bytes of the configuration space.
    pub(crate) fn config(&mut self, offset: u32, len: u32) -> Vec<u8> {
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend().get_config(offset, len, flags, &vec![0; len as usize]).unwrap().1
    }

    /// The disk's size in bytes, as the guest learns it.
    pub(crate) fn size_bytes(&mut self) -> u64 {
        u64::from_le_bytes(self.config(0, 8).try_into().unwrap()) * 512
    }

    /// Waits until it is told that the configuration has changed.
    pub(crate) fn wait_for_change(&mut self) {
        let (_, channel) = self.connection.as_mut().unwrap();
        channel.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut message = [0; 12];
        std::io::Read::read_exact(channel, &mut message).unwrap();
        let fields: Vec<u8> = [2_u32, 1, 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        assert_eq!(message[..], fields, "VHOST_USER_BACKEND_CONFIG_CHANGE_MSG");
    }

    /// Lays a request out: header, data for the device, room for the device's data, status.
    pub(crate) fn place(&mut self, queue: usize, slot: u16, kind: u32, sector: u64, out: &[u8], in_bytes: u32) {
        let header = header_address(queue, slot);
        self.write_header(queue, slot, kind, sector);
        self.memory.write_obj(0xee_u8, GuestAddress(header + STATUS)).unwrap();
        let (data, head) = (data_address(queue, slot), slot * 4);
        assert!(out.len() as u32 + in_bytes <= SLOT_BYTES);
        self.memory.write_slice(out, GuestAddress(data)).unwrap();
        let mut parts = vec![(header, 16, 0)];
        if !out.is_empty() {
            parts.push((data, out.len() as u32, 0));
        }
        if in_bytes > 0 {
            parts.push((data + out.len() as u64, in_bytes, DEVICE_WRITES));
        }
        parts.push((header + STATUS, 1, DEVICE_WRITES));
        self.chain(queue, head, &parts);
    }

    pub(crate) fn write_header(&mut self, queue: usize, slot: u16, kind: u32, sector: u64) {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.memory.write_slice(&header, GuestAddress(header_address(queue, slot))).unwrap();
    }

    /// Writes descriptors from `head` on, each with the next one as its successor.
    pub(crate) fn chain(&mut self, queue: usize, head: u16, parts: &[(u64, u32, u16)]) {
        for (at, (address, len, flags)) in parts.iter().enumerate() {
            let is_last = at + 1 == parts.len();
            let flags = flags | if is_last { 0 } else { NEXT };
            self.descriptor(queue, head + at as u16, (*address, *len, flags, head + at as u16 + 1));
        }
    }

    pub(crate) fn descriptor(&mut self, queue: usize, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let bytes =
            [&address.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()].concat();
        self.memory.write_slice(&bytes, GuestAddress(queue_begin(queue) + 16 * u64::from(index))).unwrap();
    }

    /// Makes a chain available.
    pub(crate) fn push(&mut self, queue: usize, head: u16) {
        let ring = queue_begin(queue) + AVAILABLE;
        let at = u64::from(self.queues[queue].available % QUEUE_SIZE);
        self.memory.write_obj(head, GuestAddress(ring + 4 + 2 * at)).unwrap();
        self.set_available(queue, self.queues[queue].available.wrapping_add(1));
    }

    /// Sets the index of the available ring.
    pub(crate) fn set_available(&mut self, queue: usize, index: u16) {
        self.queues[queue].available = index;
        let at = GuestAddress(queue_begin(queue) + AVAILABLE + 2);
        self.memory.store(index, at, Ordering::SeqCst).unwrap();
    }

    pub(crate) fn kick(&self, queue: usize) {
        self.queues[queue].kick.write(1).unwrap();
    }

    /// Asks for something, and does not wait.
    pub(crate) fn ask(&mut self, queue: usize, slot: u16, kind: u32, sector: u64, out: &[u8], in_bytes: u32) {
        self.place(queue, slot, kind, sector, out, in_bytes);
        self.push(queue, slot * 4);
        self.kick(queue);
    }

    fn used_index(&self, queue: usize) -> u16 {
        self.memory.load(GuestAddress(queue_begin(queue) + USED + 2), Ordering::SeqCst).unwrap()
    }

    /// Claims that this many requests were answered.
    pub(crate) fn set_used(&mut self, queue: usize, index: u16) {
        self.memory.store(index, GuestAddress(queue_begin(queue) + USED + 2), Ordering::SeqCst).unwrap();
    }

    /// Replaces what the front end keeps by a file that is too short.
    pub(crate) fn truncate_inflight(&mut self) {
        let file: OwnedFd = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        self.inflight.as_mut().unwrap().1 = File::from(file);
    }

    /// The next slot that was answered, if there is one now.
    pub(crate) fn next_answer(&mut self, queue: usize) -> Option<u16> {
        if self.used_index(queue) == self.queues[queue].seen {
            return None;
        }
        let at = u64::from(self.queues[queue].seen % QUEUE_SIZE);
        let head: u32 = self.memory.read_obj(GuestAddress(queue_begin(queue) + USED + 4 + 8 * at)).unwrap();
        self.queues[queue].seen = self.queues[queue].seen.wrapping_add(1);
        Some(head as u16 / 4)
    }

    /// Waits for the next slot that is answered, as a driver does: it sleeps until it is notified.
    pub(crate) fn wait_for_answer(&mut self, queue: usize) -> u16 {
        let begun = Instant::now();
        loop {
            let used_event = queue_begin(queue) + AVAILABLE + 4 + 2 * u64::from(QUEUE_SIZE);
            self.memory.store(self.queues[queue].seen, GuestAddress(used_event), Ordering::SeqCst).unwrap();
            if let Some(slot) = self.next_answer(queue) {
                return slot;
            }
            assert!(begun.elapsed() < PATIENCE, "no answer");
            while self.queues[queue].call.read().is_err() {
                assert!(begun.elapsed() < PATIENCE, "the guest was not notified");
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// The status of a slot; 0xee while there is none.
    pub(crate) fn status(&self, queue: usize, slot: u16) -> u8 {
        self.memory.read_obj(GuestAddress(header_address(queue, slot) + STATUS)).unwrap()
    }

    pub(crate) fn data(&self, queue: usize, slot: u16, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.memory.read_slice(&mut data, GuestAddress(data_address(queue, slot))).unwrap();
        data
    }

    /// Asks for something, and waits. No other request of the queue is in flight.
    #[track_caller]
    pub(crate) fn request(&mut self, queue: usize, kind: u32, sector: u64, out: &[u8], in_bytes: u32) -> GuestReply {
        let slot = self.queues[queue].available % SLOTS;
        self.ask(queue, slot, kind, sector, out, in_bytes);
        assert_eq!(self.wait_for_answer(queue), slot);
        let data = self.data(queue, slot, out.len() + in_bytes as usize).split_off(out.len());
        GuestReply { status: self.status(queue, slot), data }
    }

    #[track_caller]
    pub(crate) fn write(&mut self, queue: usize, sector: u64, data: &[u8]) {
        assert_eq!(self.request(queue, WRITE, sector, data, 0).status, 0);
    }

    #[track_caller]
    pub(crate) fn read(&mut self, queue: usize, sector: u64, len: u32) -> Vec<u8> {
        let reply = self.request(queue, READ, sector, b"", len);
        assert_eq!(reply.status, 0);
        reply.data
    }

    /// A range of a discard or of zeros.
    pub(crate) fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    }
}

fn event() -> EventFd {
    EventFd::new(EventfdFlags::NONBLOCK.bits() as i32).unwrap()
}

fn queue_begin(queue: usize) -> u64 {
    MEMORY_BEGIN + QUEUE_BYTES * queue as u64
}

/// Where a slot's header is; its status lies behind it.
pub(crate) fn header_address(queue: usize, slot: u16) -> u64 {
    queue_begin(queue) + HEADERS + HEADER_ROOM * u64::from(slot)
}

/// Where a slot's status is.
pub(crate) fn status_address(queue: usize, slot: u16) -> u64 {
    header_address(queue, slot) + STATUS
}

/// Where a slot's data are.
pub(crate) fn data_address(queue: usize, slot: u16) -> u64 {
    queue_begin(queue) + DATA + u64::from(SLOT_BYTES) * u64::from(slot)
}

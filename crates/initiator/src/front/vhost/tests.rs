//! Proves that a guest behind a real connection sees the volume's bytes; that no request is lost or executed after it was answered when a back
//! end is killed; that hostile guests break nothing but their own queue; and that the server comes and goes cleanly.

pub(crate) mod guest;
mod hostile;
mod restarts;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use strongroom_block::{
    BlockDevice, BlockSize, Completion, CompletionSink, DeviceErrorKind, Geometry, Lba, Request, Token,
};

use super::{VhostOptions, VhostServer, VhostServerError};
use crate::MemoryDevice;
use crate::completion::lock;
use guest::{DISCARD, FLUSH, Guest, IDENTIFY, READ, SLOT_BYTES, WRITE, WRITE_ZEROES};

const SIZE: u64 = 8 << 20;
const SERIAL: &str = "0123456789abcdef0123";

/// A device that can hold requests back, as one whose target is away does.
struct HeldDevice {
    memory: MemoryDevice,
    held: Mutex<Option<Vec<(Token, Request)>>>,
    /// First blocks of the writes that were executed, in their order.
    written: Mutex<Vec<u64>>,
}

impl HeldDevice {
    fn new(block_bytes: u64) -> Arc<HeldDevice> {
        let memory = MemoryDevice::new(Geometry::from_bytes(SIZE, BlockSize::new(block_bytes).unwrap()).unwrap());
        Arc::new(HeldDevice { memory, held: Mutex::default(), written: Mutex::default() })
    }

    fn hold(&self) {
        lock(&self.held).get_or_insert_default();
    }

    fn held_count(&self) -> usize {
        lock(&self.held).as_ref().map_or(0, Vec::len)
    }

    fn release(&self) {
        let held = lock(&self.held).take().unwrap_or_default();
        held.into_iter().for_each(|(token, request)| self.perform(token, request));
    }

    fn perform(&self, token: Token, request: Request) {
        if let Request::Write { lba, .. } = &request {
            lock(&self.written).push(lba.0);
        }
        self.memory.submit(token, request);
    }
}

impl BlockDevice for HeldDevice {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn submit(&self, token: Token, request: Request) {
        if let Some(held) = &mut *lock(&self.held) {
            return held.push((token, request));
        }
        self.perform(token, request);
    }

    fn poll_completions(&self, completions: &mut Vec<Completion>) -> usize {
        self.memory.poll_completions(completions)
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        self.memory.wait(timeout)
    }

    fn offer_completions(&self, sink: Arc<dyn CompletionSink>) {
        self.memory.offer_completions(sink);
    }
}

/// A server, and the device behind it.
struct Served {
    server: VhostServer,
    device: Arc<HeldDevice>,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

fn served_blocks(block_bytes: u64, options: VhostOptions) -> Served {
    let device = HeldDevice::new(block_bytes);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap().join("vault.sock");
    let server = VhostServer::start(device.clone(), &path, options).unwrap();
    Served { server, device, path, _directory: directory }
}

fn served(options: VhostOptions) -> Served {
    served_blocks(4096, options)
}

fn connected(served: &Served, queues: usize) -> Guest {
    let mut guest = Guest::new(queues);
    guest.connect(&served.path);
    guest
}

#[track_caller]
fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < Duration::from_secs(60), "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 512 + seed) as u8 | 1).collect()
}

#[test]
fn any_sectors_are_read_and_written_through_any_queue() {
    for block_bytes in [512, 4096, 65_536] {
        let served = served_blocks(block_bytes, VhostOptions::new(SERIAL));
        let mut guest = connected(&served, 3);
        assert_eq!(guest.size_bytes(), SIZE);
        let mut model = vec![0; SIZE as usize];
        let ranges = [(0, 8), (9, 1), (1, 7), (15, 3), (100, 300), (2048, 512), (SIZE / 512 - 1, 1)];
        for (round, (sector, sectors)) in ranges.into_iter().enumerate() {
            let (at, data) = (sector as usize * 512, pattern(round, sectors * 512));
            guest.write(round % 3, sector, &data);
            model[at..at + data.len()].copy_from_slice(&data);
        }
        for at in (0..SIZE).step_by(SLOT_BYTES as usize) {
            let read = guest.read((at / 7 % 3) as usize, at / 512, SLOT_BYTES);
            assert!(read == model[at as usize..][..read.len()], "{block_bytes} {at}");
        }
        for (sector, sectors) in [(0, 1), (3, 9), (101, 200), (SIZE / 512 - 1, 1)] {
            assert!(guest.read(0, sector, sectors * 512) == model[sector as usize * 512..][..sectors as usize * 512]);
        }
        drop(guest);
        served.server.finish().unwrap();
        assert!(!served.path.exists(), "the socket goes with the server");
        assert_eq!(served.device.memory.counts().flushes, 1, "the end makes everything durable");
    }
}

#[test]
fn flush_discard_and_zeros_reach_the_device() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&served, 1);
    let counts = || served.device.memory.counts();
    let mut done = |kind, out: &[u8]| assert_eq!(guest.request(0, kind, 0, out, 0).status, 0);
    done(WRITE, &pattern(0, 65_536));
    assert_eq!((counts().blocks_present, counts().forced_writes), (16, 0));
    done(FLUSH, b"");
    assert_eq!(counts().flushes, 1);
    // Whole blocks of two ranges: of the first one, the second to fourth.
    done(DISCARD, &[Guest::range(1, 31, 0), Guest::range(64, 8, 0)].concat());
    assert_eq!((counts().discarded_blocks, counts().blocks_present), (4, 12));
    // Zeros: whole blocks are forgotten if they may be.
    done(WRITE_ZEROES, &Guest::range(80, 9, 1));
    assert_eq!((counts().discarded_blocks, counts().blocks_present), (5, 11));
    done(WRITE_ZEROES, &Guest::range(8, 8, 0));
    assert_eq!((counts().discarded_blocks, counts().blocks_present, counts().flushes), (5, 12, 1));
    let mut expected = pattern(0, 65_536);
    for zeros in [4096..16_384, 64 * 512..72 * 512, 80 * 512..89 * 512] {
        expected[zeros].fill(0);
    }
    assert!(guest.read(0, 0, 65_536) == expected);
    let reply = guest.request(0, IDENTIFY, 0, b"", 20);
    assert_eq!((reply.status, &reply.data[..]), (0, SERIAL.as_bytes()));
    drop(guest);
    served.server.finish().unwrap();
}

/// Without VIRTIO_BLK_F_FLUSH a guest takes what is answered for durable.
#[test]
fn a_guest_that_does_not_flush_gets_durable_writes() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = Guest::new(1);
    // Nor does it know indexes of events.
    guest.refused_features = 1 << 9 | 1 << 29;
    guest.connect(&served.path);
    guest.write(0, 0, &pattern(0, 4096));
    assert_eq!(served.device.memory.counts().forced_writes, 1);
    assert_eq!(guest.request(0, DISCARD, 0, &Guest::range(0, 8, 0), 0).status, 0);
    assert_eq!(served.device.memory.counts().flushes, 1);
    served.server.abandon();
}

#[test]
fn errors_reach_the_guest_and_spare_the_rest() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&served, 1);
    served.device.memory.fail_at(Lba(3), DeviceErrorKind::Medium);
    served.device.memory.fail_at(Lba(9), DeviceErrorKind::NoSpace);
    assert_eq!(guest.request(0, READ, 24, b"", 4096).status, 1);
    assert_eq!(guest.request(0, READ, 0, b"", SLOT_BYTES).status, 1);
    assert_eq!(guest.request(0, WRITE, 72, &[1; 4096], 0).status, 1);
    assert_eq!(guest.request(0, 77, 0, b"", 512).status, 2, "an unknown type");
    guest.write(0, 32, &[4; 4096]);
    served.device.memory.heal();
    guest.write(0, 72, &[9; 4096]);
    let read_only = self::served(VhostOptions { read_only: true, ..VhostOptions::new(SERIAL) });
    let mut reader = connected(&read_only, 1);
    for (kind, out) in [(WRITE, vec![1; 512]), (DISCARD, Guest::range(0, 8, 0)), (WRITE_ZEROES, Guest::range(0, 8, 0))]
    {
        assert_eq!(reader.request(0, kind, 0, &out, 0).status, 1);
    }
    assert_eq!(reader.read(0, 0, 512), [0; 512]);
    drop((guest, reader));
    served.server.finish().unwrap();
    read_only.server.finish().unwrap();
}

#[test]
fn a_guest_learns_that_the_volume_has_grown() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&served, 1);
    let follow = served.server.growth_follower();
    assert_eq!(guest.request(0, WRITE, SIZE / 512, &[7; 4096], 0).status, 1, "beyond the end");
    served.device.memory.grow_to(2 * SIZE / 4096);
    follow();
    guest.wait_for_change();
    assert_eq!(guest.size_bytes(), 2 * SIZE);
    guest.write(0, SIZE / 512, &[7; 4096]);
    guest.disconnect();
    eventually("nobody is connected", || served.server.client_counter()() == 0);
    follow();
    served.server.abandon();
}

#[test]
fn a_socket_is_its_users_own_and_serves_one_front_end() {
    let served = served(VhostOptions::new(SERIAL));
    assert_eq!(served.path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let again = VhostServer::start(served.device.clone(), &served.path, VhostOptions::new(SERIAL));
    assert!(matches!(again, Err(VhostServerError::Listen { .. })));
    assert!(again.unwrap_err().to_string().contains("another process answers"));
    let mut guest = connected(&served, 1);
    assert_eq!(served.server.client_counter()(), 1);
    assert!(Guest::new(1).try_connect(&served.path).is_err(), "a second one is refused");
    guest.write(0, 0, &[1; 512]);
    guest.disconnect();
    // At once: the server has not seen yet that the first one has gone, and does so first.
    let mut next = connected(&served, 1);
    assert_eq!(next.read(0, 0, 512), [1; 512]);
    drop(next);
    served.server.finish().unwrap();
    // What a killed server has left is replaced, and options are checked.
    drop(std::os::unix::net::UnixListener::bind(&served.path).unwrap());
    for (queues_max, queue_size_max, logical_block_bytes) in
        [(0, 128, None), (257, 128, None), (1, 100, None), (1, 2048, None), (1, 128, Some(8192)), (1, 128, Some(511))]
    {
        let options = VhostOptions { queues_max, queue_size_max, logical_block_bytes, ..VhostOptions::new(SERIAL) };
        let refused = VhostServer::start(served.device.clone(), &served.path, options);
        assert!(matches!(refused, Err(VhostServerError::Options(_))));
    }
    VhostServer::start(served.device, &served.path, VhostOptions::new(SERIAL)).unwrap().finish().unwrap();
}

#[test]
fn requests_of_several_queues_are_in_flight_at_once_and_answered_at_the_end() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&served, 2);
    served.device.hold();
    for slot in 0..10 {
        for queue in 0..2_u16 {
            let sector = u64::from(slot * 2 + queue) * 8;
            guest.ask(queue.into(), slot, WRITE, sector, &pattern(slot.into(), 4096), 0);
        }
    }
    eventually("all are in flight", || served.device.held_count() == 20);
    let device = served.device.clone();
    let finishing = std::thread::spawn(move || served.server.finish());
    std::thread::sleep(Duration::from_millis(50));
    assert!(guest.next_answer(0).is_none() && !finishing.is_finished());
    device.release();
    for queue in 0..2 {
        for _ in 0..10 {
            let slot = guest.wait_for_answer(queue);
            assert_eq!(guest.status(queue, slot), 0);
        }
    }
    finishing.join().unwrap().unwrap();
    assert_eq!(device.memory.counts().blocks_present, 20);
    assert_eq!(device.memory.counts().flushes, 1);
}

#[test]
fn a_queue_that_is_stopped_goes_on_where_it_was() {
    let served = served(VhostOptions::new(SERIAL));
    let mut guest = connected(&served, 1);
    guest.write(0, 0, &pattern(0, 4096));
    guest.write(0, 8, &pattern(1, 4096));
    assert_eq!(guest.stop_queue(0), 2);
    // Not taken while it is stopped.
    guest.ask(0, 2, READ, 8, b"", 4096);
    std::thread::sleep(Duration::from_millis(50));
    assert!(guest.next_answer(0).is_none());
    guest.restart_queue(0);
    assert_eq!(guest.wait_for_answer(0), 2);
    assert!(guest.data(0, 2, 4096) == pattern(1, 4096));
    drop(guest);
    served.server.finish().unwrap();
}

//! Proves that no memory that held a block key, or a multiple of one as parity has them, on its way through an association is freed with it: the
//! allocator of this program looks into every piece of memory that is freed.

#![allow(unsafe_code)] // An allocator.

#[path = "hostile/pair.rs"]
mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use pair::Pair;
use strongroom_block::{AttachId, Buffer, Mode, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum, wiped};
use strongroom_ecl::{Config, EclKeys, Parity, Scheme};
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::initiator::{Command, Event, WriteRecords, WriteSource};
use strongroom_scsi::transport::target::{self as unit, Response};

/// What stands for the block key of every block.
const KEY: [u8; 32] = *b"\xa5block key that nobody may find\x5a";
const BLOCK: usize = 512;
/// Two groups of quanta.
const BLOCKS: usize = 16;
const RECORD_BYTES: usize = SealRecord::BASE_BYTES + KEY.len();

/// The key's multiples, each at the place that its first byte says.
static MULTIPLES: [[u8; 32]; 256] = multiples_of_the_key();
static FOUND: AtomicUsize = AtomicUsize::new(0);

struct Searching;

// SAFETY: everything is passed on to the system's allocator; memory is only read, before it is freed.
unsafe impl GlobalAlloc for Searching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Cleared, so that all of it may be read later.
        // SAFETY: as the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller owns `layout.size()` bytes here, and they were initialised when they were allocated.
        let bytes = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
        if bytes.windows(KEY.len()).any(is_multiple) {
            FOUND.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Searching = Searching;

fn is_multiple(window: &[u8]) -> bool {
    window[0] != 0 && *window == MULTIPLES[window[0] as usize]
}

/// In the field of docs/ecl.md, "Parity".
const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b > 0 {
        if b & 1 == 1 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 > 0 { 0x1d } else { 0 };
        b >>= 1;
    }
    product
}

const fn multiples_of_the_key() -> [[u8; 32]; 256] {
    let mut all = [[0; 32]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut at = 0;
        let row = product(factor as u8, KEY[0]) as usize;
        while at < 32 {
            all[row][at] = product(factor as u8, KEY[at]);
            at += 1;
        }
        factor += 1;
    }
    all
}

fn config(peer: SocketAddr) -> Config {
    let keys = EclKeys::new([7; 32], Scheme::Lazy, Suite::Aes256Gcm);
    Config { holds_keys: true, parity: Parity::new(8, 2), ..Config::new(keys, 1, peer, BLOCK as u32) }
}

/// A write whose every record has the key.
fn write() -> Command {
    let data: Vec<u8> = (0..BLOCKS * BLOCK).map(|at| (at / BLOCK * 7 + at) as u8).collect();
    let mut records = Vec::with_capacity(BLOCKS * RECORD_BYTES);
    for (block, counter) in data.chunks(BLOCK).zip(1..) {
        let stamp = Stamp { attach_id: AttachId([7; 16]), counter };
        let sum = keyless_checksum(block);
        let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags::default(), 3, stamp, sum, [5; 16]);
        records.extend_from_slice(record.with_block_key(&KEY).as_bytes());
    }
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x8a, BLOCKS as u8);
    let records = WriteRecords { block_bytes: BLOCK as u32, record_bytes: RECORD_BYTES as u32, bytes: wiped(records) };
    Command::write(Lun(0), cdb, WriteSource { data: Buffer::copy_from(&data), records: Some(records) })
}

/// Has two packets of a write lost. How many quanta parity restored.
fn write_with_losses(lost: [usize; 2]) -> u64 {
    let mut pair = Pair::established(config);
    pair.initiator.submit(write()).expect("taken");
    let mut sent = 0;
    while let Some(transmit) = pair.initiator.poll_transmit(pair.now) {
        if !lost.contains(&sent) {
            pair.give_to_target(&transmit);
        }
        sent += 1;
    }
    assert!(sent >= 10, "the first group and its parity are sent at once: {sent}");
    pair.settle();
    let Some(unit::Event::Command(command)) = pair.target.poll_event() else { panic!("the write arrives") };
    assert_eq!(command.gather().len(), BLOCKS * BLOCK);
    let task = command.task;
    drop(command);
    pair.target.complete(task, Response::good());
    pair.settle();
    let event = pair.initiator.poll_event();
    assert!(matches!(&event, Some(Event::Completed(completed)) if completed.status == 0), "{event:?}");
    pair.target.statistics().quanta_repaired
}

#[test]
fn memory_that_held_block_keys_is_wiped() {
    // The search finds what is there to be found.
    drop(KEY.iter().map(|byte| product(*byte, 3)).collect::<Vec<u8>>());
    assert_eq!(FOUND.swap(0, Ordering::Relaxed), 1);
    let mut repaired = 0;
    for low in 1..9 {
        for high in low + 1..10 {
            repaired += write_with_losses([low, high]);
        }
    }
    assert!(repaired >= 36, "{repaired} quanta were restored");
    assert_eq!(FOUND.load(Ordering::Relaxed), 0, "pieces of memory were freed with a key in them");
}

//! Proves that a target gives no memory back with a block key in it: the allocator of this program looks into every piece of memory that
//! the target's threads free, while blocks and holes are written, read, refused, verified and lost. (`realloc` of the standard trait frees
//! the old piece, and is seen too.) What a link and a channel do is in `wiped_headers.rs` of their crate.

#![allow(unsafe_code)] // An allocator.

#[allow(dead_code, reason = "another program uses the rest")]
#[path = "it"]
mod it {
    pub(crate) mod support;
}

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use it::support;
use strongroom_block::{Custody, HoleRecord, Lba, OpenError, Opener, SealRecord, Stamp};
use strongroom_channel::Scheme;
use strongroom_iscsi::initiator::{Command, Session};
use strongroom_net::{Link, LinkOptions};
use strongroom_scsi::{VendorCommand, cdb, vendor};
use strongroom_target::{Catalogue, SealedSpec, Target, TargetOptions, VolumeSpec};
use support::sealed::{
    ATTACH_ID, Mask, hole, read, read_version, records, registration, returned, seal_hole, sealed_write, stamp,
};
use support::{ALICE, BLOCK, Host, Initiator, LUN, MIB, alice_key, eventually, keeper, normal, pattern};

/// Every block key here is this word four times, so that one aligned word of memory tells whether a key is there, wherever it begins.
const WORD: u64 = 0xa51b_60c4_8fe2_397d;

static FOUND: AtomicUsize = AtomicUsize::new(0);
static FOUND_AT_CLIENT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread plays the initiator, which wipes nothing here.
    static IS_CLIENT: Cell<bool> = const { Cell::new(false) };
}

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
        if holds_a_key(bytes) {
            let is_client = IS_CLIENT.try_with(Cell::get).unwrap_or(false);
            let found = if is_client { &FOUND_AT_CLIENT } else { &FOUND };
            found.fetch_add(1, Ordering::Relaxed);
            if !is_client {
                tell_where(layout.size());
            }
        }
        // SAFETY: as the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Searching = Searching;

/// Who freed it: the test fails later, in another thread. Capturing frees memory, too: not from within itself.
fn tell_where(bytes: usize) {
    thread_local! {
        static IS_TELLING: Cell<bool> = const { Cell::new(false) };
    }
    if !IS_TELLING.try_with(|telling| telling.replace(true)).unwrap_or(true) {
        eprintln!("{bytes} bytes with a key were freed here:\n{}", std::backtrace::Backtrace::force_capture());
        IS_TELLING.set(false);
    }
}

/// A key has at least three whole words, wherever it begins.
fn holds_a_key(bytes: &[u8]) -> bool {
    let mut run = 0;
    bytes.chunks_exact(8).any(|word| {
        let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
        let is_rotated = (0..8).any(|bytes| word == WORD.rotate_left(8 * bytes));
        run = if is_rotated { run + 1 } else { 0 };
        run == 3
    })
}

fn key() -> [u8; 32] {
    let mut key = [0; 32];
    key.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&WORD.to_ne_bytes()));
    key
}

/// Opens every block that comes with its key.
struct Opens;

impl Opener for Opens {
    fn open(&self, _: Lba, record: &SealRecord, _: &mut [u8]) -> Result<(), OpenError> {
        if record.raw_block_key() == Some(&key()) { Ok(()) } else { Err(OpenError::NotAuthentic) }
    }
}

fn host(scheme: Scheme) -> Host {
    let dir = tempfile::tempdir().unwrap();
    let sealed = SealedSpec { wrapping_key: Some("/etc/wrap.key".into()), ..SealedSpec::new(Custody::Target) };
    let spec = VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain("vault", 8 * MIB) };
    Catalogue::open(dir.path()).unwrap().create(&spec).unwrap();
    let mut config = support::config(dir.path());
    config.schemes = vec![scheme.name().into()];
    let mut options = TargetOptions::new(config);
    options.node_key = Some(support::target_key());
    options.wraps = Some(Arc::new(|_| Ok(Arc::new(Mask))));
    options.openers = Some(Arc::new(|_, _| Ok(Arc::new(Opens))));
    Host { target: Some(Target::start(options).unwrap()), dir, node: support::target_key().public() }
}

/// A session whose commands bring little data of themselves: the rest is asked for, and comes in PDUs of its own.
fn log_in(host: &Host, scheme: Scheme, which: u8) -> Initiator {
    let now = Instant::now();
    let stream = TcpStream::connect(host.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.set_nodelay(true).unwrap();
    let options = LinkOptions { schemes: vec![scheme], ..LinkOptions::default() };
    let mut link = Link::initiator_channel(&alice_key(), &[host.node], options, now).unwrap();
    link.conceal_parameters();
    let mut config = normal(ALICE, "vault");
    (config.isid[5], config.in_channel, config.offer.first_burst_bytes) = (which, true, 4096);
    let session = Session::new(now, config);
    let mut initiator = Initiator {
        stream,
        link,
        session,
        events: Vec::new(),
        ended: None,
        established: false,
        extra_segments: Vec::new(),
    };
    initiator.wait_for_login().expect("admitted");
    let first = initiator.run(Command::without_data(LUN, cdb::test_unit_ready()));
    assert_eq!(first.sense().asc, 0x29, "power on comes first");
    initiator
}

fn keyed(records: &[SealRecord]) -> Vec<SealRecord> {
    records.iter().map(|record| record.with_block_key(&key())).collect()
}

fn keyed_hole(start: u64, count: u64) -> HoleRecord {
    let hole = hole(start, count);
    HoleRecord { record: hole.record.with_block_key(&key()), ..hole }
}

/// Everything that brings keys to a target, or has it send them.
/// The initiator has a thread of its own until its end: the memory that a thread keeps for later is freed by it, too.
fn use_keys(scheme: Scheme) {
    let host = host(scheme);
    let client = || {
        IS_CLIENT.set(true);
        use_keys_at(&host, scheme);
    };
    std::thread::scope(|scope| scope.spawn(client).join().expect("the initiator fails no assertion"));
    drop(host);
}

fn use_keys_at(host: &Host, scheme: Scheme) {
    let mut alice = log_in(host, scheme, 1);
    alice.run(registration(ATTACH_ID)).good();
    // In one PDU, and in several.
    alice.run(seal_hole(&vendor::encode_holes(&[keyed_hole(0, 2048)]))).good();
    let many: Vec<HoleRecord> = (0..300).map(|at| keyed_hole(1000 + 2 * at, 2)).collect();
    alice.run(seal_hole(&vendor::encode_holes(&many))).good();
    let data = pattern(1, 300);
    let written = keyed(&records(1, &data));
    alice.run(sealed_write(100, &data, &written)).good();
    let newer = keyed(&records(1000, &data[..BLOCK]));
    alice.run(sealed_write(100, &data[..BLOCK], &newer)).good();

    // What is refused: a block that does not fit its checksum, and a list whose last hole is out of range.
    let mut damaged = data[..8 * BLOCK].to_vec();
    damaged[5 * BLOCK] ^= 1;
    alice.run(sealed_write(500, &damaged, &written[..8])).sense();
    let list = [keyed_hole(0, 1), keyed_hole(1, 1), keyed_hole(2048, 1)];
    alice.run(seal_hole(&vendor::encode_holes(&list))).sense();
    let mut conditional = sealed_write(100, &data[..BLOCK], &keyed(&records(2000, &data[..BLOCK])));
    conditional.cdb = VendorCommand::ConditionalWrite { lba: Lba(100), count: 1 }.encode();
    conditional.parameters.expected_stamp = Some(Stamp { counter: 1000, ..stamp(0) }.to_bytes());
    alice.run(conditional).good();

    // With the unit, and from another worker.
    for which in [1, 2] {
        let mut other = (which == 2).then(|| log_in(host, scheme, 2));
        let reader = other.as_mut().unwrap_or(&mut alice);
        let outcome = read(reader, 90, 320);
        let (blocks, holes) = returned(&outcome);
        assert_eq!((blocks.len(), holes.len()), (300, 2));
        assert!(blocks.iter().all(|(_, record)| record.raw_block_key() == Some(&key())));
        let newest = blocks[0].0;
        let (older, _) = returned(&read_version(reader, 100, newest));
        assert_eq!(older.len(), 1);
    }
    // A write whose connection is lost in the midst of it.
    let mut lost = log_in(host, scheme, 3);
    lost.submit(sealed_write(400, &data, &written));
    lost.flush();
    drop(lost);
    alice.synchronize();
    eventually("blocks are verified", || {
        let volumes = keeper::status(host).volumes;
        volumes.iter().any(|volume| volume.verification.as_ref().is_some_and(|done| done.opened > 0))
    });
}

#[test]
fn a_target_wipes_the_block_keys_of_what_is_written_and_read() {
    for scheme in Scheme::ALL {
        FOUND.store(0, Ordering::Relaxed);
        FOUND_AT_CLIENT.store(0, Ordering::Relaxed);
        use_keys(*scheme);
        assert_eq!(FOUND.load(Ordering::Relaxed), 0, "{scheme:?}: memory was freed with a block key in it");
        assert_ne!(FOUND_AT_CLIENT.load(Ordering::Relaxed), 0, "{scheme:?}: the search finds what is not wiped");
    }
}

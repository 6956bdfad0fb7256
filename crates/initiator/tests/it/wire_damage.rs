//! Proves that damage on the wire is never taken for a damaged block: a wire flips bits, drops pieces and cuts connections, under each
//! scheme that leaves block data to its seal or checks it apart from the header, and every read gives what was written.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use strongroom_block::{BlockDevice, Buffer, BufferMut, Lba, Request, Token};
use strongroom_channel::Scheme;
use strongroom_initiator::{DamagedReads, RemoteDevice, flush_blocking, write_blocking};
use strongroom_target::VolumeSpec;

use crate::support::{Host, SIZE};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
/// Blocks of one read.
const COUNT: u64 = 16;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// One bit of a chunk.
    Flip,
    /// A chunk is left out, and the rest goes on.
    Drop,
    /// Half of a chunk passes, and the connection ends.
    Cut,
}

/// A wire that damages one in this many chunks of what the target sends, while faults are left.
struct BadWire {
    address: SocketAddr,
    faults_left: Arc<AtomicUsize>,
}

impl BadWire {
    fn before(there: SocketAddr, fault: Fault) -> BadWire {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let wire = BadWire { address: listener.local_addr().unwrap(), faults_left: Arc::default() };
        let (faults_left, chunks) = (wire.faults_left.clone(), Arc::new(AtomicUsize::new(0)));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(there) else { return };
                let (from, to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || pass(from, to, |_| None));
                let (faults_left, chunks) = (faults_left.clone(), chunks.clone());
                let choose = move |bytes: usize| {
                    // Small ones are answers to pings and logins.
                    let is_meant = bytes > BLOCK && chunks.fetch_add(1, Ordering::Relaxed) % 3 == 1;
                    let take = |left: usize| left.checked_sub(1);
                    let is_due =
                        is_meant && faults_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
                    is_due.then_some(fault)
                };
                std::thread::spawn(move || pass(far, near, choose));
            }
        });
        wire
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, choose: impl Fn(usize) -> Option<Fault>) {
    let mut buffer = vec![0; 20_000];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let chunk = &mut buffer[..count];
        let passes = match choose(count) {
            None => count,
            Some(Fault::Flip) => {
                chunk[count / 2] ^= 0x20;
                count
            }
            Some(Fault::Drop) => 0,
            Some(Fault::Cut) => {
                let _ = to.write_all(&chunk[..count / 2]);
                break;
            }
        };
        if to.write_all(&buffer[..passes]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

fn mark(lba: u64) -> u8 {
    (lba * 7 + lba / 256) as u8
}

/// Reads everything, many requests at a time, so that something follows what is dropped.
fn read_all(device: &RemoteDevice) {
    for at in 0..BLOCKS / COUNT {
        let buffer = BufferMut::zeroed(COUNT as usize * BLOCK);
        device.submit(Token(at), Request::Read { lba: Lba(at * COUNT), buffer });
    }
    let mut completions = Vec::new();
    while (completions.len() as u64) < BLOCKS / COUNT {
        assert!(device.wait(None));
        device.poll_completions(&mut completions);
    }
    for completion in completions {
        let data = completion.result.unwrap_or_else(|error| panic!("{:?}: {error}", completion.token)).unwrap();
        for (lba, block) in (completion.token.0 * COUNT..).zip(data.chunks(BLOCK)) {
            assert!(block == [mark(lba); BLOCK], "block {lba} holds something else");
        }
    }
}

fn reads_survive(fault: Fault) {
    let mut host = Host::start(&[VolumeSpec::sealed("vault", SIZE)]);
    let device = host.attach("vault");
    device.format().unwrap();
    for lba in 0..BLOCKS {
        write_blocking(&device, Lba(lba), Buffer::copy_from(&[mark(lba); BLOCK]), false).unwrap();
    }
    flush_blocking(&device).unwrap();
    device.detach().unwrap();
    let mut refetched = 0;
    for scheme in [Scheme::LazyAuth, Scheme::LazyDecrypt, Scheme::Lazy] {
        let wire = BadWire::before(host.address, fault);
        let mut options = host.options(format!("strongroom://{}/vault", wire.address).parse().unwrap());
        options.channel.scheme = Some(scheme);
        options.readahead = true;
        let device = RemoteDevice::attach(options).unwrap();
        wire.faults_left.store(12, Ordering::Relaxed);
        for _ in 0..4 {
            read_all(&device);
        }
        let left = wire.faults_left.load(Ordering::Relaxed);
        assert!(left < 12, "{scheme}: nothing was damaged");
        refetched += device.status().engine.blocks_refetched;
        assert_eq!(device.status().engine.blocks_failed, 0, "{scheme}");
        device.detach().unwrap();
    }
    // Behind what is dropped no header fits, so the connection ends, mostly before a block was found damaged.
    assert!(refetched > 0 || !matches!(fault, Fault::Flip), "no block was fetched again");
    host.stop();
}

#[test]
fn reads_survive_flipped_bits() {
    reads_survive(Fault::Flip);
}

#[test]
fn reads_survive_dropped_pieces() {
    reads_survive(Fault::Drop);
}

#[test]
fn reads_survive_connections_that_are_cut() {
    reads_survive(Fault::Cut);
}

/// Neither a verification nor a reader who takes older versions where the newest is damaged takes damage on the wire for that.
#[test]
fn verifying_and_previous_versions_take_no_damage_on_the_wire_for_damaged_blocks() {
    let mut spec = VolumeSpec::sealed("vault", SIZE);
    spec.access.previous_versions = true;
    let host = Host::start(&[spec]);
    let device = host.attach("vault");
    device.format().unwrap();
    // Older versions that must not be read.
    for older in [true, false] {
        for lba in 0..BLOCKS {
            let mark = if older { 0xee } else { mark(lba) };
            write_blocking(&device, Lba(lba), Buffer::copy_from(&[mark; BLOCK]), false).unwrap();
        }
    }
    flush_blocking(&device).unwrap();
    device.detach().unwrap();
    let attach = |wire: &BadWire| {
        let mut options = host.options(format!("strongroom://{}/vault", wire.address).parse().unwrap());
        (options.read_only, options.sealing.damaged_reads) = (true, DamagedReads::Previous);
        RemoteDevice::attach(options).unwrap()
    };
    let wire = BadWire::before(host.address, Fault::Flip);
    let device = attach(&wire);
    wire.faults_left.store(12, Ordering::Relaxed);
    for _ in 0..4 {
        read_all(&device);
    }
    assert_eq!(device.previous_reads().count, 0);
    wire.faults_left.store(12, Ordering::Relaxed);
    let report = device.verify(Lba(0), &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
    assert_eq!((report.progress.bad, report.bad_blocks.len()), (0, 0));
    assert!(device.status().engine.refetches_succeeded > 0);
}

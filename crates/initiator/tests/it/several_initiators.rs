//! Proves what several initiators of one sealed volume may rely on (docs/iscsi.md, "Several initiators"): connections that are lost,
//! requests that are sent again, orderly closes and crashes of the target neither undo what another initiator has written nor lose
//! what was acknowledged. The target is a real one; a crash puts its files back to what they were.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use strongroom_block::{Buffer, Lba};
use strongroom_initiator::{
    RemoteDevice, discard_blocking, flush_blocking, read_blocking, write_blocking, write_part_blocking,
};
use strongroom_target::{Config, VolumeSpec};

use crate::support::{Host, SIZE, Wire, eventually, mark};

const BLOCK: usize = 4096;
/// Nothing here takes so long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn blocks(mark: u8, count: usize) -> Buffer {
    Buffer::copy_from(&vec![mark; count * BLOCK])
}

fn start(change: fn(&mut Config)) -> Host {
    Host::start_with(&[VolumeSpec::sealed("vault", SIZE)], change)
}

fn alice(host: &Host, wire: &Wire) -> RemoteDevice {
    RemoteDevice::attach(host.options(wire.url("vault"))).unwrap()
}

fn bob(host: &Host) -> RemoteDevice {
    RemoteDevice::attach(host.bobs_options(host.url("vault"))).unwrap()
}

fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if path.is_dir() {
            copy_directory(&path, &to);
        } else if path.is_file() {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

/// The volume's files as they are now: what a crash leaves later if nothing is synced any more.
struct DurableState(PathBuf, tempfile::TempDir);

impl DurableState {
    fn of(host: &Host) -> DurableState {
        let (files, copy) = (host.dir.path().join("vault"), tempfile::tempdir().unwrap());
        copy_directory(&files, copy.path());
        DurableState(files, copy)
    }

    /// The target crashes and comes back.
    fn crash(&self, host: &mut Host) {
        host.stop();
        std::fs::remove_dir_all(&self.0).unwrap();
        copy_directory(self.1.path(), &self.0);
        host.start_again();
    }
}

/// Nothing that was acknowledged is lost by an orderly close, so nothing may be replayed after it.
#[test]
fn what_another_initiator_flushed_survives_a_close_of_the_volume_and_a_reconnect() {
    let host = start(|config| config.limits.idle_close_s = 0);
    let wire = Wire::before(&host);
    let alice = alice(&host, &wire);
    alice.format().unwrap();
    flush_blocking(&alice).unwrap();
    write_blocking(&alice, Lba(5), blocks(0xA, 2), false).unwrap();
    wire.set_down(true);
    eventually("the close of the volume", || host.stats().volumes_open == 0);
    let bob = bob(&host);
    assert_eq!((mark(&bob, 5), mark(&bob, 6)), (0xA, 0xA), "an orderly close makes it durable");
    write_blocking(&bob, Lba(5), blocks(0xB, 1), false).unwrap();
    flush_blocking(&bob).unwrap();
    drop(bob);
    eventually("the close of the volume", || host.stats().volumes_open == 0);
    wire.set_down(false);
    assert_eq!((mark(&alice, 5), mark(&alice, 6)), (0xB, 0xA));
    flush_blocking(&alice).unwrap();
    assert_eq!(alice.status().engine.blocks_replayed, 0);
    assert_eq!(mark(&self::bob(&host), 5), 0xB);
}

#[test]
fn unflushed_writes_come_back_after_a_crash_unless_another_initiator_wrote_since() {
    let mut host = start(|_| {});
    let wire = Wire::before(&host);
    let alice = alice(&host, &wire);
    alice.format().unwrap();
    write_blocking(&alice, Lba(5), blocks(1, 4), false).unwrap();
    flush_blocking(&alice).unwrap();
    let durable = DurableState::of(&host);
    write_blocking(&alice, Lba(5), blocks(0xA, 3), false).unwrap();
    discard_blocking(&alice, Lba(20), 2).unwrap();
    wire.set_down(true);
    durable.crash(&mut host);
    let bob = bob(&host);
    assert_eq!([5, 6, 7, 8].map(|lba| mark(&bob, lba)), [1; 4], "what was not flushed is lost");
    write_blocking(&bob, Lba(6), blocks(0xB, 1), false).unwrap();
    flush_blocking(&bob).unwrap();
    wire.set_down(false);
    flush_blocking(&alice).unwrap();
    for device in [&alice, &bob] {
        assert_eq!([5, 6, 7, 8].map(|lba| mark(device, lba)), [0xA, 0xB, 0xA, 1]);
    }
    let engine = alice.status().engine;
    assert_eq!((engine.blocks_replayed, engine.blocks_superseded), (5, 1), "{engine:?}");
}

/// Bob's part comes with the rest of the block as the crash left it: alice's flush must not promise that hers is there.
#[test]
fn a_lost_write_under_another_initiators_part_fails_the_next_flush() {
    let mut host = start(|_| {});
    let wire = Wire::before(&host);
    let alice = alice(&host, &wire);
    alice.format().unwrap();
    write_blocking(&alice, Lba(5), blocks(1, 3), false).unwrap();
    flush_blocking(&alice).unwrap();
    let durable = DurableState::of(&host);
    write_blocking(&alice, Lba(5), blocks(0xA, 3), false).unwrap();
    wire.set_down(true);
    durable.crash(&mut host);
    let bob = bob(&host);
    write_part_blocking(&bob, Lba(6), 0, Buffer::copy_from(&[0xB; 8])).unwrap();
    wire.set_down(false);
    let error = flush_blocking(&alice).unwrap_err();
    assert_eq!(error.lba, Some(Lba(6)), "{error}");
    assert!(error.message.contains("may be lost"), "{error}");
    for device in [&alice, &bob] {
        assert_eq!([5, 7].map(|lba| mark(device, lba)), [0xA; 2], "the others are back");
        let block = read_blocking(device, Lba(6), 1).unwrap();
        assert_eq!(block[..16], [[0xB; 8], [1; 8]].concat());
    }
    // That was said once. What is written again is there.
    write_blocking(&alice, Lba(6), blocks(0xC, 1), false).unwrap();
    flush_blocking(&alice).unwrap();
    assert_eq!([5, 6, 7].map(|lba| mark(&bob, lba)), [0xA, 0xC, 0xA]);
}

/// Sends a request of alice's whose response is lost, has bob overwrite block 6, and lets alice send it again.
fn executed_twice(host: &Host, request: impl FnOnce(&RemoteDevice) + Send) {
    let wire = Wire::before(host);
    let alice = alice(host, &wire);
    alice.format().unwrap();
    // Its attach id is registered by that, so that the next response is the request's.
    write_blocking(&alice, Lba(5), blocks(1, 3), true).unwrap();
    let bob = bob(host);
    let (lost, is_lost) = channel();
    wire.tamper_towards_initiator(move |message| {
        if message.is_frame() {
            message.bytes.clear();
            let _ = lost.send(());
        }
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| request(&alice));
        is_lost.recv_timeout(PATIENCE).unwrap();
        write_blocking(&bob, Lba(6), blocks(0xB, 1), false).unwrap();
        flush_blocking(&bob).unwrap();
        wire.behave();
        wire.cut();
        waiting.join().unwrap();
    });
    flush_blocking(&alice).unwrap();
    let engine = alice.status().engine;
    assert_eq!((engine.writes_repeated, engine.blocks_replayed), (1, 0), "{engine:?}");
    assert_eq!(alice.status().unflushed_bytes, 0);
    assert_eq!(mark(&bob, 6), 0xB);
}

#[test]
fn a_write_whose_response_was_lost_is_not_executed_over_another_initiators() {
    let host = start(|_| {});
    executed_twice(&host, |alice| write_blocking(alice, Lba(5), blocks(0xA, 3), false).unwrap());
    let bob = bob(&host);
    assert_eq!([5, 6, 7].map(|lba| mark(&bob, lba)), [0xA, 0xB, 0xA]);
}

#[test]
fn a_hole_whose_response_was_lost_is_not_executed_over_another_initiators() {
    let host = start(|_| {});
    executed_twice(&host, |alice| discard_blocking(alice, Lba(5), 3).unwrap());
    let bob = bob(&host);
    assert_eq!([5, 6, 7].map(|lba| mark(&bob, lba)), [0, 0xB, 0]);
}

/// One value of one block: when its write and the reads that returned it began and ended.
#[derive(Clone, Copy, Debug)]
struct Value {
    written: Option<(u64, u64)>,
    first_response: u64,
    last_invocation: u64,
}

/// What happened to one block; every write has a value of its own.
#[derive(Default)]
struct History(HashMap<u64, Value>);

impl History {
    fn note(&mut self, value: u64, invocation: u64, response: u64, is_write: bool) {
        let entry = Value { written: None, first_response: response, last_invocation: invocation };
        let found = self.0.entry(value).or_insert(entry);
        found.first_response = found.first_response.min(response);
        found.last_invocation = found.last_invocation.max(invocation);
        if is_write {
            assert!(found.written.replace((invocation, response)).is_none(), "values are unique");
        }
    }

    /// Gibbons and Korach, "Testing Shared Memories" (1997): with unique values a history of a register is linearizable if no read
    /// ends before its write begins, no two forward zones overlap, and no backward zone lies inside a forward one.
    fn check(&self, block: u64) {
        let mut forward: Vec<(u64, u64, u64)> = Vec::new();
        let mut backward: Vec<(u64, u64, u64)> = Vec::new();
        for (value, found) in &self.0 {
            let (invocation, _) = found.written.unwrap_or_else(|| panic!("block {block}: {value} was never written"));
            assert!(invocation <= found.first_response, "block {block}: {value} was read before it was written");
            match found.first_response < found.last_invocation {
                true => forward.push((found.first_response, found.last_invocation, *value)),
                false => backward.push((found.last_invocation, found.first_response, *value)),
            }
        }
        forward.sort_unstable();
        for pair in forward.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "block {block}: {} came back after {}", pair[0].2, pair[1].2);
        }
        for (start, end, value) in backward {
            let inside = forward.iter().find(|zone| zone.0 < start && end < zone.1);
            assert!(inside.is_none(), "block {block}: {value} came and went while {inside:?} was there");
        }
    }
}

#[test]
fn the_checker_tells_a_value_that_comes_back() {
    let write = |history: &mut History, value, from, to| history.note(value, from, to, true);
    let mut sound = History::default();
    write(&mut sound, 1, 0, 1);
    write(&mut sound, 2, 2, 9);
    sound.note(1, 3, 4, false);
    sound.note(2, 5, 6, false);
    sound.check(0);
    let comes_back = || {
        let mut history = History::default();
        write(&mut history, 1, 0, 1);
        history.note(1, 2, 3, false);
        write(&mut history, 2, 4, 5);
        history.note(2, 6, 7, false);
        history.note(1, 8, 9, false);
        history.check(0);
    };
    assert!(std::panic::catch_unwind(comes_back).is_err());
}

/// Three attachments write and read a few blocks while their connections are cut again and again.
#[test]
fn each_block_is_linearizable_when_connections_fail() {
    const BLOCKS: u64 = 4;
    /// Requests of each attachment at least; they go on until there were enough cuts as well.
    const ROUNDS_MIN: u64 = 250;
    const CUTS_MIN: u64 = 20;
    let host = start(|_| {});
    let setup = bob(&host);
    setup.format().unwrap();
    write_blocking(&setup, Lba(0), blocks(0, BLOCKS as usize), true).unwrap();
    drop(setup);
    let wires: Vec<Wire> = (0..3).map(|_| Wire::before(&host)).collect();
    let devices: Vec<RemoteDevice> = wires
        .iter()
        .enumerate()
        .map(|(which, wire)| {
            let url = wire.url("vault");
            let options = if which == 0 { host.options(url) } else { host.bobs_options(url) };
            RemoteDevice::attach(options).unwrap()
        })
        .collect();
    let (begun, next_value, is_over) = (Instant::now(), AtomicU64::new(1), AtomicBool::new(false));
    let cuts = AtomicU64::new(0);
    let now = || begun.elapsed().as_nanos() as u64 + 1;
    let histories = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            while !is_over.load(Ordering::Relaxed) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                std::thread::sleep(Duration::from_millis((random >> 33) % 40));
                let wire = &wires[(random >> 60) as usize % wires.len()];
                // What the target executes meanwhile is not answered.
                wire.tamper_towards_initiator(|message| {
                    if message.is_frame() {
                        message.bytes.clear();
                    }
                });
                std::thread::sleep(Duration::from_millis((random >> 50) % 15));
                wire.set_down(true);
                wire.behave();
                std::thread::sleep(Duration::from_millis((random >> 40) % 30));
                wire.set_down(false);
                cuts.fetch_add(1, Ordering::Relaxed);
            }
        });
        let clients: Vec<_> = devices
            .iter()
            .enumerate()
            .map(|(which, device)| {
                let (next_value, now, cuts) = (&next_value, &now, &cuts);
                scope.spawn(move || {
                    let mut events: Vec<(u64, u64, u64, u64, bool)> = Vec::new();
                    let mut random = which as u64 + 77;
                    let mut rounds = 0;
                    while rounds < ROUNDS_MIN || cuts.load(Ordering::Relaxed) < CUTS_MIN {
                        rounds += 1;
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let lba = (random >> 33) % BLOCKS;
                        let count = 1 + (random >> 40) % (BLOCKS - lba).min(3);
                        let invocation = now();
                        match (random >> 50) % 8 {
                            0..4 => {
                                let value = next_value.fetch_add(1, Ordering::Relaxed);
                                let data = value.to_be_bytes().repeat(count as usize * BLOCK / 8);
                                write_blocking(device, Lba(lba), Buffer::copy_from(&data), false).unwrap();
                                let response = now();
                                events.extend((lba..lba + count).map(|at| (at, value, invocation, response, true)));
                            }
                            4..7 => {
                                let data = read_blocking(device, Lba(lba), count).unwrap();
                                let response = now();
                                for (at, block) in (lba..).zip(data.chunks(BLOCK)) {
                                    let value = u64::from_be_bytes(block[..8].try_into().unwrap());
                                    events.push((at, value, invocation, response, false));
                                }
                            }
                            _ => flush_blocking(device).unwrap(),
                        }
                    }
                    events
                })
            })
            .collect();
        let mut histories: Vec<History> = (0..BLOCKS).map(|_| History::default()).collect();
        histories.iter_mut().for_each(|history| history.note(0, 0, 0, true));
        let clients: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        // Also where one of them has failed: the scope waits for this thread.
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            for (at, value, invocation, response, is_write) in client.unwrap() {
                histories[at as usize].note(value, invocation, response, is_write);
            }
        }
        histories
    });
    for (block, history) in histories.iter().enumerate() {
        history.check(block as u64);
    }
    let repeats: u64 = devices.iter().map(|device| device.status().engine.writes_repeated).sum();
    let resent: u64 = devices.iter().map(|device| device.status().engine.commands_resent).sum();
    assert!(resent > 0 && repeats > 0, "too little happened to prove anything: {resent} resent, {repeats} repeats");
}

/// Merged again, it would undo what the other initiator has written over it since.
#[test]
fn part_of_a_block_whose_response_was_lost_is_not_written_again() {
    let host = start(|_| {});
    let wire = Wire::before(&host);
    let alice = alice(&host, &wire);
    alice.format().unwrap();
    write_part_blocking(&alice, Lba(6), 0, Buffer::copy_from(&[1; 8])).unwrap();
    let bob = bob(&host);
    let (lost, is_lost) = channel();
    let mut frames = 0;
    wire.tamper_towards_initiator(move |message| {
        // The block that it is merged into comes; what follows is lost.
        frames += u32::from(message.is_frame());
        if message.is_frame() && !message.has_blocks() && frames > 1 {
            message.bytes.clear();
            let _ = lost.send(());
        }
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| write_part_blocking(&alice, Lba(6), 0, Buffer::copy_from(&[0xA; 8])).unwrap());
        is_lost.recv_timeout(PATIENCE).unwrap();
        assert_eq!(mark(&bob, 6), 0xA, "it is executed, and seen");
        write_part_blocking(&bob, Lba(6), 0, Buffer::copy_from(&[0xB; 4])).unwrap();
        wire.behave();
        wire.cut();
        waiting.join().unwrap();
    });
    let block = read_blocking(&bob, Lba(6), 1).unwrap();
    assert_eq!(block[..8], [0xB, 0xB, 0xB, 0xB, 0xA, 0xA, 0xA, 0xA]);
}

//! Proves that custody `target` works as the lazy-crypto paper has it, under every scheme: a fresh key for every block travels in the
//! header, encrypted, and is kept wrapped beside its block; any initiator that may use the volume opens it without a key of its own; and
//! no key and no block is in the clear on the wire or at rest.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex};

use strongroom_block::{Buffer, Lba};
use strongroom_channel::Scheme;
use strongroom_initiator::{AttachError, RemoteDevice, flush_blocking, read_blocking, write_blocking};
use strongroom_store::{Extent, Op, OpenOptions, Outcome, Store};
use strongroom_target::VolumeSpec;

use crate::axes::{pairs, schemes};
use crate::support::{Host, SpyingWrapper, trusted};

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;
const CANARY: &[u8] = b"a canary that is kept by a target";

fn data(round: u8) -> Vec<u8> {
    let mut data: Vec<u8> = CANARY.iter().copied().cycle().take(BLOCKS * BLOCK).collect();
    data[0] = round;
    data
}

/// Passes all bytes on unchanged, and keeps them.
fn recorder(target: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let keep = seen.clone();
    std::thread::spawn(move || {
        for initiator in listener.incoming() {
            let (initiator, target) = (initiator.unwrap(), TcpStream::connect(target).unwrap());
            let ways = [
                (initiator.try_clone().unwrap(), target.try_clone().unwrap()),
                (target.try_clone().unwrap(), initiator.try_clone().unwrap()),
            ];
            for (mut from, mut to) in ways {
                let keep = keep.clone();
                std::thread::spawn(move || {
                    let (mut input, mut all) = (vec![0; 64 << 10], Vec::new());
                    while let Ok(count @ 1..) = from.read(&mut input) {
                        // Each way by itself: what is looked for is not torn apart by what came the other way meanwhile.
                        all.extend_from_slice(&input[..count]);
                        if to.write_all(&input[..count]).is_err() {
                            break;
                        }
                    }
                    keep.lock().unwrap().extend(all);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (address, seen)
}

/// How many of `needles` are somewhere in `bytes`.
fn found(bytes: &[u8], needles: &[&[u8]]) -> usize {
    // Random bytes begin differently: their first eight find them.
    let by_start: HashMap<[u8; 8], &[u8]> =
        needles.iter().map(|&needle| (*needle.first_chunk().unwrap(), needle)).collect();
    let mut found = HashSet::new();
    for (at, start) in bytes.windows(8).enumerate().filter(|(_, start)| **start != [0; 8]) {
        if let Some(needle) = by_start.get(start)
            && bytes[at..].starts_with(needle)
        {
            found.insert(*needle);
        }
    }
    found.len()
}

fn stored(dir: &Path, into: &mut Vec<u8>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => stored(&path, into),
            path if path.extension().is_some_and(|extension| extension == "key") => {}
            path => into.extend(fs::read(path).unwrap()),
        }
    }
}

#[test]
fn every_scheme_carries_keys_that_nobody_else_sees() {
    let mut host = Host::start(&[trusted()]);
    let (address, seen) = recorder(host.address);
    let url = || format!("strongroom://{address}/trusted").parse().unwrap();
    let before = SpyingWrapper::seen().len();
    let combinations = pairs(&schemes(), &schemes());
    for (round, &(writer, reader)) in (1..).zip(&combinations) {
        let mut options = host.options(url());
        options.channel.scheme = Some(writer);
        let device = RemoteDevice::attach(options).unwrap();
        if round == 1 {
            device.format().unwrap();
        }
        write_blocking(&device, Lba(3), Buffer::copy_from(&data(round)), false).unwrap();
        flush_blocking(&device).unwrap();
        // Another initiator, of another identity, with nothing but its access.
        let mut options = host.bobs_options(url());
        options.channel.scheme = Some(reader);
        let other = RemoteDevice::attach(options).unwrap();
        let read = read_blocking(&other, Lba(3), BLOCKS as u64).unwrap();
        assert!(read[..] == data(round), "written under {writer}, read under {reader}");
        other.detach().unwrap();
        device.detach().unwrap();
    }
    host.stop();

    // Another test of this process may have keys there too: more to look for.
    let keys = SpyingWrapper::seen().split_off(before);
    assert!(keys.len() > combinations.len() * BLOCKS, "one for every block of every round, and the hole's");
    assert_eq!(keys.iter().map(|(raw, _)| raw).collect::<HashSet<_>>().len(), keys.len(), "no key serves twice");
    let mut at_rest = Vec::new();
    stored(host.dir.path(), &mut at_rest);
    // The last connections' bytes are there a moment after their ends.
    let rounds = 2 * combinations.len() * BLOCKS * BLOCK;
    let begun = std::time::Instant::now();
    while seen.lock().unwrap().len() < rounds {
        assert!(begun.elapsed().as_secs() < 60, "the wire does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let on_the_wire = seen.lock().unwrap();
    let raw: Vec<&[u8]> = keys.iter().map(|(raw, _)| &raw[..]).collect();
    assert_eq!(found(&at_rest, &raw), 0, "a block key rests in the clear");
    assert_eq!(found(&on_the_wire, &raw), 0, "a block key goes over the wire in the clear");
    let wrapped: Vec<&[u8]> = keys.iter().map(|(_, wrapped)| &wrapped[..]).collect();
    let kept = found(&at_rest, &wrapped);
    assert!(kept >= BLOCKS, "the search finds what is there: {kept} wrapped keys");
    for (what, bytes) in [("at rest", &at_rest), ("on the wire", &on_the_wire)] {
        assert!(bytes.len() > BLOCKS * BLOCK, "there is something to look at {what}");
        assert!(!bytes.windows(CANARY.len()).any(|window| window == CANARY), "a block is in the clear {what}");
    }
}

/// S0 would show every key.
#[test]
fn without_a_channel_there_is_no_custody_target() {
    let host = Host::start(&[trusted()]);
    let refused = RemoteDevice::attach(host.options(host.plain_url("trusted"))).unwrap_err().to_string();
    assert!(!refused.is_empty(), "{refused}");
}

#[test]
fn a_key_of_ones_own_has_no_place_here() {
    let host = Host::start(&[trusted()]);
    let mut options = host.options(host.url("trusted"));
    options.sealing.key_source = host.options(host.url("vault")).sealing.key_source;
    let refused = RemoteDevice::attach(options).unwrap_err();
    assert!(matches!(&refused, AttachError::Unsupported(why) if why.contains("leave the key out")), "{refused}");
}

/// The paper's other mapping (§4), for the benchmark that compares: one key for a run of blocks; any initiator opens them.
#[test]
fn a_run_of_blocks_shares_a_key_where_a_benchmark_asks_for_it() {
    const RUN: u64 = 16;
    let mut host = Host::start(&[VolumeSpec { name: "runs".parse().unwrap(), ..trusted() }]);
    let mut options = host.options(host.url("runs"));
    options.sealing.key_source = None;
    options.sealing.blocks_per_key = NonZeroU32::new(RUN as u32).unwrap();
    let refused = RemoteDevice::attach(options.clone()).unwrap_err();
    assert!(matches!(&refused, AttachError::Options(why) if why.contains("benchmarks alone")), "{refused}");
    options.benchmark_suites = true;
    for &scheme in Scheme::ALL {
        options.channel.scheme = Some(scheme);
        let device = RemoteDevice::attach(options.clone()).unwrap();
        device.format().unwrap();
        write_blocking(&device, Lba(RUN), Buffer::copy_from(&data(1)), false).unwrap();
        write_blocking(&device, Lba(3 * RUN - 8), Buffer::copy_from(&data(2)), false).unwrap();
        flush_blocking(&device).unwrap();
        device.detach().unwrap();
        // One with a key for each block, and of another name.
        let mut bobs = host.bobs_options(host.url("runs"));
        bobs.sealing.key_source = None;
        let other = RemoteDevice::attach(bobs).unwrap();
        for (lba, round) in [(RUN, 1), (3 * RUN - 8, 2)] {
            assert!(read_blocking(&other, Lba(lba), BLOCKS as u64).unwrap()[..] == data(round), "{scheme}");
        }
        other.detach().unwrap();
    }
    host.stop();
    let store = host.dir.path().join("runs").join("store");
    let mut store = Store::open(&store, &OpenOptions::default(), Arc::new(|| {})).unwrap();
    let mut key_of = |lba: u64| match store.execute(Op::Read { lba: Lba(lba), count: 1 }).unwrap() {
        Outcome::Read(extents) => match &extents[..] {
            [Extent::Blocks { records, .. }] => *records[0].wrapped_block_key().expect("it rests wrapped"),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let keys: Vec<_> = [RUN..2 * RUN, 3 * RUN - 8..3 * RUN, 3 * RUN..3 * RUN + 8]
        .map(|run| run.map(&mut key_of).collect::<HashSet<_>>())
        .into_iter()
        .collect();
    assert!(keys.iter().all(|run| run.len() == 1), "one for each run: {:?}", keys.iter().map(HashSet::len));
    assert_eq!(keys.iter().flatten().collect::<HashSet<_>>().len(), 3, "and none for two");
    store.close().unwrap();
}

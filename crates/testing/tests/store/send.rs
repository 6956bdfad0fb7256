//! Proves that a snapshot sent to another store arrives whole or not at all: in full and as a difference, cut off anywhere and
//! gone on with, through crashes of the receiving store, with flipped bits, and never onto the wrong base.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, VolumeId};
use strongroom_store::{
    CreateOptions, Extent, Op, OpenOptions, Outcome, Receiver, Sender, SnapshotId, Store, StreamError, StreamInfo,
    UnitKind, View,
};
use strongroom_testing::{Random, SimDisk, block_bytes, record_for};

const BLOCKS: u64 = 120;

fn sealed() -> UnitKind {
    UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile }
}

fn made(kind: UnitKind, volume: u8) -> SimDisk {
    let disk = SimDisk::new(u64::from(volume));
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let options =
        CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([volume; 16]), geometry, kind) };
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    disk
}

fn open(disk: &SimDisk) -> Store {
    Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

fn write(store: &mut Store, op: u64, lba: u64) {
    let bytes = block_bytes(op, lba, BlockSize::DEFAULT);
    let sealed = store.info().kind.is_sealed();
    let records = if sealed { vec![record_for(op, 0, Some(&bytes))] } else { Vec::new() };
    let write = Op::Write { lba: Lba(lba), data: vec![Buffer::copy_from(&bytes)], records, fua: false, origin: None };
    store.execute(write).unwrap();
}

fn hole(store: &mut Store, op: u64, lba: u64, count: u64) {
    let hole = match store.info().kind.is_sealed() {
        true => Op::Hole {
            holes: vec![HoleRecord { start: Lba(lba), count, record: record_for(op, 0, None) }],
            origin: None,
        },
        false => Op::Discard { lba: Lba(lba), count },
    };
    store.execute(hole).unwrap();
}

fn snapshot(store: &mut Store, name: &str) -> SnapshotId {
    match store.execute(Op::SnapshotCreate { name: name.to_owned() }).unwrap() {
        Outcome::SnapshotCreated { id } => id,
        other => panic!("{other:?}"),
    }
}

/// Everything that a view shows, with records, without sequences: those are each store's own.
fn seen(store: &mut Store, view: View) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    (0..BLOCKS)
        .map(|lba| match store.execute_on(view, Op::Read { lba: Lba(lba), count: 1 }).unwrap() {
            Outcome::Read(extents) => match &extents[0] {
                Extent::Blocks { data, records, .. } => {
                    (data.to_vec(), records.first().map(|record| record.as_bytes().to_vec()))
                }
                Extent::Hole { hole, .. } => (Vec::new(), hole.as_ref().map(|hole| hole.record.as_bytes().to_vec())),
            },
            other => panic!("{other:?}"),
        })
        .collect()
}

fn stream(store: &mut Store, from: Option<SnapshotId>, to: SnapshotId, position: u64) -> Vec<u8> {
    let mut sender = Sender::new(from, to, position);
    let mut all = Vec::new();
    while let Some(bytes) = sender.send(store).unwrap() {
        all.extend(bytes);
    }
    all
}

/// A store with two snapshots and a clone's worth of history between them.
fn source(kind: UnitKind) -> (Store, SnapshotId, SnapshotId) {
    let disk = made(kind, 1);
    let mut store = open(&disk);
    hole(&mut store, 1, 0, BLOCKS);
    for lba in 0..80 {
        write(&mut store, 2 + lba, lba);
    }
    hole(&mut store, 90, 10, 5);
    let first = snapshot(&mut store, "first");
    for lba in (0..BLOCKS).step_by(7) {
        write(&mut store, 100 + lba, lba);
    }
    hole(&mut store, 300, 30, 20);
    write(&mut store, 301, 33);
    let second = snapshot(&mut store, "second");
    write(&mut store, 400, 5);
    (store, first, second)
}

#[test]
fn a_snapshot_and_a_difference_arrive() {
    for kind in [UnitKind::Plain, sealed()] {
        let (mut from, first, second) = source(kind);
        let disk = made(kind, 2);
        let mut to = open(&disk);
        let difference = stream(&mut from, Some(first), second, 0);
        let refused = Receiver::new().receive(&mut to, &difference);
        assert_eq!(refused, Err(StreamError::MissingBase(first)));
        let full = stream(&mut from, None, first, 0);
        assert_eq!(StreamInfo::peek(&full).unwrap().unwrap().kind, kind);
        assert!(difference.len() < full.len());
        for (bytes, id) in [(full, first), (difference, second)] {
            let mut receiver = Receiver::new();
            for piece in bytes.chunks(1000) {
                assert!(to.index().snapshots().iter().all(|snapshot| snapshot.id != id), "not before it is whole");
                receiver.receive(&mut to, piece).unwrap();
            }
            assert!(receiver.is_done());
            let (sent, arrived) = (seen(&mut from, View::Snapshot(id)), seen(&mut to, View::Snapshot(id)));
            assert!(sent == arrived && seen(&mut to, View::default()) == arrived);
        }
        let names: Vec<String> = to.index().snapshots().into_iter().map(|snapshot| snapshot.name).collect();
        assert_eq!(names, ["first", "second"]);
        drop(to);
        let mut to = open(&disk);
        assert!(seen(&mut to, View::Snapshot(second)) == seen(&mut from, View::Snapshot(second)), "after a crash, too");
        write(&mut to, 500, 3);
        let third = snapshot(&mut from, "third");
        let more = stream(&mut from, Some(second), third, 0);
        assert_eq!(Receiver::new().receive(&mut to, &more), Err(StreamError::Diverged));
        to.execute(Op::Rollback { to: second }).unwrap();
        Receiver::new().receive(&mut to, &more).unwrap();
        assert!(seen(&mut to, View::default()) == seen(&mut from, View::Snapshot(third)));
    }
}

#[test]
fn a_reception_cut_off_anywhere_goes_on() {
    let mut random = Random::new(4);
    for kind in [UnitKind::Plain, sealed()] {
        let (mut from, first, second) = source(kind);
        for round in 0..12 {
            let disk = made(kind, 10 + round);
            for (base, id) in [(None, first), (Some(first), second)] {
                let mut position = 0;
                loop {
                    let mut to = open(&disk);
                    if to.index().snapshots().iter().any(|snapshot| snapshot.id == id) {
                        break;
                    }
                    position = to.index().receive_position(id).unwrap_or(0).max(position);
                    let bytes = stream(&mut from, base, id, to.index().receive_position(id).unwrap_or(0));
                    let until = random.below(bytes.len() as u64 * 2) as usize;
                    if !random.once_in(3) {
                        disk.cut_off_after(random.below(60));
                    }
                    let received = Receiver::new().receive(&mut to, &bytes[..until.min(bytes.len())]);
                    assert!(received.is_ok() || disk.is_cut_off(), "{received:?}");
                    drop(to);
                    disk.crash();
                }
            }
            let mut to = open(&disk);
            assert!(seen(&mut to, View::Snapshot(first)) == seen(&mut from, View::Snapshot(first)));
            assert!(seen(&mut to, View::Snapshot(second)) == seen(&mut from, View::Snapshot(second)));
        }
    }
}

#[test]
fn what_was_written_to_the_volume_meanwhile_is_not_thrown_away() {
    for kind in [UnitKind::Plain, sealed()] {
        let (mut from, first, second) = source(kind);
        let disk = made(kind, 2);
        let mut to = open(&disk);
        for (base, id) in [(None, first), (Some(first), second)] {
            let bytes = stream(&mut from, base, id, 0);
            let mut receiver = Receiver::new();
            let cut = bytes.len() / 2;
            receiver.receive(&mut to, &bytes[..cut]).unwrap();
            write(&mut to, 600, 3);
            assert_eq!(receiver.receive(&mut to, &bytes[cut..]), Err(StreamError::Diverged));
            assert_eq!(Receiver::new().receive(&mut to, &bytes), Err(StreamError::Diverged), "nor when it is resumed");
            // Nor if a snapshot holds it, or held it.
            let kept = snapshot(&mut to, "kept");
            let read = |to: &mut Store, view| to.execute_on(view, Op::Read { lba: Lba(3), count: 1 }).unwrap();
            let Outcome::Read(extents) = read(&mut to, View::default()) else { panic!("no answer to a read") };
            assert!(
                matches!(&extents[0], Extent::Blocks { data, .. } if data.to_vec() == block_bytes(600, 3, BlockSize::DEFAULT))
            );
            assert_eq!(Receiver::new().receive(&mut to, &bytes), Err(StreamError::Diverged));
            to.execute(Op::SnapshotDelete { id: kept }).unwrap();
            assert_eq!(Receiver::new().receive(&mut to, &bytes), Err(StreamError::Diverged));
            assert!(to.index().snapshots().iter().all(|snapshot| snapshot.id != id));
            Receiver::abandon(&mut to, id).unwrap();
            match base {
                Some(base) => drop(to.execute(Op::Rollback { to: base }).unwrap()),
                None => to = open(&made(kind, 2)),
            }
            Receiver::new().receive(&mut to, &bytes).unwrap();
            assert!(seen(&mut to, View::Snapshot(id)) == seen(&mut from, View::Snapshot(id)));
        }
    }
}

#[test]
fn what_was_received_stays_readable_as_an_older_version() {
    let (mut from, first, _) = source(sealed());
    let disk = made(sealed(), 2);
    let mut to = open(&disk);
    Receiver::new().receive(&mut to, &stream(&mut from, None, first, 0)).unwrap();
    // What was received and what is written now become one node.
    to.execute(Op::SnapshotDelete { id: first }).unwrap();
    to.idle();
    write(&mut to, 700, 3);
    hole(&mut to, 701, 4, 1);
    for round in 0..2 {
        for lba in [3, 4] {
            let newest = to.execute(Op::Read { lba: Lba(lba), count: 1 }).unwrap();
            let Outcome::Read(extents) = newest else { panic!("no answer to a read") };
            let sequence = match &extents[0] {
                Extent::Blocks { sequences, .. } => sequences[0],
                Extent::Hole { sequence, .. } => *sequence,
            };
            let read = to.execute(Op::ReadVersion { lba: Lba(lba), older_than: sequence });
            let Ok(Outcome::Read(extents)) = read else { panic!("block {lba}, opened {round} times more: {read:?}") };
            let expected = block_bytes(2 + lba, lba, BlockSize::DEFAULT);
            assert!(matches!(&extents[0], Extent::Blocks { data, .. } if data.to_vec() == expected), "block {lba}");
        }
        drop(to);
        to = open(&disk);
    }
}

#[test]
fn a_damaged_stream_never_becomes_a_snapshot() {
    let (mut from, first, _) = source(sealed());
    let good = stream(&mut from, None, first, 0);
    let mut random = Random::new(5);
    for _ in 0..60 {
        let mut bad = good.clone();
        let at = random.below(bad.len() as u64) as usize;
        bad[at] ^= 1 << random.below(8);
        let mut to = open(&made(sealed(), 3));
        let received = Receiver::new().receive(&mut to, &bad);
        assert!(received.is_err() || to.index().snapshots().is_empty(), "byte {at}");
        assert!(to.index().snapshots().is_empty(), "byte {at}");
    }
    let mut other = open(&made(UnitKind::Plain, 4));
    assert!(matches!(Receiver::new().receive(&mut other, &good), Err(StreamError::Differs(_))));
}

/// Frame by frame.
fn frames(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = stream;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let len = 32 + u32::from_be_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[..len].to_vec());
        rest = &rest[len..];
    }
    frames
}

/// Each frame is whole, but not all of them are there, or not in their order, or not all of them of this stream.
#[test]
fn a_stream_that_lost_a_frame_or_has_two_swapped_is_refused() {
    for kind in [UnitKind::Plain, sealed()] {
        let (mut from, first, second) = source(kind);
        let full = stream(&mut from, None, first, 0);
        for (base, id) in [(None, first), (Some(first), second)] {
            let good = frames(&stream(&mut from, base, id, 0));
            let other = frames(&stream(&mut from, None, second, 0));
            let refused = |frames: &[Vec<u8>], what: &str| {
                let mut to = open(&made(kind, 3));
                if base.is_some() {
                    Receiver::new().receive(&mut to, &full).unwrap();
                }
                let received = Receiver::new().receive(&mut to, &frames.concat());
                assert!(received.is_err(), "{what}: {received:?}");
                assert!(to.index().snapshots().iter().all(|snapshot| snapshot.id != id), "{what}");
            };
            for at in 0..good.len() - 1 {
                let mut bad = good.clone();
                bad.remove(at);
                refused(&bad, &format!("frame {at} of {} is missing", good.len()));
                let mut bad = good.clone();
                bad.swap(at, at + 1);
                refused(&bad, &format!("frames {at} and {} are swapped", at + 1));
                let mut bad = good.clone();
                bad.insert(at, good[at].clone());
                refused(&bad, &format!("frame {at} comes twice"));
                if at > 0 && other.get(at).is_some_and(|other| *other != good[at]) {
                    let mut bad = good.clone();
                    bad[at] = other[at].clone();
                    refused(&bad, &format!("frame {at} is of another stream"));
                }
            }
            let mut to = open(&made(kind, 4));
            if base.is_none() {
                let received = Receiver::new().receive(&mut to, &[good.concat(), good[1].clone()].concat());
                assert!(matches!(received, Err(StreamError::Damaged(_))), "something follows: {received:?}");
            }
        }
    }
}

#[test]
fn the_rest_of_a_stream_goes_only_where_its_first_part_is() {
    let (mut from, first, _) = source(sealed());
    let whole = stream(&mut from, None, first, 0);
    let disk = made(sealed(), 5);
    let mut to = open(&disk);
    Receiver::new().receive(&mut to, &whole[..whole.len() / 2]).unwrap();
    let begun = to.index().receptions();
    assert_eq!((begun.len(), begun[0].id, begun[0].from, begun[0].name.as_str()), (1, first, None, "first"));
    let rest = stream(&mut from, None, first, begun[0].position);
    assert!(rest.len() < whole.len());
    let mut elsewhere = open(&made(sealed(), 6));
    assert_eq!(Receiver::new().receive(&mut elsewhere, &rest), Err(StreamError::Ahead));
    assert!(elsewhere.index().receptions().is_empty());
    // Somebody writes to the volume before it goes on: that is not lost by mistake.
    write(&mut to, 600, 7);
    assert_eq!(Receiver::new().receive(&mut to, &rest), Err(StreamError::Diverged));
    Receiver::abandon(&mut to, first).unwrap();
    assert!(to.index().receptions().is_empty());
}

#[test]
fn blocks_side_by_side_share_a_frame_however_they_were_written() {
    for kind in [UnitKind::Plain, sealed()] {
        let mut store = open(&made(kind, 1));
        hole(&mut store, 1, 0, BLOCKS);
        // 64 blocks are what is read at once.
        for lba in (0..70).rev().chain(80..90) {
            write(&mut store, 2 + lba, lba);
        }
        let id = snapshot(&mut store, "one");
        let frames = frames(&stream(&mut store, None, id, 0));
        let blocks: Vec<u32> = frames
            .iter()
            .filter(|frame| frame[4] == 2)
            .map(|frame| u32::from_be_bytes(frame[40..44].try_into().unwrap()))
            .collect();
        assert_eq!(blocks, [64, 6, 10]);
    }
}

/// A stream may be begun again from its start. Wherever it is cut off then, in a crash or not, nothing is lost of what arrived the first time.
#[test]
fn a_reception_begun_again_from_the_start_and_cut_off_goes_on() {
    let mut random = Random::new(6);
    for kind in [UnitKind::Plain, sealed()] {
        let (mut from, first, second) = source(kind);
        hole(&mut from, 500, 0, 8);
        let third = snapshot(&mut from, "third");
        let streams = [(None, first), (Some(first), second), (Some(second), third)];
        let whole = streams.map(|(base, id)| frames(&stream(&mut from, base, id, 0)));
        assert_eq!(whole[2].len(), 3, "one hole and nothing else");
        for (at, &(base, id)) in streams.iter().enumerate() {
            let all = &whole[at];
            for cut in 1..all.len() {
                let disk = made(kind, 2);
                let mut to = open(&disk);
                for before in &whole[..at] {
                    Receiver::new().receive(&mut to, &before.concat()).unwrap();
                }
                for until in [1 + random.below(all.len() as u64 - 1) as usize, all.len() - 1, cut] {
                    Receiver::new().receive(&mut to, &all[..until].concat()).unwrap();
                    if random.once_in(3) {
                        to.execute(Op::Flush).unwrap();
                        drop(to);
                        disk.crash();
                        to = open(&disk);
                    }
                }
                let rest = stream(&mut from, base, id, to.index().receive_position(id).unwrap());
                Receiver::new().receive(&mut to, &rest).unwrap();
                let (sent, arrived) = (seen(&mut from, View::Snapshot(id)), seen(&mut to, View::Snapshot(id)));
                let differ: Vec<usize> = (0..sent.len()).filter(|&lba| sent[lba] != arrived[lba]).collect();
                assert!(differ.is_empty(), "{kind:?}, cut off after {cut} of {} frames: {differ:?}", all.len());
            }
        }
    }
}

/// A difference that lies scattered is not one awaited read, and one awaited write, for each block.
#[test]
fn scattered_blocks_are_read_and_written_many_at_once() {
    for kind in [UnitKind::Plain, sealed()] {
        let mut from = open(&made(kind, 1));
        hole(&mut from, 1, 0, BLOCKS);
        let scattered: Vec<u64> = (0..BLOCKS).step_by(3).collect();
        for &lba in &scattered {
            write(&mut from, 2 + lba, lba);
        }
        let id = snapshot(&mut from, "one");
        let (mut sender, mut steps) = (Sender::new(None, id, 0), 0);
        let mut bytes = Vec::new();
        while let Some(more) = sender.send(&mut from).unwrap() {
            steps += 1;
            bytes.extend(more);
        }
        // A beginning, a hole, an end and what finds no more; 64 blocks of 4 KiB at most.
        let reads = scattered.len().div_ceil(Op::RUNS_MAX);
        assert!(steps <= 4 + reads, "{steps} steps for {} blocks", scattered.len());
        assert_eq!(frames(&bytes).iter().filter(|frame| frame[4] == 2).count(), scattered.len());
        let disk = made(kind, 2);
        let mut to = open(&disk);
        let before = to.stats().appended_bytes;
        let mut receiver = Receiver::new();
        receiver.receive(&mut to, &bytes).unwrap();
        assert!(receiver.is_done());
        let written = scattered.len() as u64 * 4096;
        let framing = to.stats().appended_bytes - before - written;
        assert!(framing < written / 8 + 16 * 4096, "{framing} bytes of framing for {written}");
        drop(to);
        let mut to = open(&disk);
        assert!(seen(&mut to, View::Snapshot(id)) == seen(&mut from, View::Snapshot(id)));
    }
}

/// A stream that is damaged in the middle leaves everything before that, in the order of the stream.
#[test]
fn what_is_intact_before_the_damage_stays() {
    let (mut from, first, _) = source(UnitKind::Plain);
    let bytes = stream(&mut from, None, first, 0);
    let pieces = frames(&bytes);
    let nth = pieces.len() - 2;
    let mut damaged = bytes.clone();
    damaged[pieces[..nth].iter().map(Vec::len).sum::<usize>() + 60] ^= 1;
    let mut to = open(&made(UnitKind::Plain, 2));
    assert!(matches!(Receiver::new().receive(&mut to, &damaged), Err(StreamError::Damaged(_))));
    let position = to.index().receive_position(first).unwrap();
    let before = u64::from_be_bytes(pieces[nth - 1][16..24].try_into().unwrap());
    assert_eq!(position, before, "all but the damaged frame");
    Receiver::new().receive(&mut to, &stream(&mut from, None, first, position)).unwrap();
    assert!(seen(&mut to, View::Snapshot(first)) == seen(&mut from, View::Snapshot(first)));
}

/// Blocks on which a hole lies are passed over in slices, however many nodes have something there, and none of them holds others up.
#[test]
fn what_lies_under_holes_is_passed_over_in_slices() {
    const OLD: u64 = 2 * (1 << 16);
    const SNAPSHOTS: u64 = 100;
    // A large volume: what the nodes have next is far away.
    const FAR: u64 = 1 << 27;
    let geometry = Geometry { block_size: BlockSize::new(512).unwrap(), blocks: FAR + SNAPSHOTS };
    let create = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    let mut store = Store::open_in_memory(&create, &OpenOptions::default(), Arc::new(|| {})).unwrap();
    let write = |store: &mut Store, lba, count: usize| {
        let data = vec![Buffer::copy_from(&vec![7; count * 512])];
        store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }).unwrap();
    };
    (0..OLD).step_by(2048).for_each(|lba| write(&mut store, lba, 2048));
    for at in 0..SNAPSHOTS {
        write(&mut store, FAR + at, 1);
        snapshot(&mut store, &format!("s{at}"));
    }
    store.execute(Op::Discard { lba: Lba(0), count: OLD }).unwrap();
    let last = snapshot(&mut store, "last");
    let mut sender = Sender::new(None, last, 0);
    let (mut slices, mut bytes, mut longest) = (0, 0, std::time::Duration::ZERO);
    loop {
        let begun = std::time::Instant::now();
        let Some(sent) = sender.send(&mut store).unwrap() else { break };
        longest = longest.max(begun.elapsed());
        slices += usize::from(sent.is_empty());
        bytes += sent.len() as u64;
    }
    println!("{slices} slices, the longest took {longest:?}");
    assert!(bytes > SNAPSHOTS * 512 && bytes < 4 * SNAPSHOTS * 512, "what lies under the hole was not sent: {bytes}");
    // 64 blocks of each node at once, 16384 times.
    assert!(slices as u64 >= OLD / 64 * SNAPSHOTS / 16384, "{slices} slices");
}

//! Proves what initiators see when space runs out and comes back, and when everything is erased under the eyes of the target's keeper.

use std::time::{Duration, Instant};

use strongroom_block::{BlockSize, Geometry, Lba, VolumeId};
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::{Sense, cdb, provisioning};
use strongroom_store::{CreateOptions, Extent, Op, OpenOptions, Receiver, Store, UnitKind, View};
use strongroom_target::admin::{Request, Resume, SpaceReport, StoreReport};
use strongroom_target::operate::Operation;
use strongroom_target::{Catalogue, IoChoice, VolumeSpec};

use crate::support::keeper::{client, operate, status};
use crate::support::*;

/// THIN PROVISIONING SOFT THRESHOLD REACHED.
const THRESHOLD: (u8, u8) = (0x38, 0x07);

fn store_of(host: &Host, volume: &str) -> StoreReport {
    operate(host, volume, Operation::Describe).unwrap().store
}

fn unmap(initiator: &mut Initiator, lba: u64, blocks: u32) {
    let list = provisioning::unmap_parameters(&[(Lba(lba), blocks)]);
    let data = WriteSource::plain(strongroom_block::Buffer::copy_from(&list));
    initiator.run(Command::write(LUN, cdb::unmap(list.len() as u16), data)).good();
}

#[test]
fn nearly_full_is_told_once_and_full_stops_only_writes() {
    let host = Host::start(&[VolumeSpec::plain("data", 8 * MIB)]);
    let mut data = host.plain("data");
    let blocks = (8 * MIB) as usize / BLOCK;
    let (mut thresholds, mut snapshots, mut full) = (0, 0, None);
    'filling: for round in 0..40u8 {
        for lba in (0..blocks).step_by(64) {
            let bytes = pattern(round, 64);
            let mut outcome = data.try_write(lba as u64, &bytes);
            if outcome.status == 2 && outcome.sense.is_some_and(|sense| (sense.asc, sense.ascq) == THRESHOLD) {
                thresholds += 1;
                assert_ne!(store_of(&host, "data").space, SpaceReport::Ample);
                // A unit attention: the command was not done, and is sent again.
                outcome = data.try_write(lba as u64, &bytes);
            }
            if outcome.status != 0 {
                full = Some((outcome.sense(), lba as u64, round));
                break 'filling;
            }
        }
        // What was written is pinned from here on.
        operate(&host, "data", Operation::SnapshotCreate { snapshot: format!("s{round}") }).unwrap();
        snapshots += 1;
    }
    let (sense, at, round) = full.expect("snapshots of a volume that is written again and again fill its store");
    assert!(sense.is(&Sense::NO_SPACE), "SPACE ALLOCATION FAILED WRITE PROTECT: {sense}");
    assert_eq!(thresholds, 1, "it was told before, once");
    assert_eq!(store_of(&host, "data").space, SpaceReport::Full);
    // Nothing is lost: what was acknowledged is there, what was refused left nothing.
    assert!(at > 0 && round > 0);
    assert_eq!(data.read(at - 64, 64), pattern(round, 64));
    assert_eq!(data.read(at, 64), pattern(round - 1, 64));
    data.synchronize();
    assert!(data.try_write(at, &pattern(round, 64)).sense().is(&Sense::NO_SPACE), "still");
    // Discards and the deletion of snapshots go on, and make room.
    unmap(&mut data, 0, blocks as u32 / 2);
    assert_eq!(data.read(0, 1), vec![0; BLOCK]);
    for snapshot in 0..snapshots {
        operate(&host, "data", Operation::SnapshotDelete { snapshot: format!("s{snapshot}") }).unwrap();
    }
    let until = Instant::now() + PATIENCE;
    while data.try_write(at, &pattern(9, 64)).status != 0 {
        assert!(Instant::now() < until, "there is room again");
        std::thread::sleep(Duration::from_millis(50));
    }
    (0..blocks).step_by(64).for_each(|lba| data.write(lba as u64, &pattern(9, 64)));
    assert_eq!(data.read(0, 64), pattern(9, 64));
    eventually("space is ample again", || {
        data.write(0, &pattern(9, 1));
        store_of(&host, "data").space == SpaceReport::Ample
    });
}

#[test]
fn a_volume_is_erased_while_nobody_uses_it_and_another_goes_on() {
    let host = Host::start(&[VolumeSpec::plain("data", 8 * MIB), VolumeSpec::plain("other", MIB)]);
    let (mut data, mut other) = (host.plain("data"), host.plain("other"));
    data.write(0, &pattern(1, 64));
    other.write(0, &pattern(2, 1));
    assert!(operate(&host, "data", Operation::Erase).unwrap_err().contains("session"), "not under a session");
    assert_eq!(data.read(0, 64), pattern(1, 64));
    operate(&host, "data", Operation::SnapshotCreate { snapshot: "s".into() }).unwrap();
    data.log_out();
    eventually("the session is gone", || match operate(&host, "data", Operation::Erase) {
        Err(refused) => refused.contains("snapshots"),
        Ok(_) => panic!("a snapshot stands in its way"),
    });
    operate(&host, "data", Operation::SnapshotDelete { snapshot: "s".into() }).unwrap();
    operate(&host, "data", Operation::Erase).unwrap();
    eventually("it is erased", || store_of(&host, "data").erasing.is_none());
    let mut data = host.plain("data");
    assert_eq!(data.read(0, 64), vec![0; 64 * BLOCK]);
    data.write(0, &pattern(3, 1));
    assert_eq!(other.read(0, 1), pattern(2, 1));
    let clone = Operation::Clone { snapshot: "t".into(), name: "copy".into(), access: None };
    operate(&host, "data", Operation::SnapshotCreate { snapshot: "t".into() }).unwrap();
    operate(&host, "data", clone).unwrap();
    assert!(operate(&host, "copy", Operation::Erase).unwrap_err().contains("clone"));
}

#[test]
fn the_way_of_io_is_as_the_volume_says_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    catalogue.create(&VolumeSpec { io: IoChoice::Buffered, ..VolumeSpec::plain("slow", MIB) }).unwrap();
    catalogue.create(&VolumeSpec::plain("any", MIB)).unwrap();
    let mut options = strongroom_target::TargetOptions::new(config(dir.path()));
    options.node_key = Some(target_key());
    let target = strongroom_target::Target::start(options).unwrap();
    let host = Host { target: Some(target), dir, node: target_key().public() };
    let (mut slow, mut any) = (host.plain("slow"), host.plain("any"));
    slow.write(0, &pattern(1, 1));
    any.write(0, &pattern(1, 1));
    let status = status(&host);
    let report = |name: &str| status.volumes.iter().find(|volume| volume.name == name).unwrap().clone();
    assert_eq!(report("slow").io, "buffered");
    assert!(report("slow").io_reason.unwrap().contains("io = buffered"));
    let any = report("any");
    assert!(["direct-uring", "direct", "buffered"].contains(&any.io.as_str()));
    assert_eq!(any.io == "direct-uring", any.io_reason.is_none(), "what is not the best is explained: {any:?}");
}

#[test]
fn caches_have_the_size_that_is_configured() {
    let host = Host::start_with(&[VolumeSpec::plain("data", MIB)], |config| {
        (config.limits.record_cache_bytes, config.limits.data_cache_bytes) = (4 * BLOCK, 8 * BLOCK);
    });
    let mut data = host.plain("data");
    (0..256).step_by(16).for_each(|lba| data.write(lba, &pattern(1, 16)));
    (0..256).for_each(|lba| assert_eq!(data.read(lba, 1).len(), BLOCK));
    let store = store_of(&host, "data");
    assert_eq!(store.record_cache_bytes_max, 4 * BLOCK as u64);
    assert!((1..=store.record_cache_bytes_max).contains(&store.record_cache_bytes), "{store:?}");
    assert!(store.record_cache_hits + store.record_cache_misses >= 256);
    // Only where I/O is direct: elsewhere the kernel caches.
    let status = status(&host);
    let cached = if status.volumes[0].io.starts_with("direct") { 8 * BLOCK as u64 } else { 0 };
    assert_eq!((store.data_cache_bytes_max, store.data_cache_bytes), (cached, cached));
    assert!(store.index_bytes >= 256 * 16, "{store:?}");
}

/// A stream of a snapshot, with something done between its slices; as far as it came within this many slices.
fn stream_of(
    host: &Host,
    request: &Request,
    slices_max: usize,
    mut between: impl FnMut(usize),
) -> Result<Vec<u8>, String> {
    let mut client = client(host);
    client.begin_stream(request, PATIENCE).map_err(|error| error.to_string())?;
    let mut stream = Vec::new();
    for slice in 0..slices_max {
        between(slice);
        match client.next_slice().map_err(|error| error.to_string())? {
            Some((bytes, _)) => stream.extend_from_slice(&bytes),
            None => break,
        }
    }
    Ok(stream)
}

fn send(snapshot: &str, from: Option<&str>, resume: Option<Resume>) -> Request {
    Request::Send { volume: "data".into(), snapshot: snapshot.into(), from: from.map(Into::into), resume }
}

/// A store elsewhere, for what is sent.
fn receiving_store(size: u64) -> Store {
    let geometry = Geometry::from_bytes(size, BlockSize::DEFAULT).unwrap();
    let create = CreateOptions::new(VolumeId([9; 16]), geometry, UnitKind::Plain);
    Store::open_in_memory(&create, &OpenOptions::default(), std::sync::Arc::new(|| {})).unwrap()
}

fn bytes_of(store: &mut Store, snapshot: &str) -> Vec<u8> {
    let id = store.index().snapshots().into_iter().find(|info| info.name == snapshot).expect("it was received").id;
    let count = store.info().geometry.blocks as u32;
    let read = store.execute_on(View::Snapshot(id), Op::Read { lba: Lba(0), count }).unwrap();
    let strongroom_store::Outcome::Read(extents) = read else { panic!("not read") };
    let bytes = extents.into_iter().flat_map(|extent| match extent {
        Extent::Blocks { data, .. } => data.to_vec(),
        Extent::Hole { count, .. } => vec![0; count as usize * BLOCK],
    });
    bytes.collect()
}

#[test]
fn a_snapshot_is_sent_while_its_volume_is_written_to() {
    let host = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let mut data = host.plain("data");
    let blocks = (4 * MIB) as usize / BLOCK;
    let all =
        |data: &mut Initiator| (0..blocks).step_by(64).flat_map(|lba| data.read(lba as u64, 64)).collect::<Vec<_>>();
    (0..blocks / 2).step_by(64).for_each(|lba| data.write(lba as u64, &pattern(1, 64)));
    let monday = all(&mut data);
    operate(&host, "data", Operation::SnapshotCreate { snapshot: "monday".into() }).unwrap();
    // Every slice meets other writes, over what is being sent as well.
    let mut written = 0;
    let stream = stream_of(&host, &send("monday", None, None), usize::MAX, |slice| {
        data.write((slice * 64 % blocks) as u64, &pattern(slice as u8, 64));
        written += 1;
    });
    let stream = stream.unwrap();
    assert!(written > 4, "{written} slices");
    let mut copy = receiving_store(4 * MIB);
    let mut receiver = Receiver::new();
    receiver.receive(&mut copy, &stream).unwrap();
    assert!(receiver.is_done());
    assert!(bytes_of(&mut copy, "monday") == monday, "the copy equals the snapshot");
    // What came since, in two parts: the connection is cut in between.
    let tuesday = all(&mut data);
    operate(&host, "data", Operation::SnapshotCreate { snapshot: "tuesday".into() }).unwrap();
    let part = stream_of(&host, &send("tuesday", Some("monday"), None), 3, |_| data.write(0, &pattern(7, 1))).unwrap();
    let mut receiver = Receiver::new();
    receiver.receive(&mut copy, &part).unwrap();
    assert!(!receiver.is_done());
    let rest = copy.index().receptions().remove(0);
    let resume = Resume { to: rest.id.0, from: rest.from.map(|from| from.0), position: rest.position };
    let stream = stream_of(&host, &send("tuesday", None, Some(resume.clone())), usize::MAX, |_| ()).unwrap();
    let mut receiver = Receiver::new();
    receiver.receive(&mut copy, &stream).unwrap();
    assert!(receiver.is_done());
    assert!(bytes_of(&mut copy, "tuesday") == tuesday, "and the copy of the next one equals that");
    // What cannot be is said, before anything is sent.
    let refused = |request| stream_of(&host, &request, 1, |_| ()).unwrap_err();
    assert!(refused(send("never", None, None)).contains("no snapshot 'never'"));
    assert!(refused(send("monday", None, Some(resume.clone()))).contains("another snapshot"));
    assert!(refused(send("monday", Some("tuesday"), None)).contains("snapshot"), "not an ancestor");
    // A snapshot that is deleted meanwhile ends the stream with a word, and nothing else.
    let gone = stream_of(&host, &send("tuesday", None, None), usize::MAX, |slice| {
        if slice == 2 {
            operate(&host, "data", Operation::SnapshotDelete { snapshot: "tuesday".into() }).unwrap();
        }
    });
    assert!(gone.unwrap_err().contains("no such snapshot"));
    assert_eq!(data.read(0, 1), pattern(7, 1));
}

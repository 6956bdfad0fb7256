//! Proves what initiators see when space runs out and comes back, and when everything is erased under the eyes of the target's keeper.

mod support;

use std::time::{Duration, Instant};

use strongroom_block::Lba;
use strongroom_iscsi::initiator::{Command, WriteSource};
use strongroom_scsi::{Sense, cdb, provisioning};
use strongroom_target::admin::{Client, Reply, Request, SpaceReport, StoreReport, default_socket};
use strongroom_target::operate::{Description, Operation};
use strongroom_target::{Catalogue, IoChoice, VolumeSpec};
use support::*;

const MIB: u64 = 1 << 20;
/// THIN PROVISIONING SOFT THRESHOLD REACHED.
const THRESHOLD: (u8, u8) = (0x38, 0x07);

fn operate(host: &Host, volume: &str, operation: Operation) -> Result<Description, String> {
    let mut client = Client::connect(&default_socket(host.dir.path())).unwrap().expect("it listens");
    match client.ask(&Request::Volume { volume: volume.into(), operation }, PATIENCE) {
        Ok(Reply::Volume(description)) => Ok(*description),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

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
    let mut client = Client::connect(&default_socket(host.dir.path())).unwrap().unwrap();
    let Ok(Reply::Status(status)) = client.ask(&Request::Status, PATIENCE) else { panic!("no status") };
    let report = |name: &str| status.volumes.iter().find(|volume| volume.name == name).unwrap().clone();
    assert_eq!(report("slow").io, "buffered");
    assert!(report("slow").io_reason.unwrap().contains("io = buffered"));
    let any = report("any");
    assert!(["direct-uring", "direct", "buffered"].contains(&any.io.as_str()));
    assert_eq!(any.io == "direct-uring", any.io_reason.is_none(), "what is not the best is explained: {any:?}");
}

//! Proves that volumes change while they are served: they grow under the sessions that use them, and their initiators are told.

mod support;

use strongroom_iscsi::initiator::Command;
use strongroom_scsi::cdb;
use strongroom_target::admin::{Client, Reply, Request, default_socket};
use strongroom_target::operate::{Description, Operation};
use strongroom_target::{Catalogue, VolumeSpec};
use support::*;

const MIB: u64 = 1 << 20;

fn operate(host: &Host, volume: &str, operation: Operation) -> Result<Description, String> {
    let mut client = Client::connect(&default_socket(host.dir.path())).unwrap().expect("it listens");
    match client.ask(&Request::Volume { volume: volume.into(), operation }, PATIENCE) {
        Ok(Reply::Volume(description)) => Ok(*description),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

/// Blocks, as READ CAPACITY (16) tells.
fn capacity(initiator: &mut Initiator) -> u64 {
    let answer = initiator.run(Command::read(LUN, cdb::read_capacity_16(), 32)).good();
    u64::from_be_bytes(answer[..8].try_into().unwrap()) + 1
}

#[test]
fn a_volume_grows_under_a_session() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut data = host.plain("data");
    data.write(255, &pattern(3, 1));
    assert!(operate(&host, "data", Operation::Resize { size_bytes: MIB / 2 }).unwrap_err().contains("shrink"));
    assert!(operate(&host, "data", Operation::Resize { size_bytes: MIB + 1 }).is_err());
    operate(&host, "data", Operation::Resize { size_bytes: 3 * MIB }).unwrap();
    // CAPACITY DATA HAS CHANGED, once.
    let told = data.run(Command::without_data(LUN, cdb::test_unit_ready())).sense();
    assert_eq!((told.asc, told.ascq), (0x2a, 0x09));
    assert_eq!(capacity(&mut data), 768);
    data.write(767, &pattern(4, 1));
    assert_eq!((data.read(255, 1), data.read(767, 1)), (pattern(3, 1), pattern(4, 1)));
    assert_eq!(data.read(300, 2), vec![0; 2 * BLOCK]);
    data.log_out();
    let mut again = host.plain("data");
    assert_eq!(capacity(&mut again), 768);
    assert_eq!(host.handle().catalogue().show("data").unwrap().volume.geometry.bytes(), 3 * MIB);
}

#[test]
fn a_volume_that_nobody_serves_grows_too() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    catalogue.create(&VolumeSpec::plain("data", MIB)).unwrap();
    let before = std::fs::read_to_string(dir.path().join("data/volume.toml")).unwrap();
    catalogue.operate("data", &Operation::Resize { size_bytes: 2 * MIB }).unwrap();
    assert_eq!(catalogue.show("data").unwrap().volume.geometry.bytes(), 2 * MIB);
    assert!(catalogue.operate("none", &Operation::Describe).unwrap_err().contains("none"));
    // A crash before the description was written: the store is what counts.
    std::fs::write(dir.path().join("data/volume.toml"), before).unwrap();
    let mut options = strongroom_target::TargetOptions::new(config(dir.path()));
    options.node_key = Some(target_key());
    let target = strongroom_target::Target::start(options).unwrap();
    let host = Host { target: Some(target), dir, node: target_key().public() };
    let mut data = host.plain("data");
    assert_eq!(capacity(&mut data), 512);
    assert_eq!(host.handle().catalogue().show("data").unwrap().volume.geometry.bytes(), 2 * MIB);
    assert!(host.handle().catalogue().operate("data", &Operation::Describe).unwrap_err().contains("in use"));
}

#[test]
fn what_cannot_be_done_says_why() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let snapshot = |snapshot: &str| Operation::SnapshotDelete { snapshot: snapshot.into() };
    assert!(operate(&host, "none", Operation::Describe).unwrap_err().contains("no volume 'none'"));
    assert!(operate(&host, "../data", Operation::Describe).unwrap_err().contains("cannot name a volume"));
    assert!(operate(&host, "data", snapshot("monday")).unwrap_err().contains("no snapshot 'monday'"));
    assert!(operate(&host, "data", Operation::SnapshotCreate { snapshot: "a@b".into() }).is_err());
    assert!(operate(&host, "data", Operation::DeleteClone).unwrap_err().contains("no clone"));
    let nothing = operate(&host, "data", Operation::Describe).unwrap();
    assert!(nothing.snapshots.is_empty() && nothing.clones.is_empty() && nothing.store.segments_total > 0);
    let refused = Initiator::log_in(&host, Some(alice_key()), normal(ALICE, "data:monday")).err().unwrap();
    assert_eq!(refused, Refused::Login(strongroom_iscsi::LoginStatus::NOT_FOUND));
}

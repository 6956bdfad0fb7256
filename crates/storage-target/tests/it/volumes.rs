//! Proves that volumes change while they are served: they grow under the sessions that use them, and their initiators are told.

use strongroom_iscsi::initiator::Command;
use strongroom_scsi::cdb;
use strongroom_target::admin::{Reply, Request};
use strongroom_target::operate::Operation;
use strongroom_target::{Catalogue, VolumeSpec};

use crate::support::keeper::{ask, operate};
use crate::support::*;

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
    assert!(catalogue.operate("none", &Operation::Describe).unwrap_err().to_string().contains("none"));
    // A crash before the description was written: the store is what counts.
    std::fs::write(dir.path().join("data/volume.toml"), before).unwrap();
    let host = Host::over(dir);
    let mut data = host.plain("data");
    assert_eq!(capacity(&mut data), 512);
    assert_eq!(host.handle().catalogue().show("data").unwrap().volume.geometry.bytes(), 2 * MIB);
    assert!(
        host.handle().catalogue().operate("data", &Operation::Describe).unwrap_err().to_string().contains("in use")
    );
}

#[test]
fn what_a_crash_left_unsaid_of_clones_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    catalogue.create(&VolumeSpec::plain("data", MIB)).unwrap();
    catalogue.operate("data", &create("monday")).unwrap();
    catalogue.operate("data", &clone("monday", "copy")).unwrap();
    let description = dir.path().join("copy/volume.toml");
    let before = std::fs::read_to_string(&description).unwrap();
    catalogue.operate("data", &Operation::Resize { size_bytes: 2 * MIB }).unwrap();
    catalogue.operate("copy", &create("tuesday")).unwrap();
    let after = std::fs::read_to_string(&description).unwrap();
    assert_ne!(before, after);
    // The store did both; a command that opens it for its volume comes to the clone's description.
    std::fs::write(&description, &before).unwrap();
    catalogue.operate("data", &Operation::Describe).unwrap();
    assert_eq!(std::fs::read_to_string(&description).unwrap(), after);
    // So does a target.
    std::fs::write(&description, &before).unwrap();
    let host = Host::over(dir);
    assert_eq!(capacity(&mut host.plain("copy")), 512);
    assert_eq!(capacity(&mut host.plain("copy:tuesday")), 512);
    assert_eq!(std::fs::read_to_string(&description).unwrap(), after);
}

#[test]
fn what_cannot_be_written_down_is_not_done_and_the_volume_opens_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    catalogue.create(&VolumeSpec::plain("data", MIB)).unwrap();
    let (description, lock) = (dir.path().join("data/volume.toml"), dir.path().join("data/.volume.toml.lock"));
    let before = std::fs::read_to_string(&description).unwrap();
    let grow = Operation::Resize { size_bytes: 2 * MIB };
    // Stands for a file system that is full: nothing can be written where this is.
    std::fs::create_dir(&lock).unwrap();
    for operation in [&grow, &create("monday")] {
        let refused = catalogue.operate("data", operation).unwrap_err().to_string();
        assert!(refused.contains("volume.toml") && !refused.contains("is done"), "{refused}");
    }
    std::fs::remove_dir(&lock).unwrap();
    assert!(catalogue.operate("data", &Operation::Describe).unwrap().snapshots.is_empty());
    assert_eq!(catalogue.show("data").unwrap().volume.geometry.bytes(), MIB, "a volume does not shrink again");
    // It filled up after the store's step.
    catalogue.operate("data", &grow).unwrap();
    std::fs::write(&description, &before).unwrap();
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let host = Host::over(dir);
    assert_eq!(capacity(&mut host.plain("data")), 512);
    assert_eq!(std::fs::read_to_string(&description).unwrap(), before);
    let refused = operate(&host, "data", create("monday")).unwrap_err();
    assert!(refused.contains("volume.toml"), "{refused}");
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

fn create(snapshot: &str) -> Operation {
    Operation::SnapshotCreate { snapshot: snapshot.into() }
}

fn clone(snapshot: &str, name: &str) -> Operation {
    Operation::Clone { snapshot: snapshot.into(), name: name.into(), access: None }
}

#[test]
fn a_snapshot_is_a_target_of_its_own_that_cannot_be_written() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut data = host.plain("data");
    data.write(0, &pattern(1, 8));
    let made = operate(&host, "data", create("monday")).unwrap();
    assert_eq!((made.snapshots.len(), made.snapshots[0].name.as_str()), (1, "monday"));
    assert!(operate(&host, "data", create("monday")).unwrap_err().contains("monday"));
    data.write(0, &pattern(2, 4));
    // Beside the volume, in the same worker, at the same time.
    let mut monday = host.plain("data:monday");
    for round in 3..6 {
        assert_eq!(monday.read(0, 8), pattern(1, 8));
        data.write(4, &pattern(round, 1));
        assert_eq!(data.read(0, 4), pattern(2, 4));
    }
    assert_eq!(monday.try_write(0, &pattern(9, 1)).sense().asc, 0x27);
    // Another unit than the volume: multipath must not join them.
    let identity =
        |initiator: &mut Initiator| initiator.run(Command::read(LUN, cdb::inquiry_vpd(0x83, 252), 252)).good();
    // By the first designator already, the NAA, which is all that some look at.
    assert_ne!(identity(&mut monday)[8..16], identity(&mut data)[8..16]);
    let mut listed = Initiator::log_in(&host, None, discovery(ALICE)).unwrap();
    let names: Vec<String> = listed.send_targets().into_iter().map(|target| target.name).collect();
    assert_eq!(names, [target_name("data"), target_name("data:monday")]);
    // While somebody uses it it stays.
    let delete = Operation::SnapshotDelete { snapshot: "monday".into() };
    assert!(operate(&host, "data", delete.clone()).unwrap_err().contains("a session uses 'data@monday'"));
    monday.log_out();
    eventually("the session is gone", || operate(&host, "data", delete.clone()).is_ok());
    assert!(Initiator::log_in(&host, None, normal(ALICE, "data:monday")).is_err());
    assert_eq!(data.read(0, 4), pattern(2, 4));
}

#[test]
fn a_snapshot_is_of_the_volume_or_clone_that_it_was_taken_of() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut data = host.plain("data");
    operate(&host, "data", create("monday")).unwrap();
    operate(&host, "data", clone("monday", "copy")).unwrap();
    let mut copy = host.plain("copy");
    copy.write(0, &pattern(2, 4));
    operate(&host, "copy", create("tuesday")).unwrap();
    data.write(0, &pattern(1, 4));
    operate(&host, "data", create("wednesday")).unwrap();
    copy.write(0, &pattern(3, 4));
    data.write(0, &pattern(3, 4));
    assert_eq!(host.plain("data:wednesday").read(0, 4), pattern(1, 4));
    assert_eq!(host.plain("copy:tuesday").read(0, 4), pattern(2, 4));
    for other in ["data:tuesday", "copy:monday"] {
        assert!(Initiator::log_in(&host, None, normal(ALICE, other)).is_err(), "{other}");
    }
}

#[test]
fn a_rollback_needs_the_volume_for_itself() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut data = host.plain("data");
    data.write(0, &pattern(1, 8));
    operate(&host, "data", create("monday")).unwrap();
    data.write(0, &pattern(2, 8));
    let back = Operation::Rollback { snapshot: "monday".into() };
    assert!(operate(&host, "data", back.clone()).unwrap_err().contains("a session uses 'data'"));
    data.log_out();
    eventually("it is free", || operate(&host, "data", back.clone()).is_ok());
    let mut data = host.plain("data");
    assert_eq!(data.read(0, 8), pattern(1, 8));
    data.write(0, &pattern(3, 1));
    assert_eq!(host.plain("data:monday").read(0, 8), pattern(1, 8));
}

#[test]
fn a_clone_is_a_volume_that_shares_a_store() {
    let mut host = Host::start_with(&[VolumeSpec::plain("data", MIB)], |config| config.limits.idle_close_s = 0);
    let mut data = host.plain("data");
    data.write(0, &pattern(1, 8));
    operate(&host, "data", create("monday")).unwrap();
    assert!(operate(&host, "data", clone("tuesday", "copy")).unwrap_err().contains("no snapshot 'tuesday'"));
    assert!(operate(&host, "data", clone("monday", "data")).unwrap_err().contains("already"));
    operate(&host, "data", clone("monday", "copy")).unwrap();
    let mut copy = host.plain("copy");
    copy.write(0, &pattern(7, 1));
    data.write(1, &pattern(8, 1));
    copy.synchronize();
    assert_eq!((copy.read(0, 1), copy.read(1, 1)), (pattern(7, 1), pattern(1, 8)[BLOCK..2 * BLOCK].to_vec()));
    assert_eq!((data.read(0, 1), data.read(1, 1)), (pattern(1, 1), pattern(8, 1)));
    // It grows with its volume.
    operate(&host, "data", Operation::Resize { size_bytes: 2 * MIB }).unwrap();
    assert_eq!(copy.run(Command::without_data(LUN, cdb::test_unit_ready())).sense().asc, 0x2a);
    assert_eq!(capacity(&mut copy), 512);
    assert!(host.handle().catalogue().delete("data").unwrap_err().to_string().contains("has clones, 'copy'"));
    let busy = operate(&host, "copy", Operation::DeleteClone).unwrap_err();
    assert!(busy.contains("a session uses 'copy'"), "{busy}");
    copy.log_out();
    data.log_out();
    // After a restart, and with nobody serving.
    drop(host.target.take());
    let catalogue = Catalogue::open(host.dir.path()).unwrap();
    let described = catalogue.operate("data", &Operation::Describe).unwrap();
    assert_eq!((described.clones[0].name.as_str(), described.clones[0].snapshot.as_str()), ("copy", "monday"));
    let mut options = strongroom_target::TargetOptions::new(config(host.dir.path()));
    options.node_key = Some(target_key());
    host.target = Some(strongroom_target::Target::start(options).unwrap());
    assert_eq!(host.plain("copy").read(0, 1), pattern(7, 1));
    assert!(
        operate(&host, "data", Operation::SnapshotDelete { snapshot: "monday".into() }).is_err(),
        "a clone depends on it"
    );
    eventually("the clone is free", || operate(&host, "copy", Operation::DeleteClone).is_ok());
    assert!(Initiator::log_in(&host, None, normal(ALICE, "copy")).is_err());
    operate(&host, "data", Operation::SnapshotDelete { snapshot: "monday".into() }).unwrap();
    assert_eq!(host.plain("data").read(1, 1), pattern(8, 1));
}

#[test]
fn a_clone_that_others_were_made_of_stays_whole() {
    let mut host = Host::start_with(&[VolumeSpec::plain("data", MIB)], |config| config.limits.idle_close_s = 0);
    operate(&host, "data", create("monday")).unwrap();
    operate(&host, "data", clone("monday", "copy")).unwrap();
    operate(&host, "copy", create("noon")).unwrap();
    operate(&host, "copy", clone("noon", "second")).unwrap();
    let refused = operate(&host, "copy", Operation::DeleteClone).unwrap_err();
    assert!(refused.contains("'second' depends on the snapshot 'copy@noon'"), "{refused}");
    let described = operate(&host, "copy", Operation::Describe).expect("it is there still");
    assert_eq!(described.snapshots.len(), 1, "{described:?}");
    // What a crash, or somebody's hands, left of one without its description can be cleared away by its name.
    drop(host.target.take());
    std::fs::remove_dir_all(host.dir.path().join("second")).unwrap();
    let catalogue = Catalogue::open(host.dir.path()).unwrap();
    let delete = Operation::SnapshotDelete { snapshot: "monday".into() };
    // A description that cannot be read is one.
    let description = host.dir.path().join("copy/volume.toml");
    let text = std::fs::read(&description).unwrap();
    std::fs::write(&description, "from = 'the future'").unwrap();
    for refused in [catalogue.operate("data", &delete), catalogue.operate("data", &clone("monday", "copy"))] {
        let refused = refused.map(drop).unwrap_err().to_string();
        assert!(refused.contains("copy/volume.toml"), "{refused}");
    }
    std::fs::write(&description, text).unwrap();
    assert_eq!(catalogue.operate("copy", &Operation::Describe).unwrap().snapshots.len(), 1, "it is there still");
    std::fs::remove_dir_all(host.dir.path().join("copy")).unwrap();
    let refused = catalogue.operate("data", &delete).unwrap_err().to_string();
    assert!(refused.contains("volume clone data@monday copy"), "{refused}");
    catalogue.operate("data", &clone("monday", "copy")).unwrap();
    catalogue.operate("copy", &Operation::DeleteClone).unwrap();
    assert!(catalogue.operate("data", &delete).unwrap().clones.is_empty());
}

#[test]
fn who_may_not_use_a_volume_any_more_loses_its_snapshots_too() {
    let host = Host::start_with(&[VolumeSpec::plain("data", MIB)], |config| config.plain.clear());
    let catalogue = host.handle().catalogue();
    let everyone = strongroom_target::Access { initiators: vec!["*".into()], ..Default::default() };
    catalogue.set_access("data", everyone).unwrap();
    operate(&host, "data", create("monday")).unwrap();
    let mut monday = host.plain("data:monday");
    catalogue.set_access("data", strongroom_target::Access::default()).unwrap();
    assert_eq!(ask(&host, &Request::Refresh { volume: "data".into() }), Ok(Reply::Sessions(1)));
    monday.wait_for_end();
}

#[test]
fn what_is_made_again_under_an_old_name_is_what_is_served() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    let mut data = host.plain("data");
    for round in 1..3 {
        data.write(0, &pattern(round, 1));
        operate(&host, "data", create("monday")).unwrap();
        operate(&host, "data", clone("monday", "copy")).unwrap();
        // Units that stay open for a while after their last session.
        for export in ["data:monday", "copy"] {
            let mut initiator = host.plain(export);
            assert_eq!(initiator.read(0, 1), pattern(round, 1), "{export}");
            initiator.log_out();
        }
        eventually("the clone is free", || operate(&host, "copy", Operation::DeleteClone).is_ok());
        let delete = Operation::SnapshotDelete { snapshot: "monday".into() };
        eventually("the snapshot is free", || operate(&host, "data", delete.clone()).is_ok());
    }
}

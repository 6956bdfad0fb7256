//! Proves that a running target takes a snapshot in while its volume is read: sessions go on seeing one image, also over a lost connection and
//! a restart of the target; the new snapshot is there at once, the volume goes on from it when the last session has let go, and who could write
//! is named and must detach first.

use strongroom_iscsi::initiator::Command;
use strongroom_scsi::cdb;
use strongroom_scsi::vendor::{UNIT_PAGE, UnitPage};
use strongroom_target::VolumeSpec;
use strongroom_target::admin::{Reply, Request};
use strongroom_target::operate::Operation;

use crate::support::keeper::{ask, client, operate};
use crate::support::*;

const BLOCKS: u32 = 1024;

/// The stream of a new snapshot of everything written again.
fn night(host: &Host, seed: u8, name: &str, from: Option<&str>) -> Vec<u8> {
    let mut data = host.plain("data");
    (0..BLOCKS / 64).for_each(|part| data.write(u64::from(part) * 64, &pattern(seed + part as u8, 64)));
    data.log_out();
    operate(host, "data", Operation::SnapshotCreate { snapshot: name.into() }).unwrap();
    let send = Request::Send { volume: "data".into(), snapshot: name.into(), from: from.map(Into::into), resume: None };
    let (mut client, mut stream) = (client(host), Vec::new());
    client.begin_stream(&send, PATIENCE).unwrap();
    while let Some((slice, _)) = client.next_slice().unwrap() {
        stream.extend(slice);
    }
    stream
}

fn begin(host: &Host) -> strongroom_target::admin::Client {
    let mut client = client(host);
    client.begin_stream(&Request::Receive { volume: "data".into() }, PATIENCE).unwrap();
    client
}

fn receive(host: &Host, stream: &[u8]) -> Result<(), String> {
    let mut client = begin(host);
    client.send_piece(stream).and_then(|()| client.send_piece(&[])).map_err(|error| error.to_string())
}

fn all(reader: &mut Initiator) -> Vec<u8> {
    (0..BLOCKS / 64).flat_map(|part| reader.read(u64::from(part) * 64, 64)).collect()
}

fn image(seed: u8) -> Vec<u8> {
    (0..BLOCKS / 64).flat_map(|part| pattern(seed + part as u8, 64)).collect()
}

/// What a session sees that comes now. It logs out: nobody waits for it.
fn shows(host: &Host, seed: u8) {
    eventually("the volume goes on from the newest snapshot", || {
        let mut session = host.plain("data");
        let shown = all(&mut session);
        session.log_out();
        shown == image(seed)
    });
}

#[test]
fn a_reader_sees_one_image_while_snapshots_come_in() {
    let origin = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let copy = Host::start_with(&[VolumeSpec::plain("data", 4 * MIB)], |config| config.plain[0].read_only = true);
    receive(&copy, &night(&origin, 1, "monday", None)).unwrap();
    let mut reader = copy.plain("data");
    assert!(all(&mut reader) == image(1));

    let tuesday = night(&origin, 40, "tuesday", Some("monday"));
    let mut stream = begin(&copy);
    for piece in tuesday.chunks(100_000) {
        stream.send_piece(piece).unwrap();
        assert!(all(&mut reader) == image(1), "while it comes in");
    }
    stream.send_piece(&[]).unwrap();
    assert!(all(&mut reader) == image(1), "when it is here");
    // Once more, with a reader who sees an older one; and the store is not closed for it.
    receive(&copy, &night(&origin, 90, "wednesday", Some("tuesday"))).unwrap();
    assert!(all(&mut reader) == image(1), "and when the next one is here");
    assert!(all(&mut copy.plain("data:tuesday")) == image(40), "the snapshots can be attached at once");
    let other = normal("iqn.2026-11.org.strongroom:second", "data");
    let mut second = Initiator::log_in(&copy, None, other).unwrap();
    assert!(all(&mut second) == image(1), "one that joins a reader sees what that sees");

    let refused = operate(&copy, "data", Operation::SnapshotDelete { snapshot: "monday".into() }).unwrap_err();
    assert!(refused.contains("read this one"), "{refused}");
    reader.log_out();
    assert!(all(&mut second) == image(1), "until the last one lets go");
    second.log_out();
    shows(&copy, 90);
    operate(&copy, "data", Operation::SnapshotDelete { snapshot: "monday".into() }).unwrap();
    shows(&copy, 90);
}

/// The number of the image, of vendor page 0xC0.
fn image_number(initiator: &mut Initiator) -> u64 {
    let page = initiator.run(Command::read(LUN, cdb::inquiry_vpd(UNIT_PAGE, 255), 255)).good();
    UnitPage::parse(&page).unwrap().image.unwrap()
}

/// A target that received monday's snapshot, and the stream of tuesday's.
fn monday_and_tuesday() -> (Host, Vec<u8>) {
    let origin = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let copy = Host::start_with(&[VolumeSpec::plain("data", 4 * MIB)], |config| config.plain[0].read_only = true);
    receive(&copy, &night(&origin, 1, "monday", None)).unwrap();
    let tuesday = night(&origin, 40, "tuesday", Some("monday"));
    (copy, tuesday)
}

#[test]
fn a_lost_connection_comes_back_to_the_same_image() {
    let (copy, tuesday) = monday_and_tuesday();
    let mut reader = copy.plain("data");
    let image_before = image_number(&mut reader);
    assert!(all(&mut reader) == image(1));
    // It is away while the snapshot comes in, and one that joins meanwhile leaves before it is back.
    drop(reader);
    eventually("its session is over", || copy.handle().stats().sessions == 0);
    receive(&copy, &tuesday).unwrap();
    let other = normal("iqn.2026-11.org.strongroom:second", "data");
    let mut second = Initiator::log_in(&copy, None, other).unwrap();
    assert!(all(&mut second) == image(1));
    second.log_out();
    let mut reader = copy.plain("data");
    assert_eq!(image_number(&mut reader), image_before);
    assert!(all(&mut reader) == image(1), "its image waited for it");
    reader.log_out();
    shows(&copy, 40);
    let mut reader = copy.plain("data");
    assert_ne!(image_number(&mut reader), image_before, "an initiator can tell");
}

#[test]
fn a_restart_of_the_target_does_not_change_what_sessions_see() {
    let (mut copy, tuesday) = monday_and_tuesday();
    let mut reader = copy.plain("data");
    let image_before = image_number(&mut reader);
    receive(&copy, &tuesday).unwrap();
    for _ in 0..2 {
        copy.restart_without_peers();
        let mut reader = copy.plain("data");
        assert!(all(&mut reader) == image(1), "also twice");
        assert_eq!(image_number(&mut reader), image_before);
        assert_eq!(reader.try_write(0, &pattern(9, 1)).sense().asc, 0x27, "write protected");
    }
    // What cannot be understood is not guessed.
    let file = copy.dir.path().join("data/image.toml");
    assert!(std::fs::read_to_string(&file).unwrap().contains("snapshot = "));
}

#[test]
fn an_image_has_another_number_after_a_rollback_and_not_after_a_snapshot() {
    let host = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let number = || {
        let mut reader = host.plain("data");
        let number = image_number(&mut reader);
        reader.log_out();
        number
    };
    let snapshot = |snapshot: &str| operate(&host, "data", Operation::SnapshotCreate { snapshot: snapshot.into() });
    let before = number();
    snapshot("a").unwrap();
    let mut writer = host.plain("data");
    writer.write(0, &pattern(1, 64));
    writer.log_out();
    snapshot("b").unwrap();
    operate(&host, "data", Operation::SnapshotDelete { snapshot: "b".into() }).unwrap();
    assert_eq!(number(), before);
    eventually("nobody uses it", || host.handle().stats().sessions == 0);
    operate(&host, "data", Operation::Rollback { snapshot: "a".into() }).unwrap();
    assert_ne!(number(), before);
}

#[test]
fn who_could_write_is_named_and_nothing_is_lost() {
    let origin = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let copy = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let (monday, tuesday) = (night(&origin, 1, "monday", None), night(&origin, 40, "tuesday", Some("monday")));
    receive(&copy, &monday).unwrap();
    let writer = copy.plain("data");
    let in_use = ask(&copy, &Request::Receive { volume: "data".into() }).unwrap();
    assert!(matches!(&in_use, Reply::InUse(users) if users[0].contains("with 'data'")), "{in_use:?}");
    writer.log_out();
    // One who comes while the stream does is in the way at its end; what arrived is kept, and goes on.
    let mut stream = begin(&copy);
    let (first, last) = tuesday.split_at(tuesday.len() / 2);
    stream.send_piece(first).unwrap();
    let arrived = || match ask(&copy, &Request::Receptions { volume: "data".into(), abandon: false }).unwrap() {
        Reply::Receptions(all) => all,
        other => panic!("{other:?}"),
    };
    eventually("it has begun", || arrived().len() == 1);
    let mut writer = copy.plain("data");
    let refused = stream.send_piece(last).and_then(|()| stream.send_piece(&[])).unwrap_err().to_string();
    assert!(refused.contains("still in use"), "{refused}");
    assert!(all(&mut writer) == image(1));
    writer.write(0, &pattern(1, 64));
    writer.log_out();
    let refused = receive(&copy, &tuesday).unwrap_err();
    assert!(refused.contains("was written"), "what was written is not thrown away: {refused}");
    operate(&copy, "data", Operation::Rollback { snapshot: "monday".into() }).unwrap();
    assert_eq!(arrived().len(), 1, "and what arrived is still there");
    receive(&copy, &tuesday).unwrap();
    assert!(all(&mut copy.plain("data")) == image(40));
}

#[test]
fn attack_a_stream_that_is_no_stream_ends_and_leaves_nothing() {
    let copy = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    for bad in [vec![7; 100_000], Vec::new()] {
        let refused = receive(&copy, &bad).unwrap_err();
        assert!(refused.contains("damaged") || refused.contains("before its end"), "{refused}");
    }
    // Two at once would write over each other.
    let first = begin(&copy);
    let refused = ask(&copy, &Request::Receive { volume: "data".into() }).unwrap_err();
    assert!(refused.contains("another stream"), "{refused}");
    drop(first);
    eventually("the place is free again", || ask(&copy, &Request::Receive { volume: "data".into() }).is_ok());
}

//! Proves that pruning deletes what no rule keeps and nothing that is used: not what a clone depends on, a session has attached, or a
//! stream is made of; and that a dry run says the same and deletes nothing.

use strongroom_target::Retention;
use strongroom_target::VolumeSpec;
use strongroom_target::admin::{Pruned, PrunedSnapshot, Request};
use strongroom_target::operate::Operation;

use crate::support::keeper::{ask, client, operate};
use crate::support::*;

fn snapshot(host: &Host, name: &str) {
    operate(host, "data", Operation::SnapshotCreate { snapshot: name.into() }).unwrap();
}

fn prune(host: &Host, last: u32, dry_run: bool) -> Vec<PrunedSnapshot> {
    let keep = Retention { last, ..Retention::default() };
    operate(host, "data", Operation::Prune { keep, prefix: None, dry_run }).unwrap().pruned
}

fn outcomes(pruned: &[PrunedSnapshot]) -> Vec<(&str, Pruned)> {
    pruned.iter().map(|snapshot| (snapshot.name.as_str(), snapshot.outcome)).collect()
}

fn names(host: &Host) -> Vec<String> {
    host.handle().catalogue().show("data").unwrap().volume.snapshots
}

#[test]
fn what_is_used_stays_and_the_rest_goes() {
    let host = Host::start(&[VolumeSpec::plain("data", 4 * MIB)]);
    let mut data = host.plain("data");
    for (seed, name) in ["cloned", "attached", "sent", "base", "unused", "newest"].into_iter().enumerate() {
        // More than waits in a socket, so that a stream of it has not ended before it is read.
        (0..16).for_each(|part| data.write(part * 64, &pattern(seed as u8 * 16 + part as u8, 64)));
        snapshot(&host, name);
    }
    let clone = Operation::Clone { snapshot: "cloned".into(), name: "copy".into(), access: None };
    operate(&host, "data", clone).unwrap();
    let mut reader = host.plain("data:attached");
    let before = reader.read(0, 1);
    // A stream of which one slice is taken, and no more for now.
    let mut stream = client(&host);
    let send =
        Request::Send { volume: "data".into(), snapshot: "base".into(), from: Some("sent".into()), resume: None };
    stream.begin_stream(&send, PATIENCE).unwrap();
    let keep = Retention::default();
    let all = operate(&host, "data", Operation::Prune { keep, prefix: None, dry_run: false });
    assert!(all.unwrap_err().contains("every snapshot would go"));

    let would = prune(&host, 1, true);
    let expected = [
        ("cloned", Pruned::InUse),
        ("attached", Pruned::InUse),
        ("sent", Pruned::InUse),
        ("base", Pruned::InUse),
        ("unused", Pruned::Deleted),
        ("newest", Pruned::Kept),
    ];
    assert_eq!(outcomes(&would), expected);
    assert!(would[0].reasons[0].contains("the clone 'copy' depends"), "{:?}", would[0]);
    assert!(would[1].reasons[0].contains("a session uses 'data@attached'"), "{:?}", would[1]);
    assert!(would[3].reasons[0].contains("being sent"), "{:?}", would[3]);
    assert_eq!(would[5].reasons, ["last 1"]);
    assert_eq!(names(&host).len(), 6, "nothing is deleted");
    assert_eq!(prune(&host, 1, false), would);
    assert_eq!(names(&host), ["cloned", "attached", "sent", "base", "newest"]);
    assert_eq!(reader.read(0, 1), before);

    // When nothing uses them any more, they go.
    reader.log_out();
    drop(stream);
    operate(&host, "copy", Operation::DeleteClone).unwrap();
    eventually("the stream has ended", || {
        prune(&host, 1, false);
        names(&host) == ["newest"]
    });
    assert_eq!(outcomes(&prune(&host, 1, false)), [("newest", Pruned::Kept)]);
}

#[test]
fn a_prefix_and_a_clone_limit_what_pruning_is_about() {
    let host = Host::start(&[VolumeSpec::plain("data", MIB)]);
    ["nightly-1", "by-hand", "nightly-2"].iter().for_each(|name| snapshot(&host, name));
    let clone = Operation::Clone { snapshot: "by-hand".into(), name: "copy".into(), access: None };
    operate(&host, "data", clone).unwrap();
    operate(&host, "copy", Operation::SnapshotCreate { snapshot: "nightly-of-the-clone".into() }).unwrap();
    let keep = Retention { last: 1, ..Retention::default() };
    let prefix = Some("nightly-".to_owned());
    let pruned = operate(&host, "data", Operation::Prune { keep, prefix, dry_run: false }).unwrap().pruned;
    assert_eq!(outcomes(&pruned), [("nightly-1", Pruned::Deleted), ("nightly-2", Pruned::Kept)]);
    assert_eq!(names(&host), ["by-hand", "nightly-2"]);
    let of_clone = host.handle().catalogue().show("copy").unwrap().volume.snapshots;
    assert_eq!(of_clone, ["nightly-of-the-clone"]);
}

/// Closing a volume takes along what shares its store: else its lock would be free while the store is still open.
#[test]
fn a_volume_is_closed_with_its_snapshots_or_not_at_all() {
    let host = Host::start_with(&[VolumeSpec::plain("data", MIB)], |config| config.limits.idle_close_s = 600);
    host.plain("data").write(0, &pattern(1, 1));
    snapshot(&host, "s");
    let mut reader = host.plain("data:s");
    let (catalogue, close) = (host.handle().catalogue(), Request::Close { volume: "data".into() });
    ask(&host, &close).unwrap();
    assert_eq!(reader.read(0, 1), pattern(1, 1));
    assert!(catalogue.show("data").unwrap().in_use, "somebody uses a snapshot of it");
    reader.log_out();
    eventually("it is closed", || {
        ask(&host, &close).unwrap();
        !catalogue.show("data").unwrap().in_use
    });
    catalogue.open_volume("data").expect("the store is closed, too").close().unwrap();
}

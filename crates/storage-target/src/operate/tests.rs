//! Proves that operations on different volumes do not wait for each other, and that many volumes are opened by few threads.

use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::{Config, Target, TargetHandle, TargetOptions, VolumeSpec};

fn start(volumes: usize) -> (TargetHandle, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let catalogue = Catalogue::open(dir.path()).unwrap();
    for number in 0..volumes {
        catalogue.create(&VolumeSpec::plain(format!("v{number}"), 1 << 20)).unwrap();
    }
    let mut config = Config::new(dir.path());
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.workers = Some(2);
    (Target::start(TargetOptions::new(config)).unwrap(), dir)
}

#[test]
fn a_slow_operation_holds_up_its_own_volume_alone() {
    let (target, _dir) = start(2);
    let snapshot = |name: &str| Operation::SnapshotCreate { snapshot: name.to_owned() };
    let operate = |volume: &str, operation: &Operation| operate_served(&target.services, volume, operation);
    operate("v0", &snapshot("base")).unwrap();
    // As an operation on v0 has it while its store takes long.
    let slow = target.services.operations.turns.take([VolumeName::new("v0").unwrap()]);
    assert_eq!(operate("v1", &snapshot("s")).unwrap().snapshots.len(), 1);
    let clone = Operation::Clone { snapshot: "s".to_owned(), name: "c".to_owned(), access: None };
    assert_eq!(operate("v1", &clone).unwrap().clones.len(), 1);
    let later = snapshot("later");
    std::thread::scope(|scope| {
        let (done, outcome) = mpsc::channel();
        let later = &later;
        scope.spawn(move || done.send(operate("v0", later)).unwrap());
        assert!(outcome.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
        drop(slow);
        assert_eq!(outcome.recv().unwrap().unwrap().snapshots.len(), 2);
    });
    // An operation that names a new volume holds the turn of that name.
    let clone = Operation::Clone { snapshot: "base".to_owned(), name: "c".to_owned(), access: None };
    assert!(operate("v0", &clone).unwrap_err().to_string().contains("there is a volume 'c' already"));
}

#[test]
fn many_volumes_are_opened_by_few_threads() {
    const VOLUMES: usize = 40;
    let (target, _dir) = start(VOLUMES);
    std::thread::scope(|scope| {
        for number in 0..VOLUMES {
            let shared = &target.services;
            scope.spawn(move || operate_served(shared, &format!("v{number}"), &Operation::Describe).unwrap());
        }
    });
    assert_eq!(target.stats().volumes_open, VOLUMES as u64);
    let peak = target.services.store_pool.threads_peak();
    assert!((1..=8).contains(&peak), "{peak} threads");
}

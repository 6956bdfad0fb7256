//! The incarnation: it changes when acknowledged data may be lost, and only then.

use super::*;

#[test]
fn the_incarnation_changes_only_when_data_may_be_lost() {
    let mut bench = Bench::new();
    let mut store = bench.open();
    let incarnation = store.incarnation();
    assert_ne!(incarnation, 0);
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    clone(&mut store);
    assert_eq!(store.incarnation(), incarnation);
    store.close().unwrap();
    let image = bench.image();
    let store = bench.open();
    assert_eq!(store.incarnation(), incarnation, "kept by an orderly close");
    // An opening that was cut short before it wrote anything counts for nothing.
    bench.crash_to(store, &image);
    let store = bench.open();
    assert_eq!(store.incarnation(), incarnation);
    drop(store);
    let store = bench.open();
    let crashed = store.incarnation();
    assert_ne!(crashed, incarnation, "nothing was written, but who knows");
    drop(store);
    let mut store = bench.open();
    assert_ne!(store.incarnation(), crashed);
    // An erase in order loses nothing that was not to be lost; one that is cut short is a crash.
    let before = store.incarnation();
    for branch in store.index().branches().into_iter().skip(1) {
        store.execute(Op::CloneDelete { branch: branch.id }).unwrap();
    }
    for snapshot in store.index().snapshots() {
        store.execute(Op::SnapshotDelete { id: snapshot.id }).unwrap();
    }
    store.execute(Op::Erase).unwrap();
    assert_eq!(store.incarnation(), before);
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), Err(OpError::UnknownAttachment { attach_id: A }));
    store.close().unwrap();
    assert_eq!(bench.open().incarnation(), before);
}

#[test]
fn a_failed_sync_changes_the_incarnation_and_an_erase_cut_short_does() {
    let disk = SimDisk::new(5);
    Store::create_on(Box::new(disk.backend(true)), &options()).unwrap();
    let mut store = open_disk(&disk).unwrap();
    let incarnation = store.incarnation();
    format(&mut store);
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    disk.set_faults(Faults { failing_sync_once_in: 1, ..Faults::default() });
    assert!(store.execute(Op::Flush).is_err());
    disk.set_faults(Faults::default());
    assert!(store.close().is_err());
    let mut store = open_disk(&disk).unwrap();
    let second = store.incarnation();
    assert_ne!(second, incarnation);
    // Both superblocks say that everything goes, and not much has gone.
    disk.cut_off_after(8);
    assert!(store.execute(Op::Erase).is_err());
    drop(store);
    disk.crash();
    let mut store = open_disk(&disk).unwrap();
    while store.erase_progress().is_some() {
        store.poll_completions(&mut Vec::new());
    }
    assert_ne!(store.incarnation(), second);
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), Err(OpError::UnknownAttachment { attach_id: A }));
}

/// What was lost by damage is not known: so nothing that is sent again is executed, and the incarnation changes.
#[test]
fn a_repaired_store_knows_no_attach_ids() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    let incarnation = store.incarnation();
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    store.close().unwrap();
    // The first record block of the segment that has the newest table.
    for segment in 0..8u64 {
        let at = (1 << 20) + segment * (64 << 10);
        let mut magic = [0; 4];
        bench.memory.read_at(at, &mut magic);
        if magic == *b"SRrb" {
            bench.memory.write_at(at + 40, &[0xff; 8]);
        }
    }
    let options = RepairOptions { apply: true, accept_data_loss: true };
    let plan =
        RepairPlan::carry_out_on(Box::new(bench.memory.clone()), options, &mut |_, _| Ok(()), &mut |_, _| ()).unwrap();
    assert!(plan.steps.iter().any(|step| step.done), "{plan:?}");
    let mut store = bench.open();
    assert_ne!(store.incarnation(), incarnation);
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), Err(OpError::UnknownAttachment { attach_id: A }));
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
}

//! Operation windows of the volume and of clones: each branch has its own.

use super::*;

/// Sequences name versions in all branches: who writes to a clone cannot replay a sequence that the volume has.
#[test]
fn attack_a_forged_sequence_does_not_meet_another_branch() {
    let bench = Bench::new();
    let mut store = bench.open();
    let (_, branch) = clone(&mut store);
    register(&mut store, A);
    assert_eq!(store.execute_on(on(branch.0), Op::RegisterAttachment { attach_id: B }), Ok(Outcome::Changed));
    let of_block = first(store.execute(write(4, 1, 1, stamp(A, 1))));
    let of_hole = first(store.execute(hole(20, 4, stamp(A, 2))));
    let old = first(store.execute(write(6, 1, 1, stamp(A, 3))));
    first(store.execute(write(6, 1, 2, stamp(A, 4))));
    store.close().unwrap();
    let mut store = bench.open();
    for (counter, (lba, sequence)) in [(4, of_block), (6, old)].into_iter().enumerate() {
        let forged = store.execute_on(on(branch.0), replay(lba, 1, 9, stamp(B, counter as u64), sequence));
        assert!(matches!(forged, Err(OpError::ReplayRefused(_))), "{forged:?}");
    }
    let holes = vec![HoleRecord { start: Lba(20), count: 2, record: record(stamp(B, 9), None) }];
    let origin = Some(Origin { operation: stamp(B, 9), replay: Some(of_hole) });
    let forged = store.execute_on(on(branch.0), Op::Hole { holes, origin });
    assert!(matches!(forged, Err(OpError::ReplayRefused(_))), "{forged:?}");
    assert_eq!(volume(&mut store, 4, 3), [1, 0, 2]);
}

/// Windows are a branch's: a clone begins without any, a deleted one takes its own along, and a rollback undoes data but not the fact
/// that a request was executed.
#[test]
fn windows_and_branches() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    let (snapshot, branch) = clone(&mut store);
    let view = on(branch.0);
    let unknown = Err(OpError::UnknownAttachment { attach_id: A });
    assert_eq!(store.execute_on(view, write(4, 1, 7, stamp(A, 1))), unknown);
    assert_eq!(store.execute_on(view, Op::RegisterAttachment { attach_id: A }), Ok(Outcome::Changed));
    first(store.execute_on(view, write(4, 1, 7, stamp(A, 1))));
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    assert_eq!((fills(&mut store, view, 4, 1), volume(&mut store, 4, 1)), (vec![7], vec![8]));
    store.execute(Op::Rollback { to: snapshot }).unwrap();
    store.close().unwrap();
    let mut store = bench.open();
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), repeated(1));
    assert_eq!(volume(&mut store, 4, 1), [0], "rolled back, and not executed again");
    assert_eq!(store.execute_on(view, write(4, 1, 7, stamp(A, 1))), repeated(1));
    assert_eq!(
        store.execute_on(View::Snapshot(snapshot), Op::RegisterAttachment { attach_id: B }),
        Err(OpError::ReadOnly)
    );
    store.execute(Op::CloneDelete { branch }).unwrap();
    drop(store);
    let mut store = bench.open();
    assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), repeated(1));
}

/// Who may write to a clone can register as many attach ids as he likes: the volume's stay, the log does not fill up, and opening works.
#[test]
fn attack_a_flood_of_registrations_on_a_clone_costs_the_volume_nothing() {
    let bench = Bench::new();
    let mut store = bench.open();
    register(&mut store, A);
    first(store.execute(write(4, 1, 8, stamp(A, 1))));
    let (_, branch) = clone(&mut store);
    for number in 0..3000u128 {
        let attach_id = AttachId((1000 + number).to_be_bytes());
        let registered = store.execute_on(on(branch.0), Op::RegisterAttachment { attach_id });
        assert_eq!(registered, Ok(Outcome::Changed));
        if number % 100 == 0 {
            // Gaps too.
            for counter in 0..100 {
                first(store.execute_on(on(branch.0), write(4, 1, 1, stamp(attach_id, 2 * counter))));
            }
        }
    }
    for closed in [true, false] {
        assert_eq!(store.execute(write(4, 1, 8, stamp(A, 1))), repeated(1));
        match closed {
            true => store.close().unwrap(),
            false => drop(store),
        }
        store = bench.open();
    }
    first(store.execute(write(4, 1, 9, stamp(A, 2))));
    let newest = AttachId(3999u128.to_be_bytes());
    assert_eq!(store.execute_on(on(branch.0), Op::RegisterAttachment { attach_id: newest }), Ok(Outcome::Changed));
    first(store.execute_on(on(branch.0), write(4, 1, 1, stamp(newest, 0))));
}

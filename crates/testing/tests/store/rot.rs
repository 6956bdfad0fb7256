//! Proves that rot is found before somebody reads it, named by its block, and never served: by scrubbing while the store is
//! open, and by the check when it is not.

use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, VolumeId};
use strongroom_store::{CheckReport, CreateOptions, Op, OpError, OpenOptions, Outcome, Store, UnitKind};
use strongroom_testing::{Faults, SimDisk, block_bytes};

const BLOCKS: u64 = 64;

fn write(store: &mut Store, op: u64, lba: u64) {
    let data = vec![Buffer::copy_from(&block_bytes(op, lba, BlockSize::DEFAULT))];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None }).unwrap();
}

/// A store that was used; its disk.
fn used() -> (SimDisk, Store) {
    used_with(&OpenOptions::default())
}

fn used_with(open: &OpenOptions) -> (SimDisk, Store) {
    let disk = SimDisk::new(1);
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let mut options = CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain);
    options.segment_bytes = 64 << 10;
    Store::create_on(Box::new(disk.backend(true)), &options).unwrap();
    let mut store = Store::open_on(Box::new(disk.backend(true)), open, Arc::new(|| {})).unwrap();
    for op in 1..4 {
        for lba in 0..BLOCKS {
            write(&mut store, op, lba);
        }
    }
    (disk, store)
}

/// Where on the disk the newest version of a block is.
fn find(disk: &SimDisk, op: u64, lba: u64) -> u64 {
    let wanted = block_bytes(op, lba, BlockSize::DEFAULT);
    let mut page = vec![0; 4096];
    (256..4096)
        .map(|at| at * 4096)
        .find(|&at| {
            disk.read(at, &mut page);
            page == wanted
        })
        .expect("it was written")
}

/// Scrubs until everything was read once more.
fn scrub(store: &mut Store) {
    let passes = store.stats().scrub_passes;
    while store.stats().scrub_passes == passes {
        store.scrub();
        store.poll_completions(&mut Vec::new());
    }
}

#[test]
fn scrubbing_names_rotten_blocks_and_forgets_rewritten_ones() {
    let (disk, mut store) = used();
    scrub(&mut store);
    let stats = store.stats();
    assert!(stats.scrubbed_bytes > BLOCKS * 4096 / 2, "most of it lies in closed segments");
    assert_eq!((stats.scrub_bad_blocks, store.scrub_report().bad_blocks), (0, Vec::new()));

    disk.flip(find(&disk, 3, 7) + 100, 3);
    scrub(&mut store);
    assert_eq!(store.scrub_report().bad_blocks, [Lba(7)]);
    assert!(matches!(store.execute(Op::Read { lba: Lba(7), count: 1 }), Err(OpError::Medium { lba: Lba(7), .. })));
    assert_eq!(store.stats().scrub_bad_blocks, 1);

    write(&mut store, 9, 7);
    scrub(&mut store);
    scrub(&mut store);
    assert_eq!(store.scrub_report().bad_blocks, [], "it was written again");
    assert!(matches!(store.execute(Op::Read { lba: Lba(7), count: 1 }), Ok(Outcome::Read(_))));
}

#[test]
fn scrubbing_looks_closer_where_a_segment_cannot_be_read() {
    let (disk, mut store) = used();
    // The record block in front of a block: everything that it names is lost.
    let at = find(&disk, 3, 7);
    disk.overwrite(at - 4096, &[0; 4096]);
    scrub(&mut store);
    assert!(
        store.scrub_report().bad_blocks.is_empty() || store.scrub_report().bad_blocks.contains(&Lba(7)),
        "{:?}",
        store.scrub_report().bad_blocks
    );
    // What cannot be read now may be readable later: nothing is done to it.
    disk.set_faults(Faults { failing_read_once_in: 1, ..Faults::default() });
    scrub(&mut store);
    assert!(store.stats().scrub_bad_blocks > 1);
    disk.set_faults(Faults::default());
    scrub(&mut store);
    scrub(&mut store);
    assert!(store.stats().scrub_bad_blocks <= 1, "{:?}", store.scrub_report().bad_blocks);
}

#[test]
fn scrubbing_waits_while_something_is_asked_for() {
    let (_disk, mut store) = used();
    store.submit(strongroom_block::Token(1), Op::Read { lba: Lba(0), count: 1 });
    store.scrub();
    assert_eq!(store.stats().scrubbed_bytes, 0);
}

#[test]
fn the_check_says_where() {
    let (disk, store) = used();
    store.close().unwrap();
    let at = find(&disk, 3, 9);
    disk.flip(at, 0);
    let report = CheckReport::of_backend(&mut disk.backend(true)).unwrap();
    let [problem] = &report.problems[..] else { panic!("{report:?}") };
    assert_eq!((problem.lba, problem.offset, problem.newest), (Some(Lba(9)), at, true));
    assert!(problem.to_string().contains("block 9") && problem.to_string().contains(&at.to_string()), "{problem}");
    assert_eq!(report.bad_blocks, [Lba(9)]);
}

/// A reader of the volume alone may not be concerned, and cannot repair it by writing.
#[test]
fn the_check_says_who_sees_a_damaged_block() {
    let (disk, mut store) = used();
    let shared = store.execute(Op::SnapshotCreate { name: "one".to_owned() }).unwrap();
    let Outcome::SnapshotCreated { id } = shared else { panic!("{shared:?}") };
    write(&mut store, 4, 9);
    store.execute(Op::CloneCreate { from: id, name: "copy".to_owned(), volume_id: VolumeId([2; 16]) }).unwrap();
    store.close().unwrap();
    let (kept, newest, shared) = (find(&disk, 3, 9), find(&disk, 4, 9), find(&disk, 3, 10));
    [kept, newest, shared].into_iter().for_each(|at| disk.flip(at, 0));
    let report = CheckReport::of_backend(&mut disk.backend(true)).unwrap();
    let mut seen: Vec<_> = report.problems.iter().map(|problem| (problem.offset, problem.to_string())).collect();
    seen.sort();
    let mut wanted = [
        (kept, "block 9 of copy, @one, "),
        (newest, "block 9 of the volume, "),
        (shared, "block 10 of the volume, copy, @one, "),
    ];
    wanted.sort_unstable();
    assert_eq!(seen.len(), 3, "{report:?}");
    for ((at, said), (offset, begins)) in seen.into_iter().zip(wanted) {
        assert!(at == offset && said.starts_with(begins), "'{begins}' is missing in: {said}");
    }
}

/// Without a checkpoint opening needs every record block: the first damage that it meets is no reason to be silent about the rest.
#[test]
fn the_check_of_a_store_that_does_not_open_lists_every_damage() {
    let (disk, store) = used_with(&OpenOptions { checkpoint_log_bytes: Some(1 << 40), ..OpenOptions::default() });
    store.close().unwrap();
    let damaged = [5, 25, 45].map(|lba| find(&disk, 3, lba) - 4096);
    for at in damaged {
        disk.flip(at + 200, 1);
    }
    let rotten = find(&disk, 3, 60);
    disk.flip(rotten, 1);
    let opened = Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {}));
    let Err(error) = opened else { panic!("it opens") };
    let report = CheckReport::of_backend(&mut disk.backend(true)).unwrap();
    assert_eq!(report.unopenable, Some(error.to_string()));
    assert!(!report.is_sound() && report.losses.len() >= 3, "{:?}", report.losses);
    for at in damaged {
        assert!(report.problems.iter().any(|problem| problem.offset == at), "byte {at}: {:?}", report.problems);
    }
    assert_eq!(report.bad_blocks, [Lba(60)], "what rotted besides");
}

//! Proves that an erase leaves nothing: no version, no log unit, no checkpoint, on no medium; that a crash at any moment of it leaves
//! everything or nothing, and never a part; and that it goes on at the next opening.

use std::collections::HashSet;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord, SealingDomain,
    Stamp, StoreSequence, Suite, Token, VolumeId, keyless_checksum,
};
use strongroom_store::{
    BranchId, CheckReport, CreateOptions, Extent, IoChoice, Medium, Op, OpError, OpenOptions, Outcome, RepairOptions,
    RepairPlan, Store, StoreError, UnitKind, View,
};
use strongroom_testing::{Faults, SimDisk};

const BLOCKS: u64 = 256;
/// In every block that the tests write: what must not be found afterwards.
const SECRET: &[u8; 16] = b"attack at dawn!!";

const SEALED: UnitKind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile };

fn create_options(kind: UnitKind) -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) }
}

fn new_disk(kind: UnitKind, seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    Store::create_on(Box::new(disk.backend(true)), &create_options(kind)).unwrap();
    disk
}

/// Checkpoints are taken often.
fn options() -> OpenOptions {
    OpenOptions { checkpoint_log_bytes: Some(64 << 10), ..OpenOptions::default() }
}

fn open(disk: &SimDisk) -> Store {
    Store::open_on(Box::new(disk.backend(true)), &options(), Arc::new(|| {})).unwrap()
}

/// As a real medium: I/Os complete late, and in any order.
fn open_slowly(disk: &SimDisk) -> Store {
    Store::open_on(Box::new(disk.backend(false)), &options(), Arc::new(|| {})).unwrap()
}

fn block_of(fill: u8) -> Buffer {
    let mut block = [fill; 4096];
    block.chunks_exact_mut(64).for_each(|chunk| chunk[..16].copy_from_slice(SECRET));
    Buffer::copy_from(&block)
}

fn record(counter: u64, hole: bool) -> SealRecord {
    let (flags, sum) = if hole { (RecordFlags::HOLE, 0) } else { (0, keyless_checksum(&block_of(1))) };
    let stamp = Stamp { attach_id: AttachId([7; 16]), counter };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, *SECRET)
}

fn write(store: &mut Store, lba: u64, fill: u8) -> Result<Outcome, OpError> {
    store.execute(Op::Write {
        lba: Lba(lba),
        data: vec![block_of(fill)],
        records: Vec::new(),
        fua: false,
        origin: None,
    })
}

/// Twice over, so that there are dead segments, and a checkpoint.
fn fill(store: &mut Store) {
    for round in 1..=2 {
        (0..BLOCKS).for_each(|lba| drop(write(store, lba, round).unwrap()));
        store.execute(Op::Flush).unwrap();
    }
    store.idle();
}

fn reads_zeros(store: &mut Store) -> bool {
    let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba: Lba(0), count: BLOCKS as u32 }) else {
        panic!("not read")
    };
    matches!(extents[..], [Extent::Hole { count: BLOCKS, hole: None, .. }])
}

/// Every block has what `fill` wrote last.
fn reads_all(store: &mut Store) -> bool {
    let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba: Lba(0), count: BLOCKS as u32 }) else {
        panic!("not read")
    };
    let is_whole = |data: &Buffer| data.chunks_exact(4096).all(|block| *block == *block_of(2));
    extents.iter().all(|extent| matches!(extent, Extent::Blocks { data, .. } if is_whole(data)))
}

fn holds_secret(bytes: &[u8]) -> bool {
    bytes.chunks_exact(64).any(|chunk| chunk.windows(16).any(|window| window == SECRET))
}

/// Whether the disk still has any of what was written, or a record block or checkpoint of the store as it was.
fn traces_on(disk: &SimDisk, before: &HashSet<Vec<u8>>) -> usize {
    pages_of(disk).into_iter().filter(|page| holds_secret(page) || before.contains(page)).count()
}

/// Every page of the log with something in it.
fn pages_of(disk: &SimDisk) -> HashSet<Vec<u8>> {
    let mut bytes = vec![0; 4 << 20];
    disk.read(1 << 20, &mut bytes);
    bytes.chunks_exact(4096).filter(|page| page.iter().any(|&byte| byte != 0)).map(<[u8]>::to_vec).collect()
}

#[test]
fn nothing_of_a_plain_volume_is_left() {
    let disk = new_disk(UnitKind::Plain, 1);
    let mut store = open(&disk);
    fill(&mut store);
    assert!(store.stats().checkpoints > 0, "there is a checkpoint to erase");
    assert!(reads_all(&mut store));
    let (before, old) = (pages_of(&disk), store.info().clone());
    assert!(before.len() > BLOCKS as usize);
    let Outcome::Written { first: last_sequence, .. } = write(&mut store, 0, 3).unwrap() else { panic!() };
    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed));
    assert_eq!(store.erase_progress(), None);
    assert_eq!(traces_on(&disk, &before), 0);
    assert!(reads_zeros(&mut store));
    assert_eq!(store.stats().blocks_mapped, 0);
    assert_ne!(store.info().store_id, old.store_id, "nothing left anywhere can be taken for a part of it");
    assert_eq!((store.info().volume_id, store.info().geometry), (old.volume_id, old.geometry));
    // It is a store like any other.
    let Outcome::Written { first, .. } = write(&mut store, 5, 1).unwrap() else { panic!() };
    assert!(first > last_sequence, "a sequence is never used again: {first} {last_sequence}");
    fill(&mut store);
    store.close().unwrap();
    let mut store = open(&disk);
    assert!(reads_all(&mut store));
    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed), "and again");
    store.close().unwrap();
    assert!(reads_zeros(&mut open(&disk)));
    assert!(CheckReport::of_backend(&mut disk.backend(true)).unwrap().is_sound());
}

#[test]
fn a_sealed_volume_is_not_formatted_afterwards() {
    let disk = new_disk(SEALED, 1);
    let mut store = open(&disk);
    let hole = |counter| Op::Hole {
        holes: vec![HoleRecord { start: Lba(0), count: BLOCKS, record: record(counter, true) }],
        origin: None,
    };
    store.execute(hole(1)).unwrap();
    for counter in 2..6 {
        let records = vec![record(counter, false)];
        store.execute(Op::Write { lba: Lba(3), data: vec![block_of(1)], records, fua: true, origin: None }).unwrap();
    }
    assert!(store.stats().versions_retained > 0);
    let before = pages_of(&disk);
    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed));
    assert_eq!(traces_on(&disk, &before), 0, "records too");
    let not_formatted = OpError::NotFormatted { lba: Lba(3) };
    assert_eq!(store.execute(Op::Read { lba: Lba(3), count: 1 }), Err(not_formatted.clone()));
    let version = Op::ReadVersion { lba: Lba(3), older_than: StoreSequence(0) };
    assert_eq!(store.execute(version), Err(OpError::NoVersion { lba: Lba(3) }));
    assert_eq!(store.stats().versions_retained, 0);
    drop(store);
    disk.crash();
    let mut store = open(&disk);
    assert_eq!(store.execute(Op::Read { lba: Lba(3), count: 1 }), Err(not_formatted));
    // The stamps of before are forgotten too: the same initiator may go on.
    store.execute(hole(1)).unwrap();
    let read = store.execute(Op::Read { lba: Lba(3), count: 1 }).unwrap();
    assert!(matches!(read, Outcome::Read(extents) if matches!(extents[..], [Extent::Hole { .. }])));
}

#[test]
fn snapshots_and_clones_stand_in_its_way() {
    let disk = new_disk(UnitKind::Plain, 1);
    let mut store = open(&disk);
    write(&mut store, 1, 1).unwrap();
    let Ok(Outcome::SnapshotCreated { id }) = store.execute(Op::SnapshotCreate { name: "s".into() }) else { panic!() };
    let depended = |result| matches!(result, Err(OpError::Depended(_)));
    assert!(depended(store.execute(Op::Erase)));
    let clone = Op::CloneCreate { from: id, name: "c".into(), volume_id: VolumeId([2; 16]) };
    let Ok(Outcome::CloneCreated { branch }) = store.execute(clone) else { panic!() };
    assert!(depended(store.execute_on(View::Head(branch), Op::Erase)), "of a clone");
    assert_eq!(store.execute_on(View::Snapshot(id), Op::Erase), Err(OpError::ReadOnly));
    store.execute(Op::CloneDelete { branch }).unwrap();
    store.execute(Op::SnapshotDelete { id }).unwrap();
    // One that was asked for before the erase comes first, and stands in its way as well.
    store.submit(Token(1), Op::SnapshotCreate { name: "late".into() });
    store.submit(Token(2), Op::Erase);
    store.submit(Token(3), Op::Read { lba: Lba(1), count: 1 });
    let mut done = Vec::new();
    while done.len() < 3 {
        store.poll_completions(&mut done);
    }
    let result = |token| done.iter().find(|done| done.token == token).unwrap().result.clone();
    let Ok(Outcome::SnapshotCreated { id }) = result(Token(1)) else { panic!() };
    assert!(depended(result(Token(2))));
    assert_eq!(result(Token(3)), Err(OpError::Erasing));
    assert_eq!(store.erase_progress(), None);
    // Nothing happened, and everything goes on.
    let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba: Lba(1), count: 1 }) else { panic!() };
    assert!(matches!(&extents[..], [Extent::Blocks { .. }]));
    store.execute(Op::SnapshotDelete { id }).unwrap();
    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed));
    assert_eq!(store.index().branches().iter().map(|branch| branch.id).collect::<Vec<_>>(), [BranchId::VOLUME]);
}

#[test]
fn it_goes_in_slices_and_tells_how_far_it_is() {
    let disk = SimDisk::new(1);
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 32 * BLOCKS };
    let large = CreateOptions { geometry, ..create_options(UnitKind::Plain) };
    Store::create_on(Box::new(disk.backend(true)), &large).unwrap();
    let mut store = open_slowly(&disk);
    fill(&mut store);
    store.submit(Token(1), Op::Erase);
    for op in [Op::Read { lba: Lba(0), count: 1 }, Op::Flush, Op::SnapshotCreate { name: "s".into() }] {
        assert_eq!(store.execute(op), Err(OpError::Erasing));
    }
    assert_eq!(store.execute(Op::Erase), Err(OpError::Busy));
    let (mut done, mut progress, mut ios) = (Vec::new(), Vec::new(), disk.ios());
    while done.is_empty() {
        store.poll_completions(&mut done);
        assert!(disk.ios() - ios <= 24, "one poll does a slice: {}", disk.ios() - ios);
        ios = disk.ios();
        progress.extend(store.erase_progress());
    }
    assert!(progress.is_sorted() && progress.iter().collect::<HashSet<_>>().len() > 2, "{progress:?}");
}

/// The heart of it: cut off at every I/O of an erase, on a disk that keeps any part of what was not synced.
#[test]
fn sim_a_crash_at_any_moment_leaves_everything_or_nothing() {
    let (mut all, mut nothing, mut resumed) = (0, 0, 0);
    for cut in 0..30 {
        for seed in 0..3 {
            let at = format!("cut {cut} seed {seed}");
            let disk = new_disk(UnitKind::Plain, seed * 1000 + cut);
            let mut store = open(&disk);
            fill(&mut store);
            let before = pages_of(&disk);
            disk.cut_off_after(cut);
            store.submit(Token(1), Op::Erase);
            let (mut done, mut completed) = (Vec::new(), false);
            for _ in 0..200 {
                store.poll_completions(&mut done);
                completed |= done.drain(..).any(|done| done.result.is_ok());
                if completed || disk.is_cut_off() {
                    break;
                }
            }
            drop(store);
            disk.crash();
            let mut store = open_slowly(&disk);
            if store.erase_progress().is_some() {
                assert!(!completed, "{at}");
                resumed += 1;
                // Not a byte of it is to be had meanwhile, neither here nor by the tools.
                let checked = CheckReport::of_backend(&mut disk.backend(true));
                assert!(matches!(checked, Err(StoreError::Erasing)), "{at}");
                assert_eq!(store.execute(Op::Read { lba: Lba(0), count: 1 }), Err(OpError::Erasing), "{at}");
                if cut % 2 == 0 {
                    // Once more cut short.
                    disk.cut_off_after(cut % 7);
                    for _ in 0..20 {
                        store.poll_completions(&mut done);
                    }
                    drop(store);
                    disk.crash();
                    store = open_slowly(&disk);
                }
                if store.erase_progress().is_some() {
                    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed), "{at}");
                }
            } else if reads_zeros(&mut store) {
                nothing += 1;
            } else {
                assert!(!completed, "{at}");
                assert!(reads_all(&mut store), "{at}");
                all += 1;
                continue;
            }
            assert!(reads_zeros(&mut store), "{at}");
            assert_eq!(traces_on(&disk, &before), 0, "{at}");
            fill(&mut store);
            store.close().unwrap();
            assert!(reads_all(&mut open(&disk)), "{at}");
        }
    }
    assert!(all > 5 && nothing > 5 && resumed > 10, "each happened: {all} {nothing} {resumed}");
}

#[test]
fn a_failing_medium_ends_it_and_the_next_opening_goes_on() {
    let disk = new_disk(UnitKind::Plain, 3);
    let mut store = open(&disk);
    fill(&mut store);
    disk.set_faults(Faults { failing_sync_once_in: 3, ..Faults::default() });
    let mut failed = None;
    for _ in 0..20 {
        match store.execute(Op::Erase) {
            Ok(_) => fill(&mut store),
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    assert!(matches!(failed, Some(OpError::WritesRefused { .. })), "{failed:?}");
    disk.set_faults(Faults::default());
    assert!(matches!(store.execute(Op::Erase), Err(OpError::WritesRefused { .. })), "not before it is opened again");
    drop(store);
    let mut store = open(&disk);
    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed));
    assert!(reads_zeros(&mut store));
}

/// What was taken in before it could not be done: then nothing goes, and what there is can be read.
#[test]
fn one_that_has_not_begun_when_a_sync_fails_takes_nothing_away() {
    let disk = new_disk(UnitKind::Plain, 3);
    let mut store = open(&disk);
    fill(&mut store);
    disk.set_faults(Faults { failing_sync_once_in: 1, ..Faults::default() });
    store.submit(
        Token(1),
        Op::Write { lba: Lba(7), data: vec![block_of(2)], records: Vec::new(), fua: true, origin: None },
    );
    store.submit(Token(2), Op::Erase);
    let mut done = Vec::new();
    while done.len() < 2 {
        store.poll_completions(&mut done);
    }
    let refused = |result: &Result<Outcome, OpError>| matches!(result, Err(OpError::WritesRefused { .. }));
    assert!(done.iter().all(|completion| refused(&completion.result)), "{done:?}");
    assert_eq!(store.erase_progress(), None);
    assert!(reads_all(&mut store));
    assert!(refused(&store.execute(Op::Erase)));
}

#[test]
fn closing_puts_it_off() {
    let disk = new_disk(UnitKind::Plain, 3);
    let mut store = open_slowly(&disk);
    fill(&mut store);
    let before = pages_of(&disk);
    store.submit(Token(1), Op::Erase);
    let mut done = Vec::new();
    while store.erase_progress() == Some(0) {
        store.poll_completions(&mut done);
    }
    assert!(store.erase_progress().is_some(), "it is under way");
    store.close().unwrap();
    let mut store = open(&disk);
    assert!(store.erase_progress().is_some());
    // Nobody need ask for it again.
    while store.erase_progress().is_some() {
        store.poll_completions(&mut done);
    }
    assert!(reads_zeros(&mut store));
    assert_eq!(traces_on(&disk, &before), 0);
}

/// Who loses a copy of the superblock, or has it repaired, gets nothing back either.
#[test]
fn an_erase_cut_short_cannot_be_undone_by_repair() {
    let disk = new_disk(UnitKind::Plain, 3);
    let mut store = open_slowly(&disk);
    fill(&mut store);
    store.submit(Token(1), Op::Erase);
    let mut done = Vec::new();
    while store.erase_progress() == Some(0) {
        store.poll_completions(&mut done);
    }
    assert!(store.erase_progress().is_some(), "it is under way");
    drop(store);
    for lost in [0, 512 << 10] {
        let mut page = vec![0; 4096];
        disk.read(lost, &mut page);
        disk.overwrite(lost, &[0; 4096]);
        assert!(open(&disk).erase_progress().is_some(), "either copy says so");
        let consent = RepairOptions { apply: true, accept_data_loss: true };
        let repaired =
            RepairPlan::carry_out_on(Box::new(disk.backend(true)), consent, &mut |_, _| Ok(()), &mut |_, _| ());
        assert!(matches!(repaired, Err(StoreError::Erasing)), "{repaired:?}");
        assert!(open(&disk).erase_progress().is_some());
    }
}

fn in_directory(io: IoChoice, medium: Medium, dir: &Path) -> Store {
    Store::create(dir, &CreateOptions { medium, ..create_options(UnitKind::Plain) }).unwrap();
    Store::open(dir, &OpenOptions { io, ..options() }, Arc::new(|| {})).unwrap()
}

#[test]
fn files_are_overwritten_and_punched_and_keep_their_space_where_it_was_taken() {
    for io in [IoChoice::Auto, IoChoice::Direct, IoChoice::Buffered] {
        for preallocated in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let elsewhere = dir.path().join("elsewhere");
            let medium = if preallocated { Medium::File(elsewhere.clone()) } else { Medium::Directory };
            let store_dir = dir.path().join("store");
            let mut store = in_directory(io, medium, &store_dir);
            fill(&mut store);
            // As a repair leaves it.
            std::fs::write(store_dir.join("repair-0123456789abcdef.saved"), &block_of(1)[..]).unwrap();
            let log = std::fs::File::open(store_dir.join("log")).unwrap();
            let taken = log.metadata().unwrap().blocks() * 512;
            assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed));
            let metadata = log.metadata().unwrap();
            let mut bytes = vec![0; metadata.len() as usize];
            log.read_exact_at(&mut bytes, 0).unwrap();
            assert!(!holds_secret(&bytes), "{io}");
            if preallocated {
                assert!(metadata.blocks() * 512 >= taken, "{io}: the space is kept");
            } else {
                assert!(metadata.blocks() * 512 <= taken / 2, "{io}: {} of {taken}", metadata.blocks() * 512);
            }
            assert!(!store_dir.join("repair-0123456789abcdef.saved").exists());
            assert!(reads_zeros(&mut store));
            store.close().unwrap();
        }
    }
}

#[test]
fn what_is_in_memory_is_dropped() {
    let mut store = Store::open_in_memory(&create_options(UnitKind::Plain), &options(), Arc::new(|| {})).unwrap();
    fill(&mut store);
    assert_eq!(store.execute(Op::Erase), Ok(Outcome::Changed));
    assert!(reads_zeros(&mut store));
    fill(&mut store);
    assert!(reads_all(&mut store));
}

/// A flush or a write with FUA that waits for its sync is answered before the store is erased, not forgotten with it.
#[test]
fn who_waits_for_durability_is_answered_before_an_erase() {
    for slow in [false, true] {
        let disk = new_disk(UnitKind::Plain, 77);
        let mut store = if slow { open_slowly(&disk) } else { open(&disk) };
        write(&mut store, 1, 1).unwrap();
        store.submit(Token(1), Op::Flush);
        let fua = Op::Write { lba: Lba(2), data: vec![block_of(2)], records: Vec::new(), fua: true, origin: None };
        store.submit(Token(2), fua);
        store.submit(Token(3), Op::Erase);
        let mut answered = HashSet::new();
        let mut completions = Vec::new();
        for _ in 0..100_000 {
            store.poll_completions(&mut completions);
            for completion in completions.drain(..) {
                assert!(completion.result.is_ok(), "{:?}", completion.result);
                answered.insert(completion.token.0);
            }
            if answered.len() == 3 {
                break;
            }
        }
        assert_eq!(answered, HashSet::from([1, 2, 3]));
        assert!(reads_zeros(&mut store));
    }
}

/// A store that is closed before an erase began is as it was: nothing is erased by half, nothing written is lost.
#[test]
fn an_erase_that_had_not_begun_is_forgotten_at_closing() {
    let disk = new_disk(UnitKind::Plain, 78);
    let mut store = open_slowly(&disk);
    write(&mut store, 1, 1).unwrap();
    store.submit(
        Token(2),
        Op::Write { lba: Lba(2), data: vec![block_of(2)], records: Vec::new(), fua: false, origin: None },
    );
    store.submit(Token(3), Op::Erase);
    store.close().unwrap();
    let mut store = open(&disk);
    assert!(store.erase_progress().is_none());
    let Outcome::Read(extents) = store.execute(Op::Read { lba: Lba(1), count: 2 }).unwrap() else { panic!() };
    assert!(extents.iter().all(|extent| matches!(extent, Extent::Blocks { .. })), "{extents:?}");
}

/// Also where they wait until cleaning has made room.
#[test]
fn writes_taken_in_before_an_erase_find_their_space() {
    let disk = SimDisk::new(1);
    let tight = CreateOptions { segments: Some(30), ..create_options(UnitKind::Plain) };
    Store::create_on(Box::new(disk.backend(true)), &tight).unwrap();
    let mut store = open_slowly(&disk);
    fill(&mut store);
    let (mut done, cleaned) = (Vec::new(), store.stats().cleaned_bytes);
    for at in 0..BLOCKS {
        let lba = Lba(at * 37 % BLOCKS);
        store.submit(
            Token(at),
            Op::Write { lba, data: vec![block_of(3)], records: Vec::new(), fua: false, origin: None },
        );
    }
    store.submit(Token(BLOCKS), Op::Erase);
    while done.len() <= BLOCKS as usize {
        store.poll_completions(&mut done);
        for answer in &done {
            assert!(answer.result.is_ok(), "{answer:?}: {:?}", store.stats());
        }
    }
    assert!(store.stats().cleaned_bytes > cleaned, "space had to be made");
    assert!(reads_zeros(&mut store));
}

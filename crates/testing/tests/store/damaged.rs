//! Proves that damage to the part of the log that opening replays refuses the volume only unless it is asked for: opened read-only, every
//! block is as it was last written, or among those that the store says may be missing or old.

use std::collections::BTreeSet;
use std::sync::Arc;

use strongroom_block::{BlockSize, Buffer, Geometry, Lba, VolumeId};
use strongroom_store::{
    CreateOptions, DamageReport, Extent, Op, OpError, OpenOptions, Outcome, Store, StoreError, UnitKind, View,
};
use strongroom_testing::{SimDisk, block_bytes};

const BLOCKS: u64 = 96;

fn create() -> CreateOptions {
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain) }
}

fn options(read_only_if_damaged: bool) -> OpenOptions {
    // Without a checkpoint opening needs every record block.
    OpenOptions { checkpoint_log_bytes: Some(1 << 40), read_only_if_damaged, ..OpenOptions::default() }
}

fn open(disk: &SimDisk, read_only_if_damaged: bool) -> Result<Store, StoreError> {
    Store::open_on(Box::new(disk.backend(true)), &options(read_only_if_damaged), Arc::new(|| {}))
}

fn write(store: &mut Store, op: u64, lba: u64) -> Result<Outcome, OpError> {
    let data = vec![Buffer::copy_from(&block_bytes(op, lba, BlockSize::DEFAULT))];
    store.execute(Op::Write { lba: Lba(lba), data, records: Vec::new(), fua: false, origin: None })
}

/// Which operation wrote each block last; 0: none, it is a hole.
fn fill(store: &mut Store) -> Vec<u64> {
    let mut newest = vec![0; BLOCKS as usize];
    for op in 1..5 {
        for lba in (0..BLOCKS).filter(|lba| lba % op == 0) {
            write(store, op, lba).unwrap();
            newest[lba as usize] = op;
        }
        store.execute(Op::Discard { lba: Lba(10 * op), count: 2 }).unwrap();
        newest[10 * op as usize..10 * op as usize + 2].fill(0);
    }
    store.execute(Op::Flush).unwrap();
    newest
}

/// Whether a block reads as this operation wrote it.
fn reads_as(store: &mut Store, lba: u64, op: u64) -> bool {
    match store.execute(Op::Read { lba: Lba(lba), count: 1 }) {
        Ok(Outcome::Read(extents)) => match &extents[0] {
            Extent::Blocks { data, .. } => op != 0 && data[..] == block_bytes(op, lba, BlockSize::DEFAULT)[..],
            Extent::Hole { .. } => op == 0,
        },
        other => panic!("block {lba} is not read: {other:?}"),
    }
}

fn suspects(store: &Store) -> BTreeSet<u64> {
    let (mut all, mut from) = (BTreeSet::new(), Some(Lba(0)));
    while let Some(at) = from {
        let (run, next) = store.index().suspect_blocks(View::default(), at);
        all.extend(run.into_iter().flat_map(|(first, count)| first.0..first.0 + count));
        assert!(next.is_none_or(|next| next > at), "it goes on");
        from = next;
    }
    all
}

/// Offsets of everything that the log holds.
fn pages(disk: &SimDisk) -> Vec<(u64, Vec<u8>)> {
    let mut page = vec![0; 4096];
    (0..4096)
        .filter_map(|at| {
            disk.read(at * 4096, &mut page);
            page.iter().any(|&byte| byte != 0).then(|| (at * 4096, page.clone()))
        })
        .collect()
}

fn copy(pages: &[(u64, Vec<u8>)]) -> SimDisk {
    let disk = SimDisk::new(7);
    pages.iter().for_each(|(at, page)| disk.overwrite(*at, page));
    disk
}

#[test]
fn rot_anywhere_in_the_replayed_log_costs_only_what_is_told() {
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &create()).unwrap();
    open(&disk, false).unwrap().close().unwrap();
    let mut store = open(&disk, false).unwrap();
    let newest = fill(&mut store);
    drop(store);
    disk.crash();
    let pages = pages(&disk);
    let (mut refused, mut read_only, mut fewest) = (0, 0, BLOCKS as usize);
    for at in pages.iter().filter(|(_, page)| page[..4] == *b"SRrb").map(|&(at, _)| at) {
        let damaged = copy(&pages);
        damaged.flip(at + 200, 3);
        let Err(refusal) = open(&damaged, false) else { continue };
        refused += 1;
        let mut store = match open(&damaged, true) {
            Ok(store) => store,
            Err(error) => {
                assert!(error.to_string().contains("segment table"), "byte {at}: {error}");
                continue;
            }
        };
        read_only += 1;
        assert!(store.damage().is_some_and(|damage| !damage.places.is_empty()), "byte {at}");
        assert_eq!(write(&mut store, 9, 0), Err(OpError::ReadOnly));
        let suspects = suspects(&store);
        fewest = fewest.min(suspects.len());
        for lba in (0..BLOCKS).filter(|lba| !suspects.contains(lba)) {
            assert!(reads_as(&mut store, lba, newest[lba as usize]), "byte {at}: block {lba} is older, and not named");
        }
        store.idle();
        store.close().unwrap();
        let Err(again) = open(&damaged, false) else { panic!("byte {at}: reading changed the store") };
        assert_eq!(again.to_string(), refusal.to_string());
    }
    assert!(refused >= 10 && read_only >= 10, "{refused} refused, {read_only} of them read-only");
    assert!(fewest < BLOCKS as usize, "of early damage some blocks are known to be newer");
}

#[test]
fn a_store_without_damage_is_opened_as_ever() {
    let disk = SimDisk::new(1);
    Store::create_on(Box::new(disk.backend(true)), &create()).unwrap();
    let mut store = open(&disk, true).unwrap();
    assert!(store.damage().is_none() && suspects(&store).is_empty());
    write(&mut store, 1, 5).unwrap();
    store.close().unwrap();
}

#[test]
fn damage_is_told_of_a_store_in_a_directory() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    Store::create(&path, &create()).unwrap();
    let mut store = Store::open(&path, &options(false), Arc::new(|| {})).unwrap();
    let newest = fill(&mut store);
    drop(store);
    assert!(DamageReport::of(&path, 9).unwrap().damage.is_none());
    let log = std::fs::OpenOptions::new().read(true).write(true).open(path.join("log")).unwrap();
    let mut page = [0; 4096];
    let holds = |at: u64, page: &mut [u8; 4096]| log.read_exact_at(page, at).is_ok() && page[..4] == *b"SRrb";
    let records: Vec<u64> = (256..2048).map(|at| at * 4096).filter(|&at| holds(at, &mut page)).collect();
    // One that opening needs.
    let refuses = records.into_iter().find(|&at| {
        let mut before = [0; 64];
        log.read_exact_at(&mut before, at + 300).unwrap();
        log.write_all_at(&[0xff; 64], at + 300).unwrap();
        // Looked at without opening: that would write.
        let is_needed = !DamageReport::of(&path, 9).is_ok_and(|report| report.damage.is_none());
        if !is_needed {
            log.write_all_at(&before, at + 300).unwrap();
        }
        is_needed
    });
    assert!(refuses.is_some(), "opening needs some record blocks");
    assert!(Store::open(&path, &options(false), Arc::new(|| {})).is_err());
    let report = DamageReport::of(&path, 9).unwrap();
    assert!(!report.damage.places.is_empty(), "{report:?}");
    let [volume] = &report.suspects[..] else { panic!("{report:?}") };
    assert!(volume.of == "volume" && volume.blocks > 0 && volume.blocks_total == BLOCKS, "{report:?}");
    let mut store = Store::open(&path, &options(true), Arc::new(|| {})).unwrap();
    let sure = (0..BLOCKS).find(|&lba| !suspects(&store).contains(&lba));
    assert!(sure.is_none_or(|lba| reads_as(&mut store, lba, newest[lba as usize])));
}

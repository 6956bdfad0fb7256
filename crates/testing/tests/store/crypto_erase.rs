//! Proves the order of a cryptographic erase: the key goes only when nothing can bring the store back, and the store forgets only
//! when the key is gone; also after crashes in between.

use std::sync::Arc;

use strongroom_block::{
    BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealRecord, SealingDomain, Token, VolumeId,
};
use strongroom_store::{Completion, CreateOptions, Op, OpError, OpenOptions, Outcome, Store, UnitKind};
use strongroom_testing::{SimDisk, record_for};

const BLOCKS: u64 = 64;
const ERASE: Token = Token(1);
/// In every block that the tests write.
const SECRET: &[u8; 16] = b"attack at dawn!!";

fn record(op: u64, bytes: Option<&[u8]>) -> SealRecord {
    record_for(op, 0, bytes).with_block_key(&[op as u8; 40])
}

/// A formatted volume of custody `target`, with data.
fn written(seed: u64) -> SimDisk {
    let kind = UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::Target };
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
    let create = CreateOptions { segment_bytes: 64 << 10, ..CreateOptions::new(VolumeId([1; 16]), geometry, kind) };
    let disk = SimDisk::new(seed);
    Store::create_on(Box::new(disk.backend(true)), &create).unwrap();
    let mut store = open(&disk);
    let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record(1, None) };
    store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap();
    for lba in 0..BLOCKS {
        let data = Buffer::copy_from(&SECRET.repeat(256));
        let records = vec![record(2 + lba, Some(&data))];
        store.execute(Op::Write { lba: Lba(lba), data: vec![data], records, fua: false, origin: None }).unwrap();
    }
    store.close().unwrap();
    disk
}

fn open(disk: &SimDisk) -> Store {
    Store::open_on(Box::new(disk.backend(true)), &OpenOptions::default(), Arc::new(|| {})).unwrap()
}

fn read(store: &mut Store) -> Result<Outcome, OpError> {
    store.execute(Op::Read { lba: Lba(0), count: BLOCKS as u32 })
}

/// Polls until it waits for the key, has ended, or nothing happens any more.
fn until_key(store: &mut Store) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..1000 {
        store.poll_completions(&mut done);
        if store.erase_awaits_key() || !done.is_empty() {
            break;
        }
    }
    done
}

fn until_done(store: &mut Store) -> Result<Outcome, OpError> {
    let mut done = Vec::new();
    for _ in 0..100_000 {
        store.poll_completions(&mut done);
        if let Some(completion) = done.pop() {
            assert_eq!(completion.token, ERASE);
            return completion.result;
        }
    }
    panic!("it does not end")
}

fn holds_secret(disk: &SimDisk) -> bool {
    let mut bytes = vec![0; 4 << 20];
    disk.read(1 << 20, &mut bytes);
    bytes.chunks_exact(16).any(|chunk| chunk == SECRET)
}

#[test]
fn everything_is_forgotten_when_the_key_is_gone_and_not_before() {
    for destroyed in [true, false] {
        let disk = written(1);
        let mut store = open(&disk);
        store.submit(ERASE, Op::CryptoErase);
        assert!(until_key(&mut store).is_empty() && store.erase_awaits_key() && store.erase_is_certain());
        // It waits, as long as it takes.
        assert!(until_key(&mut store).is_empty());
        assert_eq!(read(&mut store), Err(OpError::Erasing));
        let ios = disk.ios();
        store.key_destroyed(destroyed);
        assert_eq!(until_done(&mut store), Ok(Outcome::Changed));
        assert!(matches!(read(&mut store), Err(OpError::NotFormatted { lba: Lba(0) })));
        assert_eq!(store.stats().blocks_mapped, 0);
        if !destroyed {
            assert!(!holds_secret(&disk), "what the key still opens is overwritten");
        }
        println!("{} I/Os", disk.ios() - ios);
        // Said to nobody, it does nothing.
        store.key_destroyed(true);
        store.close().unwrap();
        let mut store = open(&disk);
        assert!(store.erase_progress().is_none());
        assert!(matches!(read(&mut store), Err(OpError::NotFormatted { .. })));
    }
}

/// Stops at every I/O in turn. If the key is gone, nothing of what it wrapped is served again; as long as it is not, the volume is as it
/// was, or an erase goes on that overwrites everything.
#[test]
fn sim_a_crash_never_leaves_the_data_without_its_key_nor_the_erase_half_done() {
    let (mut kept, mut went_on, mut gone) = (0, 0, 0);
    for ios in 0.. {
        let disk = written(ios + 7);
        let mut store = open(&disk);
        disk.cut_off_after(ios);
        store.submit(ERASE, Op::CryptoErase);
        let ended = until_key(&mut store);
        let key_is_gone = store.erase_awaits_key();
        let mut finished = false;
        if key_is_gone {
            assert!(ended.is_empty());
            store.key_destroyed(true);
            finished = until_done(&mut store).is_ok();
        }
        let cut_off = disk.is_cut_off();
        drop(store);
        disk.crash();
        let mut store = open(&disk);
        if store.erase_progress().is_some() {
            assert!(!finished);
            went_on += 1;
            for _ in 0..100_000 {
                store.poll_completions(&mut Vec::new());
            }
            assert!(store.erase_progress().is_none(), "it ends");
            assert!(!holds_secret(&disk), "what was cut short is overwritten");
        } else if !key_is_gone {
            assert!(read(&mut store).is_ok(), "nothing has happened");
            kept += 1;
            assert!(cut_off);
            continue;
        }
        gone += u32::from(key_is_gone);
        assert!(matches!(read(&mut store), Err(OpError::NotFormatted { .. })));
        if !cut_off {
            break;
        }
    }
    assert!(kept > 1 && went_on > 3 && gone > 3, "{kept} kept, {went_on} went on, {gone} without a key");
}

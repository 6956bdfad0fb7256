//! How long a store takes to open after a crash: a thin 1 TiB volume of 4 KiB blocks, millions of them mapped at random.
//!
//! The blocks hold zeros, which are left out of the file (a hole of a file reads as zeros): so it takes the disk space of the
//! records and checkpoints, and everything that opening reads is there. The store is dropped as it is, never closed. It is
//! opened as it is then, and with as much log after its checkpoint as there can be: blocks are overwritten one at a
//! time until the next checkpoint would be due. Every opening begins with an empty page cache, reads as a target would, and must
//! find every block.

use std::fs::OpenOptions as FileOptions;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{BlockSize, Buffer, BufferMut, Geometry, Lba, Token, VolumeId};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{CreateOptions, Extent, FileBackend, Op, OpenOptions, Outcome, Store, UnitKind, Waker};

use super::table::{Goal, Table, median};

/// Requests in flight.
const DEPTH: u64 = 256;
/// How many times its own size the log grows before the next checkpoint, at most.
const LOG_PER_CHECKPOINT: u64 = 32;
/// How many times each is opened.
const OPENINGS: usize = 3;
/// What is to be reached, in seconds.
const SECONDS_MAX: f64 = 5.0;

/// A file in which what is zeros stays a hole: for writing a volume that the disk has no room for.
struct Thin(FileBackend);

impl Backend for Thin {
    fn set_waker(&mut self, waker: Waker) {
        self.0.set_waker(waker);
    }
    fn submit(&mut self, token: u64, io: Io) {
        let io = match io {
            Io::Write { offset, mut buffers } => {
                // Records first, then data.
                let told = buffers.iter().take_while(|buffer| buffer.iter().any(|&byte| byte != 0)).count();
                buffers.truncate(told);
                Io::Write { offset, buffers }
            }
            // What lay there before must not show where zeros are not written.
            Io::Allocate { offset, len } => Io::Discard { offset, len },
            other => other,
        };
        self.0.submit(token, io);
    }
    fn data_from(&mut self, from: u64) -> Option<std::ops::Range<u64>> {
        self.0.data_from(from)
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.0.poll(done)
    }
    fn wait(&mut self) {
        self.0.wait();
    }
}

fn open_thin(dir: &Path) -> Store {
    let file = FileOptions::new().read(true).write(true).open(dir.join("log")).expect("the log is there");
    let backend = Thin(FileBackend::new(file).expect("the log opens"));
    Store::open_on(Box::new(backend), &OpenOptions::default(), Arc::new(|| {})).expect("the store opens")
}

/// As a target opens it.
fn open(dir: &Path) -> Store {
    Store::open(dir, &OpenOptions::default(), Arc::new(|| {})).expect("the store opens")
}

/// Where the block with this number goes: an odd multiplier makes it every block once, in no order.
fn lba_of(number: u64, blocks: u64) -> Lba {
    Lba((number + 1).wrapping_mul(0x9e37_79b1).wrapping_mul(0x00c2_b2ae_3d27_d4eb) % blocks)
}

/// Writes block after block, the first `blocks` again and again, `depth` at a time, as long as there is `more`.
fn write(store: &mut Store, blocks: u64, data: &Buffer, depth: u64, more: impl Fn(&Store, u64) -> bool) {
    let (mut done, mut sent, mut completed) = (Vec::new(), 0, 0);
    let all = store.info().geometry.blocks;
    while completed < sent || more(store, sent) {
        while sent - completed < depth && more(store, sent) {
            let lba = lba_of(sent % blocks, all);
            let write = Op::Write { lba, data: vec![data.clone()], records: Vec::new(), fua: false, origin: None };
            store.submit(Token(sent), write);
            sent += 1;
        }
        store.poll_completions(&mut done);
        completed += done.len() as u64;
        for completion in done.drain(..) {
            completion.result.expect("it is written");
        }
    }
}

/// User and system time of this process so far, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in brackets");
    let ticks: Vec<u64> = fields.split_whitespace().skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    ticks.iter().sum::<u64>() as f64 / 100.0
}

fn log_bytes(store: &Store) -> u64 {
    let stats = store.stats();
    stats.appended_bytes + stats.table_bytes
}

/// Opens it some times, and adds a line.
fn open_again(dir: &Path, blocks: u64, what: &str, log: String, table: &mut Table) {
    let (mut wall, mut cpu, mut how) = (Vec::new(), Vec::new(), String::new());
    for _ in 0..OPENINGS {
        let (begun, cpu_before) = (Instant::now(), cpu_seconds());
        let mut store = open(dir);
        wall.push(begun.elapsed().as_secs_f64());
        cpu.push(cpu_seconds() - cpu_before);
        let stats = store.stats();
        assert_eq!(stats.blocks_mapped, blocks, "every block is there");
        for number in (0..blocks).step_by(997) {
            let lba = lba_of(number, store.info().geometry.blocks);
            let Ok(Outcome::Read(extents)) = store.execute(Op::Read { lba, count: 1 }) else {
                panic!("{lba:?} is read")
            };
            assert!(matches!(extents[..], [Extent::Blocks { .. }]), "{lba:?} was written");
        }
        let from = if stats.opened_from_checkpoint { "from a checkpoint" } else { "from the whole log" };
        how = format!("{}, {from}, index of {} MiB, ", store.io_kind(), stats.index_bytes >> 20);
    }
    let what = format!("opening after a crash, {blocks} blocks of a thin TiB, {what}");
    let cpu = format!("{how}{:.2} s CPU", median(cpu));
    table.row(&what, cpu, log, (median(wall), " s"), Goal::AtMost(SECONDS_MAX));
}

/// Writes, crashes, opens.
pub(crate) fn measure(work: &Path, blocks: u64, table: &mut Table) {
    let dir = work.join("strongroom-bench-opening");
    let _ = std::fs::remove_dir_all(&dir);
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 1 << 28 };
    Store::create(&dir, &CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)).expect("the store is made");
    let mut store = open_thin(&dir);
    let zeros: Buffer = BufferMut::zeroed(4096).freeze();
    write(&mut store, blocks, &zeros, DEPTH, |_, sent| sent < blocks);
    store.execute(Op::Flush).expect("it is flushed");
    let log = format!("{} MiB of log in all", log_bytes(&store) >> 20);
    drop(store);
    open_again(&dir, blocks, "as written", log, table);

    // A checkpoint; then none for as long as the rules allow.
    let mut store = open_thin(&dir);
    let before = store.stats();
    // Zeros would be left out of what is read.
    let data: Buffer = BufferMut::copy_from(&[0xa5; 4096]).freeze();
    write(&mut store, blocks, &data, 1, |store, _| store.stats().checkpoints == before.checkpoints);
    let (checkpoint, begun) = (store.stats().checkpoint_bytes - before.checkpoint_bytes, log_bytes(&store));
    let next = LOG_PER_CHECKPOINT * checkpoint;
    write(&mut store, blocks, &data, 1, |store, _| log_bytes(store) - begun < next - next / 32);
    store.execute(Op::Flush).expect("it is flushed");
    let log =
        format!("{} MiB of log after a checkpoint of {} MiB", (log_bytes(&store) - begun) >> 20, checkpoint >> 20);
    drop(store);
    open_again(&dir, blocks, "the longest log after a checkpoint", log, table);
    std::fs::remove_dir_all(&dir).expect("the store is removed again");
}

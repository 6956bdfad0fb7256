//! How long a store takes to open after a crash: a thin 1 TiB volume of 4 KiB blocks, ten million of them mapped at random.
//!
//! `cargo run --release -p strongroom-store --example bench-open -- DIR [BLOCKS]`
//!
//! The blocks hold zeros, which are left out of the file (a hole of a file reads as zeros): so it takes the disk space of the
//! records and checkpoints, and everything that opening reads is there. The store is dropped as it is, never closed.

use std::fs::OpenOptions as FileOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{BlockSize, Buffer, BufferMut, Geometry, Lba, Token, VolumeId};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{CreateOptions, FileBackend, Op, OpenOptions, Store, UnitKind, Waker};

/// Requests in flight.
const DEPTH: u64 = 32;

/// A file in which what is zeros stays a hole.
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
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.0.poll(done)
    }
    fn wait(&mut self) {
        self.0.wait();
    }
}

fn open(dir: &std::path::Path) -> Store {
    let file = FileOptions::new().read(true).write(true).open(dir.join("log")).expect("the log is there");
    let backend = Thin(FileBackend::new(file).expect("the log opens"));
    Store::open_on(Box::new(backend), &OpenOptions::default(), Arc::new(|| {})).expect("the store opens")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().expect("usage: bench-open DIR [BLOCKS]")).join("bench-open");
    let blocks: u64 = arguments.next().map_or(10_000_000, |text| text.parse().expect("a number of blocks"));
    let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 1 << 28 };
    Store::create(&dir, &CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)).expect("the store is made");
    let mut store = open(&dir);
    let data: Buffer = BufferMut::zeroed(4096).freeze();
    let begun = Instant::now();
    let (mut random, mut done, mut sent, mut completed) = (1u64, Vec::new(), 0, 0);
    while completed < blocks {
        while sent < blocks && sent - completed < DEPTH {
            // An odd multiplier: every block once, in no order.
            random = random.wrapping_add(0x9e37_79b1);
            let lba = Lba((random.wrapping_mul(0x00c2_b2ae_3d27_d4eb)) % geometry.blocks);
            store.submit(Token(sent), Op::Write { lba, data: vec![data.clone()], records: Vec::new(), fua: false });
            sent += 1;
        }
        store.poll_completions(&mut done);
        completed += done.len() as u64;
        for completion in done.drain(..) {
            completion.result.expect("it is written");
        }
    }
    store.execute(Op::Flush).expect("it is flushed");
    let stats = store.stats();
    println!(
        "wrote {blocks} blocks in {:.1} s: {} mapped, {} MiB of log, {} checkpoints of {} MiB in all",
        begun.elapsed().as_secs_f64(),
        stats.blocks_mapped,
        (stats.appended_bytes + stats.table_bytes) >> 20,
        stats.checkpoints,
        stats.checkpoint_bytes >> 20,
    );
    drop(store);
    for _ in 0..3 {
        let begun = Instant::now();
        let store = open(&dir);
        println!(
            "opened in {:.2} s, {}; {} blocks mapped, index of {} MiB",
            begun.elapsed().as_secs_f64(),
            if store.stats().opened_from_checkpoint { "from a checkpoint" } else { "reading the whole log" },
            store.stats().blocks_mapped,
            store.stats().index_bytes >> 20,
        );
    }
    std::fs::remove_dir_all(&dir).expect("the store is removed again");
}

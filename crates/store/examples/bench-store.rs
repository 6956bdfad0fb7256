//! Microseconds per 4 KiB operation of the store alone, one thread, in memory or on a directory.
//!
//! `cargo run --release -p strongroom-store --example bench-store [DIR]`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{AttachId, Mode, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum};
use strongroom_block::{BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, SealingDomain, Token, VolumeId};
use strongroom_store::backend::{Backend, Io, IoDone};
use strongroom_store::{CreateOptions, MemoryBackend, Op, OpenOptions, Store, UnitKind, Waker};

const BLOCKS: u64 = 128 << 10;
const DEPTH: u64 = 32;

/// A memory backend that is made before and used after.
#[derive(Clone, Default)]
struct Shared(Arc<std::sync::Mutex<MemoryBackend>>);

impl Backend for Shared {
    fn set_waker(&mut self, _waker: Waker) {}
    fn submit(&mut self, token: u64, io: Io) {
        self.0.lock().expect("one thread").submit(token, io);
    }
    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        self.0.lock().expect("one thread").poll(done)
    }
    fn wait(&mut self) {}
}

fn record(counter: u64, data: Option<&[u8]>) -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([0x44; 16]), counter };
    let (flags, sum) = data.map_or((RecordFlags::HOLE, 0), |data| (0, keyless_checksum(data)));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0x55; 16])
}

fn main() {
    let dir = std::env::args().nth(1).map(PathBuf::from);
    let sealed = UnitKind::Sealed { domain: SealingDomain([1; 16]), custody: Custody::KeyFile };
    for (name, kind) in [("plain", UnitKind::Plain), ("sealed", sealed)] {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
        let options = CreateOptions::new(VolumeId([1; 16]), geometry, kind);
        let waker: Waker = Arc::new(|| {});
        let mut store = match &dir {
            Some(dir) => {
                let dir = dir.join(name);
                Store::create(&dir, &options).expect("the store is made");
                Store::open(&dir, &OpenOptions::default(), waker).expect("the store opens")
            }
            None => {
                let backend = Shared::default();
                Store::create_on(Box::new(backend.clone()), &options).expect("the store is made");
                Store::open_on(Box::new(backend), &OpenOptions::default(), waker).expect("the store opens")
            }
        };
        if kind.is_sealed() {
            let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record(0, None) };
            store.execute(Op::Hole { holes: vec![hole] }).expect("formatted");
        }
        let data = Buffer::copy_from(&[7; 4096]);
        let mut counter = 0;
        let mut write = |lba: u64| {
            counter += 1;
            let records = if kind.is_sealed() { vec![record(counter, Some(&data))] } else { Vec::new() };
            Op::Write { lba: Lba(lba), data: vec![data.clone()], records, fua: false }
        };
        let random = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 & (BLOCKS - 1);
        measure(name, "fill", &mut store, BLOCKS, &mut write);
        measure(name, "random write", &mut store, 2 * BLOCKS, |at| write(random(at)));
        measure(name, "random read", &mut store, BLOCKS, |at| Op::Read { lba: Lba(random(at)), count: 1 });
        let stats = store.stats();
        let log = stats.appended_bytes + stats.cleaned_bytes + stats.table_bytes;
        println!("{name}: write amplification {:.2}, {stats:?}", log as f64 / stats.written_bytes as f64);
        store.close().expect("the store closes");
    }
}

fn measure(kind: &str, what: &str, store: &mut Store, count: u64, mut op: impl FnMut(u64) -> Op) {
    let start = Instant::now();
    let mut done = Vec::new();
    for at in (0..count).step_by(DEPTH as usize) {
        for token in 0..DEPTH {
            store.submit(Token(token), op(at + token));
        }
        done.clear();
        while done.len() < DEPTH as usize {
            store.poll_completions(&mut done);
        }
        assert!(done.iter().all(|completion| completion.result.is_ok()), "{:?}", done[0].result);
    }
    println!("{kind} {what}: {:.2} us per block", start.elapsed().as_secs_f64() * 1e6 / count as f64);
}

//! Load on a store: a number of requests in flight for a time, from one thread, with what they cost.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{
    AttachId, BlockSize, Buffer, Custody, Geometry, HoleRecord, Lba, Mode, RecordFlags, SealRecord,
};
use strongroom_block::{SealingDomain, Stamp, Suite, Token, VolumeId, keyless_checksum};
use strongroom_store::{CreateOptions, Medium, Op, OpenOptions, Origin, Store, UnitKind};

use super::table::{Goal, Table};

pub(crate) const BLOCK: usize = 4096;
const DEPTH: usize = 32;
/// Who writes to a sealed store.
const WRITER: AttachId = AttachId([0x44; 16]);
/// What accompanies a plain block: its checksum.
const PLAIN_ITEM_BYTES: u64 = 8;
/// What the store may cache of data: a volume is at least four times as large.
pub(crate) const DATA_CACHE_BYTES: usize = 32 << 20;

/// Plain, or sealed with records that nobody could open: the store does not look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Sealed,
}

/// What is asked of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) write: bool,
    pub(crate) random: bool,
    pub(crate) blocks: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) ops_per_s: f64,
    /// User and system time of this thread.
    pub(crate) cpu_us_per_op: f64,
}

/// A store under load.
pub(crate) struct Load {
    pub(crate) store: Store,
    kind: Kind,
    blocks: u64,
    counter: u64,
    random: u64,
    data: Buffer,
    /// Checksums of its blocks: making them is the initiator's work.
    sums: [u64; 16],
    next: u64,
}

fn record(counter: u64, sum: Option<u64>) -> SealRecord {
    let stamp = Stamp { attach_id: WRITER, counter };
    let (flags, sum) = sum.map_or((RecordFlags::HOLE, 0), |sum| (0, sum));
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 0, stamp, sum, [0x55; 16])
}

impl Kind {
    pub(crate) fn options(self, blocks: u64) -> CreateOptions {
        let kind = match self {
            Kind::Plain => UnitKind::Plain,
            Kind::Sealed => UnitKind::Sealed { domain: SealingDomain([1; 16]), custody: Custody::KeyFile },
        };
        CreateOptions::new(VolumeId([1; 16]), Geometry { block_size: BlockSize::DEFAULT, blocks }, kind)
    }
}

impl Load {
    /// A new store in memory.
    pub(crate) fn in_memory(kind: Kind, blocks: u64, segment_bytes: u32) -> Load {
        Load::in_memory_with(kind, blocks, CreateOptions { segment_bytes, ..kind.options(blocks) })
    }

    /// The same with so few segments that the whole volume, its records and all the versions that it retains fill `live_percent` of
    /// them, the reserved ones counted.
    pub(crate) fn in_memory_filled(kind: Kind, blocks: u64, segment_bytes: u32, live_percent: u64) -> Load {
        let options = kind.options(blocks);
        let (retained, item_bytes) = match kind {
            Kind::Plain => (0, PLAIN_ITEM_BYTES),
            Kind::Sealed => {
                ((blocks * u64::from(options.retention_percent)).div_ceil(100), options.kind.record_bytes() as u64)
            }
        };
        let live = (blocks + retained) * (BLOCK as u64 + item_bytes);
        let segments = (live * 100).div_ceil(live_percent * u64::from(segment_bytes)) as u32;
        Load::in_memory_with(kind, blocks, CreateOptions { segment_bytes, segments: Some(segments), ..options })
    }

    fn in_memory_with(kind: Kind, blocks: u64, options: CreateOptions) -> Load {
        let options = CreateOptions { medium: Medium::Memory, ..options };
        let store = Store::open_in_memory(&options, &OpenOptions::default(), Arc::new(|| {})).expect("it opens");
        let mut load = Load::on(store, kind, blocks);
        load.register();
        load.format();
        load
    }

    /// A store in a directory, made if it is not there, with so much space for cleaning.
    pub(crate) fn in_dir(dir: &Path, kind: Kind, blocks: u64, spare_percent: u16, options: &OpenOptions) -> Load {
        let fresh = !Store::exists(dir);
        if fresh {
            Store::create(dir, &CreateOptions { spare_percent, ..kind.options(blocks) }).expect("the store is made");
        }
        let store = Store::open(dir, options, Arc::new(|| {})).expect("the store opens");
        let mut load = Load::on(store, kind, blocks);
        load.register();
        if fresh {
            load.format();
        }
        load
    }

    fn on(mut store: Store, kind: Kind, blocks: u64) -> Load {
        // This thread waits for the store by itself: no thread has to wake it.
        let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
        store.signal_completions(&eventfd);
        let counter = store.info().open_epoch << 32;
        let content: Vec<u8> = (0..16 * BLOCK).map(|at| (at * 7 + at / 255) as u8).collect();
        let data = Buffer::copy_from(&content);
        let sums = std::array::from_fn(|at| keyless_checksum(&data[at * BLOCK..][..BLOCK]));
        Load { store, kind, blocks, counter, random: 0x9e37_79b9_7f4a_7c15, data, sums, next: 0 }
    }

    /// Sealed writes are operations of a registered attachment, as those of an initiator are.
    fn register(&mut self) {
        if self.kind == Kind::Sealed {
            self.store.execute(Op::RegisterAttachment { attach_id: WRITER }).expect("registered");
        }
    }

    fn format(&mut self) {
        if self.kind == Kind::Sealed {
            let hole = HoleRecord { start: Lba(0), count: self.blocks, record: record(0, None) };
            self.store.execute(Op::Hole { holes: vec![hole], origin: None }).expect("formatted");
        }
    }

    /// A number below `below` (xorshift: cheap beside what is measured).
    pub(crate) fn random_below(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// One write. The data is shared, never copied: making it is not the store's work.
    pub(crate) fn write(&mut self, lba: u64, count: u64) -> Op {
        let piece = self.data.slice(..BLOCK * count.min(16) as usize);
        let data = (0..count.div_ceil(16)).map(|_| piece.clone()).collect();
        let sealed = if self.kind == Kind::Sealed { count } else { 0 };
        let records = (0..sealed).map(|at| record(self.counter + 1 + at, Some(self.sums[at as usize % 16]))).collect();
        let operation = Stamp { attach_id: WRITER, counter: self.counter + 1 };
        let origin = (self.kind == Kind::Sealed).then_some(Origin { operation, replay: None });
        self.counter += sealed;
        Op::Write { lba: Lba(lba), data, records, fua: false, origin }
    }

    fn op(&mut self, pattern: Pattern) -> Op {
        let lba = if pattern.random {
            self.random_below(self.blocks / pattern.blocks) * pattern.blocks
        } else {
            self.next = if self.next + pattern.blocks > self.blocks { 0 } else { self.next };
            self.next += pattern.blocks;
            self.next - pattern.blocks
        };
        if pattern.write {
            self.write(lba, pattern.blocks)
        } else {
            Op::Read { lba: Lba(lba), count: pattern.blocks as u32 }
        }
    }

    /// Keeps `depth` requests in flight until `enough` says so (asked with the count of requests so far).
    pub(crate) fn run(&mut self, depth: usize, pattern: Pattern, enough: impl Fn(u64, Duration) -> bool) -> Outcome {
        self.run_ops(depth, |load| load.op(pattern), enough)
    }

    /// The same with requests from elsewhere.
    pub(crate) fn run_ops(
        &mut self,
        depth: usize,
        mut next: impl FnMut(&mut Load) -> Op,
        enough: impl Fn(u64, Duration) -> bool,
    ) -> Outcome {
        let mut done = Vec::new();
        let (mut submitted, mut completed) = (0u64, 0u64);
        let (start, cpu) = (Instant::now(), thread_cpu());
        let mut stop = false;
        while !stop || completed < submitted {
            while !stop && submitted - completed < depth as u64 {
                let op = next(self);
                self.store.submit(Token(submitted), op);
                submitted += 1;
                stop = submitted.is_multiple_of(64) && enough(submitted, start.elapsed());
            }
            if self.store.poll_completions(&mut done) == 0 {
                self.store.wait();
            }
            for completion in done.drain(..) {
                completion.result.expect("nothing fails");
                completed += 1;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let cpu = (thread_cpu() - cpu).as_secs_f64();
        Outcome { ops_per_s: completed as f64 / seconds, cpu_us_per_op: cpu * 1e6 / completed as f64 }
    }

    /// Every block once, in order.
    pub(crate) fn fill(&mut self) {
        let count = self.blocks / 64;
        self.next = 0;
        self.run(8, Pattern { write: true, random: false, blocks: 64 }, |ops, _| ops >= count);
        self.store.execute(Op::Flush).expect("flushed");
    }
}

/// Time that this thread ran, user and system.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time per 4 KiB request, in memory.
pub(crate) fn in_memory(kind: Kind, blocks: u64, ops: u64, table: &mut Table) {
    let mut load = Load::in_memory(kind, blocks, CreateOptions::SEGMENT_BYTES_DEFAULT);
    load.fill();
    for (write, depth) in [(true, DEPTH), (true, 1), (false, DEPTH), (false, 1)] {
        let pattern = Pattern { write, random: true, blocks: 1 };
        load.run(depth, pattern, |done, _| done >= ops / 4);
        let cleaned = load.store.stats().cleaned_bytes;
        let outcome = load.run(depth, pattern, |done, _| done >= ops);
        let cleaned = (load.store.stats().cleaned_bytes - cleaned) as f64 / (ops as f64 * BLOCK as f64);
        let what = format!("memory, {kind:?}, random 4 KiB {}, depth {depth}", if write { "write" } else { "read" });
        let cleaning = if write { format!("cleaning copied {cleaned:.2} per block") } else { String::new() };
        // One request at a time is a unit of the log, and so two blocks, for each.
        let goal = if depth == 1 { Goal::Reported } else { Goal::AtMost(3.0) };
        let figure = (outcome.cpu_us_per_op, " µs CPU");
        table.row(&what, format!("{:.0}/s", outcome.ops_per_s), cleaning, figure, goal);
    }
}

//! The process that gets killed: writes, discards and flushes at random on a store, and tells on standard output what it
//! submitted and what was answered, in that order.
//!
//! `crash-writer DIR SEED FIRST-OP [MEDIUM]`; see [`Medium`]. Lines: `S op lba count fua` submitted, `W op sequence` written, `H op sequence`
//! became a hole (0: was one), `P` flush submitted, `F` flush answered (of the oldest `P`), `T op` snapshot submitted, `N op snapshot` taken,
//! `D snapshot` its deletion submitted, `X op` no space.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::{Random, block_bytes, record_for};
use strongroom_block::{Buffer, HoleRecord, Lba, Token};
use strongroom_store::backend::{Backend, FileBackend, Io, IoDone};
use strongroom_store::{Completion, Op, OpError, OpenOptions, Outcome, Store, StoreError, Waker};

enum Asked {
    Write,
    Hole,
    Flush,
    Snapshot,
}

/// What the store of a crash writer lies on.
enum Medium {
    /// As the store chooses.
    Chosen,
    /// `buffered`: its file, through the page cache.
    Buffered,
    /// `without-syncs`: the same, but a sync is answered and not done. The crash test must find that.
    WithoutSyncs,
}

impl Medium {
    fn open(&self, dir: &Path, waker: Waker) -> Result<Store, StoreError> {
        let options = OpenOptions::default();
        let backend = || {
            let file = File::options().read(true).write(true).open(dir.join("log")).expect("the log is there");
            FileBackend::new(file).expect("a file that can be read")
        };
        match self {
            Medium::Chosen => Store::open(dir, &options, waker),
            Medium::Buffered => Store::open_on(Box::new(backend()), &options, waker),
            Medium::WithoutSyncs => {
                let backend = WithoutSyncs { file: backend(), left_out: Vec::new() };
                Store::open_on(Box::new(backend), &options, waker)
            }
        }
    }
}

/// A file whose syncs are answered and left out.
struct WithoutSyncs {
    file: FileBackend,
    left_out: Vec<u64>,
}

impl Backend for WithoutSyncs {
    fn set_waker(&mut self, waker: Waker) {
        self.file.set_waker(waker);
    }

    fn size_bytes(&mut self) -> io::Result<Option<u64>> {
        self.file.size_bytes()
    }

    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        self.file.grow(bytes)
    }

    fn submit(&mut self, token: u64, io: Io) {
        match io {
            Io::Sync => self.left_out.push(token),
            io => self.file.submit(token, io),
        }
    }

    fn poll(&mut self, done: &mut Vec<IoDone>) -> usize {
        let syncs = self.left_out.len();
        done.extend(self.left_out.drain(..).map(|token| IoDone { token, result: Ok(None) }));
        syncs + self.file.poll(done)
    }

    fn wait(&mut self) {
        if self.left_out.is_empty() {
            self.file.wait();
        }
    }
}

/// The whole process; see the crash test.
pub fn crash_writer() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (dir, seed, first_op, medium) = match arguments[..] {
        [dir, seed, first_op] => (dir, seed, first_op, Medium::Chosen),
        [dir, seed, first_op, "buffered"] => (dir, seed, first_op, Medium::Buffered),
        [dir, seed, first_op, "without-syncs"] => (dir, seed, first_op, Medium::WithoutSyncs),
        _ => {
            eprintln!("usage: crash-writer DIR SEED FIRST-OP [buffered|without-syncs]; the crash test starts it");
            std::process::exit(2);
        }
    };
    let (wake, woken) = channel();
    let mut store = match medium.open(dir.as_ref(), Arc::new(waker(wake))) {
        Ok(store) => store,
        Err(error) => {
            println!("E {error}");
            std::process::exit(1);
        }
    };
    let number = |text: &str| text.parse().expect("a number");
    let mut writer = Writer { random: Random::new(number(seed)), asked: HashMap::new(), next_op: number(first_op) };
    println!("O");
    let mut has_cleaned = false;
    loop {
        writer.submit(&mut store);
        if !has_cleaned && store.stats().cleaned_bytes > 0 {
            has_cleaned = true;
            tell("C\n");
        }
        let mut done = Vec::new();
        store.poll_completions(&mut done);
        while writer.asked.len() > 16 {
            writer.answered(std::mem::take(&mut done));
            let _ = woken.recv_timeout(Duration::from_millis(1));
            store.poll_completions(&mut done);
        }
        writer.answered(done);
    }
}

fn waker(wake: Sender<()>) -> impl Fn() + Send + Sync {
    move || {
        let _ = wake.send(());
    }
}

struct Writer {
    random: Random,
    asked: HashMap<u64, Asked>,
    next_op: u64,
}

impl Writer {
    fn submit(&mut self, store: &mut Store) {
        let mut lines = String::new();
        let mut requests = Vec::new();
        for _ in 0..1 + self.random.below(8) {
            let op = self.next_op;
            self.next_op += 1;
            let (asked, request) = self.something(op, store, &mut lines);
            self.asked.insert(op, asked);
            requests.push((Token(op), request));
        }
        tell(&lines);
        for (token, request) in requests {
            store.submit(token, request);
        }
    }

    fn something(&mut self, op: u64, store: &Store, lines: &mut String) -> (Asked, Op) {
        let geometry = store.info().geometry;
        let sealed = store.info().kind.is_sealed();
        let lba = self.random.below(geometry.blocks);
        let count = 1 + self.random.below(16.min(geometry.blocks - lba));
        match self.random.below(13) {
            0 => {
                lines.push_str("P\n");
                (Asked::Flush, Op::Flush)
            }
            2 if self.random.once_in(6) => (Asked::Snapshot, self.snapshot(op, store, lines)),
            1 => {
                writeln!(lines, "S {op} {lba} {count} 0").expect("strings take everything");
                if !sealed {
                    return (Asked::Hole, Op::Discard { lba: Lba(lba), count });
                }
                let hole = HoleRecord { start: Lba(lba), count, record: record_for(op, 0, None) };
                (Asked::Hole, Op::Hole { holes: vec![hole], origin: None })
            }
            _ => {
                let fua = self.random.once_in(16);
                let blocks: Vec<_> = (lba..lba + count).map(|lba| block_bytes(op, lba, geometry.block_size)).collect();
                let record = |(index, block): (usize, &Vec<u8>)| record_for(op, index as u64, Some(block));
                let records = if sealed { blocks.iter().enumerate().map(record).collect() } else { Vec::new() };
                let data = blocks.iter().map(|block| Buffer::copy_from(block)).collect();
                writeln!(lines, "S {op} {lba} {count} {}", u8::from(fua)).expect("strings take everything");
                (Asked::Write, Op::Write { lba: Lba(lba), data, records, fua, origin: None })
            }
        }
    }

    /// Takes a snapshot, or deletes the one that there is.
    fn snapshot(&mut self, op: u64, store: &Store, lines: &mut String) -> Op {
        match store.index().snapshots().first() {
            Some(info) => {
                writeln!(lines, "D {}", info.id.0).expect("strings take everything");
                Op::SnapshotDelete { id: info.id }
            }
            None => {
                writeln!(lines, "T {op}").expect("strings take everything");
                Op::SnapshotCreate { name: format!("s{op}") }
            }
        }
    }

    fn answered(&mut self, done: Vec<Completion>) {
        let mut lines = String::new();
        for Completion { token, result } in done {
            let asked = self.asked.remove(&token.0).expect("asked once, answered once");
            let outcome = match result {
                Ok(outcome) => outcome,
                // What a snapshot holds on to is not to be had, and a snapshot may be deleted twice.
                Err(OpError::NoSpace) => {
                    writeln!(lines, "X {}", token.0).expect("strings take everything");
                    continue;
                }
                Err(OpError::NoSuchView) => continue,
                Err(error) => panic!("nothing else fails on this disk: {error}"),
            };
            match (asked, outcome) {
                (Asked::Snapshot, Outcome::SnapshotCreated { id }) => writeln!(lines, "N {} {}", token.0, id.0),
                (Asked::Write, Outcome::Written { first, .. }) => writeln!(lines, "W {} {first}", token.0),
                (Asked::Hole, Outcome::Written { first, .. }) => writeln!(lines, "H {} {first}", token.0),
                (Asked::Flush, _) => writeln!(lines, "F"),
                _ => Ok(()),
            }
            .expect("strings take everything");
        }
        tell(&lines);
    }
}

fn tell(lines: &str) {
    io::stdout().write_all(lines.as_bytes()).and_then(|()| io::stdout().flush()).expect("the test listens");
}

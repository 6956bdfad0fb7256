//! Proves that a flushed write survives a crash of machine and process: the store lies on a disk that forgets what was not
//! synced, the process that writes is killed at a random moment, and everything flushed must be there afterwards.
//! Then proves that the proof is worth something: a store that leaves its syncs out must fail it.
//!
//! 20 kills; `STRONGROOM_KILLS=200` for more. Needs root (or the right to mount) and /dev/fuse.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{BlockSize, Custody, Geometry, HoleRecord, Lba, SealingDomain, VolumeId};
use strongroom_store::{CreateOptions, Op, OpenOptions, Outcome, SnapshotId, Store, UnitKind, View};
use strongroom_testing::{ForgettingDisk, Model, Random, held, record_for};

const BLOCKS: u64 = 2048;

/// Which snapshots must be there, by the writer's lines.
#[derive(Default)]
struct Promised {
    /// Of those asked for and not answered, by operation: what each block had been answered with by then.
    asked: BTreeMap<u64, Vec<u64>>,
    /// Of those answered: what it has at least, and before which operation it was taken.
    answered: BTreeMap<u64, (Vec<u64>, u64)>,
    /// Those whose deletion was submitted: they may be gone. A store lists a snapshot before it is durable, so its
    /// deletion may be submitted before its creation is answered.
    deleted: BTreeSet<u64>,
    count: u64,
}

impl Promised {
    fn asked(&mut self, op: u64, floor: Vec<u64>) {
        self.asked.insert(op, floor);
    }

    fn answered(&mut self, op: u64, snapshot: u64, before_op: u64) {
        let floor = self.asked.remove(&op).expect("asked for before");
        self.count += 1;
        if !self.deleted.contains(&snapshot) {
            self.answered.insert(snapshot, (floor, before_op));
        }
    }

    fn deleted(&mut self, snapshot: u64) {
        self.deleted.insert(snapshot);
        self.answered.remove(&snapshot);
    }
}

struct Crashes {
    random: Random,
    disk: ForgettingDisk,
    dir: PathBuf,
    model: Model,
    next_op: u64,
    flushes: u64,
    /// Kills of a writer whose store had cleaned, and openings afterwards that began at a checkpoint.
    while_cleaning: u64,
    from_checkpoints: u64,
    snapshots: Promised,
    _mount_point: tempfile::TempDir,
}

impl Crashes {
    fn new(seed: u64, kind: UnitKind) -> Crashes {
        let mount_point = tempfile::tempdir().unwrap();
        let disk = ForgettingDisk::mount(mount_point.path(), seed).expect("FUSE can be mounted");
        let dir = disk.path().join("volume");
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: BLOCKS };
        let mut options = CreateOptions::new(VolumeId([1; 16]), geometry, kind);
        options.segment_bytes = 256 << 10;
        Store::create(&dir, &options).unwrap();
        let mut sequence = 1;
        if kind.is_sealed() {
            let mut store = Store::open(&dir, &OpenOptions::default(), Arc::new(|| {})).unwrap();
            let hole = HoleRecord { start: Lba(0), count: BLOCKS, record: record_for(0, 0, None) };
            let Outcome::Written { first, .. } = store.execute(Op::Hole { holes: vec![hole], origin: None }).unwrap()
            else {
                panic!("holes are written")
            };
            sequence = first.0;
            store.close().unwrap();
        }
        let model = Model::new(BLOCKS, BlockSize::DEFAULT, sequence).of_plain(!kind.is_sealed());
        Crashes {
            random: Random::new(seed),
            disk,
            dir,
            model,
            next_op: 1,
            flushes: 0,
            while_cleaning: 0,
            from_checkpoints: 0,
            snapshots: Promised::default(),
            _mount_point: mount_point,
        }
    }

    /// Whether there was everything that a kill may come amid.
    fn have_seen_everything(&self) -> bool {
        [self.flushes, self.while_cleaning, self.from_checkpoints, self.snapshots.count].iter().all(|times| *times > 0)
    }

    /// Lets the writer run for a moment, kills it, lets the disk forget, and compares. `medium`: what its store lies on.
    fn kill(&mut self, medium: Option<&str>) {
        let seed = self.random.number();
        let mut child = Command::new(env!("CARGO_BIN_EXE_crash-writer"))
            .arg(&self.dir)
            .args([seed.to_string(), self.next_op.to_string()])
            .args(medium)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the writer starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let run_for = Duration::from_micros(500 + self.random.below(150_000));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(run_for);
            child.kill().expect("it is ours");
            child.wait().expect("it is dead");
        });
        self.listen(output);
        killer.join().expect("the writer is killed");
        if self.random.once_in(2) {
            self.disk.forget();
        } else {
            self.disk.crash();
        }
        self.compare();
    }

    fn listen(&mut self, mut output: impl BufRead) {
        let mut marks = VecDeque::new();
        self.snapshots.asked.clear(); // Of the process before.
        let mut line = String::new();
        loop {
            line.clear();
            output.read_line(&mut line).expect("text");
            // The kill may have cut the last line off, even amid a number.
            let Some(whole) = line.strip_suffix('\n') else { break };
            let mut words = whole.split(' ');
            let what = words.next().expect("a word");
            if what == "E" {
                panic!("the writer could not open the store: {whole}");
            }
            let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            match (what, &numbers[..]) {
                ("S", [op, lba, count, _]) => {
                    self.model.submitted(*op, 0, &[(*lba, *count)]);
                    self.next_op = self.next_op.max(op + 1);
                }
                ("W", [op, sequence]) => self.model.written(*op, *sequence, false),
                ("H", [op, sequence]) => self.model.holed(*op, *sequence),
                ("X", [op]) => self.model.failed(*op),
                ("T", [op]) => self.snapshots.asked(*op, self.model.floor(0, 0, BLOCKS)),
                ("N", [op, snapshot]) => self.snapshots.answered(*op, *snapshot, self.next_op),
                ("D", [snapshot]) => self.snapshots.deleted(*snapshot),
                ("P", _) => marks.push_back(self.model.flush_mark()),
                ("F", _) => {
                    self.flushes += 1;
                    self.model.flushed(marks.pop_front().expect("flushes are answered in order"));
                }
                ("C", _) => self.while_cleaning += 1,
                ("O", _) => {}
                _ => panic!("no line of the writer: {whole}"),
            }
        }
        self.next_op += 1000; // Operations of which the kill cut off the line.
    }

    fn compare(&mut self) {
        let mut store = Store::open(&self.dir, &OpenOptions::default(), Arc::new(|| {})).expect("the store opens");
        self.from_checkpoints += u64::from(store.stats().opened_from_checkpoint);
        let Outcome::Read(extents) =
            store.execute(Op::Read { lba: Lba(0), count: BLOCKS as u32 }).expect("all is read")
        else {
            panic!("reads are answered with data")
        };
        let survived = held(&extents, BlockSize::DEFAULT);
        self.model.after_crash(&BTreeMap::from([(0, survived)]), 0);
        for (id, (floor, before_op)) in &self.snapshots.answered {
            let read = Op::Read { lba: Lba(0), count: BLOCKS as u32 };
            let Ok(Outcome::Read(extents)) = store.execute_on(View::Snapshot(SnapshotId(*id)), read) else {
                panic!("snapshot {id} was answered and is gone")
            };
            self.model.check_snapshot(0, &held(&extents, BlockSize::DEFAULT), floor, *before_op);
        }
        if self.random.once_in(2) {
            store.close().unwrap();
        }
    }
}

fn kills() -> u64 {
    std::env::var("STRONGROOM_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// A kill at the wrong moment once made this test ask for a snapshot that the writer had deleted.
#[test]
fn a_snapshot_deleted_before_its_creation_is_answered_may_be_gone() {
    let mut snapshots = Promised::default();
    snapshots.asked(5, vec![10]);
    snapshots.asked(6, vec![12]);
    snapshots.deleted(77);
    snapshots.answered(5, 77, 8);
    snapshots.answered(6, 78, 9);
    assert_eq!(snapshots.answered, BTreeMap::from([(78, (vec![12], 9))]), "each with what was written before it");
    snapshots.deleted(78);
    assert!(snapshots.answered.is_empty());
}

fn sealed() -> UnitKind {
    UnitKind::Sealed { domain: SealingDomain([9; 16]), custody: Custody::KeyFile }
}

#[test]
fn nothing_flushed_is_forgotten() {
    for (seed, kind) in [(1, UnitKind::Plain), (2, sealed())] {
        let mut crashes = Crashes::new(seed, kind);
        let mut killed = 0;
        // On a slow machine more often, until what shall go on meanwhile has been seen.
        while killed < kills().div_ceil(2) || !crashes.have_seen_everything() {
            crashes.kill(None);
            killed += 1;
            assert!(
                killed < 10 * kills(),
                "the writer flushes and takes snapshots, and cleaning and checkpoints go on"
            );
        }
        assert!(crashes.next_op > 1000, "the writer wrote");
        let snapshots = crashes.snapshots.count;
        let Crashes { flushes, while_cleaning, from_checkpoints, .. } = crashes;
        println!(
            "{flushes} flushes, {snapshots} snapshots, {} syncs; {while_cleaning} killed after cleaning, {from_checkpoints} opened from a checkpoint",
            crashes.disk.syncs()
        );
    }
}

#[test]
fn a_store_without_syncs_is_found_out() {
    let mut crashes = Crashes::new(3, UnitKind::Plain);
    // On the same file with its syncs nothing is lost: it is the syncs that make the difference.
    for _ in 0..kills() {
        crashes.kill(Some("buffered"));
    }
    assert!(crashes.flushes > 0, "the writer flushes");
    let survived = catch_unwind(AssertUnwindSafe(|| {
        // On a slow machine the writer does little before it is killed.
        for _ in 0..10 * kills() {
            crashes.kill(Some("without-syncs"));
        }
    }));
    assert!(survived.is_err(), "{} kills did not show that the store leaves its syncs out", 10 * kills());
}

/// The disk itself: synced bytes stay, others go, names stay.
#[test]
fn the_disk_forgets_what_was_not_synced() {
    use std::os::unix::fs::FileExt;
    let mount_point = tempfile::tempdir().unwrap();
    let disk = ForgettingDisk::mount(mount_point.path(), 1).expect("FUSE can be mounted");
    let path = disk.path().join("file");
    let file = std::fs::File::create(&path).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_data().unwrap();
    file.write_all_at(b"unsure", 6).unwrap();
    drop(file);
    assert_eq!(std::fs::read(&path).unwrap(), b"syncedunsure");
    disk.forget();
    assert_eq!(std::fs::read(&path).unwrap(), b"synced\0\0\0\0\0\0");
    std::fs::rename(&path, disk.path().join("other")).unwrap();
    let names: Vec<_> = std::fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["other"]);
}

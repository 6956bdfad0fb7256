//! The store against fio on a raw file: the same pattern, the same file system, by turns.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use strongroom_store::{CreateOptions, OpenOptions};

use super::Plan;
use super::amplification::Traffic;
use super::load::{BLOCK, DATA_CACHE_BYTES, Kind, Load, Outcome, Pattern};
use super::table::{Goal, Table, median};

/// What is compared.
#[derive(Clone, Copy)]
struct Cell {
    what: &'static str,
    pattern: Pattern,
    /// Name of the pattern in fio.
    fio: &'static str,
    /// The record cache holds everything, or a quarter of it.
    records_cached: bool,
    goal: Goal,
}

/// Where random writes in place are not that much slower than sequential ones of the same length and depth, as much as
/// [`RANDOM_WRITE_ELSE`] is enough.
const RANDOM_WRITE: f64 = 1.5;
const RANDOM_WRITE_ELSE: f64 = 0.8;

const CELLS: [Cell; 6] = [
    Cell {
        what: "sequential write, 128 KiB",
        pattern: pattern(true, false, 32),
        fio: "write",
        records_cached: true,
        goal: Goal::AtLeast(0.9),
    },
    Cell {
        what: "sequential read, 128 KiB",
        pattern: pattern(false, false, 32),
        fio: "read",
        records_cached: true,
        goal: Goal::AtLeast(0.9),
    },
    Cell {
        what: "random write, 4 KiB",
        pattern: pattern(true, true, 1),
        fio: "randwrite",
        records_cached: true,
        goal: Goal::AtLeast(RANDOM_WRITE),
    },
    Cell {
        what: "sequential read, 128 KiB, fragmented",
        pattern: pattern(false, false, 32),
        fio: "read",
        records_cached: true,
        goal: Goal::Reported,
    },
    Cell {
        what: "random read, 4 KiB, records cached",
        pattern: pattern(false, true, 1),
        fio: "randread",
        records_cached: true,
        goal: Goal::AtLeast(0.8),
    },
    Cell {
        what: "random read, 4 KiB, beyond the record cache",
        pattern: pattern(false, true, 1),
        fio: "randread",
        records_cached: false,
        goal: Goal::AtLeast(0.45),
    },
];

const fn pattern(write: bool, random: bool, blocks: u64) -> Pattern {
    Pattern { write, random, blocks }
}

/// How many times the volume is overwritten at random before random writes are measured: cleaning takes its share only then.
const OVERWRITTEN: u64 = 2;

/// Space for cleaning of a volume for random writes, in percent of what is stored.
const SPARE_PERCENT: u16 = 100;

/// How long each works before it is the other's turn: a disk that others use as well changes its speed from one second to the next.
const TURN: Duration = Duration::from_secs(1);

/// Queue depth of every cell.
const DEPTH: usize = 32;

/// All cells, in order, round by round, each in turns with fio; who begins changes.
pub(crate) fn compare(plan: &Plan, table: &mut Table) {
    let work = plan.dir.join("strongroom-bench-store");
    std::fs::create_dir_all(&work).expect("a place to work");
    let raw = work.join("raw");
    fio(&raw, plan, "write", 128 << 10, "--rw=write --size");
    let usual = plan.spare.unwrap_or(CreateOptions::SPARE_PERCENT_DEFAULT);
    let roomy = plan.spare.is_none().then_some(SPARE_PERCENT);
    for (kind, spare) in [Kind::Plain, Kind::Sealed]
        .into_iter()
        .flat_map(|kind| [Some(usual), roomy].into_iter().flatten().map(move |spare| (kind, spare)))
    {
        // More room only makes random writes cheaper.
        let asked = |cell: &Cell| Some(spare) != roomy || cell.fio == "randwrite";
        let named = |cell: &Cell| plan.cells.as_ref().is_none_or(|part| cell.what.contains(part));
        let cells: Vec<Cell> = CELLS.into_iter().filter(|cell| asked(cell) && named(cell)).collect();
        if cells.is_empty() {
            continue;
        }
        let mut results: Vec<Vec<(Outcome, f64)>> = vec![Vec::new(); cells.len()];
        let (mut in_order, mut at_random) = (Vec::new(), Vec::new());
        let mut io = String::new();
        let mut moved = String::new();
        for round in 0..plan.rounds {
            let dir = work.join(format!("store-{round}"));
            let _ = std::fs::remove_dir_all(&dir);
            // Written once before: both write where there was something.
            Load::in_dir(&dir, kind, plan.size_mib * 256, spare, &OpenOptions::default()).fill();
            for (cell, results) in cells.iter().zip(&mut results) {
                let mut load = Load::in_dir(&dir, kind, plan.size_mib * 256, spare, &caches(plan, kind, cell));
                io = load.store.io_kind().to_string();
                let random_writes = cell.fio == "randwrite";
                if random_writes {
                    load.run(DEPTH, cell.pattern, |ops, _| ops >= OVERWRITTEN * plan.size_mib * 256);
                }
                let before = load.store.stats();
                for turn in 0..plan.seconds {
                    // A sequential write must have written everything, for the reads that follow.
                    let whole = if cell.pattern.random { 0 } else { plan.size_mib * 256 / cell.pattern.blocks };
                    let mut ours = || {
                        load.run(DEPTH, cell.pattern, |ops, elapsed| {
                            elapsed >= TURN && (!cell.pattern.write || ops >= whole)
                        })
                    };
                    results.push(if (round as u64 + turn).is_multiple_of(2) {
                        let theirs = raw_speed(&raw, plan, cell);
                        (ours(), theirs)
                    } else {
                        (ours(), raw_speed(&raw, plan, cell))
                    });
                    if random_writes {
                        at_random.push(results.last().expect("just pushed").1);
                        in_order.push(raw_speed(&raw, plan, &Cell { fio: "write", ..*cell }));
                    }
                }
                if random_writes {
                    moved = format!("; per byte {}", Traffic::between(&before, &load.store.stats()));
                }
            }
            std::fs::remove_dir_all(&dir).expect("the store is removed");
        }
        let made =
            if spare == CreateOptions::SPARE_PERCENT_DEFAULT { String::new() } else { format!(", --spare {spare}") };
        let mut random_is_slow = false;
        if !in_order.is_empty() {
            let speed = |ops: f64| format!("{:.0} MiB/s", ops * BLOCK as f64 / 1048576.0);
            let ratios = in_order.iter().zip(&at_random).map(|(in_order, at_random)| in_order / at_random).collect();
            let (in_order, at_random, slower) = (median(in_order), median(at_random), median(ratios));
            random_is_slow = slower >= RANDOM_WRITE;
            let what = format!("the medium by itself: 4 KiB writes in order, against at random, beside {kind:?}{made}");
            let parts = format!("{} in order, {} at random", speed(in_order), speed(at_random));
            table.row(&what, String::new(), parts, (slower, ""), Goal::Reported);
        }
        for (cell, results) in cells.iter().zip(results) {
            let goal = match cell.goal {
                Goal::AtLeast(RANDOM_WRITE) if !random_is_slow => Goal::AtLeast(RANDOM_WRITE_ELSE),
                goal => goal,
            };
            let ours = median(results.iter().map(|(ours, _)| ours.ops_per_s).collect());
            let theirs = median(results.iter().map(|(_, theirs)| *theirs).collect());
            let ratio = median(results.iter().map(|(ours, theirs)| ours.ops_per_s / theirs).collect());
            let cpu = median(results.iter().map(|(ours, _)| ours.cpu_us_per_op).collect());
            let speed =
                |ops: f64| format!("{:.0} MiB/s", ops * (cell.pattern.blocks * BLOCK as u64) as f64 / 1048576.0);
            let what = format!("{}{made}, {kind:?} ({io})", cell.what);
            let moved = if cell.fio == "randwrite" { &moved[..] } else { "" };
            table.row(&what, format!("{} at {cpu:.1} µs CPU{moved}", speed(ours)), speed(theirs), (ratio, ""), goal);
        }
    }
    let _ = std::fs::remove_dir_all(&work);
}

/// The volume is at least four times what is cached of data; of records, all or a quarter is cached.
fn caches(plan: &Plan, kind: Kind, cell: &Cell) -> OpenOptions {
    // Written at random a block brings 32 bytes of records, or 80.
    let records = plan.size_mib * 256 * if kind == Kind::Plain { 32 } else { 80 };
    let record_cache_bytes = if cell.records_cached { 2 * records } else { records / 4 };
    OpenOptions {
        record_cache_bytes: record_cache_bytes as usize,
        data_cache_bytes: DATA_CACHE_BYTES.min((plan.size_mib as usize / 4) << 20),
        ..OpenOptions::default()
    }
}

fn raw_speed(raw: &Path, plan: &Plan, cell: &Cell) -> f64 {
    let bytes = cell.pattern.blocks * BLOCK as u64;
    fio(raw, plan, cell.fio, bytes, &format!("--time_based --runtime={} --size", TURN.as_secs()))
}

/// Requests per second.
fn fio(raw: &Path, plan: &Plan, pattern: &str, block_bytes: u64, how: &str) -> f64 {
    let output = Command::new("fio")
        .args(["--name=raw", "--ioengine=io_uring", "--direct=1", "--minimal", "--randrepeat=0"])
        .arg(format!("--filename={}", raw.display()))
        .arg(format!("--rw={pattern}"))
        .arg(format!("--bs={block_bytes}"))
        .arg(format!("--iodepth={DEPTH}"))
        .args(format!("{how}={}m", plan.size_mib).split(' '))
        .output()
        .expect("fio is there: apt-get install fio");
    let text = String::from_utf8_lossy(&output.stdout);
    per_second(&text).unwrap_or_else(|| {
        let why = String::from_utf8_lossy(&output.stderr);
        panic!("fio did nothing; is direct I/O possible there? --dir says where. It said: {text}{why}")
    })
}

/// Requests per second, of reads and of writes, in fio's terse output (version 3).
pub(crate) fn per_second(terse: &str) -> Option<f64> {
    let line = terse.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    Some(number(7) + number(48)).filter(|&per_second| per_second > 0.0)
}

//! The store against fio on a raw file: the same pattern, the same file system, by turns.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use strongroom_store::OpenOptions;

use super::Plan;
use super::load::{BLOCK, Kind, Load, Outcome, Pattern};
use super::table::{Table, median};

/// What is compared.
#[derive(Clone, Copy)]
struct Cell {
    what: &'static str,
    pattern: Pattern,
    /// Name of the pattern in fio.
    fio: &'static str,
    /// The record cache holds everything, or a quarter of it.
    records_cached: bool,
    goal: &'static str,
}

const CELLS: [Cell; 6] = [
    Cell {
        what: "sequential write, 128 KiB",
        pattern: pattern(true, false, 32),
        fio: "write",
        records_cached: true,
        goal: "at least 0.9",
    },
    Cell {
        what: "sequential read, 128 KiB",
        pattern: pattern(false, false, 32),
        fio: "read",
        records_cached: true,
        goal: "at least 0.9",
    },
    Cell {
        what: "random write, 4 KiB",
        pattern: pattern(true, true, 1),
        fio: "randwrite",
        records_cached: true,
        goal: "at least 1.5 where random writes are slower by that much, else 0.8",
    },
    Cell {
        what: "sequential read, 128 KiB, fragmented",
        pattern: pattern(false, false, 32),
        fio: "read",
        records_cached: true,
        goal: "reported",
    },
    Cell {
        what: "random read, 4 KiB, records cached",
        pattern: pattern(false, true, 1),
        fio: "randread",
        records_cached: true,
        goal: "at least 0.8",
    },
    Cell {
        what: "random read, 4 KiB, beyond the record cache",
        pattern: pattern(false, true, 1),
        fio: "randread",
        records_cached: false,
        goal: "at least 0.45",
    },
];

const fn pattern(write: bool, random: bool, blocks: u64) -> Pattern {
    Pattern { write, random, blocks }
}

/// Queue depth of every cell.
const DEPTH: usize = 32;

/// All cells, in order, round by round; ours and fio's change places every round.
pub(crate) fn compare(plan: &Plan, table: &mut Table) {
    let work = plan.dir.join("strongroom-bench-store");
    std::fs::create_dir_all(&work).expect("a place to work");
    let raw = work.join("raw");
    fio(&raw, plan, "write", 128 << 10, "--rw=write --size");
    for kind in [Kind::Plain, Kind::Sealed] {
        let mut results: Vec<Vec<(Outcome, f64)>> = vec![Vec::new(); CELLS.len()];
        let mut io = String::new();
        for round in 0..plan.rounds {
            let dir = work.join(format!("store-{round}"));
            let _ = std::fs::remove_dir_all(&dir);
            // Written once before: both write where there was something.
            Load::in_dir(&dir, kind, plan.size_mib * 256, &OpenOptions::default()).fill();
            for (cell, results) in CELLS.iter().zip(&mut results) {
                let theirs_first = round % 2 == 0;
                let mut theirs = if theirs_first { raw_speed(&raw, plan, cell) } else { 0.0 };
                let ours = {
                    let mut load = Load::in_dir(&dir, kind, plan.size_mib * 256, &caches(plan, kind, cell));
                    io = load.store.io_kind().to_string();
                    let whole = if cell.pattern.random { 0 } else { plan.size_mib * 256 / cell.pattern.blocks };
                    let time = Duration::from_secs(plan.seconds);
                    // A sequential write must have written everything, for the reads that follow.
                    load.run(DEPTH, cell.pattern, |ops, elapsed| {
                        elapsed >= time && (!cell.pattern.write || ops >= whole)
                    })
                };
                if !theirs_first {
                    theirs = raw_speed(&raw, plan, cell);
                }
                results.push((ours, theirs));
            }
            std::fs::remove_dir_all(&dir).expect("the store is removed");
        }
        for (cell, results) in CELLS.iter().zip(results) {
            let ours = median(results.iter().map(|(ours, _)| ours.ops_per_s).collect());
            let theirs = median(results.iter().map(|(_, theirs)| *theirs).collect());
            let ratio = median(results.iter().map(|(ours, theirs)| ours.ops_per_s / theirs).collect());
            let cpu = median(results.iter().map(|(ours, _)| ours.cpu_us_per_op).collect());
            let speed =
                |ops: f64| format!("{:.0} MiB/s", ops * (cell.pattern.blocks * BLOCK as u64) as f64 / 1048576.0);
            let what = format!("{}, {kind:?} ({io})", cell.what);
            table.row(
                &what,
                format!("{} at {cpu:.1} µs CPU", speed(ours)),
                speed(theirs),
                format!("{ratio:.2}"),
                cell.goal,
            );
        }
    }
    let _ = std::fs::remove_dir_all(&work);
}

/// The volume is at least four times what is cached of data; of records, all or a quarter is cached.
fn caches(plan: &Plan, kind: Kind, cell: &Cell) -> OpenOptions {
    // Written at random a block brings 32 bytes of records, or 80.
    let records = plan.size_mib * 256 * if kind == Kind::Plain { 32 } else { 80 };
    let record_cache_bytes = if cell.records_cached { 2 * records } else { records / 4 };
    OpenOptions { record_cache_bytes: record_cache_bytes as usize, ..OpenOptions::default() }
}

fn raw_speed(raw: &Path, plan: &Plan, cell: &Cell) -> f64 {
    let bytes = cell.pattern.blocks * BLOCK as u64;
    fio(raw, plan, cell.fio, bytes, &format!("--time_based --runtime={} --size", plan.seconds))
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
    let fields: Vec<&str> = text.trim().split(';').collect();
    // Terse output, version 3: requests per second of reads, of writes.
    let number = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    let per_second = number(7) + number(48);
    assert!(per_second > 0.0, "fio: {text}{}", String::from_utf8_lossy(&output.stderr));
    per_second
}

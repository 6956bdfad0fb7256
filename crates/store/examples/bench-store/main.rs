//! `make bench-store`: the store alone against fio on a raw file of the same file system, interleaved in one run; its write
//! amplification; its processor time in memory. Prints a table and, with `--write FILE`, puts it between that document's
//! marks. Deliberately absent: the network and sealing, which `strongroom bench` measures.
//!
//! `cargo run --release -p strongroom-store --example bench-store -- [--dir DIR] [--size-mib N] [--rounds N] [--seconds N]
//! [--only io|amplification|memory] [--write FILE]`

mod amplification;
mod fio;
mod load;
mod table;

use std::path::PathBuf;

use load::Kind;
use table::Table;

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    dir: PathBuf,
    size_mib: u64,
    rounds: usize,
    seconds: u64,
    only: Option<String>,
    write: Option<PathBuf>,
}

fn plan() -> Plan {
    let mut plan = Plan { dir: std::env::temp_dir(), size_mib: 1024, rounds: 3, seconds: 3, only: None, write: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        let number = || value.parse().unwrap_or_else(|_| panic!("{word} needs a number"));
        match word.as_str() {
            "--dir" => plan.dir = value.into(),
            "--size-mib" => plan.size_mib = number(),
            "--rounds" => plan.rounds = number() as usize,
            "--seconds" => plan.seconds = number(),
            "--only" => plan.only = Some(value),
            "--write" => plan.write = Some(value.into()),
            _ => panic!("{word} is not known; see the first lines of this example's source"),
        }
    }
    plan
}

fn main() {
    let plan = plan();
    let wanted = |part: &str| plan.only.as_deref().is_none_or(|only| only == part);
    let mut table = Table::default();
    if wanted("io") {
        fio::compare(&plan, &mut table);
    }
    if wanted("amplification") {
        for kind in [Kind::Plain, Kind::Sealed] {
            for skewed in [false, true] {
                amplification::measure(kind, skewed, plan.size_mib.min(1024), &mut table);
            }
        }
    }
    if wanted("memory") {
        for kind in [Kind::Plain, Kind::Sealed] {
            load::in_memory(kind, &mut table);
        }
    }
    let text = table.to_markdown(&plan);
    println!("{text}");
    if let Some(path) = &plan.write {
        table::put(path, &text);
    }
}

//! `make bench-store`: the store alone against fio on a raw file of the same file system, interleaved in one run; its write
//! amplification; its processor time in memory; how long it takes to open after a crash. Prints a table and, with `--write FILE`, puts it between that document's
//! marks. Deliberately absent: the network and sealing, which `strongroom-lab` measures.
//!
//! `cargo run --release -p strongroom-store --example bench-store -- [--dir DIR] [--size-mib N] [--rounds N] [--seconds N]
//! [--ops N] [--mapped N] [--only io|amplification|memory|opening] [--cells PART-OF-A-NAME] [--spare PERCENT] [--write FILE]`

mod amplification;
mod fio;
mod load;
mod opening;
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
    /// Requests for each line that is of memory.
    ops: u64,
    /// Blocks of the volume that is opened.
    mapped: u64,
    /// The load average when it began.
    load: String,
    only: Option<String>,
    /// Of what is compared with fio only what has this in its name.
    cells: Option<String>,
    /// Space for cleaning of the stores that are compared with fio, in percent; `None`: the default for all, and more for one.
    spare: Option<u16>,
    write: Option<PathBuf>,
}

fn plan(mut words: impl Iterator<Item = String>) -> Plan {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut plan = Plan {
        dir: std::env::temp_dir(),
        size_mib: 1024,
        rounds: 3,
        seconds: 3,
        ops: 400_000,
        mapped: 10_000_000,
        load: load.split(' ').next().unwrap_or_default().to_owned(),
        only: None,
        cells: None,
        spare: None,
        write: None,
    };
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| panic!("{word} needs a value"));
        let number = || value.parse().unwrap_or_else(|_| panic!("{word} needs a number"));
        match word.as_str() {
            "--dir" => plan.dir = value.into(),
            "--size-mib" => plan.size_mib = number(),
            "--rounds" => plan.rounds = number() as usize,
            "--seconds" => plan.seconds = number(),
            "--ops" => plan.ops = number(),
            "--mapped" => plan.mapped = number(),
            "--only" => plan.only = Some(value),
            "--spare" => plan.spare = Some(number() as u16),
            "--cells" => plan.cells = Some(value),
            "--write" => plan.write = Some(value.into()),
            _ => panic!("{word} is not known; see the first lines of this example's source"),
        }
    }
    plan
}

fn main() {
    measure(&plan(std::env::args().skip(1)));
}

fn measure(plan: &Plan) {
    let wanted = |part: &str| plan.only.as_deref().is_none_or(|only| only == part);
    let mut table = Table::default();
    if wanted("io") {
        fio::compare(plan, &mut table);
    }
    if wanted("amplification") {
        amplification::measure_all(plan.size_mib.min(1024), &mut table);
    }
    if wanted("memory") {
        for kind in [Kind::Plain, Kind::Sealed] {
            load::in_memory(kind, plan.size_mib.min(256) * 256, plan.ops, &mut table);
        }
    }
    if wanted("opening") {
        opening::measure(&plan.dir, plan.mapped, &mut table);
    }
    let text = table.to_markdown(plan);
    println!("{text}");
    if let Some(path) = &plan.write {
        table::put(path, &text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All but fio, which needs a disk: every line is there, with its figure, and between the marks of the document.
    #[test]
    fn its_tiny_form_writes_a_table() {
        let dir = tempfile::tempdir().unwrap();
        let document = dir.path().join("performance.md");
        std::fs::write(&document, "before\n").unwrap();
        let run = |only: &str| {
            let (dir, document) = (dir.path().to_str().unwrap(), document.to_str().unwrap());
            let words = ["--dir", dir, "--size-mib", "16", "--ops", "2000", "--mapped", "30000"];
            let words = words.into_iter().chain(["--only", only, "--write", document]);
            measure(&plan(words.map(str::to_owned)));
            std::fs::read_to_string(document).unwrap()
        };
        let text = run("opening");
        assert_eq!(text.lines().filter(|line| line.starts_with("| opening after a crash, 30000")).count(), 2, "{text}");
        run("memory");
        run("amplification");
        let text = std::fs::read_to_string(&document).unwrap();
        assert!(text.starts_with("before\n") && text.matches("bench-store: begin").count() == 1, "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("| write amplification")).collect();
        assert_eq!(lines.len(), 2, "the second run replaced the first: {text}");
        for line in lines {
            let figure: f64 = line.split('|').nth(4).unwrap().trim().parse().unwrap();
            assert!((1.0..10.0).contains(&figure), "{line}");
            let live: f64 = line.split("versions are ").nth(1).unwrap().split('%').next().unwrap().parse().unwrap();
            assert!((20.0..=85.0).contains(&live), "{line}");
        }
    }

    #[test]
    fn what_is_not_reached_is_said() {
        let mut table = table::Table::default();
        table.row("one", String::new(), String::new(), (0.899, ""), table::Goal::AtLeast(0.9));
        table.row("two", String::new(), String::new(), (3.01, " µs"), table::Goal::AtMost(3.0));
        table.row("three", String::new(), String::new(), (9.0, ""), table::Goal::Reported);
        let text = table.to_markdown(&plan(std::iter::empty()));
        assert!(text.ends_with("\nNot reached: two (3.01 µs, at most 3).\n"), "{text}");
    }

    #[test]
    fn fio_is_understood() {
        let mut fields = vec!["0"; 60];
        (fields[0], fields[7], fields[48]) = ("3", "0", "25000");
        assert_eq!(fio::per_second(&format!("a warning\n{}\n", fields.join(";"))), Some(25000.0));
        assert_eq!(fio::per_second("fio: pid=1, err=22"), None);
    }
}

//! CPU profiles by stage, as Markdown: for each I/O and end a table with a column for each contender, so that it shows where one costs
//! more than another; then functions and system calls.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::summary::Spread;
use super::words;
use crate::profile::shares::EndProfile;
use crate::profile::stages::{Kind, Stage};
use crate::{Cell, Results};
use strongroom::units::long_size;

/// How many places with the largest difference are named.
const PLACES: usize = 12;
/// Smaller differences are noise, in microseconds.
const PLACE_MIN_US: f64 = 0.02;
/// How many functions are named.
const FUNCTIONS: usize = 6;
/// How much of a function's name is shown, in characters.
const FUNCTION_CHARS: usize = 60;

/// The section between the marks.
pub(crate) fn section(results: &Results) -> String {
    let mut out = String::from("## Where the time goes\n\n");
    if let Some(machine) = results.machines.first() {
        let _ = writeln!(out, "{}\n\nCommands:\n\n```", words::machine_in_words(machine));
        for machine in &results.machines {
            let _ = writeln!(out, "{}", machine.command);
        }
        out += "```\n\n";
    }
    out += "CPU microseconds for each I/O, user and system time. Medians of the runs, which interleave the contenders. How a sample is \
            given to a stage, and what a stage contains: docs/measuring.md, \"CPU profiles\". The last column is what the last contender \
            takes more than the first.\n\n";
    out + &tables(results)
}

/// Everything but the machine.
pub(crate) fn tables(results: &Results) -> String {
    let mut out = String::new();
    let profiled: Vec<&Cell> = results.cells.iter().filter(|cell| cell.profile.is_some()).collect();
    let mut groups: Vec<Vec<&Cell>> = Vec::new();
    for cell in profiled {
        match groups.iter_mut().find(|group| same_io(group[0], cell)) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    for group in &groups {
        let key = &group[0].key;
        let plural = if key.initiators == 1 { "" } else { "s" };
        let io = format!(
            "{} {}, depth {}, {} initiator{plural}",
            long_size(key.size),
            key.pattern,
            key.depth,
            key.initiators
        );
        for end in [End::Initiator, End::Target] {
            let _ = writeln!(out, "### {io}: {}\n\n{}", end.name(), Table::of(group, end).in_markdown());
        }
    }
    out
}

fn same_io(a: &Cell, b: &Cell) -> bool {
    let io = |cell: &Cell| {
        let key = &cell.key;
        (key.bench.clone(), key.pattern.clone(), key.size, key.depth, key.initiators)
    };
    io(a) == io(b)
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Initiator,
    Target,
}

impl End {
    fn name(self) -> &'static str {
        match self {
            End::Initiator => "initiator",
            End::Target => "target",
        }
    }

    fn of(self, cell: &Cell) -> Option<&EndProfile> {
        let profile = cell.profile.as_deref()?;
        Some(match self {
            End::Initiator => &profile.initiator,
            End::Target => &profile.target,
        })
    }
}

/// One I/O at one end.
struct Table<'a> {
    end: End,
    /// By contender, in the order in which they were measured.
    contenders: Vec<(&'a str, Vec<&'a Cell>)>,
}

impl<'a> Table<'a> {
    fn of(cells: &[&'a Cell], end: End) -> Table<'a> {
        let mut names: Vec<&str> = cells.iter().map(|cell| &*cell.key.contender).collect();
        // Runs begin with another contender each time; the names say the order.
        names.sort_unstable();
        names.dedup();
        let runs = |name| cells.iter().copied().filter(|cell| cell.key.contender == name).collect();
        Table { end, contenders: names.into_iter().map(|name| (name, runs(name))).collect() }
    }

    /// The median of a number over the runs of each contender.
    fn medians(&self, number: impl Fn(&Cell, &EndProfile) -> f64) -> Vec<f64> {
        let of = |cells: &Vec<&Cell>| {
            cells.iter().filter_map(|cell| Some(number(cell, self.end.of(cell)?))).collect::<Vec<_>>()
        };
        self.contenders.iter().map(|(_, cells)| Spread::of(of(cells)).map_or(0.0, |spread| spread.median)).collect()
    }

    fn in_markdown(&self) -> String {
        let mut out = String::from("| stage |");
        for (name, _) in &self.contenders {
            let _ = write!(out, " {name} |");
        }
        let _ = writeln!(out, " more |\n|---|{}---:|", "---:|".repeat(self.contenders.len()));
        let row = |name: &str, numbers: &[f64], digits: usize| {
            let cells: String = numbers.iter().map(|number| format!(" {number:.digits$} |")).collect();
            let more = numbers.last().zip(numbers.first()).map_or(0.0, |(last, first)| last - first);
            format!("| {name} |{cells} {more:+.digits$} |\n")
        };
        let total = |_: &Cell, end: &EndProfile| end.stages_us.values().sum::<f64>();
        out += &row("**all**", &self.medians(total), 2);
        let mut rows = |names: &mut dyn Iterator<Item = &'static str>,
                        mark: &str,
                        numbers: fn(&EndProfile) -> &BTreeMap<String, f64>| {
            for name in names {
                let medians = self.medians(|_, end| numbers(end).get(name).copied().unwrap_or(0.0));
                if medians.iter().any(|median| *median >= 0.005) {
                    out += &row(&format!("{mark}{name}"), &medians, 2);
                }
            }
        };
        rows(&mut Stage::ALL.iter().map(|stage| stage.name()), "", |end| &end.stages_us);
        rows(&mut Kind::ALL.iter().map(|kind| kind.name()), "*of all:* ", |end| &end.of_which_us);
        out += &row("kIO/s", &self.medians(|cell, _| cell.throughput.iops.unwrap_or(0.0) / 1000.0), 1);
        out += &row("samples in a run", &self.medians(|_, end| end.samples as f64), 0);
        let _ = write!(out, "\n{}", self.differences());
        for (name, cells) in &self.contenders {
            let _ = writeln!(out, "- {name}: {}", self.details(cells));
        }
        out
    }

    /// Source files, and functions of the kernel, with the largest differences between the last contender and the first.
    fn differences(&self) -> String {
        let [(first, of_first), .., (last, of_last)] = &self.contenders[..] else { return String::new() };
        let mean = |cells: &[&Cell]| self.mean(cells, |end| &end.places_us);
        let (before, after) = (mean(of_first), mean(of_last));
        let mut more: Vec<(f64, &String)> =
            after.iter().map(|(place, us)| (us - before.get(place).unwrap_or(&0.0), place)).collect();
        more.retain(|(us, _)| *us >= PLACE_MIN_US);
        more.sort_by(|a, b| b.0.total_cmp(&a.0));
        let list: Vec<String> = more.iter().take(PLACES).map(|(us, place)| format!("{us:.2} `{place}`")).collect();
        format!("- {last} more than {first}, by file: {}\n", list.join(", "))
    }

    /// Hottest functions and system calls.
    fn details(&self, cells: &[&Cell]) -> String {
        let mut functions: Vec<(String, f64)> = self.mean(cells, |end| &end.functions_us).into_iter().collect();
        functions.sort_by(|a, b| b.1.total_cmp(&a.1));
        let functions: Vec<String> =
            functions.iter().take(FUNCTIONS).map(|(name, us)| format!("{us:.2} `{}`", shortened(name))).collect();
        let none = BTreeMap::new();
        let counted = cells.iter().any(|cell| self.end.of(cell).is_some_and(|end| end.system_calls.is_some()));
        let mut calls: Vec<(String, f64)> = self
            .mean_or(cells, |end| end.system_calls.as_ref(), &none)
            .into_iter()
            .filter(|(_, per_io)| *per_io >= 0.005)
            .collect();
        calls.sort_by(|a, b| b.1.total_cmp(&a.1));
        let calls: Vec<String> = calls.iter().take(4).map(|(name, per_io)| format!("{per_io:.2} `{name}`")).collect();
        let calls = match (counted, calls.is_empty()) {
            (false, _) => "not counted (the kernel has no tracepoints for us)".to_owned(),
            (true, true) => "fewer than 0.01".to_owned(),
            (true, false) => calls.join(", "),
        };
        format!("functions {}; system calls per I/O {calls}", functions.join(", "))
    }

    fn mean(&self, cells: &[&Cell], numbers: fn(&EndProfile) -> &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        self.mean_or(cells, |end| Some(numbers(end)), &BTreeMap::new())
    }

    /// Names that are rare are not in every run: the mean, where a median would be nothing.
    fn mean_or<'b>(
        &self,
        cells: &'b [&Cell],
        numbers: impl Fn(&'b EndProfile) -> Option<&'b BTreeMap<String, f64>>,
        none: &'b BTreeMap<String, f64>,
    ) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for cell in cells {
            for (name, number) in self.end.of(cell).and_then(&numbers).unwrap_or(none) {
                *sums.entry(name.clone()).or_insert(0.0) += number / cells.len() as f64;
            }
        }
        sums
    }
}

/// A name that fits into a line, without what Markdown would take for its own.
fn shortened(name: &str) -> String {
    let plain = name.replace(['|', '`'], "");
    if plain.chars().count() <= FUNCTION_CHARS {
        return plain;
    }
    // The end of a path tells more than its beginning.
    let skipped = plain.chars().count() - FUNCTION_CHARS;
    format!("…{}", plain.chars().skip(skipped).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellKey, Throughput};
    use crate::profile::shares::CellProfile;

    fn cell(contender: &str, run: u32, seal_us: f64) -> Cell {
        let key = CellKey {
            bench: "profile".into(),
            contender: contender.into(),
            pattern: "seqwrite".into(),
            size: 4096,
            depth: 16,
            initiators: 1,
            run,
            ..CellKey::default()
        };
        let numbers = |name: &str, us: f64| BTreeMap::from([(name.to_owned(), us)]);
        let initiator = EndProfile {
            samples: 1000,
            stages_us: BTreeMap::from([("seal, open".into(), seal_us), ("socket (kernel)".into(), 2.0)]),
            of_which_us: numbers("copying", 0.5),
            places_us: numbers("seal/src/aead.rs", seal_us),
            functions_us: numbers("aes_gcm_encrypt", seal_us),
            system_calls: Some(numbers("io_uring_enter", 0.2)),
        };
        let target = EndProfile { system_calls: None, ..initiator.clone() };
        Cell {
            profile: Some(Box::new(CellProfile { target, initiator })),
            throughput: Throughput::new(100_000, 4096 * 100_000, 1.0),
            ..Cell::empty(key)
        }
    }

    #[test]
    fn stages_are_medians_with_what_the_last_takes_more_than_the_first() {
        let costs = [("S2-5", [1.5, 9.0, 1.0]), ("S0", [0.1, 0.2, 0.3])];
        let cells = costs.iter().flat_map(|(contender, us)| (0..3).map(|run| cell(contender, run, us[run as usize])));
        let results = Results { machines: Vec::new(), cells: cells.collect() };
        let text = section(&results);
        let line = |what: &str| text.lines().find(|line| line.starts_with(what)).unwrap_or_default().to_owned();
        assert_eq!(line("| stage"), "| stage | S0 | S2-5 | more |");
        assert_eq!(line("| seal, open"), "| seal, open | 0.20 | 1.50 | +1.30 |");
        assert_eq!(line("| **all**"), "| **all** | 2.20 | 3.50 | +1.30 |");
        assert_eq!(line("| *of all:* copying"), "| *of all:* copying | 0.50 | 0.50 | +0.00 |");
        assert_eq!(line("| kIO/s"), "| kIO/s | 100.0 | 100.0 | +0.0 |");
        assert_eq!(line("| store"), "", "rows without time are left out");
        assert!(line("- S2-5 more than S0").contains("3.63 `seal/src/aead.rs`"), "{text}");
        assert!(
            line("- S0: ").ends_with("functions 0.20 `aes_gcm_encrypt`; system calls per I/O 0.20 `io_uring_enter`")
        );
        assert!(text.contains("### 4 KiB seqwrite, depth 16, 1 initiator: target") && text.contains("not counted"));
    }

    #[test]
    fn long_names_keep_their_end() {
        let name = "a::very::long::path::of::modules::that::goes::on::and::on::until::it::ends::in::Type<T>::function";
        assert!(shortened(name).ends_with("Type<T>::function") && shortened(name).starts_with('…'));
        assert_eq!(shortened("a|b`c"), "abc");
    }
}

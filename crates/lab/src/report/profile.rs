//! CPU profiles by stage, as Markdown: for each I/O and end a table with a column for each contender, so that it shows where one costs
//! more than another; then functions and system calls.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::bounds;
use super::summary::{Spread, Summary};
use super::words;
use crate::profile::BENCH_PROFILE;
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
    out += &words::machine_and_commands(results);
    out += "CPU microseconds for each I/O, user and system time. Medians of the runs, which interleave the contenders. How a sample is \
            given to a stage, and what a stage contains: docs/measuring.md, \"CPU profiles\". The last columns are what one contender takes more than \
            another one.\n\n";
    out + &tables(results)
}

/// Everything but the machine.
pub(crate) fn tables(results: &Results) -> String {
    let summary = Summary::new(results, BENCH_PROFILE);
    let mut out = bounds::table(&summary);
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
            let _ =
                writeln!(out, "### {io}: {}\n\n{}", end.name(), Table::of(group, end, &summary.releases).in_markdown());
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

/// The runs of one contender.
struct Column<'a> {
    name: &'a str,
    /// The name without that of the release.
    scheme: &'a str,
    release: &'a str,
    cells: Vec<&'a Cell>,
}

/// One I/O at one end.
struct Table<'a> {
    end: End,
    columns: Vec<Column<'a>>,
    /// Which columns are compared: what the first takes more than the second.
    compared: Vec<(usize, usize)>,
}

/// How names of schemes over ECL begin.
const ECL: &str = "ECL-";

impl<'a> Table<'a> {
    fn of(cells: &[&'a Cell], end: End, releases: &[String]) -> Table<'a> {
        let mut columns: Vec<Column<'a>> = Vec::new();
        for &cell in cells {
            let (name, release) = (&*cell.key.contender, &*cell.access.release);
            match columns.iter_mut().find(|column| column.name == name) {
                Some(column) => column.cells.push(cell),
                None => {
                    let scheme = name.strip_suffix(release).unwrap_or(name).trim_end();
                    columns.push(Column { name, scheme, release, cells: vec![cell] });
                }
            }
        }
        // Runs begin with another contender each time: they do not say the order.
        columns.sort_by_key(|column| {
            let release = releases.iter().position(|release| release == column.release);
            (column.scheme.starts_with(ECL), column.scheme, release)
        });
        let compared = compared(&columns);
        Table { end, columns, compared }
    }

    /// The median of a number over the runs of each contender.
    fn medians(&self, number: impl Fn(&Cell, &EndProfile) -> f64) -> Vec<f64> {
        let of = |cells: &[&Cell]| {
            cells.iter().filter_map(|cell| Some(number(cell, self.end.of(cell)?))).collect::<Vec<_>>()
        };
        self.columns.iter().map(|column| Spread::of(of(&column.cells)).map_or(0.0, |spread| spread.median)).collect()
    }

    fn in_markdown(&self) -> String {
        let names = self.columns.iter().map(|column| column.name.to_owned());
        let heads: Vec<String> = names.chain(self.compared.iter().map(|pair| self.in_words(*pair, "−"))).collect();
        let mut out = format!("| stage | {} |\n|---|{}\n", heads.join(" | "), "---:|".repeat(heads.len()));
        let row = |name: &str, numbers: &[f64], digits: usize| {
            let cells: String = numbers.iter().map(|number| format!(" {number:.digits$} |")).collect();
            let more = |(own, other): &(usize, usize)| format!(" {:+.digits$} |", numbers[*own] - numbers[*other]);
            let more: String = self.compared.iter().map(more).collect();
            format!("| {name} |{cells}{more}\n")
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
        for column in &self.columns {
            let _ = writeln!(out, "- {}: {}", column.name, self.details(&column.cells));
        }
        out
    }

    /// `S2-5 − S0`.
    fn in_words(&self, (own, other): (usize, usize), between: &str) -> String {
        format!("{} {between} {}", self.columns[own].name, self.columns[other].name)
    }

    /// Source files, and functions of the kernel, with the largest differences between contenders that are compared.
    fn differences(&self) -> String {
        let mut out = String::new();
        for &pair in &self.compared {
            let mean = |at: usize| self.mean(&self.columns[at].cells, |end| &end.places_us);
            let (after, before) = (mean(pair.0), mean(pair.1));
            let mut more: Vec<(f64, &String)> =
                after.iter().map(|(place, us)| (us - before.get(place).unwrap_or(&0.0), place)).collect();
            more.retain(|(us, _)| *us >= PLACE_MIN_US);
            more.sort_by(|a, b| b.0.total_cmp(&a.0));
            let list: Vec<String> = more.iter().take(PLACES).map(|(us, place)| format!("{us:.2} `{place}`")).collect();
            let _ = writeln!(out, "- {}, by file: {}", self.in_words(pair, "more than"), list.join(", "));
        }
        out
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

/// The last scheme with the first one, each scheme over ECL with the same one over TCP, and each contender with itself in the first release.
fn compared(columns: &[Column<'_>]) -> Vec<(usize, usize)> {
    let all = 0..columns.len();
    let find = |scheme: &str, release: &str| {
        columns.iter().position(|column| (column.scheme, column.release) == (scheme, release))
    };
    let Some(first) = columns.first() else { return Vec::new() };
    let of_first_scheme = columns.iter().take_while(|column| column.scheme == first.scheme);
    let last_release = of_first_scheme.last().map_or("", |column| column.release);
    let judged: Vec<usize> = all.filter(|at| columns[*at].release == last_release).collect();
    let over_tcp: Vec<usize> = judged.iter().copied().filter(|at| !columns[*at].scheme.starts_with(ECL)).collect();
    let mut pairs = Vec::new();
    if let [first, .., last] = over_tcp[..] {
        pairs.push((last, first));
    }
    for &at in &judged {
        let other = columns[at].scheme.strip_prefix(ECL).and_then(|scheme| find(scheme, last_release));
        pairs.extend(other.map(|other| (at, other)));
    }
    if last_release != first.release {
        pairs.extend(judged.iter().filter_map(|&at| Some((at, find(columns[at].scheme, first.release)?))));
    }
    pairs
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
        assert_eq!(line("| stage"), "| stage | S0 | S2-5 | S2-5 − S0 |");
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
    fn ecl_is_compared_with_tcp_and_releases_with_the_first_one() {
        let mut cells = Vec::new();
        for run in 0..3 {
            for (scheme, us) in [("S0", 0.0), ("S2-5", 1.0), ("ECL-S2-5", 3.0)] {
                for (release, faster) in [("old", 1.0), ("new", 0.5)] {
                    let mut cell = cell(&format!("{scheme} {release}"), run, us * faster);
                    cell.access.release = release.into();
                    cells.push(cell);
                }
            }
        }
        let text = tables(&Results { machines: Vec::new(), cells: cells.clone() });
        let line = |what: &str| text.lines().find(|line| line.starts_with(what)).unwrap_or_default().to_owned();
        let heads: Vec<String> =
            line("| stage").split(" | ").map(|head| head.trim_matches(['|', ' ']).to_owned()).collect();
        let expected =
            ["stage", "S0 old", "S0 new", "S2-5 old", "S2-5 new", "ECL-S2-5 old", "ECL-S2-5 new", "S2-5 new − S0 new"];
        assert_eq!(heads[..8], expected);
        assert_eq!(
            heads[8..],
            ["ECL-S2-5 new − S2-5 new", "S0 new − S0 old", "S2-5 new − S2-5 old", "ECL-S2-5 new − ECL-S2-5 old"]
        );
        let differences = "| +0.50 | +1.00 | +0.00 | -0.50 | -1.50 |";
        assert!(line("| seal, open").ends_with(differences), "{text}");
        // Another I/O begins with another contender.
        let mut others: Vec<Cell> = cells.iter().rev().cloned().collect();
        others.iter_mut().for_each(|cell| cell.key.size = 65536);
        cells.extend(others);
        let text = tables(&Results { machines: Vec::new(), cells: cells.clone() });
        let heads: Vec<&str> = text.lines().filter(|line| line.starts_with("| stage")).collect();
        assert!(heads.len() == 4 && heads.iter().all(|line| *line == heads[0]), "{text}");
        cells.retain(|cell| cell.key.contender == "S0 old");
        assert!(tables(&Results { machines: Vec::new(), cells }).contains("| stage | S0 old |\n"));
    }

    #[test]
    fn long_names_keep_their_end() {
        let name = "a::very::long::path::of::modules::that::goes::on::and::on::until::it::ends::in::Type<T>::function";
        assert!(shortened(name).ends_with("Type<T>::function") && shortened(name).starts_with('…'));
        assert_eq!(shortened("a|b`c"), "abc");
    }
}

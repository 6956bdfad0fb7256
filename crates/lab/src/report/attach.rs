//! What a program feels on an attached volume, as Markdown: what it gets from the file in FUSE beside our own client without FUSE, and from ext4;
//! releases beside each other; and the figures that were asked for. Comparisons are made run by run.

use std::fmt::Write;

use super::goal::{self, Figure, Goal, RUNS_MIN};
use super::idle;
use super::measure::Measure;
use super::summary::{GridPoint, Row, Spread, Summary};
use super::words;
use crate::attach::{BENCH_EXT4, BENCH_FILE, QEMU_LUKS, Way};
use crate::{Cell, Results};
use strongroom::plot::number;

/// The scheme for which figures were asked.
const JUDGED_SCHEME: &str = "S2-5";

/// Whether an experiment is shown here.
pub(super) fn is_shown_here(bench: &str) -> bool {
    bench == BENCH_FILE || bench == BENCH_EXT4 || idle::is_shown_here(bench)
}

/// The section between the marks.
pub(super) fn section(results: &Results, summaries: &[Summary]) -> String {
    let mut out = String::from("## What a program gets from an attached volume\n\n");
    out += &words::machine_and_commands(results);
    out += "Medians of interleaved runs, with the lowest and the highest in brackets; comparisons are made run by run. *Without FUSE* is our own client in a \
            process of the lab on the same target; *above it* is what the median of an I/O takes longer than there. Processor time is of the target's and \
            the attachment's processes; the program's own is in none of them.\n\n";
    let summaries: Vec<&Summary> =
        summaries.iter().filter(|summary| is_shown_here(&summary.experiment.bench)).collect();
    let judged = [figures(&summaries), idle::figures(&summaries)].concat();
    if !judged.is_empty() {
        let _ = writeln!(out, "{}", goal::table(&judged));
    }
    for summary in summaries {
        let _ = writeln!(out, "### {}\n", summary.experiment.title);
        for failure in words::failures(summary) {
            let _ = writeln!(out, "- **Failed:** {failure}");
        }
        let _ = writeln!(out, "{}\n\n{}", words::reliability(summary), table(summary));
    }
    out
}

/// One experiment's table.
pub(super) fn table(summary: &Summary) -> String {
    let mut out = match idle::is_shown_here(&summary.experiment.bench) {
        true => idle::table(summary),
        false => program_table(summary),
    };
    if summary.runs < RUNS_MIN {
        let _ = writeln!(out, "\nFewer than {RUNS_MIN} runs: these medians show that it works, and are no results.");
    }
    out
}

fn program_table(summary: &Summary) -> String {
    let is_file = summary.experiment.bench == BENCH_FILE;
    let mut heads = vec!["I/O", "contender", "MiB/s", "kIO/s", "p50 µs", "p99 µs"];
    if is_file {
        heads.extend(["throughput / without FUSE", "p50 above it, µs"]);
    }
    let compares = summary.rows.iter().any(|row| first_of(summary, row).is_some());
    if compares {
        heads.push("throughput / first");
    }
    heads.extend(["CPU s/GiB, target + attachment", "processors busy", "busiest thread of the attachment"]);
    let mut out = format!("| {} |\n|---|---|{}\n", heads.join(" | "), "---:|".repeat(heads.len() - 2));
    for row in &summary.rows {
        let mut cells = vec![row.point.in_words(), row.contender.clone()];
        cells.extend([Measure::Throughput, Measure::Kiops].map(|measure| spread_text(row, row.spread(measure))));
        cells.extend([Measure::P50, Measure::P99].map(|measure| text(row, measure)));
        if is_file {
            let client = client_of(summary, row);
            let ratio = client.and_then(|client| row.ratio(client, Measure::Throughput));
            cells.extend([ratio_text(ratio), ratio_text(client.and_then(|client| above(row, client)))]);
        }
        if compares {
            cells.push(ratio_text(first_of(summary, row).and_then(|first| row.ratio(first, Measure::Throughput))));
        }
        cells.push(format!("{} + {}", text(row, Measure::TargetPerGib), text(row, Measure::InitiatorPerGib)));
        cells.push(text(row, Measure::AllBusy));
        let thread = cell(row).map(|cell| cell.cpu.busiest_thread_name.as_str()).unwrap_or_default();
        cells.push(format!("{} {thread}", text(row, Measure::BusiestThread)).trim_end().to_owned());
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
    out
}

fn text(row: &Row, measure: Measure) -> String {
    let absent = if row.errors.is_empty() { "–" } else { "error" };
    row.spread(measure).map_or(absent.into(), |spread| number(spread.median))
}

fn spread_text(row: &Row, spread: Option<Spread>) -> String {
    match spread {
        None if !row.errors.is_empty() => "error".into(),
        None => "–".into(),
        Some(spread) if row.runs.len() > 1 => {
            format!("{} ({}–{})", number(spread.median), number(spread.low), number(spread.high))
        }
        Some(spread) => number(spread.median),
    }
}

fn ratio_text(ratio: Option<Spread>) -> String {
    ratio.map_or("–".into(), |Spread { median, low, high }| match high.abs().max(low.abs()) {
        small if small < 10.0 => format!("{median:.2} ({low:.2}–{high:.2})"),
        _ => format!("{median:.0} ({low:.0}–{high:.0})"),
    })
}

fn cell(row: &Row) -> Option<&Cell> {
    row.runs.values().next()
}

/// Whether a row is of this way to reach a volume.
fn is_by(row: &Row, way: Way) -> bool {
    cell(row).is_some_and(|cell| cell.access.way == way.name())
}

/// Our own client on the same target, for a row of a program.
fn client_of<'a>(summary: &'a Summary, row: &Row) -> Option<&'a Row> {
    let of = cell(row).filter(|_| !is_by(row, Way::Client))?;
    summary.rows.iter().find(|other| {
        let is_same = |other: &Cell| (&other.key.scheme, &other.access.release) == (&of.key.scheme, &of.access.release);
        other.point == row.point && is_by(other, Way::Client) && cell(other).is_some_and(is_same)
    })
}

/// The first release and attachment that did the same in the same scheme; `None` for that one itself.
fn first_of<'a>(summary: &'a Summary, row: &Row) -> Option<&'a Row> {
    let of = cell(row)?;
    let is_same = |other: &Cell| (&other.key.scheme, &other.access.way) == (&of.key.scheme, &of.access.way);
    let first = summary.rows.iter().find(|other| other.point == row.point && cell(other).is_some_and(is_same))?;
    (first.contender != row.contender).then_some(first)
}

/// What the median of an I/O takes longer than `client`'s, in microseconds.
fn above(row: &Row, client: &Row) -> Option<Spread> {
    row.difference(client, Measure::P50)
}

/// A figure that was asked for: of which I/O, by which way, of what, and how much.
struct Asked {
    way: Way,
    pattern: &'static str,
    size: u64,
    depth: u32,
    what: &'static str,
    goal: Goal,
}

impl Asked {
    const fn new(way: Way, io: (&'static str, u64, u32), what: &'static str, goal: Goal) -> Asked {
        let (pattern, size, depth) = io;
        Asked { way, pattern, size, depth, what, goal }
    }

    fn bench(&self) -> &'static str {
        if self.way == Way::Ext4 { BENCH_EXT4 } else { BENCH_FILE }
    }
}

const ABOVE_CLIENT: &str = "p50 above our own client without FUSE, µs";
const OF_CLIENT: &str = "throughput / our own client's";
const OF_LUKS: &str = "throughput / that of qemu-nbd with LUKS";
const THOUSANDS: &str = "thousand I/Os a second";
const MIBS: &str = "MiB/s";
const ASKED: [Asked; 10] = [
    Asked::new(Way::File, ("randread", 4 << 10, 1), ABOVE_CLIENT, Goal::AtMost(35.0)),
    Asked::new(Way::File, ("randwrite", 4 << 10, 1), ABOVE_CLIENT, Goal::AtMost(35.0)),
    Asked::new(Way::File, ("randread", 4 << 10, 16), THOUSANDS, Goal::AtLeast(120.0)),
    Asked::new(Way::Nbd, ("randread", 4 << 10, 16), OF_CLIENT, Goal::AtLeast(0.9)),
    Asked::new(Way::Nbd, ("randwrite", 4 << 10, 16), OF_CLIENT, Goal::AtLeast(0.9)),
    Asked::new(Way::Nbd, ("seqread", 64 << 10, 16), OF_LUKS, Goal::AtLeast(3.0)),
    Asked::new(Way::Nbd, ("seqwrite", 64 << 10, 16), OF_LUKS, Goal::AtLeast(3.0)),
    Asked::new(Way::Ext4, ("seqread", 1 << 20, 1), MIBS, Goal::AtLeast(1536.0)),
    Asked::new(Way::Ext4, ("seqwrite", 1 << 20, 1), MIBS, Goal::AtLeast(1228.8)),
    Asked::new(Way::Ext4, ("randread", 4 << 10, 16), THOUSANDS, Goal::AtLeast(80.0)),
];

/// What was asked of a sealed volume, of the release that was named last. A way that did not take part is left out.
fn figures(summaries: &[&Summary]) -> Vec<Figure> {
    let mut figures = Vec::new();
    if summaries.iter().any(|summary| summary.rows.iter().any(|row| is_by(row, Way::File))) {
        figures.push(Figure {
            what: ABOVE_CLIENT.into(),
            at: "FUSE over io_uring, which is not used (decisions.md), 4 KiB, depth 1".into(),
            goal: Goal::AtMost(12.0),
            came_out: None,
        });
    }
    for asked in &ASKED {
        let Some(summary) = summaries.iter().find(|summary| summary.experiment.bench == asked.bench()) else {
            continue;
        };
        let is_asked = |row: &&Row| {
            let GridPoint { pattern, size, depth, .. } = &row.point;
            (pattern.as_str(), *size, *depth) == (asked.pattern, asked.size, asked.depth)
                && is_by(row, asked.way)
                && cell(row).is_some_and(|cell| cell.key.scheme == JUDGED_SCHEME)
        };
        let Some(row) = summary.rows.iter().rfind(is_asked) else { continue };
        let luks = || summary.rows.iter().find(|other| other.point == row.point && other.contender == QEMU_LUKS);
        let came_out = match asked.what {
            ABOVE_CLIENT => client_of(summary, row).and_then(|client| above(row, client)),
            OF_CLIENT => client_of(summary, row).and_then(|client| row.ratio(client, Measure::Throughput)),
            OF_LUKS => luks().and_then(|luks| row.ratio(luks, Measure::Throughput)),
            THOUSANDS => row.spread(Measure::Kiops),
            _ => row.spread(Measure::Throughput),
        };
        figures.push(Figure {
            what: asked.what.to_owned(),
            at: format!("{}, {}, {}", row.contender, asked.way.name(), row.point.in_words()),
            goal: asked.goal,
            came_out: came_out.map(|spread| (spread.median, format!(" ({:.1}–{:.1})", spread.low, spread.high))),
        });
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellKey, LatencyQuantiles, ProgramAccess, Throughput};

    fn cell_of(way: Way, release: &str, run: u32, kiops: u64, p50_us: f64) -> Cell {
        let client = if way == Way::Client { ", without FUSE" } else { "" };
        let key = CellKey {
            bench: BENCH_FILE.into(),
            contender: format!("S2-5 {release}{client}"),
            scheme: "S2-5".into(),
            pattern: "randread".into(),
            size: 4096,
            depth: 1,
            initiators: 1,
            run,
            ..CellKey::default()
        };
        let access = ProgramAccess { way: way.name().into(), release: release.into(), ..ProgramAccess::default() };
        let latency = LatencyQuantiles { p50_us: Some(p50_us), ..LatencyQuantiles::default() };
        Cell { access, latency, throughput: Throughput::new(kiops * 1000, kiops * 4_096_000, 1.0), ..Cell::empty(key) }
    }

    fn results() -> Results {
        let mut cells = Vec::new();
        for run in 0..5 {
            // Slower from run to run, and all alike: differences stay.
            let drift = f64::from(run) * 10.0;
            for (release, own_us, fuse_us) in [("old", 60.0, 110.0), ("new", 50.0, 80.0)] {
                cells.push(cell_of(Way::Client, release, run, 20, own_us + drift));
                cells.push(cell_of(Way::File, release, run, if release == "old" { 8 } else { 10 }, fuse_us + drift));
            }
        }
        Results { machines: Vec::new(), cells }
    }

    #[test]
    fn a_program_is_held_against_the_client_of_its_own_release_and_run() {
        let results = results();
        let text = section(&results, &[Summary::new(&results, BENCH_FILE)]);
        let line = |name: &str| text.lines().find(|line| line.starts_with("| 4 KiB") && line.contains(name)).unwrap();
        assert!(line("| S2-5 new |").contains("| 0.50 (0.50–0.50) | 30 (30–30) | 1.25 (1.25–1.25) |"), "{text}");
        assert!(line("| S2-5 old |").contains("| 0.40 (0.40–0.40) | 50 (50–50) | – |"), "{text}");
        assert!(line("| S2-5 new, without FUSE |").contains("| – | – | 1.00 (1.00–1.00) |"), "{text}");
    }

    #[test]
    fn the_last_release_is_judged() {
        let results = results();
        let text = section(&results, &[Summary::new(&results, BENCH_FILE)]);
        let judged = text.lines().find(|line| line.contains("| at most 35 |")).unwrap();
        assert!(judged.contains("S2-5 new, file") && judged.ends_with("| 30.00 (30.0–30.0) | met |"), "{judged}");
        assert!(!text.contains("Fewer than"), "{text}");
    }

    #[test]
    fn few_runs_and_errors_are_no_results() {
        let mut results = results();
        results.cells.truncate(4);
        results.cells[3] = results.cells[3].clone().failed("fio: gone");
        let text = table(&Summary::new(&results, BENCH_FILE));
        assert!(text.contains("Fewer than 5 runs") && text.contains("| error | error |"), "{text}");
    }
}

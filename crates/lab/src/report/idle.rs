//! What attached volumes cost that nobody uses: CPU time of both ends in percent of a processor, with what was asked of it.

use std::fmt::Write;

use super::goal::{self, Figure, Goal};
use super::summary::{Row, Spread, Summary};
use crate::Cell;
use crate::attach::BENCH_IDLE;

/// What was asked for: how many volumes, how both ends poll, and percent of a processor.
const ASKED_VOLUMES: u32 = 40;
const POLLING: &str = "polling auto";
const PERCENT_MAX: Goal = Goal::AtMost(0.2);

/// Whether an experiment is shown here.
pub(super) fn is_shown_here(bench: &str) -> bool {
    bench == BENCH_IDLE
}

/// What was asked, of the release that was named last; nothing if it was not measured.
pub(super) fn figures(summaries: &[&Summary]) -> Vec<Figure> {
    let summary = summaries.iter().find(|summary| summary.experiment.bench == BENCH_IDLE);
    let Some(summary) = summary.map(|summary| summary.of_last_release()) else { return Vec::new() };
    let is_asked = |row: &&Row| row.contender.ends_with(POLLING) && row.point.initiators == ASKED_VOLUMES;
    let figure = |row: &Row| Figure {
        what: "CPU time of target and attachments that nobody uses, % of a processor".into(),
        at: format!("{}, {ASKED_VOLUMES} volumes", row.contender),
        goal: PERCENT_MAX,
        came_out: percent(row, both).map(|both| (both.median, goal::in_brackets(both, row.runs.len()))),
    };
    summary.rows.iter().filter(is_asked).map(figure).collect()
}

/// One line for each contender.
pub(super) fn table(summary: &Summary) -> String {
    let mut out = String::from(
        "| contender | volumes | target, % | attachments, % | both, % of a processor |\n|---|---:|---:|---:|---:|\n",
    );
    for row in &summary.rows {
        let of_end = |of: fn(&Cell) -> Option<f64>| percent(row, of).map_or("error".to_owned(), in_words);
        let (target, attachments) = (of_end(|cell| cell.cpu.target_cpu), of_end(|cell| cell.cpu.initiator_cpu));
        let both = of_end(both);
        let volumes = row.point.initiators;
        let _ = writeln!(out, "| {} | {volumes} | {target} | {attachments} | {both} |", row.contender);
    }
    out
}

/// CPU seconds of both ends in a second.
fn both(cell: &Cell) -> Option<f64> {
    Some(cell.cpu.target_cpu? + cell.cpu.initiator_cpu?)
}

/// Over the runs of a row, of CPU seconds in a second; nothing if a run failed.
fn percent(row: &Row, of: fn(&Cell) -> Option<f64>) -> Option<Spread> {
    let percent = |cell: &Cell| of(cell).map(|cpu| cpu * 100.0);
    row.errors.is_empty().then(|| Spread::of(row.runs.values().filter_map(percent))).flatten()
}

fn in_words(percent: Spread) -> String {
    format!("{:.3} ({:.3}–{:.3})", percent.median, percent.low, percent.high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Results;
    use crate::cell::{CellKey, CpuCost, ProgramAccess};

    fn cell(release: &str, polling: &str, run: u32, cpu: f64) -> Cell {
        let key = CellKey {
            bench: BENCH_IDLE.into(),
            contender: format!("S2-5, polling {polling} {release}"),
            pattern: "idle".into(),
            initiators: 40,
            run,
            ..CellKey::default()
        };
        let access = ProgramAccess { release: release.into(), ..ProgramAccess::default() };
        let cpu = CpuCost { target_cpu: Some(0.0005), initiator_cpu: Some(cpu), ..CpuCost::default() };
        Cell { access, cpu, ..Cell::empty(key) }
    }

    #[test]
    fn both_ends_together_are_judged_with_polling_and_of_the_last_release() {
        let mut cells = Vec::new();
        for run in 0..5 {
            for (release, cpu) in [("old", 0.01), ("new", 0.001)] {
                cells.push(cell(release, "off", run, 0.02));
                cells.push(cell(release, "auto", run, cpu));
            }
        }
        let results = Results { machines: Vec::new(), cells };
        let summary = Summary::new(&results, BENCH_IDLE);
        let judged = goal::table(&figures(&[&summary]));
        assert!(
            judged.contains("| S2-5, polling auto, 40 volumes | at most 0.2 | 0.15 (0.15–0.15) | met |"),
            "{judged}"
        );
        assert_eq!(judged.lines().count(), 3, "{judged}");
        let text = table(&summary);
        let old = text.lines().find(|line| line.starts_with("| S2-5, polling auto old |")).unwrap();
        assert!(old.contains("| 40 | 0.050 (0.050–0.050) | 1.000 (1.000–1.000) | 1.050 (1.050–1.050) |"), "{old}");
        assert!(figures(&[]).is_empty());
    }
}

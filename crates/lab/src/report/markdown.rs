//! Tables and sentences as Markdown, for the pages in `docs/bench`, and tables for a terminal.

use std::fmt::Write;
use std::path::Path;

use super::figures::figures;
use super::measure::Measure;
use super::summary::{Row, Summary};
use super::words;
use crate::Results;
use strongroom::plot::number;

/// Numbers that are shown if any row has them.
pub(crate) const COLUMNS: [Measure; 20] = [
    Measure::Throughput,
    Measure::Model,
    Measure::OfModel,
    Measure::Kiops,
    Measure::Seconds,
    Measure::P50,
    Measure::P99,
    Measure::P999,
    Measure::TargetPerGib,
    Measure::TargetPerKio,
    Measure::InitiatorPerGib,
    Measure::InitiatorPerKio,
    Measure::TargetBusy,
    Measure::InitiatorBusy,
    Measure::InitiatorCpu,
    Measure::TargetCrypto,
    Measure::InitiatorCrypto,
    Measure::Wire,
    Measure::TcpBeside,
    Measure::Fairness,
];

/// The section between the marks, under its title; `judged`, if anything, comes before the experiments.
pub(crate) fn section(
    results: &Results,
    summaries: &[Summary],
    plots: Option<&Path>,
    title: &str,
    judged: &str,
) -> String {
    let mut out = format!("## {title}\n\nFrom one file of results, which the commands below made. ");
    out += "Medians, with the lowest and highest run in brackets; ratios are taken run by run. Numbers of different files \
            must not be compared.\n";
    if let Some(machine) = results.machines.first() {
        let _ = writeln!(out, "\n{}\n\nCommands:\n\n```", words::machine_in_words(machine));
        for machine in &results.machines {
            let _ = writeln!(out, "{}", machine.command);
        }
        out += "```\n";
    }
    if !judged.is_empty() {
        let _ = writeln!(out, "\n{judged}");
    }
    for summary in summaries {
        let experiment = &summary.experiment;
        let _ = writeln!(out, "\n### {}\n", experiment.title);
        if !experiment.question.is_empty() {
            let _ = writeln!(out, "**Question.** {}\n\n**Method.** {}", experiment.question, experiment.method);
        }
        let _ = writeln!(out, "\n**How far to believe it.** {}\n", words::reliability(summary));
        for failure in words::failures(summary) {
            let _ = writeln!(out, "- **Failed:** {failure}");
        }
        let findings = words::findings(summary);
        if !findings.is_empty() {
            out += "**What came out.**\n\n";
            for finding in findings {
                let _ = writeln!(out, "- {finding}");
            }
        }
        if let Some(plots) = plots {
            for figure in figures(summary) {
                let path = plots.join(format!("{}.svg", figure.name));
                let _ = writeln!(out, "\n![{}]({})", figure.title, path.display());
            }
        }
        let _ = writeln!(out, "\n{}", table(summary));
    }
    out
}

/// One table: a line for each contender at each place.
pub(crate) fn table(summary: &Summary) -> String {
    let columns = columns(summary);
    let mut out = String::from("| what | contender |");
    for column in &columns {
        let _ = write!(out, " {} |", column.column());
    }
    out += "\n|---|---|";
    out += &"---:|".repeat(columns.len());
    out.push('\n');
    for row in &summary.rows {
        let place = row.point.in_words();
        let _ = write!(out, "| {place} | {} |", row.contender);
        for column in &columns {
            let _ = write!(out, " {} |", cell_text(row, *column, summary.experiment.main));
        }
        out.push('\n');
    }
    out
}

/// The columns that have numbers.
pub(crate) fn columns(summary: &Summary) -> Vec<Measure> {
    // Every cell has a duration; it is a result only where it is what was asked.
    let wanted = |measure: &Measure| *measure != Measure::Seconds || summary.experiment.main == Measure::Seconds;
    let has = |measure: &Measure| summary.rows.iter().any(|row| row.spread(*measure).is_some());
    COLUMNS.into_iter().filter(|measure| wanted(measure) && has(measure)).collect()
}

/// The median; the main number with its spread; an error as such.
pub(crate) fn cell_text(row: &Row, measure: Measure, main: Measure) -> String {
    match row.spread(measure) {
        None if !row.errors.is_empty() => "error".into(),
        None => "–".into(),
        Some(spread) if measure == main && row.runs.len() > 1 => {
            format!("{} ({}–{})", number(spread.median), number(spread.low), number(spread.high))
        }
        Some(spread) => number(spread.median),
    }
}

//! What the experiments about ECL say, for docs/bench/ecl.md: what was asked and what came out, then each experiment with its plots, how ECL
//! compares there with iSCSI over TCP, and its numbers.

use std::fmt::Write;
use std::path::Path;

use super::ecl_figures::is_ecl;
use super::ecl_goals::{self, ECL, TCP};
use super::figures::figures;
use super::markdown;
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use super::words;
use crate::Results;

/// What ECL is held against.
const OTHERS: [&str; 3] = [TCP, "S2-1", "S0"];
/// What is compared: in a column's head, and a number of which less is better.
const COMPARED: [(&str, Measure, bool); 5] = [
    ("throughput", Measure::Throughput, false),
    ("target CPU per I/O", Measure::TargetPerKio, true),
    ("initiator CPU per I/O", Measure::InitiatorPerKio, true),
    ("p50", Measure::P50, true),
    ("p99", Measure::P99, true),
];
/// Ratios closer to 1 than this are no difference.
const NOTABLE: f64 = 0.05;

/// The section between the marks.
pub(crate) fn section(results: &Results, summaries: &[Summary], plots: Option<&Path>) -> String {
    let mut out = String::from(
        "## Measured\n\nFrom one file of results, which the commands below made. Medians, with the lowest and highest run in \
                               brackets; ratios are taken run by run.\n",
    );
    if let Some(machine) = results.machines.first() {
        let _ = writeln!(out, "\n{}\n\nCommands:\n\n```", words::machine_in_words(machine));
        for machine in &results.machines {
            let _ = writeln!(out, "{}", machine.command);
        }
        out += "```\n";
    }
    let ours: Vec<&Summary> = summaries.iter().filter(|summary| is_ecl(&summary.experiment.bench)).collect();
    let _ = write!(out, "\n### What was asked, and what came out\n\n{}", ecl_goals::table(&ours));
    let _ = write!(out, "\n### Where ECL wins and where it loses\n\n{}", verdicts(&ours));
    for summary in ours {
        experiment(&mut out, summary, plots);
    }
    out
}

fn experiment(out: &mut String, summary: &Summary, plots: Option<&Path>) {
    let _ = writeln!(out, "\n### {}\n", summary.experiment.title);
    if !summary.experiment.method.is_empty() {
        let _ = writeln!(out, "{}\n", summary.experiment.method);
    }
    let _ = writeln!(out, "{}\n", words::reliability(summary));
    for failure in words::failures(summary) {
        let _ = writeln!(out, "- **Failed:** {failure}");
    }
    if let Some(plots) = plots {
        for figure in figures(summary) {
            let path = plots.join(format!("{}.svg", figure.name));
            let _ = writeln!(out, "![{}]({})\n", figure.title, path.display());
        }
    }
    let _ = writeln!(out, "{}", markdown::table(summary));
}

/// For each experiment, ECL's numbers over those of the others: the median over its rows, and in how many rows ECL is better and worse.
fn verdicts(summaries: &[&Summary]) -> String {
    let mut out = String::from(
        "ECL-S2-5 over another contender, the median over all places of an experiment; in brackets at how many places ECL is \
                               better, and at how many worse, by 5 % at least.\n\n| experiment | over |",
    );
    for (name, _, _) in COMPARED {
        let _ = write!(out, " {name} |");
    }
    out += "\n|---|---|";
    out += &"---:|".repeat(COMPARED.len());
    out.push('\n');
    for summary in summaries {
        for other in OTHERS {
            let pairs = pairs(summary, other);
            if pairs.is_empty() {
                continue;
            }
            let _ = write!(out, "| {} | {other} |", summary.experiment.bench);
            for (_, measure, less_is_better) in COMPARED {
                let _ = write!(out, " {} |", compared(&pairs, measure, less_is_better));
            }
            out.push('\n');
        }
    }
    out
}

/// Rows of ECL with those of another contender at the same place; with quanta of the same length.
fn pairs<'a>(summary: &'a Summary, other: &str) -> Vec<(&'a Row, &'a Row)> {
    let of = |row: &'a Row| {
        let rest = row.contender.strip_prefix(ECL)?;
        Some((row, summary.row(&row.point, &format!("{other}{rest}"))?))
    };
    summary.rows.iter().filter_map(of).collect()
}

fn compared(pairs: &[(&Row, &Row)], measure: Measure, less_is_better: bool) -> String {
    let ratios: Vec<f64> =
        pairs.iter().filter_map(|(row, base)| row.ratio(base, measure)).map(|ratio| ratio.median).collect();
    let Some(spread) = Spread::of(ratios.iter().copied()) else { return "–".into() };
    let (below, above) = (1.0 - NOTABLE, 1.0 + NOTABLE);
    let lower = ratios.iter().filter(|ratio| **ratio <= below).count();
    let higher = ratios.iter().filter(|ratio| **ratio >= above).count();
    let (better, worse) = if less_is_better { (lower, higher) } else { (higher, lower) };
    format!("{:.2} ({better}, {worse} of {})", spread.median, ratios.len())
}

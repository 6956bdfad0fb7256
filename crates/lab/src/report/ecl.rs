//! What the experiments about ECL say, for docs/bench/ecl.md: what was asked and what came out, then each experiment with its plots, how ECL
//! compares there with iSCSI over TCP, and its numbers.

use std::fmt::Write;
use std::path::Path;

use super::ecl_figures::is_ecl;
use super::ecl_goals::{self, ECL, TCP};
use super::experiment::Experiment;
use super::figures::figures;
use super::markdown;
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use super::words;
use crate::Results;
use crate::ecl::IN_FRAMES;

/// What is held against what.
const HELD_AGAINST: [(&str, &str); 5] = [(ECL, TCP), (ECL, "S2-1"), (ECL, "S0"), (IN_FRAMES, TCP), (IN_FRAMES, ECL)];
/// What is compared: in a column's head, and a number of which less is better.
const COMPARED: [(&str, Measure, bool); 5] = [
    ("throughput", Measure::Throughput, false),
    ("target CPU per I/O", Measure::TargetPerKio, true),
    ("initiator CPU per I/O", Measure::InitiatorPerKio, true),
    ("p50", Measure::P50, true),
    ("p99", Measure::P99, true),
];
/// What no measurement tells.
const SIMULATED: &str = "\nNo benchmark tells whether an operation was executed twice, or whether what was flushed outlives a crash. The simulation does: \
                         `cargo run --release -p strongroom-testing --bin sim-soak 1 10000 Everything Ecl` checks 10,000 histories of the whole system \
                         ([ecl.md](../ecl.md) says what was in them).\n";
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
    out += SIMULATED;
    let _ = write!(out, "\n### Where ECL wins and where it loses\n\n");
    for (other, what) in [(TCP, "the same scheme over TCP"), ("S2-1", "encrypting everything over TCP")] {
        out += &plainly(&ours, other, what);
    }
    out += &verdicts(&ours);
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

/// In which experiments ECL is better than another contender, and in which worse, and by what.
fn plainly(summaries: &[&Summary], other: &str, what: &str) -> String {
    let (mut wins, mut losses) = (String::new(), String::new());
    for summary in summaries {
        let pairs = pairs(summary, ECL, other);
        let (mut better, mut worse) = (Vec::new(), Vec::new());
        for (name, measure, less_is_better) in COMPARED {
            let Some(Spread { median, .. }) = Spread::of(ratios(&pairs, measure)) else { continue };
            if (median - 1.0).abs() >= NOTABLE {
                let list = if (median < 1.0) == less_is_better { &mut better } else { &mut worse };
                list.push(format!("{name} {median:.2}"));
            }
        }
        for (list, lines) in [(better, &mut wins), (worse, &mut losses)] {
            if !list.is_empty() {
                let Experiment { title, bench, .. } = &summary.experiment;
                let _ = writeln!(lines, "- {title} ({bench}): {}", list.join(", "));
            }
        }
    }
    let told = |verb: &str, lines: String| match lines.is_empty() {
        true => format!("**ECL {verb}** against {what} ({other}) nowhere.\n\n"),
        false => format!("**ECL {verb}** against {what} ({other}); {ECL}'s numbers over its:\n\n{lines}\n"),
    };
    told("wins", wins) + &told("loses", losses)
}

/// For each experiment, one contender's numbers over another's: the median over its rows, and in how many rows it is better and worse.
fn verdicts(summaries: &[&Summary]) -> String {
    let mut out = String::from(
        "One contender over another, the median over all places of an experiment; in brackets at how many places it is better, and at how \
         many worse, by 5 % at least.\n\n| experiment | contender | over |",
    );
    for (name, _, _) in COMPARED {
        let _ = write!(out, " {name} |");
    }
    out += "\n|---|---|---|";
    out += &"---:|".repeat(COMPARED.len());
    out.push('\n');
    for summary in summaries {
        for (own, other) in HELD_AGAINST {
            let pairs = pairs(summary, own, other);
            if pairs.is_empty() {
                continue;
            }
            let _ = write!(out, "| {} | {own} | {other} |", summary.experiment.bench);
            for (_, measure, less_is_better) in COMPARED {
                let _ = write!(out, " {} |", compared(&pairs, measure, less_is_better));
            }
            out.push('\n');
        }
    }
    out
}

/// Rows of a contender with those of another one at the same place; with quanta of the same length.
fn pairs<'a>(summary: &'a Summary, own: &str, other: &str) -> Vec<(&'a Row, &'a Row)> {
    let of = |row: &'a Row| {
        let rest = row.contender.strip_prefix(own)?;
        Some((row, summary.row(&row.point, &format!("{other}{rest}"))?))
    };
    summary.rows.iter().filter_map(of).collect()
}

fn ratios(pairs: &[(&Row, &Row)], measure: Measure) -> Vec<f64> {
    pairs.iter().filter_map(|(row, base)| row.ratio(base, measure)).map(|ratio| ratio.median).collect()
}

fn compared(pairs: &[(&Row, &Row)], measure: Measure, less_is_better: bool) -> String {
    let ratios = ratios(pairs, measure);
    let Some(spread) = Spread::of(ratios.iter().copied()) else { return "–".into() };
    let (below, above) = (1.0 - NOTABLE, 1.0 + NOTABLE);
    let lower = ratios.iter().filter(|ratio| **ratio <= below).count();
    let higher = ratios.iter().filter(|ratio| **ratio >= above).count();
    let (better, worse) = if less_is_better { (lower, higher) } else { (higher, lower) };
    format!("{:.2} ({better}, {worse} of {})", spread.median, ratios.len())
}

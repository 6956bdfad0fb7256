//! The bound on each goal that a profile misses: what the contender would do or cost if only those stages were left to it that cannot be removed.
//!
//! A contender seals, protects the channel, and hands its bytes to the kernel: these stages count as they were measured. In every other stage it
//! takes no more than the one that it is held against.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::comparison::{Answer, Compared, Comparison, IoClass};
use super::goal::{self, Goal};
use super::measure::Measure;
use super::summary::{Row, Spread, Summary};
use crate::profile::BENCH_PROFILE;
use crate::profile::shares::{CellProfile, EndProfile};
use crate::profile::stages::Stage;

/// Stages whose work is what a contender is for, or that of the kernel.
const UNAVOIDABLE: [Stage; 4] = [Stage::Seal, Stage::Channel, Stage::Recovery, Stage::Socket];

const QUESTIONS: [Comparison; 8] = [
    throughput("S2-5 over S2-1, client throughput", 4096, "S2-1", 0.97),
    throughput("S2-5 over S2-1, client throughput", 65536, "S2-1", 0.97),
    throughput("S2-5 over S0, client throughput", 4096, "S0", 0.88),
    throughput("S2-5 over S0, client throughput", 65536, "S0", 0.92),
    Comparison {
        what: "an initiator's CPU time for a sealed write, more than S0's, µs",
        bench: BENCH_PROFILE,
        io: IoClass { size: 4096, depth: None, is_write: true },
        own: "S2-5",
        other: "S0",
        compared: Compared::Difference(Measure::InitiatorPerKio),
        goal: Goal::AtMost(0.9),
    },
    target("S2-5 over S0, the target's CPU time, after its first second", 65536, true, ("S2-5", "S0"), 1.08),
    target("S2-5 over ECL, over S2-5 by TCP, the target's CPU time", 4096, false, ("ECL-S2-5", "S2-5"), 0.91),
    target("S2-5 over ECL, over S2-5 by TCP, the target's CPU time", 65536, false, ("ECL-S2-5", "S2-5"), 1.25),
];

const fn throughput(what: &'static str, size: u64, other: &'static str, at_least: f64) -> Comparison {
    Comparison {
        what,
        bench: BENCH_PROFILE,
        io: IoClass { size, depth: None, is_write: false },
        own: "S2-5",
        other,
        compared: Compared::Ratio(Measure::Throughput),
        goal: Goal::AtLeast(at_least),
    }
}

const fn target(
    what: &'static str,
    size: u64,
    is_write: bool,
    (own, other): (&'static str, &'static str),
    at_most: f64,
) -> Comparison {
    Comparison {
        what,
        bench: BENCH_PROFILE,
        io: IoClass { size, depth: None, is_write },
        own,
        other,
        compared: Compared::Ratio(Measure::TargetPerKio),
        goal: Goal::AtMost(at_most),
    }
}

/// The table, with words before it; nothing if no goal is missed.
pub(super) fn table(summary: &Summary) -> String {
    let summary = summary.of_last_release();
    let mut lines = String::new();
    for question in &QUESTIONS {
        for answer in question.answers(&summary) {
            let missed = answer.spread.zip(answer.base).filter(|(spread, _)| !question.goal.is_met(spread.median));
            if let Some((spread, base)) = missed {
                lines += &line(question, &answer, (spread, base));
            }
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let stages = UNAVOIDABLE.map(Stage::name).join("; ");
    format!(
        "### Missed goals, and what bounds them\n\nOf the cells of this profile. The bound is what would come out if the contender took what it takes now in \
         the stages that cannot be removed ({stages}), and in each other stage no more than the one that it is held against. For throughput, \
         each end has a processor of its own, and the busier end decides. The last column has the stages that cannot be removed, in µs for each I/O; the \
         tables below have all stages of both.\n\n\
         | question | at | asked | came out | bound | goal within the bound | what cannot be removed |\n|---|---|---|---:|---:|---|---|\n{lines}\n"
    )
}

fn line(question: &Comparison, answer: &Answer<'_>, (spread, base): (Spread, &Row)) -> String {
    let row = answer.row;
    let (bound, within) = match bound(question, row, base) {
        Some(bound) => (format!("{bound:.2}"), if question.goal.is_met(bound) { "yes" } else { "**no**" }),
        None => ("–".to_owned(), "not known"),
    };
    let mut line = String::new();
    let _ = writeln!(
        line,
        "| {} | {} | {} | {:.2}{} | {bound} | {within} | {} |",
        question.what,
        row.point.in_words(),
        question.goal.in_words(),
        spread.median,
        goal::in_brackets(spread, row.runs.len()),
        unavoidable(row)
    );
    line
}

/// `initiator: seal, open 0.44 (0.11 ns a byte), socket (kernel) 1.20; target: …`.
fn unavoidable(row: &Row) -> String {
    let of_end = |name: &str, of: End| {
        let stages = stages(row, of);
        let has = |stage: &Stage| stages.get(stage.name()).map(|us| (*stage, *us)).filter(|(_, us)| *us >= 0.005);
        let list: Vec<String> = UNAVOIDABLE
            .iter()
            .filter_map(has)
            .map(|(stage, us)| match stage {
                Stage::Seal => {
                    let per_byte = us * 1000.0 / row.point.size as f64;
                    format!("{} {us:.2} ({per_byte:.2} ns a byte)", stage.name())
                }
                _ => format!("{} {us:.2}", stage.name()),
            })
            .collect();
        format!("{name}: {}", list.join(", "))
    };
    [of_end("initiator", |profile| &profile.initiator), of_end("target", |profile| &profile.target)].join("; ")
}

type End = fn(&CellProfile) -> &EndProfile;

/// Medians of an end's stages, in microseconds for each I/O.
fn stages(row: &Row, of: End) -> BTreeMap<&'static str, f64> {
    let profiles: Vec<&EndProfile> = row.runs.values().filter_map(|cell| cell.profile.as_deref().map(of)).collect();
    let median = |stage: &Stage| {
        let us = profiles.iter().map(|end| end.stages_us.get(stage.name()).copied().unwrap_or(0.0));
        Spread::of(us).map(|spread| (stage.name(), spread.median))
    };
    Stage::ALL.iter().filter_map(median).collect()
}

/// What an end takes of `base`, and what it takes at least of `row`.
fn end_us(row: &Row, base: &Row, of: End) -> Option<(f64, f64)> {
    let (own, other) = (stages(row, of), stages(base, of));
    if own.is_empty() || other.is_empty() {
        return None;
    }
    let least = |stage: &Stage| {
        let (own, other) = (own[stage.name()], other[stage.name()]);
        if UNAVOIDABLE.contains(stage) { own } else { own.min(other) }
    };
    Some((other.values().sum(), Stage::ALL.iter().map(least).sum()))
}

/// What the answer could be at best.
fn bound(question: &Comparison, row: &Row, base: &Row) -> Option<f64> {
    let (base_initiator, initiator) = end_us(row, base, |profile| &profile.initiator)?;
    let (base_target, target) = end_us(row, base, |profile| &profile.target)?;
    match question.compared {
        Compared::Ratio(Measure::Throughput) => Some(base_initiator.max(base_target) / initiator.max(target)),
        Compared::Ratio(Measure::TargetPerKio) => Some(target / base_target),
        Compared::Difference(Measure::InitiatorPerKio) => Some(initiator - base_initiator),
        Compared::Ratio(_) | Compared::Difference(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{CellKey, CpuCost, Throughput};
    use crate::{Cell, Results};

    fn end(stages: &[(Stage, f64)]) -> EndProfile {
        let stages_us = stages.iter().map(|(stage, us)| (stage.name().to_owned(), *us)).collect();
        EndProfile { samples: 1000, stages_us, ..EndProfile::default() }
    }

    fn cell(scheme: &str, run: u32, kiops: u64, initiator: EndProfile, target: EndProfile) -> Cell {
        let key = CellKey {
            bench: BENCH_PROFILE.into(),
            contender: scheme.into(),
            pattern: "seqwrite".into(),
            size: 4096,
            depth: 16,
            initiators: 1,
            run,
            ..CellKey::default()
        };
        let sum = |end: &EndProfile| Some(end.stages_us.values().sum());
        let cpu = CpuCost {
            initiator_cpu_ms_per_kio: sum(&initiator),
            target_cpu_ms_per_kio: sum(&target),
            ..CpuCost::default()
        };
        let throughput = Throughput::new(kiops * 1000, kiops * 4_096_000, 1.0);
        Cell { cpu, throughput, profile: Some(Box::new(CellProfile { initiator, target })), ..Cell::empty(key) }
    }

    fn text(sealed_kiops: u64, record_us: f64) -> String {
        let cells = (0..5).flat_map(|run| {
            let plain = [(Stage::Socket, 2.0), (Stage::Session, 1.0)];
            let sealed = [(Stage::Socket, 2.0), (Stage::Session, 1.25), (Stage::Seal, 0.5), (Stage::Record, record_us)];
            let target = [(Stage::Socket, 2.0), (Stage::Channel, 0.25)];
            [
                cell("S0", run, 300, end(&plain), end(&target[..1])),
                cell("S2-5", run, sealed_kiops, end(&sealed), end(&target)),
            ]
        });
        let results = Results { machines: Vec::new(), cells: cells.collect() };
        table(&Summary::new(&results, BENCH_PROFILE))
    }

    #[test]
    fn only_what_cannot_be_removed_counts_for_the_bound() {
        let text = text(200, 1.0);
        let line = |what: &str| text.lines().find(|line| line.starts_with(what)).unwrap_or_else(|| panic!("{text}"));
        // Without its records, and with S0's session, it takes 3.5 µs where S0 takes 3.
        let throughput = line("| S2-5 over S0, client throughput |");
        assert!(throughput.contains("| at least 0.88 | 0.67 (0.67–0.67) | 0.86 | **no** |"), "{throughput}");
        assert!(throughput.ends_with(
            "| initiator: seal, open 0.50 (0.12 ns a byte), socket (kernel) 2.00; target: channel 0.25, socket (kernel) 2.00 |"
        ));
        let cost = line("| an initiator's CPU time for a sealed write");
        assert!(cost.contains("| at most 0.9 | 1.75 (1.75–1.75) | 0.50 | yes |"), "{cost}");
    }

    #[test]
    fn a_goal_that_is_met_needs_no_bound() {
        assert_eq!(text(290, 0.3).lines().filter(|line| line.starts_with("| S2-5 over S0")).count(), 0);
        assert_eq!(text(290, 0.0), "");
    }
}

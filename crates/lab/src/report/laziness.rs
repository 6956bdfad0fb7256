//! What laziness buys: the comparisons that the lazy-crypto paper is about, each with what is asked of it and what came out.
//!
//! Costs are the target's CPU time, of all patterns of an experiment together in the same run (a workload that reads and writes), and of
//! each pattern alone.

use std::fmt::Write;

use super::client;
use super::goal::Goal;
use super::markdown;
use super::measure::Measure;
use super::releases;
use super::summary::{Row, Spread, Summary};
use super::words;
use crate::Results;
use strongroom::plot::number;
use strongroom::units::long_size;

/// A comparison of two contenders' costs in one experiment.
struct Question {
    what: &'static str,
    bench: &'static str,
    /// Whose cost is above the line.
    above: &'static str,
    below: &'static str,
    size: u64,
    measure: Measure,
    goal: Goal,
}

const CAPACITY: &str = "GiB a target's CPU second carries";
/// The scheme that protects nothing.
const UNPROTECTED: &str = "S0";
/// From here on a target's processor counts as the bottleneck.
const SATURATED: f64 = 0.95;

const HARDWARE: usize = 0;
const SOFTWARE: usize = 1;
const OVER_NOTHING: usize = 5;
const QUESTIONS: [Question; 7] = [
    at_64k("S2-5 over S2-1, with AES instructions", "capacity-hardware", "S2-1", "S2-5", Goal::AtLeast(1.2)),
    at_64k("S2-5 over S2-1, without them", "capacity-software", "S2-1 software", "S2-5 software", Goal::AtLeast(6.0)),
    at_64k(
        "S2-5 over S2-1, the paper's suite",
        "capacity-paper",
        "S2-1 aes192-cbc+hmac-md5",
        "S2-5 aes192-cbc+hmac-md5",
        Goal::AtLeast(4.0),
    ),
    at_64k(
        "the same with eight initiators",
        "capacity-paper-8",
        "S2-1 aes192-cbc+hmac-md5",
        "S2-5 aes192-cbc+hmac-md5",
        Goal::AtLeast(2.7),
    ),
    at_64k(
        "S1-2 over S1-1, the paper's suite",
        "capacity-paper",
        "S1-1 aes192-cbc+hmac-md5",
        "S1-2 aes192-cbc+hmac-md5",
        Goal::AtLeast(1.5),
    ),
    at_64k("S2-5's target CPU time per GiB, over S0's", "capacity-hardware", "S2-5", UNPROTECTED, Goal::AtMost(1.10)),
    Question {
        what: "S2-5's target CPU time per 1000 I/Os, over S0's",
        bench: "capacity-4k",
        above: "S2-5",
        below: UNPROTECTED,
        size: 4096,
        measure: Measure::TargetPerKio,
        goal: Goal::AtMost(1.25),
    },
];

/// How much more the second carries: the first one's cost over its own.
const fn at_64k(
    what: &'static str,
    bench: &'static str,
    above: &'static str,
    below: &'static str,
    goal: Goal,
) -> Question {
    Question { what, bench, above, below, size: 65536, measure: Measure::TargetPerGib, goal }
}

/// What came out.
struct Answer {
    /// Where: depths, initiators, patterns.
    at: String,
    patterns: Vec<String>,
    ratio: Spread,
    /// What the ratio would be if the lazy scheme cost no more than no protection at all, where that was measured beside it.
    ceiling: Option<f64>,
    /// The least that the target's processor was busy, of those above the line and of those below.
    busy: [f64; 2],
}

impl Question {
    /// Of all patterns together, or of one.
    fn answer(&self, summaries: &[Summary], pattern: Option<&str>) -> Option<Answer> {
        let summary = summaries.iter().find(|summary| summary.experiment.bench == self.bench)?;
        let rows = |contender: &str| {
            let fits = |row: &&Row| {
                row.contender == contender
                    && row.point.size == self.size
                    && pattern.is_none_or(|pattern| row.point.pattern == pattern)
            };
            summary.rows.iter().filter(fits).collect::<Vec<&Row>>()
        };
        let is_whole = |rows: &[&Row]| !rows.is_empty() && rows.iter().all(|row| row.errors.is_empty());
        let (above, below, nothing) = (rows(self.above), rows(self.below), rows(UNPROTECTED));
        if !is_whole(&above) || !is_whole(&below) || above.len() != below.len() {
            return None;
        }
        let cost = |rows: &[&Row], run: u32| -> Option<f64> {
            rows.iter().map(|row| self.measure.of(row.runs.get(&run)?)).sum::<Option<f64>>().filter(|cost| *cost > 0.0)
        };
        let over = |other: &[&Row]| {
            let ratio = |run: &u32| Some(cost(&above, *run)? / cost(other, *run)?);
            Spread::of(above[0].runs.keys().filter_map(ratio))
        };
        let has_ceiling = self.below != UNPROTECTED && is_whole(&nothing) && nothing.len() == above.len();
        let busy = |rows: &[&Row]| {
            let busy = rows.iter().filter_map(|row| row.spread(Measure::TargetBusy)).map(|spread| spread.median);
            busy.fold(1.0, f64::min)
        };
        let place = &above[0].point;
        let patterns: Vec<String> = above.iter().map(|row| row.point.pattern.clone()).collect();
        let at = format!(
            "{}, {} initiator{}, depth {}, {}",
            long_size(self.size),
            place.initiators,
            if place.initiators == 1 { "" } else { "s" },
            place.depth,
            patterns.join(" + ")
        );
        Some(Answer {
            at,
            patterns,
            ratio: over(&below)?,
            ceiling: has_ceiling.then(|| over(&nothing)).flatten().map(|spread| spread.median),
            busy: [busy(&above), busy(&below)],
        })
    }
}

impl Answer {
    /// `1.31 (1.30–1.33)`.
    fn ratio_in_words(&self) -> String {
        format!("{:.2} ({:.2}–{:.2})", self.ratio.median, self.ratio.low, self.ratio.high)
    }

    /// `0.99, 0.97`, and whether that was enough.
    fn busy_in_words(&self) -> String {
        let [above, below] = self.busy;
        let note = if above.min(below) < SATURATED { " (not saturated)" } else { "" };
        format!("{}, {}{note}", number(above), number(below))
    }

    fn ceiling_in_words(&self) -> String {
        self.ceiling.map_or("–".to_owned(), |ceiling| format!("{ceiling:.2}"))
    }
}

/// The section: machine, commands, questions with answers, then every table.
pub(crate) fn section(results: &Results, summaries: &[Summary]) -> String {
    let mut out = String::from("## What laziness buys\n\nFrom one file of results, which the commands below made.\n\n");
    out += &words::machine_and_commands(results);
    let judged: Vec<Summary> = summaries.iter().map(Summary::of_last_release).collect();
    let _ = writeln!(
        out,
        "Capacity is {CAPACITY}; a ratio of capacities is one of costs, run by run: of all patterns together, which is what is asked, and \
         of each alone. What is asked is judged where the target's processor is the bottleneck. Initiators that seal and open in software on \
         the one processor that is left do not get it there, and a target that waits pays for waking up; so they have sealed what they write \
         before (`--sealed-beforehand`), have opened what they read before, and in the measurement send and fetch it: for the target, byte \
         for byte and PDU for PDU, the same, but that it was told before what opens. Where its processor was all the same less than {SATURATED} busy, that is said: first of the \
         costlier one, then of the other. The most that laziness can gain is what the eager scheme costs over {UNPROTECTED}, which \
         protects nothing: that is the last column.\n\n\
         | question | at | asked | came out | | target busy | most there is |\n|---|---|---|---:|---|---:|---:|"
    );
    for question in &QUESTIONS {
        let asked = question.goal.in_words();
        let Some(answer) = question.answer(&judged, None) else {
            let _ = writeln!(
                out,
                "| {} | {} | {asked} | – | not measured | – | – |",
                question.what,
                long_size(question.size)
            );
            continue;
        };
        let verdict = question.goal.verdict(answer.ratio.median);
        let (came_out, busy, ceiling) = (answer.ratio_in_words(), answer.busy_in_words(), answer.ceiling_in_words());
        let _ = writeln!(
            out,
            "| {} | {} | {asked} | {came_out} | {verdict} | {busy} | {ceiling} |",
            question.what, answer.at
        );
        for pattern in &answer.patterns {
            if let Some(answer) = question.answer(&judged, Some(pattern)) {
                let (came_out, busy, ceiling) =
                    (answer.ratio_in_words(), answer.busy_in_words(), answer.ceiling_in_words());
                let _ = writeln!(out, "| | {pattern} alone | | {came_out} | | {busy} | {ceiling} |");
            }
        }
    }
    out += "\nWhere a goal is missed, the stages of both contenders and the bound that follows from them are in docs/bench/profile.md.\n";
    if let Some(plainly) = plainly(&judged) {
        let _ = writeln!(out, "\n**Plainly.** {plainly}");
    }
    out += &client::table(&judged);
    out += &releases::table(summaries);
    for summary in summaries {
        let _ = writeln!(out, "\n### {}\n\n{}\n", summary.experiment.title, words::reliability(summary));
        for failure in words::failures(summary) {
            let _ = writeln!(out, "- **Failed:** {failure}");
        }
        let _ = writeln!(out, "{}", markdown::table(summary));
    }
    out
}

/// On which processor laziness buys what, in two sentences.
fn plainly(summaries: &[Summary]) -> Option<String> {
    let answer = |at: usize| QUESTIONS[at].answer(summaries, None);
    let (hardware, software, over_nothing) = (answer(HARDWARE)?, answer(SOFTWARE)?, answer(OVER_NOTHING)?);
    let most = match (hardware.ceiling, software.ceiling) {
        (Some(hardware), Some(software)) => format!(
            " All that can be saved is the eager scheme's own work on data: with AES instructions a target that did nothing of its own at \
             all would have {hardware:.2} times the eager one's capacity, without them {software:.1} times. What is missing to that is \
             carrying, checking and keeping each block's record."
        ),
        _ => String::new(),
    };
    Some(format!(
        "With AES instructions the target of the lazy scheme has {:.2} times the capacity of one that protects everything at both ends: \
         encryption costs little there, and what remains is moving data; without them, {:.1} times. Where the processor has them, such a \
         target does {:.2} times the work of one that protects nothing at all, and cannot read what it stores.{most}",
        hardware.ratio.median, software.ratio.median, over_nothing.ratio.median
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cell;
    use crate::cell::{CellKey, CpuCost};

    fn cell(contender: &str, pattern: &str, run: u32, cost: f64) -> Cell {
        let key = CellKey {
            bench: "capacity-hardware".into(),
            contender: contender.into(),
            pattern: pattern.into(),
            size: 65536,
            depth: 16,
            initiators: 1,
            run,
            ..CellKey::default()
        };
        let cpu = CpuCost { target_cpu_s_per_gib: Some(cost), target_busy: Some(0.99), ..CpuCost::default() };
        Cell { cpu, ..Cell::empty(key) }
    }

    #[test]
    fn a_ratio_is_of_all_patterns_together_and_held_against_what_is_asked() {
        let mut cells = Vec::new();
        for run in 0..3 {
            let noise = 1.0 + f64::from(run) / 100.0;
            for (pattern, lazy, eager) in [("seqread", 0.4, 0.5), ("seqwrite", 0.6, 0.8)] {
                cells.push(cell("S2-5", pattern, run, lazy * noise));
                cells.push(cell("S2-1", pattern, run, eager * noise));
                cells.push(cell("S0", pattern, run, 0.4 * noise));
            }
        }
        let results = Results { machines: Vec::new(), cells };
        let summaries = [Summary::new(&results, "capacity-hardware")];
        let text = section(&results, &summaries);
        let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap().to_owned();
        let hardware = line("S2-5 over S2-1, with AES");
        assert!(
            hardware.contains("1.30 (1.30–1.30) | met | 0.99, 0.99 | 1.6"),
            "1.3 over 1.0, and over 0.8: {hardware}"
        );
        assert!(line("CPU time per GiB, over S0's").contains("1.25 (1.25–1.25) | **not met** | 0.99, 0.99 | – |"));
        assert!(line("without them").contains("not measured"));
        let of_writes: Vec<&str> = text.lines().filter(|line| line.contains("| seqwrite alone |")).collect();
        assert!(of_writes[0].contains("1.33 (1.33–1.33)") && of_writes[1].contains("1.50"), "{of_writes:?}");
        let mut idle = results.clone();
        idle.cells
            .iter_mut()
            .filter(|cell| cell.key.contender == "S2-5")
            .for_each(|cell| cell.cpu.target_busy = Some(0.5));
        let text = section(&idle, &[Summary::new(&idle, "capacity-hardware")]);
        assert!(text.contains("| met | 0.99, 0.5 (not saturated) |"), "{text}");
        let mut failed = results.clone();
        failed.cells[0] = failed.cells[0].clone().failed("it fell over");
        let text = section(&failed, &[Summary::new(&failed, "capacity-hardware")]);
        let line = text.lines().find(|line| line.contains("with AES")).unwrap();
        assert!(line.contains("not measured"), "two good runs do not hide a bad one: {line}");
    }
}

//! What laziness buys: the comparisons that the lazy-crypto paper is about, each with what is asked of it and what came out.
//!
//! Costs are the target's CPU time, summed over all patterns of a size in the same run: a workload that reads and writes.

use std::fmt::Write;

use super::experiment::Measure;
use super::goal::Goal;
use super::markdown;
use super::summary::{Row, Spread, Summary};
use super::svg::number;
use super::words;
use crate::{Results, long_size};

/// A comparison of two contenders' costs.
struct Question {
    what: &'static str,
    /// Whose cost is above the line.
    above: &'static str,
    below: &'static str,
    size: u64,
    initiators: u32,
    measure: Measure,
    goal: Goal,
}

const CAPACITY: &str = "GiB a target's CPU second carries";
/// The scheme that protects nothing.
const UNPROTECTED: &str = "S0";

const QUESTIONS: [Question; 7] = [
    at_64k("S2-5 over S2-1, with AES instructions", "S2-1", "S2-5", 1, Goal::AtLeast(1.2)),
    at_64k("S2-5 over S2-1, without them", "S2-1 software", "S2-5 software", 1, Goal::AtLeast(6.0)),
    at_64k(
        "S2-5 over S2-1, the paper's suite",
        "S2-1 aes192-cbc+hmac-md5",
        "S2-5 aes192-cbc+hmac-md5",
        1,
        Goal::AtLeast(4.0),
    ),
    at_64k(
        "the same with eight initiators",
        "S2-1 aes192-cbc+hmac-md5",
        "S2-5 aes192-cbc+hmac-md5",
        8,
        Goal::AtLeast(2.7),
    ),
    at_64k(
        "S1-2 over S1-1, the paper's suite",
        "S1-1 aes192-cbc+hmac-md5",
        "S1-2 aes192-cbc+hmac-md5",
        1,
        Goal::AtLeast(1.5),
    ),
    Question {
        what: "S2-5's target CPU time per GiB, over S0's",
        above: "S2-5",
        below: "S0",
        size: 65536,
        initiators: 1,
        measure: Measure::TargetPerGib,
        goal: Goal::AtMost(1.10),
    },
    Question {
        what: "S2-5's target CPU time per 1000 I/Os, over S0's",
        above: "S2-5",
        below: "S0",
        size: 4096,
        initiators: 1,
        measure: Measure::TargetPerKio,
        goal: Goal::AtMost(1.25),
    },
];

/// How much more the lazy scheme carries: the eager one's cost over the lazy one's.
const fn at_64k(what: &'static str, eager: &'static str, lazy: &'static str, initiators: u32, goal: Goal) -> Question {
    Question { what, above: eager, below: lazy, size: 65536, initiators, measure: Measure::TargetPerGib, goal }
}

/// What came out.
struct Answer {
    patterns: Vec<String>,
    ratio: Spread,
    /// What the ratio would be if the lazy scheme cost no more than no protection at all, where that was measured beside it.
    ceiling: Option<f64>,
    /// The least that the target's processor was busy.
    busy: f64,
}

impl Question {
    /// From the first experiment that has both contenders.
    fn answer(&self, summaries: &[Summary]) -> Option<Answer> {
        summaries.iter().find_map(|summary| {
            let rows = |contender: &str| {
                let fits = |row: &&Row| {
                    row.contender == contender && row.place.size == self.size && row.place.initiators == self.initiators
                };
                summary.rows.iter().filter(fits).collect::<Vec<&Row>>()
            };
            let (above, below) = (rows(self.above), rows(self.below));
            let is_whole = !above.is_empty()
                && above.len() == below.len()
                && above.iter().chain(&below).all(|row| row.errors.is_empty());
            if !is_whole {
                return None;
            }
            let cost = |rows: &[&Row], run: u32| -> Option<f64> {
                rows.iter()
                    .map(|row| self.measure.of(row.runs.get(&run)?))
                    .sum::<Option<f64>>()
                    .filter(|cost| *cost > 0.0)
            };
            let ratio = |run: &u32| Some(cost(&above, *run)? / cost(&below, *run)?);
            let ratio = Spread::of(above[0].runs.keys().filter_map(ratio))?;
            let busy = above.iter().chain(&below).filter_map(|row| row.spread(Measure::TargetBusy));
            let busy = busy.map(|spread| spread.median).fold(1.0, f64::min);
            let patterns: Vec<String> = above.iter().map(|row| row.place.pattern.clone()).collect();
            let mut nothing = rows(UNPROTECTED);
            nothing.retain(|row| patterns.contains(&row.place.pattern) && row.errors.is_empty());
            let most = |run: &u32| Some(cost(&above, *run)? / cost(&nothing, *run)?);
            let is_comparable = self.below != UNPROTECTED && nothing.len() == above.len();
            let ceiling = is_comparable.then(|| Spread::of(above[0].runs.keys().filter_map(most))).flatten();
            Some(Answer { patterns, ratio, ceiling: ceiling.map(|spread| spread.median), busy })
        })
    }
}

/// The section: machine, commands, questions with answers, then every table.
pub(crate) fn section(results: &Results, summaries: &[Summary]) -> String {
    let mut out = String::from("## What laziness buys\n\nMade by `make bench-schemes` from one file of results.\n");
    if let Some(machine) = results.machines.first() {
        let _ = writeln!(out, "\n{}\n\nCommands:\n\n```", words::machine_in_words(machine));
        for machine in &results.machines {
            let _ = writeln!(out, "{}", machine.command);
        }
        out += "```\n";
    }
    let _ = writeln!(
        out,
        "\nCapacity is {CAPACITY}; a ratio of capacities is one of costs, of all patterns together, run by run. Where the target's \
         processor was less than 0.95 busy its time per I/O includes waking up, and says less. The most that laziness can gain is what the \
         eager scheme costs over {UNPROTECTED}, which protects nothing: that is the last column.\n\n\
         | question | at | asked | came out | | target busy | most there is |\n|---|---|---|---:|---|---:|---:|"
    );
    for question in &QUESTIONS {
        let at =
            format!("{}, {} initiator{}", long_size(question.size), question.initiators, plural(question.initiators));
        let asked = question.goal.in_words();
        match question.answer(summaries) {
            Some(Answer { patterns, ratio, ceiling, busy }) => {
                let ceiling = ceiling.map_or("–".to_owned(), |ceiling| format!("{ceiling:.2}"));
                let verdict = question.goal.verdict(ratio.median);
                let _ = writeln!(
                    out,
                    "| {} | {at}, {} | {asked} | {:.2} ({:.2}–{:.2}) | {verdict} | {} | {ceiling} |",
                    question.what,
                    patterns.join(" + "),
                    ratio.median,
                    ratio.low,
                    ratio.high,
                    number(busy)
                );
            }
            None => {
                let _ = writeln!(out, "| {} | {at} | {asked} | – | not measured | – | – |", question.what);
            }
        }
    }
    if let Some(plainly) = plainly(summaries) {
        let _ = writeln!(out, "\n**Plainly.** {plainly}");
    }
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
    let ratio = |at: usize| Some(QUESTIONS[at].answer(summaries)?.ratio.median);
    let (hardware, software) = (ratio(0)?, ratio(1)?);
    let over_nothing = ratio(5)?;
    let ceiling = |at: usize| QUESTIONS[at].answer(summaries)?.ceiling;
    let most = match (ceiling(0), ceiling(1)) {
        (Some(hardware), Some(software)) => format!(
            " All that can be saved is the eager scheme's own work on data: with AES instructions a target that did nothing of its own at \
             all would have {hardware:.2} times the eager one's capacity, without them {software:.1} times. What is missing to that is \
             checking and keeping each block's record, and, where initiators seal slowly, waking up for each write."
        ),
        _ => String::new(),
    };
    Some(format!(
        "With AES instructions the target of the lazy scheme has {hardware:.2} times the capacity of one that protects everything at both \
         ends: encryption costs little there, and what remains is moving data; without them, {software:.1} times. Where the processor has \
         them, such a target does {over_nothing:.2} times the work of one that protects nothing at all, and cannot read what it stores.{most}"
    ))
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cell;

    fn cell(contender: &str, pattern: &str, run: u32, cost: f64) -> Cell {
        Cell {
            bench: "schemes".into(),
            contender: contender.into(),
            pattern: pattern.into(),
            size: 65536,
            depth: 16,
            initiators: 1,
            run,
            target_cpu_s_per_gib: Some(cost),
            target_busy: Some(0.99),
            ..Cell::default()
        }
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
        let summaries = [Summary::new(&results, "schemes")];
        let text = section(&results, &summaries);
        let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap().to_owned();
        let hardware = line("S2-5 over S2-1, with AES");
        assert!(hardware.contains("1.30 (1.30–1.30) | met | 0.99 | 1.6"), "1.3 over 1.0, and over 0.8: {hardware}");
        assert!(line("CPU time per GiB, over S0's").contains("1.25 (1.25–1.25) | **not met** | 0.99 | – |"));
        assert!(line("without them").contains("not measured"));
        let mut failed = results.clone();
        failed.cells[0] = failed.cells[0].clone().failed("it fell over");
        let text = section(&failed, &[Summary::new(&failed, "schemes")]);
        let line = text.lines().find(|line| line.contains("with AES")).unwrap();
        assert!(line.contains("not measured"), "two good runs do not hide a bad one: {line}");
    }
}

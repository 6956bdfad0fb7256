//! What is asked of a number, and whether it came out so: experiments that were asked for figures judge themselves by these.

use std::fmt::Write;

use super::summary::Spread;

/// A median of fewer runs is marked.
pub(super) const RUNS_MIN: usize = 5;
/// In the place of a verdict.
const NOT_MEASURED: &str = "not measured";

/// What is asked of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing but that it is told, beside what is said here.
    Beside(&'static str),
}

impl Goal {
    /// A figure that is only told meets what is asked.
    pub(super) fn is_met(self, number: f64) -> bool {
        match self {
            Goal::AtLeast(bound) => number >= bound,
            Goal::AtMost(bound) => number <= bound,
            Goal::Beside(_) => true,
        }
    }

    pub(super) fn in_words(self) -> String {
        match self {
            Goal::AtLeast(bound) => format!("at least {bound}"),
            Goal::AtMost(bound) => format!("at most {bound}"),
            Goal::Beside(what) => format!("reported beside {what}"),
        }
    }

    /// As a table has it.
    pub(super) fn verdict(self, number: f64) -> &'static str {
        match self {
            Goal::Beside(_) => "reported",
            _ if self.is_met(number) => "met",
            _ => "**not met**",
        }
    }
}

/// One figure that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Figure {
    pub(super) what: String,
    /// Where it was measured.
    pub(super) at: String,
    pub(super) goal: Goal,
    /// What came out, and more about it in words.
    pub(super) came_out: Option<(f64, String)>,
}

impl Figure {
    fn verdict(&self) -> &'static str {
        self.came_out.as_ref().map_or(NOT_MEASURED, |(number, _)| self.goal.verdict(*number))
    }
}

/// What was not met, what was not measured, and what was met, in this order: each question once, with the experiments that it is about.
pub(super) fn in_short(figures: &[Figure]) -> String {
    let mut out = String::new();
    for (head, wanted) in [("**Not met**", "**not met**"), ("**Not measured**", NOT_MEASURED), ("**Met**", "met")] {
        let mut questions: Vec<(String, Vec<&str>)> = Vec::new();
        for figure in figures.iter().filter(|figure| figure.verdict() == wanted) {
            let bench = figure.at.split(':').next().expect("a part");
            let asked = format!("{}: {}", figure.what, figure.goal.in_words());
            match questions.iter_mut().find(|(question, _)| *question == asked) {
                Some((_, benches)) if benches.contains(&bench) => {}
                Some((_, benches)) => benches.push(bench),
                None => questions.push((asked, vec![bench])),
            }
        }
        if !questions.is_empty() {
            let list = questions.iter().map(|(question, benches)| format!("{question} ({})", benches.join(", ")));
            let _ = writeln!(out, "{head}: {}.\n", list.collect::<Vec<_>>().join("; "));
        }
    }
    out
}

/// A line for each.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut out = String::from("| question | at | asked | came out | |\n|---|---|---|---:|---|\n");
    for figure in figures {
        let Figure { what, at, goal, came_out } = figure;
        let number = came_out.as_ref().map_or("–".to_owned(), |(number, more)| format!("{number:.2}{more}"));
        let _ = writeln!(out, "| {what} | {at} | {} | {number} | {} |", goal.in_words(), figure.verdict());
    }
    out
}

/// What stands behind a median in a table: ` (0.95–1.02)`, and how many runs there were if they were few.
pub(super) fn in_brackets(spread: Spread, runs: usize) -> String {
    let few = if runs < RUNS_MIN { format!(", of {runs} runs only") } else { String::new() };
    format!(" ({:.2}–{:.2}){few}", spread.low, spread.high)
}

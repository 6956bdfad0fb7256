//! What is asked of a number, and whether it came out so: experiments that were asked for figures judge themselves by these.

use std::fmt::Write;

use super::summary::Spread;

/// A median of fewer runs is marked.
pub(super) const RUNS_MIN: usize = 5;

/// What is asked of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Goal {
    pub(super) fn is_met(self, number: f64) -> bool {
        match self {
            Goal::AtLeast(bound) => number >= bound,
            Goal::AtMost(bound) => number <= bound,
        }
    }

    pub(super) fn in_words(self) -> String {
        match self {
            Goal::AtLeast(bound) => format!("at least {bound}"),
            Goal::AtMost(bound) => format!("at most {bound}"),
        }
    }

    /// As a table has it.
    pub(super) fn verdict(self, number: f64) -> &'static str {
        if self.is_met(number) { "met" } else { "**not met**" }
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

/// A line for each.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut out = String::from("| question | at | asked | came out | |\n|---|---|---|---:|---|\n");
    for Figure { what, at, goal, came_out } in figures {
        let asked = goal.in_words();
        let _ = match came_out {
            Some((number, more)) => {
                writeln!(out, "| {what} | {at} | {asked} | {number:.2}{more} | {} |", goal.verdict(*number))
            }
            None => writeln!(out, "| {what} | {at} | {asked} | – | not measured |"),
        };
    }
    out
}

/// What stands behind a median in a table: ` (0.95–1.02)`, and how many runs there were if they were few.
pub(super) fn in_brackets(spread: Spread, runs: usize) -> String {
    let few = if runs < RUNS_MIN { format!(", of {runs} runs only") } else { String::new() };
    format!(" ({:.2}–{:.2}){few}", spread.low, spread.high)
}

//! The results as a table, and their place in a document.

use std::fmt::Write as _;
use std::path::Path;

use super::Plan;

const BEGIN: &str = "<!-- bench-store: begin; written by `make bench-store` -->";
const END: &str = "<!-- bench-store: end -->";

/// One line: what, ours, what it is compared with, the ratio or figure, and what is to be reached.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 5]>,
}

impl Table {
    /// Adds a line.
    pub(crate) fn row(&mut self, what: &str, ours: String, other: String, figure: String, goal: &str) {
        println!("{what}: {ours} {other} {figure} ({goal})");
        self.rows.push([what.to_owned(), ours, other, figure, goal.to_owned()]);
    }

    /// As markdown.
    pub(crate) fn to_markdown(&self, plan: &Plan) -> String {
        let mut text = format!(
            "`make bench-store`: {} MiB volume, {} rounds of {} s each, interleaved; medians.\n\n\
             | what | store | fio, raw file | figure | to reach |\n|---|---|---|---|---|\n",
            plan.size_mib, plan.rounds, plan.seconds
        );
        for [what, ours, other, figure, goal] in &self.rows {
            writeln!(text, "| {what} | {ours} | {other} | {figure} | {goal} |").expect("strings take everything");
        }
        text
    }
}

/// Replaces what is between the marks of a document; adds them at its end if it has none.
pub(crate) fn put(path: &Path, text: &str) {
    let document = std::fs::read_to_string(path).unwrap_or_default();
    let section = format!("{BEGIN}\n{text}{END}");
    let replaced = match (document.find(BEGIN), document.find(END)) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{section}{}", &document[..begin], &document[end + END.len()..])
        }
        _ => format!("{document}\n## The store\n\n{section}\n"),
    };
    std::fs::write(path, replaced).expect("the document can be written");
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

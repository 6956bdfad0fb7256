//! The results as a table, what of them is not reached, and their place in a document.

use std::fmt::Write as _;
use std::path::Path;

use super::Plan;
use super::load::DATA_CACHE_BYTES;

const BEGIN: &str = "<!-- bench-store: begin; written by `make bench-store` -->";
const END: &str = "<!-- bench-store: end -->";

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing: it is reported.
    Reported,
}

impl Goal {
    fn is_reached(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(least) => value >= least,
            Goal::AtMost(most) => value <= most,
            Goal::Reported => true,
        }
    }

    fn text(self) -> String {
        match self {
            Goal::AtLeast(least) => format!("at least {least}"),
            Goal::AtMost(most) => format!("at most {most}"),
            Goal::Reported => "reported".to_owned(),
        }
    }
}

/// One line for each: what, ours, what it is compared with, the ratio or figure, what is to be reached, and whether it is.
#[derive(Default)]
pub(crate) struct Table {
    rows: Vec<[String; 6]>,
    missed: Vec<String>,
}

impl Table {
    /// Adds a line.
    pub(crate) fn row(&mut self, what: &str, ours: String, other: String, (value, unit): (f64, &str), goal: Goal) {
        let figure = format!("{value:.2}{unit}");
        // As printed: nobody shall see 0.90 missed where 0.9 was to be reached.
        let reached = goal.is_reached((value * 100.0).round() / 100.0);
        if !reached {
            self.missed.push(format!("{what} ({figure}, {})", goal.text()));
        }
        let mark = if goal == Goal::Reported { "" } else { ["**no**", "yes"][usize::from(reached)] };
        println!("{what}: {ours} {other} {figure} ({}) {mark}", goal.text());
        self.rows.push([what.to_owned(), ours, other, figure, goal.text(), mark.to_owned()]);
    }

    /// As markdown.
    pub(crate) fn to_markdown(&self, plan: &Plan) -> String {
        let mut text = format!(
            "`make bench-store`: a volume of {} MiB, the store and fio by turns on one file system (direct I/O, io_uring, queue depth 32), \
             {} rounds of {} s for each, a second of each in turns; medians of speeds and of the ratios of each turn. Caches of the store: {} MiB of data, and of \
             records as each line says. Each part alone, and with other sizes: \
             `cargo run --release -p strongroom-store --example bench-store -- --dir DIR --only io|amplification|memory|opening`. CPU is user and system time of the store's one thread, per request. Load average when it began: \
             {}.\n\n\
             | what | store | fio, raw file | figure | to reach | reached |\n|---|---|---|---|---|---|\n",
            plan.size_mib,
            plan.rounds,
            plan.seconds,
            DATA_CACHE_BYTES >> 20,
            plan.load
        );
        for [what, ours, other, figure, goal, reached] in &self.rows {
            writeln!(text, "| {what} | {ours} | {other} | {figure} | {goal} | {reached} |")
                .expect("strings take everything");
        }
        let missed = match &self.missed[..] {
            [] => "Everything that was to be reached is.".to_owned(),
            missed => format!("Not reached: {}.", missed.join("; ")),
        };
        writeln!(text, "\n{missed}").expect("strings take everything");
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

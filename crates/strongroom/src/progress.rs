//! How a long operation says how far it is: a bar on a terminal, or lines of JSON for programs. Both go to standard error, because standard
//! output is for results, of which some are streams.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::json;

use crate::units::{show_duration, show_size};

/// How often a line of JSON is written.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// How progress and result are told.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct ProgressArgs {
    /// No progress bar.
    #[arg(long)]
    quiet: bool,
    /// Print the result as JSON, and once a second how far it is, as a line of JSON on standard error.
    #[arg(long)]
    json: bool,
}

/// What progress is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProgressUnit {
    Bytes,
    Blocks,
    /// With [`ProgressReporter::set_estimate`].
    #[serde(rename = "bytes")]
    EstimatedBytes,
    /// Parts of the whole, which have no size of their own.
    Parts,
}

impl ProgressUnit {
    fn template(self, has_total: bool) -> &'static str {
        match (self, has_total) {
            (ProgressUnit::Bytes, true) => {
                "{prefix} {bar:30} {percent:>3} %  {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left  {msg}"
            }
            (ProgressUnit::Bytes, false) => "{prefix} {spinner} {bytes}, {bytes_per_sec}  {msg}",
            (ProgressUnit::EstimatedBytes, _) => "{prefix} {bar:30} {percent:>3} %  {bytes} of {total_bytes}  {msg}",
            (ProgressUnit::Blocks, _) => {
                "{prefix} {bar:30} {percent:>3} %  block {pos} of {len}, {per_sec}, about {eta} left  {msg}"
            }
            (ProgressUnit::Parts, _) => "{prefix} {bar:30} {percent:>3} %, about {eta} left  {msg}",
        }
    }
}

impl ProgressArgs {
    /// As for a command that has only `--json`.
    pub(crate) fn json_only(json: bool) -> ProgressArgs {
        ProgressArgs { quiet: false, json }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Begins to tell of `operation` (a participle, such as "sending"). `total`: how many units it has, if that is known.
    pub(crate) fn begin(&self, operation: &'static str, unit: ProgressUnit, total: Option<u64>) -> ProgressReporter {
        let is_shown = !self.quiet && !self.json && std::io::stderr().is_terminal();
        let target = if is_shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(total, target).with_prefix(operation);
        if is_shown {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        let lines = self.json.then(|| RefCell::new(ProgressLines::new(operation, unit, total)));
        let progress = ProgressReporter { bar, unit, lines };
        progress.set_style(total.is_some());
        progress
    }

    /// What a person is told on the way to the result: on standard output, unless a program reads that.
    pub(crate) fn say(&self, text: &str) {
        if self.json { eprintln!("{text}") } else { println!("{text}") }
    }

    /// The result: as JSON, or in words.
    pub(crate) fn print_result(&self, result: &serde_json::Value, in_words: impl FnOnce()) {
        if self.json { println!("{result:#}") } else { in_words() }
    }
}

/// The progress of one operation.
pub(crate) struct ProgressReporter {
    bar: ProgressBar,
    unit: ProgressUnit,
    lines: Option<RefCell<ProgressLines>>,
}

impl ProgressReporter {
    fn set_style(&self, has_total: bool) {
        let style = ProgressStyle::with_template(self.unit.template(has_total)).expect("the templates are constant");
        self.bar.set_style(style.progress_chars("=> "));
    }

    /// Another phase of it begins, or it goes on in the same.
    pub(crate) fn set_operation(&self, operation: &'static str) {
        self.bar.set_prefix(operation);
        if let Some(lines) = &self.lines {
            lines.borrow_mut().set_operation(operation, Instant::now());
        }
    }

    pub(crate) fn set_total(&self, total: u64) {
        if self.bar.length() != Some(total) {
            self.bar.set_length(total);
            self.set_style(true);
        }
        if let Some(lines) = &self.lines {
            lines.borrow_mut().total = Some(total);
        }
    }

    pub(crate) fn set_position(&self, done: u64) {
        self.bar.set_position(done);
        if let Some(line) = self.lines.as_ref().and_then(|lines| lines.borrow_mut().line(done, Instant::now())) {
            eprintln!("{}", json!({ "progress": line }));
        }
    }

    /// What else is to be said behind the bar.
    pub(crate) fn set_message(&self, message: String) {
        self.bar.set_message(message);
    }

    /// An operation that knows its rate better, because parts of it cost nothing, says it before each position.
    pub(crate) fn set_estimate(&self, estimate: Estimate) {
        let left = match estimate.left {
            Some(left) => format!(", about {} left", show_duration(left)),
            None if !estimate.stalled_for.is_zero() => {
                format!(", nothing has moved for {}", show_duration(estimate.stalled_for))
            }
            None => String::new(),
        };
        self.bar.set_message(format!("{}/s{left}", show_size(estimate.per_second as u64)));
        if let Some(lines) = &self.lines {
            lines.borrow_mut().estimate = Some(estimate);
        }
    }

    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Writes something above the bar.
    pub(crate) fn suspend(&self, write: impl FnOnce()) {
        self.bar.suspend(write);
    }

    /// The bar goes.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// How fast it goes, in units per second; how long what is left takes, if that can be told; for how long nothing has moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Estimate {
    pub(crate) per_second: f64,
    pub(crate) left: Option<Duration>,
    pub(crate) stalled_for: Duration,
}

/// Makes the lines of JSON, given the time.
struct ProgressLines {
    operation: &'static str,
    unit: ProgressUnit,
    total: Option<u64>,
    estimate: Option<Estimate>,
    /// When the last line was written, and how much was done then.
    last: Option<(Instant, u64)>,
    /// The same for the beginning: what was done before is not part of the rate.
    first: Option<(Instant, u64)>,
}

/// How far an operation is. Unless it estimates them itself, `per_second` is since the line before, and `seconds_left` at the rate since it began.
#[derive(Debug, PartialEq, Serialize)]
struct ProgressLine {
    operation: &'static str,
    unit: ProgressUnit,
    done: u64,
    total: Option<u64>,
    per_second: Option<f64>,
    seconds_left: Option<f64>,
}

impl ProgressLines {
    fn new(operation: &'static str, unit: ProgressUnit, total: Option<u64>) -> ProgressLines {
        ProgressLines { operation, unit, total, estimate: None, last: None, first: None }
    }

    fn set_operation(&mut self, operation: &'static str, now: Instant) {
        if self.operation != operation {
            *self = ProgressLines { first: Some((now, 0)), ..ProgressLines::new(operation, self.unit, self.total) };
        }
    }

    /// The line to be written now, if one is due: the first at once.
    fn line(&mut self, done: u64, now: Instant) -> Option<ProgressLine> {
        let first = *self.first.get_or_insert((now, done));
        if self.last.is_some_and(|(at, _)| now.saturating_duration_since(at) < LINE_EVERY) {
            return None;
        }
        let rate_since = |(at, before): (Instant, u64)| {
            let seconds = now.saturating_duration_since(at).as_secs_f64();
            (seconds > 0.0).then(|| done.saturating_sub(before) as f64 / seconds)
        };
        let rate = self.last.replace((now, done)).and_then(rate_since);
        let left = self.total.map(|total| total.saturating_sub(done));
        let rate_in_all = rate_since(first).filter(|rate| *rate > 0.0);
        let (per_second, seconds_left) = match self.estimate {
            Some(estimate) => (Some(estimate.per_second), estimate.left.map(|left| left.as_secs_f64())),
            None => (rate, left.zip(rate_in_all).map(|(left, rate)| left as f64 / rate)),
        };
        let ProgressLines { operation, unit, total, .. } = *self;
        Some(ProgressLine { operation, unit, done, total, per_second, seconds_left })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_once_and_then_each_second() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let mut lines = ProgressLines::new("sending", ProgressUnit::Bytes, Some(1000));
        let line = lines.line(100, begun).unwrap();
        assert_eq!((line.done, line.per_second, line.seconds_left), (100, None, None), "it went on from there");
        assert_eq!(lines.line(150, after(999)), None);
        let line = lines.line(300, after(2000)).unwrap();
        assert_eq!((line.per_second, line.seconds_left), (Some(100.0), Some(7.0)));
        let line = lines.line(300, after(4000)).unwrap();
        assert_eq!((line.per_second, line.seconds_left), (Some(0.0), Some(14.0)), "stalled");
    }

    #[test]
    fn another_phase_has_a_rate_of_its_own() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut lines = ProgressLines::new("copying", ProgressUnit::Bytes, None);
        assert_eq!(lines.line(1000, after(1)).unwrap().seconds_left, None, "without a total");
        lines.set_operation("verifying", after(10));
        lines.total = Some(100);
        let line = lines.line(50, after(15)).unwrap();
        assert_eq!((line.operation, line.seconds_left), ("verifying", Some(5.0)));
        lines.set_operation("verifying", after(16));
        assert_eq!(lines.line(60, after(15)), None, "the same one goes on");
    }

    #[test]
    fn an_estimate_is_told_as_it_was_given() {
        let mut lines = ProgressLines::new("copying", ProgressUnit::EstimatedBytes, Some(100));
        lines.estimate =
            Some(Estimate { per_second: 3.0, left: Some(Duration::from_secs(9)), stalled_for: Duration::ZERO });
        let line = lines.line(50, Instant::now()).unwrap();
        assert_eq!((line.per_second, line.seconds_left), (Some(3.0), Some(9.0)));
        assert_eq!(serde_json::to_value(line).unwrap()["unit"], "bytes");
    }

    #[test]
    fn a_line_has_conventional_names() {
        let line = ProgressLines::new("checking", ProgressUnit::Blocks, None).line(7, Instant::now());
        assert_eq!(
            serde_json::to_value(line).unwrap(),
            json!({
                "operation": "checking", "unit": "blocks", "done": 7, "total": null, "per_second": null, "seconds_left": null
            })
        );
    }
}

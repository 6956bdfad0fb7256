//! What a person sees while a benchmark runs: a bar with the time that remains, or where nobody looks at a terminal a line now and then;
//! and Ctrl-C that ends it in order.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use strongroom_lab::{BenchError, Cell, Machine, Results, ResultsFile, Watch};

use strongroom::StopSignals;

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(15);

/// Shows steps, keeps cells, and listens for Ctrl-C.
pub(crate) struct Progress {
    bar: ProgressBar,
    file: Option<ResultsFile>,
    results: Results,
    stopped: Arc<AtomicBool>,
    /// When the next line is due, if it is lines.
    line_at: Option<Instant>,
}

impl Progress {
    /// From here on Ctrl-C ends the benchmark between two measurements. Results go to `json` as they come, if it is given.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub(crate) fn new(json: Option<&Path>, append: bool, machine: Machine, quiet: bool) -> Result<Progress> {
        let signals = StopSignals::block().context("cannot wait for Ctrl-C")?;
        let file = json.map(|path| ResultsFile::create(path, append, &machine)).transpose()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stopped);
        thread::Builder::new().name("signals".into()).spawn(move || {
            while signals.wait(Duration::from_secs(3600)).is_none() {}
            seen.store(true, Ordering::Relaxed);
            eprintln!("stopping …");
        })?;
        let bar = ProgressBar::new(0);
        bar.set_draw_target(if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr_with_hz(4) });
        let style = "{bar:24} {pos}/{len}  {prefix}  {wide_msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("a well-formed template"));
        let line_at = (!quiet && !std::io::stderr().is_terminal()).then(Instant::now);
        Ok(Progress { bar, file, results: Results { machines: vec![machine], cells: Vec::new() }, stopped, line_at })
    }

    /// Ends the bar; what was measured.
    pub(crate) fn finish(self) -> Results {
        self.bar.finish_and_clear();
        self.results
    }
}

impl Watch for Progress {
    fn step(&mut self, done: usize, total: usize, left: Option<Duration>, what: &str) {
        let now = Instant::now();
        if self.line_at.is_some_and(|at| at <= now) {
            self.line_at = Some(now + LINE_EVERY);
            eprintln!("{done}/{total}  {}  {what}", left.map_or_else(|| "…".to_owned(), time_left));
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_prefix(left.map_or_else(|| "…".to_owned(), time_left));
        self.bar.set_message(what.to_owned());
    }

    fn cell(&mut self, cell: &Cell) -> Result<(), BenchError> {
        if let Some(error) = &cell.error {
            self.bar.suspend(|| eprintln!("{} {} {} B: {error}", cell.key.contender, cell.key.pattern, cell.key.size));
        }
        if let Some(file) = &mut self.file {
            file.cell(cell)?;
        }
        self.results.cells.push(cell.clone());
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// `2:05 left`.
fn time_left(left: Duration) -> String {
    let seconds = left.as_secs();
    format!("{}:{:02} left", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_minutes_and_seconds() {
        assert_eq!(time_left(Duration::from_secs(125)), "2:05 left");
    }
}

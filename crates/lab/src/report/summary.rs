//! Runs made into rows: the median and the spread of every number, and ratios between contenders of the same run.

use std::collections::BTreeMap;

use super::experiment::Experiment;
use super::measure::Measure;
use crate::{Cell, Results};
use strongroom::units::long_size;

/// A median with its smallest and largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the runs were below.
    pub median: f64,
    /// The smallest run.
    pub low: f64,
    /// The largest run.
    pub high: f64,
}

impl Spread {
    /// Of some numbers; `None` of none.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = numbers.into_iter().filter(|number| number.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (low, high) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] };
        Some(Spread { median, low, high })
    }

    /// How far runs lie apart, as a share of the median.
    pub fn noise(&self) -> f64 {
        if self.median > 0.0 { (self.high - self.low) / self.median } else { 0.0 }
    }
}

/// What is the same in all runs and for all contenders: a point of the grid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GridPoint {
    /// See [`CellKey::pattern`](crate::CellKey::pattern).
    pub pattern: String,
    /// See [`CellKey::size`](crate::CellKey::size).
    pub size: u64,
    /// See [`CellKey::depth`](crate::CellKey::depth).
    pub depth: u32,
    /// See [`CellKey::initiators`](crate::CellKey::initiators).
    pub initiators: u32,
}

impl GridPoint {
    /// `4 KiB randread, depth 16, 2 initiators`.
    pub fn in_words(&self) -> String {
        let mut words = Vec::new();
        if self.size > 0 {
            words.push(format!("{} {}", long_size(self.size), self.pattern));
        } else {
            words.push(self.pattern.clone());
        }
        if self.depth > 0 {
            words.push(format!("depth {}", self.depth));
        }
        if self.initiators > 1 {
            // dbench is one initiator with a file system on it; what is counted are dbench's client processes.
            let of = if self.pattern.starts_with("dbench") { "clients" } else { "initiators" };
            words.push(format!("{} {of}", self.initiators));
        }
        words.join(", ")
    }
}

/// All runs of one contender at one point.
#[derive(Clone, Debug)]
pub struct Row {
    /// Where.
    pub point: GridPoint,
    /// Of whom.
    pub contender: String,
    /// Of which release of it; empty where there is only one.
    pub release: String,
    /// Its suite.
    pub suite: String,
    /// The runs that say something, by number.
    pub runs: BTreeMap<u32, Cell>,
    /// What went wrong in the others.
    pub errors: Vec<String>,
}

impl Row {
    /// The contender without the name of its release.
    pub fn contender_of_any_release(&self) -> &str {
        let name = self.contender.strip_suffix(&self.release).filter(|_| !self.release.is_empty());
        name.map_or(&*self.contender, str::trim_end)
    }

    /// One number over all runs.
    pub fn spread(&self, measure: Measure) -> Option<Spread> {
        // With errors among the runs the rest is not shown as if nothing had happened.
        if !self.errors.is_empty() {
            return None;
        }
        Spread::of(self.runs.values().filter_map(|cell| measure.of(cell)))
    }

    /// This row's number over that of `base`, run by run.
    pub fn ratio(&self, base: &Row, measure: Measure) -> Option<Spread> {
        if !self.errors.is_empty() || !base.errors.is_empty() {
            return None;
        }
        Spread::of(self.runs.iter().filter_map(|(run, cell)| {
            let base = measure.of(base.runs.get(run)?).filter(|base| *base > 0.0)?;
            Some(measure.of(cell)? / base)
        }))
    }

    /// This row's number less that of `base`, run by run.
    pub fn difference(&self, base: &Row, measure: Measure) -> Option<Spread> {
        if !self.errors.is_empty() || !base.errors.is_empty() {
            return None;
        }
        Spread::of(
            self.runs.iter().filter_map(|(run, cell)| Some(measure.of(cell)? - measure.of(base.runs.get(run)?)?)),
        )
    }
}

/// One experiment's results.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What it is about.
    pub experiment: Experiment,
    /// Rows in the order in which they were measured.
    pub rows: Vec<Row>,
    /// Contenders in the order in which they appeared.
    pub contenders: Vec<String>,
    /// Releases in the order in which they were named; none where there is only one.
    pub releases: Vec<String>,
    /// What lies beneath, all that there is.
    pub media: Vec<String>,
    /// The longest measurement of a cell, in seconds, and how many runs there were.
    pub seconds: f64,
    /// Repetitions.
    pub runs: usize,
}

impl Summary {
    /// Of the cells of `bench`.
    pub fn new(results: &Results, bench: &str) -> Summary {
        let mut rows: Vec<Row> = Vec::new();
        let (mut contenders, mut releases, mut media) = (Vec::new(), Vec::new(), Vec::new());
        let mut seconds = 0.0f64;
        for cell in results.cells.iter().filter(|cell| cell.key.bench == bench) {
            let point = GridPoint {
                pattern: cell.key.pattern.clone(),
                size: cell.key.size,
                depth: cell.key.depth,
                initiators: cell.key.initiators,
            };
            add_new(&mut contenders, &cell.key.contender);
            add_new(&mut releases, &cell.access.release);
            add_new(&mut media, &cell.key.medium);
            seconds = seconds.max(cell.throughput.elapsed_s);
            let at = rows.iter().position(|row| row.point == point && row.contender == cell.key.contender);
            let row = match at {
                Some(at) => &mut rows[at],
                None => {
                    rows.push(Row {
                        point,
                        contender: cell.key.contender.clone(),
                        release: cell.access.release.clone(),
                        suite: String::new(),
                        runs: BTreeMap::new(),
                        errors: Vec::new(),
                    });
                    rows.last_mut().expect("just added")
                }
            };
            if !cell.key.suite.is_empty() {
                row.suite.clone_from(&cell.key.suite);
            }
            match &cell.error {
                Some(error) => row.errors.push(error.clone()),
                None => drop(row.runs.insert(cell.key.run, cell.clone())),
            }
        }
        // The paper's order: plain first, in whichever order they were measured.
        contenders.sort_by_key(|name: &String| (name != "S0", !name.starts_with('S')));
        rows.sort_by_key(|row| {
            let order = contenders.iter().position(|name| *name == row.contender);
            (pattern_order(&row.point.pattern), row.point.initiators, row.point.depth, row.point.size, order)
        });
        let runs = rows.iter().map(|row| row.runs.len() + row.errors.len()).max().unwrap_or(0);
        Summary { experiment: Experiment::named(bench), rows, contenders, releases, media, seconds, runs }
    }

    /// The same of the release that was named last, which is the one that is judged, and of what has no releases; contenders without the
    /// release's name.
    #[must_use]
    pub fn of_last_release(&self) -> Summary {
        let mut summary = self.clone();
        let Some(last) = self.releases.last() else { return summary };
        summary.rows.retain(|row| row.release.is_empty() || row.release == *last);
        for row in &mut summary.rows {
            row.contender = row.contender_of_any_release().to_owned();
        }
        summary.contenders.clear();
        summary.rows.iter().for_each(|row| add_new(&mut summary.contenders, &row.contender));
        summary
    }

    /// The row of a contender at a point.
    pub fn row(&self, point: &GridPoint, contender: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.point == *point && row.contender == contender)
    }

    /// The points, in order.
    pub fn points(&self) -> Vec<GridPoint> {
        let mut points: Vec<GridPoint> = Vec::new();
        for row in &self.rows {
            if !points.contains(&row.point) {
                points.push(row.point.clone());
            }
        }
        points
    }

    /// How far runs of the same thing lay apart: the median over all rows, of the experiment's main number.
    pub fn noise(&self) -> Option<f64> {
        let noises = self.rows.iter().filter(|row| row.runs.len() > 1);
        Spread::of(noises.filter_map(|row| row.spread(self.experiment.main).map(|spread| spread.noise())))
            .map(|spread| spread.median)
    }
}

fn add_new(list: &mut Vec<String>, name: &str) {
    if !name.is_empty() && !list.iter().any(|known| known == name) {
        list.push(name.to_owned());
    }
}

/// The paper's order of patterns; others behind them, by number and name.
fn pattern_order(pattern: &str) -> (usize, u64, String) {
    let order = crate::Pattern::ALL.iter().position(|known| known.name() == pattern);
    // A number in front counts as such: 8 ms are fewer than 16 ms.
    let number = pattern.split(' ').next().and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0);
    (order.unwrap_or(usize::MAX), (number * 1000.0) as u64, pattern.to_owned())
}

//! In which order things are measured, and who watches: repetitions interleave the contenders, so that other load on the
//! machine affects all alike, and the contender that goes first changes from run to run.

use std::time::{Duration, Instant};

use crate::BenchError;
use crate::cell::Cell;

/// Who is told how it goes: a progress bar, a file of results, a test.
pub trait Watch {
    /// `what` begins as the next of `total` steps; about `left` remains, where that can be told.
    fn step(&mut self, done: usize, total: usize, left: Option<Duration>, what: &str);
    /// A cell is finished.
    ///
    /// # Errors
    /// If it cannot be kept; the benchmark then ends.
    fn cell(&mut self, cell: &Cell) -> Result<(), BenchError>;
    /// Whether somebody asked to stop; looked at between steps and while waiting.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// One measurement to make: indices of what to measure, of whom, and the repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementStep {
    /// Which cell.
    pub point: usize,
    /// Which contender.
    pub contender: usize,
    /// Which repetition.
    pub run: u32,
}

/// All measurements in order: cell by cell, in each all runs, in each run all contenders, another one first each time.
pub fn interleaved(points: usize, contenders: usize, runs: u32) -> Vec<MeasurementStep> {
    let mut steps = Vec::with_capacity(points * contenders * runs as usize);
    for point in 0..points {
        for run in 0..runs {
            for turn in 0..contenders {
                steps.push(MeasurementStep { point, contender: (turn + point + run as usize) % contenders, run });
            }
        }
    }
    steps
}

/// Makes every measurement of a schedule. A measurement that fails becomes a cell that says so, and the next is made. What is left is
/// told from what was done, each measurement by its `weight`: how long it takes compared with others.
///
/// # Errors
/// [`BenchError::Stopped`], or what the watcher says.
pub fn measure_all<S>(
    steps: &[S],
    watch: &mut dyn Watch,
    mut name: impl FnMut(&S) -> String,
    weight: impl Fn(&S) -> f64,
    mut measure: impl FnMut(&S, &dyn Watch) -> Result<Cell, BenchError>,
) -> Result<(), BenchError> {
    let begun = Instant::now();
    let total: f64 = steps.iter().map(&weight).sum();
    let mut passed = 0.0;
    for (done, step) in steps.iter().enumerate() {
        if watch.is_stopped() {
            return Err(BenchError::Stopped);
        }
        let left = (passed > 0.0).then(|| begun.elapsed().mul_f64((total - passed).max(0.0) / passed));
        watch.step(done, steps.len(), left, &name(step));
        let cell = measure(step, watch)?;
        watch.cell(&cell)?;
        passed += weight(step);
    }
    Ok(())
}

/// Waits, unless somebody asks to stop.
///
/// # Errors
/// [`BenchError::Stopped`].
pub fn pause(time: Duration, watch: &dyn Watch) -> Result<(), BenchError> {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let end = Instant::now() + time;
    loop {
        if watch.is_stopped() {
            return Err(BenchError::Stopped);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen {
        cells: Vec<Cell>,
        stop_after: usize,
        left: Vec<Option<Duration>>,
    }

    impl Watch for Seen {
        fn step(&mut self, _: usize, _: usize, left: Option<Duration>, _: &str) {
            self.left.push(left);
        }
        fn cell(&mut self, cell: &Cell) -> Result<(), BenchError> {
            self.cells.push(cell.clone());
            Ok(())
        }
        fn is_stopped(&self) -> bool {
            self.cells.len() >= self.stop_after
        }
    }

    #[test]
    fn each_run_has_every_contender_and_none_is_always_first() {
        let steps = interleaved(2, 3, 3);
        assert_eq!(steps.len(), 18);
        let firsts: Vec<usize> = steps.chunks(3).map(|run| run[0].contender).collect();
        assert_eq!(firsts, [0, 1, 2, 1, 2, 0]);
        for run in steps.chunks(3) {
            assert!(run.iter().all(|step| (step.point, step.run) == (run[0].point, run[0].run)));
            let mut contenders: Vec<usize> = run.iter().map(|step| step.contender).collect();
            contenders.sort_unstable();
            assert_eq!(contenders, [0, 1, 2]);
        }
    }

    #[test]
    fn a_stop_ends_between_two_measurements_and_keeps_what_there_is() {
        let mut seen = Seen { stop_after: 4, ..Seen::default() };
        let steps = interleaved(3, 2, 1);
        let result = measure_all(&steps, &mut seen, |_| String::new(), |_| 1.0, |_, _| Ok(Cell::default()));
        assert!(matches!(result, Err(BenchError::Stopped)));
        assert_eq!(seen.cells.len(), 4);
        assert!(pause(Duration::from_secs(60), &seen).is_err());
    }

    #[test]
    fn what_is_left_is_reckoned_by_what_the_rest_takes() {
        let mut seen = Seen { stop_after: 9, ..Seen::default() };
        let (short, long) = (Duration::from_millis(20), 100.0);
        let measure = |_: &f64, _: &dyn Watch| {
            std::thread::sleep(short);
            Ok(Cell::default())
        };
        measure_all(&[1.0, long], &mut seen, |_| String::new(), |weight| *weight, measure).unwrap();
        assert!(seen.left[0].is_none() && seen.left[1].unwrap() >= short.mul_f64(long), "{:?}", seen.left);
    }
}

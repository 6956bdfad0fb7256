//! How a target of ours and its initiators are started for an experiment: of which release, and how both ends poll; and the experiment in which
//! both have just started, so that their first second counts. Absent: what a target is made of (`setup`), and how I/O is measured (`rawio`).

use std::time::Duration;

use crate::rawio::{self, RawioPlan};
use crate::schedule::{MeasurementStep, Watch, interleaved, measure_all};
use crate::{BenchError, Cell, Identity, Ours, OursOptions, Point};

/// What is started.
#[derive(Clone, Debug)]
pub struct StartPlan {
    /// The target.
    pub options: OursOptions,
    /// Which of several releases that is; empty if there is only one.
    pub release: String,
    /// TCP connections of an initiator's session.
    pub connections: u16,
    /// How both ends poll, as on the command line.
    pub busy_poll: String,
}

impl StartPlan {
    /// What it is called in results.
    pub fn identity(&self) -> Identity {
        self.options.identity().of_release(&self.release)
    }

    /// Starts the target; its initiators start when they are needed.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(&self) -> Result<Ours, BenchError> {
        self.start_with(self.options.clone())
    }

    fn start_with(&self, options: OursOptions) -> Result<Ours, BenchError> {
        let ours = Ours::start(options)?.of_release(&self.release);
        Ok(ours.with_connections(self.connections).with_busy_poll(&self.busy_poll))
    }

    /// One measurement of a target and initiators that are started for it, on a volume that nobody has written.
    fn measure(&self, plan: &RawioPlan, point: Point, cell: Cell, watch: &dyn Watch) -> Result<Cell, BenchError> {
        let own = &self.options.directory;
        let directory = tempfile::tempdir_in(own).map_err(|error| BenchError::file(own, error))?;
        let options = OursOptions { directory: directory.path().to_owned(), ..self.options.clone() };
        let mut ours = self.start_with(options)?.with_fills(0);
        rawio::measure(plan, &mut ours, point, cell, watch)
    }
}

/// Measures targets and initiators that have just started: both are started again for each measurement, which begins with their first I/O.
///
/// # Errors
/// [`BenchError::Asked`] for a grid that cannot be, [`BenchError::Stopped`], or what the watcher says.
pub fn measure_just_started(plan: &RawioPlan, starts: &[StartPlan], watch: &mut dyn Watch) -> Result<(), BenchError> {
    plan.grid.check()?;
    if let Some(pattern) = plan.grid.patterns.iter().find(|pattern| !pattern.is_write()) {
        return Err(BenchError::Asked(format!(
            "there is nothing to read for {pattern} where a target has just started; give --patterns seqwrite,randwrite"
        )));
    }
    let plan = RawioPlan { warm_up: Duration::ZERO, ..plan.clone() };
    let points = plan.grid.points();
    let identities: Vec<Identity> = starts.iter().map(StartPlan::identity).collect();
    let steps = interleaved(points.len(), starts.len(), plan.runs);
    let name = |step: &MeasurementStep| {
        format!("{}: {}", identities[step.contender].contender, rawio::in_words(points[step.point]))
    };
    measure_all(
        &steps,
        watch,
        name,
        |_| 1.0,
        |step, watch| {
            let point = points[step.point];
            let empty = rawio::empty_cell_of(&plan, &identities[step.contender], point, step.run);
            empty.clone().or_failed(starts[step.contender].measure(&plan, point, empty, watch))
        },
    )
}

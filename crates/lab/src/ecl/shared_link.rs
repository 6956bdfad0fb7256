//! Measurements beside a TCP connection that uses the same link in the same direction.

use std::thread;

use strongroom_wan::Lab;

use crate::rawio::{self, RawioPlan};
use crate::schedule::Watch;
use crate::{BenchError, Contender};

/// Measures all of it; each cell has what the connection carried meanwhile.
///
/// # Errors
/// As [`rawio::run`]. A cell whose connection fails is one that failed.
pub(super) fn run(
    plan: &RawioPlan,
    lab: &Lab,
    contenders: &mut [Box<dyn Contender>],
    watch: &mut dyn Watch,
) -> Result<(), BenchError> {
    // Both find their share in the warm-up; what the connection carried then does not count.
    let settling = plan.warm_up.as_secs_f64().ceil() as usize;
    let seconds = settling + (plan.time.as_secs_f64().floor() as usize).max(1);
    rawio::run_with(plan, contenders, watch, |contender, point, cell, watch| {
        // Attaching and filling are no part of it.
        contender.initiators(point.initiators, point.size)?;
        let (stream, measured) = thread::scope(|scope| {
            let stream = scope.spawn(|| lab.measure_stream(seconds));
            let measured = rawio::measure(plan, contender, point, cell, watch);
            (stream.join(), measured)
        });
        let stream = stream.map_err(|_| BenchError::Asked("the TCP connection's thread panicked".into()))?;
        let stream = stream.map_err(|error| BenchError::Asked(error.to_string()))?;
        let mut cell = measured?;
        cell.link.tcp_beside_mib_s = Some(stream.bits_per_s(settling) / 8.0 / 1_048_576.0);
        Ok(cell)
    })
}

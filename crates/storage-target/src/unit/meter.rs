//! Measures the commands of a unit: how long each takes that needs operations of the store, from the call that brings it to the poll in which
//! it ends, and which errors are answered. It has no clock: the time is that of the worker's iteration, which is read in any case.

use std::sync::Arc;
use std::time::Instant;

use strongroom_block::IoKind;
use strongroom_scsi::transport::target::Response;

use crate::command_counters::CommandCounters;

/// What a running command is measured by.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandTiming {
    kind: IoKind,
    /// `None`: the unit was told no time yet.
    began: Option<Instant>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct UnitMeter {
    /// Those of its worker, once it has them.
    counters: Arc<CommandCounters>,
    now: Option<Instant>,
}

impl UnitMeter {
    /// Counts there from now on.
    pub(crate) fn count_in(&mut self, counters: Arc<CommandCounters>) {
        self.counters = counters;
    }

    /// Advances the time.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// A command begins.
    pub(super) fn begin(&self, kind: IoKind) -> CommandTiming {
        CommandTiming { kind, began: self.now }
    }

    /// A command has ended. `response`: what is answered now, if anything.
    pub(super) fn ended(&self, timing: CommandTiming, response: Option<&Response>) {
        if let (Some(began), Some(now)) = (timing.began, self.now) {
            self.counters.latencies.record(timing.kind, now.saturating_duration_since(began));
        }
        if let Some(response) = response {
            self.answered(response);
        }
    }

    /// A command is answered.
    pub(super) fn answered(&self, response: &Response) {
        self.counters.answered(response);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strongroom_block::Latencies;

    use super::*;

    #[test]
    fn a_command_takes_from_its_arrival_to_its_end() {
        let (mut meter, start, counters) = (UnitMeter::default(), Instant::now(), Arc::<CommandCounters>::default());
        meter.count_in(Arc::clone(&counters));
        let before_any_time = meter.begin(IoKind::Flush);
        meter.tick(start);
        let timing = meter.begin(IoKind::Write);
        meter.tick(start + Duration::from_millis(5));
        meter.ended(before_any_time, None);
        meter.ended(timing, Some(&Response::task_aborted()));
        let mut latencies = Latencies::default();
        counters.latencies.add_to(&mut latencies);
        assert_eq!(latencies.of(IoKind::Flush).count(), 0, "how long is not known");
        let writes = latencies.of(IoKind::Write);
        assert_eq!((writes.count(), writes.sum()), (1, Duration::from_millis(5)));
        let mut errors = Default::default();
        counters.add_errors_to(&mut errors);
        assert_eq!(errors.iter().sum::<u64>(), 1);
    }
}

//! The time in which something is measured: what each process and each processor did in it.

use std::time::{Duration, Instant};

use crate::BenchError;
use crate::cpu::{self, CoreTimes, Placement};

/// What is looked at, and how it was when the window opened.
#[derive(Debug)]
pub struct Window {
    target: Vec<u32>,
    initiators: Vec<u32>,
    placement: Option<Placement>,
    at: Instant,
    target_time: Duration,
    initiator_time: Duration,
    cores: CoreTimes,
}

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Used {
    /// How long it was open, in seconds.
    pub wall_s: f64,
    /// CPU time of the target's processes; `None` where they are not ours to look at.
    pub target_cpu_s: Option<f64>,
    /// CPU time of the initiators' processes.
    pub initiator_cpu_s: Option<f64>,
    /// How busy the target's processors were, 0 to 1.
    pub target_busy: Option<f64>,
    /// How busy the initiators' processors were, 0 to 1.
    pub initiator_busy: Option<f64>,
    /// The share of all these processors that others took, stolen time included.
    pub foreign_busy: Option<f64>,
    /// How busy all processors were that we may use, 0 to 1.
    pub all_busy: Option<f64>,
}

impl Window {
    /// Opens it. No process of the target: it runs elsewhere. No placement: nothing is pinned.
    ///
    /// # Errors
    /// If a process has ended.
    pub fn open(target: &[u32], initiators: &[u32], placement: Option<&Placement>) -> Result<Window, BenchError> {
        Ok(Window {
            target: target.to_vec(),
            initiators: initiators.to_vec(),
            placement: placement.cloned(),
            target_time: cpu::processes_time(target)?,
            initiator_time: cpu::processes_time(initiators)?,
            cores: CoreTimes::now(),
            at: Instant::now(),
        })
    }

    /// Closes it.
    ///
    /// # Errors
    /// If a process has ended.
    pub fn close(self) -> Result<Used, BenchError> {
        let wall_s = self.at.elapsed().as_secs_f64();
        let cores = CoreTimes::now();
        let target_s = (cpu::processes_time(&self.target)? - self.target_time).as_secs_f64();
        let initiator_s = (cpu::processes_time(&self.initiators)? - self.initiator_time).as_secs_f64();
        let mut used = Used {
            wall_s,
            target_cpu_s: (!self.target.is_empty()).then_some(target_s),
            initiator_cpu_s: (!self.initiators.is_empty()).then_some(initiator_s),
            all_busy: cores.busy_since(&self.cores, &cpu::available()),
            ..Used::default()
        };
        let Some(placement) = self.placement.as_ref().filter(|placement| placement.is_pinned()) else {
            return Ok(used);
        };
        used.initiator_busy = cores.busy_since(&self.cores, &placement.initiators);
        if !self.target.is_empty() {
            used.target_busy = cores.busy_since(&self.cores, &placement.target);
            let mut all = [placement.target.clone(), placement.initiators.clone()].concat();
            all.sort_unstable();
            all.dedup();
            let known = (target_s + initiator_s) / wall_s / all.len() as f64;
            let busy = cores.busy_since(&self.cores, &all);
            let stolen = cores.stolen_since(&self.cores, &all);
            used.foreign_busy = busy.zip(stolen).map(|(busy, stolen)| (busy + stolen - known).max(0.0));
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_sees_its_own_process() {
        let me = std::process::id();
        let window = Window::open(&[me], &[], Some(&Placement::usual())).unwrap();
        // On a busy machine that may take a while.
        let before = cpu::process_time(me).unwrap();
        while cpu::process_time(me).unwrap() < before + Duration::from_millis(100) {}
        let used = window.close().unwrap();
        assert!(used.target_cpu_s.unwrap() > 0.01 && used.initiator_cpu_s.is_none(), "{used:?}");
        assert!((0.0..=1.0).contains(&used.target_busy.unwrap()), "{used:?}");
    }
}

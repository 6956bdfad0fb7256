//! The time in which something is measured: what each process and each processor did in it.

use std::time::{Duration, Instant};

use crate::BenchError;
use crate::cell::Cell;
use crate::cpu::{self, CoreTimes, Placement};
use crate::latency::Latencies;

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
            ..Used::default()
        };
        let Some(placement) = &self.placement else { return Ok(used) };
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

impl Cell {
    /// Puts in what moved, in how many seconds.
    pub fn set_moved(&mut self, ios: u64, bytes: u64, elapsed_s: f64) {
        self.elapsed_s = elapsed_s;
        self.ios = ios;
        self.bytes = bytes;
        if elapsed_s > 0.0 {
            self.mib_s = Some(bytes as f64 / f64::from(1 << 20) / elapsed_s);
            self.iops = Some(ios as f64 / elapsed_s);
        }
    }

    /// Puts in how long I/Os took.
    pub fn set_latency(&mut self, latencies: &Latencies) {
        self.p50_us = latencies.quantile_us(0.5);
        self.p99_us = latencies.quantile_us(0.99);
        self.p999_us = latencies.quantile_us(0.999);
    }

    /// Puts in what it cost. After [`Cell::set_moved`]; the window and the count of I/Os may differ a little in length, so
    /// rates are compared.
    pub fn set_used(&mut self, used: &Used) {
        self.target_busy = used.target_busy;
        self.initiator_busy = used.initiator_busy;
        self.foreign_busy = used.foreign_busy;
        self.initiator_cpu = used.initiator_cpu_s.map(|cpu_s| cpu_s / used.wall_s);
        self.target_cpu = used.target_cpu_s.map(|cpu_s| cpu_s / used.wall_s);
        let gib_s = self.mib_s.map(|mib_s| mib_s / 1024.0).filter(|rate| *rate > 0.0);
        let kio_s = self.iops.map(|iops| iops / 1000.0).filter(|rate| *rate > 0.0);
        let per = |cpu_s: Option<f64>, rate: Option<f64>| Some(cpu_s? / used.wall_s / rate?);
        self.target_cpu_s_per_gib = per(used.target_cpu_s, gib_s);
        self.initiator_cpu_s_per_gib = per(used.initiator_cpu_s, gib_s);
        self.target_cpu_ms_per_kio = per(used.target_cpu_s, kio_s).map(|s| s * 1000.0);
        self.initiator_cpu_ms_per_kio = per(used.initiator_cpu_s, kio_s).map(|s| s * 1000.0);
    }

    /// The same cell without numbers, because of this.
    pub fn failed(self, error: impl std::fmt::Display) -> Cell {
        Cell {
            bench: self.bench,
            contender: self.contender,
            scheme: self.scheme,
            suite: self.suite,
            row: self.row,
            process: self.process,
            pattern: self.pattern,
            size: self.size,
            depth: self.depth,
            initiators: self.initiators,
            run: self.run,
            medium: self.medium,
            delay_ms: self.delay_ms,
            link: self.link,
            targets: self.targets,
            error: Some(error.to_string()),
            ..Cell::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_cpu_time_over_what_moved() {
        let mut cell = Cell::default();
        cell.set_moved(2000, 2 << 30, 2.0);
        let used = Used { wall_s: 2.0, target_cpu_s: Some(1.0), initiator_cpu_s: Some(3.0), ..Used::default() };
        cell.set_used(&used);
        assert_eq!((cell.mib_s, cell.iops), (Some(1024.0), Some(1000.0)));
        assert_eq!((cell.target_cpu_s_per_gib, cell.initiator_cpu_s_per_gib), (Some(0.5), Some(1.5)));
        assert_eq!(cell.target_cpu_ms_per_kio, Some(500.0));
        let failed = cell.failed("no");
        assert_eq!((failed.mib_s, failed.bytes, failed.error.as_deref()), (None, 0, Some("no")));
    }

    #[test]
    fn nothing_moved_costs_nothing_that_can_be_told() {
        let mut cell = Cell::default();
        cell.set_moved(0, 0, 1.0);
        cell.set_used(&Used { wall_s: 1.0, target_cpu_s: Some(1.0), ..Used::default() });
        assert_eq!((cell.mib_s, cell.target_cpu_s_per_gib), (Some(0.0), None));
    }

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

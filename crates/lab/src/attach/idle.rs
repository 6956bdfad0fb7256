//! What volumes cost that are attached and that nobody uses, with busy polling and without: CPU time of the target and of all attachments, which
//! still keep their sessions alive. Each volume is attached as a file in FUSE by a process of its own.

use std::fs;
use std::time::Duration;

use super::served::with_own_key_file;
use crate::attachment::{Attachment, AttachmentOptions};
use crate::cell::{CellKey, CpuCost, Throughput};
use crate::rawio::settle_processes;
use crate::schedule::{MeasurementStep, Watch, interleaved, measure_all, pause};
use crate::{BenchError, Cell, Contender, Ours, ProgramAccess, StartPlan, Window};

/// The name in results.
pub const BENCH_IDLE: &str = "attach-idle";
/// Bytes of each volume: nobody writes to it.
const IDLE_VOLUME_BYTES: u64 = 4 << 20;
/// How both ends poll: as usual, and as where it is enabled.
pub const IDLE_POLLS: [&str; 2] = ["off", "auto"];

/// A target with volumes that are all attached. Fields in the order in which they have to go.
#[derive(Debug)]
struct IdleVolumes {
    attachments: Vec<Attachment>,
    ours: Ours,
}

impl IdleVolumes {
    /// Starts the target, and attaches this many volumes.
    ///
    /// # Errors
    /// If any of it fails, with what was said; [`BenchError::Stopped`].
    fn start(plan: &StartPlan, volumes: u32, watch: &dyn Watch) -> Result<IdleVolumes, BenchError> {
        let names: Vec<String> = (0..volumes).map(|at| format!("idle-{at}")).collect();
        let mut options = plan.options.clone();
        options.block_sizes.clear();
        options.further_volumes = names.iter().map(|name| (name.clone(), IDLE_VOLUME_BYTES)).collect();
        let (directory, cpus) = (options.directory.clone(), options.placement.initiators.clone());
        let contender = format!("{}, polling {}", options.setup.label(), plan.busy_poll);
        let medium = options.identity().medium;
        let ours = StartPlan { options, release: String::new(), ..plan.clone() }.start()?;
        let ours = ours.named(&contender, &medium).of_release(&plan.release);
        let mut idle = IdleVolumes { attachments: Vec::new(), ours };
        for name in names {
            if watch.is_stopped() {
                return Err(BenchError::Stopped);
            }
            let own = directory.join(&name);
            fs::create_dir_all(&own).map_err(|error| BenchError::file(&own, error))?;
            idle.attachments.push(Attachment::file(AttachmentOptions {
                product: idle.ours.product(),
                settings: with_own_key_file(idle.ours.attach_settings_of(&name), &own)?,
                arguments: Vec::new(),
                directory: own,
                cpus: cpus.clone(),
            })?);
        }
        Ok(idle)
    }

    fn pids(&self) -> Vec<u32> {
        self.attachments.iter().flat_map(Attachment::pids).collect()
    }

    fn empty_cell(&self, run: u32) -> Cell {
        let identity = self.ours.identity();
        let key = CellKey {
            bench: BENCH_IDLE.into(),
            contender: identity.contender.clone(),
            scheme: identity.scheme.clone(),
            process: identity.process.clone(),
            medium: identity.medium.clone(),
            pattern: "idle".into(),
            initiators: u32::try_from(self.attachments.len()).expect("they were counted by one"),
            run,
            ..CellKey::default()
        };
        let access = ProgramAccess { release: identity.release.clone(), ..ProgramAccess::default() };
        Cell { access, ..Cell::empty(key) }
    }

    fn measure(&mut self, time: Duration, mut cell: Cell, watch: &dyn Watch) -> Result<Cell, BenchError> {
        self.attachments.iter_mut().try_for_each(Attachment::check_alive)?;
        let window = Window::open(&self.ours.target_pids(), &self.pids(), None)?;
        pause(time, watch)?;
        let used = window.close()?;
        cell.throughput = Throughput::new(0, 0, used.wall_s);
        cell.cpu = CpuCost::new(&used, &cell.throughput);
        Ok(cell)
    }
}

/// Attaches this many volumes of each target, then measures them by turns, each `runs` times and for `time`, while the others idle as well.
///
/// # Errors
/// If a target does not start or a volume is not attached; [`BenchError::Stopped`], or what the watcher says.
pub fn measure_idle(
    plans: &[StartPlan],
    volumes: u32,
    runs: u32,
    time: Duration,
    watch: &mut dyn Watch,
) -> Result<(), BenchError> {
    let mut all = Vec::new();
    for (done, plan) in plans.iter().enumerate() {
        watch.step(done, plans.len(), None, &format!("polling {}: attaches {volumes} volumes", plan.busy_poll));
        all.push(IdleVolumes::start(plan, volumes, &*watch)?);
    }
    let names: Vec<String> = all.iter().map(|idle| idle.ours.identity().contender.clone()).collect();
    let pids: Vec<u32> = all.iter().flat_map(|idle| [idle.ours.target_pids(), idle.pids()].concat()).collect();
    settle_processes(&pids, watch)?;
    let steps = interleaved(1, all.len(), runs);
    let name = |step: &MeasurementStep| format!("{}: idle", names[step.contender]);
    measure_all(
        &steps,
        watch,
        name,
        |_| 1.0,
        |step, watch| {
            let idle = &mut all[step.contender];
            let empty = idle.empty_cell(step.run);
            empty.clone().or_failed(idle.measure(time, empty, watch))
        },
    )
}

//! `attach`: what a program feels on an attached volume. fio uses the file in FUSE with direct I/O, the volume by NBD, and a file in ext4 on
//! `--mount`, in every scheme and of every release that takes part; our own client does the same I/O on the same target without a front end, as
//! the base line. Beside NBD: what else serves volumes so (`rivals`).
//!
//! Last, what attachments cost that nobody uses (`idle`). Absent: how volumes are attached (`attachment`), and what fio is told and says (`fio`).

mod idle;
mod rivals;
mod served;

use std::path::PathBuf;
use std::time::Duration;

pub use idle::{BENCH_IDLE, IDLE_POLLS, measure_idle};
pub(crate) use rivals::QEMU_LUKS;
pub use rivals::Rival;
pub use served::{AttachArguments, ServeOptions, ServedVolumes, Way};

use crate::attachment::{self, Attachment};
use crate::cell::{CellKey, CpuCost, ProgramAccess, Throughput};
use crate::cpu::{Placement, ThreadTimes};
use crate::fio::{FioJob, FioLength, FioVolume};
use crate::programs::is_installed;
use crate::rawio::{self, RawioPlan, settle_processes};
use crate::schedule::{Watch, interleaved, measure_all, pause};
use crate::window::Used;
use crate::{BenchError, Cell, Contender, Grid, Pattern, Point, Window};
use strongroom::units::long_size;

/// The name in results.
pub const BENCH_FILE: &str = "attach";
/// The same of what was done in ext4.
pub const BENCH_EXT4: &str = "attach-ext4";
/// How long fio may take to begin with its I/O: it warms up for that much longer.
const FIO_STARTS_WITHIN: Duration = Duration::from_millis(250);
/// The share of a measurement over which CPU time is taken, so that it lies within it.
const WINDOW_SHARE: f64 = 0.8;
/// A file is gone through so often at most in one measurement.
const PASSES_MAX: u32 = 100;

/// On the file, by direct I/O, and by NBD: pattern, bytes of an I/O, I/Os in flight.
const FILE_POINTS: [(Pattern, u64, u32); 8] = [
    (Pattern::RandRead, 4 << 10, 1),
    (Pattern::RandWrite, 4 << 10, 1),
    (Pattern::RandRead, 4 << 10, 16),
    (Pattern::RandWrite, 4 << 10, 16),
    (Pattern::SeqRead, 64 << 10, 16),
    (Pattern::SeqWrite, 64 << 10, 16),
    (Pattern::SeqRead, 1 << 20, 4),
    (Pattern::SeqWrite, 1 << 20, 4),
];
/// In ext4: sequential I/O goes through the page cache, over the whole file; random I/O past it.
const EXT4_POINTS: [(Pattern, u64, u32); 3] =
    [(Pattern::SeqRead, 1 << 20, 1), (Pattern::SeqWrite, 1 << 20, 1), (Pattern::RandRead, 4 << 10, 16)];

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// Repetitions.
    pub runs: u32,
    /// How long each measurement lasts.
    pub time: Duration,
    /// How long I/O runs before it.
    pub warm_up: Duration,
    /// By which ways programs reach volumes: [`Way::File`], [`Way::Nbd`], [`Way::Ext4`].
    pub ways: Vec<Way>,
    /// What programs do.
    pub patterns: Vec<Pattern>,
    /// Who runs where.
    pub placement: Placement,
}

/// Whether this can be done here.
///
/// # Errors
/// [`BenchError::Asked`], with what is missing and how to get it.
pub fn check(ways: &[Way]) -> Result<(), BenchError> {
    for (name, package) in [("fio", "fio"), ("unshare", "util-linux"), ("ip", "iproute2")] {
        if !is_installed(name) {
            let problem = format!("there is no {name}; install it with scripts/deps.sh (Debian: {package})");
            return Err(BenchError::Asked(problem));
        }
    }
    if ways.contains(&Way::Nbd) {
        rivals::check()?;
    }
    attachment::check("this experiment", ways.contains(&Way::Ext4))
}

/// How one measurement reaches a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    /// A volume of ours: of which target, by which way, and with the how manyth arguments it is attached.
    Ours { served: usize, way: Way, attachment: usize },
    /// The how manyth rival's.
    Rival(usize),
}

/// All that is measured.
pub struct Contenders {
    /// Ours.
    pub served: Vec<ServedVolumes>,
    /// Others, by NBD.
    pub rivals: Vec<Rival>,
}

/// One measurement.
struct AttachStep {
    route: Route,
    point: Point,
    run: u32,
}

/// Measures all of it, interleaved. A measurement that fails is kept as one that failed.
///
/// # Errors
/// [`BenchError::Stopped`], or what the watcher says.
pub fn run(plan: &AttachPlan, all: &mut Contenders, watch: &mut dyn Watch) -> Result<(), BenchError> {
    let steps = steps(plan, all);
    let names: Vec<String> = steps.iter().map(|step| step.empty_cell(all).key.contender).collect();
    let order: Vec<usize> = (0..steps.len()).collect();
    let name = |at: &usize| {
        let Point { pattern, size, depth, .. } = steps[*at].point;
        format!("{}: {} {pattern}, depth {depth}", names[*at], long_size(size))
    };
    measure_all(
        &order,
        watch,
        name,
        |_| 1.0,
        |at, watch| {
            let step = &steps[*at];
            let pids: Vec<u32> = all.served.iter().flat_map(ServedVolumes::target_pids).collect();
            settle_processes(&pids, watch)?;
            let empty = step.empty_cell(all);
            empty.clone().or_failed(step.measure(plan, all, empty, watch))
        },
    )
}

/// All measurements in order: what is done with whole volumes, then what is done in ext4.
fn steps(plan: &AttachPlan, all: &Contenders) -> Vec<AttachStep> {
    let mut steps = Vec::new();
    let by_volume: Vec<Way> = plan.ways.iter().copied().filter(|way| *way != Way::Ext4).collect();
    if !by_volume.is_empty() {
        let ways = [&[Way::Client][..], &by_volume].concat();
        let mut routes = routes(&ways, &all.served);
        if by_volume.contains(&Way::Nbd) {
            routes.extend((0..all.rivals.len()).map(Route::Rival));
        }
        add_steps(&mut steps, plan, &FILE_POINTS, &routes);
    }
    if plan.ways.contains(&Way::Ext4) {
        add_steps(&mut steps, plan, &EXT4_POINTS, &routes(&[Way::Ext4], &all.served));
    }
    steps
}

fn routes(ways: &[Way], served: &[ServedVolumes]) -> Vec<Route> {
    let mut routes = Vec::new();
    for (at, served) in served.iter().enumerate() {
        for &way in ways {
            // The client is one process, however volumes are attached beside it.
            let attachments = if way == Way::Client { 1 } else { served.attachments() };
            routes.extend((0..attachments).map(|attachment| Route::Ours { served: at, way, attachment }));
        }
    }
    routes
}

fn add_steps(steps: &mut Vec<AttachStep>, plan: &AttachPlan, points: &[(Pattern, u64, u32)], routes: &[Route]) {
    let points: Vec<_> = points.iter().filter(|(pattern, ..)| plan.patterns.contains(pattern)).collect();
    for step in interleaved(points.len(), routes.len(), plan.runs) {
        let &(pattern, size, depth) = points[step.point];
        let point = Point { pattern, size, depth, initiators: 1 };
        steps.push(AttachStep { route: routes[step.contender], point, run: step.run });
    }
}

impl AttachStep {
    fn empty_cell(&self, all: &Contenders) -> Cell {
        let key = CellKey {
            pattern: self.point.pattern.name().into(),
            size: self.point.size,
            depth: self.point.depth,
            initiators: 1,
            run: self.run,
            ..CellKey::default()
        };
        match self.route {
            Route::Ours { served, way, attachment } => our_cell(&all.served[served], way, attachment, key),
            Route::Rival(at) => {
                let (contender, scheme, suite) = all.rivals[at].names();
                let key = CellKey {
                    bench: BENCH_FILE.into(),
                    contender: contender.into(),
                    scheme: scheme.into(),
                    suite: suite.into(),
                    medium: "memory".into(),
                    ..key
                };
                let access = ProgramAccess { way: Way::Nbd.name().into(), ..ProgramAccess::default() };
                Cell { access, ..Cell::empty(key) }
            }
        }
    }

    fn measure(
        &self,
        plan: &AttachPlan,
        all: &mut Contenders,
        cell: Cell,
        watch: &dyn Watch,
    ) -> Result<Cell, BenchError> {
        let (served, way, attachment) = match self.route {
            Route::Ours { served, way, attachment } => (&mut all.served[served], way, attachment),
            Route::Rival(at) => return self.measure_rival(plan, &all.rivals[at], cell, watch),
        };
        if way == Way::Client {
            return rawio::measure(&client_plan(plan, self.point), &mut served.ours, self.point, cell, watch);
        }
        let (volume, volume_bytes) = served.program_volume(way, attachment)?;
        let is_buffered = way == Way::Ext4 && !self.point.pattern.is_random();
        let job = self.job(plan, volume, volume_bytes, is_buffered);
        let target = served.target_pids();
        let attachment = served.attachment(way, attachment)?;
        if is_buffered {
            return measure_passes(plan, &target, attachment, &job, cell, watch);
        }
        if way == Way::Ext4 {
            attachment.sync()?;
        }
        let beside = Beside { target, initiator: attachment.pids(), directory: attachment.directory().to_owned() };
        measure_timed(plan, &beside, &job, cell, watch)
    }

    fn measure_rival(
        &self,
        plan: &AttachPlan,
        rival: &Rival,
        cell: Cell,
        watch: &dyn Watch,
    ) -> Result<Cell, BenchError> {
        let (target, initiator) = rival.pids();
        let beside = Beside { target, initiator, directory: rival.directory().to_owned() };
        measure_timed(plan, &beside, &self.job(plan, rival.volume(), rival.bytes(), false), cell, watch)
    }

    fn job(&self, plan: &AttachPlan, volume: FioVolume, volume_bytes: u64, is_buffered: bool) -> FioJob {
        let length = match is_buffered {
            true => FioLength::WholeFile,
            false => FioLength::Timed { warm_up: plan.warm_up + FIO_STARTS_WITHIN, time: plan.time },
        };
        FioJob {
            volume,
            volume_bytes,
            pattern: self.point.pattern,
            size: self.point.size,
            depth: self.point.depth,
            is_direct: !is_buffered,
            length,
            seed: u64::from(self.run) + 1,
        }
    }
}

fn our_cell(served: &ServedVolumes, way: Way, attachment: usize, key: CellKey) -> Cell {
    let identity = served.ours.identity();
    let attached_with = match way {
        Way::Client => "",
        Way::File | Way::Nbd | Way::Ext4 => served.attached_with(attachment),
    };
    let words = [identity.contender.as_str(), &served.release, attached_with];
    let mut contender = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match way {
        Way::Client => contender += ", without FUSE",
        Way::Nbd => contender += ", NBD",
        Way::File | Way::Ext4 => {}
    }
    let key = CellKey {
        bench: if way == Way::Ext4 { BENCH_EXT4 } else { BENCH_FILE }.into(),
        contender,
        scheme: identity.scheme.clone(),
        suite: served.suite(),
        row: identity.row.clone(),
        process: identity.process.clone(),
        medium: identity.medium.clone(),
        ..key
    };
    let access =
        ProgramAccess { way: way.name().into(), release: served.release.clone(), attached_with: attached_with.into() };
    Cell { access, ..Cell::empty(key) }
}

/// The processes whose time is taken while fio runs, and where its log is.
struct Beside {
    target: Vec<u32>,
    initiator: Vec<u32>,
    directory: PathBuf,
}

/// The same I/O by our own client.
fn client_plan(plan: &AttachPlan, point: Point) -> RawioPlan {
    let Point { pattern, size, depth, .. } = point;
    RawioPlan {
        bench: BENCH_FILE.into(),
        grid: Grid { patterns: vec![pattern], sizes: vec![size], depths: vec![depth], initiators: vec![1] },
        runs: plan.runs,
        time: plan.time,
        warm_up: plan.warm_up,
        verify: false,
        parts: false,
        sealed_beforehand_bytes: None,
        rate: 0,
        is_prorated: false,
        placement: Some(plan.placement.clone()),
    }
}

/// Direct I/O for a while. CPU time is that of most of the time that counts.
fn measure_timed(
    plan: &AttachPlan,
    beside: &Beside,
    job: &FioJob,
    mut cell: Cell,
    watch: &dyn Watch,
) -> Result<Cell, BenchError> {
    let Beside { target, initiator, directory } = beside;
    let fio = job.start(&plan.placement.initiators, directory)?;
    pause(plan.warm_up + FIO_STARTS_WITHIN, watch)?;
    let threads = ThreadTimes::now(initiator);
    let window = Window::open(target, initiator, Some(&plan.placement))?;
    pause(plan.time.mul_f64(WINDOW_SHARE), watch)?;
    let used = window.close()?;
    let busiest = ThreadTimes::now(initiator).busiest_since(&threads);
    let outcome = fio.finish(watch)?;
    cell.cpu = CpuCost::new(&used, &outcome.throughput);
    if let Some((name, share)) = busiest {
        (cell.cpu.busiest_thread, cell.cpu.busiest_thread_name) = (Some(share), name);
    }
    (cell.throughput, cell.latency) = (outcome.throughput, outcome.latency);
    Ok(cell)
}

/// The whole file again and again, none of it in the page cache when it begins and all that was written durable when it ends, until enough
/// time has passed in it. Single I/Os are copies from and to the page cache: how long they take says nothing.
fn measure_passes(
    plan: &AttachPlan,
    target: &[u32],
    attachment: &mut Attachment,
    job: &FioJob,
    mut cell: Cell,
    watch: &dyn Watch,
) -> Result<Cell, BenchError> {
    let (mut ios, mut bytes, mut elapsed_s) = (0, 0, 0.0);
    let mut total = Used::default();
    for _ in 0..PASSES_MAX {
        attachment.check_alive()?;
        attachment.sync()?;
        let initiator = attachment.pids();
        let window = Window::open(target, &initiator, None)?;
        let outcome = job.start(&plan.placement.initiators, attachment.directory())?.finish(watch)?;
        let used = window.close()?;
        // While fio starts and ends both ends rest.
        let sum = |total: Option<f64>, used: Option<f64>| used.map(|used| total.unwrap_or(0.0) + used);
        total.target_cpu_s = sum(total.target_cpu_s, used.target_cpu_s);
        total.initiator_cpu_s = sum(total.initiator_cpu_s, used.initiator_cpu_s);
        ios += outcome.throughput.ios;
        bytes += outcome.throughput.bytes;
        elapsed_s += outcome.throughput.elapsed_s;
        if elapsed_s >= plan.time.as_secs_f64() {
            break;
        }
    }
    total.wall_s = elapsed_s;
    cell.throughput = Throughput::new(ios, bytes, elapsed_s);
    cell.cpu = CpuCost::new(&total, &cell.throughput);
    Ok(cell)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_names_and_ways_are_read() {
        let two: AttachArguments = "two=--connections 2 --pipeline 8/2".parse().unwrap();
        assert_eq!((two.name.as_str(), two.arguments.len()), ("two", 4));
        for text in ["--connections 2", "--connections=2", "=x", ""] {
            let error = text.parse::<AttachArguments>().unwrap_err().to_string();
            assert!(error.contains("NAME=ARGUMENTS"), "{error}");
        }
        assert_eq!("ext4".parse::<Way>().unwrap(), Way::Ext4);
        assert!("client".parse::<Way>().unwrap_err().to_string().contains("file, nbd and ext4"));
    }

    #[test]
    fn the_client_does_the_same_io_as_the_program() {
        let plan = AttachPlan {
            runs: 5,
            time: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            ways: vec![Way::File],
            patterns: Pattern::ALL.to_vec(),
            placement: Placement::anywhere(),
        };
        for (pattern, size, depth) in FILE_POINTS {
            let point = Point { pattern, size, depth, initiators: 1 };
            assert_eq!(client_plan(&plan, point).grid.points(), [point]);
        }
    }
}

//! `dbench`: the lazy-crypto paper's Table 4. The real dbench, on ext4, on an attached volume, through every scheme.
//!
//! The volume is attached by `strongroom attach` as users do it: a file in FUSE, a loop device, a mount (`attachment`). Absent: the
//! target and its volumes (`Ours`), and what dbench does, which is Debian's package's own load file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::attachment::{self, Attachment, AttachmentOptions};
use crate::cell::{CellKey, CpuCost, Throughput};
use crate::cpu::Placement;
use crate::ours::FURTHER_BLOCK_BYTES;
use crate::schedule::{Watch, interleaved, measure_all};
use crate::{Background, BenchError, Cell, Contender, Identity, Ours, Window};

/// dbench begins to count after a fifth of its time, and cleans up in the end.
const GRACE: Duration = Duration::from_secs(120);
/// It counts once a second, and nothing before the second time.
const SHORTEST: Duration = Duration::from_secs(3);
/// Most clients.
pub const CLIENTS_MAX: u32 = 64;

/// What to measure, and for how long.
#[derive(Clone, Debug)]
pub struct DbenchPlan {
    /// How many clients at once, one measurement each.
    pub clients: Vec<u32>,
    /// With every write synchronous (`-s`), and without.
    pub sync: Vec<bool>,
    /// How long each measurement lasts; dbench takes a fifth of it to warm up.
    pub time: Duration,
    /// Repetitions.
    pub runs: u32,
    /// dbench's load file, if not the one that it finds by itself.
    pub load_file: Option<PathBuf>,
    /// Who runs where.
    pub placement: Placement,
}

/// Whether this can be done here.
///
/// # Errors
/// [`BenchError::Asked`], with what is missing and how to get it.
pub fn check() -> Result<(), BenchError> {
    let asked = |text: &str| Err(BenchError::Asked(text.into()));
    if !crate::programs::is_installed("dbench") {
        return asked("there is no dbench; install it with scripts/deps.sh (Debian: dbench)");
    }
    attachment::check("dbench", true)
}

/// A volume of ours with ext4 on it, mounted. Fields in the order in which they have to go.
#[derive(Debug)]
pub struct Mounted {
    attachment: Attachment,
    ours: Ours,
}

impl Mounted {
    /// Formats the volume of `ours` with blocks of 4 KiB, makes ext4 on it and mounts it. Works in `directory`.
    ///
    /// # Errors
    /// If any of it fails, with what was said.
    pub fn start(directory: &Path, placement: &Placement, ours: Ours) -> Result<Mounted, BenchError> {
        let attachment = Attachment::ext4(AttachmentOptions {
            product: ours.product(),
            settings: ours.attach_settings(FURTHER_BLOCK_BYTES),
            arguments: Vec::new(),
            directory: directory.to_owned(),
            cpus: placement.initiators.clone(),
        })?;
        Ok(Mounted { attachment, ours })
    }

    fn identity(&self) -> &Identity {
        self.ours.identity()
    }

    /// What its blocks are sealed with.
    fn suite(&self) -> &'static str {
        if self.ours.attach_settings(FURTHER_BLOCK_BYTES).sealing.key_file.is_some() { "aes-256-gcm" } else { "none" }
    }

    /// An empty directory in the file system, and nothing left to be written from before.
    fn fresh_directory(&self) -> Result<PathBuf, BenchError> {
        let path = self.attachment.mounted_path().join("dbench");
        let failed = |error| BenchError::file(&path, error);
        if path.exists() {
            fs::remove_dir_all(&path).map_err(failed)?;
        }
        fs::create_dir(&path).map_err(failed)?;
        self.attachment.sync()?;
        Ok(path)
    }
}

impl DbenchPlan {
    /// Looks at every value.
    ///
    /// # Errors
    /// [`BenchError::Asked`], which says what can be asked for.
    pub fn check(&self) -> Result<(), BenchError> {
        if let Some(count) = self.clients.iter().find(|count| !(1..=CLIENTS_MAX).contains(*count)) {
            return Err(BenchError::Asked(format!("dbench cannot have {count} clients here; give 1 to {CLIENTS_MAX}")));
        }
        if self.time < SHORTEST {
            return Err(BenchError::Asked(
                "dbench counts nothing in less than 3 seconds; give at least --seconds 3".into(),
            ));
        }
        Ok(())
    }
}

/// Measures all of it, interleaved. A measurement that fails is kept as one that failed.
///
/// # Errors
/// [`BenchError::Asked`] for a plan that cannot be, [`BenchError::Stopped`], or what the watcher says.
pub fn run(plan: &DbenchPlan, contenders: &[Mounted], watch: &mut dyn Watch) -> Result<(), BenchError> {
    plan.check()?;
    let points: Vec<(bool, u32)> =
        plan.sync.iter().flat_map(|sync| plan.clients.iter().map(move |clients| (*sync, *clients))).collect();
    let steps = interleaved(points.len(), contenders.len(), plan.runs);
    let name = |step: &crate::MeasurementStep| {
        let (sync, clients) = points[step.point];
        format!("{}: {} {clients} clients", contenders[step.contender].identity().contender, pattern(sync))
    };
    measure_all(
        &steps,
        watch,
        name,
        |_| 1.0,
        |step, watch| {
            let (sync, clients) = points[step.point];
            let contender = &contenders[step.contender];
            let identity = contender.identity();
            let cell = Cell::empty(CellKey {
                bench: "dbench".into(),
                contender: identity.contender.clone(),
                scheme: identity.scheme.clone(),
                suite: contender.suite().into(),
                medium: identity.medium.clone(),
                pattern: pattern(sync).into(),
                initiators: clients,
                run: step.run,
                ..CellKey::default()
            });
            cell.clone().or_failed(measure(plan, contender, (sync, clients), cell, watch))
        },
    )
}

/// As in results.
fn pattern(sync: bool) -> &'static str {
    if sync { "dbench-s" } else { "dbench" }
}

fn measure(
    plan: &DbenchPlan,
    contender: &Mounted,
    (sync, clients): (bool, u32),
    mut cell: Cell,
    watch: &dyn Watch,
) -> Result<Cell, BenchError> {
    let directory = contender.fresh_directory()?;
    let mut command = Command::new("dbench");
    command.arg("-t").arg(plan.time.as_secs().to_string()).arg("-D").arg(&directory);
    if let Some(path) = &plan.load_file {
        command.arg("-c").arg(path);
    }
    if sync {
        command.arg("-s");
    }
    command.arg(clients.to_string()).stdin(Stdio::null());
    let (target, attachment) = (contender.ours.target_pids(), contender.attachment.pids());
    // dbench itself is the application, not the initiator.
    let window = Window::open(&target, &attachment, Some(&plan.placement))?;
    let mut dbench =
        Background::start("dbench", command, &plan.placement.initiators, contender.attachment.directory())?;
    let begun = std::time::Instant::now();
    let log_before = dbench.log().len();
    let said = loop {
        let log = dbench.log();
        let said = log.get(log_before..).and_then(Summary::parse);
        match (said, dbench.has_ended()) {
            (Some(summary), _) => break summary,
            (None, true) => return Err(dbench.problem("it ended without a result")),
            (None, false) if begun.elapsed() > plan.time + GRACE => return Err(dbench.problem("it does not end")),
            (None, false) => crate::schedule::pause(Duration::from_millis(50), watch)?,
        }
    };
    let used = window.close()?;
    if said.mb_s <= 0.0 {
        return Err(dbench.problem("it moved nothing that it counted; give more --seconds"));
    }
    let elapsed_s = plan.time.as_secs_f64();
    cell.throughput = Throughput {
        elapsed_s,
        bytes: (said.mb_s * 1e6 * elapsed_s) as u64,
        mib_s: Some(said.mb_s * 1e6 / f64::from(1 << 20)),
        ..Throughput::default()
    };
    cell.latency.max_us = Some(said.max_latency_ms * 1000.0);
    cell.cpu = CpuCost::new(&used, &cell.throughput);
    Ok(cell)
}

/// dbench's last line.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    /// Millions of bytes a second.
    mb_s: f64,
    max_latency_ms: f64,
}

impl Summary {
    /// `Throughput 55.9168 MB/sec (sync open)  1 clients  1 procs  max_latency=32.812 ms`
    fn parse(log: &str) -> Option<Summary> {
        let line = log.lines().find(|line| line.starts_with("Throughput ") && line.ends_with(" ms"))?;
        let mb_s = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        let max_latency_ms = line.rsplit_once("max_latency=")?.1.strip_suffix(" ms")?.trim().parse().ok()?;
        Some(Summary { mb_s, max_latency_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_dbench_is_understood() {
        let log = "   1     17497    55.92 MB/sec  execute   2 sec  latency 18.745 ms\n\n\
            Throughput 55.9168 MB/sec (sync open)  4 clients  4 procs  max_latency=32.812 ms\n";
        assert_eq!(Summary::parse(log), Some(Summary { mb_s: 55.9168, max_latency_ms: 32.812 }));
        assert_eq!(Summary::parse("Throughput 55.9168 MB/sec  4 cli"), None, "not all of it was written yet");
        assert_eq!(Summary::parse(""), None);
    }
}

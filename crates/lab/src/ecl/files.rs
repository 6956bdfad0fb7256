//! The quanta paper's Figure 5: bonnie++ on the local disk, and on file systems on attached volumes whose stores are on that disk.
//!
//! Volumes are attached by `strongroom attach` as users do it (a file in FUSE, a loop device, ext4), over loopback. bonnie++ uses direct I/O, so
//! that a file smaller than the memory does.

use std::fs;
use std::path::{Path, PathBuf};

use crate::attachment::{self, Attachment, AttachmentOptions};
use crate::cell::{CellKey, Throughput};
use crate::ours::FURTHER_BLOCK_BYTES;
use crate::programs::{program, run as run_program};
use crate::schedule::Watch;
use crate::{BenchError, Cell, Contender, Hosts, Identity, Ours, OursOptions, SchemeChoice, Setup};

use super::EclPlan;
use super::local_disk::LOCAL_DISK;

/// As in results.
pub(super) const BENCH: &str = "ecl-files";
/// Bytes of bonnie++'s file.
const FILE_MIB: u64 = 256;
/// Bytes of a volume: the file, and room for ext4's own.
const VOLUME_BYTES: u64 = 1 << 30;
/// bonnie++'s phases that move blocks, with their places in a line of its results.
const PHASES: [(&str, usize); 3] =
    [("bonnie++ write", WRITE_AT), ("bonnie++ rewrite", REWRITE_AT), ("bonnie++ read", READ_AT)];
const WRITE_AT: usize = 11;
const REWRITE_AT: usize = 13;
const READ_AT: usize = 17;

/// A directory to measure, and what it is on. Fields in the order in which they have to go.
struct FileSystem {
    identity: Identity,
    attachment: Option<Attachment>,
    _target: Option<Ours>,
    directory: PathBuf,
}

/// How many measurements there are.
pub(super) fn steps(plan: &EclPlan) -> usize {
    (SCHEMES.len() + 1) * runs(plan) as usize
}

fn runs(plan: &EclPlan) -> u32 {
    plan.runs.div_ceil(2)
}

const SCHEMES: [&str; 4] = ["S0", "S2-1", "S2-5", "ECL-S2-5"];

/// Measures all of it by turns. A run that fails is kept as cells that failed.
///
/// # Errors
/// [`BenchError::Asked`] where this cannot be done, [`BenchError::Stopped`], or what the watcher says.
pub(super) fn run(plan: &EclPlan, watch: &mut dyn Watch) -> Result<(), BenchError> {
    if !crate::programs::is_installed("bonnie++") {
        let missing = "there is no bonnie++; install it with scripts/deps.sh --bench (Debian: bonnie++)";
        return Err(BenchError::Asked(missing.into()));
    }
    attachment::check("bonnie++", true)?;
    let file_systems = start(plan)?;
    let total = steps(plan);
    for run in 0..runs(plan) {
        for turn in 0..file_systems.len() {
            if watch.is_stopped() {
                return Err(BenchError::Stopped);
            }
            let file_system = &file_systems[(turn + run as usize) % file_systems.len()];
            let name = format!("{}: bonnie++", file_system.identity.contender);
            watch.step(run as usize * file_systems.len() + turn, total, None, &name);
            for cell in file_system.measure(run) {
                watch.cell(&cell)?;
            }
        }
    }
    Ok(())
}

fn start(plan: &EclPlan) -> Result<Vec<FileSystem>, BenchError> {
    let made = |path: PathBuf| fs::create_dir_all(&path).map_err(|error| BenchError::file(&path, error)).map(|()| path);
    let local = Identity { contender: LOCAL_DISK.into(), medium: "directory".into(), ..Identity::default() };
    let directory = made(plan.disk_directory.join("local"))?;
    let mut all = vec![FileSystem { identity: local, attachment: None, _target: None, directory }];
    for scheme in SchemeChoice::list(&SCHEMES.join(","))? {
        let directory = made(plan.disk_directory.join(scheme.name()))?;
        let ours = Ours::start(OursOptions {
            lab_binary: plan.lab_binary.clone(),
            product: None,
            setup: Setup::new(scheme),
            medium: "directory".into(),
            volume_bytes: VOLUME_BYTES,
            block_sizes: vec![FURTHER_BLOCK_BYTES],
            further_volumes: Vec::new(),
            placement: plan.placement.clone(),
            directory: directory.clone(),
            serve_args: Vec::new(),
            hosts: Hosts::default(),
        })?;
        let attachment = Attachment::ext4(AttachmentOptions {
            product: ours.product(),
            settings: ours.attach_settings(FURTHER_BLOCK_BYTES),
            arguments: Vec::new(),
            directory,
            cpus: plan.placement.initiators.clone(),
        })?;
        let (identity, directory) = (ours.identity().clone(), attachment.mounted_path());
        all.push(FileSystem { identity, attachment: Some(attachment), _target: Some(ours), directory });
    }
    Ok(all)
}

impl FileSystem {
    /// One run of bonnie++: a cell for each phase.
    fn measure(&self, run: u32) -> Vec<Cell> {
        let empty = |pattern: &str| {
            Cell::empty(CellKey {
                bench: BENCH.into(),
                contender: self.identity.contender.clone(),
                scheme: self.identity.scheme.clone(),
                medium: self.identity.medium.clone(),
                pattern: pattern.into(),
                run,
                ..CellKey::default()
            })
        };
        let said = bonnie(&self.directory);
        // Nothing is left to be written from this run when the next one begins.
        let synced = self.attachment.as_ref().map_or(Ok(()), Attachment::sync);
        let said = said.and_then(|said| synced.map(|()| said));
        let measured = |(pattern, at): (&str, usize)| match said.as_ref().map(|said| mib_s(said, at)) {
            Ok(Some(mib_s)) => {
                let throughput = Throughput { mib_s: Some(mib_s), bytes: FILE_MIB << 20, ..Throughput::default() };
                Cell { throughput, ..empty(pattern) }
            }
            // Of what takes less than half a second bonnie++ says nothing.
            Ok(None) => empty(pattern),
            Err(error) => empty(pattern).failed(error),
        };
        PHASES.map(measured).to_vec()
    }
}

/// What bonnie++ prints: one line of values.
fn bonnie(directory: &Path) -> Result<String, BenchError> {
    let mut command = program("bonnie++", &[]);
    let (file, memory) = (FILE_MIB.to_string(), (FILE_MIB / 2).to_string());
    // Quick: only what moves blocks; no small files; direct I/O.
    command.args(["-u", "root", "-q", "-f", "-D", "-n", "0", "-s", &file, "-r", &memory, "-d"]).arg(directory);
    run_program(command)
}

/// A throughput of a line of bonnie++'s values, which are KiB a second.
fn mib_s(said: &str, at: usize) -> Option<f64> {
    let kib_s: f64 = said.lines().last()?.split(',').nth(at)?.parse().ok()?;
    Some(kib_s / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_bonnie_are_understood() {
        let line = "1.98,2.00a,vm,1,1700000000,256M,,8192,5,,,204800,12,102400,9,,,409600,20,+++++,+++,,,,,,,,,,,,,,,,,,,10us,20us,,30us,40us,,,,,,,\n";
        let read = PHASES.map(|(_, at)| mib_s(line, at));
        assert_eq!(read, [Some(200.0), Some(100.0), Some(400.0)]);
        assert_eq!(mib_s(line, READ_AT + 2), None, "too fast to tell");
        assert_eq!(mib_s("", WRITE_AT), None);
    }
}

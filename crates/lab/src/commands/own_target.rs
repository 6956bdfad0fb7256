//! A grid of I/Os, and targets of our own for it: what `rawio`, `profile` and `peers` share of the command line.

use anyhow::{Context, Result};
use clap::Args;
use strongroom_lab::rawio::RawioPlan;
use strongroom_lab::{
    Contender, Grid, Hosts, OursOptions, Pattern, ProcessKind, Setup, StartPlan, TargetTerms, check_processes,
};

use super::parse_io_size;
use super::releases::LabProgramArgs;
use super::site::Site;
use strongroom::units::parse_size;

/// Block size of volumes, unless an I/O is smaller.
const BLOCK_SIZE_USUAL: u64 = 4096;

/// The combinations to measure.
#[derive(Args)]
pub(super) struct GridArgs {
    /// Patterns: seqread, seqwrite, randread, randwrite.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "seqread,seqwrite,randread,randwrite")]
    patterns: Vec<Pattern>,
    /// Bytes of one I/O: powers of two from 512 to 16MiB.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "4k,64k", value_parser = parse_io_size)]
    sizes: Vec<u64>,
    /// I/Os in flight for each initiator, 1 to 128.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "16")]
    depths: Vec<u32>,
    /// Initiators at once, each a process and a session.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    initiators: Vec<u32>,
}

/// The volumes of a target of our own.
#[derive(Args)]
pub(super) struct OwnTargetArgs {
    /// Bytes of our own target's volumes.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    volume_size: u64,
    /// How often our own target's volumes are written before the first measurement. One that has just started still takes memory for its
    /// caches while it writes; after 1 or 2 GiB it has what it needs.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    fills: u32,
    /// What lies beneath our own target's store, as `volume create` takes it: memory, directory (in --work-dir), file:PATH,
    /// device:PATH. The whole store is above it in any case, its log, versions and cleaning.
    #[arg(long, default_value = "memory")]
    medium: String,
    /// Let our own target use this share of its processor while it is measured, 1 to 100: it is the bottleneck then, and initiators that really seal
    /// are not. By the kernel's CPU bandwidth control (a cgroup of version 1 or 2, with a period of 5 ms, longer below 20 %); needs root.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    target_quota: Option<u32>,
    /// Our own target alone with the processor's AES instructions (hardware) or without (software); initiators are what --process says.
    #[arg(long, value_name = "KIND")]
    target_process: Option<ProcessKind>,
    #[command(flatten)]
    pub(super) programs: LabProgramArgs,
}

impl GridArgs {
    /// The grid, looked at.
    ///
    /// # Errors
    /// If it cannot be.
    pub(super) fn grid(&self) -> Result<Grid> {
        let grid = Grid {
            patterns: self.patterns.clone(),
            sizes: self.sizes.clone(),
            depths: self.depths.clone(),
            initiators: self.initiators.clone(),
        };
        grid.check()?;
        Ok(grid)
    }

    /// Numbers of initiators.
    pub(super) fn initiators(&self) -> &[u32] {
        &self.initiators
    }
}

impl OwnTargetArgs {
    /// Whether anything here says how a target of ours is limited, or which one it is.
    pub(super) fn is_chosen(&self) -> bool {
        self.target_quota.is_some() || self.target_process.is_some() || self.programs.is_given()
    }

    /// The same setups with the target on its own terms.
    ///
    /// # Errors
    /// If the software kind cannot be had here.
    pub(super) fn on_terms(&self, setups: Vec<Setup>) -> Result<Vec<Setup>> {
        if let Some(kind) = self.target_process {
            let lab_binary = std::env::current_exe().context("cannot find this program's own file")?;
            check_processes(&lab_binary, &[kind])?;
        }
        let terms = TargetTerms { process: self.target_process, quota_percent: self.target_quota };
        Ok(setups.into_iter().map(|setup| setup.with_target(terms)).collect())
    }

    /// How a target is started for each setup, of each release. `busy_poll`: of both ends.
    ///
    /// # Errors
    /// If two releases have one name.
    pub(super) fn plans(
        &self,
        setups: &[Setup],
        plan: &RawioPlan,
        site: &Site,
        connections: u16,
        busy_poll: &str,
    ) -> Result<Vec<StartPlan>> {
        let block_sizes = block_sizes(&plan.grid);
        let releases = self.programs.releases()?;
        let mut plans = Vec::new();
        for &setup in setups {
            for (release, lab_binary) in &releases {
                let options = OursOptions {
                    lab_binary: lab_binary.clone(),
                    product: None,
                    setup,
                    medium: self.medium.clone(),
                    volume_bytes: self.volume_size,
                    block_sizes: block_sizes.clone(),
                    further_volumes: Vec::new(),
                    placement: plan.placement.clone().expect("both ends are ours"),
                    directory: site.directory(&format!("{}-{release}", setup.file_name()))?,
                    serve_args: vec!["--busy-poll".into(), busy_poll.into()],
                    hosts: Hosts::default(),
                };
                let (release, busy_poll) = (release.clone(), busy_poll.to_owned());
                plans.push(StartPlan { options, release, connections, busy_poll });
            }
        }
        Ok(plans)
    }

    /// Starts them.
    ///
    /// # Errors
    /// If one does not start.
    pub(super) fn start(&self, plans: &[StartPlan]) -> Result<Vec<Box<dyn Contender>>> {
        let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
        for plan in plans {
            contenders.push(Box::new(plan.start()?.with_fills(self.fills)));
        }
        Ok(contenders)
    }
}

/// The block sizes of the volumes that a grid needs.
pub(super) fn block_sizes(grid: &Grid) -> Vec<u64> {
    let mut sizes: Vec<u64> = grid.sizes.iter().map(|size| (*size).min(BLOCK_SIZE_USUAL)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

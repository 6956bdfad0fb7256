//! `strongroom volume snapshot prune|schedule`: which snapshots stay, and snapshots that the target takes by itself.
//!
//! Absent: the rules (the target's `retention`) and who runs a schedule (the target).

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use strongroom_target::admin::{Client, Operation, Pruned, PrunedSnapshot, Request};
use strongroom_target::{Retention, Schedule};

use super::status::last_run;
use crate::admin::{ask, ask_status};
use crate::root_args::RootArgs;
use crate::table::Table;
use crate::target_args::operate;
use crate::units::{parse_duration, show_duration, show_time};

/// How the rules of what to keep work, for `--help`.
const RULES: &str = "What is kept: --keep-daily 7 keeps the newest snapshot of each of the last 7 days that have one; days without a \
    snapshot do not count. Hours, weeks (from Monday on), months and years likewise; --keep-last 3 keeps the 3 newest. A snapshot \
    that any of the rules keeps stays, and the newest snapshot always does. Times are UTC. What no rule keeps goes, except what a clone \
    depends on, what a session has attached, what is being sent, and what a snapshot on its way here builds on: these stay, and are \
    named.";

/// Which snapshots stay.
#[derive(Args)]
pub(crate) struct KeepArgs {
    /// Keep the newest COUNT snapshots.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    keep_last: Option<u32>,
    /// Keep the newest snapshot of each of the last COUNT hours that have one.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    keep_hourly: Option<u32>,
    /// The same of days.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    keep_daily: Option<u32>,
    /// The same of weeks, which begin on Monday.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    keep_weekly: Option<u32>,
    /// The same of months.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    keep_monthly: Option<u32>,
    /// The same of years.
    #[arg(long, value_name = "COUNT", value_parser = count())]
    keep_yearly: Option<u32>,
}

fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

impl From<&KeepArgs> for Retention {
    fn from(args: &KeepArgs) -> Retention {
        Retention {
            last: args.keep_last.unwrap_or(0),
            hourly: args.keep_hourly.unwrap_or(0),
            daily: args.keep_daily.unwrap_or(0),
            weekly: args.keep_weekly.unwrap_or(0),
            monthly: args.keep_monthly.unwrap_or(0),
            yearly: args.keep_yearly.unwrap_or(0),
        }
    }
}

/// Delete the snapshots of a volume that no rule keeps.
#[derive(Args)]
#[command(after_help = format!("Examples:\n  \
    strongroom volume snapshot prune vault --keep-daily 7 --keep-weekly 4 --keep-monthly 12 --dry-run\n  \
    strongroom volume snapshot prune vault --keep-last 3 --prefix nightly-\n\n{RULES}"))]
pub(crate) struct PruneArgs {
    /// The volume's name.
    volume: String,
    #[command(flatten)]
    keep: KeepArgs,
    /// Only snapshots whose names begin with TEXT; others stay, and do not count.
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Delete nothing; say what would go and what would stay.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// Have the target take snapshots of a volume by itself.
#[derive(Args)]
#[command(after_help = format!("Examples:\n  \
    strongroom volume snapshot schedule vault --every 1h --keep-hourly 24 --keep-daily 7 --keep-weekly 4\n  \
    strongroom volume snapshot schedule vault --show\n  \
    strongroom volume snapshot schedule vault --off\n\n\
    A running target takes the snapshots: one in each interval, named by its time (auto-2026-11-23t0730z, UTC), and none if nothing was \
    written since the last snapshot. Intervals begin at whole multiples of --every, days at midnight, weeks on Monday. After a time \
    without a target one snapshot is taken, not one for each interval that was missed. After each run automatic snapshots that no rule \
    keeps are deleted; snapshots that you made are never touched. `strongroom status` shows the last run, and what went wrong.\n\n{RULES}"))]
pub(crate) struct ScheduleArgs {
    /// The volume's name.
    volume: String,
    /// How often, for instance 15m, 1h or 1d.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["show", "off"])]
    every: Option<Duration>,
    #[command(flatten)]
    keep: KeepArgs,
    /// Show the schedule, and how its last run went.
    #[arg(long, conflicts_with = "off")]
    show: bool,
    /// No more automatic snapshots; those that there are stay.
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    target: RootArgs,
}

/// Runs `volume snapshot prune`.
pub(crate) fn prune(args: &PruneArgs) -> Result<()> {
    let keep = Retention::from(&args.keep);
    if keep.is_empty() {
        bail!("say what to keep, for instance --keep-last 3 or --keep-daily 7; without a rule every snapshot would go");
    }
    let operation = Operation::Prune { keep, prefix: args.prefix.clone(), dry_run: args.dry_run };
    let pruned = operate(&args.target, &args.volume, operation)?.pruned;
    let count = |outcome: Pruned| pruned.iter().filter(|snapshot| snapshot.outcome == outcome).count();
    if args.json {
        println!("{}", serde_json::to_string_pretty(&pruned)?);
    } else if pruned.is_empty() {
        println!("{} has no matching snapshots", args.volume);
    } else {
        print_pruned(args, &pruned);
        let (goes, stays) = (count(Pruned::Deleted), pruned.len() - count(Pruned::Deleted));
        let done = if args.dry_run { "would be deleted" } else { "deleted" };
        println!("{goes} {done}, {stays} kept");
    }
    match count(Pruned::Failed) {
        0 => Ok(()),
        failed => bail!("{failed} of the snapshots could not be deleted; the reasons are above"),
    }
}

fn print_pruned(args: &PruneArgs, pruned: &[PrunedSnapshot]) {
    let mut table = Table::new(&["SNAPSHOT", "TAKEN", "", "REASON"]);
    for snapshot in pruned {
        let what = match snapshot.outcome {
            Pruned::Kept | Pruned::InUse => "kept",
            Pruned::Deleted if args.dry_run => "would go",
            Pruned::Deleted => "deleted",
            Pruned::Failed => "FAILED",
        };
        let reasons = match snapshot.outcome {
            Pruned::Deleted => "no rule keeps it".to_owned(),
            Pruned::InUse => format!("no rule keeps it, but {}", snapshot.reasons.join(", ")),
            Pruned::Kept | Pruned::Failed => snapshot.reasons.join(", "),
        };
        table.row(vec![
            format!("{}@{}", args.volume, snapshot.name),
            show_time(snapshot.created_seconds),
            what.to_owned(),
            reasons,
        ]);
    }
    print!("{table}");
}

/// Runs `volume snapshot schedule`.
pub(crate) fn schedule(args: &ScheduleArgs) -> Result<()> {
    let keep = Retention::from(&args.keep);
    let catalogue = args.target.open()?;
    match (args.every, args.off) {
        (Some(every), _) => {
            if every.subsec_nanos() != 0 {
                bail!("an interval is whole seconds; write for instance --every 1h");
            }
            let schedule = Schedule { every_s: every.as_secs(), keep };
            catalogue.set_schedule(&args.volume, Some(schedule))?;
        }
        (None, _) if !keep.is_empty() => bail!("say how often, too: --every 1h"),
        (None, true) => {
            catalogue.set_schedule(&args.volume, None)?;
        }
        (None, false) if !args.show => bail!("say --every DURATION and what to keep, or --show, or --off"),
        (None, false) => return show(args),
    }
    let Some(mut client) = Client::connect(&args.target.admin_socket()?)? else {
        if args.every.is_some() {
            println!("a target runs the schedule of '{}' as soon as one serves it; none does now", args.volume);
        } else {
            println!("'{}' has no schedule any more", args.volume);
        }
        return Ok(());
    };
    ask(&mut client, &Request::Refresh { volume: args.volume.clone() })?;
    match args.every {
        Some(every) => println!("snapshots of '{}' are taken every {}", args.volume, show_duration(every)),
        None => println!("no more snapshots of '{}' are taken; those that there are stay", args.volume),
    }
    Ok(())
}

fn show(args: &ScheduleArgs) -> Result<()> {
    let volume = args.target.open()?.show(&args.volume)?.volume;
    let Some(schedule) = volume.schedule else {
        println!("'{}' has no schedule", args.volume);
        return Ok(());
    };
    let line = |name: &str, value: String| println!("{name:<9} {value}");
    line("every", show_duration(Duration::from_secs(schedule.every_s)));
    line("keeps", schedule.keep.to_string());
    let Some(mut client) = Client::connect(&args.target.admin_socket()?)? else {
        line("next", "when a target serves the volume; none does now".to_owned());
        return Ok(());
    };
    let report = ask_status(&mut client)?.schedules.into_iter().find(|report| report.volume == args.volume);
    let Some(report) = report else {
        line("next", "the target has not seen the schedule yet; strongroom reload makes it look".to_owned());
        return Ok(());
    };
    line("next", show_time(report.next_seconds));
    line("last run", last_run(&report));
    Ok(())
}

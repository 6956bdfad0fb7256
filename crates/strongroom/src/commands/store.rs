//! `strongroom store`: looks at, checks and repairs a store that is not in use, without keys.
//!
//! Absent: what is checked and how it is repaired, which is the store's own business.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use strongroom_store::{
    CheckReport, DamageReport, OpenOptions, RepairOptions, RepairPlan, StoreError, Survey, SuspectBlocks,
};

use crate::progress::{ProgressArgs, ProgressUnit};
use crate::units::show_size;

/// Check, show or repair a store that is not in use. Needs no keys.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything that counts, compare it with its checksums, and say what is wrong and where. Changes nothing.
    #[command(after_help = "Example: strongroom store check /srv/strongroom/vault/store\n\n\
        Exit code 0: all is as it was written. 1: something is wrong, or the store does not open. 2: it could not be checked.\n\
        Whether a sealed block opens can be told only by who has its key.")]
    Check(StoreArgs),
    /// Show superblocks, layout and contents of a store in any state. Changes nothing.
    #[command(after_help = "Example: strongroom store info /srv/strongroom/vault/store")]
    Info(StoreArgs),
    /// Say what of a damaged log cannot be read, and which blocks may be missing or old without it. Changes nothing.
    #[command(after_help = "Example: strongroom store damage /srv/strongroom/vault/store\n\n\
        For a store that does not open. To copy what is left: strongroom volume access VOLUME --read-only-if-damaged, with the peers that \
        may read it; then attach the volume --read-only, or copy it.\n\
        Exit code 0: nothing is damaged that opening needs. 1: something is. 2: it could not be read.")]
    Damage(StoreArgs),
    /// Say what can be repaired; with --apply, repair it.
    #[command(after_help = "Examples:\n  \
        strongroom store repair /srv/strongroom/vault/store\n  \
        strongroom store repair /srv/strongroom/vault/store --apply --accept-data-loss\n\n\
        Every byte that is changed is saved before in the store's directory. A damaged block stays an error: nothing older is \
        ever put in its place in silence.")]
    Repair(RepairArgs),
}

/// Which store.
#[derive(Args)]
pub(crate) struct StoreArgs {
    /// The store's directory (`store` in the volume's own), or the volume's.
    #[arg(value_parser = store_dir)]
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The directory of the store. The volume's directory may be named instead: it means the store in it.
fn store_dir(given: &str) -> Result<PathBuf, std::convert::Infallible> {
    let dir = PathBuf::from(given);
    let inside = dir.join("store");
    Ok(if inside.is_dir() && dir.join("volume.toml").is_file() { inside } else { dir })
}

/// `store repair`.
#[derive(Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Do it. Without this, nothing is changed.
    #[arg(long)]
    apply: bool,
    /// Also do what gives up data that cannot be read any more.
    #[arg(long)]
    accept_data_loss: bool,
}

/// Runs one of them; the exit code tells what was found.
pub(crate) fn run(command: StoreCommand) -> Result<ExitCode> {
    match command {
        StoreCommand::Check(args) => check(&args),
        StoreCommand::Info(args) => info(&args),
        StoreCommand::Damage(args) => damage(&args),
        StoreCommand::Repair(args) => repair(&args),
    }
}

fn check(args: &StoreArgs) -> Result<ExitCode> {
    let report = read_all(&args.dir, ProgressArgs::json_only(args.json));
    match report {
        Ok(report) => {
            if args.json {
                println!("{:#}", report_as_json(&report));
            } else {
                print_report(&report);
                if report.unopenable.is_some() {
                    println!("see what can be done: strongroom store repair {}", args.dir.display());
                }
            }
            Ok(ExitCode::from(u8::from(!report.is_sound())))
        }
        Err(error @ StoreError::Superblock(_)) => {
            if args.json {
                println!("{:#}", json!({ "opens": false, "sound": false, "problem": error.to_string() }));
            } else {
                println!("the store does not open: {error}");
                println!("see what can be done: strongroom store repair {}", args.dir.display());
            }
            Ok(ExitCode::from(1))
        }
        Err(error) => {
            eprintln!("strongroom: cannot check {}: {error}", args.dir.display());
            Ok(ExitCode::from(2))
        }
    }
}

/// Checks a store, and shows how far that is.
pub(super) fn read_all(dir: &Path, progress: ProgressArgs) -> Result<CheckReport, StoreError> {
    with_progress(progress, "checking", |progress| CheckReport::of(dir, progress))
}

/// Does something that tells how many bytes of how many it has read, and shows that.
fn with_progress<R>(
    progress: ProgressArgs,
    operation: &'static str,
    run: impl FnOnce(&mut dyn FnMut(u64, u64)) -> R,
) -> R {
    let bar = progress.begin(operation, ProgressUnit::Bytes, None);
    let result = run(&mut |done, total| {
        bar.set_total(total);
        bar.set_position(done);
    });
    bar.finish();
    result
}

/// Runs of blocks that are listed, at most.
const SUSPECTS_LISTED_MAX: usize = 1000;

fn damage(args: &StoreArgs) -> Result<ExitCode> {
    let report = match DamageReport::of(&args.dir, SUSPECTS_LISTED_MAX) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("strongroom: cannot read {}: {error}", args.dir.display());
            return Ok(ExitCode::from(2));
        }
    };
    if args.json {
        let view = |view: &SuspectBlocks| {
            let runs: Vec<_> =
                view.runs.iter().map(|(first, count)| json!({ "lba": first.0, "blocks": count })).collect();
            json!({ "of": view.of, "runs": runs, "blocks": view.blocks, "blocks_total": view.blocks_total })
        };
        let suspects: Vec<_> = report.suspects.iter().map(view).collect();
        println!("{:#}", json!({ "places": report.damage.places, "suspect_blocks": suspects }));
    } else if report.damage.is_none() {
        println!("nothing is damaged that opening needs");
    } else {
        report.damage.places.iter().for_each(|place| println!("cannot be read: {place}"));
        for SuspectBlocks { of, runs, blocks, blocks_total } in &report.suspects {
            println!("{of}: {blocks} of {blocks_total} blocks may be missing or old");
            runs.iter().for_each(|(first, count)| println!("  {count} from block {first} on"));
        }
    }
    Ok(ExitCode::from(u8::from(!report.damage.is_none())))
}

fn print_report(report: &CheckReport) {
    if let Some(why) = &report.unopenable {
        println!("the store does not open: {why}");
        println!("what follows is what can be found in spite of that");
    }
    println!(
        "{} units, {} blocks, {} older versions and {} holes were read",
        report.units, report.blocks, report.versions, report.holes
    );
    for note in &report.notes {
        println!("note: {note}");
    }
    for problem in &report.problems {
        println!("{problem}");
    }
    for loss in &report.losses {
        println!("a repair would lose: {loss}");
    }
    if report.is_sound() {
        println!("all are as they were written");
    } else if report.unopenable.is_none() {
        println!(
            "{} blocks cannot be read and {} older versions are damaged; reads of them fail with a medium error. Restore \
             those blocks from a backup; of a sealed volume an initiator can bring an older version back: strongroom \
             volume recover. What only snapshots have stays damaged until they are deleted",
            report.bad_blocks.len(),
            report.bad_versions.len()
        );
    }
}

pub(super) fn report_as_json(report: &CheckReport) -> Value {
    let problems: Vec<Value> = report
        .problems
        .iter()
        .map(|problem| {
            json!({
                "lba": problem.lba.map(|lba| lba.0),
                "sequence": problem.sequence.map(|sequence| sequence.0),
                "newest": problem.newest,
                "seen_by": problem.seen_by,
                "older_version": problem.older.map(|sequence| sequence.0),
                "offset": problem.offset,
                "what": problem.what,
            })
        })
        .collect();
    json!({
        "opens": report.unopenable.is_none(),
        "problem": report.unopenable,
        "would_lose": report.losses,
        "sound": report.is_sound(),
        "format_version": report.info.format_version,
        "units": report.units,
        "blocks": report.blocks,
        "versions": report.versions,
        "holes": report.holes,
        "problems": problems,
        "notes": report.notes,
    })
}

fn info(args: &StoreArgs) -> Result<ExitCode> {
    let survey = Survey::of(&args.dir).with_context(|| format!("cannot look at {}", args.dir.display()))?;
    if args.json {
        println!("{:#}", survey_as_json(&survey));
    } else {
        print_survey(&survey);
    }
    Ok(ExitCode::from(u8::from(survey.contents.is_err())))
}

fn print_survey(survey: &Survey) {
    for (copy, superblock) in survey.superblocks.iter().enumerate() {
        match superblock {
            Ok(summary) => println!(
                "superblock {copy}: at byte {}, serial {}, opening {}, {}, segment table at byte {}{}",
                summary.offset,
                summary.serial,
                summary.open_epoch,
                if summary.clean { "closed in order" } else { "not closed" },
                summary.table_offset,
                summary.second_table_offset.map_or(String::new(), |at| format!(", and once more at byte {at}"))
            ),
            Err(error) => println!("superblock {copy}: not whole: {}", error.reason()),
        }
    }
    if let Some(info) = survey.info() {
        println!("format:     version {}", info.format_version);
        println!("volume:     {}, {}", info.volume_id, if info.kind.is_sealed() { "sealed" } else { "plain" });
        println!(
            "geometry:   {} blocks of {} bytes ({})",
            info.geometry.blocks,
            info.geometry.block_size.bytes(),
            show_size(info.geometry.bytes())
        );
        println!("layout:     {} segments of {}", info.segments, show_size(u64::from(info.segment_bytes)));
        println!("retention:  at most {} older versions", info.retention_blocks);
    }
    match &survey.contents {
        Ok(contents) => {
            println!(
                "contents:   {} blocks, {} older versions, {} holes, {} snapshots, {} clones; {} live in {} segments",
                contents.blocks,
                contents.versions,
                contents.holes,
                contents.snapshots,
                contents.branches.saturating_sub(1),
                show_size(contents.live_bytes),
                contents.segments_used
            );
            println!(
                "memory:     {} for the index while it is open; besides, caches as the target's limits say ({} of records and {} \
                 of data unless set)",
                show_size(contents.index_bytes),
                show_size(OpenOptions::RECORD_CACHE_BYTES_DEFAULT as u64),
                show_size(OpenOptions::DATA_CACHE_BYTES_DEFAULT as u64)
            );
        }
        Err(error) => println!("contents:   it does not open: {error}"),
    }
}

fn survey_as_json(survey: &Survey) -> Value {
    let superblocks: Vec<Value> = survey
        .superblocks
        .iter()
        .map(|copy| match copy {
            Ok(summary) => json!({
                "offset": summary.offset,
                "serial": summary.serial,
                "open_epoch": summary.open_epoch,
                "clean": summary.clean,
                "table_offset": summary.table_offset,
                "second_table_offset": summary.second_table_offset,
            }),
            Err(error) => json!({ "error": error.to_string() }),
        })
        .collect();
    let info = survey.info().map(|info| {
        json!({
            "format_version": info.format_version,
            "volume_id": info.volume_id.to_string(),
            "sealed": info.kind.is_sealed(),
            "blocks": info.geometry.blocks,
            "block_size": info.geometry.block_size.bytes(),
            "segment_bytes": info.segment_bytes,
            "segments": info.segments,
            "retention_blocks": info.retention_blocks,
        })
    });
    let contents = match &survey.contents {
        Ok(contents) => json!({
            "segments_used": contents.segments_used,
            "blocks": contents.blocks,
            "versions": contents.versions,
            "holes": contents.holes,
            "index_bytes": contents.index_bytes,
            "live_bytes": contents.live_bytes,
            "snapshots": contents.snapshots,
            "clones": contents.branches.saturating_sub(1),
        }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    json!({ "superblocks": superblocks, "volume": info, "contents": contents })
}

fn repair(args: &RepairArgs) -> Result<ExitCode> {
    let options = RepairOptions { apply: args.apply, accept_data_loss: args.accept_data_loss };
    let plan = with_progress(ProgressArgs::json_only(args.store.json), "reading the log", |progress| {
        RepairPlan::carry_out(&args.store.dir, options, progress)
    });
    let plan = plan.with_context(|| format!("cannot repair {}", args.store.dir.display()))?;
    let left = plan.steps.iter().any(|step| !step.done);
    if args.store.json {
        let step =
            |step: &strongroom_store::RepairStep| json!({ "what": step.what, "loses": step.loses, "done": step.done });
        let steps: Vec<Value> = plan.steps.iter().map(step).collect();
        let saved = plan.saved.as_ref().map(|path| path.display().to_string());
        println!("{:#}", json!({ "steps": steps, "saved": saved }));
        return Ok(ExitCode::from(u8::from(left)));
    }
    if plan.steps.is_empty() {
        println!(
            "there is nothing to repair (damaged blocks are no matter for it: `strongroom store check` names them)"
        );
    }
    for step in &plan.steps {
        println!("{}: {}", if step.done { "done" } else { "to do" }, step.what);
        for loss in &step.loses {
            println!("  gives up: {loss}");
        }
    }
    if let Some(saved) = &plan.saved {
        println!("what was there before is in {}", saved.display());
    }
    if left {
        let consent = plan.steps.iter().any(|step| !step.done && !step.loses.is_empty());
        let flags = if consent { "--apply --accept-data-loss" } else { "--apply" };
        println!("to do it: strongroom store repair {} {flags}", args.store.dir.display());
    }
    Ok(ExitCode::from(u8::from(left)))
}

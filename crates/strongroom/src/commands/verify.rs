//! `strongroom volume verify`: reads a sealed volume and names the blocks that do not open. Where the target is blind, nobody else can.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::json;
use strongroom_block::Lba;
use strongroom_initiator::{LeaseMode, VerifyProgress, VolumeUrl};

use crate::access::AccessArgs;
use crate::progress::{ProgressArgs, ProgressReporter, ProgressUnit};
use crate::signals::StopSignals;
use crate::state_file::StateArgs;
use crate::writer;

/// How often the position is written to a state file.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// Blocks at the beginning none of which opens: then it is the key that is wrong, most likely.
const WRONG_KEY_BLOCKS: u64 = 16;
/// The version of a state file that this build writes.
const STATE_VERSION: u32 = 1;

/// Read a sealed volume, see whether everything in it opens, and name the blocks that do not. The target lets go what is older than
/// what opened.
#[derive(Args)]
#[command(
    after_help = "Example: strongroom volume verify strongroom://storage/vault --key-file ~/vault.key --state /var/tmp/vault.verify\n\n\
    Ends with failure if a block does not open; `strongroom volume recover URL --lba N` looks for an older version of it. Stopped \
    with Ctrl-C it goes on later where it was, if a state file was given."
)]
pub(crate) struct VerifyArgs {
    /// The volume.
    url: VolumeUrl,
    #[command(flatten)]
    state: StateArgs,
    /// The block to begin at.
    #[arg(long, value_name = "NUMBER", conflicts_with = "state")]
    from: Option<u64>,
    /// Change nothing at the target: it is not told what opened, and keeps older versions.
    #[arg(long)]
    read_only: bool,
    /// Go on although nothing at all opens at the beginning.
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    progress: ProgressArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// Where a verification that was stopped goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VerificationState {
    version: u32,
    /// The volume's identity: a state is of no use for another one.
    volume: String,
    next: u64,
    bad: Vec<u64>,
}

/// Runs the command.
pub(crate) fn run(args: &VerifyArgs) -> Result<()> {
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let mut options = args.access.options(&args.url)?;
    options.read_only = args.read_only;
    // It says which versions opened, and writes nothing.
    options.lease = writer::lease(LeaseMode::Maintenance, "volume verify");
    let device = args.access.attach(options)?;
    let volume = device.unit().sealed.map(|sealed| sealed.claims.volume_id.to_string()).unwrap_or_default();
    let before = load(&args.state, &volume)?;
    let mut state = before.unwrap_or(VerificationState {
        version: STATE_VERSION,
        volume,
        next: args.from.unwrap_or(0),
        bad: Vec::new(),
    });
    let earlier_bad = state.bad.clone();
    if state.next > device.unit().geometry.blocks {
        bail!("block {} is past the end of the volume; begin at a smaller one", state.next);
    }
    let bar = args.progress.begin("verifying", ProgressUnit::Blocks, Some(device.unit().geometry.blocks));
    let mut saved = Instant::now();
    let mut is_wrong_key = false;
    let report = device.verify(Lba(state.next), &mut |progress| {
        show(&bar, progress, earlier_bad.len());
        state.next = progress.next.0;
        if progress.bad == 0 && saved.elapsed() >= SAVE_EVERY {
            // With bad blocks the state is saved at the end, with their names.
            saved = Instant::now();
            if let Err(error) = save(&args.state, &state) {
                tracing::warn!(error = format!("{error:#}"), "the position was not saved");
            }
        }
        let opens_nothing = progress.opened == 0 && progress.absent == 0 && progress.bad >= WRONG_KEY_BLOCKS;
        is_wrong_key = opens_nothing && !args.keep_going;
        let is_stopped = is_wrong_key || signals.wait(Duration::ZERO).is_some();
        if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish();
    let report = report?;
    if is_wrong_key {
        bail!(
            "none of the first {} blocks opens: this is probably not the volume's key, or the volume is not formatted yet. If the key is \
             right, add --keep-going",
            report.progress.bad
        );
    }
    let told = if args.read_only { Ok(()) } else { device.detach() };
    state.next = report.progress.next.0;
    state.bad.extend(report.bad_blocks.iter().map(|lba| lba.0));
    let blocks = report.progress.blocks;
    if state.next == blocks { args.state.remove() } else { save(&args.state, &state) }?;
    let VerifyProgress { opened, absent, .. } = report.progress;
    let result =
        json!({ "opened": opened, "absent": absent, "bad_blocks": state.bad, "next": state.next, "blocks": blocks });
    args.progress.print_result(&result, || print(&state.bad, report.progress));
    told?;
    judge(args, &state, blocks)
}

fn print(bad: &[u64], progress: VerifyProgress) {
    for (first, last) in ranges(bad) {
        if first == last {
            println!("block {first} does not open");
        } else {
            println!("blocks {first} to {last} do not open");
        }
    }
    let VerifyProgress { opened, absent, .. } = progress;
    println!("{opened} blocks open, {absent} are absent, {} do not open", bad.len());
}

/// The end of the command: an error if the verification was stopped, or blocks do not open.
fn judge(args: &VerifyArgs, state: &VerificationState, blocks: u64) -> Result<()> {
    if state.next != blocks {
        let how = args.state.how_to_go_on(format!("to go on from there: --from {}", state.next));
        bail!("stopped before block {} of {blocks}; {how}", state.next);
    }
    if !state.bad.is_empty() {
        bail!(
            "blocks do not open; look for older versions with: strongroom volume recover {} --lba NUMBER --yes",
            args.url
        );
    }
    Ok(())
}

/// Adjacent ones together, as first and last.
fn ranges(blocks: &[u64]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &block in blocks {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == block => *last = block,
            _ => ranges.push((block, block)),
        }
    }
    ranges
}

fn load(file: &StateArgs, volume: &str) -> Result<Option<VerificationState>> {
    let Some(text) = file.read()? else { return Ok(None) };
    let state: VerificationState =
        serde_json::from_slice(&text).map_err(|_| file.refused("is no state of a verification"))?;
    if state.version != STATE_VERSION || state.volume != volume {
        return Err(file.refused("is of another volume or version"));
    }
    Ok(Some(state))
}

fn save(file: &StateArgs, state: &VerificationState) -> Result<()> {
    file.replace(&serde_json::to_vec(state)?)
}

fn show(bar: &ProgressReporter, progress: &VerifyProgress, earlier_bad: usize) {
    bar.set_position(progress.next.0);
    let bad = progress.bad + earlier_bad as u64;
    if bad > 0 {
        bar.set_message(format!("{bad} do not open"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_blocks_are_named_together() {
        assert_eq!(ranges(&[]), []);
        assert_eq!(ranges(&[3, 4, 5, 9, 11, 12]), [(3, 5), (9, 9), (11, 12)]);
    }

    #[test]
    fn a_state_is_for_its_own_volume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let file = StateArgs::at(&path);
        assert_eq!(load(&file, "a").unwrap(), None, "none yet");
        let state = VerificationState { version: STATE_VERSION, volume: "a".into(), next: 7, bad: vec![3] };
        save(&file, &state).unwrap();
        assert_eq!(load(&file, "a").unwrap(), Some(state));
        assert!(load(&file, "b").unwrap_err().to_string().contains("another volume"));
        std::fs::write(&path, "{}").unwrap();
        assert!(load(&file, "a").unwrap_err().to_string().contains("no state"));
    }
}

//! `strongroom volume reseal`: seals anew, beside those who use the volume, what is under older key epochs, and then has the key server
//! destroy those epochs: what was under them is gone for good, in every copy.
//!
//! Absent: how blocks are sealed anew (the initiator), when a lease has ended (the key server knows).

use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use strongroom_block::{Lba, SealingDomain};
use strongroom_initiator::{RemoteDevice, ResealProgress, ResealReport, VolumeUrl, inquire};
use strongroom_keyserver::Client;

use crate::access::AccessArgs;
use crate::signals::StopSignals;
use crate::units::parse_size;

/// How often the position is written to a state file.
const SAVE_EVERY: Duration = Duration::from_secs(2);
/// How often the key server is asked whether older leases have ended.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The version of a state file that this build writes.
const STATE_VERSION: u32 = 1;

/// Seal anew what is under older key epochs, and then destroy those epochs at the key server: what is left under them anywhere, in
/// older versions and copies too, is gone for good. The volume can be used meanwhile, by others too.
#[derive(Args)]
#[command(
    after_help = "Example: strongroom volume reseal strongroom://storage/vault --key-server keys --state /var/tmp/vault.reseal --rate 100MiB\n\n\
    After `strongroom key rotate` or `key revoke`. Stopped, or killed, it goes on later where it was, if a state file was given. \
    Destroying needs the right 'administer'. Snapshots and clones keep their blocks under the epochs that those were written under: \
    while there are any, nothing is destroyed unless that is forced, and what they hold from then is lost with it."
)]
pub(crate) struct ResealArgs {
    /// The volume.
    url: VolumeUrl,
    /// Keep the position in this file, sealed, and go on from there if it exists; removed at the end.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Read and write no more than this in a second.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    rate: Option<u64>,
    /// Only seal anew; destroy nothing.
    #[arg(long)]
    keep_epochs: bool,
    /// Destroy the older epochs although snapshots or clones may still need them, or blocks do not open: what is under them is lost.
    #[arg(long, conflicts_with = "keep_epochs")]
    force: bool,
    /// No progress bar.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    access: AccessArgs,
}

/// Where a pass goes on that was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// What everything before `next` is at least under.
    epoch: u32,
    /// It began after the last lease of an older epoch had ended, so nobody undoes it.
    decides: bool,
    next: u64,
}

/// What a run works with.
struct Run<'a> {
    args: &'a ResealArgs,
    device: Arc<RemoteDevice>,
    client: Client,
    domain: SealingDomain,
    signals: StopSignals,
    bar: ProgressBar,
    sealed_anew: u64,
}

/// Runs the command.
pub(crate) fn run(args: &ResealArgs) -> Result<()> {
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let client = args.access.key_client()?;
    let device = args.access.attach(args.access.options(&args.url)?)?;
    let Some(domain) = device.unit().sealed.map(|sealed| sealed.claims.domain) else {
        bail!("{} is plain: nothing in it is sealed", args.url);
    };
    let Some(keys) = device.key_status() else {
        bail!("the keys of {} are not at a key server: they have no epochs that move on", args.url);
    };
    let bar = progress_bar(args.quiet, device.unit().geometry.blocks);
    let mut run = Run { args, device, client, domain, signals, bar, sealed_anew: 0 };
    let older = run.older_epochs(keys.epoch)?;
    if older.is_empty() {
        run.forget_state()?;
        println!("nothing to do: epoch {} is the only one that has a key", keys.epoch);
        return Ok(run.device.detach()?);
    }
    let report = run.seal_all_anew()?;
    run.bar.finish_and_clear();
    println!(
        "{} blocks were sealed anew; nothing of the volume is under an epoch older than {}",
        run.sealed_anew, report.epoch
    );
    if !args.keep_epochs {
        run.destroy(&report)?;
    }
    run.forget_state()?;
    Ok(run.device.detach()?)
}

impl Run<'_> {
    /// Epochs before this one that have a key.
    fn older_epochs(&self, epoch: u32) -> Result<Vec<u32>> {
        let epochs = self.client.info(self.domain)?.epochs;
        Ok(epochs.into_iter().map(|(number, _)| number).filter(|number| *number < epoch).collect())
    }

    /// Passes until one that began after the last older lease has left nothing.
    fn seal_all_anew(&mut self) -> Result<ResealReport> {
        let mut state = self.load()?;
        loop {
            let epoch = self.device.key_status().map_or(0, |keys| keys.epoch);
            let settles_in = self.client.info(self.domain)?.settles_in;
            let begun = state.take().filter(|state| state.epoch == epoch);
            let mut now =
                begun.unwrap_or(State { version: STATE_VERSION, epoch, decides: settles_in.is_zero(), next: 0 });
            let report = self.pass(&mut now)?;
            if report.epoch != epoch {
                // There is another one by now.
                continue;
            }
            if report.progress.bad > 0 && !self.args.force {
                report.bad_blocks.iter().for_each(|lba| println!("block {lba} does not open"));
                bail!(
                    "blocks do not open and stay under older epochs; look for older versions with 'strongroom volume recover', \
                     discard them, or give them up with --force"
                );
            }
            let missed = report.progress.missed;
            if missed == 0 && (now.decides || self.args.keep_epochs) {
                return Ok(report);
            }
            if now.decides {
                bail!(
                    "others keep writing {missed} blocks under an older epoch; end or update those attachments, and call again"
                );
            }
            self.wait_for_leases()?;
        }
    }

    /// Whoever cannot reach the key server may seal under an older epoch as long as his keys are lent.
    fn wait_for_leases(&self) -> Result<()> {
        loop {
            let left = self.client.info(self.domain)?.settles_in;
            if left.is_zero() {
                return Ok(());
            }
            self.bar.set_message(format!("waiting for older leases to end, {} s", left.as_secs() + 1));
            if self.signals.wait(left.min(ASK_EVERY)).is_some() {
                bail!("stopped while waiting for older leases to end; the same command goes on from there");
            }
        }
    }

    fn pass(&mut self, state: &mut State) -> Result<ResealReport> {
        let (started, mut saved) = (Instant::now(), Instant::now());
        let (args, bar, signals, device) = (self.args, &self.bar, &self.signals, &self.device);
        let mut stopped = false;
        self.save(state)?;
        let report = device.reseal(Lba(state.next), &mut |progress: &ResealProgress| {
            bar.set_position(progress.next.0);
            state.next = progress.next.0;
            // What was missed has to be looked at again.
            if progress.missed == 0 && progress.bad == 0 && saved.elapsed() >= SAVE_EVERY {
                saved = Instant::now();
                if let Err(error) = self.save(state) {
                    tracing::warn!(error = format!("{error:#}"), "the position was not saved");
                }
            }
            let due = args.rate.map_or(Duration::ZERO, |rate| {
                Duration::from_secs_f64(progress.moved_bytes as f64 / rate.max(1) as f64)
            });
            stopped = signals.wait(due.saturating_sub(started.elapsed())).is_some();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        self.sealed_anew += report.progress.resealed;
        if !stopped {
            return Ok(report);
        }
        self.bar.finish_and_clear();
        if report.progress.missed == 0 && report.progress.bad == 0 {
            state.next = report.progress.next.0;
            self.save(state)?;
        }
        let how = match &args.state {
            Some(path) => format!("the same command goes on from there, with --state {}", path.display()),
            None => "the same command begins anew, and finds less to do".to_owned(),
        };
        bail!("stopped before block {} of {}; {how}", report.progress.next, report.progress.blocks)
    }

    fn destroy(&self, report: &ResealReport) -> Result<()> {
        let older = self.older_epochs(report.epoch)?;
        let words = older.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let views = inquire(self.args.access.options(&self.args.url)?)?.other_views;
        if views > 0 && !self.args.force {
            bail!(
                "the volume has {views} snapshots or clones, which keep blocks under epochs {words}; nothing was destroyed. Delete them \
                 first, or give up with --force what they hold from then"
            );
        }
        for epoch in &older {
            self.client.destroy_epoch(self.domain, *epoch, self.args.force).with_context(|| {
                format!(
                    "epoch {epoch} was not destroyed; with the right to: strongroom key destroy-epoch {} {epoch}",
                    self.domain
                )
            })?;
        }
        println!("destroyed at the key server: epochs {words}; what is still under them, anywhere, opens no more");
        Ok(())
    }

    fn load(&self) -> Result<Option<State>> {
        let Some(path) = &self.args.state else { return Ok(None) };
        let note = match fs::read(path) {
            Ok(note) => note,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let Some(text) = self.device.open_note(&note)? else {
            bail!(
                "{} is no state of this volume, or was changed; name another file, or remove it to begin anew",
                path.display()
            );
        };
        let state: State = serde_json::from_slice(&text)
            .with_context(|| format!("{} is of another version; remove it to begin anew", path.display()))?;
        Ok(Some(state)
            .filter(|state| state.version == STATE_VERSION && state.next <= self.device.unit().geometry.blocks))
    }

    fn save(&self, state: &State) -> Result<()> {
        let Some(path) = &self.args.state else { return Ok(()) };
        let note = self.device.seal_note(&serde_json::to_vec(state)?)?;
        replace(path, &note).with_context(|| format!("cannot write {}", path.display()))
    }

    fn forget_state(&self) -> Result<()> {
        match self.args.state.as_ref().map(fs::remove_file) {
            Some(Err(error)) if error.kind() != ErrorKind::NotFound => {
                Err(error).context("cannot remove the state file")
            }
            _ => Ok(()),
        }
    }
}

/// As a whole, or not at all.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, bytes)?;
    fs::rename(&new, path)
}

fn progress_bar(quiet: bool, blocks: u64) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template("resealing {bar:30} {percent:>3} %  block {pos} of {len}  {msg}")
        .expect("the template is constant");
    ProgressBar::new(blocks).with_style(style.progress_chars("=> "))
}

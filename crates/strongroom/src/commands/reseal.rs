//! `strongroom volume reseal`: reseals, while the volume is in use, what was written under older key epochs, and then has the key server
//! destroy those epochs. What is still under them afterwards is lost, in every copy. With `--to` it moves a volume to another custody (`moving`,
//! at an initiator, after `prepare`, at the target).
//!
//! Absent: how blocks are resealed (the initiator), and when a lease has ended (the key server knows).

mod args;
mod moving;
mod prepare;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use strongroom_block::{Lba, SealingDomain};
use strongroom_initiator::{LeaseMode, RemoteDevice, ResealProgress, ResealReport, VolumeUrl, inquire};
use strongroom_keyserver::Client;

pub(crate) use self::args::ResealArgs;
use crate::progress::{ProgressReporter, ProgressUnit};
use crate::signals::StopSignals;
use crate::units::show_duration;
use crate::writer;

/// How often the position is written to a state file.
const SAVE_EVERY: Duration = Duration::from_secs(2);
/// How often the key server is asked whether older leases have ended.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The version of a state file that this build writes.
const STATE_VERSION: u32 = 1;

/// Where a pass goes on that was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResealNote {
    version: u32,
    /// Every block before `next` is under this epoch or a later one.
    epoch: u32,
    /// It began after the last lease of an older epoch had ended, so nobody undoes it.
    decides: bool,
    next: u64,
}

/// What a run works with.
struct Run<'a> {
    args: &'a ResealArgs,
    url: VolumeUrl,
    device: Arc<RemoteDevice>,
    client: Client,
    domain: SealingDomain,
    signals: StopSignals,
    bar: ProgressReporter,
    resealed: u64,
}

/// Runs the command.
pub(crate) fn run(args: &ResealArgs) -> Result<()> {
    let url = args.volume.contains("://").then(|| args.volume.parse::<VolumeUrl>()).transpose()?;
    match (&args.to, url) {
        (Some(to), Some(url)) => moving::run(args, &url, to),
        (Some(to), None) => prepare::prepare(args, to),
        (None, None) if args.abandon => prepare::abandon(args),
        (None, Some(_)) if args.abandon => {
            bail!("give it up on the target's machine: strongroom volume reseal VOLUME --abandon")
        }
        (None, Some(url)) => end_epochs(args, url),
        (None, None) => {
            bail!("say what '{}' is to become, with --to; or give its URL, to end older key epochs", args.volume)
        }
    }
}

fn end_epochs(args: &ResealArgs, url: VolumeUrl) -> Result<()> {
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let client = args.access.key_client()?;
    let mut options = args.access.options(&url)?;
    // Each block, and each absence, only if it is still what it was.
    options.lease = writer::lease(LeaseMode::Maintenance, "volume reseal");
    let device = args.access.attach(options)?;
    let Some(domain) = device.unit().sealed.map(|sealed| sealed.claims.domain) else {
        bail!("{url} is plain: nothing in it is sealed; to seal it: --to");
    };
    let Some(keys) = device.key_status() else {
        bail!("the keys of {url} are not at a key server: they have no epochs to end; to reseal it: --to");
    };
    let bar = args.progress.begin("resealing", ProgressUnit::Blocks, Some(device.unit().geometry.blocks));
    let mut run = Run { args, url, device, client, domain, signals, bar, resealed: 0 };
    let older = run.older_epochs(keys.epoch)?;
    if older.is_empty() {
        run.args.state.remove()?;
        let result = json!({ "epoch": keys.epoch, "resealed": 0, "destroyed_epochs": [] });
        args.progress.print_result(&result, || {
            println!("nothing to do: epoch {} is the only one that has a key", keys.epoch);
        });
        return Ok(run.device.detach()?);
    }
    run.announce_waiting()?;
    let report = run.reseal_all()?;
    run.bar.finish();
    if !args.progress.is_json() {
        println!(
            "{} blocks were resealed; nothing of the volume is under an epoch older than {}",
            run.resealed, report.epoch
        );
    }
    let destroyed = if args.keep_epochs { Vec::new() } else { run.destroy(&report)? };
    let result = json!({ "epoch": report.epoch, "resealed": run.resealed, "destroyed_epochs": destroyed });
    args.progress.print_result(&result, || {
        if !destroyed.is_empty() {
            let words = destroyed.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            println!("destroyed at the key server: epochs {words}; what is still under them, anywhere, opens no more");
        }
    });
    run.args.state.remove()?;
    Ok(run.device.detach()?)
}

impl Run<'_> {
    /// Epochs before this one that have a key.
    fn older_epochs(&self, epoch: u32) -> Result<Vec<u32>> {
        let epochs = self.client.info(self.domain)?.epochs;
        Ok(epochs.into_iter().map(|(number, _)| number).filter(|number| *number < epoch).collect())
    }

    /// Repeats until a pass that began after the last older lease finds nothing.
    fn reseal_all(&mut self) -> Result<ResealReport> {
        let mut state = self.load()?;
        loop {
            let epoch = self.device.key_status().map_or(0, |keys| keys.epoch);
            let settles_in = self.client.info(self.domain)?.settles_in;
            let begun = state.take().filter(|state| state.epoch == epoch);
            let mut now =
                begun.unwrap_or(ResealNote { version: STATE_VERSION, epoch, decides: settles_in.is_zero(), next: 0 });
            let report = self.pass(&mut now)?;
            if report.epoch != epoch {
                // There is another one by now.
                continue;
            }
            if report.progress.bad > 0 && !self.args.force {
                report.bad_blocks.iter().for_each(|lba| self.args.progress.say(&format!("block {lba} does not open")));
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

    /// Says before anything is done how long it will take at least, and why.
    fn announce_waiting(&self) -> Result<()> {
        let settles_in = self.client.info(self.domain)?.settles_in;
        if !self.args.keep_epochs && !settles_in.is_zero() {
            eprintln!(
                "it will wait until the last lease of an older epoch has ended, in {}: until then an initiator that does not reach the key \
                 server may still write under that epoch. (`lease_s` at the key server is how long keys are lent; --keep-epochs reseals now, \
                 does not wait, and destroys nothing.)",
                show_duration(settles_in)
            );
        }
        Ok(())
    }

    /// An initiator that cannot reach the key server may seal under an older epoch as long as its keys are lent.
    fn wait_for_leases(&self) -> Result<()> {
        let mut is_announced = false;
        loop {
            let left = self.client.info(self.domain)?.settles_in;
            if left.is_zero() {
                return Ok(());
            }
            let wait = show_duration(left + Duration::from_secs(1));
            self.bar.set_message(format!("waiting for older leases to end, {wait}"));
            if !std::mem::replace(&mut is_announced, true) && self.bar.is_hidden() {
                eprintln!("waiting for older leases to end, {wait}");
            }
            if self.signals.wait(left.min(ASK_EVERY)).is_some() {
                bail!("stopped while waiting for older leases to end; the same command goes on from there");
            }
        }
    }

    fn pass(&mut self, state: &mut ResealNote) -> Result<ResealReport> {
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
        self.resealed += report.progress.resealed;
        if !stopped {
            return Ok(report);
        }
        self.bar.finish();
        if report.progress.missed == 0 && report.progress.bad == 0 {
            state.next = report.progress.next.0;
            self.save(state)?;
        }
        let how = args.state.how_to_go_on("the same command starts over, and finds less to do".to_owned());
        bail!("stopped before block {} of {}; {how}", report.progress.next, report.progress.blocks)
    }

    /// Returns the epochs that were destroyed.
    fn destroy(&self, report: &ResealReport) -> Result<Vec<u32>> {
        let older = self.older_epochs(report.epoch)?;
        let words = older.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let views = inquire(self.args.access.options(&self.url)?)?.other_views;
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
        Ok(older)
    }

    fn load(&self) -> Result<Option<ResealNote>> {
        let Some(note) = self.args.state.read()? else { return Ok(None) };
        let refused = |problem| self.args.state.refused(problem);
        let text =
            self.device.open_note(&note)?.ok_or_else(|| refused("is no state of this volume, or was changed"))?;
        let state: ResealNote = serde_json::from_slice(&text).map_err(|_| refused("is of another version"))?;
        Ok(Some(state)
            .filter(|state| state.version == STATE_VERSION && state.next <= self.device.unit().geometry.blocks))
    }

    fn save(&self, state: &ResealNote) -> Result<()> {
        match self.args.state.path() {
            Some(_) => self.args.state.replace(&self.device.seal_note(&serde_json::to_vec(state)?)?),
            None => Ok(()),
        }
    }
}

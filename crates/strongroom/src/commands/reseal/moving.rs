//! The initiator's part of moving a volume to another custody, as a command: its arguments, the two attachments, what is printed, and the old
//! keys at the end.
//!
//! Absent: the moving of the contents and the note of how far it is (`strongroom_initiator::copy`), and what the target has on its disk at
//! each moment (its catalogue's).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use strongroom_block::{Custody, Lba, SealingDomain};
use strongroom_initiator::copy::{
    CopyError, CopyRate, MoveError, MoveState, NodeMac, Progress, Resume, VolumeMove, attach_placed,
    checksum_successor, describe_unit, take_place,
};
use strongroom_initiator::{ExpectedUnit, LeaseMode, RemoteDevice, VolumeUrl, read_blocking};
use strongroom_target::SUCCESSOR_SUFFIX;

use super::args::{ResealArgs, To};
use crate::access::AccessArgs;
use crate::commands::copy::show;
use crate::keys;
use crate::progress::{ProgressReporter, ProgressUnit};
use crate::signals::StopSignals;
use crate::units::show_size;
use crate::writer::{self, WayOut};
use strongroom_keyfiles::volume_records::{Domain, Others};

/// How long the target may take to change places; it ends the sessions of both first.
const SUCCESSION_PATIENCE: Duration = Duration::from_secs(120);
const SUCCESSION_PAUSE: Duration = Duration::from_millis(100);

/// One move.
struct Move<'a> {
    args: &'a ResealArgs,
    to: &'a To,
    url: VolumeUrl,
    next_url: VolumeUrl,
    /// As whom, and with which keys, either volume is reached.
    old: AccessArgs,
    new: AccessArgs,
    mac: NodeMac,
    signals: StopSignals,
}

/// `volume reseal URL --to …`.
pub(super) fn run(args: &ResealArgs, url: &VolumeUrl, to: &To) -> Result<()> {
    let Some(path) = args.state.path() else {
        bail!("a move must survive a crash of this machine: say where it keeps its state, with --state FILE");
    };
    let next_url = url.with_volume(&format!("{}{SUCCESSOR_SUFFIX}", url.file_name()));
    let Some(next_url) = next_url else {
        bail!(
            "{url} cannot be moved: give the strongroom:// URL of a volume, not of a snapshot, and not of plain iSCSI"
        );
    };
    let identity = args.access.identity.clone().unwrap_or_else(keys::default_identity);
    let node = keys::read_identity(&identity)?;
    let mac = NodeMac::new(&node, MoveState::KEY_LABEL);
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let (old, new) = accesses(&args.access, to, url)?;
    let run = Move { args, to, url: url.clone(), next_url, old, new, mac, signals };
    let mut copied = path.as_os_str().to_owned();
    copied.push(".copy");
    run.go(PathBuf::from(copied), &node)
}

/// How the volume is reached before and after: the same but for the keys.
fn accesses(access: &AccessArgs, to: &To, url: &VolumeUrl) -> Result<(AccessArgs, AccessArgs)> {
    if access.previous_versions {
        bail!(
            "an older version of a block would be resealed as the newest: recover such blocks first: strongroom volume recover"
        );
    }
    let (mut old, mut new) = (access.clone(), access.clone());
    new.key_file = None;
    match to {
        To::Plain | To::Target => new.key_server.key_servers.clear(),
        To::KeyFile(Some(path)) => {
            new.key_file = Some(path.clone());
            new.key_server.key_servers.clear();
        }
        To::KeyFile(None) => bail!("say which file has the new key: --to keyfile=FILE (strongroom key new --out FILE)"),
        To::KeyServer(host) => {
            new.key_server.key_servers.splice(.., host.clone()).for_each(drop);
            if host.is_none() {
                new.key_server.key_servers.clone_from(&access.key_server.key_servers);
            }
            if !new.key_server.is_given() {
                bail!("say which key server is to have the keys: --to keyserver=HOST[:PORT]");
            }
            // Named for what the volume becomes, and not for what it is.
            if old.key_file.is_some() {
                old.key_server.key_servers.clear();
            }
            new.key_name.get_or_insert_with(|| url.file_name().to_owned());
        }
    }
    Ok((old, new))
}

impl Move<'_> {
    fn go(&self, copied: PathBuf, node: &strongroom_handshake::NodeKey) -> Result<()> {
        let state = self.load()?;
        if let Some(state) = state.as_ref().filter(|state| state.is_placed()) {
            return self.end(state);
        }
        let next = match self.attach_successor() {
            Ok(next) => next,
            // Its place is taken already, if this node has found all of it to be right.
            Err(error) => {
                return match state.filter(|state| state.verified().is_some()) {
                    Some(state) if !self.args.dry_run => {
                        self.finish(state).with_context(|| format!("its successor: {error:#}"))
                    }
                    _ => Err(error),
                };
            }
        };
        let is_ours = state.is_some();
        let state = match state {
            Some(state) if state.is_successor(next.unit()) => state,
            Some(_) => {
                return Err(self
                    .args
                    .state
                    .refused("is of another attempt: the volume's successor was recreated since"));
            }
            None => MoveState::new(self.url.place(), next.unit()),
        };
        let state = match state.verified() {
            None => match self.copy(state, &next, is_ours, copied, node)? {
                Some(state) => state,
                None => return Ok(()),
            },
            Some(_) if self.args.dry_run => {
                self.args
                    .progress
                    .say("everything is resealed; it would be read back once more and take its place; nothing is done");
                return Ok(());
            }
            Some(sums) => {
                self.verify_again(&next, sums)?;
                state
            }
        };
        next.detach()?;
        self.take_place()?;
        self.finish(state)
    }

    fn attach_successor(&self) -> Result<Arc<RemoteDevice>> {
        // Both names, one after the other, are the successor's. What has the second now keeps it until then.
        let names = [self.next_url.file_name(), self.url.file_name()];
        let recorded = self.new.record_volume(&self.next_url, &names, Domain::Formatting, Others::Keep);
        let next = recorded.and_then(|()| self.open_successor(self.new.timeout)).with_context(|| {
            format!(
                "the volume's successor cannot be attached; make it on the target's machine with: strongroom volume reseal {} --to {}",
                self.url.file_name(),
                self.to.custody().map_or_else(|| "plain".to_owned(), |custody| custody.to_string())
            )
        })?;
        let found = next.unit().sealed.map(|sealed| sealed.custody());
        if found != self.to.custody() {
            bail!(
                "the successor that the target made is {}, and {} was asked for; give it up there (--abandon) and start over, or do not \
                 trust this target",
                found.map_or_else(|| "plain".to_owned(), |custody| format!("of custody {custody}")),
                self.to.in_words()
            );
        }
        Ok(next)
    }

    /// Not remembered: it has that name for a while only, and another one may have it after an attempt that was given up.
    fn open_successor(&self, give_up: Duration) -> Result<Arc<RemoteDevice>> {
        let mut options = self.new.options(&self.next_url)?;
        options.expected = ExpectedUnit::default();
        options.timeouts.give_up = give_up;
        options.lease = writer::lease(LeaseMode::Exclusive, "volume reseal");
        // Nobody but this peer may use it: a command that was killed is soon followed by the same one.
        options.lease.duration = Duration::from_secs(1);
        let way_out = WayOut {
            wait: Duration::MAX,
            advice: "another process of this peer fills it; end that one, then try again",
            predecessor: None,
        };
        Ok(Arc::new(writer::attach(options, way_out)?))
    }

    /// Copies everything from the one to the other and reads it back. `None`: it was a dry run.
    fn copy(
        &self,
        mut state: MoveState,
        next: &Arc<RemoteDevice>,
        is_ours: bool,
        copied: PathBuf,
        node: &strongroom_handshake::NodeKey,
    ) -> Result<Option<MoveState>> {
        let mut options = self.old.options(&self.url)?;
        options.read_only = true;
        let moving = self.ends(self.old.attach(options)?, next)?;
        if self.args.dry_run {
            self.say_what_would_be_done(moving.volume());
            return Ok(None);
        }
        if self.args.destroy_old_keys {
            let sealed = moving.volume().unit().sealed.filter(|sealed| sealed.custody() == Custody::KeyServer);
            let Some(sealed) = sealed else {
                bail!(
                    "the volume's keys are not at a key server: leave out --destroy-old-keys, and destroy them where they are"
                );
            };
            state.destroy_at_end(sealed.claims.domain);
        }
        if !is_ours {
            moving.check_unformatted()?;
        }
        self.save(&state)?;
        if !copied.exists() {
            moving.format()?;
        }
        let place =
            |url: &VolumeUrl, device: &RemoteDevice| format!("volume {} {}", url.place(), describe_unit(device.unit()));
        let mut resume = Resume::new(copied, node, &place(&self.url, moving.volume()), &place(&self.next_url, next));
        resume.every_bytes = self.args.state_every.max(1);
        let bar = self.args.progress.begin("copying", ProgressUnit::EstimatedBytes, None);
        let outcome = moving.copy(&resume, &mut self.reporter(&bar));
        bar.finish();
        let report = outcome.map_err(|error| self.copy_failed(error))?;
        moving.volume().detach()?;
        state.set_verified(&report.sums);
        self.save(&state)?;
        self.args.progress.say(&format!(
            "resealed and read back: {} of data, {} absent",
            show_size(report.data_bytes),
            show_size(report.hole_bytes)
        ));
        Ok(Some(state))
    }

    /// The two volumes, if the one may become the other.
    fn ends(&self, old: Arc<RemoteDevice>, next: &Arc<RemoteDevice>) -> Result<VolumeMove> {
        let known = match next.unit().sealed {
            Some(sealed) => self.new.seen_elsewhere(sealed.claims.domain, [&self.url, &self.next_url])?,
            None => None,
        };
        let name = self.url.to_string();
        Ok(VolumeMove::new(&name, old, Arc::clone(next), known, self.args.plaintext)?)
    }

    /// What to do after a copy that failed.
    fn copy_failed(&self, error: MoveError) -> anyhow::Error {
        match error {
            MoveError::Copy(CopyError::Differs { .. }) => anyhow!(
                "what was read back is not what was moved ({error}): the target or its store changed it, or the volume was written to. \
                 Nothing has changed places; remove the state file and {}.copy to start over, and do not trust this target if it \
                 happens again",
                self.args.state.path().unwrap_or(Path::new("")).display()
            ),
            MoveError::Copy(CopyError::Note { .. }) => error.into(),
            error => anyhow::Error::from(error).context("the same command goes on from where it was noted last"),
        }
    }

    fn say_what_would_be_done(&self, old: &RemoteDevice) {
        let unit = old.unit();
        let from = unit.sealed.map_or_else(|| "plain".to_owned(), |sealed| format!("custody {}", sealed.custody()));
        self.args.progress.say(&format!(
            "{} ({from}, {}) would be resealed as {}, read back, and replaced by that under the same name; nothing is done",
            self.url,
            show_size(unit.geometry.bytes()),
            self.to.in_words()
        ));
    }

    /// An earlier run verified it; this one must too, because the target may have changed it in between.
    fn verify_again(&self, next: &Arc<RemoteDevice>, sums: &str) -> Result<()> {
        let bar = self.args.progress.begin("copying", ProgressUnit::EstimatedBytes, None);
        let found = checksum_successor(next, &mut self.reporter(&bar));
        bar.finish();
        if found?.to_string() != sums {
            return Err(self.args.state.refused(
                "does not match the contents of the volume's successor: the target changed them; no volume was replaced",
            ));
        }
        Ok(())
    }

    /// Shows how far it is, keeps to the rate, and stops at a signal.
    fn reporter<'a>(&'a self, bar: &'a ProgressReporter) -> impl FnMut(&Progress) -> ControlFlow<()> + 'a {
        let mut rate = CopyRate::new(self.args.rate);
        move |done| {
            show(bar, done);
            let stopped = self.signals.wait(rate.pause(done)).is_some();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    /// Says that all of it is there.
    fn take_place(&self) -> Result<()> {
        let next = self.open_successor(Duration::from_secs(15))?;
        Ok(take_place(&next)?)
    }

    /// The volume must be what its successor was; then it is known as that from here on.
    fn finish(&self, mut state: MoveState) -> Result<()> {
        let until = Instant::now() + SUCCESSION_PATIENCE;
        let device = loop {
            match self.attach_moved(&state) {
                Ok(device) => break device,
                Err(error) if Instant::now() >= until => {
                    return Err(error.context(
                        "everything is resealed, but the target does not serve it under the volume's name; its log says why. The same \
                         command goes on from there",
                    ));
                }
                Err(_) if self.signals.wait(SUCCESSION_PAUSE).is_some() => {
                    bail!("stopped while the target puts the volume in its place; the same command goes on from there");
                }
                Err(_) => {}
            }
        };
        read_blocking(&*device, Lba(0), 1).context("the volume has its place, and its first block cannot be read")?;
        let claims = device.unit().sealed.map(|sealed| sealed.claims);
        device.detach()?;
        self.new.replace_known(&self.url, &self.next_url, claims)?;
        state.set_placed();
        self.save(&state)?;
        self.args.progress.say(&format!(
            "{} is of {} from here on; an initiator that knew it as it was says --forget-volume once",
            self.url,
            self.to.in_words()
        ));
        self.end(&state)
    }

    fn attach_moved(&self, state: &MoveState) -> Result<Arc<RemoteDevice>> {
        let mut options = self.new.options(&self.url)?;
        options.expected = ExpectedUnit::default();
        Ok(attach_placed(options, state)?)
    }

    /// The old sealing: its store is deleted; its keys may be needed for copies elsewhere, unless that was said otherwise. Then it is done.
    fn end(&self, state: &MoveState) -> Result<()> {
        let doomed = state.doomed_domain().map_err(|error| self.args.state.refused(&error.to_string()))?;
        if let Some(domain) = doomed {
            ensure!(
                !state.is_successors_domain(domain),
                "these are the volume's keys as it is now; nothing was destroyed"
            );
            self.destroy_keys(domain).context(
                "the volume has its new form; its old keys are not all destroyed yet: the same command does it, with the right 'administer'",
            )?;
        } else if let Some(path) = &self.old.key_file {
            self.args.progress.say(&format!(
                "{} opens nothing in it any more; keep it only for copies that were made elsewhere",
                path.display()
            ));
        } else if self.old.key_server.is_given() {
            self.args.progress.say("its old keys at the key server, if there are any, still open copies made elsewhere: strongroom key destroy-epoch");
        }
        self.args.state.remove()?;
        let custody = self.to.custody().map_or_else(|| "plain".to_owned(), |custody| custody.to_string());
        self.args.progress.print_result(&json!({ "volume": self.url.to_string(), "custody": custody }), || {});
        Ok(())
    }

    /// By domain: a name may mean the new keys by now.
    fn destroy_keys(&self, domain: SealingDomain) -> Result<()> {
        let client = self.old.key_client()?;
        let epochs = client.info(domain)?.epochs;
        // What is current cannot be destroyed: an empty one takes its place.
        client.rotate(domain)?;
        for (older, _) in epochs {
            client.destroy_epoch(domain, older, true)?;
        }
        self.args.progress.say(&format!(
            "destroyed at the key server: the old keys of {}; copies made elsewhere open no more",
            self.url
        ));
        Ok(())
    }

    fn load(&self) -> Result<Option<MoveState>> {
        let Some(bytes) = self.args.state.read()? else { return Ok(None) };
        let state = MoveState::decode(&bytes, &self.mac, &self.url.place());
        state.map(Some).map_err(|error| self.args.state.refused(&error.to_string()))
    }

    fn save(&self, state: &MoveState) -> Result<()> {
        self.args.state.replace(state.encode(&self.mac).as_bytes())
    }
}

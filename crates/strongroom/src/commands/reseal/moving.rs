//! The initiator's part of moving a volume to another custody: opens every block with the old keys, seals it with the new ones in the
//! volume's successor, reads all of it back, and only then has the successor take the volume's place.
//!
//! What is believed of how far it is: a note that this node wrote and authenticated, and what opens. Absent: the copying (the initiator's),
//! and what the target has on its disk at each moment (its catalogue's).

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use strongroom_block::{Custody, DeviceErrorKind, Lba, SealingDomain};
use strongroom_initiator::copy::{
    self, CopyError, CopyOptions, Endpoint, NodeMac, NodeMacError, Progress, Resume, SparseDevice,
};
use strongroom_initiator::{ExpectedUnit, LeaseMode, RemoteDevice, SealedClaims, VolumeUrl, read_blocking};
use strongroom_target::SUCCESSOR_SUFFIX;

use super::args::{ResealArgs, To};
use crate::access::AccessArgs;
use crate::commands::copy as progress;
use crate::keys;
use crate::signals::StopSignals;
use crate::units::show_size;
use crate::writer::{self, WayOut};
use strongroom_keyfiles::volume_records::{Domain, Others};

const STATE_VERSION: u32 = 1;
const KEY_LABEL: &str = "reseal state";
/// How long the target may take to change places; it ends the sessions of both first.
const SUCCESSION_PATIENCE: Duration = Duration::from_secs(120);
/// What is moved before progress is told of it.
const MOVED_AT_ONCE: u64 = 1 << 20;
const SUCCESSION_PAUSE: Duration = Duration::from_millis(100);

/// How far it is, as this node wrote it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// Which volume, and what its successor was when it was formatted.
    volume: String,
    successor: String,
    /// The domain of its keys at a key server, which are to be destroyed at the end.
    doomed_domain: Option<String>,
    /// The checksums of the contents, once all of it was read back and found to be the same.
    verified: Option<String>,
    /// It was seen to have its place.
    placed: bool,
}

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
    let mac = NodeMac::new(&node, KEY_LABEL);
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
            "an older version of a block would be sealed anew as the newest: mend such blocks first, with strongroom volume recover"
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
        if let Some(state) = state.as_ref().filter(|state| state.placed) {
            return self.end(state);
        }
        let next = match self.attach_successor() {
            Ok(next) => next,
            // Its place is taken already, if this node has found all of it to be right.
            Err(error) => {
                return match state.filter(|state| state.verified.is_some()) {
                    Some(state) if !self.args.dry_run => {
                        self.finish(state).with_context(|| format!("its successor: {error:#}"))
                    }
                    _ => Err(error),
                };
            }
        };
        let is_ours = state.is_some();
        let state = match state {
            Some(state) if state.successor == in_words(&next) => state,
            Some(_) => {
                return Err(self
                    .args
                    .state
                    .refused("is of another attempt: the volume's successor was made anew since"));
            }
            None => State {
                version: STATE_VERSION,
                volume: self.url.place(),
                successor: in_words(&next),
                doomed_domain: None,
                verified: None,
                placed: false,
            },
        };
        let state = match state.verified.clone() {
            None => match self.copy(state, &next, is_ours, copied, node)? {
                Some(state) => state,
                None => return Ok(()),
            },
            Some(_) if self.args.dry_run => {
                println!(
                    "everything is sealed anew; it would be read back once more and take its place; nothing is done"
                );
                return Ok(());
            }
            Some(sums) => {
                self.verify_again(&next, &sums)?;
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
                "the volume's successor is not to be had; on the target's machine it is made with: strongroom volume reseal {} --to {}",
                self.url.file_name(),
                self.to.custody().map_or_else(|| "plain".to_owned(), |custody| custody.to_string())
            )
        })?;
        let found = next.unit().sealed.map(|sealed| sealed.custody());
        if found != self.to.custody() {
            bail!(
                "the successor that the target made is {}, and {} was asked for; give it up there (--abandon) and begin anew, or do not \
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
        // Nobody but this peer may use it: whoever was killed is soon followed by the same command.
        options.lease.duration = Duration::from_secs(1);
        let way_out = WayOut {
            wait: Duration::MAX,
            advice: "another process of this peer fills it; end that one, then try again",
        };
        Ok(Arc::new(writer::attach(options, way_out)?))
    }

    /// Everything from the one to the other, and read back. `None`: it was only to be said what would be done.
    fn copy(
        &self,
        mut state: State,
        next: &Arc<RemoteDevice>,
        is_ours: bool,
        copied: PathBuf,
        node: &strongroom_handshake::NodeKey,
    ) -> Result<Option<State>> {
        let mut options = self.old.options(&self.url)?;
        options.read_only = true;
        let old = self.old.attach(options)?;
        self.check_ends(&old, next)?;
        if self.args.dry_run {
            self.say_what_would_be_done(&old);
            return Ok(None);
        }
        if self.args.destroy_old_keys {
            let sealed = old.unit().sealed.filter(|sealed| sealed.custody() == Custody::KeyServer);
            let Some(sealed) = sealed else {
                bail!(
                    "the volume's keys are not at a key server: leave out --destroy-old-keys, and destroy them where they are"
                );
            };
            state.doomed_domain = Some(sealed.claims.domain.to_string());
        }
        if !is_ours && is_formatted(next)? {
            bail!(
                "the volume's successor was formatted before, by an attempt whose state is not in this file: name that file, or give it \
                 up on the target's machine (--abandon) and begin anew there. If nobody did that, do not trust this target"
            );
        }
        self.save(&state)?;
        if !copied.exists() {
            // Whatever an attempt without a note left in it.
            next.format().context("the volume's successor cannot be formatted")?;
        }
        let place = |url: &VolumeUrl, device: &RemoteDevice| format!("volume {} {}", url.place(), in_words(device));
        let mut resume = Resume::new(copied, node, &place(&self.url, &old), &place(&self.next_url, next));
        resume.every_bytes = self.args.state_every.max(1);
        let options = CopyOptions { sha256: true, verify: true, sparse: true, ..CopyOptions::default() };
        let ends = [&old, next].map(|device| Endpoint::Volume(Arc::clone(device) as Arc<dyn SparseDevice>));
        let bar = progress::progress_bar(self.args.quiet);
        let outcome = copy::copy_resumable(&ends[0], &ends[1], options, Some(&resume), &mut self.teller(&bar));
        bar.finish_and_clear();
        let report = outcome.map_err(|error| match error {
            CopyError::Differs { .. } => anyhow!(
                "what was read back is not what was moved ({error}): the target or its store changed it, or the volume was written to. \
                 Nothing has changed places; remove the state file and {}.copy to begin anew, and do not trust this target if it \
                 happens again",
                self.args.state.path().unwrap_or(std::path::Path::new("")).display()
            ),
            CopyError::Note { .. } => anyhow::Error::from(error),
            error => anyhow::Error::from(error).context("the same command goes on from where it was noted last"),
        })?;
        old.detach()?;
        let state = State { verified: Some(report.sums.to_string()), ..state };
        self.save(&state)?;
        println!(
            "sealed anew and read back: {} of data, {} absent",
            show_size(report.data_bytes),
            show_size(report.hole_bytes)
        );
        Ok(Some(state))
    }

    /// Two volumes, of one shape and identity, of which none is plain unless that was asked for.
    fn check_ends(&self, old: &RemoteDevice, next: &RemoteDevice) -> Result<()> {
        let (before, after) = (old.unit(), next.unit());
        if before.geometry != after.geometry {
            bail!("the successor has another size than the volume; give it up on the target's machine, and begin anew");
        }
        if let Some(sealed) = after.sealed
            && let Some(place) = self.new.seen_elsewhere(sealed.claims.domain, [&self.url, &self.next_url])?
        {
            bail!(
                "what the target shows as the volume's successor is {place}; nothing was done to it. Do not trust this target"
            );
        }
        match (before.sealed, after.sealed) {
            (None, None) => bail!("{} is plain, and so is its successor; there is nothing to do", self.url),
            (Some(one), Some(other)) if one.claims.domain == other.claims.domain => bail!(
                "the target shows the same volume under both names; do not trust this target, and begin anew on its machine"
            ),
            (Some(one), Some(other)) if one.claims.volume_id != other.claims.volume_id => bail!(
                "what the target shows as the volume's successor is another volume; nothing was done to it. Do not trust this target"
            ),
            (Some(_), None) if !self.args.plaintext => {
                bail!(
                    "everything in {} will lie in PLAINTEXT on the target; if that is meant, add --plaintext",
                    self.url
                )
            }
            _ => Ok(()),
        }
    }

    fn say_what_would_be_done(&self, old: &RemoteDevice) {
        let unit = old.unit();
        let from = unit.sealed.map_or_else(|| "plain".to_owned(), |sealed| format!("custody {}", sealed.custody()));
        println!(
            "{} ({from}, {}) would be sealed anew as {}, read back, and replaced by that under the same name; nothing is done",
            self.url,
            show_size(unit.geometry.bytes()),
            self.to.in_words()
        );
    }

    /// An earlier run found it right; so must this one, for the target may have had it in its hands in between.
    fn verify_again(&self, next: &Arc<RemoteDevice>, sums: &str) -> Result<()> {
        let end = Endpoint::Volume(Arc::clone(next) as Arc<dyn SparseDevice>);
        let bar = progress::progress_bar(self.args.quiet);
        let found = copy::checksum(&end, true, &mut self.teller(&bar));
        bar.finish_and_clear();
        if found?.to_string() != sums {
            return Err(self.args.state.refused(
                "tells of other contents than the volume's successor has now: it was changed at the target; nothing has changed places",
            ));
        }
        Ok(())
    }

    fn teller<'a>(&'a self, bar: &'a indicatif::ProgressBar) -> impl FnMut(&Progress) -> ControlFlow<()> + 'a {
        let started = Instant::now();
        let mut before = None;
        move |done| {
            progress::show(bar, done);
            // What an earlier run has done took nothing of this one.
            let moved = done.done_bytes - done.hole_bytes;
            let moved = moved.saturating_sub(*before.get_or_insert(moved.saturating_sub(MOVED_AT_ONCE)));
            let due = self
                .args
                .rate
                .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(moved as f64 / rate.max(1) as f64));
            let stopped = self.signals.wait(due.saturating_sub(started.elapsed())).is_some();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    /// Says that all of it is there. Whether the target does it is seen from what it serves then.
    fn take_place(&self) -> Result<()> {
        let next = self.open_successor(Duration::from_secs(15))?;
        match next.take_place() {
            Ok(()) => {}
            // It ends the session in doing so: the answer may have been lost, and is seen by what it serves.
            Err(error) if matches!(error.kind, DeviceErrorKind::Unreachable) => {
                tracing::debug!(%error, "the target has not said that it begins");
            }
            Err(error) => {
                return Err(error).context(
                    "everything is sealed anew, but the target refuses to put it in its place; the volume is as it was",
                );
            }
        }
        next.abandon();
        Ok(())
    }

    /// The volume must be what its successor was; then it is known as that from here on.
    fn finish(&self, state: State) -> Result<()> {
        let until = Instant::now() + SUCCESSION_PATIENCE;
        let device = loop {
            match self.attach_moved(&state.successor) {
                Ok(device) => break device,
                Err(error) if Instant::now() >= until => {
                    return Err(error.context(
                        "everything is sealed anew, but the target does not serve it under the volume's name; its log says why. The same \
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
        let state = State { placed: true, ..state };
        self.save(&state)?;
        println!(
            "{} is of {} from here on; whoever knew it as it was says --forget-volume once",
            self.url,
            self.to.in_words()
        );
        self.end(&state)
    }

    fn attach_moved(&self, successor: &str) -> Result<Arc<RemoteDevice>> {
        let mut options = self.new.options(&self.url)?;
        options.expected = ExpectedUnit::default();
        options.read_only = true;
        let device = Arc::new(RemoteDevice::attach(options)?);
        if in_words(&device) != successor {
            bail!("{} is still what it was", self.url);
        }
        Ok(device)
    }

    /// The old sealing: its store is deleted; its keys may be needed for copies elsewhere, unless that was said otherwise. Then it is done.
    fn end(&self, state: &State) -> Result<()> {
        if let Some(domain) = &state.doomed_domain {
            let domain: SealingDomain = domain.parse().map_err(|_| self.args.state.refused("is of another version"))?;
            ensure!(
                !state.successor.contains(&domain.to_string()),
                "these are the volume's keys as it is now; nothing was destroyed"
            );
            self.destroy_keys(domain).context(
                "the volume has its new form; its old keys are not all destroyed yet: the same command does it, with the right 'administer'",
            )?;
        } else if let Some(path) = &self.old.key_file {
            println!(
                "{} opens nothing in it any more; keep it only for copies that were made elsewhere",
                path.display()
            );
        } else if self.old.key_server.is_given() {
            println!(
                "its old keys at the key server, if there are any, still open copies made elsewhere: strongroom key destroy-epoch"
            );
        }
        self.args.state.remove()
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
        println!("destroyed at the key server: the old keys of {}; copies made elsewhere open no more", self.url);
        Ok(())
    }

    fn load(&self) -> Result<Option<State>> {
        let Some(bytes) = self.args.state.read()? else { return Ok(None) };
        let refused = |problem: &str| self.args.state.refused(problem);
        let text = String::from_utf8(bytes).map_err(|_| refused("is no state of a move"))?;
        let (body, mac) = text.trim_end().rsplit_once('\n').ok_or_else(|| refused("is no state of a move"))?;
        self.mac.check(body, mac).map_err(|error| match error {
            NodeMacError::Malformed => refused("is no state of a move"),
            NodeMacError::NotOurs => refused("was not written by this node, or was changed since"),
        })?;
        let state: State = serde_json::from_str(body).map_err(|_| refused("is of another version"))?;
        if state.version != STATE_VERSION || state.volume != self.url.place() {
            return Err(refused("is of another volume or version"));
        }
        Ok(Some(state))
    }

    fn save(&self, state: &State) -> Result<()> {
        let body = serde_json::to_string(state)?;
        let mac = self.mac.of(&body);
        self.args.state.replace(format!("{body}\n{mac}\n").as_bytes())
    }
}

/// What a volume claims to be that tells it from any other, and how it is sealed; a plain one claims nothing.
fn in_words(device: &RemoteDevice) -> String {
    device.unit().sealed.map_or_else(
        || "plain".to_owned(),
        |sealed| {
            let SealedClaims { volume_id, domain, custody, suite, .. } = sealed.claims;
            format!("{volume_id} {domain} {custody} {suite} {:?}", sealed.mode)
        },
    )
}

/// Whether anything of a sealed volume opens; a plain one needs no formatting.
fn is_formatted(device: &RemoteDevice) -> Result<bool> {
    if device.unit().sealed.is_none() {
        return Ok(false);
    }
    match read_blocking(device, Lba(0), 1) {
        Ok(_) => Ok(true),
        Err(error) if error.kind == DeviceErrorKind::Medium => Ok(false),
        Err(error) => Err(error).context("cannot tell whether the volume's successor is empty"),
    }
}

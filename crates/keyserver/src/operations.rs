//! Policy: who may do what, and what it changes. Decides on a draft; what is not committed has not happened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::SealingDomain;
use strongroom_handshake::PublicKey;
use strongroom_seal::{EPOCHS_MAX, KeyPurpose, VolumeKey, VolumeKeyFile};

use crate::audit::{AuditHead, line, short};
use crate::batch::Batch;
use crate::config::Roles;
use crate::database::{Database, DatabaseState};
use crate::keys::{ShredKey, random};
use crate::leases::Leases;
use crate::protocol::{Failure, NewVolume, Request};
use crate::volume::{Epoch, GRANTS_MAX, Rights, Volume, is_name};

/// After a promotion or a restore, epoch numbers are passed over that may have been given out, with other keys, by the server before.
const EPOCH_GAP: u32 = 1024;
/// No key file has an epoch above this.
const EPOCH_MAX: u32 = 1 << 31;
/// Epochs that a rotation may come to; what is above is left for revocations.
const ROTATED_EPOCHS_MAX: usize = EPOCHS_MAX - 64;

/// What goes through the one thread that commits: all that changes something, and all that the audit log must tell before it
/// is answered.
#[derive(Debug)]
pub(crate) enum Operation {
    /// To give keys out, or to change something.
    Ask(Request),
    /// Something that happened elsewhere, to be written down.
    Note(String),
    /// All keys are about to leave: once it is done, that is on the disk.
    Disclosure(String),
}

impl Operation {
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Operation::Ask(request) if request.is_change())
    }
}

/// What came of an operation.
#[derive(Debug)]
pub(crate) enum Outcome {
    Volume(Arc<Volume>),
    Epoch(u32),
    Done,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    /// `None`: the server itself.
    pub(crate) identity: Option<PublicKey>,
    pub(crate) roles: Roles,
}

/// Changes in the making, over what is stored.
pub(crate) struct Draft<'a> {
    database: &'a Database,
    state: &'a DatabaseState,
    terms: Terms<'a>,
    changed: BTreeMap<SealingDomain, Option<Volume>>,
    /// Names of `changed`, and whether they are taken.
    names: BTreeMap<String, bool>,
    slots: Vec<(u32, ShredKey)>,
    taken: BTreeSet<u32>,
    lines: Vec<Event>,
    recent: &'a Recent,
    fresh: BTreeSet<LineKey>,
    again: Vec<LineKey>,
}

/// Who, and what.
pub(crate) type LineKey = (Option<PublicKey>, String);

/// Lines that were written lately.
pub(crate) type Recent = BTreeMap<LineKey, RepeatCount>;

/// When a line was written, and how often it could have been since.
pub(crate) struct RepeatCount {
    pub(crate) at: Instant,
    pub(crate) again: u32,
}

/// What was given out, what time it is, how many volumes there may be, and how often the log tells the same.
#[derive(Clone, Copy)]
pub(crate) struct Terms<'a> {
    pub(crate) leases: &'a Leases,
    pub(crate) now: Instant,
    pub(crate) volumes_max: usize,
    /// Lines that are the same within this time are one.
    pub(crate) repeated: Duration,
}

impl Terms<'_> {
    pub(crate) fn settles_in(&self, domain: SealingDomain) -> Duration {
        self.leases.settles_in(domain, self.now)
    }
}

/// A line of the log to be.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) at_ms: u64,
    pub(crate) actor: Option<PublicKey>,
    pub(crate) text: String,
    /// It tells of a change, which has not happened unless it is committed.
    pub(crate) of_change: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        database: &'a Database,
        state: &'a DatabaseState,
        terms: Terms<'a>,
        recent: &'a Recent,
    ) -> Draft<'a> {
        Draft {
            database,
            state,
            terms,
            changed: BTreeMap::new(),
            names: BTreeMap::new(),
            slots: Vec::new(),
            taken: BTreeSet::new(),
            lines: Vec::new(),
            recent,
            fresh: BTreeSet::new(),
            again: Vec::new(),
        }
    }

    pub(crate) fn log(&mut self, event: Event) {
        self.lines.push(event);
    }

    /// The same line by the same identity is recorded once per interval, and counted: a client cannot fill the log by asking for the
    /// same again and again.
    fn log_once(&mut self, actor: Option<PublicKey>, text: String, at_ms: u64) {
        let key = (actor, text);
        let known = self.recent.get(&key);
        let is_recent = known.is_some_and(|told| self.terms.now.duration_since(told.at) < self.terms.repeated);
        if (is_recent || self.fresh.contains(&key)) && !self.terms.repeated.is_zero() {
            return self.again.push(key);
        }
        let more = known.map_or(0, |told| told.again);
        let text = if more > 0 { format!("{} repeated={more}", key.1) } else { key.1.clone() };
        self.log(Event { at_ms, actor, text, of_change: false });
        self.fresh.insert(key);
    }

    /// What this draft tells, for [`Recent`].
    pub(crate) fn told(&self) -> (BTreeSet<LineKey>, Vec<LineKey>) {
        (self.fresh.clone(), self.again.clone())
    }

    /// The volumes that are another than what is stored.
    pub(crate) fn changed_domains(&self) -> BTreeSet<SealingDomain> {
        self.changed.keys().copied().collect()
    }

    /// All of it as one transaction; `None` if there is nothing.
    pub(crate) fn batch(&self) -> Option<Batch> {
        if self.lines.is_empty() {
            return None;
        }
        let mut head = self.state.head;
        let mut lines = Vec::with_capacity(self.lines.len());
        for event in &self.lines {
            let line = line(head.lines + 1, event.at_ms, event.actor.as_ref(), &event.text);
            head = AuditHead::then(head, &line).expect("numbered right here");
            lines.push(line);
        }
        Some(Batch {
            sequence: self.state.sequence + 1,
            generation: self.state.generation,
            lease_ms: self.terms.leases.longest(self.terms.now).as_millis() as u64,
            lines,
            head,
            volumes: self.changed.iter().map(|(domain, volume)| (*domain, volume.clone())).collect(),
            slots: self.slots.clone(),
        })
    }

    /// Every volume whose current epoch is another one than it was: its old number, 0 for a new volume.
    pub(crate) fn rotated(&self) -> Vec<(SealingDomain, u32)> {
        let before = |domain| self.state.volumes.get(domain).map_or(0, |volume| volume.current);
        let after = self.changed.iter().filter_map(|(domain, volume)| Some((domain, volume.as_ref()?.current)));
        after
            .map(|(domain, now)| (*domain, before(domain), now))
            .filter(|(_, old, now)| old != now)
            .map(|(domain, old, _)| (domain, old))
            .collect()
    }

    /// The lines that stay true if nothing is committed.
    pub(crate) fn lines_without_changes(self) -> impl Iterator<Item = Event> {
        self.lines.into_iter().filter(|event| !event.of_change)
    }

    /// Does one operation, all of it or nothing, and writes down what came of it.
    pub(crate) fn operate(&mut self, caller: &Caller, operation: &Operation, at_ms: u64) -> Result<Outcome, Failure> {
        let request = match operation {
            Operation::Ask(request) => request,
            Operation::Note(text) => {
                self.log(Event { at_ms, actor: caller.identity, text: text.clone(), of_change: false });
                return Ok(Outcome::Done);
            }
            Operation::Disclosure(text) => {
                self.log_once(caller.identity, text.clone(), at_ms);
                return Ok(Outcome::Done);
            }
        };
        let result = self.decide(caller, request);
        let told = match &result {
            Ok((_, told)) if matches!(request, Request::Export { .. }) => {
                let text = format!("{} {told}", request.name());
                self.log(Event { at_ms, actor: caller.identity, text, of_change: false });
                None
            }
            Ok((_, told)) => Some((format!("{} {told}", request.name()), request.is_change())),
            // A peer that is refused repeatedly must not fill the log: refusals are recorded and counted by the caller.
            Err(Failure::Refused) => None,
            Err(_) => Some((format!("failed {}{}", request.name(), about(request)), false)),
        };
        match told {
            Some((text, true)) => self.log(Event { at_ms, actor: caller.identity, text, of_change: true }),
            Some((text, false)) => self.log_once(caller.identity, text, at_ms),
            None => {}
        }
        result.map(|(outcome, _)| outcome)
    }

    /// What comes of a request, and the words of the audit log for it.
    fn decide(&mut self, caller: &Caller, request: &Request) -> Result<(Outcome, String), Failure> {
        match request {
            Request::Fetch { domain } => self.give_keys(caller, *domain, |rights| rights.open),
            Request::Export { domain } => self.give_keys(caller, *domain, |rights| rights.administer),
            Request::Create(new) => self.create(caller, new, None),
            Request::Import(new, keys) => self.create(caller, new, Some(keys)),
            Request::Grant { domain, identity, rights } => self.grant(caller, *domain, identity, *rights),
            Request::Revoke { domain, identity } => self.revoke(caller, *domain, identity),
            Request::Rotate { domain } => {
                let mut volume = self.administered(caller, *domain)?;
                let epoch = self.add_epoch(&mut volume, ROTATED_EPOCHS_MAX)?;
                let told = format!("{} epoch={epoch}", name_of(&volume));
                self.put(volume);
                Ok((Outcome::Epoch(epoch), told))
            }
            Request::DestroyEpoch { domain, epoch, force } => self.destroy_epoch(caller, *domain, *epoch, *force),
            Request::Destroy { domain } => {
                let volume = self.administered(caller, *domain)?;
                let told = name_of(&volume);
                self.names.insert(volume.name, false);
                self.changed.insert(*domain, None);
                Ok((Outcome::Done, told))
            }
            // Nothing else is handed in.
            _ => Err(Failure::Refused),
        }
    }

    /// Keys go to a caller who has the right that `may` looks for.
    fn give_keys(
        &self,
        caller: &Caller,
        domain: SealingDomain,
        may: impl FnOnce(Rights) -> bool,
    ) -> Result<(Outcome, String), Failure> {
        let volume = self.volume(domain)?;
        let rights = caller.identity.map(|identity| volume.rights(&identity)).unwrap_or_default();
        if !may(rights) {
            return Err(Failure::Refused);
        }
        self.terms.leases.given(domain, self.terms.now);
        let told = format!("{} epochs={}", name_of(&volume), ranges(volume.epochs.keys().copied()));
        Ok((Outcome::Volume(volume), told))
    }

    fn grant(
        &mut self,
        caller: &Caller,
        domain: SealingDomain,
        identity: &PublicKey,
        rights: Rights,
    ) -> Result<(Outcome, String), Failure> {
        let mut volume = self.administered(caller, domain)?;
        if rights.is_empty() {
            return Err(Failure::Invalid("no right was named; use revoke to take all of them".into()));
        }
        let before = volume.rights(identity);
        if before.administer && !rights.administer {
            keeps_administrator(&volume, identity)?;
        }
        if before.is_empty() && volume.grants.len() >= GRANTS_MAX {
            return Err(Failure::Conflict(format!("a volume has at most {GRANTS_MAX} grants; revoke one first")));
        }
        volume.grants.insert(*identity, rights);
        let mut told = format!("{} to={} rights={rights}", name_of(&volume), short(identity));
        if has_keys(before) && !has_keys(rights) {
            told += &format!(" epoch={}", self.add_epoch(&mut volume, EPOCHS_MAX)?);
        }
        self.put(volume);
        Ok((Outcome::Done, told))
    }

    fn revoke(
        &mut self,
        caller: &Caller,
        domain: SealingDomain,
        identity: &PublicKey,
    ) -> Result<(Outcome, String), Failure> {
        let mut volume = self.administered(caller, domain)?;
        keeps_administrator(&volume, identity)?;
        let Some(rights) = volume.grants.remove(identity) else {
            return Err(Failure::Invalid("this identity has no right to the volume; nothing to revoke".into()));
        };
        // What it had it keeps; what is written from now on it cannot open. If there is no room for an epoch, the right
        // is taken all the same.
        let epoch = match has_keys(rights) {
            true => self.add_epoch(&mut volume, EPOCHS_MAX).unwrap_or(0),
            false => volume.current,
        };
        let told = format!("{} from={} epoch={epoch}", name_of(&volume), short(identity));
        self.put(volume);
        Ok((Outcome::Epoch(epoch), told))
    }

    fn destroy_epoch(
        &mut self,
        caller: &Caller,
        domain: SealingDomain,
        epoch: u32,
        force: bool,
    ) -> Result<(Outcome, String), Failure> {
        let mut volume = self.administered(caller, domain)?;
        // Neither the one of now nor the one that all others know.
        let stored = self.state.volumes.get(&domain).map(|volume| volume.current);
        if epoch == volume.current || Some(epoch) == stored {
            return Err(Failure::Conflict(
                "this epoch is the current one: rotate first, reseal what is under it, then destroy it".into(),
            ));
        }
        if volume.epochs.remove(&epoch).is_none() {
            return Err(Failure::Invalid(format!("the volume has no epoch {epoch}, or it is destroyed already")));
        }
        let left = self.terms.settles_in(domain);
        if !force && !left.is_zero() {
            return Err(Failure::Conflict(format!(
                "an initiator that cannot reach this server may write under this epoch for another {} s: wait, or \
                 destroy it with --now and lose what it writes",
                left.as_secs() + 1
            )));
        }
        let told = format!("{} epoch={epoch}{}", name_of(&volume), if force { " forced" } else { "" });
        self.put(volume);
        Ok((Outcome::Done, told))
    }

    fn create(
        &mut self,
        caller: &Caller,
        new: &NewVolume,
        keys: Option<&VolumeKeyFile>,
    ) -> Result<(Outcome, String), Failure> {
        let owner = caller.identity.filter(|_| caller.roles.create).ok_or(Failure::Refused)?;
        if !is_name(&new.name) {
            return Err(Failure::Invalid("a volume's name is 1 to 128 letters, digits and . _ - : / @ +".into()));
        }
        if self.find(new.domain).is_some() {
            return Err(Failure::Conflict("there are keys for this sealing domain already".into()));
        }
        let more = self.changed.values().filter(|volume| volume.is_some()).count();
        if self.state.volumes.len() + more >= self.terms.volumes_max {
            return Err(Failure::Conflict("the key server has as many volumes as it may have (volumes_max)".into()));
        }
        let taken = self.names.get(&new.name).copied().unwrap_or_else(|| self.state.names.contains_key(&new.name));
        if taken {
            return Err(Failure::Conflict(format!("there is a volume {} already; choose another name", new.name)));
        }
        let mut volume = Volume {
            id: new.id,
            domain: new.domain,
            name: new.name.clone(),
            revision: 0,
            current: 0,
            generation: self.state.generation,
            epochs: BTreeMap::new(),
            grants: [(owner, Rights::ALL)].into(),
        };
        match keys {
            None => drop(self.add_epoch(&mut volume, EPOCHS_MAX)?),
            Some(keys) => {
                for epoch in keys.epochs() {
                    if epoch > EPOCH_MAX {
                        return Err(Failure::Invalid(format!("epoch {epoch} is none that a volume can have")));
                    }
                    let key = keys.volume_key(epoch).map_err(|error| Failure::Invalid(error.to_string()))?;
                    self.keep(&mut volume, epoch, key)?;
                }
            }
        }
        let told = format!("{} id={} epoch={}", name_of(&volume), volume.id, volume.current);
        let domain = volume.domain;
        self.put(volume);
        Ok((Outcome::Volume(self.volume(domain)?), told))
    }

    /// Draws the key of the next epoch, which becomes the current one.
    fn add_epoch(&mut self, volume: &mut Volume, epochs_max: usize) -> Result<u32, Failure> {
        if volume.epochs.len() >= epochs_max {
            return Err(Failure::Conflict(
                "the volume has as many epochs as it can have: reseal it, and destroy the old ones".into(),
            ));
        }
        let gap = if volume.generation < self.state.generation { EPOCH_GAP } else { 0 };
        let next = volume.current.checked_add(1 + gap).ok_or_else(|| Failure::Conflict("no epoch is left".into()))?;
        volume.generation = self.state.generation;
        self.keep(volume, next, &VolumeKey::new(*random()))?;
        Ok(next)
    }

    fn keep(&mut self, volume: &mut Volume, number: u32, key: &VolumeKey) -> Result<(), Failure> {
        let slot = self.database.free_slot(&self.taken);
        let slot =
            slot.ok_or_else(|| Failure::Unavailable("the shred file is full: destroy what is not needed".into()))?;
        let shred = ShredKey::fresh();
        let id = VolumeKeyFile::new(KeyPurpose::Volume, key.expose()).ids()[0].1;
        let epoch = Epoch { slot, wrapped: shred.wrap(volume.domain, number, key), id };
        self.taken.insert(slot);
        self.slots.push((slot, shred));
        volume.epochs.insert(number, epoch);
        volume.current = volume.current.max(number);
        Ok(())
    }

    fn put(&mut self, mut volume: Volume) {
        volume.revision = self.state.sequence + 1;
        self.names.insert(volume.name.clone(), true);
        self.changed.insert(volume.domain, Some(volume));
    }

    fn find(&self, domain: SealingDomain) -> Option<Arc<Volume>> {
        match self.changed.get(&domain) {
            Some(changed) => changed.clone().map(Arc::new),
            None => self.state.volumes.get(&domain).cloned(),
        }
    }

    fn volume(&self, domain: SealingDomain) -> Result<Arc<Volume>, Failure> {
        self.find(domain).ok_or(Failure::Refused)
    }

    fn administered(&self, caller: &Caller, domain: SealingDomain) -> Result<Volume, Failure> {
        let volume = self.volume(domain)?;
        let may = caller.identity.is_some_and(|identity| volume.rights(&identity).administer);
        if may { Ok(Arc::unwrap_or_clone(volume)) } else { Err(Failure::Refused) }
    }
}

/// Whether it could ask for the keys: those who administer may export them.
fn has_keys(rights: Rights) -> bool {
    rights.open || rights.administer
}

/// `1-3,7`.
pub(crate) fn ranges(numbers: impl Iterator<Item = u32>) -> String {
    let mut text = String::new();
    let mut numbers = numbers.peekable();
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if(|next| *next == last + 1) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        text += &if first == last { format!("{comma}{first}") } else { format!("{comma}{first}-{last}") };
    }
    text
}

fn name_of(volume: &Volume) -> String {
    format!("volume={} domain={}", volume.name, volume.domain)
}

/// What a request was about, for a line that tells that it was not done.
pub(crate) fn about(request: &Request) -> String {
    request.domain().map_or_else(String::new, |domain| format!(" domain={domain}"))
}

fn keeps_administrator(volume: &Volume, without: &PublicKey) -> Result<(), Failure> {
    let others = volume.grants.iter().any(|(identity, rights)| identity != without && rights.administer);
    if others || !volume.rights(without).administer {
        return Ok(());
    }
    Err(Failure::Conflict(
        "this is the last identity that administers the volume: grant that to another one first, or destroy the volume"
            .into(),
    ))
}

//! What one connection may ask, and what it is answered.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_block::SealingDomain;
use strongroom_handshake::PublicKey;
use zeroize::Zeroizing;

use crate::audit::AuditHead;
use crate::batch::Role;
use crate::config::{Config, Limits, Roles};
use crate::connection::{Connection, ConnectionError};
use crate::engine::Engine;
use crate::limits::Conduct;
use crate::metrics::Metrics;
use crate::operations::{Caller, Operation, Outcome, about};
use crate::protocol::{Answer, Failure, KeyGrant, Request, ServerStatus, WAIT_MAX};
use crate::replication::{Claim, News};
use crate::standby::news;
use crate::volume::{Volume, VolumeInfo};

/// How long an answer may take to leave.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// What too many refusals cost, each.
const PENALTY: Duration = Duration::from_secs(1);
/// A page of a list or of the log is full with this many bytes.
const PAGE_BYTES: usize = 256 << 10;

/// Configuration, and the roles that it names.
type InForce = (Arc<Config>, Arc<BTreeMap<PublicKey, Roles>>);

pub(super) struct Service {
    pub(super) engine: Arc<Engine>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) config: RwLock<InForce>,
    pub(super) conduct: Conduct,
    /// How many connections there were: the number of the next one.
    pub(super) connections: AtomicU64,
}

/// What came of a request, besides the answer.
enum Next {
    GoOn,
    End,
}

impl Service {
    pub(super) fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    fn roles(&self, identity: &PublicKey) -> Roles {
        let roles = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner).1);
        roles.get(identity).copied().unwrap_or_default()
    }

    /// Whether a peer may connect at all: it has a role, or a right to any volume.
    pub(super) fn admits(&self, identity: &PublicKey) -> bool {
        self.roles(identity) != Roles::default() || self.engine.database.state().knows(identity)
    }

    /// A line of the log, by the server itself.
    pub(super) fn note(&self, text: String) {
        let caller = Caller { identity: None, roles: Roles::default() };
        if self.engine.submit(caller, Operation::Note(text)).is_err() {
            tracing::warn!("a line of the audit log could not be written");
        }
    }

    /// Puts in force what the configuration says, at the start and after it was read again.
    pub(super) fn heed_config(&self) {
        let (config, roles) = self.config.read().unwrap_or_else(PoisonError::into_inner).clone();
        let margin = Duration::from_secs(config.lease_margin_s.into());
        self.engine.leases.lend(config.lease(), margin, Instant::now());
        self.engine.repeated.store(config.limits.repeated_lines_s, Ordering::SeqCst);
        self.engine.volumes_max.store(config.limits.volumes_max, Ordering::SeqCst);
        self.engine.replication.enable(roles.values().any(|roles| roles.standby));
        let patience = Duration::from_secs(config.limits.standby_timeout_s);
        *self.engine.required.lock().unwrap_or_else(PoisonError::into_inner) =
            config.standby_required.then_some(patience);
    }

    pub(super) fn status(&self) -> ServerStatus {
        let standby_sequence = self.engine.replication.followed_sequence();
        let state = self.engine.database.state();
        ServerStatus {
            role: state.role,
            generation: state.generation,
            sequence: state.sequence,
            head: state.head,
            volumes: state.volumes.len() as u64,
            standby_sequence,
        }
    }

    /// Answers one connection until it ends.
    pub(super) fn serve(&self, mut connection: Connection, stopping: &AtomicBool) {
        let (peer, config) = (connection.peer(), self.config());
        if !self.conduct.connect(&peer, &config.limits, Instant::now()) {
            self.metrics.connection_refused();
            return connection.close();
        }
        let id = self.connections.fetch_add(1, Ordering::Relaxed);
        let ended = self.answer_all(&mut connection, &peer, id, stopping);
        self.engine.replication.release(id);
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended");
        }
        self.conduct.disconnect(&peer, Instant::now());
        connection.close();
    }

    fn answer_all(
        &self,
        connection: &mut Connection,
        peer: &PublicKey,
        id: u64,
        stopping: &AtomicBool,
    ) -> Result<(), ConnectionError> {
        while !stopping.load(Ordering::SeqCst) {
            let limits = self.config().limits.clone();
            let idle = Instant::now() + Duration::from_secs(limits.idle_timeout_s);
            let Some(message) = connection.receive(idle, Duration::from_secs(limits.setup_timeout_s))? else {
                return Ok(());
            };
            thread::sleep(self.conduct.request(peer, &limits, Instant::now()));
            let Ok((number, request)) = Request::decode(message.bytes()) else {
                self.refused(peer, false, "malformed request");
                return Ok(());
            };
            drop(message);
            let Ok(request) = request else {
                self.refused(peer, false, "malformed request");
                self.send(connection, number, &Answer::Failure(Failure::Malformed))?;
                return Ok(());
            };
            if let Next::End = self.answer(connection, peer, id, number, &request)? {
                return Ok(());
            }
        }
        Ok(())
    }

    fn send(&self, connection: &mut Connection, number: u32, answer: &Answer) -> Result<(), ConnectionError> {
        let generation = self.engine.database.state().generation;
        connection.send(&answer.encode(number, generation), Instant::now() + SEND_TIMEOUT)
    }

    fn answer(
        &self,
        connection: &mut Connection,
        peer: &PublicKey,
        id: u64,
        number: u32,
        request: &Request,
    ) -> Result<Next, ConnectionError> {
        let caller = Caller { identity: Some(*peer), roles: self.roles(peer) };
        match request {
            Request::Backup if caller.roles.administer => return self.backup(connection, &caller, number),
            Request::Follow { sequence, head, .. } if caller.roles.standby => {
                return match self.may_follow(&caller, peer, id) {
                    Ok(()) => self.follow(connection, &caller, number, *sequence, *head),
                    Err(failure) => {
                        self.metrics.request("follow", "refused");
                        self.send(connection, number, &Answer::Failure(failure))?;
                        Ok(Next::GoOn)
                    }
                };
            }
            _ => {}
        }
        let begun = Instant::now();
        let answer = self.do_it(&caller, peer, request).unwrap_or_else(Answer::Failure);
        self.metrics.took(request.name(), begun.elapsed());
        let result = match &answer {
            Answer::Failure(Failure::Refused) => "refused",
            Answer::Failure(_) => "failed",
            _ => "done",
        };
        self.metrics.request(request.name(), result);
        if answer != Answer::Failure(Failure::Refused) {
            self.send(connection, number, &answer)?;
            return Ok(Next::GoOn);
        }
        if self.refused(peer, false, &format!("refused {}{}", request.name(), about(request))) {
            thread::sleep(PENALTY);
            self.send(connection, number, &Answer::Failure(Failure::TooMany))?;
            return Ok(Next::End);
        }
        self.send(connection, number, &answer)?;
        Ok(Next::GoOn)
    }

    /// Counts a refusal, writes it down if there are not too many, and says whether the connection is to end.
    pub(super) fn refused(&self, identity: &PublicKey, stranger: bool, text: &str) -> bool {
        // An attacker can generate any number of unknown identities: they share one account.
        const STRANGERS: PublicKey = PublicKey::from_bytes([0; 32]);
        let limits: Limits = self.config().limits.clone();
        let account = if stranger { &STRANGERS } else { identity };
        let consequence = self.conduct.refusal(account, &limits, Instant::now());
        let log = |text: String| {
            let caller = Caller { identity: (!stranger).then_some(*identity), roles: Roles::default() };
            let _ = self.engine.submit(caller, Operation::Note(text));
        };
        if consequence.untold_before > 0 {
            log(format!("refused further requests={}", consequence.untold_before));
        }
        if consequence.told {
            log(text.to_owned());
        }
        consequence.ended
    }

    fn do_it(&self, caller: &Caller, peer: &PublicKey, request: &Request) -> Result<Answer, Failure> {
        match request {
            Request::Status => return Ok(Answer::Status(self.status())),
            Request::Promote if caller.roles.administer => {
                self.engine.promote(peer)?;
                return Ok(Answer::Status(self.status()));
            }
            Request::Fence { database, generation } if caller.roles.standby => {
                if self.is_primary().is_err() {
                    return Ok(Answer::Done);
                }
                self.engine.fence(peer, *database, *generation)?;
                tracing::warn!(generation, "another key server has taken this one's place: nothing is served any more");
                return Ok(Answer::Done);
            }
            _ => {}
        }
        self.is_primary()?;
        match request {
            Request::Fetch { .. } | Request::Export { .. } => self.fetch(caller, request.clone()),
            Request::Watch { domain, revision, wait } => {
                let volume = self.volume_for(peer, *domain)?;
                if !volume.rights(peer).open {
                    return Err(Failure::Refused);
                }
                let deadline = Instant::now() + (*wait).min(WAIT_MAX);
                self.engine.wait_for_change(*domain, *revision, deadline);
                self.is_primary()?;
                if self.engine.is_unchanged(*domain, *revision) {
                    return Ok(Answer::Unchanged);
                }
                self.fetch(caller, Request::Fetch { domain: *domain })
            }
            Request::Find { name } => {
                let domain = self.engine.database.state().names.get(name).copied();
                self.info(caller, peer, domain.ok_or(Failure::Refused)?)
            }
            Request::Info { domain } => self.info(caller, peer, *domain),
            Request::List { after } => Ok(Answer::Volumes(self.list(caller, peer, *after))),
            request if request.is_change() => self.change(caller, peer, request),
            Request::Audit { from } => self.lines(caller, *from),
            _ => Err(Failure::Refused),
        }
    }

    fn is_primary(&self) -> Result<(), Failure> {
        match self.engine.database.state().role {
            Role::Primary => Ok(()),
            Role::Standby => Err(Failure::NotPrimary("it is a standby: ask the primary, or promote it".into())),
            Role::Fenced => Err(Failure::NotPrimary("another server has taken its place: ask that one".into())),
        }
    }

    fn change(&self, caller: &Caller, peer: &PublicKey, request: &Request) -> Result<Answer, Failure> {
        Ok(match self.engine.submit(*caller, Operation::Ask(request.clone()))? {
            Outcome::Volume(volume) => Answer::Info(self.shown(caller, peer, &volume)),
            Outcome::Epoch(epoch) => Answer::Epoch(epoch),
            Outcome::Done => Answer::Done,
        })
    }

    fn fetch(&self, caller: &Caller, request: Request) -> Result<Answer, Failure> {
        let outcome = self.engine.submit(*caller, Operation::Ask(request))?;
        let Outcome::Volume(volume) = outcome else {
            return Err(Failure::Unavailable("the key server made a mistake; look at its log".into()));
        };
        let keys = self.engine.database.open_keys(&volume).map_err(|error| {
            tracing::error!(%error, "keys cannot be given out");
            Failure::Unavailable(error.to_string())
        })?;
        let rights = caller.identity.map(|identity| volume.rights(&identity)).unwrap_or_default();
        Ok(Answer::Grant(KeyGrant {
            volume: volume.id,
            domain: volume.domain,
            name: volume.name.clone(),
            revision: volume.revision,
            current_epoch: volume.current,
            rights,
            keys,
            lease: self.config().lease(),
        }))
    }

    /// The volume, for a peer with any right to it.
    fn volume_for(&self, peer: &PublicKey, domain: SealingDomain) -> Result<Arc<Volume>, Failure> {
        let volume = self.engine.database.state().volumes.get(&domain).cloned().ok_or(Failure::Refused)?;
        if volume.rights(peer).is_empty() { Err(Failure::Refused) } else { Ok(volume) }
    }

    fn info(&self, caller: &Caller, peer: &PublicKey, domain: SealingDomain) -> Result<Answer, Failure> {
        if caller.roles.administer {
            let volume = self.engine.database.state().volumes.get(&domain).cloned().ok_or(Failure::Refused)?;
            return Ok(Answer::Info(self.shown(caller, peer, &volume)));
        }
        let volume = self.volume_for(peer, domain)?;
        Ok(Answer::Info(self.shown(caller, peer, &volume)))
    }

    /// Grants of others are for those who administer the volume or the server.
    fn shown(&self, caller: &Caller, peer: &PublicKey, volume: &Volume) -> VolumeInfo {
        let mut info = volume.info(self.engine.terms().settles_in(volume.domain));
        if !caller.roles.administer && !volume.rights(peer).administer {
            info.grants.retain(|(identity, _)| identity == peer);
        }
        info
    }

    fn list(&self, caller: &Caller, peer: &PublicKey, after: SealingDomain) -> Vec<VolumeInfo> {
        use std::ops::Bound::{Excluded, Unbounded};
        let state = self.engine.database.state();
        let (mut page, mut bytes) = (Vec::new(), 0);
        for volume in state.volumes.range((Excluded(after), Unbounded)).map(|(_, volume)| volume) {
            if !caller.roles.administer && volume.rights(peer).is_empty() {
                continue;
            }
            bytes += 256 + 12 * volume.epochs.len() + 33 * volume.grants.len();
            page.push(self.shown(caller, peer, volume));
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        page
    }

    fn lines(&self, caller: &Caller, from: u64) -> Result<Answer, Failure> {
        if !caller.roles.administer {
            return Err(Failure::Refused);
        }
        let database = &self.engine.database;
        let head = database.head();
        let page = database.page(from.max(1), PAGE_BYTES);
        let (start, mut lines) = page.map_err(|error| Failure::Unavailable(error.to_string()))?;
        // What came after the head was looked at is for the next page.
        lines.truncate(usize::try_from(head.lines.saturating_sub(start.lines)).unwrap_or(usize::MAX));
        Ok(Answer::Lines { start: start.hash, head, lines })
    }

    /// Everything, sealed, in parts.
    fn backup(&self, connection: &mut Connection, caller: &Caller, number: u32) -> Result<Next, ConnectionError> {
        if let Err(failure) = self.engine.submit(*caller, Operation::Note("backup".into())) {
            self.send(connection, number, &Answer::Failure(failure))?;
            return Ok(Next::GoOn);
        }
        let sent = self.engine.database.backup(&mut |part| self.part(connection, number, false, part));
        self.finish_parts(connection, number, "backup", sent)
    }

    fn part(&self, connection: &mut Connection, number: u32, last: bool, bytes: &[u8]) -> Result<(), NotSent> {
        let bytes = Zeroizing::new(bytes.to_vec());
        Ok(self.send(connection, number, &Answer::Part { last, bytes })?)
    }

    fn finish_parts(
        &self,
        connection: &mut Connection,
        number: u32,
        what: &'static str,
        sent: Result<(), NotSent>,
    ) -> Result<Next, ConnectionError> {
        match sent {
            Ok(()) => {
                self.metrics.request(what, "done");
                self.send(connection, number, &Answer::Part { last: true, bytes: Zeroizing::default() })?;
            }
            Err(NotSent::Connection(error)) => return Err(error),
            Err(NotSent::Database(error)) => {
                self.metrics.request(what, "failed");
                self.send(connection, number, &Answer::Failure(Failure::Unavailable(error.to_string())))?;
            }
        }
        Ok(Next::GoOn)
    }

    /// Whether a standby may follow over this connection: one at a time, and only once the log says so. With what it follows, keys leave.
    fn may_follow(&self, caller: &Caller, peer: &PublicKey, id: u64) -> Result<(), Failure> {
        self.is_primary()?;
        match self.engine.replication.claim(id, Instant::now()) {
            Claim::Again => Ok(()),
            Claim::Taken => {
                if self.refused(peer, false, "refused follow: another connection follows") {
                    thread::sleep(PENALTY);
                }
                Err(Failure::Conflict(
                    "another standby follows this server, and it can have one: stop that one, or wait until it is given up".into(),
                ))
            }
            Claim::First => {
                let disclosed = self.engine.submit(*caller, Operation::Disclosure("follow".into()));
                disclosed.map(drop).inspect_err(|_| self.engine.replication.release(id))
            }
        }
    }

    /// What a standby lacks: after a while nothing, a transaction, or everything.
    fn follow(
        &self,
        connection: &mut Connection,
        caller: &Caller,
        number: u32,
        sequence: u64,
        head: AuditHead,
    ) -> Result<Next, ConnectionError> {
        let news = self.engine.replication.follow(sequence, head);
        if let News::Snapshot = news {
            let everything = {
                let state = self.engine.database.state();
                let revision = state.volumes.values().map(|volume| volume.revision).max().unwrap_or(0);
                format!("follow snapshot volumes={} revision={revision}", state.volumes.len())
            };
            if let Err(failure) = self.engine.submit(*caller, Operation::Disclosure(everything)) {
                self.metrics.request("follow", "refused");
                self.send(connection, number, &Answer::Failure(failure))?;
                return Ok(Next::GoOn);
            }
        }
        let sent = match news {
            News::Nothing => self.part(connection, number, false, &[news::NOTHING]),
            News::Batch(bytes) => self.part(connection, number, false, &[news::BATCH]).and_then(|()| {
                bytes.chunks(PAGE_BYTES).try_for_each(|part| self.part(connection, number, false, part))
            }),
            News::Snapshot => self
                .part(connection, number, false, &[news::SNAPSHOT])
                .and_then(|()| self.engine.database.snapshot(&mut |part| self.part(connection, number, false, part))),
            News::Ahead => {
                let text = "the standby has more than this server ever had: this one was rolled back to an older copy";
                tracing::error!(sequence, "{text}; promote the standby, or empty its directory");
                self.metrics.request("follow", "refused");
                self.send(connection, number, &Answer::Failure(Failure::Conflict(text.into())))?;
                return Ok(Next::GoOn);
            }
        };
        self.finish_parts(connection, number, "follow", sent)
    }
}

/// Why parts were not sent to their end.
#[derive(Debug, thiserror::Error)]
enum NotSent {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Database(#[from] crate::DatabaseError),
}

//! A logical unit: one volume with its store, and the nexuses that use it. It takes SCSI commands and gives responses, by completion.
//!
//! A unit belongs to one worker, and no other thread uses it. It connects objects that each have a state of their own:
//!
//! | object | what it decides |
//! |---|---|
//! | [`access_control`] | who may use the unit: sessions, reservations, writer leases |
//! | [`medium`] | mode pages, started or stopped, counters |
//! | [`sanitize`] | SANITIZE and cryptographic erase |
//! | [`executor`] | which commands are executing, and how each ends |
//! | [`copy`] | EXTENDED COPY |
//! | [`jobs`] | administrative jobs on the store |
//! | [`verify`] | background verification (custody `target`) |
//! | [`space`] | what is reported about the store's free space |
//! | [`codec`] | how records and blocks change between channel and store |
//!
//! Sockets, sessions and logins are not here: a unit knows its sessions as [`SessionKey`]s with a nexus.

mod access_control;
mod admission;
mod answers;
mod blocks;
mod closed;
mod codec;
mod copy;
mod environment;
mod executor;
mod files;
mod image;
mod jobs;
mod key_renewal;
mod leases;
mod medium;
mod modify;
mod pending;
mod persistent_file;
mod plan;
mod receive;
mod request;
mod reservations;
mod response;
mod sanitize;
mod sealed;
mod serve;
mod space;
mod task;
mod users;
mod verify;
mod work;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{Geometry, Lba, Opener, Token};
use strongroom_scsi::transport::target as transport;
use strongroom_scsi::transport::target::{Response, TaskId};
use strongroom_scsi::{Command, NexusId, Sense, UnitAttention, UnitKind, cdb};
use strongroom_store::{Completion, Op, OpError, Outcome, SnapshotId, View};

use self::access_control::AccessControl;
use self::copy::ThirdPartyCopies;
use self::executor::{Ending, Executor, RunningCommand};
use self::image::PinnedImage;
use self::jobs::{JobRules, Jobs, RunningJob};
use self::medium::MediumState;
use self::persistent_file::PersistentFile;
use self::plan::Plan;
use self::response::{check_condition, with_descriptor_sense};
use self::sanitize::{EraseEvent, SanitizeStatus, Sanitizer};
use self::serve::{SERVED_MAX, ServedOperation};
use self::space::SpaceWatch;
use self::verify::{Verification, Verifier};
use self::work::{Next, Work};
use crate::open_units::{CrossUnitError, CrossUnitRequest, CrossUnitResult, Origin, Requester};
use crate::store_handle::StoreHandle;
use crate::volume::{Access, Volume};

pub(crate) use self::closed::{ClosedUnit, ClosedUnits};
pub(crate) use self::codec::BlockCodec;
pub(crate) use self::copy::OutwardErrand;
pub(crate) use self::environment::TargetEnvironment;
pub(crate) use self::files::{SimulatedFiles, UnitFiles};
pub(crate) use self::image::{ABSENCE_MAX, AbsentReader};
pub(crate) use self::jobs::{Job, StoreContents};
pub(crate) use self::key_renewal::{KeyRenewal, KeyRenewer, RenewalError, Renewed};
pub(crate) use self::leases::format::LEASES_FILE;
pub(crate) use self::plan::Verdict;
pub(crate) use self::receive::{PendingImage, PossibleWriter, StepError};
pub(crate) use self::task::{Finished, SessionKey};
pub(crate) use self::users::Users;
pub(crate) use self::work::SLICE_BYTES;

/// Commands answered at once (IMMED) that continue at the same time.
const BACKGROUND_MAX: usize = 64;
/// Pause of a verification that is not wanted.
const NO_VERIFICATION_PAUSE: Duration = Duration::from_secs(5);

/// One volume that is served.
pub(crate) struct Unit {
    volume: Arc<Volume>,
    target_name: String,
    environment: Arc<TargetEnvironment>,
    /// Names this opening of the unit, among all of this process.
    opening: u64,
    store: StoreHandle,
    image: PinnedImage<receive::WaitingEnd>,
    codec: BlockCodec,
    access: AccessControl,
    medium: MediumState,
    sanitizer: Sanitizer,
    executor: Executor,
    copies: ThirdPartyCopies,
    jobs: Jobs,
    /// Custody `target`, where the target was given what opens blocks.
    verifier: Option<Verifier>,
    space: SpaceWatch,
    /// An initiator has ordered that the unit take the place of the volume that it succeeds.
    takes_place: bool,
}

impl Unit {
    /// A unit on an open store.
    pub(crate) fn new(
        volume: Arc<Volume>,
        target_name: String,
        mut store: StoreHandle,
        codec: BlockCodec,
        mut files: UnitFiles,
        environment: Arc<TargetEnvironment>,
    ) -> Unit {
        let is_there = |snapshot| store.snapshots().iter().any(|info| info.id == snapshot);
        let image = PinnedImage::restore(std::mem::replace(&mut files.image, PersistentFile::discarded()), is_there);
        if let Some(pin) = image.pin() {
            store.set_view(View::Snapshot(pin.snapshot));
        }
        Unit {
            volume,
            target_name,
            access: AccessControl::new(files, Arc::clone(&environment.ports)),
            environment,
            // Keys of the standard hasher are random: enough for a value that must only differ.
            opening: RandomState::new().build_hasher().finish(),
            store,
            image,
            codec,
            medium: MediumState::default(),
            sanitizer: Sanitizer::default(),
            executor: Executor::default(),
            copies: ThirdPartyCopies::default(),
            jobs: Jobs::default(),
            verifier: None,
            space: SpaceWatch::default(),
            takes_place: false,
        }
    }

    /// Has a way to destroy the key that wraps its block keys.
    pub(crate) fn with_key_renewal(mut self, renewal: Option<KeyRenewal>) -> Unit {
        self.sanitizer.set_renewal(renewal);
        self
    }

    /// Has the unit verify its blocks in the background.
    pub(crate) fn verify_with(&mut self, opener: Arc<dyn Opener>) {
        self.verifier = Some(Verifier::new(opener));
    }

    /// The store continues an erase from before that may have been a cryptographic one, and the key still exists.
    pub(crate) fn key_survived(&mut self) {
        self.sanitizer.resume_with_key();
    }

    /// What is to be remembered when the unit is closed.
    pub(crate) fn closed(&self) -> ClosedUnit {
        ClosedUnit {
            persistent: self.access.reservations.persistent().clone(),
            mode: self.medium.mode,
            started: self.medium.started,
            sanitize: self.sanitizer.status(),
            leases: self.access.leases.table().clone(),
            absent: self.image.absent_readers(),
        }
    }

    /// Continues with what was remembered when the unit was closed.
    pub(crate) fn resume(&mut self, before: ClosedUnit) {
        self.access.reservations.resume(before.persistent);
        self.access.leases.resume(before.leases);
        self.image.resume(before.absent);
        (self.medium.mode, self.medium.started) = (before.mode, before.started);
        self.sanitizer.resume(before.sanitize, &self.store);
    }

    /// A session begins to use the unit: its nexus, and where it comes from.
    pub(crate) fn attach(&mut self, key: SessionKey, nexus: NexusId, origin: Origin, read_only: bool) {
        self.image.session_began(&nexus);
        self.access.attach(key, nexus, origin, read_only);
    }

    /// A session ends. Its running tasks continue without a response.
    pub(crate) fn detach(&mut self, key: SessionKey) {
        let lost = self.access.users.get(key).filter(|user| !user.has_logged_out).map(|user| user.nexus.clone());
        self.access.detach(key, &mut self.executor);
        self.medium.detach(key);
        // Unless its initiator has a new session already.
        if let Some(nexus) = lost.filter(|nexus| self.access.users.session_of(nexus).is_none()) {
            self.image.session_lost(nexus);
        }
    }

    /// The initiator of a session has logged out: it does not come back for what it saw. [`Unit::detach`] follows.
    pub(crate) fn logged_out(&mut self, key: SessionKey) {
        if let Some(user) = self.access.users.get_mut(key) {
            user.has_logged_out = true;
        }
    }

    /// Advances the time by which writer leases lapse, and by which absent sessions may come back for what they saw.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.access.leases.tick(now);
        self.image.tick(now);
    }

    /// When [`Unit::poll`] has something to do although nothing was asked for.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.image.deadline()
    }

    /// I_T NEXUS RESET: the session's nexus counts as lost for a moment.
    pub(crate) fn nexus_lost(&mut self, key: SessionKey) {
        self.access.nexus_lost(key);
    }

    /// The access rules have changed: whether the session may write from now on.
    pub(crate) fn set_read_only(&mut self, key: SessionKey, read_only: bool) {
        self.access.users.set_read_only(key, read_only);
    }

    /// The sessions that use it.
    pub(crate) fn users(&self) -> &Users {
        &self.access.users
    }

    /// How many commands and jobs the store is executing.
    pub(crate) fn in_flight(&self) -> usize {
        self.executor.len() + self.jobs.len()
    }

    /// Whether no session uses it, and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let is_busy = !self.executor.is_empty() || !self.jobs.is_empty();
        // A pinned image is released before the unit is closed: only an open unit notices that the time has passed.
        let is_writing = self.access.is_writing() || self.image.is_busy() || self.sanitizer.is_renewing_key();
        // An erase that the medium stopped continues when the store is opened again.
        let erases = self.store.erase_progress().is_some() && !self.store.stats().writes_refused;
        self.access.users.is_empty() && !is_busy && !is_writing && !erases
    }

    /// A session aborts its tasks, one or all. Returns those that are still running: they may still have effects.
    pub(crate) fn abort(&mut self, key: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        self.access.abort(key, task, &mut self.executor)
    }

    /// Another session aborts the tasks of this one: each is answered with TASK ABORTED when it can have no effect any more.
    /// Returns those that are still running.
    pub(crate) fn abort_for_others(&mut self, key: SessionKey) -> Vec<TaskId> {
        self.access.abort_for_others(key, &mut self.executor)
    }

    /// LOGICAL UNIT RESET.
    pub(crate) fn reset(&mut self) {
        self.access.reset();
        self.medium.reset();
    }

    /// Takes a command in. `sealed_blocks_max`: most sealed blocks that one PDU of this session takes.
    pub(crate) fn submit(&mut self, key: SessionKey, command: transport::Command, sealed_blocks_max: usize) -> Verdict {
        let task = (key, command.task);
        let (work, op, ending) = match self.plan(key, command, sealed_blocks_max) {
            Plan::Answer(response) => return Verdict::Answer(self.in_format(response)),
            Plan::Violation(what) => return Verdict::Violation(what),
            Plan::Delayed => return Verdict::Later,
            Plan::Start(work, op) => (self.checked_on_arrival(key, work, &op), op, Ending::Response),
            Plan::WhenCertain(work, op) => (work, op, Ending::Certain),
            // Beyond the limit it is answered at its end: commands that were answered at once are counted nowhere else.
            Plan::Background(work, op) if self.background_count() >= BACKGROUND_MAX => (work, op, Ending::Response),
            Plan::Background(work, op) => (work, op, Ending::Background),
        };
        self.start(RunningCommand { task, work, ending }, op);
        match ending {
            Ending::Background => Verdict::Answer(Response::good()),
            _ => Verdict::Later,
        }
    }

    fn background_count(&self) -> usize {
        self.executor.count(|running| running.ending == Ending::Background)
    }

    /// Advances everything; appends the commands that have ended.
    pub(crate) fn poll(&mut self, finished: &mut Vec<Finished>) {
        while self.poll_operations(finished) > 0 {}
        if self.access.has_changes() {
            self.access.poll((&self.volume.name, self.image.is_pinned()), &mut self.executor);
        }
        for (task, response) in self.executor.poll_delayed() {
            finished.push(Finished::answered(task, self.in_format(response)));
        }
        self.poll_image();
        if self.space.poll(&self.volume.name, &self.store) {
            self.access.users.establish_for_all(UnitAttention::SpaceThreshold);
        }
        self.poll_erase(finished);
        let executor = &self.executor;
        self.access.users.drop_left(|key| executor.has_tasks(key));
    }

    /// Advances commands and jobs whose operations have ended; returns how many.
    fn poll_operations(&mut self, finished: &mut Vec<Finished>) -> usize {
        let mut completions = self.executor.take_completions();
        let returned = self.copies.poll();
        let ended = self.store.poll_completions(&mut completions) + returned.len();
        for Completion { token, result } in completions.drain(..) {
            let Some(running) = self.executor.end(token) else {
                self.job_done(token, result);
                continue;
            };
            self.advance(running, finished, |unit, work| match result {
                Ok(outcome) => unit.work_on(work, outcome),
                Err(error) => unit.work_failed(work, &error),
            });
        }
        self.executor.keep_completions(completions);
        for (token, result) in returned {
            let Some(running) = self.executor.end(token) else { continue };
            self.advance(running, finished, |unit, work| unit.errand_came_back(work, result));
        }
        // Only the SANITIZE itself is left.
        if self.executor.len() == 1
            && let Some((token, op)) = self.sanitizer.release()
        {
            self.store.submit(token, op);
        }
        ended
    }

    /// Follows an erase of the store, and the destruction of its key.
    fn poll_erase(&mut self, finished: &mut Vec<Finished>) {
        match self.sanitizer.poll_erase(&self.store) {
            EraseEvent::None => {}
            EraseEvent::Certain => {
                self.jobs.erase_is_certain();
                self.executor.answer_certain(finished);
            }
            EraseEvent::Ended => {
                if let Some(verifier) = &mut self.verifier {
                    verifier.reset();
                }
            }
        }
        if let Some(event) = self.sanitizer.poll_key(&self.volume, &mut self.store) {
            if let Some(wrap) = event.wrap {
                self.codec.wrap = Some(wrap);
            }
            self.jobs.key_destroyed(event.is_destroyed);
        }
    }

    /// An operation of a command has ended; `go_on` decides what follows.
    fn advance(
        &mut self,
        running: RunningCommand,
        finished: &mut Vec<Finished>,
        go_on: impl FnOnce(&mut Unit, Work) -> Next,
    ) {
        let RunningCommand { task, work, ending } = running;
        let writes_to_cache = work.writes_to_cache();
        let next = match go_on(self, work) {
            Next::Done(Response { status: 0, wanted_bytes, written, .. })
                if writes_to_cache && !self.medium.mode.write_cache =>
            {
                Next::Again(Work::Settle { wanted_bytes, written }, Op::Flush)
            }
            next => next,
        };
        let response = match next {
            // An aborted command stops between two of its operations; but nothing stops a SANITIZE (SBC-3 §4.11.2).
            Next::Again(work, _) if ending.is_aborted() && !matches!(work, Work::Sanitize) => {
                (ending == Ending::TaskAborted).then(Response::task_aborted)
            }
            // Nor does a command write once a SANITIZE waits to discard everything.
            Next::Again(work, _)
                if self.sanitizer.status() == SanitizeStatus::InProgress && !work.may_go_on_while_sanitizing() =>
            {
                let response = self.sanitized_away(&work);
                (ending == Ending::Response).then(|| self.in_format(response))
            }
            Next::Again(work, op) => return self.start(RunningCommand { task, work, ending }, op),
            Next::Done(response) => match ending {
                Ending::Response | Ending::Certain => Some(self.in_format(response)),
                Ending::TaskAborted => Some(Response::task_aborted()),
                Ending::Aborted | Ending::Background => None,
            },
        };
        finished.push(Finished { connection: task.0, task: task.1, response });
    }

    fn in_format(&self, response: Response) -> Response {
        if self.medium.mode.descriptor_sense { with_descriptor_sense(response) } else { response }
    }

    fn start(&mut self, running: RunningCommand, op: Op) {
        let waits = matches!(running.work, Work::Sanitize) && !self.executor.is_empty();
        let elsewhere = running.work.other_unit();
        let token = self.executor.begin(running);
        if waits {
            self.sanitizer.hold_back(token, op);
        } else if let Some((to, asker)) = elsewhere {
            self.copies.send(OutwardErrand { token, to, asker, op });
        } else {
            self.store.submit(token, op);
        }
    }

    /// The operations that other units are to be asked for.
    pub(crate) fn take_outward(&mut self) -> Vec<OutwardErrand> {
        self.copies.take_outward()
    }

    /// Another unit has replied.
    pub(crate) fn take_errand_back(&mut self, token: Token, result: CrossUnitResult) {
        self.copies.receive(token, result);
    }

    fn errand_came_back(&mut self, work: Work, result: CrossUnitResult) -> Next {
        match (work, result) {
            (work, Ok(outcome)) => self.work_on(work, outcome),
            (work, Err(CrossUnitError::Store(error))) => self.work_failed(work, &error),
            (Work::CopyRead(copy) | Work::CopyWrite(copy), Err(CrossUnitError::NotReachable)) => {
                self.copies.record(&copy, false);
                Next::Done(check_condition(Sense::COPY_TARGET_NOT_REACHABLE))
            }
            (work, Err(CrossUnitError::NotReachable)) => self.work_failed(work, &OpError::NoSuchView),
        }
    }

    /// Executes an operation for a command of another unit, if a session of its initiator could do the same here.
    pub(crate) fn take_errand(&mut self, errand: CrossUnitRequest, may_write: bool) {
        let CrossUnitRequest { requester: asker, mut op, reply, .. } = errand;
        let key = match self.session_for(&asker, &op, may_write) {
            Ok(Some(key)) => key,
            Ok(None) => return,
            Err(busy) => return reply.tell(Err(CrossUnitError::Store(busy))),
        };
        if self.executor.count(|running| matches!(running.work, Work::CrossUnitRequest(_))) >= SERVED_MAX {
            return reply.tell(Err(CrossUnitError::Store(OpError::Busy)));
        }
        if let Op::Write { fua, .. } = &mut op {
            *fua |= !self.medium.mode.write_cache;
        }
        let work = Work::CrossUnitRequest(Box::new(ServedOperation::new(reply)));
        // No session can abort it, but other tasks can wait for its end.
        let task = (key, self.executor.next_foreign_task());
        self.start(RunningCommand { task, work, ending: Ending::Background }, op);
    }

    /// A session of the same initiator that could execute `op` now by a command of its own.
    fn session_for(&mut self, asker: &Requester, op: &Op, may_write: bool) -> Result<Option<SessionKey>, OpError> {
        let writes = match op {
            Op::Read { .. } => false,
            Op::Write { .. } | Op::Discard { .. } => true,
            _ => return Ok(None),
        };
        let is_available = self.medium.started
            && self.sanitizer.status() == SanitizeStatus::Idle
            && self.store.erase_progress().is_none()
            && self.volume.unit_kind() == UnitKind::Plain;
        if !is_available || writes && (!may_write || self.medium.mode.write_protect) {
            return Ok(None);
        }
        let like = if writes { cdb::write_16(Lba(0), 1, false) } else { cdb::read_16(Lba(0), 1) };
        let Ok(like) = Command::decode(&like) else { return Ok(None) };
        self.access.session_for(asker, &like, &self.volume.name).map_err(|_| OpError::Busy)
    }

    /// Executes an administrative job, or begins it.
    pub(crate) fn take_job(&mut self, job: Job) {
        match job {
            Job::Describe(reply) => drop(reply.send(Box::new(jobs::describe(&self.store)))),
            Job::CountPinned { mut count, reply } => {
                let has_more = self.store.count_pinned(&mut count);
                let _ = reply.send((count, has_more));
            }
            Job::Receive { step, reply } => self.take_step(step, reply),
            // Of a stream that builds on some snapshot.
            Job::PossibleWriters(reply) => drop(reply.send(self.possible_writers(Some(SnapshotId(0))))),
            Job::Receptions(reply) => drop(reply.send(self.store.receptions())),
            Job::Run { view, op, reply } => {
                let can_destroy_key = matches!(op, Op::CryptoErase) && self.sanitizer.can_destroy_key(&self.volume);
                let rules = JobRules { shown: self.image.pin().map(|pin| pin.snapshot), can_destroy_key };
                self.jobs.run(self.executor.next_token(), (view, op), reply, &rules, &mut self.store);
            }
            Job::Send { stream, reply } => {
                self.jobs.send(self.executor.next_token(), stream, reply, &mut self.store);
            }
        }
    }

    fn job_done(&mut self, token: Token, result: Result<Outcome, OpError>) {
        match self.jobs.remove(token) {
            None | Some(RunningJob::Erase { reply: None, .. }) => {}
            Some(RunningJob::Receive(step)) => self.step_done(&step, result),
            Some(RunningJob::Verify) => {
                let Some(verifier) = &mut self.verifier else { return };
                if let Some(op) = verifier.completed(result, &self.volume, &self.codec) {
                    self.start_verify(op);
                }
            }
            Some(RunningJob::Run { reply, grows }) => {
                if grows && result.is_ok() {
                    self.take_size(self.store.info().geometry);
                }
                let _ = reply.send(result);
            }
            Some(RunningJob::Erase { reply: Some(reply), .. }) => drop(reply.send(result)),
            Some(RunningJob::Send { stream, reply }) => {
                let _ = reply.send(jobs::send_blocks(stream, result, &self.store));
            }
        }
    }

    fn start_verify(&mut self, op: Op) {
        let view: View = self.store.view();
        self.jobs.submit(self.executor.next_token(), RunningJob::Verify, (view, op), &mut self.store);
    }

    /// Whether it verifies its blocks in the background.
    pub(crate) fn verifies(&self) -> bool {
        self.verifier.is_some()
    }

    /// What background verification has done.
    pub(crate) fn verification(&self) -> Option<Verification> {
        self.verifier.as_ref().map(Verifier::report)
    }

    /// The unit is idle: verifies the next run of blocks, if it is due. Returns when to call again.
    pub(crate) fn verify_step(&mut self) -> Duration {
        let Some(verifier) = &mut self.verifier else { return NO_VERIFICATION_PAUSE };
        let (op, pause) = verifier.poll(&self.volume, &self.store);
        if let Some(op) = op {
            self.start_verify(op);
        }
        pause
    }

    /// The access rules of the volume have changed.
    pub(crate) fn take_access(&mut self, access: Access) {
        if access != self.volume.access {
            self.volume = Arc::new(Volume { access, ..(*self.volume).clone() });
        }
    }

    /// The size of the volume may have changed; its users get a unit attention.
    pub(crate) fn take_size(&mut self, geometry: Geometry) {
        if geometry == self.volume.geometry {
            return;
        }
        self.volume = Arc::new(Volume { geometry, ..(*self.volume).clone() });
        self.access.users.establish_for_all(UnitAttention::CapacityChanged);
    }

    /// Whether an initiator has ordered, since the last call, that the unit take the place of the volume that it succeeds.
    pub(crate) fn take_place(&mut self) -> bool {
        std::mem::take(&mut self.takes_place)
    }

    /// Names this opening of the unit.
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// How its records and blocks change between channel and store; its clones and snapshots need the same.
    pub(crate) fn codec(&self) -> &BlockCodec {
        &self.codec
    }

    /// The store, of which other units may have handles.
    pub(crate) fn store(&self) -> &StoreHandle {
        &self.store
    }

    /// The same, for maintenance.
    pub(crate) fn store_mut(&mut self) -> &mut StoreHandle {
        &mut self.store
    }

    /// Gives the store back, to close it elsewhere.
    pub(crate) fn into_store(self) -> StoreHandle {
        self.store
    }
}

#[cfg(test)]
mod tests;

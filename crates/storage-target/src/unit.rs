//! A logical unit: one volume with its store, and the nexuses that use it. It takes SCSI commands and gives responses, by completion.
//!
//! A unit belongs to one worker, and no other thread uses it. [`Unit`] connects objects that each have a state of their own:
//!
//! | object | what it decides |
//! |---|---|
//! | [`device_server`] | which commands may be executed now, and how each ends |
//! | [`commands`] | what a command does with blocks: one file each |
//! | [`medium`] | which blocks there are, mode pages, started or stopped, counters |
//! | [`access_control`] | who may use the unit: sessions, reservations, writer leases |
//! | [`task_set`] | which commands are executing, and what waits for their end |
//! | [`sanitize`] | SANITIZE and cryptographic erase |
//! | [`copies`] | what EXTENDED COPY leaves behind and needs from other units |
//! | [`jobs`] | administrative jobs on the store |
//! | [`receive`] | snapshots that are received, and what sessions see meanwhile |
//! | [`verify`] | background verification (custody `target`) |
//! | [`meter`] | how long commands took, and which errors were answered |
//! | [`space`] | what is reported about the store's free space |
//! | [`codec`] | how records and blocks change between channel and store |
//!
//! Sockets, sessions and logins are not here: a unit knows its sessions as [`SessionKey`]s with a nexus.

mod access_control;
mod answers;
mod closed;
mod codec;
mod commands;
mod copies;
mod device_server;
mod environment;
mod files;
mod identity;
mod image;
mod jobs;
mod key_renewal;
mod leases;
mod medium;
mod meter;
mod pending;
mod persistent_file;
mod plan;
mod receive;
mod receive_step;
mod request;
mod reservations;
mod response;
mod sanitize;
mod space;
mod task;
mod task_set;
mod users;
mod verify;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_block::{Geometry, Opener, Token};
use strongroom_scsi::transport::target as transport;
use strongroom_scsi::transport::target::TaskId;
use strongroom_scsi::vendor::lease::Writer;
use strongroom_scsi::{NexusId, UnitAttention};
use strongroom_store::{Completion, Op, OpError, Outcome, SnapshotId, View, steps_taken};

use self::access_control::AccessControl;
use self::device_server::DeviceServer;
use self::identity::UnitIdentity;
use self::image::PinnedImage;
use self::jobs::{JobRules, Jobs, RunningJob};
use self::medium::{Medium, MediumState};
use self::persistent_file::PersistentFile;
use self::receive::SnapshotReceiver;
use self::receive_step::RequestedStep;
use self::sanitize::EraseEvent;
use self::space::SpaceWatch;
use self::verify::Verifier;
use crate::open_units::{CrossUnitRequest, CrossUnitResult, Origin};
use crate::store_handle::StoreHandle;
use crate::volume::{Access, Volume};

pub(crate) use self::closed::{ClosedUnit, ClosedUnits};
pub(crate) use self::codec::BlockCodec;
pub(crate) use self::copies::OutgoingRequest;
pub(crate) use self::environment::TargetEnvironment;
pub(crate) use self::files::{SimulatedFiles, UnitFiles};
pub(crate) use self::image::{ABSENCE_MAX, AbsentReader};
pub(crate) use self::jobs::{Job, StoreContents};
pub(crate) use self::key_renewal::{KeyRenewal, KeyRenewer, RenewalError, Renewed};
pub(crate) use self::leases::format::LEASES_FILE;
pub(crate) use self::medium::SLICE_BYTES;
pub(crate) use self::meter::UnitMeter;
pub(crate) use self::plan::Verdict;
pub(crate) use self::receive::PendingImage;
pub(crate) use self::receive_step::{PossibleWriter, StepError};
pub(crate) use self::task::{Finished, SessionKey};
pub(crate) use self::users::Users;

/// A call of a unit polls the store again, for what follows from completions, until the store has done this many steps. A poll of the store
/// has a limit of its own, which repeated calls would multiply.
const STEPS_PER_CALL: u64 = 2048;
/// Pause of a verification that is not wanted.
const NO_VERIFICATION_PAUSE: Duration = Duration::from_secs(5);

/// One volume that is served.
pub(crate) struct Unit {
    server: DeviceServer,
    /// Identifies this opening of the unit, among all of this process.
    opening: u64,
    receiver: SnapshotReceiver,
    jobs: Jobs,
    /// Custody `target`, where the target was given what opens blocks.
    verifier: Option<Verifier>,
    space: SpaceWatch,
    /// An empty vector whose memory is reused.
    completions: Vec<Completion>,
    /// It is to be polled again although nothing has happened: the last call of [`Unit::poll`] took its time.
    pub(crate) goes_on: bool,
}

/// What goes on beside a unit's commands.
pub(crate) struct Background<'a, Holders> {
    /// What verifies its blocks, if anything does.
    pub(crate) verifier: Option<&'a Verifier>,
    /// The holders of writer leases.
    pub(crate) lease_holders: Holders,
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
        let access = AccessControl::new(files, Arc::clone(&environment.ports));
        let identity = UnitIdentity::new(target_name, environment);
        let medium = Medium { volume, store, codec, state: MediumState::default() };
        Unit {
            server: DeviceServer::new(identity, medium, access),
            // Keys of the standard hasher are random: enough for a value that must only differ.
            opening: RandomState::new().build_hasher().finish(),
            receiver: SnapshotReceiver { image },
            jobs: Jobs::default(),
            verifier: None,
            space: SpaceWatch::default(),
            completions: Vec::new(),
            goes_on: false,
        }
    }

    /// Has a way to destroy the key that wraps its block keys.
    pub(crate) fn with_key_renewal(mut self, renewal: Option<KeyRenewal>) -> Unit {
        self.server.sanitizer.set_renewal(renewal);
        self
    }

    /// Has the unit verify its blocks in the background.
    pub(crate) fn verify_with(&mut self, opener: Arc<dyn Opener>) {
        self.verifier = Some(Verifier::new(opener));
    }

    /// The store continues an erase from before that may have been a cryptographic one, and the key still exists.
    pub(crate) fn key_survived(&mut self) {
        self.server.sanitizer.resume_with_key();
    }

    /// What is to be remembered when the unit is closed.
    pub(crate) fn closed(&self) -> ClosedUnit {
        let DeviceServer { access, medium, sanitizer, .. } = &self.server;
        ClosedUnit {
            persistent: access.reservations.persistent().clone(),
            mode: medium.state.mode,
            started: medium.state.started,
            sanitize: sanitizer.status(),
            leases: access.leases.table().clone(),
            absent: self.receiver.image.absent_readers(),
        }
    }

    /// Continues with what was remembered when the unit was closed.
    pub(crate) fn resume(&mut self, before: ClosedUnit) {
        let DeviceServer { access, medium, sanitizer, .. } = &mut self.server;
        access.reservations.resume(before.persistent);
        access.leases.resume(before.leases);
        self.receiver.image.resume(before.absent);
        (medium.state.mode, medium.state.started) = (before.mode, before.started);
        sanitizer.resume(before.sanitize, &medium.store);
    }

    /// A session begins to use the unit: its nexus, and where it comes from.
    pub(crate) fn attach(&mut self, key: SessionKey, nexus: NexusId, origin: Origin, read_only: bool) {
        self.receiver.image.session_began(&nexus);
        self.server.access.attach(key, nexus, origin, read_only);
    }

    /// A session ends. Its running tasks continue without a response.
    pub(crate) fn detach(&mut self, key: SessionKey) {
        let user = self.users().get(key);
        let lost = user.filter(|user| !user.has_logged_out).map(|user| user.nexus.clone());
        self.server.detach(key);
        // Unless its initiator has a new session already.
        if let Some(nexus) = lost.filter(|nexus| self.users().session_of(nexus).is_none()) {
            self.receiver.image.session_lost(nexus);
        }
    }

    /// Advances the time by which writer leases lapse, and by which absent sessions may come back for what they saw.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.server.access.leases.tick(now);
        self.receiver.image.tick(now);
        self.server.meter.tick(now);
    }

    /// What measures its commands.
    pub(crate) fn meter_mut(&mut self) -> &mut UnitMeter {
        &mut self.server.meter
    }

    /// When [`Unit::poll`] has something to do although nothing was asked for.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.receiver.image.deadline()
    }

    /// I_T NEXUS RESET: the session's nexus counts as lost for a moment.
    pub(crate) fn nexus_lost(&mut self, key: SessionKey) {
        self.server.access.nexus_lost(key);
    }

    /// The sessions that use it.
    pub(crate) fn users(&self) -> &Users {
        &self.server.access.users
    }

    /// The same, to change what is known of one.
    pub(crate) fn users_mut(&mut self) -> &mut Users {
        &mut self.server.access.users
    }

    /// How many commands and jobs the store is executing.
    pub(crate) fn in_flight(&self) -> usize {
        self.server.tasks.len() + self.jobs.len()
    }

    /// Whether no session uses it, and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        // A pinned image is released before the unit is closed: only an open unit notices that the time has passed.
        !self.server.is_busy() && self.jobs.is_empty() && !self.receiver.image.is_busy()
    }

    /// A session aborts its tasks, one or all. Returns those that are still running: they may still have effects.
    pub(crate) fn abort(&mut self, key: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        self.server.abort(key, task)
    }

    /// Another session aborts the tasks of this one: each is answered with TASK ABORTED when it can have no effect any more.
    /// Returns those that are still running.
    pub(crate) fn abort_for_others(&mut self, key: SessionKey) -> Vec<TaskId> {
        self.server.abort_for_others(key)
    }

    /// LOGICAL UNIT RESET.
    pub(crate) fn reset(&mut self) {
        self.server.reset();
    }

    /// Takes a command in. `sealed_blocks_max`: most sealed blocks that one PDU of this session takes.
    pub(crate) fn submit(&mut self, key: SessionKey, command: transport::Command, sealed_blocks_max: usize) -> Verdict {
        self.server.submit(key, command, sealed_blocks_max, self.receiver.image.pin())
    }

    /// Advances everything; appends the commands that have ended. [`Unit::goes_on`] says whether that was all.
    pub(crate) fn poll(&mut self, finished: &mut Vec<Finished>) {
        let before = steps_taken();
        self.goes_on = false;
        while self.poll_operations(finished) > 0 {
            if steps_taken() - before >= STEPS_PER_CALL {
                self.goes_on = true;
                break;
            }
        }
        self.server.poll_access(self.receiver.image.is_pinned(), finished);
        self.poll_receiver();
        let medium = &self.server.medium;
        if self.space.poll(&medium.volume.name, &medium.store) {
            self.server.access.users.establish_for_all(UnitAttention::SpaceThreshold);
        }
        self.poll_erase(finished);
        self.server.drop_left();
    }

    /// Advances commands and jobs whose operations have ended; returns how many.
    fn poll_operations(&mut self, finished: &mut Vec<Finished>) -> usize {
        let mut completions = std::mem::take(&mut self.completions);
        let ended = self.server.medium.store.poll_completions(&mut completions);
        for completion in completions.drain(..) {
            if let Some(Completion { token, result }) = self.server.completed(completion, finished) {
                self.job_done(token, result);
            }
        }
        self.completions = completions;
        let replies = self.server.poll_replies(finished);
        self.server.release_sanitize();
        ended + replies
    }

    /// Pins and releases the image that sessions see, as far as that has come.
    fn poll_receiver(&mut self) {
        loop {
            let (has_sessions, is_ending) = (!self.users().is_empty(), self.jobs.is_receiving_end());
            let Some(step) = self.receiver.poll(has_sessions, is_ending, &mut self.server.medium) else { return };
            self.jobs.receive(self.server.tasks.next_token(), step, &mut self.server.medium.store);
        }
    }

    /// Follows an erase of the store, and the destruction of its key.
    fn poll_erase(&mut self, finished: &mut Vec<Finished>) {
        let DeviceServer { medium, sanitizer, tasks, .. } = &mut self.server;
        match sanitizer.poll_erase(&medium.store) {
            EraseEvent::None => {}
            EraseEvent::Certain => {
                self.jobs.erase_is_certain();
                tasks.answer_certain(finished);
            }
            EraseEvent::Ended => {
                if let Some(verifier) = &mut self.verifier {
                    verifier.reset();
                }
            }
        }
        if let Some(event) = sanitizer.poll_key(&medium.volume, &mut medium.store) {
            if let Some(wrap) = event.wrap {
                medium.codec.wrap = Some(wrap);
            }
            self.jobs.key_destroyed(event.is_destroyed);
        }
    }

    /// The operations that other units are to be asked for.
    pub(crate) fn take_outgoing(&mut self) -> Vec<OutgoingRequest> {
        self.server.copies.take_outgoing()
    }

    /// Another unit has replied.
    pub(crate) fn take_reply(&mut self, token: Token, result: CrossUnitResult) {
        self.server.copies.receive(token, result);
    }

    /// Executes an operation for a command of another unit, if a session of its initiator could do the same here.
    pub(crate) fn serve(&mut self, request: CrossUnitRequest, may_write: bool) {
        self.server.serve(request, may_write);
    }

    /// Executes an administrative job, or begins it.
    pub(crate) fn take_job(&mut self, job: Job) {
        let DeviceServer { medium, access, sanitizer, tasks, .. } = &mut self.server;
        match job {
            Job::Describe(reply) => drop(reply.send(Box::new(jobs::describe(&medium.store)))),
            Job::CountPinned { mut count, reply } => {
                let has_more = medium.store.count_pinned(&mut count);
                let _ = reply.send((count, has_more));
            }
            Job::Receive { step, reply } => {
                if let Some(step) = self.receiver.take_step(RequestedStep { step, reply }, access, medium) {
                    self.jobs.receive(tasks.next_token(), step, &mut medium.store);
                }
            }
            // Of a stream that builds on some snapshot.
            Job::PossibleWriters(reply) => {
                drop(reply.send(self.receiver.possible_writers(Some(SnapshotId(0)), access)));
            }
            Job::Receptions(reply) => drop(reply.send(medium.store.streams().receptions())),
            Job::Run { view, op, reply } => {
                let can_destroy_key = matches!(op, Op::CryptoErase) && sanitizer.can_destroy_key(&medium.volume);
                let shown = self.receiver.image.pin().map(|pin| pin.snapshot);
                let rules = JobRules { shown, can_destroy_key };
                self.jobs.run(tasks.next_token(), (view, op), reply, &rules, &mut medium.store);
            }
            Job::Send { stream, reply } => self.jobs.send(tasks.next_token(), stream, reply, &mut medium.store),
        }
    }

    fn job_done(&mut self, token: Token, result: Result<Outcome, OpError>) {
        let medium = &mut self.server.medium;
        match self.jobs.remove(token) {
            None | Some(RunningJob::Erase { reply: None, .. }) => {}
            Some(RunningJob::Receive(step)) => step.done(result),
            Some(RunningJob::Verify) => {
                let Some(verifier) = &mut self.verifier else { return };
                if let Some(op) = verifier.completed(result, &medium.volume, &medium.codec) {
                    start_verify(&mut self.server, &mut self.jobs, op);
                }
            }
            Some(RunningJob::Run { reply, grows }) => {
                if grows && result.is_ok() {
                    self.take_size(self.store().info().geometry);
                }
                let _ = reply.send(result);
            }
            Some(RunningJob::Erase { reply: Some(reply), .. }) => drop(reply.send(result)),
            Some(RunningJob::Send { stream, reply }) => {
                let _ = reply.send(jobs::send_blocks(stream, result, &medium.store));
            }
        }
    }

    /// What goes on beside its commands.
    pub(crate) fn background(&self) -> Background<'_, impl Iterator<Item = Writer>> {
        Background { verifier: self.verifier.as_ref(), lease_holders: self.server.access.leases.holders() }
    }

    /// The unit is idle: verifies the next run of blocks, if it is due. Returns when to call again.
    pub(crate) fn verify_step(&mut self) -> Duration {
        let Some(verifier) = &mut self.verifier else { return NO_VERIFICATION_PAUSE };
        let (op, pause) = verifier.poll(&self.server.medium.volume, &self.server.medium.store);
        if let Some(op) = op {
            start_verify(&mut self.server, &mut self.jobs, op);
        }
        pause
    }

    /// What sessions see instead of the newest snapshot that was received, and which.
    pub(crate) fn pending_image(&self) -> Option<PendingImage> {
        self.receiver.pending_image(&self.server.access)
    }

    /// The access rules of the volume have changed.
    pub(crate) fn take_access(&mut self, access: Access) {
        self.server.medium.set_access(access);
    }

    /// The size of the volume may have changed; its users get a unit attention.
    pub(crate) fn take_size(&mut self, geometry: Geometry) {
        if self.server.medium.set_size(geometry) {
            self.server.access.users.establish_for_all(UnitAttention::CapacityChanged);
        }
    }

    /// Whether an initiator has ordered, since the last call, that the unit take the place of the volume that it succeeds.
    pub(crate) fn take_place(&mut self) -> bool {
        self.server.take_place()
    }

    /// Identifies this opening of the unit.
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.server.medium.volume
    }

    /// How its records and blocks change between channel and store; its clones and snapshots need the same.
    pub(crate) fn codec(&self) -> &BlockCodec {
        &self.server.medium.codec
    }

    /// The store, of which other units may have handles.
    pub(crate) fn store(&self) -> &StoreHandle {
        &self.server.medium.store
    }

    /// Gives the store back, to close it elsewhere.
    pub(crate) fn into_store(self) -> StoreHandle {
        self.server.medium.store
    }
}

/// Has the store read blocks that are to be verified.
fn start_verify(server: &mut DeviceServer, jobs: &mut Jobs, op: Op) {
    let view: View = server.medium.store.view();
    jobs.submit(server.tasks.next_token(), RunningJob::Verify, (view, op), &mut server.medium.store);
}

#[cfg(test)]
mod tests;

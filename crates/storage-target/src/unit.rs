//! A logical unit: one volume with its store, and the nexuses that use it. SCSI commands in, answers out, by completion.
//!
//! A unit belongs to one worker and is never touched by another. What a command needs of the store is a [`Work`]: some operations,
//! one after the other; [`Unit::poll`] moves all of them forward. Deliberately absent: sockets, sessions, login; a unit knows
//! its users as [`SessionKey`]s with a nexus.

mod admission;
mod answers;
mod blocks;
mod claims;
mod copy;
mod jobs;
mod keep;
mod key_erase;
mod leases;
mod modify;
mod opened;
mod receive;
mod reserve;
mod rest;
mod sealed;
mod surroundings;
mod verify;
mod work;

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use strongroom_block::{BlockKeyWrap, Resealer, Token};
use strongroom_iscsi::target as iscsi;
use strongroom_iscsi::target::{Response, TaskId};
use strongroom_scsi::copy::CopyStatus;
use strongroom_scsi::log::Counters;
use strongroom_scsi::mode::ModeState;
use strongroom_scsi::persistent::{PersistentReservations, SavedReservations};
use strongroom_scsi::reservation::Reservation;
use strongroom_scsi::{NexusId, Sense, Status, UnitAttention, UnitAttentions};
use strongroom_store::{Completion, SnapshotId, SpaceState};

use crate::access::Identity;
use crate::neighbours::{ErrandResult, Origin};
use crate::store_handle::StoreHandle;
use crate::volume::Volume;
use claims::LeaseChange;
pub(crate) use copy::OutwardErrand;
use jobs::RunningJob;
pub(crate) use jobs::{Job, StoreContents};
use keep::Keeper;
pub(crate) use keep::leases::LEASES_FILE;
pub(crate) use keep::{SharedMemory, UnitMemory};
pub(crate) use key_erase::{KeyRenewal, KeyRenewer, Renewed};
use leases::{LeaseRecord, SessionStanding, WriterLeases};
use modify::Sanitize;
pub(crate) use receive::{InTheWay, NotReceived};
use reserve::{Change, Changes, Delayed};
pub(crate) use rest::Resting;
pub(crate) use surroundings::Surroundings;
pub(crate) use work::SLICE_BYTES;
use work::{Next, Work};

/// Commands answered at once (IMMED) that go on at the same time.
const BACKGROUND_MAX: usize = 64;

/// Names a session; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SessionKey(pub(crate) u64);

/// One volume being served.
pub(crate) struct Unit {
    volume: Arc<Volume>,
    target_name: String,
    store: StoreHandle,
    /// What is shown instead of the head; see `receive`.
    shown: Option<SnapshotId>,
    /// Names this opening of the unit, among all of this process.
    opening: u64,
    surroundings: Arc<Surroundings>,
    /// Custody `target`: wraps block keys on their way to rest.
    wrap: Option<Arc<dyn BlockKeyWrap>>,
    /// Open at target: opens what arrives, seals what is read.
    resealer: Option<Arc<dyn Resealer>>,
    /// Destroys what wraps them.
    renewal: Option<KeyRenewal>,
    /// It could not be destroyed for the cryptographic erase that goes on.
    key_survived: bool,
    /// It was told to take the place of the volume that it was made to succeed.
    takes_place: bool,
    users: HashMap<SessionKey, User>,
    /// Sessions that are over while something of theirs is in flight.
    leaving: HashMap<SessionKey, NexusId>,
    /// RESERVE (6) and (10).
    reservation: Reservation,
    persistent: PersistentReservations,
    keeper: Keeper<SavedReservations>,
    changes: Changes<Change>,
    leases: WriterLeases,
    lease_keeper: Keeper<Vec<LeaseRecord>>,
    lease_changes: Changes<LeaseChange>,
    mode: ModeState,
    /// Cleared by START STOP UNIT.
    started: bool,
    /// Who has sent PREVENT MEDIUM REMOVAL.
    preventing: HashSet<SessionKey>,
    sanitize: Sanitize,
    /// The store was being erased when it was looked at last.
    erasing: bool,
    /// Who asked for the erase had the keys destroyed that the store waits for.
    keys_destroyed: bool,
    /// SANITIZE's discard, until everything that was under way before it is over.
    held_back: Option<(Token, strongroom_store::Op)>,
    /// What came of EXTENDED COPY commands, oldest first.
    copies: VecDeque<(NexusId, CopyStatus)>,
    /// What is to be asked of other units, and what they have answered.
    outward: Vec<OutwardErrand>,
    returned: Vec<(Token, ErrandResult)>,
    counters: Counters,
    delayed: Vec<Delayed>,
    running: HashMap<Token, Running>,
    next_token: u64,
    completions: Vec<Completion>,
    /// What users were told last about space.
    space: SpaceState,
    /// Of the percentages that are logged, the last one that was reached.
    space_level: u8,
    /// What the keeper of the target wants of the store.
    jobs: HashMap<Token, RunningJob>,
    /// Custody `target`, where the target was given what opens blocks.
    verifier: Option<verify::Verifier>,
}

/// A session that uses the unit.
struct User {
    nexus: NexusId,
    /// Whose session it is: a nexus is made of names that anybody can say.
    origin: Origin,
    read_only: bool,
    attentions: UnitAttentions,
    standing: SessionStanding,
}

/// What the store is working on for whom.
struct Running {
    connection: SessionKey,
    task: TaskId,
    work: Work,
    ending: Ending,
}

/// What is answered when the work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// What came of it.
    Answer,
    /// TASK ABORTED: another session ended it (TAS=1 in the control mode page), so that nobody waits for ever.
    TaskAborted,
    /// Nothing: its own session ended it.
    Silence,
    /// Nothing: it was answered at once (IMMED), and goes on.
    Background,
    /// SANITIZE with IMMED: GOOD as soon as nothing can undo it; what came of it, if that comes first.
    WhenCertain,
}

/// What became of a command.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The answer, at once.
    Answer(Response),
    /// [`Unit::poll`] will bring it.
    Later,
    /// The peer broke the frame discipline of sealed units: end its connection.
    Violation(&'static str),
}

/// What a command turns into once it is admitted.
enum Plan {
    Answer(Response),
    Start(Work, strongroom_store::Op),
    /// Start, and answer GOOD at once.
    Background(Work, strongroom_store::Op),
    /// Start, and answer GOOD when nothing can undo it any more.
    WhenCertain(Work, strongroom_store::Op),
    Violation(&'static str),
    /// It is done; its answer waits for something.
    Delayed,
}

impl From<Sense> for Plan {
    fn from(sense: Sense) -> Plan {
        Plan::Answer(check_condition(sense))
    }
}

/// A finished command.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) connection: SessionKey,
    pub(crate) task: TaskId,
    /// `None`: nobody wants it; the task is just over.
    pub(crate) response: Option<Response>,
}

impl Unit {
    /// A unit on an open store.
    pub(crate) fn new(
        volume: Arc<Volume>,
        target_name: String,
        store: StoreHandle,
        wrap: Option<Arc<dyn BlockKeyWrap>>,
        UnitMemory { reservations: (keeper, kept), leases: (lease_keeper, leases) }: UnitMemory,
        surroundings: Arc<Surroundings>,
    ) -> Unit {
        let ports = Arc::clone(&surroundings.ports);
        Unit {
            volume,
            target_name,
            surroundings,
            store,
            shown: None,
            // Keys of the standard hasher are random: enough for a value that must only differ.
            opening: RandomState::new().build_hasher().finish(),
            wrap,
            resealer: None,
            renewal: None,
            key_survived: false,
            takes_place: false,
            users: HashMap::new(),
            leaving: HashMap::new(),
            reservation: Reservation::default(),
            persistent: PersistentReservations::restore(kept).with_ports(ports),
            keeper,
            changes: Changes::default(),
            leases: WriterLeases::restore(leases),
            lease_keeper,
            lease_changes: Changes::default(),
            mode: ModeState::default(),
            started: true,
            preventing: HashSet::new(),
            sanitize: Sanitize::default(),
            erasing: false,
            keys_destroyed: false,
            held_back: None,
            copies: VecDeque::new(),
            outward: Vec::new(),
            returned: Vec::new(),
            counters: Counters::default(),
            delayed: Vec::new(),
            running: HashMap::new(),
            next_token: 0,
            completions: Vec::new(),
            jobs: HashMap::new(),
            verifier: None,
            space: SpaceState::Ample,
            space_level: 0,
        }
    }

    /// A session begins to use the unit: whose it is, and where it comes from.
    pub(crate) fn attach(&mut self, connection: SessionKey, nexus: NexusId, origin: Origin, read_only: bool) {
        let standing = SessionStanding::default();
        let user = User { nexus, origin, read_only, attentions: UnitAttentions::at_power_on(), standing };
        self.users.insert(connection, user);
    }

    /// A session ends. What it had in flight goes on and is answered to nobody.
    pub(crate) fn detach(&mut self, connection: SessionKey) {
        let Some(user) = self.users.remove(&connection) else { return };
        self.reservation.release(&user.nexus);
        self.preventing.remove(&connection);
        if let Some(id) = user.standing.lease
            && !self.users.values().any(|other| other.standing.lease == Some(id))
        {
            self.leases.left(id);
        }
        if !self.abort(connection, None).is_empty() {
            self.leaving.insert(connection, user.nexus);
        }
        self.show_head_if_unused();
    }

    /// It is that late: writer leases count from it.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.leases.tick(now);
    }

    /// The session's nexus counts as lost for a moment (I_T NEXUS RESET): what hangs on it alone is gone, and it is told so.
    pub(crate) fn nexus_lost(&mut self, connection: SessionKey) {
        let Some(user) = self.users.get_mut(&connection) else { return };
        user.attentions.establish(UnitAttention::NexusLoss);
        self.reservation.release(&user.nexus);
    }

    /// The unit attention that the session's next command would meet.
    pub(crate) fn waiting_attention(&self, connection: SessionKey) -> Option<Sense> {
        self.users.get(&connection).and_then(|user| user.attentions.peek())
    }

    /// The connection whose session is this nexus, and whose it is.
    pub(crate) fn session_of(&self, nexus: &NexusId) -> Option<(SessionKey, Identity)> {
        self.users.iter().find(|(_, user)| user.nexus == *nexus).map(|(key, user)| (*key, user.origin.identity.clone()))
    }

    /// Whether something of an earlier session of this nexus is still in flight.
    pub(crate) fn is_leaving(&self, nexus: &NexusId) -> bool {
        self.leaving.values().any(|leaving| leaving == nexus)
    }

    /// The rules changed: the session may write from now on, or not any more.
    pub(crate) fn set_read_only(&mut self, connection: SessionKey, read_only: bool) {
        if let Some(user) = self.users.get_mut(&connection) {
            user.read_only = read_only;
        }
    }

    /// The store's counters.
    pub(crate) fn store_stats(&self) -> strongroom_store::Stats {
        self.store.stats()
    }

    /// Whether a session uses it.
    pub(crate) fn has_user(&self, connection: SessionKey) -> bool {
        self.users.contains_key(&connection)
    }

    /// Every session that uses it, and whose it is.
    pub(crate) fn users(&self) -> impl Iterator<Item = (SessionKey, &NexusId, &Identity)> {
        self.users.iter().map(|(key, user)| (*key, &user.nexus, &user.origin.identity))
    }

    /// The connections of every session.
    pub(crate) fn connections(&self) -> Vec<SessionKey> {
        self.users.keys().copied().collect()
    }

    /// Every connection that may have something in flight: those of sessions that are over, too.
    pub(crate) fn connections_at_work(&self) -> Vec<SessionKey> {
        self.users.keys().chain(self.leaving.keys()).copied().collect()
    }

    /// How many commands the store is working on.
    pub(crate) fn in_flight(&self) -> usize {
        self.running.len() + self.jobs.len()
    }

    fn in_background(&self) -> usize {
        self.running.values().filter(|running| running.ending == Ending::Background).count()
    }

    /// Whether no session uses it, and nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let is_writing = self.keeper.is_busy() || self.lease_keeper.is_busy();
        let at_rest = self.running.is_empty() && self.jobs.is_empty() && !is_writing && !self.is_renewing_key();
        // An erase that the medium stopped goes on when the store is opened anew.
        let erases = self.store.erase_progress().is_some() && !self.store.stats().writes_refused;
        self.users.is_empty() && at_rest && !erases
    }

    /// Stops wanting answers, of one task or of all. Returns those that are still running: their effects may yet happen.
    pub(crate) fn abort(&mut self, connection: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        self.changes.withdraw(connection, task);
        self.lease_changes.withdraw(connection, task);
        self.end_tasks(connection, task, Ending::Silence)
    }

    /// Another session ends the tasks of this one: each is answered with TASK ABORTED when it can have no effect any more.
    /// Returns those that are still running.
    pub(crate) fn abort_for_others(&mut self, connection: SessionKey) -> Vec<TaskId> {
        let mut withdrawn = self.changes.withdraw(connection, None);
        withdrawn.extend(self.lease_changes.withdraw(connection, None));
        for task in withdrawn {
            self.answer_aborted(connection, task);
        }
        self.end_tasks(connection, None, Ending::TaskAborted)
    }

    fn end_tasks(&mut self, connection: SessionKey, task: Option<TaskId>, ending: Ending) -> Vec<TaskId> {
        let concerned =
            |running: &&mut Running| running.connection == connection && task.is_none_or(|task| running.task == task);
        self.running
            .values_mut()
            .filter(concerned)
            .map(|running| {
                if !matches!(running.ending, Ending::Silence | Ending::Background) {
                    running.ending = ending;
                }
                running.task
            })
            .collect()
    }

    /// LOGICAL UNIT RESET: reservation gone, everybody is told.
    pub(crate) fn reset(&mut self) {
        self.reservation.clear();
        self.preventing.clear();
        self.mode = ModeState::default();
        self.started = true;
        self.users.values_mut().for_each(|user| user.attentions.establish(UnitAttention::Reset));
    }

    /// Takes a command in. `sealed_blocks_max`: most sealed blocks that one PDU of this session takes.
    pub(crate) fn submit(
        &mut self,
        connection: SessionKey,
        command: iscsi::Command,
        sealed_blocks_max: usize,
    ) -> Verdict {
        let task = command.task;
        match self.plan(connection, command, sealed_blocks_max) {
            Plan::Answer(response) => Verdict::Answer(self.in_format(response)),
            Plan::Violation(what) => Verdict::Violation(what),
            Plan::Delayed => Verdict::Later,
            Plan::Start(work, op) => {
                let work = self.checked_on_arrival(connection, work, &op);
                self.start(Running { connection, task, work, ending: Ending::Answer }, op);
                Verdict::Later
            }
            Plan::WhenCertain(work, op) => {
                self.start(Running { connection, task, work, ending: Ending::WhenCertain }, op);
                Verdict::Later
            }
            // Who asks for more of that waits for it: what is answered at once is counted nowhere.
            Plan::Background(work, op) if self.in_background() >= BACKGROUND_MAX => {
                self.start(Running { connection, task, work, ending: Ending::Answer }, op);
                Verdict::Later
            }
            Plan::Background(work, op) => {
                self.start(Running { connection, task, work, ending: Ending::Background }, op);
                Verdict::Answer(Response::good())
            }
        }
    }

    /// Moves everything forward; appends what has finished.
    pub(crate) fn poll(&mut self, finished: &mut Vec<Finished>) {
        loop {
            let mut completions = std::mem::take(&mut self.completions);
            let returned = std::mem::take(&mut self.returned);
            let moved = self.store.poll_completions(&mut completions) + returned.len();
            for Completion { token, result } in completions.drain(..) {
                let Some(running) = self.running.remove(&token) else {
                    self.job_done(token, result);
                    continue;
                };
                self.advance(running, finished, |unit, work| match result {
                    Ok(outcome) => unit.work_on(work, outcome),
                    Err(error) => unit.work_failed(work, &error),
                });
            }
            self.completions = completions;
            for (token, result) in returned {
                let Some(running) = self.running.remove(&token) else { continue };
                self.advance(running, finished, |unit, work| unit.errand_came_back(work, result));
            }
            if self.running.len() == 1
                && let Some((token, op)) = self.held_back.take()
            {
                self.store.submit(token, op);
            }
            if moved == 0 {
                break;
            }
        }
        if !self.delayed.is_empty() || !self.changes.is_empty() || !self.lease_changes.is_empty() {
            self.poll_delayed(finished);
        }
        self.watch_space();
        self.watch_erase(finished);
        self.watch_key();
        if !self.leaving.is_empty() {
            let running = &self.running;
            self.leaving.retain(|key, _| running.values().any(|running| running.connection == *key));
        }
    }

    /// A step of some work is over; `go_on` says what comes of it.
    fn advance(&mut self, running: Running, finished: &mut Vec<Finished>, go_on: impl FnOnce(&mut Unit, Work) -> Next) {
        let Running { connection, task, work, ending } = running;
        let writes_to_cache = work.writes_to_cache();
        let next = match go_on(self, work) {
            Next::Done(Response { status: 0, wanted_bytes, ahs, .. }) if writes_to_cache && !self.mode.write_cache => {
                Next::Again(Work::Settle { wanted_bytes, ahs }, strongroom_store::Op::Flush)
            }
            next => next,
        };
        match next {
            // Long work that was ended stops between two of its operations; but nothing stops a SANITIZE (SBC-3 §4.11.2).
            Next::Again(ref work, _)
                if matches!(ending, Ending::TaskAborted | Ending::Silence) && !matches!(work, Work::Sanitize) =>
            {
                let response = (ending == Ending::TaskAborted).then(Response::task_aborted);
                finished.push(Finished { connection, task, response });
            }
            // Nor does it write once a SANITIZE waits to discard everything.
            Next::Again(ref work, _) if self.sanitize == Sanitize::InProgress && !work.may_go_on_while_sanitizing() => {
                let response = self.sanitized_away(work);
                let response = (ending == Ending::Answer).then(|| self.in_format(response));
                finished.push(Finished { connection, task, response });
            }
            Next::Again(work, op) => self.start(Running { connection, task, work, ending }, op),
            Next::Done(response) => {
                let response = match ending {
                    Ending::Answer | Ending::WhenCertain => Some(self.in_format(response)),
                    Ending::TaskAborted => Some(Response::task_aborted()),
                    Ending::Silence | Ending::Background => None,
                };
                finished.push(Finished { connection, task, response });
            }
        }
    }

    /// D_SENSE: sense in descriptor format.
    fn in_format(&self, response: Response) -> Response {
        if !self.mode.descriptor_sense || response.sense.is_empty() {
            return response;
        }
        let sense = Sense::parse(&response.sense).map(|sense| sense.encode_descriptor());
        Response { sense: sense.unwrap_or_default(), ..response }
    }

    fn start(&mut self, running: Running, op: strongroom_store::Op) {
        self.next_token += 1;
        let token = Token(self.next_token);
        let waits = matches!(running.work, Work::Sanitize) && !self.running.is_empty();
        let elsewhere = Unit::elsewhere(&running.work);
        self.running.insert(token, running);
        if waits {
            self.held_back = Some((token, op));
        } else if let Some((to, asker)) = elsewhere {
            self.outward.push(OutwardErrand { token, to, asker, op });
        } else {
            self.store.submit(token, op);
        }
    }

    /// Names this opening of the unit.
    pub(crate) fn opening(&self) -> u64 {
        self.opening
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// Nothing was asked for a while.
    pub(crate) fn idle(&mut self) {
        self.store.idle();
    }

    /// Nothing was asked for a while: looks for rot in one segment.
    pub(crate) fn scrub(&mut self) {
        self.store.scrub();
    }

    /// Looks for rot in one segment although requests are in flight.
    pub(crate) fn scrub_beside(&mut self) {
        self.store.scrub_beside();
    }

    /// Whether a segment is being read for that.
    pub(crate) fn is_scrubbing(&self) -> bool {
        self.store.is_scrubbing()
    }

    /// How many times the whole store was read for that.
    pub(crate) fn scrub_passes(&self) -> u64 {
        self.store.scrub_passes()
    }

    /// Addresses of blocks that scrubbing found to be bad.
    pub(crate) fn bad_blocks(&self) -> Vec<u64> {
        self.store.bad_blocks()
    }

    /// How many I/Os its store has under way.
    pub(crate) fn ios_in_flight(&self) -> usize {
        self.store.ios_in_flight()
    }

    /// From now on completions of I/O wake the worker straight from the kernel, where that can be.
    pub(crate) fn signal_completions(&mut self, waker: &strongroom_net::Waker) {
        self.store.signal_completions(waker);
    }

    /// The store, of which others may have handles.
    pub(crate) fn store(&self) -> &StoreHandle {
        &self.store
    }

    /// What wraps its block keys.
    pub(crate) fn wrap(&self) -> Option<Arc<dyn BlockKeyWrap>> {
        self.wrap.clone()
    }

    /// Takes the unit apart, to close its store elsewhere.
    pub(crate) fn into_store(self) -> StoreHandle {
        self.store
    }
}

/// CHECK CONDITION.
fn check_condition(sense: Sense) -> Response {
    Response::check_condition(sense.encode())
}

/// A status without sense.
fn status(status: Status) -> Response {
    Response { status: status as u8, ..Response::default() }
}

#[cfg(test)]
mod tests;

//! Routes commands and responses between the sessions and the units of a worker, and to and from those of other workers.
//!
//! Sans I/O: the caller hands PDUs to the sessions, messages to other workers are queued until they are taken, and time is an argument.
//! So several workers can be connected by queues and driven in virtual time. Deliberately absent: connections, sockets, threads,
//! and how units are opened and closed.

mod management;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;
use strongroom_iscsi::target::{Command, ManagementFunction, Response, TaskId, TaskManagement, TaskManagementResult};
use strongroom_scsi::{NexusId, Sense};

use super::connection::ConnectionKey;
use super::cross_worker::{CrossWorkerMessage, CrossWorkerRequest, ManagementAnswer, ManagementOutcome, SessionNotice};
use super::grant::UnitAddress;
use super::open_unit::PendingManagement;
use super::session::Session;
use super::session_commands::CommandCost;
use super::session_machine::{MachineEvent, SessionEvent};
use super::sessions::Sessions;
use super::units::{UnitOutput, UnitRequest, Units};
use crate::access::Identity;
use crate::budget::MemoryBudget;
use crate::config::Limits;
use crate::names::VolumeName;
use crate::open_units::Origin;
use crate::session_loads::SessionLoads;
use crate::stats::Counters;
use crate::unit::{Finished, SessionKey, Verdict};

const UNIT_ENDED: &str = "the worker of its volume has ended";

pub(super) struct Routing {
    /// This worker's number.
    worker: usize,
    pub(super) sessions: Sessions,
    pub(super) units: Units,
    /// Sessions of units here that other workers have, with their workers.
    remote_sessions: FxHashMap<SessionKey, usize>,
    /// Messages to each worker that have not been taken.
    outgoing: Vec<Vec<CrossWorkerMessage>>,
    /// Logins that waited for tasks which have ended.
    ready_logins: VecDeque<ConnectionKey>,
    /// Sessions that were ended and are not here: their logins may not be over.
    ended_logins: Vec<SessionKey>,
    bounds: CommandBounds,
    loads: Arc<SessionLoads>,
    counters: Arc<Counters>,
    output: UnitOutput,
}

/// How much memory the commands of one session may hold.
pub(super) struct CommandBounds {
    budget: Arc<MemoryBudget>,
    read_bytes: u64,
    write_bytes: u64,
}

impl CommandBounds {
    pub(super) fn new(budget: Arc<MemoryBudget>, limits: &Limits) -> CommandBounds {
        let mut bounds = CommandBounds { budget, read_bytes: 0, write_bytes: 0 };
        bounds.set_limits(limits);
        bounds
    }

    fn set_limits(&mut self, limits: &Limits) {
        (self.read_bytes, self.write_bytes) = (limits.read_memory_bytes, limits.write_memory_bytes);
    }

    fn read_bytes_max(&self) -> u64 {
        self.budget.commands_bytes_max(self.read_bytes)
    }

    fn write_bytes_max(&self) -> u64 {
        self.budget.commands_bytes_max(self.write_bytes)
    }
}

/// The nexus of a login at its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NexusState {
    /// No session of it is left.
    Free,
    /// Its earlier session is ending; the login is retried when that is over.
    Ending,
    /// Another node has a session by the same names.
    Foreign,
}

impl Routing {
    pub(super) fn new(
        (worker, workers): (usize, usize),
        bounds: CommandBounds,
        loads: Arc<SessionLoads>,
        counters: Arc<Counters>,
    ) -> Routing {
        Routing {
            worker,
            sessions: Sessions::default(),
            units: Units::default(),
            remote_sessions: FxHashMap::default(),
            outgoing: (0..workers).map(|_| Vec::new()).collect(),
            ready_logins: VecDeque::new(),
            ended_logins: Vec::new(),
            bounds,
            loads,
            counters,
            output: UnitOutput::default(),
        }
    }

    /// The settings have changed.
    pub(super) fn set_limits(&mut self, limits: &Limits) {
        self.bounds.set_limits(limits);
    }

    /// The worker for a new session of a unit here. The unit's first one stays, so that it calls the unit directly.
    pub(super) fn worker_for_session(&self, volume: &VolumeName) -> usize {
        match self.units.open(volume) {
            Some(open) if !open.unit.users().is_empty() => self.loads.least_loaded(self.worker),
            _ => self.worker,
        }
    }

    /// The other worker that has the session of a nexus.
    pub(super) fn remote_session_of(&self, volume: &VolumeName, nexus: &NexusId) -> Option<usize> {
        let (key, _) = self.units.open(volume)?.unit.users().session_of(nexus)?;
        self.remote_sessions.get(&key).copied()
    }

    pub(super) fn is_remote(&self, session: SessionKey) -> bool {
        self.remote_sessions.contains_key(&session)
    }

    pub(super) fn has_remote_sessions(&self) -> bool {
        !self.remote_sessions.is_empty()
    }

    /// Whether a login may begin a session of its nexus at a unit that is open here. RFC 7143 §6.3.5: a new login of the same nexus
    /// replaces the old session, and is admitted when the old one's tasks have ended. But names prove nothing: no session is ended by
    /// another node, or by plain iSCSI if it has a channel.
    pub(super) fn clear_nexus(
        &mut self,
        volume: &VolumeName,
        (nexus, identity): (&NexusId, &Identity),
        login: ConnectionKey,
    ) -> NexusState {
        let Some(open) = self.units.open_mut(volume) else { return NexusState::Free };
        let old = open.unit.users().session_of(nexus);
        if old.as_ref().is_some_and(|(_, other)| other != identity) {
            return NexusState::Foreign;
        }
        if old.is_none() && !open.unit.users().is_leaving(nexus) {
            return NexusState::Free;
        }
        open.replacing.push(login);
        if let Some((old, _)) = old {
            self.end_session(old, "replaced by a new login of the same initiator");
        }
        NexusState::Ending
    }

    /// Begins a session of a unit here, at `session_worker`. `None`: the unit is not open.
    pub(super) fn attach(
        &mut self,
        volume: &VolumeName,
        key: SessionKey,
        (nexus, origin, read_only): (NexusId, Origin, bool),
        session_worker: usize,
    ) -> Option<UnitAddress> {
        let open = self.units.open_mut(volume)?;
        open.unit.attach(key, nexus, origin, read_only);
        open.set_in_use();
        let described = open.unit.volume();
        let sealed = described.sealed.as_ref().map(|sealed| {
            let block_bytes = described.geometry.block_size.bytes();
            (block_bytes, 8 + sealed.custody.record_bytes_in_channel())
        });
        let address = UnitAddress {
            unit_worker: self.worker,
            session_worker,
            volume: Arc::new(volume.clone()),
            sealed,
            has_block_keys: described.sealed.as_ref().is_some_and(|sealed| !sealed.custody.is_blind()),
            queue: open.unit.store().queue(),
        };
        self.loads.begin(session_worker);
        if session_worker != self.worker {
            self.remote_sessions.insert(key, session_worker);
        }
        Some(address)
    }

    /// Handles the commands and task management functions of a session that is checked out, up to the next event of its connections.
    pub(super) fn next_event(&mut self, now: Instant, session: &mut Session) -> Option<SessionEvent> {
        loop {
            match session.machine.poll_event()? {
                MachineEvent::Command(command) => self.command(now, session, command),
                MachineEvent::TaskManagement(request) => self.task_management(now, session, request),
                MachineEvent::Session(event) => return Some(event),
            }
        }
    }

    /// What a session sent has made room: charges what its commands still hold, and starts commands that wait.
    pub(super) fn advance(&mut self, now: Instant, session: &mut Session) {
        session.count(&self.counters);
        session.bound_memory(self.bounds.write_bytes_max());
        if !session.commands.may_start_waiting(session.machine.unsent_bytes(), self.bounds.read_bytes_max()) {
            return;
        }
        while let Some(command) =
            session.commands.next_waiting(session.machine.unsent_bytes(), self.bounds.read_bytes_max())
        {
            self.start_command(now, session, command);
        }
        // What was answered at once is sent in the next round.
        self.sessions.mark_checked_out(session);
    }

    /// A command has arrived, with all its data.
    fn command(&mut self, now: Instant, session: &mut Session, command: Command) {
        let (unsent_bytes, bytes_max) = (session.machine.unsent_bytes(), self.bounds.read_bytes_max());
        if let Some(command) = session.commands.admit(command, unsent_bytes, bytes_max) {
            self.start_command(now, session, command);
        }
    }

    fn start_command(&mut self, now: Instant, session: &mut Session, command: Command) {
        let (task, cost) = (command.task, CommandCost::of(&command));
        let Some(address) = &session.unit else {
            session.machine.complete(task, internal_failure());
            return;
        };
        let sealed_blocks_max = address.sealed_blocks_max(&session.machine);
        if address.unit_worker != self.worker {
            let request = CrossWorkerRequest::Command { command, sealed_blocks_max };
            self.request_of_unit(session.key, address, request);
            return session.commands.started(task, cost, || session.machine.memory_bytes());
        }
        let Some(open) = self.units.open_mut(&address.volume) else {
            session.machine.complete(task, internal_failure());
            return;
        };
        open.activity(now);
        match open.unit.submit(session.key, command, sealed_blocks_max) {
            Verdict::Answer(response) => session.finished(task, Some(response)),
            Verdict::Later => session.commands.started(task, cost, || session.machine.memory_bytes()),
            Verdict::Violation(what) => self.violated(session, what),
        }
    }

    /// Has a task management function carried out. It is answered when nothing that it ends can take effect any more.
    fn task_management(&mut self, now: Instant, session: &mut Session, request: TaskManagement) {
        let answer = match management::check(session, &request) {
            Err(result) => result,
            Ok(address) => {
                session.commands.abort_waiting(&request.tasks);
                if address.unit_worker != self.worker {
                    return self.request_of_unit(session.key, &address, CrossWorkerRequest::Manage(request));
                }
                if let Some(outcome) = self.manage(now, session.key, &address.volume, request) {
                    self.managed(session, &outcome);
                }
                return;
            }
        };
        session.machine.answer_task_management(request.id, answer);
    }

    /// Carries out a function at the unit. `None`: it has to wait, and the session is told later.
    pub(super) fn manage(
        &mut self,
        now: Instant,
        key: SessionKey,
        volume: &VolumeName,
        request: TaskManagement,
    ) -> Option<ManagementOutcome> {
        let TaskManagement { id, function, tasks } = request;
        let Some(open) = self.units.with_session(volume, key) else {
            return Some(ManagementOutcome::result(id, TaskManagementResult::Rejected));
        };
        if let ManagementFunction::QueryAsyncEvent(_) = function {
            let answer = match open.unit.users().pending_attention(key) {
                Some(sense) => ManagementAnswer::Sense([sense.key as u8, sense.asc, sense.ascq]),
                None => ManagementAnswer::Result(TaskManagementResult::Complete),
            };
            return Some(ManagementOutcome { id, answer, closes: false });
        }
        let mut waiting: HashSet<(SessionKey, TaskId)> = HashSet::new();
        for task in tasks {
            waiting.extend(open.unit.abort(key, Some(task)).into_iter().map(|task| (key, task)));
        }
        if function == ManagementFunction::NexusReset {
            open.unit.nexus_lost(key);
        }
        let mut aborted_sessions = Vec::new();
        if management::concerns_other_sessions(function) {
            let mut others = open.unit.users().keys_with_tasks();
            others.retain(|other| *other != key);
            // In an order that a simulation can repeat.
            others.sort_unstable();
            for other in others {
                waiting.extend(open.unit.abort_for_others(other).into_iter().map(|task| (other, task)));
                aborted_sessions.push(other);
            }
            // With TAS=1 cleared commands are answered, and no unit attention tells of them (SAM-5 §5.14).
            if !matches!(function, ManagementFunction::ClearTaskSet(_)) {
                open.unit.reset();
            }
        }
        let closes = function == ManagementFunction::TargetColdReset;
        // Logins may have waited for this.
        open.activity(now);
        let is_done = waiting.is_empty();
        if !is_done {
            open.wait_for_tasks(PendingManagement { session: key, id, waiting, closes });
        }
        for other in aborted_sessions {
            self.tell_session(other, SessionNotice::AbortTasks { closes });
        }
        is_done.then(|| ManagementOutcome { closes, ..ManagementOutcome::result(id, TaskManagementResult::Complete) })
    }

    /// Answers the initiator.
    fn managed(&mut self, session: &mut Session, outcome: &ManagementOutcome) {
        match outcome.answer {
            ManagementAnswer::Result(result) => session.machine.answer_task_management(outcome.id, result),
            ManagementAnswer::Sense(sense) => session.machine.answer_query(outcome.id, sense),
        }
        if outcome.closes {
            session.machine.close("target cold reset");
        }
        self.ready_logins.extend(session.joining.drain(..));
    }

    /// Polls the units that have something to do, until `is_over`, and delivers their responses. `requests`: what units request of the
    /// target around them. Whether all units had their turn, and none has left something.
    pub(super) fn poll_units(&mut self, is_over: impl Fn() -> bool, requests: &mut Vec<UnitRequest>) -> bool {
        let mut output = std::mem::take(&mut self.output);
        let is_whole = self.units.poll(is_over, &mut output);
        self.deliver(&mut output);
        requests.append(&mut output.requests);
        self.output = output;
        is_whole
    }

    /// Delivers what polling units has brought to sessions and logins.
    pub(super) fn deliver(&mut self, output: &mut UnitOutput) {
        for Finished { connection, task, response } in output.finished.drain(..) {
            match self.sessions.get_mut_ready(connection) {
                Some(session) => session.finished(task, response),
                None => self.tell_session(connection, SessionNotice::Finished { task, response }),
            }
        }
        for PendingManagement { session, id, closes, .. } in output.managements.drain(..) {
            let outcome = ManagementOutcome { closes, ..ManagementOutcome::result(id, TaskManagementResult::Complete) };
            self.tell_session(session, SessionNotice::Managed(outcome));
        }
        self.ready_logins.extend(output.logins.drain(..));
    }

    fn request_of_unit(&mut self, session: SessionKey, address: &UnitAddress, request: CrossWorkerRequest) {
        let volume = Arc::clone(&address.volume);
        self.outgoing[address.unit_worker].push(CrossWorkerMessage::Request { session, volume, request });
    }

    /// Tells a session something, wherever it is. Notices to a session that is over are dropped.
    fn tell_session(&mut self, session: SessionKey, notice: SessionNotice) {
        match self.remote_sessions.get(&session) {
            Some(worker) => self.outgoing[*worker].push(CrossWorkerMessage::Notice { session, notice }),
            None => self.notice(session, notice),
        }
    }

    /// The messages to a worker since they were last taken.
    pub(super) fn take_outgoing(&mut self, worker: usize) -> Option<Vec<CrossWorkerMessage>> {
        let outgoing = &mut self.outgoing[worker];
        (!outgoing.is_empty()).then(|| std::mem::take(outgoing))
    }

    /// Messages from another worker have arrived.
    pub(super) fn receive(&mut self, now: Instant, from: usize, messages: Vec<CrossWorkerMessage>) {
        for message in messages {
            match message {
                CrossWorkerMessage::Request { session, volume, request } => {
                    if let Some(notice) = self.request(now, session, &volume, request) {
                        self.outgoing[from].push(CrossWorkerMessage::Notice { session, notice });
                    }
                }
                CrossWorkerMessage::Notice { session, notice } => self.notice(session, notice),
            }
        }
    }

    /// A session of another worker requests something of a unit here.
    fn request(
        &mut self,
        now: Instant,
        session: SessionKey,
        volume: &VolumeName,
        request: CrossWorkerRequest,
    ) -> Option<SessionNotice> {
        match request {
            CrossWorkerRequest::Command { command, sealed_blocks_max } => {
                let task = command.task;
                let verdict = match self.units.with_session(volume, session) {
                    Some(open) => {
                        open.activity(now);
                        open.unit.submit(session, command, sealed_blocks_max)
                    }
                    None => Verdict::Answer(internal_failure()),
                };
                match verdict {
                    Verdict::Answer(response) => Some(SessionNotice::Finished { task, response: Some(response) }),
                    Verdict::Later => None,
                    Verdict::Violation(what) => Some(SessionNotice::Violation(what)),
                }
            }
            CrossWorkerRequest::Manage(request) => {
                self.manage(now, session, volume, request).map(SessionNotice::Managed)
            }
            CrossWorkerRequest::ReadOnly(read_only) => {
                if let Some(open) = self.units.open_mut(volume) {
                    open.unit.users_mut().set_read_only(session, read_only);
                }
                None
            }
            CrossWorkerRequest::LoggedOut => {
                self.unit_logged_out(volume, session);
                None
            }
            CrossWorkerRequest::Leave => {
                self.detach(now, volume, session);
                None
            }
        }
    }

    /// A session here is told something by its unit.
    fn notice(&mut self, key: SessionKey, notice: SessionNotice) {
        if let SessionNotice::End { why } = notice {
            return self.end_session(key, why);
        }
        let Some(mut session) = self.sessions.check_out(key) else { return };
        match notice {
            SessionNotice::Finished { task, response } => session.finished(task, response),
            SessionNotice::Violation(what) => self.violated(&mut session, what),
            SessionNotice::Managed(outcome) => self.managed(&mut session, &outcome),
            SessionNotice::AbortTasks { closes } => session.abort_tasks(closes),
            SessionNotice::End { .. } => {}
        }
        self.sessions.mark_checked_out(&mut session);
        self.sessions.check_in(session);
    }

    /// A session's peer broke the frame discipline.
    fn violated(&self, session: &mut Session, what: &'static str) {
        Counters::count(&self.counters.misbehaved);
        let volume = session.volume().map_or("", VolumeName::as_str);
        tracing::warn!(address = %session.peer.address, volume, what, "broke the frame discipline");
        session.machine.close(format!("{what}: the initiator breaks the frame discipline; update it"));
    }

    /// The rules changed: whether a session may still write.
    pub(super) fn set_read_only(&mut self, key: SessionKey, read_only: bool) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.read_only = read_only;
        let Some(address) = session.unit.clone() else { return };
        if address.unit_worker != self.worker {
            self.request_of_unit(key, &address, CrossWorkerRequest::ReadOnly(read_only));
        } else if let Some(open) = self.units.open_mut(&address.volume) {
            open.unit.users_mut().set_read_only(key, read_only);
        }
    }

    /// Ends a session that is not checked out, wherever it is.
    pub(super) fn end_session(&mut self, key: SessionKey, why: &'static str) {
        if let Some(session) = self.sessions.get_mut_ready(key) {
            session.machine.close(why);
        } else if self.is_remote(key) {
            self.tell_session(key, SessionNotice::End { why });
        } else {
            self.ended_logins.push(key);
        }
    }

    /// A session that used a unit has ended, or a login that was to begin one was not finished. Messages to the unit's worker should be
    /// sent before anything shows that the session is over: an administrator who sees that and asks something of the unit must not
    /// overtake what the session asked before.
    pub(super) fn leave_unit(&mut self, now: Instant, address: &UnitAddress, key: SessionKey) {
        self.loads.end(address.session_worker);
        if address.unit_worker == self.worker {
            self.detach(now, &address.volume, key);
        } else {
            self.request_of_unit(key, address, CrossWorkerRequest::Leave);
        }
    }

    /// The initiator of a session has logged out: it does not come back for what it saw. [`Routing::leave_unit`] follows.
    pub(super) fn logged_out(&mut self, address: &UnitAddress, key: SessionKey) {
        if address.unit_worker == self.worker {
            self.unit_logged_out(&address.volume, key);
        } else {
            self.request_of_unit(key, address, CrossWorkerRequest::LoggedOut);
        }
    }

    fn unit_logged_out(&mut self, volume: &VolumeName, key: SessionKey) {
        if let Some(open) = self.units.open_mut(volume) {
            open.unit.users_mut().logged_out(key);
        }
    }

    /// A session that used a unit here is over, wherever it was.
    fn detach(&mut self, now: Instant, volume: &VolumeName, key: SessionKey) {
        self.remote_sessions.remove(&key);
        if let Some(open) = self.units.open_mut(volume) {
            open.detach(now, key);
        }
    }

    /// Another worker has ended, and its sessions and units with it. `logins`: sessions with units that are about to begin here.
    pub(super) fn worker_ended(
        &mut self,
        now: Instant,
        worker: usize,
        logins: impl Iterator<Item = (SessionKey, UnitAddress)>,
    ) {
        let its = self.remote_sessions.iter().filter(|(_, of)| **of == worker);
        for key in its.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.remote_sessions.remove(&key);
            let unit = self.units.iter_open().find(|(_, open)| open.unit.users().contains(key));
            if let Some(volume) = unit.map(|(name, _)| name.clone()) {
                self.detach(now, &volume, key);
            }
        }
        let of_its_unit = |address: &UnitAddress| address.unit_worker == worker;
        let sessions = self.sessions.iter().filter(|session| session.unit.as_ref().is_some_and(of_its_unit));
        let logins = logins.filter(|(_, address)| of_its_unit(address)).map(|(key, _)| key);
        for key in sessions.map(|session| session.key).chain(logins).collect::<Vec<_>>() {
            self.end_session(key, UNIT_ENDED);
        }
    }

    /// This worker ends: units and sessions of other workers are told. The sessions that ended.
    pub(super) fn end(&mut self, now: Instant) -> Vec<SessionKey> {
        let mut ended = Vec::new();
        for session in self.sessions.take_all() {
            ended.push(session.key);
            if let Some(address) = session.unit.as_ref().filter(|address| address.is_remote()) {
                self.leave_unit(now, address, session.key);
            }
        }
        for (session, worker) in std::mem::take(&mut self.remote_sessions) {
            let notice = SessionNotice::End { why: UNIT_ENDED };
            self.outgoing[worker].push(CrossWorkerMessage::Notice { session, notice });
        }
        ended
    }

    /// A login looks again whether it may go on.
    pub(super) fn retry_logins(&mut self, logins: impl IntoIterator<Item = ConnectionKey>) {
        self.ready_logins.extend(logins);
    }

    /// The next login that waited for tasks which have ended.
    pub(super) fn pop_ready_login(&mut self) -> Option<ConnectionKey> {
        self.ready_logins.pop_front()
    }

    pub(super) fn has_ready_logins(&self) -> bool {
        !self.ready_logins.is_empty()
    }

    /// A session that was ended before its login was over.
    pub(super) fn pop_ended_login(&mut self) -> Option<SessionKey> {
        self.ended_logins.pop()
    }
}

fn internal_failure() -> Response {
    Response::check_condition(Sense::INTERNAL_FAILURE.encode())
}

#[cfg(test)]
mod tests;

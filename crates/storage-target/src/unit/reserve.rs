//! Reservations of a unit: RESERVE and RELEASE, PERSISTENT RESERVE, and answers that wait until what they promise is so.
//!
//! What PERSISTENT RESERVE OUT changes holds once it is on disk, if it is to be kept: what cannot be written is refused, and nothing of
//! it has happened. Changes that come meanwhile wait for their turn.

use std::collections::{HashSet, VecDeque};

use strongroom_iscsi::target::{self as iscsi, Response, TaskId};
use strongroom_scsi::persistent::parameters::LIST_BYTES_MAX;
use strongroom_scsi::persistent::{Effects, PersistentReservations, Refusal};
use strongroom_scsi::{Command, NexusId, Sense, Status};

use super::answers::data;
use super::{Finished, Plan, SessionKey, Unit, check_condition, status};

/// An answer that waits for the tasks that its command ended, or excludes, to be over.
pub(super) struct Delayed {
    connection: SessionKey,
    task: TaskId,
    response: Response,
    /// Tasks keep their names where a step of theirs follows another.
    waits_for: HashSet<(SessionKey, TaskId)>,
}

impl Delayed {
    /// It waits for nothing any more.
    pub(super) fn now(connection: SessionKey, task: TaskId, response: Response) -> Delayed {
        Delayed::after(connection, task, response, HashSet::new())
    }

    pub(super) fn after(
        connection: SessionKey,
        task: TaskId,
        response: Response,
        waits_for: HashSet<(SessionKey, TaskId)>,
    ) -> Delayed {
        Delayed { connection, task, response, waits_for }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.waits_for.is_empty()
    }
}

/// Changes of something that is kept on disk, on their way: one is written at a time.
pub(super) struct Changes<T> {
    /// The one that is being written.
    writing: Option<Box<T>>,
    /// Commands that come after it. Bounded by the sessions' queue depths.
    waiting: VecDeque<(SessionKey, iscsi::Command)>,
}

impl<T> Default for Changes<T> {
    fn default() -> Changes<T> {
        Changes { writing: None, waiting: VecDeque::new() }
    }
}

/// What reservations will be when it is on disk, and what is done then.
pub(super) struct Change {
    connection: SessionKey,
    task: TaskId,
    after: PersistentReservations,
    effects: Effects,
}

impl<T> Changes<T> {
    /// Takes back what waits, of one task or of all; which those were.
    pub(super) fn withdraw(&mut self, connection: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        let concerned = |(key, command): &(SessionKey, iscsi::Command)| {
            *key == connection && task.is_none_or(|task| command.task == task)
        };
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(concerned);
        self.waiting = stay;
        gone.into_iter().map(|(_, command)| command.task).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writing.is_none() && self.waiting.is_empty()
    }

    /// Whether a change is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// A command waits for the change that is being written.
    pub(super) fn wait(&mut self, connection: SessionKey, request: iscsi::Command) {
        self.waiting.push_back((connection, request));
    }

    /// A change is being written.
    pub(super) fn write(&mut self, change: T) {
        assert!(self.writing.is_none(), "one change is written at a time");
        self.writing = Some(Box::new(change));
    }

    /// The change that was being written, now that it is not any more.
    pub(super) fn written(&mut self) -> Option<Box<T>> {
        self.writing.take()
    }

    /// The next command that waits, if it need not any more.
    pub(super) fn next_waiting(&mut self) -> Option<(SessionKey, iscsi::Command)> {
        if self.is_writing() { None } else { self.waiting.pop_front() }
    }
}

impl Unit {
    pub(super) fn plan_reserve(&mut self, connection: SessionKey) -> Plan {
        let Some(user) = self.users.get(&connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        let reserved = self.persistent.compatible(&user.nexus).unwrap_or_else(|| self.reservation.reserve(&user.nexus));
        Plan::Answer(if reserved { Response::good() } else { status(Status::ReservationConflict) })
    }

    pub(super) fn plan_release(&mut self, connection: SessionKey) -> Plan {
        let Some(user) = self.users.get(&connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        if self.persistent.compatible(&user.nexus) == Some(false) {
            return Plan::Answer(status(Status::ReservationConflict));
        }
        self.reservation.release(&user.nexus);
        Plan::Answer(Response::good())
    }

    pub(super) fn plan_reserve_in(&self, service_action: u8, allocation_len: u16) -> Plan {
        // SPC-4 §5.13.3: RESERVE (6) and persistent reservations keep each other out.
        match self.reservation.holder() {
            Some(_) => Plan::Answer(status(Status::ReservationConflict)),
            None => data(self.persistent.report(service_action), allocation_len.into()),
        }
    }

    pub(super) fn plan_reserve_out(&mut self, connection: SessionKey, request: iscsi::Command) -> Plan {
        if self.changes.is_writing() {
            self.changes.wait(connection, request);
            return Plan::Delayed;
        }
        self.reserve_out(connection, &request).unwrap_or_else(|refusal| match refusal {
            Refusal::Conflict => Plan::Answer(status(Status::ReservationConflict)),
            Refusal::Sense(sense) => Plan::from(sense),
        })
    }

    fn reserve_out(&mut self, connection: SessionKey, request: &iscsi::Command) -> Result<Plan, Refusal> {
        let Ok(Command::PersistentReserveOut { service_action, scope_type, parameter_list_len }) =
            Command::decode(&request.cdb)
        else {
            return Err(Sense::INVALID_OPCODE.into());
        };
        let nexus = self.users.get(&connection).ok_or(Sense::INTERNAL_FAILURE)?.nexus.clone();
        if self.reservation.holder().is_some() {
            return Err(Refusal::Conflict);
        }
        if parameter_list_len > LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH.into());
        }
        let list = self.gather(request, parameter_list_len.into())?;
        let mut after = self.persistent.clone();
        let effects = after.change(&nexus, service_action, scope_type, &list)?;
        let change = Change { connection, task: request.task, after, effects };
        if self.keeper.keep(change.after.to_keep()) {
            self.changes.write(change);
            return Ok(Plan::Delayed);
        }
        let delayed = self.put_in_force(change);
        if delayed.is_ready() {
            return Ok(Plan::Answer(delayed.response));
        }
        self.delayed.push(delayed);
        Ok(Plan::Delayed)
    }

    fn put_in_force(&mut self, change: Change) -> Delayed {
        let Change { connection, task, after, effects } = change;
        self.persistent = after;
        Delayed::after(connection, task, Response::good(), self.carry_out(&effects))
    }

    /// Tells who must be told, and ends the tasks that are to be ended. Returns what of those is still at work.
    fn carry_out(&mut self, effects: &Effects) -> HashSet<(SessionKey, TaskId)> {
        for (nexus, attention) in &effects.attentions {
            self.users.values_mut().filter(|user| user.nexus == *nexus).for_each(|user| {
                user.attentions.establish(*attention);
            });
        }
        let mut at_work = HashSet::new();
        for nexus in &effects.abort {
            for key in self.connections_of(nexus) {
                at_work.extend(self.abort_for_others(key).into_iter().map(|task| (key, task)));
            }
        }
        at_work
    }

    /// The connections of the nexus, with those that are gone but still have something in flight.
    fn connections_of(&self, nexus: &NexusId) -> Vec<SessionKey> {
        let users = self.users.iter().map(|(key, user)| (key, &user.nexus));
        let all = users.chain(&self.leaving);
        all.filter(|(_, its)| *its == nexus).map(|(key, _)| *key).collect()
    }

    /// Gives the answers for which nothing is left to wait.
    pub(super) fn poll_delayed(&mut self, finished: &mut Vec<Finished>) {
        if let Some(written) = self.keeper.poll()
            && let Some(change) = self.changes.written()
        {
            let delayed = match written {
                Ok(()) => self.put_in_force(*change),
                Err(error) => {
                    tracing::error!(volume = %self.volume.name, %error, "reservations could not be written: the change is refused");
                    Delayed::now(change.connection, change.task, check_condition(Sense::INTERNAL_FAILURE))
                }
            };
            self.delayed.push(delayed);
        }
        while let Some((connection, request)) = self.changes.next_waiting() {
            let task = request.task;
            if let Plan::Answer(response) = self.plan_reserve_out(connection, request) {
                self.delayed.push(Delayed::now(connection, task, response));
            }
        }
        self.poll_leases();
        if self.delayed.is_empty() {
            return;
        }
        let at_work: HashSet<_> = self.running.values().map(|running| (running.connection, running.task)).collect();
        let ready = |delayed: &mut Delayed| {
            delayed.waits_for.retain(|task| at_work.contains(task));
            delayed.is_ready()
        };
        let done: Vec<Delayed> = self.delayed.extract_if(.., ready).collect();
        for Delayed { connection, task, response, .. } in done {
            finished.push(Finished { connection, task, response: Some(self.in_format(response)) });
        }
    }

    /// A change that waited was taken back by another session's order: its initiator is told.
    pub(super) fn answer_aborted(&mut self, connection: SessionKey, task: TaskId) {
        self.delayed.push(Delayed::now(connection, task, Response::task_aborted()));
    }
}

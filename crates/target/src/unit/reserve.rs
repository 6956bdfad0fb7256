//! Reservations of a unit: RESERVE and RELEASE, PERSISTENT RESERVE, and answers that wait until what they promise is so.

use strongroom_block::Token;
use strongroom_iscsi::target::{self as iscsi, Response, TaskId};
use strongroom_scsi::persistent::parameters::LIST_BYTES_MAX;
use strongroom_scsi::persistent::{Effects, Refusal};
use strongroom_scsi::{NexusId, Sense, Status};

use super::answers::data;
use super::{ConnectionKey, Finished, Plan, Unit, check_condition, status};

/// An answer that waits: for reservations to be on disk, and for the tasks that it ended to be over.
pub(super) struct Delayed {
    connection: ConnectionKey,
    task: TaskId,
    response: Response,
    ticket: Option<u64>,
    tokens: Vec<Token>,
}

impl Unit {
    pub(super) fn plan_reserve(&mut self, connection: ConnectionKey) -> Plan {
        let Some(user) = self.users.get(&connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        let reserved = self.persistent.compatible(&user.nexus).unwrap_or_else(|| self.reservation.reserve(&user.nexus));
        Plan::Answer(if reserved { Response::good() } else { status(Status::ReservationConflict) })
    }

    pub(super) fn plan_release(&mut self, connection: ConnectionKey) -> Plan {
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

    pub(super) fn plan_reserve_out(
        &mut self,
        connection: ConnectionKey,
        (service_action, scope_and_type): (u8, u8),
        parameter_list_len: u32,
        request: &iscsi::Command,
    ) -> Plan {
        let Some(user) = self.users.get(&connection) else { return Plan::from(Sense::INTERNAL_FAILURE) };
        let nexus = user.nexus.clone();
        if self.reservation.holder().is_some() {
            return Plan::Answer(status(Status::ReservationConflict));
        }
        if parameter_list_len > LIST_BYTES_MAX {
            return Plan::from(Sense::PARAMETER_LIST_LENGTH);
        }
        let list = match self.gather(request, parameter_list_len.into()) {
            Ok(list) => list,
            Err(sense) => return Plan::from(sense),
        };
        let effects = match self.persistent.change(&nexus, service_action, scope_and_type, &list) {
            Ok(effects) => effects,
            Err(Refusal::Conflict) => return Plan::Answer(status(Status::ReservationConflict)),
            Err(Refusal::Sense(sense)) => return Plan::from(sense),
        };
        let tokens = self.carry_out(&effects);
        let ticket = self.keeper.keep(self.persistent.to_keep());
        if ticket.is_none() && tokens.is_empty() {
            return Plan::Answer(Response::good());
        }
        let task = request.task;
        self.delayed.push(Delayed { connection, task, response: Response::good(), ticket, tokens });
        Plan::Delayed
    }

    /// Tells who must be told, and ends the tasks that are to be ended. Returns what of those is still at work.
    fn carry_out(&mut self, effects: &Effects) -> Vec<Token> {
        for (nexus, attention) in &effects.attentions {
            self.users.values_mut().filter(|user| user.nexus == *nexus).for_each(|user| {
                user.attentions.establish(*attention);
            });
        }
        let mut tokens = Vec::new();
        for nexus in &effects.abort {
            for key in self.connections_of(nexus) {
                self.abort_for_others(key);
                let at_work =
                    |(token, running): (&Token, &super::Running)| (running.connection == key).then_some(*token);
                tokens.extend(self.running.iter().filter_map(at_work));
            }
        }
        tokens
    }

    /// The connections of the nexus, with those that are gone but still have something in flight.
    fn connections_of(&self, nexus: &NexusId) -> Vec<ConnectionKey> {
        let users = self.users.iter().map(|(key, user)| (key, &user.nexus));
        let all = users.chain(&self.leaving);
        all.filter(|(_, its)| *its == nexus).map(|(key, _)| *key).collect()
    }

    /// Gives the answers for which nothing is left to wait.
    pub(super) fn poll_delayed(&mut self, finished: &mut Vec<Finished>) {
        while let Some(kept) = self.keeper.poll() {
            for delayed in &mut self.delayed {
                if delayed.ticket.is_some_and(|ticket| ticket <= kept.ticket) {
                    delayed.ticket = None;
                    if let Err(error) = &kept.result {
                        tracing::error!(volume = %self.volume.name, %error, "reservations could not be kept");
                        delayed.response = check_condition(Sense::INTERNAL_FAILURE);
                    }
                }
            }
        }
        let running = &self.running;
        let ready = |delayed: &mut Delayed| {
            delayed.tokens.retain(|token| running.contains_key(token));
            delayed.ticket.is_none() && delayed.tokens.is_empty()
        };
        for Delayed { connection, task, response, .. } in self.delayed.extract_if(.., ready) {
            finished.push(Finished { connection, task, response: Some(response) });
        }
    }
}

//! The target: connections, logins, and workers with their sessions and units, on one store on the simulated disk. Sessions, units and the
//! routing between them are the target's own; what takes sockets and threads is done here as simply as it can be.

mod associations;
mod connections;
mod reservations;
mod served_store;
mod steps;
mod volume;
mod workers;

use std::time::Instant;

use strongroom_ecl::Datagram;
use strongroom_handshake::PublicKey;
use strongroom_net::Link;
use strongroom_scsi::NexusId;
use strongroom_scsi::transport::Lun;
use strongroom_scsi::transport::target::ManagementFunction;
use strongroom_store::StoreError;
use strongroom_target::machine::Sending;

use super::association::AssociationSetup;
use super::layout::{OPERATOR, initiator_name, isid_of, node};
use crate::{Random, SimDisk};
use associations::AssociationTable;
pub(super) use connections::{ConnectionTable, Output};
pub(super) use reservations::{Reservations, Reserve};
pub(super) use served_store::{ServedStore, Settings, Sighted};
pub(super) use volume::ServedVolume;
pub(super) use workers::PlantedRouting;
use workers::Workers;

/// The target.
pub(super) struct Target {
    pub(super) volume: ServedVolume,
    connections: ConnectionTable,
    associations: AssociationTable,
    workers: Workers,
    pub(super) reservations: Reservations,
}

fn nexus_of(initiator: u64) -> NexusId {
    NexusId { initiator_name: initiator_name(initiator).into(), isid: isid_of(initiator), target_portal_group: 1 }
}

impl Target {
    /// A target with a new volume, not formatted yet.
    pub(super) fn new(
        disk: SimDisk,
        settings: Settings,
        planted: PlantedRouting,
        setup: AssociationSetup,
        mut random: Random,
    ) -> Target {
        let workers = Workers::new(random.fork(), planted);
        let store = ServedStore::new(disk, settings, random.fork());
        Target {
            volume: ServedVolume::new(store, random),
            connections: ConnectionTable::default(),
            associations: AssociationTable::new(setup),
            workers,
            reservations: Reservations::default(),
        }
    }

    /// Whether no session uses the volume, and nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.workers.are_idle()
    }

    /// Commands that units were given.
    pub(super) fn commands(&self) -> u64 {
        self.workers.commands()
    }

    /// Messages between workers that arrived.
    pub(super) fn messages(&self) -> u64 {
        self.workers.arrived
    }

    /// Sessions that did not begin at the worker of their unit.
    pub(super) fn remote_sessions(&self) -> u64 {
        self.connections.remote_sessions + self.associations.remote_sessions
    }

    /// Blocks of writes that were restored from parity.
    pub(super) fn quanta_repaired(&self) -> u64 {
        self.associations.quanta_repaired
    }

    /// The most steps in the store that one call took.
    pub(super) fn steps_max(&self) -> u64 {
        self.workers.steps.most.max(self.volume.store.steps.most)
    }

    /// The process is gone, with everything that it had in memory.
    pub(super) fn crash(&mut self) {
        self.volume.store.crash();
        self.connections.crash();
        self.associations.crash();
        self.process_ended();
    }

    /// The process ends in order, after its store was closed, and another one begins.
    pub(super) fn restart(&mut self) {
        self.connections.close_all();
        self.associations.close_all();
        self.process_ended();
    }

    fn process_ended(&mut self) {
        self.volume.process_ended();
        self.workers.restart();
    }

    /// A connection from a node has come.
    pub(super) fn accept(&mut self, id: u64, link: Link, node: PublicKey) {
        let worker = self.workers.any();
        self.connections.accept(id, link, node, worker);
    }

    /// A connection for the login of an association has come.
    pub(super) fn accept_login(&mut self, id: u64, initiator: u64) {
        let worker = self.workers.any();
        self.associations.accept(id, (initiator, node(initiator)), worker);
    }

    pub(super) fn handle_input(&mut self, now: Instant, id: u64, bytes: &[u8]) {
        self.connections.handle_input(now, id, bytes, &mut self.workers);
        self.associations.handle_input(id, bytes, &mut self.workers);
    }

    /// A datagram of an association has come. Whether it was used.
    pub(super) fn handle_datagram(&mut self, now: Instant, id: u64, datagram: Datagram) -> bool {
        self.associations.handle_datagram(now, id, datagram, &mut self.workers)
    }

    /// A connection is over.
    pub(super) fn handle_closed(&mut self, now: Instant, id: u64) {
        self.connections.handle_closed(now, id, &mut self.workers);
        self.associations.handle_closed(id, &mut self.workers);
    }

    /// Does what is due. Whether the store is to be closed because nobody uses it: [`Target::close`] follows.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> bool {
        for (worker, connection) in self.workers.deliver(now) {
            self.connections.arrive(connection, worker);
            self.associations.arrive(connection, worker);
        }
        self.connections.handle_timeout(now);
        self.volume.handle_timeout(now, &mut self.workers)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let workers = [self.workers.next_arrival(), self.volume.poll_timeout(&self.workers)];
        self.connections.poll_timeout().into_iter().chain(workers.into_iter().flatten()).min()
    }

    /// Opens the store unless it is open.
    ///
    /// # Errors
    /// What the store says: the disk may fail to read.
    pub(super) fn open(&mut self, now: Instant) -> Result<(), StoreError> {
        self.volume.open(now, &mut self.workers).map_err(|(error, logins)| {
            for login in logins {
                self.connections.reject(login);
                self.associations.reject(login);
            }
            error
        })
    }

    /// Closes the store in order, while nobody uses it. Whether that went well.
    pub(super) fn close(&mut self, now: Instant) -> bool {
        self.volume.close(now, &mut self.workers)
    }

    /// Another initiator has a task management function carried out that concerns everybody.
    pub(super) fn manage(&mut self, now: Instant, function: ManagementFunction) {
        let Some(owner) = self.volume.owner() else { return };
        let session = (self.connections.next_session(), nexus_of(OPERATOR), node(OPERATOR));
        self.workers.get_mut(owner).manage(now, self.volume.name(0), session, function);
    }

    /// LOGICAL UNIT RESET, or one that closes every session too.
    pub(super) fn reset(&mut self, now: Instant, closes: bool) {
        let reset = ManagementFunction::LogicalUnitReset(Lun::single_level(0));
        self.manage(now, if closes { ManagementFunction::TargetColdReset } else { reset });
    }

    /// CLEAR TASK SET.
    pub(super) fn clear_task_set(&mut self, now: Instant) {
        self.manage(now, ManagementFunction::ClearTaskSet(Lun::single_level(0)));
    }

    /// Ends one session, as an administrator may: at its worker, or at the one that owns the volume.
    pub(super) fn end_one(&mut self, random: &mut Random) {
        let sessions = self.workers.sessions();
        if sessions.is_empty() {
            return;
        }
        let (worker, session) = sessions[random.below(sessions.len() as u64) as usize];
        let owner = self.volume.owner().filter(|_| random.once_in(2));
        self.workers.get_mut(owner.unwrap_or(worker)).end_session(session);
    }

    /// Ends every session in order; the store can be closed when it is idle then.
    pub(super) fn end_all(&mut self) {
        for (worker, key) in self.workers.sessions() {
            self.workers.get_mut(worker).close_session(key, "the target stops");
        }
    }

    /// Moves everything forward as far as it goes now; what is to be sent.
    pub(super) fn drive(&mut self, now: Instant) -> Vec<Output> {
        for number in 0..self.workers.count() {
            while let Some(login) = self.workers.get_mut(number).pop_ready_login() {
                self.connections.retry_login(login);
                self.associations.retry_login(login);
            }
        }
        loop {
            let mut has_progressed = self.drive_connections(now);
            self.volume.store.poll();
            for number in 0..self.workers.count() {
                let polled = self.workers.poll_units(number);
                for (task, response) in polled.own_tasks {
                    self.reservations.take(task, response.as_ref());
                }
                has_progressed |= polled.has_progressed;
            }
            if !has_progressed {
                break;
            }
        }
        self.workers.send(now);
        let mut output = self.connections.take_output();
        output.append(&mut self.associations.take_output());
        output
    }

    /// Moves connections and sessions forward; whether anything happened.
    fn drive_connections(&mut self, now: Instant) -> bool {
        let Target { connections, associations, workers, volume, .. } = self;
        let mut has_progressed = connections.drive(now, workers, volume);
        has_progressed |= associations.drive(now, workers, volume, &mut || connections.next_session());
        for number in 0..workers.count() {
            loop {
                let transmit = |id, sending: Sending<'_>| connections.transmit(id, sending);
                let Some(driven) = workers.drive_session(now, number, transmit) else { break };
                has_progressed = true;
                if driven.is_over {
                    connections.session_ended(driven.connection);
                    associations.forget(driven.connection);
                }
            }
            while let Some(session) = workers.get_mut(number).pop_ended_login() {
                connections.reject_session(session);
                associations.reject_session(session);
                has_progressed = true;
            }
        }
        has_progressed
    }

    /// Whether it is to be driven again soon.
    pub(super) fn is_working(&self) -> bool {
        self.volume.store.is_working() || self.workers.have_work()
    }

    fn session_of(&self, initiator: u64) -> Option<u64> {
        let owner = self.workers.get(self.volume.owner()?);
        let session = owner.session_of(self.volume.name(0), &nexus_of(initiator))?;
        self.workers.has_open_session(session).then_some(session)
    }

    /// Whether an initiator has a session with the volume.
    pub(super) fn has_session(&self, initiator: u64) -> bool {
        self.session_of(initiator).is_some()
    }

    /// Has an initiator's node change the reservations of the volume; `None`: it has no session. The outcome comes from
    /// [`Reservations::take_ended`].
    pub(super) fn reserve(&mut self, now: Instant, initiator: u64, what: Reserve) -> Option<u64> {
        let (session, owner) = (self.session_of(initiator)?, self.volume.owner()?);
        let (ticket, command) = self.reservations.command(initiator, what);
        let task = command.task;
        if let Some(response) = self.workers.get_mut(owner).submit_for(now, self.volume.name(0), session, command) {
            self.reservations.take(task, response.as_ref());
        }
        Some(ticket)
    }
}

//! One session: its machine, its connections, its unit, and what its commands hold.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use strongroom_channel::Scheme;
use strongroom_iscsi::target::{ConnectionId, Response, Statistics, TaskId};
use strongroom_scsi::NexusId;

use super::connection::ConnectionKey;
use super::ecl_session::EclSession;
use super::grant::{LoginGrant, UnitAddress};
use super::session_commands::SessionCommands;
use super::session_machine::SessionMachine;
use crate::access::Identity;
use crate::budget::Charge;
use crate::connection_slots::ConnectionSlot;
use crate::names::VolumeName;
use crate::stats::{Counters, PacketCounts};
use crate::store_queue::Share;
use crate::unit::SessionKey;

pub(super) struct Session {
    pub(super) key: SessionKey,
    pub(super) machine: SessionMachine,
    pub(super) peer: SessionPeer,
    /// `None` for discovery.
    pub(super) unit: Option<UnitAddress>,
    pub(super) read_only: bool,
    pub(super) since: Instant,
    pub(super) connections: Vec<(ConnectionId, ConnectionKey)>,
    /// Logins that wait until tasks of the connection that they replace have ended.
    pub(super) joining: Vec<ConnectionKey>,
    /// While it has no connection.
    pub(super) vacancy: Option<Vacancy>,
    /// When a discovery session ends in any case.
    pub(super) ends_at: Option<Instant>,
    /// It waits to be driven.
    pub(super) is_ready: bool,
    /// The deadline for which its timer is set.
    pub(super) armed: Option<Instant>,
    pub(super) commands: SessionCommands,
    counted: SessionWork,
    /// What it takes without any command.
    _memory: Charge,
}

/// What a session has done.
#[derive(Default)]
struct SessionWork {
    commands: Statistics,
    /// Over ECL.
    packets: PacketCounts,
}

/// Who has logged in by the leading connection. Other connections have to prove the same.
pub(super) struct SessionPeer {
    pub(super) nexus: NexusId,
    /// As the initiator spelled it; the nexus has it as it is compared.
    pub(super) initiator_name: String,
    pub(super) identity: Identity,
    /// The leading connection's address: a peer without a proven identity has to use it again.
    pub(super) address: IpAddr,
    /// What protects its connections; `None`: nothing.
    pub(super) scheme: Option<Scheme>,
}

/// The connection slot that a session keeps while it has no connection, since `since`.
pub(super) struct Vacancy {
    pub(super) since: Instant,
    pub(super) slot: ConnectionSlot,
}

impl SessionPeer {
    /// Whether a login comes from the same initiator by the same protection: names prove nothing.
    pub(super) fn is_same(&self, identity: &Identity, address: IpAddr, scheme: Option<Scheme>) -> bool {
        let is_same = self.identity == *identity && self.scheme == scheme;
        is_same && (*identity != Identity::Plain || self.address == address)
    }
}

impl Session {
    /// `memory`: the charge for the session itself. `command_memory`: the charge for its commands.
    pub(super) fn new(
        key: SessionKey,
        machine: impl Into<SessionMachine>,
        grant: LoginGrant,
        (identity, address, scheme): (Identity, IpAddr, Option<Scheme>),
        now: Instant,
        (memory, command_memory): (Charge, Charge),
    ) -> Session {
        let LoginGrant { nexus, initiator_name, volume: _, unit, read_only } = grant;
        let share = unit.as_ref().map(|unit| Share::of(Arc::clone(&unit.queue))).unwrap_or_default();
        Session {
            key,
            machine: machine.into(),
            peer: SessionPeer { nexus, initiator_name, identity, address, scheme },
            unit,
            read_only,
            since: now,
            connections: Vec::new(),
            joining: Vec::new(),
            vacancy: None,
            ends_at: None,
            is_ready: false,
            armed: None,
            commands: SessionCommands::new(share, command_memory),
            counted: SessionWork::default(),
            _memory: memory,
        }
    }

    /// `None` for discovery.
    pub(super) fn volume(&self) -> Option<&VolumeName> {
        self.unit.as_ref().map(|unit| &*unit.volume)
    }

    /// Adds what the session did to the target's counters.
    pub(super) fn count(&mut self, counters: &Counters) {
        let now = SessionWork {
            commands: self.machine.statistics(),
            packets: self.machine.ecl().map(EclSession::packets).unwrap_or_default(),
        };
        if now.commands != self.counted.commands {
            counters.add_session(&self.counted.commands, &now.commands);
        }
        if now.packets != self.counted.packets {
            counters.add_packets(self.counted.packets, now.packets);
        }
        self.counted = now;
    }

    /// Whether its peer may send more.
    pub(super) fn accepts_input(&self, connection: ConnectionId) -> bool {
        self.machine.accepts_input(connection) && (self.commands.accepts() || self.machine.ecl().is_some())
    }

    /// The next deadline of the session itself.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.machine.poll_timeout(), self.ends_at].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.machine.handle_timeout(now);
        if self.ends_at.is_some_and(|at| at <= now) {
            self.ends_at = None;
            self.machine.close("a discovery session lasts no longer than limits.discovery_timeout_s");
        }
    }

    /// Another session's function aborts all of its tasks. Those that the store executes are answered when it has completed them; the
    /// rest at once.
    pub(super) fn abort_tasks(&mut self, closes: bool) {
        let waiting = self.commands.take_waiting();
        self.machine.abort_tasks();
        for command in waiting {
            self.machine.complete(command.task, Response::task_aborted());
        }
        if closes {
            self.machine.close("target cold reset");
        }
    }

    /// The store has completed a command. Answers the initiator if there is an answer and a task.
    pub(super) fn finished(&mut self, task: TaskId, response: Option<Response>) {
        self.commands.finished(task);
        if let Some(response) = response {
            self.machine.complete(task, response);
        }
    }

    /// Charges what its commands hold, and bounds what more of them may hold.
    pub(super) fn bound_memory(&mut self, write_bytes_max: u64) {
        self.commands.charge(self.machine.memory_bytes());
        self.machine.set_write_memory_max(write_bytes_max);
    }
}

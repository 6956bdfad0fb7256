//! One session: its machine, its connections, and what it holds of memory.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use strongroom_channel::Scheme;
use strongroom_iscsi::target::{self as iscsi, ConnectionId, Direction, Response, TaskId};
use strongroom_scsi::{NexusId, opcode};

use super::connection::ConnectionKey;
use super::crossing::Place;
use super::places::Vacancy;
use crate::TRANSFER_BYTES_MAX;
use crate::access::Identity;
use crate::budget::Charge;
use crate::names::VolumeName;
use crate::stats::Counters;
use crate::store_queue::Share;
use crate::unit::{SLICE_BYTES, SessionKey};

/// Commands that wait for memory; the session's queue depth bounds them too.
const QUEUED_MAX: usize = strongroom_iscsi::target::TASKS_MAX;

pub(super) struct Session {
    pub(super) key: SessionKey,
    pub(super) machine: iscsi::Session,
    pub(super) nexus: NexusId,
    /// As it was said, not as it is compared.
    pub(super) initiator_name: String,
    /// Who has logged in by the leading connection; all others have to prove the same.
    pub(super) identity: Identity,
    /// Where that one came from: who has proven nothing has to come from there again.
    pub(super) address: IpAddr,
    /// What protects its connections; `None`: nothing.
    pub(super) scheme: Option<Scheme>,
    /// `None` for discovery.
    pub(super) volume: Option<VolumeName>,
    /// Where the volume's unit is.
    pub(super) place: Option<Place>,
    pub(super) read_only: bool,
    pub(super) since: Instant,
    pub(super) connections: Vec<(ConnectionId, ConnectionKey)>,
    /// Logins that wait until tasks of the connection that they replace have ended.
    pub(super) joining: Vec<ConnectionKey>,
    /// While it has none.
    pub(super) vacancy: Option<Vacancy>,
    /// When it ends in any case: of a discovery session.
    pub(super) ends_at: Option<Instant>,
    pub(super) touched: bool,
    pub(super) armed: Option<Instant>,
    /// Commands that wait until reads before them have been sent, or the session has less in the store's queue.
    pub(super) queued: VecDeque<iscsi::Command>,
    /// Reads that the store is working on, with the bytes they may bring.
    reading: HashMap<TaskId, u64>,
    reading_bytes: u64,
    /// What it has in the store's queue.
    share: Share,
    counted: iscsi::Statistics,
    /// What its commands hold.
    memory: Charge,
    /// What it takes itself.
    _own_memory: Charge,
}

/// What a login was admitted to.
#[derive(Clone)]
pub(super) struct Admitted {
    pub(super) nexus: NexusId,
    pub(super) initiator_name: String,
    pub(super) volume: Option<VolumeName>,
    /// With the volume, unless it joins a session.
    pub(super) place: Option<Place>,
    pub(super) read_only: bool,
}

impl Session {
    pub(super) fn new(
        key: SessionKey,
        machine: iscsi::Session,
        admitted: Admitted,
        (identity, address, scheme): (Identity, IpAddr, Option<Scheme>),
        now: Instant,
        (own_memory, memory): (Charge, Charge),
    ) -> Session {
        let Admitted { nexus, initiator_name, volume, place, read_only } = admitted;
        let share = place.as_ref().map(|place| Share::of(Arc::clone(&place.queue))).unwrap_or_default();
        Session {
            key,
            machine,
            nexus,
            initiator_name,
            identity,
            address,
            scheme,
            volume,
            place,
            read_only,
            since: now,
            connections: Vec::new(),
            joining: Vec::new(),
            vacancy: None,
            ends_at: None,
            touched: false,
            armed: None,
            queued: VecDeque::new(),
            reading: HashMap::new(),
            reading_bytes: 0,
            share,
            counted: iscsi::Statistics::default(),
            memory,
            _own_memory: own_memory,
        }
    }

    /// Has it driven in this turn.
    pub(super) fn touch(&mut self, touched: &mut VecDeque<SessionKey>) {
        if !std::mem::replace(&mut self.touched, true) {
            touched.push_back(self.key);
        }
    }

    /// Whether a login comes from the same initiator as the session, by the same protection: names prove nothing.
    pub(super) fn is_of(&self, identity: &Identity, address: IpAddr, scheme: Option<Scheme>) -> bool {
        let is_same = self.identity == *identity && self.scheme == scheme;
        is_same && (*identity != Identity::Plain || self.address == address)
    }

    /// Adds what the session did to the target's counters.
    pub(super) fn count(&mut self, counters: &Counters) {
        let now = self.machine.statistics();
        if now != self.counted {
            counters.add_session(&self.counted, &now);
            self.counted = now;
        }
    }

    /// Whether its peer may send more.
    pub(super) fn accepts_input(&self, connection: ConnectionId) -> bool {
        self.machine.accepts_input(connection) && self.queued.len() < QUEUED_MAX
    }

    fn held_bytes(&self) -> u64 {
        self.reading_bytes + self.machine.unsent_bytes()
    }

    /// Charges what its commands hold now.
    pub(super) fn charge_memory(&mut self) {
        self.memory.set(self.reading_bytes + self.machine.memory_bytes());
    }

    /// Whether a command must wait: a read until others have been sent, any one until the session has a place in the store's queue.
    pub(super) fn must_wait(&self, command: &iscsi::Command, limit: u64) -> bool {
        let held = self.held_bytes();
        !self.queued.is_empty() || held > 0 && held + cost(command) > limit || !self.has_place_for(command)
    }

    /// Whether the first command that waits need not wait any more.
    pub(super) fn may_start_queued(&self, limit: u64) -> bool {
        let held = self.held_bytes();
        self.queued
            .front()
            .is_some_and(|command| (held == 0 || held + cost(command) <= limit) && self.has_place_for(command))
    }

    fn has_place_for(&self, command: &iscsi::Command) -> bool {
        queue_bytes(command).is_none_or(|bytes| self.share.has_room(bytes))
    }

    /// The unit works on it.
    pub(super) fn started(&mut self, task: TaskId, cost: u64, queue_bytes: Option<u64>) {
        if let Some(bytes) = queue_bytes {
            self.share.begin(task, bytes);
        }
        if cost > 0 {
            self.reading.insert(task, cost);
            self.reading_bytes += cost;
            // At once: the next command may have no more than is free now, here or with another worker.
            self.charge_memory();
        }
    }

    /// Another session's function ends all of its tasks. What the store works on is answered when that is over; the rest at once.
    pub(super) fn end_tasks(&mut self, closes: bool) {
        let queued = std::mem::take(&mut self.queued);
        self.machine.abort_tasks(None);
        for command in queued {
            self.machine.complete(command.task, Response::task_aborted());
        }
        if closes {
            self.machine.close("target cold reset");
        }
    }

    /// The store has done with it; answers the initiator if there is an answer and a task.
    pub(super) fn finished(&mut self, task: TaskId, response: Option<Response>) {
        self.share.end(task);
        if let Some(cost) = self.reading.remove(&task) {
            self.reading_bytes -= cost;
        }
        if let Some(response) = response {
            self.machine.complete(task, response);
        }
    }
}

/// Bytes that a command may make the target hold until they are sent, or until the store has done with them.
pub(super) fn cost(command: &iscsi::Command) -> u64 {
    let moved = match command.direction {
        Direction::Read => u64::from(command.expected_bytes.min(TRANSFER_BYTES_MAX)),
        Direction::None | Direction::Write => 0,
    };
    // These read a slice of the medium at a time, however little the initiator expects.
    let reads_slices = match command.cdb[0] {
        opcode::VERIFY_10 | opcode::VERIFY_16 => true,
        opcode::SERVICE_ACTION_IN_16 => command.cdb[1] & 0x1f == opcode::SA_GET_LBA_STATUS,
        _ => false,
    };
    if reads_slices { moved.max(SLICE_BYTES.into()) } else { moved }
}

/// Bytes that a command takes of the store's queue; `None`: it does not go there.
pub(super) fn queue_bytes(command: &iscsi::Command) -> Option<u64> {
    let written = match command.direction {
        Direction::Write => u64::from(command.expected_bytes),
        Direction::None | Direction::Read => 0,
    };
    match command.cdb[0] {
        // They wait for reservations or leases to be written, and are not heard of again when they are withdrawn.
        opcode::PERSISTENT_RESERVE_OUT => None,
        opcode::STRONGROOM if matches!(command.cdb[1] & 0x1f, opcode::SA_CLAIM_LEASE | opcode::SA_RELEASE_LEASE) => {
            None
        }
        opcode::WRITE_SAME_10 | opcode::WRITE_SAME_16 | opcode::EXTENDED_COPY => Some(SLICE_BYTES.into()),
        _ => Some(cost(command).max(written)),
    }
}

#[cfg(test)]
mod tests {
    //! Proves that what a command makes the target hold is counted, whatever the initiator says that it expects.
    use strongroom_block::Lba;
    use strongroom_iscsi::Lun;
    use strongroom_iscsi::pdu::Attribute;
    use strongroom_scsi::cdb;

    use super::*;

    fn command(cdb: [u8; 16], direction: Direction, expected_bytes: u32) -> iscsi::Command {
        iscsi::Command {
            task: TaskId(1),
            lun: Lun::single_level(0),
            cdb,
            ahs: bytes::Bytes::new(),
            attribute: Attribute::Simple,
            direction,
            expected_bytes,
            immediate: false,
            data: Vec::new(),
        }
    }

    #[test]
    fn what_reads_the_medium_costs_memory() {
        let mut verify = [0; 16];
        for opcode in [opcode::VERIFY_10, opcode::VERIFY_16] {
            verify[0] = opcode;
            assert_eq!(cost(&command(verify, Direction::None, 0)), u64::from(SLICE_BYTES));
        }
        let status = cdb::get_lba_status(Lba(0), 24);
        assert_eq!(cost(&command(status, Direction::Read, 24)), u64::from(SLICE_BYTES));
        assert_eq!(cost(&command(cdb::read_16(Lba(0), 3), Direction::Read, 12288)), 12288);
        let write = command(cdb::write_16(Lba(0), 3, false), Direction::Write, 12288);
        assert_eq!((cost(&write), queue_bytes(&write)), (0, Some(12288)));
    }
}

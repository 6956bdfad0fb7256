//! Persistent reservations, asked for at the unit as an application on an initiator's node does, beside what the initiator itself asks for.

use strongroom_block::Buffer;
use strongroom_scsi::transport::target::{Command, Response, TaskId, WriteSegment};
use strongroom_scsi::transport::{Direction, Lun, Parameters, TaskAttribute};
use strongroom_scsi::{NexusId, opcode};

use super::{Target, Verdict};
use crate::system::client::isid_of;

/// Tasks from here on are none of a session's.
const TASKS: u64 = 1 << 63;

/// A service action of PERSISTENT RESERVE OUT. The key of an initiator is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::system) enum Reserve {
    /// REGISTER AND IGNORE EXISTING KEY, to be kept over a power loss (APTPL).
    Register,
    /// RESERVE, of this type.
    Hold(u8),
    /// PREEMPT AND ABORT: this initiator is not registered any more, and its tasks are ended.
    Preempt { victim: u64, kind: u8 },
    /// CLEAR: nobody is registered any more.
    Clear,
}

/// What became of one.
#[derive(Clone, Copy, Debug)]
pub(in crate::system) struct Reserved {
    /// What [`Target::reserve`] returned.
    pub(in crate::system) ticket: u64,
    /// Whether it was done. If not, it was not.
    pub(in crate::system) is_done: bool,
}

impl Target {
    fn session_of(&self, initiator: u64) -> Option<u64> {
        let nexus = NexusId {
            initiator_name: format!("iqn.2026-11.org.strongroom:simulation.{initiator}").into(),
            isid: isid_of(initiator),
            target_portal_group: 1,
        };
        let session = self.units.first()?.session_of(&nexus)?;
        self.sessions.get(&session).is_some_and(|one| !one.machine.is_closed()).then_some(session)
    }

    /// Whether an initiator has a session with the volume.
    pub(in crate::system) fn has_session(&self, initiator: u64) -> bool {
        self.session_of(initiator).is_some()
    }

    /// Has an initiator's node change the reservations of the volume; `None`: it has no session. The answer comes from
    /// [`Target::take_reserved`].
    pub(in crate::system) fn reserve(&mut self, initiator: u64, what: Reserve) -> Option<u64> {
        let session = self.session_of(initiator)?;
        let ticket = self.next_reserve;
        self.next_reserve += 1;
        let (action, kind, own, other) = match what {
            Reserve::Register => (opcode::SA_PR_REGISTER_AND_IGNORE, 0, 0, initiator),
            Reserve::Hold(kind) => (opcode::SA_PR_RESERVE, kind, initiator, 0),
            Reserve::Preempt { victim, kind } => (opcode::SA_PR_PREEMPT_AND_ABORT, kind, initiator, victim),
            Reserve::Clear => (opcode::SA_PR_CLEAR, 0, initiator, 0),
        };
        let keeps_over_power_loss = u8::from(what == Reserve::Register);
        let list =
            [&own.to_be_bytes()[..], &other.to_be_bytes(), &[0, 0, 0, 0, keeps_over_power_loss, 0, 0, 0]].concat();
        let mut cdb = [0; 16];
        cdb[..9].copy_from_slice(&[opcode::PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, list.len() as u8]);
        let data = Buffer::copy_from(&list);
        let command = Command {
            task: TaskId(TASKS + ticket),
            lun: Lun::single_level(0),
            cdb,
            parameters: Parameters::default(),
            attribute: TaskAttribute::Simple,
            direction: Direction::Write,
            expected_bytes: list.len() as u32,
            immediate: false,
            data: vec![WriteSegment { offset: 0, data, records: None }],
        };
        match self.units[0].submit(session, command, 0) {
            Verdict::Answer(response) => self.note_reserved(ticket, Some(&response)),
            Verdict::Later => {}
            Verdict::Violation(what) => panic!("a reservation breaks the frame discipline: {what}"),
        }
        Some(ticket)
    }

    /// What has become of reservations since the last call.
    pub(in crate::system) fn take_reserved(&mut self) -> Vec<Reserved> {
        std::mem::take(&mut self.reserved)
    }

    /// Takes the end of a task that changed reservations; whether it was one.
    pub(super) fn is_reserved(&mut self, task: TaskId, response: Option<&Response>) -> bool {
        let ticket = task.0.checked_sub(TASKS);
        if let Some(ticket) = ticket {
            self.note_reserved(ticket, response);
        }
        ticket.is_some()
    }

    fn note_reserved(&mut self, ticket: u64, response: Option<&Response>) {
        let is_done = response.is_some_and(|response| response.status == 0);
        self.reserved.push(Reserved { ticket, is_done });
    }
}

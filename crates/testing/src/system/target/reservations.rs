//! Persistent reservations, asked for at the unit as an application on an initiator's node does, beside the initiator's own requests.

use strongroom_block::Buffer;
use strongroom_scsi::opcode;
use strongroom_scsi::transport::target::{Command, Response, TaskId, WriteSegment};
use strongroom_scsi::transport::{Direction, Lun, Parameters, TaskAttribute};

/// Tasks from here on belong to no session.
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

/// The outcome of one.
#[derive(Clone, Copy, Debug)]
pub(in crate::system) struct Reserved {
    /// What [`Reservations::command`] returned.
    pub(in crate::system) ticket: u64,
    /// Whether it was done. If not, it was not.
    pub(in crate::system) is_done: bool,
}

/// Requests that change reservations.
#[derive(Debug, Default)]
pub(in crate::system) struct Reservations {
    next_ticket: u64,
    ended: Vec<Reserved>,
}

impl Reservations {
    /// The command by which an initiator's node changes the reservations of the volume, and its ticket; the outcome comes from
    /// [`Reservations::take_ended`].
    pub(super) fn command(&mut self, initiator: u64, what: Reserve) -> (u64, Command) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
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
        (ticket, command)
    }

    /// What has ended since the last call.
    pub(in crate::system) fn take_ended(&mut self) -> Vec<Reserved> {
        std::mem::take(&mut self.ended)
    }

    /// Takes the end of a task that changed reservations; whether it was one.
    pub(super) fn take(&mut self, task: TaskId, response: Option<&Response>) -> bool {
        let Some(ticket) = task.0.checked_sub(TASKS) else { return false };
        let is_done = response.is_some_and(|response| response.status == 0);
        self.ended.push(Reserved { ticket, is_done });
        true
    }
}

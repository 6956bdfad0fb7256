//! A task: from its command PDU until the last PDU of its response was sent.

use std::fmt;

use bytes::Bytes;

use super::connection_id::ConnectionId;
use super::respond::ResponseTransfer;
use super::types::{Direction, TaskId};
use super::write::WriteTransfer;
use crate::Serial;
use crate::pdu::{Attribute, Lun, Pdu, ScsiCommand};
use crate::slots::Key;

/// A task of a session.
pub(super) struct Task {
    /// The connection of its data and its response (connection allegiance, RFC 7143 §4.2.2.3).
    pub(super) connection: ConnectionId,
    pub(super) initiator_task_tag: u32,
    pub(super) lun: Lun,
    pub(super) attribute: Attribute,
    pub(super) direction: Direction,
    pub(super) expected_bytes: u32,
    pub(super) cdb: [u8; 16],
    pub(super) ahs: Bytes,
    pub(super) cmd_sn: Serial,
    pub(super) immediate: bool,
    /// Memory reserved for its solicited data, in bytes.
    pub(super) reserved_bytes: u64,
    /// Memory for what it may send, or has sent, unsolicited, in bytes.
    pub(super) unsolicited_bytes: u64,
    pub(super) r2t_count: u32,
    pub(super) phase: TaskPhase,
}

/// Where a task is.
#[derive(Debug)]
pub(super) enum TaskPhase {
    /// Its write data is not complete; the application does not know of it.
    Receiving(WriteTransfer),
    /// With the application.
    Executing,
    /// Its response is being sent.
    Responding(ResponseTransfer),
}

impl Task {
    pub(super) fn new(connection: ConnectionId, command: &ScsiCommand, pdu: &Pdu) -> Task {
        let direction = match (command.read, command.write) {
            (true, _) => Direction::Read,
            (_, true) => Direction::Write,
            _ => Direction::None,
        };
        Task {
            connection,
            initiator_task_tag: command.initiator_task_tag,
            lun: command.lun,
            attribute: command.attribute,
            direction,
            expected_bytes: if direction == Direction::None { 0 } else { command.expected_data_transfer_bytes },
            cdb: command.cdb,
            ahs: pdu.ahs.clone(),
            cmd_sn: command.cmd_sn,
            immediate: command.immediate,
            reserved_bytes: 0,
            unsolicited_bytes: 0,
            r2t_count: 0,
            phase: TaskPhase::Receiving(WriteTransfer::default()),
        }
    }

    /// Its write data, while that is not complete.
    pub(super) fn receiving(&mut self) -> Option<&mut WriteTransfer> {
        match &mut self.phase {
            TaskPhase::Receiving(transfer) => Some(transfer),
            TaskPhase::Executing | TaskPhase::Responding(_) => None,
        }
    }

    /// Its response, while that is being sent.
    pub(super) fn responding(&mut self) -> Option<&mut ResponseTransfer> {
        match &mut self.phase {
            TaskPhase::Responding(transfer) => Some(transfer),
            TaskPhase::Receiving(_) | TaskPhase::Executing => None,
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("initiator_task_tag", &self.initiator_task_tag)
            .field("lun", &self.lun)
            .field("direction", &self.direction)
            .field("expected_bytes", &self.expected_bytes)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl From<Key> for TaskId {
    fn from(key: Key) -> TaskId {
        TaskId(u64::from(key.generation) << 32 | u64::from(key.index))
    }
}

impl From<TaskId> for Key {
    fn from(task: TaskId) -> Key {
        Key { index: task.0 as u32, generation: (task.0 >> 32) as u32 }
    }
}

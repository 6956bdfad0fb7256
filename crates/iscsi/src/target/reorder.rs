//! Commands that arrived before one that is missing, and their unsolicited data; counted in memory.

use super::connection_id::ConnectionId;
use super::write::memory_bytes;
use crate::Serial;
use crate::pdu::{DataOut, Opcode, Pdu, TAG_NONE};

/// A command inside the window that arrived before one that is missing.
#[derive(Debug)]
pub(super) struct OutOfOrderCommand {
    cmd_sn: Serial,
    /// The connection that delivered it.
    pub(super) connection: Option<ConnectionId>,
    /// `None` if it was aborted before its turn.
    pub(super) pdu: Option<Pdu>,
    /// Its unsolicited data, which the initiator sends without waiting.
    pub(super) data: Vec<DataOutPdu>,
    /// Length of that data.
    data_bytes: usize,
    /// Memory that all of it takes.
    memory_bytes: u64,
}

/// A Data-Out of a command that waits.
#[derive(Debug)]
pub(super) struct DataOutPdu {
    pub(super) header: DataOut,
    pub(super) pdu: Pdu,
    /// Its data cannot be used, as its digest showed.
    pub(super) is_damaged: bool,
}

/// All commands of a session that wait.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    commands: Vec<OutOfOrderCommand>,
    memory_bytes: u64,
}

impl ReorderBuffer {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Memory that their data takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(super) fn has(&self, cmd_sn: Serial) -> bool {
        self.commands.iter().any(|waiting| waiting.cmd_sn == cmd_sn)
    }

    /// Whether a connection delivered any.
    pub(super) fn has_some_of(&self, id: ConnectionId) -> bool {
        self.commands.iter().any(|waiting| waiting.connection == Some(id))
    }

    /// Has a command wait. Commands without data are bounded by the command window, and their memory is not counted.
    pub(super) fn insert(&mut self, cmd_sn: Serial, connection: ConnectionId, pdu: Pdu) {
        let memory_bytes = if pdu.data.is_empty() { 0 } else { memory_bytes(&pdu) };
        self.memory_bytes += memory_bytes;
        let (connection, pdu) = (Some(connection), Some(pdu));
        self.commands.push(OutOfOrderCommand {
            cmd_sn,
            connection,
            pdu,
            data: Vec::new(),
            data_bytes: 0,
            memory_bytes,
        });
    }

    /// A number counts as received and ended, even if a command arrived or will arrive under it.
    pub(super) fn void(&mut self, cmd_sn: Serial) {
        drop(self.take(cmd_sn));
        self.commands.push(OutOfOrderCommand {
            cmd_sn,
            connection: None,
            pdu: None,
            data: Vec::new(),
            data_bytes: 0,
            memory_bytes: 0,
        });
    }

    /// Takes out the command with this number.
    pub(super) fn take(&mut self, cmd_sn: Serial) -> Option<OutOfOrderCommand> {
        let at = self.commands.iter().position(|waiting| waiting.cmd_sn == cmd_sn)?;
        let waiting = self.commands.swap_remove(at);
        self.memory_bytes -= waiting.memory_bytes;
        Some(waiting)
    }

    /// The command that unsolicited data belongs to.
    pub(super) fn write_of(&self, id: ConnectionId, header: &DataOut) -> Option<usize> {
        let tag = header.initiator_task_tag;
        let is_its = |waiting: &OutOfOrderCommand| {
            let is_tag =
                |pdu: &Pdu| pdu.bhs.opcode() == Some(Opcode::ScsiCommand) && pdu.bhs.initiator_task_tag() == tag;
            waiting.connection == Some(id) && waiting.pdu.as_ref().is_some_and(is_tag)
        };
        if header.target_transfer_tag != TAG_NONE || self.commands.is_empty() {
            return None;
        }
        self.commands.iter().position(is_its)
    }

    /// Whether more data may belong to that command: at most a first burst, in at most as many PDUs as that takes.
    pub(super) fn may_have(&self, at: usize, more_bytes: usize, first_burst_bytes: u32) -> bool {
        let (waiting, first_burst_bytes) = (&self.commands[at], first_burst_bytes as usize);
        waiting.data_bytes + more_bytes <= first_burst_bytes && waiting.data.len() <= first_burst_bytes / 512
    }

    /// Adds data to its command. PDUs without data count, too: an initiator could send them without end.
    pub(super) fn add(&mut self, at: usize, data: DataOutPdu) {
        let (waiting, memory_bytes) = (&mut self.commands[at], memory_bytes(&data.pdu));
        waiting.data_bytes += data.pdu.data.len();
        waiting.memory_bytes += memory_bytes;
        self.memory_bytes += memory_bytes;
        waiting.data.push(data);
    }

    /// Forgets those of a lost connection: the initiator sends them again on another one.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let memory_bytes = &mut self.memory_bytes;
        self.commands.retain(|waiting| {
            let stays = waiting.connection != Some(id);
            *memory_bytes -= if stays { 0 } else { waiting.memory_bytes };
            stays
        });
    }

    /// Those of a connection count as received and ended.
    pub(super) fn end(&mut self, id: ConnectionId) {
        for waiting in self.commands.iter_mut().filter(|waiting| waiting.connection == Some(id)) {
            (waiting.connection, waiting.pdu, waiting.data_bytes) = (None, None, 0);
            waiting.data.clear();
            self.memory_bytes -= std::mem::take(&mut waiting.memory_bytes);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = ReorderBuffer::default();
    }
}

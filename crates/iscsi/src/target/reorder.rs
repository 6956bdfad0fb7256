//! Commands that came before one that is missing, with the unsolicited data that did not wait for them; counted in memory.

use super::connection::ConnectionId;
use super::write::memory_bytes;
use crate::Serial;
use crate::pdu::{DataOut, Opcode, Pdu, TAG_NONE};

/// A command inside the window that came before one that is missing.
#[derive(Debug)]
pub(super) struct OutOfOrderCommand {
    cmd_sn: Serial,
    /// The connection that brought it.
    pub(super) connection: Option<ConnectionId>,
    /// `None` if it was ended before its turn came.
    pub(super) pdu: Option<Pdu>,
    /// Its unsolicited data, which does not wait for its turn to be sent.
    pub(super) data: Vec<HeldData>,
    /// Length of that data.
    data_bytes: usize,
    /// Memory that all of it takes.
    memory_bytes: u64,
}

/// A Data-Out of a command that is held.
#[derive(Debug)]
pub(super) struct HeldData {
    pub(super) header: DataOut,
    pub(super) pdu: Pdu,
    /// Its data cannot be used, as its digest showed.
    pub(super) is_damaged: bool,
}

/// All of a session's.
#[derive(Debug, Default)]
pub(super) struct HeldCommands {
    commands: Vec<OutOfOrderCommand>,
    memory_bytes: u64,
}

impl HeldCommands {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Memory that their data takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    pub(super) fn has(&self, cmd_sn: Serial) -> bool {
        self.commands.iter().any(|held| held.cmd_sn == cmd_sn)
    }

    /// Whether a connection brought any.
    pub(super) fn has_some_of(&self, id: ConnectionId) -> bool {
        self.commands.iter().any(|held| held.connection == Some(id))
    }

    /// Those without data are bounded by the command window, and count as nothing.
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

    /// The one whose turn it is.
    pub(super) fn take(&mut self, cmd_sn: Serial) -> Option<OutOfOrderCommand> {
        let at = self.commands.iter().position(|held| held.cmd_sn == cmd_sn)?;
        let held = self.commands.swap_remove(at);
        self.memory_bytes -= held.memory_bytes;
        Some(held)
    }

    /// The command that unsolicited data belongs to.
    pub(super) fn write_of(&self, id: ConnectionId, header: &DataOut) -> Option<usize> {
        let tag = header.initiator_task_tag;
        let is_its = |held: &OutOfOrderCommand| {
            let is_tag =
                |pdu: &Pdu| pdu.bhs.opcode() == Some(Opcode::ScsiCommand) && pdu.bhs.initiator_task_tag() == tag;
            held.connection == Some(id) && held.pdu.as_ref().is_some_and(is_tag)
        };
        if header.target_transfer_tag != TAG_NONE || self.commands.is_empty() {
            return None;
        }
        self.commands.iter().position(is_its)
    }

    /// Whether more data may belong to that command: no more than a first burst of it, nor in more PDUs than so much is worth.
    pub(super) fn may_have(&self, at: usize, more_bytes: usize, first_burst_bytes: u32) -> bool {
        let (held, first_burst_bytes) = (&self.commands[at], first_burst_bytes as usize);
        held.data_bytes + more_bytes <= first_burst_bytes && held.data.len() <= first_burst_bytes / 512
    }

    /// Keeps data with its command. Every PDU counts: those without data, too, could come for ever.
    pub(super) fn add(&mut self, at: usize, data: HeldData) {
        let (held, memory_bytes) = (&mut self.commands[at], memory_bytes(&data.pdu));
        held.data_bytes += data.pdu.data.len();
        held.memory_bytes += memory_bytes;
        self.memory_bytes += memory_bytes;
        held.data.push(data);
    }

    /// Forgets those of a connection that is gone: they are sent again by another one.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        let memory_bytes = &mut self.memory_bytes;
        self.commands.retain(|held| {
            let stays = held.connection != Some(id);
            *memory_bytes -= if stays { 0 } else { held.memory_bytes };
            stays
        });
    }

    /// Those of a connection count as received and ended.
    pub(super) fn end(&mut self, id: ConnectionId) {
        for held in self.commands.iter_mut().filter(|held| held.connection == Some(id)) {
            (held.connection, held.pdu, held.data_bytes) = (None, None, 0);
            held.data.clear();
            self.memory_bytes -= std::mem::take(&mut held.memory_bytes);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = HeldCommands::default();
    }
}

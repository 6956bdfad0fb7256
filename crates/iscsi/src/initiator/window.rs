//! The command window as the initiator sees it (RFC 7143 §4.2.2.1).

use crate::Serial;
use crate::pdu::Sequence;

/// CmdSN of the next command, and what the target has said that it expects and accepts.
#[derive(Debug)]
pub(super) struct CommandWindow {
    cmd_sn: Serial,
    exp_cmd_sn: Serial,
    max_cmd_sn: Serial,
}

impl CommandWindow {
    pub(super) fn new() -> CommandWindow {
        CommandWindow { cmd_sn: Serial(1), exp_cmd_sn: Serial(1), max_cmd_sn: Serial(1) }
    }

    /// The number of the next command.
    pub(super) fn cmd_sn(&self) -> Serial {
        self.cmd_sn
    }

    /// Whether one more command may be sent.
    pub(super) fn is_open(&self) -> bool {
        !self.max_cmd_sn.is_before(self.cmd_sn)
    }

    /// A command was sent under the next number.
    pub(super) fn advance(&mut self) {
        self.cmd_sn = self.cmd_sn.next();
    }

    /// Whether the target has received a command.
    pub(super) fn has_arrived(&self, cmd_sn: Serial) -> bool {
        cmd_sn.is_before(self.exp_cmd_sn)
    }

    /// During the leading login: the window begins with the first command.
    pub(super) fn restart(&mut self) {
        self.max_cmd_sn = self.cmd_sn;
    }

    /// Takes over what an answer says.
    pub(super) fn update(&mut self, numbers: Sequence) {
        // RFC 7143 §4.2.2.1: a pair that contradicts itself is ignored; the window never shrinks.
        if numbers.max_cmd_sn.is_before(numbers.exp_cmd_sn.previous()) {
            return;
        }
        if self.max_cmd_sn.is_before(numbers.max_cmd_sn) {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
        // Never beyond what was sent: that would make a lost command one that arrived.
        if self.exp_cmd_sn.is_before(numbers.exp_cmd_sn) && !self.cmd_sn.is_before(numbers.exp_cmd_sn) {
            self.exp_cmd_sn = numbers.exp_cmd_sn;
        }
    }
}

//! Small requests of an initiator: pings, fillers of a gap in the CmdSN order, text, SNACK, logout, task management. Their CmdSN and
//! ExpStatSN are put in when they leave.

use super::types::TaskId;
use crate::Serial;
use crate::pdu::{
    Bhs, LogoutReason, LogoutRequest, Lun, NopOut, Opcode, SnackRequest, TAG_NONE, TaskManagementRequest, TextRequest,
};
use crate::slots::{INDEX_BITS, Key};

/// Tags of requests that are not commands: the top bit is set, a command's is clear.
const CONTROL_TAG: u32 = 0x8000_0000;

pub(super) const SNACK_DATA: u8 = 0;
pub(super) const SNACK_STATUS: u8 = 1;
const SNACK_DATA_ACK: u8 = 2;

/// Gives each small request a tag of its own.
#[derive(Debug, Default)]
pub(super) struct ControlTags(u32);

impl ControlTags {
    pub(super) fn next(&mut self) -> u32 {
        let tag = CONTROL_TAG | self.0;
        // The largest would be the tag that names nothing.
        self.0 = (self.0 + 1) % (CONTROL_TAG - 1);
        tag
    }
}

/// A task's name is its initiator task tag. The top bit is clear: never a control request's tag, never the tag that names nothing.
pub(super) fn task_id(key: Key) -> TaskId {
    TaskId((key.generation << INDEX_BITS | key.index) & !CONTROL_TAG)
}

pub(super) fn key_of(task: TaskId) -> Key {
    Key { index: task.0 & ((1 << INDEX_BITS) - 1), generation: task.0 >> INDEX_BITS }
}

/// A NOP-Out that wants an answer under `tag`.
pub(super) fn ping(tag: u32) -> Bhs {
    nop_out(tag, TAG_NONE, Lun(0), None)
}

/// A NOP-Out that uses up the number of a command that did not arrive and will not be sent again: commands behind it would wait for it
/// without end (RFC 7143 §4.2.2.1).
pub(super) fn filler(tag: u32, cmd_sn: Serial) -> Bhs {
    nop_out(tag, TAG_NONE, Lun(0), Some(cmd_sn))
}

/// The answer to the target's ping.
pub(super) fn ping_answer(target_transfer_tag: u32, lun: Lun) -> Bhs {
    nop_out(TAG_NONE, target_transfer_tag, lun, None)
}

fn nop_out(initiator_task_tag: u32, target_transfer_tag: u32, lun: Lun, cmd_sn: Option<Serial>) -> Bhs {
    let nop = NopOut {
        immediate: cmd_sn.is_none(),
        lun,
        initiator_task_tag,
        target_transfer_tag,
        cmd_sn: cmd_sn.unwrap_or_default(),
        exp_stat_sn: Serial(0),
    };
    nop.encode()
}

/// A text request.
pub(super) fn text(initiator_task_tag: u32, target_transfer_tag: u32) -> Bhs {
    let request = TextRequest {
        immediate: true,
        is_final: true,
        continues: false,
        lun: Lun(0),
        initiator_task_tag,
        target_transfer_tag,
        cmd_sn: Serial(0),
        exp_stat_sn: Serial(0),
    };
    request.encode()
}

/// A logout of the session or, for recovery, of the connection `cid`.
pub(super) fn logout(initiator_task_tag: u32, reason: LogoutReason, cid: u16) -> Bhs {
    let request = LogoutRequest {
        immediate: true,
        reason: reason as u8,
        initiator_task_tag,
        cid,
        cmd_sn: Serial(0),
        exp_stat_sn: Serial(0),
    };
    request.encode()
}

/// A task management request about a task (its tag, its CmdSN, and the first Data-In that is missing), or about none.
pub(super) fn task_management(
    initiator_task_tag: u32,
    function: crate::pdu::TaskFunction,
    lun: Lun,
    task: Option<(Key, Serial, u32)>,
) -> Bhs {
    let request = TaskManagementRequest {
        immediate: true,
        function: function as u8,
        lun,
        initiator_task_tag,
        referenced_task_tag: task.map_or(TAG_NONE, |(key, ..)| task_id(key).0),
        cmd_sn: Serial(0),
        exp_stat_sn: Serial(0),
        ref_cmd_sn: task.map_or(Serial(0), |(_, cmd_sn, _)| cmd_sn),
        exp_data_sn: task.map_or(0, |(.., exp_data_sn)| exp_data_sn),
    };
    request.encode()
}

/// Asks for `run_length` PDUs again (0: all) from `begin_run` on: of a task, or answers (RFC 7143 §11.16).
pub(super) fn snack(kind: u8, initiator_task_tag: u32, begin_run: u32, run_length: u32) -> Bhs {
    let (lun, target_transfer_tag) = (Lun(0), TAG_NONE);
    SnackRequest { kind, lun, initiator_task_tag, target_transfer_tag, begin_run, run_length }.encode()
}

/// Says that all of a read before the Data-In `begin_run` has arrived.
pub(super) fn data_ack(lun: Lun, target_transfer_tag: u32, begin_run: u32) -> Bhs {
    let (kind, initiator_task_tag) = (SNACK_DATA_ACK, TAG_NONE);
    SnackRequest { kind, lun, initiator_task_tag, target_transfer_tag, begin_run, run_length: 0 }.encode()
}

/// Whether a request is a Data ACK under this tag.
pub(super) fn is_data_ack(bhs: &Bhs, target_transfer_tag: u32) -> bool {
    let snack = (bhs.opcode() == Some(Opcode::Snack)).then(|| SnackRequest::decode(bhs));
    snack.is_some_and(|snack| snack.kind == SNACK_DATA_ACK && snack.target_transfer_tag == target_transfer_tag)
}

//! What an initiator sends: one typed header per opcode, each reading and writing its 48 bytes (RFC 7143 §11).

use strongroom_scsi::transport;

use super::{Attribute, Bhs, Lun, Opcode, PduError};
use crate::Serial;
use crate::login::stage;

const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// SCSI Command, §11.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiCommand {
    /// Outside the command window.
    pub immediate: bool,
    /// No unsolicited Data-Out follows.
    pub is_final: bool,
    /// Data flows to the initiator.
    pub read: bool,
    /// Data flows to the target.
    pub write: bool,
    /// How it may be ordered.
    pub attribute: Attribute,
    /// Logical unit.
    pub lun: Lun,
    /// Names the task.
    pub initiator_task_tag: u32,
    /// Bytes the initiator expects to move.
    pub expected_data_transfer_bytes: u32,
    /// Place in the command order.
    pub cmd_sn: Serial,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
    /// The command, or its first 16 bytes.
    pub cdb: [u8; 16],
}

impl ScsiCommand {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::ScsiCommand);
        bhs.0[0] |= u8::from(self.immediate) << 6;
        bhs.0[1] = u8::from(self.is_final) << 7
            | u8::from(self.read) << 6
            | u8::from(self.write) << 5
            | attribute_code(self.attribute);
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.expected_data_transfer_bytes);
        bhs.set_u32(24, self.cmd_sn.0);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs.0[32..48].copy_from_slice(&self.cdb);
        bhs
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`PduError::Field`] for a reserved task attribute.
    pub fn decode(bhs: &Bhs) -> Result<ScsiCommand, PduError> {
        let attribute = match bhs.0[1] & 7 {
            0 => Attribute::Untagged,
            1 => Attribute::Simple,
            2 => Attribute::Ordered,
            3 => Attribute::HeadOfQueue,
            4 => Attribute::Aca,
            other => return Err(PduError::Field { field: "ATTR", value: u32::from(other) }),
        };
        Ok(ScsiCommand {
            immediate: bhs.is_immediate(),
            is_final: bhs.0[1] & FINAL != 0,
            read: bhs.0[1] & 0x40 != 0,
            write: bhs.0[1] & 0x20 != 0,
            attribute,
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            expected_data_transfer_bytes: bhs.u32_at(20),
            cmd_sn: Serial(bhs.u32_at(24)),
            exp_stat_sn: Serial(bhs.u32_at(28)),
            cdb: bhs.0[32..48].try_into().expect("16 bytes"),
        })
    }
}

/// SCSI Data-Out, §11.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOut {
    /// Last of its sequence.
    pub is_final: bool,
    /// As the R2T had it.
    pub lun: Lun,
    /// The task.
    pub initiator_task_tag: u32,
    /// The R2T that is answered; [`super::TAG_NONE`] for unsolicited data.
    pub target_transfer_tag: u32,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
    /// Place in its sequence, from 0.
    pub data_sn: u32,
    /// Where the data belongs, in bytes from the start of the transfer.
    pub buffer_offset: u32,
}

impl DataOut {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::DataOut);
        bhs.0[1] = u8::from(self.is_final) << 7;
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs.set_u32(36, self.data_sn);
        bhs.set_u32(40, self.buffer_offset);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> DataOut {
        DataOut {
            is_final: bhs.0[1] & FINAL != 0,
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            exp_stat_sn: Serial(bhs.u32_at(28)),
            data_sn: bhs.u32_at(36),
            buffer_offset: bhs.u32_at(40),
        }
    }
}

/// What a task management request asks for (§11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskFunction {
    /// End one task.
    AbortTask = 1,
    /// End this initiator's tasks on a logical unit.
    AbortTaskSet = 2,
    /// End an auto contingent allegiance.
    ClearAca = 3,
    /// End all tasks on a logical unit, of every initiator.
    ClearTaskSet = 4,
    /// Reset a logical unit.
    LogicalUnitReset = 5,
    /// Reset every logical unit.
    TargetWarmReset = 6,
    /// The same, and drop every connection.
    TargetColdReset = 7,
    /// Move a task to this connection (error recovery level 2).
    TaskReassign = 8,
    /// Whether a task is there (RFC 7144, iSCSIProtocolLevel 2; so are those that follow).
    QueryTask = 9,
    /// Whether this initiator has any task on a logical unit.
    QueryTaskSet = 10,
    /// End this initiator's tasks everywhere, as if it had been gone for a moment.
    NexusReset = 11,
    /// Whether a unit attention waits.
    QueryAsyncEvent = 12,
}

impl TaskFunction {
    /// From its code.
    pub const fn from_code(code: u8) -> Option<TaskFunction> {
        Some(match code {
            1 => TaskFunction::AbortTask,
            2 => TaskFunction::AbortTaskSet,
            3 => TaskFunction::ClearAca,
            4 => TaskFunction::ClearTaskSet,
            5 => TaskFunction::LogicalUnitReset,
            6 => TaskFunction::TargetWarmReset,
            7 => TaskFunction::TargetColdReset,
            8 => TaskFunction::TaskReassign,
            9 => TaskFunction::QueryTask,
            10 => TaskFunction::QueryTaskSet,
            11 => TaskFunction::NexusReset,
            12 => TaskFunction::QueryAsyncEvent,
            _ => return None,
        })
    }
}

impl From<transport::TaskFunction> for TaskFunction {
    fn from(function: transport::TaskFunction) -> TaskFunction {
        match function {
            transport::TaskFunction::AbortTask => TaskFunction::AbortTask,
            transport::TaskFunction::AbortTaskSet => TaskFunction::AbortTaskSet,
            transport::TaskFunction::ClearAca => TaskFunction::ClearAca,
            transport::TaskFunction::ClearTaskSet => TaskFunction::ClearTaskSet,
            transport::TaskFunction::LogicalUnitReset => TaskFunction::LogicalUnitReset,
            transport::TaskFunction::TargetWarmReset => TaskFunction::TargetWarmReset,
            transport::TaskFunction::TargetColdReset => TaskFunction::TargetColdReset,
            transport::TaskFunction::QueryTask => TaskFunction::QueryTask,
            transport::TaskFunction::QueryTaskSet => TaskFunction::QueryTaskSet,
            transport::TaskFunction::NexusReset => TaskFunction::NexusReset,
            transport::TaskFunction::QueryAsyncEvent => TaskFunction::QueryAsyncEvent,
        }
    }
}

/// The code of a task attribute (§11.3.1).
const fn attribute_code(attribute: Attribute) -> u8 {
    match attribute {
        Attribute::Untagged => 0,
        Attribute::Simple => 1,
        Attribute::Ordered => 2,
        Attribute::HeadOfQueue => 3,
        Attribute::Aca => 4,
    }
}

/// Task Management Function Request, §11.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// Outside the command window.
    pub immediate: bool,
    /// The function's code; not every code is a [`TaskFunction`].
    pub function: u8,
    /// Logical unit, where the function concerns one.
    pub lun: Lun,
    /// Names this request.
    pub initiator_task_tag: u32,
    /// The task to abort or to reassign; [`super::TAG_NONE`] otherwise.
    pub referenced_task_tag: u32,
    /// Place in the command order.
    pub cmd_sn: Serial,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
    /// The CmdSN of the task to abort.
    pub ref_cmd_sn: Serial,
    /// The first Data-In of the task to reassign that the initiator does not have; 0 says nothing.
    pub exp_data_sn: u32,
}

impl TaskManagementRequest {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TaskManagementRequest);
        bhs.0[0] |= u8::from(self.immediate) << 6;
        bhs.0[1] = FINAL | (self.function & 0x7f);
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.referenced_task_tag);
        bhs.set_u32(24, self.cmd_sn.0);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs.set_u32(32, self.ref_cmd_sn.0);
        bhs.set_u32(36, self.exp_data_sn);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> TaskManagementRequest {
        TaskManagementRequest {
            immediate: bhs.is_immediate(),
            function: bhs.0[1] & 0x7f,
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            referenced_task_tag: bhs.u32_at(20),
            cmd_sn: Serial(bhs.u32_at(24)),
            exp_stat_sn: Serial(bhs.u32_at(28)),
            ref_cmd_sn: Serial(bhs.u32_at(32)),
            exp_data_sn: bhs.u32_at(36),
        }
    }
}

/// Login Request, §11.12. Always immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoginRequest {
    /// The initiator is ready to move on to `next_stage`.
    pub transit: bool,
    /// The key text goes on in the next request.
    pub continues: bool,
    /// 0 security, 1 operational, 3 full feature.
    pub current_stage: u8,
    /// Where `transit` leads.
    pub next_stage: u8,
    /// Highest protocol version.
    pub version_max: u8,
    /// Lowest protocol version.
    pub version_min: u8,
    /// The initiator's part of the session's name.
    pub isid: [u8; 6],
    /// The target's part; 0 asks for a new session.
    pub tsih: u16,
    /// Names this login.
    pub initiator_task_tag: u32,
    /// Names the connection in its session.
    pub cid: u16,
    /// The first CmdSN of the session.
    pub cmd_sn: Serial,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
}

impl LoginRequest {
    /// Asks for a new session, and for all of its login in one request: no security stage, from operational negotiation to full feature.
    pub fn one_step(isid: [u8; 6]) -> LoginRequest {
        LoginRequest {
            transit: true,
            continues: false,
            current_stage: stage::OPERATIONAL,
            next_stage: stage::FULL_FEATURE,
            version_max: 0,
            version_min: 0,
            isid,
            tsih: 0,
            initiator_task_tag: 1,
            cid: 0,
            cmd_sn: Serial(1),
            exp_stat_sn: Serial(0),
        }
    }

    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::LoginRequest);
        bhs.0[0] |= 0x40;
        bhs.0[1] = stage_flags(self.transit, self.continues, self.current_stage, self.next_stage);
        bhs.0[2] = self.version_max;
        bhs.0[3] = self.version_min;
        bhs.0[8..14].copy_from_slice(&self.isid);
        bhs.set_u16(14, self.tsih);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u16(20, self.cid);
        bhs.set_u32(24, self.cmd_sn.0);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs
    }

    /// Reads the header. Stages are two bits each and may be the reserved 2.
    pub fn decode(bhs: &Bhs) -> LoginRequest {
        LoginRequest {
            transit: bhs.0[1] & FINAL != 0,
            continues: bhs.0[1] & CONTINUE != 0,
            current_stage: bhs.0[1] >> 2 & 3,
            next_stage: bhs.0[1] & 3,
            version_max: bhs.0[2],
            version_min: bhs.0[3],
            isid: bhs.0[8..14].try_into().expect("6 bytes"),
            tsih: bhs.u16_at(14),
            initiator_task_tag: bhs.initiator_task_tag(),
            cid: bhs.u16_at(20),
            cmd_sn: Serial(bhs.u32_at(24)),
            exp_stat_sn: Serial(bhs.u32_at(28)),
        }
    }
}

pub(super) fn stage_flags(transit: bool, continues: bool, current_stage: u8, next_stage: u8) -> u8 {
    u8::from(transit) << 7 | u8::from(continues) << 6 | (current_stage & 3) << 2 | (next_stage & 3)
}

/// Text Request, §11.10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// Outside the command window.
    pub immediate: bool,
    /// The initiator has nothing more to say.
    pub is_final: bool,
    /// The key text goes on in the next request.
    pub continues: bool,
    /// As the target gave it with its tag.
    pub lun: Lun,
    /// Names the exchange.
    pub initiator_task_tag: u32,
    /// The target's tag in a continued exchange; [`super::TAG_NONE`] in its first request.
    pub target_transfer_tag: u32,
    /// Place in the command order.
    pub cmd_sn: Serial,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
}

impl TextRequest {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TextRequest);
        bhs.0[0] |= u8::from(self.immediate) << 6;
        bhs.0[1] = u8::from(self.is_final) << 7 | u8::from(self.continues) << 6;
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        bhs.set_u32(24, self.cmd_sn.0);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> TextRequest {
        TextRequest {
            immediate: bhs.is_immediate(),
            is_final: bhs.0[1] & FINAL != 0,
            continues: bhs.0[1] & CONTINUE != 0,
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            cmd_sn: Serial(bhs.u32_at(24)),
            exp_stat_sn: Serial(bhs.u32_at(28)),
        }
    }
}

/// Why a logout (§11.14.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogoutReason {
    /// End the session.
    CloseSession = 0,
    /// End one connection.
    CloseConnection = 1,
    /// End a connection so that its tasks move to another (error recovery level 2).
    RemoveForRecovery = 2,
}

/// Logout Request, §11.14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Outside the command window.
    pub immediate: bool,
    /// The reason's code; not every code is a [`LogoutReason`].
    pub reason: u8,
    /// Names this request.
    pub initiator_task_tag: u32,
    /// Which connection.
    pub cid: u16,
    /// Place in the command order.
    pub cmd_sn: Serial,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
}

impl LogoutRequest {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::LogoutRequest);
        bhs.0[0] |= u8::from(self.immediate) << 6;
        bhs.0[1] = FINAL | (self.reason & 0x7f);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u16(20, self.cid);
        bhs.set_u32(24, self.cmd_sn.0);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> LogoutRequest {
        LogoutRequest {
            immediate: bhs.is_immediate(),
            reason: bhs.0[1] & 0x7f,
            initiator_task_tag: bhs.initiator_task_tag(),
            cid: bhs.u16_at(20),
            cmd_sn: Serial(bhs.u32_at(24)),
            exp_stat_sn: Serial(bhs.u32_at(28)),
        }
    }
}

/// NOP-Out, §11.18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopOut {
    /// Outside the command window.
    pub immediate: bool,
    /// As the NOP-In had it.
    pub lun: Lun,
    /// Names this ping; [`super::TAG_NONE`] wants no answer.
    pub initiator_task_tag: u32,
    /// The ping that is answered; [`super::TAG_NONE`] otherwise.
    pub target_transfer_tag: u32,
    /// Place in the command order.
    pub cmd_sn: Serial,
    /// The initiator has every answer before this one.
    pub exp_stat_sn: Serial,
}

impl NopOut {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::NopOut);
        bhs.0[0] |= u8::from(self.immediate) << 6;
        bhs.0[1] = FINAL;
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        bhs.set_u32(24, self.cmd_sn.0);
        bhs.set_u32(28, self.exp_stat_sn.0);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> NopOut {
        NopOut {
            immediate: bhs.is_immediate(),
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            cmd_sn: Serial(bhs.u32_at(24)),
            exp_stat_sn: Serial(bhs.u32_at(28)),
        }
    }
}

/// SNACK Request, §11.16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snack {
    /// What is asked for again: 0 Data-In or R2T PDUs, 1 responses, 3 Data-In PDUs segmented again; 2 acknowledges data.
    pub kind: u8,
    /// That of the Data-In that is acknowledged.
    pub lun: Lun,
    /// The task; [`super::TAG_NONE`] for answers and acknowledgements.
    pub initiator_task_tag: u32,
    /// That of the Data-In that is acknowledged; the SNACK Tag of kind 3; else [`super::TAG_NONE`].
    pub target_transfer_tag: u32,
    /// First number missed.
    pub begin_run: u32,
    /// How many.
    pub run_length: u32,
}

impl Snack {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::Snack);
        bhs.0[1] = FINAL | (self.kind & 0x0f);
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        bhs.set_u32(40, self.begin_run);
        bhs.set_u32(44, self.run_length);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> Snack {
        Snack {
            kind: bhs.0[1] & 0x0f,
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            begin_run: bhs.u32_at(40),
            run_length: bhs.u32_at(44),
        }
    }
}

/// Anything that an initiator sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Each names the header it holds.
pub enum Request {
    NopOut(NopOut),
    ScsiCommand(ScsiCommand),
    TaskManagement(TaskManagementRequest),
    Login(LoginRequest),
    Text(TextRequest),
    DataOut(DataOut),
    Logout(LogoutRequest),
    Snack(Snack),
}

impl Request {
    /// Reads a header sent by an initiator.
    ///
    /// # Errors
    /// [`PduError`] for an opcode that no initiator sends, or a field without meaning.
    pub fn decode(bhs: &Bhs) -> Result<Request, PduError> {
        Ok(match bhs.opcode() {
            Some(Opcode::NopOut) => Request::NopOut(NopOut::decode(bhs)),
            Some(Opcode::ScsiCommand) => Request::ScsiCommand(ScsiCommand::decode(bhs)?),
            Some(Opcode::TaskManagementRequest) => Request::TaskManagement(TaskManagementRequest::decode(bhs)),
            Some(Opcode::LoginRequest) => Request::Login(LoginRequest::decode(bhs)),
            Some(Opcode::TextRequest) => Request::Text(TextRequest::decode(bhs)),
            Some(Opcode::DataOut) => Request::DataOut(DataOut::decode(bhs)),
            Some(Opcode::LogoutRequest) => Request::Logout(LogoutRequest::decode(bhs)),
            Some(Opcode::Snack) => Request::Snack(Snack::decode(bhs)),
            _ => return Err(PduError::Opcode(bhs.opcode_bits())),
        })
    }
}

//! What an initiator sends: one typed header per opcode, each reading and writing its 48 bytes (RFC 7143 §11).

use strongroom_scsi::transport::{Lun, TaskAttribute};

use super::bhs::{Bhs, Opcode};
use super::error::PduError;
use super::fields::{self, CheckedField, Field, header};
use super::request_codes::stage;
use crate::sequence::Serial;

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
    pub attribute: TaskAttribute,
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

header! {
    ScsiCommand = ScsiCommand
    fixed {}
    fields {
        immediate = IMMEDIATE,
        is_final = FINAL,
        read = READ,
        write = WRITE,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        expected_data_transfer_bytes = EXPECTED_DATA_TRANSFER_LENGTH,
        cmd_sn = CMD_SN,
        exp_stat_sn = EXP_STAT_SN,
        cdb = CDB,
    }
    checked { attribute = ATTR }
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

header! {
    DataOut = DataOut
    fixed {}
    fields {
        is_final = FINAL,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        exp_stat_sn = EXP_STAT_SN,
        data_sn = DATA_SN,
        buffer_offset = BUFFER_OFFSET,
    }
}

/// Task Management Function Request, §11.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// Outside the command window.
    pub immediate: bool,
    /// The function's code; not every code is a [`super::TaskFunction`].
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

header! {
    TaskManagementRequest = TaskManagementRequest
    fixed { FINAL = true }
    fields {
        immediate = IMMEDIATE,
        function = FUNCTION,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        referenced_task_tag = REFERENCED_TASK_TAG,
        cmd_sn = CMD_SN,
        exp_stat_sn = EXP_STAT_SN,
        ref_cmd_sn = REF_CMD_SN,
        exp_data_sn = EXP_DATA_SN,
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

header! {
    LoginRequest = LoginRequest
    fixed { IMMEDIATE = true }
    fields {
        transit = TRANSIT,
        continues = CONTINUE,
        current_stage = CSG,
        next_stage = NSG,
        version_max = VERSION_MAX,
        version_min = VERSION_MIN,
        isid = ISID,
        tsih = TSIH,
        initiator_task_tag = INITIATOR_TASK_TAG,
        cid = CID,
        cmd_sn = CMD_SN,
        exp_stat_sn = EXP_STAT_SN,
    }
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

header! {
    TextRequest = TextRequest
    fixed {}
    fields {
        immediate = IMMEDIATE,
        is_final = FINAL,
        continues = CONTINUE,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        cmd_sn = CMD_SN,
        exp_stat_sn = EXP_STAT_SN,
    }
}

/// Logout Request, §11.14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogoutRequest {
    /// Outside the command window.
    pub immediate: bool,
    /// The reason's code; not every code is a [`super::LogoutReason`].
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

header! {
    LogoutRequest = LogoutRequest
    fixed { FINAL = true }
    fields {
        immediate = IMMEDIATE,
        reason = LOGOUT_REASON,
        initiator_task_tag = INITIATOR_TASK_TAG,
        cid = CID,
        cmd_sn = CMD_SN,
        exp_stat_sn = EXP_STAT_SN,
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

header! {
    NopOut = NopOut
    fixed { FINAL = true }
    fields {
        immediate = IMMEDIATE,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        cmd_sn = CMD_SN,
        exp_stat_sn = EXP_STAT_SN,
    }
}

/// SNACK Request, §11.16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnackRequest {
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

header! {
    SnackRequest = Snack
    fixed { FINAL = true }
    fields {
        kind = SNACK_TYPE,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        begin_run = BEGIN_RUN,
        run_length = RUN_LENGTH,
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
    Snack(SnackRequest),
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
            Some(Opcode::Snack) => Request::Snack(SnackRequest::decode(bhs)),
            _ => return Err(PduError::Opcode(bhs.opcode_bits())),
        })
    }
}

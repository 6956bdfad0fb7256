//! What a target sends: one typed header per opcode, each reading and writing its 48 bytes (RFC 7143 §11). Answers to login,
//! text and logout are in `session_answers`.

use strongroom_scsi::transport::{Lun, Residual};

use super::answer_codes::{AsyncEvent, TaskManagementResult};
use super::bhs::{Bhs, Opcode, TAG_NONE};
use super::error::PduError;
use super::fields::{self, CheckedField, Field, Sequence, header};
use super::session_answers::{LoginResponse, LogoutResponse, TextResponse};

/// SCSI Response, §11.4. Its data segment is a two-byte sense length and the sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiResponse {
    /// 0: completed at the target; anything else is an iSCSI-level failure.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// The task.
    pub initiator_task_tag: u32,
    /// Numbers.
    pub sequence: Sequence,
    /// How many Data-In and R2T PDUs the task had.
    pub exp_data_sn: u32,
    /// Expected against wanted length.
    pub residual: Residual,
}

header! {
    ScsiResponse = ScsiResponse
    fixed { FINAL = true }
    fields {
        response = RESPONSE,
        status = STATUS,
        initiator_task_tag = INITIATOR_TASK_TAG,
        sequence = SEQUENCE,
        exp_data_sn = EXP_DATA_SN,
    }
    checked { residual = RESIDUAL }
}

impl ScsiResponse {
    /// Copies the tag of the R-Data SNACK that it answers; 0: of none.
    pub fn put_snack_tag(bhs: &mut Bhs, tag: u32) {
        fields::SNACK_TAG.put(bhs, tag);
    }
}

/// SCSI Data-In, §11.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataIn {
    /// Last of its burst.
    pub is_final: bool,
    /// The status of the finished command and the residual: the S bit. Only then does StatSN count.
    pub status: Option<(u8, Residual)>,
    /// Zero unless an acknowledgement is asked for.
    pub lun: Lun,
    /// The task.
    pub initiator_task_tag: u32,
    /// Numbers.
    pub sequence: Sequence,
    /// Place among the task's Data-In PDUs, from 0.
    pub data_sn: u32,
    /// Where the data belongs, in bytes from the start of the transfer.
    pub buffer_offset: u32,
}

header! {
    DataIn = DataIn
    fixed { TARGET_TRANSFER_TAG = TAG_NONE }
    fields {
        is_final = FINAL,
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        sequence = SEQUENCE,
        data_sn = DATA_SN,
        buffer_offset = BUFFER_OFFSET,
    }
    checked { status = DATA_IN_STATUS }
}

impl DataIn {
    /// Has the initiator say when everything up to this PDU has arrived: the A bit. Its Data ACK names the task by the tag.
    pub fn ask_acknowledgement(bhs: &mut Bhs, lun: Lun, target_transfer_tag: u32) {
        fields::ACKNOWLEDGE.put(bhs, true);
        fields::LUN.put(bhs, lun);
        fields::TARGET_TRANSFER_TAG.put(bhs, target_transfer_tag);
    }

    /// What a Data ACK has to name, if this PDU asks for one.
    pub fn asked_acknowledgement(bhs: &Bhs) -> Option<(Lun, u32)> {
        fields::ACKNOWLEDGE.get(bhs).then(|| (fields::LUN.get(bhs), fields::TARGET_TRANSFER_TAG.get(bhs)))
    }
}

/// Ready To Transfer, §11.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// To be copied into the Data-Out.
    pub lun: Lun,
    /// The task.
    pub initiator_task_tag: u32,
    /// Names this R2T; to be copied into the Data-Out.
    pub target_transfer_tag: u32,
    /// Numbers; StatSN is the next one, not used up.
    pub sequence: Sequence,
    /// Place among the task's R2Ts, from 0.
    pub r2t_sn: u32,
    /// First byte wanted.
    pub buffer_offset: u32,
    /// How many bytes.
    pub desired_data_transfer_bytes: u32,
}

header! {
    R2t = R2t
    fixed { FINAL = true }
    fields {
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        sequence = SEQUENCE,
        r2t_sn = R2T_SN,
        buffer_offset = BUFFER_OFFSET,
        desired_data_transfer_bytes = DESIRED_DATA_TRANSFER_LENGTH,
    }
}

/// Task Management Function Response, §11.6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagementResponse {
    /// What became of it.
    pub result: TaskManagementResult,
    /// More about a function that succeeded (RFC 7144 §5.2): for `QueryAsyncEvent` the sense key, additional sense code and
    /// qualifier of what waits (SAM-5 §7.10); else zeros.
    pub additional: [u8; 3],
    /// The request.
    pub initiator_task_tag: u32,
    /// Numbers.
    pub sequence: Sequence,
}

header! {
    TaskManagementResponse = TaskManagementResponse
    fixed { FINAL = true }
    fields {
        additional = ADDITIONAL_RESPONSE,
        initiator_task_tag = INITIATOR_TASK_TAG,
        sequence = SEQUENCE,
    }
    checked { result = TASK_MANAGEMENT_RESULT }
}

/// NOP-In, §11.19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NopIn {
    /// Zero in an answer.
    pub lun: Lun,
    /// The ping that is answered; [`TAG_NONE`] in the target's own.
    pub initiator_task_tag: u32,
    /// Names the target's own ping; [`TAG_NONE`] wants no answer.
    pub target_transfer_tag: u32,
    /// Numbers; StatSN is used up only by an answer.
    pub sequence: Sequence,
}

header! {
    NopIn = NopIn
    fixed { FINAL = true }
    fields {
        lun = LUN,
        initiator_task_tag = INITIATOR_TASK_TAG,
        target_transfer_tag = TARGET_TRANSFER_TAG,
        sequence = SEQUENCE,
    }
}

/// Asynchronous Message, §11.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncMessage {
    /// About what.
    pub event: AsyncEvent,
    /// Numbers.
    pub sequence: Sequence,
    /// Depend on the event; for a requested logout the third is how long it may take, in seconds.
    pub parameters: [u16; 3],
}

header! {
    AsyncMessage = AsyncMessage
    fixed { FINAL = true, INITIATOR_TASK_TAG = TAG_NONE }
    fields {
        sequence = SEQUENCE,
        parameters = ASYNC_PARAMETERS,
    }
    checked { event = ASYNC_EVENT }
}

/// Reject, §11.17. Its data segment is the header that was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The reason's code; not every code is a [`super::RejectReason`].
    pub reason: u8,
    /// Numbers.
    pub sequence: Sequence,
}

header! {
    Reject = Reject
    fixed { FINAL = true, INITIATOR_TASK_TAG = TAG_NONE }
    fields {
        reason = REJECT_REASON,
        sequence = SEQUENCE,
    }
}

/// Anything that a target sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // Each names the header it holds.
pub enum Answer {
    NopIn(NopIn),
    ScsiResponse(ScsiResponse),
    TaskManagement(TaskManagementResponse),
    Login(LoginResponse),
    Text(TextResponse),
    DataIn(DataIn),
    Logout(LogoutResponse),
    R2t(R2t),
    AsyncMessage(AsyncMessage),
    Reject(Reject),
}

impl Answer {
    /// Reads a header sent by a target.
    ///
    /// # Errors
    /// [`PduError`] for an opcode that no target sends, or a field without meaning.
    pub fn decode(bhs: &Bhs) -> Result<Answer, PduError> {
        Ok(match bhs.opcode() {
            Some(Opcode::NopIn) => Answer::NopIn(NopIn::decode(bhs)),
            Some(Opcode::ScsiResponse) => Answer::ScsiResponse(ScsiResponse::decode(bhs)?),
            Some(Opcode::TaskManagementResponse) => Answer::TaskManagement(TaskManagementResponse::decode(bhs)?),
            Some(Opcode::LoginResponse) => Answer::Login(LoginResponse::decode(bhs)),
            Some(Opcode::TextResponse) => Answer::Text(TextResponse::decode(bhs)),
            Some(Opcode::DataIn) => Answer::DataIn(DataIn::decode(bhs)?),
            Some(Opcode::LogoutResponse) => Answer::Logout(LogoutResponse::decode(bhs)?),
            Some(Opcode::R2t) => Answer::R2t(R2t::decode(bhs)),
            Some(Opcode::AsyncMessage) => Answer::AsyncMessage(AsyncMessage::decode(bhs)?),
            Some(Opcode::Reject) => Answer::Reject(Reject::decode(bhs)),
            _ => return Err(PduError::Opcode(bhs.opcode_bits())),
        })
    }

    /// The numbers that it carries.
    pub fn sequence(&self) -> Sequence {
        match self {
            Answer::NopIn(answer) => answer.sequence,
            Answer::ScsiResponse(answer) => answer.sequence,
            Answer::TaskManagement(answer) => answer.sequence,
            Answer::Login(answer) => answer.sequence,
            Answer::Text(answer) => answer.sequence,
            Answer::DataIn(answer) => answer.sequence,
            Answer::Logout(answer) => answer.sequence,
            Answer::R2t(answer) => answer.sequence,
            Answer::AsyncMessage(answer) => answer.sequence,
            Answer::Reject(answer) => answer.sequence,
        }
    }
}

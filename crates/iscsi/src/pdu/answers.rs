//! What a target sends: one typed header per opcode, each reading and writing its 48 bytes (RFC 7143 §11). Answers to login,
//! text and logout are in `session_answers`.

use strongroom_scsi::transport;

use super::session_answers::{LoginResponse, LogoutResponse, TextResponse};
use super::{Bhs, Lun, Opcode, PduError, TAG_NONE};
use crate::{Residual, Serial};

const FINAL: u8 = 0x80;
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;

/// The three numbers that every answer carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    /// Place of this answer.
    pub stat_sn: Serial,
    /// The CmdSN that the target expects next.
    pub exp_cmd_sn: Serial,
    /// The last CmdSN that it takes.
    pub max_cmd_sn: Serial,
}

impl Sequence {
    /// Writes the numbers into an answer's header.
    pub fn put(self, bhs: &mut Bhs) {
        bhs.set_u32(Bhs::STAT_SN, self.stat_sn.0);
        bhs.set_u32(Bhs::STAT_SN + 4, self.exp_cmd_sn.0);
        bhs.set_u32(Bhs::STAT_SN + 8, self.max_cmd_sn.0);
    }

    /// Reads them from an answer's header.
    pub fn of(bhs: &Bhs) -> Sequence {
        Sequence {
            stat_sn: Serial(bhs.u32_at(Bhs::STAT_SN)),
            exp_cmd_sn: Serial(bhs.u32_at(Bhs::STAT_SN + 4)),
            max_cmd_sn: Serial(bhs.u32_at(Bhs::STAT_SN + 8)),
        }
    }
}

fn residual_flags(residual: Residual) -> (u8, u32) {
    match residual {
        Residual::None => (0, 0),
        Residual::Underflow(bytes) => (UNDERFLOW, bytes),
        Residual::Overflow(bytes) => (OVERFLOW, bytes),
    }
}

fn residual_of(flags: u8, bytes: u32) -> Result<Residual, PduError> {
    match flags & (OVERFLOW | UNDERFLOW) {
        0 => Ok(Residual::None),
        UNDERFLOW => Ok(Residual::Underflow(bytes)),
        OVERFLOW => Ok(Residual::Overflow(bytes)),
        both => Err(PduError::Field { field: "residual flags", value: u32::from(both) }),
    }
}

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

impl ScsiResponse {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let (flags, residual) = residual_flags(self.residual);
        let mut bhs = Bhs::new(Opcode::ScsiResponse);
        bhs.0[1] = FINAL | flags;
        bhs.0[2] = self.response;
        bhs.0[3] = self.status;
        bhs.set_u32(16, self.initiator_task_tag);
        self.sequence.put(&mut bhs);
        bhs.set_u32(36, self.exp_data_sn);
        bhs.set_u32(44, residual);
        bhs
    }

    /// Copies the tag of the R-Data SNACK that it answers; 0: of none.
    pub fn put_snack_tag(bhs: &mut Bhs, tag: u32) {
        bhs.set_u32(20, tag);
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`PduError::Field`] when it claims an overflow and an underflow at once.
    pub fn decode(bhs: &Bhs) -> Result<ScsiResponse, PduError> {
        Ok(ScsiResponse {
            response: bhs.0[2],
            status: bhs.0[3],
            initiator_task_tag: bhs.initiator_task_tag(),
            sequence: Sequence::of(bhs),
            exp_data_sn: bhs.u32_at(36),
            residual: residual_of(bhs.0[1], bhs.u32_at(44))?,
        })
    }
}

const ACKNOWLEDGE: u8 = 0x40;

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

impl DataIn {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::DataIn);
        bhs.0[1] = u8::from(self.is_final) << 7;
        if let Some((status, residual)) = self.status {
            let (flags, bytes) = residual_flags(residual);
            bhs.0[1] |= 1 | flags;
            bhs.0[3] = status;
            bhs.set_u32(44, bytes);
        }
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, TAG_NONE);
        self.sequence.put(&mut bhs);
        bhs.set_u32(36, self.data_sn);
        bhs.set_u32(40, self.buffer_offset);
        bhs
    }

    /// Has the initiator say when everything up to this PDU has arrived: the A bit. Its Data ACK names the task by the tag.
    pub fn ask_acknowledgement(bhs: &mut Bhs, lun: Lun, target_transfer_tag: u32) {
        bhs.0[1] |= ACKNOWLEDGE;
        bhs.set_lun(lun);
        bhs.set_u32(20, target_transfer_tag);
    }

    /// What a Data ACK has to name, if this PDU asks for one.
    pub fn asked_acknowledgement(bhs: &Bhs) -> Option<(Lun, u32)> {
        (bhs.0[1] & ACKNOWLEDGE != 0).then(|| (bhs.lun(), bhs.u32_at(20)))
    }

    /// Reads the header, but for the A bit.
    ///
    /// # Errors
    /// [`PduError::Field`] when it claims an overflow and an underflow at once.
    pub fn decode(bhs: &Bhs) -> Result<DataIn, PduError> {
        let status = if bhs.0[1] & 1 != 0 { Some((bhs.0[3], residual_of(bhs.0[1], bhs.u32_at(44))?)) } else { None };
        Ok(DataIn {
            is_final: bhs.0[1] & FINAL != 0,
            status,
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            sequence: Sequence::of(bhs),
            data_sn: bhs.u32_at(36),
            buffer_offset: bhs.u32_at(40),
        })
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

impl R2t {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::R2t);
        bhs.0[1] = FINAL;
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        self.sequence.put(&mut bhs);
        bhs.set_u32(36, self.r2t_sn);
        bhs.set_u32(40, self.buffer_offset);
        bhs.set_u32(44, self.desired_data_transfer_bytes);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> R2t {
        R2t {
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            sequence: Sequence::of(bhs),
            r2t_sn: bhs.u32_at(36),
            buffer_offset: bhs.u32_at(40),
            desired_data_transfer_bytes: bhs.u32_at(44),
        }
    }
}

/// The answer to a task management request (§11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskManagementResult {
    /// Done.
    Complete = 0,
    /// No such task.
    TaskDoesNotExist = 1,
    /// No such logical unit.
    LunDoesNotExist = 2,
    /// The task belongs to another connection still.
    TaskStillAllegiant = 3,
    /// Tasks are not moved between connections here.
    ReassignNotSupported = 4,
    /// No such function here.
    NotSupported = 5,
    /// Not for this initiator.
    AuthorizationFailed = 6,
    /// Asked and found: what a query asks about is there (RFC 7144).
    Succeeded = 7,
    /// Refused.
    Rejected = 255,
}

impl TaskManagementResult {
    /// From its code.
    pub const fn from_code(code: u8) -> Option<TaskManagementResult> {
        Some(match code {
            0 => Self::Complete,
            1 => Self::TaskDoesNotExist,
            2 => Self::LunDoesNotExist,
            3 => Self::TaskStillAllegiant,
            4 => Self::ReassignNotSupported,
            5 => Self::NotSupported,
            6 => Self::AuthorizationFailed,
            7 => Self::Succeeded,
            255 => Self::Rejected,
            _ => return None,
        })
    }
}

impl From<transport::TaskManagementResult> for TaskManagementResult {
    fn from(result: transport::TaskManagementResult) -> TaskManagementResult {
        match result {
            transport::TaskManagementResult::Complete => Self::Complete,
            transport::TaskManagementResult::Succeeded => Self::Succeeded,
            transport::TaskManagementResult::TaskDoesNotExist => Self::TaskDoesNotExist,
            transport::TaskManagementResult::LunDoesNotExist => Self::LunDoesNotExist,
            transport::TaskManagementResult::NotSupported => Self::NotSupported,
            transport::TaskManagementResult::AuthorizationFailed => Self::AuthorizationFailed,
            transport::TaskManagementResult::Rejected => Self::Rejected,
        }
    }
}

impl From<TaskManagementResult> for transport::TaskManagementResult {
    fn from(result: TaskManagementResult) -> transport::TaskManagementResult {
        match result {
            TaskManagementResult::Complete => Self::Complete,
            TaskManagementResult::Succeeded => Self::Succeeded,
            TaskManagementResult::TaskDoesNotExist => Self::TaskDoesNotExist,
            TaskManagementResult::LunDoesNotExist => Self::LunDoesNotExist,
            TaskManagementResult::NotSupported => Self::NotSupported,
            TaskManagementResult::AuthorizationFailed => Self::AuthorizationFailed,
            // The first two answer a reassignment only, which is no function of SCSI.
            TaskManagementResult::TaskStillAllegiant
            | TaskManagementResult::ReassignNotSupported
            | TaskManagementResult::Rejected => Self::Rejected,
        }
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

impl TaskManagementResponse {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::TaskManagementResponse);
        bhs.0[1] = FINAL;
        bhs.0[2] = self.result as u8;
        bhs.0[8..11].copy_from_slice(&self.additional);
        bhs.set_u32(16, self.initiator_task_tag);
        self.sequence.put(&mut bhs);
        bhs
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`PduError::Field`] for a reserved response code.
    pub fn decode(bhs: &Bhs) -> Result<TaskManagementResponse, PduError> {
        let result = TaskManagementResult::from_code(bhs.0[2])
            .ok_or(PduError::Field { field: "Response", value: u32::from(bhs.0[2]) })?;
        let additional = [bhs.0[8], bhs.0[9], bhs.0[10]];
        let sequence = Sequence::of(bhs);
        Ok(TaskManagementResponse { result, additional, initiator_task_tag: bhs.initiator_task_tag(), sequence })
    }
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

impl NopIn {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::NopIn);
        bhs.0[1] = FINAL;
        bhs.set_lun(self.lun);
        bhs.set_u32(16, self.initiator_task_tag);
        bhs.set_u32(20, self.target_transfer_tag);
        self.sequence.put(&mut bhs);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> NopIn {
        NopIn {
            lun: bhs.lun(),
            initiator_task_tag: bhs.initiator_task_tag(),
            target_transfer_tag: bhs.u32_at(20),
            sequence: Sequence::of(bhs),
        }
    }
}

/// What an asynchronous message is about (§11.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // The RFC's names.
pub enum AsyncEvent {
    ScsiEvent = 0,
    LogoutRequested = 1,
    ConnectionDropped = 2,
    AllConnectionsDropped = 3,
    NegotiationRequested = 4,
    TasksTerminated = 5,
    VendorSpecific = 255,
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

impl AsyncMessage {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::AsyncMessage);
        bhs.0[1] = FINAL;
        bhs.set_u32(16, TAG_NONE);
        self.sequence.put(&mut bhs);
        bhs.0[36] = self.event as u8;
        for (at, value) in [38, 40, 42].into_iter().zip(self.parameters) {
            bhs.set_u16(at, value);
        }
        bhs
    }

    /// Reads the header.
    ///
    /// # Errors
    /// [`PduError::Field`] for an event that RFC 7143 does not define.
    pub fn decode(bhs: &Bhs) -> Result<AsyncMessage, PduError> {
        let event = match bhs.0[36] {
            0 => AsyncEvent::ScsiEvent,
            1 => AsyncEvent::LogoutRequested,
            2 => AsyncEvent::ConnectionDropped,
            3 => AsyncEvent::AllConnectionsDropped,
            4 => AsyncEvent::NegotiationRequested,
            5 => AsyncEvent::TasksTerminated,
            255 => AsyncEvent::VendorSpecific,
            other => return Err(PduError::Field { field: "AsyncEvent", value: u32::from(other) }),
        };
        let parameters = [bhs.u16_at(38), bhs.u16_at(40), bhs.u16_at(42)];
        Ok(AsyncMessage { event, sequence: Sequence::of(bhs), parameters })
    }
}

/// Why a PDU was rejected (§11.17.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // The RFC's names.
pub enum RejectReason {
    DataDigestError = 0x02,
    SnackReject = 0x03,
    ProtocolError = 0x04,
    CommandNotSupported = 0x05,
    TooManyImmediateCommands = 0x06,
    TaskInProgress = 0x07,
    InvalidDataAck = 0x08,
    InvalidPduField = 0x09,
    LongOperationReject = 0x0a,
    NegotiationReset = 0x0b,
    WaitingForLogout = 0x0c,
}

impl RejectReason {
    /// From its code.
    pub const fn from_code(code: u8) -> Option<RejectReason> {
        Some(match code {
            0x02 => Self::DataDigestError,
            0x03 => Self::SnackReject,
            0x04 => Self::ProtocolError,
            0x05 => Self::CommandNotSupported,
            0x06 => Self::TooManyImmediateCommands,
            0x07 => Self::TaskInProgress,
            0x08 => Self::InvalidDataAck,
            0x09 => Self::InvalidPduField,
            0x0a => Self::LongOperationReject,
            0x0b => Self::NegotiationReset,
            0x0c => Self::WaitingForLogout,
            _ => return None,
        })
    }
}

/// Reject, §11.17. Its data segment is the header that was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The reason's code; not every code is a [`RejectReason`].
    pub reason: u8,
    /// Numbers.
    pub sequence: Sequence,
}

impl Reject {
    /// Writes the header.
    pub fn encode(&self) -> Bhs {
        let mut bhs = Bhs::new(Opcode::Reject);
        bhs.0[1] = FINAL;
        bhs.0[2] = self.reason;
        bhs.set_u32(16, TAG_NONE);
        self.sequence.put(&mut bhs);
        bhs
    }

    /// Reads the header.
    pub fn decode(bhs: &Bhs) -> Reject {
        Reject { reason: bhs.0[2], sequence: Sequence::of(bhs) }
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

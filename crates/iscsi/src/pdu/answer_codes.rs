//! Codes in answers: results of task management and logout, asynchronous events, reasons of a Reject (RFC 7143 §11).

use strongroom_scsi::transport;

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

/// The answer to a logout (§11.15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LogoutResult {
    /// Closed.
    Closed = 0,
    /// No such connection.
    CidNotFound = 1,
    /// Connections are not recovered here.
    RecoveryNotSupported = 2,
    /// It could not be cleaned up.
    CleanupFailed = 3,
}

impl LogoutResult {
    /// From its code.
    pub const fn from_code(code: u8) -> Option<LogoutResult> {
        Some(match code {
            0 => Self::Closed,
            1 => Self::CidNotFound,
            2 => Self::RecoveryNotSupported,
            3 => Self::CleanupFailed,
            _ => return None,
        })
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

impl AsyncEvent {
    /// From its code.
    pub const fn from_code(code: u8) -> Option<AsyncEvent> {
        Some(match code {
            0 => Self::ScsiEvent,
            1 => Self::LogoutRequested,
            2 => Self::ConnectionDropped,
            3 => Self::AllConnectionsDropped,
            4 => Self::NegotiationRequested,
            5 => Self::TasksTerminated,
            255 => Self::VendorSpecific,
            _ => return None,
        })
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

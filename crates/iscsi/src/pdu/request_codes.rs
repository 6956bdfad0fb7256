//! Codes in requests: task attributes, task management functions, reasons of a logout, stages of a login (RFC 7143 §11).

use strongroom_scsi::transport::{self, TaskAttribute};

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
pub(super) const fn attribute_code(attribute: TaskAttribute) -> u8 {
    match attribute {
        TaskAttribute::Untagged => 0,
        TaskAttribute::Simple => 1,
        TaskAttribute::Ordered => 2,
        TaskAttribute::HeadOfQueue => 3,
        TaskAttribute::Aca => 4,
    }
}

/// The task attribute of a code.
pub(super) const fn attribute_of(code: u8) -> Option<TaskAttribute> {
    Some(match code {
        0 => TaskAttribute::Untagged,
        1 => TaskAttribute::Simple,
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        _ => return None,
    })
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

/// Stages of a login (RFC 7143 §11.12.3).
pub(crate) mod stage {
    pub(crate) const SECURITY: u8 = 0;
    pub(crate) const OPERATIONAL: u8 = 1;
    pub(crate) const FULL_FEATURE: u8 = 3;
}

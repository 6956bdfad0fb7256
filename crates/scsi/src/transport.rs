//! What the initiator's engine and the target's logical unit see of a transport: tasks, data with seal records, and task management in
//! SCSI's terms (SAM-5). iSCSI implements it in `crates/iscsi`; a second transport adds nothing here and changes neither side.
//!
//! Deliberately absent: login, connections, sequence numbers, header formats, and time-outs of a wire.

pub mod initiator;
mod parameters;
mod records;
pub mod target;

pub use parameters::{MalformedOperation, Operation, Parameters, Written};
pub use records::{SealRecords, StoredRecords};

/// A logical unit number: eight bytes, big-endian (SAM-5 §4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lun(pub u64);

impl Lun {
    /// The single-level form of `index`: peripheral addressing below 256, flat space above (to 16383).
    pub const fn single_level(index: u16) -> Lun {
        let method: u16 = if index < 256 { 0 } else { 0x4000 };
        Lun(((method | (index & 0x3fff)) as u64) << 48)
    }

    /// The index of a single-level number in peripheral (bus 0) or flat space form; `None` for any other form.
    pub const fn index(self) -> Option<u16> {
        if self.0 & 0xffff_ffff_ffff != 0 {
            return None;
        }
        let first = (self.0 >> 48) as u16;
        match first >> 14 {
            0 if first < 256 => Some(first),
            1 => Some(first & 0x3fff),
            _ => None,
        }
    }
}

/// Task attribute: how a command may be ordered among others (SAM-5 §8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TaskAttribute {
    /// None was given; treated as simple.
    Untagged,
    /// May be reordered among simple tasks.
    #[default]
    Simple,
    /// After every older task, before every newer one.
    Ordered,
    /// Before every other task.
    HeadOfQueue,
    /// Part of an auto contingent allegiance.
    Aca,
}

/// Which way a command's data flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// No data.
    None,
    /// To the initiator.
    Read,
    /// To the target.
    Write,
}

/// A task management function (SAM-5 §7), as an initiator asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskFunction {
    /// End one task.
    AbortTask,
    /// End this initiator's tasks on a logical unit.
    AbortTaskSet,
    /// End an auto contingent allegiance.
    ClearAca,
    /// End all tasks on a logical unit, of every initiator.
    ClearTaskSet,
    /// Reset a logical unit.
    LogicalUnitReset,
    /// Reset every logical unit.
    TargetWarmReset,
    /// Reset every logical unit and end every session.
    TargetColdReset,
    /// Ask whether a task exists.
    QueryTask,
    /// Ask whether this initiator has any task on a logical unit.
    QueryTaskSet,
    /// End this initiator's tasks on every logical unit, as the loss of its nexus does.
    NexusReset,
    /// Ask whether a unit attention is pending.
    QueryAsyncEvent,
}

/// The result of a task management function (SAM-5 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskManagementResult {
    /// The function is complete. For a query: the answer is no.
    Complete,
    /// The function succeeded: the answer to a query is yes.
    Succeeded,
    /// There is no such task.
    TaskDoesNotExist,
    /// There is no such logical unit.
    LunDoesNotExist,
    /// The function is not supported.
    NotSupported,
    /// This initiator may not ask for it.
    AuthorizationFailed,
    /// The function was refused.
    Rejected,
}

/// Difference between the length that the initiator expected and the length that the command wanted, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residual {
    /// They agree.
    #[default]
    None,
    /// This many bytes of the expected length were not transferred.
    Underflow(u32),
    /// This many bytes beyond the expected length were wanted and not transferred.
    Overflow(u32),
}

impl Residual {
    /// The residual when the initiator expects `expected_bytes` and the command wants `wanted_bytes`.
    pub fn of(expected_bytes: u32, wanted_bytes: u64) -> Residual {
        let expected = u64::from(expected_bytes);
        if wanted_bytes > expected {
            Residual::Overflow(u32::try_from(wanted_bytes - expected).unwrap_or(u32::MAX))
        } else if wanted_bytes < expected {
            Residual::Underflow((expected - wanted_bytes) as u32)
        } else {
            Residual::None
        }
    }
}

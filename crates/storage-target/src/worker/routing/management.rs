//! What a task management function of a session reaches: its unit, other sessions, or nothing.

use strongroom_iscsi::Lun;
use strongroom_iscsi::target::{ManagementFunction, TaskManagement, TaskManagementResult};

use crate::worker::grant::UnitAddress;
use crate::worker::session::Session;

/// The unit for a task management function, or the result of one that does not reach it.
pub(super) fn check(session: &Session, request: &TaskManagement) -> Result<UnitAddress, TaskManagementResult> {
    let function = request.function;
    let lun = match function {
        ManagementFunction::ClearAca(_) => return Err(TaskManagementResult::NotSupported),
        ManagementFunction::AbortTaskSet(lun)
        | ManagementFunction::ClearTaskSet(lun)
        | ManagementFunction::QueryTaskSet { lun, .. }
        | ManagementFunction::QueryAsyncEvent(lun)
        | ManagementFunction::LogicalUnitReset(lun) => lun,
        ManagementFunction::AbortTask(_)
        | ManagementFunction::NexusReset
        | ManagementFunction::ConnectionEnded
        | ManagementFunction::TargetWarmReset
        | ManagementFunction::TargetColdReset => Lun::single_level(0),
    };
    if lun.index() != Some(0) {
        return Err(TaskManagementResult::LunDoesNotExist);
    }
    let Some(address) = session.unit.clone() else { return Err(TaskManagementResult::NotSupported) };
    if let ManagementFunction::QueryTaskSet { any, .. } = function {
        return Err(if any { TaskManagementResult::Succeeded } else { TaskManagementResult::Complete });
    }
    if concerns_other_sessions(function) && session.read_only {
        let volume = &*address.volume;
        tracing::warn!(address = %session.peer.address, %volume, ?function, "refused to a session that may only read");
        return Err(TaskManagementResult::AuthorizationFailed);
    }
    Ok(address)
}

/// Functions that reach the tasks of other sessions.
pub(super) fn concerns_other_sessions(function: ManagementFunction) -> bool {
    !matches!(
        function,
        ManagementFunction::AbortTask(_)
            | ManagementFunction::AbortTaskSet(_)
            | ManagementFunction::ConnectionEnded
            | ManagementFunction::NexusReset
            | ManagementFunction::QueryTaskSet { .. }
            | ManagementFunction::QueryAsyncEvent(_)
    )
}

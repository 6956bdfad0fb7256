//! Task management functions that are not answered.

use strongroom_scsi::transport::initiator::{SubmitError, TaskId};
use strongroom_scsi::transport::{Lun, TaskFunction};

use crate::tag::{SINKS_MAX, SinkTag};

/// Functions that may wait for their answer.
const FUNCTIONS_MAX: usize = 16;

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct PendingFunction {
    pub(super) id: TaskId,
    /// Once it was sent.
    pub(super) number: Option<u64>,
    pub(super) function: TaskFunction,
    pub(super) lun: Lun,
    /// The task that it names.
    pub(super) task: Option<SinkTag>,
    /// The number of that task's command.
    pub(super) task_number: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Functions {
    pending: Vec<PendingFunction>,
    made: u32,
}

impl Functions {
    /// A name for a function, which is none that a transfer has.
    pub(super) fn name(&mut self) -> TaskId {
        let slots = SINKS_MAX as u32;
        let id = TaskId(SinkTag::new(slots + self.made % slots, self.made / slots).0);
        self.made = self.made.wrapping_add(1);
        id
    }

    /// Adds one.
    pub(super) fn add(
        &mut self,
        function: TaskFunction,
        lun: Lun,
        task: Option<(SinkTag, u64)>,
    ) -> Result<TaskId, SubmitError> {
        if self.pending.len() >= FUNCTIONS_MAX {
            return Err(SubmitError::QueueFull);
        }
        let id = self.name();
        let task_number = task.map_or(0, |(_, number)| number);
        let task = task.map(|(tag, _)| tag);
        self.pending.push(PendingFunction { id, number: None, function, lun, task, task_number });
        Ok(id)
    }

    /// The first one that was not sent.
    pub(super) fn unsent(&mut self) -> Option<&mut PendingFunction> {
        self.pending.iter_mut().find(|pending| pending.number.is_none())
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.pending.iter().any(|pending| pending.number.is_none())
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&PendingFunction> {
        self.pending.iter().find(|pending| pending.id == id)
    }

    /// Takes out the one with this number.
    pub(super) fn answered(&mut self, number: u32) -> Option<PendingFunction> {
        let is_it = |pending: &PendingFunction| pending.number.is_some_and(|sent| sent as u32 == number);
        let at = self.pending.iter().position(is_it)?;
        Some(self.pending.swap_remove(at))
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }
}

impl PendingFunction {
    /// Whether it ends a task of the unit `lun` whose command has the number `number`, when it is complete.
    pub(super) fn ends(&self, tag: SinkTag, number: Option<u64>, lun: Lun) -> bool {
        let is_before = number.is_some_and(|number| self.number.is_some_and(|own| number < own));
        match self.function {
            TaskFunction::AbortTask => self.task == Some(tag),
            TaskFunction::AbortTaskSet | TaskFunction::ClearTaskSet | TaskFunction::LogicalUnitReset => {
                is_before && lun == self.lun
            }
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset | TaskFunction::NexusReset => is_before,
            TaskFunction::ClearAca
            | TaskFunction::QueryTask
            | TaskFunction::QueryTaskSet
            | TaskFunction::QueryAsyncEvent => false,
        }
    }
}

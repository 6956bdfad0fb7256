//! Task management functions: those that wait for commands before them, those that the target carries out, and results that are not
//! acknowledged.

use std::collections::BTreeMap;

use strongroom_scsi::transport::target::{ManagementFunction, ManagementId, TaskId};
use strongroom_scsi::transport::{Lun, TaskFunction, TaskManagementResult};

use crate::tag::SinkTag;

/// Functions that an initiator may have under way; more are dropped until there is room.
pub(super) const FUNCTIONS_MAX: usize = 32;

/// A function as it arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionRequest {
    pub(super) function: TaskFunction,
    pub(super) lun: Lun,
    /// The number of the task that it names.
    pub(super) task_number: u64,
}

#[derive(Debug)]
struct Asked {
    id: ManagementId,
    number: u64,
    tasks: Vec<SinkTag>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Functions {
    waiting: BTreeMap<u64, FunctionRequest>,
    asked: Vec<Asked>,
    results: BTreeMap<u64, (TaskManagementResult, [u8; 3])>,
    next_id: u64,
}

impl Functions {
    pub(super) fn has_room(&self) -> bool {
        self.waiting.len() + self.asked.len() + self.results.len() < FUNCTIONS_MAX
    }

    /// Takes a function in, until the commands before it were handed over.
    pub(super) fn wait(&mut self, number: u64, request: FunctionRequest) {
        self.waiting.entry(number).or_insert(request);
    }

    /// The first that waits.
    pub(super) fn first_waiting(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(number, _)| *number)
    }

    pub(super) fn take_waiting(&mut self, number: u64) -> Option<FunctionRequest> {
        self.waiting.remove(&number)
    }

    /// The target is asked; `tasks` end when it has done what it was asked.
    pub(super) fn ask(&mut self, number: u64, tasks: Vec<SinkTag>) -> ManagementId {
        let id = ManagementId(self.next_id);
        self.next_id += 1;
        self.asked.push(Asked { id, number, tasks });
        id
    }

    /// The target has answered; returns the function's number and the tasks that it ends.
    pub(super) fn answered(&mut self, id: ManagementId) -> Option<(u64, Vec<SinkTag>)> {
        let at = self.asked.iter().position(|asked| asked.id == id)?;
        let asked = self.asked.swap_remove(at);
        Some((asked.number, asked.tasks))
    }

    /// A result is to be sent until it is acknowledged.
    pub(super) fn set_result(&mut self, number: u64, result: TaskManagementResult, found: [u8; 3]) {
        self.results.insert(number, (result, found));
    }

    pub(super) fn result(&self, number: u64) -> Option<(TaskManagementResult, [u8; 3])> {
        self.results.get(&number).copied()
    }

    pub(super) fn acknowledged(&mut self, number: u64) {
        self.results.remove(&number);
    }

    pub(super) fn clear(&mut self) {
        *self = Functions { next_id: self.next_id, ..Functions::default() };
    }
}

/// Which tasks a function concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concerns {
    Task,
    Unit,
    All,
    None,
}

impl FunctionRequest {
    pub(super) fn concerns(&self) -> Concerns {
        match self.function {
            TaskFunction::AbortTask | TaskFunction::QueryTask => Concerns::Task,
            TaskFunction::AbortTaskSet
            | TaskFunction::ClearTaskSet
            | TaskFunction::LogicalUnitReset
            | TaskFunction::QueryTaskSet => Concerns::Unit,
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset | TaskFunction::NexusReset => Concerns::All,
            TaskFunction::ClearAca | TaskFunction::QueryAsyncEvent => Concerns::None,
        }
    }

    /// What the target is asked to do. `executing`: the tasks that it has of those that are concerned.
    pub(super) fn for_target(&self, executing: &[TaskId]) -> ManagementFunction {
        let lun = self.lun;
        match self.function {
            TaskFunction::AbortTask | TaskFunction::QueryTask => {
                ManagementFunction::AbortTask(*executing.first().expect("looked for by the caller"))
            }
            TaskFunction::AbortTaskSet => ManagementFunction::AbortTaskSet(lun),
            TaskFunction::ClearAca => ManagementFunction::ClearAca(lun),
            TaskFunction::ClearTaskSet => ManagementFunction::ClearTaskSet(lun),
            TaskFunction::LogicalUnitReset => ManagementFunction::LogicalUnitReset(lun),
            TaskFunction::TargetWarmReset => ManagementFunction::TargetWarmReset,
            TaskFunction::TargetColdReset => ManagementFunction::TargetColdReset,
            TaskFunction::QueryTaskSet => ManagementFunction::QueryTaskSet { lun, any: !executing.is_empty() },
            TaskFunction::NexusReset => ManagementFunction::NexusReset,
            TaskFunction::QueryAsyncEvent => ManagementFunction::QueryAsyncEvent(lun),
        }
    }
}

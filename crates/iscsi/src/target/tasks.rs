//! The tasks of a session: by slot and by tag, which of them use a place of the command window, and the tags of those that ended early.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::connection_id::ConnectionId;
use super::outbox::Window;
use super::respond::ResponseTransfer;
use super::task::{Task, TaskPhase};
use super::types::{IMMEDIATE_TASKS_MAX, ManagementFunction, TASKS_MAX};
use super::write::WriteTransfer;
use crate::Serial;
use crate::pdu::{Lun, TaskFunction, TaskManagementRequest};
use crate::slots::{Key, Slots};

/// Tasks that ended while data for them may still arrive; their late Data-Out is dropped without an answer.
const ENDED_MAX: usize = TASKS_MAX;

/// All tasks of a session.
#[derive(Debug)]
pub(super) struct TaskTable {
    slots: Slots<Task>,
    /// Hashed without a secret: the initiator chooses the tags, but of no more than [`TASKS_MAX`] and the immediate ones at a time.
    by_tag: FxHashMap<u32, Key>,
    ended: VecDeque<u32>,
    queue_depth: u16,
    /// Tasks that use a place of the command window.
    window_used: u32,
    immediate_count: usize,
}

impl TaskTable {
    pub(super) fn new(queue_depth: u16) -> TaskTable {
        TaskTable {
            slots: Slots::new(),
            by_tag: FxHashMap::default(),
            ended: VecDeque::new(),
            queue_depth,
            window_used: 0,
            immediate_count: 0,
        }
    }

    /// The command window from `exp_cmd_sn` on. Each task uses one place of the queue until its status has left.
    pub(super) fn window(&self, exp_cmd_sn: Serial) -> Window {
        let free = u32::from(self.queue_depth) - self.window_used;
        Window { exp_cmd_sn, max_cmd_sn: exp_cmd_sn.plus(free).previous() }
    }

    /// Whether one more immediate command fits (RFC 7143 §4.2.2.1).
    pub(super) fn admits_immediate(&self) -> bool {
        self.immediate_count < IMMEDIATE_TASKS_MAX
    }

    pub(super) fn insert(&mut self, task: Task) -> Key {
        let tag = task.initiator_task_tag;
        match task.immediate {
            true => self.immediate_count += 1,
            false => self.window_used += 1,
        }
        self.ended.retain(|ended| *ended != tag);
        let key = self.slots.insert_with(|_| task);
        self.by_tag.insert(tag, key);
        key
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Task> {
        let task = self.slots.remove(key)?;
        self.by_tag.remove(&task.initiator_task_tag);
        match task.immediate {
            true => self.immediate_count -= 1,
            false => self.window_used -= 1,
        }
        Some(task)
    }

    pub(super) fn get(&self, key: Key) -> Option<&Task> {
        self.slots.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Task> {
        self.slots.get_mut(key)
    }

    pub(super) fn key_of(&self, initiator_task_tag: u32) -> Option<Key> {
        self.by_tag.get(&initiator_task_tag).copied()
    }

    /// A task that is receiving write data.
    pub(super) fn receiving(&mut self, key: Key) -> Option<&mut WriteTransfer> {
        self.slots.get_mut(key)?.receiving()
    }

    /// A task whose response is being sent.
    pub(super) fn responding(&mut self, key: Key) -> Option<&mut ResponseTransfer> {
        self.slots.get_mut(key)?.responding()
    }

    pub(super) fn is_executing(&self, key: Key) -> bool {
        self.slots.get(key).is_some_and(|task| matches!(task.phase, TaskPhase::Executing))
    }

    pub(super) fn is_receiving(&self, key: Key) -> bool {
        self.slots.get(key).is_some_and(|task| matches!(task.phase, TaskPhase::Receiving(_)))
    }

    /// Whether any write waits for data.
    pub(super) fn any_receiving(&self) -> bool {
        self.slots.iter().any(|(_, task)| matches!(task.phase, TaskPhase::Receiving(_)))
    }

    pub(super) fn executing_count(&self) -> usize {
        self.slots.iter().filter(|(_, task)| matches!(task.phase, TaskPhase::Executing)).count()
    }

    /// The tasks of a logical unit, or of all.
    pub(super) fn keys_of(&self, lun: Option<Lun>) -> Vec<Key> {
        let is_wanted = |of: Lun| lun.is_none_or(|lun| lun == of);
        self.slots.iter().filter(|(_, task)| is_wanted(task.lun)).map(|(key, _)| key).collect()
    }

    /// Those of them that were sent before a request (RFC 7143 §11.5.1): later ones may have come by a faster connection.
    pub(super) fn keys_before(&self, request: &TaskManagementRequest, lun: Option<Lun>) -> Vec<Key> {
        let mut keys = self.keys_of(lun);
        keys.retain(|key| {
            self.slots.get(*key).is_some_and(|task| match task.immediate {
                // It shows the number of the next command and does not use it up.
                true => !request.cmd_sn.is_before(task.cmd_sn),
                false => task.cmd_sn.is_before(request.cmd_sn),
            })
        });
        keys
    }

    pub(super) fn keys_on(&self, connection: ConnectionId) -> Vec<Key> {
        self.slots.iter().filter(|(_, task)| task.connection == connection).map(|(key, _)| key).collect()
    }

    /// What a function over many tasks, or over none, asks the application to do, and which tasks it ends (RFC 7143 §11.5.1).
    ///
    /// # Panics
    /// For a function about one task.
    pub(super) fn function_for_many(
        &self,
        function: TaskFunction,
        request: &TaskManagementRequest,
    ) -> (ManagementFunction, Vec<Key>) {
        let lun = request.lun;
        let (of_unit, of_all) = (|| self.keys_before(request, Some(lun)), || self.keys_before(request, None));
        match function {
            TaskFunction::AbortTaskSet => (ManagementFunction::AbortTaskSet(lun), of_unit()),
            TaskFunction::ClearTaskSet => (ManagementFunction::ClearTaskSet(lun), of_unit()),
            TaskFunction::LogicalUnitReset => (ManagementFunction::LogicalUnitReset(lun), of_unit()),
            TaskFunction::TargetWarmReset => (ManagementFunction::TargetWarmReset, of_all()),
            TaskFunction::TargetColdReset => (ManagementFunction::TargetColdReset, of_all()),
            TaskFunction::NexusReset => (ManagementFunction::NexusReset, of_all()),
            TaskFunction::QueryTaskSet => {
                (ManagementFunction::QueryTaskSet { lun, any: !of_unit().is_empty() }, Vec::new())
            }
            TaskFunction::ClearAca => (ManagementFunction::ClearAca(lun), Vec::new()),
            TaskFunction::QueryAsyncEvent => (ManagementFunction::QueryAsyncEvent(lun), Vec::new()),
            TaskFunction::AbortTask | TaskFunction::TaskReassign | TaskFunction::QueryTask => {
                unreachable!("a function about one task")
            }
        }
    }

    /// Late data for a task that ended early is expected, not an error.
    pub(super) fn remember_ended(&mut self, initiator_task_tag: u32) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(initiator_task_tag);
    }

    pub(super) fn has_ended(&self, initiator_task_tag: u32) -> bool {
        self.ended.contains(&initiator_task_tag)
    }

    /// The session is over. Tags of ended tasks are kept: their data may still arrive.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.by_tag.clear();
    }
}

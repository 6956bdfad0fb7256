//! Changes of what a unit keeps in a file: one is written at a time, and commands that arrive meanwhile wait.

use std::collections::VecDeque;

use strongroom_scsi::transport::target::{self as transport, TaskId};

use super::task::SessionKey;

/// The change that is being written, and the commands that wait for it.
pub(super) struct PendingChanges<T> {
    writing: Option<Box<T>>,
    /// Bounded by the sessions' queue depths.
    waiting: VecDeque<(SessionKey, transport::Command)>,
}

impl<T> Default for PendingChanges<T> {
    fn default() -> PendingChanges<T> {
        PendingChanges { writing: None, waiting: VecDeque::new() }
    }
}

impl<T> PendingChanges<T> {
    /// Removes waiting commands, one task or all of a session; returns the removed tasks.
    pub(super) fn withdraw(&mut self, connection: SessionKey, task: Option<TaskId>) -> Vec<TaskId> {
        let concerned = |(key, command): &(SessionKey, transport::Command)| {
            *key == connection && task.is_none_or(|task| command.task == task)
        };
        let (gone, stay): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(concerned);
        self.waiting = stay;
        gone.into_iter().map(|(_, command)| command.task).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writing.is_none() && self.waiting.is_empty()
    }

    /// Whether a change is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// A command waits for the change that is being written.
    pub(super) fn wait(&mut self, connection: SessionKey, request: transport::Command) {
        self.waiting.push_back((connection, request));
    }

    /// A change is being written.
    pub(super) fn begin(&mut self, change: T) {
        assert!(self.writing.is_none(), "one change is written at a time");
        self.writing = Some(Box::new(change));
    }

    /// The change whose write has ended.
    pub(super) fn end(&mut self) -> Option<T> {
        self.writing.take().map(|change| *change)
    }

    /// The next waiting command, unless a change is being written.
    pub(super) fn next_waiting(&mut self) -> Option<(SessionKey, transport::Command)> {
        if self.is_writing() { None } else { self.waiting.pop_front() }
    }
}

//! The task set of a unit (SAM-5): which operation of the store belongs to which task, what is answered when a task ends, and responses that wait
//! until other tasks have ended. What the commands do is not here.

use std::collections::HashSet;

use rustc_hash::FxHashMap;
use strongroom_block::Token;
use strongroom_scsi::transport::target::{Response, TaskId};

use super::commands::BlockCommand;
use super::meter::CommandTiming;
use super::task::{Finished, SessionKey, TaskKey};

/// What is answered when a command has been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its response.
    Response,
    /// TASK ABORTED: another session aborted it (TAS=1 in the control mode page), so that its initiator does not wait for ever.
    TaskAborted,
    /// Nothing: its own session aborted it.
    Aborted,
    /// Nothing: it was answered at once (IMMED), and continues.
    Background,
    /// SANITIZE with IMMED: GOOD as soon as no crash can undo it; its response, if it ends before.
    Certain,
}

impl Ending {
    pub(super) fn is_aborted(self) -> bool {
        matches!(self, Ending::TaskAborted | Ending::Aborted)
    }
}

/// A command with an operation that the store, or another unit, is executing.
pub(super) struct RunningCommand {
    pub(super) task: TaskKey,
    pub(super) command: BlockCommand,
    pub(super) ending: Ending,
    pub(super) timing: CommandTiming,
}

/// A response that waits for tasks that its command aborted or excluded.
struct DelayedResponse {
    task: TaskKey,
    response: Response,
    waits_for: HashSet<TaskKey>,
}

/// The running commands of a unit. Tokens name operations of its store.
#[derive(Default)]
pub(super) struct TaskSet {
    running: FxHashMap<Token, RunningCommand>,
    delayed: Vec<DelayedResponse>,
    last_token: u64,
}

impl TaskSet {
    /// A token that was not used before.
    pub(super) fn next_token(&mut self) -> Token {
        self.last_token += 1;
        Token(self.last_token)
    }

    /// A task that no session has, for a command of another unit. Sessions count their tasks from below.
    pub(super) fn next_foreign_task(&self) -> TaskId {
        TaskId(u64::MAX - self.last_token)
    }

    /// An operation of a command begins.
    pub(super) fn begin(&mut self, running: RunningCommand) -> Token {
        let token = self.next_token();
        self.running.insert(token, running);
        token
    }

    /// An operation of a command has ended.
    pub(super) fn end(&mut self, token: Token) -> Option<RunningCommand> {
        self.running.remove(&token)
    }

    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// How many commands `is_one` selects.
    pub(super) fn count(&self, is_one: impl Fn(&RunningCommand) -> bool) -> usize {
        self.running.values().filter(|running| is_one(running)).count()
    }

    pub(super) fn has_tasks(&self, key: SessionKey) -> bool {
        self.running.values().any(|running| running.task.0 == key)
    }

    /// The tasks of a session, those that were answered before their end included.
    pub(super) fn tasks_of(&self, key: SessionKey) -> impl Iterator<Item = TaskKey> {
        self.running.values().map(|running| running.task).filter(move |task| task.0 == key)
    }

    /// Changes how tasks end, one or all of a session. Returns those that are still running: they may still have effects.
    pub(super) fn end_tasks(&mut self, key: SessionKey, task: Option<TaskId>, ending: Ending) -> Vec<TaskId> {
        let concerned =
            |running: &&mut RunningCommand| running.task.0 == key && task.is_none_or(|task| running.task.1 == task);
        let running = self.running.values_mut().filter(concerned);
        running
            .map(|running| {
                if !matches!(running.ending, Ending::Aborted | Ending::Background) {
                    running.ending = ending;
                }
                running.task.1
            })
            .collect()
    }

    /// No crash can undo the erase any more: answers the commands that wait for that.
    pub(super) fn answer_certain(&mut self, finished: &mut Vec<Finished>) {
        for running in self.running.values_mut().filter(|running| running.ending == Ending::Certain) {
            running.ending = Ending::Background;
            finished.push(Finished::answered(running.task, Response::good()));
        }
    }

    /// Answers a task at the next poll.
    pub(super) fn answer_later(&mut self, task: TaskKey, response: Response) {
        self.delay(task, response, HashSet::new());
    }

    /// Answers a task when other tasks have ended.
    pub(super) fn delay(&mut self, task: TaskKey, response: Response, waits_for: HashSet<TaskKey>) {
        self.delayed.push(DelayedResponse { task, response, waits_for });
    }

    /// The responses that wait for nothing any more.
    pub(super) fn poll_delayed(&mut self) -> Vec<(TaskKey, Response)> {
        if self.delayed.is_empty() {
            return Vec::new();
        }
        let running: HashSet<TaskKey> = self.running.values().map(|running| running.task).collect();
        let is_ready = |delayed: &mut DelayedResponse| {
            delayed.waits_for.retain(|task| running.contains(task));
            delayed.waits_for.is_empty()
        };
        let ready = self.delayed.extract_if(.., is_ready);
        ready.map(|delayed| (delayed.task, delayed.response)).collect()
    }
}

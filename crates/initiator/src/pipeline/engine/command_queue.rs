//! Commands that wait to be sent, by what they wait for: writes for room, reads for room, and others for nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use slab::Slab;

use super::command::Command;
use crate::pipeline::command_plan::{CommandKind, CommandPlan};

/// Each queue in the order in which its commands were made, those that are sent again first.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    /// Made and not yet sealed.
    pub(super) unsealed: VecDeque<usize>,
    writes: VecDeque<usize>,
    reads: VecDeque<usize>,
    /// Flushes, and what tells the unit something.
    others: VecDeque<usize>,
    /// Commands of a replay.
    pub(super) replay: VecDeque<usize>,
    /// The command that registers an attach id.
    pub(super) registration: Option<usize>,
    /// Commands that are tried again at a later time.
    delayed: Vec<(Instant, usize)>,
}

impl CommandQueue {
    fn of(&mut self, plan: &CommandPlan) -> &mut VecDeque<usize> {
        match plan.kind {
            CommandKind::Write => &mut self.writes,
            CommandKind::Read => &mut self.reads,
            _ => &mut self.others,
        }
    }

    /// Adds a command behind those that were made before it: sealing may have ended in another order.
    pub(super) fn add(&mut self, key: usize, commands: &Slab<Command>) {
        let Command { plan, sequence, .. } = &commands[key];
        let queue = self.of(plan);
        let later = queue.iter().rev().take_while(|other| commands[**other].sequence > *sequence).count();
        queue.insert(queue.len() - later, key);
    }

    /// Adds one behind all.
    pub(super) fn add_last(&mut self, key: usize, plan: &CommandPlan) {
        self.of(plan).push_back(key);
    }

    /// Adds one before all.
    pub(super) fn add_first(&mut self, key: usize, plan: &CommandPlan) {
        self.of(plan).push_front(key);
    }

    pub(super) fn first_write(&self) -> Option<usize> {
        self.writes.front().copied()
    }

    pub(super) fn first_read(&self) -> Option<usize> {
        self.reads.front().copied()
    }

    pub(super) fn take_other(&mut self) -> Option<usize> {
        self.others.pop_front()
    }

    /// A read, or else a write.
    pub(super) fn take_data(&mut self) -> Option<usize> {
        self.reads.pop_front().or_else(|| self.writes.pop_front())
    }

    /// Takes away one that is the first of its queue.
    pub(super) fn take(&mut self, key: usize) {
        for queue in [&mut self.writes, &mut self.reads, &mut self.others] {
            if queue.front() == Some(&key) {
                queue.pop_front();
                return;
            }
        }
    }

    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        self.others.iter().copied()
    }

    /// Takes away the writes for which `is_wanted`, those of a replay included.
    pub(super) fn take_writes(&mut self, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut taken = Vec::new();
        for queue in [&mut self.writes, &mut self.replay] {
            queue.retain(|key| {
                let is_taken = is_wanted(*key);
                taken.extend(is_taken.then_some(*key));
                !is_taken
            });
        }
        taken
    }

    /// Takes away flushes and the like for which `is_wanted`.
    pub(super) fn take_others(&mut self, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
        let (taken, others) =
            std::mem::take(&mut self.others).into_iter().partition::<Vec<_>, _>(|key| is_wanted(*key));
        self.others = others.into();
        taken
    }

    pub(super) fn delay(&mut self, now: Instant, pause: Duration, key: usize) {
        self.delayed.push((now + pause, key));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.delayed.iter().map(|(at, _)| *at).min()
    }

    /// Commands whose pause is over, the first one first.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<usize> {
        let (due, later) = std::mem::take(&mut self.delayed).into_iter().partition(|(at, _)| *at <= now);
        self.delayed = later;
        let due: Vec<(Instant, usize)> = due;
        due.into_iter().map(|(_, key)| key).collect()
    }

    /// The session is gone: what was ready is made ready again in the old order. What is being sealed stays.
    pub(super) fn disconnected(&mut self) {
        *self = CommandQueue { unsealed: std::mem::take(&mut self.unsealed), ..CommandQueue::default() };
    }
}

//! Commands that are ready to be sent, by what they wait for: writes for room, reads for room, and others for nothing.

use std::collections::VecDeque;

use slab::Slab;

use super::command::{Command, CommandKind};

/// Each queue in the order in which its commands were made, those that are sent again first.
#[derive(Debug, Default)]
pub(super) struct Ready {
    pub(super) writes: VecDeque<usize>,
    pub(super) reads: VecDeque<usize>,
    /// Flushes and feedback.
    pub(super) others: VecDeque<usize>,
}

impl Ready {
    fn queue(&mut self, kind: CommandKind) -> &mut VecDeque<usize> {
        match kind {
            _ if kind.writes() => &mut self.writes,
            _ if kind.reads() => &mut self.reads,
            _ => &mut self.others,
        }
    }

    /// Adds a command to those that were made before it: sealing may have ended in another order.
    pub(super) fn add(&mut self, key: usize, sequence: u64, kind: CommandKind, commands: &Slab<Command>) {
        let queue = self.queue(kind);
        let later = queue.iter().rev().take_while(|other| commands[**other].sequence > sequence).count();
        queue.insert(queue.len() - later, key);
    }

    /// Adds one behind all.
    pub(super) fn add_last(&mut self, key: usize, kind: CommandKind) {
        self.queue(kind).push_back(key);
    }

    /// Adds one before all.
    pub(super) fn add_first(&mut self, key: usize, kind: CommandKind) {
        self.queue(kind).push_front(key);
    }

    /// Takes away one that is the first of its queue.
    pub(super) fn pop(&mut self, key: usize) {
        for queue in [&mut self.writes, &mut self.reads, &mut self.others] {
            if queue.front() == Some(&key) {
                queue.pop_front();
                return;
            }
        }
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        for queue in [&mut self.writes, &mut self.reads, &mut self.others] {
            queue.retain(|key| keep(*key));
        }
    }
}

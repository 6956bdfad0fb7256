//! Persistent reservations of the volume: which initiator holds one, and which one it keeps out, step by step.
//!
//! What is written down as a [`Fence`] is only what is sure: from the answer to PREEMPT AND ABORT until its victim is about to be
//! registered again.

use std::collections::VecDeque;
use std::time::Instant;

use super::history::{Fence, History};
use super::target::{Reserve, Target};
use crate::Random;

/// SPC-4's numbers of the types that are used: the registered write, the registered read and write, the holder alone writes.
const KINDS: [u8; 3] = [5, 6, 1];

/// Who holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Held {
        by: u64,
        kind: u8,
    },
    /// Something was not answered, or who held it has died: it is cleared first.
    Unsure,
}

/// The reservations of one history.
#[derive(Debug)]
pub(super) struct Fencing {
    stage: Stage,
    /// What is to be done next, by whom.
    script: VecDeque<(u64, Reserve)>,
    /// What was asked for and not answered.
    asked: Option<(u64, u64, Reserve)>,
    /// Which fence is in force, and for whom.
    fence: Option<(usize, u64)>,
    /// Fences so far.
    pub(super) fences: u64,
}

impl Fencing {
    pub(super) fn new() -> Fencing {
        Fencing { stage: Stage::Free, script: VecDeque::new(), asked: None, fence: None, fences: 0 }
    }

    /// Whether nobody is kept from anything.
    pub(super) fn is_free(&self) -> bool {
        self.stage == Stage::Free && self.script.is_empty() && self.asked.is_none()
    }

    /// The target is gone, and with it every answer.
    pub(super) fn target_crashed(&mut self) {
        if self.asked.take().is_some() || !self.script.is_empty() {
            self.lose_track();
        }
    }

    fn lose_track(&mut self) {
        self.script.clear();
        self.stage = Stage::Unsure;
    }

    /// Takes what was answered, and asks for what comes next.
    pub(super) fn drive(&mut self, now: Instant, target: &mut Target, history: &mut History) {
        for reserved in target.reservations.take_ended() {
            let Some((_, initiator, what)) = self.asked.take_if(|(ticket, ..)| *ticket == reserved.ticket) else {
                continue;
            };
            match reserved.is_done {
                true => self.done(initiator, what, history),
                false => self.lose_track(),
            }
        }
        if let Some((_, initiator, _)) = self.asked
            && !target.has_session(initiator)
        {
            self.asked = None;
            self.lose_track();
        }
        if self.asked.is_none()
            && let Some((initiator, what)) = self.script.pop_front()
        {
            self.ask(now, (initiator, what), target, history);
        }
    }

    fn ask(&mut self, now: Instant, (initiator, what): (u64, Reserve), target: &mut Target, history: &mut History) {
        // From now on nobody may be kept out any more.
        let lets_in = match what {
            Reserve::Register => self.fence.take_if(|(_, whom)| *whom == initiator),
            Reserve::Clear => self.fence.take(),
            Reserve::Hold(_) | Reserve::Preempt { .. } => None,
        };
        if let Some((fence, _)) = lets_in {
            history.fences[fence].until = Some(history.now());
        }
        match target.reserve(now, initiator, what) {
            Some(ticket) => self.asked = Some((ticket, initiator, what)),
            None => self.lose_track(),
        }
    }

    fn done(&mut self, initiator: u64, what: Reserve, history: &mut History) {
        match what {
            Reserve::Register => {}
            Reserve::Hold(kind) => self.stage = Stage::Held { by: initiator, kind },
            Reserve::Preempt { victim, .. } => {
                self.fence = Some((history.fences.len(), victim));
                self.fences += 1;
                let from = history.now();
                history.fences.push(Fence { initiator: victim, from, until: None });
            }
            Reserve::Clear => self.stage = Stage::Free,
        }
    }

    /// Something is to be changed; `initiators` use the volume. `ends`: nobody is to be kept out any more.
    pub(super) fn change(&mut self, initiators: &[u64], ends: bool, random: &mut Random) {
        if self.asked.is_some() || !self.script.is_empty() || initiators.is_empty() {
            return;
        }
        let mut any_initiator = || initiators[random.below(initiators.len() as u64) as usize];
        match self.stage {
            Stage::Free if ends || initiators.len() < 2 => {}
            Stage::Free => {
                let by = any_initiator();
                self.script.extend(initiators.iter().map(|one| (*one, Reserve::Register)));
                self.script.push_back((by, Reserve::Hold(KINDS[random.below(KINDS.len() as u64) as usize])));
            }
            Stage::Held { by, kind } if !ends && initiators.contains(&by) => {
                let victim = any_initiator();
                match self.fence {
                    Some((_, whom)) if initiators.contains(&whom) => self.script.push_back((whom, Reserve::Register)),
                    None if victim != by => self.script.push_back((by, Reserve::Preempt { victim, kind })),
                    _ => self.script.push_back((by, Reserve::Clear)),
                }
            }
            Stage::Held { .. } | Stage::Unsure => {
                let one = any_initiator();
                self.script.extend([(one, Reserve::Register), (one, Reserve::Clear)]);
            }
        }
    }
}

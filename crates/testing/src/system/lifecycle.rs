//! Whether the target runs, and whether its store is open. Decides when it closes and begins again; the world does it.

use super::clock::{MICRO, MILLI, Time};
use super::target::Target;
use crate::Random;

/// Where the target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// It ends its sessions, and then its store.
    Stopping,
    /// It begins at this time; after a crash its blocks are checked.
    Down {
        until: Time,
        crashed: bool,
    },
}

/// What is to be done with the target now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// Close the store in order, and end the process; [`Lifecycle::stopped`] follows.
    Stop,
    /// Begin; [`Lifecycle::begun`] or [`Lifecycle::not_begun`] follows.
    Begin { crashed: bool },
}

/// The life of the target.
#[derive(Debug)]
pub(super) struct Lifecycle {
    phase: Phase,
    /// The disk was damaged anywhere: the store need not open.
    is_damaged: bool,
    /// It did not.
    is_over: bool,
}

impl Lifecycle {
    /// A target that runs.
    pub(super) fn new() -> Lifecycle {
        Lifecycle { phase: Phase::Serving, is_damaged: false, is_over: false }
    }

    pub(super) fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// Whether the damaged store did not open, so that the history has ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether it ends its sessions: those too that are logging in.
    pub(super) fn is_stopping(&self) -> bool {
        self.phase == Phase::Stopping
    }

    /// Whether it has crashed and not begun again.
    pub(super) fn is_crashed(&self) -> bool {
        matches!(self.phase, Phase::Down { crashed: true, .. })
    }

    /// When it is to be looked at next.
    pub(super) fn next(&self, now: Time) -> Option<Time> {
        match self.phase {
            Phase::Down { until, .. } => Some(until),
            Phase::Stopping => Some(now + 20 * MICRO),
            Phase::Serving => None,
        }
    }

    /// What is due.
    pub(super) fn due(&self, now: Time, target: &Target) -> Option<Transition> {
        match self.phase {
            Phase::Stopping if target.is_idle() || !target.volume.store.is_open() => Some(Transition::Stop),
            Phase::Down { until, crashed } if until <= now => Some(Transition::Begin { crashed }),
            _ => None,
        }
    }

    /// It ends its sessions, closes its store and begins again.
    pub(super) fn stop(&mut self) {
        self.phase = Phase::Stopping;
    }

    /// Its store is closed.
    pub(super) fn stopped(&mut self, now: Time, random: &mut Random) {
        self.phase = Phase::Down { until: now + random.below(2 * MILLI), crashed: false };
    }

    /// It crashes.
    pub(super) fn crash(&mut self, now: Time, random: &mut Random) {
        self.phase = Phase::Down { until: now + random.below(3 * MILLI), crashed: true };
    }

    /// It runs again.
    pub(super) fn begun(&mut self) {
        self.phase = Phase::Serving;
    }

    /// Its store did not open after a crash; it is tried again.
    pub(super) fn not_begun(&mut self, now: Time) {
        self.phase = Phase::Down { until: now + MILLI, crashed: true };
    }

    /// Something on its disk was damaged.
    pub(super) fn damage(&mut self) {
        self.is_damaged = true;
    }

    /// The store does not open; whether it was damaged, which ends the history.
    pub(super) fn refused(&mut self) -> bool {
        self.is_over |= self.is_damaged;
        self.is_damaged
    }
}

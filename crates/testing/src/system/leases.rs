//! Exclusive writer leases, as initiators see them: who was let in when, and whether that was too early.
//!
//! An initiator that is let in keeps all others out from then on: that is written down as a [`Fence`] for each of them. Unless it took the volume over,
//! it must not be let in before the lease of the last writer has lapsed: a lease was in force when a write was sent that succeeded later.

use super::clock::{SECOND, Time};
use super::history::{Fence, History};

/// How long the target keeps a lease for an initiator that is away.
pub(super) const LEASE: Time = SECOND;

/// How the initiators of a run use writer leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseUse {
    /// They claim none.
    Unclaimed,
    /// All of them write side by side.
    Shared,
    /// One of each view writes.
    Exclusive,
}

/// An initiator that was let in.
#[derive(Clone, Copy, Debug)]
struct Writer {
    initiator: u64,
    view: usize,
    /// Its lease was in force then.
    held_at: Time,
    /// It gave its lease back, or was about to.
    is_released: bool,
    is_fenced: bool,
}

/// The exclusive leases of a run.
#[derive(Debug, Default)]
pub(super) struct ExclusiveLeases {
    writers: Vec<Writer>,
    /// How often an initiator was let in after the lease of another one had lapsed.
    pub(super) lapsed: u64,
    /// How often one took the volume over.
    pub(super) taken_over: u64,
}

impl ExclusiveLeases {
    /// An initiator was let in.
    pub(super) fn let_in(
        &mut self,
        now: Time,
        (initiator, view): (u64, usize),
        takes_over: bool,
        history: &mut History,
    ) {
        let from = history.now();
        for writer in self.writers.iter_mut().filter(|writer| writer.view == view && !writer.is_fenced) {
            let gone_for = now - writer.held_at;
            assert!(
                takes_over || writer.is_released || gone_for >= LEASE,
                "initiator {initiator} was let in {gone_for} ns after a write of initiator {}, which has an exclusive lease",
                writer.initiator
            );
            writer.is_fenced = true;
            history.fences.push(Fence { initiator: writer.initiator, from, until: None });
            match takes_over {
                true => self.taken_over += 1,
                false => self.lapsed += 1,
            }
        }
        self.writers.push(Writer { initiator, view, held_at: now, is_released: false, is_fenced: false });
    }

    /// Whether an initiator was let in.
    pub(super) fn is_known(&self, initiator: u64) -> bool {
        self.writers.iter().any(|writer| writer.initiator == initiator)
    }

    /// A write that was sent at this time succeeded.
    pub(super) fn wrote(&mut self, initiator: u64, sent_at: Time) {
        if let Some(writer) = self.writers.iter_mut().find(|writer| writer.initiator == initiator) {
            writer.held_at = writer.held_at.max(sent_at);
        }
    }

    /// An initiator gives its lease back: others may be let in from now on.
    pub(super) fn released(&mut self, initiator: u64) {
        if let Some(writer) = self.writers.iter_mut().find(|writer| writer.initiator == initiator) {
            writer.is_released = true;
        }
    }
}

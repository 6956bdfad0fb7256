//! What a store does beside executing requests, each by a view of its own: erasing everything, streams of snapshots, and scrubbing.

use strongroom_block::Token;
use strongroom_store::{Outcome, ReceiveStep, ReceptionInfo, ScrubReport, SendStep, Sender, StreamError};

use super::StoreHandle;

/// The erase of a store, if one is under way.
pub(crate) struct EraseView<'a>(pub(super) &'a StoreHandle);

impl EraseView<'_> {
    /// How far it is, in 65536ths; `None`: there is none.
    pub(crate) fn progress(&self) -> Option<u16> {
        self.0.shared.borrow().store.erase_progress()
    }

    /// Whether nothing can undo it any more.
    pub(crate) fn is_certain(&self) -> bool {
        self.0.shared.borrow().store.erase_is_certain()
    }

    /// Whether it is a cryptographic one that waits for the key to be destroyed.
    pub(crate) fn awaits_key(&self) -> bool {
        self.0.shared.borrow().store.erase_awaits_key()
    }

    /// The key that wrapped everything is destroyed, or could not be.
    pub(crate) fn key_destroyed(&self, is_destroyed: bool) {
        self.0.store().key_destroyed(is_destroyed);
    }
}

/// Streams of snapshots, out of the store and into it.
pub(crate) struct StreamView<'a>(pub(super) &'a StoreHandle);

impl StreamView<'_> {
    /// What comes next in a stream of a snapshot.
    pub(crate) fn send_step(&self, sender: &mut Sender) -> Result<SendStep, StreamError> {
        sender.next_step(&self.0.shared.borrow().store.index())
    }

    /// The bytes of blocks that were read for a stream.
    pub(crate) fn send_blocks(&self, sender: &mut Sender, read: &Outcome) -> Vec<u8> {
        sender.blocks_read(&self.0.shared.borrow().store.index(), read)
    }

    /// The receptions that have begun.
    pub(crate) fn receptions(&self) -> Vec<ReceptionInfo> {
        self.0.shared.borrow().store.index().receptions()
    }

    /// Whether there is room for a step now.
    pub(crate) fn may_receive(&self, step: &ReceiveStep) -> bool {
        step.has_room(&self.0.shared.borrow().store)
    }

    /// Takes a step of a stream in.
    pub(crate) fn submit_receive(&self, token: Token, step: ReceiveStep) -> Result<(), StreamError> {
        let token = self.0.own_token(token);
        let shared = &mut *self.0.shared.borrow_mut();
        step.submit(&mut shared.store, token)?;
        shared.slots[self.0.slot].in_flight += 1;
        Ok(())
    }
}

/// The search for damaged blocks.
pub(crate) struct ScrubView<'a>(pub(super) &'a StoreHandle);

impl ScrubView<'_> {
    /// Reads one segment, where nothing was asked for a while.
    pub(crate) fn begin_idle(&self) {
        self.0.store().scrub();
    }

    /// Reads one segment although requests are in flight.
    pub(crate) fn begin_beside(&self) {
        self.0.store().scrub_beside();
    }

    /// Whether a segment is being read.
    pub(crate) fn is_running(&self) -> bool {
        self.0.shared.borrow().store.is_scrubbing()
    }

    /// How many times the whole store was read.
    pub(crate) fn passes(&self) -> u64 {
        self.0.shared.borrow().store.stats().scrub_passes
    }

    /// How far it is, and what it has found.
    pub(crate) fn report(&self) -> ScrubReport {
        self.0.shared.borrow().store.scrub_report()
    }
}

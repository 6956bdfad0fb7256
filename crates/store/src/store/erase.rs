//! Erasing the store: what the phases of an [`Erasure`] do to the parts of the engine.

use std::io;

use strongroom_block::Token;

use super::engine::Engine;
use super::erasure::{ErasePhase, Erasure, new_store};
use super::format::{first_segment, fresh};
use super::round::Round;
use super::scrub::Scrub;
use super::volume::Volume;
use crate::backend::Io;
use crate::op::{OpError, Outcome};
use crate::recover::Recovered;
use crate::superblock::Superblock;
use crate::view::BranchId;

impl Engine {
    /// Begins to erase everything. `by_key`: see [`crate::Op::CryptoErase`].
    pub(super) fn start_erase(&mut self, token: Token, branch: u32, bytes: usize, by_key: bool) -> Result<(), OpError> {
        self.medium.refusal.check_writable()?;
        if BranchId(branch) != BranchId::VOLUME {
            return Err(OpError::Depended("a clone shares its blocks with its volume; delete the clone instead"));
        }
        self.views.check_none()?;
        if self.durability.growth.is_some() {
            return Err(OpError::Busy);
        }
        self.erasure = Some(Erasure::new(Some((token, bytes)), by_key));
        self.medium.io.wake();
        Ok(())
    }

    /// Moves an erase on.
    pub(super) fn drive_erase(&mut self) -> bool {
        let Some(erasure) = &mut self.erasure else { return false };
        if self.medium.refusal.is_active() {
            let is_only_requested = erasure.is_only_requested();
            let progress = erasure.is_idle() && erasure.answer(&mut self.requests, Err(self.medium.refusal.answer()));
            // Nothing is erased yet: what there is can still be read.
            self.erasure.take_if(|_| is_only_requested);
            return progress;
        }
        let layout = self.medium.volume.layout;
        match erasure.phase() {
            ErasePhase::Quiet if !erasure.is_halted() => {
                if self.writes.is_empty() {
                    // What was accepted before has the space that it needs. From then on nothing is copied any more.
                    self.reclaimer.compactor.stop(true);
                }
                self.is_quiet() && self.begin_erasing()
            }
            ErasePhase::Overwrite | ErasePhase::GiveBack if !erasure.is_halted() => {
                let (progress, next) = erasure.advance_pass(&mut self.medium.io, &layout);
                if let Some(next) = next {
                    self.begin_erase_phase(next);
                }
                progress
            }
            ErasePhase::Opening if self.durability.round.is_blocked() => {
                self.medium.refusal.begin("opening the erased store", &io::ErrorKind::StorageFull.into());
                true
            }
            ErasePhase::Opening if !self.durability.round.is_opening() && self.durability.is_idle() => {
                let progress = erasure.answer(&mut self.requests, Ok(Outcome::Changed));
                self.erasure = None;
                tracing::warn!(volume = %self.medium.volume.info.volume_id, "the store was erased");
                progress
            }
            _ => false,
        }
    }

    /// Whether everything accepted before the erase is over, the answers to requests that wait to be durable included.
    fn is_quiet(&self) -> bool {
        let has_appended = self.writes.is_empty() && self.log.is_empty() && !self.log.group.open;
        let has_answered =
            has_appended && self.durability.syncs.is_idle() && !self.views.hiding.is_busy() && self.reader.is_idle();
        has_answered && self.medium.io.is_idle() && self.durability.is_idle() && self.durability.growth.is_none()
    }

    /// Everything accepted before is over: it may have made a snapshot.
    fn begin_erasing(&mut self) -> bool {
        if let Err(depended) = self.views.check_none() {
            if let Some(mut erasure) = self.erasure.take() {
                erasure.answer(&mut self.requests, Err(depended));
            }
            self.reclaimer.compactor.stop(false);
            return true;
        }
        tracing::warn!(volume = %self.medium.volume.info.volume_id, "erasing the store: everything in it will be lost");
        self.begin_erase_phase(ErasePhase::Settle);
        true
    }

    pub(super) fn begin_erase_phase(&mut self, phase: ErasePhase) {
        let Some(erasure) = &mut self.erasure else { return };
        erasure.begin(phase);
        let io = match phase {
            ErasePhase::Settle
            | ErasePhase::MarkSync { .. }
            | ErasePhase::OverwriteSync
            | ErasePhase::GiveBackSync
            | ErasePhase::BeginSync
            | ErasePhase::NameSync { .. } => Io::Sync,
            ErasePhase::Mark { .. } | ErasePhase::Name { .. } => {
                let erasing = matches!(phase, ErasePhase::Mark { .. });
                let next = Superblock { erasing, ..self.durability.superblocks.current().clone() };
                self.durability.superblocks.write(next)
            }
            ErasePhase::Begin => {
                let (old, opening) = (self.durability.superblocks.current(), &self.opening);
                match new_store(old, &self.log.head, opening.options.open_id, opening.dir.as_deref()) {
                    Ok(first) => {
                        let buffers = first_segment(&first).buffers;
                        self.durability.superblocks.replace(first);
                        Io::Write { offset: self.medium.volume.layout.segment_at(0), buffers }
                    }
                    Err(error) => return self.medium.refusal.begin("beginning a new store after the erase", &error),
                }
            }
            ErasePhase::Opening => return self.open_new_store(),
            ErasePhase::Quiet | ErasePhase::Key | ErasePhase::Overwrite | ErasePhase::GiveBack => return,
        };
        if let Some(erasure) = &mut self.erasure {
            erasure.start_io(&mut self.medium.io, io);
        }
    }

    pub(super) fn erase_io_done(&mut self, result: io::Result<()>) {
        let erasure = self.erasure.as_mut().expect("an erase ends with its last I/O");
        let result = erasure.io_done(result);
        if self.durability.superblocks.is_writing() {
            self.durability.superblocks.write_done(result.is_ok() && !erasure.is_halted());
            // The phases sync it.
            self.durability.superblocks.synced();
        }
        if let Err(error) = result {
            return self.medium.refusal.begin("erasing the store", &error);
        }
        match erasure.phase() {
            ErasePhase::Overwrite | ErasePhase::GiveBack => {}
            _ if erasure.is_halted() => {}
            _ => {
                let next = erasure.next_phase();
                self.begin_erase_phase(next);
            }
        }
    }

    /// The new store is on the medium; in memory it begins here, as after an opening.
    fn open_new_store(&mut self) {
        let open_id = self.log.head.open_id;
        let (superblock, copy) = (self.durability.superblocks.current().clone(), self.durability.superblocks.copy());
        let Recovered { map, segments, operations, head, .. } = fresh(superblock, copy, open_id);
        (self.views.map, self.medium.segments) = (map, segments);
        // Initiators register again: no operation of theirs is known.
        self.writes.begin_log(operations, head.next_sequence);
        self.medium.volume = Volume::new(self.durability.superblocks.current(), self.opening.options.planted);
        self.log.begin_log(head);
        self.reader.clear();
        self.views.retention.clear_feedback();
        self.views.retention.restore_limit();
        self.durability.syncs.begin_log();
        self.durability.checkpointer.begin_log(&self.medium.volume);
        self.reclaimer.compactor.begin_log();
        self.scrub = Scrub::starting_at(open_id, self.opening.options.cleaning_piece_bytes as usize);
        self.reclaimer.space.begin_log(self.medium.volume.info.volume_id);
        self.durability.round = Round::default();
        self.durability.round.begin_opening();
        let counts = self.counts();
        self.reclaimer.space.update_state(&counts);
    }
}

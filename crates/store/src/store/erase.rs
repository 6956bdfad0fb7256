//! Erasing the store: what the phases of an [`Erasure`] do to it.

use std::io;

use strongroom_block::Token;

use super::Store;
use super::erasure::{ErasePhase, Erasure, remove_saved};
use super::format::{first_segment, fresh};
use super::round::Round;
use super::scrub::Scrub;
use super::volume::Volume;
use crate::backend::Io;
use crate::op::{Op, OpError, Outcome};
use crate::options::StoreId;
use crate::random::random;
use crate::recover::Recovered;
use crate::superblock::Superblock;
use crate::view::BranchId;

impl Store {
    /// How far an erase is, in 65536ths; `None`: there is none. Until it is done every request is answered with
    /// [`OpError::Erasing`]; it goes on as long as the store is polled.
    pub fn erase_progress(&self) -> Option<u16> {
        self.erasure.as_ref().map(|erasure| erasure.progress(&self.volume.layout))
    }

    /// Whether an erase is in progress that nothing can undo any more, no crash either.
    pub fn erase_is_certain(&self) -> bool {
        self.erasure.as_ref().is_some_and(Erasure::is_certain)
    }

    /// Whether a cryptographic erase waits for [`Store::key_destroyed`]: nothing can undo it any more.
    pub fn erase_awaits_key(&self) -> bool {
        self.erasure.as_ref().is_some_and(Erasure::awaits_key)
    }

    /// The key was destroyed, so that what is stored is worth nothing: its space is given back. If the key could not be destroyed,
    /// everything is overwritten. Does nothing if no cryptographic erase waits for it.
    pub fn key_destroyed(&mut self, is_destroyed: bool) {
        if self.erase_awaits_key() && !self.requests.is_refused() {
            self.begin_erase_phase(if is_destroyed { ErasePhase::GiveBack } else { ErasePhase::Overwrite });
            self.io.wake();
        }
    }

    /// Begins to erase everything. `by_key`: see [`Op::CryptoErase`].
    pub(super) fn start_erase(&mut self, token: Token, branch: u32, bytes: usize, by_key: bool) -> Result<(), OpError> {
        self.requests.check_writable()?;
        if BranchId(branch) != BranchId::VOLUME {
            return Err(OpError::Depended("a clone shares its blocks with its volume; delete the clone instead"));
        }
        self.check_no_views()?;
        if self.durability.growth.is_some() {
            return Err(OpError::Busy);
        }
        self.erasure = Some(Erasure::new(Some((token, bytes)), by_key));
        self.io.wake();
        Ok(())
    }

    /// The answer to a request while an erase is in progress; `None`: there is none.
    pub(super) fn answer_while_erasing(&mut self, token: Token, op: &Op, bytes: usize) -> Option<Result<(), OpError>> {
        let erasure = self.erasure.as_mut()?;
        let is_erase = matches!(op, Op::Erase | Op::CryptoErase);
        Some(match () {
            () if self.requests.is_refused() => Err(self.requests.refusal()),
            () if is_erase => erasure.join(token, bytes),
            () => Err(OpError::Erasing),
        })
    }

    /// Whether nothing but the volume itself would be erased.
    fn check_no_views(&self) -> Result<(), OpError> {
        let catalogue = &self.views.map.catalogue;
        if catalogue.snapshots.is_empty() && catalogue.branches.len() == 1 {
            return Ok(());
        }
        let depended = "the volume has snapshots or clones (or one is being received), and an erase would leave nothing of \
                        them; delete those first";
        Err(OpError::Depended(depended))
    }

    /// Whether an erase has more to do than this poll allowed.
    pub(super) fn erase_goes_on(&self) -> bool {
        !self.requests.is_refused() && self.erasure.as_ref().is_some_and(Erasure::goes_on)
    }

    /// Moves an erase on.
    pub(super) fn drive_erase(&mut self) -> bool {
        let Some(erasure) = &mut self.erasure else { return false };
        if self.requests.is_refused() {
            let (has_ended, is_only_requested) = (erasure.is_idle(), erasure.is_only_requested());
            let progress = has_ended && self.answer_erase(Err(self.requests.refusal()));
            // Nothing is erased yet: what there is can still be read.
            self.erasure.take_if(|_| is_only_requested);
            return progress;
        }
        let layout = &self.volume.layout;
        match erasure.phase() {
            ErasePhase::Quiet if !erasure.is_halted() => {
                if self.writes.is_empty() {
                    // What was accepted before has the space that it needs. From then on nothing is copied any more.
                    self.compactor.stop(true);
                }
                self.is_quiet() && self.begin_erasing()
            }
            ErasePhase::Overwrite if !erasure.is_halted() => erasure.overwrite(&mut self.io, layout) | self.end_pass(),
            ErasePhase::GiveBack if !erasure.is_halted() => erasure.give_back(&mut self.io, layout) | self.end_pass(),
            ErasePhase::Opening if self.durability.round.is_blocked() => {
                self.requests.refuse_writes("opening the erased store", &io::ErrorKind::StorageFull.into());
                true
            }
            ErasePhase::Opening if !self.durability.round.is_opening() && self.durability.is_idle() => {
                let progress = self.answer_erase(Ok(Outcome::Changed));
                self.erasure = None;
                tracing::warn!(volume = %self.volume.info.volume_id, "the store was erased");
                progress
            }
            _ => false,
        }
    }

    /// The store is being closed: what has not begun does not begin any more, and the writes before it count; the rest goes on at the next
    /// opening.
    pub(super) fn halt_erase(&mut self) {
        if self.erasure.as_ref().is_some_and(Erasure::is_only_requested) {
            self.answer_erase(Err(OpError::Busy));
            self.erasure = None;
        }
        if let Some(erasure) = &mut self.erasure {
            erasure.halt();
        }
    }

    fn answer_erase(&mut self, result: Result<Outcome, OpError>) -> bool {
        let caller = self.erasure.as_mut().and_then(Erasure::take_caller);
        if let Some((token, bytes)) = caller {
            self.requests.complete(token, bytes, result);
        }
        caller.is_some()
    }

    /// Whether everything accepted before the erase is over, the answers to requests that wait to be durable included.
    fn is_quiet(&self) -> bool {
        let has_appended = self.writes.is_empty() && self.log.is_empty() && !self.log.group.open;
        let has_answered =
            has_appended && self.durability.syncs.is_idle() && !self.views.hiding.is_busy() && self.reader.is_idle();
        has_answered && self.io.is_idle() && self.durability.is_idle() && self.durability.growth.is_none()
    }

    /// Everything accepted before is over: it may have made a snapshot.
    fn begin_erasing(&mut self) -> bool {
        if let Err(depended) = self.check_no_views() {
            self.answer_erase(Err(depended));
            self.erasure = None;
            self.compactor.stop(false);
            return true;
        }
        tracing::warn!(volume = %self.volume.info.volume_id, "erasing the store: everything in it will be lost");
        self.begin_erase_phase(ErasePhase::Settle);
        true
    }

    fn begin_erase_phase(&mut self, phase: ErasePhase) {
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
            ErasePhase::Begin => match self.begin_new_store() {
                Ok(io) => io,
                Err(error) => return self.requests.refuse_writes("beginning a new store after the erase", &error),
            },
            ErasePhase::Opening => return self.open_new_store(),
            ErasePhase::Quiet | ErasePhase::Key | ErasePhase::Overwrite | ErasePhase::GiveBack => return,
        };
        if let Some(erasure) = &mut self.erasure {
            erasure.start_io(&mut self.io, io);
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
            return self.requests.refuse_writes("erasing the store", &error);
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

    /// Goes on to the next phase when a pass over the log is complete.
    fn end_pass(&mut self) -> bool {
        let layout = &self.volume.layout;
        let Some(erasure) = self.erasure.as_ref().filter(|erasure| erasure.pass_is_over(layout)) else { return false };
        let next = erasure.next_phase();
        self.begin_erase_phase(next);
        true
    }

    /// The new store's superblock in memory, and its first segment to be written. What repairs saved beside the log is removed too.
    fn begin_new_store(&mut self) -> io::Result<Io> {
        if let Some(dir) = &self.opening.dir {
            remove_saved(dir)?;
        }
        let old = self.durability.superblocks.current();
        let store_id = match self.opening.options.open_id {
            None => StoreId(random().map_err(|error| io::Error::other(error.to_string()))?),
            // Of a simulation: it must only differ.
            Some(_) => StoreId(u128::from_be_bytes(old.store_id.0).wrapping_mul(0x5851_f42d).to_be_bytes()),
        };
        let head = &self.log.head;
        let sequence = head.next_sequence.max(old.sequence_limit);
        let generation = head.next_generation.max(old.next_generation);
        let first = Superblock {
            store_id,
            open_epoch: old.open_epoch.max(head.open_epoch) + 1,
            // Never one that was used before: feedback on a version must not release another one.
            sequence_limit: sequence + 1,
            next_generation: generation + 1,
            // Both copies say so, in turn, when the segment is durable.
            table_segment: 0,
            table_block: 0,
            table_lsn: 1,
            second_table: None,
            durable_lsn: 2 - u64::from(old.kind.is_sealed()),
            open_id: 0,
            clean: true,
            checkpoint: None,
            ..old.clone()
        };
        let buffers = first_segment(&first).buffers;
        self.durability.superblocks.replace(first);
        Ok(Io::Write { offset: self.volume.layout.segment_at(0), buffers })
    }

    /// The new store is on the medium; in memory it begins here, as after an opening.
    fn open_new_store(&mut self) {
        let open_id = self.log.head.open_id;
        let (superblock, copy) = (self.durability.superblocks.current().clone(), self.durability.superblocks.copy());
        let Recovered { map, segments, operations, head, .. } = fresh(superblock, copy, open_id);
        (self.views.map, self.segments) = (map, segments);
        // Initiators register again: no operation of theirs is known.
        self.writes.begin_log(operations, head.next_sequence);
        self.volume = Volume::new(self.durability.superblocks.current(), self.opening.options.planted);
        self.log.begin_log(head);
        self.reader.clear();
        self.views.retention.clear_feedback();
        self.views.retention.restore_limit();
        self.durability.syncs.begin_log();
        self.durability.checkpointer.begin_log(&self.volume);
        self.compactor.begin_log();
        self.scrub = Scrub::starting_at(open_id, self.opening.options.cleaning_piece_bytes as usize);
        self.space.begin_log(self.volume.info.volume_id);
        self.durability.round = Round::default();
        self.durability.round.begin_opening();
        let counts = self.counts();
        self.space.update_state(&counts);
    }
}

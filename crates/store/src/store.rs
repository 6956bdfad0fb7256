//! The store as a machine: requests in, completions out. It wires its parts, which are in the files of `store/`: each owns its state and
//! decides about it, and the store carries out what concerns several of them.
//!
//! Everything that changes the index happens when an append completes, in the order of the log. What is queued while one is
//! in flight goes into the next one together (group commit); only when much is queued are several in flight.

mod access;
mod append;
mod appender;
mod apply;
mod checkpoint_content;
mod checkpointer;
mod compaction;
mod compactor;
mod conditions;
mod create;
mod damaged;
mod directory;
mod durability;
mod durable;
mod erase;
mod erasure;
mod format;
mod grow;
mod growth;
mod hiding;
mod io;
mod live;
mod memory;
mod opening;
mod pinned;
mod policy;
mod queue;
mod read_parts;
mod reader;
mod reading;
mod receive;
mod reception;
mod replay;
mod request;
mod requests;
mod retention;
mod round;
mod runs;
mod scrub;
mod send;
mod space;
mod stats;
mod submit;
mod superblocks;
mod syncs;
mod table;
mod update;
mod victims;
mod views;
mod volume;
mod widening;

use std::os::fd::OwnedFd;
use std::path::Path;

use strongroom_block::Token;

use crate::backend::{Backend, IoKind, Waker};
use crate::error::StoreError;
use crate::op::{Completion, Op, OpError, Outcome};
use crate::options::{OpenOptions, VolumeInfo};
use crate::planted::PlantedFault;
use crate::recover::Recovered;
use crate::segments::Segments;
use crate::steps;
use crate::view::View;

use appender::Appender;
use checkpointer::Checkpointer;
use compactor::Compactor;
pub use damaged::{DamageReport, SuspectBlocks};
pub(crate) use directory::{locked_log, log_for_reading};
use durability::Durability;
use erasure::Erasure;
use io::{IoQueue, Purpose};
pub use memory::{Admission, MemoryUse};
use opening::Opening;
pub use pinned::PinnedCount;
use queue::WriteQueue;
use reader::Reader;
pub use receive::{ReceiveStep, Receiver};
pub use reception::ReceptionInfo;
use request::UnitLimits;
use requests::Requests;
use round::Round;
pub use runs::Run;
use scrub::Scrub;
pub use send::{SendStep, Sender};
use space::Space;
use superblocks::Superblocks;
use syncs::Syncs;
use views::Views;
use volume::Volume;

/// One volume, open.
///
/// ```no_run
/// use std::sync::Arc;
/// use strongroom_block::{Lba, Token};
/// use strongroom_store::{Op, OpenOptions, Store};
///
/// let mut store = Store::open("volumes/projects".as_ref(), &OpenOptions::default(), Arc::new(|| {}))?;
/// store.submit(Token(1), Op::Read { lba: Lba(0), count: 8 });
/// let mut done = Vec::new();
/// store.poll_completions(&mut done);
/// # Ok::<(), strongroom_store::StoreError>(())
/// ```
pub struct Store {
    opening: Opening,
    volume: Volume,
    views: Views,
    segments: Segments,
    io: IoQueue,
    requests: Requests,
    writes: WriteQueue,
    reader: Reader,
    log: Appender,
    durability: Durability,
    space: Space,
    compactor: Compactor,
    scrub: Scrub,
    erasure: Option<Erasure>,
    /// Most steps that one poll has taken.
    poll_steps_max: u64,
}

impl Store {
    /// Opens the store in `dir`, takes its lock, recovers. `waker` is called, from any thread, when there is something
    /// new to poll.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Exists` and `Options`.
    pub fn open(dir: &Path, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let (lock, (log, io_reason)) = locked_log(dir, options.io)?;
        let mut store = Store::open_on(log, options, waker)?;
        store.opening.locked(lock, dir, io_reason);
        Ok(store)
    }

    /// Opens the store on a backend. One that was being erased is open too: then the erase goes on, see
    /// [`Store::erase_progress`].
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(mut backend: Box<dyn Backend>, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let open_id = match options.open_id {
            Some(id) => id,
            None => u64::from_be_bytes(crate::random::random()?),
        };
        let pass_over = options.read_only_if_damaged;
        let recovered = crate::recover::recover_with(backend.as_mut(), open_id, options.planted, pass_over);
        backend.set_waker(waker.clone());
        if matches!(recovered, Err(StoreError::Erasing)) {
            return Store::erase_on(backend, options, waker, open_id);
        }
        let (recovered, damage) = recovered?;
        if damage.is_none() {
            recovered.fill_tables(backend.as_mut())?;
        }
        let mut store = Store::from_recovered(backend, options.clone(), waker, recovered);
        if damage.is_none() {
            store.begin_epoch()?;
        } else {
            store.open_damaged(damage);
        }
        Ok(store)
    }

    pub(crate) fn from_recovered(
        backend: Box<dyn Backend>,
        options: OpenOptions,
        waker: Waker,
        recovered: Recovered,
    ) -> Store {
        let Recovered { mut superblock, superblock_copy, map, segments, operations, head, checkpoint, .. } = recovered;
        let from_checkpoint = superblock.checkpoint.is_some();
        let open_id = head.open_id;
        let constant = options.planted.has(PlantedFault::ConstantIncarnation);
        if superblock.incarnation == 0 || !superblock.clean && !constant {
            // 0 says that none was drawn.
            superblock.incarnation = open_id.max(1);
        }
        superblock.bases_from.get_or_insert(head.next_sequence);
        let volume = Volume::new(&superblock, options.planted);
        let volume_id = volume.info.volume_id;
        // Elsewhere the kernel has it in memory already.
        let direct = matches!(backend.kind(), IoKind::DirectUring | IoKind::Direct);
        let data_cache_bytes = if direct { options.data_cache_bytes } else { 0 };
        let piece_bytes = options.cleaning_piece_bytes as usize;
        let limits = UnitLimits::new(&volume.layout, options.append_unit_bytes_max);
        Store {
            views: Views::new(map),
            segments,
            io: IoQueue::new(backend, waker),
            requests: Requests::new(volume_id, &options),
            writes: WriteQueue::new(operations, head.next_sequence),
            reader: Reader::new(options.record_cache_bytes, data_cache_bytes, volume.block_bytes()),
            log: Appender::new(head, limits),
            durability: Durability {
                syncs: Syncs::default(),
                round: Round::default(),
                superblocks: Superblocks::new(superblock, superblock_copy),
                checkpointer: Checkpointer::new(&volume, options.checkpoint_log_bytes, checkpoint),
                growth: None,
            },
            space: Space::new(volume_id),
            compactor: Compactor::new(piece_bytes),
            scrub: Scrub::starting_at(open_id, piece_bytes),
            erasure: None,
            poll_steps_max: 0,
            opening: Opening::new(options, from_checkpoint),
            volume,
        }
    }

    /// What the store says of its volume.
    pub fn info(&self) -> &VolumeInfo {
        &self.volume.info
    }

    /// Stays the same across an orderly close, and is drawn again by every other opening: then acknowledged writes that were not flushed
    /// may be lost, and an initiator that remembers another incarnation replays those.
    pub fn incarnation(&self) -> u64 {
        self.durability.superblocks.current().incarnation
    }

    /// How the log is read and written.
    pub fn io_kind(&self) -> IoKind {
        self.io.kind()
    }

    /// Why it is not done in a better way; `None`: there is none.
    pub fn io_reason(&self) -> Option<&str> {
        self.opening.io_reason.as_deref()
    }

    /// Asks that completions of I/O count this eventfd up, instead of calling the waker from a thread of the store. False
    /// if the backend cannot do that: then the waker is called. To be called once, soon after opening.
    pub fn signal_completions(&mut self, eventfd: &OwnedFd) -> bool {
        self.io.set_completion_fd(eventfd)
    }

    /// How many I/Os are in flight.
    pub fn ios_in_flight(&self) -> usize {
        self.io.in_flight()
    }

    /// Blocks until there is something to poll; for tools that do nothing else meanwhile.
    pub fn wait(&mut self) {
        if !self.requests.has_done() {
            self.io.wait();
        }
    }

    /// How many requests were accepted and have not completed.
    pub fn ops_in_flight(&self) -> usize {
        self.requests.ops_in_flight()
    }

    /// Advances everything as far as possible and appends what has finished to `completions`; returns how many.
    /// Never blocks (but for what the backend does in place).
    pub fn poll_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = steps::steps_taken();
        self.new_poll();
        self.drive();
        self.poll_steps_max = self.poll_steps_max.max(steps::steps_taken() - before);
        self.requests.take_done(completions)
    }

    /// Does one request and waits for it: for tools and tests, not for a worker. Completions of other requests in
    /// flight stay to be polled.
    ///
    /// # Errors
    /// As the request.
    pub fn execute(&mut self, op: Op) -> Result<Outcome, OpError> {
        self.execute_on(View::default(), op)
    }

    /// As [`Store::execute`], addressed to a branch or a snapshot.
    ///
    /// # Errors
    /// As the request.
    pub fn execute_on(&mut self, view: View, op: Op) -> Result<Outcome, OpError> {
        const TOKEN: Token = Token(u64::MAX);
        self.submit_to(TOKEN, view, op);
        self.wait_for(TOKEN)
    }

    /// Drives until a request is answered; answers of others stay to be polled.
    fn wait_for(&mut self, token: Token) -> Result<Outcome, OpError> {
        loop {
            self.new_poll();
            self.drive();
            if let Some(result) = self.requests.take_result(token) {
                return result;
            }
            let more = self.compactor.is_held_back() || self.erase_goes_on() || self.views.hiding.is_busy();
            let more = more || self.space.room.awaits_slices();
            assert!(!self.io.is_idle() || more, "a request waits for nothing");
            self.io.wait();
        }
    }

    /// To be called when nothing was requested for a second or so: notes on the medium what is durable, so that damage to
    /// the last flushed writes is told from writes that were never flushed; frees dead segments; compacts a little.
    pub fn idle(&mut self) {
        self.new_poll();
        self.look_at_host();
        self.compactor.retry_unread();
        self.durability.round.set_idle(true);
        let counts = self.counts();
        let cooling = self.space.cool(&mut self.segments, &counts);
        self.durability.round.release(cooling);
        if self.writes.is_empty() {
            self.space.begin_relief();
        }
        self.views.retention.flush_feedback();
        self.drive();
        self.durability.round.set_idle(false);
        self.durability.want_note(self.log.head.durable_lsn);
        self.drive();
    }

    /// Finishes what is in flight, syncs, and marks the store as closed in order. Results of requests that were not
    /// polled are lost.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the last sync fails; what was flushed before is safe.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.compactor.stop(true);
        if self.requests.damage().is_some() {
            self.settle();
            return Ok(());
        }
        self.views.retention.flush_feedback();
        self.halt_erase();
        self.settle();
        let flushed = self.execute(Op::Flush);
        self.settle();
        if flushed.is_ok() {
            self.mark_closed();
        }
        match self.requests.refusal_reason() {
            None => Ok(()),
            Some(reason) => Err(StoreError::io("closing the store")(std::io::Error::other(reason.to_owned()))),
        }
    }

    fn new_poll(&mut self) {
        self.io.new_poll();
        self.writes.new_poll();
        self.compactor.new_poll();
        self.durability.round.new_poll();
        self.durability.checkpointer.new_poll();
        self.scrub.new_poll();
        let unsliced = self.volume.has_planted(PlantedFault::UnslicedHiding);
        self.views.hiding.new_poll(if unsliced { u64::MAX } else { self.opening.options.hide_blocks_per_poll });
        if let Some(erasure) = &mut self.erasure {
            erasure.new_poll();
        }
    }

    /// Drives until nothing is in flight.
    fn settle(&mut self) {
        loop {
            self.new_poll();
            self.drive();
            if self.io.is_idle() {
                return;
            }
            self.io.wait();
        }
    }

    /// Advances everything as far as this poll allows.
    fn drive(&mut self) {
        loop {
            let mut progress = self.take_io() | self.drive_erase();
            if !self.erasure.as_ref().is_some_and(Erasure::is_exclusive) {
                progress |= self.drive_append();
                progress |= self.drive_hiding();
                progress |= self.drive_compactor();
                progress |= self.drive_round();
                progress |= self.drive_checkpointer();
                progress |= self.drive_syncs();
                progress |= self.allocate_ahead();
                progress |= self.drive_scrub();
            }
            progress |= self.io.take_started();
            if !progress {
                break;
            }
        }
        // In any case: a slice of merging is done here.
        let goes_on = self.wants_poll();
        if goes_on || self.io.has_finished() {
            self.io.wake();
        }
    }

    /// Whether work that is done in slices goes on in the next poll.
    fn wants_poll(&mut self) -> bool {
        if self.erasure.is_some() && self.writes.is_empty() {
            return self.erase_goes_on() || self.views.hiding.is_busy();
        }
        let checkpoint =
            self.durability.checkpointer.goes_on() && !self.compactor.is_stopped() && !self.requests.is_refused();
        let awaited = self.space.room.awaits_slices() && (!self.writes.is_empty() || self.wants_relief());
        let awaited = awaited || self.scrub.goes_on();
        self.merge_views() || self.compactor.is_held_back() || checkpoint || self.views.hiding.is_busy() || awaited
    }

    /// Processes finished I/Os.
    fn take_io(&mut self) -> bool {
        self.io.poll();
        let mut progress = false;
        while let Some((purpose, result)) = self.io.next_finished() {
            progress = true;
            match purpose {
                Purpose::Append { lsn } => self.append_done(lsn, result.map(drop)),
                Purpose::Allocate => self.allocate_done(result.map(drop)),
                Purpose::Sync => self.sync_done(result.map(drop)),
                Purpose::Superblock => self.superblock_done(result.map(drop)),
                Purpose::Reserve { segment } => self.reserve_done(segment, result.map(drop)),
                Purpose::Discard { segment } => self.discard_done(segment, result.map(drop)),
                Purpose::ReadData { .. } | Purpose::ReadRecord { .. } => self.read_done(purpose, result),
                Purpose::Compact { segment, piece } => self.victim_read(segment, piece, result),
                Purpose::Scrub => self.scrub_piece_read(result),
                Purpose::Checkpoint => self.checkpoint_written(result.map(drop)),
                Purpose::Erase => self.erase_io_done(result.map(drop)),
            }
        }
        progress
    }
}

//! An open store as its callers see it: requests in, completions out, and what it tells about itself. The `engine` does the work: it wires
//! the parts, which are in the files of `store/`.

mod access;
mod append;
mod appender;
mod apply;
mod checkpoint_content;
mod checkpointer;
mod compactor;
mod conditions;
mod create;
mod damaged;
mod directory;
mod durability;
mod engine;
mod erase;
mod erasure;
mod format;
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
mod receive;
mod reception;
mod reclaimer;
mod refusal;
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
mod volume_index;
mod widening;

use std::os::fd::OwnedFd;
use std::path::Path;

use strongroom_block::Token;

use crate::backend::{Backend, IoKind, Waker};
use crate::error::StoreError;
use crate::op::{Completion, Op, OpError, Outcome};
use crate::options::{OpenOptions, VolumeInfo};
use crate::recover::{Damage, Recovered};
use crate::steps;
use crate::view::View;

use access::ReadAccess;
pub(crate) use create::open_recovered;
pub use damaged::{DamageReport, SuspectBlocks};
pub(crate) use directory::{locked_log, log_for_reading};
use engine::Engine;
use erasure::{ErasePhase, Erasure};
pub use memory::{Admission, MemoryUse};
pub use pinned::PinnedCount;
pub use receive::{ReceiveStep, Receiver};
pub use reception::ReceptionInfo;
use reclaimer::Reclaimer;
pub use runs::Run;
pub use scrub::ScrubReport;
pub use send::{SendStep, Sender};
pub use volume_index::VolumeIndex;

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
    engine: Engine,
    /// Most steps that one poll has taken.
    poll_steps_max: u64,
}

/// Opening and closing.
impl Store {
    /// Opens the store in `dir`, takes its lock, recovers. `waker` is called, from any thread, when there is something
    /// new to poll.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Exists` and `Options`.
    pub fn open(dir: &Path, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let (lock, (log, io_reason)) = locked_log(dir, options.io)?;
        let mut store = Store::open_on(log, options, waker)?;
        store.engine.opening.locked(lock, dir, io_reason);
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
            return create::open_erasing(backend, options, waker, open_id);
        }
        let (recovered, damage) = recovered?;
        if damage.is_none() {
            recovered.fill_tables(backend.as_mut())?;
        }
        let mut store = Store::from_recovered(backend, options.clone(), waker, recovered);
        if damage.is_none() {
            store.engine.begin_epoch()?;
        } else {
            // It stays as recovered: nothing is written, and no writes are accepted.
            let (volume, places) = (store.info().volume_id, damage.places.len());
            tracing::error!(%volume, places, "the log is damaged: opened read-only, blocks may be missing or old");
            store.engine.medium.refusal.set_damage(damage);
        }
        Ok(store)
    }

    fn from_recovered(backend: Box<dyn Backend>, options: OpenOptions, waker: Waker, recovered: Recovered) -> Store {
        Store { engine: Engine::new(backend, options, waker, recovered), poll_steps_max: 0 }
    }

    /// Finishes what is in flight, syncs, and marks the store as closed in order. Results of requests that were not
    /// polled are lost.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the last sync fails; what was flushed before is safe.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.engine.reclaimer.compactor.stop(true);
        if self.damage().is_some() {
            self.engine.settle();
            return Ok(());
        }
        self.engine.views.retention.flush_feedback();
        let Engine { erasure, requests, .. } = &mut self.engine;
        erasure.take_if(|erasure| erasure.halt(requests));
        self.engine.settle();
        let flushed = self.execute(Op::Flush);
        self.engine.settle();
        if flushed.is_ok() {
            self.engine.mark_closed();
        }
        match self.engine.medium.refusal.reason() {
            None => Ok(()),
            Some(reason) => Err(StoreError::io("closing the store")(std::io::Error::other(reason.to_owned()))),
        }
    }
}

/// Requests.
impl Store {
    /// Accepts a request. Writes are worked on in the next [`Store::poll_completions`], so that requests submitted
    /// together share one append. Every request completes, once. `token` must be unique among requests in flight.
    ///
    /// Requests in flight at the same time are not ordered among each other, but a write that completed is seen by every
    /// read submitted afterwards.
    pub fn submit(&mut self, token: Token, op: Op) {
        self.submit_to(token, View::default(), op);
    }

    /// As [`Store::submit`], addressed to a branch or a snapshot. A flush is always of everything.
    pub fn submit_to(&mut self, token: Token, view: View, op: Op) {
        self.engine.submit(token, view, op);
    }

    /// Advances everything as far as possible and appends what has finished to `completions`; returns how many.
    /// Never blocks (but for what the backend does in place).
    pub fn poll_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = steps::steps_taken();
        self.engine.new_poll();
        self.engine.drive();
        self.poll_steps_max = self.poll_steps_max.max(steps::steps_taken() - before);
        self.engine.requests.take_done(completions)
    }

    /// Blocks until there is something to poll; for tools that do nothing else meanwhile.
    pub fn wait(&mut self) {
        if !self.engine.requests.has_done() {
            self.engine.medium.io.wait();
        }
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
        self.engine.wait_for(TOKEN)
    }

    /// How many requests were accepted and have not completed.
    pub fn ops_in_flight(&self) -> usize {
        self.engine.requests.ops_in_flight()
    }

    /// How many I/Os are in flight.
    pub fn ios_in_flight(&self) -> usize {
        self.engine.medium.io.in_flight()
    }

    /// Asks that completions of I/O count this eventfd up, instead of calling the waker from a thread of the store. False
    /// if the backend cannot do that: then the waker is called. To be called once, soon after opening.
    pub fn signal_completions(&mut self, eventfd: &OwnedFd) -> bool {
        self.engine.medium.io.set_completion_fd(eventfd)
    }
}

/// What the caller decides about its running.
impl Store {
    /// To be called when nothing was requested for a second or so: notes on the medium what is durable, so that damage to
    /// the last flushed writes is told from writes that were never flushed; frees dead segments; compacts a little.
    pub fn idle(&mut self) {
        let engine = &mut self.engine;
        engine.new_poll();
        engine.reclaim(Reclaimer::begin_idle);
        engine.views.retention.flush_feedback();
        engine.drive();
        engine.durability.round.set_idle(false);
        engine.durability.want_note(engine.log.head.durable_lsn);
        engine.drive();
    }

    /// Begins to scrub the next segment, unless anything else is going on. To be called when nothing was requested for a while, about
    /// once a second; [`Stats::scrub_passes`](crate::Stats::scrub_passes) tells when everything was read once.
    pub fn scrub(&mut self) {
        if self.ops_in_flight() == 0 && self.engine.medium.io.is_idle() {
            self.scrub_beside();
        }
    }

    /// The same beside requests, for a store that is never idle. The caller keeps to a share of time: it pauses in proportion to how long
    /// [`Store::is_scrubbing`] is true.
    pub fn scrub_beside(&mut self) {
        if !self.is_scrubbing() && !self.engine.background_is_stopped() {
            let access = &mut ReadAccess { map: &self.engine.views.map, medium: &mut self.engine.medium };
            self.engine.scrub.begin_segment(access);
        }
    }

    /// The key was destroyed, so that what is stored is worth nothing: its space is given back. If the key could not be destroyed,
    /// everything is overwritten. Does nothing if no cryptographic erase waits for it.
    pub fn key_destroyed(&mut self, is_destroyed: bool) {
        if self.erase_awaits_key() && !self.engine.medium.refusal.is_active() {
            self.engine.begin_erase_phase(if is_destroyed { ErasePhase::GiveBack } else { ErasePhase::Overwrite });
            self.engine.medium.io.wake();
        }
    }

    /// New bounds of the caches of record blocks and of data, in bytes. What is over a smaller bound is dropped at once. Data stays
    /// uncached where the store was opened with buffered I/O, or without a data cache: then the kernel caches it.
    pub fn set_cache_bytes(&mut self, record_bytes: usize, data_bytes: usize) {
        self.engine.reader.set_cache_bytes(record_bytes, data_bytes);
    }

    /// Which requests it accepts from now on.
    pub fn set_admission(&mut self, admission: Admission) {
        self.engine.requests.set_admission(admission);
    }
}

/// What it tells about itself; [`Store::stats`] has counters and sizes.
impl Store {
    /// What the store says of its volume.
    pub fn info(&self) -> &VolumeInfo {
        &self.engine.medium.volume.info
    }

    /// What its index tells: views, which blocks are there, what to verify and to send.
    pub fn index(&self) -> VolumeIndex<'_> {
        VolumeIndex { map: &self.engine.views.map, volume: &self.engine.medium.volume, damage: self.damage() }
    }

    /// Stays the same across an orderly close, and is drawn again by every other opening: then acknowledged writes that were not flushed
    /// may be lost, and an initiator that remembers another incarnation replays those.
    pub fn incarnation(&self) -> u64 {
        self.engine.durability.superblocks.current().incarnation
    }

    /// How the log is read and written.
    pub fn io_kind(&self) -> IoKind {
        self.engine.medium.io.kind()
    }

    /// Why it is not done in a better way; `None`: there is none.
    pub fn io_reason(&self) -> Option<&str> {
        self.engine.opening.io_reason.as_deref()
    }

    /// What opening passed over; `None`: the store is not open read-only because of damage.
    pub fn damage(&self) -> Option<&Damage> {
        self.engine.medium.refusal.damage()
    }

    /// How far scrubbing is, and what it has found.
    pub fn scrub_report(&self) -> ScrubReport {
        self.engine.scrub.report(&self.engine.medium.volume.layout)
    }

    /// Whether a segment is being read, or searched for blocks that can still be read.
    pub fn is_scrubbing(&self) -> bool {
        self.engine.scrub.is_busy()
    }

    /// How far an erase is, in 65536ths; `None`: there is none. Until it is done every request is answered with
    /// [`OpError::Erasing`]; it goes on as long as the store is polled.
    pub fn erase_progress(&self) -> Option<u16> {
        self.engine.erasure.as_ref().map(|erasure| erasure.progress(&self.engine.medium.volume.layout))
    }

    /// Whether an erase is in progress that nothing can undo any more, no crash either.
    pub fn erase_is_certain(&self) -> bool {
        self.engine.erasure.as_ref().is_some_and(Erasure::is_certain)
    }

    /// Whether a cryptographic erase waits for [`Store::key_destroyed`]: nothing can undo it any more.
    pub fn erase_awaits_key(&self) -> bool {
        self.engine.erasure.as_ref().is_some_and(Erasure::awaits_key)
    }
}

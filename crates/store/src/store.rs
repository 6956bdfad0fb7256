//! The machine: requests in, completions out. The parts of its work are in the files of `store/`.
//!
//! Everything that changes the index happens when an append completes, in the order of the log. What is queued while one is
//! in flight goes into the next one together (group commit); only when much is queued do several go side by side.

mod append;
mod branches;
mod checkpoint;
mod clean;
mod create;
mod damaged;
mod durable;
mod erase;
mod gate;
mod group;
mod grow;
mod hide;
mod log;
mod memory;
mod operations;
mod pinned;
mod read;
mod receive;
mod runs;
mod scrub;
mod send;
mod space;
mod submit;
mod superseded;
mod table;
mod victims;
mod widening;

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;
use slab::Slab;
use strongroom_block::{StoreSequence, Token};

use crate::backend::{Backend, Io, IoDone, IoKind, Waker};
use crate::cache::{Cache, DataKey, RecordKey};
use crate::error::StoreError;
use crate::layout::{Layout, RECORD_BLOCK};
use crate::map::BlockMap;
use crate::op::{Completion, Op, OpError, Outcome};
use crate::operations::Operations;
use crate::options::{OpenOptions, Stats, VolumeInfo};
use crate::planted::PlantedFault;
use crate::recover::Damage;
use crate::segments::Segments;
use crate::superblock::Superblock;
use crate::view::View;

use append::WriteOp;
use branches::Feedback;
pub(crate) use branches::Verified;
pub(crate) use checkpoint::Checkpoints;
use clean::Cleaner;
pub(crate) use create::{Recovered, blocking, random};
pub use damaged::{DamageReport, SuspectBlocks};
use durable::{Round, Syncs};
use erase::Erasing;
use group::Group;
use grow::Growing;
use hide::Hiding;
use log::Appends;
pub(crate) use log::Head;
pub use memory::{Admission, MemoryUse};
pub use pinned::PinnedCount;
pub(crate) use read::item_checksum;
use read::{Along, ReadOp};
pub use receive::{ReceiveStep, Receiver, ReceptionInfo};
pub use runs::Run;
use scrub::Scrub;
pub use send::{SendStep, Sender};
use space::Space;

/// Upper bound on the bytes that cleaning copies in one poll while nobody waits for space.
const CLEANING_PER_POLL_BYTES: u64 = 1 << 20;
/// The same while a write waits for space. The waker asks for the next poll.
const URGENT_PER_POLL_BYTES: u64 = 16 << 20;

/// Reads from a disk that one poll finishes, at most: each takes time to check, and the caller should ask for the next ones before the
/// disk has run out of work.
const READS_PER_POLL: Reads = Reads { count: 8, bytes: 512 << 10 };

/// So many reads.
#[derive(Clone, Copy, Debug)]
struct Reads {
    count: usize,
    bytes: usize,
}

/// What an I/O in flight is for.
enum Purpose {
    Append { lsn: u64 },
    Allocate,
    Sync,
    Superblock,
    Discard { segment: u32 },
    Reserve { segment: u32 },
    ReadData { read: usize, part: usize, along: Option<Along> },
    ReadRecord { key: RecordKey, segment: u32 },
    Clean { segment: u32, piece: usize },
    Scrub,
    Checkpoint,
    Erase,
}

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
    backend: Box<dyn Backend>,
    waker: Waker,
    /// Held as long as the store is open: nobody else may open it.
    lock: Option<File>,
    /// Where the store is, if it is in a directory.
    dir: Option<PathBuf>,
    io_reason: Option<String>,
    options: OpenOptions,
    info: VolumeInfo,
    layout: Layout,
    superblock: Superblock,
    superblock_copy: usize,

    map: BlockMap,
    segments: Segments,
    operations: Operations,
    records: Cache<RecordKey>,
    data: Cache<DataKey>,
    /// Data is cached here, not by the kernel.
    caches_data: bool,
    admission: Admission,
    feedback: Feedback,
    checkpoints: Checkpoints,
    /// How many identities of snapshots this opening gave.
    snapshots_named: u64,

    head: Head,
    /// The first sequence that this opening handed out: smaller ones are of earlier openings.
    first_sequence: u64,
    /// Steps that this poll has spent on what is there instead of a replay.
    judged_in_poll: u64,
    queue: VecDeque<WriteOp>,
    appends: Appends,
    /// How many blocks of the volume always fit into one unit of writes.
    write_unit_holds: u32,
    group: Group,
    reads: Slab<ReadOp>,
    /// Looks at what a queued request replaces.
    next_look: u64,
    record_waits: FxHashMap<RecordKey, Vec<usize>>,
    syncs: Syncs,
    round: Round,
    cleaner: Cleaner,
    scrub: Scrub,
    growing: Option<Growing>,
    erasing: Option<Erasing>,
    hiding: Hiding,
    space: Space,
    /// So many older versions may stay while a request waits for space that they take.
    versions_max: Option<u64>,

    ios: Slab<Purpose>,
    io_done: Vec<IoDone>,
    /// Done, and not looked at yet.
    io_ended: VecDeque<IoDone>,
    /// How many reads this poll may still finish.
    reads_left: Reads,
    /// I/O was begun since the last look at what is over.
    io_begun: bool,
    done: Vec<Completion>,
    ops_in_flight: usize,
    bytes_in_flight: usize,
    /// Why writes are refused, once a write or sync failed.
    refused: Option<String>,
    /// It is open read-only, because of this.
    damage: Option<Damage>,
    stats: Stats,
}

impl Store {
    /// Opens the store in `dir`, takes its lock, recovers. `waker` is called, from any thread, when there is something
    /// new to poll.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Exists` and `Options`.
    pub fn open(dir: &Path, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let (lock, (log, why)) = Store::locked_log(dir, options.io)?;
        let mut store = Store::open_on(log, options, waker)?;
        store.lock = Some(lock);
        store.dir = Some(dir.to_owned());
        store.io_reason = why;
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
            None => u64::from_be_bytes(create::random()?),
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
        let Recovered { mut superblock, superblock_copy, map, segments, operations, head, checkpoints, .. } = recovered;
        let opened_from_checkpoint = superblock.checkpoint.is_some();
        let open_id = head.open_id;
        let constant = options.planted.has(PlantedFault::ConstantIncarnation);
        if superblock.incarnation == 0 || !superblock.clean && !constant {
            // 0 says that none was drawn.
            superblock.incarnation = open_id.max(1);
        }
        superblock.bases_from.get_or_insert(head.next_sequence);
        // Elsewhere the kernel has it in memory already.
        let direct = matches!(backend.kind(), IoKind::DirectUring | IoKind::Direct);
        let data_cache_bytes = if direct { options.data_cache_bytes } else { 0 };
        let mut store = Store {
            backend,
            waker,
            lock: None,
            dir: None,
            io_reason: None,
            info: superblock.info(),
            layout: superblock.layout(),
            records: Cache::new(options.record_cache_bytes.max(RECORD_BLOCK), RECORD_BLOCK),
            data: Cache::new(data_cache_bytes, superblock.layout().block_bytes as usize),
            caches_data: data_cache_bytes > 0,
            admission: Admission::default(),
            options,
            superblock,
            superblock_copy,
            map,
            segments,
            operations,
            first_sequence: head.next_sequence,
            judged_in_poll: 0,
            head,
            feedback: Feedback::default(),
            snapshots_named: 0,
            queue: VecDeque::new(),
            appends: Appends::default(),
            write_unit_holds: 1,
            group: Group::default(),
            reads: Slab::new(),
            next_look: 0,
            record_waits: FxHashMap::default(),
            syncs: Syncs::default(),
            round: Round::default(),
            cleaner: Cleaner::default(),
            scrub: Scrub::starting_at(open_id),
            growing: None,
            erasing: None,
            hiding: Hiding::default(),
            space: Space::default(),
            versions_max: None,
            ios: Slab::new(),
            io_done: Vec::new(),
            io_ended: VecDeque::new(),
            reads_left: READS_PER_POLL,
            io_begun: false,
            done: Vec::new(),
            ops_in_flight: 0,
            bytes_in_flight: 0,
            refused: None,
            damage: None,
            stats: Stats { opened_from_checkpoint, ..Stats::default() },
            checkpoints,
        };
        store.write_unit_holds = append::unit_holds(&store.layout, store.write_unit_blocks());
        store
    }

    /// What the store says of its volume.
    pub fn info(&self) -> &VolumeInfo {
        &self.info
    }

    /// Kept by an orderly close, and drawn again by every other opening: then acknowledged writes that were not flushed may be lost. Who
    /// remembers another one replays those.
    pub fn incarnation(&self) -> u64 {
        self.superblock.incarnation
    }

    /// How the log is read and written.
    pub fn io_kind(&self) -> IoKind {
        self.backend.kind()
    }

    /// Why it is not done in a better way; `None`: there is none.
    pub fn io_reason(&self) -> Option<&str> {
        self.io_reason.as_deref()
    }

    /// Asks that completions of I/O count this eventfd up, instead of calling the waker from a thread of the store. False
    /// if the way in which I/O is done cannot do that: then the waker is called. To be called once, soon after opening.
    pub fn signal_completions(&mut self, eventfd: &OwnedFd) -> bool {
        self.backend.set_completion_fd(eventfd)
    }

    /// How many I/Os are under way.
    pub fn ios_in_flight(&self) -> usize {
        self.ios.len()
    }

    /// Blocks until there is something to poll; for tools that do nothing else meanwhile.
    pub fn wait(&mut self) {
        if self.done.is_empty() {
            self.wait_for_io();
        }
    }

    /// Blocks until something that is under way has ended.
    fn wait_for_io(&mut self) {
        if self.io_ended.is_empty() && !self.ios.is_empty() {
            self.backend.wait();
        }
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        let memory = self.memory();
        Stats {
            blocks_mapped: self.map.blocks(),
            versions_retained: self.map.versions.len(),
            versions_pinned: self.map.versions.pinned(),
            holes: self.map.holes(),
            segments_total: u64::from(self.layout.segments),
            segments_free: u64::from(self.segments.free_count()),
            live_bytes: self.segments.live_bytes(),
            used_bytes: u64::from(self.segments.used_count()) * u64::from(self.layout.segment_bytes),
            index_bytes: memory.index_bytes + memory.hole_bytes + memory.version_bytes,
            hole_bytes: memory.hole_bytes,
            memory_bytes: memory.total(),
            record_cache_bytes: self.records.bytes(),
            record_cache_bytes_max: self.records.bytes_max(),
            data_cache_bytes: self.data.bytes(),
            data_cache_bytes_max: self.data.bytes_max(),
            space: self.space(),
            room_bytes: self.room_bytes(),
            log_free_bytes: self.log_free_bytes(),
            host_free_bytes: self.host_free_bytes(),
            space_percent: self.space_percent(),
            erasing: self.erase_progress(),
            writes_refused: self.refused.is_some(),
            scrubbed_bytes: self.scrub.bytes,
            scrub_passes: self.scrub.passes,
            scrub_bad_blocks: self.scrub.bad_count(),
            ..self.stats
        }
    }

    /// How many requests were taken in and have not completed.
    pub fn ops_in_flight(&self) -> usize {
        self.ops_in_flight
    }

    /// Moves everything forward as far as it goes and appends what has finished to `completions`; returns how many.
    /// Never blocks (but for what the backend does in place).
    pub fn poll_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let before = crate::steps::steps_taken();
        self.new_poll();
        self.drive();
        self.stats.poll_steps_max = self.stats.poll_steps_max.max(crate::steps::steps_taken() - before);
        let count = self.done.len();
        completions.append(&mut self.done);
        count
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
            if let Some(at) = self.done.iter().position(|completion| completion.token == token) {
                return self.done.remove(at).result;
            }
            let more = self.cleaner.held_back || self.erase_goes_on() || self.hiding.is_busy();
            let more = more || self.cleaner.awaits_slices;
            assert!(!self.ios.is_empty() || more, "a request waits for nothing");
            self.wait_for_io();
        }
    }

    /// To be called when nothing was asked for a second or so: notes on the medium what is durable, so that damage to
    /// the last flushed writes is told from writes that were never flushed; lets dead segments go; cleans a little.
    pub fn idle(&mut self) {
        self.new_poll();
        self.look_at_host();
        self.try_unread_again();
        self.round.idle = true;
        self.cool();
        self.begin_relief();
        self.feedback.wanted = true;
        self.drive();
        self.round.idle = false;
        self.note_durable();
    }

    /// Finishes what is in flight, syncs, and marks the store as closed in order. Results of requests that were not
    /// polled are lost.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the last sync fails; what was flushed before is safe.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.cleaner.stop = true;
        if self.damage.is_some() {
            self.settle();
            return Ok(());
        }
        self.feedback.wanted = true;
        self.halt_erase();
        self.settle();
        let flushed = self.execute(Op::Flush);
        self.settle();
        if flushed.is_ok() {
            self.mark_closed();
        }
        match self.refused.take() {
            None => Ok(()),
            Some(reason) => Err(StoreError::io("closing the store")(std::io::Error::other(reason))),
        }
    }

    fn new_poll(&mut self) {
        self.reads_left = READS_PER_POLL;
        self.cleaner.copied_in_poll = 0;
        self.cleaner.held_back = false;
        self.judged_in_poll = 0;
        self.cleaner.blocked = false;
        self.cleaner.unread_in_poll = 0;
        self.round.blocked = false;
        self.checkpoints.may_write = true;
        self.scrub.new_poll();
        let unsliced = self.options.planted.has(PlantedFault::UnslicedHiding);
        self.hiding.new_poll(if unsliced { u64::MAX } else { self.options.hide_blocks_per_poll });
        if let Some(erasing) = &mut self.erasing {
            erasing.new_poll();
        }
    }

    /// Drives until nothing is in flight.
    fn settle(&mut self) {
        loop {
            self.new_poll();
            self.drive();
            if self.ios.is_empty() {
                return;
            }
            self.wait_for_io();
        }
    }

    fn drive(&mut self) {
        loop {
            let mut progress = self.take_io() | self.drive_erase();
            if !self.erasing.as_ref().is_some_and(Erasing::is_alone) {
                progress |= self.drive_append();
                progress |= self.drive_hiding();
                progress |= self.drive_cleaner();
                progress |= self.drive_round();
                progress |= self.drive_checkpoint();
                progress |= self.drive_syncs();
                progress |= self.drive_reserve();
                progress |= self.drive_scrub();
            }
            // What was begun may be over already, and then nobody wakes us for it: a medium in memory has no waker.
            progress |= std::mem::take(&mut self.io_begun);
            if !progress {
                break;
            }
        }
        if !self.io_ended.is_empty() {
            (self.waker)();
        }
        if self.erasing.is_some() && self.queue.is_empty() {
            if self.erase_goes_on() || self.hiding.is_busy() {
                (self.waker)();
            }
            return;
        }
        let checkpoint = self.checkpoints.goes_on() && !self.cleaner.stop && self.refused.is_none();
        let awaited = self.cleaner.awaits_slices && (!self.queue.is_empty() || self.relief_wanted());
        let awaited = awaited || self.scrub.goes_on();
        if self.work_on_nodes() || self.cleaner.held_back || checkpoint || self.hiding.is_busy() || awaited {
            (self.waker)();
        }
    }

    fn start_io(&mut self, purpose: Purpose, io: Io) {
        self.io_begun = true;
        let token = self.ios.insert(purpose);
        self.backend.submit(token as u64, io);
    }

    fn take_io(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.io_done);
        self.backend.poll(&mut finished);
        self.io_ended.extend(finished.drain(..));
        self.io_done = finished;
        let mut progress = false;
        while self.reads_left.count > 0 && self.reads_left.bytes > 0 {
            let Some(IoDone { token, result }) = self.io_ended.pop_front() else { break };
            progress = true;
            // The backend completes what was submitted, once.
            let purpose = self.ios.remove(token as usize);
            match purpose {
                Purpose::Append { lsn } => self.append_done(lsn, result.map(drop)),
                Purpose::Allocate => self.allocate_done(result.map(drop)),
                Purpose::Sync => self.sync_done(result.map(drop)),
                Purpose::Superblock => self.superblock_done(result.map(drop)),
                Purpose::Reserve { segment } => self.reserve_done(segment, result.map(drop)),
                Purpose::Discard { segment } => self.discard_done(segment, result.map(drop)),
                Purpose::ReadData { read, part, along } => self.read_data_done(read, part, along, result),
                Purpose::ReadRecord { key, segment } => self.read_record_done(key, segment, result),
                Purpose::Clean { segment, piece } => self.clean_read_done(segment, piece, result),
                Purpose::Scrub => self.scrub_read_done(result),
                Purpose::Checkpoint => self.checkpoint_written(result.map(drop)),
                Purpose::Erase => self.erase_io_done(result.map(drop)),
            }
        }
        progress
    }

    /// Counts what was read for a caller, where the medium has something else to do meanwhile.
    fn count_read(&mut self, bytes: usize) {
        if matches!(self.backend.kind(), IoKind::DirectUring | IoKind::Direct) {
            self.reads_left.count -= 1;
            self.reads_left.bytes = self.reads_left.bytes.saturating_sub(bytes);
        }
    }

    /// Ends a request.
    fn complete(&mut self, token: Token, bytes: usize, result: Result<Outcome, OpError>) {
        self.ops_in_flight -= 1;
        self.bytes_in_flight -= bytes;
        self.done.push(Completion { token, result });
    }

    /// From here on nothing more is written until the store is reopened.
    fn refuse_writes(&mut self, what: &str, error: &std::io::Error) {
        if self.refused.is_none() {
            tracing::error!(volume = %self.info.volume_id, %error, "{what} failed: refusing writes until reopened");
            self.refused = Some(format!("{what} failed: {error}"));
        }
    }

    fn refusal(&self) -> OpError {
        if self.damage.is_some() {
            return OpError::ReadOnly;
        }
        OpError::WritesRefused { reason: self.refused.clone().unwrap_or_default() }
    }
}

/// A sequence as callers see it.
fn sequence(raw: u64) -> StoreSequence {
    StoreSequence(raw)
}

//! The erase of a store: everything that the log ever held is overwritten where the medium has it, its space goes back to the host, and a
//! new store begins in its place: the same volume, under another store id, so that nothing left behind anywhere could be taken
//! for a part of it.
//!
//! Both superblocks say that the store is being erased, durably, before the first byte is overwritten. From then on nothing of it can be
//! read, even after a crash; an erase that was cut short begins again at the next opening. A slice is done in each poll.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::LazyLock;

use strongroom_block::{Buffer, BufferMut, Token};

use super::io::{IoQueue, Purpose};
use super::requests::Requests;
use crate::backend::Io;
use crate::head::Head;
use crate::layout::{LOG_START, Layout, RECORD_BLOCK};
use crate::op::{OpError, Outcome};
use crate::options::StoreId;
use crate::random::random;
use crate::superblock::Superblock;

/// Bytes overwritten by one I/O.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes of the log given back by one I/O.
const GIVEN_BACK_BYTES: u64 = 64 << 20;
/// I/Os in flight at a time.
const DEPTH: u32 = 4;
/// I/Os started in one poll.
const IOS_PER_POLL: u32 = 8;
/// The share of overwriting in [`Erasure::progress`]; giving back is quick.
const OVERWRITING_SHARE: u64 = 60_000;
/// The progress when everything is given back.
const GIVEN_BACK_SHARE: u64 = 65_000;

static ZEROS: LazyLock<Buffer> = LazyLock::new(|| BufferMut::zeroed(PIECE_BYTES as usize).freeze());

/// An erase in progress.
pub(super) struct Erasure {
    /// Who is to be answered; nobody yet, if it goes on from an earlier opening.
    caller: Option<(Token, usize)>,
    phase: ErasePhase,
    in_flight: u32,
    /// How far a pass over the log is, in bytes of the medium, and up to where there is data.
    at: u64,
    data_until: u64,
    ios_left: u32,
    /// It goes on from an earlier opening.
    resumed: bool,
    /// The caller destroys the key under which everything is wrapped: nothing has to be overwritten.
    by_key: bool,
    /// The store is being closed: nothing more is begun.
    halted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErasePhase {
    /// What was accepted before must be over.
    Quiet,
    /// The superblock written last becomes durable.
    Settle,
    /// Both superblocks, one after the other, say that the store is being erased.
    Mark {
        other: bool,
    },
    MarkSync {
        other: bool,
    },
    /// The caller destroys the key.
    Key,
    Overwrite,
    OverwriteSync,
    GiveBack,
    GiveBackSync,
    /// The first segment of the new store, then both of its superblocks.
    Begin,
    BeginSync,
    Name {
        other: bool,
    },
    NameSync {
        other: bool,
    },
    /// The first round of the new store.
    Opening,
}

impl ErasePhase {
    /// Whether a crash cannot undo it any more: an opening that finds one superblock with the bit goes on.
    fn is_certain(self) -> bool {
        use ErasePhase::*;
        !matches!(self, Quiet | Settle | Mark { other: false } | MarkSync { other: false })
    }

    /// The phase that follows when its I/Os are done.
    pub(super) fn next(self) -> ErasePhase {
        use ErasePhase::*;
        match self {
            Quiet => Settle,
            Settle => Mark { other: false },
            Mark { other } => MarkSync { other },
            MarkSync { other: false } => Mark { other: true },
            MarkSync { other: true } | Key => Overwrite,
            Overwrite => OverwriteSync,
            OverwriteSync => GiveBack,
            GiveBack => GiveBackSync,
            GiveBackSync => Begin,
            Begin => BeginSync,
            BeginSync => Name { other: false },
            Name { other } => NameSync { other },
            NameSync { other: false } => Name { other: true },
            NameSync { other: true } | Opening => Opening,
        }
    }
}

impl Erasure {
    /// `by_key`: see [`crate::Op::CryptoErase`].
    pub(super) fn new(caller: Option<(Token, usize)>, by_key: bool) -> Erasure {
        Erasure {
            caller,
            phase: ErasePhase::Quiet,
            resumed: false,
            by_key,
            in_flight: 0,
            at: 0,
            data_until: 0,
            ios_left: 0,
            halted: false,
        }
    }

    /// Of a store that was being erased when it was closed, or crashed.
    pub(super) fn resumed() -> Erasure {
        Erasure { resumed: true, ..Erasure::new(None, false) }
    }

    pub(super) fn new_poll(&mut self) {
        self.ios_left = IOS_PER_POLL;
    }

    pub(super) fn phase(&self) -> ErasePhase {
        self.phase
    }

    /// How far it is, in 65536ths.
    pub(super) fn progress(&self, layout: &Layout) -> u16 {
        use ErasePhase::*;
        let end = layout.segment_at(layout.segments);
        let of_pass = |share: u64| self.at.saturating_sub(LOG_START) * share / (end - LOG_START);
        let done = match self.phase {
            Quiet | Settle | Mark { .. } | MarkSync { .. } | Key => 0,
            Overwrite => of_pass(OVERWRITING_SHARE),
            OverwriteSync => OVERWRITING_SHARE,
            GiveBack => OVERWRITING_SHARE + of_pass(GIVEN_BACK_SHARE - OVERWRITING_SHARE),
            _ => GIVEN_BACK_SHARE,
        };
        done as u16
    }

    /// Whether nothing can undo it any more, no crash either.
    pub(super) fn is_certain(&self) -> bool {
        self.resumed || self.phase.is_certain()
    }

    pub(super) fn is_halted(&self) -> bool {
        self.halted
    }

    /// The store is being closed: what has not begun does not begin any more, and the writes before it count; the rest goes on at the
    /// next opening. Whether the erase is over.
    pub(super) fn halt(&mut self, requests: &mut Requests) -> bool {
        let is_over = self.is_only_requested();
        if is_over {
            self.answer(requests, Err(OpError::Busy));
        }
        self.halted = true;
        is_over
    }

    /// Whether it waits for the caller to destroy the key.
    pub(super) fn awaits_key(&self) -> bool {
        self.phase == ErasePhase::Key && !self.halted
    }

    /// Whether it was requested in this opening and is not in the superblock yet: nothing has happened.
    pub(super) fn is_only_requested(&self) -> bool {
        self.phase == ErasePhase::Quiet && !self.resumed
    }

    /// Whether nothing else runs: the ordinary work of the store is over, or has not begun again.
    pub(super) fn is_exclusive(&self) -> bool {
        !matches!(self.phase, ErasePhase::Quiet | ErasePhase::Opening)
    }

    /// Whether it has more to do than this poll allowed.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self.phase, ErasePhase::Overwrite | ErasePhase::GiveBack) && self.ios_left == 0 && !self.halted
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0
    }

    /// Another request to erase joins it.
    ///
    /// # Errors
    /// [`OpError::Busy`] if somebody is to be answered already.
    pub(super) fn join(&mut self, token: Token, bytes: usize) -> Result<(), OpError> {
        if self.caller.is_some() {
            return Err(OpError::Busy);
        }
        self.caller = Some((token, bytes));
        Ok(())
    }

    /// Answers the caller, if there is one; whether there was.
    pub(super) fn answer(&mut self, requests: &mut Requests, result: Result<Outcome, OpError>) -> bool {
        let caller = self.caller.take();
        if let Some((token, bytes)) = caller {
            requests.complete(token, bytes, result);
        }
        caller.is_some()
    }

    /// A phase begins.
    pub(super) fn begin(&mut self, phase: ErasePhase) {
        self.phase = phase;
        (self.at, self.data_until) = (LOG_START, LOG_START);
    }

    /// The phase that follows when the I/Os of this one are done.
    pub(super) fn next_phase(&self) -> ErasePhase {
        match self.phase {
            ErasePhase::MarkSync { other: true } if self.by_key => ErasePhase::Key,
            phase => phase.next(),
        }
    }

    pub(super) fn start_io(&mut self, io: &mut IoQueue, request: Io) {
        self.in_flight += 1;
        io.start(Purpose::Erase, request);
    }

    /// An I/O of the erase has ended.
    ///
    /// # Errors
    /// The result's, unless the medium only did not take space back: the zeros are durable by then.
    pub(super) fn io_done(&mut self, result: io::Result<()>) -> io::Result<()> {
        self.in_flight -= 1;
        match result {
            Err(error) if self.phase == ErasePhase::GiveBack => {
                tracing::warn!(%error, "erasing goes on, but the medium did not take space back");
                Ok(())
            }
            result => result,
        }
    }

    fn may_start(&self) -> bool {
        self.in_flight < DEPTH && self.ios_left > 0
    }

    /// Goes on with a pass over the log, a slice. Whether anything was begun, and the phase that follows once the pass is complete.
    pub(super) fn advance_pass(&mut self, io: &mut IoQueue, layout: &Layout) -> (bool, Option<ErasePhase>) {
        let progress = match self.phase {
            ErasePhase::Overwrite => self.overwrite(io, layout),
            _ => self.give_back(io, layout),
        };
        let is_over = self.at >= layout.segment_at(layout.segments) && self.in_flight == 0;
        (progress | is_over, is_over.then(|| self.next_phase()))
    }

    /// Writes zeros over everything that the medium has of the log, a slice. Whether anything was begun.
    fn overwrite(&mut self, io: &mut IoQueue, layout: &Layout) -> bool {
        let (end, block) = (layout.segment_at(layout.segments), RECORD_BLOCK as u64);
        let mut progress = false;
        while self.may_start() && self.at < end {
            if self.at >= self.data_until {
                (self.at, self.data_until) = match io.data_from(self.at) {
                    Some(data) => {
                        let from = (data.start / block * block).max(self.at);
                        (from.min(end), data.end.min(end).next_multiple_of(block))
                    }
                    None => (end, end),
                };
                continue;
            }
            let offset = self.at;
            let len = PIECE_BYTES.min(self.data_until - offset);
            self.at += len;
            self.ios_left -= 1;
            self.start_io(io, Io::Write { offset, buffers: vec![ZEROS.slice(..len as usize)] });
            progress = true;
        }
        progress
    }

    /// Gives the space of the whole log back, a slice. Where it is kept, zeros stay. Whether anything was begun.
    fn give_back(&mut self, io: &mut IoQueue, layout: &Layout) -> bool {
        let end = layout.segment_at(layout.segments);
        let mut progress = false;
        while self.may_start() && self.at < end {
            let offset = self.at;
            let len = GIVEN_BACK_BYTES.min(end - offset);
            self.at += len;
            self.ios_left -= 1;
            self.start_io(io, Io::Discard { offset, len });
            progress = true;
        }
        progress
    }
}

/// The superblock of the store that begins in place of an erased one. What repairs saved beside the log, in `dir`, is removed. `open_id`: of
/// a simulation, if there is one.
///
/// # Errors
/// If that cannot be removed, or the operating system gives no random number.
pub(super) fn new_store(
    old: &Superblock,
    head: &Head,
    open_id: Option<u64>,
    dir: Option<&Path>,
) -> io::Result<Superblock> {
    dir.map_or(Ok(()), remove_saved)?;
    let store_id = match open_id {
        None => StoreId(random().map_err(|error| io::Error::other(error.to_string()))?),
        // Of a simulation: it must only differ.
        Some(_) => StoreId(u128::from_be_bytes(old.store_id.0).wrapping_mul(0x5851_f42d).to_be_bytes()),
    };
    let sequence = head.next_sequence.max(old.sequence_limit);
    let generation = head.next_generation.max(old.next_generation);
    Ok(Superblock {
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
    })
}

/// Removes what repairs saved of the log.
fn remove_saved(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with("repair-") && name.ends_with(".saved")) {
            continue;
        }
        let mut file = File::options().write(true).open(entry.path())?;
        let mut left = file.metadata()?.len();
        while left > 0 {
            let len = left.min(PIECE_BYTES);
            file.write_all(&ZEROS[..len as usize])?;
            left -= len;
        }
        file.sync_all()?;
        fs::remove_file(entry.path())?;
    }
    File::open(dir)?.sync_all()
}

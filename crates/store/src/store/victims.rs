//! Victims of compaction, read into memory in pieces: a medium answers in the order in which it is asked, more or less, so a write would
//! wait for all of a long read before it.

use std::collections::VecDeque;

use strongroom_block::{Buffer, BufferMut};

use super::access::ReadAccess;
use super::io::{IoResult, Purpose};
use super::live::Pieces;
use crate::backend::Io;
use crate::layout::RECORD_BLOCK;

/// Pieces being read at a time.
const PIECES_MAX: usize = 6;
/// Victims in memory or being read, at most, ...
const VICTIMS_MAX: usize = 16;
/// ... and their bytes, if that is more than one victim.
const VICTIMS_BYTES_MAX: usize = 24 << 20;
/// This many of them are read while others are copied, ...
const VICTIMS_AHEAD: usize = 2;
/// ... or this share of all, if that is more; half of them at most.
const VICTIMS_AHEAD_SHARE: usize = 4;

/// A segment that is to be compacted. It is pinned.
pub(super) struct Victim {
    pub(super) segment: u32,
    /// As the segment had it when it was chosen.
    pub(super) reopened: u32,
    /// How much of it is written, in bytes.
    len: usize,
    piece_bytes: usize,
    /// `None`: being read, or not requested.
    pieces: Vec<Option<Buffer>>,
    /// The first one that was not requested.
    next: usize,
    in_flight: usize,
    failed: Option<String>,
}

impl Victim {
    fn is_read(&self) -> bool {
        self.in_flight == 0 && (self.failed.is_some() || self.next == self.pieces.len())
    }

    /// All of it, or why it could not be read.
    pub(super) fn into_bytes(self) -> Result<Pieces, String> {
        if let Some(reason) = self.failed {
            return Err(reason);
        }
        let pieces = self.pieces.into_iter().map(|piece| piece.expect("all are there")).collect();
        Ok(Pieces::new(pieces, self.piece_bytes, self.len))
    }
}

/// The victims that were chosen, in the order in which they will be copied.
pub(super) struct Victims {
    victims: VecDeque<Victim>,
    /// Pieces being read.
    in_flight: usize,
    /// Bytes in which a victim is read.
    piece_bytes: usize,
    /// Bytes read (or lent by the medium) since the store was opened.
    pub(super) read_bytes: u64,
}

impl Victims {
    pub(super) fn new(piece_bytes: usize) -> Victims {
        Victims { victims: VecDeque::new(), in_flight: 0, piece_bytes, read_bytes: 0 }
    }

    pub(super) fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.victims.is_empty()
    }

    /// Memory of what was read, and of what is being read, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.victims.iter().map(|victim| (victim.next * victim.piece_bytes).min(victim.len) as u64).sum()
    }

    pub(super) fn has(&self, segment: u32) -> bool {
        self.victims.iter().any(|victim| victim.segment == segment)
    }

    /// Drops all that are not being read at this moment; returns their segments.
    pub(super) fn drop_idle(&mut self) -> Vec<u32> {
        let (reading, dropped): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.victims).into_iter().partition(|victim| victim.in_flight > 0);
        self.victims = reading;
        dropped.into_iter().map(|victim: Victim| victim.segment).collect()
    }

    /// The next one, if it is read.
    pub(super) fn take_next(&mut self) -> Option<Victim> {
        if self.victims.front()?.is_read() { self.victims.pop_front() } else { None }
    }

    /// Whether there is room for another victim beside `copied` ones: more than one is read only where the medium is to be kept busy.
    pub(super) fn has_room(&self, copied: usize, hurry: bool, segment_bytes: u64) -> bool {
        let count = self.victims.len() + copied;
        count == 0 || count < victims_max(segment_bytes) && hurry
    }

    /// Adds a segment as the last victim.
    pub(super) fn add(&mut self, access: &mut ReadAccess<'_>, segment: u32) {
        access.medium.segments.pin(segment);
        let entry = access.medium.segments.segment(segment);
        let (reopened, len) = (entry.reopened, entry.end as usize * RECORD_BLOCK);
        self.read_bytes += len as u64;
        let (piece_bytes, pieces, next) =
            match access.medium.io.share(access.medium.volume.layout.segment_at(segment), len) {
                Some(bytes) => (len, vec![Some(bytes)], 1),
                None => (self.piece_bytes, vec![None; len.div_ceil(self.piece_bytes)], 0),
            };
        self.victims.push_back(Victim {
            segment,
            reopened,
            len,
            piece_bytes,
            pieces,
            next,
            in_flight: 0,
            failed: None,
        });
    }

    /// Requests the next pieces.
    pub(super) fn read(&mut self, access: &mut ReadAccess<'_>) -> bool {
        let mut progress = false;
        while self.in_flight < PIECES_MAX {
            let unread = |victim: &&mut Victim| victim.failed.is_none() && victim.next < victim.pieces.len();
            let Some(victim) = self.victims.iter_mut().find(unread) else { break };
            let (segment, piece, at) = (victim.segment, victim.next, victim.next * victim.piece_bytes);
            // No more than was written: what lies behind may be unreadable, and does not count.
            let buffer = BufferMut::to_fill(victim.piece_bytes.min(victim.len - at));
            victim.next += 1;
            victim.in_flight += 1;
            self.in_flight += 1;
            let offset = access.medium.volume.layout.segment_at(segment) + at as u64;
            access.medium.io.start(Purpose::Compact { segment, piece }, Io::Read { offset, buffer });
            progress = true;
        }
        progress
    }

    pub(super) fn piece_read(&mut self, segment: u32, piece: usize, result: IoResult) {
        self.in_flight -= 1;
        let victim = self.victims.iter_mut().find(|victim| victim.segment == segment).expect("it is being read");
        victim.in_flight -= 1;
        match result {
            Ok(bytes) => victim.pieces[piece] = Some(bytes.expect("reads return their buffer").freeze()),
            Err(error) => victim.failed = Some(error.to_string()),
        }
    }
}

/// Victims in memory or being read, at most.
pub(super) fn victims_max(segment_bytes: u64) -> usize {
    (VICTIMS_BYTES_MAX / segment_bytes as usize).clamp(1, VICTIMS_MAX)
}

/// How many of these are read while others are copied, so that copying does not wait for the medium.
pub(super) fn victims_ahead(segment_bytes: u64) -> usize {
    let most = victims_max(segment_bytes);
    (most / VICTIMS_AHEAD_SHARE).max(VICTIMS_AHEAD).min(most / 2)
}

#[cfg(test)]
mod tests;

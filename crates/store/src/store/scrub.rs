//! Scrubbing: while nothing else is asked for, segment after segment is read and compared with its keyless checksums, so that
//! what rots is known before somebody needs it.
//!
//! One segment for each call of [`Store::scrub`]: the caller decides the rate. A bad block is logged and counted; it is
//! left as it is, and reads of it go on failing. Absent: the newest segment, which is still written to.

use std::collections::BTreeSet;
use std::io;

use strongroom_block::{BufferMut, Lba, keyless_checksum};

use super::clean::Live;
use super::read::item_checksum;
use super::victims::Pieces;
use super::{Purpose, Store};
use crate::backend::Io;
use crate::index::Version;
use crate::layout::RECORD_BLOCK;
use crate::segments::State;

/// Upper bound on the bad blocks that are remembered.
const BAD_BLOCKS_MAX: usize = 1000;

/// How far scrubbing is.
#[derive(Default)]
pub(super) struct Scrub {
    /// Where passes begin: somewhere else each time the store is opened, so that short openings get everywhere.
    start: u64,
    /// How many segments of this pass are done.
    done: u32,
    reading: bool,
    /// Found in this pass, and in the one before.
    found: BTreeSet<u64>,
    found_before: BTreeSet<u64>,
    pub(super) passes: u64,
    pub(super) bytes: u64,
}

impl Scrub {
    pub(super) fn starting_at(start: u64) -> Scrub {
        Scrub { start, ..Scrub::default() }
    }

    /// How many blocks are known to be bad.
    pub(super) fn bad_count(&self) -> u64 {
        self.found.union(&self.found_before).count() as u64
    }

    fn note(&mut self, lba: u64) {
        if self.found.len() < BAD_BLOCKS_MAX {
            self.found.insert(lba);
        }
    }
}

impl Store {
    /// The blocks that the last pass of scrubbing, and this one so far, found to be bad (the first thousand).
    pub fn bad_blocks(&self) -> Vec<Lba> {
        self.scrub.found.union(&self.scrub.found_before).map(|&lba| Lba(lba)).collect()
    }

    /// Begins to read the next segment, unless anything else is going on. To be called when nothing was asked for a while, about
    /// once a second; [`Stats::scrub_passes`](crate::Stats::scrub_passes) tells when everything was read once.
    pub fn scrub(&mut self) {
        if self.scrub.reading || self.ops_in_flight > 0 || !self.ios.is_empty() || self.erasing.is_some() {
            return;
        }
        let count = self.layout.segments;
        while self.scrub.done < count {
            let segment =
                ((self.scrub.start % u64::from(count) + u64::from(self.scrub.done)) % u64::from(count)) as u32;
            self.scrub.done += 1;
            let entry = self.segments.segment(segment);
            if entry.state == State::Closed && entry.end > 0 {
                let (reopened, buffer) = (entry.reopened, BufferMut::zeroed(entry.end as usize * RECORD_BLOCK));
                self.scrub.reading = true;
                self.segments.pin(segment);
                let offset = self.layout.segment_at(segment);
                self.start_io(Purpose::Scrub { segment, reopened }, Io::Read { offset, buffer });
                return;
            }
        }
        self.scrub.done = 0;
        self.scrub.passes += 1;
        self.scrub.found_before = std::mem::take(&mut self.scrub.found);
    }

    pub(super) fn scrub_read_done(&mut self, segment: u32, reopened: u32, result: io::Result<Option<BufferMut>>) {
        self.scrub.reading = false;
        self.segments.unpin(segment);
        if self.segments.segment(segment).reopened != reopened {
            // Written to while it was read. It is looked at in the next pass.
            return;
        }
        let read = result.map_err(|error| error.to_string());
        let live = read.and_then(|bytes| {
            let bytes = bytes.expect("reads return their buffer").freeze();
            self.live_of(segment, &Pieces::whole(bytes.clone())).map(|live| (bytes, live))
        });
        match live {
            Ok((bytes, live)) => {
                self.scrub.bytes += bytes.len() as u64;
                let block_bytes = self.layout.block_bytes as usize;
                for live in live {
                    let Live::Block { lba, item_at, data_at, .. } = live else { continue };
                    let item = &bytes[item_at..item_at + self.layout.item_bytes as usize];
                    if keyless_checksum(&bytes[data_at..data_at + block_bytes]) != item_checksum(item) {
                        self.found_bad(lba, "it does not match its checksum");
                    }
                }
            }
            Err(reason) => self.look_closer(segment, &reason),
        }
    }

    fn found_bad(&mut self, lba: u64, reason: &str) {
        tracing::error!(volume = %self.info.volume_id, lba, reason, "scrubbing found a bad block");
        self.scrub.note(lba);
    }

    /// A segment cannot be read as a whole: every version in it is read by itself.
    fn look_closer(&mut self, segment: u32, reason: &str) {
        tracing::error!(volume = %self.info.volume_id, segment, reason, "scrubbing found a damaged segment");
        let layout = self.layout;
        let mut here: Vec<(u64, Version)> = Vec::new();
        let is_here = |version: Version| version.segment(&layout) == segment;
        for (_, table) in self.map.tables() {
            table.index.for_each(|lba, version| here.extend(is_here(version).then_some((lba, version))));
        }
        self.map.versions.for_each(|_, lba, version| here.extend(is_here(version).then_some((lba, version))));
        for (lba, version) in here {
            self.start_scrub_read(lba, version);
        }
    }

    pub(super) fn scrub_read_failed(&mut self, lba: u64) {
        self.scrub.note(lba);
    }
}

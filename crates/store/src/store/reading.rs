//! Delivering finished reads to whom they are for, and scrubbing.

use std::io;

use strongroom_block::{BufferMut, Lba};

use super::Store;
use super::access::ReadAccess;
use super::io::Purpose;
use super::read_parts::{Owner, Wanted};
use super::reader::FinishedRead;
use crate::catalogue::NodeId;
use crate::op::Outcome;

/// What it takes to read the log, borrowed from a store.
macro_rules! read_access {
    ($store:expr) => {
        $crate::store::access::ReadAccess {
            map: &$store.views.map,
            segments: &mut $store.segments,
            io: &mut $store.io,
            volume: &$store.volume,
        }
    };
}
pub(super) use read_access;

impl Store {
    /// Starts a read of the newest versions in a view.
    pub(super) fn start_read(&mut self, owner: Owner, node: NodeId, runs: &[(Lba, u32)], wanted: Wanted) {
        self.reader.start(&mut read_access!(self), owner, node, runs, wanted);
        self.deliver_reads();
    }

    /// Starts a read of the newest version of a block older than `below`.
    pub(super) fn start_version_read(&mut self, owner: Owner, node: NodeId, lba: u64, below: u64) {
        self.reader.start_older(&mut read_access!(self), owner, node, lba, below);
        self.deliver_reads();
    }

    pub(super) fn read_done(&mut self, purpose: Purpose, result: io::Result<Option<BufferMut>>) {
        let access: &mut ReadAccess<'_> = &mut read_access!(self);
        match purpose {
            Purpose::ReadData { read, part, before } => self.reader.data_done(access, read, part, before, result),
            Purpose::ReadRecord { key, segment } => self.reader.record_done(access, key, segment, result),
            _ => unreachable!("not a read for a caller"),
        }
        self.deliver_reads();
    }

    pub(super) fn deliver_reads(&mut self) {
        while let Some(FinishedRead { owner, extents, bases }) = self.reader.next_finished() {
            match owner {
                Owner::Caller { token, bytes } => self.requests.complete(token, bytes, extents.map(Outcome::Read)),
                Owner::Gate(ticket) => {
                    if let Some(answer) = self.writes.condition_read(ticket, extents, &bases) {
                        self.answer_condition(answer);
                    }
                }
                Owner::Scrub => self.scrub.block_read(extents),
            }
        }
    }

    /// The blocks that the last pass of scrubbing, and this one so far, found to be bad (the first thousand).
    pub fn bad_blocks(&self) -> Vec<Lba> {
        self.scrub.bad_blocks()
    }

    /// Begins to scrub the next segment, unless anything else is going on. To be called when nothing was requested for a while, about
    /// once a second; [`Stats::scrub_passes`](crate::Stats::scrub_passes) tells when everything was read once.
    pub fn scrub(&mut self) {
        if self.requests.ops_in_flight() == 0 && self.io.is_idle() {
            self.scrub_beside();
        }
    }

    /// The same beside requests, for a store that is never idle. The caller keeps to a share of time: it pauses in proportion to how long
    /// [`Store::is_scrubbing`] is true.
    pub fn scrub_beside(&mut self) {
        if !self.is_scrubbing() && !self.background_is_stopped() {
            self.scrub.begin_segment(&mut read_access!(self));
        }
    }

    /// How many times scrubbing read the whole store since it was opened.
    pub fn scrub_passes(&self) -> u64 {
        self.scrub.passes
    }

    /// Whether a segment is being read, or searched for blocks that can still be read.
    pub fn is_scrubbing(&self) -> bool {
        self.scrub.is_busy()
    }

    /// Whether the store is being closed or erased: then scrubbing does not go on.
    fn background_is_stopped(&self) -> bool {
        self.erasure.is_some() || self.compactor.is_stopped()
    }

    pub(super) fn scrub_piece_read(&mut self, result: io::Result<Option<BufferMut>>) {
        let stopped = self.background_is_stopped();
        self.scrub.piece_read(&mut read_access!(self), stopped, result);
    }

    /// Goes on with the search through a damaged segment: every version in it is read by itself.
    pub(super) fn drive_scrub(&mut self) -> bool {
        let stopped = self.background_is_stopped();
        let Some(versions) = self.scrub.advance(&self.views.map, &self.volume.layout, stopped) else { return false };
        for version in versions {
            self.reader.start_versions(&mut read_access!(self), Owner::Scrub, &[version], Wanted::DataOfMedium);
        }
        self.deliver_reads();
        true
    }
}

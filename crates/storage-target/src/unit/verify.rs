//! Background verification, in custody `target`: a target that is trusted with block keys opens the newest version of each block of which
//! older versions are kept, and releases those if it opens (lazy-crypto paper, §4: garbage collection).
//!
//! It reads a run of blocks at a time, while nothing is asked of the unit, and at a limited rate. A block that does not open is left as it
//! is, with its older versions, and reported to the administrator. The cryptography is not here: it is handed in as an [`Opener`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{BufferMut, Lba, OpenError, Opener, StoreSequence};
use strongroom_store::{Extent, Op, OpError, Outcome, Unverified};

use super::codec::BlockCodec;
use crate::store_handle::StoreHandle;
use crate::volume::Volume;

/// Bytes of blocks that are read at once.
const RUN_BYTES: u64 = 256 << 10;
/// Upper bound on the bytes of blocks that are opened in a second.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// Pause between two passes over all blocks.
const PASS_PAUSE: Duration = Duration::from_secs(5);
/// Pause before the next look at a run that is being verified.
const RUN_PAUSE: Duration = Duration::from_millis(5);
/// Upper bound on the bad blocks that are remembered.
const BAD_BLOCKS_MAX: usize = 1000;

/// The progress of background verification.
pub(crate) struct Verifier {
    opener: Arc<dyn Opener>,
    /// The next block to look at.
    next: u64,
    /// A run is being read or released.
    is_busy: bool,
    /// The bytes written to the store when a pass ended that found nothing; there is nothing to do until more are written.
    idle_since: Option<u64>,
    found_in_pass: bool,
    opened: u64,
    bad: BTreeSet<u64>,
}

/// What background verification has done since the unit was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verification {
    /// Blocks that opened.
    pub(crate) opened: u64,
    /// The next block to look at.
    pub(crate) next: u64,
    /// A pass has ended that found nothing, and nothing was written since.
    pub(crate) is_done: bool,
    /// Blocks that do not; the first thousand.
    pub(crate) bad: Vec<u64>,
}

impl Verifier {
    pub(super) fn new(opener: Arc<dyn Opener>) -> Verifier {
        Verifier {
            opener,
            next: 0,
            is_busy: false,
            idle_since: None,
            found_in_pass: false,
            opened: 0,
            bad: BTreeSet::new(),
        }
    }

    /// What it has done. `written_bytes`: what was written to the store by now.
    pub(crate) fn report(&self, written_bytes: u64) -> Verification {
        let is_done = self.idle_since == Some(written_bytes);
        Verification { opened: self.opened, next: self.next, is_done, bad: self.bad.iter().copied().collect() }
    }

    /// The unit is idle: the read of the next run, if it is due, and when to call again.
    pub(super) fn poll(&mut self, volume: &Volume, store: &StoreHandle) -> (Option<Op>, Duration) {
        let written_bytes = store.stats().written_bytes;
        if self.is_busy {
            return (None, RUN_PAUSE);
        }
        if self.idle_since == Some(written_bytes) || store.erase().progress().is_some() {
            return (None, PASS_PAUSE);
        }
        let shift = volume.geometry.block_size.shift();
        let blocks_max = (RUN_BYTES >> shift).max(1) as u32;
        let (lba, count) = match store.unverified(Lba(self.next), blocks_max) {
            Unverified::Run { first, count } => (first, count),
            Unverified::NotUpTo(lba) => {
                self.next = lba.0;
                return (None, RUN_PAUSE);
            }
            Unverified::End => {
                self.next = 0;
                self.idle_since = (!std::mem::take(&mut self.found_in_pass)).then_some(written_bytes);
                return (None, PASS_PAUSE);
            }
        };
        self.next = lba.0 + u64::from(count);
        self.is_busy = true;
        let bytes = u64::from(count) << shift;
        (Some(Op::Read { lba, count }), Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND))
    }

    /// An operation of the verifier has ended. Blocks that were read are opened; the returned operation releases older versions of those
    /// that opened.
    pub(super) fn completed(
        &mut self,
        result: Result<Outcome, OpError>,
        volume: &Volume,
        codec: &BlockCodec,
    ) -> Option<Op> {
        let pairs = match result {
            Ok(Outcome::Read(extents)) => self.open_extents(extents, volume, codec),
            Ok(Outcome::Verified { released }) => {
                self.found_in_pass |= released > 0;
                Vec::new()
            }
            Ok(_) => Vec::new(),
            Err(OpError::Medium { lba, .. }) => {
                self.report_bad(volume, lba, "it cannot be read");
                Vec::new()
            }
            // The store is busy, being erased, or refuses writes: this run is verified in a later pass.
            Err(_) => Vec::new(),
        };
        self.is_busy = !pairs.is_empty();
        self.is_busy.then_some(Op::Verified { pairs })
    }

    fn open_extents(&mut self, extents: Vec<Extent>, volume: &Volume, codec: &BlockCodec) -> Vec<(Lba, StoreSequence)> {
        let block_len = volume.geometry.block_size.len();
        let mut block = BufferMut::zeroed(block_len);
        let mut pairs = Vec::new();
        for extent in extents {
            // A hole is authenticated by its reader; older versions of it are kept until it is overwritten.
            let Extent::Blocks { lba: first, data, sequences, records } = extent else { continue };
            let blocks = data.chunks_exact(block_len).zip(sequences).zip(records);
            for (lba, ((sealed, sequence), record)) in (first.0..).map(Lba).zip(blocks) {
                let Ok(record) = codec.record_for_channel(volume, &record) else {
                    self.report_bad(volume, lba, "its key does not unwrap");
                    continue;
                };
                block.copy_from_slice(sealed);
                match self.opener.open(lba, &record, &mut block) {
                    Ok(()) => pairs.push((lba, sequence)),
                    Err(OpenError::NotAuthentic) => self.report_bad(volume, lba, "it does not open"),
                    // A newer build or another key may open it.
                    Err(OpenError::NoKey { .. } | OpenError::Unsupported) => {}
                }
            }
        }
        zeroize::Zeroize::zeroize(&mut block[..]);
        self.opened += pairs.len() as u64;
        self.bad.retain(|bad| !pairs.iter().any(|(lba, _)| lba.0 == *bad));
        pairs
    }

    /// Everything was erased, bad blocks included.
    pub(super) fn reset(&mut self) {
        self.bad.clear();
        self.next = 0;
    }

    fn report_bad(&mut self, volume: &Volume, lba: Lba, reason: &str) {
        if self.bad.len() < BAD_BLOCKS_MAX && self.bad.insert(lba.0) {
            tracing::error!(volume = %volume.name, %lba, reason, "verification found a bad block; older versions of it are kept");
        }
    }
}

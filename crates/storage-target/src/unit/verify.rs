//! Background verification, in custody `target`: where the target is trusted with block keys it opens the newest version of each block of
//! which older ones are kept, and lets those go when it does (lazy-crypto paper, §4: garbage collection).
//!
//! A run of blocks at a time, while nothing is asked of the unit, and at a limited rate. A block that does not open is left as it is,
//! with its older versions, and named to the target's keeper. Absent: the cryptography, which is handed in as an [`Opener`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use strongroom_block::{BufferMut, Lba, OpenError, Opener, StoreSequence};
use strongroom_store::{Extent, Op, OpError, Outcome, Unverified};

use super::Unit;
use super::jobs::RunningJob;

/// Bytes of blocks that are read at once.
const STEP_BYTES: u64 = 256 << 10;
/// Most bytes of blocks that are opened in a second.
const BYTES_PER_SECOND: u64 = 64 << 20;
/// Between two times that everything was looked at.
const PASS_PAUSE: Duration = Duration::from_secs(5);
/// How often it is looked whether a step is over.
const STEP_PAUSE: Duration = Duration::from_millis(5);
/// Upper bound on the bad blocks that are remembered.
const BAD_BLOCKS_MAX: usize = 1000;

/// How far background verification is.
pub(super) struct Verifier {
    opener: Arc<dyn Opener>,
    /// The next block to look at.
    next: u64,
    is_at_work: bool,
    /// What the store had taken in when a pass ended in which nothing was found: until it takes in more there is nothing to do.
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
    /// Blocks that do not; the first thousand.
    pub(crate) bad: Vec<u64>,
}

impl Unit {
    /// Has the unit verify its blocks by itself.
    pub(crate) fn verify_with(&mut self, opener: Arc<dyn Opener>) {
        self.verifier = Some(Verifier {
            opener,
            next: 0,
            is_at_work: false,
            idle_since: None,
            found_in_pass: false,
            opened: 0,
            bad: BTreeSet::new(),
        });
    }

    /// Whether it does.
    pub(crate) fn verifies(&self) -> bool {
        self.verifier.is_some()
    }

    /// What it did.
    pub(crate) fn verification(&self) -> Option<Verification> {
        let verifier = self.verifier.as_ref()?;
        Some(Verification { opened: verifier.opened, bad: verifier.bad.iter().copied().collect() })
    }

    /// Nothing was asked for a while: begins to verify the next run of blocks. When to ask again.
    pub(crate) fn verify_step(&mut self) -> Duration {
        let taken_in = self.store.stats().written_bytes;
        let Some(verifier) = &mut self.verifier else { return PASS_PAUSE };
        if verifier.is_at_work {
            return STEP_PAUSE;
        }
        if verifier.idle_since == Some(taken_in) || self.store.erase_progress().is_some() {
            return PASS_PAUSE;
        }
        let shift = self.volume.geometry.block_size.shift();
        let blocks_max = (STEP_BYTES >> shift).max(1) as u32;
        let (lba, count) = match self.store.unverified(Lba(verifier.next), blocks_max) {
            Unverified::Run { first, count } => (first, count),
            Unverified::NotUpTo(lba) => {
                verifier.next = lba.0;
                return STEP_PAUSE;
            }
            Unverified::End => {
                verifier.next = 0;
                verifier.idle_since = (!std::mem::take(&mut verifier.found_in_pass)).then_some(taken_in);
                return PASS_PAUSE;
            }
        };
        verifier.next = lba.0 + u64::from(count);
        verifier.is_at_work = true;
        let view = self.store.view();
        self.start_job(RunningJob::Verify, view, Op::Read { lba, count });
        let bytes = u64::from(count) << shift;
        Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND)
    }

    /// A step has come to something: what was read is opened, and what opened is told to the store.
    pub(super) fn verify_step_done(&mut self, result: Result<Outcome, OpError>) {
        let pairs = match result {
            Ok(Outcome::Read(extents)) => self.open_extents(extents),
            Ok(Outcome::Verified { released }) => {
                if let Some(verifier) = &mut self.verifier {
                    verifier.found_in_pass |= released > 0;
                }
                Vec::new()
            }
            Ok(_) => Vec::new(),
            Err(OpError::Medium { lba, .. }) => {
                self.found_bad(lba, "it cannot be read");
                Vec::new()
            }
            // Busy, being erased, refusing writes: not now.
            Err(_) => Vec::new(),
        };
        if pairs.is_empty() {
            if let Some(verifier) = &mut self.verifier {
                verifier.is_at_work = false;
            }
            return;
        }
        let view = self.store.view();
        self.start_job(RunningJob::Verify, view, Op::Verified { pairs });
    }

    fn open_extents(&mut self, extents: Vec<Extent>) -> Vec<(Lba, StoreSequence)> {
        let Some(opener) = self.verifier.as_ref().map(|verifier| Arc::clone(&verifier.opener)) else {
            return Vec::new();
        };
        let block_len = self.volume.geometry.block_size.len();
        let mut block = BufferMut::zeroed(block_len);
        let mut pairs = Vec::new();
        for extent in extents {
            // An absence needs no key to be told from data, and is kept until it is overwritten.
            let Extent::Blocks { lba: first, data, sequences, records } = extent else { continue };
            let blocks = data.chunks_exact(block_len).zip(sequences).zip(records);
            for (lba, ((sealed, sequence), record)) in (first.0..).map(Lba).zip(blocks) {
                let Ok(record) = self.for_channel(&record) else {
                    self.found_bad(lba, "its key does not unwrap");
                    continue;
                };
                block.copy_from_slice(sealed);
                match opener.open(lba, &record, &mut block) {
                    Ok(()) => pairs.push((lba, sequence)),
                    Err(OpenError::NotAuthentic) => self.found_bad(lba, "it does not open"),
                    // It may open with what a newer build, or another key, knows.
                    Err(OpenError::NoKey { .. } | OpenError::Unsupported) => {}
                }
            }
        }
        zeroize::Zeroize::zeroize(&mut block[..]);
        if let Some(verifier) = &mut self.verifier {
            verifier.opened += pairs.len() as u64;
            verifier.bad.retain(|bad| !pairs.iter().any(|(lba, _)| lba.0 == *bad));
        }
        pairs
    }

    /// Everything was erased: what was found is gone.
    pub(super) fn forget_verification(&mut self) {
        if let Some(verifier) = &mut self.verifier {
            verifier.bad.clear();
            verifier.next = 0;
        }
    }

    fn found_bad(&mut self, lba: Lba, reason: &str) {
        let Some(verifier) = &mut self.verifier else { return };
        if verifier.bad.len() < BAD_BLOCKS_MAX && verifier.bad.insert(lba.0) {
            tracing::error!(volume = %self.volume.name, %lba, reason, "verification found a bad block; older versions of it are kept");
        }
    }
}

//! The policy `previous`: a read whose newest version does not open goes on with older ones, as the lazy-crypto paper's clients do
//! (§3.2.2). Opt-in at both ends, because an attacker who can damage blocks then chooses which of the kept versions is read.
//!
//! A thread of its own, asleep until a read has failed: it reads every block of that request again, each by itself, from its
//! newest version down. What it takes from an older one is logged, counted and remembered. An absence is never taken for the
//! version before: it outlives those in between that were let go. Absent: writing. On top of an older version it would make that the
//! newest, be it by a page cache that knows nothing of this; so the policy is for attachments that are read-only.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use strongroom_block::{BufferMut, Completion, DeviceError, DeviceErrorKind, Lba};

use crate::completion::{device_error, lock};
use crate::device::failed_reads::FailedRead;
use crate::device::versions::{Search, Versions};

/// Upper bound on the blocks that are remembered.
const BLOCKS_MAX: usize = 1000;

/// Blocks of which an older version was read, because the newest does not open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreviousReads {
    /// How many times.
    pub count: u64,
    /// Which blocks, in the order in which it was noticed; the first thousand.
    pub blocks: Vec<Lba>,
}

/// The thread that reads older versions.
pub(super) struct Previous {
    found: Arc<Mutex<PreviousReads>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Previous {
    /// Starts it; it takes reads from `failed`.
    pub(super) fn start(versions: Versions, failed: Receiver<FailedRead>) -> std::io::Result<Previous> {
        let found = Arc::new(Mutex::new(PreviousReads::default()));
        let thread = {
            let found = found.clone();
            std::thread::Builder::new()
                .name("strongroom-previous".into())
                .spawn(move || run(&versions, &failed, &found))?
        };
        Ok(Previous { found, thread: Mutex::new(Some(thread)) })
    }

    /// What was read so far.
    pub(super) fn found(&self) -> PreviousReads {
        lock(&self.found).clone()
    }

    /// Waits for its end, after the queue was closed and what was in it is answered.
    pub(super) fn join(&self) {
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

fn run(versions: &Versions, failed: &Receiver<FailedRead>, found: &Mutex<PreviousReads>) {
    for FailedRead { token, lba, mut buffer, error } in failed {
        let result = read(versions, lba, &mut buffer, &error, found).map(|()| Some(buffer));
        versions.intake.completions.push(Completion { token, result });
    }
}

fn read(
    versions: &Versions,
    first: Lba,
    buffer: &mut BufferMut,
    error: &DeviceError,
    found: &Mutex<PreviousReads>,
) -> Result<(), DeviceError> {
    let block_bytes = versions.sealing.block_bytes();
    for (at, out) in (first.0..).zip(buffer.chunks_exact_mut(block_bytes)) {
        let lba = Lba(at);
        let Search { opened, tried, .. } = versions.newest_that_opens(lba)?;
        match opened {
            Some((sequence, Some(block))) => {
                out.copy_from_slice(&block);
                if tried > 0 {
                    tracing::error!(%lba, %sequence, tried, "the newest version of a block does not open: an older one was read");
                    note(found, lba);
                }
            }
            Some((_, None)) if tried == 0 => out.fill(0),
            Some((_, None)) => {
                let message = "no kept version of the block opens but an absence, which may be older than versions that were let \
                               go; restore the block from a backup, or accept zeros: strongroom volume recover --accept-absence";
                return Err(device_error(DeviceErrorKind::Medium, Some(lba), message));
            }
            None => return Err(DeviceError { lba: Some(lba), ..error.clone() }),
        }
    }
    Ok(())
}

fn note(found: &Mutex<PreviousReads>, lba: Lba) {
    let mut found = lock(found);
    found.count += 1;
    if found.blocks.len() < BLOCKS_MAX && !found.blocks.contains(&lba) {
        found.blocks.push(lba);
    }
}

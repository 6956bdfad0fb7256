//! A block device in memory: what the front ends and the copy are tested against, and nothing else.
//!
//! Completes at once and in the order of submission, unless it was told to hold completions back. Absent: durability.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use strongroom_block::{
    BlockDevice, Completion, CompletionSink, DeviceError, DeviceErrorKind, Geometry, Lba, Request, Token,
};

use crate::completion::{CompletionQueue, device_error, lock};

/// A sparse block device in memory, with faults on demand.
#[derive(Debug)]
pub struct MemoryDevice {
    geometry: Geometry,
    /// Blocks that there are now.
    blocks: AtomicU64,
    state: Mutex<MemoryState>,
    completions: CompletionQueue,
}

#[derive(Debug, Default)]
struct MemoryState {
    blocks: HashMap<u64, Box<[u8]>>,
    bad: HashMap<u64, DeviceErrorKind>,
    flushes: u64,
    forced_writes: u64,
    discarded_blocks: u64,
}

/// What a [`MemoryDevice`] was asked to do so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounts {
    /// Blocks that hold data.
    pub blocks_present: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Writes with forced unit access.
    pub forced_writes: u64,
    /// Blocks named by discards.
    pub discarded_blocks: u64,
}

impl MemoryDevice {
    /// A device of zeros.
    pub fn new(geometry: Geometry) -> MemoryDevice {
        let blocks = AtomicU64::new(geometry.blocks);
        MemoryDevice { geometry, blocks, state: Mutex::default(), completions: CompletionQueue::default() }
    }

    /// From now on it has this many blocks.
    pub fn grow_to(&self, blocks: u64) {
        self.blocks.fetch_max(blocks, Ordering::Relaxed);
    }

    /// From now on every request that touches `lba` fails in this way.
    pub fn fail_at(&self, lba: Lba, kind: DeviceErrorKind) {
        lock(&self.state).bad.insert(lba.0, kind);
    }

    /// From now on no request fails any more.
    pub fn heal(&self) {
        lock(&self.state).bad.clear();
    }

    /// What happened so far.
    pub fn counts(&self) -> MemoryCounts {
        let state = lock(&self.state);
        MemoryCounts {
            blocks_present: state.blocks.len() as u64,
            flushes: state.flushes,
            forced_writes: state.forced_writes,
            discarded_blocks: state.discarded_blocks,
        }
    }

    /// How many blocks from `lba` on hold nothing, at most `count`.
    pub fn hole_at(&self, lba: Lba, count: u64) -> u64 {
        let state = lock(&self.state);
        (lba.0..lba.0 + count).take_while(|at| !state.blocks.contains_key(at)).count() as u64
    }

    /// How many blocks from `lba` on hold data, at most `count`.
    pub fn data_at(&self, lba: Lba, count: u64) -> u64 {
        let state = lock(&self.state);
        (lba.0..lba.0 + count).take_while(|at| state.blocks.contains_key(at)).count() as u64
    }

    fn perform(&self, request: Request) -> Result<Option<strongroom_block::BufferMut>, DeviceError> {
        let block_bytes = self.geometry.block_size.len();
        let mut state = lock(&self.state);
        let (lba, count) = match &request {
            Request::Read { lba, buffer } => (*lba, (buffer.len() / block_bytes) as u64),
            Request::Write { lba, data, .. } => (*lba, (data.len() / block_bytes) as u64),
            Request::WritePart { lba, .. } => (*lba, 1),
            Request::Flush => (Lba(0), 0),
            Request::Discard { lba, count } => (*lba, *count),
        };
        if !self.geometry().contains(lba, count) {
            return Err(device_error(DeviceErrorKind::OutOfRange, Some(lba), "outside the device"));
        }
        for (bad, kind) in &state.bad {
            if (lba.0..lba.0 + count).contains(bad) {
                return Err(device_error(*kind, Some(Lba(*bad)), "this block was told to fail"));
            }
        }
        match request {
            Request::Read { lba, mut buffer } => {
                for (at, block) in buffer.chunks_mut(block_bytes).enumerate() {
                    match state.blocks.get(&(lba.0 + at as u64)) {
                        Some(data) => block.copy_from_slice(data),
                        None => block.fill(0),
                    }
                }
                return Ok(Some(buffer));
            }
            Request::Write { lba, data, fua } => {
                state.forced_writes += u64::from(fua);
                for (at, block) in data.chunks(block_bytes).enumerate() {
                    state.blocks.insert(lba.0 + at as u64, block.into());
                }
            }
            Request::WritePart { lba, offset_bytes, data, fua } => {
                state.forced_writes += u64::from(fua);
                let block = state.blocks.entry(lba.0).or_insert_with(|| vec![0; block_bytes].into());
                block[offset_bytes as usize..][..data.len()].copy_from_slice(&data);
            }
            Request::Flush => state.flushes += 1,
            Request::Discard { lba, count } => {
                state.discarded_blocks += count;
                state.blocks.retain(|at, _| !(lba.0..lba.0 + count).contains(at));
            }
        }
        Ok(None)
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry { blocks: self.blocks.load(Ordering::Relaxed), ..self.geometry }
    }

    fn submit(&self, token: Token, request: Request) {
        let result = self.perform(request);
        self.completions.push(Completion { token, result });
    }

    fn poll_completions(&self, completions: &mut Vec<Completion>) -> usize {
        self.completions.poll(completions)
    }

    fn wait(&self, timeout: Option<Duration>) -> bool {
        self.completions.wait(timeout)
    }

    fn offer_completions(&self, sink: Arc<dyn CompletionSink>) {
        self.completions.offer_to(sink);
    }
}

//! What a load writes: a few incompressible blocks in turn, or, if it verifies, blocks that say where and when they were written.

use strongroom_block::{Buffer, BufferMut};

use crate::pattern;
use crate::protocol::IoJob;

/// Different contents of writes, so that nothing on the path profits from seeing the same twice.
const CONTENTS: u64 = 16;

/// The contents of writes, and how many there were.
pub(super) struct Contents {
    job: IoJob,
    /// Empty if each write has its own.
    ready: Vec<Buffer>,
    writes: u64,
}

impl Contents {
    pub(super) fn new(job: IoJob) -> Contents {
        let ready = if job.pattern.is_write() && !job.verify { incompressible(job.size, job.seed) } else { Vec::new() };
        Contents { job, ready, writes: 0 }
    }

    /// What is written next, and the number of the write.
    pub(super) fn next(&mut self, slot: u64) -> (u64, Buffer) {
        self.writes += 1;
        if !self.job.verify {
            return (self.writes, self.ready[(self.writes % CONTENTS) as usize].clone());
        }
        let mut data = BufferMut::zeroed(self.job.size as usize);
        pattern::fill(&mut data, self.job.start + slot * self.job.size, self.write_number(self.writes));
        (self.writes, data.freeze())
    }

    /// Tells the writes of one measurement from those of another.
    pub(super) fn write_number(&self, write: u64) -> u64 {
        (self.job.seed << 40) ^ write
    }
}

/// Blocks that neither compress nor repeat within one I/O.
fn incompressible(size: u64, seed: u64) -> Vec<Buffer> {
    let content = |index: u64| {
        let mut data = BufferMut::zeroed(size as usize);
        for (at, bytes) in (0u64..).zip(data.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&pattern::mix(seed ^ (index << 48) ^ at).to_le_bytes());
        }
        data.freeze()
    };
    (0..CONTENTS).map(content).collect()
}

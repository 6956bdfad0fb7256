//! What a load has ready before it begins: writes that are sealed, so that the initiators' processors are free for sending them while a
//! target is measured. Each is sealed once under a stamp of its own, for the place that it goes to, and sent once: a target recognises a
//! block that it has already. What will be read is opened once before, and then fetched as often as it may be and not opened.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use strongroom_block::{Lba, Token};
use strongroom_initiator::{RemoteDevice, SealedWrite, read_blocking};

use super::Load;
use crate::protocol::IoJob;

/// So many I/Os of each in flight before the last write, it is told that there will be no more.
const DEPTHS_LEFT: usize = 4;
/// Bytes of one read while everything is opened once.
const OPEN_BYTES: u64 = 1 << 20;

/// How long to wait for the target to have been told what opened.
const FEEDBACK_MAX: Duration = Duration::from_secs(10);
/// How often to look.
const FEEDBACK_LOOK: Duration = Duration::from_millis(5);

/// What is ready.
pub(super) struct Beforehand<'a> {
    device: &'a RemoteDevice,
    writes: VecDeque<Ready>,
    /// Fewer writes than this are few.
    few: usize,
    is_write: bool,
}

struct Ready {
    slot: u64,
    write: u64,
    sealed: SealedWrite,
}

impl<'a> Load<'a> {
    /// Seals what will be written, in the order in which it will be, or opens what will be read. Nothing is to be done for a plain volume.
    ///
    /// # Errors
    /// What the device says, or that the volume holds other data than it should.
    pub(crate) fn prepare(&mut self, device: &'a RemoteDevice) -> Result<(), String> {
        let (job, block_bytes) = (self.job, self.block_bytes);
        if device.unit().sealed.is_none() {
            return Ok(());
        }
        if job.size < block_bytes {
            return Err(
                "parts of a block cannot be sealed beforehand; leave --sealed-beforehand or --seal-bytes out".into()
            );
        }
        let mut writes = VecDeque::new();
        let few = DEPTHS_LEFT * job.depth as usize;
        if job.pattern.is_write() {
            let count = job.sealed_beforehand_bytes.div_ceil(job.size).max(2 * few as u64);
            for _ in 0..count {
                let slot = self.addresses.next();
                let (write, data) = self.contents.next(slot);
                let lba = Lba((job.start + slot * job.size) / block_bytes);
                let sealed = device.seal(lba, &data).map_err(|error| format!("cannot seal beforehand: {error}"))?;
                writes.push_back(Ready { slot, write, sealed });
            }
        } else {
            self.open_everything(device)?;
            // The target is told what opened, once, and lets older versions go: not while it is measured.
            let begun = Instant::now();
            while device.status().feedback_pending > 0 && begun.elapsed() < FEEDBACK_MAX {
                std::thread::sleep(FEEDBACK_LOOK);
            }
        }
        self.beforehand = Some(Beforehand { device, writes, few, is_write: job.pattern.is_write() });
        Ok(())
    }

    /// Reads all of its part of the volume by plain reads, which open every block.
    pub(super) fn open_everything(&mut self, device: &RemoteDevice) -> Result<(), String> {
        let IoJob { start, len, size, verify, .. } = self.job;
        let step = OPEN_BYTES.max(size).min(len);
        for at in (start..start + len / size * size).step_by(step as usize) {
            let bytes = step.min(start + len - at);
            let data = read_blocking(device, Lba(at / self.block_bytes), bytes / self.block_bytes)
                .map_err(|error| format!("cannot open what is there: {error}"))?;
            if verify {
                for (data, at) in data.chunks_exact(size as usize).zip((at..).step_by(size as usize)) {
                    self.compare(data, (at - start) / size, None);
                }
            }
        }
        Ok(())
    }
}

impl<'a> Beforehand<'a> {
    /// The device that it is for.
    pub(super) fn device(&self) -> &'a RemoteDevice {
        self.device
    }

    /// Writes what is next: its slot, and the number of the write; `None` if there is no more.
    pub(super) fn write(&mut self, token: Token) -> Option<(u64, u64)> {
        let Ready { slot, write, sealed } = self.writes.pop_front()?;
        self.device.submit_sealed(token, sealed);
        Some((slot, write))
    }

    /// Whether there are few writes left.
    pub(super) fn is_spent(&self) -> bool {
        self.is_write && self.writes.len() < self.few
    }
}

//! Reading a sealed volume to see whether everything in it opens: for blind custodies the only ones who can tell are initiators.
//!
//! What opens is told to the target, which lets older versions go. Nothing is changed here; `recover` does that, on request.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, BufferMut, DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::RemoteDevice;
use crate::completion::device_error;
use crate::device::versions::OpenedVersion;
use crate::pipeline::operation::{Read, Verified};

/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Reading pauses while the target has not been told of this many blocks.
const FEEDBACK_MAX: usize = 8 * 1024;
/// How long that, and the rest of it at the end, is waited for.
const FEEDBACK_PATIENCE: Duration = Duration::from_secs(30);
const FEEDBACK_LOOK_EVERY: Duration = Duration::from_millis(1);
/// Upper bound on the blocks that are named.
const BAD_BLOCKS_MAX: usize = 100_000;

/// How far a verification is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Everything before it was looked at; where a verification that was stopped goes on.
    pub next: Lba,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks whose newest version opens, in this run; an absence in the midst of data counts here.
    pub opened: u64,
    /// Blocks whose absence is proved by its seal, in this run.
    pub absent: u64,
    /// Blocks that do not open, in this run.
    pub bad: u64,
}

/// What a verification came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyReport {
    /// Where it ended; [`VerifyProgress::next`] is the volume's end if it was not stopped.
    pub progress: VerifyProgress,
    /// The blocks that do not open, in order; at most 100,000 of them.
    pub bad_blocks: Vec<Lba>,
}

impl RemoteDevice {
    /// Reads every block from `from` on and looks whether its newest version opens. `progress` is called after every step, and after every
    /// block that does not open, and can
    /// stop it.
    ///
    /// # Errors
    /// What is wrong with the connection, the target or the key; never a block that does not open.
    pub fn verify(
        &self,
        from: Lba,
        progress: &mut dyn FnMut(&VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifyReport, DeviceError> {
        if self.sealing.is_none() {
            let message =
                "the volume is plain: there is no seal to verify; 'strongroom store check' reads its checksums";
            return Err(device_error(DeviceErrorKind::Refused, None, message));
        }
        let blocks = self.geometry().blocks;
        let done = VerifyProgress { next: from, blocks, opened: 0, absent: 0, bad: 0 };
        let mut verification = Verification { device: self, done, bad_blocks: Vec::new() };
        while verification.done.next.0 < blocks && progress(&verification.done).is_continue() {
            let goes_on = verification.verify_next(progress)?;
            verification.wait_for_feedback(FEEDBACK_MAX);
            if goes_on.is_break() {
                break;
            }
        }
        verification.wait_for_feedback(0);
        Ok(VerifyReport { progress: verification.done, bad_blocks: verification.bad_blocks })
    }
}

/// One run.
struct Verification<'a> {
    device: &'a RemoteDevice,
    done: VerifyProgress,
    bad_blocks: Vec<Lba>,
}

impl Verification<'_> {
    /// Looks at what is next: an absence, or a megabyte of data. Asks whether to go on after each block that does not open.
    fn verify_next(
        &mut self,
        progress: &mut dyn FnMut(&VerifyProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, DeviceError> {
        let left = self.done.blocks - self.done.next.0;
        // What cannot be read as an absence is looked at as data.
        let absent = match self.device.hole_at(self.done.next, left) {
            Ok(absent) => absent,
            Err(error) if error.kind == DeviceErrorKind::Medium => 0,
            Err(error) => return Err(error),
        };
        if absent > 0 {
            self.done.absent += absent;
            self.done.next.0 += absent;
            return Ok(ControlFlow::Continue(()));
        }
        let block_size = self.device.unit.geometry.block_size;
        let count = left.min((READ_BYTES >> block_size.shift()).max(1));
        let bytes = (count as usize) << block_size.shift();
        match self.device.intake.ask(Read { lba: self.done.next, buffer: BufferMut::to_fill(bytes) }, bytes) {
            Ok(_) => {
                self.done.opened += count;
                self.done.next.0 += count;
            }
            Err(error) if error.kind == DeviceErrorKind::Medium => {
                let mut opened = Vec::new();
                let mut goes_on = ControlFlow::Continue(());
                for lba in (self.done.next.0..self.done.next.0 + count).map(Lba) {
                    let bad = self.done.bad;
                    opened.extend(self.verify_block(lba)?.map(|sequence| (lba, sequence)));
                    self.done.next.0 += 1;
                    if self.done.bad > bad && progress(&self.done).is_break() {
                        goes_on = ControlFlow::Break(());
                        break;
                    }
                }
                if self.device.gives_feedback && !opened.is_empty() {
                    self.device.intake.ask(Verified { pairs: opened }, 0)?;
                }
                return Ok(goes_on);
            }
            Err(error) => return Err(error),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Looks at one block; the version that opened, unless it is an absence.
    fn verify_block(&mut self, lba: Lba) -> Result<Option<StoreSequence>, DeviceError> {
        let versions = self.device.versions().expect("asked for sealed units only");
        match versions.version(lba, StoreSequence(0))? {
            OpenedVersion::Good { block: Some(_), sequence } => {
                self.done.opened += 1;
                return Ok(Some(sequence));
            }
            OpenedVersion::Good { block: None, .. } => self.done.absent += 1,
            OpenedVersion::Bad { .. } | OpenedVersion::Unreadable | OpenedVersion::None => {
                tracing::debug!(%lba, "a block does not open");
                self.done.bad += 1;
                if self.bad_blocks.len() < BAD_BLOCKS_MAX {
                    self.bad_blocks.push(lba);
                }
            }
        }
        Ok(None)
    }

    /// Waits until the target was told of all but this many of the versions that opened. What it is not told only costs it space.
    fn wait_for_feedback(&self, pending_max: usize) {
        let until = Instant::now() + FEEDBACK_PATIENCE;
        while self.device.status().feedback_pending > pending_max && Instant::now() < until {
            std::thread::sleep(FEEDBACK_LOOK_EVERY);
        }
    }
}

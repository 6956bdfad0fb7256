//! Reading a sealed volume to see whether everything in it opens: for blind custodies the only ones who can tell are initiators.
//!
//! What opens is told to the target, which lets older versions go. Nothing is changed here; `recover` does that, on request.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use strongroom_block::{BlockDevice, BufferMut, DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::RemoteDevice;
use crate::completion::device_error;
use crate::device::versions::Step;
use crate::pipeline::operation::{Read, Verified};

/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Reading pauses while the target has not been told of so many blocks.
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
        let mut bad_blocks = Vec::new();
        let mut done = VerifyProgress { next: from, blocks, opened: 0, absent: 0, bad: 0 };
        while done.next.0 < blocks && progress(&done).is_continue() {
            let goes_on = self.verify_step(&mut done, &mut bad_blocks, progress)?;
            self.wait_for_feedback(FEEDBACK_MAX);
            if goes_on.is_break() {
                break;
            }
        }
        self.wait_for_feedback(0);
        Ok(VerifyReport { progress: done, bad_blocks })
    }

    /// Looks at what is next: an absence, or a megabyte of data. Asks whether to go on after each block that does not open.
    fn verify_step(
        &self,
        done: &mut VerifyProgress,
        bad_blocks: &mut Vec<Lba>,
        progress: &mut dyn FnMut(&VerifyProgress) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, DeviceError> {
        let left = done.blocks - done.next.0;
        // What cannot be read as an absence is looked at as data.
        let absent = match self.hole_at(done.next, left) {
            Ok(absent) => absent,
            Err(error) if error.kind == DeviceErrorKind::Medium => 0,
            Err(error) => return Err(error),
        };
        if absent > 0 {
            done.absent += absent;
            done.next.0 += absent;
            return Ok(ControlFlow::Continue(()));
        }
        let block_size = self.unit.geometry.block_size;
        let count = left.min((READ_BYTES >> block_size.shift()).max(1));
        let bytes = (count as usize) << block_size.shift();
        match self.intake.ask(Read { lba: done.next, buffer: BufferMut::to_fill(bytes) }, bytes) {
            Ok(_) => {
                done.opened += count;
                done.next.0 += count;
            }
            Err(error) if error.kind == DeviceErrorKind::Medium => {
                let mut opened = Vec::new();
                let mut goes_on = ControlFlow::Continue(());
                for lba in (done.next.0..done.next.0 + count).map(Lba) {
                    let bad = done.bad;
                    opened.extend(self.verify_block(lba, done, bad_blocks)?.map(|sequence| (lba, sequence)));
                    done.next.0 += 1;
                    if done.bad > bad && progress(done).is_break() {
                        goes_on = ControlFlow::Break(());
                        break;
                    }
                }
                if self.gives_feedback && !opened.is_empty() {
                    self.intake.ask(Verified { pairs: opened }, 0)?;
                }
                return Ok(goes_on);
            }
            Err(error) => return Err(error),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Looks at one block; the version that opened, unless it is an absence.
    fn verify_block(
        &self,
        lba: Lba,
        done: &mut VerifyProgress,
        bad_blocks: &mut Vec<Lba>,
    ) -> Result<Option<StoreSequence>, DeviceError> {
        let versions = self.versions().expect("asked for sealed units only");
        match versions.version(lba, StoreSequence(0))? {
            Step::Good { block: Some(_), sequence } => {
                done.opened += 1;
                return Ok(Some(sequence));
            }
            Step::Good { block: None, .. } => done.absent += 1,
            Step::Bad { .. } | Step::Unreadable | Step::None => {
                tracing::debug!(%lba, "a block does not open");
                done.bad += 1;
                if bad_blocks.len() < BAD_BLOCKS_MAX {
                    bad_blocks.push(lba);
                }
            }
        }
        Ok(None)
    }

    /// Waits until the target was told of all but so many of the versions that opened. What it is not told only costs it space.
    fn wait_for_feedback(&self, pending_max: usize) {
        let until = Instant::now() + FEEDBACK_PATIENCE;
        while self.status().feedback_pending > pending_max && Instant::now() < until {
            std::thread::sleep(FEEDBACK_LOOK_EVERY);
        }
    }
}

//! Rewriting what is sealed under older key epochs, beside other writers: each block under a new seal if it is still the one that was
//! read, each absence if there is still no data. What somebody else writes meanwhile is theirs, and new anyway.
//!
//! Nothing that was resealed counts before it is durable, at a target that has not been restarted since. So when a pass that began
//! after the last old lease ended has seen everything and left nothing, no block and no absence of the volume is under an older epoch,
//! nor will be. Absent: pauses and where a pass goes on (the caller's), destroying keys, what snapshots hold (read-only, and not seen
//! from here: [`UnitDescription::other_views`](super::UnitDescription)).

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, sync_channel};

use strongroom_block::{BlockDevice, BufferMut, DeviceError, DeviceErrorKind, Lba};

use super::RemoteDevice;
use crate::completion::device_error;
use crate::device::holes::Absence;
use crate::pipeline::answer::{Answer, SurveyResult};
use crate::pipeline::operation::{Operation, ResealBlock, ResealHole, Survey, TakePlace};
use crate::pipeline::request::{NewRequest, Reply};

/// Bytes of one read.
const READ_BYTES: u64 = 1 << 20;
/// Tries of one step against writers who still seal under the old epoch.
const TRIES_MAX: u32 = 100;
/// Upper bound on the blocks that are named.
const BAD_BLOCKS_MAX: usize = 100_000;

/// How far a pass is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResealProgress {
    /// Everything before it was looked at.
    pub next: Lba,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks that were resealed in this run.
    pub resealed: u64,
    /// Blocks whose absence was.
    pub absent_resealed: u64,
    /// Blocks that do not open, which are left as they are.
    pub bad: u64,
    /// Blocks that others kept writing under the old epoch: the pass has to be made again.
    pub missed: u64,
    /// Bytes read and written in this run, for a caller that limits the rate.
    pub moved_bytes: u64,
}

/// What a pass came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResealReport {
    /// Everything older than this epoch was resealed.
    pub epoch: u32,
    /// Where it ended; [`ResealProgress::next`] is the volume's end if it was not stopped.
    pub progress: ResealProgress,
    /// The blocks that do not open, in order; at most 100,000 of them.
    pub bad_blocks: Vec<Lba>,
}

impl ResealReport {
    /// Whether nothing is left of older epochs, as far as this run looked.
    pub fn is_clean(&self) -> bool {
        self.progress.next.0 == self.progress.blocks && self.progress.missed == 0 && self.progress.bad == 0
    }
}

/// One pass.
struct Pass<'a> {
    device: &'a RemoteDevice,
    epoch: u32,
    done: ResealProgress,
    bad_blocks: Vec<Lba>,
    /// Longest absence that is sealed at once; smaller after one that was written into meanwhile.
    absence_max: u64,
}

/// What became of one step.
enum Stepped {
    /// Everything before this was dealt with.
    To(Lba),
    /// Somebody wrote, or the target was restarted: look again.
    Again,
}

impl RemoteDevice {
    /// Reseals, from `from` on, what is under epochs older than the one that is current when it begins. `progress` is told after
    /// every step, may take its time, and can stop it; begun again it finds nothing to do where it was.
    ///
    /// # Errors
    /// What is wrong with the connection, the target or the keys; never a block that does not open.
    pub fn reseal(
        &self,
        from: Lba,
        progress: &mut dyn FnMut(&ResealProgress) -> ControlFlow<()>,
    ) -> Result<ResealReport, DeviceError> {
        let Some(keys) = self.key_status() else {
            let message = "only a volume whose keys are at a key server has epochs that move on";
            return Err(device_error(DeviceErrorKind::Refused, None, message));
        };
        self.bounds().check_writable(None)?;
        self.unit.check_reseal()?;
        let blocks = self.geometry().blocks;
        let done =
            ResealProgress { next: from, blocks, resealed: 0, absent_resealed: 0, bad: 0, missed: 0, moved_bytes: 0 };
        let mut pass = Pass { device: self, epoch: keys.epoch, done, bad_blocks: Vec::new(), absence_max: u64::MAX };
        while pass.done.next.0 < blocks && progress(&pass.done).is_continue() {
            pass.go_on()?;
        }
        Ok(ResealReport { epoch: pass.epoch, progress: pass.done, bad_blocks: pass.bad_blocks })
    }

    /// Has the volume, which was made as the successor of another one and holds all that it holds, take its place: name and access. The
    /// target begins with it when this returns; the sessions of both end, and who attaches the other one's name afterwards gets this
    /// volume. Make everything durable first.
    ///
    /// # Errors
    /// `Refused` if it was not made as a successor; what the target says.
    pub fn take_place(&self) -> Result<(), DeviceError> {
        self.bounds().check_writable(None)?;
        self.intake.ask(TakePlace, 0).map(drop)
    }
}

impl Pass<'_> {
    /// Hands requests over, and then waits for all of them.
    fn ask_all(&self, operations: Vec<Operation>, cost_each: usize) -> Result<Vec<Answer>, DeviceError> {
        let mut answers: Vec<Receiver<Result<Answer, DeviceError>>> = Vec::with_capacity(operations.len());
        for operation in operations {
            let (sender, receiver) = sync_channel(1);
            self.device.intake.admit(cost_each)?;
            self.device.intake.push(NewRequest { reply: Reply::Caller(sender), cost_bytes: cost_each, operation });
            answers.push(receiver);
        }
        answers
            .into_iter()
            .map(|answer| answer.recv().unwrap_or_else(|_| Err(crate::device::intake::detached())))
            .collect()
    }

    /// The next absence, or the next megabyte of data.
    fn go_on(&mut self) -> Result<(), DeviceError> {
        let (before, bad_blocks) = (self.done.clone(), self.bad_blocks.len());
        for _ in 0..TRIES_MAX {
            let session = self.device.status().connections;
            let stepped = self.step()?;
            // What a restarted target has forgotten was not resealed.
            let same = self.device.status().connections == session;
            match stepped {
                Stepped::To(next) if same => {
                    self.done.next = next;
                    return Ok(());
                }
                Stepped::To(_) | Stepped::Again => {
                    let moved_bytes = self.done.moved_bytes;
                    self.done = ResealProgress { moved_bytes, ..before.clone() };
                    self.bad_blocks.truncate(bad_blocks);
                }
            }
        }
        let count = self.step_blocks();
        tracing::warn!(from = %self.done.next, count, "others keep writing these blocks under an older key epoch");
        self.done.missed += count;
        self.done.next.0 += count;
        Ok(())
    }

    fn step_blocks(&self) -> u64 {
        let unit = &self.device.unit;
        let bytes = READ_BYTES.min(self.device.intake.transfer_bytes_max());
        let theirs = unit.transfer_blocks_max.map_or(u64::MAX, u64::from);
        (self.done.blocks - self.done.next.0).min(bytes >> unit.geometry.block_size.shift()).min(theirs).max(1)
    }

    fn step(&mut self) -> Result<Stepped, DeviceError> {
        let next = self.done.next;
        let left = (self.done.blocks - next.0).min(self.absence_max);
        // What cannot be read as an absence is looked at as data.
        let absence = match self.device.holes().find(next, left) {
            Ok(absence) => absence,
            Err(error) if matches!(error.kind, DeviceErrorKind::Medium) => Absence::default(),
            Err(error) => return Err(error),
        };
        if absence.blocks == 0 {
            return self.step_through_data(next, self.step_blocks());
        }
        if absence.oldest_epoch.is_some_and(|oldest| oldest < self.epoch) {
            if !self.reseal_absence(next, absence.blocks)? {
                self.absence_max = (absence.blocks / 2).max(1);
                return Ok(Stepped::Again);
            }
            self.done.absent_resealed += absence.blocks;
            self.device.flush()?;
        }
        self.absence_max = u64::MAX;
        Ok(Stepped::To(Lba(next.0 + absence.blocks)))
    }

    fn reseal_absence(&self, start: Lba, count: u64) -> Result<bool, DeviceError> {
        let sealing = self.device.sealing.as_ref().expect("its keys are lent");
        let hole = sealing.seal_hole(start, count)?;
        Ok(matches!(self.device.intake.ask(ResealHole::new(hole), 0)?, Answer::Resealed(true)))
    }

    fn step_through_data(&mut self, lba: Lba, count: u64) -> Result<Stepped, DeviceError> {
        let shift = self.device.unit.geometry.block_size.shift();
        let bytes = (count as usize) << shift;
        let survey = Survey::new(lba, count as u32, BufferMut::to_fill(bytes));
        self.done.moved_bytes += bytes as u64;
        let survey = match self.device.intake.ask(survey, bytes) {
            Ok(Answer::Survey(survey)) => survey,
            Ok(_) => return Ok(Stepped::Again),
            Err(error) if error.kind == DeviceErrorKind::Medium && count > 1 => {
                return self.step_block_by_block(lba, count);
            }
            // Under an epoch that is gone for good, it is no more than damaged.
            Err(error) if matches!(error.kind, DeviceErrorKind::Medium | DeviceErrorKind::NoKey) && count == 1 => {
                self.device.check_keys()?;
                tracing::error!(%lba, %error, "a block does not open and stays as it is");
                self.done.bad += 1;
                if self.bad_blocks.len() < BAD_BLOCKS_MAX {
                    self.bad_blocks.push(lba);
                }
                return Ok(Stepped::To(Lba(lba.0 + 1)));
            }
            Err(error) if error.kind == DeviceErrorKind::NoKey => {
                self.device.check_keys()?;
                return self.step_block_by_block(lba, count);
            }
            Err(error) => return Err(error),
        };
        if !self.reseal_found(lba, &survey)? {
            return Ok(Stepped::Again);
        }
        Ok(Stepped::To(Lba(lba.0 + count)))
    }

    fn step_block_by_block(&mut self, lba: Lba, count: u64) -> Result<Stepped, DeviceError> {
        let mut at = lba;
        while at.0 < lba.0 + count {
            match self.step_through_data(at, 1)? {
                Stepped::To(next) => at = next,
                Stepped::Again => return Ok(Stepped::Again),
            }
        }
        Ok(Stepped::To(at))
    }

    /// Reseals what is old of it; whether all of it was still the same.
    fn reseal_found(&mut self, first: Lba, survey: &SurveyResult) -> Result<bool, DeviceError> {
        let sealing = self.device.sealing.as_ref().expect("its keys are lent");
        let block_bytes = sealing.block_bytes();
        let mut operations: Vec<Operation> = Vec::new();
        let old = survey.blocks.iter().filter(|block| block.epoch < self.epoch);
        for block in old {
            let from = (block.lba.0 - first.0) as usize * block_bytes;
            let sealed = sealing.seal(block.lba, &survey.data[from..from + block_bytes])?;
            operations.push(ResealBlock::new(block.lba, block.stamp, sealed).into());
        }
        let blocks = operations.len() as u64;
        let mut absent = 0;
        for hole in survey.holes.iter().filter(|hole| hole.epoch < self.epoch) {
            operations.push(ResealHole::new(sealing.seal_hole(hole.lba, hole.count)?).into());
            absent += hole.count;
        }
        if operations.is_empty() {
            return Ok(true);
        }
        let answers = self.ask_all(operations, block_bytes)?;
        self.device.flush()?;
        self.done.moved_bytes += blocks * block_bytes as u64;
        self.done.resealed += blocks;
        self.done.absent_resealed += absent;
        Ok(answers.iter().all(|answer| matches!(answer, Answer::Resealed(true))))
    }
}

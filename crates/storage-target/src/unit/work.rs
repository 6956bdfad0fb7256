//! What a command needs of the store: one operation, or several one after the other. Long work goes in slices, so that it never
//! starves other commands; what has more than one kind of step is in `modify`.

use std::collections::VecDeque;
use std::sync::LazyLock;

use strongroom_block::{Buffer, BufferMut, Lba, StoreSequence};
use strongroom_scsi::transport::Written;
use strongroom_scsi::transport::target::{ReadPart, Response};
use strongroom_scsi::{Sense, Status};
use strongroom_store::{Extent, Op, OpError, Outcome};

use super::copy::{COPIES_MAX, CopyOp, CopyProgress};
use super::modify::{Changing, is_written};
use super::plan::Plan;
use super::request::gather;
use super::response::{check_condition, status};
use super::serve::ServedOperation;
use super::{SessionKey, Unit};
use crate::names::VolumeName;
use crate::open_units::Requester;

/// Bytes that long work (WRITE SAME, VERIFY) moves in one operation.
pub(crate) const SLICE_BYTES: u32 = 1 << 20;

/// Blocks with data that UNMAP discards in one operation, about; those without cost nothing.
const DISCARD_BLOCKS: u64 = 16384;

/// Shared zeros for holes of plain units.
static ZEROS: LazyLock<Buffer> = LazyLock::new(|| BufferMut::zeroed(SLICE_BYTES as usize).freeze());

/// A command at work.
pub(super) enum Work {
    /// READ, READ VERSION.
    Read { wanted_bytes: u64, sealed_blocks_max: usize },
    /// Whatever takes data and answers GOOD.
    Write { wanted_bytes: u64 },
    /// The same of sealed blocks that the channel has checked on arrival: older versions go.
    CheckedWrite { lba: Lba, count: u64, wanted_bytes: u64 },
    /// SEAL HOLE.
    Hole { wanted_bytes: u64 },
    /// VERIFIED, or its effect after a write that was checked on arrival; `written` then says where that was stored.
    Verified { wanted_bytes: u64, written: Option<Written> },
    /// REGISTER ATTACHMENT.
    Register,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// What was done is made durable before it is answered (WCE=0).
    Settle { wanted_bytes: Option<u64>, written: Option<Written> },
    /// START STOP UNIT with START=0.
    FlushAndStop,
    /// UNMAP, WRITE SAME with UNMAP: what is still to be discarded.
    Discards(VecDeque<(Lba, u64)>),
    /// WRITE SAME: what is still to be written, and a slice full of the block.
    Same { lba: Lba, left: u32, pattern: Buffer, slice_blocks: u32 },
    /// VERIFY: what is still to be read, and what it must be (repeated).
    Verify {
        lba: Lba,
        left: u32,
        compare: Option<Buffer>,
        compared_bytes: usize,
        slice_blocks: u32,
        wanted_bytes: Option<u64>,
    },
    /// WRITE AND VERIFY, before it is verified.
    WriteThenVerify { lba: Lba, count: u32, compare: Option<Buffer>, wanted_bytes: u64 },
    /// ORWRITE or a write of a part of a block, what is there being read.
    OrRead(Box<Changing>),
    /// The same, being written if nobody came in between.
    OrWrite(Box<Changing>),
    /// SANITIZE.
    Sanitize,
    /// EXTENDED COPY, a slice being read.
    CopyRead(Box<CopyProgress>),
    /// EXTENDED COPY, a slice being written.
    CopyWrite(Box<CopyProgress>),
    /// An operation for a command that another unit works on.
    CrossUnitRequest(Box<ServedOperation>),
}

/// How work goes on.
pub(super) enum Next {
    Again(Work, Op),
    Done(Response),
}

impl Work {
    /// Whether it writes with operations that do not make their data durable themselves.
    pub(super) fn writes_to_cache(&self) -> bool {
        use Work::{CopyRead, CopyWrite, Discards, Hole, Same};
        matches!(self, Hole { .. } | Discards(_) | Same { .. } | CopyRead(_) | CopyWrite(_))
    }

    /// The other unit that executes the next operation, and on whose behalf; `None`: this one.
    pub(super) fn other_unit(&self) -> Option<(VolumeName, Requester)> {
        match self {
            Work::CopyRead(copy) => copy.reads_from(),
            Work::CopyWrite(copy) => copy.writes_to(),
            _ => None,
        }
    }

    /// Whether its next step leaves nothing behind that SANITIZE would have to discard.
    pub(super) fn may_go_on_while_sanitizing(&self) -> bool {
        matches!(self, Work::Sanitize | Work::Settle { .. })
    }

    /// WRITE SAME of `block` over `count` (at least one) blocks.
    pub(super) fn write_same(lba: Lba, count: u32, block: &Buffer, slice_blocks: u32) -> (Work, Op) {
        let blocks = count.min(slice_blocks.max(1)) as usize;
        let mut pattern = BufferMut::zeroed(block.len() * blocks);
        pattern.chunks_exact_mut(block.len()).for_each(|chunk| chunk.copy_from_slice(block));
        let pattern = pattern.freeze();
        let first = blocks as u32;
        let op = Op::Write { lba, data: vec![pattern.clone()], records: Vec::new(), fua: false, origin: None };
        (Work::Same { lba: Lba(lba.0 + u64::from(first)), left: count - first, pattern, slice_blocks: first }, op)
    }

    /// VERIFY of `count` (at least one) blocks.
    pub(super) fn verify(lba: Lba, count: u32, compare: Option<Buffer>, slice_blocks: u32) -> (Work, Op) {
        let first = count.min(slice_blocks.max(1));
        let work = Work::Verify {
            lba: Lba(lba.0 + u64::from(first)),
            left: count - first,
            compare,
            compared_bytes: 0,
            slice_blocks: slice_blocks.max(1),
            wanted_bytes: None,
        };
        (work, Op::ReadMedium { lba, count: first })
    }
}

impl Unit {
    /// The store has done a part.
    pub(super) fn work_on(&mut self, work: Work, outcome: Outcome) -> Next {
        match (work, outcome) {
            (Work::Read { wanted_bytes, sealed_blocks_max }, Outcome::Read(extents)) => {
                let data = match self.volume.sealed {
                    Some(_) => self.sealed_parts(extents, sealed_blocks_max),
                    None => Ok(self.plain_parts(&extents)),
                };
                Next::Done(match data {
                    Ok(data) => Response { data, wanted_bytes: Some(wanted_bytes), ..Response::default() },
                    Err(sense) => check_condition(sense),
                })
            }
            (Work::Write { wanted_bytes } | Work::Hole { wanted_bytes }, outcome) if is_written(&outcome) => {
                let written = self.where_written(&outcome);
                Next::Done(Response { wanted_bytes: Some(wanted_bytes), written, ..Response::good() })
            }
            (Work::CheckedWrite { lba, count, wanted_bytes }, outcome @ Outcome::Written { first, .. }) => {
                let written = self.where_written(&outcome);
                if first == StoreSequence(0) {
                    return Next::Done(Response { wanted_bytes: Some(wanted_bytes), written, ..Response::good() });
                }
                let pairs = (0..count).map(|at| (Lba(lba.0 + at), StoreSequence(first.0 + at))).collect();
                Next::Again(Work::Verified { wanted_bytes, written }, Op::Verified { pairs })
            }
            (Work::Verified { wanted_bytes, written }, Outcome::Verified { .. }) => {
                Next::Done(Response { wanted_bytes: Some(wanted_bytes), written, ..Response::good() })
            }
            (Work::Register, Outcome::Changed) => Next::Done(Response::good()),
            (Work::Flush, Outcome::Flushed) => Next::Done(Response::good()),
            (Work::Settle { wanted_bytes, written }, Outcome::Flushed) => {
                Next::Done(Response { wanted_bytes, written, ..Response::good() })
            }
            (Work::FlushAndStop, Outcome::Flushed) => {
                self.medium.started = false;
                Next::Done(Response::good())
            }
            (Work::Discards(left), Outcome::Written { .. }) => match self.discard_next(left) {
                Some((work, op)) => Next::Again(work, op),
                None => Next::Done(Response::good()),
            },
            (Work::Same { lba, left, pattern, slice_blocks }, Outcome::Written { .. }) => {
                self.same_again(lba, left, pattern, slice_blocks)
            }
            (work @ Work::Verify { .. }, Outcome::Read(extents)) => self.verify_again(work, &extents),
            (Work::WriteThenVerify { lba, count, compare, wanted_bytes }, outcome) if is_written(&outcome) => {
                let (mut work, op) = Work::verify(lba, count, compare, self.slice_blocks());
                if let Work::Verify { wanted_bytes: wanted, .. } = &mut work {
                    *wanted = Some(wanted_bytes);
                }
                Next::Again(work, op)
            }
            (Work::OrRead(or), Outcome::Read(extents)) => self.or_was_read(or, &extents),
            (Work::OrWrite(or), outcome) if is_written(&outcome) => Unit::or_done(&or),
            (Work::Sanitize, Outcome::Changed) => Next::Done(self.sanitizer.erased()),
            (Work::CopyRead(mut copy), Outcome::Read(extents)) => {
                copy.was_read(extents, self.volume.geometry.block_size.shift());
                self.copy_next(copy)
            }
            (Work::CopyWrite(copy), outcome) if is_written(&outcome) => self.copy_next(copy),
            (Work::CrossUnitRequest(served), outcome) => {
                match served.completed(outcome, self.medium.mode.write_cache) {
                    Some((served, op)) => Next::Again(Work::CrossUnitRequest(Box::new(served)), op),
                    None => Next::Done(Response::good()),
                }
            }
            _ => {
                tracing::error!(volume = %self.volume.name, "the store answered another question; this is a defect");
                Next::Done(check_condition(Sense::INTERNAL_FAILURE))
            }
        }
    }

    pub(super) fn plan_copy(
        &self,
        connection: SessionKey,
        parameter_list_len: u32,
        request: &strongroom_scsi::transport::target::Command,
    ) -> Result<Plan, Sense> {
        if parameter_list_len == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        if parameter_list_len > strongroom_scsi::copy::LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let is_copy = |running: &super::RunningCommand| matches!(running.work, Work::CopyRead(_) | Work::CopyWrite(_));
        if self.executor.count(is_copy) >= COPIES_MAX {
            return Ok(Plan::Answer(status(Status::Busy)));
        }
        let user = self.access.users.get(connection).ok_or(Sense::INTERNAL_FAILURE)?;
        let list = gather(request, parameter_list_len.into())?;
        let initiator_name = std::sync::Arc::clone(&user.nexus.initiator_name);
        let asker = Requester { initiator_name, origin: user.origin.clone() };
        let others = &self.environment.open_units;
        let mut copy = Box::new(CopyProgress::parse(&list, (user.nexus.clone(), asker), &self.volume, others)?);
        Ok(match copy.next(self.slice_blocks()) {
            CopyOp::Read(op) => Plan::Start(Work::CopyRead(copy), op),
            CopyOp::Write(op) => Plan::Start(Work::CopyWrite(copy), op),
            CopyOp::End => Plan::Answer(Response::good()),
        })
    }

    fn copy_next(&mut self, mut copy: Box<CopyProgress>) -> Next {
        match copy.next(self.slice_blocks()) {
            CopyOp::Read(op) => Next::Again(Work::CopyRead(copy), op),
            CopyOp::Write(op) => Next::Again(Work::CopyWrite(copy), op),
            CopyOp::End => {
                self.copies.record(&copy, true);
                Next::Done(Response::good())
            }
        }
    }

    /// What the response to a write of sealed blocks or holes says about it; nothing on a plain unit.
    fn where_written(&self, outcome: &Outcome) -> Option<Written> {
        let &Outcome::Written { first, repeated, superseded } = outcome else { return None };
        if repeated > 0 || superseded > 0 {
            tracing::debug!(volume = %self.volume.name, repeated, superseded, "a write had been executed before, or was replayed");
        }
        self.volume.sealed.as_ref().map(|_| Written { is_repeat: repeated > 0, first, superseded })
    }

    /// The next slice of what is to be discarded; `None`: nothing is left.
    pub(super) fn discard_next(&self, mut left: VecDeque<(Lba, u64)>) -> Option<(Work, Op)> {
        let (lba, blocks) = left.pop_front()?;
        let count = self.store.discard_slice(lba, blocks, DISCARD_BLOCKS);
        if count < blocks {
            left.push_front((Lba(lba.0 + count), blocks - count));
        }
        Some((Work::Discards(left), Op::Discard { lba, count }))
    }

    fn same_again(&self, lba: Lba, left: u32, pattern: Buffer, slice_blocks: u32) -> Next {
        if left == 0 {
            return Next::Done(Response::good());
        }
        let blocks = left.min(slice_blocks);
        let len = (blocks as usize) << self.volume.geometry.block_size.shift();
        let op = Op::Write { lba, data: vec![pattern.slice(..len)], records: Vec::new(), fua: false, origin: None };
        let lba = Lba(lba.0 + u64::from(blocks));
        Next::Again(Work::Same { lba, left: left - blocks, pattern, slice_blocks }, op)
    }

    fn verify_again(&self, work: Work, extents: &[Extent]) -> Next {
        let Work::Verify { lba, left, compare, compared_bytes, slice_blocks, wanted_bytes } = work else {
            return Next::Done(check_condition(Sense::INTERNAL_FAILURE));
        };
        let mut position = compared_bytes;
        if let Some(compare) = &compare {
            for part in self.plain_parts(extents) {
                let expected = compare.iter().cycle().skip(position % compare.len());
                if let Some(at) = part.data().iter().zip(expected).position(|(found, expected)| found != expected) {
                    let offset = Lba((position + at) as u64);
                    return Next::Done(check_condition(Sense::MISCOMPARE.at(offset)));
                }
                position += part.data().len();
            }
        }
        if left == 0 {
            return Next::Done(Response { wanted_bytes, ..Response::good() });
        }
        let blocks = left.min(slice_blocks);
        let next = Lba(lba.0 + u64::from(blocks));
        let left = left - blocks;
        let work = Work::Verify { lba: next, left, compare, compared_bytes: position, slice_blocks, wanted_bytes };
        Next::Again(work, Op::ReadMedium { lba, count: blocks })
    }

    /// The store could not; what that means to the command.
    pub(super) fn work_failed(&mut self, work: Work, error: &OpError) -> Next {
        match (work, error) {
            (Work::OrWrite(or), OpError::Miscompare { .. }) => Unit::or_again(or),
            (Work::CrossUnitRequest(served), error) => {
                served.failed(error.clone());
                Next::Done(Response::good())
            }
            (Work::Sanitize, _) => Next::Done(self.sanitizer.erase_failed(&self.volume.name, error)),
            (Work::CopyRead(copy) | Work::CopyWrite(copy), _) => {
                tracing::error!(volume = %self.volume.name, %error, "EXTENDED COPY broke off");
                self.copies.record(&copy, false);
                Next::Done(check_condition(Sense::COPY_ABORTED))
            }
            _ => Next::Done(self.failed(error)),
        }
    }

    pub(super) fn plain_parts(&self, extents: &[Extent]) -> Vec<ReadPart> {
        let shift = self.volume.geometry.block_size.shift();
        let mut parts = Vec::with_capacity(extents.len());
        for extent in extents {
            match extent {
                Extent::Blocks { data, .. } => parts.push(ReadPart::Plain(data.clone())),
                Extent::Hole { count, .. } => {
                    let mut left = (*count as usize) << shift;
                    while left > 0 {
                        let len = left.min(ZEROS.len());
                        parts.push(ReadPart::Plain(ZEROS.slice(..len)));
                        left -= len;
                    }
                }
            }
        }
        parts
    }

    /// The store could not.
    pub(super) fn failed(&self, error: &OpError) -> Response {
        let volume = &self.volume.name;
        let sense = match error {
            OpError::Busy => return status(Status::Busy),
            OpError::OutOfRange { lba, .. } => Sense::LBA_OUT_OF_RANGE.at(*lba),
            OpError::NoVersion { lba } => Sense::NO_OLDER_VERSION.at(*lba),
            OpError::Miscompare { offset_bytes } => Sense::MISCOMPARE.at(Lba(*offset_bytes)),
            OpError::StampDiffers { lba, .. } | OpError::NotAbsent { lba } => Sense::MISCOMPARE.at(*lba),
            OpError::UnknownAttachment { .. } => {
                tracing::warn!(%volume, %error, "a write is refused");
                Sense::UNKNOWN_ATTACHMENT
            }
            OpError::OperationOverlaps { .. } | OpError::ReplayRefused(_) => {
                tracing::warn!(%volume, %error, "a write is refused");
                Sense::INVALID_OPERATION
            }
            OpError::ReplayLost { lba } => {
                tracing::warn!(%volume, %error, "a replay came too late");
                Sense::REPLAY_LOST.at(*lba)
            }
            OpError::Medium { lba, .. } | OpError::NotFormatted { lba } => {
                tracing::error!(%volume, %lba, %error, "a read failed");
                Sense::UNRECOVERED_READ.at(*lba)
            }
            // Told once, when the store became full.
            OpError::NoSpace => Sense::NO_SPACE,
            OpError::WritesRefused { .. } => {
                tracing::error!(%volume, %error, "a write failed");
                Sense::INTERNAL_FAILURE
            }
            OpError::ReadOnly => Sense::WRITE_PROTECTED,
            OpError::Erasing => Sense::SANITIZE_IN_PROGRESS.so_far(self.store.erase_progress().unwrap_or(0)),
            OpError::Misuse(_)
            | OpError::NoSuchView
            | OpError::NameTaken(_)
            | OpError::Depended(_)
            | OpError::TooMany(_) => {
                tracing::error!(%volume, %error, "the store refuses a request; this is a defect");
                Sense::INTERNAL_FAILURE
            }
        };
        check_condition(sense)
    }
}

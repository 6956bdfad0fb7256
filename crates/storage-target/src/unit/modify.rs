//! Commands of more than one step: ORWRITE and writes of parts of blocks, WRITE AND VERIFY, PRE-FETCH and SANITIZE. Each goes in slices,
//! so that it never starves others.

use strongroom_block::{Buffer, BufferMut, Lba};
use strongroom_scsi::transport::Direction;
use strongroom_scsi::transport::target::{self as transport, Response};
use strongroom_scsi::{Sense, Status};
use strongroom_store::{Extent, Op, Outcome};

use super::Unit;
use super::plan::Plan;
use super::request::gather;
use super::response::{check_condition, status};
use super::work::{Next, SLICE_BYTES, Work};
use crate::TRANSFER_BYTES_MAX;

/// How often ORWRITE starts again because somebody else wrote in between; then the initiator is told BUSY.
const OR_ATTEMPTS_MAX: u32 = 64;
/// Most bytes that one PRE-FETCH reads: it is a hint, and must not wipe out caches.
const PREFETCH_BYTES_MAX: u64 = 16 << 20;

/// How new data goes into what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    /// ORWRITE: its bits are set.
    Or,
    /// A write whose last block is not whole: it takes the place of as much as there is of it.
    Front,
}

/// A change of what is stored: what comes to it, and whereto.
pub(super) struct Changing {
    merge: Merge,
    lba: Lba,
    blocks: u32,
    data: Buffer,
    fua: bool,
    wanted_bytes: u64,
    attempts: u32,
}

impl Unit {
    pub(super) fn plan_or_write(
        &self,
        lba: Lba,
        count: u32,
        fua: bool,
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let transfer = self.transfer(count, request, Direction::Write)?;
        if transfer.blocks == 0 {
            return Ok(Plan::Answer(Response { wanted_bytes: Some(transfer.wanted_bytes), ..Response::good() }));
        }
        let bytes = u64::from(transfer.blocks) << self.volume.geometry.block_size.shift();
        let or = Changing {
            merge: Merge::Or,
            lba,
            blocks: transfer.blocks,
            data: gather(request, bytes)?,
            fua: fua || !self.medium.mode.write_cache,
            wanted_bytes: transfer.wanted_bytes,
            attempts: 0,
        };
        Ok(Plan::Start(Work::OrRead(Box::new(or)), Op::Read { lba, count: transfer.blocks }))
    }

    /// A write for which the initiator sends less than the CDB says, and not whole blocks: what it sends is written and nothing else
    /// (RFC 7143 §11.4.5.1), all at once.
    pub(super) fn plan_part_write(
        &self,
        lba: Lba,
        wanted_bytes: u64,
        fua: bool,
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        let data = gather(request, wanted_bytes.min(request.expected_bytes.into()))?;
        let shift = self.volume.geometry.block_size.shift();
        let blocks = (data.len() as u64).div_ceil(1 << shift) as u32;
        let part = Changing { merge: Merge::Front, lba, blocks, data, fua, wanted_bytes, attempts: 0 };
        Ok(Plan::Start(Work::OrRead(Box::new(part)), Op::Read { lba, count: blocks }))
    }

    /// What is there was read: it is written with the change, if it is still there.
    pub(super) fn or_was_read(&self, or: Box<Changing>, extents: &[Extent]) -> Next {
        let mut compare = BufferMut::zeroed((or.blocks as usize) << self.volume.geometry.block_size.shift());
        let mut at = 0;
        for part in self.plain_parts(extents) {
            compare[at..at + part.data().len()].copy_from_slice(part.data());
            at += part.data().len();
        }
        let mut data = BufferMut::zeroed(compare.len());
        data.copy_from_slice(&compare);
        match or.merge {
            Merge::Or => data.iter_mut().zip(or.data.iter()).for_each(|(to, new)| *to |= new),
            Merge::Front => data[..or.data.len()].copy_from_slice(&or.data),
        }
        let op = Op::CompareAndWrite { lba: or.lba, compare: compare.freeze(), data: data.freeze(), fua: or.fua };
        Next::Again(Work::OrWrite(or), op)
    }

    /// Somebody else wrote in between.
    pub(super) fn or_again(mut or: Box<Changing>) -> Next {
        or.attempts += 1;
        if or.attempts >= OR_ATTEMPTS_MAX {
            return Next::Done(status(Status::Busy));
        }
        let op = Op::Read { lba: or.lba, count: or.blocks };
        Next::Again(Work::OrRead(or), op)
    }

    pub(super) fn or_done(or: &Changing) -> Next {
        Next::Done(Response { wanted_bytes: Some(or.wanted_bytes), ..Response::good() })
    }

    pub(super) fn plan_write_verify(
        &self,
        lba: Lba,
        count: u32,
        byte_check: u8,
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let transfer = self.transfer(count, request, Direction::Write)?;
        if transfer.partly {
            return self.plan_part_write(lba, transfer.wanted_bytes, true, request);
        }
        if transfer.blocks == 0 {
            return Ok(Plan::Answer(Response { wanted_bytes: Some(transfer.wanted_bytes), ..Response::good() }));
        }
        let bytes = u64::from(transfer.blocks) << self.volume.geometry.block_size.shift();
        let data = gather(request, bytes)?;
        let compare = (byte_check == 1).then(|| data.clone());
        let work = Work::WriteThenVerify { lba, count: transfer.blocks, compare, wanted_bytes: transfer.wanted_bytes };
        // It is the medium that is verified, so to the medium it goes.
        Ok(Plan::Start(work, Op::Write { lba, data: vec![data], records: Vec::new(), fua: true, origin: None }))
    }

    /// A hint: what is read here is in the host's cache afterwards. GOOD, not CONDITION MET, since nothing promises that it stays.
    pub(super) fn plan_prefetch(&self, lba: Lba, count: u32, immediate: bool) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let blocks = self.volume.geometry.blocks;
        let wanted = if count == 0 { blocks - lba.0.min(blocks) } else { count.into() };
        let most = PREFETCH_BYTES_MAX >> self.volume.geometry.block_size.shift();
        let count = wanted.min(most) as u32;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let (work, op) = Work::verify(lba, count, None, self.slice_blocks());
        Ok(if immediate { Plan::Background(work, op) } else { Plan::Start(work, op) })
    }

    pub(super) fn plan_sanitize(
        &mut self,
        immediate: bool,
        action: u8,
        parameter_list_len: u16,
        keys_destroyed: Option<u32>,
    ) -> Result<Plan, Sense> {
        if parameter_list_len != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(7, None));
        }
        Ok(match self.sanitizer.start(action, keys_destroyed, &self.volume, &self.store)? {
            None => Plan::Answer(Response::good()),
            Some(op) if immediate => Plan::WhenCertain(Work::Sanitize, op),
            Some(op) => Plan::Start(Work::Sanitize, op),
        })
    }

    /// Long work that was under way when SANITIZE came.
    pub(super) fn sanitized_away(&mut self, work: &Work) -> Response {
        if let Work::CopyRead(copy) | Work::CopyWrite(copy) = work {
            self.copies.record(copy, false);
        }
        check_condition(Sense::SANITIZE_IN_PROGRESS)
    }
}

/// Whether an outcome says that something was stored.
pub(super) fn is_written(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Written { .. })
}

const _: () = assert!(SLICE_BYTES <= TRANSFER_BYTES_MAX);

//! READ, WRITE and their relatives: checks of range and length, then a [`Work`] for the store.

use std::collections::VecDeque;

use strongroom_block::{BufferMut, Lba};
use strongroom_scsi::provisioning;
use strongroom_scsi::transport::Direction;
use strongroom_scsi::transport::target as transport;
use strongroom_scsi::transport::target::Response;
use strongroom_scsi::{Command, Sense};
use strongroom_store::Op;

use super::Unit;
use super::answers::{COMPARE_BYTES_MAX, WRITE_SAME_BYTES_MAX};
use super::plan::Plan;
use super::request::{gather, gather_exactly, pieces};
use super::work::{SLICE_BYTES, Work};
use crate::TRANSFER_BYTES_MAX;

/// What a transfer of whole blocks comes to when the initiator expects less than the CDB says (RFC 7143 §11.4.5).
pub(super) struct Transfer {
    /// Blocks to move.
    pub(super) blocks: u32,
    /// Bytes that the CDB asks for.
    pub(super) wanted_bytes: u64,
    /// A part of a block moves beside the whole ones (counted in `blocks` when it is read). Never on sealed units.
    pub(super) partly: bool,
}

impl Unit {
    pub(super) fn plan_blocks(
        &mut self,
        command: Command,
        request: &transport::Command,
        sealed_blocks_max: usize,
    ) -> Plan {
        let planned = match command {
            Command::Read { lba, count, fua, .. } => self.plan_read(lba, count, fua, request, sealed_blocks_max),
            Command::Write { lba, count, fua, .. } => self.plan_write(lba, count, fua, request),
            Command::Verify { lba, count, byte_check } => self.plan_verify(lba, count, byte_check, request),
            Command::SynchronizeCache { lba, count, immediate } => self.plan_synchronize(lba, count, immediate),
            Command::Unmap { anchor, parameter_list_len } => self.plan_unmap(anchor, parameter_list_len, request),
            Command::WriteSame { lba, count, unmap, anchor, no_data_out } => {
                self.plan_write_same(lba, count, (unmap, anchor, no_data_out), request)
            }
            Command::CompareAndWrite { lba, count, fua, .. } => self.plan_compare_and_write(lba, count, fua, request),
            Command::WriteAtomic { lba, count, boundary, fua } => {
                self.plan_write_atomic(lba, count, boundary, fua, request)
            }
            Command::WriteVerify { lba, count, byte_check } => self.plan_write_verify(lba, count, byte_check, request),
            Command::OrWrite { lba, count, fua } => self.plan_or_write(lba, count, fua, request),
            Command::PreFetch { lba, count, immediate } => self.plan_prefetch(lba, count, immediate),
            Command::Sanitize { immediate, action, parameter_list_len } => {
                self.plan_sanitize(immediate, action, parameter_list_len, request.parameters.keys_destroyed)
            }
            _ => Err(Sense::INVALID_OPCODE),
        };
        planned.unwrap_or_else(Plan::from)
    }

    fn plan_read(
        &mut self,
        lba: Lba,
        count: u32,
        fua: bool,
        request: &transport::Command,
        sealed_blocks_max: usize,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let transfer = self.transfer(count, request, Direction::Read)?;
        if transfer.blocks == 0 {
            return Ok(Plan::Answer(Response { wanted_bytes: Some(transfer.wanted_bytes), ..Response::good() }));
        }
        self.medium.count_read(transfer.blocks);
        let work = Work::Read { wanted_bytes: transfer.wanted_bytes, sealed_blocks_max };
        let count = transfer.blocks;
        Ok(Plan::Start(work, if fua { Op::ReadMedium { lba, count } } else { Op::Read { lba, count } }))
    }

    /// One operation of the store is all or nothing after a crash, so there is nothing to do for WRITE ATOMIC but to keep it one; no
    /// boundaries, alignment or granularity.
    fn plan_write_atomic(
        &mut self,
        lba: Lba,
        count: u32,
        boundary: u16,
        fua: bool,
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        if boundary != 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(10, None));
        }
        self.plan_write(lba, count, fua, request)
    }

    fn plan_write(&mut self, lba: Lba, count: u32, fua: bool, request: &transport::Command) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        let transfer = self.transfer(count, request, Direction::Write)?;
        if transfer.partly {
            return self.plan_part_write(lba, transfer.wanted_bytes, fua || !self.medium.mode.write_cache, request);
        }
        if transfer.blocks == 0 {
            return Ok(Plan::Answer(Response { wanted_bytes: Some(transfer.wanted_bytes), ..Response::good() }));
        }
        let bytes = u64::from(transfer.blocks) << self.volume.geometry.block_size.shift();
        let data = pieces(request, bytes)?;
        let (data, records, origin) = match self.volume.sealed {
            Some(_) => {
                let records = self.records_of(request, transfer.blocks)?;
                let origin = self.origin_of(request, &records[0])?;
                let (data, records) = self.codec.blocks_for_store(&self.volume, lba, data, records)?;
                (data, records, origin)
            }
            None => (data, Vec::new(), None),
        };
        self.medium.count_write(transfer.blocks);
        // Without a write cache (WCE=0) every write is durable when it is answered.
        let fua = fua || !self.medium.mode.write_cache;
        let work = Work::Write { wanted_bytes: transfer.wanted_bytes };
        Ok(Plan::Start(work, Op::Write { lba, data, records, fua, origin }))
    }

    fn plan_verify(&self, lba: Lba, count: u32, byte_check: u8, request: &transport::Command) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let block = u64::from(self.volume.geometry.block_size.bytes());
        let compare = match byte_check {
            0 => None,
            1 => Some(gather(request, u64::from(count) * block)?),
            3 => Some(gather(request, block)?),
            _ => return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(2))),
        };
        let (work, op) = Work::verify(lba, count, compare, self.slice_blocks());
        Ok(Plan::Start(work, op))
    }

    fn plan_synchronize(&self, lba: Lba, count: u32, immediate: bool) -> Result<Plan, Sense> {
        // The whole log is synced, whatever the range; it must lie inside all the same.
        self.check_range(lba, count.into())?;
        let (work, op) = (Work::Flush, Op::Flush);
        Ok(if immediate { Plan::Background(work, op) } else { Plan::Start(work, op) })
    }

    fn plan_unmap(&self, anchor: bool, parameter_list_len: u16, request: &transport::Command) -> Result<Plan, Sense> {
        if anchor {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(0)));
        }
        let list = gather(request, parameter_list_len.into())?;
        let ranges = provisioning::parse_unmap(&list).map_err(|error| match error {
            provisioning::UnmapError::Truncated => Sense::PARAMETER_LIST_LENGTH,
            provisioning::UnmapError::TooMany => Sense::INVALID_FIELD_IN_PARAMETERS.in_parameters(2),
        })?;
        // SBC-3 §5.28: nothing is unmapped if any range lies outside.
        for (lba, count) in &ranges {
            self.check_range(*lba, u64::from(*count))?;
        }
        let ranges = ranges.into_iter().filter(|(_, count)| *count > 0);
        Ok(self.plan_discards(ranges.map(|(lba, count)| (lba, count.into())).collect()))
    }

    fn plan_discards(&self, ranges: VecDeque<(Lba, u64)>) -> Plan {
        match self.discard_next(ranges) {
            Some((work, op)) => Plan::Start(work, op),
            None => Plan::Answer(Response::good()),
        }
    }

    fn plan_write_same(
        &self,
        lba: Lba,
        count: u32,
        (unmap, anchor, no_data_out): (bool, bool, bool),
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        if anchor {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(1, Some(4)));
        }
        let block_size = self.volume.geometry.block_size;
        // WSNZ=1: a count of 0 is refused rather than taken as "to the end".
        if count == 0 || u64::from(count) << block_size.shift() > WRITE_SAME_BYTES_MAX {
            let byte = if request.cdb[0] == strongroom_scsi::opcode::WRITE_SAME_10 { 7 } else { 10 };
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(byte, None));
        }
        self.check_range(lba, count.into())?;
        let block = match no_data_out {
            true => BufferMut::zeroed(block_size.len()).freeze(),
            false => gather_exactly(request, block_size.bytes().into())?,
        };
        if unmap && block.iter().all(|&byte| byte == 0) {
            return Ok(self.plan_discards(VecDeque::from([(lba, count.into())])));
        }
        let (work, op) = Work::write_same(lba, count, &block, self.slice_blocks());
        Ok(Plan::Start(work, op))
    }

    fn plan_compare_and_write(
        &self,
        lba: Lba,
        count: u8,
        fua: bool,
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        let block_size = self.volume.geometry.block_size;
        if u32::from(count) > (COMPARE_BYTES_MAX / block_size.bytes()).min(255) {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(13, None));
        }
        self.check_range(lba, count.into())?;
        let half = usize::from(count) << block_size.shift();
        let both = gather_exactly(request, 2 * half as u64)?;
        if count == 0 {
            return Ok(Plan::Answer(Response::good()));
        }
        let fua = fua || !self.medium.mode.write_cache;
        let op = Op::CompareAndWrite { lba, compare: both.slice(..half), data: both.slice(half..2 * half), fua };
        Ok(Plan::Start(Work::Write { wanted_bytes: 2 * half as u64 }, op))
    }

    /// Inside the unit; SBC-3 §4.14: an address is checked even if nothing is to be moved.
    pub(super) fn check_range(&self, lba: Lba, count: u64) -> Result<(), Sense> {
        if self.volume.geometry.contains(lba, count) { Ok(()) } else { Err(Sense::LBA_OUT_OF_RANGE) }
    }

    /// What is to be moved of `count` blocks. A sealed block moves whole or not at all.
    pub(super) fn transfer(
        &self,
        count: u32,
        request: &transport::Command,
        direction: Direction,
    ) -> Result<Transfer, Sense> {
        let block_size = self.volume.geometry.block_size;
        let wanted_bytes = u64::from(count) << block_size.shift();
        if wanted_bytes > TRANSFER_BYTES_MAX.into() {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let expected = if request.direction == direction { u64::from(request.expected_bytes) } else { 0 };
        let moved = wanted_bytes.min(expected);
        let whole = moved >> block_size.shift();
        let partly = self.volume.sealed.is_none() && whole << block_size.shift() < moved;
        let read_partly = partly && direction == Direction::Read;
        Ok(Transfer { blocks: (whole + u64::from(read_partly)) as u32, wanted_bytes, partly })
    }

    /// Blocks in one slice of long work.
    pub(super) fn slice_blocks(&self) -> u32 {
        SLICE_BYTES >> self.volume.geometry.block_size.shift()
    }
}

//! What is particular to sealed units: seal records beside the data, both ways, and the vendor commands.

use strongroom_block::{HoleRecord, SealRecord, Stamp, keyless_checksum};
use strongroom_channel::Scheme;
use strongroom_scsi::transport::target::{self as transport, ReadPart, Response};
use strongroom_scsi::transport::{Direction, Operation, StoredRecords};
use strongroom_scsi::vendor::{self, PARAMETER_LIST_BYTES_MAX};
use strongroom_scsi::{Command, Sense, VendorCommand};
use strongroom_store::{Extent, Op, Origin};

use super::plan::Plan;
use super::request::{gather, leading};
use super::work::Work;
use super::{SessionKey, Unit};
use crate::protection::Service;
use crate::volume::Sealed;

impl Unit {
    /// Whether the command's Data-Out is block data that its seal records protect.
    pub(super) fn takes_sealed_data(&self, command: &Command) -> bool {
        let writes = matches!(
            command,
            Command::Write { .. }
                | Command::WriteAtomic { .. }
                | Command::Vendor(VendorCommand::ConditionalWrite { .. })
        );
        writes && self.volume.sealed.is_some()
    }

    /// The records of a write's first `blocks` blocks, checked, in the form for rest.
    pub(super) fn records_of(&self, request: &transport::Command, blocks: u32) -> Result<Vec<SealRecord>, Sense> {
        let sealed = self.sealed()?;
        let block_len = self.volume.geometry.block_size.len();
        let mut records = Vec::with_capacity(blocks as usize);
        for segment in request.data.iter().filter(|segment| !segment.data.is_empty()) {
            let entries = segment.records.as_ref().ok_or(Sense::INVALID_SEAL_RECORD)?;
            let whole = segment.data.len().is_multiple_of(block_len);
            if !whole
                || entries.entry_bytes() != sealed.custody.record_bytes_in_channel()
                || entries.count() != segment.data.len() / block_len
            {
                return Err(Sense::INVALID_SEAL_RECORD);
            }
            for (entry, block) in entries.iter().zip(segment.data.chunks_exact(block_len)) {
                let record = SealRecord::decode(entry).map_err(|_| Sense::INVALID_SEAL_RECORD)?;
                if record.flags().is_hole() {
                    return Err(Sense::INVALID_SEAL_RECORD);
                }
                if record.checksum() != keyless_checksum(block) {
                    tracing::warn!(volume = %self.volume.name, "a block does not fit its keyless checksum on arrival");
                    return Err(Sense::CHECKSUM_ON_ARRIVAL);
                }
                records.push(self.codec.record_for_store(&self.volume, sealed, &record)?);
            }
        }
        if records.len() < blocks as usize {
            return Err(Sense::NOT_ENOUGH_DATA);
        }
        records.truncate(blocks as usize);
        Ok(records)
    }

    /// Which operation a write is: as its operation parameter says, or else by the stamp of its first record.
    pub(super) fn origin_of(&self, request: &transport::Command, first: &SealRecord) -> Result<Option<Origin>, Sense> {
        let named = request.parameters.operation.transpose().map_err(|error| {
            tracing::warn!(volume = %self.volume.name, %error, "a write is refused");
            Sense::INVALID_OPERATION
        })?;
        Ok(Some(match named {
            Some(Operation { id, replay }) => Origin { operation: id, replay },
            None => Origin { operation: first.stamp(), replay: None },
        }))
    }

    /// The data of a sealed read: blocks with their records, cut to what the transport takes in one part, and holes with theirs.
    pub(super) fn sealed_parts(&self, extents: Vec<Extent>, sealed_blocks_max: usize) -> Result<Vec<ReadPart>, Sense> {
        let sealed = self.sealed()?;
        let block_size = self.volume.geometry.block_size;
        let entry_bytes = 8 + sealed.custody.record_bytes_in_channel();
        let per_segment = sealed_blocks_max.max(1);
        let mut parts = Vec::new();
        for extent in extents {
            match extent {
                Extent::Blocks { lba, data, sequences, records } => {
                    let (data, records) = self.codec.blocks_for_channel(&self.volume, lba, data, records)?;
                    let mut entries = sequences.into_iter().zip(&records);
                    for first in (0..records.len()).step_by(per_segment) {
                        let end = records.len().min(first + per_segment);
                        let taken = entries.by_ref().take(end - first);
                        let stored = StoredRecords::new(entry_bytes, taken, self.codec.has_block_keys());
                        let range = first << block_size.shift()..end << block_size.shift();
                        parts.push(ReadPart::Sealed { data: data.slice(range), records: stored });
                    }
                }
                Extent::Hole { count, sequence, hole, .. } => {
                    let hole = hole.ok_or(Sense::INTERNAL_FAILURE)?;
                    let record = self.codec.record_for_channel(&self.volume, &hole.record)?;
                    let covered_blocks = u32::try_from(count).map_err(|_| Sense::INTERNAL_FAILURE)?;
                    let record = Box::new(HoleRecord { start: hole.start, count: hole.count, record });
                    let covers_bytes = covered_blocks << block_size.shift();
                    parts.push(ReadPart::Hole { covers_bytes, covered_blocks, sequence, record });
                }
            }
        }
        Ok(parts)
    }

    pub(super) fn plan_vendor(
        &mut self,
        command: VendorCommand,
        request: &transport::Command,
        sealed_blocks_max: usize,
    ) -> Plan {
        let planned = match command {
            VendorCommand::SealHole { parameter_list_len } => self.plan_seal_hole(parameter_list_len, request),
            VendorCommand::ReadVersion { lba } => self.plan_read_version(lba, request, sealed_blocks_max),
            VendorCommand::Verified { parameter_list_len } => self.plan_verified(parameter_list_len, request),
            VendorCommand::ConditionalWrite { lba, count } => self.plan_conditional_write(lba, count, request),
            VendorCommand::TakePlace => self.plan_take_place(),
            VendorCommand::RegisterAttachment { parameter_list_len } => self.plan_register(parameter_list_len, request),
            // The access control executes these.
            VendorCommand::ClaimLease { .. } | VendorCommand::ReleaseLease | VendorCommand::ReportWriters { .. } => {
                Err(Sense::INVALID_OPCODE)
            }
        };
        planned.unwrap_or_else(Plan::from)
    }

    fn plan_register(&self, parameter_list_len: u32, request: &transport::Command) -> Result<Plan, Sense> {
        let list = self.parameter_list(parameter_list_len, request)?;
        let attach_id = vendor::decode_attach_id(&list).map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
        Ok(Plan::Start(Work::Register, Op::RegisterAttachment { attach_id }))
    }

    /// The worker does it, outside; the answer says that it begins.
    fn plan_take_place(&mut self) -> Result<Plan, Sense> {
        if self.volume.succeeds.is_none() {
            return Err(Sense::INVALID_OPCODE);
        }
        self.takes_place = true;
        Ok(Plan::Answer(Response::good()))
    }

    fn plan_seal_hole(&self, parameter_list_len: u32, request: &transport::Command) -> Result<Plan, Sense> {
        let sealed = self.sealed()?;
        let list = self.parameter_list(parameter_list_len, request)?;
        let holes =
            vendor::decode_holes(&list, sealed.custody.record_bytes_in_channel()).map_err(|error| match error {
                vendor::ParameterError::Length { .. } => Sense::PARAMETER_LIST_LENGTH,
                vendor::ParameterError::Entry { .. } => Sense::INVALID_SEAL_RECORD,
            })?;
        // By reference: what is moved out of a vector leaves its bytes, and so block keys, in it.
        let check = |hole: &HoleRecord| {
            self.check_range(hole.start, hole.count)?;
            self.codec.check_hole(&self.volume, hole)?;
            let record = self.codec.record_for_store(&self.volume, sealed, &hole.record)?;
            Ok(HoleRecord { record, ..*hole })
        };
        let mut holes = holes.iter().map(check).collect::<Result<Vec<_>, Sense>>()?;
        let origin = self.origin_of(request, &holes[0].record)?;
        let op = match request.parameters.expected_stamp {
            None => Op::Hole { holes, origin },
            // Only absence can be expected of a range.
            Some(expected) if expected == [0; Stamp::BYTES] && holes.len() == 1 => {
                Op::ConditionalHole { hole: holes.remove(0), origin }
            }
            Some(_) => return Err(Sense::INVALID_FIELD_IN_CDB),
        };
        Ok(Plan::Start(Work::Hole { wanted_bytes: parameter_list_len.into() }, op))
    }

    fn plan_read_version(
        &self,
        lba: strongroom_block::Lba,
        request: &transport::Command,
        sealed_blocks_max: usize,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, 1)?;
        let transfer = self.transfer(1, request, Direction::Read)?;
        if transfer.blocks == 0 {
            return Err(Sense::INVALID_FIELD_IN_CDB);
        }
        let older_than = request.parameters.older_than.unwrap_or_default();
        let work = Work::Read { wanted_bytes: transfer.wanted_bytes, sealed_blocks_max };
        Ok(Plan::Start(work, Op::ReadVersion { lba, older_than }))
    }

    fn plan_verified(&self, parameter_list_len: u32, request: &transport::Command) -> Result<Plan, Sense> {
        let list = self.parameter_list(parameter_list_len, request)?;
        let pairs = vendor::decode_verified(&list).map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
        for (lba, _) in &pairs {
            self.check_range(*lba, 1)?;
        }
        let work = Work::Verified { wanted_bytes: parameter_list_len.into(), written: None };
        Ok(Plan::Start(work, Op::Verified { pairs }))
    }

    fn plan_conditional_write(
        &self,
        lba: strongroom_block::Lba,
        count: u32,
        request: &transport::Command,
    ) -> Result<Plan, Sense> {
        self.check_range(lba, count.into())?;
        if count != 1 {
            return Err(Sense::INVALID_FIELD_IN_CDB.in_cdb(10, None));
        }
        let expected = request.parameters.expected_stamp.ok_or(Sense::INVALID_FIELD_IN_CDB)?;
        let transfer = self.transfer(1, request, Direction::Write)?;
        if transfer.blocks != 1 {
            return Err(Sense::NOT_ENOUGH_DATA);
        }
        let data = vec![gather(request, transfer.wanted_bytes)?];
        let records = self.records_of(request, 1)?;
        let (data, mut records) = self.codec.blocks_for_store(&self.volume, lba, data, records)?;
        let record = records.remove(0);
        let origin = self.origin_of(request, &record)?;
        let expected = (expected != [0; Stamp::BYTES]).then(|| Stamp::from_bytes(expected));
        let fua = !self.medium.mode.write_cache;
        let op = Op::ConditionalWrite { lba, expected, data, record, fua, origin };
        Ok(Plan::Start(Work::Write { wanted_bytes: transfer.wanted_bytes }, op))
    }

    /// Versions that the channel proved to be what their initiator sent are not retained for readers to verify, where the volume asks that
    /// every session do so, nor those that were opened here: what such a write replaces may go at once.
    pub(super) fn checked_on_arrival(&self, connection: SessionKey, work: Work, op: &Op) -> Work {
        let asks = self.volume.access.protection.services.contains(&Service::CheckedOnArrival);
        let scheme = self.access.users.get(connection).and_then(|user| user.origin.scheme);
        let is_checked = self.codec.opens() || (asks && scheme.is_some_and(Scheme::checks_on_arrival));
        match (work, op) {
            (Work::Write { wanted_bytes }, Op::Write { lba, records, .. }) if is_checked && !records.is_empty() => {
                Work::CheckedWrite { lba: *lba, count: records.len() as u64, wanted_bytes }
            }
            (Work::Write { wanted_bytes }, Op::ConditionalWrite { lba, .. }) if is_checked => {
                Work::CheckedWrite { lba: *lba, count: 1, wanted_bytes }
            }
            (work, _) => work,
        }
    }

    fn parameter_list(&self, len: u32, request: &transport::Command) -> Result<strongroom_block::Buffer, Sense> {
        if len > PARAMETER_LIST_BYTES_MAX {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let list = if self.codec.has_block_keys() { request.gather_wiped() } else { request.gather() };
        leading(&list, len.into())
    }

    fn sealed(&self) -> Result<&Sealed, Sense> {
        self.volume.sealed.as_ref().ok_or(Sense::INVALID_OPCODE)
    }
}

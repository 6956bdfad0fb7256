//! One command of an initiator: what of its data has moved, and how a write is cut into PDUs. Sealed data is cut at whole blocks, each PDU
//! with exactly its blocks' records.

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_scsi::transport::Parameters;

use super::connection_id::ConnectionId;
use super::types::{Command, Completed, DataContent, Direction, WriteSource};
use crate::ahs::{self, Hole};
use crate::login::Agreed;
use crate::pdu::{DataIn, DataOut, Lun, Pdu, R2t, TAG_NONE};
use crate::slots::Key;
use crate::{PeerMisbehaved, Serial};

/// A command from its submission to its completion.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) command: Command,
    /// The connection of its PDUs (connection allegiance, RFC 7143 §4.2.2.3).
    pub(super) connection: ConnectionId,
    /// That connection is lost.
    pub(super) is_orphan: bool,
    /// `None` until it was sent.
    pub(super) cmd_sn: Option<Serial>,
    /// How much of a read arrived, holes included, or how much of a write was requested, in bytes.
    moved: u32,
    next_data_sn: u32,
    next_r2t_sn: u32,
    /// It was reassigned: R2Ts count from any number, and ask for what the target lacks.
    is_r2t_sn_open: bool,
    was_reassigned: bool,
    pub(super) r2ts_open: u32,
    /// What is missing of a read was requested again.
    pub(super) is_requested_again: bool,
    /// The target has asked whether its data arrived, under this tag.
    pub(super) acknowledging: Option<u32>,
    /// The response, where it arrived before all of the data.
    early: Option<EarlyResponse>,
}

/// A SCSI Response of a read whose data was damaged and comes again. Its StatSN is not counted before the data is there: that would
/// acknowledge the data, too (RFC 7143 §11.7.2).
#[derive(Debug)]
pub(super) struct EarlyResponse {
    pub(super) stat_sn: Serial,
    /// How many Data-In PDUs there are.
    pub(super) data_pdus: u32,
    pub(super) completed: Completed,
}

/// A sequence of Data-Out PDUs to send.
#[derive(Debug)]
pub(super) struct Burst {
    pub(super) key: Key,
    lun: Lun,
    target_transfer_tag: u32,
    next_data_sn: u32,
    /// The next byte, and the end, in bytes from the start of the transfer.
    offset: u32,
    end: u32,
}

/// Data of one PDU.
pub(super) struct PduData {
    pub(super) data: Buffer,
    pub(super) ahs: Bytes,
    pub(super) sealed: bool,
}

/// What of a write is sent unsolicited.
#[derive(Clone, Copy, Default)]
pub(super) struct UnsolicitedPlan {
    /// With the command, in bytes.
    immediate: u32,
    /// Where unsolicited data ends, immediate data included.
    end: u32,
}

impl Task {
    pub(super) fn new(command: Command, connection: ConnectionId) -> Task {
        Task {
            command,
            connection,
            is_orphan: false,
            cmd_sn: None,
            moved: 0,
            next_data_sn: 0,
            next_r2t_sn: 0,
            is_r2t_sn_open: false,
            was_reassigned: false,
            r2ts_open: 0,
            is_requested_again: false,
            acknowledging: None,
            early: None,
        }
    }

    /// Whether it was sent, and its answers come by that connection.
    pub(super) fn is_on(&self, id: ConnectionId) -> bool {
        self.connection == id && self.cmd_sn.is_some() && !self.is_orphan
    }

    pub(super) fn moved_bytes(&self) -> u32 {
        self.moved
    }

    /// The number of the next Data-In.
    pub(super) fn next_data_sn(&self) -> u32 {
        self.next_data_sn
    }

    /// It goes by another connection from now on, where it has been reassigned.
    pub(super) fn reassign(&mut self, connection: ConnectionId) {
        self.connection = connection;
        self.r2ts_open = 0;
        self.is_r2t_sn_open = true;
        self.was_reassigned = true;
        self.is_requested_again = false;
        self.early = None;
    }

    /// The command PDU's data, and the burst of unsolicited data that follows it. True: nothing unsolicited follows.
    pub(super) fn start_write(&mut self, key: Key, agreed: &Agreed) -> (PduData, Option<Burst>) {
        let command = &self.command;
        let no_data = || PduData { data: Buffer::empty(), ahs: parameter_segments(&command.parameters), sealed: false };
        let Some(source) = &command.write else { return (no_data(), None) };
        let plan = UnsolicitedPlan::of(source, ahs::parameters_bytes(&command.parameters), agreed);
        let data = match plan.immediate {
            0 => no_data(),
            len => cut(source, 0, len, &command.parameters),
        };
        self.moved = plan.end;
        let burst = (plan.end > plan.immediate).then_some(Burst {
            key,
            lun: self.command.lun,
            target_transfer_tag: TAG_NONE,
            next_data_sn: 0,
            offset: plan.immediate,
            end: plan.end,
        });
        (data, burst)
    }

    /// Takes a Data-In: it must be the next one, with the next bytes. Returns how much of the transfer it covers, in bytes, and what it
    /// contains; 0: it carries the status only.
    pub(super) fn take_data_in(&mut self, header: &DataIn, pdu: Pdu) -> Result<(u32, DataContent), &'static str> {
        if self.command.direction != Direction::Read {
            return Err("data for a command that reads none");
        }
        let (covers_bytes, content) = content_of(pdu, self.command.sealed_block_bytes)?;
        if covers_bytes == 0 && header.status.is_some() {
            return Ok((0, content));
        }
        if header.data_sn != self.next_data_sn {
            return Err("DataSN out of order");
        }
        if header.buffer_offset != self.moved {
            return Err("a gap or an overlap");
        }
        if covers_bytes == 0 || covers_bytes > self.command.expected_bytes - self.moved {
            return Err("nothing, or more than was asked for");
        }
        self.next_data_sn += 1;
        self.moved += covers_bytes;
        Ok((covers_bytes, content))
    }

    /// The early response, once all data is there.
    pub(super) fn take_early_response(&mut self) -> Option<EarlyResponse> {
        let next_data_sn = self.next_data_sn;
        self.early.take_if(|early| early.data_pdus <= next_data_sn)
    }

    pub(super) fn early_stat_sn(&self) -> Option<Serial> {
        self.early.as_ref().map(|early| early.stat_sn)
    }

    /// Keeps a response that arrived before the data.
    pub(super) fn hold_response(&mut self, early: EarlyResponse) {
        self.early = Some(early);
    }

    /// Takes an R2T: it must be the next one, and ask for the next bytes. Damaged data, and that of a reassigned task, is requested from
    /// where it is missing on (`is_recovered`).
    pub(super) fn take_r2t(
        &mut self,
        key: Key,
        header: &R2t,
        is_recovered: bool,
        session: &Agreed,
    ) -> Result<Burst, &'static str> {
        let Some(source) = &self.command.write else { return Err("an R2T for a command that writes none") };
        let desired = header.desired_data_transfer_bytes;
        let end = u64::from(header.buffer_offset) + u64::from(desired);
        let is_in_place = match is_recovered || self.was_reassigned {
            true => header.buffer_offset <= self.moved,
            false => header.buffer_offset == self.moved,
        };
        if std::mem::take(&mut self.is_r2t_sn_open) {
            self.next_r2t_sn = header.r2t_sn;
        }
        if header.r2t_sn != self.next_r2t_sn || !is_in_place {
            return Err("an R2T out of order");
        }
        if desired == 0 || desired > session.max_burst_bytes || end > u64::from(self.command.expected_bytes) {
            return Err("an R2T for nothing, for more than a burst, or past the end");
        }
        if self.r2ts_open >= u32::from(session.max_outstanding_r2t) {
            return Err("more R2Ts than MaxOutstandingR2T");
        }
        if let Some(records) = &source.records
            && (!header.buffer_offset.is_multiple_of(records.block_bytes)
                || !desired.is_multiple_of(records.block_bytes))
        {
            return Err("an R2T that is not for whole blocks");
        }
        self.next_r2t_sn = self.next_r2t_sn.wrapping_add(1);
        self.r2ts_open += 1;
        self.moved = self.moved.max(end as u32);
        Ok(Burst {
            key,
            lun: header.lun,
            target_transfer_tag: header.target_transfer_tag,
            next_data_sn: 0,
            offset: header.buffer_offset,
            end: end as u32,
        })
    }

    /// The next Data-Out of a burst of it; true if it is the last one.
    pub(super) fn next_data_out(
        &mut self,
        burst: &mut Burst,
        exp_stat_sn: Serial,
        initiator_task_tag: u32,
        agreed: &Agreed,
    ) -> (Pdu, bool) {
        let source = self.command.write.as_ref().expect("only writes have bursts");
        let len = pdu_bytes(source, burst.end - burst.offset, 0, agreed);
        let PduData { data, ahs, sealed } = cut(source, burst.offset, len, &Parameters::default());
        let is_final = burst.offset + len == burst.end;
        let header = DataOut {
            is_final,
            lun: burst.lun,
            initiator_task_tag,
            target_transfer_tag: burst.target_transfer_tag,
            exp_stat_sn,
            data_sn: burst.next_data_sn,
            buffer_offset: burst.offset,
        };
        burst.offset += len;
        burst.next_data_sn += 1;
        if is_final && burst.target_transfer_tag != TAG_NONE {
            self.r2ts_open -= 1;
        }
        (Pdu::new(header.encode(), ahs, data, sealed), is_final)
    }
}

/// The error for data that does not fit its task.
pub(super) fn misplaced(task_tag: u32, why: &'static str) -> PeerMisbehaved {
    PeerMisbehaved::Data { task_tag, why }
}

impl UnsolicitedPlan {
    fn of(source: &WriteSource, ahs_bytes: usize, agreed: &Agreed) -> UnsolicitedPlan {
        let whole = |bytes: u32| source.records.as_ref().map_or(bytes, |records| bytes - bytes % records.block_bytes);
        let unsolicited = whole((source.data.len() as u32).min(agreed.first_burst_bytes));
        let immediate = match agreed.immediate_data && unsolicited > 0 {
            true => pdu_bytes(source, unsolicited, ahs_bytes, agreed),
            false => 0,
        };
        UnsolicitedPlan { immediate, end: if agreed.initial_r2t { immediate } else { unsolicited } }
    }
}

/// How much of `left` bytes goes into one PDU that has `ahs_bytes` of other header segments.
fn pdu_bytes(source: &WriteSource, left: u32, ahs_bytes: usize, agreed: &Agreed) -> u32 {
    let by_segment = left.min(agreed.send_segment_bytes_max);
    match &source.records {
        None => by_segment,
        Some(records) => {
            let by_header = ahs::seal_records_max(records.record_bytes as usize, ahs_bytes) as u64;
            let blocks = u64::from(by_segment / records.block_bytes).min(by_header);
            (blocks * u64::from(records.block_bytes)) as u32
        }
    }
}

/// The header segments of a command without sealed data.
fn parameter_segments(parameters: &Parameters) -> Bytes {
    let len_bytes = ahs::parameters_bytes(parameters);
    if len_bytes == 0 {
        return Bytes::new();
    }
    let mut segments = Vec::with_capacity(len_bytes);
    ahs::push_parameters(&mut segments, parameters);
    Bytes::from(segments)
}

/// Part of a write, with `parameters` and the records of its blocks.
fn cut(source: &WriteSource, offset: u32, len: u32, parameters: &Parameters) -> PduData {
    let range = offset as usize..(offset + len) as usize;
    let data = source.data.slice(range);
    let Some(records) = &source.records else {
        return PduData { data, ahs: parameter_segments(parameters), sealed: false };
    };
    let record_bytes = records.record_bytes as usize;
    let (first, count) = ((offset / records.block_bytes) as usize, (len / records.block_bytes) as usize);
    let entries = &records.bytes[first * record_bytes..(first + count) * record_bytes];
    // Large enough from the start: growing would leave a copy of block keys behind.
    let mut segments = Vec::with_capacity(ahs::parameters_bytes(parameters) + entries.len() + 8);
    ahs::push_parameters(&mut segments, parameters);
    ahs::push_seal_records(&mut segments, record_bytes, entries);
    PduData { data, ahs: strongroom_block::wiped(segments), sealed: true }
}

/// How much of a transfer a Data-In stands for, in bytes, and what it brings.
fn content_of(pdu: Pdu, block_bytes: Option<u32>) -> Result<(u32, DataContent), &'static str> {
    let len = pdu.data.len() as u32;
    let Some(block_bytes) = block_bytes.filter(|bytes| *bytes > 0) else {
        return if pdu.sealed { Err("sealed data for a plain read") } else { Ok((len, DataContent::Plain(pdu.data))) };
    };
    if len > 0 {
        let records = ahs::seal_records(pdu.ahs).map_err(|_| "malformed seal records")?;
        let fits = |count: usize| count as u64 * u64::from(block_bytes) == u64::from(len);
        return match records {
            Some(records) if pdu.sealed && fits(records.count()) => {
                Ok((len, DataContent::Sealed { data: pdu.data, records }))
            }
            _ => Err("sealed data that is not whole blocks with a record each"),
        };
    }
    match Hole::covered_blocks(&pdu.ahs) {
        Some(blocks) => {
            let covers_bytes = blocks.checked_mul(block_bytes).ok_or("a hole longer than any transfer")?;
            let (sequence, record) = ahs::hole_record(pdu.ahs);
            Ok((covers_bytes, DataContent::Hole { sequence, record }))
        }
        None => Ok((0, DataContent::Plain(pdu.data))),
    }
}

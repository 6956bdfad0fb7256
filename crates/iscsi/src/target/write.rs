//! Incoming write data of one task: immediate, unsolicited, and requested by R2T; in order, and in a bounded number of PDUs. Its memory is
//! counted in `memory`.

use std::collections::VecDeque;

use super::sense::{self, Sense};
use super::types::{Config, WriteSegment};
use crate::login::Agreed;
use crate::pdu::{DataOut, Lun, Pdu, PduError, R2t, Request, Sequence, TAG_NONE};
use crate::slots::{INDEX_BITS, Key};
use crate::{PeerMisbehaved, ahs};

/// Bits of a target transfer tag that tell a task's R2Ts apart; more than MaxOutstandingR2T can be in flight.
const R2T_BITS: u32 = 8;
/// Bits that tell a slot's users apart. The top bit of a tag is left to pings and text.
const GENERATION_BITS: u32 = 31 - INDEX_BITS - R2T_BITS;
/// The least that a PDU's data takes of memory, in bytes: buffers are whole pages, so that they can go to a store as they are.
const PAGE_BYTES: u32 = 4096;
/// The least that MaxRecvDataSegmentLength can be (RFC 7143 §13.12), and so the data of a PDU that is not the last of its sequence.
const SEGMENT_BYTES_MIN: u32 = 512;
/// PDUs that a write may have beyond what its length, cut into those, and the ends of its sequences make.
const SEGMENTS_SPARE: usize = 16;

/// Memory that the data of a PDU takes, in bytes.
pub(super) fn memory_bytes(pdu: &Pdu) -> u64 {
    pdu.data.len().max(PAGE_BYTES as usize) as u64 + pdu.ahs.len() as u64
}

/// The lengths and Booleans that the login settled for writes, and our own limits.
#[derive(Debug)]
pub(super) struct WriteLimits {
    first_burst_bytes: u32,
    max_burst_bytes: u32,
    max_outstanding_r2t: usize,
    initial_r2t: bool,
    immediate_data: bool,
    transfer_bytes_max: u32,
    recv_segment_bytes_max: u32,
}

impl WriteLimits {
    pub(super) fn new(config: &Config, session: &Agreed) -> WriteLimits {
        WriteLimits {
            first_burst_bytes: session.first_burst_bytes,
            max_burst_bytes: session.max_burst_bytes,
            max_outstanding_r2t: session.max_outstanding_r2t.into(),
            initial_r2t: session.initial_r2t,
            immediate_data: session.immediate_data,
            transfer_bytes_max: config.transfer_bytes_max,
            recv_segment_bytes_max: config.offer.recv_segment_bytes_max,
        }
    }

    /// Memory that `len` bytes take if they arrive in the longest PDUs that they can arrive in, in bytes.
    pub(super) fn memory_for(&self, len: u32) -> u64 {
        let segment_bytes = self.recv_segment_bytes_max.min(self.max_burst_bytes);
        let segments = len.div_ceil(segment_bytes.clamp(1, PAGE_BYTES));
        u64::from(segments) * u64::from(PAGE_BYTES)
    }
}

/// What a new write sends without an R2T.
pub(super) struct Unsolicited {
    /// Where unsolicited data ends, immediate data included, in bytes; `None`: nothing follows the command.
    end: Option<u32>,
    /// Memory that the immediate data takes, in bytes.
    immediate_memory: u64,
}

impl Unsolicited {
    /// Checks a write command against what the login settled (RFC 7143 §11.3.4, §13.10, §13.11).
    pub(super) fn of(expected: u32, is_final: bool, pdu: &Pdu, limits: &WriteLimits) -> Result<Unsolicited, Sense> {
        let immediate = pdu.data.len();
        let end = expected.min(limits.first_burst_bytes);
        let more_follows = !is_final && (immediate as u32) < end;
        if expected > limits.transfer_bytes_max {
            return Err(sense::INVALID_FIELD_IN_CDB);
        }
        if (immediate > 0 && !limits.immediate_data) || (more_follows && limits.initial_r2t) {
            return Err(sense::UNEXPECTED_UNSOLICITED_DATA);
        }
        if immediate > end as usize {
            return Err(sense::INCORRECT_AMOUNT_OF_DATA);
        }
        let immediate_memory = if immediate > 0 { memory_bytes(pdu) } else { 0 };
        Ok(Unsolicited { end: more_follows.then_some(end), immediate_memory })
    }

    /// Memory that all of it takes, in bytes.
    pub(super) fn memory_bytes(&self, limits: &WriteLimits) -> u64 {
        self.immediate_memory.max(self.end.map_or(0, |end| limits.memory_for(end)))
    }
}

/// What has arrived of a write.
#[derive(Debug, Default)]
pub(super) struct WriteTransfer {
    segments: Vec<WriteSegment>,
    /// Memory that unsolicited and solicited data take, in bytes.
    pub(super) unsolicited_memory: u64,
    pub(super) solicited_memory: u64,
    /// Everything before this byte has arrived.
    received: u32,
    /// Everything before this byte has arrived or was requested.
    requested: u32,
    /// The unsolicited sequence that is open.
    unsolicited: Option<DataSequence>,
    /// The R2Ts that are open, oldest first.
    solicited: VecDeque<DataSequence>,
    pub(super) is_admitted: bool,
    pub(super) waits_for_memory: bool,
    /// Something was damaged: what still arrives of the open sequences is dropped.
    is_broken: bool,
}

/// A sequence of Data-Out PDUs.
#[derive(Debug)]
struct DataSequence {
    target_transfer_tag: u32,
    next_data_sn: u32,
    /// Where it ends, in bytes from the start of the transfer.
    end: u32,
}

/// What is wrong with a Data-Out.
pub(super) enum DataOutFault {
    /// It belongs to no sequence: a Reject.
    NoSequence,
    /// Its task ends with this sense data.
    Fails(Sense),
}

/// What a transfer needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteNeed {
    /// All data is there.
    Nothing,
    /// An open sequence has to end first.
    MoreData,
    /// Memory, before anything is requested.
    Memory,
    /// R2Ts.
    R2ts,
}

impl WriteTransfer {
    /// Takes the immediate data of the command, and expects the unsolicited data that follows.
    pub(super) fn start(&mut self, unsolicited: &Unsolicited, pdu: Pdu) {
        self.unsolicited =
            unsolicited.end.map(|end| DataSequence { target_transfer_tag: TAG_NONE, next_data_sn: 0, end });
        if !pdu.data.is_empty() {
            self.unsolicited_memory = unsolicited.immediate_memory;
            self.received = pdu.data.len() as u32;
            self.segments.push(write_segment(0, pdu));
        }
        self.requested = self.received;
    }

    pub(super) fn need(&self, expected: u32) -> WriteNeed {
        if self.received == expected {
            WriteNeed::Nothing
        } else if self.unsolicited.is_some() {
            WriteNeed::MoreData
        } else if self.is_admitted {
            WriteNeed::R2ts
        } else {
            WriteNeed::Memory
        }
    }

    /// Checks a Data-Out against its sequence, and counts it there. Data that is not in order, or that does not end its sequence where it
    /// must, is the initiator's error: a stream loses nothing.
    pub(super) fn check(
        &mut self,
        header: &DataOut,
        len: usize,
        expected: u32,
        r2t_count: u32,
    ) -> Result<(), DataOutFault> {
        let is_unsolicited = header.target_transfer_tag == TAG_NONE;
        let sequence = match is_unsolicited {
            true => self.unsolicited.as_mut(),
            false => self.solicited.front_mut(),
        };
        let Some(sequence) = sequence.filter(|open| open.target_transfer_tag == header.target_transfer_tag) else {
            return Err(match is_unsolicited {
                true => DataOutFault::Fails(sense::UNEXPECTED_UNSOLICITED_DATA),
                false => DataOutFault::NoSequence,
            });
        };
        let end = u64::from(header.buffer_offset) + len as u64;
        let in_order = header.data_sn == sequence.next_data_sn && header.buffer_offset == self.received;
        // A PDU without data may only end a sequence: otherwise one could send them without end.
        let has_sense = len > 0 || header.is_final;
        let ends_whole = is_unsolicited || !header.is_final || end == u64::from(sequence.end);
        // Each PDU takes a page, so their number is bounded. Every sequence may end with a short PDU.
        let segments_max = expected.div_ceil(SEGMENT_BYTES_MIN) as usize + r2t_count as usize + SEGMENTS_SPARE;
        let is_crumbled = self.segments.len() >= segments_max;
        if !in_order || !has_sense || end > u64::from(sequence.end) || !ends_whole || is_crumbled {
            return Err(DataOutFault::Fails(sense::INCORRECT_AMOUNT_OF_DATA));
        }
        sequence.next_data_sn += 1;
        Ok(())
    }

    /// Takes the data of a Data-Out that `check` found right; true if its sequence ends with it.
    pub(super) fn take(&mut self, header: &DataOut, pdu: Pdu) -> bool {
        let offset = header.buffer_offset;
        self.received = offset + pdu.data.len() as u32;
        if !pdu.data.is_empty() {
            self.segments.push(write_segment(offset, pdu));
        }
        let is_unsolicited = header.target_transfer_tag == TAG_NONE;
        let sequence = if is_unsolicited { self.unsolicited.as_ref() } else { self.solicited.front() };
        let is_over = header.is_final || sequence.is_some_and(|open| self.received == open.end);
        match is_over {
            true if is_unsolicited => {
                self.unsolicited = None;
                self.requested = self.received;
            }
            true => drop(self.solicited.pop_front()),
            false => {}
        }
        is_over
    }

    /// The next R2T, unless as many are open as was settled or everything was requested. `r2t_count`: how many the task had.
    pub(super) fn next_r2t(
        &mut self,
        task: (Key, u32, Lun),
        expected: u32,
        r2t_count: u32,
        limits: &WriteLimits,
    ) -> Option<R2t> {
        if self.requested >= expected || self.solicited.len() >= limits.max_outstanding_r2t {
            return None;
        }
        let (key, initiator_task_tag, lun) = task;
        let target_transfer_tag = transfer_tag(key, r2t_count);
        let buffer_offset = self.requested;
        let desired_data_transfer_bytes = (expected - buffer_offset).min(limits.max_burst_bytes);
        self.requested += desired_data_transfer_bytes;
        self.solicited.push_back(DataSequence { target_transfer_tag, next_data_sn: 0, end: self.requested });
        Some(R2t {
            lun,
            initiator_task_tag,
            target_transfer_tag,
            sequence: Sequence::default(),
            r2t_sn: r2t_count,
            buffer_offset,
            desired_data_transfer_bytes,
        })
    }

    pub(super) fn received(&self) -> u32 {
        self.received
    }

    pub(super) fn into_segments(self) -> Vec<WriteSegment> {
        self.segments
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Data under this tag was damaged: what follows of the open sequences is dropped, and all of it is requested again when they
    /// are over. False if no such sequence is open.
    pub(super) fn break_off(&mut self, target_transfer_tag: u32) -> bool {
        let mut open = self.unsolicited.iter().chain(&self.solicited);
        let is_open = open.any(|sequence| sequence.target_transfer_tag == target_transfer_tag);
        self.is_broken |= is_open;
        is_open
    }

    /// Counts a Data-Out of a broken transfer, whose data is not used. True when no sequence is open any more: what is missing has to
    /// be requested again.
    pub(super) fn skip(&mut self, header: &DataOut, len: usize) -> bool {
        let end = u64::from(header.buffer_offset) + len as u64;
        let before = self.open_sequences();
        let stays = |sequence: &DataSequence| {
            sequence.target_transfer_tag != header.target_transfer_tag
                || !(header.is_final || end >= u64::from(sequence.end))
        };
        self.unsolicited = self.unsolicited.take().filter(stays);
        self.solicited.retain(stays);
        let is_last = before > 0 && self.open_sequences() == 0;
        if is_last {
            self.requested = self.received;
            self.is_broken = false;
        }
        is_last
    }

    /// The connection is lost: nothing that was requested, or is sent unsolicited, will arrive.
    pub(super) fn start_over(&mut self) {
        self.unsolicited = None;
        self.solicited.clear();
        self.is_broken = false;
        self.requested = self.received;
    }

    fn open_sequences(&self) -> usize {
        usize::from(self.unsolicited.is_some()) + self.solicited.len()
    }
}

/// Only block data of a write is ever left to its seal records.
pub(super) fn check_sealed(request: &Request, pdu: &Pdu, in_channel: bool) -> Result<(), PeerMisbehaved> {
    let is_write = match request {
        Request::DataOut(_) => true,
        Request::ScsiCommand(command) => command.write,
        _ => false,
    };
    if !in_channel || !is_write || pdu.data.is_empty() {
        return Err(PeerMisbehaved::OutOfPlace { what: "a sealed PDU", expected: "block data of a write" });
    }
    let records = ahs::SealRecords::find(&pdu.ahs).map_err(PduError::from)?;
    let task_tag = pdu.bhs.initiator_task_tag();
    let why = match records {
        None => "sealed data without seal records",
        Some(records) if !pdu.data.len().is_multiple_of(records.count()) => {
            "as many blocks as seal records are not there"
        }
        Some(_) => return Ok(()),
    };
    Err(PeerMisbehaved::Data { task_tag, why })
}

/// The data of a PDU, and the records that a sealed one leaves it to: see [`check_sealed`].
fn write_segment(offset: u32, pdu: Pdu) -> WriteSegment {
    let records = if pdu.sealed { ahs::seal_records(pdu.ahs).ok().flatten() } else { None };
    WriteSegment { offset, data: pdu.data, records }
}

/// Names an R2T: slot, use of the slot, and R2T within the task, so that late data never meets another write.
fn transfer_tag(key: Key, r2t_sn: u32) -> u32 {
    let generation = key.generation & ((1 << GENERATION_BITS) - 1);
    generation << (INDEX_BITS + R2T_BITS) | key.index << R2T_BITS | (r2t_sn & ((1 << R2T_BITS) - 1))
}

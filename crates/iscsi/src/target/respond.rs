//! The response to one task on its way out: data cut into PDUs, status in the last of them where it can be, exact residuals.

use std::collections::VecDeque;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::retransmit::Resumption;
use super::segment::DataSegment;
use super::sense::{self, Sense};
use super::types::{Direction, Response};
use crate::pdu::{Answer, BHS_BYTES, CHANNEL_HEADER_BYTES_MAX, DataIn, Lun, Pdu, ScsiResponse, Sequence};
use crate::slots::Key;
use crate::{Residual, Serial, ahs};

/// Longest sense data that is sent, in bytes.
const SENSE_BYTES_MAX: usize = 252;
/// CHECK CONDITION.
const STATUS_CHECK_CONDITION: u8 = 2;

/// Who is answered next on a connection.
#[derive(Debug)]
pub(super) enum Turn {
    Task(Key),
    /// A task that is over, whose response was lost with another connection or has to be segmented again.
    Repeat(Box<RepeatedResponse>),
}

/// A response that is sent once more, of a task that is over.
#[derive(Debug)]
pub(super) struct RepeatedResponse {
    pub(super) initiator_task_tag: u32,
    pub(super) r2t_count: u32,
    /// The number that its status had before, on the same connection.
    pub(super) stat_sn: Option<Serial>,
    pub(super) transfer: ResponseTransfer,
}

/// A response of which a part may have been sent.
#[derive(Debug)]
pub(super) struct ResponseTransfer {
    status: u8,
    sense: Vec<u8>,
    /// Header segments of the SCSI Response.
    ahs: Bytes,
    segments: VecDeque<DataSegment>,
    /// How much of the transfer was sent, in bytes.
    sent: u32,
    /// How much is to be sent, in bytes.
    to_send: u32,
    /// How much of the current burst was sent, in bytes.
    burst: u32,
    next_data_sn: u32,
    residual: Residual,
    /// Of the R-Data SNACK that restarted it; 0: none.
    snack_tag: u32,
}

/// What the next PDU of a response is.
pub(super) enum ResponsePdu {
    /// Its last one: a SCSI Response.
    Status { header: ScsiResponse, ahs: Bytes, data: Buffer, snack_tag: u32 },
    /// A Data-In.
    Data { header: DataIn, segment: DataSegment, is_last_of_burst: bool },
}

impl ResponseTransfer {
    /// The response to a task that expects `expected` bytes. Header segments go out inside a channel only: RFC 7143 has none on a
    /// SCSI Response. Data that `can_send` refuses is answered with CHECK CONDITION.
    pub(super) fn new(
        mut response: Response,
        direction: Direction,
        expected: u32,
        in_channel: bool,
        can_send: impl Fn(&DataSegment) -> bool,
    ) -> ResponseTransfer {
        let parts = std::mem::take(&mut response.data).into_iter().filter(|part| part.covers_bytes() > 0);
        let mut segments: VecDeque<DataSegment> = parts.map(DataSegment::from).collect();
        if !segments.iter().all(can_send) {
            segments.clear();
            response = Response::check_condition(sense::SEGMENT_TOO_SHORT.encode());
        }
        let offered: u64 = segments.iter().map(|segment| u64::from(segment.covers_bytes)).sum();
        let wanted = response.wanted_bytes.unwrap_or(match direction {
            Direction::Read => offered,
            Direction::Write => u64::from(expected),
            Direction::None => 0,
        });
        let to_send = match direction {
            Direction::Read => sendable(&segments, expected),
            _ => 0,
        };
        let mut sense = response.sense;
        sense.truncate(SENSE_BYTES_MAX);
        let written = response.written.filter(|_| in_channel);
        let ahs = written.map(|written| ahs::written_segment(&written)).unwrap_or_default();
        ResponseTransfer {
            status: response.status,
            sense,
            ahs,
            segments,
            sent: 0,
            to_send,
            burst: 0,
            next_data_sn: 0,
            residual: Residual::of(expected, wanted),
            snack_tag: 0,
        }
    }

    /// CHECK CONDITION without data.
    pub(super) fn failed(sense: Sense) -> ResponseTransfer {
        ResponseTransfer {
            status: STATUS_CHECK_CONDITION,
            sense: sense.encode(),
            ahs: Bytes::new(),
            segments: VecDeque::new(),
            sent: 0,
            to_send: 0,
            burst: 0,
            next_data_sn: 0,
            residual: Residual::None,
            snack_tag: 0,
        }
    }

    pub(super) fn residual(&self) -> Residual {
        self.residual
    }

    /// Its data that was not sent yet, in bytes.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.data.len() as u64).sum()
    }

    /// Its current position: nothing has to be sent once more.
    pub(super) fn position(&self) -> Resumption {
        Resumption { offset: self.sent, data_sn: self.next_data_sn, ..Resumption::default() }
    }

    /// Goes back to what has to be sent once more, which precedes what was not sent; `None`: it is no longer stored.
    pub(super) fn resume(&mut self, resumption: Option<Resumption>) {
        match resumption {
            Some(mut resumption) => {
                (self.sent, self.next_data_sn, self.burst) = (resumption.offset, resumption.data_sn, 0);
                resumption.segments.append(&mut self.segments);
                self.segments = resumption.segments;
            }
            None => *self = ResponseTransfer::failed(sense::RETRANSMISSION_FAILED),
        }
    }

    /// The response answers an R-Data SNACK with this tag; 0: none.
    pub(super) fn set_snack_tag(&mut self, snack_tag: u32) {
        self.snack_tag = snack_tag;
    }

    /// Fails unless each of its segments passes.
    pub(super) fn require(&mut self, can_send: impl Fn(&DataSegment) -> bool) {
        if !self.segments.iter().all(can_send) {
            let snack_tag = self.snack_tag;
            *self = ResponseTransfer { snack_tag, ..ResponseTransfer::failed(sense::SEGMENT_TOO_SHORT) };
        }
    }

    /// The next PDU. Its numbers are zero, but for DataSN and ExpDataSN.
    pub(super) fn next_pdu(
        &mut self,
        initiator_task_tag: u32,
        r2t_count: u32,
        segment_bytes_max: u32,
        burst_bytes_max: u32,
    ) -> ResponsePdu {
        if self.sent == self.to_send {
            let header = ScsiResponse {
                response: 0,
                status: self.status,
                initiator_task_tag,
                sequence: Sequence::default(),
                exp_data_sn: self.next_data_sn + r2t_count,
                residual: self.residual,
            };
            let ahs = std::mem::take(&mut self.ahs);
            return ResponsePdu::Status { header, ahs, data: self.sense_data(), snack_tag: self.snack_tag };
        }
        let (buffer_offset, data_sn) = (self.sent, self.next_data_sn);
        let segment = self.next_segment(segment_bytes_max, burst_bytes_max);
        let is_last = self.sent == self.to_send;
        let ends_burst = is_last
            || self.burst >= burst_bytes_max
            || self.next_overflows(segment_bytes_max, burst_bytes_max - self.burst);
        if ends_burst {
            self.burst = 0;
        }
        // RFC 7143 §11.16.3: only a SCSI Response can carry the tag of an R-Data SNACK.
        let has_no_more = self.status == 0 && self.sense.is_empty() && self.ahs.is_empty() && self.snack_tag == 0;
        let header = DataIn {
            is_final: ends_burst,
            status: (is_last && has_no_more).then_some((self.status, self.residual)),
            lun: Lun(0),
            initiator_task_tag,
            sequence: Sequence::default(),
            data_sn,
            buffer_offset,
        };
        ResponsePdu::Data { header, segment, is_last_of_burst: ends_burst && !is_last }
    }

    fn sense_data(&self) -> Buffer {
        match self.sense.as_slice() {
            [] => Buffer::empty(),
            sense => {
                let mut bytes = Vec::with_capacity(2 + sense.len());
                bytes.extend_from_slice(&(sense.len() as u16).to_be_bytes());
                bytes.extend_from_slice(sense);
                Buffer::from(Bytes::from(bytes))
            }
        }
    }

    /// Cuts one PDU's data off.
    fn next_segment(&mut self, segment_bytes_max: u32, burst_bytes_max: u32) -> DataSegment {
        let left = self.to_send - self.sent;
        let front = self.segments.front_mut().expect("to_send counts what the segments cover");
        let covers = cut(front, left, segment_bytes_max, burst_bytes_max.saturating_sub(self.burst));
        let segment = if covers < front.covers_bytes {
            let rest = front.data.slice(covers as usize..);
            let head = std::mem::replace(&mut front.data, rest);
            front.covers_bytes -= covers;
            DataSegment::plain(head.slice(..covers as usize))
        } else {
            self.segments.pop_front().expect("looked at above")
        };
        self.sent += covers;
        self.next_data_sn += 1;
        self.burst = self.burst.saturating_add(covers);
        while self.segments.front().is_some_and(|segment| segment.covers_bytes == 0) {
            self.segments.pop_front();
        }
        segment
    }

    /// Whether the next segment is one that cannot be cut and is longer than what the burst has left.
    fn next_overflows(&self, segment_bytes_max: u32, burst_left: u32) -> bool {
        let left = self.to_send - self.sent;
        self.segments.front().is_some_and(|segment| cut(segment, left, segment_bytes_max, burst_left) > burst_left)
    }
}

impl RepeatedResponse {
    /// A response once more, of which `resumption` has to be sent again; `None`: that is no longer stored.
    pub(super) fn of(
        initiator_task_tag: u32,
        answer: &Pdu,
        resumption: Option<Resumption>,
    ) -> Option<RepeatedResponse> {
        let (status, residual, sense, ahs) = match Answer::decode(&answer.bhs) {
            // The length of the sense data precedes it (RFC 7143 §11.4.7).
            Ok(Answer::ScsiResponse(header)) => {
                (header.status, header.residual, answer.data.get(2..).unwrap_or_default().to_vec(), answer.ahs.clone())
            }
            Ok(Answer::DataIn(data)) => {
                let (status, residual) = data.status.unwrap_or_default();
                // Its header segments belong to its data.
                (status, residual, Vec::new(), Bytes::new())
            }
            _ => return None,
        };
        let (r2t_count, transfer) = match resumption {
            Some(Resumption { segments, offset, data_sn, r2t_count }) => {
                let covers: u32 = segments.iter().map(|segment| segment.covers_bytes).sum();
                let transfer = ResponseTransfer {
                    status,
                    sense,
                    ahs,
                    segments,
                    sent: offset,
                    to_send: offset + covers,
                    burst: 0,
                    next_data_sn: data_sn,
                    residual,
                    snack_tag: 0,
                };
                (r2t_count, transfer)
            }
            None => (0, ResponseTransfer::failed(sense::RETRANSMISSION_FAILED)),
        };
        Some(RepeatedResponse { initiator_task_tag, r2t_count, stat_sn: None, transfer })
    }
}

/// Whether a segment may be sent in one PDU of `segment_bytes_max`, where it cannot be cut: an initiator may declare that it takes less
/// than a block. `None`: the connection is gone, and the one that takes the task over is asked later.
pub(super) fn can_send(segment: &DataSegment, segment_bytes_max: Option<u32>, in_channel: bool) -> bool {
    segment.is_plain()
        || (in_channel
            && segment_bytes_max.is_none_or(|max| segment.data.len() <= max as usize)
            && BHS_BYTES + segment.ahs.len() <= CHANNEL_HEADER_BYTES_MAX)
}

/// How much of a segment goes into one PDU, in bytes of the transfer.
fn cut(segment: &DataSegment, left: u32, segment_bytes_max: u32, burst_left: u32) -> u32 {
    match segment.is_plain() {
        true => segment.covers_bytes.min(left).min(segment_bytes_max).min(burst_left.max(1)),
        false => segment.covers_bytes,
    }
}

/// How much of the segments fits the expected length, in bytes; what cannot be cut is sent entirely or not at all.
fn sendable(segments: &VecDeque<DataSegment>, expected_bytes: u32) -> u32 {
    let mut sum = 0u32;
    for segment in segments {
        let left = expected_bytes - sum;
        if segment.covers_bytes <= left {
            sum += segment.covers_bytes;
        } else {
            if segment.is_plain() {
                sum = expected_bytes;
            }
            break;
        }
    }
    sum
}

// The limit that `sealed_blocks_max` keeps to leaves room for the records of at least one block of any custody.
const _: () = assert!(ahs::seal_records_max(8 + strongroom_block::RECORD_BYTES_MAX, 0) > 0);

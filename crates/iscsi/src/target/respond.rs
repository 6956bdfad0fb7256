//! What goes back for a command: data cut into PDUs in turn with other tasks, status in the last of them where it can be,
//! exact residuals.

use std::collections::VecDeque;

use bytes::Bytes;
use strongroom_block::Buffer;

use super::connection::{Connection, ConnectionId};
use super::retransmit::Resumed;
use super::{DataSegment, Direction, Response, Session, TaskId, TaskState, key_of};
use crate::pdu::{BHS_BYTES, CHANNEL_HEADER_BYTES_MAX, DataIn, Lun, Pdu, ScsiResponse, Sequence};
use crate::slots::Key;
use crate::{Residual, Serial, ahs};

/// Sense data that the session itself gives (RFC 7143 §11.4.7.2), fixed format (SPC-4 §4.5.3).
pub(super) mod sense {
    /// Sense key, additional sense code and qualifier.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::target) struct Sense(pub(super) u8, pub(super) u8, pub(super) u8);

    pub(in crate::target) const UNEXPECTED_UNSOLICITED_DATA: Sense = Sense(0x0b, 0x0c, 0x0c);
    pub(in crate::target) const INCORRECT_AMOUNT_OF_DATA: Sense = Sense(0x0b, 0x0c, 0x0d);
    /// Parameter value invalid: MaxRecvDataSegmentLength is less than a sealed block.
    pub(in crate::target) const SEGMENT_TOO_SHORT: Sense = Sense(0x05, 0x26, 0x02);
    pub(in crate::target) const INVALID_FIELD_IN_CDB: Sense = Sense(0x05, 0x24, 0x00);
    /// What has to be sent again is not kept any more.
    pub(in crate::target) const RETRANSMISSION_FAILED: Sense = Sense(0x0b, 0x11, 0x13);

    impl Sense {
        pub(super) fn encode(self) -> Vec<u8> {
            let mut bytes = vec![0; 18];
            bytes[0] = 0x70;
            bytes[2] = self.0;
            bytes[7] = 10;
            bytes[12] = self.1;
            bytes[13] = self.2;
            bytes
        }
    }
}

/// Longest sense data that is sent, in bytes.
const SENSE_BYTES_MAX: usize = 252;

/// Who is answered next on a connection.
#[derive(Debug)]
pub(super) enum Turn {
    Task(Key),
    /// A task that is over, whose answer was lost with another connection.
    Again(Box<Again>),
}

#[derive(Debug)]
pub(super) struct Again {
    pub(super) initiator_task_tag: u32,
    pub(super) r2t_count: u32,
    /// The number that its status had before, on the same connection.
    pub(super) stat_sn: Option<Serial>,
    pub(super) responding: Responding,
}

/// An answer on its way out.
#[derive(Debug)]
pub(super) struct Responding {
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
    pub(super) snack_tag: u32,
}

impl Session {
    /// Answers a `Command`. False when the task is gone (aborted, or the session closed): nothing will be sent.
    ///
    /// # Panics
    /// If the task was completed before: a command has one answer.
    pub fn complete(&mut self, task: TaskId, response: Response) -> bool {
        let key = key_of(task);
        let Some(found) = self.tasks.get(key) else { return false };
        assert!(matches!(found.state, TaskState::Executing), "a command is completed once");
        self.respond(key, response);
        true
    }

    /// Ends a task whose data never made it to the application.
    pub(super) fn fail(&mut self, key: Key, sense: sense::Sense) {
        self.fail_with(key, Response::check_condition(sense.encode()));
    }

    /// The same, with any status.
    pub(super) fn fail_with(&mut self, key: Key, response: Response) {
        let Some(task) = self.tasks.get(key) else { return };
        let tag = task.initiator_task_tag;
        self.withdraw_r2ts(tag);
        self.remember_ended(tag);
        self.respond(key, Response { wanted_bytes: Some(0), ..response });
    }

    fn respond(&mut self, key: Key, response: Response) {
        let Some(task) = self.tasks.get(key) else { return };
        let id = task.connection;
        let response = match response.data.iter().all(|segment| self.can_send(id, segment)) {
            true => response,
            false => Response::check_condition(sense::SEGMENT_TOO_SHORT.encode()),
        };
        let Some(task) = self.tasks.get_mut(key) else { return };
        let offered: u64 = response.data.iter().map(|segment| u64::from(segment.covers_bytes)).sum();
        let wanted = response.wanted_bytes.unwrap_or(match task.direction {
            Direction::Read => offered,
            Direction::Write => u64::from(task.expected_bytes),
            Direction::None => 0,
        });
        let to_send = match task.direction {
            Direction::Read => sendable(&response.data, task.expected_bytes),
            _ => 0,
        };
        let mut sense = response.sense;
        sense.truncate(SENSE_BYTES_MAX);
        let residual = Residual::of(task.expected_bytes, wanted);
        self.statistics.count_residual(residual);
        let segments = response.data.into_iter().filter(|segment| segment.covers_bytes > 0).collect();
        // RFC 7143 has none on a SCSI Response.
        let ahs = if self.config.in_channel { response.ahs } else { Bytes::new() };
        let responding = Responding {
            status: response.status,
            sense,
            ahs,
            segments,
            sent: 0,
            to_send,
            burst: 0,
            next_data_sn: 0,
            residual,
            snack_tag: 0,
        };
        self.unsent_bytes += responding.held_bytes();
        task.state = TaskState::Responding(responding);
        let reserved_bytes = std::mem::take(&mut task.reserved_bytes);
        // Its data is released, though the response may wait long: for a connection that takes the task over.
        self.unsolicited_bytes -= std::mem::take(&mut task.unsolicited_bytes);
        self.take_turn(id, Turn::Task(key));
        self.release_memory(reserved_bytes);
    }

    /// Nothing happens if the connection is gone: the connection that takes the task over takes its response, too.
    fn take_turn(&mut self, id: ConnectionId, turn: Turn) {
        if let Some(connection) = self.connection_mut(id) {
            connection.responding.push_back(turn);
        }
    }

    /// Answers a task that another connection answered before.
    pub(super) fn answer_again(&mut self, id: ConnectionId, mut again: Again) {
        if !again.responding.segments.iter().all(|segment| self.can_send(id, segment)) {
            again.responding = Responding::failed(sense::SEGMENT_TOO_SHORT);
        }
        self.unsent_bytes += again.responding.held_bytes();
        self.take_turn(id, Turn::Again(Box::new(again)));
    }

    /// A task that was being answered goes on with another connection; `resumed`: what has to be sent once more, if it is there.
    pub(super) fn resume_response(&mut self, key: Key, id: ConnectionId, resumed: Option<Resumed>) {
        self.start_anew(key, id, resumed, 0);
        self.take_turn(id, Turn::Task(key));
    }

    /// Has an answer go back to what has to be sent once more.
    pub(super) fn start_anew(&mut self, key: Key, id: ConnectionId, resumed: Option<Resumed>, snack_tag: u32) {
        let Some(TaskState::Responding(responding)) = self.tasks.get_mut(key).map(|task| &mut task.state) else {
            return;
        };
        let before = responding.held_bytes();
        responding.resume(resumed);
        let mut after = responding.held_bytes();
        let segments = std::mem::take(&mut responding.segments);
        let fits = segments.iter().all(|segment| self.can_send(id, segment));
        if let Some(TaskState::Responding(responding)) = self.tasks.get_mut(key).map(|task| &mut task.state) {
            match fits {
                true => responding.segments = segments,
                false => (*responding, after) = (Responding::failed(sense::SEGMENT_TOO_SHORT), 0),
            }
            responding.snack_tag = snack_tag;
        }
        self.unsent_bytes = self.unsent_bytes + after - before;
    }

    /// These are not polled any more.
    pub(super) fn forget_turns(&mut self, turns: VecDeque<Turn>) {
        for turn in turns {
            if let Turn::Again(again) = turn {
                self.unsent_bytes -= again.responding.held_bytes();
            }
        }
    }

    /// Bytes of read data that have not left yet.
    pub fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Whether a connection takes a segment as it is, where it cannot be cut: an initiator may declare that it takes less than
    /// a block.
    fn can_send(&self, id: ConnectionId, segment: &DataSegment) -> bool {
        // A closed connection takes nothing; the connection that takes the task over is asked later.
        let takes = |connection: &Connection| segment.data.len() <= connection.agreed.send_segment_bytes_max as usize;
        is_plain(segment)
            || (self.config.in_channel
                && self.connection(id).is_none_or(takes)
                && BHS_BYTES + segment.ahs.len() <= CHANNEL_HEADER_BYTES_MAX)
    }

    /// The next PDU of the task whose turn it is on a connection, and how much of the transfer it stands for, in bytes.
    pub(super) fn next_response(&mut self, id: ConnectionId) -> Option<(Pdu, u32)> {
        loop {
            let connection = self.connection_mut(id)?;
            let mut turn = connection.responding.pop_front()?;
            connection.liveness.sent();
            let segment_max = connection.agreed.send_segment_bytes_max;
            let (responding, tag, r2t_count, stat_sn, lun) = match &mut turn {
                Turn::Task(key) => {
                    let Some(task) = self.tasks.get_mut(*key) else { continue };
                    let TaskState::Responding(responding) = &mut task.state else { continue };
                    (responding, task.initiator_task_tag, task.r2t_count, None, Some(task.lun))
                }
                Turn::Again(again) => {
                    (&mut again.responding, again.initiator_task_tag, again.r2t_count, again.stat_sn, None)
                }
            };
            if responding.sent == responding.to_send {
                let (mut header, data) = responding.status_pdu(tag, r2t_count);
                let snack_tag = responding.snack_tag;
                let ahs = std::mem::take(&mut responding.ahs);
                self.unsent_bytes -= responding.held_bytes();
                responding.segments.clear();
                self.turn_over(&turn);
                header.sequence = match stat_sn {
                    Some(stat_sn) => Sequence { stat_sn, ..self.numbers(id) },
                    None => self.use_numbers(id),
                };
                let mut bhs = header.encode();
                ScsiResponse::put_snack_tag(&mut bhs, snack_tag);
                return Some((Pdu::new(bhs, ahs, data, false), 0));
            }
            let piece = responding.next_piece(segment_max, self.agreed.max_burst_bytes);
            // RFC 7143 §11.16.3: the tag of an R-Data SNACK takes a SCSI Response to copy it.
            let has_tag = responding.snack_tag != 0;
            let says_no_more = responding.status == 0 && responding.sense.is_empty() && responding.ahs.is_empty();
            let collapses = piece.is_last && says_no_more && !has_tag;
            let mut header = DataIn {
                is_final: piece.ends_burst,
                status: collapses.then_some((responding.status, responding.residual)),
                lun: Lun(0),
                initiator_task_tag: tag,
                sequence: Sequence::default(),
                data_sn: piece.data_sn,
                buffer_offset: piece.offset,
            };
            let DataSegment { data, ahs, sealed, covers_bytes } = piece.segment;
            self.statistics.bytes_read += data.len() as u64;
            self.unsent_bytes -= data.len() as u64;
            if collapses {
                self.unsent_bytes -= responding.held_bytes();
                responding.segments.clear();
                // The freed place shows in MaxCmdSN of this very PDU.
                self.turn_over(&turn);
                header.sequence = self.use_numbers(id);
            } else {
                header.sequence = self.numbers(id);
                // RFC 7143 §11.7.4: StatSN is reserved without the S bit.
                header.sequence.stat_sn = Serial(0);
                self.take_turn(id, turn);
            }
            let mut bhs = header.encode();
            if let Some(lun) =
                lun.filter(|_| self.agreed.error_recovery_level > 0 && piece.ends_burst && !piece.is_last)
            {
                // Once per burst at most (§11.7.2). The task's own tag names it.
                DataIn::ask_acknowledgement(&mut bhs, lun, tag);
            }
            return Some((Pdu::new(bhs, ahs, data, sealed), covers_bytes));
        }
    }

    fn turn_over(&mut self, turn: &Turn) {
        if let Turn::Task(key) = turn {
            self.remove_task(*key);
        }
    }
}

/// One Data-In's worth.
struct Piece {
    segment: DataSegment,
    offset: u32,
    data_sn: u32,
    is_last: bool,
    ends_burst: bool,
}

impl Responding {
    /// An answer of which a part has been sent before.
    pub(super) fn resumed(resumed: Resumed, status: u8, sense: Vec<u8>, ahs: Bytes, residual: Residual) -> Responding {
        let covers: u32 = resumed.segments.iter().map(|segment| segment.covers_bytes).sum();
        Responding {
            status,
            sense,
            ahs,
            segments: resumed.segments,
            sent: resumed.offset,
            to_send: resumed.offset + covers,
            burst: 0,
            next_data_sn: resumed.data_sn,
            residual,
            snack_tag: 0,
        }
    }

    /// Where it stands: nothing has to be sent once more.
    pub(super) fn position(&self) -> Resumed {
        Resumed { offset: self.sent, data_sn: self.next_data_sn, ..Resumed::default() }
    }

    /// Goes back to what has to be sent once more, which stands in front of what was not sent; `None`: it is not there.
    pub(super) fn resume(&mut self, resumed: Option<Resumed>) {
        match resumed {
            Some(mut resumed) => {
                (self.sent, self.next_data_sn, self.burst) = (resumed.offset, resumed.data_sn, 0);
                resumed.segments.append(&mut self.segments);
                self.segments = resumed.segments;
            }
            None => *self = Responding::failed(sense::RETRANSMISSION_FAILED),
        }
    }

    /// CHECK CONDITION without data.
    pub(super) fn failed(sense: sense::Sense) -> Responding {
        Responding {
            status: 2,
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

    /// Data that it holds and that has not left, in bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.data.len() as u64).sum()
    }

    fn status_pdu(&self, initiator_task_tag: u32, r2t_count: u32) -> (ScsiResponse, Buffer) {
        let header = ScsiResponse {
            response: 0,
            status: self.status,
            initiator_task_tag,
            sequence: Sequence::default(),
            exp_data_sn: self.next_data_sn + r2t_count,
            residual: self.residual,
        };
        let data = match self.sense.as_slice() {
            [] => Buffer::empty(),
            sense => {
                let mut bytes = Vec::with_capacity(2 + sense.len());
                bytes.extend_from_slice(&(sense.len() as u16).to_be_bytes());
                bytes.extend_from_slice(sense);
                Buffer::from(Bytes::from(bytes))
            }
        };
        (header, data)
    }

    fn next_piece(&mut self, segment_max: u32, burst_max: u32) -> Piece {
        let left = self.to_send - self.sent;
        let front = self.segments.front_mut().expect("to_send counts what the segments cover");
        let covers = cut(front, left, segment_max, burst_max.saturating_sub(self.burst));
        let segment = if covers < front.covers_bytes {
            let rest = front.data.slice(covers as usize..);
            let head = std::mem::replace(&mut front.data, rest);
            front.covers_bytes -= covers;
            DataSegment::plain(head.slice(..covers as usize))
        } else {
            self.segments.pop_front().expect("looked at above")
        };
        let offset = self.sent;
        let data_sn = self.next_data_sn;
        self.sent += covers;
        self.next_data_sn += 1;
        self.burst = self.burst.saturating_add(covers);
        self.skip_empty();
        let is_last = self.sent == self.to_send;
        let ends_burst = is_last || self.burst >= burst_max || self.next_overflows(segment_max, burst_max - self.burst);
        if ends_burst {
            self.burst = 0;
        }
        Piece { segment, offset, data_sn, is_last, ends_burst }
    }

    /// Whether the next segment is one that cannot be cut and is longer than what the burst has left.
    fn next_overflows(&self, segment_max: u32, burst_left: u32) -> bool {
        let left = self.to_send - self.sent;
        self.segments.front().is_some_and(|segment| cut(segment, left, segment_max, burst_left) > burst_left)
    }

    fn skip_empty(&mut self) {
        while self.segments.front().is_some_and(|segment| segment.covers_bytes == 0) {
            self.segments.pop_front();
        }
    }
}

fn is_plain(segment: &DataSegment) -> bool {
    segment.ahs.is_empty() && !segment.sealed && segment.covers_bytes as usize == segment.data.len()
}

/// How much of a segment goes into one PDU, in bytes of the transfer.
fn cut(segment: &DataSegment, left: u32, segment_max: u32, burst_left: u32) -> u32 {
    match is_plain(segment) {
        true => segment.covers_bytes.min(left).min(segment_max).min(burst_left.max(1)),
        false => segment.covers_bytes,
    }
}

/// How much of the segments fits the expected length, in bytes; what cannot be cut is sent whole or not at all.
fn sendable(segments: &[DataSegment], expected_bytes: u32) -> u32 {
    let mut sum = 0u32;
    for segment in segments {
        let left = expected_bytes - sum;
        if segment.covers_bytes <= left {
            sum += segment.covers_bytes;
        } else {
            if is_plain(segment) {
                sum = expected_bytes;
            }
            break;
        }
    }
    sum
}

// The limit that `sealed_blocks_max` keeps to leaves room for the records of at least one block of any custody.
const _: () = assert!(ahs::seal_records_max(8 + strongroom_block::RECORD_BYTES_MAX, 0) > 0);

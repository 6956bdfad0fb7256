//! Write data on its way in: immediate, unsolicited, and asked for by R2T; in order, counted, bounded in memory.

use std::collections::VecDeque;

use super::connection::{Connection, ConnectionId};
use super::outbox::AnswerKind;
use super::respond::sense;
use super::{Command, Direction, Event, Response, Session, TaskState, WriteSegment, task_id};
use crate::pdu::{DataOut, Pdu, PduError, R2t, RejectReason, Request, Sequence, TAG_NONE};
use crate::slots::{INDEX_BITS, Key};
use crate::{PeerMisbehaved, ahs};

/// Bits of a target transfer tag that tell a task's R2Ts apart; more than MaxOutstandingR2T can be in flight.
const R2T_BITS: u32 = 8;
/// Bits that tell a slot's users apart. The top bit of a tag is left to pings and text.
const GENERATION_BITS: u32 = 31 - INDEX_BITS - R2T_BITS;

/// What a PDU's data takes at least of memory, in bytes: buffers are whole pages, so that they can go to a store as they are.
const PAGE_BYTES: u32 = 4096;
/// The least that MaxRecvDataSegmentLength can be (RFC 7143 §13.12), and so the data of a PDU that is not the last of its sequence.
const SEGMENT_BYTES_MIN: u32 = 512;
/// PDUs that a write may have beyond what its length, cut so, and the ends of its sequences make.
const SEGMENTS_SPARE: usize = 16;

/// Memory that the data of a PDU takes, in bytes.
pub(super) fn memory_bytes(pdu: &Pdu) -> u64 {
    pdu.data.len().max(PAGE_BYTES as usize) as u64 + pdu.ahs.len() as u64
}

/// What has come of a write.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    segments: Vec<WriteSegment>,
    /// Memory that they take: what came unasked, and what was asked for; in bytes.
    unsolicited_memory: u64,
    solicited_memory: u64,
    /// Everything before this byte is there.
    received: u32,
    /// Everything before this byte is there or has been asked for.
    requested: u32,
    /// The unsolicited sequence that is open.
    unsolicited: Option<Burst>,
    /// The R2Ts that are open, oldest first.
    solicited: VecDeque<Burst>,
    admitted: bool,
    waits_for_memory: bool,
    /// Something was damaged on the way: what still comes of the open sequences is dropped.
    pub(super) is_broken: bool,
}

impl Receiving {
    /// Takes note of a PDU of a broken sequence that ends at `end`. True when no sequence is open any more: what is missing is
    /// to be requested again.
    pub(super) fn end_sequence(&mut self, target_transfer_tag: u32, is_final: bool, end: u64) -> bool {
        let before = self.open_sequences();
        let is_open = |burst: &Burst| {
            burst.target_transfer_tag != target_transfer_tag || !(is_final || end >= u64::from(burst.end))
        };
        self.unsolicited = self.unsolicited.take().filter(is_open);
        self.solicited.retain(is_open);
        let is_last = before > 0 && self.open_sequences() == 0;
        if is_last {
            self.requested = self.received;
        }
        is_last
    }

    /// What was asked for will not come any more, nor the rest of what comes unasked.
    pub(super) fn start_over(&mut self) {
        self.unsolicited = None;
        self.solicited.clear();
        self.is_broken = false;
        self.requested = self.received;
    }

    /// Whether a sequence is open under this tag.
    pub(super) fn has_sequence(&self, target_transfer_tag: u32) -> bool {
        let mut open = self.unsolicited.iter().chain(&self.solicited);
        open.any(|burst| burst.target_transfer_tag == target_transfer_tag)
    }

    fn open_sequences(&self) -> usize {
        usize::from(self.unsolicited.is_some()) + self.solicited.len()
    }
}

/// A sequence of Data-Out PDUs.
#[derive(Debug)]
struct Burst {
    target_transfer_tag: u32,
    next_data_sn: u32,
    /// Where it ends, in bytes from the start of the transfer.
    end: u32,
}

impl Session {
    /// Only block data of a write is ever left to its seal records.
    pub(super) fn check_sealed(&self, request: &Request, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        let is_write = match request {
            Request::DataOut(_) => true,
            Request::ScsiCommand(command) => command.write,
            _ => false,
        };
        if !self.config.in_channel || !is_write || pdu.data.is_empty() {
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

    /// Looks at a fresh command and its immediate data.
    pub(super) fn start_receiving(&mut self, key: Key, is_final: bool, pdu: Pdu) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let expected = task.expected_bytes;
        let immediate = pdu.data.len();
        if task.direction != Direction::Write {
            return match immediate {
                0 => self.hand_over(key),
                _ => self.fail(key, sense::UNEXPECTED_UNSOLICITED_DATA),
            };
        }
        let unsolicited_end = expected.min(self.agreed.first_burst_bytes);
        let more_follows = !is_final && (immediate as u32) < unsolicited_end;
        if expected > self.config.transfer_bytes_max {
            return self.fail(key, sense::INVALID_FIELD_IN_CDB);
        }
        if (immediate > 0 && !self.agreed.immediate_data) || (more_follows && self.agreed.initial_r2t) {
            return self.fail(key, sense::UNEXPECTED_UNSOLICITED_DATA);
        }
        if immediate > unsolicited_end as usize {
            return self.fail(key, sense::INCORRECT_AMOUNT_OF_DATA);
        }
        let of_immediate = if immediate > 0 { memory_bytes(&pdu) } else { 0 };
        let promised = if more_follows { self.memory_for(unsolicited_end) } else { 0 };
        let unsolicited_bytes = of_immediate.max(promised);
        let has_room = self.unsolicited_bytes + unsolicited_bytes <= self.write_memory_max;
        if unsolicited_bytes > 0 && self.unsolicited_bytes > 0 && !has_room {
            return self.fail_with(key, Response::task_set_full());
        }
        self.unsolicited_bytes += unsolicited_bytes;
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.unsolicited_bytes = unsolicited_bytes;
        let TaskState::Receiving(receiving) = &mut task.state else { return };
        if more_follows {
            receiving.unsolicited =
                Some(Burst { target_transfer_tag: TAG_NONE, next_data_sn: 0, end: unsolicited_end });
        }
        if immediate > 0 {
            receiving.unsolicited_memory = of_immediate;
            receiving.received = immediate as u32;
            receiving.segments.push(WriteSegment { offset: 0, data: pdu.data, ahs: pdu.ahs, sealed: pdu.sealed });
        }
        receiving.requested = receiving.received;
        self.go_on(key);
    }

    pub(super) fn handle_data_out(
        &mut self,
        id: ConnectionId,
        header: DataOut,
        pdu: Pdu,
    ) -> Result<(), PeerMisbehaved> {
        let tag = header.initiator_task_tag;
        // RFC 7143 §4.2.2: data comes on the connection that brought the command.
        let key = self.by_tag.get(&tag).copied();
        let key = key.filter(|key| self.tasks.get(*key).is_some_and(|task| task.connection == id));
        let task = key.and_then(|key| Some((key, self.tasks.get_mut(key)?)));
        let task = task.map(|(key, task)| (key, task.expected_bytes, task.r2t_count, &mut task.state));
        let Some((key, expected, r2t_count, TaskState::Receiving(receiving))) = task else {
            return match self.ended.contains(&tag) {
                true => Ok(()),
                false => self.reject(id, &pdu, RejectReason::InvalidPduField),
            };
        };
        if receiving.is_broken {
            self.skip_data(key, header, pdu.data.len());
            return Ok(());
        }
        let is_unsolicited = header.target_transfer_tag == TAG_NONE;
        let burst = match is_unsolicited {
            true => receiving.unsolicited.as_mut(),
            false => receiving.solicited.front_mut(),
        };
        let Some(burst) = burst.filter(|burst| burst.target_transfer_tag == header.target_transfer_tag) else {
            if is_unsolicited {
                self.fail(key, sense::UNEXPECTED_UNSOLICITED_DATA);
                return Ok(());
            }
            return self.reject(id, &pdu, RejectReason::InvalidPduField);
        };
        let len = pdu.data.len() as u64;
        let end = u64::from(header.buffer_offset) + len;
        let in_order = header.data_sn == burst.next_data_sn && header.buffer_offset == receiving.received;
        // A PDU without data may only end a sequence: otherwise one could send them for ever.
        let has_sense = len > 0 || header.is_final;
        let ends_whole = is_unsolicited || !header.is_final || end == u64::from(burst.end);
        // Nor may it come in crumbs: each one takes a page. Every sequence may end with a short PDU.
        let segments_max = expected.div_ceil(SEGMENT_BYTES_MIN) as usize + r2t_count as usize + SEGMENTS_SPARE;
        let is_crumbled = receiving.segments.len() >= segments_max;
        if !in_order || !has_sense || end > u64::from(burst.end) || !ends_whole || is_crumbled {
            self.fail(key, sense::INCORRECT_AMOUNT_OF_DATA);
            return Ok(());
        }
        burst.next_data_sn += 1;
        let is_over = header.is_final || end == u64::from(burst.end);
        if len > 0 && !self.count_memory(key, is_unsolicited, memory_bytes(&pdu)) {
            self.fail_with(key, Response::task_set_full());
            return Ok(());
        }
        let Some(receiving) = self.receiving(key) else { return Ok(()) };
        receiving.received = end as u32;
        if len > 0 {
            let offset = header.buffer_offset;
            receiving.segments.push(WriteSegment { offset, data: pdu.data, ahs: pdu.ahs, sealed: pdu.sealed });
        }
        if is_over {
            if is_unsolicited {
                receiving.unsolicited = None;
                receiving.requested = receiving.received;
            } else {
                receiving.solicited.pop_front();
            }
            self.go_on(key);
        }
        Ok(())
    }

    /// Memory that so much data takes if it comes in the longest PDUs that it can come in, in bytes.
    fn memory_for(&self, len: u32) -> u64 {
        let segment_bytes = self.config.offer.recv_segment_bytes_max.min(self.agreed.max_burst_bytes);
        let segments = len.div_ceil(segment_bytes.clamp(1, PAGE_BYTES));
        u64::from(segments) * u64::from(PAGE_BYTES)
    }

    /// Counts memory that the data of a write takes, where that is more than was set aside for it because it comes in short PDUs. False:
    /// there is no more; for what was asked for there is as much again, since it had to be allowed for before it was seen. A write that is
    /// alone goes through.
    fn count_memory(&mut self, key: Key, is_unsolicited: bool, bytes: u64) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return false };
        let TaskState::Receiving(receiving) = &mut task.state else { return false };
        let max = self.write_memory_max;
        let (memory, of_task, of_all, max) = match is_unsolicited {
            true => (&mut receiving.unsolicited_memory, &mut task.unsolicited_bytes, &mut self.unsolicited_bytes, max),
            false => {
                let max = max.saturating_mul(2);
                (&mut receiving.solicited_memory, &mut task.reserved_bytes, &mut self.reserved_bytes, max)
            }
        };
        *memory += bytes;
        let more = memory.saturating_sub(*of_task);
        if more > 0 && *of_all > *of_task && *of_all + more > max {
            return false;
        }
        *of_task += more;
        *of_all += more;
        true
    }

    /// Hands a write over when it is complete; else asks for more, once there is memory for it.
    pub(super) fn go_on(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let TaskState::Receiving(receiving) = &mut task.state else { return };
        if receiving.received == task.expected_bytes {
            return self.hand_over(key);
        }
        if receiving.unsolicited.is_some() {
            return;
        }
        if receiving.admitted {
            return self.ask(key);
        }
        if !std::mem::replace(&mut receiving.waits_for_memory, true) {
            self.unadmitted.push_back(key);
        }
        self.admit();
    }

    /// Reserves memory for waiting writes in order, whole transfers at a time, so that none can starve half way.
    fn admit(&mut self) {
        while let Some(&key) = self.unadmitted.front() {
            let wanted = self.tasks.get(key).map_or(0, |task| self.memory_for(task.expected_bytes));
            if let Some(task) = self.tasks.get_mut(key)
                && let TaskState::Receiving(receiving) = &mut task.state
            {
                // A write larger than the limit alone goes through when it is alone.
                if self.reserved_bytes > 0 && self.reserved_bytes + wanted > self.write_memory_max {
                    return;
                }
                receiving.admitted = true;
                task.reserved_bytes = wanted;
                self.reserved_bytes += wanted;
                self.unadmitted.pop_front();
                self.ask(key);
            } else {
                self.unadmitted.pop_front();
            }
        }
    }

    /// A smaller bound on the memory that writes may pin than [`Config::write_memory_bytes_max`](super::Config), where many sessions share
    /// it. What is there already stays, and so does what commands may hold behind a missing one: only further writes are held back.
    pub fn set_write_memory_max(&mut self, bytes: u64) {
        let before = std::mem::replace(&mut self.write_memory_max, bytes.min(self.config.write_memory_bytes_max));
        if self.write_memory_max > before {
            self.admit();
        }
    }

    /// Memory that commands of this session take, in bytes: write data that is there or was asked for, and answers that wait to be sent.
    pub fn memory_bytes(&self) -> u64 {
        self.reserved_bytes + self.unsolicited_bytes + self.held.memory_bytes() + self.unsent_bytes
    }

    pub(super) fn release_memory(&mut self, bytes: u64) {
        if bytes > 0 {
            self.reserved_bytes -= bytes;
            self.admit();
        }
    }

    /// Sends R2Ts until as many are in flight as agreed.
    fn ask(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let TaskState::Receiving(receiving) = &mut task.state else { return };
        let id = task.connection;
        if self.connections.iter().all(|connection| connection.id != id || connection.is_leaving) {
            // Asked for when another connection takes the task over.
            return;
        }
        let mut r2ts = Vec::new();
        while receiving.requested < task.expected_bytes
            && receiving.solicited.len() < usize::from(self.agreed.max_outstanding_r2t)
        {
            let desired = (task.expected_bytes - receiving.requested).min(self.agreed.max_burst_bytes);
            let target_transfer_tag = transfer_tag(key, task.r2t_count);
            r2ts.push(R2t {
                lun: task.lun,
                initiator_task_tag: task.initiator_task_tag,
                target_transfer_tag,
                sequence: Sequence::default(),
                r2t_sn: task.r2t_count,
                buffer_offset: receiving.requested,
                desired_data_transfer_bytes: desired,
            });
            task.r2t_count += 1;
            receiving.requested += desired;
            receiving.solicited.push_back(Burst { target_transfer_tag, next_data_sn: 0, end: receiving.requested });
        }
        for r2t in r2ts {
            self.answer(id, r2t.encode(), strongroom_block::Buffer::empty(), AnswerKind::R2t)
                .expect("R2Ts are bounded by the tasks and not counted");
        }
    }

    /// Gives a command to the application.
    fn hand_over(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let TaskState::Receiving(receiving) = std::mem::replace(&mut task.state, TaskState::Executing) else { return };
        self.statistics.commands += 1;
        self.statistics.bytes_written += u64::from(receiving.received);
        self.events.push_back(Event::Command(Command {
            task: task_id(key),
            lun: task.lun,
            cdb: task.cdb,
            ahs: std::mem::take(&mut task.ahs),
            attribute: task.attribute,
            direction: task.direction,
            expected_bytes: task.expected_bytes,
            immediate: task.immediate,
            data: receiving.segments,
        }));
    }

    /// Whether so much came unasked that nothing more should be read before some of it is done with. Not while a write lacks data, or a
    /// command: they would wait for ever.
    pub(super) fn is_full_of_data(&self) -> bool {
        let max = self.write_memory_max;
        self.unsolicited_bytes > max - max / 4
            && self.held.is_empty()
            && self.tasks.iter().all(|(_, task)| !matches!(task.state, TaskState::Receiving(_)))
    }

    /// Whether so much is held for a command that is missing that a connection which brought some of it should wait for the slower ones:
    /// one of them brings that command, for each brings its own in order (RFC 7143 §4.2.2.1). Not once something was lost on the way:
    /// the command may then come again over any connection, and memory is the limit.
    pub(super) fn waits_for_others(&self, id: ConnectionId) -> bool {
        let max = self.config.write_memory_bytes_max;
        let is_sound = |connection: &Connection| !connection.is_over && !connection.is_leaving;
        self.held.memory_bytes() > max - max / 4
            && self.held.has_some_of(id)
            && self.damaged == 0
            && self.connections.len() == self.next_connection as usize
            && self.connections.iter().all(is_sound)
            && self.connections.iter().any(|connection| !self.held.has_some_of(connection.id))
    }

    /// Withdraws R2Ts that have not left yet.
    pub(super) fn withdraw_r2ts(&mut self, initiator_task_tag: u32) {
        for connection in &mut self.connections {
            connection.outbox.withdraw_r2ts(initiator_task_tag);
        }
    }
}

/// Names an R2T: slot, use of the slot, and R2T within the task, so that late data never meets another write.
fn transfer_tag(key: Key, r2t_sn: u32) -> u32 {
    let generation = key.generation & ((1 << GENERATION_BITS) - 1);
    generation << (INDEX_BITS + R2T_BITS) | key.index << R2T_BITS | (r2t_sn & ((1 << R2T_BITS) - 1))
}

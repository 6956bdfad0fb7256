//! What an initiator sends: small requests first, then commands and the data of writes in turn. Sealed data is cut at whole
//! blocks, each PDU with exactly its blocks' records.

use bytes::Bytes;
use strongroom_block::Buffer;

use strongroom_scsi::transport::Parameters;

use super::{ConnectionId, Direction, Phase, Session, WriteSource, task_id};
use crate::Agreed;
use crate::ahs;
use crate::pdu::fields::{self, Field};
use crate::pdu::{DataOut, Lun, Opcode, Pdu, ScsiCommand, TAG_NONE};
use crate::slots::Key;

/// A sequence of Data-Out PDUs to send.
#[derive(Debug)]
pub(super) struct Burst {
    pub(super) key: Key,
    pub(super) lun: Lun,
    pub(super) target_transfer_tag: u32,
    pub(super) next_data_sn: u32,
    /// The next byte, and the end, in bytes from the start of the transfer.
    pub(super) offset: u32,
    pub(super) end: u32,
}

/// Data of one PDU.
struct Cut {
    data: Buffer,
    ahs: Bytes,
    sealed: bool,
}

impl Session {
    /// The next PDU to send on the leading connection.
    pub fn poll_transmit(&mut self) -> Option<Pdu> {
        self.poll_transmit_on(ConnectionId::LEADING)
    }

    /// The next PDU to send on a connection.
    pub fn poll_transmit_on(&mut self, id: ConnectionId) -> Option<Pdu> {
        let at = self.index_of(id)?;
        let connection = &mut self.connections[at];
        if let Some((mut bhs, data)) = connection.requests.pop_front() {
            if bhs.opcode() != Some(Opcode::NopOut) || Some(bhs.initiator_task_tag()) != connection.ping_tag {
                connection.liveness.sent();
            }
            // Immediate ones show the next CmdSN and do not use it up; one that is not takes the place of a lost command.
            if bhs.opcode() != Some(Opcode::Snack) && bhs.is_immediate() {
                fields::CMD_SN.put(&mut bhs, self.cmd_sn);
            }
            let tag = bhs.initiator_task_tag();
            if let Some(management) = self.managements.iter_mut().find(|management| management.tag == tag) {
                // Other connections may have sent commands since it was asked for.
                management.before = self.cmd_sn;
            }
            fields::EXP_STAT_SN.put(&mut bhs, connection.exp_stat_sn);
            return Some(Pdu::new(bhs, Bytes::new(), data, false));
        }
        if self.phase != Phase::FullFeature || !connection.is_in() {
            return None;
        }
        let is_due = !connection.waiting.is_empty() && !self.max_cmd_sn.is_before(self.cmd_sn);
        let can_send_command = is_due || !connection.retries.is_empty();
        let can_send_burst = !connection.bursts.is_empty();
        let is_bursts_turn = match (can_send_command, can_send_burst) {
            (false, false) => return None,
            (true, false) => false,
            (false, true) => true,
            (true, true) => {
                connection.burst_turn = !connection.burst_turn;
                connection.burst_turn
            }
        };
        connection.liveness.sent();
        if is_bursts_turn { self.next_data_out(at) } else { self.next_command(at) }
    }

    fn next_command(&mut self, at: usize) -> Option<Pdu> {
        let connection = &mut self.connections[at];
        let key = connection.retries.pop_front().or_else(|| connection.waiting.pop_front())?;
        let task = self.tasks.get_mut(key)?;
        let cmd_sn = task.cmd_sn.unwrap_or(self.cmd_sn);
        let command = &task.command;
        let agreed = &connection.agreed;
        let plan = command
            .write
            .as_ref()
            .map_or(Plan::default(), |source| plan(source, ahs::parameters_bytes(&command.parameters), agreed));
        let header = ScsiCommand {
            immediate: false,
            is_final: plan.unsolicited_end == plan.immediate,
            read: command.direction == Direction::Read,
            write: command.direction == Direction::Write,
            attribute: command.attribute,
            lun: command.lun,
            initiator_task_tag: task_id(key).0,
            expected_data_transfer_bytes: command.expected_bytes,
            cmd_sn,
            exp_stat_sn: connection.exp_stat_sn,
            cdb: command.cdb,
        };
        let cut = match &command.write {
            Some(source) if plan.immediate > 0 => cut(source, 0, plan.immediate, &command.parameters),
            _ => Cut { data: Buffer::empty(), ahs: parameter_segments(&command.parameters), sealed: false },
        };
        if command.write.is_some() {
            task.moved = plan.unsolicited_end;
        }
        if plan.unsolicited_end > plan.immediate {
            connection.bursts.push_back(Burst {
                key,
                lun: command.lun,
                target_transfer_tag: TAG_NONE,
                next_data_sn: 0,
                offset: plan.immediate,
                end: plan.unsolicited_end,
            });
        }
        if task.cmd_sn.replace(cmd_sn).is_none() {
            self.cmd_sn = cmd_sn.next();
        }
        Some(Pdu::new(header.encode(), cut.ahs, cut.data, cut.sealed))
    }

    fn next_data_out(&mut self, at: usize) -> Option<Pdu> {
        let connection = &mut self.connections[at];
        let burst = connection.bursts.front_mut()?;
        let key = burst.key;
        let task = self.tasks.get_mut(key).expect("a task's bursts go with it");
        let source = task.command.write.as_ref().expect("only writes have bursts");
        let len = pdu_bytes(source, burst.end - burst.offset, 0, &connection.agreed);
        let cut = cut(source, burst.offset, len, &Parameters::default());
        let is_final = burst.offset + len == burst.end;
        let header = DataOut {
            is_final,
            lun: burst.lun,
            initiator_task_tag: task_id(key).0,
            target_transfer_tag: burst.target_transfer_tag,
            exp_stat_sn: connection.exp_stat_sn,
            data_sn: burst.next_data_sn,
            buffer_offset: burst.offset,
        };
        burst.offset += len;
        burst.next_data_sn += 1;
        if is_final {
            if burst.target_transfer_tag != TAG_NONE {
                task.r2ts_open -= 1;
            }
            connection.bursts.pop_front();
        }
        Some(Pdu::new(header.encode(), cut.ahs, cut.data, cut.sealed))
    }
}

/// What of a write goes without being asked for.
#[derive(Clone, Copy, Default)]
struct Plan {
    /// With the command, in bytes.
    immediate: u32,
    /// Where unsolicited data ends, immediate data included.
    unsolicited_end: u32,
}

fn plan(source: &WriteSource, ahs_bytes: usize, agreed: &Agreed) -> Plan {
    let whole = |bytes: u32| source.records.as_ref().map_or(bytes, |records| bytes - bytes % records.block_bytes);
    let unsolicited = whole((source.data.len() as u32).min(agreed.first_burst_bytes));
    let immediate = match agreed.immediate_data && unsolicited > 0 {
        true => pdu_bytes(source, unsolicited, ahs_bytes, agreed),
        false => 0,
    };
    Plan { immediate, unsolicited_end: if agreed.initial_r2t { immediate } else { unsolicited } }
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
fn cut(source: &WriteSource, offset: u32, len: u32, parameters: &Parameters) -> Cut {
    let range = offset as usize..(offset + len) as usize;
    let data = source.data.slice(range);
    let Some(records) = &source.records else {
        return Cut { data, ahs: parameter_segments(parameters), sealed: false };
    };
    let record_bytes = records.record_bytes as usize;
    let (first, count) = ((offset / records.block_bytes) as usize, (len / records.block_bytes) as usize);
    let entries = &records.bytes[first * record_bytes..(first + count) * record_bytes];
    // Large enough from the start: growing would leave a copy of block keys behind.
    let mut segments = Vec::with_capacity(ahs::parameters_bytes(parameters) + entries.len() + 8);
    ahs::push_parameters(&mut segments, parameters);
    ahs::push_seal_records(&mut segments, record_bytes, entries);
    Cut { data, ahs: strongroom_block::wiped(segments), sealed: true }
}

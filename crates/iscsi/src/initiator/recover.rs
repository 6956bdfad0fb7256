//! Error recovery level 1 (RFC 7143 §7) as an initiator does it: what a digest shows to be damaged is asked for again by SNACK, and
//! what the target found damaged is sent again. Answers may then come twice or beyond a gap. Absent: level 2 (`reassign`).

use super::connection::Connection;
use super::{Completed, ConnectionId, Direction, Lun, REQUESTS_MAX, Session, TAG_NONE, TaskId, key_of};
use crate::pdu::{Answer, Bhs, DataIn, Opcode, Pdu, ScsiResponse, Snack};
use crate::slots::Key;
use crate::{CloseReason, PeerMisbehaved, Serial};

/// PDUs that may be damaged in one session before the connection is not worth it.
const DAMAGED_MAX: u32 = 4096;
/// How far beyond a StatSN that is missing others may be.
const BEYOND_MAX: u32 = 1024;

/// What is known to be missing.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// StatSNs that were seen beyond one that is missing.
    beyond: Vec<Serial>,
    damaged: u32,
}

/// A SCSI Response of a read whose data was damaged and comes again. Its StatSN is not counted before the data is there: that would
/// acknowledge the data, too (RFC 7143 §11.7.2).
#[derive(Debug)]
pub(super) struct Early {
    pub(super) stat_sn: Serial,
    /// How many Data-In PDUs there are.
    pub(super) data_pdus: u32,
    pub(super) completed: Completed,
}

impl Session {
    /// Takes a PDU of the leading connection whose data was damaged on the way, as its digest shows. At error recovery level 1 it
    /// is asked for again; at level 0 the session ends, and the commands in flight are to be sent again in a new one.
    pub fn handle_corrupt_pdu(&mut self, now: std::time::Instant, pdu: &Pdu) {
        self.handle_corrupt_pdu_on(now, ConnectionId::LEADING, pdu);
    }

    /// As [`Session::handle_corrupt_pdu`], on any connection.
    pub fn handle_corrupt_pdu_on(&mut self, now: std::time::Instant, id: ConnectionId, pdu: &Pdu) {
        let Some(at) = self.index_of(id) else { return };
        let connection = &mut self.connections[at];
        connection.liveness.moved(now);
        let answer = Answer::decode(&pdu.bhs);
        let (Some(recovery), Ok(answer)) = (&mut connection.recovery, answer) else {
            return self.end(CloseReason::Damaged);
        };
        recovery.damaged += 1;
        if recovery.damaged > DAMAGED_MAX {
            return self.end(CloseReason::Damaged);
        }
        match answer {
            Answer::DataIn(header) if self.is_over(&header) => self.end_early(at, &header),
            Answer::DataIn(header) => self.data_missing(at, header, true),
            _ => self.send_snack(at, STATUS, TAG_NONE, answer.sequence().stat_sn.0, 1),
        }
    }

    /// Counts the StatSN of an answer; false if the answer came before.
    pub(super) fn take_stat_sn(&mut self, at: usize, stat_sn: Serial) -> Result<bool, PeerMisbehaved> {
        let Connection { recovery: Some(recovery), exp_stat_sn, .. } = &mut self.connections[at] else {
            return Ok(true);
        };
        if stat_sn.is_before(*exp_stat_sn) || recovery.beyond.contains(&stat_sn) {
            return Ok(false);
        }
        if exp_stat_sn.steps_to(stat_sn) > BEYOND_MAX {
            return Err(PeerMisbehaved::StatSn { found: stat_sn.0, expected: exp_stat_sn.0 });
        }
        recovery.beyond.push(stat_sn);
        while let Some(at) = recovery.beyond.iter().position(|seen| seen == exp_stat_sn) {
            recovery.beyond.swap_remove(at);
            *exp_stat_sn = exp_stat_sn.next();
        }
        Ok(true)
    }

    /// Whether the task of a Data-In has ended meanwhile, by a task management function.
    pub(super) fn is_over(&self, header: &DataIn) -> bool {
        self.tasks.get(key_of(TaskId(header.initiator_task_tag))).is_none()
    }

    /// The data is not needed; its status counts all the same.
    pub(super) fn end_early(&mut self, at: usize, header: &DataIn) {
        if header.status.is_some()
            && let Err(misbehaved) = self.take_stat_sn(at, header.sequence.stat_sn)
        {
            self.end(CloseReason::Misbehaved(misbehaved));
        }
    }

    /// Whether a SCSI Response came before the data, which was damaged and comes again; then it is kept until that is there.
    pub(super) fn keep_early(&mut self, at: usize, header: &ScsiResponse, sense: Vec<u8>) -> bool {
        let id = self.connections[at].id;
        let task = TaskId(header.initiator_task_tag);
        let found = self.tasks.get_mut(key_of(task)).filter(|task| task.is_at(id));
        let Some(found) = found.filter(|found| found.command.direction == Direction::Read) else { return false };
        if header.exp_data_sn <= found.next_data_sn {
            return false;
        }
        let (status, response, residual) = (header.status, header.response, header.residual);
        // Only reads have data that may be missing, and their responses have no header segments.
        let completed = Completed { task, status, response, sense, residual, moved_bytes: 0, written: None };
        found.early = Some(Early { stat_sn: header.sequence.stat_sn, data_pdus: header.exp_data_sn, completed });
        true
    }

    /// Whether a Data-In is the one that is awaited. If not, it came before, or others before it are missing.
    pub(super) fn is_in_sequence(&mut self, at: usize, header: &DataIn) -> bool {
        let key = key_of(TaskId(header.initiator_task_tag));
        let Some(task) = self.tasks.get_mut(key) else { return false };
        if header.data_sn == task.next_data_sn {
            task.is_asked_again = false;
            return true;
        }
        if header.data_sn > task.next_data_sn {
            self.data_missing(at, *header, false);
        }
        false
    }

    /// Asks for everything of a read from the first Data-In on that is missing.
    fn data_missing(&mut self, at: usize, header: DataIn, is_damaged: bool) {
        let tag = header.initiator_task_tag;
        let Some(task) = self.tasks.get_mut(key_of(TaskId(tag))) else { return };
        if header.data_sn < task.next_data_sn {
            // It came before.
            return;
        }
        // What was sent before the question came to the target is still on its way.
        let is_new = is_damaged && header.data_sn == task.next_data_sn;
        if is_new || !task.is_asked_again {
            task.is_asked_again = true;
            let begin = task.next_data_sn;
            self.send_snack(at, DATA, tag, begin, 0);
        }
    }

    /// Tells the target that all of a read up to a Data-In has come, which it wants to know (RFC 7143 §11.7.2).
    pub(super) fn acknowledge_data(&mut self, at: usize, key: Key, lun: Lun, target_transfer_tag: u32) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let next_data_sn = task.next_data_sn;
        task.acknowledging = Some(target_transfer_tag);
        let connection = &mut self.connections[at];
        // One that finds many requests waiting is left out: a later one, or the status, says as much.
        if connection.recovery.is_none() || connection.requests.len() > REQUESTS_MAX / 2 {
            return;
        }
        let snack = Snack {
            kind: DATA_ACK,
            lun,
            initiator_task_tag: TAG_NONE,
            target_transfer_tag,
            begin_run: next_data_sn,
            run_length: 0,
        };
        connection.requests.push_back((snack.encode(), strongroom_block::Buffer::empty()));
    }

    fn send_snack(&mut self, at: usize, kind: u8, initiator_task_tag: u32, begin_run: u32, run_length: u32) {
        if let Err(flood) = self.check_flood(at) {
            return self.end(CloseReason::Misbehaved(flood));
        }
        let (lun, target_transfer_tag) = (Lun(0), TAG_NONE);
        let snack = Snack { kind, lun, initiator_task_tag, target_transfer_tag, begin_run, run_length };
        self.connections[at].requests.push_back((snack.encode(), strongroom_block::Buffer::empty()));
    }

    /// The target has found a PDU of ours damaged. A command is sent again; write data it asks for by itself.
    pub(super) fn send_again(&mut self, at: usize, key: Key, cmd_sn: Serial) -> Result<(), PeerMisbehaved> {
        if self.tasks.get(key).is_none() {
            self.check_flood(at)?;
            self.fill(at, cmd_sn);
            return Ok(());
        }
        let connection = &mut self.connections[at];
        let is_ours = self.tasks.get(key).is_some_and(|task| task.cmd_sn.is_some() && task.via == connection.id);
        if is_ours && !connection.retries.contains(&key) {
            connection.bursts.retain(|burst| burst.key != key);
            connection.retries.push_back(key);
        }
        Ok(())
    }
}

/// Whether a request is a Data ACK under this tag.
pub(super) fn is_acknowledgement(bhs: &Bhs, target_transfer_tag: u32) -> bool {
    let snack = (bhs.opcode() == Some(Opcode::Snack)).then(|| Snack::decode(bhs));
    snack.is_some_and(|snack| snack.kind == DATA_ACK && snack.target_transfer_tag == target_transfer_tag)
}

const DATA: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;

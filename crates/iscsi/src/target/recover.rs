//! Error recovery (RFC 7143 §7). Level 1: what was damaged on the way is sent again, or asked for again. Level 2: the tasks of a lost
//! connection go on with another one. What was sent and may be sent again is in `kept`.

use bytes::Bytes;

use super::connection::ConnectionId;
use super::reorder::HeldData;
use super::respond::{Again, Responding, sense};
use super::retransmit::Resumed;
use super::write::Receiving;
use super::{Direction, Session, TaskState};
use crate::pdu::fields::{self, Field};
use crate::pdu::{
    Answer, DataOut, Pdu, RejectReason, Request, Snack, TAG_NONE, TaskManagementRequest, TaskManagementResult,
};
use crate::slots::Key;
use crate::{PeerMisbehaved, Serial};

/// PDUs that may be damaged in one session before it is not worth it; an initiator of ours counts likewise.
const DAMAGED_MAX: u32 = 4096;

impl Session {
    /// What the session has to do about a PDU whose data was damaged, once it has been rejected. False: nothing can be done.
    pub(super) fn recover_from(&mut self, id: ConnectionId, pdu: &Pdu) -> bool {
        if self.agreed.error_recovery_level == 0 {
            return false;
        }
        self.damaged += 1;
        if self.damaged > DAMAGED_MAX {
            return false;
        }
        if let Ok(Request::DataOut(header)) = Request::decode(&pdu.bhs) {
            match self.held.write_of(id, &header) {
                Some(at) => {
                    let data = HeldData { header, pdu: pdu.clone(), is_damaged: true };
                    return self.hold_data(id, at, data).is_ok();
                }
                None => self.data_lost(id, header, pdu.data.len()),
            }
        }
        // A command was not received: its CmdSN stays open until the initiator sends it again.
        true
    }

    pub(super) fn handle_snack(&mut self, id: ConnectionId, snack: Snack, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        const DATA_OR_R2T: u8 = 0;
        const STATUS: u8 = 1;
        const DATA_ACK: u8 = 2;
        const R_DATA: u8 = 3;
        if snack.kind == R_DATA {
            let is_granted = self.cut_anew(id, &snack);
            return if is_granted { Ok(()) } else { self.reject(id, pdu, RejectReason::SnackReject) };
        }
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        let next = connection.outbox.stat_sn();
        let is_granted = match (&mut connection.kept, snack.kind) {
            (Some(kept), DATA_OR_R2T) => {
                kept.send_sequence(snack.initiator_task_tag, snack.begin_run, snack.run_length)
            }
            (Some(kept), DATA_ACK) => kept.acknowledge_data(snack.target_transfer_tag, snack.begin_run),
            (Some(kept), STATUS) => kept.send_answers(Serial(snack.begin_run), snack.run_length, next),
            _ => false,
        };
        if is_granted { Ok(()) } else { self.reject(id, pdu, RejectReason::SnackReject) }
    }

    /// R-Data SNACK (RFC 7143 §11.16.3): the initiator takes other lengths than before, and has thrown away what of a read it did not
    /// acknowledge. It is segmented again, and the status comes in a SCSI Response that has the SNACK's tag. False if that cannot be.
    fn cut_anew(&mut self, id: ConnectionId, snack: &Snack) -> bool {
        let (tag, snack_tag) = (snack.initiator_task_tag, snack.target_transfer_tag);
        if [0, TAG_NONE].contains(&snack_tag) || self.is_answered_again(tag) {
            return false;
        }
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else { return false };
        let Some(kept) = &mut connection.kept else { return false };
        if let Some(&key) = self.by_tag.get(&tag) {
            let Some(task) = self.tasks.get(key).filter(|task| task.connection == id) else { return false };
            let TaskState::Responding(responding) = &task.state else { return false };
            if task.direction != Direction::Read {
                return false;
            }
            let position = responding.position();
            let resumed = if kept.has_sent(tag) { kept.take_unacknowledged(tag) } else { Some(position) };
            let is_there = resumed.is_some();
            if is_there {
                self.start_anew(key, id, resumed, snack_tag);
            }
            return is_there;
        }
        let Some(answer) = kept.answer_to(tag).cloned() else { return false };
        let Some(resumed) = kept.take_unacknowledged(tag) else { return false };
        let Some(mut again) = Again::of(tag, &answer, Some(resumed)) else { return false };
        // §11.16.3: under the number that the status had.
        again.stat_sn = Some(fields::STAT_SN.get(&answer.bhs));
        again.responding.snack_tag = snack_tag;
        self.answer_again(id, again);
        true
    }

    /// Data of a write was damaged: what follows of the open sequences is of no use, and all of it is asked for again when they
    /// are over. Data must come in order here.
    pub(super) fn data_lost(&mut self, id: ConnectionId, header: DataOut, len: usize) {
        let Some(&key) = self.by_tag.get(&header.initiator_task_tag) else { return };
        if self.tasks.get(key).is_none_or(|task| task.connection != id) {
            return;
        }
        let Some(receiving) = self.receiving(key) else { return };
        if receiving.has_sequence(header.target_transfer_tag) {
            receiving.is_broken = true;
            self.skip_data(key, header, len);
        }
    }

    /// Takes note of a Data-Out whose data cannot be used.
    pub(super) fn skip_data(&mut self, key: Key, header: DataOut, len: usize) {
        let Some(receiving) = self.receiving(key) else { return };
        let end = u64::from(header.buffer_offset) + len as u64;
        if receiving.end_sequence(header.target_transfer_tag, header.is_final, end) {
            receiving.is_broken = false;
            self.go_on(key);
        }
    }

    pub(super) fn receiving(&mut self, key: Key) -> Option<&mut Receiving> {
        match self.tasks.get_mut(key).map(|task| &mut task.state) {
            Some(TaskState::Receiving(receiving)) => Some(receiving),
            _ => None,
        }
    }

    /// TASK REASSIGN (RFC 7143 §7.2.2): a task of a lost connection goes on with the one that asks. Its answer is sent first; then
    /// what is still missing of a write, the task that is returned, may be asked for.
    pub(super) fn reassign(
        &mut self,
        id: ConnectionId,
        request: &TaskManagementRequest,
    ) -> (TaskManagementResult, Option<Key>) {
        if self.agreed.error_recovery_level < 2 {
            return (TaskManagementResult::ReassignNotSupported, None);
        }
        let tag = request.referenced_task_tag;
        let is_taken = match self.by_tag.get(&tag).copied() {
            Some(key) => {
                let from = self.tasks.get(key).map(|task| task.connection);
                if from.is_none_or(|from| self.lost.iter().all(|lost| lost.id != from)) {
                    return (TaskManagementResult::TaskStillAllegiant, None);
                }
                self.take_over(key, id, request.exp_data_sn);
                return (TaskManagementResult::Complete, Some(key));
            }
            None => self.answer_anew(id, tag, request.exp_data_sn),
        };
        match is_taken {
            true => (TaskManagementResult::Complete, None),
            false => (TaskManagementResult::TaskDoesNotExist, None),
        }
    }

    fn take_over(&mut self, key: Key, to: ConnectionId, first: u32) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (tag, from) = (task.initiator_task_tag, std::mem::replace(&mut task.connection, to));
        match &mut task.state {
            TaskState::Receiving(receiving) => receiving.start_over(),
            TaskState::Executing => {}
            TaskState::Responding(responding) => {
                let kept = self.lost.iter_mut().find(|lost| lost.id == from).and_then(|lost| lost.kept.as_mut());
                let resumed = match kept {
                    // Nothing went by that connection: it goes on where it stands.
                    Some(kept) if !kept.has_sent(tag) => Some(responding.position()),
                    Some(kept) => {
                        let resumed = kept.resume(tag, first);
                        kept.forget(tag);
                        resumed
                    }
                    None => None,
                };
                self.resume_response(key, to, resumed);
            }
        }
    }

    /// The task was answered, and the answer may not have arrived: it goes out once more, under a new number. False if nothing is known
    /// of it.
    fn answer_anew(&mut self, id: ConnectionId, tag: u32, first: u32) -> bool {
        let unfinished = self.lost.iter_mut().find_map(|lost| {
            let at = lost.again.iter().position(|again| again.initiator_task_tag == tag)?;
            let mut again = lost.again.swap_remove(at);
            (again.stat_sn, again.responding.snack_tag) = (None, 0);
            if let Some(kept) = lost.kept.as_mut().filter(|kept| kept.has_sent(tag)) {
                again.responding.resume(kept.resume(tag, first));
                kept.forget(tag);
            }
            Some(again)
        });
        if let Some(again) = unfinished {
            self.answer_again(id, again);
            return true;
        }
        let answered = self.lost.iter_mut().find_map(|lost| {
            let kept = lost.kept.as_mut()?;
            let answer = kept.answer_to(tag)?.clone();
            let resumed = kept.resume(tag, first);
            kept.forget_answer(tag);
            Some((answer, resumed))
        });
        let Some((pdu, resumed)) = answered else { return false };
        match Again::of(tag, &pdu, resumed) {
            Some(again) => {
                self.answer_again(id, again);
                true
            }
            None => false,
        }
    }
}

impl Again {
    /// An answer once more, of which `resumed` has to be sent again; `None`: that is not there any more.
    fn of(tag: u32, answer: &Pdu, resumed: Option<Resumed>) -> Option<Again> {
        let (status, residual, sense, ahs) = match Answer::decode(&answer.bhs) {
            // Sense data has its length in front (RFC 7143 §11.4.7).
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
        let (r2t_count, responding) = match resumed {
            Some(resumed) => (resumed.r2t_count, Responding::resumed(resumed, status, sense, ahs, residual)),
            None => (0, Responding::failed(sense::RETRANSMISSION_FAILED)),
        };
        Some(Again { initiator_task_tag: tag, r2t_count, stat_sn: None, responding })
    }
}

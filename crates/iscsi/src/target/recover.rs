//! Error recovery level 1 (RFC 7143 §7): what was sent is kept until it is acknowledged, and sent again when a SNACK asks for it;
//! write data that was damaged on the way is asked for anew. Absent: moving tasks between connections (level 2).

use std::collections::{HashMap, VecDeque};

use super::write::Receiving;
use super::{Session, State};
use crate::pdu::{DataOut, Opcode, Pdu, RejectReason, Request, Snack, TAG_NONE};
use crate::slots::Key;
use crate::{PeerMisbehaved, Serial};

/// Bytes of data and headers that are kept for an initiator that does not acknowledge; what was sent beyond cannot be sent again.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Numbered answers that are kept.
const KEPT_MAX: usize = 1024;
/// PDUs that wait to be sent again.
const AGAIN_MAX: usize = 65_536;
/// PDUs that may be damaged in one session before the connection is not worth it; an initiator of ours counts likewise.
const DAMAGED_MAX: u32 = 4096;

/// What may have to be sent again.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Answers that used up a StatSN, in order.
    answers: VecDeque<(Serial, Pdu)>,
    /// Data-In or R2T PDUs of each task, by task tag, with their numbers.
    sequences: HashMap<u32, Vec<(u32, Pdu)>>,
    kept_bytes: usize,
    again: VecDeque<Pdu>,
    damaged: u32,
}

impl Recovery {
    pub(super) fn next_again(&mut self) -> Option<Pdu> {
        self.again.pop_front()
    }

    /// Remembers what has just been sent.
    pub(super) fn keep(&mut self, pdu: &Pdu) {
        let tag = pdu.bhs.initiator_task_tag();
        let is_numbered = match pdu.bhs.opcode() {
            Some(Opcode::DataIn) => pdu.bhs.0[1] & 1 != 0,
            Some(Opcode::R2t) => false,
            Some(Opcode::NopIn) => tag != TAG_NONE,
            _ => true,
        };
        if matches!(pdu.bhs.opcode(), Some(Opcode::DataIn | Opcode::R2t)) {
            let number = pdu.bhs.u32_at(36);
            if number == 0 {
                // The tag is used again: what it stood for is over.
                self.forget(tag);
            }
            if self.kept_bytes + cost_bytes(pdu) <= KEPT_BYTES_MAX {
                self.kept_bytes += cost_bytes(pdu);
                self.sequences.entry(tag).or_default().push((number, pdu.clone()));
            }
        }
        if is_numbered {
            if self.answers.len() == KEPT_MAX {
                self.drop_oldest();
            }
            self.answers.push_back((Serial(pdu.bhs.u32_at(24)), pdu.clone()));
        }
    }

    /// The initiator has every answer before `exp_stat_sn`.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: Serial) {
        while self.answers.front().is_some_and(|(stat_sn, _)| stat_sn.is_before(exp_stat_sn)) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, pdu)) = self.answers.pop_front() else { return };
        if matches!(pdu.bhs.opcode(), Some(Opcode::DataIn | Opcode::ScsiResponse)) {
            self.forget(pdu.bhs.initiator_task_tag());
        }
    }

    /// A task is over, or was aborted: nobody will ask for its data any more.
    pub(super) fn forget(&mut self, tag: u32) {
        let sequence = self.sequences.remove(&tag).unwrap_or_default();
        self.kept_bytes -= sequence.iter().map(|(_, pdu)| cost_bytes(pdu)).sum::<usize>();
    }

    /// Has a run of Data-In or R2T PDUs sent again; all from `begin` on if `count` is 0. False if they are not all there.
    fn send_sequence(&mut self, tag: u32, begin: u32, count: u32) -> bool {
        let Some(sequence) = self.sequences.get(&tag) else { return false };
        let is_wanted = |number: u32| number >= begin && (count == 0 || number - begin < count);
        let wanted: Vec<Pdu> =
            sequence.iter().filter(|(number, _)| is_wanted(*number)).map(|(_, pdu)| pdu.clone()).collect();
        self.send(wanted, count)
    }

    /// The same for answers, by StatSN.
    fn send_answers(&mut self, begin: Serial, count: u32) -> bool {
        let is_wanted = |stat_sn: Serial| !stat_sn.is_before(begin) && (count == 0 || begin.steps_to(stat_sn) < count);
        let wanted: Vec<Pdu> =
            self.answers.iter().filter(|(stat_sn, _)| is_wanted(*stat_sn)).map(|(_, pdu)| pdu.clone()).collect();
        self.send(wanted, count)
    }

    fn send(&mut self, wanted: Vec<Pdu>, count: u32) -> bool {
        let is_whole = count == 0 || wanted.len() == count as usize;
        if !is_whole || self.again.len() + wanted.len() > AGAIN_MAX {
            return false;
        }
        self.again.extend(wanted);
        true
    }
}

/// What it costs to keep a PDU. An R2T has no data, and costs nevertheless.
fn cost_bytes(pdu: &Pdu) -> usize {
    size_of::<Pdu>() + pdu.ahs.len() + pdu.data.len()
}

impl Session {
    /// What the session has to do about a PDU whose data was damaged, once it has been rejected. False: nothing can be done.
    pub(super) fn recover_from(&mut self, pdu: &Pdu) -> bool {
        let Some(recovery) = &mut self.recovery else { return false };
        recovery.damaged += 1;
        if recovery.damaged > DAMAGED_MAX {
            return false;
        }
        if let Ok(Request::DataOut(header)) = Request::decode(&pdu.bhs) {
            self.data_lost(header, pdu.data.len());
        }
        // A command was not received: its CmdSN stays open until the initiator sends it again.
        true
    }

    pub(super) fn handle_snack(&mut self, snack: Snack, pdu: &Pdu) -> Result<(), PeerMisbehaved> {
        const DATA_OR_R2T: u8 = 0;
        const STATUS: u8 = 1;
        let is_granted = match (&mut self.recovery, snack.kind) {
            (Some(recovery), DATA_OR_R2T) => {
                recovery.send_sequence(snack.initiator_task_tag, snack.begin_run, snack.run_length)
            }
            (Some(recovery), STATUS) => recovery.send_answers(Serial(snack.begin_run), snack.run_length),
            _ => false,
        };
        if is_granted { Ok(()) } else { self.reject(pdu, RejectReason::SnackReject) }
    }

    /// Data of a write was damaged: what follows of the open sequences is of no use, and all of it is asked for again when they
    /// are over. Data must come in order here.
    fn data_lost(&mut self, header: DataOut, len: usize) {
        let Some(&key) = self.by_tag.get(&header.initiator_task_tag) else { return };
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

    fn receiving(&mut self, key: Key) -> Option<&mut Receiving> {
        match self.tasks.get_mut(key).map(|task| &mut task.state) {
            Some(State::Receiving(receiving)) => Some(receiving),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lun;
    use crate::pdu::{R2t, Sequence};

    #[test]
    fn r2ts_count_although_they_have_no_data() {
        let mut recovery = Recovery::default();
        let kept_max = KEPT_BYTES_MAX / size_of::<Pdu>();
        for r2t_sn in 0..kept_max as u32 + 10 {
            let r2t = R2t {
                lun: Lun(0),
                initiator_task_tag: 5,
                target_transfer_tag: r2t_sn,
                sequence: Sequence::default(),
                r2t_sn,
                buffer_offset: 0,
                desired_data_transfer_bytes: 4,
            };
            recovery.keep(&Pdu::header_only(r2t.encode()));
        }
        assert_eq!(recovery.sequences[&5].len(), kept_max);
        recovery.forget(5);
        assert_eq!((recovery.kept_bytes, recovery.sequences.len()), (0, 0));
    }
}

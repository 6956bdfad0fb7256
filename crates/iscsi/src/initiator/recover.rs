//! Error recovery level 1 (RFC 7143 §7) as an initiator does it: what a digest shows to be damaged is asked for again by SNACK, and
//! what the target found damaged is sent again. Answers may then come twice or beyond a gap. Absent: level 2.

use super::{Session, TAG_NONE, TaskId};
use crate::pdu::{Answer, DataIn, Pdu, Snack};
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

impl Session {
    /// Takes a PDU whose data was damaged on the way, as its digest shows. At error recovery level 1 it is asked for again; at
    /// level 0 the session ends, and the commands in flight are to be sent again in a new one.
    pub fn handle_corrupt_pdu(&mut self, now: std::time::Instant, pdu: &Pdu) {
        self.liveness.moved(now);
        let answer = Answer::decode(&pdu.bhs);
        let (Some(recovery), Ok(answer)) = (&mut self.recovery, answer) else { return self.end(CloseReason::Damaged) };
        recovery.damaged += 1;
        if recovery.damaged > DAMAGED_MAX {
            return self.end(CloseReason::Damaged);
        }
        match answer {
            Answer::DataIn(header) => self.data_missing(header, true),
            _ => self.send_snack(STATUS, TAG_NONE, answer.sequence().stat_sn.0, 1),
        }
    }

    /// Counts the StatSN of an answer; false if the answer came before.
    pub(super) fn take_stat_sn(&mut self, stat_sn: Serial) -> Result<bool, PeerMisbehaved> {
        let Some(recovery) = &mut self.recovery else { return Ok(true) };
        if stat_sn.is_before(self.exp_stat_sn) || recovery.beyond.contains(&stat_sn) {
            return Ok(false);
        }
        if self.exp_stat_sn.steps_to(stat_sn) > BEYOND_MAX {
            return Err(PeerMisbehaved::StatSn { found: stat_sn.0, expected: self.exp_stat_sn.0 });
        }
        recovery.beyond.push(stat_sn);
        while let Some(at) = recovery.beyond.iter().position(|seen| *seen == self.exp_stat_sn) {
            recovery.beyond.swap_remove(at);
            self.exp_stat_sn = self.exp_stat_sn.next();
        }
        Ok(true)
    }

    /// Whether a Data-In is the one that is awaited. If not, it came before, or others before it are missing.
    pub(super) fn is_in_sequence(&mut self, header: &DataIn) -> bool {
        if self.recovery.is_none() {
            return true;
        }
        let key = TaskId(header.initiator_task_tag).key();
        let Some(task) = self.tasks.get_mut(key) else { return false };
        if header.data_sn == task.next_data_sn {
            task.is_asked_again = false;
            return true;
        }
        if header.data_sn > task.next_data_sn {
            self.data_missing(*header, false);
        }
        false
    }

    /// Asks for everything of a read from the first Data-In on that is missing.
    fn data_missing(&mut self, header: DataIn, is_damaged: bool) {
        let tag = header.initiator_task_tag;
        let Some(task) = self.tasks.get_mut(TaskId(tag).key()) else { return };
        // What was sent before the question came to the target is still on its way.
        let is_new = is_damaged && header.data_sn == task.next_data_sn;
        if is_new || !task.is_asked_again {
            task.is_asked_again = true;
            let begin = task.next_data_sn;
            self.send_snack(DATA, tag, begin, 0);
        }
    }

    fn send_snack(&mut self, kind: u8, initiator_task_tag: u32, begin_run: u32, run_length: u32) {
        if let Err(flood) = self.check_flood() {
            return self.end(CloseReason::Misbehaved(flood));
        }
        let snack = Snack { kind, initiator_task_tag, begin_run, run_length };
        self.requests.push_back((snack.encode(), strongroom_block::Buffer::empty()));
    }

    /// The target has found a PDU of ours damaged. A command is sent again; write data it asks for by itself.
    pub(super) fn send_again(&mut self, key: Key) -> Result<(), PeerMisbehaved> {
        if self.tasks.get(key).is_some_and(|task| task.cmd_sn.is_some()) && !self.retries.contains(&key) {
            self.bursts.retain(|burst| burst.key != key);
            self.retries.push_back(key);
        }
        Ok(())
    }
}

const DATA: u8 = 0;
const STATUS: u8 = 1;

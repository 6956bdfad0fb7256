//! What one connection has sent and its initiator has not acknowledged: kept from error recovery level 1 on, to be sent again on this
//! connection (SNACK) or on another one (TASK REASSIGN). Bounded in bytes and in number; what is beyond cannot be sent again.

use std::collections::{HashMap, VecDeque};

use super::segment::DataSegment;
use crate::Serial;
use crate::pdu::fields::{self, Field};
use crate::pdu::{Opcode, Pdu, TAG_NONE};

/// Bytes of data and headers that are kept for an initiator that does not acknowledge.
pub(super) const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Numbered answers that are kept.
const ANSWERS_MAX: usize = 1024;
/// Tasks of which PDUs were sent. Those under way are fewer by far, and of the others each has an answer that is kept.
const TASKS_MAX: usize = 4 * ANSWERS_MAX;
/// Bytes that wait to be sent again: they may be all that is left of what was kept.
const AGAIN_BYTES_MAX: usize = KEPT_BYTES_MAX;

#[derive(Debug, Default)]
pub(super) struct RetransmitBuffer {
    /// Answers that used up a StatSN, in order.
    answers: VecDeque<(Serial, Answer)>,
    /// Data-In or R2T PDUs, by task tag.
    tasks: HashMap<u32, Sent>,
    /// There were more tasks than are remembered: of one that is not, it cannot be said that nothing was sent.
    is_beyond: bool,
    bytes: usize,
    again: VecDeque<Pdu>,
    again_bytes: usize,
}

#[derive(Debug)]
enum Answer {
    Pdu(Box<Pdu>),
    /// Likewise, of a task whose tag names another one by now: it may be sent again here, but nowhere else.
    Retired(Box<Pdu>),
    /// A status that rode in the last Data-In of the task with this tag.
    InData(u32),
}

/// The Data-In or R2T PDUs of one task.
#[derive(Debug, Default)]
struct Sent {
    /// Those that are kept, by number (DataSN or R2TSN).
    pdus: Vec<SentPdu>,
    /// This many were sent.
    count: u32,
    /// How much of the transfer they cover, in bytes.
    end: u32,
    /// The initiator has said that it has all before this number.
    acknowledged: u32,
    are_r2ts: bool,
    /// The StatSN of the status that rode in the last of them: they are released when that is acknowledged.
    status: Option<Serial>,
}

#[derive(Debug)]
struct SentPdu {
    number: u32,
    covers_bytes: u32,
    pdu: Pdu,
}

/// What of a read has to go out again, and where it begins.
#[derive(Debug, Default)]
pub(super) struct Resumption {
    pub(super) segments: VecDeque<DataSegment>,
    pub(super) offset: u32,
    pub(super) data_sn: u32,
    /// R2Ts that were sent for it, if it is a write.
    pub(super) r2t_count: u32,
}

impl RetransmitBuffer {
    /// The next PDU that is sent again, as it was.
    pub(super) fn next_again(&mut self) -> Option<Pdu> {
        let pdu = self.again.pop_front()?;
        self.again_bytes -= cost_bytes(&pdu);
        Some(pdu)
    }

    /// Remembers what has just been sent. `covers_bytes`: how much of its transfer a Data-In stands for.
    pub(super) fn keep(&mut self, pdu: &Pdu, covers_bytes: u32) {
        let tag = pdu.bhs.initiator_task_tag();
        let is_numbered = match pdu.bhs.opcode() {
            Some(Opcode::DataIn) => fields::HAS_STATUS.get(&pdu.bhs),
            Some(Opcode::R2t) => false,
            Some(Opcode::NopIn) => tag != TAG_NONE,
            _ => true,
        };
        let is_data = matches!(pdu.bhs.opcode(), Some(Opcode::DataIn | Opcode::R2t));
        let stat_sn = fields::STAT_SN.get(&pdu.bhs);
        if is_data {
            self.keep_data(pdu, covers_bytes, is_numbered.then_some(stat_sn));
        }
        if is_numbered {
            let answer = if is_data { Answer::InData(tag) } else { Answer::Pdu(Box::new(pdu.clone())) };
            self.keep_answer(stat_sn, answer);
        }
    }

    fn keep_data(&mut self, pdu: &Pdu, covers_bytes: u32, status: Option<Serial>) {
        let (tag, number) = (pdu.bhs.initiator_task_tag(), fields::DATA_SN.get(&pdu.bhs));
        if number == 0 {
            // The tag is used again: what it stood for is over.
            self.forget(tag);
        }
        if self.tasks.len() >= TASKS_MAX && !self.tasks.contains_key(&tag) {
            self.is_beyond = true;
            return;
        }
        let sent = self.tasks.entry(tag).or_default();
        (sent.count, sent.end) = (number + 1, fields::BUFFER_OFFSET.get(&pdu.bhs) + covers_bytes);
        sent.are_r2ts = pdu.bhs.opcode() == Some(Opcode::R2t);
        sent.status = status;
        if self.bytes + cost_bytes(pdu) <= KEPT_BYTES_MAX {
            self.bytes += cost_bytes(pdu);
            sent.pdus.push(SentPdu { number, covers_bytes, pdu: pdu.clone() });
        }
    }

    fn keep_answer(&mut self, stat_sn: Serial, answer: Answer) {
        let cost = answer.cost_bytes();
        if self.answers.back().is_some_and(|(last, _)| !last.is_before(stat_sn)) {
            // A second answer under a number that one had before (RFC 7143 §11.16.3).
            match self.answers.iter_mut().find(|(of, _)| *of == stat_sn) {
                Some((_, held)) => {
                    self.bytes = self.bytes + cost - held.cost_bytes();
                    *held = answer;
                }
                // It was acknowledged before it came.
                None => self.let_go(stat_sn, &answer),
            }
            return;
        }
        while self.answers.len() >= ANSWERS_MAX || (self.bytes + cost > KEPT_BYTES_MAX && !self.answers.is_empty()) {
            self.drop_oldest();
        }
        if self.bytes + cost <= KEPT_BYTES_MAX {
            self.bytes += cost;
            self.answers.push_back((stat_sn, answer));
        } else {
            self.let_go(stat_sn, &answer);
        }
    }

    /// The initiator has every answer before `exp_stat_sn`.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: Serial) {
        while self.answers.front().is_some_and(|(stat_sn, _)| stat_sn.is_before(exp_stat_sn)) {
            self.drop_oldest();
        }
    }

    /// The initiator has every Data-In of a task before this number. False if this many were not sent, or if the last one of them has
    /// the status: that is acknowledged by its StatSN, and no more was requested.
    pub(super) fn acknowledge_data(&mut self, tag: u32, before: u32) -> bool {
        // A task that is over needs no acknowledgement any more.
        let Some(sent) = self.tasks.get_mut(&tag) else { return true };
        if sent.are_r2ts || before > sent.count || (before == sent.count && sent.status.is_some()) {
            return false;
        }
        sent.acknowledged = sent.acknowledged.max(before);
        let (gone, left) = std::mem::take(&mut sent.pdus).into_iter().partition(|sent| sent.number < before);
        sent.pdus = left;
        let gone: Vec<SentPdu> = gone;
        self.bytes -= gone.iter().map(|sent| cost_bytes(&sent.pdu)).sum::<usize>();
        true
    }

    /// Takes back every Data-In of a task that was not acknowledged, to be segmented again. `None` if it is not all there.
    pub(super) fn take_unacknowledged(&mut self, tag: u32) -> Option<Resumption> {
        let resumption = self.resume(tag, 0)?;
        let sent = self.tasks.get_mut(&tag).filter(|sent| !sent.are_r2ts)?;
        self.bytes -= sent.pdus.iter().map(|sent| cost_bytes(&sent.pdu)).sum::<usize>();
        sent.pdus.clear();
        // It comes once more, in a SCSI Response.
        sent.status = None;
        (sent.count, sent.end) = (resumption.data_sn, resumption.offset);
        self.again.retain(|pdu| pdu.bhs.initiator_task_tag() != tag || pdu.bhs.opcode() != Some(Opcode::DataIn));
        self.again_bytes = self.again.iter().map(cost_bytes).sum();
        Some(resumption)
    }

    fn drop_oldest(&mut self) {
        let Some((stat_sn, answer)) = self.answers.pop_front() else { return };
        self.bytes -= answer.cost_bytes();
        self.let_go(stat_sn, &answer);
    }

    /// An answer is not kept, or not any more: the data before it goes with it.
    fn let_go(&mut self, stat_sn: Serial, answer: &Answer) {
        match answer {
            Answer::InData(tag) if self.tasks.get(tag).is_some_and(|sent| sent.status == Some(stat_sn)) => {
                self.forget(*tag);
            }
            Answer::Pdu(pdu) if pdu.bhs.opcode() == Some(Opcode::ScsiResponse) => {
                self.forget(pdu.bhs.initiator_task_tag());
            }
            Answer::InData(_) | Answer::Pdu(_) | Answer::Retired(_) => {}
        }
    }

    /// A task is over, or was aborted: its data is not requested any more.
    pub(super) fn forget(&mut self, tag: u32) {
        let sent = self.tasks.remove(&tag).unwrap_or_default();
        self.bytes -= sent.pdus.iter().map(|sent| cost_bytes(&sent.pdu)).sum::<usize>();
    }

    /// Has a run of Data-In or R2T PDUs sent again; all from `begin` on if `count` is 0. False if they are not all there.
    pub(super) fn send_sequence(&mut self, tag: u32, begin: u32, count: u32) -> bool {
        let Some(sent) = self.tasks.get(&tag) else { return false };
        let count = if count == 0 { sent.count.saturating_sub(begin) } else { count };
        let is_wanted = |number: u32| number >= begin && number - begin < count;
        let wanted = sent.pdus.iter().filter(|sent| is_wanted(sent.number)).map(|sent| sent.pdu.clone()).collect();
        self.send(wanted, count)
    }

    /// The same for answers, by StatSN; `next` is the number that the next answer will have.
    pub(super) fn send_answers(&mut self, begin: Serial, count: u32, next: Serial) -> bool {
        let count = if count == 0 { begin.steps_to(next) } else { count };
        let is_wanted = |stat_sn: Serial| !stat_sn.is_before(begin) && begin.steps_to(stat_sn) < count;
        let wanted = self.answers.iter().filter(|(stat_sn, _)| is_wanted(*stat_sn));
        let wanted = wanted.filter_map(|(stat_sn, answer)| self.pdu_of(*stat_sn, answer).cloned()).collect();
        self.send(wanted, count)
    }

    fn send(&mut self, wanted: Vec<Pdu>, count: u32) -> bool {
        let bytes: usize = wanted.iter().map(cost_bytes).sum();
        if wanted.is_empty() || wanted.len() != count as usize || self.again_bytes + bytes > AGAIN_BYTES_MAX {
            return false;
        }
        self.again_bytes += bytes;
        self.again.extend(wanted);
        true
    }

    /// The answer to a task, if it was sent and is kept: a SCSI Response, or a Data-In with a status.
    pub(super) fn answer_to(&self, tag: u32) -> Option<&Pdu> {
        let mut newest_first = self.answers.iter().rev();
        newest_first.find_map(|(stat_sn, answer)| {
            let pdu = match answer {
                Answer::Retired(_) => return None,
                answer => self.pdu_of(*stat_sn, answer)?,
            };
            let is_status = matches!(pdu.bhs.opcode(), Some(Opcode::ScsiResponse | Opcode::DataIn));
            (is_status && pdu.bhs.initiator_task_tag() == tag).then_some(pdu)
        })
    }

    /// What was sent of a read, from the Data-In `first` on, to be segmented again. `None` if that is not all there.
    pub(super) fn resume(&self, tag: u32, first: u32) -> Option<Resumption> {
        let Some(sent) = self.tasks.get(&tag) else { return (!self.is_beyond).then(Resumption::default) };
        if sent.are_r2ts {
            return Some(Resumption { r2t_count: sent.count, ..Resumption::default() });
        }
        // RFC 7143 §11.5.6: 0, or a number that cannot be, leaves it at what was acknowledged.
        let first = if first > sent.count { sent.acknowledged } else { first.max(sent.acknowledged) };
        let wanted: Vec<&SentPdu> = sent.pdus.iter().filter(|sent| sent.number >= first).collect();
        if wanted.len() != (sent.count - first) as usize {
            return None;
        }
        let segments = wanted.iter().map(|sent| DataSegment {
            data: sent.pdu.data.clone(),
            ahs: sent.pdu.ahs.clone(),
            sealed: sent.pdu.sealed,
            covers_bytes: sent.covers_bytes,
        });
        let offset = wanted.first().map_or(sent.end, |sent| fields::BUFFER_OFFSET.get(&sent.pdu.bhs));
        Some(Resumption { segments: segments.collect(), offset, data_sn: first, r2t_count: 0 })
    }

    /// What it holds, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether any Data-In or R2T of a task went by this connection, or may have.
    pub(super) fn has_sent(&self, tag: u32) -> bool {
        self.is_beyond || self.tasks.contains_key(&tag)
    }

    /// The task goes on elsewhere.
    pub(super) fn forget_answer(&mut self, tag: u32) {
        let is_other = |kept: &RetransmitBuffer, (stat_sn, answer): &(Serial, Answer)| {
            kept.pdu_of(*stat_sn, answer).is_none_or(|pdu| pdu.bhs.initiator_task_tag() != tag)
        };
        let (keep, drop): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.answers).into_iter().partition(|entry| is_other(self, entry));
        self.bytes -= drop.iter().map(|(_, answer)| answer.cost_bytes()).sum::<usize>();
        self.answers = keep;
        self.forget(tag);
    }

    /// The tag names another task from now on.
    pub(super) fn retire(&mut self, tag: u32) {
        self.forget(tag);
        for (_, answer) in &mut self.answers {
            if let Answer::Pdu(pdu) = answer
                && pdu.bhs.opcode() == Some(Opcode::ScsiResponse)
                && pdu.bhs.initiator_task_tag() == tag
            {
                let pdu = Pdu::clone(pdu);
                *answer = Answer::Retired(Box::new(pdu));
            }
        }
    }

    fn pdu_of<'a>(&'a self, stat_sn: Serial, answer: &'a Answer) -> Option<&'a Pdu> {
        match answer {
            Answer::Pdu(pdu) | Answer::Retired(pdu) => Some(pdu),
            Answer::InData(tag) => self.status_in_data(stat_sn, *tag),
        }
    }

    /// The Data-In that carried a status, unless its tag has been used again since.
    fn status_in_data(&self, stat_sn: Serial, tag: u32) -> Option<&Pdu> {
        let last = self.tasks.get(&tag)?.pdus.last()?;
        let has_status = last.pdu.bhs.opcode() == Some(Opcode::DataIn) && fields::HAS_STATUS.get(&last.pdu.bhs);
        (has_status && fields::STAT_SN.get(&last.pdu.bhs) == stat_sn).then_some(&last.pdu)
    }
}

impl Answer {
    fn cost_bytes(&self) -> usize {
        size_of::<(Serial, Answer)>()
            + match self {
                Answer::Pdu(pdu) | Answer::Retired(pdu) => cost_bytes(pdu),
                Answer::InData(_) => 0,
            }
    }
}

/// What it costs to keep a PDU. An R2T has no data, and costs nevertheless.
fn cost_bytes(pdu: &Pdu) -> usize {
    size_of::<SentPdu>() + pdu.ahs.len() + pdu.data.len()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use strongroom_block::Buffer;

    use super::*;
    use crate::pdu::{DataIn, NopIn, R2t, ScsiResponse, Sequence};
    use crate::{Lun, Residual};

    fn r2t(tag: u32, r2t_sn: u32) -> Pdu {
        let r2t = R2t {
            lun: Lun(0),
            initiator_task_tag: tag,
            target_transfer_tag: r2t_sn,
            sequence: Sequence::default(),
            r2t_sn,
            buffer_offset: 0,
            desired_data_transfer_bytes: 4,
        };
        Pdu::header_only(r2t.encode())
    }

    fn data_in(tag: u32, data_sn: u32, stat_sn: Option<u32>, len: usize) -> Pdu {
        let header = DataIn {
            is_final: stat_sn.is_some(),
            status: stat_sn.map(|_| (0, Residual::None)),
            lun: Lun(0),
            initiator_task_tag: tag,
            sequence: Sequence { stat_sn: Serial(stat_sn.unwrap_or(0)), ..Sequence::default() },
            data_sn,
            buffer_offset: data_sn * len as u32,
        };
        Pdu::new(header.encode(), Bytes::new(), Buffer::from(Bytes::from(vec![1; len])), false)
    }

    fn pong(stat_sn: u32, len: usize) -> Pdu {
        let header = NopIn {
            lun: Lun(0),
            initiator_task_tag: 1,
            target_transfer_tag: TAG_NONE,
            sequence: Sequence { stat_sn: Serial(stat_sn), ..Sequence::default() },
        };
        Pdu::new(header.encode(), Bytes::new(), Buffer::from(Bytes::from(vec![1; len])), false)
    }

    fn response(tag: u32, stat_sn: u32) -> Pdu {
        let header = ScsiResponse {
            response: 0,
            status: 0,
            initiator_task_tag: tag,
            sequence: Sequence { stat_sn: Serial(stat_sn), ..Sequence::default() },
            exp_data_sn: 0,
            residual: Residual::None,
        };
        Pdu::header_only(header.encode())
    }

    #[test]
    fn r2ts_count_although_they_have_no_data() {
        let mut kept = RetransmitBuffer::default();
        let kept_max = KEPT_BYTES_MAX / size_of::<SentPdu>();
        for r2t_sn in 0..kept_max as u32 + 10 {
            kept.keep(&r2t(5, r2t_sn), 0);
        }
        assert_eq!(kept.tasks[&5].pdus.len(), kept_max);
        kept.forget(5);
        assert_eq!((kept.bytes, kept.tasks.len()), (0, 0));
    }

    #[test]
    fn answers_are_bounded_in_bytes() {
        let mut kept = RetransmitBuffer::default();
        for stat_sn in 0..1000 {
            kept.keep(&pong(stat_sn, 256 * 1024), 0);
        }
        let held: usize = kept.answers.iter().map(|(_, answer)| answer.cost_bytes()).sum();
        assert_eq!(held, kept.bytes);
        assert!(kept.bytes <= KEPT_BYTES_MAX && kept.answers.len() > 60, "{}", kept.answers.len());
        assert_eq!(kept.answers.back().expect("the newest").0, Serial(999));
        kept.acknowledge(Serial(1000));
        assert_eq!(kept.bytes, 0);
    }

    #[test]
    fn what_waits_to_be_sent_again_is_bounded_in_bytes() {
        let mut kept = RetransmitBuffer::default();
        kept.keep(&data_in(7, 0, Some(1), 3_000_000), 3_000_000);
        let granted = (0..100).filter(|_| kept.send_sequence(7, 0, 1)).count();
        assert_eq!(granted, 5, "of 3 MB each");
        while kept.next_again().is_some() {}
        assert_eq!(kept.again_bytes, 0);
        assert!(kept.send_sequence(7, 0, 1));
    }

    #[test]
    fn everything_is_not_granted_when_a_part_is_gone() {
        let mut kept = RetransmitBuffer::default();
        for data_sn in 0..20 {
            kept.keep(&data_in(7, data_sn, (data_sn == 19).then_some(3), 1 << 20), 1 << 20);
        }
        assert!(kept.send_sequence(7, 3, 2), "these are there");
        assert!(!kept.send_sequence(7, 3, 0), "the last ones are not");
        assert!(!kept.send_answers(Serial(3), 0, Serial(4)) && kept.answer_to(7).is_none());
        assert!(kept.resume(7, 3).is_none());
    }

    #[test]
    fn a_tag_used_again_does_not_stand_for_the_old_answer() {
        let mut kept = RetransmitBuffer::default();
        kept.keep(&data_in(7, 0, Some(1), 4), 4);
        kept.keep(&data_in(7, 0, Some(2), 8), 8);
        assert!(!kept.send_answers(Serial(1), 1, Serial(3)));
        assert!(kept.send_answers(Serial(2), 0, Serial(3)));
        kept.acknowledge(Serial(2));
        assert_eq!(kept.answer_to(7).map(|pdu| pdu.data.len()), Some(8), "the newer one is kept");
        kept.acknowledge(Serial(3));
        assert_eq!((kept.bytes, kept.tasks.len()), (0, 0));
    }

    /// Else a hostile initiator fills our memory: with as many tags as there are, a few bytes each.
    #[test]
    fn a_task_leaves_nothing_behind() {
        let mut kept = RetransmitBuffer::default();
        for tag in 0..100 {
            kept.keep(&data_in(tag, 0, None, 4), 4);
            kept.keep(&data_in(tag, 1, Some(tag), 4), 4);
            assert!(
                kept.acknowledge_data(tag, 1) && !kept.acknowledge_data(tag, 2),
                "the status has a number of its own"
            );
            kept.acknowledge(Serial(tag + 1));
        }
        assert_eq!((kept.bytes, kept.tasks.len()), (0, 0), "its data was acknowledged first");
        for data_sn in 0..20 {
            kept.keep(&data_in(7, data_sn, (data_sn == 19).then_some(100), 1 << 20), 1 << 20);
        }
        kept.acknowledge(Serial(101));
        assert_eq!((kept.bytes, kept.tasks.len()), (0, 0), "the last of its data was not kept");
        kept.keep(&data_in(7, 0, Some(101), 4), 4);
        kept.take_unacknowledged(7).expect("it is there");
        kept.keep(&pong(102, 4), 0);
        kept.acknowledge(Serial(102));
        kept.keep(&data_in(7, 0, None, 4), 4);
        kept.keep(&response(7, 101), 0);
        kept.acknowledge(Serial(103));
        assert_eq!((kept.bytes, kept.tasks.len()), (0, 0), "it was acknowledged before it was segmented again");
    }

    #[test]
    fn tasks_are_bounded_in_number() {
        let mut kept = RetransmitBuffer::default();
        let beyond = TASKS_MAX as u32;
        (0..=beyond).for_each(|tag| kept.keep(&data_in(tag, 0, None, 4), 4));
        assert_eq!(kept.tasks.len(), TASKS_MAX);
        assert!(kept.resume(0, 0).is_some_and(|resumption| resumption.segments.len() == 1));
        assert!(
            kept.has_sent(beyond) && kept.resume(beyond, 0).is_none(),
            "not taken for one of which nothing was sent"
        );
    }

    #[test]
    fn a_read_goes_on_where_the_initiator_says() {
        let mut kept = RetransmitBuffer::default();
        kept.keep(&data_in(7, 0, None, 512), 512);
        kept.keep(&data_in(7, 1, None, 512), 512);
        for (first, count, offset) in [(0, 2, 0), (1, 1, 512), (2, 0, 1024)] {
            let resumption = kept.resume(7, first).expect("kept");
            assert_eq!((resumption.segments.len(), resumption.offset, resumption.data_sn), (count, offset, first));
        }
        assert_eq!(kept.resume(7, 9).expect("kept").data_sn, 0, "a number that cannot be is ignored");
    }
}

//! The answer to a command on its way out: read data, then the response. Each part is kept until it was acknowledged.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use strongroom_block::Buffer;
use strongroom_scsi::transport::Residual;
use strongroom_scsi::transport::target::{ReadPart, Response};

use crate::body::{self, ResponseBody};
use crate::connection::Outgoing;
use crate::header::{Flags, Header, Operation, PLAIN_BYTES_MAX, Segment};
use crate::parity::Parity;
use crate::parity::sender::{ParityContent, ParityPlan};
use crate::quantum;
use crate::tag::SinkTag;

/// What a packet of an answer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ResponseContent {
    /// A block of a part, or a segment of one: index and count. `ends`: it is the last of the answer, and says so.
    Block { part: u32, block: u32, segment: (u8, u8), ends: bool },
    /// Bytes of a part from this one on.
    Plain { part: u32, at: u32 },
    /// A part that is absent.
    Hole { part: u32 },
    /// Parity of blocks.
    Parity(ParityContent),
    /// The response itself.
    End,
}

/// What a command transferred, as the residual counts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transferred {
    pub(super) expected_bytes: u32,
    /// Of a write.
    pub(super) arrived_bytes: u32,
    pub(super) is_read: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct ResponseTransfer {
    /// Each with its offset in the transfer.
    parts: Vec<(u32, ReadPart)>,
    response: ResponseBody,
    /// The part, and the byte of it, that is next.
    next: (usize, u32),
    /// Segments of the block before it that were not sent.
    segments: VecDeque<Segment>,
    parity: ParityPlan,
    /// The response says no more than the last block can say.
    may_end_with_data: bool,
    is_end_sent: bool,
    unacknowledged: BTreeSet<ResponseContent>,
    unsent_bytes: u64,
}

impl ResponseTransfer {
    /// What exceeds the expected length is left out, at whole blocks.
    pub(super) fn new(
        response: Response,
        transferred: Transferred,
        quantum_bytes: u32,
        parity: Option<Parity>,
    ) -> ResponseTransfer {
        let Transferred { expected_bytes, arrived_bytes, is_read } = transferred;
        let offered: u64 = response.data.iter().map(|part| u64::from(part.covers_bytes())).sum();
        let wanted = response.wanted_bytes.unwrap_or(if is_read { offered } else { arrived_bytes.into() });
        let mut parts = Vec::with_capacity(response.data.len());
        let mut covered_bytes = 0;
        for part in response.data {
            let room = expected_bytes - covered_bytes;
            let Some(part) = clipped(part, if is_read { room } else { 0 }, quantum_bytes) else { break };
            let covers = part.covers_bytes();
            parts.push((covered_bytes, part));
            covered_bytes += covers;
        }
        let unsent_bytes = parts.iter().map(|(_, part)| part.data().len() as u64).sum();
        let response = ResponseBody {
            status: response.status,
            residual: Residual::of(expected_bytes, wanted),
            covered_bytes,
            written: response.written,
            sense: response.sense,
        };
        let may_end_with_data = parity.is_none() && response == ResponseBody::good(expected_bytes);
        ResponseTransfer {
            parts,
            response,
            next: (0, 0),
            segments: VecDeque::new(),
            parity: ParityPlan::new(parity),
            may_end_with_data,
            is_end_sent: false,
            unacknowledged: BTreeSet::new(),
            unsent_bytes,
        }
    }

    /// What is to be sent next for the first time.
    pub(super) fn next_content(&mut self, quantum_bytes: u32, segment_bytes: usize) -> Option<ResponseContent> {
        if let Some(parity) = self.parity.next() {
            return Some(ResponseContent::Parity(parity));
        }
        if self.next.0 == self.parts.len() && self.segments.is_empty() && !self.is_end_sent {
            self.parity.finish_group();
            if let Some(parity) = self.parity.next() {
                return Some(ResponseContent::Parity(parity));
            }
        }
        let content = self.next_unsent(quantum_bytes, segment_bytes)?;
        if let ResponseContent::Block { part, block, segment: (_, 1), .. } = content {
            let (offset, _) = &self.parts[part as usize];
            self.parity.sent(offset / quantum_bytes + block);
        }
        self.unacknowledged.insert(content);
        Some(content)
    }

    fn next_unsent(&mut self, quantum_bytes: u32, segment_bytes: usize) -> Option<ResponseContent> {
        let (at, offset) = self.next;
        if let Some(segment) = self.segments.pop_front() {
            let block = (offset / quantum_bytes).checked_sub(1);
            // The block before may be the last one of the part before.
            let (part, block) = match block {
                Some(block) => (at, block),
                None => (at - 1, self.parts[at - 1].1.covers_bytes() / quantum_bytes - 1),
            };
            return Some(block_content(part, block, segment));
        }
        let Some((_, part)) = self.parts.get(at) else {
            let is_first = !std::mem::replace(&mut self.is_end_sent, true);
            return is_first.then_some(ResponseContent::End);
        };
        let (content, len) = match part {
            ReadPart::Plain(data) => {
                let len = (PLAIN_BYTES_MAX as u32).min(data.len() as u32 - offset);
                (ResponseContent::Plain { part: at as u32, at: offset }, len)
            }
            ReadPart::Sealed { .. } => {
                self.segments.extend(quantum::cut(Segment::WHOLE, quantum_bytes, segment_bytes));
                let segment = self.segments.pop_front().expect("a block has a segment");
                (block_content(at, offset / quantum_bytes, segment), quantum_bytes)
            }
            ReadPart::Hole { covers_bytes, .. } => (ResponseContent::Hole { part: at as u32 }, *covers_bytes),
        };
        if !matches!(content, ResponseContent::Hole { .. }) {
            self.unsent_bytes -= u64::from(len);
        }
        let end = offset + len;
        self.next = if end == part.covers_bytes() { (at + 1, 0) } else { (at, end) };
        match content {
            ResponseContent::Block { part, block, segment: (0, 1), .. }
                if self.may_end_with_data && self.next.0 == self.parts.len() =>
            {
                self.is_end_sent = true;
                Some(ResponseContent::Block { part, block, segment: (0, 1), ends: true })
            }
            content => Some(content),
        }
    }

    /// Whether everything was sent once.
    pub(super) fn is_sent(&self) -> bool {
        self.is_end_sent
    }

    /// A content has arrived. True when nothing is left to do.
    pub(super) fn acknowledged(&mut self, content: ResponseContent) -> bool {
        self.unacknowledged.remove(&content);
        self.is_end_sent && self.unacknowledged.is_empty()
    }

    /// Whether a content was not acknowledged, so that its loss matters.
    pub(super) fn is_waiting_for(&self, content: ResponseContent) -> bool {
        match content {
            ResponseContent::Parity(parity) => self.parity.is_leaving(parity),
            _ => self.unacknowledged.contains(&content),
        }
    }

    /// Packets may have become smaller: the contents that take the place of this one, if it does not fit any more. Parity has none.
    pub(super) fn cut_further(
        &mut self,
        content: ResponseContent,
        quantum_bytes: u32,
        segment_bytes: usize,
    ) -> Option<Vec<ResponseContent>> {
        if matches!(content, ResponseContent::Parity(_)) && segment_bytes < quantum_bytes as usize {
            return Some(Vec::new());
        }
        let ResponseContent::Block { part, block, segment: (index, count), ends } = content else { return None };
        let whole = Segment { index, count };
        let segments: Vec<Segment> = quantum::cut(whole, quantum_bytes, segment_bytes).collect();
        if segments == [whole] {
            return None;
        }
        let segments = segments.into_iter().map(|segment| block_content(part as usize, block, segment));
        let contents: Vec<_> = segments.chain(ends.then_some(ResponseContent::End)).collect();
        self.unacknowledged.remove(&content);
        self.unacknowledged.extend(&contents);
        Some(contents)
    }

    /// Bytes that were not sent.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes
    }

    /// Memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.parts.iter().map(|(_, part)| part.data().len() as u64).sum()
    }

    /// A block of a sealed part: what stands in front of it, the part's data, and the byte of that at which the block begins.
    fn block(&self, part: usize, block: u32, quantum_bytes: u32) -> (&[u8], &Buffer, usize) {
        let (_, ReadPart::Sealed { data, records }) = &self.parts[part] else {
            unreachable!("blocks are of sealed parts")
        };
        let (block, entry_bytes) = (block as usize, records.entry_bytes());
        let entry = &records.as_bytes()[block * entry_bytes..][..entry_bytes];
        (entry, data, block * quantum_bytes as usize)
    }

    /// The packet of a content.
    pub(super) fn packet(&self, tag: SinkTag, number: u64, content: ResponseContent, quantum_bytes: u32) -> Outgoing {
        let header =
            |operation, quantum, length| Header { task: number as u32, quantum, length, ..Header::new(operation) };
        match content {
            ResponseContent::Block { part, block, segment: (index, count), ends } => {
                let (entry, data, start) = self.block(part as usize, block, quantum_bytes);
                let segment = Segment { index, count };
                let range = segment.range(quantum_bytes as usize);
                let payload = data.slice(start + range.start..start + range.end);
                let specific = quantum::specific_of(segment, &payload);
                let number = self.parts[part as usize].0 / quantum_bytes + block;
                let flags = Flags(if ends { Flags::STATUS } else { 0 });
                let header = Header { flags, segment, specific, ..header(Operation::DataIn, number, quantum_bytes) };
                Outgoing { header, sink: tag, body: entry.to_vec(), payload }
            }
            ResponseContent::Parity(parity) => {
                let member = |quantum| {
                    let at = self.parts.partition_point(|(offset, _)| offset / quantum_bytes <= quantum) - 1;
                    let block = quantum - self.parts[at].0 / quantum_bytes;
                    let (entry, data, start) = self.block(at, block, quantum_bytes);
                    (Bytes::copy_from_slice(entry), data.slice(start..start + quantum_bytes as usize))
                };
                parity.packet((tag, number as u32), quantum_bytes, member)
            }
            ResponseContent::Plain { part, at } => {
                let (offset, part) = &self.parts[part as usize];
                let data = &part.data()[at as usize..];
                let data = &data[..data.len().min(PLAIN_BYTES_MAX)];
                Outgoing::message(header(Operation::PlainIn, offset + at, data.len() as u32), tag, data.to_vec())
            }
            ResponseContent::Hole { part } => {
                let (offset, part) = &self.parts[part as usize];
                let ReadPart::Hole { covers_bytes, covered_blocks, sequence, record } = part else {
                    unreachable!("holes are of absent parts")
                };
                let body = body::hole_body(*covered_blocks, *sequence, record);
                Outgoing::message(header(Operation::HoleIn, offset / quantum_bytes, *covers_bytes), tag, body)
            }
            ResponseContent::End => {
                let (specific, body) = self.response.encode();
                let header = Header { specific, ..header(Operation::Response, 0, 0) };
                Outgoing::message(header, tag, body)
            }
        }
    }
}

fn block_content(part: usize, block: u32, segment: Segment) -> ResponseContent {
    ResponseContent::Block { part: part as u32, block, segment: (segment.index, segment.count), ends: false }
}

/// As much of a part as `room` bytes take; `None` for nothing.
fn clipped(part: ReadPart, room: u32, quantum_bytes: u32) -> Option<ReadPart> {
    let covers = part.covers_bytes();
    let whole = room - room % quantum_bytes;
    Some(match part {
        _ if covers == 0 => return None,
        part if covers <= room => part,
        ReadPart::Plain(data) if room > 0 => ReadPart::Plain(data.slice(..room as usize)),
        ReadPart::Sealed { data, records } if whole > 0 => {
            // The records of what is cut off stay behind, unsent.
            ReadPart::Sealed { data: data.slice(..whole as usize), records }
        }
        ReadPart::Hole { sequence, record, .. } if whole > 0 => {
            let covered_blocks = whole / quantum_bytes;
            ReadPart::Hole { covers_bytes: whole, covered_blocks, sequence, record }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    //! Proves which answers end with their last block, and that no response is lost when that block is cut.
    use strongroom_block::{AttachId, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite};
    use strongroom_scsi::transport::StoredRecords;

    use super::*;

    const BYTES: u32 = 1024;
    const LAST: ResponseContent = ResponseContent::Block { part: 0, block: 1, segment: (0, 1), ends: true };

    /// Two blocks.
    fn response() -> Response {
        let stamp = Stamp { attach_id: AttachId([7; 16]), counter: 1 };
        let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags::default(), 3, stamp, 0, [5; 16]);
        let entries = [(StoreSequence(1), &record), (StoreSequence(2), &record)];
        let records = StoredRecords::new(8 + SealRecord::BASE_BYTES, entries.into_iter(), false);
        let data = Buffer::copy_from(&[7; 2 * BYTES as usize]);
        Response { data: vec![ReadPart::Sealed { data, records }], ..Response::default() }
    }

    fn transfer(response: Response, expected_bytes: u32, parity: Option<Parity>) -> ResponseTransfer {
        let transferred = Transferred { expected_bytes, arrived_bytes: 0, is_read: true };
        ResponseTransfer::new(response, transferred, BYTES, parity)
    }

    fn contents(transfer: &mut ResponseTransfer, segment_bytes: u32) -> Vec<ResponseContent> {
        std::iter::from_fn(|| transfer.next_content(BYTES, segment_bytes as usize)).collect()
    }

    #[test]
    fn a_read_of_all_that_was_asked_for_ends_with_its_last_block() {
        let mut transfer = transfer(response(), 2 * BYTES, None);
        let sent = contents(&mut transfer, BYTES);
        assert_eq!(sent, [block_content(0, 0, Segment::WHOLE), LAST]);
        let flags = |content| transfer.packet(SinkTag::new(1, 1), 5, content, BYTES).header.flags;
        assert_eq!(sent.iter().map(|content| flags(*content).has(Flags::STATUS)).collect::<Vec<_>>(), [false, true]);
        assert!(transfer.is_sent() && !transfer.acknowledged(LAST) && transfer.acknowledged(sent[0]));
    }

    #[test]
    fn what_a_block_cannot_say_is_a_response_of_its_own() {
        let whole = 2 * BYTES;
        let missing = Response { wanted_bytes: Some(u64::from(whole) + 1), ..response() };
        let failed = Response { status: 2, sense: vec![0x70], ..response() };
        let parity = Parity::new(2, 1);
        for (name, mut transfer, segment_bytes) in [
            ("less than was asked for", transfer(response(), whole + BYTES, None), BYTES),
            ("more than was asked for", transfer(missing, whole, None), BYTES),
            ("a failure", transfer(failed, whole, None), BYTES),
            ("parity", transfer(response(), whole, parity), BYTES),
            ("segments", transfer(response(), whole, None), BYTES / 2),
        ] {
            let sent = contents(&mut transfer, segment_bytes);
            assert_eq!(sent.last(), Some(&ResponseContent::End), "{name}");
            assert!(!sent.contains(&LAST), "{name}");
        }
    }

    #[test]
    fn a_last_block_that_is_cut_leaves_its_status_to_a_response() {
        let mut transfer = transfer(response(), 2 * BYTES, None);
        let sent = contents(&mut transfer, BYTES);
        let instead = transfer.cut_further(LAST, BYTES, BYTES as usize / 2).expect("it does not fit");
        let half = |index| block_content(0, 1, Segment { index, count: 2 });
        assert_eq!(instead, [half(0), half(1), ResponseContent::End]);
        assert!(instead.iter().all(|content| transfer.is_waiting_for(*content)) && !transfer.is_waiting_for(LAST));
        let ends: Vec<bool> = sent[..1].iter().chain(&instead).map(|content| transfer.acknowledged(*content)).collect();
        assert_eq!(ends, [false, false, false, true]);
    }
}

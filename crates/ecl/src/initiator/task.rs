//! One command: what of it is still to be sent, and what has come back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use strongroom_scsi::transport::initiator::{
    Command, Completed, DataContent, DataIn, SubmitError, TaskId, WriteSource,
};
use strongroom_scsi::transport::{Direction, SealRecords, TaskAttribute};

use super::numbering::CommandNumber;
use crate::body::{self, ResponseBody};
use crate::connection::{Fault, Outgoing, Packet};
use crate::error::PeerMisbehaved;
use crate::header::{Flags, HEADER_BYTES, Header, Operation, PLAIN_BYTES_MAX, Segment, TAG_BYTES};
use crate::parity::Parity;
use crate::parity::receiver::{Groups, Member};
use crate::parity::sender::{ParityContent, ParityPlan};
use crate::quantum::{self, Joiner};
use crate::tag::SinkTag;

/// What a packet of a task carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TaskContent {
    /// The command, with the first quantum if that fits.
    Command,
    /// A quantum of a write, or a segment.
    Quantum(u32, Segment),
    /// Bytes of a write that is not sealed, from this one on.
    Plain(u32),
    /// Parity of quanta of a write.
    Parity(ParityContent),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) command: Command,
    /// Once its command was sent.
    pub(super) number: Option<CommandNumber>,
    /// The first byte of the write that was not sent.
    sent_bytes: u32,
    /// Segments of the quantum in front of it that were not sent.
    segments: VecDeque<Segment>,
    /// Of the write.
    parity: ParityPlan,
    /// The command carries the first quantum.
    has_first: bool,
    /// What was sent and has not arrived, as far as is known.
    unacknowledged: BTreeSet<TaskContent>,
    /// Read data that lies behind a gap, by its offset.
    early: BTreeMap<u32, (u32, DataContent)>,
    joiner: Joiner,
    /// Of the read.
    groups: Option<Groups>,
    moved_bytes: u32,
    response: Option<ResponseBody>,
}

impl Task {
    /// # Errors
    /// [`SubmitError::Malformed`] if the command contradicts itself or does not fit quanta of `quantum_bytes`.
    pub(super) fn new(command: Command, quantum_bytes: u32, parity: Option<Parity>) -> Result<Task, SubmitError> {
        check(&command, quantum_bytes).map_err(SubmitError::Malformed)?;
        Ok(Task {
            command,
            number: None,
            sent_bytes: 0,
            segments: VecDeque::new(),
            parity: ParityPlan::new(parity),
            has_first: false,
            unacknowledged: BTreeSet::new(),
            early: BTreeMap::new(),
            joiner: Joiner::default(),
            // A store sequence is in front of the record.
            groups: Groups::new(parity, 8),
            moved_bytes: 0,
            response: None,
        })
    }

    /// Bytes of write data, which need credits.
    pub(super) fn write_bytes(&self) -> u32 {
        if self.command.write.is_some() { self.command.expected_bytes } else { 0 }
    }

    /// The command is sent now.
    pub(super) fn start(&mut self, number: CommandNumber, quantum_bytes: u32, packet_bytes: usize) {
        self.number = Some(number);
        self.has_first = self.fits_first(quantum_bytes, packet_bytes);
        self.sent_bytes = if self.has_first { quantum_bytes } else { 0 };
        if self.has_first {
            self.parity.sent(0);
        }
        self.unacknowledged.insert(TaskContent::Command);
    }

    /// Whether a content was sent and has not arrived, so that its loss matters.
    pub(super) fn is_waiting_for(&self, content: TaskContent) -> bool {
        match content {
            TaskContent::Parity(parity) => self.parity.is_leaving(parity),
            _ => self.unacknowledged.contains(&content),
        }
    }

    pub(super) fn acknowledged(&mut self, content: TaskContent) {
        self.unacknowledged.remove(&content);
    }

    /// What has to be sent in place of a content that does not fit packets of the present size any more, and beside it.
    pub(super) fn cut_further(
        &mut self,
        content: TaskContent,
        quantum_bytes: u32,
        packet_bytes: usize,
        segment_bytes: usize,
    ) -> Vec<TaskContent> {
        let contents: Vec<TaskContent> = match content {
            TaskContent::Quantum(quantum, whole) => {
                let segments = quantum::cut(whole, quantum_bytes, segment_bytes);
                segments.map(|segment| TaskContent::Quantum(quantum, segment)).collect()
            }
            TaskContent::Command if self.has_first && !self.fits_first(quantum_bytes, packet_bytes) => {
                self.has_first = false;
                vec![content, TaskContent::Quantum(0, Segment::WHOLE)]
            }
            TaskContent::Parity(_) => {
                let fits = segment_bytes >= quantum_bytes as usize;
                return if fits { vec![content] } else { Vec::new() };
            }
            TaskContent::Command | TaskContent::Plain(_) => vec![content],
        };
        self.unacknowledged.remove(&content);
        self.unacknowledged.extend(&contents);
        contents
    }

    fn fits_first(&self, quantum_bytes: u32, packet_bytes: usize) -> bool {
        let Some(WriteSource { data, records: Some(records) }) = &self.command.write else { return false };
        let mut parameters = Vec::new();
        body::push_parameters(&mut parameters, &self.command.parameters);
        let len = HEADER_BYTES + TAG_BYTES + parameters.len() + records.record_bytes as usize + quantum_bytes as usize;
        !data.is_empty() && len <= packet_bytes
    }

    /// What is to be sent next; `None`: everything was.
    pub(super) fn next_content(&mut self, quantum_bytes: u32, segment_bytes: usize) -> Option<TaskContent> {
        if let Some(parity) = self.parity.next() {
            return Some(TaskContent::Parity(parity));
        }
        let content = self.next_unsent(quantum_bytes, segment_bytes)?;
        if let TaskContent::Quantum(quantum, Segment::WHOLE) = content {
            self.parity.sent(quantum);
        }
        if self.sent_bytes >= self.write_bytes() && self.segments.is_empty() {
            self.parity.finish_group();
        }
        self.unacknowledged.insert(content);
        Some(content)
    }

    fn next_unsent(&mut self, quantum_bytes: u32, segment_bytes: usize) -> Option<TaskContent> {
        let source = self.command.write.as_ref()?;
        if let Some(segment) = self.segments.pop_front() {
            return Some(TaskContent::Quantum(self.sent_bytes / quantum_bytes - 1, segment));
        }
        if self.sent_bytes as usize >= source.data.len() {
            return None;
        }
        let at = self.sent_bytes;
        if source.records.is_none() {
            self.sent_bytes += (PLAIN_BYTES_MAX as u32).min(source.data.len() as u32 - at);
            return Some(TaskContent::Plain(at));
        }
        self.sent_bytes += quantum_bytes;
        self.segments.extend(quantum::cut(Segment::WHOLE, quantum_bytes, segment_bytes));
        let segment = self.segments.pop_front().expect("a quantum has a segment");
        Some(TaskContent::Quantum(at / quantum_bytes, segment))
    }

    /// Whether everything was sent.
    pub(super) fn is_sent(&self) -> bool {
        let is_data_sent = self.segments.is_empty() && self.sent_bytes >= self.write_bytes();
        self.number.is_some() && is_data_sent && self.parity.is_done()
    }

    /// The packet of a content.
    pub(super) fn packet(&self, tag: SinkTag, content: TaskContent, quantum_bytes: u32) -> Outgoing {
        let number = self.number.expect("it was started");
        match content {
            TaskContent::Command => self.command_packet(tag, number, quantum_bytes),
            TaskContent::Quantum(quantum, segment) => {
                let (record, data) = self.quantum(quantum, quantum_bytes);
                let payload = data.slice(segment.range(quantum_bytes as usize));
                let specific = quantum::specific_of(segment, &payload);
                let header = Header {
                    task: number.number as u32,
                    quantum,
                    segment,
                    length: quantum_bytes,
                    specific,
                    ..Header::new(Operation::DataOut)
                };
                Outgoing { header, sink: tag, body: record.to_vec(), payload }
            }
            TaskContent::Parity(parity) => {
                let member = |quantum| self.quantum(quantum, quantum_bytes);
                parity.packet((tag, number.number as u32), quantum_bytes, member)
            }
            TaskContent::Plain(offset) => {
                let data = &self.command.write.as_ref().expect("a write").data[offset as usize..];
                let data = &data[..data.len().min(PLAIN_BYTES_MAX)];
                let header = Header {
                    task: number.number as u32,
                    quantum: offset,
                    length: data.len() as u32,
                    ..Header::new(Operation::PlainOut)
                };
                Outgoing::message(header, tag, data.to_vec())
            }
        }
    }

    fn command_packet(&self, tag: SinkTag, number: CommandNumber, quantum_bytes: u32) -> Outgoing {
        let command = &self.command;
        let mut flags = attribute_bits(command.attribute);
        flags |= match command.direction {
            Direction::None => 0,
            Direction::Read => Flags::READ,
            Direction::Write => Flags::WRITE,
        };
        let is_sealed = command.write.as_ref().is_some_and(|source| source.records.is_some());
        flags |= if is_sealed { Flags::SEALED } else { 0 };
        let first = self.has_first.then(|| self.quantum(0, quantum_bytes));
        let record_bytes = first.as_ref().map_or(0, |(record, _)| record.len());
        let mut body = Vec::with_capacity(128 + record_bytes);
        if !command.parameters.is_empty() {
            flags |= Flags::PARAMETERS;
            body::push_parameters(&mut body, &command.parameters);
        }
        let header = Header {
            task: number.number as u32,
            flags: Flags(flags),
            order_epoch: number.epoch as u32,
            lun: command.lun,
            length: command.expected_bytes,
            specific: command.cdb,
            ..Header::new(Operation::Command)
        };
        match first {
            Some((record, payload)) => {
                body.extend_from_slice(&record);
                Outgoing { header, sink: tag, body, payload }
            }
            None => Outgoing::message(header, tag, body),
        }
    }

    /// A quantum of the write with its record.
    fn quantum(&self, quantum: u32, quantum_bytes: u32) -> (Bytes, strongroom_block::Buffer) {
        let source = self.command.write.as_ref().expect("a write");
        let records = source.records.as_ref().expect("of sealed blocks");
        let (at, len) = (quantum as usize, quantum_bytes as usize);
        let record_bytes = records.record_bytes as usize;
        let record = records.bytes.slice(at * record_bytes..(at + 1) * record_bytes);
        (record, source.data.slice(at * len..(at + 1) * len))
    }

    /// Takes a quantum of a read, or a segment, that was checked. Returns how many quanta were restored with it.
    pub(super) fn take_quantum(&mut self, packet: &Packet, quantum_bytes: u32) -> Result<u64, PeerMisbehaved> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        if self.command.sealed_block_bytes.is_none() {
            return Err(misplaced("sealed data for a plain read"));
        }
        let quantum = packet.header.quantum;
        let offset = self.place(quantum.checked_mul(quantum_bytes), quantum_bytes).map_err(misplaced)?;
        if offset < self.moved_bytes || self.early.contains_key(&offset) {
            return Ok(0);
        }
        let Some(data) = self.joiner.add(packet, quantum_bytes) else { return Ok(0) };
        let member = Member { quantum, entry: packet.body.clone(), data };
        let restored = self.groups.as_mut().map(|groups| groups.add(&member)).unwrap_or_default();
        self.insert(member, quantum_bytes).map_err(misplaced)?;
        self.restore(restored, quantum_bytes).map_err(misplaced)
    }

    /// Takes parity of a read. Returns how many quanta were restored with it.
    pub(super) fn take_parity(&mut self, packet: &Packet, quantum_bytes: u32) -> Result<u64, Fault> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        if self.command.sealed_block_bytes.is_none() {
            return Err(misplaced("sealed data for a plain read").into());
        }
        let Some(groups) = &mut self.groups else { return Err(misplaced("parity that was not settled").into()) };
        let restored = groups.add_parity(packet, quantum_bytes)?;
        Ok(self.restore(restored, quantum_bytes).map_err(misplaced)?)
    }

    fn restore(&mut self, restored: Vec<Member>, quantum_bytes: u32) -> Result<u64, &'static str> {
        let count = restored.len() as u64;
        for member in restored {
            self.insert(member, quantum_bytes)?;
        }
        Ok(count)
    }

    fn insert(&mut self, member: Member, quantum_bytes: u32) -> Result<(), &'static str> {
        let Member { quantum, entry, data } = member;
        let offset = self.place(quantum.checked_mul(quantum_bytes), quantum_bytes)?;
        if offset >= self.moved_bytes {
            let records = SealRecords::new(entry.len(), entry).ok_or("a quantum without its record")?;
            self.early.insert(offset, (quantum_bytes, DataContent::Sealed { data, records }));
        }
        Ok(())
    }

    /// Takes plain bytes of a read.
    pub(super) fn take_plain(&mut self, packet: &Packet) -> Result<(), PeerMisbehaved> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let len = packet.body.len() as u32;
        if len == 0 {
            return Err(misplaced("no data"));
        }
        let offset = self.place(Some(packet.header.quantum), len).map_err(misplaced)?;
        if offset >= self.moved_bytes {
            let content = DataContent::Plain(packet.body.clone().into());
            self.early.entry(offset).or_insert((len, content));
        }
        Ok(())
    }

    /// Takes absent blocks.
    pub(super) fn take_hole(&mut self, packet: &Packet, quantum_bytes: u32) -> Result<(), PeerMisbehaved> {
        let misplaced = |why| PeerMisbehaved::Data { tag: packet.sink.0, why };
        let (blocks, sequence, record) = body::hole_of(&packet.body)?;
        let covers = blocks.checked_mul(quantum_bytes).ok_or(misplaced("a hole longer than any transfer"))?;
        if self.command.sealed_block_bytes.is_none() {
            return Err(misplaced("a hole in a plain read"));
        }
        let offset = self.place(packet.header.quantum.checked_mul(quantum_bytes), covers).map_err(misplaced)?;
        if offset >= self.moved_bytes {
            self.early.entry(offset).or_insert((covers, DataContent::Hole { sequence, record }));
        }
        Ok(())
    }

    /// Checks that data lies inside the read; returns its offset.
    fn place(&self, offset: Option<u32>, len: u32) -> Result<u32, &'static str> {
        if self.command.direction != Direction::Read {
            return Err("data for a command that reads none");
        }
        let end = offset.and_then(|offset| offset.checked_add(len));
        match (offset, end) {
            (Some(offset), Some(end)) if end <= self.command.expected_bytes => Ok(offset),
            _ => Err("more than was asked for"),
        }
    }

    pub(super) fn take_response(&mut self, response: ResponseBody) {
        self.response.get_or_insert(response);
    }

    /// Data says that the command has ended with it, so it is the last of all that was asked for.
    pub(super) fn take_status(&mut self, packet: &Packet, quantum_bytes: u32) -> Result<(), PeerMisbehaved> {
        let end_bytes = u64::from(packet.header.quantum) * u64::from(quantum_bytes) + u64::from(quantum_bytes);
        let expected_bytes = self.command.expected_bytes;
        if packet.header.segment != Segment::WHOLE || end_bytes != u64::from(expected_bytes) {
            return Err(PeerMisbehaved::Data { tag: packet.sink.0, why: "a status before the last quantum" });
        }
        self.take_response(ResponseBody::good(expected_bytes));
        Ok(())
    }

    /// The next part of the read that follows what was moved without a gap.
    pub(super) fn next_data(&mut self, tag: SinkTag) -> Option<DataIn> {
        let (covers_bytes, content) = self.early.remove(&self.moved_bytes)?;
        let offset = self.moved_bytes;
        self.moved_bytes += covers_bytes;
        Some(DataIn { task: TaskId(tag.0), offset, covers_bytes, content })
    }

    /// The end of the command, once it was answered and all of its data is there.
    pub(super) fn completed(&self, tag: SinkTag) -> Option<Completed> {
        let response = self.response.as_ref()?;
        let is_read = self.command.direction == Direction::Read;
        if is_read && self.moved_bytes < response.covered_bytes {
            return None;
        }
        Some(Completed {
            task: TaskId(tag.0),
            status: response.status,
            response: 0,
            sense: response.sense.clone(),
            residual: response.residual,
            moved_bytes: if is_read { self.moved_bytes } else { self.sent_bytes.min(self.write_bytes()) },
            written: response.written,
        })
    }
}

fn check(command: &Command, quantum_bytes: u32) -> Result<(), &'static str> {
    match (&command.write, command.direction) {
        (Some(source), Direction::Write) if source.data.len() == command.expected_bytes as usize => {}
        (Some(_), Direction::Write) => return Err("the data of a write has another length than it says"),
        (None, Direction::Write) => return Err("a write without data"),
        (Some(_), _) => return Err("data for a command that writes none"),
        (None, _) => {}
    }
    if command.sealed_block_bytes.is_some_and(|bytes| bytes != quantum_bytes) {
        return Err("blocks of another size than the volume's");
    }
    if let Some(records) = command.write.as_ref().and_then(|source| source.records.as_ref()) {
        let blocks = command.expected_bytes / quantum_bytes;
        let whole = command.expected_bytes.is_multiple_of(quantum_bytes) && records.block_bytes == quantum_bytes;
        if !whole || records.bytes.len() as u64 != u64::from(blocks) * u64::from(records.record_bytes) {
            return Err("seal records that do not fit the data");
        }
    }
    Ok(())
}

/// The task attribute in the flags of a command.
fn attribute_bits(attribute: TaskAttribute) -> u8 {
    let code = match attribute {
        TaskAttribute::Untagged => 0,
        TaskAttribute::Simple => 1,
        TaskAttribute::Ordered => 2,
        TaskAttribute::HeadOfQueue => 3,
        TaskAttribute::Aca => 4,
    };
    code << Flags::ATTRIBUTE_SHIFT
}

#[cfg(test)]
mod tests {
    use strongroom_block::Buffer;
    use strongroom_scsi::transport::Lun;

    use super::*;

    #[test]
    fn a_status_comes_with_the_last_quantum_alone() {
        let read = Command { sealed_block_bytes: Some(512), ..Command::read(Lun(0), [0; 16], 1024) };
        let mut task = Task::new(read, 512, None).expect("a read of two quanta");
        let packet = |quantum, segment| {
            let flags = Flags(Flags::STATUS);
            let header = Header { quantum, segment, flags, length: 512, ..Header::new(Operation::DataIn) };
            Packet::for_tests(header, SinkTag::new(1, 1), Bytes::new(), Buffer::empty())
        };
        let half = Segment { index: 1, count: 2 };
        for wrong in
            [packet(0, Segment::WHOLE), packet(2, Segment::WHOLE), packet(u32::MAX, Segment::WHOLE), packet(1, half)]
        {
            assert!(matches!(task.take_status(&wrong, 512), Err(PeerMisbehaved::Data { .. })), "{wrong:?}");
        }
        assert_eq!(task.response, None);
        task.take_status(&packet(1, Segment::WHOLE), 512).expect("the last one");
        assert_eq!(task.completed(SinkTag::new(1, 1)), None, "its data is missing");
    }
}

//! The header of a packet, as bytes. `docs/ecl.md` is the specification.

use strongroom_scsi::transport::{Lun, TaskAttribute};

use crate::tag::SinkTag;

/// Bytes in a header, without its authentication tag.
pub const HEADER_BYTES: usize = 64;
/// Bytes in an authentication tag. With it a header has 80 bytes.
pub const TAG_BYTES: usize = 16;
/// Bytes of a header that are in the clear under every scheme.
pub const CLEAR_BYTES: usize = 16;
/// The version of the packet format.
pub const VERSION: u8 = 1;
/// Longest header and body together, in bytes.
pub(crate) const PROTECTED_BYTES_MAX: usize = 16 * 1024;

/// Most bytes of plain data in one packet: as many as fit the smallest size of packets.
pub(crate) const PLAIN_BYTES_MAX: usize = 512;

/// What follows the authentication tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PacketType {
    /// A quantum or a segment of one.
    Data = 1,
    /// Nothing.
    Message = 2,
}

/// The part of a header that is in the clear: enough to find the association and the keys, and to split off what follows the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClearHeader {
    /// What follows.
    pub(crate) packet_type: PacketType,
    /// Key generation, modulo 256.
    pub(crate) generation: u8,
    /// Header and body, without the tag, in bytes.
    pub(crate) protected_bytes: u16,
    /// Which association: the number that the receiver gave it.
    pub(crate) connection_id: u32,
    /// The low 32 bits of the packet number.
    pub(crate) packet_number: u32,
    /// Whose data it carries.
    pub(crate) sink: SinkTag,
}

impl ClearHeader {
    /// Reads the clear part; `None` for anything that is not a packet of this version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ClearHeader> {
        let bytes = bytes.first_chunk::<CLEAR_BYTES>()?;
        let packet_type = match bytes[0] {
            0x11 => PacketType::Data,
            0x12 => PacketType::Message,
            _ => return None,
        };
        let protected_bytes = u16::from_be_bytes([bytes[2], bytes[3]]);
        let is_possible = (HEADER_BYTES..=PROTECTED_BYTES_MAX).contains(&usize::from(protected_bytes));
        is_possible.then_some(ClearHeader {
            packet_type,
            generation: bytes[1],
            protected_bytes,
            connection_id: u32_at(bytes, 4),
            packet_number: u32_at(bytes, 8),
            sink: SinkTag(u32_at(bytes, 12)),
        })
    }

    fn encode(&self, out: &mut [u8]) {
        out[0] = VERSION << 4 | self.packet_type as u8;
        out[1] = self.generation;
        out[2..4].copy_from_slice(&self.protected_bytes.to_be_bytes());
        out[4..8].copy_from_slice(&self.connection_id.to_be_bytes());
        out[8..12].copy_from_slice(&self.packet_number.to_be_bytes());
        out[12..16].copy_from_slice(&self.sink.0.to_be_bytes());
    }
}

/// What a packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Operation {
    /// To the target: a SCSI command, with the first quantum of its data if that follows.
    Command = 1,
    /// To the target: a quantum of a write, or a segment.
    DataOut = 2,
    /// To the target: bytes of a write that are not sealed blocks.
    PlainOut = 3,
    /// To the initiator: a quantum of a read, or a segment.
    DataIn = 4,
    /// To the initiator: bytes of a read that are not sealed blocks.
    PlainIn = 5,
    /// To the initiator: absent blocks.
    HoleIn = 6,
    /// To the initiator: the end of a command.
    Response = 7,
    /// To the target: a task management function.
    Manage = 8,
    /// To the initiator: its result.
    Managed = 9,
    /// An acknowledgement alone; the only operation that is not acknowledged.
    Acknowledge = 10,
    /// Asks for an acknowledgement.
    Ping = 11,
    /// The same, filled up to find out which packets the path takes.
    Probe = 12,
    /// To the target: the association is to end.
    Logout = 13,
    /// Either way: the association is over.
    Close = 14,
    /// To the initiator: log out within a time.
    Drain = 15,
    /// Either way: parity of quanta of a transfer.
    Parity = 16,
}

impl Operation {
    const ALL: [Operation; 16] = [
        Operation::Command,
        Operation::DataOut,
        Operation::PlainOut,
        Operation::DataIn,
        Operation::PlainIn,
        Operation::HoleIn,
        Operation::Response,
        Operation::Manage,
        Operation::Managed,
        Operation::Acknowledge,
        Operation::Ping,
        Operation::Probe,
        Operation::Logout,
        Operation::Close,
        Operation::Drain,
        Operation::Parity,
    ];

    /// From its code.
    pub(crate) fn from_code(code: u8) -> Option<Operation> {
        Self::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

/// Single bits of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flags(pub(crate) u8);

impl Flags {
    /// The body begins with an acknowledgement.
    pub(crate) const ACKNOWLEDGEMENT: u8 = 1;
    /// Of data: the command has ended with it, with the status GOOD (as the S bit of iSCSI's Data-In).
    pub(crate) const STATUS: u8 = 2;
    /// Of a command: its parameters are next in the body.
    pub(crate) const PARAMETERS: u8 = 2;
    /// The data of the command is sealed.
    pub(crate) const SEALED: u8 = 4;
    /// The command reads.
    pub(crate) const READ: u8 = 8;
    /// The command writes.
    pub(crate) const WRITE: u8 = 16;
    /// From this bit on: the task attribute of a command.
    pub(crate) const ATTRIBUTE_SHIFT: u32 = 5;

    /// The task attribute of a command; `None` for a code that no attribute has.
    pub(crate) fn attribute(self) -> Option<TaskAttribute> {
        Some(match self.0 >> Self::ATTRIBUTE_SHIFT {
            0 => TaskAttribute::Untagged,
            1 => TaskAttribute::Simple,
            2 => TaskAttribute::Ordered,
            3 => TaskAttribute::HeadOfQueue,
            4 => TaskAttribute::Aca,
            _ => return None,
        })
    }

    /// Whether a bit is set.
    pub(crate) fn has(self, flag: u8) -> bool {
        self.0 & flag != 0
    }
}

/// Which part of a quantum follows: `index` of `count` equal parts. A count of 1 is the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Segment {
    /// From 0.
    pub(crate) index: u8,
    /// 1, 2, 4 or 8.
    pub(crate) count: u8,
}

impl Segment {
    /// The whole quantum.
    pub(crate) const WHOLE: Segment = Segment { index: 0, count: 1 };

    /// Where it lies in a quantum of `quantum_bytes`.
    pub(crate) fn range(self, quantum_bytes: usize) -> std::ops::Range<usize> {
        let len = quantum_bytes / usize::from(self.count);
        let start = usize::from(self.index) * len;
        start..start + len
    }

    fn is_possible(self) -> bool {
        matches!(self.count, 1 | 2 | 4 | 8) && self.index < self.count
    }
}

/// An authentic header that says what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// An operation that this version does not have.
    #[error("the unknown operation code {0}; a newer Strongroom may have sent it")]
    Operation(u8),
    /// A task attribute that there is not.
    #[error("flags with an unknown task attribute: {0:#04x}")]
    Flags(u8),
    /// A segment that no quantum has.
    #[error("segment {index} of {count}, which no quantum has")]
    Segment {
        /// As sent.
        index: u8,
        /// As sent.
        count: u8,
    },
}

/// The part of a header behind the clear one, as far as all operations have it. `docs/ecl.md` says which operation uses what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The number of the task's command.
    pub(crate) task: u32,
    /// Which quantum of the transfer; for plain data, which byte.
    pub(crate) quantum: u32,
    /// What it says.
    pub(crate) operation: Operation,
    /// Details.
    pub(crate) flags: Flags,
    /// Which part of the quantum.
    pub(crate) segment: Segment,
    /// All commands before this number are handed over before this one.
    pub(crate) order_epoch: u32,
    /// To the initiator: units of write data that it may send in all. To the target: 0.
    pub(crate) credits: u32,
    /// The logical unit.
    pub(crate) lun: Lun,
    /// Bytes of the transfer, or of what this packet stands for.
    pub(crate) length: u32,
    /// Depends on the operation.
    pub(crate) specific: [u8; 16],
}

impl Header {
    /// A header of an operation, all else zero.
    pub(crate) fn new(operation: Operation) -> Header {
        Header {
            task: 0,
            quantum: 0,
            operation,
            flags: Flags::default(),
            segment: Segment::WHOLE,
            order_epoch: 0,
            credits: 0,
            lun: Lun(0),
            length: 0,
            specific: [0; 16],
        }
    }

    /// The 64 bytes of a header.
    pub(crate) fn encode(&self, clear: &ClearHeader) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        clear.encode(&mut out);
        out[16..20].copy_from_slice(&self.task.to_be_bytes());
        out[20..24].copy_from_slice(&self.quantum.to_be_bytes());
        out[24] = self.operation as u8;
        out[25] = self.flags.0;
        out[26] = self.segment.index;
        out[27] = self.segment.count;
        out[28..32].copy_from_slice(&self.order_epoch.to_be_bytes());
        out[32..36].copy_from_slice(&self.credits.to_be_bytes());
        out[36..44].copy_from_slice(&self.lun.0.to_be_bytes());
        out[44..48].copy_from_slice(&self.length.to_be_bytes());
        out[48..64].copy_from_slice(&self.specific);
        out
    }

    /// Reads what follows the clear part.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, HeaderError> {
        let operation = Operation::from_code(bytes[24]).ok_or(HeaderError::Operation(bytes[24]))?;
        if Flags(bytes[25]).attribute().is_none() {
            return Err(HeaderError::Flags(bytes[25]));
        }
        let segment = Segment { index: bytes[26], count: bytes[27] };
        if !segment.is_possible() {
            return Err(HeaderError::Segment { index: segment.index, count: segment.count });
        }
        Ok(Header {
            task: u32_at(bytes, 16),
            quantum: u32_at(bytes, 20),
            operation,
            flags: Flags(bytes[25]),
            segment,
            order_epoch: u32_at(bytes, 28),
            credits: u32_at(bytes, 32),
            lun: Lun(u64::from_be_bytes(bytes[36..44].try_into().expect("8 bytes"))),
            length: u32_at(bytes, 44),
            specific: bytes[48..64].try_into().expect("16 bytes"),
        })
    }
}

/// The big-endian number at an offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_code() {
        for (at, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, at + 1);
            assert_eq!(Operation::from_code(at as u8 + 1), Some(operation));
        }
        assert_eq!((Operation::from_code(0), Operation::from_code(17)), (None, None));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let clear = ClearHeader {
            packet_type: PacketType::Data,
            generation: 0,
            protected_bytes: 64,
            connection_id: 1,
            packet_number: 2,
            sink: SinkTag(3),
        };
        let bytes = Header::new(Operation::Ping).encode(&clear);
        assert_eq!(ClearHeader::decode(&bytes), Some(clear));
        assert_eq!(Header::decode(&bytes), Ok(Header::new(Operation::Ping)));
        let changed = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            bytes
        };
        for (at, value) in [(0, 0x21), (0, 0x13), (2, 0xff), (3, 63)] {
            assert_eq!(ClearHeader::decode(&changed(at, value)), None, "byte {at} = {value}");
        }
        for (at, value) in [(24, 0), (24, 99), (25, 0xa0), (26, 1), (27, 0), (27, 3), (27, 16)] {
            assert!(Header::decode(&changed(at, value)).is_err(), "byte {at} = {value}");
        }
        assert_eq!(ClearHeader::decode(&bytes[..15]), None);
    }
}

//! Messages to the kernel's NBD driver and its answers (linux/nbd-netlink.h), as bytes. Absent: the socket that carries them.

use std::io::{self, Cursor};

use neli::consts::genl::{CtrlAttr, CtrlCmd};
use neli::consts::nl::{GenlId, NlmF};
use neli::err::SerError;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::{NlPayload, Nlmsghdr, NlmsghdrBuilder};
use neli::types::{Buffer, GenlBuffer};
use neli::{FromBytes, Size, ToBytes};

/// NBD_GENL_FAMILY_NAME and NBD_GENL_VERSION.
const FAMILY: &str = "nbd";
const VERSION: u8 = 1;
/// Of the controller, which knows the families.
const CONTROLLER_VERSION: u8 = 2;

/// NBD_CMD_….
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect = 1,
    Disconnect = 2,
    Reconfigure = 3,
}

/// NBD_ATTR_…, of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute<'a> {
    /// N of /dev/nbdN.
    Index(u32),
    SizeBytes(u64),
    BlockBytes(u64),
    /// After which the driver gives a request up; 0: never.
    TimeoutS(u64),
    /// The transmission flags.
    ServerFlags(u16),
    /// NBD_CFLAG_….
    ClientFlags(u64),
    /// Descriptors of connected sockets in this process.
    Sockets(&'a [i32]),
    /// How long requests wait for a new connection while there is none.
    DeadConnectionTimeoutS(u64),
    /// What the device is known by; a later request has to repeat it.
    BackendIdentifier(&'a str),
}

const ATTRIBUTE_INDEX: u16 = 1;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// NBD_CFLAG_DISCONNECT_ON_CLOSE.
pub(super) const DISCONNECT_ON_CLOSE: u64 = 1 << 1;

/// One message of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The request was carried out; nothing follows.
    Done,
    /// It was not; nothing follows.
    Refused(i32),
    /// What it asked for.
    Attributes(Attributes),
}

/// What an answer says.
pub(super) type Attributes = GenlBuffer<u16, Buffer>;
type Message = Nlmsghdr<u16, Genlmsghdr<u8, u16>>;
type EncodedAttribute = Nlattr<u16, Buffer>;

fn attribute(kind: u16, payload: impl Size + ToBytes) -> EncodedAttribute {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().expect("it has a type");
    NlattrBuilder::default().nla_type(kind).nla_payload(payload).build().expect("it has a type and a payload")
}

fn nested(kind: u16, inner: impl IntoIterator<Item = EncodedAttribute>) -> EncodedAttribute {
    let outer = attribute(kind, Buffer::new());
    inner.into_iter().fold(outer, |outer, inner| outer.nest(&inner).expect("memory takes everything"))
}

impl Attribute<'_> {
    fn encode(self) -> EncodedAttribute {
        match self {
            Attribute::Index(index) => attribute(ATTRIBUTE_INDEX, index),
            Attribute::SizeBytes(bytes) => attribute(2, bytes),
            Attribute::BlockBytes(bytes) => attribute(3, bytes),
            Attribute::TimeoutS(seconds) => attribute(4, seconds),
            Attribute::ServerFlags(flags) => attribute(5, u64::from(flags)),
            Attribute::ClientFlags(flags) => attribute(6, flags),
            Attribute::Sockets(sockets) => {
                let item = |fd: &i32| nested(SOCKET_ITEM, [attribute(SOCKET_FD, *fd)]);
                nested(7, sockets.iter().map(item))
            }
            Attribute::DeadConnectionTimeoutS(seconds) => attribute(8, seconds),
            Attribute::BackendIdentifier(identifier) => attribute(10, identifier),
        }
    }
}

/// A request to the driver, whose family has this number.
pub(super) fn request(family: u16, sequence: u32, command: Command, attributes: &[Attribute<'_>]) -> Vec<u8> {
    let attributes = attributes.iter().map(|attribute| attribute.encode());
    encode(family, sequence, command as u8, VERSION, attributes.collect())
}

/// The request for the number of the driver's family.
pub(super) fn family_request(sequence: u32) -> Vec<u8> {
    let name = attribute(CtrlAttr::FamilyName.into(), FAMILY);
    encode(GenlId::Ctrl.into(), sequence, CtrlCmd::Getfamily.into(), CONTROLLER_VERSION, [name].into_iter().collect())
}

fn encode(kind: u16, sequence: u32, command: u8, version: u8, attributes: Attributes) -> Vec<u8> {
    let header = GenlmsghdrBuilder::default().cmd(command).version(version).attrs(attributes).build();
    let message: Message = NlmsghdrBuilder::default()
        .nl_type(kind)
        .nl_flags(NlmF::REQUEST | NlmF::ACK)
        .nl_seq(sequence)
        .nl_payload(NlPayload::Payload(header.expect("it has a command and a version")))
        .build()
        .expect("it has a type, flags and a payload");
    let mut bytes = Cursor::new(Vec::with_capacity(message.padded_size()));
    let encoded: Result<(), SerError> = message.to_bytes(&mut bytes);
    encoded.expect("memory takes everything");
    bytes.into_inner()
}

/// The messages of one datagram of the kernel, without those that answer something else.
///
/// # Errors
/// It cannot be read.
pub(super) fn answers(datagram: &[u8], sequence: u32) -> io::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    let mut bytes = Cursor::new(datagram);
    while (bytes.position() as usize) < datagram.len() {
        let unreadable = |_| io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel cannot be read");
        let message = Message::from_bytes(&mut bytes).map_err(unreadable)?;
        if *message.nl_seq() != sequence {
            continue;
        }
        answers.push(match message.nl_payload() {
            NlPayload::Ack(_) | NlPayload::DumpExtAck(_) | NlPayload::Empty => Answer::Done,
            NlPayload::Err(error) => Answer::Refused(-*error.error()),
            NlPayload::Payload(payload) => Answer::Attributes(payload.attrs().clone()),
        });
    }
    Ok(answers)
}

/// The number of a family, in the controller's answer.
pub(super) fn family_of(attributes: &Attributes) -> Option<u16> {
    attributes.get_attr_handle().get_attr_payload_as::<u16>(CtrlAttr::FamilyId.into()).ok()
}

/// N of /dev/nbdN, in the answer to [`Command::Connect`].
pub(super) fn index_of(attributes: &Attributes) -> Option<u32> {
    attributes.get_attr_handle().get_attr_payload_as::<u32>(ATTRIBUTE_INDEX).ok()
}

#[cfg(test)]
mod tests {
    //! Proves the bytes of requests against the kernel's header files, and that answers are told apart.
    use super::*;

    /// Bytes of a little-endian machine, from words of 32 bits.
    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Length and type of an attribute.
    fn head(len: u16, kind: u16) -> u32 {
        u32::from_ne_bytes([len.to_ne_bytes(), kind.to_ne_bytes()].concat().try_into().unwrap())
    }

    #[test]
    fn connect() {
        let attributes = [
            Attribute::SizeBytes(0x1_0000_1000),
            Attribute::BlockBytes(4096),
            Attribute::TimeoutS(0),
            Attribute::ServerFlags(0x6d),
            Attribute::DeadConnectionTimeoutS(300),
            Attribute::BackendIdentifier("abc"),
            Attribute::Sockets(&[5]),
        ];
        let encoded = request(29, 7, Command::Connect, &attributes);
        let wide = |kind, value: u64| [vec![head(12, kind)], low_and_high(value)].concat();
        let expected = [
            // Length, type and flags (REQUEST and ACK), sequence, port.
            vec![104, head(29, 5), 7, 0],
            // Command 1 of version 1.
            vec![u32::from_ne_bytes([1, 1, 0, 0])],
            wide(2, 0x1_0000_1000),
            wide(3, 4096),
            wide(4, 0),
            wide(5, 0x6d),
            wide(8, 300),
            vec![head(8, 10), u32::from_ne_bytes(*b"abc\0")],
            // Three levels, the outer two nested.
            vec![head(16, 7 | 1 << 15), head(12, 1 | 1 << 15), head(8, 1), 5],
        ];
        assert_eq!(encoded, words(&expected.concat()));
    }

    fn low_and_high(value: u64) -> Vec<u32> {
        let bytes = value.to_ne_bytes();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        vec![word(0), word(4)]
    }

    #[test]
    fn reconfigure_names_its_device_and_disconnect_needs_no_more() {
        let attributes =
            [Attribute::Index(3), Attribute::ClientFlags(DISCONNECT_ON_CLOSE), Attribute::BackendIdentifier("ab")];
        let encoded = request(29, 8, Command::Reconfigure, &attributes);
        let expected = [
            vec![48, head(29, 5), 8, 0, u32::from_ne_bytes([3, 1, 0, 0])],
            vec![head(8, 1), 3, head(12, 6), low_and_high(2)[0], low_and_high(2)[1]],
            // Padded to whole words; the length says where it ends.
            vec![head(7, 10), u32::from_ne_bytes(*b"ab\0\0")],
        ];
        assert_eq!(encoded, words(&expected.concat()));
        let encoded = request(29, 9, Command::Disconnect, &[Attribute::Index(3)]);
        assert_eq!(encoded, words(&[28, head(29, 5), 9, 0, u32::from_ne_bytes([2, 1, 0, 0]), head(8, 1), 3]));
    }

    #[test]
    fn the_family_is_asked_for_by_name() {
        let expected = [
            vec![28, head(16, 5), 1, 0, u32::from_ne_bytes([3, 2, 0, 0])],
            vec![head(8, 2), u32::from_ne_bytes(*b"nbd\0")],
        ];
        assert_eq!(family_request(1), words(&expected.concat()));
    }

    #[test]
    fn answers_are_told_apart() {
        let index = words(&[28, head(29, 0), 7, 0, u32::from_ne_bytes([1, 1, 0, 0]), head(8, 1), 11]);
        let request = words(&[20, head(29, 5), 7, 0]);
        let done = [words(&[36, head(2, 0), 7, 0, 0]), request].concat();
        let read = answers(&[index.clone(), done.clone()].concat(), 7).unwrap();
        let Answer::Attributes(attributes) = &read[0] else { panic!("{read:?}") };
        assert_eq!((index_of(attributes), read[1..].len()), (Some(11), 1));
        assert_eq!(read[1], Answer::Done);
        assert!(answers(&index, 8).unwrap().is_empty(), "it answers something else");
        // With all of the request behind the error.
        let request = super::request(29, 7, Command::Disconnect, &[Attribute::Index(3)]);
        let refused = [words(&[20 + 28, head(2, 0), 7, 0, (-22_i32) as u32]), request].concat();
        assert_eq!(answers(&refused, 7).unwrap(), [Answer::Refused(22)]);
        assert!(answers(&done[..done.len() - 1], 7).is_err());
        let family = words(&[28, head(16, 0), 1, 0, u32::from_ne_bytes([1, 2, 0, 0]), head(6, 1), 29]);
        let read = answers(&family, 1).unwrap();
        let Answer::Attributes(attributes) = &read[0] else { panic!("{read:?}") };
        assert_eq!(family_of(attributes), Some(29));
        assert_eq!(index_of(attributes), None, "too short for an index");
    }
}

//! What the two ends of a transfer say: messages as bytes and back. `docs/transfer.md`.
//!
//! Absent: the channel that carries them, which also tells where one ends.

use strongroom_net::{TRANSFER_MESSAGE_BYTES_MAX, TRANSFER_PIECE_BYTES_MAX};
use strongroom_store::StreamInfo;

/// Longest name of a volume or snapshot in a message, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 512;
/// Longest text for people, in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 2048;
/// Longest beginning of a stream in a HELLO, in bytes.
pub(crate) const BEGIN_BYTES_MAX: usize = 1024;

/// Why a target refuses a transfer, or breaks it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The volume is not there for this node: it does not exist, or the node may not send into it.
    NotPermitted,
    /// The node may send into the volume, which does not exist.
    NoSuchVolume,
    /// Another transfer into the volume is under way.
    Busy,
    /// The volume is attached.
    InUse,
    /// The target has too many transfers, or too little memory for another one.
    Overloaded,
    /// The target stops or drains.
    Unavailable,
    /// What came is not what was sent.
    Damaged,
    /// The stream does not fit the volume, or what the volume has by now.
    DoesNotFit,
    /// The stream builds on a snapshot that is not there.
    MissingBase,
    /// The volume was written since that snapshot.
    Diverged,
    /// The store failed, or has no room.
    Failed,
    /// No data came for too long.
    Stalled,
    /// The sender broke the rules of the protocol.
    Misbehaved,
}

impl RefusalCode {
    const ALL: [RefusalCode; 13] = [
        RefusalCode::NotPermitted,
        RefusalCode::NoSuchVolume,
        RefusalCode::Busy,
        RefusalCode::InUse,
        RefusalCode::Overloaded,
        RefusalCode::Unavailable,
        RefusalCode::Damaged,
        RefusalCode::DoesNotFit,
        RefusalCode::MissingBase,
        RefusalCode::Diverged,
        RefusalCode::Failed,
        RefusalCode::Stalled,
        RefusalCode::Misbehaved,
    ];

    /// On the wire: 1 for the first.
    fn number(self) -> u8 {
        self as u8 + 1
    }

    fn from_number(number: u8) -> Option<RefusalCode> {
        RefusalCode::ALL.get(usize::from(number.checked_sub(1)?)).copied()
    }

    /// Whether the same may be granted in a moment, without a change by an administrator.
    pub fn may_pass(self) -> bool {
        use RefusalCode::{Busy, Damaged, InUse, Overloaded, Stalled, Unavailable};
        matches!(self, Busy | Damaged | InUse | Overloaded | Stalled | Unavailable)
    }
}

/// One message. The bytes of a DATA message are carried beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Sender: what it has, and for which volume. `begin`: the first frame of the stream in full.
    Hello { volume: String, begin: Vec<u8> },
    /// Target: where the stream shall go on, and how many bytes may be on their way without an [`Message::Ack`].
    Position { position: u64, window_bytes: u32 },
    /// Target: no, and why. The last message.
    Refused { code: RefusalCode, text: String },
    /// Sender: the next bytes of the stream; `offset`: how many came before, on this connection.
    Data { offset: u64 },
    /// Target: this many bytes of this connection were taken in and are durable; a stream that is interrupted goes on at `position`.
    Ack { offset: u64, position: u64 },
    /// Sender: the stream had this many bytes.
    End { bytes: u64 },
    /// Target: the snapshot is there, durably; `was_there`: before this transfer. The last message.
    Done { snapshot: String, was_there: bool },
    /// Either: I am here.
    KeepAlive,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message")]
pub(crate) struct Malformed;

impl Message {
    /// Its bytes, without what a DATA message carries.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Hello { volume, begin } => {
                out.push(1);
                put_bytes(&mut out, volume.as_bytes());
                put_bytes(&mut out, begin);
            }
            Message::Position { position, window_bytes } => {
                out.push(2);
                out.extend_from_slice(&position.to_be_bytes());
                out.extend_from_slice(&window_bytes.to_be_bytes());
            }
            Message::Refused { code, text } => {
                out.extend_from_slice(&[3, code.number()]);
                put_bytes(&mut out, shortened(text).as_bytes());
            }
            Message::Data { offset } => {
                out.push(4);
                out.extend_from_slice(&offset.to_be_bytes());
            }
            Message::Ack { offset, position } => {
                out.push(5);
                out.extend_from_slice(&offset.to_be_bytes());
                out.extend_from_slice(&position.to_be_bytes());
            }
            Message::End { bytes } => {
                out.push(6);
                out.extend_from_slice(&bytes.to_be_bytes());
            }
            Message::Done { snapshot, was_there } => {
                out.extend_from_slice(&[7, u8::from(*was_there)]);
                put_bytes(&mut out, snapshot.as_bytes());
            }
            Message::KeepAlive => out.push(8),
        }
        out
    }

    /// From a frame of the channel: the message, and how many bytes of data came with it.
    ///
    /// # Errors
    /// [`Malformed`].
    pub(crate) fn decode(bytes: &[u8], data_bytes: usize) -> Result<Message, Malformed> {
        let mut take = Take(bytes);
        let message = match take.number::<1>()? {
            1 => {
                let volume = take.text(NAME_BYTES_MAX)?;
                Message::Hello { volume, begin: take.bytes(BEGIN_BYTES_MAX)?.to_vec() }
            }
            2 => {
                let (position, window) = (take.number::<8>()?, take.number::<4>()?);
                let window_bytes = u32::try_from(window).ok().filter(|bytes| *bytes > 0).ok_or(Malformed)?;
                Message::Position { position, window_bytes }
            }
            3 => {
                let code = take.number::<1>()? as u8;
                let code = RefusalCode::from_number(code).ok_or(Malformed)?;
                Message::Refused { code, text: take.text(TEXT_BYTES_MAX)? }
            }
            4 => Message::Data { offset: take.number::<8>()? },
            5 => Message::Ack { offset: take.number::<8>()?, position: take.number::<8>()? },
            6 => Message::End { bytes: take.number::<8>()? },
            7 => {
                let was_there = match take.number::<1>()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed),
                };
                Message::Done { snapshot: take.text(NAME_BYTES_MAX)?, was_there }
            }
            8 => Message::KeepAlive,
            _ => return Err(Malformed),
        };
        let carries = matches!(message, Message::Data { .. });
        let fits = if carries { (1..=TRANSFER_PIECE_BYTES_MAX).contains(&data_bytes) } else { data_bytes == 0 };
        if take.0.is_empty() && fits { Ok(message) } else { Err(Malformed) }
    }
}

/// Text cut at a character so that it fits.
fn shortened(text: &str) -> &str {
    let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Bytes behind their length in two.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).expect("what is sent is within the limits");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Takes values off the front of bytes from outside.
struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn raw(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of this many bytes, big-endian.
    fn number<const BYTES: usize>(&mut self) -> Result<u64, Malformed> {
        Ok(self.raw(BYTES)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self, bytes_max: usize) -> Result<&'a [u8], Malformed> {
        let len = self.number::<2>()? as usize;
        if len > bytes_max { Err(Malformed) } else { self.raw(len) }
    }

    fn text(&mut self, bytes_max: usize) -> Result<String, Malformed> {
        std::str::from_utf8(self.bytes(bytes_max)?).map(str::to_owned).map_err(|_| Malformed)
    }
}

/// For fuzzing: the first two bytes say how much data comes with the message.
#[doc(hidden)]
pub fn fuzz_message(bytes: &[u8]) {
    let Some((data, message)) = bytes.split_at_checked(2) else { return };
    let data_bytes = usize::from(u16::from_be_bytes([data[0], data[1]]));
    let Ok(decoded) = Message::decode(message, data_bytes) else { return };
    assert!(message.len() <= TRANSFER_MESSAGE_BYTES_MAX);
    assert_eq!(decoded.encode(), message, "what is accepted says itself");
    if let Message::Hello { begin, .. } = decoded {
        let _ = StreamInfo::peek(&begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(Message, usize)> {
        vec![
            (Message::Hello { volume: "vault".into(), begin: b"SRsd".to_vec() }, 0),
            (Message::Position { position: (1 << 62) + 5, window_bytes: 1 << 25 }, 0),
            (Message::Refused { code: RefusalCode::Busy, text: "later".into() }, 0),
            (Message::Data { offset: 262_144 }, 1),
            (Message::Ack { offset: 262_144, position: (1 << 62) + 64 }, 0),
            (Message::End { bytes: 262_145 }, 0),
            (Message::Done { snapshot: "monday".into(), was_there: false }, 0),
            (Message::KeepAlive, 0),
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The vectors of docs/transfer.md.
    #[test]
    fn golden_transfer_messages() {
        let expected = [
            "0100057661756c74000453527364",
            "02400000000000000502000000",
            "030300056c61746572",
            "040000000000040000",
            "0500000000000400004000000000000040",
            "060000000000040001",
            "070000066d6f6e646179",
            "08",
        ];
        for ((message, _), expected) in all().iter().zip(expected) {
            assert_eq!(hex(&message.encode()), expected, "{message:?}");
        }
    }

    #[test]
    fn transfer_messages_decode_as_encoded_and_no_other_way() {
        for (message, data) in all() {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes, data), Ok(message.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..cut], data), Err(Malformed), "{message:?} cut at {cut}");
            }
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat(), data), Err(Malformed), "{message:?} and more");
            let other = if data == 0 { 1 } else { 0 };
            assert_eq!(Message::decode(&bytes, other), Err(Malformed), "{message:?} with other data");
        }
        assert_eq!(Message::decode(&all()[3].0.encode(), TRANSFER_PIECE_BYTES_MAX + 1), Err(Malformed));
        for code in RefusalCode::ALL {
            assert_eq!(RefusalCode::from_number(code.number()), Some(code));
        }
        assert_eq!((RefusalCode::from_number(0), RefusalCode::from_number(14)), (None, None));
    }

    #[test]
    fn attack_lengths_in_transfer_messages_are_bounded() {
        let long = |len: usize| [&[1][..], &(len as u16).to_be_bytes(), &vec![b'a'; len], &[0, 0]].concat();
        assert!(Message::decode(&long(NAME_BYTES_MAX), 0).is_ok());
        assert_eq!(Message::decode(&long(NAME_BYTES_MAX + 1), 0), Err(Malformed));
        assert_eq!(Message::decode(&[1, 0xff, 0xff], 0), Err(Malformed));
        let refused = Message::Refused { code: RefusalCode::Failed, text: "ü".repeat(TEXT_BYTES_MAX) };
        assert!(Message::decode(&refused.encode(), 0).is_ok(), "a long text is cut at a character");
    }
}

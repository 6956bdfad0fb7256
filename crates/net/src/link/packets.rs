//! ECL's packets over the stream of their login: each behind the lengths of its two parts. They are protected by themselves, the lengths are not:
//! who can change those can also cut the connection, and a packet that is cut wrongly is not authentic.

use strongroom_block::{Buffer, BufferMut};

use super::LinkEnd;

/// Bytes in front of a packet.
const PREFIX_BYTES: usize = 4;
/// Header, body and tag of a packet, in bytes: a header and a tag at least.
const HEAD_BYTES_MIN: usize = 80;
const HEAD_BYTES_MAX: usize = (16 << 10) + 16;
/// The longest quantum, in bytes.
const PAYLOAD_BYTES_MAX: usize = 4096;

/// A packet of an association: header, body and tag, and what follows them.
#[derive(Debug, PartialEq)]
pub struct LinkPacket {
    /// Header, body and tag.
    pub head: Vec<u8>,
    /// A quantum or a part of one; empty where there is none.
    pub payload: Buffer,
}

/// Cuts a stream into packets.
#[derive(Debug, Default)]
pub(super) struct PacketFramer {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    arriving: Option<Arriving>,
}

/// A packet of which the prefix is there.
#[derive(Debug)]
struct Arriving {
    head: Vec<u8>,
    head_bytes: usize,
    payload: BufferMut,
    payload_bytes: usize,
}

impl PacketFramer {
    /// Takes some of `bytes`, at least one, and no more than to the end of a packet.
    ///
    /// # Errors
    /// [`LinkEnd::EclPacket`].
    pub(super) fn handle_input(&mut self, bytes: &[u8]) -> Result<(usize, Option<LinkPacket>), LinkEnd> {
        let mut taken = 0;
        if self.arriving.is_none() {
            taken = bytes.len().min(PREFIX_BYTES - self.prefix_bytes);
            self.prefix[self.prefix_bytes..][..taken].copy_from_slice(&bytes[..taken]);
            self.prefix_bytes += taken;
            if self.prefix_bytes < PREFIX_BYTES {
                return Ok((taken, None));
            }
            self.arriving = Some(Arriving::behind(self.prefix)?);
            self.prefix_bytes = 0;
        }
        let Some(arriving) = &mut self.arriving else { return Ok((taken, None)) };
        taken += arriving.handle_input(&bytes[taken..]);
        let packet = self.arriving.take_if(|arriving| arriving.is_whole()).map(Arriving::into_packet);
        Ok((taken, packet))
    }

    /// Whether the stream may end here.
    pub(super) fn is_between_packets(&self) -> bool {
        self.arriving.is_none() && self.prefix_bytes == 0
    }

    /// Appends a packet to `out`, the payload by reference.
    pub(super) fn encode(packet: LinkPacket, out: &mut Vec<Buffer>) {
        let LinkPacket { mut head, payload } = packet;
        let (head_bytes, payload_bytes) = (head.len() as u16, payload.len() as u16);
        let mut prefix = [0; PREFIX_BYTES];
        prefix[..2].copy_from_slice(&head_bytes.to_be_bytes());
        prefix[2..].copy_from_slice(&payload_bytes.to_be_bytes());
        head.splice(0..0, prefix);
        out.push(Buffer::from(bytes::Bytes::from(head)));
        if !payload.is_empty() {
            out.push(payload);
        }
    }
}

impl Arriving {
    fn behind(prefix: [u8; PREFIX_BYTES]) -> Result<Arriving, LinkEnd> {
        let head_bytes = usize::from(u16::from_be_bytes([prefix[0], prefix[1]]));
        let payload_bytes = usize::from(u16::from_be_bytes([prefix[2], prefix[3]]));
        if !(HEAD_BYTES_MIN..=HEAD_BYTES_MAX).contains(&head_bytes) || payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(LinkEnd::EclPacket);
        }
        let head = Vec::with_capacity(head_bytes);
        Ok(Arriving { head, head_bytes, payload: BufferMut::to_fill(payload_bytes), payload_bytes: 0 })
    }

    fn handle_input(&mut self, bytes: &[u8]) -> usize {
        let (head, rest) = bytes.split_at(bytes.len().min(self.head_bytes - self.head.len()));
        self.head.extend_from_slice(head);
        let payload = &rest[..rest.len().min(self.payload.len() - self.payload_bytes)];
        self.payload[self.payload_bytes..][..payload.len()].copy_from_slice(payload);
        self.payload_bytes += payload.len();
        head.len() + payload.len()
    }

    fn is_whole(&self) -> bool {
        self.head.len() == self.head_bytes && self.payload_bytes == self.payload.len()
    }

    fn into_packet(self) -> LinkPacket {
        let payload = if self.payload.is_empty() { Buffer::empty() } else { self.payload.freeze() };
        LinkPacket { head: self.head, payload }
    }
}

#[cfg(test)]
mod tests {
    //! Proves that packets come out as they went in, however the stream is cut, and that wrong lengths end it.
    use super::*;

    fn packets() -> Vec<(Vec<u8>, Vec<u8>)> {
        let part = |len: usize, byte: u8| vec![byte; len];
        vec![
            (part(80, 1), part(0, 2)),
            (part(136, 3), part(4096, 4)),
            (part(HEAD_BYTES_MAX, 5), part(0, 6)),
            (part(100, 7), part(512, 8)),
        ]
    }

    #[test]
    fn packets_come_out_as_they_went_in() {
        let mut sent = Vec::new();
        for (head, payload) in packets() {
            let payload = if payload.is_empty() { Buffer::empty() } else { Buffer::copy_from(&payload) };
            PacketFramer::encode(LinkPacket { head, payload }, &mut sent);
        }
        let stream: Vec<u8> = sent.iter().flat_map(|buffer| buffer.to_vec()).collect();
        for piece_bytes in [1, 3, 4, 5, 41, 4095, 4096, stream.len()] {
            let mut framer = PacketFramer::default();
            let mut arrived = Vec::new();
            for mut piece in stream.chunks(piece_bytes) {
                while !piece.is_empty() {
                    let (taken, packet) = framer.handle_input(piece).expect("well-formed");
                    assert!(taken > 0, "it goes on");
                    piece = &piece[taken..];
                    arrived.extend(packet.map(|packet| (packet.head, packet.payload.to_vec())));
                }
            }
            assert!(framer.is_between_packets());
            assert_eq!(arrived, packets(), "in pieces of {piece_bytes}");
        }
    }

    #[test]
    fn wrong_lengths_end_the_stream() {
        for (head_bytes, payload_bytes) in [(0_u16, 0_u16), (79, 0), (16401, 0), (80, 4097), (u16::MAX, u16::MAX)] {
            let prefix = [head_bytes.to_be_bytes(), payload_bytes.to_be_bytes()].concat();
            assert_eq!(PacketFramer::default().handle_input(&prefix), Err(LinkEnd::EclPacket));
        }
        let mut cut = PacketFramer::default();
        cut.handle_input(&[0, 80, 0, 0, 1]).expect("well-formed so far");
        assert!(!cut.is_between_packets());
    }
}

//! Control messages of a datagram's call (cmsg(3)), written and read as bytes.

use std::net::IpAddr;

const ALIGN: usize = size_of::<usize>();
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
/// Room for all that we send or ask for, several times over.
const ROOM_BYTES: usize = 256;

/// The control messages of one call.
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; ROOM_BYTES],
    len_bytes: usize,
}

/// What the kernel said about a packet, or a train of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketInfo {
    /// Bytes in each packet of a train but the last; `None`: it is one packet.
    pub(super) segment_bytes: Option<usize>,
    pub(super) ecn: u8,
}

impl Control {
    pub(super) fn new() -> Control {
        Control { bytes: [0; ROOM_BYTES], len_bytes: 0 }
    }

    /// All of its room, for the kernel to fill in.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The kernel has filled in so much.
    pub(super) fn filled(&mut self, len_bytes: usize) {
        self.len_bytes = len_bytes.min(ROOM_BYTES);
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let message_bytes = HEADER_BYTES + data.len();
        let mut at = self.len_bytes;
        self.len_bytes += HEADER_BYTES + data.len().next_multiple_of(ALIGN);
        for part in [&message_bytes.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data] {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
    }

    /// The call sends a train of packets of this length.
    pub(super) fn push_segment_bytes(&mut self, segment_bytes: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &segment_bytes.to_ne_bytes());
    }

    /// The packets come from this address of ours.
    pub(super) fn push_source(&mut self, source: IpAddr) {
        match source {
            // struct in_pktinfo: interface, source, destination.
            IpAddr::V4(ip) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: source, interface.
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// What the kernel said.
    pub(super) fn packet_info(&self) -> PacketInfo {
        let mut info = PacketInfo::default();
        let mut rest = &self.bytes[..self.len_bytes];
        while let Some((header, _)) = rest.split_at_checked(HEADER_BYTES) {
            let message_bytes = usize::from_ne_bytes(header[..ALIGN].try_into().expect("a word"));
            let number = |at: usize| i32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
            let Some(data) = rest.get(HEADER_BYTES..message_bytes) else { break };
            match (number(ALIGN), number(ALIGN + 4)) {
                (libc::SOL_UDP, libc::UDP_GRO) => info.segment_bytes = number_of(data).map(|bytes| bytes as usize),
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    info.ecn = number_of(data).unwrap_or(0) as u8 & 3;
                }
                _ => {}
            }
            rest = rest.get(message_bytes.next_multiple_of(ALIGN)..).unwrap_or_default();
        }
        info
    }
}

/// A number of four bytes, or of one (IP_TOS).
fn number_of(data: &[u8]) -> Option<u32> {
    match *data {
        [byte] => Some(byte.into()),
        [a, b, c, d, ..] => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read_and_nonsense_is_not() {
        let mut control = Control::new();
        control.push_source("192.0.2.1".parse().unwrap());
        control.push_source("::1".parse().unwrap());
        assert_eq!(control.packet_info(), PacketInfo::default());
        control.push(libc::SOL_UDP, libc::UDP_GRO, &1208i32.to_ne_bytes());
        control.push(libc::IPPROTO_IP, libc::IP_TOS, &[0xfd]);
        assert_eq!(control.packet_info(), PacketInfo { segment_bytes: Some(1208), ecn: 1 });
        for len_bytes in 0..control.len_bytes() {
            control.filled(len_bytes);
            control.packet_info();
        }
        // A message that claims to be longer than all of them, or to have no length.
        for claim in [usize::MAX, 4096, 0, 3] {
            let mut control = Control::new();
            control.push(libc::SOL_UDP, libc::UDP_GRO, &7i32.to_ne_bytes());
            control.bytes[..ALIGN].copy_from_slice(&claim.to_ne_bytes());
            assert_eq!(control.packet_info(), PacketInfo::default());
        }
    }
}

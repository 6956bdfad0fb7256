//! What a device hands over in one read: a packet, or a train of packets of one connection that the kernel has not cut yet (segmentation
//! offload). The link's model acts on each packet of a train; those that arrive together go on as one train, and their payload is never
//! touched: not copied, not summed. Checksums stay partial, as between two programs of one machine.
//!
//! Absent: when and whether packets arrive (the model), and the devices.

use std::ops::Range;

use str0m_netem::WithLen;
use tun_rs::{
    VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6, VIRTIO_NET_HDR_GSO_UDP_L4, VIRTIO_NET_HDR_LEN, VirtioNetHdr,
};

/// Of the device's header (virtio 1.2 §5.1.6): the transport's checksum is the pseudo-header's sum so far; it is no train; its first
/// packet has TCP's CWR.
const NEEDS_CHECKSUM: u8 = 1;
const NO_TRAIN: u8 = 0;
const HAS_CWR: u8 = 0x80;
/// IP protocol numbers.
const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP flags (RFC 9293 §3.1, RFC 3168 §6.1): of the last packet of a train alone, and of the first.
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// A packet or a train, as it was read: the device's header, then IP.
#[derive(Debug)]
pub(crate) struct Train {
    bytes: Vec<u8>,
    /// Of `bytes`, with the device's header.
    len: usize,
    header: VirtioNetHdr,
    /// How it is cut; `None` for a single packet.
    cut: Option<Cut>,
}

/// Offsets are from the beginning of the IP packet.
#[derive(Debug, Clone, Copy)]
struct Cut {
    transport_at: usize,
    payload_at: usize,
    protocol: u8,
    /// Of payload in each packet but the last, bytes.
    segment_bytes: usize,
    count: usize,
}

impl Train {
    /// Takes the first `len` bytes of `bytes`, or gives them back if they are no packet.
    pub(crate) fn new(bytes: Vec<u8>, len: usize) -> Result<Train, Vec<u8>> {
        let read = &bytes[..len];
        let Some((header, packet)) = VirtioNetHdr::decode(read).ok().zip(read.get(VIRTIO_NET_HDR_LEN..)) else {
            return Err(bytes);
        };
        let cut = match header.gso_type & !HAS_CWR {
            NO_TRAIN if !packet.is_empty() => None,
            kind => match Cut::of(kind, &header, packet) {
                Some(cut) => Some(cut),
                None => return Err(bytes),
            },
        };
        Ok(Train { bytes, len, header, cut })
    }

    /// The memory, for the next read.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// What it takes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn packet(&self) -> &[u8] {
        &self.bytes[VIRTIO_NET_HDR_LEN..self.len]
    }

    /// Packets, 1 at least.
    pub(crate) fn count(&self) -> usize {
        self.cut.map_or(1, |cut| cut.count)
    }

    /// Bytes of IP of one of its packets.
    pub(crate) fn packet_bytes(&self, at: usize) -> usize {
        match self.cut {
            None => self.packet().len(),
            Some(cut) => cut.payload_at + cut.payload(at..at + 1, self.packet().len()).len(),
        }
    }

    /// Some of its packets, as the device takes them: `head` is overwritten with what comes first, and the rest follows it.
    pub(crate) fn part<'a>(&'a self, packets: Range<usize>, head: &mut Vec<u8>) -> &'a [u8] {
        head.clear();
        let Some(cut) = self.cut.filter(|cut| packets != (0..cut.count)) else { return &self.bytes[..self.len] };
        let packet = self.packet();
        let payload = &packet[cut.payload(packets.clone(), packet.len())];
        let mut header = VirtioNetHdr { hdr_len: cut.payload_at as u16, ..self.header };
        if packets.len() == 1 {
            (header.gso_type, header.gso_size) = (NO_TRAIN, 0);
        } else if packets.start > 0 {
            header.gso_type &= !HAS_CWR;
        }
        head.resize(VIRTIO_NET_HDR_LEN, 0);
        header.encode(head).expect("there is room for it");
        head.extend_from_slice(&packet[..cut.payload_at]);
        cut.rewrite(&mut head[VIRTIO_NET_HDR_LEN..], &packets, payload.len(), usize::from(header.csum_offset));
        payload
    }
}

impl Cut {
    /// `None` if the packet is not what its header says.
    fn of(kind: u8, header: &VirtioNetHdr, packet: &[u8]) -> Option<Cut> {
        let protocol = match kind {
            VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_TCPV6 => TCP,
            VIRTIO_NET_HDR_GSO_UDP_L4 => UDP,
            _ => return None,
        };
        let ip_bytes = match packet.first()? >> 4 {
            4 => usize::from(packet[0] & 0x0f) * 4,
            6 => 40,
            _ => return None,
        };
        let transport_at = usize::from(header.csum_start);
        let header_bytes = match protocol {
            TCP => usize::from(packet.get(transport_at + 12)? >> 4) * 4,
            _ => 8,
        };
        let payload_at = transport_at + header_bytes;
        let segment_bytes = usize::from(header.gso_size);
        let payload_bytes = packet.len().checked_sub(payload_at).filter(|bytes| *bytes > 0)?;
        let is_whole = header.flags & NEEDS_CHECKSUM != 0
            && ip_bytes >= 20
            && ip_bytes <= transport_at
            && header_bytes >= if protocol == TCP { 20 } else { 8 }
            && usize::from(header.csum_offset) + 2 <= header_bytes
            && segment_bytes > 0;
        let count = payload_bytes.div_ceil(segment_bytes.max(1));
        is_whole.then_some(Cut { transport_at, payload_at, protocol, segment_bytes, count })
    }

    /// Where the payload of some packets is.
    fn payload(&self, packets: Range<usize>, packet_bytes: usize) -> Range<usize> {
        let at = |number: usize| (self.payload_at + number * self.segment_bytes).min(packet_bytes);
        at(packets.start)..at(packets.end)
    }

    /// Makes the headers of a train those of some of its packets.
    fn rewrite(&self, headers: &mut [u8], packets: &Range<usize>, payload_bytes: usize, checksum_at: usize) {
        let transport_bytes = self.payload_at - self.transport_at + payload_bytes;
        let is_v6 = headers[0] >> 4 == 6;
        if is_v6 {
            // RFC 8200 §3: without the fixed header.
            put(headers, 4, self.payload_at - 40 + payload_bytes);
        } else {
            put(headers, 2, self.payload_at + payload_bytes);
            put(headers, 4, usize::from(u16::from_be_bytes([headers[4], headers[5]])) + packets.start);
            put(headers, 10, 0);
            let checksum = !folded(sum(&headers[..usize::from(headers[0] & 0x0f) * 4]));
            put(headers, 10, usize::from(checksum));
        }
        if self.protocol == UDP {
            put(headers, self.transport_at + 4, transport_bytes);
        } else {
            let sequence = &mut headers[self.transport_at + 4..self.transport_at + 8];
            let number = u32::from_be_bytes(sequence.try_into().expect("four bytes"));
            let passed = (packets.start * self.segment_bytes) as u32;
            sequence.copy_from_slice(&number.wrapping_add(passed).to_be_bytes());
            let flags = &mut headers[self.transport_at + 13];
            if packets.end < self.count {
                *flags &= !FIN_AND_PSH;
            }
            if packets.start > 0 {
                *flags &= !CWR;
            }
        }
        // RFC 9293 §3.1: the pseudo-header's sum; the receiver's kernel computes the rest if it needs it.
        let addresses = if is_v6 { sum(&headers[8..40]) } else { sum(&headers[12..20]) };
        let partial = folded(addresses + u64::from(self.protocol) + transport_bytes as u64);
        put(headers, self.transport_at + checksum_at, usize::from(partial));
    }
}

/// The low 16 bits, in network order.
fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

/// Of 16-bit words (RFC 1071); an odd byte counts as if a zero followed it.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|two| u64::from(two[0]) << 8 | u64::from(two.get(1).copied().unwrap_or(0))).sum()
}

fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// One packet of a train, under way.
#[derive(Debug, Clone)]
pub(crate) struct Packet {
    pub(crate) train: std::rc::Rc<Train>,
    pub(crate) at: usize,
}

impl WithLen for Packet {
    fn len(&self) -> usize {
        self.train.packet_bytes(self.at)
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a train is cut as the kernel would have cut it: tun-rs cuts it too, checksums computed, and the packets are the same.
    use super::*;

    /// A train of TCP or UDP over IPv4 or IPv6, as a device hands it over.
    fn train(is_v6: bool, protocol: u8, payload_bytes: usize, segment_bytes: u16) -> Vec<u8> {
        let transport = if protocol == TCP { 32 } else { 8 };
        let ip = if is_v6 { 40 } else { 20 };
        let length = transport + payload_bytes;
        let mut packet = vec![0; ip];
        if is_v6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            (packet[6], packet[7]) = (protocol, 64);
            (packet[8..40]).copy_from_slice(&std::array::from_fn::<u8, 32, _>(|at| 7 * at as u8));
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&((ip + length) as u16).to_be_bytes());
            packet[4..6].copy_from_slice(&0xfffe_u16.to_be_bytes());
            (packet[6], packet[8], packet[9]) = (0x40, 64, protocol);
            packet[12..20].copy_from_slice(&[10, 216, 0, 1, 10, 216, 0, 2]);
            let checksum = !folded(sum(&packet));
            packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        let mut head = vec![0; transport];
        head[..4].copy_from_slice(&[0x1f, 0x90, 0x0c, 0xbc]);
        if protocol == TCP {
            head[4..8].copy_from_slice(&0xffff_fff0_u32.to_be_bytes());
            (head[12], head[13]) = (0x80, 0x10 | FIN_AND_PSH);
            head[20..32].fill(1);
        } else {
            head[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        }
        let checksum_at = if protocol == TCP { 16 } else { 6 };
        let addresses = if is_v6 { sum(&packet[8..40]) } else { sum(&packet[12..20]) };
        let partial = folded(addresses + u64::from(protocol) + length as u64);
        head[checksum_at..checksum_at + 2].copy_from_slice(&partial.to_be_bytes());
        packet.extend(head);
        packet.extend((0..payload_bytes).map(|at| (at * 31 + at / 256) as u8));
        let kind = match (protocol, is_v6) {
            (UDP, _) => VIRTIO_NET_HDR_GSO_UDP_L4,
            (_, false) => VIRTIO_NET_HDR_GSO_TCPV4,
            (_, true) => VIRTIO_NET_HDR_GSO_TCPV6,
        };
        let header = VirtioNetHdr {
            flags: NEEDS_CHECKSUM,
            gso_type: if segment_bytes > 0 { kind } else { NO_TRAIN },
            hdr_len: (ip + transport) as u16,
            gso_size: segment_bytes,
            csum_start: ip as u16,
            csum_offset: checksum_at as u16,
        };
        let mut bytes = vec![0; VIRTIO_NET_HDR_LEN];
        header.encode(&mut bytes).unwrap();
        [bytes, packet].concat()
    }

    /// As the kernel or a network card would: packets with all their checksums.
    fn cut_by_reference(bytes: &[u8]) -> Vec<Vec<u8>> {
        let header = VirtioNetHdr::decode(bytes).unwrap();
        let mut packet = bytes[VIRTIO_NET_HDR_LEN..].to_vec();
        if header.gso_type == NO_TRAIN {
            let start = usize::from(header.csum_start);
            let checksum = !folded(sum(&packet[start..]));
            put(&mut packet, start + usize::from(header.csum_offset), usize::from(checksum));
            return vec![packet];
        }
        let (mut cut, mut sizes) = (vec![vec![0; 2000]; 128], vec![0; 128]);
        let is_v6 = packet[0] >> 4 == 6;
        let count = tun_rs::gso_split(&mut packet, header, &mut cut, &mut sizes, 0, is_v6).unwrap();
        cut.truncate(count);
        cut.iter_mut().zip(sizes).for_each(|(packet, size)| packet.truncate(size));
        cut
    }

    #[test]
    fn parts_of_a_train_are_the_packets_that_it_would_have_been_cut_into() {
        for (is_v6, protocol) in [(false, TCP), (true, TCP), (false, UDP), (true, UDP)] {
            for payload_bytes in [1448 * 9 + 700, 1448 * 10, 1449] {
                let bytes = train(is_v6, protocol, payload_bytes, 1448);
                let whole = cut_by_reference(&bytes);
                let (len, mut head) = (bytes.len(), Vec::new());
                let read = Train::new([bytes, vec![0xee; 100]].concat(), len).unwrap();
                assert_eq!(read.count(), whole.len());
                for start in 0..whole.len() {
                    assert_eq!(read.packet_bytes(start), whole[start].len());
                    for end in start + 1..=whole.len() {
                        let rest = read.part(start..end, &mut head);
                        let part = cut_by_reference(&[&head[..], rest].concat());
                        assert!(part == whole[start..end], "IPv6 {is_v6}, protocol {protocol}: {start}..{end}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_packet_goes_on_as_it_came() {
        let bytes = train(false, TCP, 900, 0);
        let packet = Train::new(bytes.clone(), bytes.len()).unwrap();
        let mut head = vec![1, 2, 3];
        assert_eq!((packet.count(), packet.packet_bytes(0)), (1, bytes.len() - VIRTIO_NET_HDR_LEN));
        assert!(packet.part(0..1, &mut head) == &bytes[..] && head.is_empty());
    }

    #[test]
    fn what_is_no_train_is_not_carried() {
        let good = train(false, TCP, 5000, 1448);
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            let len = bytes.len();
            Train::new(bytes, len).is_err()
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|bytes| bytes.truncate(5)), "no header");
        assert!(refused(&|bytes| bytes.truncate(VIRTIO_NET_HDR_LEN)), "no packet");
        assert!(refused(&|bytes| bytes.truncate(VIRTIO_NET_HDR_LEN + 40)), "no payload");
        assert!(refused(&|bytes| bytes[0] = 0), "no checksum to complete");
        assert!(refused(&|bytes| bytes[1] = 3), "fragments");
        assert!(refused(&|bytes| bytes[4..6].fill(0)), "packets of nothing");
        assert!(refused(&|bytes| bytes[6..8].fill(0xff)), "a header beyond the end");
        assert!(refused(&|bytes| bytes[8..10].fill(0xff)), "a checksum beyond the header");
        assert!(refused(&|bytes| bytes[VIRTIO_NET_HDR_LEN] = 0x15), "not IP");
        let longer = |bytes: &mut Vec<u8>| {
            bytes.truncate(VIRTIO_NET_HDR_LEN + 70);
            bytes[VIRTIO_NET_HDR_LEN + 32] = 0xf0;
        };
        assert!(refused(&longer), "a header that is longer than the packet");
    }
}

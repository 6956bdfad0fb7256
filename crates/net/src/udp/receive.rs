//! Receiving: a train of packets in one call, each quantum in memory of its own where packets are as long as expected.

#![allow(unsafe_code)] // A call with control messages that no library knows.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use strongroom_block::{Buffer, BufferMut};

use super::address::RawAddress;
use super::control::Control;
use super::packet::{PacketSplit, UdpCounters, UdpPacket};

/// More than any datagram or train that one call brings.
const TRAIN_BYTES_MAX: usize = 64 << 10;
/// The usual split, until a socket is told another: a header, a seal record and a tag, and the usual block.
const SPLIT_DEFAULT: PacketSplit = PacketSplit { head_bytes: 136, quantum_bytes: 4096 };
/// Errors that the network reported for packets sent before; each is reported once.
const REPORTS_MAX: usize = 16;

/// Pieces of memory for one train: for each packet a piece for what is in front of a quantum, and a quantum.
#[derive(Debug)]
pub(super) struct ReceiveBuffers {
    split: PacketSplit,
    heads: Vec<u8>,
    quanta: Vec<BufferMut>,
}

impl Default for ReceiveBuffers {
    fn default() -> ReceiveBuffers {
        ReceiveBuffers::new(SPLIT_DEFAULT)
    }
}

impl ReceiveBuffers {
    fn new(split: PacketSplit) -> ReceiveBuffers {
        let count = TRAIN_BYTES_MAX.div_ceil(split.head_bytes + split.quantum_bytes);
        ReceiveBuffers {
            split,
            heads: vec![0; count * split.head_bytes],
            quanta: (0..count).map(|_| BufferMut::zeroed(split.quantum_bytes)).collect(),
        }
    }

    pub(super) fn expect(&mut self, split: PacketSplit) {
        assert!(split.head_bytes > 0 && split.quantum_bytes > 0, "packets have a head and a quantum");
        if self.split != split {
            *self = ReceiveBuffers::new(split);
        }
    }

    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        packets: &mut Vec<UdpPacket>,
        counters: &mut UdpCounters,
    ) -> bool {
        let mut source = RawAddress::empty();
        let mut control = Control::new();
        let mut reports = 0;
        let len_bytes = loop {
            counters.receives += 1;
            match self.receive_train(socket, &mut source, &mut control) {
                Ok(len_bytes) => break len_bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                // Somebody claims that an earlier packet did not arrive: whether that is so, its sender finds out.
                Err(_) if reports < REPORTS_MAX => reports += 1,
                Err(_) => return false,
            }
        };
        let Some(source) = source.decode() else { return true };
        let info = control.packet_info();
        let segment_bytes = info.segment_bytes.unwrap_or(len_bytes).max(1);
        for (index, start) in (0..len_bytes).step_by(segment_bytes).enumerate() {
            let end = (start + segment_bytes).min(len_bytes);
            let is_as_expected = segment_bytes == self.split.head_bytes + self.split.quantum_bytes;
            counters.packets_received += 1;
            let (head, rest) = match is_as_expected && end - start == segment_bytes {
                true => {
                    counters.packets_placed += 1;
                    self.take(index)
                }
                false => (self.gather(start, end), Buffer::empty()),
            };
            packets.push(UdpPacket { source, ecn: info.ecn, head, rest });
        }
        true
    }

    /// A packet that lies as it should; its quantum's place gets other memory.
    fn take(&mut self, index: usize) -> (Vec<u8>, Buffer) {
        let PacketSplit { head_bytes, quantum_bytes } = self.split;
        let head = self.heads[index * head_bytes..][..head_bytes].to_vec();
        let quantum = std::mem::replace(&mut self.quanta[index], BufferMut::to_fill(quantum_bytes));
        (head, quantum.freeze())
    }

    /// The bytes from `start` to `end` of what was received.
    fn gather(&self, start: usize, end: usize) -> Vec<u8> {
        let PacketSplit { head_bytes, quantum_bytes } = self.split;
        let pair_bytes = head_bytes + quantum_bytes;
        let mut whole = Vec::with_capacity(end - start);
        let mut at = start;
        while at < end {
            let (index, within) = (at / pair_bytes, at % pair_bytes);
            let piece = match within < head_bytes {
                true => &self.heads[index * head_bytes..][..head_bytes][within..],
                false => &self.quanta[index][within - head_bytes..],
            };
            let piece = &piece[..piece.len().min(end - at)];
            whole.extend_from_slice(piece);
            at += piece.len();
        }
        whole
    }

    fn receive_train(
        &mut self,
        socket: BorrowedFd<'_>,
        source: &mut RawAddress,
        control: &mut Control,
    ) -> Result<usize, Errno> {
        let mut pieces = Vec::with_capacity(2 * self.quanta.len());
        for (head, quantum) in self.heads.chunks_exact_mut(self.split.head_bytes).zip(&mut self.quanta) {
            pieces.push(IoSliceMut::new(head));
            pieces.push(IoSliceMut::new(quantum));
        }
        // SAFETY: an all-zero msghdr is a valid, empty one.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        let room = control.room();
        message.msg_name = (&raw mut *source).cast();
        message.msg_namelen = RawAddress::BYTES;
        // An IoSliceMut is an iovec.
        message.msg_iov = pieces.as_mut_ptr().cast();
        message.msg_iovlen = pieces.len() as _;
        message.msg_control = room.as_mut_ptr().cast();
        message.msg_controllen = room.len() as _;
        // SAFETY: the message leads to memory that is ours alone, lives until the call returns, and is as long as is said.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let len_bytes = usize::try_from(received)
            .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))?;
        control.filled(message.msg_controllen as usize);
        Ok(len_bytes)
    }
}

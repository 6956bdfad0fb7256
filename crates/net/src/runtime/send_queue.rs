//! What a stream still owes its peer: buffers in order, handed to the kernel by reference, never copied.

use std::collections::VecDeque;
use std::io::IoSlice;

use strongroom_block::Buffer;

/// Buffers handed to the kernel in one call. More gain nothing: 64 PDUs (header and data) are far above what amortises
/// the call, and the kernel copies the table each time.
pub(crate) const SLICES_MAX: usize = 128;

/// Bytes handed to the kernel in one call at most. The kernel takes what its send buffer holds; offering far more only
/// makes it walk the table.
pub(crate) const CALL_BYTES_MAX: usize = 4 << 20;

/// Outbound bytes in order. `front_offset` bytes of the first buffer are sent already.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    buffers: VecDeque<Buffer>,
    front_offset: usize,
    len_bytes: usize,
}

impl SendQueue {
    /// Moves all `buffers` to the end of the queue; empty ones vanish.
    pub(crate) fn append(&mut self, buffers: &mut Vec<Buffer>) -> usize {
        let before = self.len_bytes;
        for buffer in buffers.drain(..) {
            if !buffer.is_empty() {
                self.len_bytes += buffer.len();
                self.buffers.push_back(buffer);
            }
        }
        self.len_bytes - before
    }

    /// All of it, copied.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let all: Vec<u8> = self.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        all[self.front_offset..].to_vec()
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Fills `slices` from the queue's front, in order; returns how many were filled.
    pub(crate) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES_MAX]) -> usize {
        let mut count = 0;
        for part in self.parts() {
            slices[count] = IoSlice::new(part);
            count += 1;
        }
        count
    }

    /// The parts of one call, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let mut bytes = 0;
        self.buffers
            .iter()
            .enumerate()
            .map(|(index, buffer)| if index == 0 { &buffer[self.front_offset..] } else { &buffer[..] })
            .take(SLICES_MAX)
            .take_while(move |part| {
                let room = bytes < CALL_BYTES_MAX;
                bytes += part.len();
                room
            })
    }

    /// The kernel took `sent` bytes.
    pub(crate) fn advance(&mut self, sent: usize) {
        assert!(sent <= self.len_bytes, "the kernel cannot take more than it was offered");
        self.len_bytes -= sent;
        self.front_offset += sent;
        while let Some(front) = self.buffers.front() {
            if self.front_offset < front.len() {
                return;
            }
            self.front_offset -= front.len();
            self.buffers.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However many bytes the kernel takes per call, each leaves once and in order.
        #[test]
        fn partial_writes_keep_the_order(
            lens in proptest::collection::vec(0usize..300, 0..300),
            takes in proptest::collection::vec(1usize..5000, 1..50),
        ) {
            let mut expected = Vec::new();
            let mut buffers: Vec<Buffer> = lens.iter().enumerate().map(|(index, &len)| {
                let bytes = vec![index as u8; len];
                expected.extend_from_slice(&bytes);
                Buffer::copy_from(&bytes)
            }).collect();
            let mut queue = SendQueue::default();
            prop_assert_eq!(queue.append(&mut buffers), expected.len());
            let mut sent = Vec::new();
            let mut takes = takes.iter().cycle();
            while !queue.is_empty() {
                let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                let count = queue.fill(&mut slices);
                let offered: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert!(!offered.is_empty());
                let take = (*takes.next().unwrap()).min(offered.len());
                sent.extend_from_slice(&offered[..take]);
                queue.advance(take);
            }
            prop_assert_eq!(sent, expected);
        }
    }
}

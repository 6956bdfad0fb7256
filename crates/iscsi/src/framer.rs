//! PDUs on a plain byte stream (RFC 7143 §11.2): no digests, padding to four bytes. Inside a channel the frames do this.

use bytes::Bytes;
use strongroom_block::{Buffer, BufferMut};

use crate::ahs;
use crate::login::LOGIN_SEGMENT_BYTES;
use crate::pdu::{BHS_BYTES, Bhs, Opcode, PLAIN_AHS_BYTES_MAX, Pdu, PduError};

/// Cuts a byte stream into PDUs.
///
/// Lengths are checked against the limits before anything is allocated. Block data is copied once, into an aligned buffer,
/// or not at all by a driver that reads straight into [`PlainFramer::payload_space`].
#[derive(Debug)]
pub struct PlainFramer {
    data_bytes_max: usize,
    header: [u8; BHS_BYTES + PLAIN_AHS_BYTES_MAX],
    header_filled: usize,
    payload: Option<Payload>,
    ready: Option<Pdu>,
    failed: Option<PduError>,
}

/// A data segment that is being filled, and the padding that follows.
#[derive(Debug)]
struct Payload {
    memory: Memory,
    filled: usize,
    padding_left: usize,
}

/// Block data goes to aligned memory; text and sense are too small and rare to deserve a page.
#[derive(Debug)]
enum Memory {
    Aligned(BufferMut),
    Small(Vec<u8>),
}

impl Memory {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Aligned(buffer) => buffer,
            Memory::Small(bytes) => bytes,
        }
    }

    fn freeze(self) -> Buffer {
        match self {
            Memory::Aligned(buffer) => buffer.freeze(),
            Memory::Small(bytes) => Buffer::from(Bytes::from(bytes)),
        }
    }
}

impl Default for PlainFramer {
    fn default() -> PlainFramer {
        PlainFramer::new(LOGIN_SEGMENT_BYTES as usize)
    }
}

impl PlainFramer {
    /// A framer at the start of a stream that takes data segments of up to `data_bytes_max`: this side's
    /// MaxRecvDataSegmentLength, but at least 8192.
    pub fn new(data_bytes_max: usize) -> PlainFramer {
        PlainFramer {
            data_bytes_max: data_bytes_max.max(LOGIN_SEGMENT_BYTES as usize),
            header: [0; BHS_BYTES + PLAIN_AHS_BYTES_MAX],
            header_filled: 0,
            payload: None,
            ready: None,
            failed: None,
        }
    }

    /// Takes bytes up to the end of one PDU and returns how many. Take the PDU with [`PlainFramer::poll_pdu`] before
    /// handing in the rest; while one waits nothing is taken.
    ///
    /// # Errors
    /// [`PduError`]: the stream cannot be read any further. Close the connection; every further call says the same.
    pub fn handle_input(&mut self, bytes: &[u8]) -> Result<usize, PduError> {
        let mut taken = 0;
        while taken < bytes.len() && self.ready.is_none() {
            if let Some(error) = self.failed {
                return Err(error);
            }
            taken += match &mut self.payload {
                None => self.take_header(&bytes[taken..]).inspect_err(|error| self.failed = Some(*error))?,
                Some(payload) => {
                    let count = payload.take(&bytes[taken..]);
                    self.finish_payload();
                    count
                }
            };
        }
        Ok(taken)
    }

    /// The PDU that is complete, if one is.
    pub fn poll_pdu(&mut self) -> Option<Pdu> {
        self.ready.take()
    }

    /// Where the rest of the current data segment goes, for a driver that reads into place. `None` between data
    /// segments: read elsewhere and call [`PlainFramer::handle_input`].
    pub fn payload_space(&mut self) -> Option<&mut [u8]> {
        let payload = self.payload.as_mut()?;
        let filled = payload.filled;
        Some(&mut payload.memory.bytes_mut()[filled..]).filter(|space| !space.is_empty())
    }

    /// Says that the first `count` bytes of [`PlainFramer::payload_space`] were filled.
    ///
    /// # Panics
    /// If there was less space.
    pub fn payload_filled(&mut self, count: usize) {
        let payload = self.payload.as_mut().expect("payload_space gave the space that was filled");
        payload.filled += count;
        assert!(payload.filled <= payload.memory.bytes_mut().len(), "no more than the space was filled");
        self.finish_payload();
    }

    /// Whether the stream may end here: between two PDUs.
    pub fn is_between_pdus(&self) -> bool {
        self.header_filled == 0 && self.payload.is_none() && self.ready.is_none()
    }

    /// Appends the bytes of a PDU to `out`: header, data (shared, not copied) and padding.
    ///
    /// # Panics
    /// If the header segments are longer than a plain PDU can say, or the PDU is sealed: sessions outside a channel make
    /// neither.
    pub fn encode(pdu: Pdu, out: &mut Vec<Buffer>) {
        assert!(pdu.ahs.len() <= PLAIN_AHS_BYTES_MAX && !pdu.sealed, "only a channel carries this PDU");
        let mut header = Vec::with_capacity(pdu.header_bytes());
        header.extend_from_slice(&pdu.bhs.0);
        header[4] = (pdu.ahs.len() / 4) as u8;
        header.extend_from_slice(&pdu.ahs);
        out.push(Buffer::from(Bytes::from(header)));
        let padding = padding_bytes(pdu.data.len());
        if !pdu.data.is_empty() {
            out.push(pdu.data);
        }
        if padding > 0 {
            out.push(Buffer::from(Bytes::from_static(&[0; 3])).slice(..padding));
        }
    }

    fn take_header(&mut self, bytes: &[u8]) -> Result<usize, PduError> {
        let wanted = match self.header_filled {
            0..BHS_BYTES => BHS_BYTES,
            _ => BHS_BYTES + self.bhs().total_ahs_bytes(),
        };
        let count = bytes.len().min(wanted - self.header_filled);
        self.header[self.header_filled..self.header_filled + count].copy_from_slice(&bytes[..count]);
        self.header_filled += count;
        if self.header_filled == BHS_BYTES {
            self.check_bhs()?;
        }
        if self.header_filled >= BHS_BYTES && self.header_filled == BHS_BYTES + self.bhs().total_ahs_bytes() {
            self.start_payload()?;
        }
        Ok(count)
    }

    fn bhs(&self) -> Bhs {
        Bhs(self.header[..BHS_BYTES].try_into().expect("48 bytes"))
    }

    fn check_bhs(&self) -> Result<(), PduError> {
        let bhs = self.bhs();
        if bhs.opcode().is_none() {
            return Err(PduError::Opcode(bhs.opcode_bits()));
        }
        if bhs.data_segment_bytes() > self.data_bytes_max {
            return Err(PduError::DataTooLong { len_bytes: bhs.data_segment_bytes(), max_bytes: self.data_bytes_max });
        }
        Ok(())
    }

    fn start_payload(&mut self) -> Result<(), PduError> {
        let bhs = self.bhs();
        ahs::check(&self.header[BHS_BYTES..self.header_filled])?;
        let len_bytes = bhs.data_segment_bytes();
        let is_block_data =
            matches!(bhs.opcode(), Some(Opcode::ScsiCommand | Opcode::DataOut | Opcode::DataIn)) && len_bytes > 0;
        let memory = if is_block_data {
            Memory::Aligned(BufferMut::zeroed(len_bytes))
        } else {
            Memory::Small(vec![0; len_bytes])
        };
        self.payload = Some(Payload { memory, filled: 0, padding_left: padding_bytes(len_bytes) });
        self.finish_payload();
        Ok(())
    }

    fn finish_payload(&mut self) {
        let Some(mut payload) = self.payload.take() else { return };
        if payload.filled < payload.memory.bytes_mut().len() || payload.padding_left > 0 {
            self.payload = Some(payload);
            return;
        }
        let ahs = Bytes::copy_from_slice(&self.header[BHS_BYTES..self.header_filled]);
        self.ready = Some(Pdu { bhs: self.bhs(), ahs, data: payload.memory.freeze(), sealed: false });
        self.header_filled = 0;
    }
}

impl Payload {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let space = &mut self.memory.bytes_mut()[self.filled..];
        let count = bytes.len().min(space.len());
        space[..count].copy_from_slice(&bytes[..count]);
        self.filled += count;
        let padding = (bytes.len() - count).min(self.padding_left);
        self.padding_left -= padding;
        count + padding
    }
}

fn padding_bytes(len_bytes: usize) -> usize {
    (4 - len_bytes % 4) % 4
}

/// Feeds arbitrary bytes to a framer, in pieces, for fuzzing.
#[doc(hidden)]
pub fn fuzz_framer(bytes: &[u8]) {
    let mut framer = PlainFramer::default();
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(1 + usize::from(rest[0]))];
        let Ok(taken) = framer.handle_input(piece) else { return };
        rest = &rest[taken..];
        if let Some(pdu) = framer.poll_pdu() {
            let mut out = Vec::new();
            let mut again = PlainFramer::default();
            PlainFramer::encode(pdu.clone(), &mut out);
            for part in &out {
                assert_eq!(again.handle_input(part), Ok(part.len()), "a decoded PDU encodes to a valid one");
            }
            assert_eq!(again.poll_pdu(), Some(pdu), "a PDU decodes as encoded");
        }
    }
}

#[cfg(test)]
mod tests;

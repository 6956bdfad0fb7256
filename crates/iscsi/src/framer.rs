//! PDUs on a plain byte stream (RFC 7143 §11.2): padding to four bytes, and CRC32C digests where the login agreed on them.
//! Inside a channel the frames do this.

use bytes::Bytes;
use crc_fast::CrcAlgorithm;
use strongroom_block::{Buffer, BufferMut};

use crate::ahs;
use crate::pdu::bhs::LOGIN_SEGMENT_BYTES;
use crate::pdu::{BHS_BYTES, Bhs, Opcode, PLAIN_AHS_BYTES_MAX, Pdu, PduError};

/// Bytes of a digest.
const DIGEST_BYTES: usize = 4;

/// Which parts of a PDU have a CRC32C behind them (RFC 7143 §13.1). None until the login is over, nor ever on a PDU of a login.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Digests {
    /// The header, its additional segments included.
    pub header: bool,
    /// The data, its padding included.
    pub data: bool,
}

impl Digests {
    fn for_opcode(self, bits: u8) -> Digests {
        let of_login = [Opcode::LoginRequest as u8, Opcode::LoginResponse as u8].contains(&bits);
        if of_login { Digests::default() } else { self }
    }
}

/// CRC32C over parts, as its four bytes on the wire (RFC 7143 Appendix B.4: the least significant byte first).
fn digest(parts: &[&[u8]]) -> [u8; DIGEST_BYTES] {
    let crc = match parts {
        [whole] | [whole, []] => crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, whole),
        _ => {
            let mut state = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
            parts.iter().for_each(|part| state.update(part));
            state.finalize()
        }
    };
    (crc as u32).to_le_bytes()
}

/// Cuts a byte stream into PDUs.
///
/// Lengths are checked against the limits before anything is allocated. Block data is copied once, into an aligned buffer,
/// or not at all by a driver that reads straight into [`PlainFramer::payload_space`].
#[derive(Debug)]
pub struct PlainFramer {
    data_bytes_max: usize,
    /// Of the PDU that is being read.
    digests: Digests,
    /// Of those that follow.
    next_digests: Digests,
    header: [u8; BHS_BYTES + PLAIN_AHS_BYTES_MAX + DIGEST_BYTES],
    header_filled: usize,
    payload: Option<Payload>,
    ready: Option<Pdu>,
    /// What is ready has a wrong data digest.
    is_corrupt: bool,
    failed: Option<PduError>,
}

/// A data segment that is being filled, and the padding and digest that follow.
#[derive(Debug)]
struct Payload {
    memory: Memory,
    filled: usize,
    padding_bytes: usize,
    tail: [u8; 3 + DIGEST_BYTES],
    tail_filled: usize,
    tail_bytes: usize,
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
            digests: Digests::default(),
            next_digests: Digests::default(),
            header: [0; BHS_BYTES + PLAIN_AHS_BYTES_MAX + DIGEST_BYTES],
            header_filled: 0,
            payload: None,
            ready: None,
            is_corrupt: false,
            failed: None,
        }
    }

    /// What the login agreed on; from the next PDU on. One that has begun already, which no peer may do, ends as it began.
    pub fn set_digests(&mut self, digests: Digests) {
        self.next_digests = digests;
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
        if self.is_corrupt { None } else { self.ready.take() }
    }

    /// A PDU that is complete but has a wrong data digest: its header is right, its data is not.
    pub fn poll_corrupt(&mut self) -> Option<Pdu> {
        std::mem::take(&mut self.is_corrupt).then(|| self.ready.take()).flatten()
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

    /// Appends the bytes of a PDU to `out`: header, data (shared, not copied), padding, and `digests`.
    ///
    /// # Panics
    /// If the header segments are longer than a plain PDU can say, or the PDU is sealed: sessions outside a channel make
    /// neither.
    pub fn encode(pdu: Pdu, digests: Digests, out: &mut Vec<Buffer>) {
        assert!(pdu.ahs.len() <= PLAIN_AHS_BYTES_MAX && !pdu.sealed, "only a channel carries this PDU");
        let digests = digests.for_opcode(pdu.bhs.opcode_bits());
        let mut header = Vec::with_capacity(pdu.header_bytes() + DIGEST_BYTES);
        header.extend_from_slice(&pdu.bhs.0);
        header[4] = (pdu.ahs.len() / 4) as u8;
        header.extend_from_slice(&pdu.ahs);
        if digests.header {
            let digest = digest(&[&header]);
            header.extend_from_slice(&digest);
        }
        out.push(Buffer::from(Bytes::from(header)));
        let padding = padding_bytes(pdu.data.len());
        if pdu.data.is_empty() {
            return;
        }
        let tail = digests.data.then(|| {
            let mut tail = vec![0; padding];
            let digest = digest(&[&pdu.data, &tail]);
            tail.extend_from_slice(&digest);
            tail
        });
        out.push(pdu.data);
        if let Some(tail) = tail {
            out.push(Buffer::from(Bytes::from(tail)));
        } else if padding > 0 {
            out.push(Buffer::from(Bytes::from_static(&[0; 3])).slice(..padding));
        }
    }

    fn take_header(&mut self, bytes: &[u8]) -> Result<usize, PduError> {
        if self.header_filled == 0 {
            self.digests = self.next_digests;
        }
        let wanted = match self.header_filled {
            0..BHS_BYTES => BHS_BYTES,
            _ => self.header_bytes(),
        };
        let count = bytes.len().min(wanted - self.header_filled);
        self.header[self.header_filled..self.header_filled + count].copy_from_slice(&bytes[..count]);
        self.header_filled += count;
        if self.header_filled == BHS_BYTES {
            self.check_bhs()?;
        }
        if self.header_filled >= BHS_BYTES && self.header_filled == self.header_bytes() {
            self.start_payload()?;
        }
        Ok(count)
    }

    fn digests(&self) -> Digests {
        self.digests.for_opcode(self.bhs().opcode_bits())
    }

    /// Of the header that is being filled, its digest included.
    fn header_bytes(&self) -> usize {
        BHS_BYTES + self.bhs().total_ahs_bytes() + if self.digests().header { DIGEST_BYTES } else { 0 }
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
        let (bhs, digests) = (self.bhs(), self.digests());
        if digests.header {
            self.header_filled -= DIGEST_BYTES;
            let (header, found) = self.header.split_at(self.header_filled);
            if digest(&[header]) != found[..DIGEST_BYTES] {
                return Err(PduError::HeaderDigest);
            }
        }
        ahs::check(&self.header[BHS_BYTES..self.header_filled])?;
        let len_bytes = bhs.data_segment_bytes();
        let is_block_data =
            matches!(bhs.opcode(), Some(Opcode::ScsiCommand | Opcode::DataOut | Opcode::DataIn)) && len_bytes > 0;
        let memory = if is_block_data {
            // All of it is filled before it is passed on.
            Memory::Aligned(BufferMut::to_fill(len_bytes))
        } else {
            Memory::Small(vec![0; len_bytes])
        };
        let padding_bytes = padding_bytes(len_bytes);
        let digest_bytes = if digests.data && len_bytes > 0 { DIGEST_BYTES } else { 0 };
        self.payload = Some(Payload {
            memory,
            filled: 0,
            padding_bytes,
            tail: [0; 3 + DIGEST_BYTES],
            tail_filled: 0,
            tail_bytes: padding_bytes + digest_bytes,
        });
        self.finish_payload();
        Ok(())
    }

    fn finish_payload(&mut self) {
        let Some(mut payload) = self.payload.take() else { return };
        if payload.filled < payload.memory.bytes_mut().len() || payload.tail_filled < payload.tail_bytes {
            self.payload = Some(payload);
            return;
        }
        self.is_corrupt = !payload.is_intact();
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
        let rest = &bytes[count..];
        let tail = rest.len().min(self.tail_bytes - self.tail_filled);
        self.tail[self.tail_filled..self.tail_filled + tail].copy_from_slice(&rest[..tail]);
        self.tail_filled += tail;
        count + tail
    }

    /// Whether the data is what its digest says; true where there is none.
    fn is_intact(&mut self) -> bool {
        if self.tail_bytes < DIGEST_BYTES {
            return true;
        }
        let (padding, found) = self.tail[..self.tail_bytes].split_at(self.padding_bytes);
        digest(&[self.memory.bytes_mut(), padding]) == found
    }
}

fn padding_bytes(len_bytes: usize) -> usize {
    (4 - len_bytes % 4) % 4
}

/// Feeds arbitrary bytes to a framer, in pieces, for fuzzing.
#[doc(hidden)]
pub fn fuzz_framer(bytes: &[u8]) {
    let (shape, mut rest) = bytes.split_first().map_or((0, bytes), |(shape, rest)| (*shape, rest));
    let digests = Digests { header: shape & 1 != 0, data: shape & 2 != 0 };
    let mut framer = PlainFramer::default();
    framer.set_digests(digests);
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(1 + usize::from(rest[0]))];
        let Ok(taken) = framer.handle_input(piece) else { return };
        rest = &rest[taken..];
        if framer.poll_corrupt().is_some() {
            assert!(digests.data, "nothing is found to be corrupt without a digest");
        }
        if let Some(pdu) = framer.poll_pdu() {
            let mut out = Vec::new();
            let mut again = PlainFramer::default();
            again.set_digests(digests);
            PlainFramer::encode(pdu.clone(), digests, &mut out);
            for part in &out {
                assert_eq!(again.handle_input(part), Ok(part.len()), "a decoded PDU encodes to a valid one");
            }
            assert_eq!(again.poll_pdu(), Some(pdu), "a PDU decodes as encoded");
        }
    }
}

#[cfg(test)]
mod tests;

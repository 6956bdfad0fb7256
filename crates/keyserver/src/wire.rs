//! Numbers, names and bytes in messages and records: big-endian, lengths in front and checked before anything is taken.

use strongroom_handshake::PublicKey;
use zeroize::Zeroizing;

use crate::Rights;

/// Bytes that are not what they should be: cut short, too long, or out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed bytes")]
pub(crate) struct Malformed;

/// Takes values off the front of bytes from outside.
pub(crate) struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Take<'a> {
        Take(bytes)
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.bytes(N)?.try_into().expect("as many as were asked for"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    /// Text behind its length in two bytes.
    pub(crate) fn text(&mut self, bytes_max: usize) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > bytes_max {
            return Err(Malformed);
        }
        std::str::from_utf8(self.bytes(length)?).map(str::to_owned).map_err(|_| Malformed)
    }

    /// Bytes behind their length in four.
    pub(crate) fn block(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        self.bytes(length)
    }

    pub(crate) fn public_key(&mut self) -> Result<PublicKey, Malformed> {
        self.array().map(PublicKey::from_bytes)
    }

    pub(crate) fn rights(&mut self) -> Result<Rights, Malformed> {
        Rights::from_bits(self.u8()?).ok_or(Malformed)
    }

    /// How many follow, in four bytes; each takes at least `bytes_each`.
    pub(crate) fn count(&mut self, max: usize, bytes_each: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > max || count.saturating_mul(bytes_each) > self.0.len() { Err(Malformed) } else { Ok(count) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Puts values behind each other, in memory that is wiped. Sized up front: what grows leaves unwiped copies behind.
pub(crate) struct Put(Zeroizing<Vec<u8>>);

impl Put {
    pub(crate) fn with_capacity(bytes: usize) -> Put {
        Put(Zeroizing::new(Vec::with_capacity(bytes)))
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Put {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Put {
        self.bytes(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Put {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Put {
        self.bytes(&value.to_be_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Put {
        self.bytes(&value.to_be_bytes())
    }

    /// At most 65,535 bytes of text; what is beyond is cut.
    pub(crate) fn text(&mut self, text: &str) -> &mut Put {
        let end = text.len().min(usize::from(u16::MAX));
        let cut = (0..=end).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        self.u16(cut as u16).bytes(&text.as_bytes()[..cut])
    }

    pub(crate) fn block(&mut self, bytes: &[u8]) -> &mut Put {
        self.u32(u32::try_from(bytes.len()).expect("records are small")).bytes(bytes)
    }

    pub(crate) fn public_key(&mut self, key: &PublicKey) -> &mut Put {
        self.bytes(key.as_bytes())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn done(self) -> Zeroizing<Vec<u8>> {
        self.0
    }
}

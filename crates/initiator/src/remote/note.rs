//! Notes about a volume, for files of the one who works on it: sealed like a block of the volume, at an address that no volume has. So
//! nobody without its keys can make one up, and one of another volume does not open (`docs/sealed-block.md`, Notes).

use strongroom_block::{BufferMut, DeviceError, DeviceErrorKind, Lba, SealRecord};

use super::RemoteDevice;
use crate::completion::device_error;

/// No volume has so many blocks.
const LBA: Lba = Lba(1 << 63);
const MAGIC: &[u8; 8] = b"SRNOTE1\n";

impl RemoteDevice {
    /// Seals a short text: at most a block less two bytes.
    ///
    /// # Errors
    /// `Refused` on a plain volume, or if it is too long; without keys.
    pub fn seal_note(&self, text: &[u8]) -> Result<Vec<u8>, DeviceError> {
        let refused = |what: &str| device_error(DeviceErrorKind::Refused, None, what);
        let sealing = self.sealing.as_ref().ok_or_else(|| refused("a plain volume has no seal for a note"))?;
        let mut plain = BufferMut::zeroed(sealing.block_bytes());
        let len = u16::try_from(text.len()).ok().filter(|len| usize::from(*len) + 2 <= plain.len());
        let len = len.ok_or_else(|| refused("the note is longer than a block"))?;
        plain[..2].copy_from_slice(&len.to_be_bytes());
        plain[2..2 + text.len()].copy_from_slice(text);
        let sealed = sealing.seal(LBA, &plain)?;
        Ok([MAGIC, &sealed.records[..], &sealed.data[..]].concat())
    }

    /// Opens one; `None` if it is not of this volume, or under an epoch that there is no key for.
    ///
    /// # Errors
    /// Without keys.
    pub fn open_note(&self, note: &[u8]) -> Result<Option<Vec<u8>>, DeviceError> {
        let Some(sealing) = &self.sealing else { return Ok(None) };
        let record_bytes = sealing.record_bytes();
        let Some(rest) = note.strip_prefix(MAGIC) else { return Ok(None) };
        if rest.len() != record_bytes + sealing.block_bytes() {
            return Ok(None);
        }
        let (record, sealed) = rest.split_at(record_bytes);
        let Ok(record) = SealRecord::decode(record) else { return Ok(None) };
        let mut plain = BufferMut::zeroed(sealed.len());
        if sealing.open_version(LBA, &record, sealed, &mut plain)?.is_err() {
            return Ok(None);
        }
        let len = usize::from(u16::from_be_bytes([plain[0], plain[1]]));
        Ok(plain.get(2..2 + len).map(<[u8]>::to_vec))
    }
}

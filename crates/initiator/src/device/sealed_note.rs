//! Notes about a volume, for files of the one who works on it: sealed like a block of the volume, at an address that no volume has. So
//! nobody without its keys can make one up, and one of another volume does not open. Absent: their bytes (`seal`).

use strongroom_block::{BufferMut, DeviceError, DeviceErrorKind};
use strongroom_seal::{NOTE_LBA, decode_note, encode_note, fill_note, note_text};

use super::RemoteDevice;
use crate::completion::device_error;

impl RemoteDevice {
    /// Seals a short text: at most a block less two bytes.
    ///
    /// # Errors
    /// `Refused` on a plain volume, or if it is too long; without keys.
    pub fn seal_note(&self, text: &[u8]) -> Result<Vec<u8>, DeviceError> {
        let refused = |what: &str| device_error(DeviceErrorKind::Refused, None, what);
        let sealing = self.sealing.as_ref().ok_or_else(|| refused("a plain volume has no seal for a note"))?;
        let mut plain = BufferMut::zeroed(sealing.block_bytes());
        if !fill_note(&mut plain, text) {
            return Err(refused("the note is longer than a block"));
        }
        let sealed = sealing.seal(NOTE_LBA, &plain)?;
        Ok(encode_note(&sealed.records, &sealed.data))
    }

    /// Opens one; `None` if it is not of this volume, or under an epoch that there is no key for.
    ///
    /// # Errors
    /// Without keys.
    pub fn open_note(&self, note: &[u8]) -> Result<Option<Vec<u8>>, DeviceError> {
        let Some(sealing) = &self.sealing else { return Ok(None) };
        let Some((record, sealed)) = decode_note(note, sealing.record_bytes(), sealing.block_bytes()) else {
            return Ok(None);
        };
        let mut plain = BufferMut::zeroed(sealed.len());
        let opened = sealing.open_version(NOTE_LBA, &record, sealed, &mut plain)?;
        Ok(opened.ok().and_then(|()| note_text(&plain).map(<[u8]>::to_vec)))
    }
}

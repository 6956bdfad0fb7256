//! Notes about a volume, for files of the one who works on it: sealed like a block of the volume, at an address that no volume has
//! (`docs/sealed-block.md`, Notes). The bytes; sealing and opening is the caller's.

use strongroom_block::{Lba, SealRecord};

/// Where a note is sealed: no volume has this many blocks.
pub const NOTE_LBA: Lba = Lba(1 << 63);
const MAGIC: &[u8; 8] = b"SRNOTE1\n";

/// The block that a text is sealed as, `block` being all zeros; whether it fits: a block less two bytes at most.
#[must_use]
pub fn fill_note(block: &mut [u8], text: &[u8]) -> bool {
    let Some((length, rest)) = block.split_first_chunk_mut::<2>() else { return false };
    let (Ok(len_bytes), Some(place)) = (u16::try_from(text.len()), rest.get_mut(..text.len())) else { return false };
    *length = len_bytes.to_be_bytes();
    place.copy_from_slice(text);
    true
}

/// The text of a block that was opened; `None` if it is no note.
pub fn note_text(block: &[u8]) -> Option<&[u8]> {
    let (length, rest) = block.split_first_chunk::<2>()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)))
}

/// A note as it lies in a file.
pub fn encode_note(record: &[u8], sealed: &[u8]) -> Vec<u8> {
    [MAGIC, record, sealed].concat()
}

/// The record and the sealed block of one; `None` if it is none of a volume with such records and blocks.
pub fn decode_note(note: &[u8], record_bytes: usize, block_bytes: usize) -> Option<(SealRecord, &[u8])> {
    let (record, sealed) = note.strip_prefix(MAGIC)?.split_at_checked(record_bytes)?;
    let record = SealRecord::decode(record).ok()?;
    (sealed.len() == block_bytes).then_some((record, sealed))
}

/// Runs the decoders over arbitrary bytes, for fuzzing.
#[doc(hidden)]
pub fn fuzz_note(bytes: &[u8]) {
    for block_bytes in [512, 4096, bytes.len().saturating_sub(MAGIC.len() + SealRecord::BASE_BYTES)] {
        if let Some((record, sealed)) = decode_note(bytes, SealRecord::BASE_BYTES, block_bytes) {
            assert_eq!(encode_note(record.as_bytes(), sealed), bytes);
            assert!(note_text(sealed).is_none_or(|text| text.len() + 2 <= sealed.len()));
        }
    }
    if let Some(text) = note_text(bytes) {
        let mut block = vec![0; bytes.len()];
        assert!(fill_note(&mut block, text) && note_text(&block) == Some(text));
    }
}

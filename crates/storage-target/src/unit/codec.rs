//! How blocks and their seal records change between the channel and the store of a sealed unit.
//!
//! Custody `target`: block keys are wrapped on their way to the store and unwrapped on their way out.
//!
//! Open at target, the WAN paper's placement of decryption: blocks are sealed on the wire and stored as plaintext. A block that arrives is
//! opened before anything is written; a block that does not open is refused with its address. Its record is stored with the keyless
//! checksum of the plaintext. A block that is read is sealed again under the stamp it came with, which gives the same ciphertext and tag;
//! if it does not, the stored block is not what was written, and it is not sent: nothing else may be sealed under that stamp. The
//! cryptography is not here: it is handed in as a [`Resealer`] and a [`BlockKeyWrap`].

use std::sync::Arc;

use strongroom_block::{
    BlockKeyWrap, Buffer, BufferMut, HoleRecord, Lba, OpenError, Resealer, SealRecord, WrapError, keyless_checksum,
};
use strongroom_scsi::Sense;

use crate::volume::{Sealed, Volume};

/// Data and its records, in the same order.
type Blocks = (Vec<Buffer>, Vec<SealRecord>);

/// What is done to blocks and records of one unit; nothing where both are `None`.
#[derive(Clone, Default)]
pub(crate) struct BlockCodec {
    /// Custody `target`: wraps block keys.
    pub(crate) wrap: Option<Arc<dyn BlockKeyWrap>>,
    /// Open at target: opens what arrives, seals what is read.
    pub(crate) resealer: Option<Arc<dyn Resealer>>,
}

impl BlockCodec {
    /// Whether blocks are opened when they arrive.
    pub(super) fn opens(&self) -> bool {
        self.resealer.is_some()
    }

    /// Whether records carry block keys, so that their memory must be wiped.
    pub(super) fn has_block_keys(&self) -> bool {
        self.wrap.is_some()
    }

    /// Checks that a record belongs to the unit, and wraps its block key if it has one.
    pub(super) fn record_for_store(
        &self,
        volume: &Volume,
        sealed: &Sealed,
        record: &SealRecord,
    ) -> Result<SealRecord, Sense> {
        if record.suite() != sealed.suite || record.mode() != sealed.mode {
            return Err(Sense::INVALID_SEAL_RECORD);
        }
        let Some(wrap) = &self.wrap else {
            return if record.flags().has_block_key() { Err(Sense::INVALID_SEAL_RECORD) } else { Ok(record.clone()) };
        };
        let key = record.raw_block_key().ok_or(Sense::INVALID_SEAL_RECORD)?;
        let wrapped = wrap.wrap(key).map_err(|error| key_unusable(volume, &error))?;
        Ok(record.with_block_key(&wrapped))
    }

    /// A record as the channel carries it: its block key, if it has one, unwrapped.
    pub(super) fn record_for_channel(&self, volume: &Volume, record: &SealRecord) -> Result<SealRecord, Sense> {
        let Some(wrap) = &self.wrap else { return Ok(record.clone()) };
        let wrapped = record.wrapped_block_key().ok_or(Sense::INTERNAL_FAILURE)?;
        let mut key = wrap.unwrap(wrapped).map_err(|error| key_unusable(volume, &error))?;
        let record = record.with_block_key(&key);
        zeroize::Zeroize::zeroize(&mut key);
        Ok(record)
    }

    /// Records as the channel carries them. The vector never grows: growing would leave copies of block keys behind.
    fn records_for_channel(&self, volume: &Volume, records: &[SealRecord]) -> Result<Vec<SealRecord>, Sense> {
        let mut unwrapped = Vec::with_capacity(records.len());
        for record in records {
            unwrapped.push(self.record_for_channel(volume, record)?);
        }
        Ok(unwrapped)
    }

    /// The form in which arrived blocks from `lba` on are stored.
    pub(super) fn blocks_for_store(
        &self,
        volume: &Volume,
        lba: Lba,
        data: Vec<Buffer>,
        records: Vec<SealRecord>,
    ) -> Result<Blocks, Sense> {
        let Some(resealer) = &self.resealer else { return Ok((data, records)) };
        let size = volume.geometry.block_size.len();
        let mut plain = BufferMut::zeroed(size * records.len());
        let mut at = 0;
        for piece in &data {
            plain[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        let mut opened = Vec::with_capacity(records.len());
        for ((record, block), at) in records.iter().zip(plain.chunks_exact_mut(size)).zip(lba.0..) {
            resealer.open(Lba(at), record, block).map_err(|error| does_not_open(volume, Lba(at), error))?;
            opened.push(record.with_checksum(keyless_checksum(block)));
        }
        Ok((vec![plain.freeze()], opened))
    }

    /// Stored blocks from `lba` on and their records, as the channel carries them.
    pub(super) fn blocks_for_channel(
        &self,
        volume: &Volume,
        lba: Lba,
        data: Buffer,
        records: Vec<SealRecord>,
    ) -> Result<(Buffer, Vec<SealRecord>), Sense> {
        let (data, records) = self.seal_again(volume, lba, data, records)?;
        if self.wrap.is_none() {
            return Ok((data, records));
        }
        let records = self.records_for_channel(volume, &records)?;
        Ok((data, records))
    }

    fn seal_again(
        &self,
        volume: &Volume,
        lba: Lba,
        data: Buffer,
        records: Vec<SealRecord>,
    ) -> Result<(Buffer, Vec<SealRecord>), Sense> {
        let Some(resealer) = &self.resealer else { return Ok((data, records)) };
        let size = volume.geometry.block_size.len();
        let mut sealed = BufferMut::zeroed(data.len());
        sealed.copy_from_slice(&data);
        let mut arrived = Vec::with_capacity(records.len());
        for ((record, block), at) in records.iter().zip(sealed.chunks_exact_mut(size)).zip(lba.0..) {
            arrived.push(resealer.seal_again(Lba(at), record, block).map_err(|error| {
                tracing::error!(volume = %volume.name, lba = at, %error, "what is stored is not what was written, and is not sent");
                Sense::UNRECOVERED_READ.at(Lba(at))
            })?);
        }
        Ok((sealed.freeze(), arrived))
    }

    /// Refuses a hole that nobody with the key has sealed.
    pub(super) fn check_hole(&self, volume: &Volume, hole: &HoleRecord) -> Result<(), Sense> {
        let Some(resealer) = &self.resealer else { return Ok(()) };
        resealer.open_hole(hole).map_err(|error| does_not_open(volume, hole.start, error))
    }
}

fn key_unusable(volume: &Volume, error: &WrapError) -> Sense {
    tracing::error!(volume = %volume.name, %error, "block keys cannot be used");
    Sense::INTERNAL_FAILURE
}

fn does_not_open(volume: &Volume, lba: Lba, error: OpenError) -> Sense {
    tracing::warn!(volume = %volume.name, %lba, %error, "a write is refused: it does not open");
    Sense::DOES_NOT_OPEN.at(lba)
}

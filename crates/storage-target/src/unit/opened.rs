//! Open at target, the WAN paper's placement of decryption: blocks are sealed on the wire and plaintext in the store.
//!
//! A block that arrives is opened before anything is written: one that does not open is refused, and the writer is told which. Its record
//! is kept, with the keyless checksum of what is stored. When it is read it is sealed again under the stamp that it came with, which
//! gives the very same ciphertext and tag; if it does not, what lies in the store is not what was written, and it is not sent: under
//! one stamp nothing else is ever sealed. Absent: the cryptography, which is handed in as a [`Resealer`].

use std::sync::Arc;

use strongroom_block::{Buffer, BufferMut, HoleRecord, Lba, OpenError, Resealer, SealRecord, keyless_checksum};
use strongroom_scsi::Sense;

use super::Unit;

/// Data and its records, in the same order.
type Blocks = (Vec<Buffer>, Vec<SealRecord>);

impl Unit {
    /// Has the unit store plaintext.
    pub(crate) fn open_with(&mut self, resealer: Arc<dyn Resealer>) {
        self.resealer = Some(resealer);
    }

    /// What opens and seals its blocks, for its clones and snapshots.
    pub(crate) fn resealer(&self) -> Option<Arc<dyn Resealer>> {
        self.resealer.clone()
    }

    /// Whether what arrives is opened here.
    pub(super) fn opens(&self) -> bool {
        self.resealer.is_some()
    }

    /// What a write of blocks from `lba` on puts into the store.
    pub(super) fn for_store(&self, lba: Lba, data: Vec<Buffer>, records: Vec<SealRecord>) -> Result<Blocks, Sense> {
        let Some(resealer) = &self.resealer else { return Ok((data, records)) };
        let size = self.volume.geometry.block_size.len();
        let mut plain = BufferMut::zeroed(size * records.len());
        let mut at = 0;
        for piece in &data {
            plain[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        let mut opened = Vec::with_capacity(records.len());
        for ((record, block), at) in records.iter().zip(plain.chunks_exact_mut(size)).zip(lba.0..) {
            resealer.open(Lba(at), record, block).map_err(|error| self.does_not_open(Lba(at), error))?;
            opened.push(record.with_checksum(keyless_checksum(block)));
        }
        Ok((vec![plain.freeze()], opened))
    }

    /// Stored blocks from `lba` on, and their records, as they came.
    pub(super) fn as_it_arrived(
        &self,
        lba: Lba,
        data: Buffer,
        records: Vec<SealRecord>,
    ) -> Result<(Buffer, Vec<SealRecord>), Sense> {
        let Some(resealer) = &self.resealer else { return Ok((data, records)) };
        let size = self.volume.geometry.block_size.len();
        let mut sealed = BufferMut::zeroed(data.len());
        sealed.copy_from_slice(&data);
        let mut arrived = Vec::with_capacity(records.len());
        for ((record, block), at) in records.iter().zip(sealed.chunks_exact_mut(size)).zip(lba.0..) {
            arrived.push(resealer.seal_again(Lba(at), record, block).map_err(|error| {
                tracing::error!(volume = %self.volume.name, lba = at, %error, "what is stored is not what was written, and is not sent");
                Sense::UNRECOVERED_READ.at(Lba(at))
            })?);
        }
        Ok((sealed.freeze(), arrived))
    }

    /// Refuses an absence that nobody with the key has sealed.
    pub(super) fn opens_hole(&self, hole: &HoleRecord) -> Result<(), Sense> {
        let Some(resealer) = &self.resealer else { return Ok(()) };
        resealer.open_hole(hole).map_err(|error| self.does_not_open(hole.start, error))
    }

    fn does_not_open(&self, lba: Lba, error: OpenError) -> Sense {
        tracing::warn!(volume = %self.volume.name, %lba, %error, "a write is refused: it does not open");
        Sense::DOES_NOT_OPEN.at(lba)
    }
}

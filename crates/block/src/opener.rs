//! The doors through which a *trusted* target is handed cryptography from outside.
//!
//! `target` and `store` never depend on `seal`: the binary implements these traits with it and passes them in.

use crate::{BLOCK_KEY_BYTES, HoleRecord, Lba, SealRecord, WRAPPED_KEY_BYTES};

/// Why a block did not open. Never says more than this to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The tag does not fit: the block, its record or its place is not what was sealed.
    #[error("the block does not open: it was changed, moved or sealed under another key")]
    NotAuthentic,
    /// The key that the record names is not at hand. Never a reason to fall back to an older version.
    #[error("no key for epoch {epoch}")]
    NoKey {
        /// The key epoch that the record names.
        epoch: u32,
    },
    /// The record is of a format, suite or mode that this build cannot open.
    #[error("the seal record is of an unknown format or suite")]
    Unsupported,
}

/// Opens sealed blocks in place, for a target that is trusted to (background verification, [`Resealer`]).
pub trait Opener: Send + Sync {
    /// Opens `block` (ciphertext in, plaintext out).
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `block` are then unspecified and must not be used.
    fn open(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError>;
}

/// What a target needs that stores plaintext and sends and receives sealed blocks (open-at-target, the WAN paper's placement of
/// decryption): a block is opened when it arrives and sealed again when it is read, the very same, under the stamp that it came with.
pub trait Resealer: Opener {
    /// Seals `block` (plaintext in, ciphertext out) as it was sealed when it arrived with `record`, whose checksum may be of anything;
    /// returns the record as it came then.
    ///
    /// # Errors
    /// [`OpenError::NotAuthentic`] if `block` is not what was sealed then: under one stamp nothing else may ever be sealed. The contents
    /// of `block` are then unspecified and must not be used.
    fn seal_again(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<SealRecord, OpenError>;

    /// Whether `hole` is authentic as a whole.
    ///
    /// # Errors
    /// [`OpenError`] if it was not sealed like this.
    fn open_hole(&self, hole: &HoleRecord) -> Result<(), OpenError>;
}

/// A block key could not be wrapped or unwrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored block key does not unwrap under this volume's wrapping key: wrong key file, or damaged record")]
pub struct WrapError;

/// Wraps block keys for rest (custody `target`, RFC 3394), under a per-volume key that lives outside the store.
pub trait BlockKeyWrap: Send + Sync {
    /// Wraps one block key.
    fn wrap(&self, key: &[u8; BLOCK_KEY_BYTES]) -> Result<[u8; WRAPPED_KEY_BYTES], WrapError>;
    /// Unwraps one block key.
    ///
    /// # Errors
    /// [`WrapError`] if the bytes were not wrapped under this key.
    fn unwrap(&self, wrapped: &[u8; WRAPPED_KEY_BYTES]) -> Result<[u8; BLOCK_KEY_BYTES], WrapError>;
}

//! The two doors through which a *trusted* target is handed cryptography from outside.
//!
//! `target` and `store` never depend on `seal`: the binary implements these traits with it and passes them in.

use crate::{BLOCK_KEY_BYTES, Lba, SealRecord, WRAPPED_KEY_BYTES};

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

/// Opens sealed blocks in place, for a target that is trusted to (background verification, open-at-target).
pub trait Opener: Send + Sync {
    /// Opens `block` (ciphertext in, plaintext out).
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `block` are then unspecified and must not be used.
    fn open(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError>;
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

//! One block through a cipher, in the mode of its volume, and counted: the only file of this room that seals or opens.

use std::cell::RefCell;
use std::fmt;

use strongroom_block::{CryptoCounters, Mode, OpenError, Suite, TAG_BYTES};
use strongroom_cipher::{AeadKey, NONCE_BYTES, NotAuthentic};

use crate::secret::KEY_BYTES;

thread_local! {
    /// Associated data and block in one piece, for mode `authenticate-only`: the library takes no gathered input.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What one seal is bound to.
pub(crate) struct Binding<'a> {
    pub(crate) mode: Mode,
    /// One that the key never sealed with before.
    pub(crate) nonce: [u8; NONCE_BYTES],
    pub(crate) associated: &'a [u8],
}

/// One key, expanded. Wiped when it is dropped.
pub(crate) struct SealKey(AeadKey);

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

impl SealKey {
    pub(crate) fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> SealKey {
        SealKey(AeadKey::new(suite, key))
    }

    /// Seals `block` in place.
    pub(crate) fn seal(&self, binding: &Binding<'_>, block: &mut [u8], counters: &CryptoCounters) -> [u8; TAG_BYTES] {
        match binding.mode {
            Mode::Encrypt => {
                counters.sealed(block.len());
                self.0.seal(binding.nonce, binding.associated, block)
            }
            Mode::AuthenticateOnly => self.authenticate(binding, block, counters),
        }
    }

    /// Seals `plain` into `out`, which has the same length.
    pub(crate) fn seal_into(
        &self,
        binding: &Binding<'_>,
        plain: &[u8],
        out: &mut [u8],
        counters: &CryptoCounters,
    ) -> [u8; TAG_BYTES] {
        match binding.mode {
            Mode::Encrypt => {
                counters.sealed(plain.len());
                self.0.seal_into(binding.nonce, binding.associated, plain, out)
            }
            Mode::AuthenticateOnly => {
                out.copy_from_slice(plain);
                self.authenticate(binding, plain, counters)
            }
        }
    }

    /// Opens `block` in place. After an error its contents are unspecified.
    pub(crate) fn open(
        &self,
        binding: &Binding<'_>,
        tag: &[u8; TAG_BYTES],
        block: &mut [u8],
        counters: &CryptoCounters,
    ) -> Result<(), OpenError> {
        match binding.mode {
            Mode::Encrypt => {
                counters.opened(block.len());
                self.0.open(binding.nonce, binding.associated, tag, block).map_err(not_authentic)
            }
            Mode::AuthenticateOnly => self.verify(binding, tag, block, counters),
        }
    }

    /// Opens `sealed` into `out`, which has the same length. After an error the contents of `out` are unspecified.
    pub(crate) fn open_into(
        &self,
        binding: &Binding<'_>,
        tag: &[u8; TAG_BYTES],
        sealed: &[u8],
        out: &mut [u8],
        counters: &CryptoCounters,
    ) -> Result<(), OpenError> {
        match binding.mode {
            Mode::Encrypt => {
                counters.opened(sealed.len());
                self.0.open_into(binding.nonce, binding.associated, tag, sealed, out).map_err(not_authentic)
            }
            Mode::AuthenticateOnly => {
                out.copy_from_slice(sealed);
                self.verify(binding, tag, sealed, counters)
            }
        }
    }

    /// A tag over associated data followed by the block, nothing encrypted. The associated data has a fixed length and
    /// names the mode, so no other input of this key has the same bytes.
    fn authenticate(&self, binding: &Binding<'_>, block: &[u8], counters: &CryptoCounters) -> [u8; TAG_BYTES] {
        counters.authenticated(block.len());
        with_joined(binding.associated, block, |joined| self.0.seal(binding.nonce, joined, &mut []))
    }

    fn verify(
        &self,
        binding: &Binding<'_>,
        tag: &[u8; TAG_BYTES],
        block: &[u8],
        counters: &CryptoCounters,
    ) -> Result<(), OpenError> {
        counters.verified(block.len());
        with_joined(binding.associated, block, |joined| {
            self.0.open(binding.nonce, joined, tag, &mut []).map_err(not_authentic)
        })
    }
}

fn not_authentic(_: NotAuthentic) -> OpenError {
    OpenError::NotAuthentic
}

fn with_joined<R>(associated: &[u8], block: &[u8], use_it: impl FnOnce(&[u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.extend_from_slice(associated);
        scratch.extend_from_slice(block);
        use_it(scratch)
    })
}

//! AES-256-GCM over one block: the only file that calls the AEAD of the library.

use std::cell::RefCell;
use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use strongroom_block::{CryptoCounters, Mode, OpenError, TAG_BYTES};

use crate::secret::KEY_BYTES;

/// Bytes in a GCM nonce.
pub(crate) const NONCE_BYTES: usize = 12;

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

impl Binding<'_> {
    fn nonce(&self) -> Nonce {
        Nonce::assume_unique_for_key(self.nonce)
    }
}

/// One AES-256-GCM key, expanded. The library wipes it when it is dropped.
pub(crate) struct GcmKey(LessSafeKey);

impl fmt::Debug for GcmKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GcmKey")
    }
}

impl GcmKey {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> GcmKey {
        GcmKey(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("32 bytes are an AES-256 key")))
    }

    /// Seals `block` in place.
    pub(crate) fn seal(&self, binding: &Binding<'_>, block: &mut [u8], counters: &CryptoCounters) -> [u8; TAG_BYTES] {
        match binding.mode {
            Mode::Encrypt => {
                let tag = self
                    .0
                    .seal_in_place_separate_tag(binding.nonce(), Aad::from(binding.associated), block)
                    .expect("a block is far below the limit of GCM");
                counters.sealed(block.len());
                tag.as_ref().try_into().expect("a GCM tag is 16 bytes")
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
                let mut tag = [0; TAG_BYTES];
                self.0
                    .seal_out_of_place_scatter(
                        binding.nonce(),
                        Aad::from(binding.associated),
                        plain,
                        out,
                        &[],
                        &mut tag,
                    )
                    .expect("lengths are equal and far below the limit of GCM");
                counters.sealed(plain.len());
                tag
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
                self.0
                    .open_in_place_separate_tag(binding.nonce(), Aad::from(binding.associated), tag, block)
                    .map(|_| ())
                    .map_err(|_| OpenError::NotAuthentic)
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
                self.0
                    .open_separate_gather(binding.nonce(), Aad::from(binding.associated), sealed, tag, out)
                    .map_err(|_| OpenError::NotAuthentic)
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
        with_joined(binding.associated, block, |joined| {
            let tag = self
                .0
                .seal_in_place_separate_tag(binding.nonce(), Aad::from(joined), &mut [])
                .expect("associated data of one block is far below the limit of GCM");
            tag.as_ref().try_into().expect("a GCM tag is 16 bytes")
        })
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
            self.0
                .open_in_place_separate_tag(binding.nonce(), Aad::from(joined), tag, &mut [])
                .map(|_| ())
                .map_err(|_| OpenError::NotAuthentic)
        })
    }
}

fn with_joined<R>(associated: &[u8], block: &[u8], use_it: impl FnOnce(&[u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        scratch.extend_from_slice(associated);
        scratch.extend_from_slice(block);
        use_it(scratch)
    })
}

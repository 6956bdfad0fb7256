//! The cipher room: authenticated encryption of one message, by suite. Sealing and the channel call the same code, so that a
//! comparison of the two compares nothing else.
//!
//! The papers' suites (the feature `weak-suites`) are for the laboratory and for tests; the product is built without them.
//!
//! Deliberately absent: where keys and nonces come from (the rooms that use them), counting, randomness, I/O.

#[cfg(feature = "weak-suites")]
mod encrypt_then_mac;
#[cfg(feature = "weak-suites")]
mod paper;
#[cfg(feature = "weak-suites")]
mod triple_des;

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use strongroom_block::{Suite, TAG_BYTES};

#[cfg(feature = "weak-suites")]
use paper::PaperKey;
#[cfg(feature = "weak-suites")]
use triple_des::TripleDesKey;

/// Length in bytes of the key material, the same for all suites.
pub const KEY_BYTES: usize = 32;
/// Length of a nonce in bytes, the same for all suites.
pub const NONCE_BYTES: usize = 12;

/// The tag does not fit: key, nonce, associated data or message are not what was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAuthentic;

/// A key of one suite, expanded. Wiped when it is dropped.
pub struct AeadKey(Kind);

enum Kind {
    Library(LessSafeKey),
    #[cfg(feature = "weak-suites")]
    Paper(Box<PaperKey>),
    #[cfg(feature = "weak-suites")]
    TripleDes(Box<TripleDesKey>),
}

impl fmt::Debug for AeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AeadKey")
    }
}

impl AeadKey {
    /// A key of `suite`. AES-128-GCM takes the first 16 of the bytes; the papers' suites the first 24 for their ciphers, and
    /// make the key of their authenticator from all of them.
    pub fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> AeadKey {
        let library = |algorithm: &'static Algorithm| {
            let key = UnboundKey::new(algorithm, &key[..algorithm.key_len()]).expect("keys of this length fit");
            AeadKey(Kind::Library(LessSafeKey::new(key)))
        };
        match suite {
            Suite::Aes256Gcm => library(&AES_256_GCM),
            Suite::Aes128Gcm => library(&AES_128_GCM),
            Suite::ChaCha20Poly1305 => library(&CHACHA20_POLY1305),
            #[cfg(feature = "weak-suites")]
            Suite::Aes192CbcHmacMd5 => AeadKey(Kind::Paper(Box::new(PaperKey::new(key)))),
            #[cfg(feature = "weak-suites")]
            Suite::TripleDesCbcHmacMd5 => AeadKey(Kind::TripleDes(Box::new(TripleDesKey::new(key)))),
        }
    }

    /// Encrypts `text` in place; the tag covers `associated` too. With nothing to encrypt it is a mere authenticator.
    ///
    /// A nonce serves a key once.
    pub fn seal(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        match &self.0 {
            Kind::Library(key) => {
                let tag = key
                    .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(associated), text)
                    .expect("blocks and frames are far below the limits of an AEAD");
                tag.as_ref().try_into().expect("a tag is 16 bytes")
            }
            #[cfg(feature = "weak-suites")]
            Kind::Paper(key) => key.seal(nonce, associated, text),
            #[cfg(feature = "weak-suites")]
            Kind::TripleDes(key) => key.seal(nonce, associated, text),
        }
    }

    /// Encrypts `plain` into `out`, which has the same length.
    pub fn seal_into(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated: &[u8],
        plain: &[u8],
        out: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        match &self.0 {
            Kind::Library(key) => {
                let (nonce, associated) = (Nonce::assume_unique_for_key(nonce), Aad::from(associated));
                let mut tag = [0; TAG_BYTES];
                key.seal_out_of_place_scatter(nonce, associated, plain, out, &[], &mut tag)
                    .expect("lengths are equal and far below the limits of an AEAD");
                tag
            }
            #[cfg(feature = "weak-suites")]
            Kind::Paper(key) => {
                out.copy_from_slice(plain);
                key.seal(nonce, associated, out)
            }
            #[cfg(feature = "weak-suites")]
            Kind::TripleDes(key) => {
                out.copy_from_slice(plain);
                key.seal(nonce, associated, out)
            }
        }
    }

    /// Decrypts `text` in place.
    ///
    /// # Errors
    /// [`NotAuthentic`]; the contents of `text` are then unspecified and must not be used.
    pub fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated: &[u8],
        tag: &[u8; TAG_BYTES],
        text: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        match &self.0 {
            Kind::Library(key) => key
                .open_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(associated), tag, text)
                .map(|_| ())
                .map_err(|_| NotAuthentic),
            #[cfg(feature = "weak-suites")]
            Kind::Paper(key) => key.open(nonce, associated, tag, text),
            #[cfg(feature = "weak-suites")]
            Kind::TripleDes(key) => key.open(nonce, associated, tag, text),
        }
    }

    /// Decrypts `sealed` into `out`, which has the same length.
    ///
    /// # Errors
    /// [`NotAuthentic`]; the contents of `out` are then unspecified and must not be used.
    pub fn open_into(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated: &[u8],
        tag: &[u8; TAG_BYTES],
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        match &self.0 {
            Kind::Library(key) => key
                .open_separate_gather(Nonce::assume_unique_for_key(nonce), Aad::from(associated), sealed, tag, out)
                .map_err(|_| NotAuthentic),
            #[cfg(feature = "weak-suites")]
            Kind::Paper(key) => {
                out.copy_from_slice(sealed);
                key.open(nonce, associated, tag, out)
            }
            #[cfg(feature = "weak-suites")]
            Kind::TripleDes(key) => {
                out.copy_from_slice(sealed);
                key.open(nonce, associated, tag, out)
            }
        }
    }
}

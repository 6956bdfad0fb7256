//! From the handshake's exporter secret to the keys of each direction and generation.

use std::fmt;

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use strongroom_block::Suite;
use strongroom_cipher::{AeadKey, NotAuthentic};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::frame::TAG_BYTES;
use crate::{ChannelError, Scheme};

/// Bytes of exporter secret that a channel is made from.
pub const EXPORTER_BYTES: usize = 32;

const KEY_BYTES: usize = 32;
const IV_BYTES: usize = 12;
const SALT: &[u8] = b"strongroom/1 channel";

/// Which way a frame goes. Each way has its own keys, so that nothing can be reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Direction {
    ToTarget = 1,
    ToInitiator = 2,
}

/// The secret that both ends took from their handshake. Used up by making a [`Channel`](crate::Channel).
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct ChannelKeys {
    exporter: [u8; EXPORTER_BYTES],
    #[zeroize(skip)]
    scheme: Scheme,
    #[zeroize(skip)]
    suite: Suite,
}

impl fmt::Debug for ChannelKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChannelKeys({}, {})", self.scheme, self.suite)
    }
}

impl ChannelKeys {
    /// From a TLS exporter's output, for the scheme that the handshake agreed on; the caller wipes its own copy. The
    /// scheme is bound into every key: two ends that do not agree never understand each other.
    pub fn new(exporter: [u8; EXPORTER_BYTES], scheme: Scheme) -> ChannelKeys {
        ChannelKeys { exporter, scheme, suite: Suite::default() }
    }

    /// The same for a cipher suite that the handshake agreed on, bound into every key likewise.
    #[must_use]
    pub fn with_suite(mut self, suite: Suite) -> ChannelKeys {
        self.suite = suite;
        self
    }

    /// The cipher that protects frames.
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// What the keys are for.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The first generation's keys of one direction.
    pub(crate) fn direction(&self, direction: Direction) -> FrameKeys {
        let root = Salt::new(HKDF_SHA256, SALT).extract(&self.exporter);
        let mut secret = Box::new([0; KEY_BYTES]);
        let way = [self.scheme as u8, direction as u8, self.suite as u8];
        // The usual suite goes unsaid, as before there was a choice.
        let way = if self.suite == Suite::default() { &way[..2] } else { &way[..] };
        expand(&root, &[b"direction", way], &mut secret[..]);
        FrameKeys::from_secret(secret, self.suite, 0)
    }
}

/// The keys of one direction in one generation, and the secret that the next generation comes from.
///
/// The ratchet is one-way: an attacker who takes a generation's secret from memory cannot open what earlier ones protected.
pub(crate) struct FrameKeys {
    /// In one place until it is wiped: a value that moves leaves copies behind.
    secret: Box<[u8; KEY_BYTES]>,
    suite: Suite,
    aead: AeadKey,
    iv: [u8; IV_BYTES],
    generation: u64,
    tags: u64,
}

impl Drop for FrameKeys {
    fn drop(&mut self) {
        self.secret.zeroize();
        self.iv.zeroize();
    }
}

impl FrameKeys {
    fn from_secret(secret: Box<[u8; KEY_BYTES]>, suite: Suite, generation: u64) -> FrameKeys {
        let prk = Prk::new_less_safe(HKDF_SHA256, &secret[..]);
        let mut key = [0; KEY_BYTES];
        expand(&prk, &[b"key"], &mut key);
        let mut iv = [0; IV_BYTES];
        expand(&prk, &[b"iv"], &mut iv);
        let aead = AeadKey::new(suite, &key);
        key.zeroize();
        FrameKeys { secret, suite, aead, iv, generation, tags: 0 }
    }

    /// Moves to the next generation, forgetting this one.
    pub(crate) fn advance(&mut self) {
        let mut next = Box::new([0; KEY_BYTES]);
        expand(&Prk::new_less_safe(HKDF_SHA256, &self.secret[..]), &[b"next"], &mut next[..]);
        *self = FrameKeys::from_secret(next, self.suite, self.generation + 1);
    }

    /// The generation as a prefix shows it.
    pub(crate) fn generation_byte(&self) -> u8 {
        self.generation as u8
    }

    /// Generations before this one.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Tags that this generation has made or checked: one or two for each frame.
    pub(crate) fn tags(&self) -> u64 {
        self.tags
    }

    /// Encrypts `body` in place under the next number; the tag covers `clear` too. An empty body leaves a mere
    /// authenticator over `clear`.
    pub(crate) fn seal(&mut self, clear: &[u8], body: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.next_nonce();
        self.aead.seal(nonce, clear, body)
    }

    /// Decrypts `body` in place under the next number. Its last 16 bytes are the tag.
    pub(crate) fn open(&mut self, clear: &[u8], body: &mut [u8]) -> Result<(), ChannelError> {
        let nonce = self.next_nonce();
        let (text, tag) = body.split_last_chunk_mut::<TAG_BYTES>().ok_or(ChannelError::NotAuthentic)?;
        self.aead.open(nonce, clear, tag, text).map_err(|NotAuthentic| ChannelError::NotAuthentic)
    }

    /// IV xor the number of the tag, as in TLS 1.3. The number never wraps: both ends bound a generation.
    fn next_nonce(&mut self) -> [u8; IV_BYTES] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(self.tags.to_be_bytes()) {
            *byte ^= number;
        }
        self.tags += 1;
        nonce
    }
}

struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(prk: &Prk, info: &[&[u8]], out: &mut [u8]) {
    prk.expand(info, Len(out.len())).and_then(|material| material.fill(out)).expect("far below 255 hashes of output");
}

#[cfg(test)]
mod tests {
    //! Proves that keys come from the exporter as docs/protocol.md says; the values are of an independent implementation.
    use super::*;

    #[test]
    fn keys_are_derived_as_specified() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let golden = [
            (
                Scheme::MacAll,
                "1e19b17f7d7e35de2bb144bb1f38e85eab00a60b27b9dd6bca32c77fa2658b35",
                "4e42404c1a01ed40cbe4aeea",
            ),
            (
                Scheme::LazyAuth,
                "e5d446656ef3c1c5f6c6183c80649a8e68f4454bd1fc2907d1bfe4a5d7a62497",
                "3b952961e1925533d8c0d14b",
            ),
            (
                Scheme::EncryptAll,
                "ba9586aa663b10b3cfe92d9a4039288d59287f858a15a00b1df505f28b720d7e",
                "749e25c76e3121e0a0873f40",
            ),
            (
                Scheme::LazyDecrypt,
                "f3dc18e135a3710cb1d4348855de91d360f401f6133e87f7d7b38d0c397e861b",
                "0f5079aa2b76742b133ff952",
            ),
            (
                Scheme::Lazy,
                "ea8e9b7dce35762fcb8527edf34f6be3175c6cfb923bd8c296aade53b226b237",
                "8d8e43f45e65c40afaaef53c",
            ),
        ];
        for (scheme, secret, iv) in golden {
            let exporter = std::array::from_fn(|at| at as u8);
            let keys = ChannelKeys::new(exporter, scheme).direction(Direction::ToTarget);
            assert_eq!((hex(&keys.secret[..]), hex(&keys.iv)), (secret.to_owned(), iv.to_owned()), "{scheme}");
        }
    }

    /// A ratchet is one-way only if no copy of a generation's secret outlives it, and a move is a copy.
    #[test]
    fn a_secret_does_not_move_with_its_keys() {
        let keys = ChannelKeys::new([7; EXPORTER_BYTES], Scheme::Lazy).direction(Direction::ToTarget);
        let place = keys.secret.as_ptr();
        let moved = Box::new(keys);
        assert_eq!(moved.secret.as_ptr(), place);
    }
}

//! XAES-256-GCM (<https://c2sp.org/XAES-256-GCM>), composed from the library's AES and AES-256-GCM.
//!
//! The 24-byte nonce is split: its first 12 bytes choose a sub-key (SP 800-108 counter mode over CMAC, two AES blocks),
//! its last 12 are the GCM nonce. A stamp is such a nonce: its first 12 bytes are part of the attach id and stay the
//! same for 64 GiB of writes, so the sub-key is made once and kept.

use std::fmt;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, UnboundCipherKey};
use strongroom_block::{CryptoCounters, Mode, OpenError, Suite, TAG_BYTES};
use strongroom_cipher::NONCE_BYTES;
use zeroize::Zeroize;

use crate::aead::{Binding, SealKey};
use crate::secret::{KEY_BYTES, Secret};

/// Bytes of a stamp that choose the sub-key.
pub(crate) const SELECTOR_BYTES: usize = 12;

const AES_BLOCK_BYTES: usize = 16;

/// A key of XAES-256-GCM: AES expanded, and the first CMAC sub-key (the second is never needed: inputs are whole blocks).
pub(crate) struct XaesKey {
    aes: EncryptingKey,
    cmac_k1: Secret<AES_BLOCK_BYTES>,
}

impl fmt::Debug for XaesKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XaesKey")
    }
}

impl XaesKey {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> XaesKey {
        let unbound = UnboundCipherKey::new(&AES_256, key).expect("32 bytes are an AES-256 key");
        let aes = EncryptingKey::ecb(unbound).expect("AES-256 has an ECB form");
        let cmac_k1 = Secret::filled(|k1| {
            encrypt(&aes, k1);
            double(k1);
        });
        XaesKey { aes, cmac_k1 }
    }

    /// The AES-256-GCM key for all stamps that start with `selector`.
    pub(crate) fn sub_key(&self, selector: &[u8; SELECTOR_BYTES]) -> SealKey {
        let mut derived = [0; KEY_BYTES];
        for (counter, half) in (1u8..).zip(derived.chunks_exact_mut(AES_BLOCK_BYTES)) {
            // counter (16 bits) || label 'X' || 0x00 || context, as one CMAC block.
            half[..4].copy_from_slice(&[0, counter, b'X', 0]);
            half[4..].copy_from_slice(selector);
            for (byte, mask) in half.iter_mut().zip(self.cmac_k1.expose()) {
                *byte ^= mask;
            }
            encrypt(&self.aes, half);
        }
        let key = SealKey::new(Suite::Aes256Gcm, &derived);
        derived.zeroize();
        key
    }
}

/// A stamp as sub-key selector and GCM nonce.
pub(crate) fn split(stamp: &[u8; 24]) -> ([u8; SELECTOR_BYTES], [u8; NONCE_BYTES]) {
    let (selector, nonce) = stamp.split_at(SELECTOR_BYTES);
    (selector.try_into().expect("12 bytes"), nonce.try_into().expect("24 - 12 = 12"))
}

fn encrypt(aes: &EncryptingKey, block: &mut [u8]) {
    aes.encrypt(block).expect("AES of one whole block has no way to fail");
}

/// Doubling in GF(2^128), in constant time.
fn double(block: &mut [u8; AES_BLOCK_BYTES]) {
    let value = u128::from_be_bytes(*block);
    let reduction = 0x87 & (value >> 127).wrapping_neg();
    *block = ((value << 1) ^ reduction).to_be_bytes();
}

/// Plain XAES-256-GCM, as the published vectors have it. Not for sealing blocks.
#[doc(hidden)]
pub fn xaes_seal_for_test(key: &[u8; 32], nonce: &[u8; 24], associated: &[u8], message: &[u8]) -> Vec<u8> {
    let (selector, nonce) = split(nonce);
    let mut out = message.to_vec();
    let binding = Binding { mode: Mode::Encrypt, nonce, associated };
    let tag = XaesKey::new(key).sub_key(&selector).seal(&binding, &mut out, &CryptoCounters::new());
    out.extend_from_slice(&tag);
    out
}

/// The inverse of [`xaes_seal_for_test`].
#[doc(hidden)]
pub fn xaes_open_for_test(
    key: &[u8; 32],
    nonce: &[u8; 24],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>, OpenError> {
    let (selector, nonce) = split(nonce);
    let (message, tag) = sealed.split_last_chunk::<TAG_BYTES>().ok_or(OpenError::NotAuthentic)?;
    let mut out = message.to_vec();
    let binding = Binding { mode: Mode::Encrypt, nonce, associated };
    XaesKey::new(key).sub_key(&selector).open(&binding, tag, &mut out, &CryptoCounters::new())?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubling_reduces() {
        let mut block = [0; 16];
        block[0] = 0x80;
        double(&mut block);
        let mut expected = [0; 16];
        expected[15] = 0x87;
        assert_eq!(block, expected);
    }

    #[test]
    fn debug_shows_no_key() {
        let key = XaesKey::new(&[0xa7; 32]);
        assert_eq!(format!("{key:?} {:?}", key.sub_key(&[1; 12])), "XaesKey SealKey");
    }
}

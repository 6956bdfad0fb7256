//! What the papers' suites have in common: a block cipher in CBC mode, then HMAC-MD5 over what it made. For their experiments and
//! nothing else: MD5 is broken. The product is built without them, and the rooms above refuse them anywhere but in a benchmark.
//!
//! The papers' IPsec pads; our frames and blocks keep their length, so what remains behind the last whole cipher block is xored
//! with that block's ciphertext encrypted once more (residual block termination). Blocks have no remainder.

use hmac::{Hmac, Mac};
use md5::Md5;
use strongroom_block::TAG_BYTES;
use zeroize::Zeroize;

use crate::{KEY_BYTES, NONCE_BYTES, NotAuthentic};

/// A block cipher with its key expanded, in CBC mode, with blocks of `N` bytes.
pub(crate) trait Cbc<const N: usize> {
    /// Names the authenticator's key, so that it is neither the cipher's nor another suite's.
    const MAC_LABEL: &'static [u8];

    /// From all of a suite's key: the cipher takes the first of its bytes.
    fn new(key: &[u8; KEY_BYTES]) -> Self;

    /// What a text under `nonce` begins with: cannot be foretold without the key (NIST SP 800-38A, Appendix C).
    fn iv(&self, nonce: [u8; NONCE_BYTES]) -> [u8; N];

    /// Encrypts whole cipher blocks in place.
    fn encrypt(&self, iv: [u8; N], whole: &mut [u8]);

    /// Decrypts whole cipher blocks in place.
    fn decrypt(&self, iv: [u8; N], whole: &mut [u8]);

    /// Encrypts one cipher block by itself.
    fn encrypt_one(&self, block: [u8; N]) -> [u8; N];
}

/// Both keys of a suite, expanded.
pub(crate) struct EncryptThenMac<C, const N: usize> {
    cipher: C,
    mac: Hmac<Md5>,
}

impl<C: Cbc<N>, const N: usize> EncryptThenMac<C, N> {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Self {
        let mut mac_key: [u8; TAG_BYTES] = keyed(key).chain_update(C::MAC_LABEL).finalize().into_bytes().into();
        let mac = keyed(&mac_key);
        mac_key.zeroize();
        EncryptThenMac { cipher: C::new(key), mac }
    }

    pub(crate) fn seal(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let iv = self.cipher.iv(nonce);
        let (whole, rest) = split::<N>(text);
        self.cipher.encrypt(iv, whole);
        self.mask(last_block(whole, iv), rest);
        self.tag(nonce, associated, text).finalize().into_bytes().into()
    }

    pub(crate) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated: &[u8],
        tag: &[u8; TAG_BYTES],
        text: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        // In constant time, and before anything is decrypted.
        self.tag(nonce, associated, text).verify_slice(tag).map_err(|_| NotAuthentic)?;
        let iv = self.cipher.iv(nonce);
        let (whole, rest) = split::<N>(text);
        self.mask(last_block(whole, iv), rest);
        self.cipher.decrypt(iv, whole);
        Ok(())
    }

    fn mask(&self, last: [u8; N], rest: &mut [u8]) {
        if !rest.is_empty() {
            let mask = self.cipher.encrypt_one(last);
            rest.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        }
    }

    /// HMAC-MD5 of nonce, associated data with its length in front, and ciphertext.
    fn tag(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], text: &[u8]) -> Hmac<Md5> {
        let length = (associated.len() as u64).to_be_bytes();
        self.mac.clone().chain_update(nonce).chain_update(length).chain_update(associated).chain_update(text)
    }
}

fn keyed(key: &[u8]) -> Hmac<Md5> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// The whole cipher blocks, and what is left.
fn split<const N: usize>(text: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    text.split_at_mut(text.len() / N * N)
}

fn last_block<const N: usize>(ciphertext: &[u8], iv: [u8; N]) -> [u8; N] {
    ciphertext.last_chunk().copied().unwrap_or(iv)
}

//! AES-192-CBC with HMAC-MD5, encrypt then MAC: what the lazy-crypto paper measured (§4.1). For its experiments and nothing
//! else: MD5 is broken, and the rooms above refuse the suite anywhere but in a benchmark.
//!
//! The paper's IPsec pads; our frames and blocks keep their length, so what remains behind the last whole AES block is xored
//! with that block's ciphertext encrypted once more (residual block termination). Blocks have no remainder.

use aws_lc_rs::cipher::{
    AES_192, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use hmac::{Hmac, Mac};
use md5::Md5;
use strongroom_block::TAG_BYTES;
use zeroize::Zeroize;

use crate::{KEY_BYTES, NONCE_BYTES, NotAuthentic};

const CIPHER_KEY_BYTES: usize = 24;
const AES_BLOCK_BYTES: usize = 16;
/// Names the authenticator's key, so that it is not the cipher's.
const MAC_LABEL: &[u8] = b"mac";

/// Both keys, expanded.
pub(crate) struct PaperKey {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
    /// One AES block at a time: initialisation vectors and remainders.
    single: EncryptingKey,
    mac: Authenticator,
}

impl PaperKey {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> PaperKey {
        let cipher_key =
            || UnboundCipherKey::new(&AES_192, &key[..CIPHER_KEY_BYTES]).expect("24 bytes are an AES-192 key");
        PaperKey {
            encrypting: EncryptingKey::cbc(cipher_key()).expect("AES-192 has CBC"),
            decrypting: DecryptingKey::cbc(cipher_key()).expect("AES-192 has CBC"),
            single: EncryptingKey::ecb(cipher_key()).expect("AES-192 has ECB"),
            mac: Authenticator::new(key, MAC_LABEL),
        }
    }

    pub(crate) fn seal(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let iv = self.iv(nonce);
        let (whole, rest) = split(text);
        if !whole.is_empty() {
            let context = EncryptionContext::Iv128(FixedLength::from(iv));
            self.encrypting.less_safe_encrypt(whole, context).expect("whole AES blocks");
        }
        self.mask(last_block(whole, iv), rest);
        self.mac.tag(nonce, associated, text).finalize().into_bytes().into()
    }

    pub(crate) fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated: &[u8],
        tag: &[u8; TAG_BYTES],
        text: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        // In constant time, and before anything is decrypted.
        self.mac.tag(nonce, associated, text).verify_slice(tag).map_err(|_| NotAuthentic)?;
        let iv = self.iv(nonce);
        let (whole, rest) = split(text);
        self.mask(last_block(whole, iv), rest);
        if !whole.is_empty() {
            let context = DecryptionContext::Iv128(FixedLength::from(iv));
            self.decrypting.decrypt(whole, context).expect("whole AES blocks");
        }
        Ok(())
    }

    /// A nonce encrypted under the same key cannot be foretold (NIST SP 800-38A, Appendix C).
    fn iv(&self, nonce: [u8; NONCE_BYTES]) -> [u8; AES_BLOCK_BYTES] {
        let mut iv = [0; AES_BLOCK_BYTES];
        iv[..NONCE_BYTES].copy_from_slice(&nonce);
        self.single.encrypt(&mut iv).expect("one AES block");
        iv
    }

    fn mask(&self, mut last: [u8; AES_BLOCK_BYTES], rest: &mut [u8]) {
        if !rest.is_empty() {
            self.single.encrypt(&mut last).expect("one AES block");
            rest.iter_mut().zip(last).for_each(|(byte, mask)| *byte ^= mask);
        }
    }
}

/// What both papers' suites authenticate by.
pub(crate) struct Authenticator(Hmac<Md5>);

impl Authenticator {
    /// Under a key of its own, made from all of `key` and the suite's label.
    pub(crate) fn new(key: &[u8; KEY_BYTES], label: &[u8]) -> Authenticator {
        let mut mac_key: [u8; TAG_BYTES] = keyed(key).chain_update(label).finalize().into_bytes().into();
        let mac = keyed(&mac_key);
        mac_key.zeroize();
        Authenticator(mac)
    }

    /// HMAC-MD5 of nonce, associated data with its length in front, and ciphertext.
    pub(crate) fn tag(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], text: &[u8]) -> Hmac<Md5> {
        let length = (associated.len() as u64).to_be_bytes();
        self.0.clone().chain_update(nonce).chain_update(length).chain_update(associated).chain_update(text)
    }
}

fn keyed(key: &[u8]) -> Hmac<Md5> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// The whole AES blocks, and what is left.
fn split(text: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    let whole = text.len() / AES_BLOCK_BYTES * AES_BLOCK_BYTES;
    text.split_at_mut(whole)
}

fn last_block(ciphertext: &[u8], iv: [u8; AES_BLOCK_BYTES]) -> [u8; AES_BLOCK_BYTES] {
    ciphertext.last_chunk().copied().unwrap_or(iv)
}

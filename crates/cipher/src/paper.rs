//! AES-192 in CBC mode: what the lazy-crypto paper encrypted by (§4.1).

use aws_lc_rs::cipher::{
    AES_192, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;

use crate::encrypt_then_mac::{Cbc, EncryptThenMac};
use crate::{KEY_BYTES, NONCE_BYTES};

const CIPHER_KEY_BYTES: usize = 24;
const BLOCK_BYTES: usize = 16;

type Block = [u8; BLOCK_BYTES];

/// A key of `aes192-cbc+hmac-md5`.
pub(crate) type PaperKey = EncryptThenMac<Aes192, BLOCK_BYTES>;

pub(crate) struct Aes192 {
    encrypting: EncryptingKey,
    decrypting: DecryptingKey,
    /// One AES block at a time: initialisation vectors and remainders.
    single: EncryptingKey,
}

impl Cbc<BLOCK_BYTES> for Aes192 {
    const MAC_LABEL: &'static [u8] = b"mac";

    fn new(key: &[u8; KEY_BYTES]) -> Aes192 {
        let cipher_key =
            || UnboundCipherKey::new(&AES_192, &key[..CIPHER_KEY_BYTES]).expect("24 bytes are an AES-192 key");
        Aes192 {
            encrypting: EncryptingKey::cbc(cipher_key()).expect("AES-192 has CBC"),
            decrypting: DecryptingKey::cbc(cipher_key()).expect("AES-192 has CBC"),
            single: EncryptingKey::ecb(cipher_key()).expect("AES-192 has ECB"),
        }
    }

    /// The nonce and four zeros, encrypted.
    fn iv(&self, nonce: [u8; NONCE_BYTES]) -> Block {
        let mut padded = [0; BLOCK_BYTES];
        padded[..NONCE_BYTES].copy_from_slice(&nonce);
        self.encrypt_one(padded)
    }

    fn encrypt(&self, iv: Block, whole: &mut [u8]) {
        if !whole.is_empty() {
            let context = EncryptionContext::Iv128(FixedLength::from(iv));
            self.encrypting.less_safe_encrypt(whole, context).expect("whole AES blocks");
        }
    }

    fn decrypt(&self, iv: Block, whole: &mut [u8]) {
        if !whole.is_empty() {
            let context = DecryptionContext::Iv128(FixedLength::from(iv));
            self.decrypting.decrypt(whole, context).expect("whole AES blocks");
        }
    }

    fn encrypt_one(&self, mut block: Block) -> Block {
        self.single.encrypt(&mut block).expect("one AES block");
        block
    }
}

//! Triple DES in CBC mode with HMAC-MD5, encrypt then MAC: what IPsec did by default when the WAN paper was written (its section IV.A).
//! For its experiments and nothing else: blocks of 64 bits repeat after some gigabytes, MD5 is broken, and the rooms above refuse the
//! suite anywhere but in a benchmark.
//!
//! As with the lazy-crypto paper's suite, text keeps its length: what remains behind the last whole cipher block is xored with that
//! block's ciphertext encrypted once more.

use des::TdesEde3;
use des::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use hmac::Mac;
use strongroom_block::TAG_BYTES;

use crate::paper::Authenticator;
use crate::{KEY_BYTES, NONCE_BYTES, NotAuthentic};

const CIPHER_KEY_BYTES: usize = 24;
const BLOCK_BYTES: usize = 8;
/// Names the authenticator's key, so that it is neither the cipher's nor the other suite's.
const MAC_LABEL: &[u8] = b"mac 3des";

type Block = [u8; BLOCK_BYTES];

/// Both keys, expanded.
pub(crate) struct TripleDesKey {
    cipher: TdesEde3,
    mac: Authenticator,
}

impl TripleDesKey {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> TripleDesKey {
        let cipher = TdesEde3::new_from_slice(&key[..CIPHER_KEY_BYTES]).expect("24 bytes are three DES keys");
        TripleDesKey { cipher, mac: Authenticator::new(key, MAC_LABEL) }
    }

    pub(crate) fn seal(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        let mut last = self.iv(nonce);
        let (whole, rest) = text.as_chunks_mut::<BLOCK_BYTES>();
        for block in whole {
            last = self.encrypt(xored(*block, last));
            *block = last;
        }
        self.mask(last, rest);
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
        let mut last = self.iv(nonce);
        let (whole, rest) = text.as_chunks_mut::<BLOCK_BYTES>();
        for block in whole {
            let sealed = *block;
            *block = xored(self.decrypt(sealed), last);
            last = sealed;
        }
        self.mask(last, rest);
        Ok(())
    }

    /// The nonce and four zeros in CBC mode from zeros on: cannot be foretold without the key (NIST SP 800-38A, Appendix C).
    fn iv(&self, nonce: [u8; NONCE_BYTES]) -> Block {
        let (first, second) = nonce.split_at(BLOCK_BYTES);
        let mut padded = [0; BLOCK_BYTES];
        padded[..second.len()].copy_from_slice(second);
        let first = self.encrypt(first.try_into().expect("eight of twelve bytes"));
        self.encrypt(xored(first, padded))
    }

    fn mask(&self, last: Block, rest: &mut [u8]) {
        if !rest.is_empty() {
            let mask = self.encrypt(last);
            rest.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        }
    }

    fn encrypt(&self, block: Block) -> Block {
        let mut block = block.into();
        self.cipher.encrypt_block(&mut block);
        block.into()
    }

    fn decrypt(&self, block: Block) -> Block {
        let mut block = block.into();
        self.cipher.decrypt_block(&mut block);
        block.into()
    }
}

fn xored(block: Block, other: Block) -> Block {
    std::array::from_fn(|at| block[at] ^ other[at])
}

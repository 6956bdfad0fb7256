//! Triple DES in CBC mode: what IPsec encrypted by when the WAN paper was written (its section IV.A). Blocks of 64 bits repeat after
//! some gigabytes.

use des::TdesEde3;
use des::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};

use crate::encrypt_then_mac::{Cbc, EncryptThenMac};
use crate::{KEY_BYTES, NONCE_BYTES};

const CIPHER_KEY_BYTES: usize = 24;
const BLOCK_BYTES: usize = 8;

type Block = [u8; BLOCK_BYTES];

/// A key of `3des-cbc+hmac-md5`.
pub(crate) type TripleDesKey = EncryptThenMac<TripleDes, BLOCK_BYTES>;

pub(crate) struct TripleDes(TdesEde3);

impl Cbc<BLOCK_BYTES> for TripleDes {
    const MAC_LABEL: &'static [u8] = b"mac 3des";

    fn new(key: &[u8; KEY_BYTES]) -> TripleDes {
        TripleDes(TdesEde3::new_from_slice(&key[..CIPHER_KEY_BYTES]).expect("24 bytes are three DES keys"))
    }

    /// The nonce and four zeros in CBC mode from zeros on: the second block.
    fn iv(&self, nonce: [u8; NONCE_BYTES]) -> Block {
        let (first, second) = nonce.split_at(BLOCK_BYTES);
        let mut padded = [0; BLOCK_BYTES];
        padded[..second.len()].copy_from_slice(second);
        let first = self.encrypt_one(first.try_into().expect("eight of twelve bytes"));
        self.encrypt_one(xored(first, padded))
    }

    fn encrypt(&self, iv: Block, whole: &mut [u8]) {
        let mut last = iv;
        for block in whole.as_chunks_mut().0 {
            last = self.encrypt_one(xored(*block, last));
            *block = last;
        }
    }

    fn decrypt(&self, iv: Block, whole: &mut [u8]) {
        let mut last = iv;
        for block in whole.as_chunks_mut().0 {
            let sealed = *block;
            let mut opened = sealed.into();
            self.0.decrypt_block(&mut opened);
            *block = xored(opened.into(), last);
            last = sealed;
        }
    }

    fn encrypt_one(&self, block: Block) -> Block {
        let mut block = block.into();
        self.0.encrypt_block(&mut block);
        block.into()
    }
}

fn xored(block: Block, other: Block) -> Block {
    std::array::from_fn(|at| block[at] ^ other[at])
}

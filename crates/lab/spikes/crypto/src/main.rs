//! The spike room: which library seals a block fastest, with a key that stays and with a fresh key per block.
//!
//! Prints the table of docs/sealed-block.md. In place, detached tag, 64 bytes of associated data, one thread, data in
//! the cache. Each figure is the best of many short rounds: on a shared machine noise only ever adds.
//!
//! `cargo run --release` in this directory.

use std::hint::black_box;
use std::time::Instant;

const SIZES: [usize; 3] = [512, 4096, 65536];
/// Blocks sealed and then opened in one round come to this many bytes.
const BATCH_BYTES: usize = 256 << 10;
const ROUNDS: u32 = 200;
const ASSOCIATED: [u8; 64] = [0x5a; 64];

/// One algorithm of one library.
trait Candidate {
    /// For the table.
    const NAME: &'static str;
    /// An expanded key.
    type Key;
    fn key(bytes: &[u8; 32]) -> Self::Key;
    fn seal(key: &Self::Key, counter: u64, block: &mut [u8]) -> [u8; 16];
    /// Whether the block was authentic.
    fn open(key: &Self::Key, counter: u64, tag: &[u8; 16], block: &mut [u8]) -> bool;
}

/// A nonce or key of `N` bytes that differs for each counter.
fn counted<const N: usize>(counter: u64) -> [u8; N] {
    let mut bytes = [0x42; N];
    bytes[..8].copy_from_slice(&counter.to_le_bytes());
    bytes
}

macro_rules! aws_lc_rs {
    ($name:ident, $algorithm:ident, $key_bytes:literal, $shown:literal) => {
        struct $name;

        impl Candidate for $name {
            const NAME: &'static str = $shown;
            type Key = aws_lc_rs::aead::LessSafeKey;

            fn key(bytes: &[u8; 32]) -> Self::Key {
                use aws_lc_rs::aead::{LessSafeKey, UnboundKey, $algorithm};
                LessSafeKey::new(UnboundKey::new(&$algorithm, &bytes[..$key_bytes]).expect("its length"))
            }

            fn seal(key: &Self::Key, counter: u64, block: &mut [u8]) -> [u8; 16] {
                use aws_lc_rs::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(counted(counter));
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(ASSOCIATED), block).expect("short enough");
                tag.as_ref().try_into().expect("16 bytes")
            }

            fn open(key: &Self::Key, counter: u64, tag: &[u8; 16], block: &mut [u8]) -> bool {
                use aws_lc_rs::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(counted(counter));
                key.open_in_place_separate_tag(nonce, Aad::from(ASSOCIATED), tag, block).is_ok()
            }
        }
    };
}

macro_rules! ring {
    ($name:ident, $algorithm:ident, $key_bytes:literal, $shown:literal) => {
        struct $name;

        impl Candidate for $name {
            const NAME: &'static str = $shown;
            type Key = ring::aead::LessSafeKey;

            fn key(bytes: &[u8; 32]) -> Self::Key {
                use ring::aead::{LessSafeKey, UnboundKey, $algorithm};
                LessSafeKey::new(UnboundKey::new(&$algorithm, &bytes[..$key_bytes]).expect("its length"))
            }

            fn seal(key: &Self::Key, counter: u64, block: &mut [u8]) -> [u8; 16] {
                use ring::aead::{Aad, Nonce};
                let nonce = Nonce::assume_unique_for_key(counted(counter));
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(ASSOCIATED), block).expect("short enough");
                tag.as_ref().try_into().expect("16 bytes")
            }

            fn open(key: &Self::Key, counter: u64, tag: &[u8; 16], block: &mut [u8]) -> bool {
                use ring::aead::{Aad, Nonce, Tag};
                let nonce = Nonce::assume_unique_for_key(counted(counter));
                key.open_in_place_separate_tag(nonce, Aad::from(ASSOCIATED), Tag::from(*tag), block, 0..).is_ok()
            }
        }
    };
}

/// AEGIS has no key set-up apart from the message's own: both columns of keys measure the same.
macro_rules! aegis {
    ($module:ident, $name:ident, $key_bytes:literal, $shown:literal) => {
        struct $name;

        impl Candidate for $name {
            const NAME: &'static str = $shown;
            type Key = [u8; $key_bytes];

            fn key(bytes: &[u8; 32]) -> Self::Key {
                bytes[..$key_bytes].try_into().expect("its length")
            }

            fn seal(key: &Self::Key, counter: u64, block: &mut [u8]) -> [u8; 16] {
                aegis::$module::$name::<16>::new(key, &counted(counter)).encrypt_in_place(block, &ASSOCIATED)
            }

            fn open(key: &Self::Key, counter: u64, tag: &[u8; 16], block: &mut [u8]) -> bool {
                let cipher = aegis::$module::$name::<16>::new(key, &counted(counter));
                cipher.decrypt_in_place(block, tag, &ASSOCIATED).is_ok()
            }
        }
    };
}

aws_lc_rs!(AwsAes256Gcm, AES_256_GCM, 32, "aws-lc-rs AES-256-GCM");
aws_lc_rs!(AwsAes128Gcm, AES_128_GCM, 16, "aws-lc-rs AES-128-GCM");
aws_lc_rs!(AwsAes256GcmSiv, AES_256_GCM_SIV, 32, "aws-lc-rs AES-256-GCM-SIV");
aws_lc_rs!(AwsChaCha, CHACHA20_POLY1305, 32, "aws-lc-rs ChaCha20-Poly1305");
ring!(RingAes256Gcm, AES_256_GCM, 32, "ring AES-256-GCM");
ring!(RingAes128Gcm, AES_128_GCM, 16, "ring AES-128-GCM");
ring!(RingChaCha, CHACHA20_POLY1305, 32, "ring ChaCha20-Poly1305");
aegis!(aegis128l, Aegis128L, 16, "aegis AEGIS-128L");
aegis!(aegis128x2, Aegis128X2, 16, "aegis AEGIS-128X2");
aegis!(aegis256, Aegis256, 32, "aegis AEGIS-256");
aegis!(aegis256x2, Aegis256X2, 32, "aegis AEGIS-256X2");

/// Nanoseconds per block to seal and to open, the best round.
fn measure<C: Candidate>(block_bytes: usize, fresh: bool) -> (f64, f64) {
    let count = BATCH_BYTES / block_bytes;
    let mut blocks = vec![vec![0x33; block_bytes]; count];
    let mut tags = vec![[0; 16]; count];
    let fixed = C::key(&[0x42; 32]);
    let (mut best_seal, mut best_open) = (f64::MAX, f64::MAX);
    for round in 0..u64::from(ROUNDS) {
        let first = round * count as u64;
        let start = Instant::now();
        for (counter, (block, tag)) in (first..).zip(blocks.iter_mut().zip(&mut tags)) {
            *tag = if fresh {
                C::seal(&C::key(&counted(counter)), counter, block)
            } else {
                C::seal(&fixed, counter, block)
            };
        }
        best_seal = best_seal.min(start.elapsed().as_nanos() as f64 / count as f64);
        let start = Instant::now();
        let mut authentic = true;
        for (counter, (block, tag)) in (first..).zip(blocks.iter_mut().zip(&tags)) {
            authentic &= if fresh {
                C::open(&C::key(&counted(counter)), counter, tag, block)
            } else {
                C::open(&fixed, counter, tag, block)
            };
        }
        best_open = best_open.min(start.elapsed().as_nanos() as f64 / count as f64);
        assert!(black_box(authentic), "{} does not open what it sealed", C::NAME);
    }
    assert!(blocks.iter().all(|block| block.iter().all(|&byte| byte == 0x33)));
    (best_seal, best_open)
}

fn row<C: Candidate>() {
    print!("| {} |", C::NAME);
    for fresh in [false, true] {
        for block_bytes in SIZES {
            let (seal, open) = measure::<C>(block_bytes, fresh);
            print!(" {seal:.0} / {open:.0} |");
        }
    }
    println!();
}

fn main() {
    println!("Nanoseconds per block, seal / open, best of {ROUNDS} rounds.\n");
    println!("| library, algorithm | fixed key, 512 B | 4096 B | 65536 B | fresh key, 512 B | 4096 B | 65536 B |");
    println!("|---|---|---|---|---|---|---|");
    row::<AwsAes256Gcm>();
    row::<AwsAes128Gcm>();
    row::<RingAes256Gcm>();
    row::<RingAes128Gcm>();
    row::<Aegis128L>();
    row::<Aegis128X2>();
    row::<Aegis256>();
    row::<Aegis256X2>();
    row::<AwsAes256GcmSiv>();
    row::<AwsChaCha>();
    row::<RingChaCha>();
}

//! Proves that our composition is XAES-256-GCM: the published vectors of C2SP, single and accumulated.
//!
//! <https://github.com/C2SP/C2SP/blob/main/XAES-256-GCM.md>, sections "Test vectors" and "Accumulated randomized tests".

use strongroom_seal::{xaes_open_for_test, xaes_seal_for_test};

use crate::vectors::hex;

const NONCE: &[u8; 24] = b"ABCDEFGHIJKLMNOPQRSTUVWX";
const MESSAGE: &[u8] = b"XAES-256-GCM";

/// The most significant bit of L is clear for this key.
#[test]
fn key_01_without_associated_data() {
    let sealed = xaes_seal_for_test(&[1; 32], NONCE, b"", MESSAGE);
    assert_eq!(hex(&sealed), "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271");
    assert_eq!(xaes_open_for_test(&[1; 32], NONCE, b"", &sealed).as_deref(), Ok(MESSAGE));
}

/// And set for this one.
#[test]
fn key_03_with_associated_data() {
    let associated = b"c2sp.org/XAES-256-GCM";
    let sealed = xaes_seal_for_test(&[3; 32], NONCE, associated, MESSAGE);
    assert_eq!(hex(&sealed), "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d");
    assert_eq!(xaes_open_for_test(&[3; 32], NONCE, associated, &sealed).as_deref(), Ok(MESSAGE));
    assert!(xaes_open_for_test(&[3; 32], NONCE, b"", &sealed).is_err());
}

/// STRONGROOM_XAES_INPUTS=1000000 takes the longer of the two published runs: `make soak`.
#[test]
fn accumulated_over_random_inputs() {
    let (inputs, digest) = match std::env::var("STRONGROOM_XAES_INPUTS").as_deref() {
        Err(_) => (10_000, "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"),
        Ok("1000000") => (1_000_000, "2163ae1445985a30b60585ee67daa55674df06901b890593e824b8a7c885ab15"),
        Ok(other) => panic!("no digest is published for {other} inputs: leave it out, or say 1000000"),
    };
    assert_eq!(hex(&accumulated(inputs)), digest);
}

/// Inputs come from one SHAKE-128 stream; a second one digests all outputs.
fn accumulated(iterations: u32) -> [u8; 32] {
    let (mut source, mut digest) = (Shake128::default(), Shake128::default());
    let take = |source: &mut Shake128, count: usize| {
        let mut bytes = vec![0; count];
        source.squeeze(&mut bytes);
        bytes
    };
    for _ in 0..iterations {
        let key: [u8; 32] = take(&mut source, 32).try_into().unwrap();
        let nonce: [u8; 24] = take(&mut source, 24).try_into().unwrap();
        let message_bytes = usize::from(take(&mut source, 1)[0]);
        let message = take(&mut source, message_bytes);
        let associated_bytes = usize::from(take(&mut source, 1)[0]);
        let associated = take(&mut source, associated_bytes);
        let sealed = xaes_seal_for_test(&key, &nonce, &associated, &message);
        assert_eq!(xaes_open_for_test(&key, &nonce, &associated, &sealed).as_ref(), Ok(&message));
        digest.absorb(&sealed);
    }
    let mut out = [0; 32];
    digest.squeeze(&mut out);
    out
}

/// SHAKE-128 (FIPS 202), for this test alone: a crate and its seven dependencies would be more to read. The vectors
/// above come out right only if it is right.
#[derive(Default)]
struct Shake128 {
    state: [u64; 25],
    at: usize,
    squeezing: bool,
}

impl Shake128 {
    const RATE: usize = 168;

    fn absorb(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.mix(byte);
            self.at += 1;
            if self.at == Self::RATE {
                self.permute();
            }
        }
    }

    fn squeeze(&mut self, out: &mut [u8]) {
        if !self.squeezing {
            self.mix(0x1f);
            self.at = Self::RATE - 1;
            self.mix(0x80);
            self.permute();
            self.squeezing = true;
        }
        for byte in out {
            if self.at == Self::RATE {
                self.permute();
            }
            *byte = (self.state[self.at / 8] >> (8 * (self.at % 8))) as u8;
            self.at += 1;
        }
    }

    fn mix(&mut self, byte: u8) {
        self.state[self.at / 8] ^= u64::from(byte) << (8 * (self.at % 8));
    }

    /// Keccak-f[1600], and back to the start of the rate.
    fn permute(&mut self) {
        const ROTATE: [u32; 24] =
            [1, 3, 6, 10, 15, 21, 28, 36, 45, 55, 2, 14, 27, 41, 56, 8, 25, 43, 62, 18, 39, 61, 20, 44];
        const LANE: [usize; 24] =
            [10, 7, 11, 17, 18, 3, 5, 16, 8, 21, 24, 4, 15, 23, 19, 13, 12, 2, 20, 14, 22, 9, 6, 1];
        let a = &mut self.state;
        let mut lfsr = 1u8;
        for _ in 0..24 {
            let column: [u64; 5] = std::array::from_fn(|x| a[x] ^ a[x + 5] ^ a[x + 10] ^ a[x + 15] ^ a[x + 20]);
            for (at, lane) in a.iter_mut().enumerate() {
                *lane ^= column[(at + 4) % 5] ^ column[(at + 1) % 5].rotate_left(1);
            }
            let mut moved = a[1];
            for (rotate, lane) in ROTATE.into_iter().zip(LANE) {
                moved = std::mem::replace(&mut a[lane], moved.rotate_left(rotate));
            }
            for row in a.chunks_exact_mut(5) {
                let old: [u64; 5] = (&*row).try_into().unwrap();
                for (x, lane) in row.iter_mut().enumerate() {
                    *lane = old[x] ^ (!old[(x + 1) % 5] & old[(x + 2) % 5]);
                }
            }
            // The round constant, bit by bit from its shift register.
            for bit in 0..7 {
                if lfsr & 1 != 0 {
                    a[0] ^= 1 << ((1u64 << bit) - 1);
                }
                lfsr = (lfsr << 1) ^ if lfsr & 0x80 != 0 { 0x71 } else { 0 };
            }
        }
        self.at = 0;
    }
}

//! Proves that every suite opens what it sealed and nothing else, in place and out of place, at every length; and that its
//! bytes are those that an independent implementation (Python's `cryptography` and `hmac`) makes.

use strongroom_block::Suite;
use strongroom_cipher::{AeadKey, KEY_BYTES, NotAuthentic};

const NONCE: [u8; 12] = [0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab];

fn key() -> [u8; KEY_BYTES] {
    std::array::from_fn(|at| at as u8)
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (7 * at + 3) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn what_is_sealed_opens_and_nothing_else_does() {
    for suite in Suite::ALL {
        let key = AeadKey::new(suite, &key());
        for len in [0, 1, 15, 16, 17, 48, 511, 512, 4096] {
            let plain = text(len);
            let mut sealed = plain.clone();
            let tag = key.seal(NONCE, b"associated", &mut sealed);
            assert!(len == 0 || sealed != plain, "{suite} {len}");
            let mut other = vec![0; len];
            assert_eq!(key.seal_into(NONCE, b"associated", &plain, &mut other), tag, "{suite} {len}");
            assert_eq!(other, sealed);

            let mut opened = sealed.clone();
            assert_eq!(key.open(NONCE, b"associated", &tag, &mut opened), Ok(()));
            assert_eq!(opened, plain, "{suite} {len}");
            let mut out = vec![0; len];
            assert_eq!(key.open_into(NONCE, b"associated", &tag, &sealed, &mut out), Ok(()));
            assert_eq!(out, plain, "{suite} {len}");

            let refused = |nonce, associated: &[u8], tag: [u8; 16], text: &[u8]| {
                let mut text = text.to_vec();
                assert_eq!(key.open(nonce, associated, &tag, &mut text), Err(NotAuthentic), "{suite} {len}");
            };
            refused([0; 12], b"associated", tag, &sealed);
            refused(NONCE, b"associate", tag, &sealed);
            refused(NONCE, b"associated", [tag[0] ^ 1; 16], &sealed);
            for at in (0..len).step_by(37) {
                let mut changed = sealed.clone();
                changed[at] ^= 0x80;
                refused(NONCE, b"associated", tag, &changed);
            }
        }
    }
}

/// One suite's sealed text is never another's, under the same key.
#[test]
fn a_suite_opens_no_others_work() {
    for suite in Suite::ALL {
        let mut sealed = text(512);
        let tag = AeadKey::new(suite, &key()).seal(NONCE, b"", &mut sealed);
        for other in Suite::ALL.into_iter().filter(|other| *other != suite) {
            let opened = AeadKey::new(other, &key()).open(NONCE, b"", &tag, &mut sealed.clone());
            assert_eq!(opened, Err(NotAuthentic), "{suite} {other}");
        }
    }
}

#[test]
fn debug_shows_no_key() {
    for suite in Suite::ALL {
        assert_eq!(format!("{:?}", AeadKey::new(suite, &[0xa7; 32])), "AeadKey");
    }
}

/// Computed by scripts/golden-suites.py.
#[test]
fn golden_bytes() {
    for (suite, sealed_hex, tag_hex) in GOLDEN {
        let mut sealed = text(35);
        let tag = AeadKey::new(*suite, &key()).seal(NONCE, b"associated", &mut sealed);
        assert_eq!((hex(&sealed).as_str(), hex(&tag).as_str()), (*sealed_hex, *tag_hex), "{suite}");
    }
}

/// Key `000102…1f`, 35 bytes of text (7 × at + 3), associated data `associated`.
const GOLDEN: &[(Suite, &str, &str)] = &[
    (
        Suite::Aes256Gcm,
        "e5126d355aed2f8b5927ce835024a5b203d6d8981d21dfc837bc9f46b865a0dd319cb6",
        "c38a52c9db5abdb675f7f880a86fd01d",
    ),
    (
        Suite::Aes128Gcm,
        "a98c29a361af1e3eb13afc50114cd50c2094a2800c81a00b8ea2c85b85435a747949b4",
        "f800f2d9abbed66b5fa198abdd97b107",
    ),
    (
        Suite::ChaCha20Poly1305,
        "0fa1694752c0ef999b4dba44aba49897ee245237ccfcfd071f6a6271b6ac16d08f6ae7",
        "02bc4bd42bb274be182ac7468b5a5f83",
    ),
    #[cfg(feature = "weak-suites")]
    (
        Suite::Aes192CbcHmacMd5,
        "88f8fa426eeadc3016f377ce3382658c40862be7e6bebd432cd5352e68a0fdf7b17e46",
        "b041ee86ad8f1675e46d461a11ce4586",
    ),
    #[cfg(feature = "weak-suites")]
    (
        Suite::TripleDesCbcHmacMd5,
        "c3afaafacf5b56e4c7002591031d4e5e239bea719b0f9c7acf6581d6894ee06df9cb16",
        "abc196383ac3b9697f9c8801619c5ec2",
    ),
];

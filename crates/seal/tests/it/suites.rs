//! Pins what the suites beside AES-256-GCM make of a block, in both custodies and modes, and proves that a record of one suite
//! never opens on a volume of another. Vectors: scripts/golden-suites.py, from docs/sealed-block.md alone.

use aws_lc_rs::digest::{SHA256, digest};
use strongroom_block::{BlockSize, Lba, Mode, OpenError, SealRecord, SealingDomain, Suite};
use strongroom_seal::{BlindKeys, BlockKeys, SealContext, VolumeKey};

use crate::vectors::{KEY, LBA, counters, counting, fill_block_keys, hex, plain, stamp};

fn context(suite: Suite, mode: Mode) -> SealContext {
    let block_size = BlockSize::new(512).unwrap();
    SealContext::new(SealingDomain(counting(0x10)), block_size, 7).with_mode(mode).with_suite(suite)
}

fn blind(suite: Suite, mode: Mode) -> BlindKeys {
    BlindKeys::new(&VolumeKey::new(KEY), context(suite, mode), counters())
}

fn block_keys(suite: Suite, mode: Mode) -> BlockKeys {
    BlockKeys::new(context(suite, mode), Box::new(fill_block_keys), counters())
}

/// Suite, mode, flags, SHA-256 of the sealed block, record.
const GOLDEN: &[(Suite, u8, u8, &str, &str)] = &[
    (
        Suite::Aes128Gcm,
        1,
        0,
        "a98165262fc2377a7825873a22a5f080be20ec414f5c03aa33b92f5bae384d77",
        "0102010000000007404142434445464748494a4b4c4d4e4f0000000000000009e324e5559714d366b81b8da563d17b4b82f0e3d238de8118",
    ),
    (
        Suite::Aes128Gcm,
        2,
        0,
        "c9d8e3352f9f790d8b0be13cb1c18ed7963009888be04acc065ee5efbd934076",
        "0102020000000007404142434445464748494a4b4c4d4e4f0000000000000009e06c9854528606035f4a66629021d298a50d6fdf6d3792df",
    ),
    (
        Suite::Aes128Gcm,
        1,
        2,
        "f7001e59a9180aa62614e07591d947e9372f38b5712faac1dc94fe63c6b0dad6",
        "0102010200000007404142434445464748494a4b4c4d4e4f0000000000000009866567dc17d1b1f88174d290356f388a74e2e11c627ec533b0b1b2b3b4b5b6b7b8b9babbbcbdbebfb0b1b2b3b4b5b6b7b8b9babbbcbdbebf",
    ),
    (
        Suite::ChaCha20Poly1305,
        1,
        0,
        "58bbad328de7ed4a03f177da0c5d1cba6de43c16883ff5b536292cda2ab151a9",
        "0103010000000007404142434445464748494a4b4c4d4e4f00000000000000096941c5285bdb9d446dbb0762bfaa25524ee845471a5eeda7",
    ),
    (
        Suite::ChaCha20Poly1305,
        2,
        0,
        "c9d8e3352f9f790d8b0be13cb1c18ed7963009888be04acc065ee5efbd934076",
        "0103020000000007404142434445464748494a4b4c4d4e4f0000000000000009e06c98545286060377c888cee24e8c82d81b86da23307da4",
    ),
    (
        Suite::ChaCha20Poly1305,
        1,
        2,
        "b71574f63d2be8f9e2739beabc57f2f7705d2b4ce86e0e137edac66c58e6a672",
        "0103010200000007404142434445464748494a4b4c4d4e4f0000000000000009d7415ee7039f1ee39b85ba832e16a56e12991c801e6b4d4cb0b1b2b3b4b5b6b7b8b9babbbcbdbebfb0b1b2b3b4b5b6b7b8b9babbbcbdbebf",
    ),
    (
        Suite::Aes192CbcHmacMd5,
        1,
        0,
        "3561a68088df095d83364f91c15c9443458c797b06a6d59a8bca07df7208dded",
        "01f0010000000007404142434445464748494a4b4c4d4e4f00000000000000096ec140e5e837178066ca38110a9bbecd122411a0d5e4ef73",
    ),
    (
        Suite::Aes192CbcHmacMd5,
        2,
        0,
        "c9d8e3352f9f790d8b0be13cb1c18ed7963009888be04acc065ee5efbd934076",
        "01f0020000000007404142434445464748494a4b4c4d4e4f0000000000000009e06c9854528606038f1d0f6ed89f21a7126595a23fc9295b",
    ),
    (
        Suite::Aes192CbcHmacMd5,
        1,
        2,
        "2b6c0b5931d94dff3fb06f69cf4a1c9195612f3cf2c0fe73cc0f2e2da14c4094",
        "01f0010200000007404142434445464748494a4b4c4d4e4f0000000000000009b0073b77c71bbee2a1a4f74c96c21783a7b1c76ad999f973b0b1b2b3b4b5b6b7b8b9babbbcbdbebfb0b1b2b3b4b5b6b7b8b9babbbcbdbebf",
    ),
];

#[test]
fn golden_blocks() {
    for (suite, mode, flags, digest_hex, record_hex) in GOLDEN {
        let mode = Mode::from_byte(*mode).unwrap();
        let mut block = plain();
        let record = match flags {
            0 => blind(*suite, mode).seal(LBA, stamp(), &mut block),
            _ => block_keys(*suite, mode).seal(LBA, stamp(), &mut block),
        };
        assert_eq!(hex(digest(&SHA256, &block).as_ref()), *digest_hex, "{suite} {mode:?} {flags}");
        assert_eq!(hex(record.as_bytes()), *record_hex, "{suite} {mode:?} {flags}");
        let stored = SealRecord::decode(record.as_bytes()).unwrap();
        assert_eq!(stored.suite(), *suite);
        match flags {
            0 => blind(*suite, mode).open(LBA, &stored, &mut block).unwrap(),
            _ => block_keys(*suite, mode).open(LBA, &stored, &mut block).unwrap(),
        }
        assert_eq!(block, plain());
    }
}

/// A store that offers what was sealed in one suite as another's, or rewrites the record's suite, is refused.
#[test]
fn a_record_of_another_suite_does_not_open() {
    for suite in Suite::ALL {
        for other in Suite::ALL.into_iter().filter(|other| *other != suite) {
            let mut block = plain();
            let record = blind(suite, Mode::Encrypt).seal(LBA, stamp(), &mut block);
            let opened = blind(other, Mode::Encrypt).open(LBA, &record, &mut block.clone());
            assert_eq!(opened, Err(OpenError::NotAuthentic), "{suite} as {other}");
            let mut relabelled = record.as_bytes().to_vec();
            relabelled[1] = other as u8;
            let relabelled = SealRecord::decode(&relabelled).unwrap();
            let opened = blind(other, Mode::Encrypt).open(LBA, &relabelled, &mut block.clone());
            assert_eq!(opened, Err(OpenError::NotAuthentic), "{suite} relabelled {other}");
        }
    }
}

#[test]
fn holes_of_every_suite_open_as_a_whole() {
    for suite in Suite::ALL {
        let hole = blind(suite, Mode::Encrypt).seal_hole(Lba(5), 1000, stamp());
        assert_eq!(blind(suite, Mode::Encrypt).open_hole(&hole), Ok(()));
        let mut wider = hole.clone();
        wider.count += 1;
        assert_eq!(blind(suite, Mode::Encrypt).open_hole(&wider), Err(OpenError::NotAuthentic));
        let hole = block_keys(suite, Mode::Encrypt).seal_hole(Lba(5), 1000, stamp());
        assert_eq!(block_keys(suite, Mode::Encrypt).open_hole(&hole), Ok(()));
    }
}

//! Proves that a store which holds all ciphertext and no key can make a reader notice, and nothing else: for all that it
//! moves, swaps, cuts or flips does not open. Also what every custody has in common: what is sealed opens.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use strongroom_block::{AttachId, BlockSize, HoleRecord, Lba, Mode, OpenError, SealRecord, SealingDomain, Stamp};
use strongroom_seal::{
    BlockKeyWrap, BlockKeys, CryptoBytes, FillRandom, KeyPurpose, KeyWrapper, SealContext, SealerError, VolumeKeyFile,
    VolumeSealer, WrappingKey,
};

use crate::vectors::counters;

const BLOCK_BYTES: usize = 512;

fn context() -> SealContext {
    SealContext::new(SealingDomain([0xd0; 16]), BlockSize::new(BLOCK_BYTES as u64).unwrap(), 1)
}

fn blind(context: SealContext) -> VolumeSealer {
    blind_with_key(context, 0x11)
}

fn blind_with_key(context: SealContext, key: u8) -> VolumeSealer {
    let text = VolumeKeyFile::new(KeyPurpose::Volume, &[key; 32]).to_text();
    // The same key for two epochs: only the derivation tells them apart.
    let second = text.lines().last().unwrap().replace("epoch 1", "epoch 2");
    let keys = VolumeKeyFile::parse(&format!("{}{second}\n", *text)).unwrap();
    VolumeSealer::blind(&keys, context, counters()).unwrap()
}

fn own_keys(context: SealContext) -> VolumeSealer {
    VolumeSealer::block_keys(context, counting_random(), counters())
}

/// One key for up to four blocks.
fn shared_keys(context: SealContext) -> VolumeSealer {
    let keys = BlockKeys::new(context, counting_random(), counters());
    VolumeSealer::BlockKeys(Box::new(keys.with_blocks_per_key(NonZeroU32::new(4).unwrap())))
}

fn counting_random() -> FillRandom {
    let mut next = 0u64;
    Box::new(move |out| {
        for chunk in out.chunks_exact_mut(8) {
            next = next.wrapping_add(0x9e37_79b9_7f4a_7c15);
            chunk.copy_from_slice(&next.to_be_bytes());
        }
    })
}

/// One sealer of each custody and mode.
fn sealers() -> Vec<VolumeSealer> {
    let lazy = context().with_mode(Mode::AuthenticateOnly);
    vec![blind(context()), own_keys(context()), shared_keys(context()), blind(lazy), own_keys(lazy), shared_keys(lazy)]
}

fn stamp(counter: u64) -> Stamp {
    Stamp { attach_id: AttachId([0xa1; 16]), counter }
}

fn opens(sealer: &VolumeSealer, lba: Lba, record: &SealRecord, sealed: &[u8]) -> Result<Vec<u8>, OpenError> {
    let mut block = sealed.to_vec();
    let in_place = sealer.open(lba, record, &mut block);
    let mut out = vec![0; BLOCK_BYTES];
    let into = sealer.open_into(lba, record, sealed, &mut out);
    assert_eq!(in_place, into, "both ways to open agree");
    in_place.map(|()| {
        assert_eq!(block, out);
        block
    })
}

proptest! {
    #[test]
    fn what_is_sealed_opens(plain in proptest::collection::vec(any::<u8>(), BLOCK_BYTES), lba in any::<u64>(),
                            attach_id in any::<[u8; 16]>(), counter in any::<u64>()) {
        let stamp = Stamp { attach_id: AttachId(attach_id), counter };
        for sealer in sealers() {
            let mut block = plain.clone();
            let record = sealer.seal(Lba(lba), stamp, &mut block);
            prop_assert_eq!(record.as_bytes().len(), sealer.record_bytes());
            prop_assert_eq!(record.stamp(), stamp);
            prop_assert_eq!(block == plain, sealer.context().mode == Mode::AuthenticateOnly);
            prop_assert_eq!(opens(&sealer, Lba(lba), &record, &block), Ok(plain.clone()));

            let mut out = vec![0; BLOCK_BYTES];
            let record = sealer.seal_into(Lba(lba), stamp, &plain, &mut out);
            prop_assert_eq!(opens(&sealer, Lba(lba), &record, &out), Ok(plain.clone()));
        }
    }

    /// A record is what the store says it is: any bytes that decode.
    #[test]
    fn a_record_of_random_bytes_does_not_open(mut bytes in proptest::collection::vec(any::<u8>(), 56..=96),
                                              block in proptest::collection::vec(any::<u8>(), BLOCK_BYTES)) {
        bytes[..3].copy_from_slice(&[1, 1, 1]);
        bytes[3] &= 7;
        bytes[4..8].copy_from_slice(&[0, 0, 0, 1]);
        if let Ok(record) = SealRecord::decode(&bytes) {
            for sealer in sealers() {
                prop_assert!(opens(&sealer, Lba(0), &record, &block).is_err());
                let hole = HoleRecord { start: Lba(0), count: 1, record: record.clone() };
                prop_assert!(sealer.open_hole(&hole).is_err());
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_block_and_record_is_noticed() {
    for sealer in sealers() {
        let mut block = vec![0x5a; BLOCK_BYTES];
        let record = sealer.seal(Lba(7), stamp(1), &mut block);
        for bit in 0..BLOCK_BYTES * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(opens(&sealer, Lba(7), &record, &flipped).is_err(), "block bit {bit}");
        }
        for bit in 0..record.as_bytes().len() * 8 {
            let mut flipped = record.as_bytes().to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(flipped) = SealRecord::decode(&flipped) {
                assert!(opens(&sealer, Lba(7), &flipped, &block).is_err(), "record bit {bit}");
            }
        }
    }
}

/// CRCs are linear: flips that keep the keyless checksum exist, and only the tag stands against them.
#[test]
fn a_flip_that_keeps_the_checksum_is_noticed() {
    let sealer = blind(context());
    let mut block = vec![0x5a; BLOCK_BYTES];
    let record = sealer.seal(Lba(7), stamp(1), &mut block);
    let checksum = strongroom_block::keyless_checksum(&block);
    // Put a flip at the start, then choose the last 8 bytes by solving for the checksum, bit by bit.
    block[0] ^= 1;
    let end = BLOCK_BYTES - 8;
    let difference = checksum ^ strongroom_block::keyless_checksum(&block);
    let base = strongroom_block::keyless_checksum(&block);
    let effects: Vec<u64> = (0..64)
        .map(|bit| {
            let mut flipped = block.clone();
            flipped[end + bit / 8] ^= 1 << (bit % 8);
            base ^ strongroom_block::keyless_checksum(&flipped)
        })
        .collect();
    for bit in solve(&effects, difference) {
        block[end + bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(strongroom_block::keyless_checksum(&block), checksum, "the keyless checksum does not notice");
    assert_eq!(opens(&sealer, Lba(7), &record, &block), Err(OpenError::NotAuthentic));
}

/// Which of `effects` xor to `goal` (Gaussian elimination over one bit).
fn solve(effects: &[u64], mut goal: u64) -> Vec<usize> {
    let mut rows: Vec<(u64, u64)> = effects.iter().enumerate().map(|(at, &effect)| (effect, 1u64 << at)).collect();
    let mut used = 0u64;
    for bit in 0..64 {
        let Some(at) = rows.iter().position(|(effect, _)| effect >> bit & 1 == 1) else { continue };
        let (effect, which) = rows.swap_remove(at);
        for row in rows.iter_mut().filter(|(other, _)| other >> bit & 1 == 1) {
            *row = (row.0 ^ effect, row.1 ^ which);
        }
        if goal >> bit & 1 == 1 {
            (goal, used) = (goal ^ effect, used ^ which);
        }
    }
    assert_eq!(goal, 0, "64 free bits reach every checksum");
    (0..64).filter(|at| used >> at & 1 == 1).collect()
}

#[test]
fn a_block_opens_at_its_own_place_only() {
    for make in [blind as fn(SealContext) -> VolumeSealer, own_keys] {
        let sealer = make(context());
        let mut block = vec![0x5a; BLOCK_BYTES];
        let record = sealer.seal(Lba(7), stamp(1), &mut block);
        assert!(opens(&sealer, Lba(7), &record, &block).is_ok());
        assert_eq!(opens(&sealer, Lba(8), &record, &block), Err(OpenError::NotAuthentic), "another address");

        let elsewhere = make(SealContext { domain: SealingDomain([0xd1; 16]), ..context() });
        assert_eq!(opens(&elsewhere, Lba(7), &record, &block), Err(OpenError::NotAuthentic), "another domain");

        let lazy = make(context().with_mode(Mode::AuthenticateOnly));
        assert_eq!(opens(&lazy, Lba(7), &record, &block), Err(OpenError::NotAuthentic), "another mode");
    }
}

#[test]
fn a_record_does_not_pass_for_another_epoch() {
    let sealer = blind(context());
    let mut block = vec![0x5a; BLOCK_BYTES];
    let record = sealer.seal(Lba(7), stamp(1), &mut block);
    let mut bytes = record.as_bytes().to_vec();
    bytes[7] = 2;
    let renamed = SealRecord::decode(&bytes).unwrap();
    assert_eq!(opens(&sealer, Lba(7), &renamed, &block), Err(OpenError::NotAuthentic), "epoch 2 has other keys");
    bytes[7] = 3;
    let unknown = SealRecord::decode(&bytes).unwrap();
    assert_eq!(opens(&sealer, Lba(7), &unknown, &block), Err(OpenError::NoKey { epoch: 3 }), "says what is missing");
}

#[test]
fn older_epochs_open_while_the_current_one_seals() {
    let (old, new) = (blind(context()), blind(SealContext { epoch: 2, ..context() }));
    let mut block = vec![0x5a; BLOCK_BYTES];
    let record = old.seal(Lba(7), stamp(1), &mut block);
    assert!(opens(&new, Lba(7), &record, &block).is_ok());
    let mut block = vec![0x5a; BLOCK_BYTES];
    assert_eq!(new.seal(Lba(7), stamp(2), &mut block).epoch(), 2);
}

#[test]
fn another_volume_key_opens_nothing() {
    let mut block = vec![0x5a; BLOCK_BYTES];
    let record = blind_with_key(context(), 0x11).seal(Lba(7), stamp(1), &mut block);
    let other = blind_with_key(context(), 0x12);
    assert_eq!(opens(&other, Lba(7), &record, &block), Err(OpenError::NotAuthentic));
    let hole = blind_with_key(context(), 0x11).seal_hole(Lba(0), 9, stamp(2));
    assert_eq!(other.open_hole(&hole), Err(OpenError::NotAuthentic));
}

#[test]
fn a_block_of_another_length_is_refused_not_a_panic() {
    let sealer = blind(context());
    let mut block = vec![0x5a; BLOCK_BYTES];
    let record = sealer.seal(Lba(7), stamp(1), &mut block);
    for bytes in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES + 1] {
        let mut cut = vec![0; bytes];
        assert_eq!(sealer.open(Lba(7), &record, &mut cut), Err(OpenError::NotAuthentic));
    }
}

#[test]
fn a_hole_is_authentic_only_as_the_range_it_was_sealed_for() {
    for sealer in sealers() {
        let hole = sealer.seal_hole(Lba(100), 50, stamp(1));
        assert_eq!(sealer.open_hole(&hole), Ok(()));
        for (start, count) in [(99, 50), (101, 50), (100, 49), (100, 51), (0, u64::MAX)] {
            let stretched = HoleRecord { start: Lba(start), count, record: hole.record.clone() };
            assert_eq!(sealer.open_hole(&stretched), Err(OpenError::NotAuthentic));
        }
        let mut encoded = Vec::new();
        hole.encode(&mut encoded);
        for bit in 0..encoded.len() * 8 {
            let mut flipped = encoded.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(flipped) = HoleRecord::decode(&flipped) {
                assert!(sealer.open_hole(&flipped).is_err(), "bit {bit}");
            }
        }
    }
}

#[test]
fn holes_and_blocks_do_not_pass_for_each_other() {
    for sealer in sealers() {
        let mut block = vec![0; BLOCK_BYTES];
        let record = sealer.seal(Lba(7), stamp(1), &mut block);
        assert!(sealer.open_hole(&HoleRecord { start: Lba(7), count: 1, record }).is_err());
        let hole = sealer.seal_hole(Lba(7), 1, stamp(2));
        assert!(opens(&sealer, Lba(7), &hole.record, &[0; BLOCK_BYTES]).is_err());
    }
}

#[test]
fn records_of_one_custody_do_not_open_in_the_other() {
    let (blind, own) = (blind(context()), own_keys(context()));
    let mut block = vec![0; BLOCK_BYTES];
    let record = own.seal(Lba(7), stamp(1), &mut block);
    assert!(opens(&blind, Lba(7), &record, &block).is_err(), "a store cannot smuggle a key of its own in");
    let mut block = vec![0; BLOCK_BYTES];
    let record = blind.seal(Lba(7), stamp(1), &mut block);
    assert!(opens(&own, Lba(7), &record, &block).is_err());
}

#[test]
fn a_trusted_target_opens_what_rests_wrapped() {
    let wrapper = Arc::new(KeyWrapper::new(&WrappingKey::new([0x77; 32]), context().domain));
    let initiator = own_keys(context());
    let mut block = vec![0x5a; BLOCK_BYTES];
    let record = initiator.seal(Lba(7), stamp(1), &mut block);
    let at_rest = record.with_block_key(&wrapper.wrap(record.raw_block_key().unwrap()).unwrap());

    let mut without = block.clone();
    assert_eq!(initiator.open(Lba(7), &at_rest, &mut without), Err(OpenError::NoKey { epoch: 1 }));

    let target = BlockKeys::new(context(), counting_random(), counters());
    let target = VolumeSealer::BlockKeys(Box::new(target.with_wrapper(wrapper)));
    assert_eq!(opens(&target, Lba(7), &at_rest, &block), Ok(vec![0x5a; BLOCK_BYTES]));

    let stolen = KeyWrapper::new(&WrappingKey::new([0x78; 32]), context().domain);
    assert!(stolen.unwrap(at_rest.wrapped_block_key().unwrap()).is_err(), "a stolen disk opens nothing");
    let elsewhere = KeyWrapper::new(&WrappingKey::new([0x77; 32]), SealingDomain([0xd1; 16]));
    assert!(elsewhere.unwrap(at_rest.wrapped_block_key().unwrap()).is_err(), "nor does another domain's wrapper");
}

#[test]
fn every_write_of_custody_target_has_a_key_of_its_own() {
    let sealer = own_keys(context());
    let keys: std::collections::HashSet<[u8; 32]> = (0..200)
        .map(|counter| {
            let mut block = vec![0; BLOCK_BYTES];
            *sealer.seal(Lba(7), stamp(counter), &mut block).raw_block_key().unwrap()
        })
        .collect();
    assert_eq!(keys.len(), 200);
}

/// Blocks that share a key are still bound each to its place, and a record cannot be made to say that its key is its own.
#[test]
fn blocks_that_share_a_key_do_not_pass_for_one_another() {
    let sealer = shared_keys(context());
    let sealed: Vec<(SealRecord, Vec<u8>)> = (0..8)
        .map(|at| {
            let mut block = vec![at as u8; BLOCK_BYTES];
            (sealer.seal(Lba(at), stamp(10 + at), &mut block), block)
        })
        .collect();
    let keys: Vec<_> = sealed.iter().map(|(record, _)| *record.raw_block_key().unwrap()).collect();
    assert!(keys[..4].iter().all(|key| *key == keys[0]) && keys[4..].iter().all(|key| *key == keys[4]));
    assert_ne!(keys[0], keys[4]);
    for (at, (record, block)) in (0..).zip(&sealed) {
        assert!(record.flags().has_shared_key());
        for lba in 0..8 {
            let opened = opens(&sealer, Lba(lba), record, block);
            assert_eq!(opened, if lba == at { Ok(vec![at as u8; BLOCK_BYTES]) } else { Err(OpenError::NotAuthentic) });
        }
        // A reader that has keys of its own opens it by what the record says; a blind one never.
        assert!(opens(&own_keys(context()), Lba(at), record, block).is_ok());
        assert!(opens(&blind(context()), Lba(at), record, block).is_err());
        let mut bytes = record.as_bytes().to_vec();
        bytes[3] ^= 4;
        assert!(opens(&sealer, Lba(at), &SealRecord::decode(&bytes).unwrap(), block).is_err());
        let (neighbour, its_block) = &sealed[at as usize ^ 1];
        assert!(opens(&sealer, Lba(at), neighbour, its_block).is_err());
        assert!(opens(&sealer, Lba(at), record, its_block).is_err());
    }
    // A hole's key is its own, and says so.
    let hole = sealer.seal_hole(Lba(0), 4, stamp(99));
    assert!(!hole.record.flags().has_shared_key());
    for flags in [4, 5, 7] {
        let mut bytes = hole.record.as_bytes().to_vec();
        bytes[3] = flags;
        assert!(SealRecord::decode(&bytes).is_err(), "{flags}");
    }
}

#[test]
fn the_wrong_key_file_is_refused_when_the_sealer_is_made() {
    let wrapping = VolumeKeyFile::new(KeyPurpose::Wrapping, &[1; 32]);
    assert!(matches!(VolumeSealer::blind(&wrapping, context(), counters()), Err(SealerError::KeyFile(_))));
    let volume = VolumeKeyFile::new(KeyPurpose::Volume, &[1; 32]);
    let error = VolumeSealer::blind(&volume, SealContext { epoch: 5, ..context() }, counters()).unwrap_err();
    assert!(error.to_string().contains("epoch 5"), "{error}");
}

/// Rows "ClientWrite" and "ClientRead" of the paper's Table 1, for blocks.
#[test]
fn counters_show_the_work_done() {
    let done = |mode: Mode| {
        let counters = counters();
        let context = context().with_mode(mode);
        let keys = VolumeKeyFile::new(KeyPurpose::Volume, &[1; 32]);
        let sealer = VolumeSealer::blind(&keys, context, counters.clone()).unwrap();
        let mut block = vec![0; BLOCK_BYTES];
        let record = sealer.seal(Lba(7), stamp(1), &mut block);
        sealer.open(Lba(7), &record, &mut block).unwrap();
        counters.snapshot()
    };
    let bytes = BLOCK_BYTES as u64;
    let both = CryptoBytes { encrypted: bytes, decrypted: bytes, mac_made: bytes, mac_checked: bytes };
    assert_eq!(done(Mode::Encrypt), both);
    assert_eq!(done(Mode::AuthenticateOnly), CryptoBytes { encrypted: 0, decrypted: 0, ..both });
}

#[test]
fn a_sealer_is_shared_by_threads() {
    let sealer = blind(context());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let sealer = &sealer;
            scope.spawn(move || {
                for counter in 0..100 {
                    // Another attach id for each block: the cache of sub-keys is under pressure.
                    let attach_id = AttachId([(counter as u8).wrapping_mul(7); 16]);
                    let stamp = Stamp { attach_id, counter: thread << 32 | counter };
                    let mut block = vec![thread as u8; BLOCK_BYTES];
                    let record = sealer.seal(Lba(counter), stamp, &mut block);
                    sealer.open(Lba(counter), &record, &mut block).unwrap();
                    assert_eq!(block, vec![thread as u8; BLOCK_BYTES]);
                }
            });
        }
    });
}

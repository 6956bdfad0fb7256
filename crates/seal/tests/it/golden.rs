//! Pins the sealed forms, version 1: the vectors of docs/sealed-block.md, which were computed by an independent
//! implementation from the specification alone. A change here is a change of format and needs a new version.

use aws_lc_rs::digest::{SHA256, digest};
use strongroom_block::{BlockSize, HoleRecord, Lba, Mode, SealRecord, SealingDomain};
use strongroom_seal::{BlindKeys, BlockKeyWrap, BlockKeys, KeyWrapper, SealContext, VolumeKey, WrappingKey};

use crate::vectors::{BLOCK_KEY, KEY, LBA, counters, counting, fill_block_keys, hex, plain, stamp};

fn context() -> SealContext {
    SealContext::new(SealingDomain(counting(0x10)), BlockSize::new(512).unwrap(), 7)
}

fn hole_hex(hole: &HoleRecord) -> String {
    let mut bytes = Vec::new();
    hole.encode(&mut bytes);
    hex(&bytes)
}

const EPOCH_AND_STAMP: &str = "00000007404142434445464748494a4b4c4d4e4f0000000000000009";

#[test]
fn a_block_sealed_blind() {
    let keys = BlindKeys::new(&VolumeKey::new(KEY), context(), counters());
    let mut block = plain();
    let record = keys.seal(LBA, stamp(), &mut block);
    assert_eq!(hex(&block[..16]), "ebefa31ca6daf54132f02a890b519422");
    let whole = digest(&SHA256, &block);
    assert_eq!(hex(whole.as_ref()), "2d4ae85cda6097ebc846a71910f0d252fd1db8d2a19e860ab94ac7eccbcfd396");
    let tail = "30c5d36b5cb0bdd02a4842e3192475b269ae9b83fafb1e16";
    assert_eq!(hex(record.as_bytes()), format!("01010100{EPOCH_AND_STAMP}{tail}"));

    let stored = SealRecord::decode(record.as_bytes()).unwrap();
    keys.open(LBA, &stored, &mut block).unwrap();
    assert_eq!(block, plain());
}

#[test]
fn a_block_authenticated_only() {
    let context = context().with_mode(Mode::AuthenticateOnly);
    let keys = BlindKeys::new(&VolumeKey::new(KEY), context, counters());
    let mut block = plain();
    let record = keys.seal(LBA, stamp(), &mut block);
    assert_eq!(block, plain(), "readable by anyone");
    let tail = "e06c985452860603e332bcd53f19f0e415dac8c1abb5c4da";
    assert_eq!(hex(record.as_bytes()), format!("01010200{EPOCH_AND_STAMP}{tail}"));
    keys.open(LBA, &record, &mut block).unwrap();
}

#[test]
fn a_hole_sealed_blind() {
    let keys = BlindKeys::new(&VolumeKey::new(KEY), context(), counters());
    let hole = keys.seal_hole(Lba(5), 1000, stamp());
    let range = "000000000000000500000000000003e8";
    let tail = "0000000000000000b4851eadf1ed51fa6b786c2b24eee875";
    assert_eq!(hole_hex(&hole), format!("{range}01010101{EPOCH_AND_STAMP}{tail}"));
    keys.open_hole(&hole).unwrap();
}

fn block_keys() -> BlockKeys {
    BlockKeys::new(context(), Box::new(fill_block_keys), counters())
}

#[test]
fn a_block_and_a_hole_with_keys_of_their_own() {
    let keys = block_keys();
    let mut block = plain();
    let record = keys.seal(LBA, stamp(), &mut block);
    let whole = digest(&SHA256, &block);
    assert_eq!(hex(whole.as_ref()), "fb4d34765a3417b0739f5abee9bd6c29988ff835ccfbc8db9f163a2f39bd0b99");
    let key = hex(&BLOCK_KEY);
    let tail = "b0c879c30218391a3122d5b029aca5753188dc8fcd2fa013";
    assert_eq!(hex(record.as_bytes()), format!("01010102{EPOCH_AND_STAMP}{tail}{key}"));
    keys.open(LBA, &record, &mut block).unwrap();
    assert_eq!(block, plain());

    let hole = keys.seal_hole(Lba(5), 1000, stamp());
    let range = "000000000000000500000000000003e8";
    let tail = "000000000000000023e6f9d8fbd6d9a59c843ba4b7c32fdf";
    assert_eq!(hole_hex(&hole), format!("{range}01010103{EPOCH_AND_STAMP}{tail}{key}"));
    keys.open_hole(&hole).unwrap();
}

#[test]
fn a_block_under_a_key_that_it_shares() {
    let keys = block_keys().with_blocks_per_key(std::num::NonZeroU32::new(16).unwrap());
    let mut block = plain();
    let record = keys.seal(LBA, stamp(), &mut block);
    let whole = digest(&SHA256, &block);
    assert_eq!(hex(whole.as_ref()), "ea60e206609d8a488465488059717cc69f9e8b5dcd0a77e7623770b01e91e078");
    assert_eq!(
        hex(record.as_bytes()),
        format!("01010106{EPOCH_AND_STAMP}a367f6500283eae734ea89e3483794e489e2156920e20131{}", hex(&BLOCK_KEY))
    );
    keys.open(LBA, &record, &mut block).unwrap();
    assert_eq!(block, plain());
}

#[test]
fn a_block_key_wrapped_for_rest() {
    let wrapper = KeyWrapper::new(&WrappingKey::new(KEY), context().domain);
    let wrapped = wrapper.wrap(&BLOCK_KEY).unwrap();
    assert_eq!(hex(&wrapped), "26d466873529d284bbca8b57521bad81d4fca482d757ffa7789d8508de6e15a0bb6f0c5f5adcf476");
    assert_eq!(wrapper.unwrap(&wrapped), Ok(BLOCK_KEY));
}

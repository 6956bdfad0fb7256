//! Proves that no bytes of a store make checking, planning a repair, opening, or using what opened panic or
//! hang: golden images with bytes changed at random, and checksums that fit all the same.

use std::path::PathBuf;

use proptest::prelude::*;
use strongroom_store::fuzz::{fuzz_image, fuzz_use};

fn images() -> Vec<Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    // Streams of `send` lie beside them.
    let names = names.filter(|path| path.extension().is_some_and(|extension| extension == "image"));
    names.map(|path| std::fs::read(path).unwrap()).collect()
}

/// The list of (offset, length, bytes) with one byte of the contents changed.
fn change(image: &mut [u8], at: usize, to: u8) {
    let (mut piece, mut skipped) = (0, 0);
    while piece + 12 <= image.len() {
        let len = u32::from_be_bytes(image[piece + 8..piece + 12].try_into().unwrap()) as usize;
        if at < skipped + len {
            image[piece + 12 + at - skipped] = to;
            return;
        }
        (piece, skipped) = (piece + 12 + len, skipped + len);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_images_are_taken_without_panic(
        which in 0usize..16,
        changes in prop::collection::vec((0usize..9000, prop_oneof![any::<u8>(), Just(0xff), Just(0), Just(1)]), 1..5),
    ) {
        let images = images();
        let mut image = images[which % images.len()].clone();
        for (at, to) in changes {
            change(&mut image, at, to);
        }
        fuzz_image(&image);
        fuzz_use(&image);
    }
}

//! Attacks on the wire on block data. A scheme that checks on arrival ends the connection; a lazy one leaves it to the readers of
//! the block, who notice by its seal, or by chance earlier by the keyless checksum. What a reader notices it fetches again.

use std::sync::{Arc, Mutex};

use strongroom_block::{DeviceErrorKind, Lba, keyless_checksum};
use strongroom_channel::Scheme;

use super::{AT, BLOCK, CUSTODIES, Scene, assert_holds, assert_noticed, host_with, with_blocks, write};
use crate::support::keep_the_checksum;

type Change = fn(&mut [u8]);

/// In every custody, under every scheme.
fn for_each_scene(attack: impl Fn(&Scene)) {
    for volume in CUSTODIES {
        let host = host_with(volume);
        Scheme::ALL.iter().for_each(|&scheme| attack(&Scene::with(&host, scheme, volume)));
    }
}

/// Does `change` to the data of an answer, once under every scheme: the read succeeds, over the same connection where the channel does
/// not notice.
fn change_an_answer(change: Change) {
    for_each_scene(|scene| {
        let scheme = scene.scheme;
        scene.once_to_initiator(with_blocks, move |message| {
            let range = message.data.clone();
            change(&mut message.bytes[range]);
        });
        let checked = scheme.checks_on_arrival();
        scene.ends_session(checked, || assert_holds(&scene.device, AT, 2));
        let refetched = scene.device.status().engine.blocks_refetched;
        assert_eq!(refetched > 0, !checked, "{scheme}: {refetched} blocks were fetched again");
    });
}

/// Changes every answer under the lazy schemes: only after a new connection, made once, is that an error, and never wrong data.
#[test]
fn attack_flip_block_data_of_every_answer() {
    for_each_scene(|scene| {
        if scene.scheme.checks_on_arrival() {
            return;
        }
        scene.wire.tamper_towards_initiator(|message| {
            if message.has_blocks() {
                let range = message.data.clone();
                message.bytes[range][77] ^= 1;
            }
        });
        let error = scene.ends_session(true, || super::read(&scene.device).unwrap_err());
        assert_eq!((error.kind, error.lba), (DeviceErrorKind::Medium, Some(AT)), "{error}");
        assert!(error.message.contains("fetched 4 times over 2 connections"), "{error}");
        scene.ends_session(false, || super::read(&scene.device).unwrap_err());
        assert_eq!(scene.device.status().engine.refetch_connections, 1);
        scene.wire.behave();
        assert_holds(&scene.device, AT, 2);
    });
}

/// Does `change` to the data of a write, once under every scheme, where the keyless checksum shows it: the target notices in
/// any case, and the write is done in the end.
fn change_a_write_visibly(change: Change) {
    for_each_scene(|scene| {
        let scheme = scene.scheme;
        scene.once_to_target(with_blocks, move |message| {
            let range = message.data.clone();
            change(&mut message.bytes[range]);
        });
        scene.ends_session(scheme.checks_on_arrival(), || write(&scene.device, AT, 3));
        assert_holds(&scene.device, AT, 3);
    });
}

#[test]
fn attack_flip_block_data() {
    change_a_write_visibly(|data| data[BLOCK + 77] ^= 0x10);
    change_an_answer(|data| data[BLOCK + 77] ^= 0x10);
}

/// The target cannot know better: under the lazy schemes it acknowledges, and keeps the version before.
#[test]
fn attack_flip_block_data_keeping_the_checksum() {
    let flip: Change = |data| {
        let second = &mut data[BLOCK..2 * BLOCK];
        let before = keyless_checksum(second);
        keep_the_checksum(second, keyless_checksum);
        assert_eq!(keyless_checksum(second), before);
    };
    change_an_answer(flip);
    for_each_scene(|scene| {
        let scheme = scene.scheme;
        scene.once_to_target(with_blocks, move |message| {
            let range = message.data.clone();
            flip(&mut message.bytes[range]);
        });
        let checked = scheme.checks_on_arrival();
        scene.ends_session(checked, || write(&scene.device, AT, 3));
        if checked {
            assert_holds(&scene.device, AT, 3);
        } else {
            assert_noticed(&scene.device, Lba(AT.0 + 1));
            // The version before is there, for those who ask for it.
            scene.device.recover(Lba(AT.0 + 1), false).unwrap();
            assert!(super::read(&scene.device).is_ok());
        }
        write(&scene.device, AT, 2);
    });
}

#[test]
fn attack_swap_two_blocks() {
    // Blocks that are alike in the clear are not as they are sealed.
    let swap: Change = |data| {
        let (one, other) = data.split_at_mut(BLOCK);
        one.swap_with_slice(&mut other[..BLOCK]);
    };
    change_a_write_visibly(swap);
    change_an_answer(swap);
}

#[test]
fn attack_serve_zeros() {
    change_an_answer(|data| data[..BLOCK].fill(0));
}

/// An answer of before the last write, in the place of the answer now; its header is of now, so the records are.
#[test]
fn attack_swap_with_an_older_version() {
    for_each_scene(|scene| {
        let scheme = scene.scheme;
        let older = Arc::new(Mutex::new(Vec::new()));
        let kept = older.clone();
        scene.once_to_initiator(with_blocks, move |message| {
            *kept.lock().unwrap() = message.bytes[message.data.clone()].to_vec();
        });
        assert_holds(&scene.device, AT, 2);
        write(&scene.device, AT, 3);
        scene.once_to_initiator(with_blocks, move |message| {
            let range = message.data.clone();
            message.bytes[range].copy_from_slice(&older.lock().unwrap());
        });
        let checked = scheme.checks_on_arrival();
        scene.ends_session(checked, || assert_holds(&scene.device, AT, 3));
        write(&scene.device, AT, 2);
    });
}

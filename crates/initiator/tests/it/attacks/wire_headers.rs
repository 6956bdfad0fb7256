//! Attacks on the wire that are the channel's to notice, under every scheme: any change to headers, to the order, or to the
//! stream ends the connection, and what was asked for is done over another one.

use std::sync::{Arc, Mutex};

use strongroom_block::{Buffer, Lba};
use strongroom_channel::Scheme;
use strongroom_initiator::{RemoteDevice, discard_blocking, flush_blocking, read_blocking, write_blocking};

use super::{AT, BLOCK, COUNT, Scene, any_frame, assert_holds, blocks, host, read, with_blocks, write};
use crate::axes::{pairs, schemes};
use crate::support::{Host, Message};

#[test]
fn attack_flip_a_header() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        // A bit of the BHS (in the clear under S1), and one behind it, where seal records are.
        for at in [3, 60] {
            scene.once_to_target(with_blocks, move |message| message.bytes[message.header.start + at] ^= 1);
            scene.ends_session(true, || write(&scene.device, AT, 3));
            scene.wire.behave();
            assert_holds(&scene.device, AT, 3);
            scene.once_to_initiator(with_blocks, move |message| {
                message.bytes[message.header.start + at] ^= 1;
            });
            scene.ends_session(true, || assert_holds(&scene.device, AT, 3));
            scene.wire.behave();
        }
        // An answer without data.
        scene.once_to_initiator(
            |message| message.is_frame() && !message.has_blocks(),
            |message| {
                message.bytes[message.header.start] ^= 1;
            },
        );
        scene.ends_session(true, || flush_blocking(&*scene.device).unwrap());
    }
}

#[test]
fn attack_flip_an_unmap_list() {
    let host = host();
    for (volume, scheme) in pairs(&["vault", "disk"], &schemes()) {
        let scene = Scene::with(&host, scheme, volume);
        let block_len = scene.device.unit().geometry.block_size.len();
        let full = Buffer::copy_from(&vec![7; 4 * block_len]);
        write_blocking(&*scene.device, AT, full.clone(), false).unwrap();
        // The list is the data of a frame that is not block data: its addresses are its first bytes.
        scene.once_to_target(
            |message| !message.data.is_empty() && !message.has_blocks(),
            |message| {
                message.bytes[message.data.start + 7] ^= 1;
            },
        );
        scene.ends_session(true, || discard_blocking(&*scene.device, Lba(AT.0 + 1), 2).unwrap());
        scene.wire.behave();
        let now = read_blocking(&*scene.device, AT, 4).unwrap();
        let mut expected = full.to_vec();
        expected[block_len..3 * block_len].fill(0);
        assert!(now[..] == expected, "{volume} {scheme}");
    }
}

/// An old write, sent again as it was, after a newer one.
#[test]
fn attack_replay_a_pdu() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        let old = scene.record_to_target();
        write(&scene.device, AT, 3);
        write(&scene.device, AT, 4);
        inject_to_target(&scene, &old);
        scene.ends_session(true, || assert_holds(&scene.device, AT, 4));
    }
}

/// The same, into a connection that was made later.
#[test]
fn attack_replay_across_reconnects() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        let old = scene.record_to_target();
        write(&scene.device, AT, 3);
        scene.ends_session(true, || {
            scene.wire.cut();
            write(&scene.device, AT, 4);
        });
        inject_to_target(&scene, &old);
        scene.ends_session(true, || assert_holds(&scene.device, AT, 4));
    }
}

/// An older pair of data and record, both as they once went over this connection, in the place of the one now: the record is part of
/// the header, so this is seen under every scheme, also where the data alone would be left to readers.
#[test]
fn attack_replace_by_an_older_pair() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        let older = scene.record_to_target();
        write(&scene.device, AT, 3);
        let put = older.clone();
        scene.once_to_target(with_blocks, move |message| put_in_place(message, &put.lock().unwrap()));
        scene.ends_session(true, || write(&scene.device, AT, 4));
        scene.wire.behave();
        assert_holds(&scene.device, AT, 4);

        let older = Arc::new(Mutex::new(Vec::new()));
        let kept = older.clone();
        scene.once_to_initiator(with_blocks, move |message| kept.lock().unwrap().clone_from(message.bytes));
        assert_holds(&scene.device, AT, 4);
        write(&scene.device, AT, 5);
        scene.once_to_initiator(with_blocks, move |message| put_in_place(message, &older.lock().unwrap()));
        scene.ends_session(true, || assert_holds(&scene.device, AT, 5));
    }
}

/// All but the clear prefix, which fits: the same kind, generation and lengths.
fn put_in_place(message: &mut Message<'_>, older: &[u8]) {
    assert_eq!(older.len(), message.bytes.len());
    assert_eq!(older[..message.header.start], message.bytes[..message.header.start]);
    message.bytes.copy_from_slice(older);
}

/// Bob's write, put into alice's connection.
#[test]
fn attack_splice_another_sessions_pdu() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        let bobs_wire = crate::support::Wire::before(&host);
        let mut options = host.bobs_options(bobs_wire.url("vault"));
        options.channel.scheme = Some(scheme);
        options.sealing.verified_feedback = false;
        let bob = Scene { wire: bobs_wire, device: Arc::new(RemoteDevice::attach(options).unwrap()), scheme };
        let bobs = bob.record_to_target();
        write(&bob.device, AT, 3);
        write(&scene.device, AT, 4);
        inject_to_target(&scene, &bobs);
        scene.ends_session(true, || assert_holds(&scene.device, AT, 4));
        assert_holds(&bob.device, AT, 4);
    }
}

/// Puts recorded bytes before the next ones to the target.
fn inject_to_target(scene: &Scene, recorded: &Arc<Mutex<Vec<u8>>>) {
    let recorded = recorded.lock().unwrap().clone();
    assert!(recorded.len() > COUNT as usize * BLOCK, "a write was recorded");
    scene.once_to_target(any_frame, move |message| *message.bytes = [&recorded, &message.bytes[..]].concat());
}

#[test]
fn attack_reorder() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        scene.register();
        let mut held: Option<Vec<u8>> = None;
        let mut is_done = false;
        scene.wire.tamper_towards_target(move |message| match held.take() {
            _ if is_done || !message.is_frame() => {}
            None => held = Some(std::mem::take(message.bytes)),
            Some(first) => {
                message.bytes.extend(first);
                is_done = true;
            }
        });
        scene.ends_session(true, || scene.write_twice(5));
    }
}

#[test]
fn attack_drop_silently() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        scene.register();
        scene.once_to_target(any_frame, |message| message.bytes.clear());
        scene.ends_session(true, || scene.write_twice(5));
        scene.register();
        // The other way round what follows is the answer to the second write.
        scene.once_to_initiator(any_frame, |message| message.bytes.clear());
        scene.ends_session(true, || scene.write_twice(6));
    }
}

/// The stream goes on, with a piece missing.
#[test]
fn attack_truncate() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        scene.register();
        scene.once_to_target(any_frame, |message| message.bytes.truncate(message.bytes.len() - 5));
        scene.ends_session(true, || scene.write_twice(5));
        scene.register();
        scene.once_to_initiator(any_frame, |message| message.bytes.truncate(message.bytes.len() - 5));
        scene.ends_session(true, || scene.write_twice(6));
    }
}

/// Between two frames and in the midst of one, either way: an end without the authenticated goodbye is a failure, and what
/// was not acknowledged counts as not done.
#[test]
fn attack_end_the_stream_early() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        for keep in [0, 20, 2 * BLOCK, usize::MAX] {
            let end = move |message: &mut Message<'_>| {
                message.bytes.truncate(keep);
                *message.is_last = true;
            };
            scene.once_to_target(with_blocks, end);
            scene.ends_session(true, || {
                write(&scene.device, AT, 3);
                assert_holds(&scene.device, AT, 3);
            });
            scene.wire.behave();
            scene.once_to_initiator(with_blocks, end);
            // What was cut off behind a whole answer is noticed by the next one.
            scene.ends_session(true, || (0..2).for_each(|_| assert_holds(&scene.device, AT, 3)));
            scene.wire.behave();
        }
    }
}

/// What an end sent comes back to it.
#[test]
fn attack_reflect() {
    let host = host();
    for &scheme in Scheme::ALL {
        let scene = Scene::new(&host, scheme);
        let sent = Arc::new(Mutex::new(Vec::new()));
        let (kept, back) = (sent.clone(), sent);
        scene.once_to_target(with_blocks, move |message| kept.lock().unwrap().clone_from(message.bytes));
        scene.wire.tamper_towards_initiator(move |message| {
            let sent = std::mem::take(&mut *back.lock().unwrap());
            *message.bytes = [&sent[..], &message.bytes[..]].concat();
        });
        scene.ends_session(true, || write(&scene.device, AT, 3));
        scene.wire.behave();
        assert_holds(&scene.device, AT, 3);

        let answered = Arc::new(Mutex::new(Vec::new()));
        let (kept, back) = (answered.clone(), answered);
        scene.once_to_initiator(with_blocks, move |message| kept.lock().unwrap().clone_from(message.bytes));
        assert_holds(&scene.device, AT, 3);
        let recorded = back.lock().unwrap().clone();
        scene.once_to_target(any_frame, move |message| {
            *message.bytes = [&recorded[..], &message.bytes[..]].concat();
        });
        scene.ends_session(true, || assert_holds(&scene.device, AT, 3));
    }
}

/// A rekey that nobody ordered, one that is sent twice, and one that never arrives, while both ends change keys every few frames.
#[test]
fn attack_rekey_frames() {
    const REKEY: u8 = 0x54;
    let host = Host::start_with(&[strongroom_target::VolumeSpec::sealed("vault", crate::support::SIZE)], |config| {
        config.limits.rekey_tags = 3;
    });
    host.attach("vault").format().unwrap();
    for &scheme in Scheme::ALL {
        let wire = crate::support::Wire::before(&host);
        let mut options = host.options(wire.url("vault"));
        (options.channel.scheme, options.sealing.verified_feedback) = (Some(scheme), false);
        options.channel.rekey.tags = 3;
        let scene = Scene { wire, device: Arc::new(RemoteDevice::attach(options).unwrap()), scheme };
        let rekeys = |message: &Message<'_>| message.kind == REKEY;
        type Change = fn(&mut Message<'_>);
        let changes: [Change; 4] = [
            |message| message.bytes[8] ^= 1,
            |message| *message.bytes = message.bytes.repeat(2),
            |message| message.bytes.clear(),
            // The generation in the prefix, as if one had been left out.
            |message| message.bytes[1] = message.bytes[1].wrapping_add(1),
        ];
        for change in changes {
            scene.once_to_target(rekeys, change);
            scene.ends_session(true, || (0..8).for_each(|_| scene.write_twice(5)));
            scene.wire.behave();
            scene.once_to_initiator(rekeys, change);
            scene.ends_session(true, || (0..8).for_each(|_| scene.write_twice(6)));
            scene.wire.behave();
        }
        let status = scene.device.status();
        assert!(status.rekeys > 0 && status.peer_rekeys > 0, "{scheme}: {status:?}");
        assert_eq!(read(&scene.device).unwrap()[..], blocks(6)[..]);
    }
}

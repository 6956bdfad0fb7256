//! Pins the bytes of channel version 1, scheme S2-5: the vectors of docs/protocol.md, which were computed by an
//! independent implementation from the specification alone.

use std::sync::Arc;

use strongroom_block::{Buffer, CryptoCounters};
use strongroom_channel::{Channel, ChannelKeys, ChannelLimits, FrameKind};

fn keys() -> ChannelKeys {
    ChannelKeys::new(std::array::from_fn(|at| at as u8))
}

fn hex(buffers: &[Buffer]) -> String {
    buffers.iter().flat_map(|buffer| buffer.iter().map(|byte| format!("{byte:02x}"))).collect()
}

#[test]
fn the_wire_is_as_specified() {
    let counters = Arc::new(CryptoCounters::new());
    let limits = ChannelLimits { rekey_frames: 2, ..ChannelLimits::default() };
    let mut wire = Vec::new();
    let mut target = Channel::target(keys(), limits, counters.clone(), &mut wire);
    assert_eq!(hex(&wire), "5300001000000000ca96d45f4e41beabc3f2ee2251bb84ac8f87fbcf0e2aace97c1ba6e87df5fd21");

    let mut initiator = Channel::initiator(keys(), limits, counters);
    initiator.handle_input(&wire[0]).unwrap();
    wire.clear();
    initiator.encode(FrameKind::Protected, b"header", Buffer::copy_from(b"data"), &mut wire).unwrap();
    initiator.encode(FrameKind::Sealed, b"header", Buffer::copy_from(b"sealed data"), &mut wire).unwrap();
    // The limit of two frames is reached: the next one comes with new keys.
    initiator.encode(FrameKind::Protected, b"header", Buffer::empty(), &mut wire).unwrap();
    initiator.close(&mut wire);
    let golden = [
        "51000006000000045973a9749669c142d76ee6f25d99cab90ee4641cfc6476b487e2",
        "520000060000000baf2b7079dd2242dc13da303f61e53ce4cfb6028dceed",
        "7365616c65642064617461",
        "54000000000000000dc19abcb50a0cc3c44ab4ce5ea1b5f9",
        "51010006000000009b6c2fb917447a2491b15279058b1d36d24c015a1fbd",
        "55010000000000007a6d4789403ea3925b63004b66165b67",
    ];
    assert_eq!(wire.iter().map(|part| hex(std::slice::from_ref(part))).collect::<Vec<_>>(), golden);

    for part in &wire {
        let mut rest = &part[..];
        while !rest.is_empty() {
            rest = &rest[target.handle_input(rest).unwrap()..];
            if let Some(frame) = target.poll_frame() {
                assert_eq!(&frame.header[..], b"header");
            }
        }
    }
    assert!(target.is_closed_by_peer());
}

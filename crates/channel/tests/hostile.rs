//! Proves that an attacker on the wire can end a channel and nothing else: what is replayed, reordered, reflected,
//! dropped, cut, spliced or flipped ends it, and no byte of a header or of protected data gets through changed. Also:
//! what is sent arrives, in any pieces, across changes of keys; and limits hold before anything is stored.

use std::sync::Arc;

use proptest::prelude::*;
use strongroom_block::{Buffer, CryptoCounters};
use strongroom_channel::{
    Channel, ChannelError, ChannelKeys, ChannelLimits, DATA_BYTES_CAP, Frame, FrameKind, HEADER_BYTES_CAP,
    PREFIX_BYTES, Scheme, TAG_BYTES, fuzz_decode,
};

fn keys(connection: u8) -> ChannelKeys {
    keys_of(Scheme::Lazy, connection)
}

fn keys_of(scheme: Scheme, connection: u8) -> ChannelKeys {
    ChannelKeys::new([connection; 32], scheme)
}

/// Two confirmed ends of one connection.
#[derive(Debug)]
struct Pair {
    initiator: Channel,
    target: Channel,
}

fn pair() -> Pair {
    pair_with(1, ChannelLimits::default())
}

fn pair_with(connection: u8, limits: ChannelLimits) -> Pair {
    pair_of(Scheme::Lazy, connection, limits)
}

/// One pair for each scheme, with the keys of one connection.
fn pairs() -> impl Iterator<Item = Pair> {
    Scheme::ALL.iter().map(|&scheme| pair_of(scheme, 1, ChannelLimits::default()))
}

fn pair_of(scheme: Scheme, connection: u8, limits: ChannelLimits) -> Pair {
    let counters = Arc::new(CryptoCounters::new());
    let mut wire = Vec::new();
    let target = Channel::target(keys_of(scheme, connection), limits, counters.clone(), &mut wire);
    let mut initiator = Channel::initiator(keys_of(scheme, connection), limits, counters);
    assert_eq!(initiator.handle_input(&wire[0]), Ok(wire[0].len()));
    assert!(initiator.is_confirmed());
    Pair { initiator, target }
}

fn encode(channel: &mut Channel, kind: FrameKind, header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    channel.encode(kind, header, Buffer::copy_from(data), &mut out).unwrap();
    flat(&out)
}

fn flat(buffers: &[Buffer]) -> Vec<u8> {
    buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
}

/// Gives `bytes` to a channel and collects what arrives.
fn receive(channel: &mut Channel, bytes: &[u8]) -> Result<Vec<Frame>, ChannelError> {
    let (mut rest, mut frames) = (bytes, Vec::new());
    while !rest.is_empty() {
        let taken = channel.handle_input(rest)?;
        rest = &rest[taken..];
        frames.extend(channel.poll_frame());
    }
    Ok(frames)
}

/// The same through [`Channel::input_space`] wherever it offers space, as a driver that reads in place would.
fn receive_in_place(channel: &mut Channel, bytes: &[u8], piece: usize) -> Result<Vec<Frame>, ChannelError> {
    let (mut rest, mut frames) = (bytes, Vec::new());
    while !rest.is_empty() {
        let taken = match channel.input_space() {
            Some(space) => {
                let count = space.len().min(rest.len()).min(piece);
                space[..count].copy_from_slice(&rest[..count]);
                channel.input_filled(count)?;
                count
            }
            None => channel.handle_input(&rest[..piece.min(rest.len())])?,
        };
        rest = &rest[taken..];
        frames.extend(channel.poll_frame());
    }
    Ok(frames)
}

const PROTECTED: FrameKind = FrameKind::Protected;
const SEALED: FrameKind = FrameKind::Sealed;

fn schemes() -> impl Strategy<Value = Scheme> {
    proptest::sample::select(Scheme::ALL)
}

fn pdus() -> impl Strategy<Value = Vec<(FrameKind, Vec<u8>, Vec<u8>)>> {
    let pdu = (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200), 0usize..9000).prop_map(
        |(sealed, header, data_bytes)| {
            let kind = if sealed { SEALED } else { PROTECTED };
            let data = vec![header.len() as u8; data_bytes.max(usize::from(sealed))];
            (kind, header, data)
        },
    );
    proptest::collection::vec(pdu, 1..12)
}

proptest! {
    #[test]
    fn what_is_sent_arrives_in_any_pieces(scheme in schemes(), pdus in pdus(), piece in 1usize..5000,
                                          rekey_tags in 1u64..6, in_place in any::<bool>()) {
        let limits = ChannelLimits { rekey_tags, rekey_bytes: 10_000, ..ChannelLimits::default() };
        let mut pair = pair_of(scheme, 1, limits);
        let mut wire = Vec::new();
        for (kind, header, data) in &pdus {
            wire.extend(encode(&mut pair.initiator, *kind, header, data));
        }
        let frames = if in_place {
            receive_in_place(&mut pair.target, &wire, piece).unwrap()
        } else {
            wire.chunks(piece).flat_map(|bytes| receive(&mut pair.target, bytes).unwrap()).collect()
        };
        prop_assert_eq!(frames.len(), pdus.len());
        for (frame, (kind, header, data)) in frames.iter().zip(&pdus) {
            prop_assert_eq!(frame.kind, *kind);
            prop_assert_eq!(&frame.header[..], &header[..]);
            prop_assert_eq!(&frame.data[..], &data[..]);
            prop_assert!(frame.data.is_empty() || (frame.data.as_ptr() as usize).is_multiple_of(4096), "lands aligned");
        }
    }

    #[test]
    fn garbage_ends_the_channel_and_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 8..400),
                                                   first in 0x4eu8..0x5d, scheme in schemes()) {
        let mut bytes = bytes;
        bytes[0] = first;
        let mut pair = pair_of(scheme, 1, ChannelLimits::default());
        let result = receive(&mut pair.target, &bytes);
        prop_assert!(!matches!(result, Ok(frames) if !frames.is_empty()), "nothing authentic in garbage");
        fuzz_decode(&bytes);
    }

    #[test]
    fn a_flipped_bit_of_header_prefix_or_tag_ends_the_channel(scheme in schemes(), header in proptest::collection::vec(any::<u8>(), 0..100),
                                                             data in proptest::collection::vec(any::<u8>(), 1..100),
                                                             sealed in any::<bool>(),
                                                             flip in any::<proptest::sample::Index>()) {
        let kind = if sealed { SEALED } else { PROTECTED };
        let mut pair = pair_of(scheme, 1, ChannelLimits::default());
        let mut wire = encode(&mut pair.initiator, kind, &header, &data);
        // Sealed data is the readers' to check, unless the scheme has the channel do it too.
        let left_alone = sealed && !scheme.checks_on_arrival();
        let guarded = if left_alone { wire.len() - data.len() } else { wire.len() };
        let bit = flip.index(guarded * 8);
        wire[bit / 8] ^= 1 << (bit % 8);
        // What a changed length still waits for: more bytes than were sent, none of them good.
        wire.resize(wire.len() + HEADER_BYTES_CAP + 2 * TAG_BYTES, 0);
        match receive(&mut pair.target, &wire) {
            Err(_) => {}
            // Only a data length grown by megabytes can still be waiting.
            Ok(frames) => {
                prop_assert!(frames.is_empty());
                prop_assert!((4..PREFIX_BYTES).contains(&(bit / 8)) && !left_alone);
                prop_assert_eq!(pair.target.handle_eof(), Err(ChannelError::Truncated));
            }
        }
    }
}

/// The lazy schemes leave block data to its seal records: the channel passes it on as it came.
#[test]
fn a_flip_in_sealed_data_is_not_the_channels_business() {
    let mut pair = pair();
    let mut wire = encode(&mut pair.initiator, SEALED, b"header", &[0; 100]);
    let last = wire.len() - 1;
    wire[last] ^= 1;
    let frames = receive(&mut pair.target, &wire).unwrap();
    assert_eq!(frames[0].data[99], 1);
}

#[test]
fn a_replayed_frame_ends_the_channel() {
    for mut pair in pairs() {
        let frame = encode(&mut pair.initiator, SEALED, b"write", b"block");
        assert_eq!(receive(&mut pair.target, &frame).unwrap().len(), 1);
        assert_eq!(receive(&mut pair.target, &frame), Err(ChannelError::NotAuthentic), "{pair:?}");
    }
}

#[test]
fn reordered_and_dropped_frames_end_the_channel() {
    let orders = [[1, 0, 2], [0, 2, 1], [2, 1, 0]];
    for (mut pair, order) in Scheme::ALL.iter().flat_map(|_| pairs().zip(orders)) {
        let frames: Vec<_> =
            (0..3u8).map(|number| encode(&mut pair.initiator, PROTECTED, &[number; 48], b"")).collect();
        let results: Vec<_> = order.iter().map(|&at| receive(&mut pair.target, &frames[at])).collect();
        assert!(results.contains(&Err(ChannelError::NotAuthentic)), "{order:?}");
        assert!(results.last().unwrap().is_err(), "and it stays dead");
    }
}

#[test]
fn a_reflected_frame_ends_the_channel() {
    for mut pair in pairs() {
        let frame = encode(&mut pair.initiator, PROTECTED, b"header", b"");
        assert_eq!(receive(&mut pair.initiator, &frame), Err(ChannelError::NotAuthentic));
    }
}

#[test]
fn a_frame_of_another_connection_ends_the_channel() {
    for (mut pair, scheme) in pairs().zip(Scheme::ALL) {
        let mut other = pair_of(*scheme, 2, ChannelLimits::default());
        let frame = encode(&mut other.initiator, PROTECTED, b"header", b"");
        assert_eq!(receive(&mut pair.target, &frame), Err(ChannelError::NotAuthentic));
    }
}

#[test]
fn halves_of_two_frames_do_not_join() {
    let mut pair = pair();
    let first = encode(&mut pair.initiator, PROTECTED, &[1; 48], &[1; 32]);
    let second = encode(&mut pair.initiator, PROTECTED, &[2; 48], &[2; 32]);
    let half = first.len() / 2;
    let spliced = [&first[..half], &second[half..]].concat();
    assert_eq!(receive(&mut pair.target, &spliced), Err(ChannelError::NotAuthentic));
}

/// No frame can be relabelled as one of another kind or of another scheme: protected data never passes for sealed data,
/// and nothing is taken for protected that is not.
#[test]
fn a_relabelled_frame_ends_the_channel() {
    for (kind, label) in [PROTECTED, SEALED].into_iter().flat_map(|kind| (0x50..=0x60).map(move |label| (kind, label)))
    {
        for mut pair in pairs() {
            let mut frame = encode(&mut pair.initiator, kind, &[1; 64], &[1; 64]);
            if frame[0] != label {
                frame[0] = label;
                receive(&mut pair.target, &frame).unwrap_err();
            }
        }
    }
}

/// Two ends that were led to believe in different schemes have different keys.
#[test]
fn ends_of_different_schemes_never_understand_each_other() {
    for (at_target, at_initiator) in Scheme::ALL.iter().flat_map(|a| Scheme::ALL.iter().map(move |b| (a, b))) {
        let counters = Arc::new(CryptoCounters::new());
        let mut wire = Vec::new();
        let limits = ChannelLimits::default();
        Channel::target(keys_of(*at_target, 1), limits, counters.clone(), &mut wire);
        let mut initiator = Channel::initiator(keys_of(*at_initiator, 1), limits, counters);
        let understood = receive(&mut initiator, &flat(&wire)).is_ok();
        assert_eq!(understood, at_target == at_initiator, "{at_target} {at_initiator}");
    }
}

/// What a login says, and what holds keys, is unreadable under the schemes that leave the rest in the clear.
#[test]
fn secrets_are_encrypted_under_every_scheme() {
    for mut pair in pairs() {
        let visible = |wire: &[u8]| wire.windows(16).any(|window| window == [0xa7; 16]);
        let header = [&[0; 48][..], &[0xa7; 32]].concat();
        let private = encode(&mut pair.initiator, FrameKind::Private, &[0xa7; 48], &[0xa7; 64]);
        let behind_the_first_segment = encode(&mut pair.initiator, PROTECTED, &header, b"");
        let with_blocks = encode(&mut pair.initiator, SEALED, &header, &[1; 64]);
        for wire in [&private, &behind_the_first_segment, &with_blocks] {
            assert!(!visible(wire), "{pair:?}");
        }
        let wire = [private, behind_the_first_segment, with_blocks].concat();
        let frames = receive(&mut pair.target, &wire).unwrap();
        assert_eq!((&frames[0].header[..], &frames[0].data[..]), (&[0xa7; 48][..], &[0xa7; 64][..]));
        assert_eq!((&frames[1].header[..], &frames[2].header[..]), (&header[..], &header[..]));
        let headers_are_clear = visible(&encode(&mut pair.initiator, PROTECTED, &[0xa7; 48], b""));
        assert_ne!(headers_are_clear, pair.initiator.scheme().is_confidential());
    }
}

#[test]
fn a_frame_of_another_scheme_is_refused_on_its_prefix() {
    let mut lazy = pair();
    let error = lazy.target.handle_input(&[0x58, 0, 0, 48, 0, 0, 0, 0]).unwrap_err();
    assert_eq!(error, ChannelError::OtherScheme { found: 0x58, scheme: Scheme::Lazy });
}

#[test]
fn a_cut_stream_is_told_from_a_goodbye() {
    let mut cut = pair();
    let frame = encode(&mut cut.initiator, PROTECTED, b"header", b"");
    receive(&mut cut.target, &frame[..10]).unwrap();
    assert_eq!(cut.target.handle_eof(), Err(ChannelError::Truncated));

    let mut silent = pair();
    assert_eq!(silent.target.handle_eof(), Err(ChannelError::Truncated), "between frames too");

    let mut polite = pair();
    let mut wire = Vec::new();
    polite.initiator.close(&mut wire);
    receive(&mut polite.target, &flat(&wire)).unwrap();
    assert!(polite.target.is_closed_by_peer() && polite.initiator.is_closed());
    assert_eq!(polite.target.handle_eof(), Ok(()));
}

#[test]
fn after_a_goodbye_nothing_is_sent_or_taken() {
    let mut pair = pair();
    let (mut wire, mut again) = (Vec::new(), Vec::new());
    pair.initiator.close(&mut wire);
    pair.initiator.close(&mut again);
    assert!(again.is_empty(), "said once");
    let refused = pair.initiator.encode(PROTECTED, b"x", Buffer::empty(), &mut again);
    assert_eq!(refused, Err(ChannelError::Closed));
    let mut bytes = flat(&wire);
    bytes.push(0x51);
    assert_eq!(receive(&mut pair.target, &bytes), Err(ChannelError::AfterClose));
}

#[test]
fn half_closed_channels_still_carry_the_other_way() {
    let mut pair = pair();
    let mut wire = Vec::new();
    pair.initiator.close(&mut wire);
    receive(&mut pair.target, &flat(&wire)).unwrap();
    let answer = encode(&mut pair.target, PROTECTED, b"answer", b"");
    assert_eq!(receive(&mut pair.initiator, &answer).unwrap().len(), 1);
}

#[test]
fn nothing_is_sent_before_the_confirmation() {
    let mut initiator = Channel::initiator(keys(1), ChannelLimits::default(), Arc::new(CryptoCounters::new()));
    let mut wire = Vec::new();
    let refused = initiator.encode(PROTECTED, b"x", Buffer::empty(), &mut wire);
    assert_eq!(refused, Err(ChannelError::NotConfirmed));
    initiator.close(&mut wire);
    assert!(wire.is_empty());
}

#[test]
fn the_first_frame_must_be_the_confirmation_and_only_the_first() {
    let counters = Arc::new(CryptoCounters::new());
    let mut wire = Vec::new();
    let mut target = Channel::target(keys(1), ChannelLimits::default(), counters.clone(), &mut wire);
    // The confirmation is held back: what follows it does not open, because its number is another.
    let frame = encode(&mut target, PROTECTED, b"header", b"");
    let mut initiator = Channel::initiator(keys(1), ChannelLimits::default(), counters);
    assert_eq!(receive(&mut initiator, &frame), Err(ChannelError::NotAuthentic));

    // A confirmation from the initiator's side of another connection cannot exist; one made with its keys is refused.
    let mut wire = Vec::new();
    Channel::target(keys(1), ChannelLimits::default(), Arc::new(CryptoCounters::new()), &mut wire);
    assert_eq!(receive(&mut pair().target, &flat(&wire)), Err(ChannelError::NotAuthentic));
}

#[test]
fn the_targets_limits_reach_the_initiator() {
    let limits = ChannelLimits { header_bytes_max: 100, data_bytes_max: 1000, ..ChannelLimits::default() };
    let mut pair = pair_with(1, limits);
    assert_eq!(pair.initiator.peer_limits(), (100, 1000));
    assert_eq!(pair.target.peer_limits(), (HEADER_BYTES_CAP, DATA_BYTES_CAP));
    let mut wire = Vec::new();
    for (header, data) in [(101, 0), (0, 1001)] {
        let refused = pair.initiator.encode(PROTECTED, &vec![0; header], Buffer::copy_from(&vec![0; data]), &mut wire);
        assert_eq!(refused, Err(ChannelError::TooLong { header_bytes: header, data_bytes: data }));
    }
    let sent = encode(&mut pair.initiator, PROTECTED, &[0; 100], &[0; 1000]);
    assert_eq!(receive(&mut pair.target, &sent).unwrap().len(), 1, "a refused PDU leaves the channel as it was");
}

#[test]
fn a_sealed_frame_needs_data() {
    let mut wire = Vec::new();
    let refused = pair().initiator.encode(SEALED, b"x", Buffer::empty(), &mut wire);
    assert_eq!(refused, Err(ChannelError::SealedWithoutData));
}

#[test]
fn lengths_are_checked_on_the_prefix_alone() {
    let limits = ChannelLimits { header_bytes_max: 100, data_bytes_max: 1000, ..ChannelLimits::default() };
    let refusal = |prefix: [u8; 8]| pair_with(1, limits).target.handle_input(&prefix).unwrap_err();
    let (header, data) = (101u16.to_be_bytes(), 1001u32.to_be_bytes());
    let long_header = ChannelError::HeaderTooLong { bytes: 101, limit: 100 };
    assert_eq!(refusal([0x51, 0, header[0], header[1], 0, 0, 0, 0]), long_header);
    let long_data = ChannelError::DataTooLong { bytes: 1001, limit: 1000 };
    assert_eq!(refusal([0x52, 0, 0, 0, data[0], data[1], data[2], data[3]]), long_data);
    assert_eq!(refusal([0x52, 0, 0, 1, 0, 0, 0, 0]), ChannelError::Lengths(0x52));
    assert_eq!(refusal([0x53, 0, 0, 15, 0, 0, 0, 0]), ChannelError::Lengths(0x53));
    assert_eq!(refusal([0x54, 0, 0, 1, 0, 0, 0, 0]), ChannelError::Lengths(0x54));
    assert_eq!(refusal([0x55, 0, 0, 0, 0, 0, 0, 1]), ChannelError::Lengths(0x55));
    assert_eq!(refusal([0x16, 3, 1, 0, 0, 0, 0, 0]), ChannelError::UnknownType(0x16));
    assert_eq!(refusal([0x51, 1, 0, 0, 0, 0, 0, 0]), ChannelError::Generation { found: 1, expected: 0 });
}

#[test]
fn keys_change_by_frames_and_by_bytes() {
    let by_frames = ChannelLimits { rekey_tags: 3, ..ChannelLimits::default() };
    let by_bytes = ChannelLimits { rekey_bytes: 300, ..ChannelLimits::default() };
    for limits in [by_frames, by_bytes] {
        let mut pair = pair_with(1, limits);
        for round in 0..1000u32 {
            let frame = encode(&mut pair.initiator, SEALED, &round.to_be_bytes(), &[0; 96]);
            let received = receive(&mut pair.target, &frame).unwrap();
            assert_eq!(received[0].header[..], round.to_be_bytes());
        }
        assert!(pair.initiator.rekeys() > 300, "past 256, where the prefix's byte wraps: {}", pair.initiator.rekeys());
        assert_eq!(pair.target.rekeys(), 0, "each direction for itself");
    }
}

/// Frames above the byte limit pass in a generation of their own; the channel does not loop.
#[test]
fn a_frame_larger_than_a_generation_passes() {
    let mut pair = pair_with(1, ChannelLimits { rekey_bytes: 1, ..ChannelLimits::default() });
    for _ in 0..3 {
        let frame = encode(&mut pair.initiator, PROTECTED, &[1; 48], &[2; 5000]);
        assert_eq!(receive(&mut pair.target, &frame).unwrap().len(), 1);
    }
}

#[test]
fn attack_rekey_held_back() {
    let mut pair = pair_with(1, ChannelLimits { rekey_tags: 1, ..ChannelLimits::default() });
    let first = encode(&mut pair.initiator, PROTECTED, b"first", b"");
    receive(&mut pair.target, &first).unwrap();
    let second = encode(&mut pair.initiator, PROTECTED, b"second", b"");
    let without_rekey = &second[PREFIX_BYTES + TAG_BYTES..];
    let error = receive(&mut pair.target, without_rekey).unwrap_err();
    assert_eq!(error, ChannelError::Generation { found: 1, expected: 0 });
}

/// New keys cost a receiver thousands of times what the frame costs its sender: none that were not used are changed.
#[test]
fn attack_rekey_flood() {
    for mut pair in pairs() {
        let mut wire = Vec::new();
        pair.initiator.rekey(&mut wire);
        assert!(wire.is_empty(), "we do not");
        receive_one(&mut pair, b"used");
        pair.initiator.rekey(&mut wire);
        pair.initiator.rekey(&mut wire);
        assert_eq!((wire.len(), receive(&mut pair.target, &flat(&wire))), (1, Ok(Vec::new())));
        assert_eq!((pair.initiator.rekeys(), pair.target.peer_rekeys()), (1, 1));
        // Refused on the prefix, before anything of it is opened.
        let error = pair.target.handle_input(&[0x54, 1, 0, 0, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(error, ChannelError::EmptyGeneration);
    }
}

fn receive_one(pair: &mut Pair, header: &[u8]) {
    let frame = encode(&mut pair.initiator, PROTECTED, header, b"");
    assert_eq!(receive(&mut pair.target, &frame).unwrap().len(), 1);
}

/// Forged, replayed in the next generation, and reflected.
#[test]
fn attack_rekey_forged() {
    let rekeyed = |scheme: Scheme| {
        let mut pair = pair_of(scheme, 1, ChannelLimits::default());
        receive_one(&mut pair, b"used");
        let mut wire = Vec::new();
        pair.initiator.rekey(&mut wire);
        (pair, flat(&wire))
    };
    for &scheme in Scheme::ALL {
        for bit in 0..8 * (PREFIX_BYTES + TAG_BYTES) {
            let (mut pair, mut rekey) = rekeyed(scheme);
            rekey[bit / 8] ^= 1 << (bit % 8);
            // What a changed length waits for never comes, and what came before it did not change the keys.
            let result = receive(&mut pair.target, &rekey);
            assert!(result.is_err() || pair.target.handle_eof().is_err(), "{scheme} bit {bit}");
            assert_eq!(pair.target.peer_rekeys(), 0);
        }
        let (mut pair, rekey) = rekeyed(scheme);
        receive(&mut pair.target, &rekey).unwrap();
        receive_one(&mut pair, b"used");
        assert_eq!(receive(&mut pair.target, &rekey), Err(ChannelError::Generation { found: 0, expected: 1 }));
        let (mut pair, rekey) = rekeyed(scheme);
        assert_eq!(receive(&mut pair.initiator, &rekey), Err(ChannelError::NotAuthentic));
    }
}

#[test]
fn sealed_data_is_passed_on_by_reference() {
    let mut pair = pair();
    let data = Buffer::copy_from(&[7; 8192]);
    let mut out = Vec::new();
    pair.initiator.encode(SEALED, &[0; 48], data.clone(), &mut out).unwrap();
    assert_eq!(out.len(), 2);
    assert_eq!(out[0].len(), PREFIX_BYTES + 48 + TAG_BYTES);
    assert!(std::ptr::eq(out[1].as_ptr(), data.as_ptr()), "the very same memory");
}

/// A PDU that waits to be polled holds the input back: one connection makes the receiver hold one PDU, not a queue.
#[test]
fn at_most_one_frame_is_held() {
    let mut pair = pair();
    let mut wire = encode(&mut pair.initiator, PROTECTED, b"first", b"");
    wire.extend(encode(&mut pair.initiator, PROTECTED, b"second", b""));
    let taken = pair.target.handle_input(&wire).unwrap();
    assert_eq!(taken, wire.len() - (PREFIX_BYTES + 6 + TAG_BYTES));
    assert_eq!(pair.target.handle_input(&wire[taken..]), Ok(0));
    assert!(pair.target.input_space().is_none());
    assert_eq!(&pair.target.poll_frame().unwrap().header[..], b"first");
    assert_eq!(pair.target.handle_input(&wire[taken..]), Ok(wire.len() - taken));
    assert_eq!(&pair.target.poll_frame().unwrap().header[..], b"second");
}

#[test]
fn no_secret_in_debug() {
    let shown = format!("{:?} {:?}", keys(0xa7), pair().initiator);
    assert!(!shown.contains("a7") && !shown.contains("167"), "{shown}");
}

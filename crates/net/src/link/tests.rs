//! Proves that a link turns bytes into PDUs however they are cut, distinguishes every kind of end, and that an attacker who stands
//! in the middle can end a connection but never change a header, nor data that is not sealed.

use bytes::Bytes;
use proptest::prelude::*;
use std::time::Duration;
use strongroom_channel::ChannelError;
use strongroom_iscsi::Bhs;

use super::*;

/// Two ends and what was seen at each; bytes move between them only when a test says so.
struct Pair {
    initiator: Link,
    target: Link,
}

fn now() -> Instant {
    Instant::now()
}

fn node(seed: u8) -> NodeKey {
    NodeKey::from_seed(&[seed; 32])
}

fn admission(allow_plain: bool) -> Admission {
    let known = node(1).public();
    Admission { identity: Some(Arc::new(node(2))), peers: Arc::new(move |key: &PublicKey| *key == known), allow_plain }
}

fn options() -> LinkOptions {
    LinkOptions::default()
}

fn output(link: &mut Link) -> Vec<u8> {
    let mut out = Vec::new();
    link.poll_transmit(&mut out);
    out.iter().flat_map(|buffer| buffer.to_vec()).collect()
}

fn events(link: &mut Link) -> Vec<LinkEvent> {
    std::iter::from_fn(|| link.poll_event()).collect()
}

impl Pair {
    fn channel() -> Pair {
        let initiator = Link::initiator_channel(&node(1), &[node(2).public()], options(), now()).unwrap();
        Pair { initiator, target: Link::target(admission(false), options(), now()) }
    }

    fn plain() -> Pair {
        let initiator = Link::initiator_plain(options(), now());
        Pair { initiator, target: Link::target(admission(true), options(), now()) }
    }

    /// Moves bytes both ways in pieces of at most `piece` until none are left.
    fn exchange(&mut self, piece: usize) {
        loop {
            let (to_target, to_initiator) = (output(&mut self.initiator), output(&mut self.target));
            if to_target.is_empty() && to_initiator.is_empty() {
                return;
            }
            to_target.chunks(piece).for_each(|bytes| self.target.handle_input(bytes));
            to_initiator.chunks(piece).for_each(|bytes| self.initiator.handle_input(bytes));
        }
    }

    fn established(piece: usize) -> Pair {
        let mut pair = Pair::channel();
        pair.exchange(piece);
        assert_eq!(events(&mut pair.initiator), [LinkEvent::Established { peer: Some(node(2).public()) }]);
        assert_eq!(events(&mut pair.target), [LinkEvent::Established { peer: Some(node(1).public()) }]);
        assert!(pair.initiator.in_channel() && pair.target.in_channel());
        pair
    }
}

fn login_request() -> Pdu {
    let mut bhs = Bhs([0; 48]);
    bhs.0[0] = LOGIN_REQUEST;
    Pdu::new(bhs, Bytes::new(), Buffer::copy_from(b"InitiatorName=iqn.x\0"), false)
}

/// A write's Data-Out with seal records in its header.
fn sealed_data(len_bytes: usize) -> Pdu {
    let mut bhs = Bhs([0; 48]);
    bhs.0[0] = 0x05;
    // AHSLength 57 = one reserved byte and a record of 56, kind 0x30, padded to a word.
    let mut ahs = vec![0, 57, 0x30, 56];
    ahs.extend_from_slice(&[0x5a; 56]);
    let data: Vec<u8> = (0..len_bytes).map(|index| index as u8).collect();
    Pdu::new(bhs, Bytes::from(ahs), Buffer::copy_from(&data), true)
}

fn text(data: &[u8]) -> Pdu {
    let mut bhs = Bhs([0; 48]);
    bhs.0[0] = 0x04;
    Pdu::new(bhs, Bytes::new(), Buffer::copy_from(data), false)
}

#[test]
fn a_channel_comes_up_and_carries_pdus_however_bytes_are_cut() {
    for piece in [1, 2, 7, 1000, usize::MAX] {
        let mut pair = Pair::established(piece);
        let sent = [text(b"protected"), sealed_data(8192), Pdu::header_only(text(b"").bhs), sealed_data(512)];
        for pdu in &sent {
            pair.initiator.send_pdu(pdu.clone());
            pair.target.send_pdu(pdu.clone());
        }
        pair.exchange(piece);
        for link in [&mut pair.initiator, &mut pair.target] {
            let got = events(link);
            assert_eq!(got, sent.iter().cloned().map(LinkEvent::Pdu).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_plain_login_is_told_by_its_first_byte() {
    for piece in [1, 5, usize::MAX] {
        let mut pair = Pair::plain();
        assert_eq!(events(&mut pair.initiator), [LinkEvent::Established { peer: None }]);
        pair.initiator.send_pdu(login_request());
        pair.exchange(piece);
        let expected = [LinkEvent::Established { peer: None }, LinkEvent::Pdu(login_request())];
        assert_eq!(events(&mut pair.target), expected);
        assert!(!pair.target.in_channel());
        pair.target.send_pdu(text(b"answer"));
        pair.exchange(piece);
        assert_eq!(events(&mut pair.initiator), [LinkEvent::Pdu(text(b"answer"))]);
    }
}

#[test]
fn payloads_go_out_by_reference() {
    let mut pair = Pair::established(usize::MAX);
    let pdu = sealed_data(65536);
    let pointer = pdu.data.as_ptr();
    pair.initiator.send_pdu(pdu.clone());
    let mut out = Vec::new();
    pair.initiator.poll_transmit(&mut out);
    assert!(out.iter().any(|buffer| buffer.as_ptr() == pointer), "the block data was copied");
    let mut pair = Pair::plain();
    pair.initiator.send_pdu(Pdu { sealed: false, ahs: Bytes::new(), ..pdu });
    pair.initiator.poll_transmit(&mut out);
    assert!(out.last().is_some_and(|buffer| buffer.as_ptr() == pointer));
}

#[test]
fn inbound_data_lands_on_a_page_boundary() {
    let mut pair = Pair::established(usize::MAX);
    pair.initiator.send_pdu(sealed_data(4096));
    pair.exchange(100);
    let [LinkEvent::Pdu(pdu)] = &events(&mut pair.target)[..] else { panic!("one PDU") };
    assert_eq!(pdu.data.as_ptr() as usize % strongroom_block::BUFFER_ALIGN, 0);
}

#[test]
fn goodbye_is_told_from_a_cut() {
    let mut pair = Pair::established(usize::MAX);
    pair.initiator.send_pdu(text(b"last"));
    pair.initiator.close();
    pair.initiator.send_pdu(text(b"too late"));
    pair.exchange(3);
    assert_eq!(events(&mut pair.target), [LinkEvent::Pdu(text(b"last")), LinkEvent::Ended(LinkEnd::PeerClosed)]);
    // The target answered in kind.
    assert_eq!(events(&mut pair.initiator), [LinkEvent::Ended(LinkEnd::PeerClosed)]);

    let mut pair = Pair::established(usize::MAX);
    pair.target.handle_eof();
    let cut = LinkEnd::Channel(ChannelError::Truncated);
    assert!(!cut.is_orderly());
    assert_eq!(events(&mut pair.target), [LinkEvent::Ended(cut)]);
    pair.target.handle_eof();
    pair.target.handle_input(b"ignored");
    assert_eq!(events(&mut pair.target), []);
}

#[test]
fn ends_of_plain_streams() {
    let mut pair = Pair::plain();
    pair.initiator.send_pdu(login_request());
    let bytes = output(&mut pair.initiator);
    pair.target.handle_input(&bytes);
    pair.target.handle_eof();
    assert_eq!(events(&mut pair.target).last(), Some(&LinkEvent::Ended(LinkEnd::PeerClosed)));

    let mut target = Link::target(admission(true), options(), now());
    target.handle_input(&bytes[..60]);
    target.handle_eof();
    assert_eq!(events(&mut target).last(), Some(&LinkEvent::Ended(LinkEnd::Truncated)));

    let mut target = Link::target(admission(true), options(), now());
    target.handle_eof();
    assert_eq!(events(&mut target), [LinkEvent::Ended(LinkEnd::NothingSaid)]);
}

#[test]
fn what_the_port_does_not_take_is_refused_with_the_reason() {
    let ended = |admission: Admission, bytes: &[u8]| {
        let mut target = Link::target(admission, options(), now());
        target.handle_input(bytes);
        let [LinkEvent::Ended(end)] = &events(&mut target)[..] else { panic!("one end") };
        end.clone()
    };
    let login = [LOGIN_REQUEST; 1];
    assert_eq!(ended(admission(false), &login), LinkEnd::PlainRefused);
    assert_eq!(ended(admission(true), b"GET / HTTP/1.1\r\n\r\n"), LinkEnd::UnknownProtocol { first: b'G' });
    let without_identity = Admission { identity: None, ..admission(true) };
    assert_eq!(ended(without_identity, &[0x16, 3, 1]), LinkEnd::ChannelRefused);
    let end = ended(admission(true), &[0x16, 3, 1, 0, 4, 1, 2, 3, 4]);
    assert!(matches!(end, LinkEnd::Handshake(_)), "{end}");
}

#[test]
fn unknown_initiators_and_wrong_targets_are_named_on_both_ends() {
    let mut initiator = Link::initiator_channel(&node(9), &[node(2).public()], options(), now()).unwrap();
    let mut pair = Pair { target: Link::target(admission(false), options(), now()), initiator };
    pair.exchange(11);
    let [LinkEvent::Ended(LinkEnd::Handshake(HandshakeError::UnknownPeer { key }))] = events(&mut pair.target)[..]
    else {
        panic!("refused at the target");
    };
    assert_eq!(key, node(9).public());
    let [LinkEvent::Ended(end)] = &events(&mut pair.initiator)[..] else { panic!("refused at the initiator") };
    assert!(end.to_string().contains(&node(9).public().to_string()), "{end}");

    initiator = Link::initiator_channel(&node(1), &[node(7).public()], options(), now()).unwrap();
    let mut pair = Pair { target: Link::target(admission(false), options(), now()), initiator };
    pair.exchange(usize::MAX);
    let [LinkEvent::Ended(LinkEnd::Handshake(HandshakeError::WrongTarget { presented }))] =
        events(&mut pair.initiator)[..]
    else {
        panic!("refused at the initiator");
    };
    assert_eq!(presented, node(2).public());
    assert!(matches!(events(&mut pair.target)[..], [LinkEvent::Ended(LinkEnd::Handshake(_))]));
    assert!(Link::initiator_channel(&node(1), &[], options(), now()).is_err());
}

#[test]
fn an_initiator_submits_nothing_before_the_confirmation() {
    let mut pair = Pair::channel();
    let hello = output(&mut pair.initiator);
    pair.target.handle_input(&hello);
    let flight = output(&mut pair.target);
    pair.initiator.handle_input(&flight);
    // The handshake is done here, and yet nothing is established.
    assert_eq!(events(&mut pair.initiator), []);
    pair.initiator.send_pdu(text(b"too early"));
    assert_eq!(events(&mut pair.initiator), [LinkEvent::Ended(LinkEnd::SentTooEarly)]);

    // A cut at this very point is told as what it most likely is.
    let mut pair = Pair::channel();
    let hello = output(&mut pair.initiator);
    pair.target.handle_input(&hello);
    let flight = output(&mut pair.target);
    pair.initiator.handle_input(&flight);
    pair.initiator.handle_eof();
    let [LinkEvent::Ended(end)] = &events(&mut pair.initiator)[..] else { panic!("ended") };
    assert!(matches!(end, LinkEnd::Handshake(HandshakeError::NotConfirmed { .. })), "{end}");
}

#[test]
fn a_peer_that_stops_half_way_is_given_up_in_time() {
    let start = now();
    let limit = options().setup_timeout;
    let just_before = start + limit - Duration::from_millis(1);
    let timed_out = |link: &mut Link| {
        link.handle_timeout(just_before);
        assert!(!link.is_ended());
        link.handle_timeout(link.poll_timeout().unwrap());
        let Some(LinkEvent::Ended(LinkEnd::TimedOut { stage, after })) = events(link).pop() else { panic!("no end") };
        assert_eq!(after, limit);
        assert_eq!(link.poll_timeout(), None);
        stage
    };
    let mut silent = Link::target(admission(true), options(), start);
    assert_eq!(timed_out(&mut silent), "the handshake");
    let mut half_a_hello = Link::target(admission(true), options(), start);
    half_a_hello.handle_input(&[0x16, 3, 1, 1]);
    assert_eq!(timed_out(&mut half_a_hello), "the handshake");
    let mut half_a_login = Link::target(admission(true), options(), start);
    half_a_login.handle_input(&[LOGIN_REQUEST, 0, 0]);
    assert_eq!(timed_out(&mut half_a_login), "the login");
    let mut unanswered = Link::initiator_channel(&node(1), &[node(2).public()], options(), start).unwrap();
    assert_eq!(timed_out(&mut unanswered), "the handshake");

    let mut logged_in = Link::initiator_plain(options(), start);
    logged_in.login_finished(strongroom_iscsi::Digests::default());
    logged_in.handle_timeout(start + limit * 10);
    assert!(!logged_in.is_ended());
}

/// Bytes of one PDU in a channel, from initiator to target.
fn frame_bytes(pair: &mut Pair, pdu: Pdu) -> Vec<u8> {
    pair.initiator.send_pdu(pdu);
    output(&mut pair.initiator)
}

#[test]
fn every_flipped_bit_of_a_header_ends_the_connection() {
    let len_bytes = 512;
    let reference = frame_bytes(&mut Pair::established(usize::MAX), sealed_data(len_bytes));
    let header_end = reference.len() - len_bytes;
    for at in 0..header_end {
        let mut pair = Pair::established(usize::MAX);
        let mut bytes = frame_bytes(&mut pair, sealed_data(len_bytes));
        bytes[at] ^= 1 << (at % 8);
        pair.target.handle_input(&bytes);
        // A flipped length may leave the target waiting for more; what comes next then does not fit either.
        if !pair.target.is_ended() {
            let more = frame_bytes(&mut pair, sealed_data(65536));
            pair.target.handle_input(&more);
            let more = frame_bytes(&mut pair, sealed_data((16 << 20) - 512));
            pair.target.handle_input(&more);
        }
        let got = events(&mut pair.target);
        assert!(matches!(got[..], [LinkEvent::Ended(LinkEnd::Channel(_))]), "byte {at}: {got:?}");
    }
}

#[test]
fn flipped_bits_of_sealed_data_pass_and_are_the_seal_records_business() {
    let len_bytes = 512;
    for at in [0, 100, len_bytes - 1] {
        let mut pair = Pair::established(usize::MAX);
        let mut bytes = frame_bytes(&mut pair, sealed_data(len_bytes));
        let data_start = bytes.len() - len_bytes;
        bytes[data_start + at] ^= 0x10;
        pair.target.handle_input(&bytes);
        let [LinkEvent::Pdu(pdu)] = &events(&mut pair.target)[..] else { panic!("one PDU") };
        assert_eq!(pdu.data[at], sealed_data(len_bytes).data[at] ^ 0x10);
        assert_eq!(pdu.ahs, sealed_data(len_bytes).ahs);
        assert!(pdu.sealed);
    }
}

#[test]
fn flipped_bits_of_protected_data_end_the_connection() {
    let mut pair = Pair::established(usize::MAX);
    let mut bytes = frame_bytes(&mut pair, text(b"a mode page, sense, anything but block data"));
    *bytes.last_mut().unwrap() ^= 1;
    pair.target.handle_input(&bytes);
    assert_eq!(events(&mut pair.target), [LinkEvent::Ended(LinkEnd::Channel(ChannelError::NotAuthentic))]);
}

#[test]
fn replayed_and_reordered_frames_end_the_connection() {
    let mut pair = Pair::established(usize::MAX);
    let first = frame_bytes(&mut pair, text(b"one"));
    pair.target.handle_input(&first);
    pair.target.handle_input(&first);
    let got = events(&mut pair.target);
    assert!(matches!(got[..], [LinkEvent::Pdu(_), LinkEvent::Ended(LinkEnd::Channel(_))]), "{got:?}");

    let mut pair = Pair::established(usize::MAX);
    let _first = frame_bytes(&mut pair, text(b"one"));
    let second = frame_bytes(&mut pair, text(b"two"));
    pair.target.handle_input(&second);
    let got = events(&mut pair.target);
    assert!(matches!(got[..], [LinkEvent::Ended(LinkEnd::Channel(_))]), "{got:?}");
}

#[test]
fn a_channel_pdu_that_contradicts_itself_ends_the_connection() {
    let mut pair = Pair::established(usize::MAX);
    let mut lying = text(b"data");
    lying.bhs.0[7] += 1;
    let bytes = frame_bytes(&mut pair, lying);
    pair.target.handle_input(&bytes);
    let got = events(&mut pair.target);
    assert!(matches!(got[..], [LinkEvent::Ended(LinkEnd::Pdu(_))]), "{got:?}");
}

#[test]
fn oversized_plain_data_is_refused_before_it_is_stored() {
    let mut target = Link::target(admission(true), LinkOptions { data_bytes_max: 8192, ..options() }, now());
    let mut bhs = [0; 48];
    bhs[0] = LOGIN_REQUEST;
    bhs[5..8].copy_from_slice(&[0xff; 3]);
    target.handle_input(&bhs);
    assert!(matches!(events(&mut target)[..], [LinkEvent::Established { .. }, LinkEvent::Ended(LinkEnd::Pdu(_))]));
}

#[test]
fn links_move_between_threads() {
    fn assert_send<T: Send>() {}
    assert_send::<Link>();
    assert_send::<crate::DetachedStream>();
    assert_send::<crate::Waker>();
    assert_send::<crate::Listener>();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_make_it_panic(first in prop_oneof![Just(0x16u8), Just(0x43), any::<u8>()],
                              rest in proptest::collection::vec(any::<u8>(), 0..4000)) {
        let mut bytes = vec![first];
        bytes.extend(rest);
        fuzz_link(&bytes, now());
    }

    /// An attacker in the middle of the handshake: whichever bit he flips, no two ends agree on keys.
    #[test]
    fn a_flipped_bit_in_the_handshake_never_establishes_both_ends(which in 0usize..6000, bit in 0u8..8) {
        let mut pair = Pair::channel();
        let mut seen = 0;
        for _ in 0..10 {
            for to_target in [true, false] {
                let (from, to) = if to_target {
                    (&mut pair.initiator, &mut pair.target)
                } else {
                    (&mut pair.target, &mut pair.initiator)
                };
                let mut bytes = output(from);
                if (seen..seen + bytes.len()).contains(&which) {
                    bytes[which - seen] ^= 1 << bit;
                }
                seen += bytes.len();
                to.handle_input(&bytes);
            }
        }
        let up = |link: &mut Link| matches!(events(link)[..], [LinkEvent::Established { .. }]);
        let both = up(&mut pair.initiator) && up(&mut pair.target);
        prop_assert!(!both || which >= seen || is_ignored(which), "byte {} of {}", which, seen);
    }
}

/// Whether byte `at` of all bytes of a handshake, in the order sent, is one that TLS 1.3 gives no meaning (RFC 8446 §5.1,
/// §5.2): a record's version, and the outer type of an encrypted record, which says "application data" for any content.
fn is_ignored(at: usize) -> bool {
    let mut pair = Pair::channel();
    let mut seen = 0;
    for _ in 0..10 {
        for to_target in [true, false] {
            let (from, to) = if to_target {
                (&mut pair.initiator, &mut pair.target)
            } else {
                (&mut pair.target, &mut pair.initiator)
            };
            let bytes = output(from);
            let mut record = 0;
            while record + 5 <= bytes.len() && bytes[record] < strongroom_channel::FRAME_TYPE_MIN {
                let is_encrypted = bytes[record] == 0x17;
                if at == seen + record + 1 || at == seen + record + 2 || is_encrypted && at == seen + record {
                    return true;
                }
                record += 5 + usize::from(u16::from_be_bytes([bytes[record + 3], bytes[record + 4]]));
            }
            seen += bytes.len();
            to.handle_input(&bytes);
        }
    }
    false
}

/// By age, in both directions, and only what was used; a plain link has nothing to change.
#[test]
fn keys_change_when_they_are_old() {
    let start = now();
    let mut pair = Pair::established(1000);
    let hour = options().rekey_after;
    let say = |pair: &mut Pair| {
        pair.initiator.send_pdu(login_request());
        pair.target.send_pdu(login_request());
        pair.exchange(1000);
        assert_eq!((events(&mut pair.target).len(), events(&mut pair.initiator).len()), (1, 1));
    };
    pair.initiator.login_finished(Digests::default());
    pair.target.login_finished(Digests::default());
    say(&mut pair);
    for round in 1..4_u32 {
        for link in [&mut pair.initiator, &mut pair.target] {
            let at = link.poll_timeout().expect("keys get old");
            assert!(at >= start + hour * round);
            link.handle_timeout(at - Duration::from_millis(1));
            link.handle_timeout(at);
            // Unused keys stay.
            link.handle_timeout(at + hour);
        }
        say(&mut pair);
        let round = u64::from(round);
        assert_eq!((pair.initiator.rekeys(), pair.target.rekeys()), ((round, round), (round, round)));
    }
    let never = LinkOptions { rekey_after: Duration::ZERO, ..options() };
    let mut plain = Link::initiator_plain(options(), start);
    plain.login_finished(Digests::default());
    assert_eq!((plain.poll_timeout(), plain.rekeys()), (None, (0, 0)));
    let mut link = Link::initiator_channel(&node(1), &[node(2).public()], never, start).unwrap();
    link.login_finished(Digests::default());
    assert_eq!(link.poll_timeout(), None);
}

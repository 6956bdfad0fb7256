//! Proves that two nodes which know each other agree on keys no matter in which pieces their bytes arrive, and that every other
//! meeting ends with an error at *both* ends that says what to do.

use std::sync::Arc;

use strongroom_block::{Buffer, CryptoCounters, Suite};
use strongroom_channel::{Channel, ChannelLimits, FrameKind, Scheme};
use strongroom_handshake::{
    Finished, HANDSHAKE_BYTES_MAX, Handshake, HandshakeError, NodeKey, OPERATOR_ALPN, Offer, PAIRING_ALPN,
    PairingSecret, PeerPolicy, Protocol, Protocols, PublicKey, TRANSFER_ALPN, alpn, ecl_alpn,
};

fn node(seed: u8) -> NodeKey {
    NodeKey::from_seed(&[seed; 32])
}

fn only(key: PublicKey) -> Arc<dyn PeerPolicy> {
    Arc::new(move |presented: &PublicKey| *presented == key)
}

/// Both ends of one handshake, and how their bytes are cut.
struct Pair {
    initiator: Handshake,
    target: Handshake,
    piece_bytes: usize,
}

type Outcome = Result<Finished, HandshakeError>;

impl Pair {
    fn new() -> Pair {
        let (initiator, target) = (node(1), node(2));
        Pair {
            initiator: Handshake::initiator(&initiator, &[target.public()], &[Scheme::Lazy]).unwrap(),
            target: Handshake::target(&target, only(initiator.public()), Scheme::ALL).unwrap(),
            piece_bytes: usize::MAX,
        }
    }

    /// Runs until nothing moves any more.
    fn run(&mut self) -> (Option<Outcome>, Option<Outcome>) {
        let (mut at_initiator, mut at_target) = (None, None);
        loop {
            let to_target = drain(&mut self.initiator);
            deliver(&mut self.target, &to_target, self.piece_bytes, &mut at_target);
            let to_initiator = drain(&mut self.target);
            deliver(&mut self.initiator, &to_initiator, self.piece_bytes, &mut at_initiator);
            if to_target.is_empty() && to_initiator.is_empty() {
                return (at_initiator, at_target);
            }
        }
    }
}

fn drain(side: &mut Handshake) -> Vec<u8> {
    std::iter::from_fn(|| side.poll_transmit()).flatten().collect()
}

fn deliver(side: &mut Handshake, bytes: &[u8], piece_bytes: usize, outcome: &mut Option<Outcome>) {
    for piece in bytes.chunks(piece_bytes.min(bytes.len().max(1))) {
        let mut rest = piece;
        while !rest.is_empty() && !matches!(outcome, Some(Err(_))) {
            match side.handle_input(rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(error) => *outcome = Some(Err(error)),
            }
        }
    }
    if let Some(finished) = side.finished() {
        *outcome = Some(Ok(finished));
    }
}

/// Whether two finished ends can talk.
fn channels(at_initiator: Finished, at_target: Finished) -> (Channel, Channel) {
    let counters = Arc::new(CryptoCounters::new());
    let mut wire = Vec::new();
    let target = Channel::target(at_target.keys, ChannelLimits::default(), counters.clone(), &mut wire);
    let mut initiator = Channel::initiator(at_initiator.keys, ChannelLimits::default(), counters);
    for bytes in &wire {
        initiator.handle_input(bytes).unwrap();
    }
    (initiator, target)
}

#[test]
fn two_nodes_that_know_each_other_agree() {
    for piece_bytes in [1, 2, 5, 6, 100, usize::MAX] {
        let mut pair = Pair { piece_bytes, ..Pair::new() };
        let (at_initiator, at_target) = pair.run();
        let (at_initiator, at_target) = (at_initiator.unwrap().unwrap(), at_target.unwrap().unwrap());
        assert_eq!(at_initiator.peer, node(2).public());
        assert_eq!(at_target.peer, node(1).public());
        let (mut initiator, mut target) = channels(at_initiator, at_target);
        assert!(initiator.is_confirmed());
        let mut wire = Vec::new();
        initiator.encode(FrameKind::Protected, b"hello", Buffer::empty(), &mut wire).unwrap();
        target.handle_input(&wire[0]).unwrap();
        assert_eq!(&target.poll_frame().unwrap().header[..], b"hello");
    }
}

fn meeting(offered: &[Scheme], admitted: &[Scheme]) -> (Outcome, Outcome) {
    let (initiator, target) = (node(1), node(2));
    let mut pair = Pair {
        initiator: Handshake::initiator(&initiator, &[target.public()], offered).unwrap(),
        target: Handshake::target(&target, only(initiator.public()), admitted).unwrap(),
        piece_bytes: usize::MAX,
    };
    let (at_initiator, at_target) = pair.run();
    (at_initiator.expect("an outcome"), at_target.expect("an outcome"))
}

#[test]
fn the_target_takes_the_scheme_that_it_prefers_of_those_offered() {
    for scheme in Scheme::ALL {
        let (at_initiator, at_target) = meeting(&[*scheme], Scheme::ALL);
        assert_eq!(at_initiator.unwrap().keys.scheme(), *scheme);
        assert_eq!(at_target.unwrap().keys.scheme(), *scheme);
    }
    let (at_initiator, _) = meeting(Scheme::ALL, &[Scheme::LazyDecrypt, Scheme::MacAll]);
    assert_eq!(at_initiator.unwrap().keys.scheme(), Scheme::LazyDecrypt);
}

#[test]
fn nodes_without_a_common_scheme_do_not_settle_for_less() {
    let (at_initiator, at_target) = meeting(&[Scheme::Lazy, Scheme::EncryptAll], &[Scheme::MacAll, Scheme::LazyAuth]);
    assert_eq!(at_initiator.unwrap_err(), HandshakeError::NoCommonScheme);
    assert_eq!(at_target.unwrap_err(), HandshakeError::NoCommonScheme);
}

/// Transfers and operators' requests are agreed on at the port of a target that admits them, and nowhere else; and both ends know.
#[test]
fn transfers_and_operators_have_protocols_of_their_own() {
    assert_eq!((TRANSFER_ALPN, OPERATOR_ALPN), (&b"strongroom-transfer/1"[..], &b"strongroom-operator/1"[..]));
    let blocks = || Protocols::from(&[Scheme::Lazy]);
    let either = || {
        let blocks = Offer { schemes: &[Scheme::Lazy], suites: &[Suite::Aes256Gcm] };
        Protocols::Port { blocks, ecl: false, transfer: true, pairing: false, operator: true }
    };
    let meeting = |offered: Protocols<'_>, admitted: Protocols<'_>| {
        let (initiator, target) = (node(1), node(2));
        let mut pair = Pair {
            initiator: Handshake::initiator(&initiator, &[target.public()], offered).unwrap(),
            target: Handshake::target(&target, only(initiator.public()), admitted).unwrap(),
            piece_bytes: usize::MAX,
        };
        let (at_initiator, at_target) = pair.run();
        let agreed = |outcome: Option<Outcome>| {
            outcome.expect("an outcome").map(|finished| (finished.protocol, finished.keys.scheme()))
        };
        (agreed(at_initiator), agreed(at_target))
    };
    for (offered, agreed) in [
        (Protocols::Transfer, (Protocol::Transfer, Scheme::EncryptAll)),
        (Protocols::Operator, (Protocol::Operator, Scheme::EncryptAll)),
        (blocks(), (Protocol::Blocks, Scheme::Lazy)),
    ] {
        assert_eq!(meeting(offered, either()), (Ok(agreed), Ok(agreed)));
    }
    let none = || Err(HandshakeError::NoCommonScheme);
    for (offered, admitted) in [
        (Protocols::Transfer, blocks()),
        (Protocols::Operator, blocks()),
        (Protocols::Operator, Protocols::Transfer),
        (blocks(), Protocols::Transfer),
        (Protocols::Transfer, Protocols::Keys),
        (Protocols::Keys, either()),
    ] {
        assert_eq!(meeting(offered, admitted), (none(), none()));
    }
}

/// An unknown node gets to an invitation where the target admits that, and to nothing else.
#[test]
fn attack_pairing_opens_nothing_else_to_a_stranger() {
    assert_eq!(PAIRING_ALPN, b"strongroom-pairing/1");
    let blocks = Offer { schemes: &[Scheme::Lazy], suites: &[Suite::Aes256Gcm] };
    let port = |pairing| Protocols::Port { blocks, ecl: true, transfer: true, pairing, operator: true };
    let (stranger, target) = (node(1), node(2));
    let meeting = |offered: Protocols<'_>, admitted: Protocols<'_>| {
        let mut pair = Pair {
            initiator: Handshake::initiator(&stranger, &[target.public()], offered).unwrap(),
            target: Handshake::target(&target, only(node(3).public()), admitted).unwrap(),
            piece_bytes: usize::MAX,
        };
        pair.run().1.expect("an outcome")
    };
    let paired = meeting(Protocols::Pairing, port(true)).unwrap();
    assert_eq!((paired.protocol, paired.peer), (Protocol::Pairing, stranger.public()));
    assert_eq!(meeting(Protocols::Pairing, port(false)).unwrap_err(), HandshakeError::NoCommonScheme);
    // Offered beside something else, or something else alone: the key must be known.
    for offered in [
        Protocols::Port { blocks, ecl: false, transfer: false, pairing: true, operator: false },
        Protocols::Port { blocks, ecl: true, transfer: true, pairing: true, operator: true },
        Protocols::Blocks(blocks),
        Protocols::Ecl(blocks),
        Protocols::Transfer,
        Protocols::Operator,
    ] {
        let refused = meeting(offered, port(true)).unwrap_err();
        assert_eq!(refused, HandshakeError::UnknownPeer { key: stranger.public() });
    }
}

/// What a proof is bound to is the same at both ends of one connection, and another one on the next.
#[test]
fn both_ends_of_a_pairing_have_one_binding() {
    let key = PairingSecret::from_bytes([7; 16]).key();
    let meet = || {
        let (initiator, target) = (node(1), node(2));
        let mut pair = Pair {
            initiator: Handshake::initiator(&initiator, &[target.public()], Protocols::Pairing).unwrap(),
            target: Handshake::target(&target, only(node(3).public()), Protocols::Pairing).unwrap(),
            piece_bytes: usize::MAX,
        };
        let (at_initiator, at_target) = pair.run();
        let binding = |outcome: Option<Outcome>| outcome.unwrap().unwrap().pairing.expect("it is for pairing");
        (binding(at_initiator), binding(at_target))
    };
    let ((here, there), (_, next)) = (meet(), meet());
    let proof = key.prove(&here);
    assert!(key.is_proven_by(&proof, &there) && !key.is_proven_by(&proof, &next));
}

/// ECL is agreed on where the target has it, for the two schemes that it carries, and for nothing else: what an initiator offers is iSCSI or
/// ECL, never both, so nobody in the middle can choose. Both ends get the same secret, which is not the channel's.
#[test]
fn ecl_is_a_protocol_of_its_own() {
    assert_eq!(ecl_alpn(Scheme::Lazy, Suite::Aes256Gcm), b"strongroom-ecl/1 S2-5");
    assert_eq!(ecl_alpn(Scheme::LazyAuth, Suite::Aes128Gcm), b"strongroom-ecl/1 S1-2 aes-128-gcm");
    let meeting = |scheme: Scheme, is_ecl: bool, has_ecl: bool| {
        let (schemes, suites) = ([scheme], [Suite::Aes256Gcm]);
        let offer = Offer { schemes: &schemes, suites: &suites };
        let offered = if is_ecl { Protocols::Ecl(offer) } else { Protocols::Blocks(offer) };
        let blocks = Offer { schemes: Scheme::ALL, suites: &suites };
        let admitted = Protocols::Port { blocks, ecl: has_ecl, transfer: true, pairing: false, operator: true };
        let (initiator, target) = (node(1), node(2));
        let mut pair = Pair {
            initiator: Handshake::initiator(&initiator, &[target.public()], offered).unwrap(),
            target: Handshake::target(&target, only(initiator.public()), admitted).unwrap(),
            piece_bytes: usize::MAX,
        };
        let (at_initiator, at_target) = pair.run();
        (at_initiator.expect("an outcome"), at_target.expect("an outcome"))
    };
    for scheme in [Scheme::Lazy, Scheme::LazyAuth] {
        let (at_initiator, at_target) = meeting(scheme, true, true);
        let (at_initiator, at_target) = (at_initiator.unwrap(), at_target.unwrap());
        assert_eq!((at_initiator.protocol, at_target.protocol), (Protocol::Ecl, Protocol::Ecl));
        assert_eq!((at_initiator.keys.scheme(), at_target.keys.scheme()), (scheme, scheme));
        let (ours, theirs) = (at_initiator.ecl.unwrap(), at_target.ecl.unwrap());
        assert_eq!(ours.bytes(), theirs.bytes());
        assert_ne!(ours.bytes(), &[0; 32]);
        assert_eq!(format!("{ours:?}"), "EclSecret");
        // A target without it does not make iSCSI of it.
        assert_eq!(meeting(scheme, true, false).0.unwrap_err(), HandshakeError::NoCommonScheme);
    }
    let (at_initiator, _) = meeting(Scheme::Lazy, false, true);
    let at_initiator = at_initiator.unwrap();
    assert!(at_initiator.protocol == Protocol::Blocks && at_initiator.ecl.is_none());
}

/// The suite is agreed on as the scheme is, and known to both ends: AES-256-GCM under the name that it had when it was the only one.
#[test]
fn the_suite_is_part_of_what_is_agreed_on() {
    assert_eq!(alpn(Scheme::Lazy, Suite::Aes256Gcm), b"strongroom/1 S2-5");
    assert_eq!(alpn(Scheme::MacAll, Suite::ChaCha20Poly1305), b"strongroom/1 S1-1 chacha20-poly1305");
    let meeting = |offered: &[Suite], admitted: &[Suite]| {
        let (initiator, target) = (node(1), node(2));
        let schemes = &[Scheme::EncryptAll];
        let mut pair = Pair {
            initiator: Handshake::initiator(&initiator, &[target.public()], Offer { schemes, suites: offered })
                .unwrap(),
            target: Handshake::target(&target, only(initiator.public()), Offer { schemes, suites: admitted }).unwrap(),
            piece_bytes: usize::MAX,
        };
        let (at_initiator, at_target) = pair.run();
        let suite = |outcome: Option<Outcome>| outcome.expect("an outcome").map(|finished| finished.keys.suite());
        (suite(at_initiator), suite(at_target))
    };
    for suite in Suite::ALL {
        assert_eq!(meeting(&[suite], &Suite::ALL), (Ok(suite), Ok(suite)));
    }
    let (strong, weak) = (Suite::Aes256Gcm, Suite::Aes192CbcHmacMd5);
    assert_eq!(meeting(&[weak, strong], &[strong, weak]), (Ok(strong), Ok(strong)), "as the target prefers");
    let refused = Err(HandshakeError::NoCommonScheme);
    assert_eq!(meeting(&[weak], &[strong]), (refused.clone(), refused));
}

/// An attacker between the two nodes strikes the better schemes from the offer, which is not encrypted: the handshake
/// does not come to an end.
#[test]
fn attack_downgrade_of_the_schemes_ends_the_handshake() {
    let (initiator, target) = (node(1), node(2));
    let offered = [Scheme::Lazy, Scheme::MacAll];
    let mut pair = Pair {
        initiator: Handshake::initiator(&initiator, &[target.public()], &offered).unwrap(),
        target: Handshake::target(&target, only(initiator.public()), Scheme::ALL).unwrap(),
        piece_bytes: usize::MAX,
    };
    let mut hello = drain(&mut pair.initiator);
    let at = hello.windows(4).position(|window| window == b"S2-5").expect("the offer is readable");
    hello[at..at + 4].copy_from_slice(b"X2-5");
    let mut at_target = None;
    deliver(&mut pair.target, &hello, usize::MAX, &mut at_target);
    let (mut at_initiator, mut later) = (None, None);
    let answer = drain(&mut pair.target);
    deliver(&mut pair.initiator, &answer, usize::MAX, &mut at_initiator);
    deliver(&mut pair.target, &drain(&mut pair.initiator), usize::MAX, &mut later);
    assert!(matches!(at_initiator, Some(Err(_))), "{at_initiator:?}");
    assert!(!matches!((at_target, later), (Some(Ok(_)), _) | (_, Some(Ok(_)))), "the target has no session either");
}

#[test]
fn two_connections_of_the_same_nodes_have_different_keys() {
    let finish = || {
        let (at_initiator, at_target) = Pair::new().run();
        (at_initiator.unwrap().unwrap(), at_target.unwrap().unwrap())
    };
    let ((first, _), (_, second)) = (finish(), finish());
    let mut wire = Vec::new();
    let counters = Arc::new(CryptoCounters::new());
    Channel::target(second.keys, ChannelLimits::default(), counters.clone(), &mut wire);
    let mut initiator = Channel::initiator(first.keys, ChannelLimits::default(), counters);
    assert!(initiator.handle_input(&wire[0]).is_err());
}

#[test]
fn the_bytes_of_the_channel_are_left_alone() {
    let mut pair = Pair::new();
    // The target's confirmation glued to nothing of TLS: the initiator has finished, and frames start at 0x40.
    pair.run();
    assert_eq!(pair.initiator.handle_input(&[0x53, 0, 0]), Ok(0));
    assert_eq!(pair.target.handle_input(&[0x51, 0, 0]), Ok(0));
    assert_eq!(pair.target.handle_input(&[0x16, 3, 3]), Ok(0), "after its handshake a target takes no TLS at all");
}

#[test]
fn frames_right_behind_the_last_record_are_not_swallowed() {
    let mut pair = Pair::new();
    let to_target = drain(&mut pair.initiator);
    deliver(&mut pair.target, &to_target, usize::MAX, &mut None);
    let to_initiator = drain(&mut pair.target);
    deliver(&mut pair.initiator, &to_initiator, usize::MAX, &mut None);
    let mut to_target = drain(&mut pair.initiator);
    let handshake_bytes = to_target.len();
    to_target.extend_from_slice(&[0x51; 40]);
    let mut taken = 0;
    loop {
        match pair.target.handle_input(&to_target[taken..]).unwrap() {
            0 => break,
            count => taken += count,
        }
    }
    assert_eq!(taken, handshake_bytes);
}

#[test]
fn an_unknown_initiator_is_refused_and_both_ends_say_so() {
    for piece_bytes in [1, usize::MAX] {
        let stranger = node(9);
        let initiator = Handshake::initiator(&stranger, &[node(2).public()], &[Scheme::Lazy]).unwrap();
        let (at_initiator, at_target) = Pair { initiator, piece_bytes, ..Pair::new() }.run();
        assert_eq!(at_target.unwrap().unwrap_err(), HandshakeError::UnknownPeer { key: stranger.public() });
        // The initiator believed that it had finished; the alert that follows tells it otherwise.
        let error = at_initiator.unwrap().unwrap_err();
        assert_eq!(error, HandshakeError::RefusedByTarget { own: stranger.public() });
        let shown = error.to_string();
        assert!(shown.contains(&stranger.public().to_string()) && shown.contains("[[peer]]"), "{shown}");
    }
}

#[test]
fn a_refusal_whose_alert_is_lost_is_explained_too() {
    let mut pair = Pair::new();
    assert_eq!(pair.initiator.handle_eof(), HandshakeError::Truncated);
    pair.run();
    assert_eq!(pair.initiator.handle_eof(), HandshakeError::NotConfirmed { own: node(1).public() });
}

#[test]
fn a_target_with_another_key_is_refused_and_both_ends_say_so() {
    let initiator = Handshake::initiator(&node(1), &[node(8).public(), node(7).public()], &[Scheme::Lazy]).unwrap();
    let (at_initiator, at_target) = Pair { initiator, ..Pair::new() }.run();
    assert_eq!(at_initiator.unwrap().unwrap_err(), HandshakeError::WrongTarget { presented: node(2).public() });
    assert_eq!(at_target.unwrap().unwrap_err(), HandshakeError::RefusedByInitiator { own: node(2).public() });
}

#[test]
fn an_initiator_needs_a_key_to_expect() {
    assert_eq!(Handshake::initiator(&node(1), &[], &[Scheme::Lazy]).unwrap_err(), HandshakeError::NoTargetKey);
}

#[test]
fn a_failed_handshake_stays_failed() {
    let mut target = Handshake::target(&node(2), only(node(1).public()), Scheme::ALL).unwrap();
    assert_eq!(target.handle_input(b"GET / HTTP/1.1"), Err(HandshakeError::NotTls));
    let first_record = drain(&mut Pair::new().initiator);
    assert_eq!(target.handle_input(&first_record), Err(HandshakeError::NotTls));
    assert!(target.finished().is_none());
}

#[test]
fn a_flood_of_handshake_bytes_is_cut_off() {
    let mut target = Handshake::target(&node(2), only(node(1).public()), Scheme::ALL).unwrap();
    // An endless ClientHello: each record continues a message of 64 KiB.
    let mut fed = 0;
    let error = loop {
        let mut record = vec![0x16, 3, 3, 4, 0];
        record.resize(5 + 1024, 0);
        if fed == 0 {
            record[5..9].copy_from_slice(&[1, 0, 0xff, 0xff]);
        }
        let mut rest = &record[..];
        let mut failed = None;
        while !rest.is_empty() && failed.is_none() {
            match target.handle_input(rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(error) => failed = Some(error),
            }
        }
        fed += record.len();
        assert!(fed < 2 * HANDSHAKE_BYTES_MAX, "it must end");
        if let Some(error) = failed {
            break error;
        }
    };
    assert_eq!(error, HandshakeError::TooLong { limit: HANDSHAKE_BYTES_MAX });
}

/// Every flipped bit of every flight ends the handshake at one end at least; nobody finishes with other keys.
#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let mut pair = Pair::new();
    let first = drain(&mut pair.initiator);
    deliver(&mut pair.target, &first, usize::MAX, &mut None);
    let flights = [first.len(), drain(&mut pair.target).len()];
    for (flight, flight_bytes) in flights.into_iter().enumerate() {
        for at in (0..flight_bytes).step_by(61) {
            let (agreed, harmless) = flipped(flight, at);
            assert!(!agreed || harmless, "flight {flight}, byte {at}");
        }
    }
}

/// Runs a handshake with one bit of one flight flipped. Whether both ends agreed all the same, and whether the byte is
/// of the record's legacy version, which TLS 1.3 ignores by its own rules.
fn flipped(flight: usize, at: usize) -> (bool, bool) {
    let mut pair = Pair::new();
    let (mut at_initiator, mut at_target) = (None, None);
    let mut harmless = false;
    for round in 0..6 {
        let from_initiator = round % 2 == 0;
        let mut bytes = if from_initiator { drain(&mut pair.initiator) } else { drain(&mut pair.target) };
        if round == flight && at < bytes.len() {
            bytes[at] ^= 1 << (at % 8);
            harmless = is_legacy_version(&bytes, at);
        }
        if from_initiator {
            deliver(&mut pair.target, &bytes, usize::MAX, &mut at_target);
        } else {
            deliver(&mut pair.initiator, &bytes, usize::MAX, &mut at_initiator);
        }
    }
    let (Some(Ok(at_initiator)), Some(Ok(at_target))) = (at_initiator, at_target) else { return (false, harmless) };
    let mut wire = Vec::new();
    let counters = Arc::new(CryptoCounters::new());
    Channel::target(at_target.keys, ChannelLimits::default(), counters.clone(), &mut wire);
    let mut initiator = Channel::initiator(at_initiator.keys, ChannelLimits::default(), counters);
    (initiator.handle_input(&wire[0]).is_ok(), harmless)
}

fn is_legacy_version(flight: &[u8], at: usize) -> bool {
    let mut record_at = 0;
    while record_at + 5 <= flight.len() {
        if at == record_at + 1 || at == record_at + 2 {
            return true;
        }
        record_at += 5 + usize::from(u16::from_be_bytes([flight[record_at + 3], flight[record_at + 4]]));
    }
    false
}

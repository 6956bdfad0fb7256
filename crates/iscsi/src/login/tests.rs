//! Proves the rule of each key of RFC 7143 §13, from both sides, and that two sides always settle on the same.

use proptest::prelude::*;

use super::keys::{KEYS, UseIn};
use super::values::TIME_MAX_S;
use super::*;
use crate::error::PeerMisbehaved;
use crate::text::Pairs;

/// What a target with the default offer answers to one key.
fn answer(key: &str, value: &str) -> Option<String> {
    let mut pairs = Pairs::default();
    pairs.push(key, value);
    let mut answers = Pairs::default();
    Negotiation::new(&Offer::default()).take(&pairs, &mut answers).expect("no key here ends a login");
    answers.value(key).map(str::to_owned)
}

#[test]
fn each_key_has_its_answer() {
    let cases = [
        ("HeaderDigest", "CRC32C,None", Some("CRC32C")),
        ("HeaderDigest", "CRC32C", Some("CRC32C")),
        ("HeaderDigest", "SHA1,None", Some("None")),
        ("HeaderDigest", "SHA1", Some("Reject")),
        ("DataDigest", "None", Some("None")),
        ("MaxConnections", "4", Some("1")),
        ("MaxConnections", "0", Some("Reject")),
        ("ErrorRecoveryLevel", "2", Some("0")),
        ("ErrorRecoveryLevel", "3", Some("Reject")),
        ("InitialR2T", "Yes", Some("Yes")),
        ("InitialR2T", "No", Some("No")),
        ("InitialR2T", "yes", Some("Reject")),
        ("ImmediateData", "No", Some("No")),
        ("MaxBurstLength", "16776192", Some("1048576")),
        ("MaxBurstLength", "0x1000", Some("4096")),
        ("MaxBurstLength", "511", Some("Reject")),
        ("MaxBurstLength", "-1", Some("Reject")),
        ("FirstBurstLength", "1048576", Some("262144")),
        ("MaxOutstandingR2T", "1", Some("1")),
        ("MaxOutstandingR2T", "65536", Some("Reject")),
        ("DefaultTime2Wait", "3", Some("3")),
        ("DefaultTime2Retain", "20", Some("0")),
        ("DataPDUInOrder", "No", Some("Yes")),
        ("DataSequenceInOrder", "Yes", Some("Yes")),
        ("IFMarker", "No", Some("No")),
        ("OFMarkInt", "1~2", Some("Irrelevant")),
        ("TaskReporting", "FastAbort,RFC3720", Some("RFC3720")),
        ("iSCSIProtocolLevel", "2", Some("2")),
        ("iSCSIProtocolLevel", "9", Some("2")),
        ("iSCSIProtocolLevel", "32", Some("Reject")),
        ("SendTargets", "All", Some("Reject")),
        ("X-org.example.key", "value", Some("NotUnderstood")),
        ("SomethingNew", "1", Some("NotUnderstood")),
        ("SomethingNew", "NotUnderstood", None),
        ("InitiatorAlias", "host", None),
        ("MaxRecvDataSegmentLength", "8192", None),
    ];
    for (key, value, expected) in cases {
        assert_eq!(answer(key, value).as_deref(), expected, "{key}={value}");
    }
}

#[test]
fn a_declaration_that_cannot_be_ends_the_login() {
    for value in ["0", "511", "16777216", "big", ""] {
        let mut pairs = Pairs::default();
        pairs.push("MaxRecvDataSegmentLength", value);
        let mut answers = Pairs::default();
        let outcome = Negotiation::new(&Offer::default()).take(&pairs, &mut answers);
        assert!(matches!(outcome, Err(PeerMisbehaved::Key { .. })), "{value}");
    }
}

/// The order of keys in the text must not decide what is settled.
#[test]
fn the_first_burst_stays_within_a_burst() {
    for text in
        [&b"FirstBurstLength=65536\0MaxBurstLength=4096\0"[..], b"MaxBurstLength=4096\0FirstBurstLength=65536\0"]
    {
        let mut target = Negotiation::new(&Offer::default());
        let mut answers = Pairs::default();
        target.take(&Pairs::parse(text).expect("sound"), &mut answers).expect("fine");
        assert_eq!(answers.value("FirstBurstLength"), Some("4096"));
        assert_eq!(target.agreed().first_burst_bytes, 4096);
    }
    // A default that would be longer than the burst that was settled.
    let mut target = Negotiation::new(&Offer::default());
    target.take(&Pairs::parse(b"MaxBurstLength=4096").expect("sound"), &mut Pairs::default()).expect("fine");
    assert_eq!(target.agreed().first_burst_bytes, 4096);
}

#[test]
fn keys_that_nobody_names_keep_the_defaults_of_the_rfc() {
    let mut target = Negotiation::new(&Offer::default());
    let mut answers = Pairs::default();
    target.declare(&mut answers);
    target.declare(&mut answers);
    target.take(&Pairs::default(), &mut answers).expect("fine");
    assert_eq!(answers.encode(), b"MaxRecvDataSegmentLength=262144\0", "declared once; nothing proposed");
    let agreed = target.agreed();
    assert_eq!((agreed.max_burst_bytes, agreed.first_burst_bytes), (262_144, 65536));
    assert_eq!((agreed.initial_r2t, agreed.immediate_data, agreed.max_outstanding_r2t), (true, true, 1));
    assert_eq!(agreed.send_segment_bytes_max, 8192);
}

#[test]
fn an_initiator_takes_no_answer_that_it_cannot_live_with() {
    for (key, value) in [
        ("HeaderDigest", "CRC64"),
        ("ErrorRecoveryLevel", "1"),
        ("DataPDUInOrder", "No"),
        ("InitialR2T", "perhaps"),
        ("MaxBurstLength", "1"),
        ("MaxOutstandingR2T", "0"),
    ] {
        let mut initiator = Negotiation::new(&Offer::default());
        initiator.propose(&mut Pairs::default());
        let mut pairs = Pairs::default();
        pairs.push(key, value);
        let outcome = initiator.take(&pairs, &mut Pairs::default());
        assert!(matches!(outcome, Err(PeerMisbehaved::Key { .. })), "{key}={value}");
    }
    let mut initiator = Negotiation::new(&Offer::default());
    initiator.propose(&mut Pairs::default());
    let mut answers = Pairs::default();
    let refused = Pairs::parse(b"MaxBurstLength=Reject\0InitialR2T=NotUnderstood\0ImmediateData=Irrelevant\0");
    initiator.take(&refused.expect("sound"), &mut answers).expect("the defaults hold");
    assert_eq!((initiator.agreed().max_burst_bytes, initiator.agreed().initial_r2t), (262_144, true));
    assert!(answers.is_empty());
    // What the target proposes of its own is answered, or open-iscsi's way of giving up would be ours.
    let own = Pairs::parse(b"X-com.example.k=1\0TargetAlias=disk\0").expect("sound");
    initiator.take(&own, &mut answers).expect("fine");
    assert_eq!(answers.encode(), b"X-com.example.k=NotUnderstood\0");
}

#[test]
fn numbers_are_decimal_or_hexadecimal() {
    for (text, value) in [
        ("0", Some(0)),
        ("8192", Some(8192)),
        ("0x2000", Some(8192)),
        ("0X2f", Some(47)),
        ("4294967295", Some(u32::MAX)),
    ] {
        assert_eq!(number(text), value);
    }
    for text in ["", "0x", "-1", "+1", " 1", "1 ", "4294967296", "0x+1", "1e3"] {
        assert_eq!(number(text), None, "{text:?}");
    }
}

#[test]
fn what_says_nothing_is_irrelevant() {
    let answers = |keys: &[(&str, &str)], is_discovery| {
        let (mut pairs, mut answers) = (Pairs::default(), Pairs::default());
        keys.iter().for_each(|(key, value)| pairs.push(*key, *value));
        let mut negotiation = Negotiation::new(&Offer::default());
        if is_discovery {
            negotiation.set_discovery();
        }
        negotiation.take(&pairs, &mut answers).expect("sound");
        answers
    };
    // The first burst is looked at last, wherever it stands.
    let none = [("FirstBurstLength", "4096"), ("ImmediateData", "No"), ("InitialR2T", "Yes")];
    assert_eq!(answers(&none, false).value("FirstBurstLength"), Some("Irrelevant"));
    let some = [("FirstBurstLength", "4096"), ("ImmediateData", "No"), ("InitialR2T", "No")];
    assert_eq!(answers(&some, false).value("FirstBurstLength"), Some("4096"));
    let discovery = answers(&[("MaxBurstLength", "4096"), ("HeaderDigest", "None"), ("ErrorRecoveryLevel", "0")], true);
    let values = ["MaxBurstLength", "HeaderDigest", "ErrorRecoveryLevel"].map(|key| discovery.value(key));
    assert_eq!(values, [Some("Irrelevant"), Some("None"), Some("0")]);
}

#[test]
fn a_key_is_negotiated_once() {
    for key in KEYS.iter().filter(|key| key.use_in != UseIn::AnyText).map(|key| key.name) {
        let mut pairs = Pairs::default();
        pairs.push(key, "1");
        let mut negotiation = Negotiation::new(&Offer::default());
        negotiation.take(&pairs, &mut Pairs::default()).expect("the first time");
        assert!(negotiation.take(&pairs, &mut Pairs::default()).is_err(), "{key}");
    }
}

fn any_offer() -> impl Strategy<Value = Offer> {
    (any::<u32>(), any::<u32>(), 0u32..5_000_000, any::<bool>(), any::<bool>(), any::<u16>()).prop_map(
        |(recv_segment_bytes_max, first_burst_bytes, max_burst_bytes, initial_r2t, immediate_data, r2ts)| Offer {
            recv_segment_bytes_max,
            first_burst_bytes,
            max_burst_bytes,
            initial_r2t,
            immediate_data,
            max_outstanding_r2t: r2ts,
            header_digest: [DigestOffer::Never, DigestOffer::Allow, DigestOffer::Prefer][usize::from(r2ts % 3)],
            data_digest: [DigestOffer::Allow, DigestOffer::Prefer][usize::from(r2ts % 2)],
            protocol_level: (r2ts % 4) as u8,
            error_recovery_level: (r2ts % 3) as u8,
            connections_max: r2ts,
            time2wait_s: r2ts,
            time2retain_s: r2ts / 3,
        },
    )
}

/// RFC 7143 §13: what holds for the session is said on its leading connection only.
#[test]
fn a_further_connection_settles_only_its_own() {
    let session = Agreed { max_burst_bytes: 4096, connections_max: 4, error_recovery_level: 2, ..Agreed::default() };
    let offer = Offer { header_digest: DigestOffer::Prefer, connections_max: 9, ..Offer::default() };
    let mut ours = Negotiation::joining(&offer, &session);
    let mut theirs = Negotiation::joining(&offer, &session);
    let (mut request, mut response, mut more) = (Pairs::default(), Pairs::default(), Pairs::default());
    ours.propose(&mut request);
    let keys: Vec<&str> = request.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength"]);
    request.push("MaxConnections", "7");
    theirs.declare(&mut response);
    theirs.take(&request, &mut response).expect("no reason to end it");
    assert_eq!(response.value("MaxConnections"), Some("Reject"));
    ours.take(&response, &mut more).expect("sound");
    for agreed in [ours.agreed(), theirs.agreed()] {
        assert!(agreed.digests.header && !agreed.digests.data);
        assert_eq!((agreed.send_segment_bytes_max, agreed.recv_segment_bytes_max), (262_144, 262_144));
        assert_eq!((agreed.max_burst_bytes, agreed.connections_max, agreed.error_recovery_level), (4096, 4, 2));
    }
}

proptest! {
    #[test]
    fn both_sides_settle_on_the_same(initiator in any_offer(), target in any_offer()) {
        let (mut ours, mut theirs) = (Negotiation::new(&initiator), Negotiation::new(&target));
        let (mut request, mut response, mut more) = (Pairs::default(), Pairs::default(), Pairs::default());
        ours.propose(&mut request);
        theirs.declare(&mut response);
        theirs.take(&request, &mut response).expect("ours are sound");
        ours.take(&response, &mut more).expect("theirs are sound");
        prop_assert!(more.is_empty(), "one round is enough");
        let (ours, theirs) = (ours.agreed(), theirs.agreed());
        prop_assert_eq!(ours.send_segment_bytes_max, theirs.recv_segment_bytes_max);
        prop_assert_eq!(ours.recv_segment_bytes_max, theirs.send_segment_bytes_max);
        let common = |agreed: &Agreed| Agreed { send_segment_bytes_max: 0, recv_segment_bytes_max: 0, ..agreed.clone() };
        prop_assert_eq!(common(&ours), common(&theirs));
        prop_assert_eq!(ours.connections_max, initiator.connections_max.min(target.connections_max).max(1));
        prop_assert_eq!(ours.time2wait_s, initiator.time2wait_s.max(target.time2wait_s).min(TIME_MAX_S));
        prop_assert_eq!(ours.time2retain_s, initiator.time2retain_s.min(target.time2retain_s).min(TIME_MAX_S));
        prop_assert!(ours.first_burst_bytes <= ours.max_burst_bytes && ours.first_burst_bytes >= 512);
    }
}

//! Proves the digests against values computed elsewhere, the binary forms, and that a secret is shown nowhere.

use super::*;

fn secret() -> Secret {
    Secret::new(b"a secret of CHAP").unwrap()
}

#[test]
fn responses_agree_with_others() {
    let challenge = Challenge { identifier: 0x2a, bytes: (0..16).collect() };
    for (algorithm, expected) in GOLDEN {
        assert_eq!(challenge.answer(algorithm, &secret()), expected, "{algorithm:?}");
        assert!(challenge.is_answered_by(algorithm, &secret(), expected));
        assert!(challenge.is_answered_by(algorithm, &secret(), &expected.to_uppercase().replace("0X", "0x")));
        for wrong in ["", "0x", "0x00", &expected[2..], &expected[..expected.len() - 2], &format!("{expected}00")] {
            assert!(!challenge.is_answered_by(algorithm, &secret(), wrong), "{wrong}");
        }
        let other = Secret::new(b"another secret!!").unwrap();
        assert!(!challenge.is_answered_by(algorithm, &other, expected));
    }
}

/// From Python's hashlib: the digest of 0x2a, the secret, and the bytes 0 to 15.
const GOLDEN: [(Algorithm, &str); 4] = [
    (Algorithm::Md5, "0xad50eaf6d1a405748cfa5c2e989f57fe"),
    (Algorithm::Sha1, "0x622c87e913184316183d4f509b23379fef3c220b"),
    (Algorithm::Sha256, "0x2182a4c40656945fe69bba035ca0c010add921b3d1544cf0393546b4588e78f9"),
    (Algorithm::Sha3_256, "0x6f5107992a7f4110b3f86828476413a52d939e126eb94ffee22aa1c7a418fa7e"),
];

#[test]
fn binary_values_in_both_forms() {
    assert_eq!(decode_binary("0xABcd"), Some(vec![0xab, 0xcd]));
    assert_eq!(decode_binary("0Xabc"), Some(vec![0x0a, 0xbc]));
    assert_eq!(decode_binary("0x"), Some(vec![]));
    // RFC 4648 §10.
    for (text, bytes) in
        [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob"), ("Zm9vYmFy", "foobar")]
    {
        assert_eq!(decode_binary(&format!("0b{text}")).as_deref(), Some(bytes.as_bytes()));
        assert_eq!(decode_binary(&format!("0B{}", text.trim_end_matches('='))).as_deref(), Some(bytes.as_bytes()));
    }
    for wrong in ["", "0", "12", "0xg0", "0bZ", "0bZ===", "0bZg=a", "0b????", "1xab", "\u{20ac}0x"] {
        assert_eq!(decode_binary(wrong), None, "{wrong}");
    }
    let long = |count: usize| format!("0x{}", "00".repeat(count));
    assert_eq!(decode_binary(&long(1024)).map(|bytes| bytes.len()), Some(1024));
    assert_eq!(decode_binary(&long(1025)), None);
}

#[test]
fn challenges_are_read_and_compared() {
    let ours = Challenge::from_random([7; CHALLENGE_BYTES + 1]);
    let read = Challenge::parse(&ours.identifier(), &ours.value()).unwrap();
    assert_eq!(read, ours);
    let with_another_identifier = Challenge::parse("8", &ours.value()).unwrap();
    assert!(with_another_identifier.reflects(&ours), "the identifier makes no new challenge");
    assert!(!Challenge::parse("7", "0x00").unwrap().reflects(&ours));
    for (identifier, value) in [("256", "0x00"), ("-1", "0x00"), ("", "0x00"), ("1", "0x"), ("1", "")] {
        assert_eq!(Challenge::parse(identifier, value), None, "{identifier} {value}");
    }
}

#[test]
fn a_secret_has_its_length_and_is_not_shown() {
    assert!(Secret::new(&[b'x'; 11]).unwrap_err().to_string().contains("11 bytes"));
    assert!(Secret::new(&[b'x'; 12]).is_ok() && Secret::new(&[b'x'; 255]).is_ok());
    assert!(Secret::new(&[b'x'; 256]).is_err());
    assert!(!format!("{:?}", Credentials { name: "alice".into(), secret: secret() }).contains("CHAP"));
}

//! Proves what counts as key text, that continued text is put together up to its limit, and that nothing else does harm.

use proptest::prelude::*;

use super::*;

#[test]
fn golden_text() {
    let text = b"InitiatorName=iqn.x:a\0SessionType=Discovery\0X-org.example.k=\0";
    let pairs = Pairs::parse(text).expect("sound");
    let expected = [("InitiatorName", "iqn.x:a"), ("SessionType", "Discovery"), ("X-org.example.k", "")];
    assert_eq!(pairs.iter().collect::<Vec<_>>(), expected);
    assert_eq!(pairs.encode(), text);
    assert_eq!(pairs.value("SessionType"), Some("Discovery"));
    assert_eq!(pairs.value("sessiontype"), None, "keys have a case");
}

#[test]
fn sloppy_text_is_understood() {
    // A value with '=' in it, zero bytes in excess, a last pair without its zero byte: all seen in the wild.
    let pairs = Pairs::parse(b"\0\0CHAP_R=0xab==\0\0A=1").expect("sound");
    assert_eq!(pairs.iter().collect::<Vec<_>>(), [("CHAP_R", "0xab=="), ("A", "1")]);
    assert!(Pairs::parse(b"").expect("sound").is_empty());
}

#[test]
fn what_is_no_key_text_is_refused() {
    assert_eq!(Pairs::parse(b"Key\0"), Err(TextError::NoEquals));
    assert_eq!(Pairs::parse(b"=v\0"), Err(TextError::Key));
    assert_eq!(Pairs::parse(b"Ke y=v\0"), Err(TextError::Key));
    assert_eq!(Pairs::parse(b"1Key=v\0"), Err(TextError::Key));
    assert_eq!(Pairs::parse(b"Key=\xff\0"), Err(TextError::NotUtf8));
    let long = [b"K".repeat(KEY_BYTES_MAX + 1), b"=v\0".to_vec()].concat();
    assert_eq!(Pairs::parse(&long), Err(TextError::Key));
    assert_eq!(Pairs::parse(&b"A=\0".repeat(PAIRS_MAX + 1)), Err(TextError::TooMany));
    assert_eq!(Pairs::parse(b"A=1\0B=2\0A=3").expect("sound").check_unique(), Err(TextError::Twice("A".into())));
}

#[test]
fn continued_text_is_joined_and_limited() {
    let mut collector = Collector::default();
    assert_eq!(collector.push(b"Ab", true, 100), Ok(None));
    assert_eq!(collector.push(b"c=d", true, 100), Ok(None));
    let pairs = collector.push(b"e\0", false, 100).expect("sound").expect("whole");
    assert_eq!(pairs.value("Abc"), Some("de"));
    // It starts again.
    assert!(collector.push(b"A=1\0", false, 100).expect("sound").is_some());
    assert_eq!(collector.push(&[b'a'; 60], true, 100), Ok(None));
    assert_eq!(collector.push(&[b'a'; 41], true, 100), Err(TextError::TooLong { max_bytes: 100 }));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz_text(&bytes);
    }

    #[test]
    fn nearly_right_bytes_do_no_harm(text in "([A-Z][a-z.=-]{0,8}=[a-z=,]{0,6}\0){0,9}[A-Z=]{0,3}") {
        fuzz_text(text.as_bytes());
    }
}

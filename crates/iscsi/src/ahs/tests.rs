//! Proves the bytes of each header segment, and that no list of bytes makes the walk panic, loop or reach past its end.

use proptest::prelude::*;
use strongroom_block::{AttachId, Lba, Mode, RecordFlags, SealRecord, Stamp, StoreSequence, Suite};

use super::*;

fn record(flags: u8) -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([0x11; 16]), counter: 0x22 };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(flags), 3, stamp, 0x44, [0x55; 16])
}

#[test]
fn golden_bytes_of_seal_records() {
    let mut out = Vec::new();
    push_seal_records(&mut out, 3, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(out, [0, 7, 0x30, 3, 1, 2, 3, 4, 5, 6, 0, 0]);
    let records = SealRecords::find(&out).expect("sound").expect("there");
    assert_eq!((records.entry_bytes, records.count()), (3, 2));
    assert_eq!(records.iter().collect::<Vec<_>>(), [[1, 2, 3], [4, 5, 6]]);

    let mut out = Vec::new();
    push_seal_records(&mut out, 56, record(0).as_bytes());
    assert_eq!(out[..8], [0, 57, 0x30, 56, 1, 1, 1, 0]);
    assert_eq!(out.len(), 60);
}

#[test]
fn stored_records_are_as_their_entries_one_by_one() {
    for (count, record) in [(1, record(0)), (3, record(0)), (2, record(0).with_block_key(&[0xab; 32]))] {
        let entry_bytes = 8 + record.as_bytes().len();
        let (mut one_by_one, mut entries) = (Vec::new(), Vec::new());
        for sequence in 0..count {
            entries.extend_from_slice(&(7 + sequence as u64).to_be_bytes());
            entries.extend_from_slice(record.as_bytes());
        }
        push_seal_records(&mut one_by_one, entry_bytes, &entries);
        let records = vec![record; count];
        let stored = records.iter().enumerate().map(|(at, record)| (StoreSequence(7 + at as u64), record));
        let stored = StoredRecords::new(entry_bytes, stored, false);
        let entries = stored.as_bytes().as_ptr();
        let out = stored_records_segment(stored);
        assert_eq!(out[4..].as_ptr(), entries, "made in one piece");
        assert_eq!(out, one_by_one);
    }
}

#[test]
fn golden_bytes_of_a_hole() {
    let hole = Hole {
        covered_blocks: 0x0102_0304,
        store_sequence: 0x1112_1314_1516_1718,
        record: HoleRecord { start: Lba(5), count: 6, record: record(RecordFlags::HOLE) },
    };
    let mut out = Vec::new();
    hole.push(&mut out);
    let mut golden = vec![0, 85, 0x31, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6]);
    golden.extend_from_slice(record(RecordFlags::HOLE).as_bytes());
    assert_eq!(out, golden);
    assert_eq!(Hole::find(&out), Ok(Some(hole)));
    assert_eq!(Hole::covered_blocks(&out), Some(0x0102_0304));
}

#[test]
fn golden_bytes_of_stamp_and_sequence() {
    let mut out = Vec::new();
    push_expected_stamp(&mut out, &[9; 24]);
    assert_eq!(out, [&[0, 25, 0x32, 0][..], &[9; 24]].concat());
    assert_eq!(expected_stamp(&out), Some([9; 24]));
    push_older_than(&mut out, 0x0102);
    assert_eq!(out[28..], [0, 9, 0x33, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!((older_than(&out), expected_stamp(&out)), (Some(0x0102), Some([9; 24])));
    push_keys_destroyed(&mut out, 0x0304);
    assert_eq!(out[40..], [0, 5, 0x34, 0, 0, 0, 3, 4]);
    assert_eq!((keys_destroyed(&out), keys_destroyed(&[0, 4, 0x34, 0, 0, 3, 4, 0])), (Some(0x0304), None));
    assert_eq!(check(&out), Ok(()));
}

#[test]
fn golden_bytes_of_an_operation() {
    let id = Stamp { attach_id: AttachId([9; 16]), counter: 0x0102 };
    let mut out = Vec::new();
    let replayed = Operation { id, replay: Some(StoreSequence(0x0304)) };
    push_operation(&mut out, &replayed);
    let golden = [&[0, 33, 0x35, 0][..], &[9; 16], &[0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4]].concat();
    assert_eq!(out, golden);
    assert_eq!(operation(&out), Ok(Some(replayed)));

    let mut out = Vec::new();
    push_operation(&mut out, &Operation { id, replay: None });
    assert_eq!(out[28..], [0; 8], "no replay");
    assert_eq!(operation(&out), Ok(Some(Operation { id, replay: None })));
    assert_eq!(operation(&[]), Ok(None));
}

#[test]
fn golden_bytes_of_a_response_to_a_write() {
    let stored = Written { is_repeat: false, first: StoreSequence(0x0102), superseded: 0x0304 };
    assert_eq!(written_segment(&stored)[..], [0, 13, 0x36, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 3, 4]);
    let repeat = Written { is_repeat: true, ..Written::default() };
    assert_eq!(written_segment(&repeat)[..], [0, 13, 0x36, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for said in [stored, repeat] {
        assert_eq!(written(&written_segment(&said)), Ok(Some(said)));
    }
    assert_eq!(written(&[]), Ok(None));
}

#[test]
fn attack_operations_and_responses_with_reserved_bits_or_other_lengths_are_refused() {
    for len in [1, 13, 32, 34, 41] {
        let mut out = Vec::new();
        push(&mut out, AhsKind::OPERATION, &[&vec![0; len]]);
        assert!(operation(&out).is_err(), "an operation of {len} bytes");
    }
    for len in [1, 12, 14, 33] {
        let mut out = Vec::new();
        push(&mut out, AhsKind::WRITTEN, &[&vec![0; len]]);
        assert!(written(&out).is_err(), "a response of {len} bytes");
    }
    for bit in 0..8 {
        let (mut operation, mut written) = (vec![0; 33], vec![0; 13]);
        (operation[0], written[0]) = (1 << bit, 1 << bit);
        assert!(decode_operation(&operation).is_err(), "bit {bit}");
        assert_eq!(decode_written(&written).is_ok(), bit == 0, "bit {bit}");
    }
}

#[test]
fn malformed_lists_are_refused() {
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&[0, 1, 2]), Err(AhsError::Ragged(3)));
    assert_eq!(check(&[0, 1, 2, 0, 0]), Err(AhsError::Ragged(5)));
    assert_eq!(check(&[0, 0, 2, 0]), Err(AhsError::Empty { at: 0 }));
    assert_eq!(check(&[0, 2, 2, 0]), Err(AhsError::PastEnd { at: 0, len_bytes: 2 }));
    assert_eq!(check(&[0xff, 0xff, 2, 0]), Err(AhsError::PastEnd { at: 0, len_bytes: 65535 }));
    assert_eq!(check(&[0, 1, 2, 0, 0, 1, 2, 0]), Err(AhsError::Twice(2)));
    // The walk ends with the first error.
    assert_eq!(list(&[0, 0, 2, 0, 0, 1, 3, 0]).count(), 1);
    assert_eq!(find(&[0, 0, 2, 0, 0, 1, 3, 0], AhsKind(3)), None);
}

#[test]
fn malformed_content_is_refused() {
    for content in [&[][..], &[0, 1], &[2], &[2, 1], &[2, 1, 2, 3]] {
        assert!(SealRecords::decode(content).is_err(), "{content:?}");
    }
    let mut hole = vec![0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(Hole::decode(&hole).is_err(), "no record");
    hole.extend_from_slice(&[0; 16]);
    hole.extend_from_slice(record(RecordFlags::HOLE).as_bytes());
    assert!(Hole::decode(&hole).is_err(), "a record over no block");
    hole[13 + 15] = 1;
    assert!(Hole::decode(&hole).is_ok());
    hole[4] = 0;
    assert!(Hole::decode(&hole).is_err(), "it covers nothing");
}

/// Seal records may carry block keys.
#[test]
fn debug_shows_no_content() {
    let mut out = Vec::new();
    push_seal_records(&mut out, 88, record(0).with_block_key(&[0xab; 32]).as_bytes());
    let shared = strongroom_block::wiped(out);
    let pdu = crate::Pdu::new(crate::Bhs([0; 48]), shared.clone(), strongroom_block::Buffer::empty(), true);
    let records = SealRecords::find(&shared).expect("sound");
    let shown = format!("{pdu:?} {records:?} {:?}", list(&shared).next());
    for content in ["ab", "AB", "171"] {
        assert!(!shown.contains(content), "{shown}");
    }
    assert!(shown.contains("0x30, 89 bytes"));
}

#[test]
fn records_are_limited_by_the_header() {
    for (entry, other) in [(56, 0), (64, 0), (96, 28), (96, 4096)] {
        let max = seal_records_max(entry, other);
        let mut out = vec![0; other];
        push_seal_records(&mut out, entry, &vec![0; entry * max]);
        assert!(out.len() + 48 <= 65535, "{max} entries of {entry} fit");
        assert!(max * entry + entry + other + 48 + 8 > 65535, "and one more would not, or hardly");
    }
    assert_eq!(seal_records_max(96, 0), 682);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        fuzz_ahs(&bytes);
    }

    /// Small lengths and known types, so that the walk gets somewhere.
    #[test]
    fn nearly_right_bytes_do_no_harm(
        segments in prop::collection::vec((0u16..40, 0x2fu8..0x38, prop::collection::vec(any::<u8>(), 1..40)), 0..6),
    ) {
        let mut bytes = Vec::new();
        for (len, kind, content) in segments {
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.push(kind);
            bytes.extend_from_slice(&content);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        fuzz_ahs(&bytes);
    }

    #[test]
    fn lists_decode_as_encoded(contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..8)) {
        let mut bytes = Vec::new();
        for (kind, content) in contents.iter().enumerate() {
            push(&mut bytes, AhsKind(kind as u8), &[content]);
        }
        prop_assert_eq!(check(&bytes), Ok(()));
        let decoded: Vec<Vec<u8>> = list(&bytes).map(|segment| segment.expect("sound").content.to_vec()).collect();
        prop_assert_eq!(decoded, contents);
    }
}

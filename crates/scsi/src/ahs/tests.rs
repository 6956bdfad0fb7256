//! Proves the additional header segments byte by byte, and that hostile ones end in an error.

use proptest::prelude::*;
use strongroom_block::{AttachId, Mode, RecordFlags, Suite};

use super::*;

fn record(counter: u64) -> SealRecord {
    let stamp = Stamp { attach_id: AttachId([7; 16]), counter };
    SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 1, stamp, 5, [6; 16])
}

fn hole() -> HoleRecord {
    let flags = RecordFlags(RecordFlags::HOLE);
    let stamp = Stamp { attach_id: AttachId([7; 16]), counter: 1 };
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, flags, 1, stamp, 0, [6; 16]);
    HoleRecord { start: Lba(100), count: 50, record }
}

#[test]
fn golden_segments() {
    let bytes = expected_stamp(Some(Stamp { attach_id: AttachId([1; 16]), counter: 2 }));
    assert_eq!(bytes[..4], [0, 25, 0x32, 0]);
    assert_eq!(bytes[4..20], [1; 16]);
    assert_eq!(bytes[20..], [0, 0, 0, 0, 0, 0, 0, 2]);

    assert_eq!(older_than(Some(StoreSequence(0x0102))), [0, 9, 0x33, 0, 0, 0, 0, 0, 0, 0, 1, 2]);

    let bytes = seal_records_towards_target([&record(1), &record(2)]);
    assert_eq!(bytes[..4], [0, 113, 0x30, 56]);
    assert_eq!(bytes.len(), 116);
    assert_eq!(bytes[4..60], *record(1).as_bytes());

    let bytes = seal_records_towards_initiator([(StoreSequence(9), &record(1))]);
    assert_eq!(bytes[..12], [0, 65, 0x30, 64, 0, 0, 0, 0, 0, 0, 0, 9]);

    let segment = HoleAhs { covered_blocks: 8, sequence: StoreSequence(3), hole: hole() };
    let bytes = segment.encode();
    assert_eq!(bytes[..16], [0, 85, 0x31, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(bytes.len(), 88);
    assert_eq!(HoleAhs::decode(find(&bytes, HOLE).unwrap()), Ok(segment));
}

#[test]
fn a_hole_must_cover_what_it_stands_for() {
    let segment = |covered_blocks| HoleAhs { covered_blocks, sequence: StoreSequence(3), hole: hole() };
    assert!(segment(50).covers_from(Lba(100)));
    assert!(!segment(51).covers_from(Lba(100)));
    assert!(!segment(1).covers_from(Lba(99)));
    assert!(!segment(0).covers_from(Lba(100)));
    assert!(!segment(2).covers_from(Lba(u64::MAX)));
}

#[test]
fn segments_walk_in_order_and_end_at_nonsense() {
    let mut bytes = older_than(None);
    bytes.extend(expected_stamp(None));
    bytes.extend([0xff, 0xff, 0x30]);
    let walked: Vec<_> = walk(&bytes).collect();
    assert_eq!(walked.len(), 3);
    assert_eq!(walked[1].unwrap().kind, EXPECTED_STAMP);
    assert_eq!(walked[2], Err(AhsError::Truncated));
    assert_eq!(decode_older_than(find(&bytes, OLDER_THAN).unwrap()), Ok(None));
    assert_eq!(decode_expected_stamp(find(&bytes, EXPECTED_STAMP).unwrap()), Ok(None));
    assert_eq!(find(&bytes, SEAL_RECORDS), None);
}

#[test]
fn record_entries_are_checked() {
    let good = seal_records_towards_target([&record(1), &record(2)]);
    let content = find(&good, SEAL_RECORDS).unwrap();
    assert_eq!(records_towards_target(content), Ok(vec![record(1), record(2)]));
    for entry_bytes in [0, 1, 55, 57, 255] {
        let mut bad = content.to_vec();
        bad[0] = entry_bytes;
        assert!(records_towards_target(&bad).is_err(), "{entry_bytes}");
    }
    assert!(records_towards_target(&content[..56]).is_err());
    assert!(records_towards_target(&[56]).is_err());
    assert!(records_towards_target(&[]).is_err());
    let towards = seal_records_towards_initiator([(StoreSequence(9), &record(1))]);
    let decoded = records_towards_initiator(find(&towards, SEAL_RECORDS).unwrap());
    assert_eq!(decoded, Ok(vec![(StoreSequence(9), record(1))]));
}

proptest! {
    #[test]
    fn walking_ends(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(walk(&bytes).count() <= bytes.len() / 3 + 1);
        crate::fuzz_decode(&bytes);
    }

    #[test]
    fn pushed_segments_are_found(contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..5)) {
        let mut bytes = Vec::new();
        for content in &contents {
            push(&mut bytes, 0x40, content);
        }
        prop_assert_eq!(bytes.len() % 4, 0);
        let walked: Vec<Vec<u8>> = walk(&bytes).map(|ahs| ahs.unwrap().content.to_vec()).collect();
        prop_assert_eq!(walked, contents);
    }
}

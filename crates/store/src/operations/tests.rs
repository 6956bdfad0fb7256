//! Proves that windows outlive their encoding, that their number and size are bounded, and that one branch cannot push out another's.

use super::window::INTERVALS_MAX;
use super::*;

const SEGMENT_BYTES: u32 = 4 << 20;

fn stamp(id: u128, counter: u64) -> Stamp {
    Stamp { attach_id: AttachId(id.to_be_bytes()), counter }
}

fn known(operations: &Operations, branch: u32) -> Vec<u128> {
    let mut ids: Vec<u128> = operations
        .attachments
        .keys()
        .filter(|(of, _)| *of == branch)
        .map(|(_, id)| u128::from_be_bytes(id.0))
        .collect();
    ids.sort_unstable();
    ids
}

fn registered(branch: u32, ids: impl Iterator<Item = u128>) -> Operations {
    let mut operations = Operations::new(SEGMENT_BYTES);
    ids.for_each(|id| operations.register(branch, AttachId(id.to_be_bytes())));
    operations
}

#[test]
fn an_attach_id_is_known_only_when_registered_and_only_on_its_branch() {
    let mut operations = Operations::new(SEGMENT_BYTES);
    operations.note(0, stamp(1, 5), 3);
    assert_eq!(operations.standing(0, stamp(1, 5), 3), Standing::Unknown);
    operations.register(0, stamp(1, 0).attach_id);
    assert_eq!(operations.standing(0, stamp(1, 5), 3), Standing::New);
    operations.note(0, stamp(1, 5), 3);
    operations.register(0, stamp(1, 0).attach_id);
    assert_eq!(
        operations.standing(0, stamp(1, 5), 3),
        Standing::Completed,
        "registered twice, and nothing is forgotten"
    );
    assert_eq!(operations.standing(1, stamp(1, 5), 3), Standing::Unknown);
    operations.take_back(0, stamp(1, 6), 1);
    assert_eq!(operations.standing(0, stamp(1, 5), 3), Standing::Overlaps);
    operations.forget_branch(0);
    assert!(operations.is_empty() && operations.encode().is_empty());
}

#[test]
fn the_least_recently_used_one_of_the_fullest_branch_is_forgotten() {
    let mut operations = registered(0, 1..4);
    for id in 0..ATTACH_IDS_MAX as u128 - 3 {
        operations.register(7, AttachId((100 + id).to_be_bytes()));
    }
    operations.note(7, stamp(100, 1), 1);
    for id in 0..500 {
        operations.register(7, AttachId((10_000 + id as u128).to_be_bytes()));
        assert!(operations.attachments.len() <= ATTACH_IDS_MAX);
    }
    assert_eq!(known(&operations, 0), [1, 2, 3], "a flood on one branch costs another nothing");
    assert!(known(&operations, 7).contains(&100) && !known(&operations, 7).contains(&101), "100 was used later");
}

#[test]
fn decodes_as_encoded_in_the_same_order_of_use() {
    let mut operations = registered(3, 0..50);
    for counter in 0..40 {
        operations.note(3, stamp(counter % 7, 3 * u64::try_from(counter).unwrap()), 2);
    }
    let bytes = operations.encode();
    assert!(bytes.len() <= operations.bytes, "{} bytes", bytes.len());
    let again = Operations::decode(&bytes, SEGMENT_BYTES).unwrap();
    assert_eq!(again.encode(), bytes);
    assert_eq!(again.bytes, operations.bytes);
    for at in 0..bytes.len() {
        assert!(Operations::decode(&bytes[..at], SEGMENT_BYTES).is_none_or(|_| at == 0), "cut off at {at}");
    }
    let twice = [&2u64.to_be_bytes()[..], &bytes[8..40], &bytes[8..40]].concat();
    assert!(Operations::decode(&twice, SEGMENT_BYTES).is_none(), "the same window twice");
    assert!(Operations::decode(&bytes, 64 << 10).is_some());
    assert!(Operations::decode(&registered(0, 0..100).encode(), 64 << 10).is_none(), "more than a small segment takes");
}

/// A writer can leave any number of gaps and register any number of attach ids.
#[test]
fn attack_gaps_and_registrations_take_bounded_space() {
    for segment_bytes in [64 << 10, SEGMENT_BYTES, 16 << 20] {
        let mut operations = Operations::new(segment_bytes);
        for id in 0..200u128 {
            operations.register(0, AttachId(id.to_be_bytes()));
            for counter in 0..(INTERVALS_MAX as u64 + 50) {
                operations.note(0, stamp(id, 2 * counter), 1);
            }
            assert!(operations.bytes <= (segment_bytes / SEGMENT_SHARE) as usize);
            assert!(operations.encode().len() <= operations.bytes);
        }
        assert_eq!(
            operations.standing(0, stamp(199, 2 * INTERVALS_MAX as u64), 1),
            Standing::Completed,
            "the newest stays"
        );
        assert!(Operations::decode(&operations.encode(), segment_bytes).is_some());
    }
}

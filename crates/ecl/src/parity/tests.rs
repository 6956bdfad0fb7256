//! Proves that any one or two lost quanta of a group are restored with their records, by any parity that there is, in any order of arrival; and
//! that nothing is restored from too little, or handed on that its record does not confirm.

use strongroom_block::{AttachId, Mode, RecordFlags, SealRecord, Stamp, Suite};

use strongroom_block::{Buffer, keyless_checksum};

use super::field::{double, inverse, power, product};
use super::receiver::{Groups, Member};
use super::sender::{ParityContent, ParityPlan};
use super::*;
use crate::connection::{Fault, Outgoing, Packet};
use crate::error::Dropped;
use crate::tag::SinkTag;

const BYTES: u32 = 512;

fn member(quantum: u32) -> Member {
    let data: Vec<u8> = (0..BYTES).map(|at| (at * 7 + quantum * 31 + at / 13) as u8).collect();
    let stamp = Stamp { attach_id: AttachId([0x11; 16]), counter: quantum.into() };
    let sum = keyless_checksum(&data);
    let record = SealRecord::new(Suite::Aes256Gcm, Mode::Encrypt, RecordFlags(0), 3, stamp, sum, [quantum as u8; 16]);
    let entry = [&u64::from(quantum + 900).to_be_bytes()[..], record.as_bytes()].concat();
    Member { quantum, entry: entry.into(), data: Buffer::copy_from(&data) }
}

fn plan_of(parity: Parity, quanta: impl Iterator<Item = u32>) -> Vec<ParityContent> {
    let mut plan = ParityPlan::new(Some(parity));
    let mut contents = Vec::new();
    for quantum in quanta {
        plan.sent(quantum);
        while let Some(content) = plan.next() {
            assert!(plan.is_leaving(content));
            contents.push(content);
        }
    }
    plan.finish_group();
    while let Some(content) = plan.next() {
        contents.push(content);
    }
    assert!(plan.is_done());
    contents
}

fn packet_of(content: ParityContent) -> Packet {
    let Outgoing { header, sink, body, payload } = content.packet((SinkTag::new(1, 1), 5), BYTES, |quantum| {
        let Member { entry, data, .. } = member(quantum);
        (entry, data)
    });
    Packet::for_tests(header, sink, body.into(), payload)
}

/// Those that were lost are there, and what was restored before it arrived, as they were.
fn assert_restored(restored: &[Member], lost: &[u32]) {
    let has = |quantum: &u32| restored.iter().any(|member| member.quantum == *quantum);
    assert!(lost.iter().all(has), "{lost:?} of {restored:?}");
    for restored in restored {
        let original = member(restored.quantum);
        assert_eq!((&restored.entry, &restored.data[..]), (&original.entry, &original.data[..]));
    }
}

#[test]
fn one_or_two_lost_quanta_are_restored() {
    let parity = Parity::new(8, 2).unwrap();
    // The second group of a transfer with a hole in it.
    let present = [8_u32, 9, 11, 12, 14, 15];
    let contents = plan_of(parity, present.into_iter());
    assert_eq!(contents.iter().map(|content| (content.first, content.index)).collect::<Vec<_>>(), [(8, 0), (8, 1)]);
    assert!(contents.iter().all(|content| content.quanta().eq(present)));
    let packets = packets_of(&contents);
    for low in 0..present.len() {
        for high in low..present.len() {
            for used in [&packets[..], &packets[..1], &packets[1..]] {
                for parity_first in [true, false] {
                    let mut groups = Groups::new(Some(parity), 8).unwrap();
                    let mut restored = Vec::new();
                    let lost: Vec<u32> = [low, high].iter().map(|at| present[*at]).collect();
                    let take_parity = |groups: &mut Groups, restored: &mut Vec<Member>| {
                        used.iter().for_each(|packet| restored.extend(groups.add_parity(packet, BYTES).unwrap()));
                    };
                    if parity_first {
                        take_parity(&mut groups, &mut restored);
                    }
                    for quantum in present.into_iter().filter(|quantum| !lost.contains(quantum)) {
                        restored.extend(groups.add(&member(quantum)));
                    }
                    if !parity_first {
                        take_parity(&mut groups, &mut restored);
                    }
                    match (low == high, used.len()) {
                        (true, _) => assert_restored(&restored, &lost[..1]),
                        (false, 2) => assert_restored(&restored, &lost),
                        (false, _) => assert!(restored.is_empty(), "two cannot come from one"),
                    }
                }
            }
        }
    }
}

fn packets_of(contents: &[ParityContent]) -> Vec<Packet> {
    contents.iter().map(|content| packet_of(*content)).collect()
}

#[test]
fn groups_end_with_the_transfer_and_single_quanta_have_no_parity() {
    let parity = Parity::new(4, 1).unwrap();
    let covered = |quanta: std::ops::Range<u32>| -> Vec<Vec<u32>> {
        plan_of(parity, quanta).into_iter().map(|content| content.quanta().collect()).collect()
    };
    assert_eq!(covered(0..1), Vec::<Vec<u32>>::new());
    assert_eq!(covered(0..3), [[0, 1, 2].to_vec()]);
    assert_eq!(covered(0..9), [[0, 1, 2, 3].to_vec(), [4, 5, 6, 7].to_vec()]);
    assert!(plan_of(parity, [3, 4].into_iter()).is_empty());
    // All 32 bits.
    let wide = Parity::new(32, 1).unwrap();
    let packets = packets_of(&plan_of(wide, 0..32));
    let mut groups = Groups::new(Some(wide), 8).unwrap();
    assert!(groups.add_parity(&packets[0], BYTES).unwrap().is_empty());
    assert_eq!(groups.memory_bytes(), u64::from(BYTES));
    let restored: Vec<Member> = (1..32).flat_map(|quantum| groups.add(&member(quantum))).collect();
    assert_restored(&restored, &[0]);
    assert_eq!(groups.memory_bytes(), 0);
}

/// What is sent in segments is no member of its group, and arrives all the same.
#[test]
fn a_quantum_that_is_no_member_is_left_out() {
    let parity = Parity::new(8, 2).unwrap();
    let packets = packets_of(&plan_of(parity, [0, 1, 4, 6].into_iter()));
    for used in [&packets[..], &packets[..1], &packets[1..]] {
        let mut groups = Groups::new(Some(parity), 8).unwrap();
        used.iter().for_each(|packet| assert!(groups.add_parity(packet, BYTES).unwrap().len() <= 2));
        let restored: Vec<Member> = [2, 3, 6, 0, 1].iter().flat_map(|quantum| groups.add(&member(*quantum))).collect();
        assert_restored(&restored, &[4]);
    }
    let other = packets_of(&plan_of(parity, [0, 1, 4].into_iter()));
    let mut groups = Groups::new(Some(parity), 8).unwrap();
    assert!(groups.add_parity(&packets[0], BYTES).unwrap().is_empty());
    assert!(matches!(groups.add_parity(&other[1], BYTES), Err(Fault::Misbehaved(_))));
}

#[test]
fn what_its_record_does_not_confirm_is_not_handed_on() {
    let parity = Parity::new(4, 1).unwrap();
    let packets = packets_of(&plan_of(parity, 0..4));
    let mut groups = Groups::new(Some(parity), 8).unwrap();
    let mut other = member(1);
    other.data = member(7).data;
    let mut restored = groups.add(&other);
    restored.extend([0, 3].into_iter().flat_map(|quantum| groups.add(&member(quantum))));
    restored.extend(groups.add_parity(&packets[0], BYTES).unwrap());
    assert!(restored.is_empty(), "{restored:?}");
}

#[test]
fn parity_that_cannot_be_is_refused() {
    let parity = Parity::new(4, 1).unwrap();
    let good = plan_of(parity, 0..4)[0];
    let refused = |change: &dyn Fn(&mut Packet)| {
        let mut packet = packet_of(good);
        change(&mut packet);
        Groups::new(Some(parity), 8).unwrap().add_parity(&packet, BYTES).expect_err("refused")
    };
    for change in [
        &|packet: &mut Packet| packet.header.quantum = 2,
        &|packet: &mut Packet| packet.header.quantum = u32::MAX - 3,
        &|packet: &mut Packet| packet.header.specific[3] = 0x1f,
        &|packet: &mut Packet| packet.header.specific[4] = 2,
    ] as [&dyn Fn(&mut Packet); 4]
    {
        assert!(matches!(refused(change), Fault::Misbehaved(_)));
    }
    let damaged = |packet: &mut Packet| packet.payload = Buffer::copy_from(&[1; BYTES as usize]);
    assert_eq!(refused(&damaged), Fault::Dropped(Dropped::Checksum));
    let cut = |packet: &mut Packet| packet.payload = packet.payload.slice(..100);
    assert_eq!(refused(&cut), Fault::Dropped(Dropped::Checksum));
    for text in ["8", "8+0", "1+1", "33+1", "8+3", "x+1", "", "-8+1"] {
        assert_eq!(text.parse::<Parity>(), Err(ParityError), "{text}");
    }
    assert_eq!("8+2".parse::<Parity>().unwrap().to_string(), "8+2");
}

#[test]
fn the_field_is_a_field() {
    for value in 1..=255 {
        assert_eq!(product(value, inverse(value)), 1);
    }
    let mut bytes: Vec<u8> = (0..=255).chain(0..5).collect();
    let doubled: Vec<u8> = bytes.iter().map(|byte| product(*byte, 2)).collect();
    double(&mut bytes);
    assert_eq!(bytes, doubled);
    assert_eq!((power(0), power(7), power(8)), (1, 0x80, 0x1d));
}

//! Proves that nothing a hostile store or wire does to a reply gives a reader wrong data: each attack ends in a medium error
//! that names a block. What cannot be told (rollback to an older valid pair) is pinned here as well.

use strongroom_block::{Buffer, DeviceErrorKind, Lba, StoreSequence, keyless_checksum};
use strongroom_scsi::transport::initiator::{DataContent, DataIn};

use super::fake_unit::{FakeUnit, Stored};
use super::{BLOCK, Rig, data_of, replace_records, sealing};
use crate::Limits;
use crate::pipeline::operation::{Fetch, ReadVersion, Write};

/// Every way in which a store or a wire could cheat a reader. Each must end in a medium error that names a block.
#[test]
fn attack_target_lies_about_blocks() {
    type Attack = (&'static str, fn(&mut FakeUnit));
    let attacks: [Attack; 9] = [
        ("a flipped bit whose checksum was corrected", |unit| {
            let stored = unit.blocks.get_mut(&2).unwrap();
            stored.data[100] ^= 1;
            let sum = keyless_checksum(&stored.data);
            stored.record[32..40].copy_from_slice(&sum.to_be_bytes());
        }),
        ("a difference that the checksum does not see", |unit| {
            // CRCs are linear: the polynomial itself as a difference leaves every CRC as it is.
            let stored = unit.blocks.get_mut(&2).unwrap();
            let before = keyless_checksum(&stored.data);
            crc_invisible_difference(&mut stored.data);
            assert_eq!(keyless_checksum(&stored.data), before, "the attack works on the checksum");
        }),
        ("a flipped tag", |unit| unit.blocks.get_mut(&2).unwrap().record[50] ^= 1),
        ("a changed stamp", |unit| unit.blocks.get_mut(&2).unwrap().record[20] ^= 1),
        ("two blocks swapped with their records", |unit| {
            let (one, other) = (unit.blocks[&2].clone(), unit.blocks[&3].clone());
            unit.blocks.insert(2, other);
            unit.blocks.insert(3, one);
        }),
        ("a record of an older version with the newer data", |unit| {
            let older = unit.versions[&2][1].record.clone();
            unit.blocks.get_mut(&2).unwrap().record = older;
        }),
        ("a block of another volume", |unit| {
            let other = sealing(7, 9).seal(Lba(2), &[6; BLOCK]).unwrap();
            unit.blocks.insert(2, Stored::new(&other.data, &other.records, 99));
        }),
        ("an absence that nobody sealed", |unit| {
            let mut hole = unit.hole_of(40).clone();
            hole.start = Lba(2);
            hole.count = 1;
            unit.put_hole(2, hole);
        }),
        ("an absence of other blocks", |unit| {
            let elsewhere = sealing(7, 2).seal_hole(Lba(40), 4).unwrap();
            unit.put_hole(2, elsewhere);
        }),
    ];
    for (name, attack) in attacks {
        let mut rig = Rig::new(true, Limits::default());
        rig.write(2, 1, 2).unwrap();
        rig.write(2, 2, 2).unwrap();
        attack(&mut rig.unit);
        let error = rig.read(0, 8).expect_err(name);
        assert_eq!(error.kind, DeviceErrorKind::Medium, "{name}");
        assert!(matches!(error.lba, Some(Lba(2 | 3))), "{name}: {error}");
        assert_eq!(rig.read(8, 8).unwrap(), vec![0; 8 * BLOCK], "others stay readable: {name}");
        assert!(rig.do_now(Rig::part(2, 0, b"x")).is_err(), "a part write does not build on it either: {name}");
    }
}

/// What the target can do to the pieces of a reply: also never wrong data. (What the session looks at is not seen here: see
/// `attack_target_sends_malformed_answers`.)
#[test]
fn attack_target_sends_malformed_blocks() {
    type Change = (&'static str, fn(&mut DataIn));
    let changes: [Change; 6] = [
        ("records taken away: zeros served", |data_in| {
            data_in.content = DataContent::Plain(Buffer::copy_from(&vec![0; data_in.data().len()]));
        }),
        ("data taken away", |data_in| *data_of(data_in) = Buffer::empty()),
        ("plain data instead of sealed", |data_in| {
            data_in.content = DataContent::Plain(Buffer::copy_from(data_in.data()));
        }),
        ("a piece that is cut", |data_in| {
            let data = data_of(data_in);
            *data = data.slice(..BLOCK / 2);
        }),
        ("a piece at another place", |data_in| data_in.offset = BLOCK as u32),
        ("nonsense instead of records", |data_in| {
            replace_records(data_in, 32, vec![0xA5; 64]);
        }),
    ];
    for (name, change) in changes {
        let mut rig = Rig::new(true, Limits::default());
        rig.write(2, 1, 2).unwrap();
        rig.tamper = Some(Box::new(change));
        let error = rig.read(2, 2).expect_err(name);
        assert_eq!(error.kind, DeviceErrorKind::Medium, "{name}");
        let fetched = rig.do_now(Fetch { lba: Lba(2), count: 2 });
        assert_eq!(fetched.is_err(), name != "a piece at another place", "{name}: seen where nothing is opened");
        rig.tamper = None;
        assert_eq!(rig.read(2, 2).unwrap(), vec![1; 2 * BLOCK]);
    }
}

/// An older valid pair in place of the newest opens: that is rollback, which only freshness can tell. The threat model says
/// so; this test keeps the statement true.
#[test]
fn attack_target_rolls_back() {
    let mut rig = Rig::new(true, Limits::default());
    rig.write(2, 1, 1).unwrap();
    rig.write(2, 2, 1).unwrap();
    let older = rig.unit.versions[&2][1].clone();
    rig.unit.blocks.insert(2, older);
    assert_eq!(rig.read(2, 1).unwrap(), vec![1; BLOCK]);
}

/// A version in a newer format is not damaged: nobody may be talked into an older one by not understanding it.
#[test]
fn a_version_in_an_unknown_format_is_no_damage() {
    let mut rig = Rig::new(true, Limits::default());
    rig.write(2, 1, 1).unwrap();
    // Behind the store sequence.
    rig.tamper = Some(Box::new(|data_in| {
        let DataContent::Sealed { records, .. } = &data_in.content else { panic!("a sealed block") };
        let mut entries = records.as_bytes().to_vec();
        entries[8] += 1;
        replace_records(data_in, entries.len(), entries);
    }));
    let error = rig.do_now(ReadVersion::new(Lba(2), StoreSequence(0))).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Refused, "any but that of a damaged medium");
    assert!(error.message.contains("update strongroom"), "{error}");
}

/// A machine that was put back to a snapshot of its memory has lost its connections, and seals under other stamps from there on.
#[test]
fn a_lost_connection_ends_the_use_of_its_attach_id() {
    let rig = Rig::new(true, Limits::default());
    let attach_id = || {
        let Write { records: Some(records), .. } = rig.write_work(2, &[1; BLOCK], false) else { panic!("sealed") };
        records[8..24].to_vec()
    };
    let first = attach_id();
    assert_eq!(attach_id(), first);
    rig.engine.connection_lost();
    assert_ne!(attach_id(), first);
}

/// A difference of 9 bytes that CRC-64/NVME maps to zero: the generator polynomial, shifted to a byte's boundary.
fn crc_invisible_difference(data: &mut [u8]) {
    // Found by linearity instead of by constants: fix the first byte, solve the next 64 bits.
    let base = keyless_checksum(&vec![0; data.len()]);
    let effect = |bit: usize| {
        let mut probe = vec![0; data.len()];
        probe[bit / 8] ^= 1 << (bit % 8);
        keyless_checksum(&probe) ^ base
    };
    // Gaussian elimination over 65 vectors of 64 bits: some combination is zero.
    let mut rows: Vec<(u64, u128)> = Vec::new();
    for bit in 0..65 {
        let (mut vector, mut combination) = (effect(bit), 1_u128 << bit);
        for (other, with) in &rows {
            if vector ^ other < vector {
                vector ^= other;
                combination ^= with;
            }
        }
        if vector == 0 {
            for at in 0..65 {
                if combination >> at & 1 == 1 {
                    data[at / 8] ^= 1 << (at % 8);
                }
            }
            return;
        }
        rows.push((vector, combination));
        rows.sort_unstable_by_key(|row| std::cmp::Reverse(row.0));
    }
    unreachable!("65 vectors of 64 bits are dependent");
}

//! Proves that units decode as encoded, that no bytes from a medium can make the decoder panic, and pins the bytes.

use proptest::prelude::*;

use super::*;

const LAYOUT: Layout = Layout { segment_bytes: 4 << 20, segments: 100, block_bytes: 4096, item_bytes: 56 };
/// Of the golden unit at its place.
const CHECKSUM: u64 = 0x04c2_309b_c0c1_ee93;
const PLACE: LogAddress = LogAddress { store_id: StoreId([7; 16]), segment: 3, block: 10 };

fn header() -> UnitHeader {
    UnitHeader {
        record_blocks: 0,
        generation: 5,
        lsn: 20,
        prev_lsn: 19,
        open_id: 0xabcd,
        open_epoch: 2,
        durable_lsn: 18,
        next_sequence: 1000,
        data_bytes: 0,
        entries: 0,
        flags: flag::FIRST | flag::LAST,
        prev_segment: NO_SEGMENT,
        prev_end: 0,
        next_segment: 6,
    }
}

fn decode(records: &[u8]) -> Option<(UnitHeader, Vec<Entry<'_>>)> {
    let header = decode_header(&records[..RECORD_BLOCK], PLACE, &LAYOUT)?;
    decode_entries(records, &header, PLACE, &LAYOUT).ok().map(|entries| (header, entries))
}

#[test]
fn a_packed_unit_ends_where_its_record_blocks_are_full() {
    let fill = |mut unit: UnitBuilder| {
        let count = (0..).take_while(|&at| unit.push_block(0, at * 2, at, &[0; 56]).is_some()).count();
        (count, unit.blocks())
    };
    // 49 in the first record block, 50 in the second.
    assert_eq!(fill(UnitBuilder::new(LAYOUT, 256).packed(64)), (99, 101));
    assert_eq!(fill(UnitBuilder::new(LAYOUT, 256).packed(40)), (49, 50));
    assert_eq!(fill(UnitBuilder::new(LAYOUT, 80).packed(64)), (78, 80));
    assert_eq!(fill(UnitBuilder::new(LAYOUT, 64)), (62, 64));
}

#[test]
fn golden_bytes() {
    let mut unit = UnitBuilder::new(LAYOUT, 256);
    unit.push_block(0, 0x0102, 0x0304, &[0x11; 56]).unwrap();
    unit.push_block(0, 0x0103, 0x0305, &[0x22; 56]).unwrap();
    unit.push_hole((0, 0x0306), 0x0900, 0x10, &[], false).unwrap();
    let (header, records) = unit.finish(header(), PLACE);
    let mut golden = b"SRrb\0\0\0\x01".to_vec();
    golden.extend_from_slice(&records[8..16]); // the checksum, below
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 20]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0, 2]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 18, 0, 0, 0, 0, 0, 0, 0x03, 0xe8]);
    golden.extend_from_slice(&[0, 0, 0x20, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0xff, 0xff, 0xff, 0xff]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 19]);
    golden.resize(128, 0);
    golden.extend_from_slice(&[1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 3, 4]);
    golden.extend_from_slice(&[0x11; 56]);
    golden.extend_from_slice(&[0x22; 56]);
    golden.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 6]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x10]);
    golden.resize(4096, 0);
    assert_eq!(&records[..], golden);
    assert_eq!(be_u64(&records, 8), CHECKSUM);
    assert_eq!((header.record_blocks, header.data_bytes, header.entries), (1, 8192, 2));
}

/// What was written on a condition says what it was made from.
#[test]
fn golden_bytes_of_conditional_entries() {
    let mut unit = UnitBuilder::new(LAYOUT, 256);
    unit.push_block(0, 0x0102, 0x0304, &[0x11; 56]).unwrap();
    let (item_at, _) = unit.push_conditional((0, 0x0103, 0x0305), 0x0201, &[0x22; 56]).unwrap();
    unit.push_block(0, 0x0104, 0x0306, &[0x33; 56]).unwrap();
    unit.push_hole((0, 0x0307), 0x0900, 0x10, &[0x44; 56], true).unwrap();
    let (_, records) = unit.finish(header(), PLACE);
    let mut golden = records[..128 + 24 + 56].to_vec();
    golden.extend_from_slice(&[10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0, 3, 5]);
    golden.extend_from_slice(&[0x22; 56]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 2, 1]);
    golden.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0, 0, 0, 0, 3, 6]);
    golden.extend_from_slice(&[0x33; 56]);
    golden.extend_from_slice(&[11, 0, 0, 56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 7]);
    golden.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x10]);
    golden.extend_from_slice(&[0x44; 56]);
    golden.resize(4096, 0);
    assert_eq!(&records[..], golden);
    let (_, entries) = decode(&records).unwrap();
    let found: Vec<_> = entries
        .iter()
        .map(|entry| match *entry {
            Entry::Blocks { items, base, data_index, .. } => (items[0], base, u64::from(data_index)),
            Entry::Hole { is_conditional, count, .. } => (u8::from(is_conditional), None, count),
            _ => unreachable!("nothing else was written"),
        })
        .collect();
    assert_eq!(found, [(0x11, None, 0), (0x22, Some(0x0201), 1), (0x33, None, 2), (1, None, 0x10)]);
    let of = |item_at: u32, sequence| base_of(&records, item_at as usize, sequence, &LAYOUT);
    assert_eq!(of(item_at, 0x0305), Some(Base::Of(0x0201)));
    assert_eq!(of(128 + 24, 0x0304), Some(Base::Itself));
    // The item of another version, and no item at all.
    assert_eq!((of(item_at, 0x0304), of(128, 0x0304), of(4000, 0x0305)), (None, None, None));
}

/// A version that claims to be made from itself, or from a later one, would satisfy every replay.
#[test]
fn attack_a_base_that_is_not_older_is_no_entry() {
    for base in [0x0305, 0x0306, u64::MAX] {
        let mut unit = UnitBuilder::new(LAYOUT, 256);
        unit.push_conditional((0, 0x0103, 0x0305), base, &[0x22; 56]).unwrap();
        let (_, records) = unit.finish(header(), PLACE);
        assert!(decode(&records).is_none(), "{base}");
    }
}

#[test]
fn a_unit_knows_its_place() {
    let mut unit = UnitBuilder::new(LAYOUT, 256);
    unit.push_block(0, 1, 2, &[3; 56]).unwrap();
    let (_, records) = unit.finish(header(), PLACE);
    assert!(decode(&records).is_some());
    for other in [
        LogAddress { segment: 4, ..PLACE },
        LogAddress { block: 11, ..PLACE },
        LogAddress { store_id: StoreId([8; 16]), ..PLACE },
    ] {
        assert!(decode_header(&records, other, &LAYOUT).is_none());
    }
}

#[test]
fn a_unit_respects_its_limit() {
    let mut unit = UnitBuilder::new(LAYOUT, 10);
    let mut pushed = 0;
    while unit.push_block(0, pushed, pushed + 1, &[0; 56]).is_some() {
        pushed += 1;
        assert!(unit.blocks() <= 10);
    }
    assert_eq!((pushed, unit.blocks()), (9, 10));
    assert!(unit.push_hole((0, 100), 0, 1, &[0; 96], false).is_some(), "there is room in the record block");
}

proptest! {
    #[test]
    fn decodes_as_encoded(pushes in prop::collection::vec((0u64..1000, any::<bool>(), 1u64..50), 1..300)) {
        let mut unit = UnitBuilder::new(LAYOUT, 1000);
        let (mut sequence, mut blocks, mut holes) = (1, Vec::new(), Vec::new());
        for (lba, is_hole, count) in pushes {
            if is_hole {
                let Some(at) = unit.push_hole((7, sequence), lba, count, &[9; 56], false) else { break };
                holes.push((lba, count, sequence, at));
                sequence += 1;
                continue;
            }
            for lba in lba..lba + count {
                let item = [sequence as u8; 56];
                let Some((item_at, data_index)) = unit.push_block(7, lba, sequence, &item) else { break };
                blocks.push((lba, sequence, item_at, data_index));
                sequence += 1;
            }
        }
        prop_assume!(!unit.is_empty());
        let (header, records) = unit.finish(header(), PLACE);
        let (decoded, entries) = decode(&records).expect("just encoded");
        prop_assert_eq!(decoded, header);
        let (mut found_blocks, mut found_holes) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Blocks { branch, lba, sequence, items, count, item_at, data_index, .. } => {
                    prop_assert_eq!(branch, 7);
                    for (at, item) in (0..count).zip(items.chunks(56)) {
                        let sequence = sequence + u64::from(at);
                        prop_assert_eq!(item, &[sequence as u8; 56]);
                        prop_assert_eq!(&records[(item_at + at * 56) as usize..][..56], item);
                        found_blocks.push((lba + u64::from(at), sequence, item_at + at * 56, data_index + at));
                    }
                }
                Entry::Hole { branch, start, count, sequence, record, item_at, .. } => {
                    prop_assert_eq!((branch, record), (7, &[9; 56][..]));
                    found_holes.push((start, count, sequence, item_at));
                }
                _ => prop_assert!(false, "nothing else was written"),
            }
        }
        prop_assert_eq!(found_blocks, blocks);
        prop_assert_eq!(found_holes, holes);
    }

    #[test]
    fn operations_decode_as_encoded(pushes in prop::collection::vec((0u8..3, 0u64..4, 1u64..9), 1..300)) {
        let mut unit = UnitBuilder::new(LAYOUT, 40);
        let (mut counters, mut ids, mut left) = ([0; 4], Vec::new(), Vec::new());
        for (kind, of, count) in pushes {
            let attach_id = AttachId([of as u8; 16]);
            let fits = match kind {
                0 => unit.push_registration(of as u32, attach_id),
                1 => unit.push_block(of as u32, of, counters[0] + 1, &[1; 56]).is_some(),
                _ => unit.push_operation(of as u32, Stamp { attach_id, counter: counters[of as usize] }, count),
            };
            if !fits {
                break;
            }
            match kind {
                0 => ids.push(of),
                1 => {}
                _ => {
                    left.extend((counters[of as usize]..counters[of as usize] + count).map(|counter| (of, counter)));
                    // Now and then a gap.
                    counters[of as usize] += count + u64::from(count == 8);
                }
            }
        }
        prop_assume!(!unit.is_empty());
        let (_, records) = unit.finish(header(), PLACE);
        let (_, entries) = decode(&records).expect("just encoded");
        let (mut found_ids, mut found) = (Vec::new(), Vec::new());
        for entry in entries {
            match entry {
                Entry::Registration { branch, attach_id } => {
                    prop_assert_eq!(attach_id, AttachId([branch as u8; 16]));
                    found_ids.push(u64::from(branch));
                }
                Entry::Operation { branch, operation, count } => {
                    prop_assert_eq!(operation.attach_id, AttachId([branch as u8; 16]));
                    let of = u64::from(branch);
                    found.extend((operation.counter..operation.counter + count).map(|counter| (of, counter)));
                }
                Entry::Blocks { .. } => {}
                _ => prop_assert!(false, "nothing else was written"),
            }
        }
        found.sort_unstable();
        left.sort_unstable();
        prop_assert_eq!(found, left);
        prop_assert_eq!(found_ids, ids);
    }

    #[test]
    fn tables_decode_as_encoded(rows in 1usize..2000, limit in 2u32..20) {
        let bytes: Vec<u8> = (0..rows * TABLE_ROW).map(|at| at as u8).collect();
        let mut unit = UnitBuilder::new(LAYOUT, limit);
        let taken = unit.push_table(&bytes);
        prop_assert!(taken > 0);
        let (header, records) = unit.finish(header(), PLACE);
        prop_assert!(header.blocks() <= limit);
        let (_, entries) = decode(&records).expect("just encoded");
        let mut found = Vec::new();
        for entry in entries {
            let Entry::Table { rows } = entry else { panic!("only a table was written") };
            found.extend_from_slice(rows);
        }
        prop_assert_eq!(&found[..], &bytes[..taken * TABLE_ROW]);
    }

    /// The checksum keeps accidents out; behind it every field is still distrusted.
    #[test]
    fn no_bytes_make_the_decoder_panic(
        mut bytes in prop::collection::vec(any::<u8>(), RECORD_BLOCK),
        entries in prop::collection::vec((0u8..5, 0u16..200, any::<u64>()), 0..40),
        data_blocks in 0u32..300,
    ) {
        crate::fuzz::fuzz_unit(&bytes);
        let mut unit = UnitBuilder::new(LAYOUT, 256);
        unit.push_block(0, 1, 1, &[0; 56]).unwrap();
        let (mut header, good) = unit.finish(header(), PLACE);
        header.data_bytes = data_blocks * 4096;
        bytes[..UNIT_HEADER].copy_from_slice(&good[..UNIT_HEADER]);
        put_unit_header(&mut bytes, &header);
        let mut at = UNIT_HEADER;
        for (kind, count, number) in entries {
            if at + ENTRY_HEADER > RECORD_BLOCK { break }
            bytes[at] = kind;
            bytes[at + 2..at + 4].copy_from_slice(&count.to_be_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&number.to_be_bytes());
            at += ENTRY_HEADER + usize::from(count) * 8;
        }
        let sum = checksum(&bytes, PLACE);
        bytes[8..16].copy_from_slice(&sum.to_be_bytes());
        if let Some(header) = decode_header(&bytes, PLACE, &LAYOUT) {
            let _ = decode_entries(&bytes, &header, PLACE, &LAYOUT);
        }
    }
}

#[test]
fn unknown_heads_and_reserved_bytes_are_not_units() {
    let mut unit = UnitBuilder::new(LAYOUT, 256);
    unit.push_block(0, 1, 2, &[3; 56]).unwrap();
    let (_, records) = unit.finish(header(), PLACE);
    let whole = |at: usize, byte: u8| {
        let mut records = records.to_vec();
        records[at] = byte;
        let sum = checksum(&records, PLACE);
        records[8..16].copy_from_slice(&sum.to_be_bytes());
        decode(&records).is_some()
    };
    assert!(whole(HEAD_AT, 0));
    let entry_end = UNIT_HEADER + ENTRY_HEADER + 56;
    for at in [HEAD_AT, HEAD_AT + 1, UNIT_HEADER - 1, UNIT_HEADER + 1, entry_end + 1, RECORD_BLOCK - 1] {
        assert!(!whole(at, 1), "byte {at}");
    }
}

#[test]
fn counters_near_their_end_are_not_units() {
    let refused = |change: fn(&mut UnitHeader)| {
        let mut unit = UnitBuilder::new(LAYOUT, 256);
        unit.push_block(0, 1, 2, &[3; 56]).unwrap();
        let mut header = header();
        change(&mut header);
        assert!(decode(&unit.finish(header, PLACE).1).is_none(), "{header:?}");
    };
    refused(|header| header.lsn = u64::MAX);
    refused(|header| header.generation = u64::MAX);
    refused(|header| header.open_epoch = u64::MAX);
    refused(|header| header.next_sequence = u64::MAX - 5);
}

//! Holes against a model: in any order, in slices, between two maps, and walked in slices.

use proptest::prelude::*;

use super::*;

fn hole(start: u64, count: u64, sequence: u64) -> Hole {
    Hole::new(start, count, sequence, None, ItemPlace { segment: sequence as u32, item_at: 8 })
}

fn keep_all(_: u64, _: u64, _: u64) -> bool {
    false
}

fn sequences(map: &HoleMap) -> Vec<u64> {
    let mut all = Vec::new();
    map.for_each(|hole| all.push(hole.sequence));
    all.sort_unstable();
    all
}

/// What must hold of every map.
fn check(map: &HoleMap) {
    let mut pieces: BTreeMap<u64, u32> = BTreeMap::new();
    let mut end = 0;
    for (&start, fragment) in &map.fragments {
        assert!(start >= end && fragment.end > start, "fragments are apart and in order");
        end = fragment.end;
        *pieces.entry(fragment.sequence).or_default() += 1;
    }
    for (sequence, entry) in &map.entries {
        assert_eq!(pieces.remove(sequence).unwrap_or(0), entry.fragments, "hole {sequence}");
        assert!(entry.fragments > 0 || entry.inserting);
    }
    assert!(pieces.values().all(|&count| count == 1), "others are one fragment");
    assert_eq!((map.whole, map.len()), (pieces.len(), sequences(map).len()));
    assert_eq!(map.records, map.entries.values().filter(|entry| entry.record.is_some()).count());
}

proptest! {
    /// In any order in which holes arrive, as a whole or in slices, the newest covers each block, and exactly the useless ones are told as gone.
    #[test]
    fn the_newest_hole_covers(
        mut ranges in prop::collection::vec((0u64..60, 1u64..30), 1..25),
        seed in 0usize..1000,
        slice in 0u64..9,
    ) {
        let count = ranges.len();
        let mut map = HoleMap::default();
        let mut model = vec![0u64; 100];
        let mut gone = Vec::new();
        let mut order: Vec<usize> = (0..count).collect();
        order.rotate_left(seed % count);
        if seed % 2 == 0 { order.reverse(); }
        for &at in &order {
            let (start, len) = ranges[at];
            let sequence = at as u64 + 1;
            if slice == 0 {
                map.insert(hole(start, len, sequence), keep_all, |hole| gone.push(hole.sequence));
            } else {
                map.begin_insert(hole(start, len, sequence));
                for from in (start..start + len).step_by(slice as usize) {
                    let end = (from + slice).min(start + len);
                    map.take_range(sequence, from, end, &keep_all, &mut |hole| gone.push(hole.sequence));
                }
                map.finish_insert(sequence, |hole| gone.push(hole.sequence));
            }
            check(&map);
            for block in start..start + len {
                model[block as usize] = model[block as usize].max(sequence);
            }
        }
        ranges.clear();
        for (lba, &sequence) in model.iter().enumerate() {
            prop_assert_eq!(map.covering(lba as u64).map_or(0, |(.., sequence)| sequence), sequence);
        }
        for sequence in 1..=count as u64 {
            prop_assert_eq!(gone.contains(&sequence), !model.contains(&sequence));
        }
        let left: Vec<u64> = (1..=count as u64).filter(|sequence| model.contains(sequence)).collect();
        prop_assert_eq!(sequences(&map), left);
    }

    /// Holes of one map go to another, newer one, in pieces; each block has its newest hole all the time, in one of the two.
    #[test]
    fn holes_move_to_another_map_by_address(
        old in prop::collection::vec((0u64..60, 1u64..40), 1..12),
        new in prop::collection::vec((0u64..90, 1u64..9), 0..20),
        most in 1usize..5,
    ) {
        let (mut from, mut to, mut model) = (HoleMap::default(), HoleMap::default(), vec![0u64; 100]);
        let mut expected_gone: Vec<u64> = Vec::new();
        for (sequence, &(start, len)) in (1..).zip(&old) {
            from.insert(hole(start, len, sequence), keep_all, |hole| expected_gone.push(hole.sequence));
            model[start as usize..(start + len) as usize].fill(sequence);
        }
        for (sequence, &(start, len)) in (100..).zip(&new) {
            to.insert(hole(start, len, sequence), keep_all, |_| ());
            model[start as usize..(start + len) as usize].fill(sequence);
        }
        let mut gone = Vec::new();
        let mut steps = 0;
        while let Some(taken) = from.take_first(&to, most) {
            prop_assert!(taken.end > taken.start);
            to.put(taken, |hole| gone.push(hole.sequence));
            check(&from);
            check(&to);
            for (lba, &sequence) in model.iter().enumerate() {
                let at = |map: &HoleMap| map.covering(lba as u64).map_or(0, |(.., sequence)| sequence);
                let found = if at(&to) != 0 { at(&to) } else { at(&from) };
                prop_assert_eq!(found, sequence, "block {}", lba);
            }
            steps += 1;
            prop_assert!(steps < 1000);
        }
        prop_assert_eq!(from.len(), 0);
        let mut left: Vec<u64> = model.iter().copied().filter(|&sequence| sequence > 0).collect();
        left.sort_unstable();
        left.dedup();
        prop_assert_eq!(sequences(&to), left.clone());
        for sequence in (1..=old.len() as u64).filter(|sequence| !expected_gone.contains(sequence)) {
            prop_assert_eq!(gone.contains(&sequence), !left.contains(&sequence));
        }
    }

    /// A walk in slices of any size tells each hole once, as long as nothing changes.
    #[test]
    fn a_walk_in_slices_misses_nothing(
        ranges in prop::collection::vec((0u64..200, 1u64..20), 1..40),
        fuel in 1usize..7,
        at_once in 1usize..4,
    ) {
        let mut map = HoleMap::default();
        for (sequence, &(start, len)) in (1..).zip(&ranges) {
            map.insert(hole(start, len, sequence), keep_all, |_| ());
        }
        let (mut at, mut told) = (Some(HolesAt::START), Vec::new());
        while let Some(from) = at {
            let (mut left, mut fuel) = (at_once, fuel);
            at = map.visit(from, &mut fuel, |hole| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                told.push(hole.sequence);
                true
            });
        }
        told.sort_unstable();
        prop_assert_eq!(told, sequences(&map));
    }
}

#[test]
fn trimming_from_the_edges_ends_a_hole() {
    let mut map = HoleMap::default();
    map.insert(hole(10, 3, 5), keep_all, |_| panic!("nothing older"));
    map.trim(11, 9, keep_all, |_| panic!("the middle stays"));
    assert!(map.covering(11).is_some());
    map.trim(10, 5, keep_all, |_| panic!("not older than that"));
    assert!(map.covering(10).is_some());
    let mut gone = 0;
    for lba in [10, 12, 11] {
        map.trim(lba, 6, keep_all, |hole| gone += hole.sequence);
    }
    assert_eq!((gone, map.len()), (5, 0));
}

/// Blocks written over a hole in any order: what nothing needs goes with the last edge.
#[test]
fn trimming_takes_along_what_was_written_before() {
    for order in [[10, 12, 11], [11, 10, 12], [11, 12, 10], [12, 11, 10]] {
        let mut map = HoleMap::default();
        map.insert(hole(10, 3, 5), keep_all, |_| panic!("nothing older"));
        let (mut written, mut gone) = (Vec::new(), Vec::new());
        for lba in order {
            written.push(lba);
            let needless = |start: u64, end: u64, _| (start..end).all(|lba| written.contains(&lba));
            map.trim(lba, 6, needless, |hole| gone.push(hole));
        }
        assert_eq!((&gone[..], map.len()), (&[hole(10, 3, 5)][..], 0), "{order:?}");
    }
}

/// Every other block of a full volume is discarded: each discard leaves one fragment, and none of the hole that the volume began with.
#[test]
fn alternating_discards_take_one_fragment_each() {
    const BLOCKS: u64 = 20_000;
    let mut map = HoleMap::default();
    map.insert(hole(0, BLOCKS, 1), keep_all, |_| ());
    for (sequence, lba) in (2..).zip((0..BLOCKS).step_by(2)) {
        let needless = |start: u64, end: u64, sequence| sequence == 1 && end - start < 64;
        map.insert(hole(lba, 1, sequence), needless, |_| ());
    }
    let holes = BLOCKS / 2;
    assert!(map.len() as u64 <= holes + 1 && map.fragments.len() as u64 <= holes + 2, "{}", map.fragments.len());
    assert!(map.memory_bytes() <= 60 * holes, "{} bytes", map.memory_bytes());
    check(&map);
}

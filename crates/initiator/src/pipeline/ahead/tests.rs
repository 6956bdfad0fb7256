//! Proves that reads ahead are adaptive, that they are off for random access and bounded, and that what was fetched is never older than the
//! last write that had ended when a read was submitted.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SHIFT: u32 = 12;
const BLOCKS: u64 = 1 << 14;

fn read_of(token: u64, lba: u64, count: u64) -> Read {
    Read { token: Token(token), lba: Lba(lba), buffer: BufferMut::zeroed((count << SHIFT) as usize) }
}

/// A buffer whose blocks hold their numbers.
fn numbered(fetch: &Fetch) -> BufferMut {
    let mut data = BufferMut::zeroed((fetch.count << SHIFT) as usize);
    for (number, block) in (fetch.lba.0..).zip(data.chunks_exact_mut(1 << SHIFT)) {
        block[..8].copy_from_slice(&number.to_le_bytes());
    }
    data
}

fn is_numbered(read: &Read) -> bool {
    let blocks = read.buffer.chunks_exact(1 << SHIFT);
    (read.lba.0..).zip(blocks).all(|(number, block)| block[..8] == number.to_le_bytes())
}

#[test]
fn a_stream_is_fetched_further_and_further_ahead() {
    let mut ahead = ReadAhead::new(SHIFT, BLOCKS);
    ahead.set_bytes_max(8 << 20);
    let mut fetches = Vec::new();
    let (mut served, mut under_way_max) = (0, 0);
    for at in 0..200 {
        let before = fetches.len();
        match ahead.read(read_of(at, at * 16, 16), &mut fetches) {
            Served::Now(read) => {
                assert!(is_numbered(&read), "{at}");
                served += 1;
            }
            Served::Not(_) => assert!(at < 2, "{at}: the second read begins it"),
            Served::Later => panic!("all has arrived"),
        }
        let new: Vec<Fetch> = fetches[before..].to_vec();
        under_way_max = under_way_max.max(new.iter().map(|fetch| fetch.count << SHIFT).sum::<u64>());
        for fetch in new {
            assert!(ahead.arrived(fetch.id, Some(numbered(&fetch))).lost.is_empty());
        }
    }
    assert_eq!(served, 198);
    let last = fetches.last().unwrap();
    let window = (last.lba.0 + last.count - 200 * 16) << SHIFT;
    assert!((6 << 20..=8 << 20).contains(&window), "{window} bytes ahead");
    assert!(fetches.windows(2).all(|pair| pair[0].lba.0 + pair[0].count == pair[1].lba.0), "each block once");
}

#[test]
fn reads_at_random_fetch_nothing() {
    let mut ahead = ReadAhead::new(SHIFT, BLOCKS);
    let mut fetches = Vec::new();
    for at in 0..1000_u64 {
        let lba = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50;
        let served = ahead.read(read_of(at, lba & !7, 4), &mut fetches);
        assert!(matches!(served, Served::Not(_)));
    }
    assert!(fetches.is_empty(), "{fetches:?}");
}

#[test]
fn streams_side_by_side_share_what_may_be_fetched() {
    let mut ahead = ReadAhead::new(SHIFT, BLOCKS);
    ahead.set_bytes_max(4 << 20);
    let mut fetches = Vec::new();
    for at in 0..64 {
        for stream in 0..4 {
            drop(ahead.read(read_of(at * 4 + stream, stream * 4096 + at * 8, 8), &mut fetches));
            for fetch in fetches.drain(..) {
                ahead.arrived(fetch.id, Some(numbered(&fetch)));
            }
        }
    }
    let kept: u64 =
        ahead.streams.iter().flat_map(|stream| &stream.pieces).map(|piece| (piece.end - piece.start) << SHIFT).sum();
    assert!(kept <= 6 << 20, "{kept}");
    let ends: Vec<u64> = ahead.streams.iter().map(|stream| stream.fetched_until()).collect();
    assert_eq!(ends.len(), 4);
    // A fifth takes the place of one that nobody waits for, and the end of the volume is the end.
    drop(ahead.read(read_of(900, BLOCKS - 24, 8), &mut fetches));
    drop(ahead.read(read_of(901, BLOCKS - 16, 8), &mut fetches));
    assert!(fetches.iter().all(|fetch| fetch.lba.0 + fetch.count <= BLOCKS));
}

#[test]
fn a_read_waits_for_what_is_under_way_and_is_given_back_if_that_fails() {
    let mut ahead = ReadAhead::new(SHIFT, BLOCKS);
    let mut fetches = Vec::new();
    for at in 0..2 {
        assert!(matches!(ahead.read(read_of(at, at * 8, 8), &mut fetches), Served::Not(_)));
    }
    assert!(matches!(ahead.read(read_of(2, 16, 8), &mut fetches), Served::Later));
    assert!(matches!(ahead.read(read_of(3, 24, 8), &mut fetches), Served::Later));
    let first = fetches[0];
    let Settled { served, lost } = ahead.arrived(first.id, Some(numbered(&first)));
    assert!(lost.is_empty());
    assert_eq!(served.iter().map(|read| read.token.0).collect::<Vec<_>>(), [2, 3]);
    assert!(served.iter().all(is_numbered));
    assert!(matches!(ahead.read(read_of(4, 32, 64), &mut fetches), Served::Later | Served::Not(_)));
    let failed: Vec<u64> =
        fetches[1..].iter().flat_map(|fetch| ahead.arrived(fetch.id, None).lost).map(|read| read.token.0).collect();
    assert!(failed.len() <= 1 && ahead.waiting.is_empty(), "{failed:?}");
}

#[test]
fn what_was_fetched_before_the_end_of_a_write_is_of_no_use() {
    // What is fetched while a write is under way, and arrives after its end, is of no use.
    let mut ahead = ReadAhead::new(SHIFT, BLOCKS);
    let mut fetches = Vec::new();
    for at in 0..2 {
        drop(ahead.read(read_of(at, at * 8, 8), &mut fetches));
    }
    let early = fetches.clone();
    assert!(ahead.writing(Token(70), Lba(20), 1).lost.is_empty());
    assert!(ahead.written(Token(70)).lost.is_empty());
    for fetch in early {
        ahead.arrived(fetch.id, Some(numbered(&fetch)));
    }
    assert!(
        !matches!(ahead.read(read_of(2, 16, 8), &mut fetches), Served::Now(_)),
        "its data is from before the write"
    );
}

#[derive(Clone, Debug)]
enum DeviceAction {
    Read(u64),
    Write(u64, u64),
    /// The device does what it has, some of it.
    Work(usize),
    Jump(u64),
}

fn step() -> impl Strategy<Value = DeviceAction> {
    prop_oneof![
        6 => (1_u64..24).prop_map(DeviceAction::Read),
        2 => (0_u64..96, 1_u64..8).prop_map(|(lba, count)| DeviceAction::Write(lba, count)),
        6 => any::<usize>().prop_map(DeviceAction::Work),
        1 => (0_u64..64).prop_map(DeviceAction::Jump),
    ]
}

/// What the device has to do, and in how many steps: a write happens, then ends; a read or fetch looks, then arrives.
enum Job {
    Write { token: u64, lba: u64, count: u64, mark: u8, happened: bool },
    Fetch { fetch: Fetch, seen: Option<BufferMut> },
    Plain { read: Read, floor: Vec<u8>, looked: bool },
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// In every order in which reads, fetches and writes happen at the device and end: each read gets, of each block, the last write
    /// that had ended when it was submitted, or a later one.
    #[test]
    fn a_read_never_sees_what_was_before_the_last_write_that_ended(steps in proptest::collection::vec(step(), 1..120)) {
        let mut ahead = ReadAhead::new(SHIFT, 256);
        let mut contents = [0_u8; 256];
        // By block: the mark of the last write that has ended.
        let mut ended = [0_u8; 256];
        let mut jobs: Vec<Job> = Vec::new();
        let mut floors: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let (mut next, mut token, mut mark, mut answered, mut asked) = (0, 0, 0_u8, 0, 0);
        let check = |read: &Read, floor: &[u8]| {
            let blocks = read.buffer.chunks_exact(1 << SHIFT);
            blocks.zip(floor).all(|(block, floor)| block[0] >= *floor)
        };
        let drain = std::iter::repeat_n(DeviceAction::Work(0), 4000);
        for step in steps.into_iter().chain(drain) {
            let (mut plain, mut settled): (Vec<Read>, Vec<Settled>) = (Vec::new(), Vec::new());
            match step {
                DeviceAction::Jump(lba) => next = lba,
                DeviceAction::Read(count) => {
                    let count = count.min(256 - next);
                    if count == 0 {
                        next = 0;
                        continue;
                    }
                    token += 1;
                    asked += 1;
                    let read = read_of(token, next, count);
                    let floor = ended[next as usize..(next + count) as usize].to_vec();
                    next += count;
                    let mut fetches = Vec::new();
                    floors.insert(token, floor.clone());
                    match ahead.read(read, &mut fetches) {
                        Served::Now(read) => {
                            prop_assert!(check(&read, &floor));
                            answered += 1;
                        }
                        Served::Later => {}
                        Served::Not(read) => plain.push(read),
                    }
                    jobs.extend(fetches.into_iter().map(|fetch| Job::Fetch { fetch, seen: None }));
                }
                DeviceAction::Write(lba, count) if mark < 250 => {
                    // As the engine does it, writes of the same blocks go one after the other.
                    let overlaps = |job: &Job| matches!(job, Job::Write { lba: other, count: more, .. } if *other < lba + count && lba < other + more);
                    if jobs.iter().any(overlaps) {
                        continue;
                    }
                    (token, mark) = (token + 1, mark + 1);
                    settled.push(ahead.writing(Token(token), Lba(lba), count));
                    jobs.push(Job::Write { token, lba, count, mark, happened: false });
                }
                DeviceAction::Write(..) => {}
                DeviceAction::Work(_) if jobs.is_empty() => continue,
                DeviceAction::Work(which) => {
                    let at = which % jobs.len();
                    let look = |lba: u64, buffer: &mut BufferMut| {
                        for (number, block) in (lba..).zip(buffer.chunks_exact_mut(1 << SHIFT)) {
                            block[0] = contents[number as usize];
                        }
                    };
                    match &mut jobs[at] {
                        Job::Write { lba, count, mark, happened, .. } if !*happened => {
                            contents[*lba as usize..(*lba + *count) as usize].fill(*mark);
                            *happened = true;
                            continue;
                        }
                        Job::Fetch { fetch, seen } if seen.is_none() => {
                            let mut data = BufferMut::zeroed((fetch.count << SHIFT) as usize);
                            look(fetch.lba.0, &mut data);
                            *seen = Some(data);
                            continue;
                        }
                        Job::Plain { read, looked, .. } if !*looked => {
                            look(read.lba.0, &mut read.buffer);
                            *looked = true;
                            continue;
                        }
                        _ => {}
                    }
                    match jobs.swap_remove(at) {
                        Job::Write { token, lba, count, mark, .. } => {
                            // Before its end is told.
                            settled.push(ahead.written(Token(token)));
                            ended[lba as usize..(lba + count) as usize].fill(mark);
                        }
                        Job::Fetch { fetch, seen } => {
                            // Some fail.
                            settled.push(ahead.arrived(fetch.id, seen.filter(|_| which % 7 != 3)));
                        }
                        Job::Plain { read, floor, .. } => {
                            prop_assert!(check(&read, &floor));
                            answered += 1;
                        }
                    }
                }
            }
            for Settled { served, lost } in settled {
                for read in served {
                    prop_assert!(check(&read, &floors[&read.token.0]));
                    answered += 1;
                }
                plain.extend(lost);
            }
            jobs.extend(plain.into_iter().map(|read| {
                let floor = floors[&read.token.0].clone();
                Job::Plain { read, floor, looked: false }
            }));
        }
        prop_assert_eq!(answered, asked, "each is answered once");
    }
}

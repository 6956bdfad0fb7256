//! Proves that a session answers every command, no matter what is damaged on the wire at error recovery level 1, which connections are cut at
//! level 2, and whenever tasks are ended meanwhile: scripts from fixed seeds for the fuzz targets, which fail unless everything arrives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use strongroom_iscsi::fuzz::{fuzz_connections, fuzz_sequences};

use crate::pair::Random;

/// Commands, task management and PDUs that move or are damaged; nothing that is a loss without a sign, nor the end of the session.
fn script(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut script = vec![random.next() as u8 | 1];
    let steps = 40 + random.below(256) as usize;
    for _ in 0..steps {
        match random.below(20) {
            0..4 => script.extend([0, random.next() as u8, random.below(60) as u8]),
            4..8 => script.push(2),
            8..11 => script.push(4),
            11..13 => script.push(6),
            13..15 => script.push(8),
            15 => script.extend([10, random.next() as u8]),
            16 if random.one_in(3) => script.extend([11, random.next() as u8]),
            // A digest that fails, of a PDU either way.
            16..19 => script.extend([13, [4, 0x81][random.below(2) as usize], 0, 0]),
            _ => script.push([14, 6, 8][random.below(3) as usize]),
        }
    }
    script
}

/// Commands, task management, connections made and cut, time, and PDUs that move.
fn script_of_connections(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut script = vec![random.next() as u8 | 4];
    let steps = 100 + 2 * random.below(256) as usize;
    for _ in 0..steps {
        match random.below(32) {
            0..4 => script.extend([0, random.next() as u8, random.below(200) as u8]),
            4..18 => script.extend([3 + random.below(6) as u8, random.next() as u8]),
            18..21 => script.extend([9, random.next() as u8]),
            21..24 => script.push(10),
            24 if random.one_in(3) => script.extend([11, random.next() as u8]),
            25 if random.one_in(3) => script.extend([12, random.next() as u8]),
            26 => script.extend([13, random.below(60) as u8]),
            _ => script.push(14),
        }
    }
    script
}

#[allow(clippy::disallowed_methods)] // An Instant has no other beginning; it is never read again.
fn run_all(scripts: u64, script: fn(u64) -> Vec<u8>, fuzz: fn(Instant, &[u8])) {
    let now = Instant::now();
    for seed in 0..scripts {
        let script = script(seed);
        let outcome = catch_unwind(AssertUnwindSafe(|| fuzz(now, &script)));
        assert!(outcome.is_ok(), "seed {seed}: {script:?}");
    }
}

#[test]
fn every_command_is_answered_if_pdus_are_damaged() {
    run_all(1000, script, fuzz_sequences);
}

#[test]
fn every_command_is_answered_if_connections_are_cut() {
    run_all(1000, script_of_connections, fuzz_connections);
}

/// A read whose number is changed on its way into one near the end of 64 bits.
#[test]
#[allow(clippy::disallowed_methods)] // As above.
fn any_number_can_arrive() {
    fuzz_connections(Instant::now(), &[4, 14, 14, 0, 0, 2, 4, 0, 15, 0, 34, 0xff, 5, 0, 9, 0]);
}

//! Proves that a session answers every command, whatever is damaged on the way at error recovery level 1, whichever connections are cut at
//! level 2, and whenever tasks are ended meanwhile: scripts from fixed seeds for the fuzz targets, which fail unless everything arrives.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use strongroom_iscsi::fuzz::{fuzz_connections, fuzz_sequences};

/// Knuth's MMIX generator: the same scripts everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u8) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) % u64::from(end)) as u8
    }

    fn byte(&mut self) -> u8 {
        (self.below(16) << 4) | self.below(16)
    }
}

/// Commands, task management and PDUs that move or are damaged; nothing that is a loss without a sign, nor the end of the session.
fn script(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut script = vec![random.byte() | 1];
    let steps = 40 + usize::from(random.byte());
    for _ in 0..steps {
        match random.below(20) {
            0..4 => script.extend([0, random.byte(), random.below(60)]),
            4..8 => script.push(2),
            8..11 => script.push(4),
            11..13 => script.push(6),
            13..15 => script.push(8),
            15 => script.extend([10, random.byte()]),
            16 if random.below(3) == 0 => script.extend([11, random.byte()]),
            // A digest that fails, of a PDU either way.
            16..19 => script.extend([13, [4, 0x81][usize::from(random.below(2))], 0, 0]),
            _ => script.push([14, 6, 8][usize::from(random.below(3))]),
        }
    }
    script
}

/// Commands, task management, connections made and cut, time, and PDUs that move.
fn script_of_connections(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut script = vec![random.byte() | 4];
    let steps = 100 + 2 * usize::from(random.byte());
    for _ in 0..steps {
        match random.below(32) {
            0..4 => script.extend([0, random.byte(), random.below(200)]),
            4..18 => script.extend([3 + random.below(6), random.byte()]),
            18..21 => script.extend([9, random.byte()]),
            21..24 => script.push(10),
            24 if random.below(3) == 0 => script.extend([11, random.byte()]),
            25 if random.below(3) == 0 => script.extend([12, random.byte()]),
            26 => script.extend([13, random.below(60)]),
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
fn every_command_is_answered_whatever_is_damaged() {
    run_all(1000, script, fuzz_sequences);
}

#[test]
fn every_command_is_answered_whatever_is_cut() {
    run_all(1000, script_of_connections, fuzz_connections);
}

/// A read whose number is changed on its way into one near the end of 64 bits.
#[test]
#[allow(clippy::disallowed_methods)] // As above.
fn any_number_can_arrive() {
    fuzz_connections(Instant::now(), &[4, 14, 14, 0, 0, 2, 4, 0, 15, 0, 34, 0xff, 5, 0, 9, 0]);
}

//! Proves that both machines together keep a session of several connections whole: no matter what is cut, when, and which end notices
//! it, at error recovery level 2 every command is carried out once, completes once, and moves the right data. One seed, one run.
//!
//! What becomes of each command is asserted where the two are joined, as for the fuzz target.

use std::time::Duration;

use strongroom_iscsi::fuzz::Joined;
use strongroom_iscsi::{Lun, Offer};

use crate::pair::{Random, epoch};

/// Long enough for every retry, short enough for no ping.
const STEP: Duration = Duration::from_millis(1);

fn run(seed: u64, in_channel: bool, steps: u32) -> (u32, usize) {
    let mut random = Random::new(seed);
    let offer = Offer {
        recv_segment_bytes_max: 512 + random.below(4000) as u32,
        first_burst_bytes: 512 + random.below(4000) as u32,
        max_burst_bytes: 4512,
        initial_r2t: random.one_in(2),
        immediate_data: random.one_in(2),
        error_recovery_level: 2,
        connections_max: 1 + random.below(4) as u16,
        time2retain_s: 3600,
        ..Offer::default()
    };
    let mut joined = Joined::new(epoch(), offer, in_channel);
    let mut cuts = 0;
    for step in 0.. {
        let is_ending = step > steps;
        if is_ending && joined.unanswered() == 0 {
            break;
        }
        assert!(step < steps + 400_000, "seed {seed}: {} commands hang", joined.unanswered());
        let line = random.below(joined.lines().max(1) as u64) as usize;
        match random.below(64) {
            0..4 if !is_ending => joined.submit(Lun(0), random.one_in(2), random.below(20_000) as usize),
            4..8 => joined.complete(random.next() as usize),
            8 => joined.redial(),
            9 => joined.pass(STEP),
            10 if !is_ending && joined.lines() > 0 && random.one_in(8) => {
                joined.cut(line, random.one_in(2), true);
                cuts += 1;
            }
            _ => joined.carry(line, random.below(4) as u8),
        }
        joined.forget_lines();
        joined.look();
        assert_eq!(joined.unasked(), 0, "seed {seed}: the session was to go on, and nothing else was asked for");
    }
    (cuts, joined.carried_out())
}

#[test]
fn a_session_of_several_connections_keeps_its_commands() {
    let (mut cuts, mut commands) = (0, 0);
    for seed in 0..60 {
        let (cut, carried_out) = run(seed, seed % 2 == 1, 6000);
        (cuts, commands) = (cuts + cut, commands + carried_out);
    }
    assert!(cuts > 200 && commands > 2000, "too little happened to prove anything: {cuts} cuts, {commands} commands");
}

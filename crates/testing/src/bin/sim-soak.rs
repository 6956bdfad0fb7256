//! Simulates the store and the whole system from one seed after the other until it is stopped, or until a seed fails, which it prints.
//!
//! `sim-soak [FIRST-SEED]`; without one it begins where chance has it. `sim-soak FIRST-SEED COUNT PROFILE` runs that many seeds of the whole
//! system under one profile, such as `Everything`, and prints those that failed.

use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use strongroom_store::Planted;
use strongroom_testing::simulation::{
    Seen, failing, simulate, simulate_every_io, simulate_extremes, simulate_repair, simulate_stray,
};
use strongroom_testing::system;

/// How many seeds between two lines of progress.
const SEEDS_PER_LINE: u64 = 500;

fn main() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut first = arguments.first().map_or(now, |text| text.parse().expect("a seed is a number"));
    if let [_, count, profile] = arguments.as_slice() {
        return simulate_profile(first, count.parse().expect("a count is a number"), profile);
    }
    let seen = Mutex::new(Seen::default());
    let seen_system = Mutex::new(system::Seen::default());
    let started = Instant::now();
    let mut seeds_done = 0;
    loop {
        let seeds: Vec<u64> = (first..first + SEEDS_PER_LINE).collect();
        let failed = failing(&seeds, |seed| {
            let mut one = simulate(seed, Planted::default());
            one.merge(simulate_stray(seed));
            one.merge(simulate_extremes(seed));
            if seed.is_multiple_of(4) {
                one.merge(simulate_repair(seed));
            }
            if seed.is_multiple_of(100) {
                simulate_every_io(seed, Planted::default());
            }
            seen.lock().expect("nobody panics while holding it").merge(one);
        });
        stop_at_failures(&failed, "sim_store");
        let failed = failing(&seeds, |seed| {
            // Everything every time, and another profile that has more of one kind of trouble.
            let other = system::Profile::ALL[seed as usize % system::Profile::ALL.len()];
            for profile in [system::Profile::Everything, other] {
                let one = system::simulate(seed, profile, system::Planted::default());
                seen_system.lock().expect("nobody panics while holding it").merge(one);
            }
        });
        stop_at_failures(&failed, "sim_system");
        first += SEEDS_PER_LINE;
        seeds_done += SEEDS_PER_LINE;
        let seen = *seen.lock().expect("nobody panics while holding it");
        println!("{seeds_done} seeds in {} s, up to {}; {seen:?}", started.elapsed().as_secs(), first - 1);
        let seen_system = *seen_system.lock().expect("nobody panics while holding it");
        println!("{} histories of the whole system: {seen_system:?}", seen_system.histories);
    }
}

/// Runs some seeds of the whole system under one profile.
fn simulate_profile(first: u64, count: u64, profile: &str) {
    let mut profiles = system::Profile::ALL.into_iter().chain([system::Profile::Large]);
    let profile = profiles.find(|one| format!("{one:?}") == profile).expect("a profile's name");
    let seen = Mutex::new(system::Seen::default());
    let seeds: Vec<u64> = (first..first + count).collect();
    let failed = failing(&seeds, |seed| {
        let one = system::simulate(seed, profile, system::Planted::default());
        seen.lock().expect("nobody panics while holding it").merge(one);
    });
    println!("{profile:?}: {:?}", *seen.lock().expect("nobody panics while holding it"));
    stop_at_failures(&failed, "sim_system");
}

fn stop_at_failures(failed: &[u64], test: &str) {
    if let Some(seed) = failed.first() {
        eprintln!("failed: {failed:?}. Again: STRONGROOM_SEED={seed} cargo test -p strongroom-testing --test {test}");
        std::process::exit(1);
    }
}

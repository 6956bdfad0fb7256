//! Simulates the store and the whole system from one seed after the other until it is stopped, or until a seed fails, which it prints.
//!
//! `sim-soak [FIRST-SEED]` runs all simulations; the default seed is drawn from the clock. `sim-soak FIRST-SEED COUNT [PROFILE [TRANSPORT]]` runs
//! that many seeds of the whole system under one profile (`Everything`) over one transport (`Iscsi`, `Ecl`; by default each seed chooses its
//! own), and prints those that failed.

use std::process::exit;
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
    let mut first = arguments.first().map_or(now, |text| number(text));
    if let [_, count, which @ ..] = arguments.as_slice() {
        return simulate_profile(first, number(count), which);
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
            // A large volume takes as long as many small ones.
            let large = seed.is_multiple_of(100).then_some(system::Profile::Large);
            for profile in [system::Profile::Everything, other].into_iter().chain(large) {
                let transport = system::Transport::of_seed(seed);
                let one = system::simulate(seed, profile, transport, system::Planted::default());
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

/// An argument that must be a number. Explains the usage and exits if it is not.
fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| usage(&format!("'{text}' is not a number")))
}

/// The argument's value, by its name in the source.
fn named<T: std::fmt::Debug>(name: &str, what: &str, all: impl IntoIterator<Item = T>) -> T {
    let all: Vec<T> = all.into_iter().collect();
    let choices = format!("'{name}' is not a {what}; choose from {all:?}");
    all.into_iter().find(|one| format!("{one:?}") == name).unwrap_or_else(|| usage(&choices))
}

fn usage(problem: &str) -> ! {
    eprintln!("sim-soak: {problem}\nusage: sim-soak [FIRST-SEED [COUNT [PROFILE [TRANSPORT]]]]");
    exit(2);
}

/// Runs some seeds of the whole system under one profile, over one transport.
fn simulate_profile(first: u64, count: u64, which: &[String]) {
    let profiles = system::Profile::ALL.into_iter().chain([system::Profile::Large]);
    let profile = named(which.first().map_or("Everything", String::as_str), "profile", profiles);
    let transport = which.get(1).map(|name| named(name, "transport", system::Transport::ALL));
    let seen = Mutex::new(system::Seen::default());
    let seeds: Vec<u64> = (first..first + count).collect();
    let failed = failing(&seeds, |seed| {
        let transport = transport.unwrap_or(system::Transport::of_seed(seed));
        let one = system::simulate(seed, profile, transport, system::Planted::default());
        seen.lock().expect("nobody panics while holding it").merge(one);
    });
    println!("{profile:?}: {:?}", *seen.lock().expect("nobody panics while holding it"));
    stop_at_failures(&failed, "sim_system");
}

fn stop_at_failures(failed: &[u64], test: &str) {
    if let Some(seed) = failed.first() {
        eprintln!("failed: {failed:?}. Again: STRONGROOM_SEED={seed} cargo test -p strongroom-testing --test {test}");
        exit(1);
    }
}

//! Proves, from thousands of seeds, that the store loses nothing flushed and tears nothing, whatever a crashing disk does:
//! the store runs on a simulated disk, is cut off at a random I/O, reopened, and compared with a reference model. And
//! proves that the proof is worth something: each fault that is planted in the store must be found.
//!
//! One seed: `STRONGROOM_SEED=7 cargo test -p strongroom-testing --test sim_store`. More: `STRONGROOM_SEEDS=100000`.

use std::sync::Mutex;

use strongroom_store::{Planted, PlantedFault};
use strongroom_testing::simulation::{
    Seen, failing, first_failing, seeds, simulate, simulate_every_io, simulate_repair, simulate_stray,
    simulate_without_syncs,
};

#[test]
fn sim_nothing_flushed_is_lost_and_nothing_is_torn() {
    let seen = Mutex::new(Seen::default());
    let seeds = seeds(2500);
    let failed = failing(&seeds, |seed| {
        let one = simulate(seed, Planted::default());
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let everything = seen.cleaned_bytes > 0
        && seen.units_alongside > 0
        && seen.data_cache_hits > 0
        && seen.versions_evicted > 0
        && seen.versions_demanded > 0
        && seen.full > 0
        && seen.snapshots > 0
        && seen.checkpoints > 0
        && seen.from_checkpoints > 0
        && seen.refusals > 0
        && seen.failed_reads > 0
        && seen.checks > 0
        && seen.cut_offs_while_opening > 0;
    assert!(seeds.len() < 100 || everything, "the runs did not come across everything: {seen:?}");
}

#[test]
fn sim_a_crash_at_every_write_and_sync() {
    let ios = Mutex::new(0);
    let seeds = seeds(12);
    let failed = failing(&seeds, |seed| *ios.lock().unwrap() += simulate_every_io(seed, Planted::default()));
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    println!("{} crashes", ios.into_inner().unwrap());
}

#[test]
fn sim_a_write_that_goes_astray_is_never_served() {
    let seen = Mutex::new(Seen::default());
    let seeds = seeds(600);
    let failed = failing(&seeds, |seed| {
        let one = simulate_stray(seed);
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let everything = seen.strays > 0 && seen.bad_blocks > 0 && seen.refused_to_open > 0;
    assert!(seeds.len() < 100 || everything, "the runs did not come across everything: {seen:?}");
}

#[test]
fn sim_a_damaged_store_opens_after_its_repair() {
    let seen = Mutex::new(Seen::default());
    let seeds = seeds(200);
    let failed = failing(&seeds, |seed| {
        let one = simulate_repair(seed);
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    let everything = seen.repairs > 0 && seen.bad_blocks > 0;
    assert!(seeds.len() < 100 || everything, "the runs did not come across everything: {seen:?}");
}

/// A seed that cannot be repeated finds nothing that could be mended.
#[test]
fn sim_one_seed_is_one_history() {
    for seed in [3, 4, 5] {
        assert_eq!(simulate(seed, Planted::default()), simulate(seed, Planted::default()));
    }
}

/// The canary: if syncs do nothing, the simulation must notice.
#[test]
fn sim_a_disk_that_ignores_syncs_is_found_out() {
    let failed = failing(&(0..40).collect::<Vec<_>>(), simulate_without_syncs);
    assert!(failed.len() > 20, "only {} of 40 seeds noticed", failed.len());
}

/// How many seeds a fault may take to be found.
const SEEDS_TO_FIND: u64 = 400;

#[test]
fn sim_every_planted_fault_is_found() {
    for fault in PlantedFault::ALL {
        let seed = first_failing(SEEDS_TO_FIND, |seed| {
            simulate(seed, Planted::fault(fault));
        });
        println!("{fault:?}: seed {seed:?}");
        assert!(seed.is_some(), "{SEEDS_TO_FIND} seeds did not find that {fault:?} was planted");
    }
}

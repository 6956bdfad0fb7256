//! Proves, from thousands of seeds, that the store loses nothing flushed and tears nothing, on a disk that crashes:
//! the store runs on a simulated disk, is cut off at a random I/O, reopened, and compared with a reference model, with
//! snapshots, clones, rollbacks, growing, cleaning and sending to another store in between. And proves that the proof is
//! worth something: each fault that is planted in the store must be found.
//!
//! One seed: `STRONGROOM_SEED=7 cargo test -p strongroom-testing --test sim_store`. More: `STRONGROOM_SEEDS=100000`.

use std::sync::Mutex;

use strongroom_store::{Planted, PlantedFault};
use strongroom_testing::simulation::{
    SEEDS, Seen, SeenOfInitiators, failing, first_failing, seeds, simulate, simulate_every_io, simulate_extremes,
    simulate_initiators, simulate_repair, simulate_stray, simulate_without_syncs,
};

/// Runs all seeds; everything that is not in `never` must have happened, unless there are too few.
fn all_pass(seeds: &[u64], never: &[&str], run: impl Fn(u64) -> Seen + Sync) {
    let seen = Mutex::new(Seen::default());
    let failed = failing(seeds, |seed| {
        let one = run(seed);
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{} seeds: {seen:?}", seeds.len());
    let missing: Vec<_> = seen.never().into_iter().filter(|what| !never.contains(what)).collect();
    assert!(seeds.len() < 200 || missing.is_empty(), "the runs did not come across everything: {missing:?}");
}

#[test]
fn sim_nothing_flushed_is_lost_and_nothing_is_torn() {
    // Older versions make way on a host that stays full, which is rare here: store_full_host has that test.
    let elsewhere = ["strays", "refused_to_open", "bad_blocks", "repairs", "versions_made_way"];
    let never = [&elsewhere[..], &ERASES].concat();
    all_pass(&seeds(SEEDS), &never, |seed| simulate(seed, Planted::default()));
}

#[test]
fn sim_a_crash_at_every_write_and_sync() {
    let ios = Mutex::new(0);
    let failed = failing(&seeds(12), |seed| *ios.lock().unwrap() += simulate_every_io(seed, Planted::default()));
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    println!("{} crashes", ios.into_inner().unwrap());
}

/// What only comes with erases.
const ERASES: [&str; 3] = ["erases", "erases_resumed", "refused_while_erasing"];

/// Erases in between, and writes, discards and taking space that fail: still nothing is lost, and after an erase nothing is left.
#[test]
fn sim_an_erase_leaves_nothing_and_all_else_loses_nothing() {
    let elsewhere = ["strays", "refused_to_open", "bad_blocks", "repairs", "versions_made_way"];
    let never = [&elsewhere[..], &["damaged_tables", "damaged_superblocks"]].concat();
    all_pass(&seeds(300), &never, simulate_extremes);
}

/// What only comes with crashes, or with another store.
const CRASHES_AND_MORE: [&str; 16] = [
    "reopenings",
    "cut_offs_while_opening",
    "from_checkpoints",
    "versions_demanded",
    "changes_survived",
    "changes_lost",
    "rollbacks",
    "sent_resumed",
    "replica_crashes",
    "refusals",
    "full",
    "checks",
    "ios",
    "repairs",
    "damaged_tables",
    "damaged_superblocks",
];

#[test]
fn sim_a_write_that_goes_astray_is_never_served() {
    all_pass(&seeds(600), &[&CRASHES_AND_MORE[..], &ERASES].concat(), simulate_stray);
}

#[test]
fn sim_a_damaged_store_opens_after_its_repair() {
    let happens = ["repairs", "bad_blocks", "checks", "written_bytes", "snapshots", "clones", "grown"];
    let never: Vec<_> = Seen::default().never().into_iter().filter(|what| !happens.contains(what)).collect();
    all_pass(&seeds(200), &never, simulate_repair);
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

/// Several initiators, lost answers, crashes and orderly closes: every request is executed at most once, and every acknowledged one is
/// there when all are back, in its order.
#[test]
fn sim_requests_of_several_initiators_are_executed_once_and_in_order() {
    let seen = Mutex::new(SeenOfInitiators::default());
    let seeds = seeds(800);
    let failed = failing(&seeds, |seed| {
        let one = simulate_initiators(seed, Planted::default());
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{} seeds: {seen:?}", seeds.len());
    assert!(seeds.len() < 200 || seen.all(), "the runs did not come across everything: {seen:?}");
}

#[test]
fn sim_every_planted_fault_of_resends_is_found() {
    for fault in PlantedFault::RESENDS {
        let seed = first_failing(SEEDS_TO_FIND, |seed| {
            simulate_initiators(seed, Planted::fault(fault));
        });
        println!("{fault:?}: seed {seed:?}");
        assert!(seed.is_some(), "{SEEDS_TO_FIND} seeds did not find that {fault:?} was planted");
    }
}

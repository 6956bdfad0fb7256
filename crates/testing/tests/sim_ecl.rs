//! Proves, from one seed after the other, that an association keeps its promises over a network that loses, repeats, delays, damages and
//! cuts off packets, while its ends crash: no wrong bytes, no stale data, nothing executed twice, nothing that hangs. And proves that the
//! proof is worth something: each fault that is planted must be found.
//!
//! One seed: `STRONGROOM_SEED=7 cargo test -p strongroom-testing --test sim_ecl`.

#[path = "sim_ecl/model.rs"]
mod model;
#[path = "sim_ecl/network.rs"]
mod network;
#[path = "sim_ecl/replays.rs"]
mod replays;
#[path = "sim_ecl/world.rs"]
mod world;

use std::sync::Mutex;

use strongroom_ecl::{Planted, PlantedFault};
use strongroom_testing::simulation::{failing, first_failing, seeds};

use crate::world::{Profile, Seen, simulate};

/// Seeds of each profile in `make test`.
const SEEDS: u64 = 200;
/// A planted fault must be found by this many.
const SEEDS_TO_FIND: u64 = 200;

fn all_pass(profile: Profile, count: u64) -> Seen {
    let (seen, seeds) = (Mutex::new(Seen::default()), seeds(count));
    let failed = failing(&seeds, |seed| {
        let one = simulate(seed, profile, Planted::default());
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "{profile:?}, failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{profile:?}: {seen:?}");
    seen
}

fn is_found(fault: PlantedFault, profile: Profile) {
    let seed = first_failing(SEEDS_TO_FIND, |seed| {
        simulate(seed, profile, Planted::fault(fault));
    });
    assert!(seed.is_some(), "{SEEDS_TO_FIND} seeds did not find that {fault:?} was planted");
}

#[test]
fn sim_ecl_keeps_its_promises() {
    let seen = all_pass(Profile::Everything, SEEDS);
    assert!(seen.completed > 0 && seen.lost > 0 && seen.damaged > 0 && seen.rekeys > 0, "{seen:?}");
    assert!(seen.checksum > 0 && seen.not_authentic > 0 && seen.replayed > 0 && seen.stale > 0, "{seen:?}");
}

#[test]
fn sim_ecl_survives_loss() {
    let seen = all_pass(Profile::Loss, SEEDS);
    assert!(seen.repaired > SEEDS, "{seen:?}");
}

#[test]
fn sim_ecl_executes_nothing_twice() {
    let seen = all_pass(Profile::Repeats, SEEDS);
    assert!(seen.replayed > 0, "{seen:?}");
}

#[test]
fn sim_ecl_survives_crashes() {
    let seen = all_pass(Profile::Crashes, SEEDS);
    assert!(seen.crashes > SEEDS, "{seen:?}");
}

#[test]
fn sim_ecl_follows_the_path() {
    let seen = all_pass(Profile::Mtu, SEEDS);
    assert!(seen.too_long > 0 && seen.black_holes > 0 && seen.copied_bytes > 0 && seen.placed_bytes > 0, "{seen:?}");
    assert_eq!(seen.reductions, seen.black_holes, "each is told once");
}

#[test]
fn sim_ecl_finds_a_tag_without_generation() {
    is_found(PlantedFault::TagWithoutGeneration, Profile::Repeats);
}

#[test]
fn sim_ecl_finds_an_acknowledgement_before_the_checksum() {
    is_found(PlantedFault::AcknowledgedUnchecked, Profile::Everything);
}

#[test]
fn sim_ecl_finds_a_lost_credit() {
    is_found(PlantedFault::CreditLost, Profile::Loss);
}

#[test]
fn sim_ecl_finds_a_repeated_command() {
    is_found(PlantedFault::CommandRepeated, Profile::Repeats);
}

#[test]
fn sim_ecl_finds_a_window_that_is_one_too_wide() {
    let sound = replays::replay_at_the_edge(Planted::default());
    assert_eq!(sound.accepted_twice, 0, "{sound:?}");
    assert!(sound.replayed > 100, "{sound:?}");
    let found = replays::replay_at_the_edge(Planted::fault(PlantedFault::WindowTooWide));
    assert!(found.accepted_twice > 0, "not found: {found:?}");
}

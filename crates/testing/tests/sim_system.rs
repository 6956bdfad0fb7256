//! Proves, from one seed after the other, that the whole system keeps its promise: each block is linearizable over all initiators,
//! connections, resends, replays, orderly closes and crashes, but for unflushed writes that a crash takes. And proves that the proof is
//! worth something: each fault that is planted must be found.
//!
//! One seed: `STRONGROOM_SEED=7 cargo test -p strongroom-testing --test sim_system`.

use std::sync::Mutex;

use strongroom_ecl::PlantedFault as EclFault;
use strongroom_store::PlantedFault;
use strongroom_testing::simulation::{failing, first_failing, seeds};
use strongroom_testing::system::{Planted, Profile, SEEDS, Seen, Transport, simulate};

/// Seeds of the mix of everything over ECL in `make test`; other profiles have fewer.
const ECL_SEEDS: u64 = 200;

/// Runs all seeds of a profile over iSCSI.
fn all_pass(profile: Profile, seeds: &[u64]) -> Seen {
    all_pass_over(Transport::Iscsi, profile, seeds)
}

fn all_pass_over(transport: Transport, profile: Profile, seeds: &[u64]) -> Seen {
    let seen = Mutex::new(Seen::default());
    let failed = failing(seeds, |seed| {
        let one = simulate(seed, profile, transport, Planted::default());
        seen.lock().unwrap().merge(one);
    });
    assert!(failed.is_empty(), "{profile:?} over {transport:?}, failing seeds: {failed:?}");
    let seen = seen.into_inner().unwrap();
    println!("{profile:?} over {transport:?}: {seen:?}");
    assert!(seen.undecided * 20 <= seen.registers, "too many histories are not decided");
    seen
}

#[test]
fn sim_system_every_block_is_linearizable() {
    let seeds = seeds(SEEDS);
    let seen = all_pass(Profile::Everything, &seeds);
    let not_here = ["undecided", "refused_openings", "partitions", "leases_passed_on", "leases_taken_over"];
    // Only ECL has datagrams.
    let is_here = |what: &&str| !not_here.contains(what) && !what.starts_with("datagrams");
    let missing: Vec<_> = seen.never().into_iter().filter(is_here).collect();
    assert!(seeds.len() < 100 || missing.is_empty(), "the runs did not come across everything: {missing:?}");
}

/// Connections that are cut lose answers, so that requests are sent again.
#[test]
fn sim_system_a_resend_is_executed_at_most_once() {
    all_pass(Profile::Cuts, &seeds(300));
}

/// Nothing is replayed to a store that was closed in order.
#[test]
fn sim_system_an_orderly_close_takes_nothing_and_changes_nothing() {
    all_pass(Profile::Closes, &seeds(300));
}

/// After a crash replays of several initiators restore what was there, in its order, and undo nothing.
#[test]
fn sim_system_replays_after_a_crash_restore_the_order() {
    all_pass(Profile::Crashes, &seeds(300));
    all_pass(Profile::Flushes, &seeds(100));
}

/// What rots on the disk is never read as anything else: it is an error that names the block, or the right data. Crashes come between.
#[test]
fn sim_system_rotten_blocks_are_errors_and_never_wrong_data() {
    let seen = all_pass(Profile::Rot, &seeds(200));
    assert!(seen.histories < 100 || seen.rotten_blocks > 0 && seen.failed_reads > 0, "{seen:?}");
}

/// Bits that flip in what the store needs to find blocks: it says so, or finds them all the same; it never shows older data.
#[test]
fn sim_system_a_store_damaged_anywhere_is_refused_or_right() {
    let seen = all_pass(Profile::RotAnywhere, &seeds(200));
    assert!(seen.histories < 100 || seen.refused_openings > 0 && seen.failed_reads > 0, "{seen:?}");
}

/// Whom a reservation keeps out writes nothing from then on, over crashes, restarts and resends.
#[test]
fn sim_system_who_is_kept_out_by_a_reservation_writes_nothing() {
    let seen = all_pass(Profile::Reservations, &seeds(300));
    assert!(seen.histories < 100 || seen.fences > 0, "{seen:?}");
}

/// One writer at a time: a second one is refused, waits until the first is gone, or takes over; the one that was taken over from writes nothing
/// from then on, over lost connections, restarts and crashes.
#[test]
fn sim_system_one_writer_has_the_exclusive_lease() {
    let seen = all_pass(Profile::Leases, &seeds(150));
    assert!(seen.histories < 100 || seen.leases_passed_on > 0 && seen.leases_taken_over > 0, "{seen:?}");
}

/// What was sealed under an epoch that is over is sealed again, and executed once.
#[test]
fn sim_system_key_epochs_change_nothing_that_is_written() {
    all_pass(Profile::Keys, &seeds(300));
}

/// Two initiators that each write half of a block lose nothing of each other's.
#[test]
fn sim_system_halves_of_blocks_are_linearizable() {
    all_pass(Profile::Halves, &seeds(200));
    all_pass(Profile::ReplayedHalves, &seeds(100));
}

/// Where nothing goes wrong, no request waits until a ping happens to move something.
#[test]
fn sim_system_a_request_waits_for_no_ping() {
    for transport in Transport::ALL {
        let seen = all_pass_over(transport, Profile::Clones, &seeds(40));
        assert!(seen.longest_wait_us < 200_000, "{seen:?}");
    }
}

/// The same over ECL, whose packets are lost, late, out of order, repeated and damaged, and whose login's connection is cut, which ends the
/// association.
#[test]
fn sim_system_over_ecl_every_block_is_linearizable() {
    let seen = all_pass_over(Transport::Ecl, Profile::Everything, &seeds(ECL_SEEDS));
    let datagrams = [seen.datagrams_lost, seen.datagrams_repeated, seen.datagrams_damaged, seen.datagrams_repaired];
    assert!(seen.histories < 100 || seen.cuts > 0, "{seen:?}");
    assert!(seen.histories < 100 || datagrams.iter().all(|count| *count > 0), "{seen:?}");
}

#[test]
fn sim_system_over_ecl_a_resend_is_executed_at_most_once() {
    all_pass_over(Transport::Ecl, Profile::Cuts, &seeds(ECL_SEEDS / 3));
    all_pass_over(Transport::Ecl, Profile::Closes, &seeds(ECL_SEEDS / 3));
}

#[test]
fn sim_system_over_ecl_replays_after_a_crash_restore_the_order() {
    all_pass_over(Transport::Ecl, Profile::Crashes, &seeds(ECL_SEEDS / 3));
    all_pass_over(Transport::Ecl, Profile::Flushes, &seeds(ECL_SEEDS / 5));
}

#[test]
fn sim_system_over_ecl_who_is_kept_out_writes_nothing() {
    let seen = all_pass_over(Transport::Ecl, Profile::Reservations, &seeds(ECL_SEEDS / 3));
    assert!(seen.histories < 50 || seen.fences > 0, "{seen:?}");
    all_pass_over(Transport::Ecl, Profile::Leases, &seeds(ECL_SEEDS / 10));
}

#[test]
fn sim_system_over_ecl_key_epochs_change_nothing_that_is_written() {
    all_pass_over(Transport::Ecl, Profile::Keys, &seeds(ECL_SEEDS / 3));
}

/// How many seeds a fault may take to be found.
const SEEDS_TO_FIND: u64 = 400;

fn finds(profile: Profile, planted: Planted) {
    finds_over(Transport::Iscsi, profile, planted);
}

fn finds_over(transport: Transport, profile: Profile, planted: Planted) {
    let seed = first_failing(SEEDS_TO_FIND, |seed| {
        simulate(seed, profile, transport, planted);
    });
    println!("{profile:?} over {transport:?}, {planted:?}: seed {seed:?}");
    assert!(seed.is_some(), "{SEEDS_TO_FIND} seeds did not find {planted:?}");
}

#[test]
fn sim_system_finds_a_short_write_resumed_at_the_wrong_offset() {
    finds(Profile::OneInitiator, Planted { wrong_resumption: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_a_missing_directory_sync() {
    finds(Profile::OneInitiator, Planted { directory_not_synced: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_a_flush_mark_taken_when_the_response_arrives() {
    finds(Profile::Flushes, Planted { late_flush_marks: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_a_constant_incarnation() {
    finds(Profile::Crashes, in_the_store(PlantedFault::ConstantIncarnation));
}

#[test]
fn sim_system_finds_any_instead_of_all_in_the_repeat_check() {
    finds(Profile::Everything, in_the_store(PlantedFault::AnyForAll));
}

#[test]
fn sim_system_finds_a_stale_replay() {
    finds(Profile::Crashes, in_the_store(PlantedFault::StaleReplay));
}

/// What was written after a crash on the condition of an older version does not contain what is replayed.
#[test]
fn sim_system_finds_a_replay_superseded_by_what_does_not_contain_it() {
    finds(Profile::ReplayedHalves, in_the_store(PlantedFault::BaseIgnored));
}

#[test]
fn sim_system_finds_a_resend_executed_twice() {
    finds(Profile::Cuts, in_the_store(PlantedFault::WindowIgnored));
}

fn in_the_store(fault: PlantedFault) -> Planted {
    Planted { store: strongroom_store::Planted::fault(fault), ..Planted::default() }
}

#[test]
fn sim_system_finds_a_completion_delivered_to_another_view() {
    finds(Profile::Clones, in_the_store(PlantedFault::CompletionToAnotherView));
}

/// The login that replaces a session waits for ever for the session that has left, or a command is never answered.
#[test]
fn sim_system_finds_a_lost_message_between_workers() {
    finds(Profile::Cuts, Planted { loses_messages: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_a_response_routed_to_another_session() {
    finds(Profile::Cuts, Planted { exchanges_responses: true, ..Planted::default() });
}

/// A seed that cannot be repeated finds nothing that could be mended.
#[test]
fn sim_system_one_seed_is_one_history() {
    for seed in [3, 4, 5, 6] {
        for transport in Transport::ALL {
            let run = || simulate(seed, Profile::Everything, transport, Planted::default());
            assert_eq!(run(), run());
        }
    }
}

#[test]
fn sim_system_finds_an_older_version_read_instead_of_a_rotten_one() {
    finds(Profile::Rot, in_the_store(PlantedFault::OlderForDamaged));
}

#[test]
fn sim_system_finds_a_snapshot_that_changes() {
    finds(Profile::Clones, in_the_store(PlantedFault::SnapshotFollowsVolume));
}

#[test]
fn sim_system_finds_part_of_a_block_written_unconditionally() {
    finds(Profile::Halves, in_the_store(PlantedFault::ConditionIgnored));
}

#[test]
fn sim_system_finds_a_reservation_lost_by_a_crash() {
    finds(Profile::Reservations, Planted { forgets_reservations: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_a_shared_lease_lost_by_a_crash() {
    finds(Profile::Crashes, Planted { forgets_leases: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_an_exclusive_lease_lost_by_a_crash() {
    finds(Profile::Leases, Planted { forgets_leases: true, ..Planted::default() });
}

#[test]
fn sim_system_finds_a_request_sealed_again_as_a_new_one() {
    finds(Profile::Keys, Planted { forgets_operations: true, ..Planted::default() });
}

/// Work in proportion to the volume is done in slices: every history has a limit of steps of one call, and a large volume keeps to it.
#[test]
fn sim_system_finds_unsliced_work() {
    let seen = simulate(1, Profile::Large, Transport::Iscsi, Planted::default());
    println!("{seen:?}");
    let unsliced = || simulate(1, Profile::Large, Transport::Iscsi, in_the_store(PlantedFault::UnslicedHiding));
    let panic = std::panic::catch_unwind(unsliced).expect_err("it took more steps than it may");
    let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(message.contains("steps in the store"), "{message}");
}

fn in_associations(fault: EclFault) -> Planted {
    Planted { ecl: strongroom_ecl::Planted::fault(fault), ..Planted::default() }
}

#[test]
fn sim_system_over_ecl_finds_a_tag_without_generation() {
    finds_over(Transport::Ecl, Profile::Datagrams, in_associations(EclFault::TagWithoutGeneration));
}

#[test]
fn sim_system_over_ecl_finds_an_acknowledgement_before_the_checksum() {
    finds_over(Transport::Ecl, Profile::Datagrams, in_associations(EclFault::AcknowledgedUnchecked));
}

#[test]
fn sim_system_over_ecl_finds_a_lost_credit() {
    finds_over(Transport::Ecl, Profile::Datagrams, in_associations(EclFault::CreditLost));
}

#[test]
fn sim_system_over_ecl_finds_a_repeated_command() {
    finds_over(Transport::Ecl, Profile::Datagrams, in_associations(EclFault::CommandRepeated));
}

/// Each packet comes again when it is just too old for the replay window: it must not be used again.
#[test]
fn sim_system_over_ecl_finds_a_replay_window_that_is_one_too_wide() {
    let sound = simulate(1, Profile::Replays, Transport::Ecl, Planted::default());
    assert!(sound.datagrams_repeated > 100, "{sound:?}");
    let replayed = || simulate(1, Profile::Replays, Transport::Ecl, in_associations(EclFault::WindowTooWide));
    let panic = std::panic::catch_unwind(replayed).expect_err("a packet was used twice");
    let message = panic.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(message.contains("used twice"), "{message}");
}

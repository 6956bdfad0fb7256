//! The simulation: the store on a simulated disk, from one seed, compared with the reference model after every reopening.
//!
//! [`simulate`] does everything at once, at random; [`simulate_every_io`] cuts one history off at each of its I/Os;
//! [`simulate_extremes`] erases the volume now and then; [`simulate_initiators`] has several initiators resend and replay; [`simulate_stray`] lets the disk lie. All panic when the store is wrong. Absent: what counts as wrong, which is the model's.

mod answers;
mod asked;
mod conditions;
mod damage;
mod disk_conditions;
mod erase;
mod erases;
mod expectation;
mod initiators;
mod inspection;
mod replica;
mod replica_store;
mod requests;
mod run;
mod seen;
mod snapshot_tree;
mod store_settings;
mod views;
mod volume;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

pub use initiators::{SeenOfInitiators, simulate_initiators};
use run::Run;
pub use seen::Seen;
use strongroom_store::Planted;

use crate::{Faults, Stray};

/// Runs one seed: some openings, each with requests, faults and a crash or an orderly end.
///
/// # Panics
/// If the store loses, tears or makes up anything.
pub fn simulate(seed: u64, planted: Planted) -> Seen {
    let mut run = Run::new(seed, planted);
    run.format();
    run.choose_what_goes_on();
    let rounds = 1 + run.random.below(6);
    for _ in 0..rounds {
        let steps = 20 + run.random.below(200);
        run.round(steps);
    }
    run.last_look();
    run.seen
}

/// As [`simulate`], and the volume is erased at times, plainly or by key, and writes, discards and taking space ahead of need fail too.
///
/// # Panics
/// If the store loses, tears or makes up anything, or anything is left after an erase.
pub fn simulate_extremes(seed: u64) -> Seen {
    let mut run = Run::new(seed, Planted::default());
    run.format();
    run.choose_what_goes_on();
    run.goes_to_extremes();
    let rounds = 2 + run.random.below(6);
    for _ in 0..rounds {
        let steps = 20 + run.random.below(200);
        run.round(steps);
    }
    run.last_look();
    run.seen
}

/// As [`simulate`], on a disk whose syncs do nothing: the canary.
///
/// # Panics
/// Always, one hopes.
pub fn simulate_without_syncs(seed: u64) {
    let mut run = Run::new(seed, Planted::default());
    run.format();
    run.conditions.harmless = Faults { syncs_do_nothing: true, ..Faults::default() };
    run.disk.set_faults(run.conditions.harmless);
    for _ in 0..6 {
        run.round(100);
    }
}

/// One short history, cut off at its first I/O, at its second, and so on; returns how many I/Os it has.
///
/// # Panics
/// If the store loses, tears or makes up anything.
pub fn simulate_every_io(seed: u64, planted: Planted) -> u64 {
    for ios in 0.. {
        let mut run = Run::new(seed, planted);
        run.format();
        run.choose_what_goes_on();
        run.disk.stir(ios);
        if !run.cut_off_at(ios) {
            return ios;
        }
    }
    unreachable!("a history ends")
}

/// One history in which one write goes astray in silence: the store may refuse to open and may answer with errors, but
/// serves nothing wrong, and nothing older than what the disk still tells of.
///
/// # Panics
/// If it does.
pub fn simulate_stray(seed: u64) -> Seen {
    let mut run = Run::new(seed, Planted::default());
    run.format();
    run.choose_what_goes_on();
    run.conditions.lies = true;
    let stray = if run.random.once_in(2) { Stray::Misdirected } else { Stray::Lost };
    run.with_stray(stray);
    run.seen
}

/// One history after which some of what the disk holds is destroyed: the store is repaired, with consent, and serves nothing
/// that was never there.
///
/// # Panics
/// If it does, or does not open after its repair.
pub fn simulate_repair(seed: u64) -> Seen {
    let mut run = Run::new(seed, Planted::default());
    run.format();
    run.choose_what_goes_on();
    run.conditions.lies = true;
    run.with_damage();
    run.seen
}

/// How many seeds [`simulate`] runs in `make test`.
pub const SEEDS: u64 = 2500;

/// The seeds to run: `STRONGROOM_SEED` alone, or `count`. `STRONGROOM_SEEDS` says how many for [`SEEDS`], others in proportion.
pub fn seeds(count: u64) -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("STRONGROOM_SEED"), number("STRONGROOM_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(seeds)) => (0..(seeds * count).div_ceil(SEEDS)).collect(),
        (None, None) => (0..count).collect(),
    }
}

/// The first seed that fails, of this many; `None` if none does.
pub fn first_failing(count: u64, test: impl Fn(u64) + Sync) -> Option<u64> {
    let step = 8;
    (0..count.div_ceil(step)).find_map(|at| {
        let seeds: Vec<u64> = (at * step..(at + 1) * step).collect();
        failing_among(&seeds, &test).first().copied()
    })
}

/// Runs every seed on all cores; returns those that failed, which it also prints.
pub fn failing(seeds: &[u64], test: impl Fn(u64) + Sync) -> Vec<u64> {
    failing_among(seeds, &|seed| {
        let result = catch_unwind(AssertUnwindSafe(|| test(seed)));
        if let Err(panic) = result {
            eprintln!("seed {seed} failed: STRONGROOM_SEED={seed} runs it alone");
            resume_unwind(panic);
        }
    })
}

fn failing_among(seeds: &[u64], test: &(impl Fn(u64) + Sync)) -> Vec<u64> {
    let failed = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let failed = &failed;
            scope.spawn(move || {
                for &seed in seeds.iter().skip(thread).step_by(threads) {
                    if catch_unwind(AssertUnwindSafe(|| test(seed))).is_err() {
                        failed.lock().expect("nobody panics while holding it").push(seed);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("nobody panics while holding it");
    failed.sort_unstable();
    failed
}

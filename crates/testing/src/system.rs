//! The whole system from one seed: initiators, channels, sessions, logical units and the store on the simulated disk, in virtual time.
//!
//! ```text
//! client     requests, reconnects      strongroom_initiator::machine: engine, sealing, nexus, session, channel
//!    |  bytes, by way of `network`: late, in pieces, cut, damaged, half-open
//! target     connections, logins       iscsi::target, channel
//!    |  PDUs
//! workers    sessions, units, routing  strongroom_target::machine; messages between workers arrive late, in their order
//!    |  operations
//! store      on the simulated disk, which loses what was not synced
//! ```
//!
//! The requests of initiators and their answers are a [`history::History`]; the [`checker`] decides whether it can be explained, and trusts
//! nobody. Absent: sockets and threads, TLS (both ends of a connection are given the same keys), the initiator's driver, the catalogue and
//! the access rules of the target; what they do around the machines is done here as simply as it can be. All units are sealed, so no
//! unit copies blocks from another one.

pub mod checker;
mod client;
mod clock;
mod content;
mod contents;
mod fencing;
pub mod history;
mod initiators;
mod keys;
mod layout;
mod leases;
mod lifecycle;
mod liveness;
mod network;
mod profile;
mod seen;
mod target;
mod troubles;
mod world;

pub use profile::{Planted, Profile};
pub use seen::Seen;
use world::World;

/// How many seeds `make test` runs.
pub const SEEDS: u64 = 1500;

/// Runs one seed.
///
/// # Panics
/// If what initiators saw has no explanation, or a request is never answered.
pub fn simulate(seed: u64, profile: Profile, planted: Planted) -> Seen {
    World::new(seed, profile, planted).run()
}

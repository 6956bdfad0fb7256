//! The whole system from one seed: initiators, channels, sessions, logical units and the store on the simulated disk, in virtual time.
//!
//! ```text
//! client     requests, reconnects      strongroom_initiator::machine: engine, sealing, nexus, session, channel
//!    |  bytes, by way of `network`: late, in pieces, cut, damaged, half-open
//! target     logins, sessions          iscsi::target, channel; strongroom_target::machine: logical unit
//!    |  operations
//! store      on the simulated disk, which loses what was not synced
//! ```
//!
//! What initiators asked and were answered is a [`history::History`]; the [`checker`] decides whether it can be explained, and trusts
//! nobody. Absent: sockets, TLS (both ends of a connection are given the same keys), the worker's routing between threads, the
//! initiator's driver; what they do around the machines is done here as simply as it can be.

pub mod checker;
mod client;
mod content;
mod contents;
mod fencing;
pub mod history;
mod keys;
mod network;
mod seen;
mod target;
mod troubles;
mod world;

pub use seen::Seen;
use world::World;

/// Faults that are planted on purpose, so that the simulation can prove that it finds them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planted {
    /// In the store.
    pub store: strongroom_store::Planted,
    /// The disk writes what is left of a short write to a wrong place.
    pub wrong_resumption: bool,
    /// Whoever made the store has not synced its directory.
    pub directory_not_synced: bool,
    /// Initiators take the mark of a flush when its response arrives, not when it is sent.
    pub late_flush_marks: bool,
    /// Initiators seal a request again under a new operation id.
    pub forgets_operations: bool,
    /// A crash of the target takes persistent reservations that were to be kept (APTPL).
    pub forgets_reservations: bool,
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Some of everything, as the seed has it.
    Everything,
    /// As `Everything`, with one initiator.
    OneInitiator,
    /// Several initiators whose connections are cut; the target never crashes and never closes its store.
    Cuts,
    /// Several initiators whose connections are cut, and a target that closes its store in order and opens it again.
    Closes,
    /// Several initiators, and a target that crashes.
    Crashes,
    /// As `Crashes`, with many crashes, many flushes and a slow network.
    Flushes,
    /// An initiator of the volume and one of its clone; nothing goes wrong but that snapshots come and go.
    Clones,
    /// Blocks rot on the disk, and the target crashes.
    Rot,
    /// Any bit on the disk of a store that is closed may flip: its units, tables, checkpoints and superblocks too. It need not open then.
    RotAnywhere,
    /// Initiators keep each other out with persistent reservations; the target crashes.
    Reservations,
    /// Key epochs begin, and connections are cut.
    Keys,
    /// Initiators write halves of blocks too.
    Halves,
    /// A volume that is large, of which only a few blocks are looked at.
    Large,
}

impl Profile {
    /// All of them but the one whose histories are long and alike.
    pub const ALL: [Profile; 12] = [
        Profile::Everything,
        Profile::OneInitiator,
        Profile::Cuts,
        Profile::Closes,
        Profile::Crashes,
        Profile::Flushes,
        Profile::Clones,
        Profile::Rot,
        Profile::RotAnywhere,
        Profile::Reservations,
        Profile::Keys,
        Profile::Halves,
    ];
}

/// How many seeds `make test` runs.
pub const SEEDS: u64 = 1500;

/// Runs one seed.
///
/// # Panics
/// If what initiators saw has no explanation, or a request is never answered.
pub fn simulate(seed: u64, profile: Profile, planted: Planted) -> Seen {
    World::new(seed, profile, planted).run()
}

//! The room for tests: disks that crash, forget and lie, and a model that knows what they may not lose.
//!
//! Everything comes from a seed that a failing test prints. Two simulations: [`simulation`] of the store alone, against a reference
//! model, and [`system`] of everything from the initiator's engine to the store on the simulated disk, with several initiators, cut
//! connections and crashes, whose histories are checked for linearizability. Deliberately absent: assertions about any room's insides;
//! tests see what a user of the store sees.

mod crash_writer;
mod forgetting;
mod image;
mod model;
mod random;
mod sim_disk;
pub mod simulation;
pub mod system;

pub use crash_writer::crash_writer;
pub use forgetting::{FailingIo, ForgettingDisk};
pub use model::{Content, Model, ReadBlock, block_bytes, content_of, held, record_for};
pub use random::Random;
pub use sim_disk::{Faults, SimBackend, SimDisk, Stray};

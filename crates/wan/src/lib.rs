//! A wide-area link on one machine, for tests, benchmarks and demonstrations.
//!
//! Two network namespaces, each with a TUN device, and between them this process: it takes every packet of one end, lets a seeded
//! model of a link (the crate `str0m-netem`) decide when it arrives at the other end, if at all, and hands it over then. Real TCP
//! and UDP of real programs run through it. The kernel needs namespaces and TUN, and nothing else: no netem.
//!
//! What belongs here: the link, its ends, and measuring it alone. Deliberately absent: storage.

mod emulator;
mod error;
mod lab;
mod measure;
mod profile;
mod train;

pub use emulator::Counts;
pub use error::LabError;
pub use lab::{End, Lab};
pub use measure::Stream;
pub use profile::{Congestion, Loss, Profile};

//! The Effective Cross Layer (ECL) without I/O: sealed quanta under one header that takes the place of iSCSI, RDMA's placement, TCP and IPsec.
//! No sockets, no clock (time is an argument), no threads, no randomness (a seed is an argument), no SCSI semantics.
//!
//! `docs/ecl.md` is the specification. A packet is a header of 64 bytes, a body (a seal record, as a rule), a tag, and a quantum exactly as it is
//! stored. [`initiator::Session`] and [`target::Session`] are the two ends of an association; both implement `strongroom_scsi::transport`.
//!
//! Driving a session, either side:
//!
//! 1. hand it what happened: `handle_datagram`, `handle_timeout` when the time of `poll_timeout` has come, and the application's own calls;
//! 2. take every `poll_event`;
//! 3. send what `poll_transmit` gives, until it gives nothing: head and payload of a [`Transmit`] one after the other in one packet;
//! 4. look at `poll_timeout` again. After `Closed` send what is left.
//!
//! From the bottom up: tags and headers as bytes; keys, the replay window and acknowledgements; recovery, congestion and packet sizes; the
//! connection that joins them; and the two sessions.

mod acknowledgement;
mod body;
mod config;
mod congestion;
mod connection;
mod credit;
mod error;
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod golden;
mod header;
pub mod initiator;
mod keys;
pub mod login;
mod mtu;
mod parity;
mod planted;
mod quantum;
mod recovery;
mod replay;
mod scheme;
mod statistics;
mod tag;
pub mod target;

pub use acknowledgement::{ACK_DELAY_MAX, Ecn};
pub use config::{Config, NotCarried, QUANTUM_BYTES_MAX, QUANTUM_BYTES_MIN, check_volume};
pub use congestion::CongestionAlgorithm;
pub use connection::{Datagram, Transmit};
pub use error::{CloseReason, Dropped, PeerMisbehaved};
pub use header::{CLEAR_BYTES, HEADER_BYTES, HeaderError, TAG_BYTES, VERSION};
pub use keys::{EXPORTER_BYTES, EXPORTER_LABEL, EclKeys, RekeyLimits};
pub use mtu::{OVERHEAD_BYTES, PathReduction, SEGMENT_BYTES};
pub use parity::{Parity, ParityError};
pub use planted::{Planted, PlantedFault};
pub use replay::REPLAY_WINDOW;
pub use scheme::{Scheme, SchemeNotCarried};
pub use statistics::{DropCounts, Statistics};

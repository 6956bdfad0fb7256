//! The session with the target: logs in over one or several connections, asks what the logical unit is, claims the writer lease, and
//! passes the pipeline's commands on.
//!
//! Absent: sockets, threads and the clock (`crate::device` has them), and what commands mean (`crate::pipeline`).

pub(crate) mod ecl;
pub(crate) mod iscsi;
mod link;
pub(crate) mod nexus;
pub(crate) mod probe;
pub(crate) mod reservation;
pub(crate) mod transport;
pub(crate) mod writer_lease;

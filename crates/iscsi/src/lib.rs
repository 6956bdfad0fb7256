//! iSCSI (RFC 7143) without I/O: PDUs, key text, and the session machines of a target and an initiator, for plain streams
//! and for PDUs inside a Strongroom channel. No sockets, no clock (time is an argument), no threads, no SCSI semantics, and
//! no cryptography but the digests of CHAP: seal records pass through as opaque bytes.
//!
//! A session may have several connections, and error recovery levels 0 to 2. `docs/iscsi.md` says what of the RFC is done.
//!
//! Driving a session, either side:
//!
//! 1. hand it what happened: `handle_pdu`, `handle_timeout` when the time of `poll_timeout` has come, `handle_closed` when
//!    the connection ended, and the application's own calls;
//! 2. take every `poll_event`;
//! 3. send what `poll_transmit` gives while the connection takes it. Answers are made, and numbered, at that moment, so a
//!    driver that stops polling when its socket is full holds back the making of data too;
//! 4. look at `poll_timeout` again. After `Closed` send what is left, then close the connection.

pub mod ahs;
pub mod chap;
mod error;
pub mod framer;
#[doc(hidden)]
pub mod fuzz;
pub mod initiator;
mod liveness;
pub mod login;
pub mod pdu;
mod sequence;
mod slots;
pub mod target;
pub mod text;

pub use error::{CloseReason, LoginStatus, PeerMisbehaved};
pub use framer::{Digests, PlainFramer};
pub use login::{Agreed, DigestOffer, Offer};
pub use pdu::{Bhs, Lun, Pdu};
pub use sequence::Serial;
pub use strongroom_scsi::transport::Residual;

/// The port that IANA gave to iSCSI, and Strongroom's default.
pub const DEFAULT_PORT: u16 = 3260;
/// Longest iSCSI name, in bytes (RFC 7143 §4.2.7.1).
pub const NAME_BYTES_MAX: usize = 223;

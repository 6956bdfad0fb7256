//! The server's side of NBD (doc/proto.md of the NetworkBlockDevice project), as machines without I/O.
//!
//! ```text
//! client's bytes  ->  Negotiation     what was agreed: Transmission
//! client's bytes  ->  RequestDecoder  Request, or what to answer instead
//! result          ->  ReplyEncoder    messages to send
//! ```
//!
//! Absent: sockets, TLS, the device, and how many requests are in flight. For any input, decoding ends with a request, an answer or
//! an error, and needs no more memory than the limits named here.

mod error;
mod export;
pub mod fuzz;
mod negotiation;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod wire;

pub use error::NbdError;
pub use export::{Export, ReplyFormat, Transmission};
pub use negotiation::{INPUT_BYTES_MAX, Negotiation, NegotiationError, Progress, TlsMode};
pub use reply::{Extent, Message, ReplyEncoder};
pub use request::{Command, Decoded, ProtocolError, Refusal, Request, RequestDecoder, RequestId};

/// Upper bound on the data of one request or reply, in bytes: what the specification has every server take.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

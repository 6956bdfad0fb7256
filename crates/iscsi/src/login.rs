//! What both roles of a login share: offers, the table of keys and the negotiation by it, and the text exchange (RFC 7143 §6, §13).
//! What each role does on top is in `target::login` and `initiator::login`, authentication in `chap`.

mod exchange;
mod keys;
mod negotiation;
mod offer;
#[cfg(test)]
mod tests;
mod values;

pub use offer::{Agreed, DigestOffer, Offer};

pub(crate) use exchange::LoginExchange;
pub(crate) use negotiation::Negotiation;
pub(crate) use values::number;

pub use crate::pdu::bhs::LOGIN_SEGMENT_BYTES;

/// Requests that one login may take, continued text included.
pub const LOGIN_ROUNDS_MAX: u32 = 64;
/// Ours (RFC 7143 §6.1, `X-`): why a login is refused, for people, in the response that refuses it.
pub(crate) const REASON_KEY: &str = "X-org.strongroom.Reason";
/// Longest reason that we give, in characters, and that we show, in bytes.
pub(crate) const REASON_CHARS_MAX: usize = 400;
pub(crate) const REASON_BYTES_MAX: usize = 2048;

//! Values of keys: numbers and Booleans as text, and the ranges that several keys share (RFC 7143 §6.1, §13).

use crate::error::PeerMisbehaved;

/// Lengths of segments and bursts, in bytes (RFC 7143 §13.12 to §13.14).
pub(super) const LENGTH_RANGE: std::ops::RangeInclusive<u32> = 512..=0xff_ffff;
/// Upper bound on Time2Wait and Time2Retain, in seconds (RFC 7143 §13.15, §13.16).
pub(super) const TIME_MAX_S: u16 = 3600;
/// How much of a peer's value a message shows, in characters.
const SHOWN_CHARS: usize = 64;

/// A number as RFC 7143 §6.1 writes it: decimal or, behind 0x, hexadecimal.
pub(crate) fn number(value: &str) -> Option<u32> {
    let all = |digits: &str, radix: u32| !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => all(digits, 16).then(|| u32::from_str_radix(digits, 16).ok()).flatten(),
        None => all(value, 10).then(|| value.parse().ok()).flatten(),
    }
}

/// The error for a value that a key cannot have.
pub(super) fn misfit(key: &'static str, value: &str) -> PeerMisbehaved {
    PeerMisbehaved::Key { key, value: value.chars().take(SHOWN_CHARS).collect() }
}

pub(super) fn yes_or_no(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

pub(super) fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

//! The audit log: one line of text an event, each bound to all before it by a chain of hashes.
//!
//! ```text
//! hash(0) = SHA-256("strongroom audit 1" ‖ the database's id)
//! hash(n) = SHA-256(hash(n-1) ‖ line n)
//! ```
//!
//! Whoever has kept `N:hash(N)` notices any change of the first N lines.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};
use strongroom_handshake::PublicKey;

/// The end of an audit log. Prints as `LINES:HASH`, and parses the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditHead {
    /// Lines so far.
    pub lines: u64,
    /// The hash of the last one.
    pub hash: [u8; 32],
}

/// Text that is no head of an audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the head of an audit log; expected LINES:HASH, as `strongroom key audit` prints it at its end")]
pub struct NotAHead;

impl fmt::Display for AuditHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.lines)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for AuditHead {
    type Err = NotAHead;

    fn from_str(text: &str) -> Result<AuditHead, NotAHead> {
        let (lines, hex) = text.trim().split_once(':').ok_or(NotAHead)?;
        let mut hash = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return Err(NotAHead);
        }
        for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| NotAHead)?;
        }
        Ok(AuditHead { lines: lines.parse().map_err(|_| NotAHead)?, hash })
    }
}

/// Where an audit log is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// A line has another number than its place.
    #[error("line {line} of the audit log is missing or out of place: lines were removed, added or moved")]
    OutOfPlace {
        /// The first that is.
        line: u64,
    },
    /// The chain ends in another hash than it should.
    #[error("the first {lines} lines of the audit log are not what they were: at least one was altered")]
    Altered {
        /// How many were looked at.
        lines: u64,
    },
    /// There are fewer lines than there were.
    #[error(
        "the audit log has {found} lines, and once had {expected}: its end was cut off, or an older copy was put in its place"
    )]
    Truncated {
        /// There are.
        found: u64,
        /// There should be at least.
        expected: u64,
    },
}

impl AuditHead {
    /// The head of an empty log.
    pub fn start(database: &[u8; 16]) -> AuditHead {
        let mut context = Context::new(&SHA256);
        context.update(b"strongroom audit 1");
        context.update(database);
        AuditHead { lines: 0, hash: context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes") }
    }

    /// The head after one more line, whose number must be the next.
    ///
    /// # Errors
    /// [`AuditError::OutOfPlace`].
    pub fn then(self, line: &str) -> Result<AuditHead, AuditError> {
        let next = self.lines + 1;
        let number = line.split(' ').next().and_then(|number| number.parse().ok());
        if number != Some(next) {
            return Err(AuditError::OutOfPlace { line: next });
        }
        let mut context = Context::new(&SHA256);
        context.update(&self.hash);
        context.update(line.as_bytes());
        Ok(AuditHead { lines: next, hash: context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes") })
    }

    /// Whether a log that passed through `self` may also have `kept` in its past: call it at each line.
    ///
    /// # Errors
    /// [`AuditError::Altered`] if `kept` is of this line and another.
    pub fn check(&self, kept: &AuditHead) -> Result<(), AuditError> {
        if kept.lines == self.lines && kept.hash != self.hash {
            return Err(AuditError::Altered { lines: self.lines });
        }
        Ok(())
    }
}

/// A line of the log. `event` is words and `key=value` pairs.
pub(crate) fn line(number: u64, at_ms: u64, actor: Option<&PublicKey>, event: &str) -> String {
    let actor = actor.map_or_else(|| "-".to_owned(), short);
    format!("{number} {} {actor} {event}", timestamp(at_ms))
}

/// A key without the word before it: no spaces.
pub(crate) fn short(key: &PublicKey) -> String {
    key.to_string().split(' ').nth(1).expect("a word and the key").to_owned()
}

/// RFC 3339, in UTC. The only use of the wall clock: what it says decides nothing.
fn timestamp(at_ms: u64) -> String {
    let (seconds, millis) = (at_ms / 1000, at_ms % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days since 1970 to a civil date (Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_by_everybody() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(timestamp(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(timestamp(1_795_301_163_123), "2026-11-21T22:46:03.123Z");
    }

    #[test]
    fn a_head_is_read_back() {
        let head = AuditHead::start(&[1; 16]).then("1 a").unwrap();
        assert_eq!(head.to_string().parse(), Ok(head));
        for wrong in ["", "1", "1:", "x:00", &head.to_string()[..40], &format!("{head}0"), "1:éé"] {
            assert_eq!(wrong.parse::<AuditHead>(), Err(NotAHead), "{wrong}");
        }
    }

    /// Pins the chain: SHA-256 by hand of what the module's comment says.
    #[test]
    fn golden_chain() {
        let head = AuditHead::start(&[0; 16]).then("1 first").unwrap().then("2 second").unwrap();
        assert_eq!(head.to_string(), GOLDEN_HEAD);
        let altered = AuditHead::start(&[0; 16]).then("1 First").unwrap().then("2 second").unwrap();
        assert_eq!(altered.check(&head), Err(AuditError::Altered { lines: 2 }));
        assert_eq!(AuditHead::start(&[0; 16]).then("2 second"), Err(AuditError::OutOfPlace { line: 1 }));
    }

    const GOLDEN_HEAD: &str = "2:3fca01a877c365a847fe94fdbe4537c790805a24c48a6a59b436bf33118b6bdf";
}

//! The audit log: one line of text an event, encrypted under a key of its own, and bound to all lines before it by a chain of hashes over
//! the ciphertext.
//!
//! ```text
//! sealed line n = SHA-256("strongroom audit line key 2" ‖ key) ‖ AES-256-GCM(key, nonce 0, "strongroom audit line 2" ‖ n (8), text) ‖ tag
//! hash(0)       = SHA-256("strongroom audit 1" ‖ the database's id)
//! hash(n)       = SHA-256(hash(n-1) ‖ sealed line n)
//! ```
//!
//! A saved `N:hash(N)` reveals any change of the first N lines, and is checked without any key. Each line has a random key, so that
//! a standby, whose files are under another root key, has the same chain; the hash of the key in it prevents showing another text for the same
//! ciphertext. A line of version 1, from before lines were encrypted, is its text in the chain, and has no key.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{Context, SHA256};
use strongroom_block::{Suite, TAG_BYTES};
use strongroom_cipher::{AeadKey, NONCE_BYTES};
use strongroom_handshake::PublicKey;
use strongroom_seal::KEY_BYTES;
use zeroize::Zeroizing;

use crate::keys::random;
use crate::wire::{Malformed, Put, Take};

/// What a line takes in a message besides its text: version, key, length.
pub(crate) const LINE_BYTES: usize = 1 + KEY_BYTES + 2;
/// Longest text of a line, in bytes.
const TEXT_BYTES_MAX: usize = u16::MAX as usize;

/// A line of the log.
#[derive(Clone, PartialEq, Eq)]
pub struct AuditLine {
    /// Number, time, identity, event.
    pub text: String,
    /// What it is encrypted under; none for a line of version 1.
    pub key: Option<Zeroizing<[u8; KEY_BYTES]>>,
}

impl fmt::Display for AuditLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for AuditLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuditLine({:?})", self.text)
    }
}

impl AuditLine {
    /// With a fresh key.
    pub(crate) fn new(text: String) -> AuditLine {
        AuditLine { text, key: Some(random()) }
    }

    /// What the chain is over.
    fn sealed(&self, number: u64) -> Vec<u8> {
        let Some(key) = &self.key else { return self.text.as_bytes().to_vec() };
        let mut sealed = Vec::with_capacity(32 + self.text.len() + TAG_BYTES);
        sealed.extend_from_slice(&key_hash(key));
        sealed.extend_from_slice(self.text.as_bytes());
        // The key is used for this line alone, so the nonce need not differ.
        let aead = AeadKey::new(Suite::Aes256Gcm, key);
        let tag = aead.seal([0; NONCE_BYTES], &line_context(number), &mut sealed[32..]);
        sealed.extend_from_slice(&tag);
        sealed
    }

    /// Opens what [`AuditLine::sealed`] made with a key.
    fn open(number: u64, key: Zeroizing<[u8; KEY_BYTES]>, sealed: &[u8]) -> Option<AuditLine> {
        let (hash, rest) = sealed.split_first_chunk::<32>()?;
        let (body, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
        let mut text = body.to_vec();
        AeadKey::new(Suite::Aes256Gcm, &key).open([0; NONCE_BYTES], &line_context(number), tag, &mut text).ok()?;
        let text = String::from_utf8(text).ok().filter(|_| *hash == key_hash(&key))?;
        Some(AuditLine { text, key: Some(key) })
    }

    pub(crate) fn put(&self, put: &mut Put) {
        match &self.key {
            Some(key) => put.u8(2).bytes(&key[..]),
            None => put.u8(1),
        };
        put.text(&self.text);
    }

    pub(crate) fn take(take: &mut Take<'_>) -> Result<AuditLine, Malformed> {
        let key = match take.u8()? {
            1 => None,
            2 => Some(Zeroizing::new(take.array()?)),
            _ => return Err(Malformed),
        };
        Ok(AuditLine { text: take.text(TEXT_BYTES_MAX)?, key })
    }

    /// As versions before wrote it, in batches and snapshots.
    pub(crate) fn take_text(take: &mut Take<'_>) -> Result<AuditLine, Malformed> {
        Ok(AuditLine { text: take.text(TEXT_BYTES_MAX)?, key: None })
    }
}

fn key_hash(key: &[u8; KEY_BYTES]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(b"strongroom audit line key 2");
    context.update(key);
    context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn line_context(number: u64) -> Vec<u8> {
    [&b"strongroom audit line 2"[..], &number.to_be_bytes()].concat()
}

/// A line as the database stores it.
///
/// ```text
/// stored line = version 2 (1), line key sealed under the root key's "audit" with context "audit key 2" ‖ n (60), sealed line
///             | version 1 (1), text sealed under the root key's "audit" with context "audit line 1" ‖ n
/// ```
pub(crate) mod stored {
    use zeroize::Zeroizing;

    use super::AuditLine;
    use crate::keys::{RootKey, WRAPPED_BYTES};

    fn context(version: u8, number: u64) -> Vec<u8> {
        let name: &[u8] = if version == 1 { b"audit line 1" } else { b"audit key 2" };
        [name, &number.to_be_bytes()].concat()
    }

    pub(crate) fn encode(root: &RootKey, number: u64, line: &AuditLine) -> Vec<u8> {
        let (version, secret) = line.key.as_ref().map_or((1, line.text.as_bytes()), |key| (2, &key[..]));
        let mut stored = vec![version];
        stored.extend_from_slice(&root.seal_audit(&context(version, number), secret));
        if version == 2 {
            stored.extend_from_slice(&line.sealed(number));
        }
        stored
    }

    /// What the chain is over, without a key; of a line of version 1 nothing is told without one.
    pub(crate) fn sealed_of(stored: &[u8]) -> &[u8] {
        if stored.first() == Some(&2) { stored.get(1 + WRAPPED_BYTES..).unwrap_or_default() } else { &[] }
    }

    /// `None`: it is not what was stored.
    pub(crate) fn decode(root: &RootKey, number: u64, stored: &[u8]) -> Option<AuditLine> {
        let (&version, rest) = stored.split_first()?;
        if version == 1 {
            let text = root.open_audit(&context(1, number), rest)?;
            return Some(AuditLine { text: String::from_utf8(text.to_vec()).ok()?, key: None });
        }
        let (wrapped, sealed) = rest.split_at_checked(WRAPPED_BYTES).filter(|_| version == 2)?;
        let key = root.open_audit(&context(2, number), wrapped)?;
        AuditLine::open(number, Zeroizing::new(key[..].try_into().ok()?), sealed)
    }
}

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
    pub fn then(self, line: &AuditLine) -> Result<AuditHead, AuditError> {
        let next = self.lines + 1;
        let number = line.text.split(' ').next().and_then(|number| number.parse().ok());
        if number != Some(next) {
            return Err(AuditError::OutOfPlace { line: next });
        }
        Ok(self.then_sealed(&line.sealed(next)))
    }

    /// The same of the line's ciphertext: the chain is checked without a key.
    pub(crate) fn then_sealed(self, sealed: &[u8]) -> AuditHead {
        let mut context = Context::new(&SHA256);
        context.update(&self.hash);
        context.update(sealed);
        let hash = context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes");
        AuditHead { lines: self.lines + 1, hash }
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
pub(crate) fn line(number: u64, at_ms: u64, actor: Option<&PublicKey>, event: &str) -> AuditLine {
    let actor = actor.map_or_else(|| "-".to_owned(), short);
    AuditLine::new(format!("{number} {} {actor} {event}", timestamp(at_ms)))
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

    fn text(text: &str) -> AuditLine {
        AuditLine { text: text.to_owned(), key: None }
    }

    fn sealed(text: &str, key: u8) -> AuditLine {
        AuditLine { text: text.to_owned(), key: Some(Zeroizing::new([key; KEY_BYTES])) }
    }

    #[test]
    fn a_head_is_read_back() {
        let head = AuditHead::start(&[1; 16]).then(&text("1 a")).unwrap();
        assert_eq!(head.to_string().parse(), Ok(head));
        for wrong in ["", "1", "1:", "x:00", &head.to_string()[..40], &format!("{head}0"), "1:éé"] {
            assert_eq!(wrong.parse::<AuditHead>(), Err(NotAHead), "{wrong}");
        }
    }

    /// Pins a sealed line and the chain over two, as another implementation has computed them (docs/keys.md).
    #[test]
    fn golden_lines() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(&sealed("1 first", 0x4b).sealed(1)), GOLDEN_LINE);
        let one = AuditHead::start(&[0; 16]).then(&sealed("1 first", 0x4b)).unwrap();
        let two = one.then(&sealed("2 second", 0x4c)).unwrap();
        assert_eq!((one.to_string().as_str(), two.to_string().as_str()), (GOLDEN_HEADS[0], GOLDEN_HEADS[1]));
        // The chain needs no key.
        assert_eq!(one.then_sealed(&sealed("2 second", 0x4c).sealed(2)), two);
        for other in [sealed("2 Second", 0x4c), sealed("2 second", 0x4d), text("2 second")] {
            assert_eq!(one.then(&other).unwrap().check(&two), Err(AuditError::Altered { lines: 2 }), "{other:?}");
        }
    }

    /// The chain of version 1, which goes on in logs that were begun under it: SHA-256 by hand of what the module's comment says.
    #[test]
    fn golden_chain_of_version_1() {
        let head = AuditHead::start(&[0; 16]).then(&text("1 first")).unwrap().then(&text("2 second")).unwrap();
        assert_eq!(head.to_string(), GOLDEN_HEAD_1);
        let altered = AuditHead::start(&[0; 16]).then(&text("1 First")).unwrap().then(&text("2 second")).unwrap();
        assert_eq!(altered.check(&head), Err(AuditError::Altered { lines: 2 }));
        assert_eq!(AuditHead::start(&[0; 16]).then(&text("2 second")), Err(AuditError::OutOfPlace { line: 1 }));
    }

    #[test]
    fn a_line_opens_at_its_place_with_its_key_alone() {
        let line = sealed("3 x", 7);
        let key = || line.key.clone().unwrap();
        let bytes = line.sealed(3);
        assert_eq!(AuditLine::open(3, key(), &bytes), Some(line.clone()));
        assert_eq!(AuditLine::open(4, key(), &bytes), None);
        assert_eq!(AuditLine::open(3, Zeroizing::new([8; KEY_BYTES]), &bytes), None);
        for at in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            assert_eq!(AuditLine::open(3, key(), &altered), None, "byte {at}");
            assert_eq!(AuditLine::open(3, key(), &bytes[..at]), None, "cut at {at}");
        }
        assert!(!format!("{line:?}").contains('7'), "the key is not shown");
    }

    const GOLDEN_LINE: &str = "bcacbf21e3e390880677c4445890672e28c7d42167a7c5b077e35f9c9c0a87c645e9354b6b3751ae52b4309451b35d1d072e4a20224182";
    const GOLDEN_HEADS: [&str; 2] = [
        "1:c9f26153eeef68491249378c2fa7dda893add622cf41b2bb9efdf90851529e05",
        "2:55de9c18f842f854a30f37ac4cf0c8bb48551bad49215e58ddbf1b35042a7474",
    ];
    const GOLDEN_HEAD_1: &str = "2:3fca01a877c365a847fe94fdbe4537c790805a24c48a6a59b436bf33118b6bdf";
}

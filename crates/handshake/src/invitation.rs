//! An invitation as one line of text, which a person carries from a target to the node that it invites.
//!
//! `docs/pairing.md` has it bit by bit. Absent: what an invitation is for, which only the target knows.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::{PairingSecret, PublicKey};

/// What an invitation begins with, before its version.
const WORD: &str = "strongroom-invitation";
/// The same with the version that is written, and the mark behind it.
const PREFIX: &str = "strongroom-invitation1:";
const CHECKSUM_BYTES: usize = 4;
const FIXED_BYTES: usize = PublicKey::BYTES + PairingSecret::BYTES + 8 + 1;

/// Addresses in one invitation, at most.
pub const INVITATION_ADDRESSES_MAX: usize = 8;
/// Longest address of an invitation, in bytes: a name of 253, and a port.
pub const INVITATION_ADDRESS_BYTES_MAX: usize = 253 + 6;
/// Longest text that is looked at, in bytes.
pub const INVITATION_TEXT_BYTES_MAX: usize = 4096;

/// Where a target is, how it is known, and what shows that one was invited by it. A secret until it is used or has expired.
#[derive(Clone)]
pub struct Invitation {
    /// What the target proves itself with.
    pub target: PublicKey,
    /// What the invited node proves.
    pub secret: PairingSecret,
    /// Until when, in seconds since 1970, by the target's clock.
    pub expires_at: u64,
    /// Where the target is, each `host:port`; at least one.
    pub addresses: Vec<String>,
}

/// Why a text is no invitation. Never shows a byte of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvitationTextError {
    /// Something else.
    #[error(
        "that is no invitation; paste the line that `strongroom invite` printed on the target, which begins with '{prefix}'",
        prefix = PREFIX
    )]
    NotAnInvitation,
    /// Of a version that this program does not know.
    #[error("the invitation is of another version; run compatible Strongroom versions on both ends")]
    OtherVersion,
    /// Cut off, or altered.
    #[error("the invitation is cut off or altered; copy the whole line again")]
    Damaged,
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation").field("target", &self.target).field("addresses", &self.addresses).finish()
    }
}

impl Invitation {
    /// The line. Wiped when dropped.
    ///
    /// # Panics
    /// If it has no address, too many, or one that [`is_address`] does not take: they are checked where they come from.
    pub fn to_text(&self) -> Zeroizing<String> {
        assert!((1..=INVITATION_ADDRESSES_MAX).contains(&self.addresses.len()), "addresses are counted before");
        let mut bytes = Zeroizing::new(Vec::with_capacity(INVITATION_TEXT_BYTES_MAX));
        bytes.extend_from_slice(self.target.as_bytes());
        bytes.extend_from_slice(self.secret.bytes());
        bytes.extend_from_slice(&self.expires_at.to_be_bytes());
        bytes.push(self.addresses.len() as u8);
        for address in &self.addresses {
            assert!(is_address(address), "addresses are checked before");
            bytes.extend_from_slice(&(address.len() as u16).to_be_bytes());
            bytes.extend_from_slice(address.as_bytes());
        }
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        // Sized up front: a string that grows leaves unwiped copies behind.
        let mut text = Zeroizing::new(String::with_capacity(INVITATION_TEXT_BYTES_MAX));
        text.push_str(PREFIX);
        URL_SAFE_NO_PAD.encode_string(&*bytes, &mut text);
        text
    }

    /// Reads a line. White space in it, as terminals and mail programs put it there, does not count.
    ///
    /// # Errors
    /// [`InvitationTextError`]; never panics, for any text.
    pub fn parse(text: &str) -> Result<Invitation, InvitationTextError> {
        let mut line = Zeroizing::new(String::with_capacity(INVITATION_TEXT_BYTES_MAX));
        for character in text.chars().filter(|character| !character.is_whitespace()) {
            if line.len() + character.len_utf8() > INVITATION_TEXT_BYTES_MAX {
                return Err(InvitationTextError::NotAnInvitation);
            }
            line.push(character);
        }
        let Some(encoded) = line.strip_prefix(PREFIX) else {
            return Err(match line.starts_with(WORD) {
                true => InvitationTextError::OtherVersion,
                false => InvitationTextError::NotAnInvitation,
            });
        };
        let mut bytes = Zeroizing::new(vec![0; INVITATION_TEXT_BYTES_MAX]);
        let count = URL_SAFE_NO_PAD.decode_slice(encoded, &mut bytes).map_err(|_| InvitationTextError::Damaged)?;
        Self::decode(&bytes[..count]).ok_or(InvitationTextError::Damaged)
    }

    fn decode(bytes: &[u8]) -> Option<Invitation> {
        let (bytes, checked) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM_BYTES)?)?;
        if checksum(bytes) != checked {
            return None;
        }
        let (fixed, mut rest) = bytes.split_at_checked(FIXED_BYTES)?;
        let (target, fixed) = fixed.split_first_chunk()?;
        let (secret, fixed) = fixed.split_first_chunk()?;
        let (expires_at, count) = fixed.split_first_chunk()?;
        let count = usize::from(count[0]);
        if !(1..=INVITATION_ADDRESSES_MAX).contains(&count) {
            return None;
        }
        let mut addresses = Vec::with_capacity(count);
        for _ in 0..count {
            let (len, behind) = rest.split_first_chunk()?;
            let (address, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
            let address = std::str::from_utf8(address).ok().filter(|address| is_address(address))?;
            addresses.push(address.to_owned());
            rest = behind;
        }
        rest.is_empty().then(|| Invitation {
            target: PublicKey::from_bytes(*target),
            secret: PairingSecret::from_bytes(*secret),
            expires_at: u64::from_be_bytes(*expires_at),
            addresses,
        })
    }
}

/// Whether an invitation may name this address: `host:port` of printable ASCII, an IPv6 address in brackets, and nothing that a line of
/// `known_targets`, or a terminal, would read otherwise.
pub fn is_address(address: &str) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let host_fits = match inside {
        Some(literal) => literal.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(is_host),
    };
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    address.len() <= INVITATION_ADDRESS_BYTES_MAX && host_fits && is_number && port.parse::<u16>().is_ok_and(|p| p != 0)
}

/// Against slips, not against attackers: those who can alter an invitation can make one.
fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let whole = digest(&SHA256, &[PREFIX.as_bytes(), bytes].concat());
    *whole.as_ref().first_chunk().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn invitation(addresses: &[&str]) -> Invitation {
        Invitation {
            target: PublicKey::from_bytes([0x44; PublicKey::BYTES]),
            secret: PairingSecret::from_bytes([0x11; PairingSecret::BYTES]),
            expires_at: 1_795_905_000,
            addresses: addresses.iter().map(ToString::to_string).collect(),
        }
    }

    /// The line of `docs/pairing.md`; made with Python's `base64` and `hashlib`.
    const GOLDEN: &str = "strongroom-invitation1:REREREREREREREREREREREREREREREREREREREREREQRERERERERERERERERERERAAAAAGsLVegBAAxzdG9yYWdlOjMyNjA3T-Nz";

    #[test]
    fn golden_invitation() {
        assert_eq!(*invitation(&["storage:3260"]).to_text(), GOLDEN);
        let read = Invitation::parse(GOLDEN).unwrap();
        assert_eq!((read.target.as_bytes(), read.secret.bytes()), (&[0x44; 32], &[0x11; 16]));
        assert_eq!((read.expires_at, &read.addresses[..]), (1_795_905_000, &["storage:3260".to_owned()][..]));
    }

    #[test]
    fn white_space_of_mails_and_terminals_does_not_count() {
        let (first, second) = GOLDEN.split_at(70);
        assert!(Invitation::parse(&format!("  {first}\r\n  {second}\n\n")).is_ok());
    }

    #[test]
    fn every_changed_or_missing_character_is_found() {
        let start = PREFIX.len();
        for index in start..GOLDEN.len() {
            let mut changed = GOLDEN.as_bytes().to_vec();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(Invitation::parse(&changed).unwrap_err(), InvitationTextError::Damaged, "{index}");
            let cut = Invitation::parse(&GOLDEN[..index]).unwrap_err();
            assert_eq!(cut, InvitationTextError::Damaged, "{index}");
        }
    }

    #[test]
    fn what_is_none_says_what_to_paste() {
        let parse = |text: &str| Invitation::parse(text).unwrap_err();
        assert_eq!(parse(""), InvitationTextError::NotAnInvitation);
        assert_eq!(parse("strongroom-ed25519 AAAA"), InvitationTextError::NotAnInvitation);
        assert_eq!(parse("strongroom-invitation2:AAAA"), InvitationTextError::OtherVersion);
        assert_eq!(parse(&"x".repeat(INVITATION_TEXT_BYTES_MAX + 1)), InvitationTextError::NotAnInvitation);
        assert!(parse("x").to_string().contains("strongroom invite"));
        let shown = format!("{:?}", invitation(&["storage:3260"]));
        assert!(!shown.contains("17") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn addresses_that_could_be_read_otherwise_are_none() {
        for good in ["storage:3260", "192.0.2.7:1", "[2001:db8::1]:3260", "a-b_c.example:65535"] {
            assert!(is_address(good), "{good}");
        }
        let long = format!("{}:3260", "x".repeat(INVITATION_ADDRESS_BYTES_MAX));
        for bad in [
            "",
            "storage",
            "storage:",
            ":3260",
            "storage:0",
            "storage:65536",
            "storage:+1",
            "2001:db8::1:3260",
            "[x]:1",
        ]
        .into_iter()
        .chain(["a b:1", "a\n:1", "a\u{1b}[2J:1", "#a:1", "a,b:1", "ä:1", &long])
        {
            assert!(!is_address(bad), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(strongroom-invitation1:)?[A-Za-z0-9_-]*\\PC*") {
            let _ = Invitation::parse(&text);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let whole = [&bytes[..], &checksum(&bytes)].concat();
            if let Some(read) = Invitation::decode(&whole) {
                prop_assert_eq!(&*read.to_text(), &format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&whole)));
            }
        }
    }
}

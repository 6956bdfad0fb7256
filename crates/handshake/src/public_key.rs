//! Public keys of nodes: one line of text for people, 32 bytes for the handshake.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::KeyTextError;

const WORD: &str = "strongroom-ed25519";

/// The fixed start of an Ed25519 SubjectPublicKeyInfo (RFC 8410); the 32 bytes of the key follow.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Names a node. Prints as `strongroom-ed25519` and the key in base64; parses the same, with anything after it as a
/// comment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; Self::BYTES]);

impl PublicKey {
    /// Bytes in a key.
    pub const BYTES: usize = 32;

    /// A key of these bytes.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> PublicKey {
        PublicKey(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// As TLS carries it (RFC 7250).
    pub(crate) fn to_spki(self) -> Vec<u8> {
        [&SPKI_PREFIX[..], &self.0].concat()
    }

    /// From what TLS carries: exactly this algorithm and this encoding.
    pub(crate) fn from_spki(spki: &[u8]) -> Option<PublicKey> {
        let key = spki.strip_prefix(&SPKI_PREFIX)?;
        Some(PublicKey(key.try_into().ok()?))
    }
}

impl PublicKey {
    /// Its first eight bytes as sixteen hexadecimal digits: enough to tell the keys that one meets apart, and no proof of anything.
    pub fn fingerprint(&self) -> String {
        self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WORD} {}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", STANDARD.encode(self.0))
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<PublicKey, KeyTextError> {
        let mut words = text.split_ascii_whitespace();
        if words.next() != Some(WORD) {
            return Err(KeyTextError::NotAPublicKey);
        }
        let encoded = words.next().ok_or(KeyTextError::MalformedPublicKey)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| KeyTextError::MalformedPublicKey)?;
        Ok(PublicKey(bytes.try_into().map_err(|_| KeyTextError::MalformedPublicKey)?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_line() {
        let key = PublicKey::from_bytes([0xa7; 32]);
        let line = "strongroom-ed25519 p6enp6enp6enp6enp6enp6enp6enp6enp6enp6enp6c=";
        assert_eq!(key.to_string(), line);
        assert_eq!(line.parse(), Ok(key));
        assert_eq!(format!("  {line} backup@host\n").parse(), Ok(key));
    }

    #[test]
    fn what_is_not_a_key_is_refused_with_what_to_do() {
        let parse = |text: &str| text.parse::<PublicKey>().unwrap_err();
        assert_eq!(parse(""), KeyTextError::NotAPublicKey);
        assert_eq!(parse("ssh-ed25519 AAAA"), KeyTextError::NotAPublicKey);
        assert_eq!(parse("strongroom-ed25519"), KeyTextError::MalformedPublicKey);
        assert_eq!(parse("strongroom-ed25519 p6enp6c="), KeyTextError::MalformedPublicKey);
        assert_eq!(
            parse("strongroom-ed25519 p6enp6enp6enp6enp6enp6enp6enp6enp6enp6enp6d="),
            KeyTextError::MalformedPublicKey,
            "left-over bits are not ignored"
        );
        assert!(parse("x").to_string().contains("identity show"));
    }

    #[test]
    fn only_this_exact_encoding_is_taken_from_tls() {
        let key = PublicKey::from_bytes([3; 32]);
        let spki = key.to_spki();
        assert_eq!(PublicKey::from_spki(&spki), Some(key));
        assert_eq!(PublicKey::from_spki(&spki[..43]), None);
        let mut other = spki.clone();
        other[8] = 0x6e; // X25519
        assert_eq!(PublicKey::from_spki(&other), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(strongroom-ed25519)?\\PC*") {
            let _ = text.parse::<PublicKey>();
        }

        #[test]
        fn every_key_parses_as_it_prints(bytes in any::<[u8; 32]>()) {
            let key = PublicKey::from_bytes(bytes);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
}

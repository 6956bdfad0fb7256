//! Names of peers in the database: what can stand in a log, on a terminal and in a list of a volume as it is.

use std::fmt;
use std::str::FromStr;

use super::error::PairingError;
use crate::names::for_log;

/// A peer's name: 1 to 64 of letters, digits, '-', '_' and '.' of ASCII, beginning with a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerName(String);

impl PeerName {
    /// Longest name, in bytes.
    pub const BYTES_MAX: usize = 64;

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PeerName {
    type Err = PairingError;

    fn from_str(name: &str) -> Result<PeerName, PairingError> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if starts_well && name.len() <= Self::BYTES_MAX && name.bytes().all(is_legal) {
            Ok(PeerName(name.to_owned()))
        } else {
            Err(PairingError::Name { name: for_log(&name.chars().take(80).collect::<String>()) })
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_pairing_names_with_terminal_controls() {
        for good in ["alice", "Alice-2", "host_7.example"] {
            assert_eq!(good.parse::<PeerName>().unwrap().as_str(), good);
        }
        let long = "x".repeat(PeerName::BYTES_MAX + 1);
        for bad in ["", "-a", ".a", "a b", "a\nb", "a\u{1b}[2Jb", "a\u{202e}b", "*", "ä", "a/b", &long] {
            let message = bad.parse::<PeerName>().unwrap_err().to_string();
            assert!(message.contains("cannot name a peer"), "{message}");
            assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'), "{message:?}");
        }
    }
}

//! Which ciphers protect a volume's blocks and a channel's frames, by name and by number. The ciphers are in `cipher`.
//!
//! The papers' suites protect nothing today. Only a build with the feature `weak-suites` has them: the laboratory, and tests. In the
//! product there is no such value: neither a name, a byte on disk or wire, nor a peer can ask for one.

use std::fmt;
use std::str::FromStr;

use crate::RecordError;

/// A cipher suite: of a volume's seals, and of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-256-GCM; sealing in the blind custodies composes it to XAES-256-GCM with the stamp as nonce.
    #[default]
    Aes256Gcm = 1,
    /// AES-128-GCM.
    Aes128Gcm = 2,
    /// ChaCha20-Poly1305 (RFC 8439): for processors without AES instructions.
    ChaCha20Poly1305 = 3,
    #[cfg(feature = "weak-suites")]
    /// AES-192-CBC with HMAC-MD5: what the lazy-crypto paper measured, to repeat its experiments and for nothing else.
    Aes192CbcHmacMd5 = 0xf0,
    #[cfg(feature = "weak-suites")]
    /// Triple DES in CBC mode with HMAC-MD5: what the WAN paper's IPsec had by default, to repeat its experiments and for nothing else.
    TripleDesCbcHmacMd5 = 0xf1,
}

/// Names of the papers' suites, whether this build has them or not.
const WEAK_NAMES: [&str; 4] = ["aes192-cbc+hmac-md5", "paper", "3des-cbc+hmac-md5", "3des"];

impl Suite {
    /// All that this build has, the usual one first.
    #[cfg(not(feature = "weak-suites"))]
    pub const ALL: [Suite; 3] = [Suite::Aes256Gcm, Suite::Aes128Gcm, Suite::ChaCha20Poly1305];
    /// All that this build has, the usual one first.
    #[cfg(feature = "weak-suites")]
    pub const ALL: [Suite; 5] = [
        Suite::Aes256Gcm,
        Suite::Aes128Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Aes192CbcHmacMd5,
        Suite::TripleDesCbcHmacMd5,
    ];

    /// As in files, on the command line and in results: `aes-256-gcm`.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
            #[cfg(feature = "weak-suites")]
            Suite::Aes192CbcHmacMd5 => "aes192-cbc+hmac-md5",
            #[cfg(feature = "weak-suites")]
            Suite::TripleDesCbcHmacMd5 => "3des-cbc+hmac-md5",
        }
    }

    /// Whether it must never protect anything that counts: MD5 is broken, 64-bit blocks repeat, and there is no reason but the papers to
    /// use them.
    pub fn is_for_benchmarks_only(self) -> bool {
        !matches!(self, Suite::Aes256Gcm | Suite::Aes128Gcm | Suite::ChaCha20Poly1305)
    }

    /// From its byte on disk and wire.
    ///
    /// # Errors
    /// [`RecordError::Unknown`], also for a suite that this build does not have.
    pub fn from_byte(value: u8) -> Result<Suite, RecordError> {
        let found = Suite::ALL.into_iter().find(|suite| *suite as u8 == value);
        found.ok_or(RecordError::Unknown { field: "suite", value })
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no suite's, or the name of one that this build does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownSuite(String);

impl std::error::Error for UnknownSuite {}

impl fmt::Display for UnknownSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHOICES: &str = "aes-256-gcm, aes-128-gcm and chacha20-poly1305";
        let name = &self.0;
        if WEAK_NAMES.iter().any(|weak| weak.eq_ignore_ascii_case(name)) {
            write!(
                f,
                "the cipher suite '{name}' protects nothing today: it is for benchmarks alone, and this program does not have it \
                 (strongroom-lab does); choose from {CHOICES}"
            )
        } else {
            write!(f, "'{name}' is no cipher suite; choose from {CHOICES}")
        }
    }
}

impl FromStr for Suite {
    type Err = UnknownSuite;

    /// In any case; `paper` for the lazy-crypto paper's, `3des` for the WAN paper's.
    fn from_str(text: &str) -> Result<Suite, UnknownSuite> {
        #[cfg(feature = "weak-suites")]
        if text.eq_ignore_ascii_case("paper") {
            return Ok(Suite::Aes192CbcHmacMd5);
        }
        #[cfg(feature = "weak-suites")]
        if text.eq_ignore_ascii_case("3des") {
            return Ok(Suite::TripleDesCbcHmacMd5);
        }
        let named = Suite::ALL.into_iter().find(|suite| suite.name().eq_ignore_ascii_case(text));
        named.ok_or_else(|| UnknownSuite(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        for suite in Suite::ALL {
            assert_eq!(suite.name().to_uppercase().parse(), Ok(suite));
            assert_eq!(Suite::from_byte(suite as u8), Ok(suite));
        }
        assert!("rot13".parse::<Suite>().unwrap_err().to_string().contains("chacha20-poly1305"));
        assert!(Suite::from_byte(0).is_err() && Suite::from_byte(4).is_err());
    }

    #[cfg(feature = "weak-suites")]
    #[test]
    fn the_papers_suites_have_short_names() {
        assert_eq!("paper".parse(), Ok(Suite::Aes192CbcHmacMd5));
        assert_eq!("3DES".parse(), Ok(Suite::TripleDesCbcHmacMd5));
    }

    #[cfg(not(feature = "weak-suites"))]
    #[test]
    fn the_papers_suites_are_not_there() {
        for name in WEAK_NAMES {
            let refused = name.to_uppercase().parse::<Suite>().unwrap_err().to_string();
            assert!(refused.contains("benchmarks alone") && refused.contains("strongroom-lab"), "{refused}");
        }
        assert!(Suite::from_byte(0xf0).is_err() && Suite::from_byte(0xf1).is_err());
    }
}

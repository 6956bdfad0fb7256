//! CHAP (RFC 7143 §12.1.3, RFC 1994): what a secret, a challenge and a response are, and how they are written in key text. Who
//! says what when is in the session machines; randomness is an argument, and files with secrets are the caller's.

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest;
use md5::{Digest, Md5};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Shortest secret, in bytes: 96 bits, as RFC 7143 §9.2.1 wants outside IPsec.
pub const SECRET_BYTES_MIN: usize = 12;
/// Longest secret, in bytes.
pub const SECRET_BYTES_MAX: usize = 255;
/// Bytes of the challenges that this side makes.
pub const CHALLENGE_BYTES: usize = 32;
/// Longest name and longest binary value, in bytes (RFC 7143 §12.1.3: a challenge has up to 1024).
const VALUE_BYTES_MAX: usize = 1024;
/// Longest CHAP_N, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// What a response is made with; the numbers are CHAP_A's (RFC 7143 §12.1.3 and the IANA registry).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Algorithm {
    /// MD5, which every initiator can.
    Md5 = 5,
    /// SHA-1.
    Sha1 = 6,
    /// SHA-256.
    Sha256 = 7,
    /// SHA3-256.
    Sha3_256 = 8,
}

impl Algorithm {
    /// All of them, the best first.
    pub const ALL: [Algorithm; 4] = [Algorithm::Sha3_256, Algorithm::Sha256, Algorithm::Sha1, Algorithm::Md5];

    /// From its number.
    pub fn from_code(code: u32) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| *algorithm as u32 == code)
    }

    /// The response: the digest of identifier, secret and challenge (RFC 1994 §4.1).
    fn response(self, identifier: u8, secret: &Secret, challenge: &[u8]) -> Zeroizing<Vec<u8>> {
        let sha = |algorithm: &'static digest::Algorithm| {
            let mut context = digest::Context::new(algorithm);
            context.update(&[identifier]);
            context.update(&secret.0);
            context.update(challenge);
            context.finish().as_ref().to_vec()
        };
        Zeroizing::new(match self {
            Algorithm::Md5 => Md5::new()
                .chain_update([identifier])
                .chain_update(&secret.0)
                .chain_update(challenge)
                .finalize()
                .to_vec(),
            Algorithm::Sha1 => sha(&digest::SHA1_FOR_LEGACY_USE_ONLY),
            Algorithm::Sha256 => sha(&digest::SHA256),
            Algorithm::Sha3_256 => sha(&digest::SHA3_256),
        })
    }
}

/// A secret that both sides know. Shown nowhere, wiped when dropped.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of the right length.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn new(bytes: &[u8]) -> Result<Secret, SecretError> {
        match bytes.len() {
            SECRET_BYTES_MIN..=SECRET_BYTES_MAX => Ok(Secret(bytes.to_vec())),
            found => Err(SecretError { found }),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A secret that is too short to be one, or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a CHAP secret of {found} bytes: it must have {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}; make one with `openssl rand -base64 18`"
)]
pub struct SecretError {
    /// Its length in bytes.
    found: usize,
}

/// A name (CHAP_N) and the secret that proves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub name: String,
    /// The secret.
    pub secret: Secret,
}

/// A question that only the holder of the secret can answer. Random: never use one twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    identifier: u8,
    bytes: Vec<u8>,
}

impl Challenge {
    /// A challenge from fresh randomness.
    pub fn from_random(random: [u8; CHALLENGE_BYTES + 1]) -> Challenge {
        Challenge { identifier: random[0], bytes: random[1..].to_vec() }
    }

    /// Reads CHAP_I and CHAP_C.
    pub(crate) fn parse(identifier: &str, challenge: &str) -> Option<Challenge> {
        let identifier = u8::try_from(crate::login::number(identifier)?).ok()?;
        let bytes = decode_binary(challenge).filter(|bytes| !bytes.is_empty())?;
        Some(Challenge { identifier, bytes })
    }

    /// CHAP_I.
    pub(crate) fn identifier(&self) -> String {
        self.identifier.to_string()
    }

    /// CHAP_C.
    pub(crate) fn value(&self) -> String {
        encode_binary(&self.bytes)
    }

    /// Whether both ask the same: a peer that sends our own challenge back wants us to answer it for it.
    pub(crate) fn reflects(&self, other: &Challenge) -> bool {
        self.bytes == other.bytes
    }

    /// CHAP_R: what proves that we know `secret`.
    pub(crate) fn answer(&self, algorithm: Algorithm, secret: &Secret) -> String {
        encode_binary(&algorithm.response(self.identifier, secret, &self.bytes))
    }

    /// Whether a CHAP_R proves that the peer knows `secret`. The time that it takes does not tell how much was right.
    pub(crate) fn is_answered_by(&self, algorithm: Algorithm, secret: &Secret, response: &str) -> bool {
        let expected = algorithm.response(self.identifier, secret, &self.bytes);
        decode_binary(response).is_some_and(|found| verify_slices_are_equal(&found, &expected).is_ok())
    }
}

/// Reads a binary value (RFC 7143 §6.1): hexadecimal behind 0x, base64 behind 0b.
fn decode_binary(text: &str) -> Option<Vec<u8>> {
    let (prefix, digits) = text.split_at_checked(2)?;
    let value = match prefix {
        "0x" | "0X" if digits.len() <= 2 * VALUE_BYTES_MAX => decode_hex(digits.as_bytes()),
        "0b" | "0B" if digits.len() <= VALUE_BYTES_MAX.div_ceil(3) * 4 => decode_base64(digits.as_bytes()),
        _ => None,
    }?;
    // The last digits of base64 may stand for a byte or two more.
    (value.len() <= VALUE_BYTES_MAX).then_some(value)
}

/// An odd number of digits stands for a zero in front.
fn decode_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let nibble = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let (first, rest) = digits.split_at(digits.len() % 2);
    let mut bytes = first.iter().map(|digit| nibble(*digit)).collect::<Option<Vec<u8>>>()?;
    for pair in rest.chunks_exact(2) {
        bytes.push(nibble(pair[0])? << 4 | nibble(pair[1])?);
    }
    Some(bytes)
}

/// RFC 4648 §4, with or without the padding at the end.
fn decode_base64(digits: &[u8]) -> Option<Vec<u8>> {
    let padding = digits.iter().rev().take_while(|digit| **digit == b'=').count();
    let digits = &digits[..digits.len() - padding];
    if padding > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

/// Hexadecimal, the form that every peer reads.
fn encode_binary(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string succeeds");
        text
    })
}

/// Runs the decoders over arbitrary bytes, for fuzzing.
#[doc(hidden)]
pub fn fuzz_chap(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(value) = decode_binary(text) {
        assert!(value.len() <= VALUE_BYTES_MAX, "bounded");
        assert_eq!(decode_binary(&encode_binary(&value)), Some(value), "a value decodes as encoded");
    }
    let (identifier, challenge) = text.split_at_checked(2).unwrap_or((text, ""));
    if let Some(challenge) = Challenge::parse(identifier, challenge) {
        assert!(!challenge.bytes.is_empty() && challenge.reflects(&challenge));
    }
}

#[cfg(test)]
mod tests;

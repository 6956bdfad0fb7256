//! Key text: `key=value` pairs, each ended by a zero byte (RFC 7143 §6.1). What keys mean is in `login`.

use std::fmt::Write as _;

use strongroom_block::foreign;

/// Longest key, in bytes (RFC 7143 §6.1).
pub const KEY_BYTES_MAX: usize = 63;
/// Most pairs in one text: room for thousands of targets in a discovery, and a bound on the work of a flood.
pub const PAIRS_MAX: usize = 16384;

/// Text that is not key=value pairs. Who sent it misbehaved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A pair without `=`.
    #[error("key text without '='")]
    NoEquals,
    /// A key that is empty, too long, or of characters that no key has.
    #[error("a malformed key in key text")]
    Key,
    /// Not UTF-8.
    #[error("a key or value in key text is not UTF-8")]
    NotUtf8,
    /// The same key twice in one negotiation.
    #[error("the key {} appears twice", foreign(.0))]
    Twice(String),
    /// More than the limit.
    #[error("key text of more than {max_bytes} bytes")]
    TooLong {
        /// The limit.
        max_bytes: usize,
    },
    /// More pairs than the limit.
    #[error("key text of more than {PAIRS_MAX} pairs")]
    TooMany,
}

/// Pairs in the order of the text. Keys may repeat (TargetAddress does); where they must not, ask [`Pairs::check_unique`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Reads a text. Empty text between zero bytes is skipped; the last pair may lack its zero byte.
    ///
    /// # Errors
    /// [`TextError`].
    pub fn parse(text: &[u8]) -> Result<Pairs, TextError> {
        let mut pairs = Vec::new();
        for piece in text.split(|&byte| byte == 0).filter(|piece| !piece.is_empty()) {
            if pairs.len() == PAIRS_MAX {
                return Err(TextError::TooMany);
            }
            let equals = piece.iter().position(|&byte| byte == b'=').ok_or(TextError::NoEquals)?;
            let key = std::str::from_utf8(&piece[..equals]).map_err(|_| TextError::NotUtf8)?;
            let value = std::str::from_utf8(&piece[equals + 1..]).map_err(|_| TextError::NotUtf8)?;
            if !is_key(key) {
                return Err(TextError::Key);
            }
            pairs.push((key.to_owned(), value.to_owned()));
        }
        Ok(Pairs(pairs))
    }

    /// Appends a pair.
    pub fn push(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.0.push((key.into(), value.into()));
    }

    /// The value of the first pair with this key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == key).map(|(_, value)| value.as_str())
    }

    /// The pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that no key appears twice.
    ///
    /// # Errors
    /// [`TextError::Twice`].
    pub fn check_unique(&self) -> Result<(), TextError> {
        let mut keys: Vec<&str> = self.0.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(TextError::Twice(pair[0].to_owned())),
            None => Ok(()),
        }
    }

    /// The text.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = String::new();
        for (key, value) in &self.0 {
            write!(text, "{key}={value}\0").expect("writing to a string succeeds");
        }
        text.into_bytes()
    }
}

/// RFC 7143 §6.1: a capital letter first, then letters, digits, and `. - + @ _`.
fn is_key(key: &str) -> bool {
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || b".-+@_".contains(&byte);
    key.len() <= KEY_BYTES_MAX && key.as_bytes().first().is_some_and(u8::is_ascii_alphabetic) && key.bytes().all(rest)
}

/// Key text that comes in several PDUs (the C bit), up to a limit.
#[derive(Debug, Default)]
pub struct Collector {
    bytes: Vec<u8>,
}

impl Collector {
    /// Takes one PDU's text. Gives the whole once `continues` is false.
    ///
    /// # Errors
    /// [`TextError::TooLong`] when the whole would be longer than `max_bytes`; the errors of [`Pairs::parse`].
    pub fn push(&mut self, text: &[u8], continues: bool, max_bytes: usize) -> Result<Option<Pairs>, TextError> {
        if self.bytes.len() + text.len() > max_bytes {
            return Err(TextError::TooLong { max_bytes });
        }
        if self.bytes.is_empty() && !continues {
            return Pairs::parse(text).map(Some);
        }
        self.bytes.extend_from_slice(text);
        if continues {
            return Ok(None);
        }
        Pairs::parse(&std::mem::take(&mut self.bytes)).map(Some)
    }
}

/// Runs the parser over arbitrary bytes, for fuzzing.
#[doc(hidden)]
pub fn fuzz_text(bytes: &[u8]) {
    if let Ok(pairs) = Pairs::parse(bytes) {
        assert_eq!(Pairs::parse(&pairs.encode()), Ok(pairs.clone()), "text decodes as encoded");
        let _ = pairs.check_unique();
    }
}

#[cfg(test)]
mod tests;

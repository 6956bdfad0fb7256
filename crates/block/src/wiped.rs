//! Shared bytes that hold secrets.

use bytes::Bytes;
use zeroize::Zeroize;

struct Wiped(Vec<u8>);

impl AsRef<[u8]> for Wiped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Shared bytes whose memory is wiped when the last reference is dropped: for headers and parameter lists that carry block keys.
pub fn wiped(secret: Vec<u8>) -> Bytes {
    Bytes::from_owner(Wiped(secret))
}

//! How much cryptography a role has done: plain counters, so that "the target does none of it" is a number.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one role encrypted, decrypted and authenticated. Shared by everything that does cryptography for it.
///
/// Only payload counts (headers and blocks), not associated data: a target of the lazy schemes then shows its headers
/// and nothing else, which is the paper's Table 1 as a test.
#[derive(Debug, Default)]
pub struct CryptoCounters {
    encrypted: AtomicU64,
    decrypted: AtomicU64,
    mac_made: AtomicU64,
    mac_checked: AtomicU64,
}

/// What [`CryptoCounters`] showed at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CryptoBytes {
    /// Encrypted.
    pub encrypted: u64,
    /// Decrypted.
    pub decrypted: u64,
    /// Covered by a tag that was made.
    pub mac_made: u64,
    /// Covered by a tag that was checked, whether it fitted or not.
    pub mac_checked: u64,
}

impl CryptoBytes {
    /// Every byte that went through a cipher or an authenticator; one that went through both counts twice.
    pub fn total(self) -> u64 {
        self.encrypted + self.decrypted + self.mac_made + self.mac_checked
    }
}

impl CryptoCounters {
    /// All zero.
    pub const fn new() -> CryptoCounters {
        CryptoCounters {
            encrypted: AtomicU64::new(0),
            decrypted: AtomicU64::new(0),
            mac_made: AtomicU64::new(0),
            mac_checked: AtomicU64::new(0),
        }
    }

    /// Counts `bytes` encrypted and authenticated.
    pub fn sealed(&self, bytes: usize) {
        self.encrypted.fetch_add(bytes as u64, Ordering::Relaxed);
        self.mac_made.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` checked and decrypted.
    pub fn opened(&self, bytes: usize) {
        self.decrypted.fetch_add(bytes as u64, Ordering::Relaxed);
        self.mac_checked.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` authenticated without encryption.
    pub fn authenticated(&self, bytes: usize) {
        self.mac_made.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts `bytes` checked without decryption.
    pub fn verified(&self, bytes: usize) {
        self.mac_checked.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn snapshot(&self) -> CryptoBytes {
        CryptoBytes {
            encrypted: self.encrypted.load(Ordering::Relaxed),
            decrypted: self.decrypted.load(Ordering::Relaxed),
            mac_made: self.mac_made.load(Ordering::Relaxed),
            mac_checked: self.mac_checked.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_work_lands_in_its_own_count() {
        let counters = CryptoCounters::new();
        counters.sealed(1);
        counters.opened(10);
        counters.authenticated(100);
        counters.verified(1000);
        let counted = counters.snapshot();
        assert_eq!(counted, CryptoBytes { encrypted: 1, decrypted: 10, mac_made: 101, mac_checked: 1010 });
        assert_eq!(counted.total(), 1122);
    }
}

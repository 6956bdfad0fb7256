//! The keyless checksum: tells accidents, never attacks.

use crc_fast::CrcAlgorithm;

/// CRC-64/NVME of a block as stored (of the *ciphertext* for a sealed block).
///
/// A store without keys scrubs with it. CRCs are linear, so an attacker who can change bytes can preserve it: only the AEAD tag
/// stands against an attacker.
pub fn keyless_checksum(block: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, block)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVM Command Set specification, "64b CRC" check values; and the catalogue's check string.
    #[test]
    fn agrees_with_the_published_vectors() {
        assert_eq!(keyless_checksum(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(keyless_checksum(&[0; 4096]), 0x6482_d367_eb22_b64e);
        assert_eq!(keyless_checksum(&[0xff; 4096]), 0xc0dd_ba73_02ec_a3ac);
    }
}

//! Checksums of contents of any size, where absent ranges count as zeros without being walked.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};
use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

const ALGORITHM: CrcAlgorithm = CrcAlgorithm::Crc64Nvme;
const ZEROS: [u8; 4096] = [0; 4096];

/// Checksums of the whole contents, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentSums {
    /// CRC-64/NVME: tells accidents.
    pub crc64: u64,
    /// SHA-256, if it was asked for.
    pub sha256: Option<[u8; 32]>,
}

impl fmt::Display for ContentSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crc64:{:016x}", self.crc64)?;
        if let Some(sha256) = &self.sha256 {
            write!(f, " sha256:")?;
            sha256.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

/// Sums under way.
pub(super) struct Contents {
    /// Of everything before `run`.
    crc64: u64,
    /// Data since the last absence.
    run: Digest,
    run_bytes: u64,
    sha256: Option<Context>,
}

impl Contents {
    pub(super) fn new(sha256: bool) -> Contents {
        let sha256 = sha256.then(|| Context::new(&SHA256));
        Contents { crc64: checksum(ALGORITHM, &[]), run: Digest::new(ALGORITHM), run_bytes: 0, sha256 }
    }

    pub(super) fn add(&mut self, data: &[u8]) {
        self.run.update(data);
        self.run_bytes += data.len() as u64;
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(data);
        }
    }

    /// As [`Contents::add`] of `len_bytes` zeros. The CRC is combined in a number of steps that grows with the logarithm.
    pub(super) fn add_zeros(&mut self, len_bytes: u64) {
        self.end_run();
        self.crc64 = checksum_combine(ALGORITHM, self.crc64, crc64_of_zeros(len_bytes), len_bytes);
        if let Some(sha256) = &mut self.sha256 {
            let mut left = len_bytes;
            while left > 0 {
                let bytes = left.min(ZEROS.len() as u64);
                sha256.update(&ZEROS[..bytes as usize]);
                left -= bytes;
            }
        }
    }

    /// Goes on where the CRC of what came before is known. Not with a SHA-256.
    pub(super) fn go_on_from(&mut self, crc64: u64) {
        debug_assert!(self.sha256.is_none(), "a SHA-256 begins at the start");
        self.crc64 = crc64;
    }

    /// Of what came so far.
    pub(super) fn crc64(&mut self) -> u64 {
        self.end_run();
        self.crc64
    }

    fn end_run(&mut self) {
        if self.run_bytes > 0 {
            self.crc64 = checksum_combine(ALGORITHM, self.crc64, self.run.finalize(), self.run_bytes);
            self.run = Digest::new(ALGORITHM);
            self.run_bytes = 0;
        }
    }

    pub(super) fn finish(mut self) -> ContentSums {
        self.end_run();
        let sha256 = self.sha256.map(|context| context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"));
        ContentSums { crc64: self.crc64, sha256 }
    }
}

fn crc64_of_zeros(len_bytes: u64) -> u64 {
    let (mut sum, mut done) = (checksum(ALGORITHM, &[]), 0_u64);
    let (mut power, mut power_sum) = (1_u64, checksum(ALGORITHM, &ZEROS[..1]));
    let mut left = len_bytes;
    while left > 0 {
        if left & 1 == 1 {
            sum = if done == 0 { power_sum } else { checksum_combine(ALGORITHM, sum, power_sum, power) };
            done += power;
        }
        left >>= 1;
        if left > 0 {
            power_sum = checksum_combine(ALGORITHM, power_sum, power_sum, power);
            power *= 2;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    //! Proves that skipping zeros gives the sum of walking them.
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn absent_ranges_count_as_zeros(parts in proptest::collection::vec((any::<bool>(), 0usize..9000), 0..8)) {
            let (mut contents, mut all) = (Contents::new(true), Vec::new());
            for (at, &(absent, len)) in parts.iter().enumerate() {
                if absent {
                    contents.add_zeros(len as u64);
                    all.resize(all.len() + len, 0);
                } else {
                    let data = vec![at as u8 + 1; len];
                    contents.add(&data);
                    all.extend_from_slice(&data);
                }
            }
            let sums = contents.finish();
            prop_assert_eq!(sums.crc64, strongroom_block::keyless_checksum(&all));
            let sha256 = aws_lc_rs::digest::digest(&SHA256, &all);
            prop_assert_eq!(&sums.sha256.unwrap()[..], sha256.as_ref());
        }
    }

    #[test]
    fn a_huge_absence_takes_no_time() {
        let mut contents = Contents::new(false);
        contents.add_zeros(1 << 60);
        contents.add(b"end");
        contents.finish();
    }
}

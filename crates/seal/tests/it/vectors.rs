//! The inputs that all vectors of docs/sealed-block.md have in common.

use std::sync::Arc;

use strongroom_block::{AttachId, Lba, Stamp};
use strongroom_seal::CryptoCounters;

pub(crate) const LBA: Lba = Lba(0x0102_0304_0506_0708);
pub(crate) const KEY: [u8; 32] = counting(0);
/// What every block key is.
pub(crate) const BLOCK_KEY: [u8; 32] = {
    let mut bytes = [0; 32];
    let mut at = 0;
    while at < 32 {
        bytes[at] = 0xb0 + (at % 16) as u8;
        at += 1;
    }
    bytes
};

pub(crate) const fn counting<const N: usize>(from: u8) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = from + at as u8;
        at += 1;
    }
    bytes
}

pub(crate) fn stamp() -> Stamp {
    Stamp { attach_id: AttachId(counting(0x40)), counter: 9 }
}

pub(crate) fn plain() -> Vec<u8> {
    (0..512u32).map(|at| (at * 7 + 3) as u8).collect()
}

/// Draws [`BLOCK_KEY`] whenever a key is drawn.
pub(crate) fn fill_block_keys(out: &mut [u8]) {
    out.chunks_exact_mut(32).for_each(|key| key.copy_from_slice(&BLOCK_KEY));
}

pub(crate) fn counters() -> Arc<CryptoCounters> {
    Arc::new(CryptoCounters::new())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

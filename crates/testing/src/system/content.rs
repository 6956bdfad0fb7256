//! What is written: each half of a block tells which write it is of, and where it belongs.

use super::history::Value;
use super::layout::{BLOCK_BYTES, HALVES};

/// Where they begin and end, in bytes: not where sectors or words do.
const BOUNDS: [usize; 3] = [0, 200, BLOCK_BYTES];

/// Where a half lies in its block.
pub(super) fn range_of_half(half: u64) -> std::ops::Range<usize> {
    BOUNDS[half as usize]..BOUNDS[half as usize + 1]
}

/// The data of half a block of a write.
pub(super) fn of_half(write: u64, block: u64, half: u64) -> Vec<u8> {
    let len = range_of_half(half).len();
    let mut random = crate::Random::new(write << 20 ^ block << 1 ^ half);
    let mut data = write.to_be_bytes().to_vec();
    while data.len() < len {
        data.extend_from_slice(&random.number().to_be_bytes());
    }
    data
}

/// The data of a block of a write.
pub(super) fn of_block(write: u64, block: u64) -> Vec<u8> {
    (0..HALVES).flat_map(|half| of_half(write, block, half)).collect()
}

/// Which writes the halves of a block are of; `None`: one of them is nothing that was ever written there.
pub(super) fn values_of(block: u64, data: &[u8]) -> Option<[Value; HALVES as usize]> {
    let value = |half: u64| {
        let data = &data[range_of_half(half)];
        if data.iter().all(|&byte| byte == 0) {
            return Some(Value::Zeros);
        }
        let write = u64::from_be_bytes(data.first_chunk().copied()?);
        (data == of_half(write, block, half)).then_some(Value::Written(write))
    };
    Some([value(0)?, value(1)?])
}

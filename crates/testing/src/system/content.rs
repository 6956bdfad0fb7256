//! What is written: each block tells which write it is of, and where it belongs.

use super::history::Value;
use super::target::BLOCK_BYTES;

/// The data of a block of a write.
pub(super) fn of_block(write: u64, block: u64) -> Vec<u8> {
    let mut random = crate::Random::new(write << 20 ^ block);
    let mut data = Vec::with_capacity(BLOCK_BYTES);
    data.extend_from_slice(&write.to_be_bytes());
    while data.len() < BLOCK_BYTES {
        data.extend_from_slice(&random.number().to_be_bytes());
    }
    data
}

/// Which write a block is of; `None`: it is nothing that was ever written there.
pub(super) fn value_of(block: u64, data: &[u8]) -> Option<Value> {
    if data.iter().all(|&byte| byte == 0) {
        return Some(Value::Zeros);
    }
    let write = u64::from_be_bytes(data.first_chunk().copied()?);
    (data == of_block(write, block)).then_some(Value::Written(write))
}

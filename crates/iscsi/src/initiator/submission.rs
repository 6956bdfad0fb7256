//! What a command must be to be sent in a session.

use super::types::{Command, Config, Direction, SessionKind, WriteSource};
use crate::login::Agreed;

/// Checks a command; what is wrong with it, if anything.
pub(super) fn check_command(command: &Command, config: &Config, session: &Agreed) -> Result<(), &'static str> {
    if config.kind == SessionKind::Discovery {
        return Err("a discovery session takes no commands");
    }
    if (command.direction == Direction::Write) != command.write.is_some() {
        return Err("a write has data and nothing else has");
    }
    let block_bytes = match &command.write {
        None => command.sealed_block_bytes,
        Some(source) if source.data.len() != command.expected_bytes as usize => {
            return Err("the length of its data is not the expected one");
        }
        Some(WriteSource { records: None, .. }) => None,
        Some(WriteSource { data, records: Some(records) }) => {
            let (block, record) = (records.block_bytes as usize, records.record_bytes as usize);
            if block == 0 || record == 0 || record > u8::MAX as usize || data.len() % block != 0 {
                return Err("sealed data must be whole blocks");
            }
            if data.len() / block * record != records.bytes.len() {
                return Err("there must be one record per block");
            }
            if !session.max_burst_bytes.is_multiple_of(records.block_bytes) {
                return Err("the target's MaxBurstLength is not a multiple of the block size");
            }
            if session.send_segment_bytes_max < records.block_bytes {
                return Err("the target takes less than a block per PDU");
            }
            Some(records.block_bytes)
        }
    };
    if block_bytes.is_some() && !config.in_channel {
        return Err("sealed blocks travel inside a channel only; use a strongroom:// URL");
    }
    Ok(())
}

//! Proves that the machines speak the protocol: byte for byte as the specification has it, for every option, command and format; and that
//! malformed input is refused.

mod negotiation;
mod requests;

use strongroom_block::BlockSize;

use crate::Export;

/// 1 GiB, called "vault".
fn export() -> Export {
    Export {
        name: "vault".to_owned(),
        size_bytes: 1 << 30,
        block_size: BlockSize::DEFAULT,
        read_only: false,
        fast_zero: true,
    }
}

/// Bytes from hexadecimal digits; spaces separate fields.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|letter| letter.to_digit(16)).collect();
    assert_eq!(digits.len(), text.chars().filter(|letter| !letter.is_whitespace()).count(), "{text}");
    digits.chunks(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

//! Block data that says where it belongs: each 512 bytes name their address and which write they are of, and the rest follows
//! from that, so that a reader can check them.

/// Bytes that carry a mark of their own.
pub(crate) const SECTOR: usize = 512;
const MAGIC: u64 = 0x5374_726f_6e67_726d;
const WORDS: usize = SECTOR / 8;

/// A mixer with full avalanche (splitmix64's).
pub(crate) fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

fn word(sector: u64, write: u64, index: usize) -> u64 {
    match index {
        0 => MAGIC,
        1 => sector,
        2 => write,
        index => mix(sector ^ write.rotate_left(32) ^ ((index as u64) << 56)),
    }
}

/// Fills `data` as the `write`th write to what begins at byte `start`.
pub(crate) fn fill(data: &mut [u8], start: u64, write: u64) {
    for (sector, bytes) in (start / SECTOR as u64..).zip(data.chunks_exact_mut(SECTOR)) {
        for index in 0..WORDS {
            bytes[index * 8..][..8].copy_from_slice(&word(sector, write, index).to_le_bytes());
        }
    }
}

/// Looks at data read from byte `start`: every sector has to be of its place, whole, and of the same write; returns which.
/// With `write`, of that one.
///
/// # Errors
/// In words, what is wrong with the first that is.
pub(crate) fn check(data: &[u8], start: u64, write: Option<u64>) -> Result<(), String> {
    for (sector, bytes) in (start / SECTOR as u64..).zip(data.chunks_exact(SECTOR)) {
        let found = |index: usize| u64::from_le_bytes(bytes[index * 8..][..8].try_into().expect("8 bytes"));
        if found(0) != MAGIC {
            return Err(format!("what was read at byte {} was not written by this benchmark", sector * SECTOR as u64));
        }
        if found(1) != sector {
            return Err(format!("what was read at sector {sector} was written to sector {}", found(1)));
        }
        let of = found(2);
        if write.is_some_and(|write| write != of) {
            let expected = write.unwrap_or_default();
            return Err(format!("sector {sector} holds write {of}, and write {expected} was acknowledged later"));
        }
        if (3..WORDS).any(|index| found(index) != word(sector, of, index)) {
            return Err(format!("sector {sector} holds damaged data"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_data_passes_and_every_kind_of_wrong_data_does_not() {
        let mut data = vec![0; 4096];
        fill(&mut data, 8192, 7);
        check(&data, 8192, Some(7)).unwrap();
        check(&data, 8192, None).unwrap();
        assert!(check(&data, 8192, Some(8)).unwrap_err().contains("write 8"));
        assert!(check(&data, 4096, None).unwrap_err().contains("was written to sector 16"));
        data[3000] ^= 1;
        assert!(check(&data, 8192, None).unwrap_err().contains("damaged"));
        assert!(check(&[0; 512], 0, None).unwrap_err().contains("not written by"));
    }
}

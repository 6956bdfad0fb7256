//! READ DEFECT DATA (SBC-3 §5.19, §5.20): the store remaps nothing, so both lists are empty.

/// The parameter data: an empty list, in the format that was asked for, naming the lists that were asked for.
pub fn empty(twelve: bool, lists: u8, format: u8) -> Vec<u8> {
    let flags = lists | format;
    if twelve { vec![0, flags, 0, 0, 0, 0, 0, 0] } else { vec![0, flags, 0, 0] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(empty(false, 0x18, 5), [0, 0x1d, 0, 0]);
        assert_eq!(empty(true, 0x08, 0), [0, 0x08, 0, 0, 0, 0, 0, 0]);
    }
}

//! REPORT LUNS data (SPC-4 §6.33): one unit per target, LUN 0.

use crate::bytes::{be32, be64};

/// The list with LUN 0 alone, or an empty one (well-known units were asked for: there are none).
pub fn report(select: u8) -> Option<Vec<u8>> {
    match select {
        0x00 | 0x02 => Some([8u32.to_be_bytes().as_slice(), &[0; 12]].concat()),
        0x01 | 0x10..=0x12 => Some(vec![0; 8]),
        _ => None,
    }
}

/// Reads the list: each LUN as its 8 bytes.
pub fn parse(data: &[u8]) -> Option<Vec<u64>> {
    let len = be32(data, 0)? as usize;
    let list = data.get(8..)?;
    let list = &list[..len.min(list.len())];
    list.chunks_exact(8).map(|lun| be64(lun, 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        assert_eq!(report(0).unwrap(), [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(report(1).unwrap(), [0; 8]);
        assert_eq!(report(3), None);
        assert_eq!(parse(&report(2).unwrap()), Some(vec![0]));
        assert_eq!(parse(&[0xff; 9]), Some(vec![]));
    }
}

//! REPORT LUNS data (SPC-4 §6.33): one unit per target, LUN 0, and the well-known unit that lists it.

use crate::bytes::{be32, be64};

/// The well-known unit that answers REPORT LUNS (SPC-4 §8.2), as on the wire.
pub const REPORT_LUNS_WELL_KNOWN: u64 = 0xc101 << 48;

/// The list for SELECT REPORT: LUN 0, the well-known unit, or both; `None` for a value that is reserved.
pub fn report(select: u8) -> Option<Vec<u8>> {
    let luns: &[u64] = match select {
        0x00 | 0x11 => &[0],
        0x01 => &[REPORT_LUNS_WELL_KNOWN],
        0x02 => &[0, REPORT_LUNS_WELL_KNOWN],
        // Administrative and subsidiary units: none.
        0x10 | 0x12 => &[],
        _ => return None,
    };
    let mut data = ((8 * luns.len()) as u32).to_be_bytes().to_vec();
    data.extend_from_slice(&[0; 4]);
    luns.iter().for_each(|lun| data.extend_from_slice(&lun.to_be_bytes()));
    Some(data)
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
        assert_eq!(report(1).unwrap()[8..], [0xc1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(report(0x12).unwrap(), [0; 8]);
        assert_eq!(report(3), None);
        assert_eq!(parse(&report(2).unwrap()), Some(vec![0, REPORT_LUNS_WELL_KNOWN]));
        assert_eq!(parse(&[0xff; 9]), Some(vec![]));
    }
}

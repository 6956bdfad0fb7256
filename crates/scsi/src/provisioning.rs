//! UNMAP parameter lists and GET LBA STATUS data (SBC-3 §5.28, §5.5).

use strongroom_block::Lba;

use crate::bytes::{be16, be32, be64};

/// Most descriptors in one UNMAP that we take.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// Most descriptors that we put into one GET LBA STATUS answer.
pub const LBA_STATUS_DESCRIPTORS_MAX: u32 = 256;

/// An UNMAP parameter list that contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// The list is shorter than its own lengths say.
    #[error("an UNMAP parameter list shorter than it says")]
    Truncated,
    /// More descriptors than [`UNMAP_DESCRIPTORS_MAX`].
    #[error("an UNMAP parameter list with more than {UNMAP_DESCRIPTORS_MAX} ranges")]
    TooMany,
}

/// The parameter list of UNMAP, for initiators.
///
/// # Panics
/// If there are more than [`UNMAP_DESCRIPTORS_MAX`] ranges.
pub fn unmap_parameters(ranges: &[(Lba, u32)]) -> Vec<u8> {
    assert!(ranges.len() <= UNMAP_DESCRIPTORS_MAX as usize, "split the ranges over several UNMAPs");
    let descriptors = (ranges.len() * 16) as u16;
    let mut list = Vec::with_capacity(8 + usize::from(descriptors));
    list.extend_from_slice(&(descriptors + 6).to_be_bytes());
    list.extend_from_slice(&descriptors.to_be_bytes());
    list.extend_from_slice(&[0; 4]);
    for (lba, count) in ranges {
        list.extend_from_slice(&lba.0.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    list
}

/// Reads an UNMAP parameter list. An empty list is legal and says nothing.
///
/// # Errors
/// [`UnmapError`].
pub fn parse_unmap(list: &[u8]) -> Result<Vec<(Lba, u32)>, UnmapError> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let descriptors = usize::from(be16(list, 2).ok_or(UnmapError::Truncated)?);
    let body = list.get(8..).ok_or(UnmapError::Truncated)?.get(..descriptors).ok_or(UnmapError::Truncated)?;
    if body.len() / 16 > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(UnmapError::TooMany);
    }
    // SBC-3 §5.28.2: a trailing part of a descriptor is ignored.
    body.chunks_exact(16)
        .map(|range| Some((Lba(be64(range, 0)?), be32(range, 8)?)))
        .collect::<Option<_>>()
        .ok_or(UnmapError::Truncated)
}

/// Whether a range of blocks has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbaStatus {
    /// First block.
    pub lba: Lba,
    /// How many.
    pub count: u32,
    /// Stored (true), or absent (false).
    pub mapped: bool,
}

/// GET LBA STATUS data.
pub fn lba_status(ranges: &[LbaStatus]) -> Vec<u8> {
    let mut data = Vec::with_capacity(8 + 16 * ranges.len());
    data.extend_from_slice(&((4 + 16 * ranges.len()) as u32).to_be_bytes());
    data.extend_from_slice(&[0; 4]);
    for range in ranges {
        data.extend_from_slice(&range.lba.0.to_be_bytes());
        data.extend_from_slice(&range.count.to_be_bytes());
        data.extend_from_slice(&[u8::from(!range.mapped), 0, 0, 0]);
    }
    data
}

/// Reads GET LBA STATUS data. An anchored block counts as absent.
pub fn parse_lba_status(data: &[u8]) -> Option<Vec<LbaStatus>> {
    let len = (be32(data, 0)? as usize).checked_sub(4)?;
    let list = data.get(8..)?;
    let list = &list[..len.min(list.len())];
    list.chunks_exact(16)
        .map(|range| {
            Some(LbaStatus { lba: Lba(be64(range, 0)?), count: be32(range, 8)?, mapped: range[12] & 0x0f == 0 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_unmap() {
        let list = unmap_parameters(&[(Lba(0x0102), 3)]);
        assert_eq!(list, [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 0]);
        assert_eq!(parse_unmap(&list), Ok(vec![(Lba(0x0102), 3)]));
        assert_eq!(parse_unmap(&list[..23]), Err(UnmapError::Truncated));
        assert_eq!(parse_unmap(&[]), Ok(vec![]));
        assert_eq!(parse_unmap(&[0, 6, 0, 0, 0, 0, 0, 0]), Ok(vec![]));
    }

    #[test]
    fn status_parses_as_encoded() {
        let ranges = [
            LbaStatus { lba: Lba(0), count: 8, mapped: true },
            LbaStatus { lba: Lba(8), count: u32::MAX, mapped: false },
        ];
        assert_eq!(parse_lba_status(&lba_status(&ranges)), Some(ranges.to_vec()));
        assert_eq!(parse_lba_status(&[0, 0, 0, 3, 0, 0, 0, 0]), None);
    }
}

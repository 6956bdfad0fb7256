//! Requests of a guest, as the virtio specification has them (5.2.6): decoded from bytes and lengths, and checked against the volume. Pure.
//!
//! Absent: where the bytes come from (`chain`), and what is done (`disk`).

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES,
};

/// What virtio counts in, with any block size.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Of a request's header.
pub(super) const HEADER_BYTES: usize = 16;
/// Of one range of a discard or of zeros.
pub(super) const RANGE_BYTES: usize = 16;
/// Data of one request, in bytes: what may have to be in memory at once.
pub(super) const REQUEST_BYTES_MAX: u64 = 32 << 20;
/// Ranges of one discard.
pub(super) const DISCARD_RANGES_MAX: u32 = 32;
/// Sectors of one of them.
pub(super) const DISCARD_SECTORS_MAX: u32 = 1 << 22;
/// Ranges of one request that writes zeros.
pub(super) const ZERO_RANGES_MAX: u32 = 1;
/// Sectors of it: they may have to be written, in parts.
pub(super) const ZERO_SECTORS_MAX: u32 = (REQUEST_BYTES_MAX / SECTOR_BYTES) as u32;

/// The flag of a range that allows to deallocate it.
const RANGE_UNMAP: u32 = 1;

/// What requests are checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct VolumeLimits {
    pub(super) size_bytes: u64,
    pub(super) read_only: bool,
}

/// What a guest asks for, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockRequest {
    /// As much as there is room for.
    Read {
        offset: u64,
        len_bytes: u64,
    },
    Write {
        offset: u64,
        len_bytes: u64,
    },
    Flush,
    /// The serial number.
    Identify,
    /// The ranges follow the header, in this many bytes.
    Discard {
        ranges_bytes: usize,
    },
    WriteZeroes {
        ranges_bytes: usize,
    },
}

/// A range to discard, or of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorRange {
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
    /// It may be deallocated.
    pub(super) may_unmap: bool,
}

/// A request that is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    #[error("the request has no whole header")]
    NoHeader,
    #[error("request type {0} is not supported")]
    UnknownType(u32),
    #[error("the volume is read-only")]
    ReadOnly,
    #[error("{0} bytes are not whole sectors")]
    NotWholeSectors(u64),
    #[error("{0} bytes are more than a request may have")]
    TooLong(u64),
    #[error("sector {sector} and {len_bytes} bytes lie outside of the volume")]
    OutOfRange { sector: u64, len_bytes: u64 },
    #[error("the request has {0} bytes of data, which its type does not allow")]
    DataLength(u64),
    #[error("a range has the flags {0:#x}")]
    RangeFlags(u32),
    #[error("data lie outside of the guest's memory")]
    Memory,
}

impl RequestError {
    /// What the guest is answered.
    pub(super) fn status(self) -> u8 {
        let status = match self {
            RequestError::UnknownType(_) | RequestError::RangeFlags(_) => VIRTIO_BLK_S_UNSUPP,
            _ => VIRTIO_BLK_S_IOERR,
        };
        status as u8
    }
}

impl BlockRequest {
    /// Decodes a request with `out_bytes` of the driver's data behind its header, and room for `in_bytes` of the device's.
    ///
    /// # Errors
    /// [`RequestError`]: what is wrong with it.
    pub(super) fn decode(
        header: &[u8; HEADER_BYTES],
        out_bytes: u64,
        in_bytes: u64,
        limits: VolumeLimits,
    ) -> Result<BlockRequest, RequestError> {
        let kind = u32::from_le_bytes(header[..4].try_into().expect("four bytes"));
        let sector = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
        let writable = || if limits.read_only { Err(RequestError::ReadOnly) } else { Ok(()) };
        match kind {
            VIRTIO_BLK_T_IN => {
                let (offset, len_bytes) = (data_range(sector, in_bytes, limits)?, in_bytes);
                Ok(BlockRequest::Read { offset, len_bytes })
            }
            VIRTIO_BLK_T_OUT => {
                writable()?;
                let (offset, len_bytes) = (data_range(sector, out_bytes, limits)?, out_bytes);
                Ok(BlockRequest::Write { offset, len_bytes })
            }
            VIRTIO_BLK_T_FLUSH => Ok(BlockRequest::Flush),
            VIRTIO_BLK_T_GET_ID => Ok(BlockRequest::Identify),
            VIRTIO_BLK_T_DISCARD => {
                writable()?;
                Ok(BlockRequest::Discard { ranges_bytes: ranges_len(out_bytes, DISCARD_RANGES_MAX)? })
            }
            VIRTIO_BLK_T_WRITE_ZEROES => {
                writable()?;
                Ok(BlockRequest::WriteZeroes { ranges_bytes: ranges_len(out_bytes, ZERO_RANGES_MAX)? })
            }
            other => Err(RequestError::UnknownType(other)),
        }
    }

    /// Bytes of data that have to be in memory until it is answered, if blocks have `block_bytes`.
    pub(super) fn memory_bytes(self, block_bytes: u64) -> usize {
        match self {
            // Of the first and of the last block a part may not be wanted.
            BlockRequest::Read { len_bytes, .. } => (len_bytes + 2 * block_bytes) as usize,
            BlockRequest::Write { len_bytes, .. } => len_bytes as usize,
            _ => 0,
        }
    }
}

/// Where data begin, if they lie in the volume.
fn data_range(sector: u64, len_bytes: u64, limits: VolumeLimits) -> Result<u64, RequestError> {
    if len_bytes == 0 {
        return Err(RequestError::DataLength(0));
    }
    if !len_bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(RequestError::NotWholeSectors(len_bytes));
    }
    if len_bytes > REQUEST_BYTES_MAX {
        return Err(RequestError::TooLong(len_bytes));
    }
    offset_of(sector, len_bytes, limits)
}

fn offset_of(sector: u64, len_bytes: u64, limits: VolumeLimits) -> Result<u64, RequestError> {
    let offset = sector.checked_mul(SECTOR_BYTES);
    let lies_inside = |offset: &u64| offset.checked_add(len_bytes).is_some_and(|end| end <= limits.size_bytes);
    offset.filter(lies_inside).ok_or(RequestError::OutOfRange { sector, len_bytes })
}

fn ranges_len(out_bytes: u64, ranges_max: u32) -> Result<usize, RequestError> {
    let is_allowed = out_bytes > 0
        && out_bytes.is_multiple_of(RANGE_BYTES as u64)
        && out_bytes / RANGE_BYTES as u64 <= u64::from(ranges_max);
    if is_allowed { Ok(out_bytes as usize) } else { Err(RequestError::DataLength(out_bytes)) }
}

impl SectorRange {
    /// Decodes the ranges of a discard.
    ///
    /// # Errors
    /// [`RequestError`]: none of them may be executed.
    pub(super) fn decode_discard(bytes: &[u8], limits: VolumeLimits) -> Result<Vec<SectorRange>, RequestError> {
        // A discard always deallocates; the flag is reserved there.
        SectorRange::decode_all(bytes, limits, DISCARD_SECTORS_MAX, 0)
    }

    /// Decodes the ranges of a request that writes zeros.
    ///
    /// # Errors
    /// [`RequestError`]: none of them may be executed.
    pub(super) fn decode_zeroes(bytes: &[u8], limits: VolumeLimits) -> Result<Vec<SectorRange>, RequestError> {
        SectorRange::decode_all(bytes, limits, ZERO_SECTORS_MAX, RANGE_UNMAP)
    }

    fn decode_all(
        bytes: &[u8],
        limits: VolumeLimits,
        sectors_max: u32,
        known_flags: u32,
    ) -> Result<Vec<SectorRange>, RequestError> {
        let decode = |bytes: &[u8]| {
            let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
            let (sector, sectors, flags) = (u64::from(field(0)) | u64::from(field(4)) << 32, field(8), field(12));
            if flags & !known_flags != 0 {
                return Err(RequestError::RangeFlags(flags));
            }
            let len_bytes = u64::from(sectors) * SECTOR_BYTES;
            if sectors > sectors_max {
                return Err(RequestError::TooLong(len_bytes));
            }
            let offset = offset_of(sector, len_bytes, limits)?;
            Ok(SectorRange { offset, len_bytes, may_unmap: flags & RANGE_UNMAP != 0 })
        };
        bytes.chunks_exact(RANGE_BYTES).map(decode).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Proves what of a guest's requests is executed, and that nothing outside of the volume is ever reached.

    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 20;
    const LIMITS: VolumeLimits = VolumeLimits { size_bytes: SIZE, read_only: false };

    fn header(kind: u32, sector: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }

    fn decode(kind: u32, sector: u64, out_bytes: u64, in_bytes: u64) -> Result<BlockRequest, RequestError> {
        BlockRequest::decode(&header(kind, sector), out_bytes, in_bytes, LIMITS)
    }

    fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
        [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
    }

    #[test]
    fn requests_are_decoded() {
        assert_eq!(decode(0, 3, 0, 1024), Ok(BlockRequest::Read { offset: 1536, len_bytes: 1024 }));
        assert_eq!(decode(1, 2047, 512, 0), Ok(BlockRequest::Write { offset: SIZE - 512, len_bytes: 512 }));
        assert_eq!(decode(4, 77, 0, 0), Ok(BlockRequest::Flush), "the sector does not count");
        assert_eq!(decode(8, 0, 0, 20), Ok(BlockRequest::Identify));
        assert_eq!(decode(11, 0, 32, 0), Ok(BlockRequest::Discard { ranges_bytes: 32 }));
        assert_eq!(decode(13, 0, 16, 0), Ok(BlockRequest::WriteZeroes { ranges_bytes: 16 }));
        let ranges = [range(0, 8, 0), range(2040, 8, 0)].concat();
        let expected = [(0, 4096), (2040 * 512, 4096)];
        let expected = expected.map(|(offset, len_bytes)| SectorRange { offset, len_bytes, may_unmap: false });
        assert_eq!(SectorRange::decode_discard(&ranges, LIMITS), Ok(expected.to_vec()));
        let zeros = SectorRange::decode_zeroes(&range(1, 2, 1), LIMITS).unwrap();
        assert_eq!(zeros, [SectorRange { offset: 512, len_bytes: 1024, may_unmap: true }]);
    }

    #[test]
    fn attack_vhost_user_requests_outside_of_the_volume() {
        for (sector, len) in [(2048, 512), (2047, 1024), (u64::MAX, 512), (u64::MAX / 512, 512), (1 << 55, 512)] {
            for kind in [0, 1] {
                let out_of_range = RequestError::OutOfRange { sector, len_bytes: len };
                assert_eq!(decode(kind, sector, len, len), Err(out_of_range));
                assert_eq!(out_of_range.status(), 1);
            }
            let sectors = (len / 512) as u32;
            assert!(SectorRange::decode_discard(&range(sector, sectors, 0), LIMITS).is_err());
            assert!(SectorRange::decode_zeroes(&range(sector, sectors, 1), LIMITS).is_err());
        }
        // One bad range spoils all of them.
        let ranges = [range(0, 8, 0), range(2048, 1, 0)].concat();
        assert!(SectorRange::decode_discard(&ranges, LIMITS).is_err());
    }

    #[test]
    fn attack_vhost_user_lengths_that_lie() {
        assert_eq!(decode(0, 0, 0, 0), Err(RequestError::DataLength(0)));
        assert_eq!(decode(1, 0, 513, 0), Err(RequestError::NotWholeSectors(513)));
        assert_eq!(decode(0, 0, 0, 511), Err(RequestError::NotWholeSectors(511)));
        let large = VolumeLimits { size_bytes: 1 << 40, read_only: false };
        let len = REQUEST_BYTES_MAX + 512;
        assert_eq!(BlockRequest::decode(&header(1, 0), len, 0, large), Err(RequestError::TooLong(len)));
        for bytes in [0, 15, 17, 16 * (u64::from(DISCARD_RANGES_MAX) + 1), u64::MAX] {
            assert_eq!(decode(11, 0, bytes, 0), Err(RequestError::DataLength(bytes)));
        }
        assert_eq!(decode(13, 0, 32, 0), Err(RequestError::DataLength(32)));
        let range = |sectors, flags| range(0, sectors, flags);
        assert!(SectorRange::decode_discard(&range(DISCARD_SECTORS_MAX, 0), large).is_ok());
        assert!(SectorRange::decode_discard(&range(DISCARD_SECTORS_MAX + 1, 0), large).is_err());
        assert!(SectorRange::decode_zeroes(&range(ZERO_SECTORS_MAX + 1, 0), large).is_err());
        for (flags, discards) in [(1, true), (2, true), (2, false), (u32::MAX, false)] {
            let decode = if discards { SectorRange::decode_discard } else { SectorRange::decode_zeroes };
            let error = decode(&range(1, flags), large).unwrap_err();
            assert_eq!((error, error.status()), (RequestError::RangeFlags(flags), 2));
        }
        let unknown = decode(25, 0, 0, 0).unwrap_err();
        assert_eq!((unknown, unknown.status()), (RequestError::UnknownType(25), 2));
    }

    #[test]
    fn nothing_is_written_to_a_read_only_volume() {
        let limits = VolumeLimits { read_only: true, ..LIMITS };
        for kind in [1, 11, 13] {
            assert_eq!(BlockRequest::decode(&header(kind, 0), 16, 0, limits), Err(RequestError::ReadOnly));
        }
        assert!(BlockRequest::decode(&header(0, 0), 0, 512, limits).is_ok());
        assert!(BlockRequest::decode(&header(4, 0), 0, 0, limits).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_decoded_lies_in_the_volume(
            bytes in proptest::array::uniform16(any::<u8>()),
            kind in 0_u32..15,
            out_bytes in 0_u64..1 << 34,
            in_bytes in 0_u64..1 << 34,
            size_bytes in 0_u64..1 << 50,
        ) {
            let limits = VolumeLimits { size_bytes, read_only: false };
            let mut header = bytes;
            header[..4].copy_from_slice(&kind.to_le_bytes());
            if let Ok(BlockRequest::Read { offset, len_bytes } | BlockRequest::Write { offset, len_bytes }) =
                BlockRequest::decode(&header, out_bytes, in_bytes, limits)
            {
                prop_assert!(offset + len_bytes <= size_bytes && len_bytes <= REQUEST_BYTES_MAX);
            }
            for decode in [SectorRange::decode_discard, SectorRange::decode_zeroes] {
                for range in decode(&bytes, limits).into_iter().flatten() {
                    prop_assert!(range.offset + range.len_bytes <= size_bytes);
                }
            }
        }
    }
}

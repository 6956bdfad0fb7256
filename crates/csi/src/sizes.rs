//! Sizes: what a capacity range comes to in whole blocks. Absent: whether the target has room.

use tonic::Status;

use crate::spec::CapacityRange;

/// The size of a volume of which nothing is asked.
const DEFAULT_BYTES: u64 = 1 << 30;
/// The smallest volume, in bytes: a smaller one has no room for a file system.
const MIN_BYTES: u64 = 4 << 20;
/// The largest, in bytes: the largest file that Linux knows, in blocks of any size.
const MAX_BYTES: u64 = i64::MAX as u64 & !0xffff;

/// From this many bytes to that many; `limit` 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SizeRange {
    required: u64,
    limit: u64,
}

impl SizeRange {
    /// What a request asks for.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for negative sizes, `OUT_OF_RANGE` if nothing can be between the two.
    pub(crate) fn of(range: Option<&CapacityRange>) -> Result<SizeRange, Status> {
        let bytes = |bytes: i64| u64::try_from(bytes).map_err(|_| Status::invalid_argument("a size is negative"));
        let (required, limit) = match range {
            Some(range) => (bytes(range.required_bytes)?, bytes(range.limit_bytes)?),
            None => (0, 0),
        };
        if limit > 0 && required > limit {
            return Err(Status::out_of_range(format!("{required} bytes are required and {limit} are the limit")));
        }
        Ok(SizeRange { required, limit })
    }

    /// The size of a new volume in blocks of that many bytes.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`.
    pub(crate) fn choose(self, block_bytes: u64) -> Result<u64, Status> {
        let wanted = match (self.required, self.limit) {
            (0, 0) => DEFAULT_BYTES,
            (0, limit) => DEFAULT_BYTES.min(limit / block_bytes * block_bytes),
            (required, _) => required.max(MIN_BYTES),
        };
        let bytes = wanted.checked_next_multiple_of(block_bytes).filter(|bytes| *bytes <= MAX_BYTES);
        let bytes = bytes.ok_or_else(|| Status::out_of_range(format!("a volume has at most {MAX_BYTES} bytes")))?;
        if bytes < MIN_BYTES {
            return Err(Status::out_of_range(format!("a volume has at least {MIN_BYTES} bytes")));
        }
        if self.limit > 0 && bytes > self.limit {
            return Err(Status::out_of_range(format!(
                "the smallest possible size is {bytes} bytes (blocks of {block_bytes}), and the limit is {}",
                self.limit
            )));
        }
        Ok(bytes)
    }

    /// Whether a volume of that size is large enough.
    pub(crate) fn is_reached_by(self, bytes: u64) -> bool {
        bytes >= self.required
    }

    /// Whether a volume of that size is what was asked for.
    pub(crate) fn includes(self, bytes: u64) -> bool {
        bytes >= self.required && (self.limit == 0 || bytes <= self.limit)
    }
}

/// A size as the specification has it.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn range(required_bytes: i64, limit_bytes: i64) -> Result<SizeRange, Code> {
        SizeRange::of(Some(&CapacityRange { required_bytes, limit_bytes })).map_err(|status| status.code())
    }

    fn choose(required_bytes: i64, limit_bytes: i64) -> Result<u64, Code> {
        range(required_bytes, limit_bytes)?.choose(4096).map_err(|status| status.code())
    }

    #[test]
    fn sizes_are_rounded_up_to_blocks_within_the_limit() {
        assert_eq!(SizeRange::of(None).unwrap().choose(4096).unwrap(), DEFAULT_BYTES);
        assert_eq!(choose(0, 0), Ok(DEFAULT_BYTES));
        assert_eq!(choose(5_000_001, 0), Ok(5_001_216));
        assert_eq!(choose(5_000_001, 5_001_216), Ok(5_001_216));
        assert_eq!(choose(5_000_001, 5_001_215), Err(Code::OutOfRange));
        assert_eq!(choose(0, 10_000_000), Ok(9_998_336), "all of the limit, if that is less than usual");
        assert_eq!(choose(1, 0), Ok(MIN_BYTES));
        assert_eq!(choose(1, 4095), Err(Code::OutOfRange));
        assert_eq!(choose(0, 4095), Err(Code::OutOfRange));
        assert_eq!(choose(i64::MAX, 0), Err(Code::OutOfRange));
        assert_eq!(choose(2, 1), Err(Code::OutOfRange));
        assert_eq!(choose(-1, 0), Err(Code::InvalidArgument));
        assert_eq!(choose(0, -1), Err(Code::InvalidArgument));
    }

    #[test]
    fn an_existing_size_is_held_against_the_range() {
        let both = range(100, 200).unwrap();
        assert!(both.includes(100) && both.includes(200) && !both.includes(99) && !both.includes(201));
        assert!(range(0, 0).unwrap().includes(1));
        assert!(range(5, 0).unwrap().includes(1 << 60));
    }
}

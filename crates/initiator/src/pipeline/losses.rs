//! Writes and flushes of a volume's users that failed since it was attached, so that a detach can say what was lost. A page cache reports
//! a failed write-back to nobody who has closed his file.
//!
//! Absent: reads that failed; requests that could never succeed (outside the volume, or of a volume attached read-only).

use std::fmt;
use std::ops::Range;

use strongroom_block::{DeviceError, DeviceErrorKind, Lba, Request};

/// Ranges of blocks that are remembered one by one; of further ones only the number of blocks.
const RANGES_MAX: usize = 8;

/// A request of a user that failed, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostRequest {
    /// It wrote these blocks, or a part of one.
    Write { lba: Lba, blocks: u64 },
    /// It was to make what was written before durable.
    Flush,
}

impl LostRequest {
    pub(crate) fn write(lba: Lba, len_bytes: usize, block_bytes: usize) -> LostRequest {
        LostRequest::Write { lba, blocks: (len_bytes / block_bytes) as u64 }
    }

    pub(crate) fn write_part(lba: Lba) -> LostRequest {
        LostRequest::Write { lba, blocks: 1 }
    }

    /// What is lost if a request fails.
    pub(crate) fn of(request: &Request, block_bytes: usize) -> Option<LostRequest> {
        match request {
            Request::Write { lba, data, .. } => Some(LostRequest::write(*lba, data.len(), block_bytes)),
            Request::WritePart { lba, .. } => Some(LostRequest::write_part(*lba)),
            Request::Flush => Some(LostRequest::Flush),
            Request::Read { .. } | Request::Discard { .. } => None,
        }
    }
}

/// Writes and flushes that failed since a volume was attached. What a program wrote again later, with success, is counted all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteLosses {
    /// Requests that wrote blocks.
    pub writes: u64,
    /// Blocks that they wrote; one that several wrote counts as often.
    pub blocks: u64,
    /// Flushes: what was acknowledged before them may not be durable.
    pub flushes: u64,
    /// The first blocks that could not be written, as ranges, in the order in which they failed.
    ranges: Vec<Range<u64>>,
    /// Why the first request failed.
    pub first_error: Option<DeviceError>,
}

impl WriteLosses {
    /// Nothing failed.
    pub fn is_empty(&self) -> bool {
        self.writes == 0 && self.flushes == 0
    }

    pub(crate) fn record(&mut self, request: LostRequest, error: &DeviceError) {
        // The caller's mistakes are not the volume's losses.
        if matches!(error.kind, DeviceErrorKind::OutOfRange | DeviceErrorKind::ReadOnly) {
            return;
        }
        match request {
            LostRequest::Write { lba, blocks } => {
                self.writes += 1;
                self.blocks += blocks;
                self.add_range(lba.0..lba.0 + blocks);
            }
            LostRequest::Flush => self.flushes += 1,
        }
        self.first_error.get_or_insert_with(|| error.clone());
    }

    fn add_range(&mut self, new: Range<u64>) {
        if let Some(near) = self.ranges.iter_mut().find(|range| new.start <= range.end && range.start <= new.end) {
            *near = near.start.min(new.start)..near.end.max(new.end);
        } else if self.ranges.len() < RANGES_MAX {
            self.ranges.push(new);
        }
    }
}

/// For people: `3 writes (blocks 7, 12 to 40) and 1 flush failed, first because …`.
impl fmt::Display for WriteLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        if self.writes > 0 {
            write!(f, "{} write{}", self.writes, plural(self.writes))?;
            let listed: u64 = self.ranges.iter().map(|range| range.end - range.start).sum();
            for (at, range) in self.ranges.iter().enumerate() {
                f.write_str(if at == 0 { " (blocks " } else { ", " })?;
                match range.end - range.start {
                    1 => write!(f, "{}", range.start)?,
                    _ => write!(f, "{} to {}", range.start, range.end - 1)?,
                }
            }
            if listed < self.blocks {
                write!(f, ", {} in all", self.blocks)?;
            }
            f.write_str(")")?;
        }
        if self.flushes > 0 {
            let and = if self.writes > 0 { " and " } else { "" };
            let es = if self.flushes == 1 { "" } else { "es" };
            write!(f, "{and}{} flush{es}", self.flushes)?;
        }
        f.write_str(" failed")?;
        match &self.first_error {
            Some(error) => write!(f, ", first because: {error}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::device_error;

    fn write(lba: u64, blocks: u64) -> LostRequest {
        LostRequest::Write { lba: Lba(lba), blocks }
    }

    #[test]
    fn losses_name_blocks_and_the_first_reason() {
        let mut losses = WriteLosses::default();
        assert!(losses.is_empty());
        losses.record(write(7, 1), &device_error(DeviceErrorKind::NoSpace, Some(Lba(7)), "the store is full"));
        losses.record(write(12, 20), &device_error(DeviceErrorKind::Hardware, None, "something else"));
        losses.record(write(32, 9), &device_error(DeviceErrorKind::Hardware, None, "something else"));
        losses.record(LostRequest::Flush, &device_error(DeviceErrorKind::Hardware, None, "something else"));
        assert!(!losses.is_empty());
        assert_eq!(
            losses.to_string(),
            "3 writes (blocks 7, 12 to 40) and 1 flush failed, first because: the store is full (block 7)"
        );
    }

    #[test]
    fn many_ranges_are_counted_and_few_are_kept() {
        let mut losses = WriteLosses::default();
        let error = device_error(DeviceErrorKind::NoKey, None, "no key");
        (0..1000).for_each(|at| losses.record(write(at * 10, 1), &error));
        assert_eq!(
            losses.to_string(),
            "1000 writes (blocks 0, 10, 20, 30, 40, 50, 60, 70, 1000 in all) failed, first because: no key"
        );
    }

    #[test]
    fn what_the_caller_misused_is_no_loss() {
        let mut losses = WriteLosses::default();
        losses.record(write(7, 1), &device_error(DeviceErrorKind::OutOfRange, None, "outside"));
        losses.record(write(7, 1), &device_error(DeviceErrorKind::ReadOnly, None, "read-only"));
        assert!(losses.is_empty());
    }
}

//! The kept versions of a block, from the newest to older ones, until one opens. What is done with it is the caller's.
//!
//! A missing key is no reason to go back, and ends the search.

use std::sync::Arc;

use strongroom_block::{BufferMut, DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::intake::Intake;
use super::sealing::Sealing;
use super::work::{Answer, Version, Work};
use crate::completion::device_error;

/// Versions tried at most.
const VERSIONS_MAX: usize = 10_000;

/// The versions of one sealed unit.
pub(super) struct Versions {
    pub(super) intake: Arc<Intake>,
    pub(super) sealing: Arc<Sealing>,
}

/// What a search found.
pub(super) struct Search {
    /// The newest version that opens, and its block; `None` inside: it is an absence.
    pub(super) opened: Option<(StoreSequence, Option<BufferMut>)>,
    /// Newer versions that could not be used.
    pub(super) tried: usize,
    /// The stamp of the newest version, if that does not open and could be fetched.
    pub(super) newest_stamp: Option<[u8; 24]>,
}

/// A version as far as it could be read.
pub(super) enum Step {
    Good {
        sequence: StoreSequence,
        block: Option<BufferMut>,
    },
    Bad {
        sequence: StoreSequence,
        stamp: [u8; 24],
    },
    /// The target itself cannot read the version, and so does not say which one it is.
    Unreadable,
    None,
}

impl Versions {
    /// Looks for the newest version of block `lba` that opens.
    pub(super) fn newest_that_opens(&self, lba: Lba) -> Result<Search, DeviceError> {
        let mut search = Search { opened: None, tried: 0, newest_stamp: None };
        let mut older_than = StoreSequence(0);
        while search.tried < VERSIONS_MAX {
            match self.version(lba, older_than)? {
                Step::Good { sequence, block } => {
                    search.opened = Some((sequence, block));
                    break;
                }
                Step::Bad { sequence, stamp } => {
                    if search.tried == 0 {
                        search.newest_stamp = Some(stamp);
                    }
                    tracing::warn!(%lba, %sequence, "a version does not open");
                    older_than = sequence;
                }
                Step::Unreadable => match self.before_unreadable(lba, older_than)? {
                    Some(sequence) => older_than = sequence,
                    None => break,
                },
                Step::None => break,
            }
            search.tried += 1;
        }
        Ok(search)
    }

    /// The newest version older than that (0: the newest of all).
    pub(super) fn version(&self, lba: Lba, older_than: StoreSequence) -> Result<Step, DeviceError> {
        let answer = match self.intake.ask(Work::ReadVersion { lba, older_than }, 0) {
            Ok(answer) => answer,
            Err(error) if error.kind == DeviceErrorKind::Medium => return Ok(Step::Unreadable),
            Err(error) => return Err(error),
        };
        let Answer::Version(Some(version)) = answer else { return Ok(Step::None) };
        match version {
            Version::Hole { sequence, hole } => Ok(match self.sealing.open_hole(lba, 1, &hole) {
                Ok(()) => Step::Good { sequence, block: None },
                Err(_) => Step::Bad { sequence, stamp: [0; 24] },
            }),
            Version::Block { sequence, record, data } => {
                let mut block = BufferMut::zeroed(data.len());
                if !self.sealing.has_key_for(&record) {
                    return Err(no_key(lba, record.epoch()));
                }
                Ok(match self.sealing.open_block(lba, &record, &data, &mut block) {
                    Ok(()) => Step::Good { sequence, block: Some(block) },
                    Err(_) => Step::Bad { sequence, stamp: record.stamp().to_bytes() },
                })
            }
        }
    }

    /// The sequence of a version that the target cannot read: the smallest bound for which it stumbles over it, less one.
    /// Found by halving, since asking for what is older than some sequence works with any number.
    fn before_unreadable(&self, lba: Lba, bound: StoreSequence) -> Result<Option<StoreSequence>, DeviceError> {
        // Sequences count up from 1, so a bound is found fastest by doubling from below, then by halving.
        let (mut low, mut high) = (0_u64, if bound.0 == 0 { u64::MAX } else { bound.0 });
        let mut doubling = true;
        let mut something_older = false;
        while high - low > 1 {
            let middle = match doubling {
                true => low.saturating_mul(2).clamp(low + 1, high - 1),
                false => low + (high - low) / 2,
            };
            match self.version(lba, StoreSequence(middle))? {
                Step::Unreadable => {
                    doubling = false;
                    high = middle;
                }
                Step::None => low = middle,
                Step::Good { .. } | Step::Bad { .. } => {
                    something_older = true;
                    low = middle;
                }
            }
        }
        // Older than `high` is unreadable, older than `low` is not: the unreadable one is `low` itself.
        Ok(something_older.then_some(StoreSequence(low)))
    }
}

fn no_key(lba: Lba, epoch: u32) -> DeviceError {
    let message = format!("no key for epoch {epoch}, under which the block is sealed; get the current key file");
    device_error(DeviceErrorKind::Medium, Some(lba), message)
}

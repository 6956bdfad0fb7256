//! The kept versions of a block, from the newest to older ones, until one opens. What is done with it is the caller's.
//!
//! Only what is not authentic is damaged. A missing key or an unknown format, of a block or of an absence, is no reason to go back,
//! and ends the search.

use std::sync::Arc;

use strongroom_block::{BufferMut, DeviceError, DeviceErrorKind, Lba, OpenError, StoreSequence};

use crate::device::intake::Intake;
use crate::pipeline::answer::{Answer, Version};
use crate::pipeline::operation::ReadVersion;
use crate::pipeline::sealing::Sealing;

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
#[derive(Debug)]
pub(super) enum OpenedVersion {
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
                OpenedVersion::Good { sequence, block } => {
                    search.opened = Some((sequence, block));
                    break;
                }
                OpenedVersion::Bad { sequence, stamp } => {
                    if search.tried == 0 {
                        search.newest_stamp = Some(stamp);
                    }
                    tracing::warn!(%lba, %sequence, "a version does not open");
                    older_than = sequence;
                }
                OpenedVersion::Unreadable => match self.before_unreadable(lba, older_than)? {
                    Some(sequence) => older_than = sequence,
                    None => break,
                },
                OpenedVersion::None => break,
            }
            search.tried += 1;
        }
        Ok(search)
    }

    /// The newest version older than that (0: the newest of all).
    pub(super) fn version(&self, lba: Lba, older_than: StoreSequence) -> Result<OpenedVersion, DeviceError> {
        let answer = match self.intake.ask(ReadVersion::new(lba, older_than), 0) {
            Ok(answer) => answer,
            Err(error) if error.kind == DeviceErrorKind::Medium => return Ok(OpenedVersion::Unreadable),
            Err(error) => return Err(error),
        };
        let Answer::Version(Some(version)) = answer else { return Ok(OpenedVersion::None) };
        match opened(&self.sealing, lba, &version) {
            Err(error) if error.kind == DeviceErrorKind::NoKey && self.sealing.ask_for_keys_and_wait(lba) => {
                opened(&self.sealing, lba, &version)
            }
            opened => opened,
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
                OpenedVersion::Unreadable => {
                    doubling = false;
                    high = middle;
                }
                OpenedVersion::None => low = middle,
                OpenedVersion::Good { .. } | OpenedVersion::Bad { .. } => {
                    something_older = true;
                    low = middle;
                }
            }
        }
        // Older than `high` is unreadable, older than `low` is not: the unreadable one is `low` itself.
        Ok(something_older.then_some(StoreSequence(low)))
    }
}

fn opened(sealing: &Sealing, lba: Lba, version: &Version) -> Result<OpenedVersion, DeviceError> {
    let (sequence, stamp, block, opened) = match version {
        Version::Hole { sequence, hole } => (*sequence, [0; 24], None, sealing.open_absent_version(lba, hole)?),
        Version::Block { sequence, record, data } => {
            let mut block = BufferMut::zeroed(data.len());
            let opened = sealing.open_version(lba, record, data, &mut block)?;
            (*sequence, record.stamp().to_bytes(), Some(block), opened)
        }
    };
    match opened {
        Ok(()) => Ok(OpenedVersion::Good { sequence, block }),
        Err(OpenError::NotAuthentic) => Ok(OpenedVersion::Bad { sequence, stamp }),
        Err(error @ (OpenError::NoKey { .. } | OpenError::Unsupported)) => Err(sealing.not_opened(lba, error)),
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, CryptoCounters, SealRecord, SealingDomain};
    use strongroom_seal::{KeyPurpose, SealContext, VolumeKeyFile, VolumeSealer};

    use super::*;

    fn sealing(key: u8, epoch: u32) -> Sealing {
        let context = SealContext::new(SealingDomain([2; 16]), BlockSize::new(512).unwrap(), epoch);
        let text = VolumeKeyFile::new(KeyPurpose::Volume, &[key; 32]).to_text();
        let keys = VolumeKeyFile::parse(&text.replace("epoch 1", &format!("epoch {epoch}"))).unwrap();
        Sealing::new(VolumeSealer::blind(&keys, context, Arc::new(CryptoCounters::new())).unwrap())
    }

    fn both(sealing: &Sealing) -> [Version; 2] {
        let sealed = sealing.seal(Lba(3), &[7; 512]).unwrap();
        let record = SealRecord::decode(&sealed.records).unwrap();
        let hole = sealing.seal_hole(Lba(0), 8).unwrap();
        let sequence = StoreSequence(9);
        [Version::Block { sequence, record, data: sealed.data }, Version::Hole { sequence, hole }]
    }

    #[test]
    fn only_what_is_not_authentic_is_damaged() {
        let ours = sealing(7, 1);
        for version in both(&ours) {
            assert!(matches!(opened(&ours, Lba(3), &version), Ok(OpenedVersion::Good { .. })));
            assert!(
                matches!(opened(&ours, Lba(9), &version), Ok(OpenedVersion::Bad { .. })),
                "not the one of that block"
            );
        }
        for version in both(&sealing(8, 1)) {
            assert!(matches!(opened(&ours, Lba(3), &version), Ok(OpenedVersion::Bad { .. })));
        }
        for version in both(&sealing(7, 2)) {
            let error = opened(&ours, Lba(3), &version).unwrap_err();
            assert!(error.message.contains("no key for epoch 2"), "{error}");
        }
    }
}

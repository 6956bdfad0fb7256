//! The explicit way back from a block that does not open: an older version, if one is kept and opens.
//!
//! Never done by a read: whoever can flip one bit in every block on the wire would otherwise turn acknowledged writes into
//! silent old data. A person asks for it, block by block, and is told what was done. A missing key is not a reason to go
//! back, and ends the search.

use strongroom_block::{BufferMut, DeviceError, DeviceErrorKind, Lba, StoreSequence};

use super::RemoteDevice;
use super::work::{Answer, Version, Work};
use crate::completion::device_error;

/// Versions tried at most.
const VERSIONS_MAX: usize = 10_000;

/// What a recovery found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// The newest version opens: nothing was done.
    NothingToDo {
        /// The newest version.
        sequence: StoreSequence,
    },
    /// An older version opened and was written back as the newest, sealed anew and durable.
    WroteBack {
        /// The version that opened.
        sequence: StoreSequence,
        /// Newer versions that could not be used.
        bad_versions: usize,
        /// The version was an absence: the block reads as zeros now.
        was_absent: bool,
    },
}

/// Why a block could not be recovered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// Only sealed volumes keep versions that are told apart by opening.
    #[error("the volume is plain: there is no seal by which a good version could be told from a bad one")]
    NotSealed,
    /// No kept version opens.
    #[error(
        "none of the {tried} versions of block {lba} that could be tried opens; restore the block from a backup, or discard it"
    )]
    NoVersionOpens {
        /// The block.
        lba: Lba,
        /// Versions tried.
        tried: usize,
    },
    /// The newest version that opens is an absence, and zeros were not asked for.
    #[error(
        "the only version of block {lba} that opens is an absence, older than {tried} that do not: versions in between were \
         released by readers or by the retention budget; restore the block from a backup, or accept zeros (--accept-absence)"
    )]
    OnlyAbsence {
        /// The block.
        lba: Lba,
        /// Versions tried before it.
        tried: usize,
    },
    /// The target or the key failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A version as far as it could be read.
enum Step {
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

impl RemoteDevice {
    /// Looks for the newest version of block `lba` that opens, and writes it back if it is not the newest already.
    ///
    /// If the bad version could be fetched, the write back is conditional on it still being the newest. If the target could
    /// not even read it, the write is unconditional: detach other initiators first.
    ///
    /// An absence counts as a version only with `accept_absence`: it outlives the versions in between that were released, so
    /// the block may have held data since.
    ///
    /// # Errors
    /// [`RecoverError`]; nothing was changed.
    pub fn recover(&self, lba: Lba, accept_absence: bool) -> Result<Recovered, RecoverError> {
        if self.sealing.is_none() {
            return Err(RecoverError::NotSealed);
        }
        self.check_range(lba, 1)?;
        self.writable(Some(lba))?;
        let mut newest_stamp = None;
        let mut tried = 0;
        let mut older_than = StoreSequence(0);
        while tried < VERSIONS_MAX {
            match self.version(lba, older_than)? {
                Step::Good { sequence, .. } if tried == 0 => return Ok(Recovered::NothingToDo { sequence }),
                Step::Good { block: None, .. } if !accept_absence => {
                    return Err(RecoverError::OnlyAbsence { lba, tried });
                }
                Step::Good { sequence, block } => {
                    let was_absent = block.is_none();
                    self.write_back(lba, block, newest_stamp)?;
                    tracing::warn!(%lba, %sequence, tried, "an older version was written back");
                    return Ok(Recovered::WroteBack { sequence, bad_versions: tried, was_absent });
                }
                Step::Bad { sequence, stamp } => {
                    if tried == 0 {
                        newest_stamp = Some(stamp);
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
            tried += 1;
        }
        Err(RecoverError::NoVersionOpens { lba, tried })
    }

    fn version(&self, lba: Lba, older_than: StoreSequence) -> Result<Step, RecoverError> {
        let sealing = self.sealing.as_ref().ok_or(RecoverError::NotSealed)?;
        let answer = match self.intake.ask(Work::ReadVersion { lba, older_than }, 0) {
            Ok(answer) => answer,
            Err(error) if error.kind == DeviceErrorKind::Medium => return Ok(Step::Unreadable),
            Err(error) => return Err(error.into()),
        };
        let Answer::Version(Some(version)) = answer else { return Ok(Step::None) };
        match version {
            Version::Hole { sequence, hole } => Ok(match sealing.open_hole(lba, 1, &hole) {
                Ok(()) => Step::Good { sequence, block: None },
                Err(_) => Step::Bad { sequence, stamp: [0; 24] },
            }),
            Version::Block { sequence, record, data } => {
                let mut block = BufferMut::zeroed(data.len());
                if !sealing.has_key_for(&record) {
                    return Err(no_key(lba, record.epoch()).into());
                }
                Ok(match sealing.open_block(lba, &record, &data, &mut block) {
                    Ok(()) => Step::Good { sequence, block: Some(block) },
                    Err(_) => Step::Bad { sequence, stamp: record.stamp().to_bytes() },
                })
            }
        }
    }

    /// The sequence of a version that the target cannot read: the smallest bound for which it stumbles over it, less one.
    /// Found by halving, since asking for what is older than some sequence works with any number.
    fn before_unreadable(&self, lba: Lba, bound: StoreSequence) -> Result<Option<StoreSequence>, RecoverError> {
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

    fn write_back(&self, lba: Lba, block: Option<BufferMut>, expected: Option<[u8; 24]>) -> Result<(), RecoverError> {
        let Some(sealing) = &self.sealing else { return Err(RecoverError::NotSealed) };
        let block_bytes = self.unit.geometry.block_size.len();
        let work = match (block, expected) {
            (None, None) => self.discard_work(lba, 1)?,
            // An absence cannot be written conditionally. Zeros can, and read the same.
            (block, Some(expected)) => {
                let block = block.unwrap_or_else(|| BufferMut::zeroed(block_bytes));
                let sealed = sealing.seal(lba, &block)?;
                Work::ConditionalWrite { lba, expected, data: sealed.data, records: sealed.records }
            }
            (Some(block), None) => {
                let sealed = sealing.seal(lba, &block)?;
                Work::Write { lba, data: sealed.data, records: Some(sealed.records), fua: true }
            }
        };
        self.intake.ask(work, block_bytes)?;
        self.flush()?;
        Ok(())
    }
}

fn no_key(lba: Lba, epoch: u32) -> DeviceError {
    let message = format!("no key for epoch {epoch}, under which the block is sealed; get the current key file");
    device_error(DeviceErrorKind::Medium, Some(lba), message)
}

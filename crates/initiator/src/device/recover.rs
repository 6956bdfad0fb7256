//! The explicit way back from a block that does not open: an older version, if one is kept and opens.
//!
//! Never done by a read: an attacker who can flip one bit in every block on the wire could otherwise turn acknowledged writes into
//! silent old data. A person asks for it, block by block, and is told what was done. A missing key is not a reason to go
//! back, and ends the search (`versions`).

use strongroom_block::{BufferMut, DeviceError, Lba, StoreSequence};

use super::RemoteDevice;
use crate::device::versions::Search;
use crate::pipeline::operation::{ConditionalWrite, Operation, Write};

/// What a recovery found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// The newest version opens: nothing was done.
    NothingToDo {
        /// The newest version.
        sequence: StoreSequence,
    },
    /// An older version opened and was written back as the newest, resealed and durable.
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
        let versions = self.versions().ok_or(RecoverError::NotSealed)?;
        self.bounds().check_range(lba, 1)?;
        self.bounds().check_writable(Some(lba))?;
        let Search { opened, tried, newest_stamp } = versions.newest_that_opens(lba)?;
        match opened {
            None => Err(RecoverError::NoVersionOpens { lba, tried }),
            Some((sequence, _)) if tried == 0 => Ok(Recovered::NothingToDo { sequence }),
            Some((_, None)) if !accept_absence => Err(RecoverError::OnlyAbsence { lba, tried }),
            Some((sequence, block)) => {
                let was_absent = block.is_none();
                self.write_back(lba, block, newest_stamp)?;
                tracing::warn!(%lba, %sequence, tried, "an older version was written back");
                Ok(Recovered::WroteBack { sequence, bad_versions: tried, was_absent })
            }
        }
    }

    fn write_back(&self, lba: Lba, block: Option<BufferMut>, expected: Option<[u8; 24]>) -> Result<(), RecoverError> {
        let Some(sealing) = &self.sealing else { return Err(RecoverError::NotSealed) };
        let block_bytes = self.unit.geometry.block_size.len();
        let operation: Operation = match (block, expected) {
            (None, None) => self.discard(lba, 1)?,
            // An absence cannot be written conditionally. Zeros can, and read the same.
            (block, Some(expected)) => {
                let block = block.unwrap_or_else(|| BufferMut::zeroed(block_bytes));
                let sealed = sealing.seal(lba, &block)?;
                ConditionalWrite::new(lba, expected, sealed).into()
            }
            (Some(block), None) => {
                let sealed = sealing.seal(lba, &block)?;
                Write { lba, data: sealed.data, records: Some(sealed.records), fua: true }.into()
            }
        };
        self.intake.ask(operation, block_bytes)?;
        self.flush()?;
        Ok(())
    }
}

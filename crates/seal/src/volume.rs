//! What a pipeline holds: one value that seals and opens for one volume, in any custody.

use std::sync::Arc;

use strongroom_block::{
    BlockSize, CryptoCounters, Custody, HoleRecord, Lba, Mode, OpenError, Opener, RecordFlags, Resealer, SealRecord,
    SealingDomain, Stamp, Suite, keyless_checksum,
};

use crate::{BlindKeys, BlockKeys, FillRandom, KeyFileError, VolumeKeyFile};

/// What seals bind besides address and stamp; constant for one volume and epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealContext {
    /// Shared by a volume, its snapshots and its clones.
    pub domain: SealingDomain,
    /// Bytes in one block.
    pub block_size: BlockSize,
    /// The key epoch.
    pub epoch: u32,
    /// Encrypt, or authenticate only.
    pub mode: Mode,
    /// The volume's cipher suite, and no other.
    pub suite: Suite,
}

impl SealContext {
    /// The context of an encrypted volume of the usual suite.
    pub fn new(domain: SealingDomain, block_size: BlockSize, epoch: u32) -> SealContext {
        SealContext { domain, block_size, epoch, mode: Mode::Encrypt, suite: Suite::default() }
    }

    /// The same in another suite.
    #[must_use]
    pub fn with_suite(self, suite: Suite) -> SealContext {
        SealContext { suite, ..self }
    }

    /// The same in another mode.
    #[must_use]
    pub fn with_mode(self, mode: Mode) -> SealContext {
        SealContext { mode, ..self }
    }

    pub(crate) fn assert_one_block(&self, block: &[u8]) {
        assert_eq!(block.len(), self.block_size.len(), "sealing works on exactly one block");
    }

    pub(crate) fn assert_range(start: Lba, count: u64) {
        assert!(count > 0 && start.checked_add(count).is_some(), "a hole is a range of at least one block");
    }

    /// Whether the record can be one of this context at all.
    pub(crate) fn check_record(&self, record: &SealRecord, flags: RecordFlags) -> Result<(), OpenError> {
        if record.epoch() != self.epoch {
            return Err(OpenError::NoKey { epoch: record.epoch() });
        }
        // A suite or mode that the volume does not have would be a downgrade; other flags, another kind of record.
        if record.suite() != self.suite || record.mode() != self.mode || record.flags() != flags {
            return Err(OpenError::NotAuthentic);
        }
        Ok(())
    }

    /// Whether length and keyless checksum fit: the one field of a record that no tag covers.
    pub(crate) fn check_body(&self, record: &SealRecord, sealed: &[u8]) -> Result<(), OpenError> {
        if sealed.len() != self.block_size.len() || keyless_checksum(sealed) != record.checksum() {
            return Err(OpenError::NotAuthentic);
        }
        Ok(())
    }
}

/// A sealer could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealerError {
    /// The key file is not the one that this volume needs.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
}

/// Seals and opens blocks and holes of one volume. Shared by the threads of a pool.
///
/// Seals under the volume's current epoch, opens under every epoch that its key file has.
#[derive(Debug)]
pub enum VolumeSealer {
    /// Custodies `keyfile` and `keyserver`: the keys of each epoch, the current one first.
    Blind(Vec<BlindKeys>),
    /// Custody `target`: a key per write, carried by its record.
    BlockKeys(Box<BlockKeys>),
}

impl VolumeSealer {
    /// For the blind custodies: seals under `context.epoch`, opens every epoch that `keys` has.
    ///
    /// # Errors
    /// [`SealerError`] if `keys` is not of a volume or lacks the current epoch.
    pub fn blind(
        keys: &VolumeKeyFile,
        context: SealContext,
        counters: Arc<CryptoCounters>,
    ) -> Result<VolumeSealer, SealerError> {
        let current = BlindKeys::new(keys.volume_key(context.epoch)?, context, Arc::clone(&counters));
        let mut epochs = vec![current];
        for epoch in keys.epochs().filter(|&epoch| epoch != context.epoch) {
            let context = SealContext { epoch, ..context };
            epochs.push(BlindKeys::new(keys.volume_key(epoch)?, context, Arc::clone(&counters)));
        }
        Ok(VolumeSealer::Blind(epochs))
    }

    /// For custody `target`.
    pub fn block_keys(context: SealContext, fill_random: FillRandom, counters: Arc<CryptoCounters>) -> VolumeSealer {
        VolumeSealer::BlockKeys(Box::new(BlockKeys::new(context, fill_random, counters)))
    }

    /// What new seals are bound to.
    pub fn context(&self) -> &SealContext {
        match self {
            VolumeSealer::Blind(epochs) => epochs[0].context(),
            VolumeSealer::BlockKeys(keys) => keys.context(),
        }
    }

    /// The epochs that can be opened, the one that seals first.
    pub fn epochs(&self) -> Vec<u32> {
        match self {
            VolumeSealer::Blind(epochs) => epochs.iter().map(|keys| keys.context().epoch).collect(),
            VolumeSealer::BlockKeys(keys) => vec![keys.context().epoch],
        }
    }

    /// The length of the records that [`VolumeSealer::seal`] makes, in bytes: 56, or 88 with a block key.
    pub fn record_bytes(&self) -> usize {
        match self {
            VolumeSealer::Blind(_) => Custody::KeyFile.record_bytes_in_channel(),
            VolumeSealer::BlockKeys(_) => Custody::Target.record_bytes_in_channel(),
        }
    }

    /// Seals `block` in place, for `lba`. Take each stamp from a [`StampSource`](crate::StampSource), once.
    ///
    /// # Panics
    /// If `block` is not one block long.
    pub fn seal(&self, lba: Lba, stamp: Stamp, block: &mut [u8]) -> SealRecord {
        match self {
            VolumeSealer::Blind(epochs) => epochs[0].seal(lba, stamp, block),
            VolumeSealer::BlockKeys(keys) => keys.seal(lba, stamp, block),
        }
    }

    /// Seals `plain` into `out`, for `lba`.
    ///
    /// # Panics
    /// If `plain` or `out` is not one block long.
    pub fn seal_into(&self, lba: Lba, stamp: Stamp, plain: &[u8], out: &mut [u8]) -> SealRecord {
        match self {
            VolumeSealer::Blind(epochs) => epochs[0].seal_into(lba, stamp, plain, out),
            VolumeSealer::BlockKeys(keys) => keys.seal_into(lba, stamp, plain, out),
        }
    }

    /// Opens `block` in place.
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `block` are then unspecified and must not be used.
    pub fn open(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError> {
        match self {
            VolumeSealer::Blind(epochs) => keys_of(epochs, record)?.open(lba, record, block),
            VolumeSealer::BlockKeys(keys) => keys.open(lba, record, block),
        }
    }

    /// Opens `sealed` into `out`: one pass from the receive buffer to the reader's.
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `out` are then unspecified and must not be used.
    ///
    /// # Panics
    /// If `out` is not one block long.
    pub fn open_into(&self, lba: Lba, record: &SealRecord, sealed: &[u8], out: &mut [u8]) -> Result<(), OpenError> {
        match self {
            VolumeSealer::Blind(epochs) => keys_of(epochs, record)?.open_into(lba, record, sealed, out),
            VolumeSealer::BlockKeys(keys) => keys.open_into(lba, record, sealed, out),
        }
    }

    /// Seals the absence of `count` blocks from `start`: one record for the whole range.
    ///
    /// # Panics
    /// If the range is empty or runs past the end of the address space.
    pub fn seal_hole(&self, start: Lba, count: u64, stamp: Stamp) -> HoleRecord {
        match self {
            VolumeSealer::Blind(epochs) => epochs[0].seal_hole(start, count, stamp),
            VolumeSealer::BlockKeys(keys) => keys.seal_hole(start, count, stamp),
        }
    }

    /// Whether `hole` is authentic as a whole. The caller checks that it [covers](HoleRecord::covers) the block it
    /// stands for.
    ///
    /// # Errors
    /// [`OpenError`] if it was not sealed like this.
    pub fn open_hole(&self, hole: &HoleRecord) -> Result<(), OpenError> {
        match self {
            VolumeSealer::Blind(epochs) => keys_of(epochs, &hole.record)?.open_hole(hole),
            VolumeSealer::BlockKeys(keys) => keys.open_hole(hole),
        }
    }
}

impl Opener for VolumeSealer {
    fn open(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError> {
        VolumeSealer::open(self, lba, record, block)
    }
}

impl Resealer for VolumeSealer {
    fn seal_again(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<SealRecord, OpenError> {
        let sealed = match self {
            VolumeSealer::Blind(epochs) => keys_of(epochs, record)?.seal(lba, record.stamp(), block),
            // Each of its seals has a key of its own.
            VolumeSealer::BlockKeys(_) => return Err(OpenError::Unsupported),
        };
        // The tag is over ciphertext, place, stamp, suite and mode: with it all of that is as it was.
        if sealed.with_checksum(record.checksum()) == *record { Ok(sealed) } else { Err(OpenError::NotAuthentic) }
    }

    fn open_hole(&self, hole: &HoleRecord) -> Result<(), OpenError> {
        VolumeSealer::open_hole(self, hole)
    }
}

fn keys_of<'a>(epochs: &'a [BlindKeys], record: &SealRecord) -> Result<&'a BlindKeys, OpenError> {
    let epoch = record.epoch();
    epochs.iter().find(|keys| keys.context().epoch == epoch).ok_or(OpenError::NoKey { epoch })
}

//! Seals what goes out and opens what comes in, for one sealed unit. Cryptography is `seal`'s; stamps are next door.
//!
//! Small requests are sealed where they are submitted and opened where they arrive. This is the seam for a pool: both
//! calls take whole requests, share `self`, and keep no order of their own.

use std::sync::{Arc, Mutex, RwLock};

use bytes::Bytes;
use strongroom_block::{
    BlockSize, Buffer, BufferMut, DeviceError, DeviceErrorKind, HoleRecord, Lba, OpenError, RecordError, SealRecord,
    Stamp, StoreSequence,
};
use strongroom_iscsi::ahs;
use strongroom_seal::VolumeSealer;
use zeroize::Zeroizing;

use super::stamps::{Forked, Stamps};
use crate::completion::{device_error, lock};

/// The sealer and the stamps of one attachment.
#[derive(Debug)]
pub(crate) struct Sealing {
    sealer: RwLock<Arc<VolumeSealer>>,
    stamps: Mutex<Stamps>,
    block_size: BlockSize,
    record_bytes: usize,
}

/// Encoded seal records, back to back. Wiped when the last reference goes and never shown: custody `target` puts block keys
/// into them.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Records(Bytes);

impl Records {
    pub(crate) fn new(records: Zeroizing<Vec<u8>>) -> Records {
        Records(Bytes::from_owner(records))
    }

    pub(crate) fn slice(&self, range: std::ops::Range<usize>) -> Records {
        Records(self.0.slice(range))
    }

    /// For the session, which shows them no more than we do.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl std::ops::Deref for Records {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({} bytes)", self.0.len())
    }
}

/// Blocks that are ready to send.
#[derive(Clone, Debug)]
pub(crate) struct SealedBlocks {
    /// Ciphertext.
    pub(crate) data: Buffer,
    /// One record per block.
    pub(crate) records: Records,
}

impl Sealing {
    pub(crate) fn new(sealer: VolumeSealer) -> Sealing {
        let (block_size, record_bytes) = (sealer.context().block_size, sealer.record_bytes());
        Sealing { sealer: RwLock::new(Arc::new(sealer)), stamps: Mutex::new(Stamps::new()), block_size, record_bytes }
    }

    /// After a reconnect: the volume's current keys, a new attach id, and no key that was drawn before.
    pub(crate) fn renew(&self, sealer: Option<VolumeSealer>) {
        if let Some(sealer) = sealer {
            *self.sealer.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(sealer);
        } else if let VolumeSealer::BlockKeys(keys) = &*self.sealer() {
            keys.forget_unused();
        }
        lock(&self.stamps).renew();
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_size.len()
    }

    pub(crate) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    fn sealer(&self) -> Arc<VolumeSealer> {
        self.sealer.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Seals whole blocks for `lba` on.
    pub(crate) fn seal(&self, lba: Lba, plain: &[u8]) -> Result<SealedBlocks, DeviceError> {
        let block_bytes = self.block_size.len();
        let count = u32::try_from(plain.len() / block_bytes).expect("requests are far smaller than 2^32 blocks");
        let stamps = lock(&self.stamps).run(count, block_bytes as u64).map_err(forked)?;
        let sealer = self.sealer();
        let mut data = BufferMut::to_fill(plain.len());
        let mut records = Zeroizing::new(Vec::with_capacity(self.record_bytes * count as usize));
        let blocks = plain.chunks_exact(block_bytes).zip(data.chunks_exact_mut(block_bytes));
        for ((at, (plain, sealed)), stamp) in (lba.0..).zip(blocks).zip(stamps) {
            let record = sealer.seal_into(Lba(at), stamp, plain, sealed);
            records.extend_from_slice(record.as_bytes());
        }
        Ok(SealedBlocks { data: data.freeze(), records: Records::new(records) })
    }

    /// Seals the absence of a range.
    pub(crate) fn seal_hole(&self, start: Lba, count: u64) -> Result<HoleRecord, DeviceError> {
        let stamp = lock(&self.stamps).one(0).map_err(forked)?;
        Ok(self.sealer().seal_hole(start, count, stamp))
    }

    /// Opens one version of a block into `out`.
    pub(crate) fn open_version(
        &self,
        lba: Lba,
        record: &SealRecord,
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<(), OpenError> {
        self.sealer().open_into(lba, record, sealed, out)
    }

    /// Checks a version that says that block `lba` is absent. The seal of another range speaks for nothing.
    pub(crate) fn open_absent_version(&self, lba: Lba, hole: &HoleRecord) -> Result<(), OpenError> {
        if !hole.covers(lba) {
            return Err(OpenError::NotAuthentic);
        }
        self.sealer().open_hole(hole)
    }

    /// Opens the blocks of one Data-In PDU that starts at `lba`, into `out`; tells each block's stamp and sequence.
    pub(crate) fn open(
        &self,
        lba: Lba,
        entries: &ahs::SealRecords<'_>,
        sealed: &[u8],
        out: &mut [u8],
        mut opened: impl FnMut(Lba, Stamp, StoreSequence),
    ) -> Result<(), DeviceError> {
        let block_bytes = self.block_size.len();
        if sealed.len() != out.len() || entries.count() * block_bytes != sealed.len() {
            return Err(medium(lba, "the target sent blocks without their seal records"));
        }
        let sealer = self.sealer();
        let blocks = sealed.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_bytes));
        for ((at, entry), (sealed, out)) in (lba.0..).zip(entries.iter()).zip(blocks) {
            let lba = Lba(at);
            let (sequence, record) = read_entry(entry).map_err(|_| malformed(lba))?;
            sealer.open_into(lba, &record, sealed, out).map_err(|error| not_opened(lba, error))?;
            opened(lba, record.stamp(), sequence);
        }
        Ok(())
    }

    /// Checks that `hole` is authentic and covers `count` blocks from `lba` on.
    pub(crate) fn open_hole(&self, lba: Lba, count: u64, hole: &HoleRecord) -> Result<(), DeviceError> {
        if count == 0 || !hole.covers(lba) || !hole.covers(Lba(lba.0 + (count - 1))) {
            return Err(medium(lba, "the target answered with the seal of another range"));
        }
        self.sealer().open_hole(hole).map_err(|error| not_opened(lba, error))
    }
}

/// One entry of a Data-In's SEAL RECORDS: store sequence, then the record.
pub(crate) fn read_entry(entry: &[u8]) -> Result<(StoreSequence, SealRecord), RecordError> {
    let (sequence, record) = entry.split_first_chunk::<8>().ok_or(RecordError::Length(0))?;
    Ok((StoreSequence(u64::from_be_bytes(*sequence)), SealRecord::decode(record)?))
}

/// The error of a version whose record does not decode. That of a newer format is no damage, and so not of the medium: nobody goes
/// back to an older version for it.
pub(crate) fn not_decoded(lba: Lba, error: &RecordError) -> DeviceError {
    match error {
        RecordError::Unknown { .. } => {
            device_error(DeviceErrorKind::Refused, Some(lba), format!("{error}; update strongroom"))
        }
        RecordError::Length(_) | RecordError::Contradiction => malformed(lba),
    }
}

fn malformed(lba: Lba) -> DeviceError {
    medium(lba, "the target sent a malformed seal record")
}

/// The error of a read whose data is not what was written; logged where it is made.
pub(crate) fn medium(lba: Lba, what: &str) -> DeviceError {
    tracing::error!(%lba, what, "a block cannot be read");
    let advice = "no data is returned; 'strongroom volume recover' looks for an older version that opens";
    device_error(DeviceErrorKind::Medium, Some(lba), format!("{what}; {advice}"))
}

/// The same for a block or an absence that does not open.
pub(crate) fn not_opened(lba: Lba, error: OpenError) -> DeviceError {
    match error {
        OpenError::NotAuthentic => medium(lba, &error.to_string()),
        // Never a reason to look for an older version.
        OpenError::NoKey { epoch } => {
            tracing::error!(%lba, epoch, "no key for the epoch of a block");
            let message =
                format!("no key for epoch {epoch}, under which the block is sealed; get the current key file");
            device_error(DeviceErrorKind::Medium, Some(lba), message)
        }
        OpenError::Unsupported => {
            tracing::error!(%lba, "a seal record of an unknown format");
            device_error(DeviceErrorKind::Medium, Some(lba), "a seal record of an unknown format; update strongroom")
        }
    }
}

fn forked(_: Forked) -> DeviceError {
    device_error(
        DeviceErrorKind::Refused,
        None,
        "this process is a fork of the one that attached the volume, and must not seal with its stamps; attach again",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use strongroom_block::{CryptoCounters, SealingDomain};
    use strongroom_seal::SealContext;

    use super::*;

    /// Custody `target`: two copies of one machine must not seal with the same keys, for the nonce is constant.
    #[test]
    fn a_reconnect_forgets_the_block_keys_that_were_drawn_before() {
        let drawn = Arc::new(AtomicU8::new(0));
        let fill = {
            let drawn = Arc::clone(&drawn);
            Box::new(move |out: &mut [u8]| out.fill(drawn.fetch_add(1, Ordering::Relaxed) + 1))
        };
        let context = SealContext::new(SealingDomain([2; 16]), BlockSize::new(512).unwrap(), 1);
        let sealing = Sealing::new(VolumeSealer::block_keys(context, fill, Arc::new(CryptoCounters::new())));
        let key = || {
            let sealed = sealing.seal(Lba(0), &[7; 512]).unwrap();
            SealRecord::decode(&sealed.records).unwrap().raw_block_key().copied()
        };
        assert_eq!((key(), key()), (Some([1; 32]), Some([1; 32])), "of one batch");
        sealing.renew(None);
        assert_eq!(key(), Some([2; 32]), "drawn after the reconnect");
        assert_eq!(drawn.load(Ordering::Relaxed), 2);
    }
}

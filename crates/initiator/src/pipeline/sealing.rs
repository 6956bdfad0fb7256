//! Seals what goes out and opens what comes in, for one sealed unit. Cryptography is `seal`'s; stamps are next door.
//!
//! Small requests are sealed where they are submitted and opened where they arrive; large ones may be sealed by other threads
//! (`sealers`): calls share `self`, and keep no order of their own. How fast they are is measured here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use strongroom_block::{
    BlockSize, Buffer, BufferMut, DeviceError, DeviceErrorKind, HoleRecord, Lba, OpenError, RecordError, SealRecord,
    Stamp, StoreSequence,
};
use strongroom_scsi::transport::SealRecords;
use strongroom_seal::VolumeSealer;
use zeroize::Zeroizing;

use crate::VolumeKeys;
use crate::completion::{device_error, lock};
use crate::pipeline::boot_time::BootTime;
use crate::pipeline::current_keys::{CurrentKeys, KeysInUse, NoKeys};
use crate::pipeline::key_renewal::{KeyRenewer, KeyStatus};
use crate::pipeline::read_fault::ReadFault;
use crate::pipeline::stamps::{Forked, Stamps};

/// The sealer and the stamps of one attachment.
pub(crate) struct Sealing {
    keys: Arc<CurrentKeys>,
    stamps: Mutex<Stamps>,
    block_size: BlockSize,
    record_bytes: usize,
    /// Renews the lease of keys that are only lent.
    pub(crate) key_renewer: OnceLock<KeyRenewer>,
    /// The blocks that there was no key for lately, and their epochs: what an unauthenticated record says.
    unknown: Mutex<VecDeque<(Lba, u32)>>,
    speed: Speed,
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealing").field("block_size", &self.block_size).finish_non_exhaustive()
    }
}

/// What one thread seals in a time: lately, for the weight of what was before halves.
#[derive(Debug, Default)]
struct Speed {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Speed {
    fn add(&self, bytes: u64, nanoseconds: u64) {
        // Not one step: two that add at once lose a measurement at worst.
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) > SPEED_BYTES {
            self.bytes.store(SPEED_BYTES / 2, Ordering::Relaxed);
            let before = self.nanoseconds.load(Ordering::Relaxed);
            self.nanoseconds.store(before / 2, Ordering::Relaxed);
        }
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// Blocks without a key that are remembered; as many as are read at a time.
const UNKNOWN_MAX: usize = 1024;
/// Over how many bytes the speed of sealing is taken.
const SPEED_BYTES: u64 = 16 << 20;
/// What is smaller than this, in bytes, is not timed.
const TIMED_BYTES_MIN: usize = 8 << 10;

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

    /// The epoch that they were sealed under, all of them.
    pub(crate) fn epoch(&self) -> u32 {
        u32::from_be_bytes(self.0[4..8].try_into().expect("4 bytes"))
    }

    /// The stamp of the first one.
    pub(crate) fn first_stamp(&self) -> Stamp {
        self.stamp_at(0)
    }

    /// The stamp of the record that begins at byte `from`.
    pub(crate) fn stamp_at(&self, from: usize) -> Stamp {
        // Version, suite, mode, flags and epoch come first in a record, then the stamp.
        Stamp::from_bytes(self.0[from + 8..from + 32].try_into().expect("24 bytes"))
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
        Sealing {
            keys: Arc::new(CurrentKeys::new(sealer)),
            stamps: Mutex::new(Stamps::new()),
            block_size,
            record_bytes,
            key_renewer: OnceLock::new(),
            unknown: Mutex::default(),
            speed: Speed::default(),
        }
    }

    /// After a reconnect: the volume's current keys, a new attach id, and no key that was drawn before.
    pub(crate) fn renew(&self, sealer: Option<VolumeSealer>) {
        if let Some(sealer) = sealer {
            self.keys.replace(sealer, true);
        } else if let Ok(sealer) = self.sealer()
            && let VolumeSealer::BlockKeys(keys) = &*sealer
        {
            keys.forget_unused();
        }
        lock(&self.stamps).renew();
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.block_size.len()
    }

    /// What one thread seals, in bytes per second; `None` until it was measured.
    pub(crate) fn bytes_per_second(&self) -> Option<f64> {
        let bytes = self.speed.bytes.load(Ordering::Relaxed);
        let nanoseconds = self.speed.nanoseconds.load(Ordering::Relaxed);
        (bytes > 0 && nanoseconds > 0).then(|| bytes as f64 * 1e9 / nanoseconds as f64)
    }

    pub(crate) fn record_bytes(&self) -> usize {
        self.record_bytes
    }

    /// The keys, for who renews their lease.
    pub(crate) fn keys(&self) -> &Arc<CurrentKeys> {
        &self.keys
    }

    /// The keys that it was made with are lent.
    pub(crate) fn lend(&self, lent: &VolumeKeys, asked: BootTime) {
        self.keys.lend(lent.may_seal, lent.lease.map(|lease| asked.after(lease)));
    }

    /// How long the keys may still be used; `None` without a lease, or without keys.
    pub(crate) fn lease_left(&self) -> Option<Duration> {
        self.keys.lease_left()
    }

    /// Wipes keys whose lease has ended; whether it did.
    pub(crate) fn expire(&self) -> bool {
        self.lease_left().is_some_and(|left| left.is_zero()) && self.keys.expire(self.silence())
    }

    /// Why there are no keys when a lease has ended. Not to be asked while the keys are locked: the key renewer locks its own state first
    /// and then the keys.
    fn silence(&self) -> String {
        let trouble = self.key_renewer.get().and_then(|renewer| renewer.trouble().1);
        let trouble = trouble.map(|trouble| format!(" ({trouble})")).unwrap_or_default();
        format!("the key server was not heard of for longer than its keys are lent{trouble}")
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.keys.exist()
    }

    /// How keys that are lent stand; `None` for others.
    pub(crate) fn key_status(&self) -> Option<KeyStatus> {
        let (epoch, trouble) = self.key_renewer.get()?.trouble();
        Some(match self.keys.in_use() {
            Ok(KeysInUse { epochs, may_seal, lease_left }) => {
                KeyStatus { epoch, epochs, may_seal, lease_left: lease_left.unwrap_or_default(), trouble }
            }
            Err(why) => KeyStatus {
                epoch,
                epochs: Vec::new(),
                may_seal: false,
                lease_left: Duration::ZERO,
                trouble: Some(trouble.unwrap_or(why)),
            },
        })
    }

    /// The epoch of a block that there was no key for.
    fn unknown_epoch(&self, lba: Option<Lba>) -> Option<u32> {
        let mut unknown = lock(&self.unknown);
        let at = unknown.iter().rposition(|(of, _)| Some(*of) == lba)?;
        unknown.remove(at).map(|(_, epoch)| epoch)
    }

    /// There was no key for a block: the number of a question about its epoch, whose answer wakes the engine. `None` if nobody can be
    /// asked, or need be.
    pub(crate) fn ask_for_keys(&self, lba: Option<Lba>) -> Option<u64> {
        self.key_renewer.get().filter(|_| self.has_keys())?.ask(self.unknown_epoch(lba)?)
    }

    /// Whether the answer has come, or never will.
    pub(crate) fn is_answered(&self, question: u64) -> bool {
        self.key_renewer.get().is_none_or(|renewer| renewer.is_answered(question))
    }

    /// The same, and waits for the answer.
    pub(crate) fn ask_for_keys_and_wait(&self, lba: Lba) -> bool {
        let renewer = self.key_renewer.get().filter(|_| self.has_keys());
        renewer.zip(self.unknown_epoch(Some(lba))).is_some_and(|(renewer, epoch)| renewer.ask_and_wait(epoch))
    }

    /// The attachment ends: nothing is left of its keys.
    pub(crate) fn end(&self) {
        if let Some(renewer) = self.key_renewer.get() {
            renewer.end();
            self.keys.end("the volume was detached");
        }
    }

    /// What opens, as long as that is allowed.
    pub(crate) fn sealer(&self) -> Result<Arc<VolumeSealer>, DeviceError> {
        self.keys.sealer().map_err(|missing| match missing {
            NoKeys::LeaseEnded => no_keys(&self.silence()),
            NoKeys::Wiped(why) => no_keys(&why),
        })
    }

    /// Whether something failed for keys that come again once their source is heard of: they were not taken back, and it is not the
    /// key of one block that is missing among others.
    pub(crate) fn is_passing(&self, error: &DeviceError) -> bool {
        error.kind == DeviceErrorKind::NoKey && error.lba.is_none() && !self.keys.are_revoked()
    }

    /// What seals, as long as that is allowed.
    fn sealer_for_writes(&self) -> Result<Arc<VolumeSealer>, DeviceError> {
        if self.keys.are_read_only() {
            let message = "the key server lets this identity read the volume, not write it; attach it read-only, or ask its \
                           owner for the right 'seal'";
            return Err(device_error(DeviceErrorKind::ReadOnly, None, message));
        }
        self.sealer()
    }

    /// Seals whole blocks for `lba` on.
    pub(crate) fn seal(&self, lba: Lba, plain: &[u8]) -> Result<SealedBlocks, DeviceError> {
        let block_bytes = self.block_size.len();
        let count = u32::try_from(plain.len() / block_bytes).expect("requests are far smaller than 2^32 blocks");
        let begun = (plain.len() >= TIMED_BYTES_MIN).then(Instant::now);
        let sealer = self.sealer_for_writes()?;
        let stamps = lock(&self.stamps).run(count, block_bytes as u64).map_err(forked)?;
        let mut data = BufferMut::to_fill(plain.len());
        let mut records = Zeroizing::new(Vec::with_capacity(self.record_bytes * count as usize));
        let blocks = plain.chunks_exact(block_bytes).zip(data.chunks_exact_mut(block_bytes));
        for ((at, (plain, sealed)), stamp) in (lba.0..).zip(blocks).zip(stamps) {
            let record = sealer.seal_into(Lba(at), stamp, plain, sealed);
            records.extend_from_slice(record.as_bytes());
        }
        if let Some(begun) = begun {
            self.speed.add(plain.len() as u64, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(SealedBlocks { data: data.freeze(), records: Records::new(records) })
    }

    /// Seals the absence of a range.
    pub(crate) fn seal_hole(&self, start: Lba, count: u64) -> Result<HoleRecord, DeviceError> {
        let sealer = self.sealer_for_writes()?;
        let stamp = lock(&self.stamps).one(0).map_err(forked)?;
        Ok(sealer.seal_hole(start, count, stamp))
    }

    /// Whether a record is of an older epoch than what is sealed now, and so must not be sent.
    pub(crate) fn is_stale(&self, epoch: u32) -> Result<bool, DeviceError> {
        let sealer = self.sealer_for_writes()?;
        // Custody `target` has a key for each block, and no epochs.
        Ok(matches!(&*sealer, VolumeSealer::Blind(_)) && sealer.context().epoch != epoch)
    }

    /// Opens blocks that we sealed and seals them again, under the current epoch and new stamps.
    pub(crate) fn seal_again(&self, lba: Lba, sealed: &SealedBlocks) -> Result<SealedBlocks, DeviceError> {
        let sealer = self.sealer()?;
        let mut plain = BufferMut::to_fill(sealed.data.len());
        let block_bytes = self.block_size.len();
        let blocks = sealed.data.chunks_exact(block_bytes).zip(plain.chunks_exact_mut(block_bytes));
        for ((at, record), (sealed, plain)) in (lba.0..).zip(sealed.records.chunks_exact(self.record_bytes)).zip(blocks)
        {
            let record = SealRecord::decode(record).expect("made by us");
            sealer.open_into(Lba(at), &record, sealed, plain).map_err(|error| self.not_opened(Lba(at), error))?;
        }
        self.seal(lba, &plain)
    }

    /// Opens one version of a block into `out`.
    pub(crate) fn open_version(
        &self,
        lba: Lba,
        record: &SealRecord,
        sealed: &[u8],
        out: &mut [u8],
    ) -> Result<Result<(), OpenError>, DeviceError> {
        Ok(self.sealer()?.open_into(lba, record, sealed, out))
    }

    /// Checks a version that says that block `lba` is absent. The seal of another range speaks for nothing.
    pub(crate) fn open_absent_version(
        &self,
        lba: Lba,
        hole: &HoleRecord,
    ) -> Result<Result<(), OpenError>, DeviceError> {
        if !hole.covers(lba) {
            return Ok(Err(OpenError::NotAuthentic));
        }
        Ok(self.sealer()?.open_hole(hole))
    }

    /// Opens the blocks of one Data-In PDU that starts at `lba`, into `out`; tells each block's record and sequence.
    pub(crate) fn open(
        &self,
        lba: Lba,
        entries: &SealRecords,
        sealed: &[u8],
        out: &mut [u8],
        mut opened: impl FnMut(Lba, &SealRecord, StoreSequence),
    ) -> Result<(), ReadFault> {
        let block_bytes = self.block_size.len();
        if sealed.len() != out.len() || entries.count() * block_bytes != sealed.len() {
            return Err(medium(lba, "the target sent blocks without their seal records").into());
        }
        let sealer = self.sealer()?;
        let blocks = sealed.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_bytes));
        for ((at, entry), (sealed, out)) in (lba.0..).zip(entries.iter()).zip(blocks) {
            let lba = Lba(at);
            let (sequence, record) = read_entry(entry).map_err(|_| malformed(lba))?;
            sealer.open_into(lba, &record, sealed, out).map_err(|error| match error {
                OpenError::NotAuthentic => ReadFault::NotAuthentic { lba, sequence },
                error => self.not_opened(lba, error).into(),
            })?;
            opened(lba, &record, sequence);
        }
        Ok(())
    }

    /// Checks that `hole` is authentic and covers `count` blocks from `lba` on.
    pub(crate) fn open_hole(&self, lba: Lba, count: u64, hole: &HoleRecord) -> Result<(), DeviceError> {
        if count == 0 || !hole.covers(lba) || !hole.covers(Lba(lba.0 + (count - 1))) {
            return Err(medium(lba, "the target answered with the seal of another range"));
        }
        self.sealer()?.open_hole(hole).map_err(|error| self.not_opened(lba, error))
    }

    /// The error of a block or an absence that does not open.
    pub(crate) fn not_opened(&self, lba: Lba, error: OpenError) -> DeviceError {
        if let OpenError::NoKey { epoch } = error {
            let mut unknown = lock(&self.unknown);
            unknown.push_back((lba, epoch));
            if unknown.len() > UNKNOWN_MAX {
                unknown.pop_front();
            }
        }
        not_opened(lba, error)
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
fn not_opened(lba: Lba, error: OpenError) -> DeviceError {
    match error {
        OpenError::NotAuthentic => medium(lba, &error.to_string()),
        // Never a reason to look for an older version.
        OpenError::NoKey { epoch } => {
            tracing::error!(%lba, epoch, "no key for the epoch of a block");
            let message = format!(
                "no key for epoch {epoch}, under which the block is sealed; get the current key file, or ask the owner at the key \
                 server (an epoch that was destroyed there is gone for good)"
            );
            device_error(DeviceErrorKind::NoKey, Some(lba), message)
        }
        OpenError::Unsupported => {
            tracing::error!(%lba, "a seal record of an unknown format");
            device_error(DeviceErrorKind::Medium, Some(lba), "a seal record of an unknown format; update strongroom")
        }
    }
}

/// Names no block: see [`Sealing::is_passing`].
fn no_keys(why: &str) -> DeviceError {
    device_error(DeviceErrorKind::NoKey, None, format!("there are no keys: {why}"))
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

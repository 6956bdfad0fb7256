//! Custodies `keyfile` and `keyserver`: XAES-256-GCM under a key that the target never sees, the stamp as nonce.

use std::array;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use strongroom_block::{
    CryptoCounters, HoleRecord, Lba, OpenError, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum,
};

use crate::gcm::{Binding, GcmKey};
use crate::secret::{KEY_BYTES, Secret, VolumeKey};
use crate::xaes::{SELECTOR_BYTES, XaesKey, split};
use crate::{SealContext, associated};

/// The HKDF salt of everything that comes from a volume key or a wrapping key.
pub(crate) const HKDF_SALT: &[u8] = b"strongroom/1 volume";

const SETS: usize = 16;
const WAYS: usize = 4;
/// Upper bound on the expanded sub-keys kept for one epoch. A reader meets one per attachment and 64 GiB written;
/// a storage host that makes attach ids up gains nothing but the derivation of a key per block.
pub const SUB_KEYS_CACHED_MAX: usize = SETS * WAYS;

/// Length of HKDF output, as the library wants it.
pub(crate) struct Len(pub(crate) usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// 32 bytes for one purpose, named by `info`, from a volume key or a wrapping key.
pub(crate) fn derive(key: &Secret<KEY_BYTES>, info: &[&[u8]]) -> Secret<KEY_BYTES> {
    Secret::filled(|out| derive_into(key, info, out))
}

/// As [`derive`], for any length up to 255 hashes.
pub(crate) fn derive_into(key: &Secret<KEY_BYTES>, info: &[&[u8]], out: &mut [u8]) {
    let pseudorandom = Salt::new(HKDF_SHA256, HKDF_SALT).extract(key.expose());
    pseudorandom
        .expand(info, Len(out.len()))
        .and_then(|material| material.fill(out))
        .expect("far below 255 hashes of output");
}

/// The keys of one sealing domain and one epoch.
#[derive(Debug)]
pub struct BlindKeys {
    context: SealContext,
    xaes: XaesKey,
    sub_keys: SubKeys,
    counters: Arc<CryptoCounters>,
}

impl BlindKeys {
    /// Derives the keys of `context`'s domain and epoch from `volume_key`.
    pub fn new(volume_key: &VolumeKey, context: SealContext, counters: Arc<CryptoCounters>) -> BlindKeys {
        let info: [&[u8]; 3] = [b"seal", &context.domain.0, &context.epoch.to_be_bytes()];
        let xaes = XaesKey::new(derive(&volume_key.0, &info).expose());
        BlindKeys { context, xaes, sub_keys: SubKeys::default(), counters }
    }

    /// What these keys seal for.
    pub fn context(&self) -> &SealContext {
        &self.context
    }

    /// Seals `block` in place, for `lba`. A stamp is used once.
    ///
    /// # Panics
    /// If `block` is not one block long.
    pub fn seal(&self, lba: Lba, stamp: Stamp, block: &mut [u8]) -> SealRecord {
        self.context.assert_one_block(block);
        let associated = associated::of_block(&self.context, self.context.mode, RecordFlags(0), lba, stamp);
        let (key, nonce) = self.key_for(stamp);
        let tag = key.seal(&self.binding(nonce, &associated), block, &self.counters);
        self.record(RecordFlags(0), stamp, keyless_checksum(block), tag)
    }

    /// Seals `plain` into `out`, for `lba`: the way without a copy when the plaintext must stay.
    ///
    /// # Panics
    /// If `plain` or `out` is not one block long.
    pub fn seal_into(&self, lba: Lba, stamp: Stamp, plain: &[u8], out: &mut [u8]) -> SealRecord {
        self.context.assert_one_block(plain);
        self.context.assert_one_block(out);
        let associated = associated::of_block(&self.context, self.context.mode, RecordFlags(0), lba, stamp);
        let (key, nonce) = self.key_for(stamp);
        let tag = key.seal_into(&self.binding(nonce, &associated), plain, out, &self.counters);
        self.record(RecordFlags(0), stamp, keyless_checksum(out), tag)
    }

    /// Opens `block` in place.
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `block` are then unspecified.
    pub fn open(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError> {
        let associated = self.check_block(lba, record, block)?;
        let (key, nonce) = self.key_for(record.stamp());
        key.open(&self.binding(nonce, &associated), &record.tag(), block, &self.counters)
    }

    /// Opens `sealed` into `out`: one pass from the receive buffer to the reader's.
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `out` are then unspecified.
    ///
    /// # Panics
    /// If `out` is not one block long.
    pub fn open_into(&self, lba: Lba, record: &SealRecord, sealed: &[u8], out: &mut [u8]) -> Result<(), OpenError> {
        self.context.assert_one_block(out);
        let associated = self.check_block(lba, record, sealed)?;
        let (key, nonce) = self.key_for(record.stamp());
        key.open_into(&self.binding(nonce, &associated), &record.tag(), sealed, out, &self.counters)
    }

    /// Seals the absence of `count` blocks from `start`.
    ///
    /// # Panics
    /// If the range is empty or runs past the end of the address space.
    pub fn seal_hole(&self, start: Lba, count: u64, stamp: Stamp) -> HoleRecord {
        SealContext::assert_range(start, count);
        let flags = RecordFlags(RecordFlags::HOLE);
        let associated = associated::of_hole(&self.context, self.context.mode, flags, start, count, stamp);
        let (key, nonce) = self.key_for(stamp);
        let tag = key.seal(&self.binding(nonce, &associated), &mut [], &self.counters);
        HoleRecord { start, count, record: self.record(flags, stamp, 0, tag) }
    }

    /// Whether `hole` is authentic as a whole; that it covers the block in question is for the caller to check.
    ///
    /// # Errors
    /// [`OpenError`] if it was not sealed like this under these keys.
    pub fn open_hole(&self, hole: &HoleRecord) -> Result<(), OpenError> {
        let flags = RecordFlags(RecordFlags::HOLE);
        let record = &hole.record;
        self.context.check_record(record, flags)?;
        if record.checksum() != 0 {
            return Err(OpenError::NotAuthentic);
        }
        let stamp = record.stamp();
        let associated = associated::of_hole(&self.context, self.context.mode, flags, hole.start, hole.count, stamp);
        let (key, nonce) = self.key_for(stamp);
        key.open(&self.binding(nonce, &associated), &record.tag(), &mut [], &self.counters)
    }

    fn record(&self, flags: RecordFlags, stamp: Stamp, checksum: u64, tag: [u8; 16]) -> SealRecord {
        SealRecord::new(Suite::Aes256Gcm, self.context.mode, flags, self.context.epoch, stamp, checksum, tag)
    }

    /// Everything that must hold before the tag is looked at, and the associated data.
    fn check_block(
        &self,
        lba: Lba,
        record: &SealRecord,
        sealed: &[u8],
    ) -> Result<[u8; associated::BLOCK_BYTES], OpenError> {
        self.context.check_record(record, RecordFlags(0))?;
        self.context.check_body(record, sealed)?;
        Ok(associated::of_block(&self.context, self.context.mode, RecordFlags(0), lba, record.stamp()))
    }

    fn binding<'a>(&self, nonce: [u8; 12], associated: &'a [u8]) -> Binding<'a> {
        Binding { mode: self.context.mode, nonce, associated }
    }

    fn key_for(&self, stamp: Stamp) -> (Arc<GcmKey>, [u8; 12]) {
        let (selector, nonce) = split(&stamp.to_bytes());
        (self.sub_keys.lookup(&selector, &self.xaes), nonce)
    }
}

/// One kept sub-key.
type Entry = Option<([u8; SELECTOR_BYTES], Arc<GcmKey>)>;

/// A set of the cache: entries, and where the next one goes.
#[derive(Default)]
struct Set {
    ways: [Entry; WAYS],
    next: usize,
}

/// Sub-keys by selector: fixed in size, shared by the threads of a pool.
struct SubKeys([RwLock<Set>; SETS]);

impl std::fmt::Debug for SubKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SubKeys")
    }
}

impl Default for SubKeys {
    fn default() -> Self {
        SubKeys(array::from_fn(|_| RwLock::default()))
    }
}

impl SubKeys {
    fn lookup(&self, selector: &[u8; SELECTOR_BYTES], xaes: &XaesKey) -> Arc<GcmKey> {
        // Attach ids are random, so any byte spreads them.
        let set = &self.0[usize::from(selector[0]) % SETS];
        let kept = |set: &Set| {
            let found = set.ways.iter().flatten().find(|(kept, _)| kept == selector);
            found.map(|(_, key)| Arc::clone(key))
        };
        // Nothing panics while the lock is held, so a poisoned one still guards a whole set.
        if let Some(key) = kept(&set.read().unwrap_or_else(PoisonError::into_inner)) {
            return key;
        }
        let key = Arc::new(xaes.sub_key(selector));
        let mut set = set.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(raced) = kept(&set) {
            return raced;
        }
        let way = set.next;
        set.ways[way] = Some((*selector, Arc::clone(&key)));
        set.next = (way + 1) % WAYS;
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_within_its_bound_and_returns_the_right_key() {
        let xaes = XaesKey::new(&[5; 32]);
        let cache = SubKeys::default();
        let counters = CryptoCounters::new();
        let binding = Binding { mode: strongroom_block::Mode::Encrypt, nonce: [0; 12], associated: b"" };
        let tag_of = |key: &GcmKey| key.seal(&binding, &mut [], &counters);
        for round in 0..2u8 {
            for id in 0..=255u8 {
                let selector = [id; SELECTOR_BYTES];
                let cached = cache.lookup(&selector, &xaes);
                assert_eq!(tag_of(&cached), tag_of(&xaes.sub_key(&selector)), "round {round}, id {id}");
                assert!(Arc::ptr_eq(&cached, &cache.lookup(&selector, &xaes)), "kept for the next block");
            }
        }
        let kept: usize = cache.0.iter().map(|set| set.read().unwrap().ways.iter().flatten().count()).sum();
        assert_eq!(kept, SUB_KEYS_CACHED_MAX);
    }
}

//! Custodies `keyfile` and `keyserver`: sealing under a key that the target never sees, the stamp as nonce.
//!
//! Both compositions give each attach id a key of its own: XAES-256-GCM for AES-256-GCM, HKDF for the other suites.

use std::array;
use std::sync::{Arc, PoisonError, RwLock};

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use strongroom_block::{
    AttachId, CryptoCounters, HoleRecord, Lba, OpenError, RecordFlags, SealRecord, Stamp, Suite, keyless_checksum,
};
use strongroom_cipher::NONCE_BYTES;

use crate::aead::{Binding, SealKey};
use crate::secret::{KEY_BYTES, Secret, VolumeKey};
use crate::xaes::{XaesKey, split};
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

/// What an initiator keeps in memory for an epoch of a volume whose suite is not AES-256-GCM: for tests that look for it.
#[doc(hidden)]
pub fn seal_key_for_test(volume_key: &VolumeKey, context: &SealContext) -> [u8; KEY_BYTES] {
    match Root::new(volume_key, context) {
        Root::Derived { seal_key, .. } => *seal_key.expose(),
        Root::Xaes(_) => panic!("the library keeps an expanded key of this suite, and nothing else does"),
    }
}

/// The keys of one sealing domain and one epoch.
#[derive(Debug)]
pub struct BlindKeys {
    context: SealContext,
    root: Root,
    sub_keys: SubKeys,
    counters: Arc<CryptoCounters>,
}

impl BlindKeys {
    /// Derives the keys of `context`'s domain and epoch from `volume_key`.
    pub fn new(volume_key: &VolumeKey, context: SealContext, counters: Arc<CryptoCounters>) -> BlindKeys {
        let root = Root::new(volume_key, &context);
        BlindKeys { context, root, sub_keys: SubKeys::default(), counters }
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
        SealRecord::new(self.context.suite, self.context.mode, flags, self.context.epoch, stamp, checksum, tag)
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

    fn key_for(&self, stamp: Stamp) -> (Arc<SealKey>, [u8; NONCE_BYTES]) {
        (self.sub_keys.lookup(stamp.attach_id, &self.root), self.root.nonce(stamp))
    }
}

/// What the key of each attach id comes from.
#[derive(Debug)]
enum Root {
    /// AES-256-GCM: the composition XAES-256-GCM, of whose 24-byte nonce the stamp is one.
    Xaes(Box<XaesKey>),
    /// Every other suite: HKDF of the whole attach id; the nonce is the stamp's counter.
    Derived { seal_key: Secret<KEY_BYTES>, suite: Suite },
}

impl Root {
    fn new(volume_key: &VolumeKey, context: &SealContext) -> Root {
        let epoch = context.epoch.to_be_bytes();
        match context.suite {
            Suite::Aes256Gcm => {
                let seal_key = derive(&volume_key.0, &[b"seal", &context.domain.0, &epoch]);
                Root::Xaes(Box::new(XaesKey::new(seal_key.expose())))
            }
            suite => {
                let seal_key = derive(&volume_key.0, &[b"seal", &context.domain.0, &epoch, &[suite as u8]]);
                Root::Derived { seal_key, suite }
            }
        }
    }

    fn sub_key(&self, attach_id: AttachId) -> SealKey {
        match self {
            Root::Xaes(xaes) => xaes.sub_key(attach_id.0.first_chunk().expect("12 of 16 bytes")),
            Root::Derived { seal_key, suite } => {
                SealKey::new(*suite, derive(seal_key, &[b"attach", &attach_id.0]).expose())
            }
        }
    }

    fn nonce(&self, stamp: Stamp) -> [u8; NONCE_BYTES] {
        match self {
            Root::Xaes(_) => split(&stamp.to_bytes()).1,
            Root::Derived { .. } => {
                let mut nonce = [0; NONCE_BYTES];
                nonce[NONCE_BYTES - 8..].copy_from_slice(&stamp.counter.to_be_bytes());
                nonce
            }
        }
    }
}

/// One kept sub-key.
type Entry = Option<(AttachId, Arc<SealKey>)>;

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
    fn lookup(&self, attach_id: AttachId, root: &Root) -> Arc<SealKey> {
        // Attach ids are random, so any byte spreads them.
        let set = &self.0[usize::from(attach_id.0[0]) % SETS];
        let kept = |set: &Set| {
            let found = set.ways.iter().flatten().find(|(kept, _)| *kept == attach_id);
            found.map(|(_, key)| Arc::clone(key))
        };
        // Nothing panics while the lock is held, so a poisoned one still guards a whole set.
        if let Some(key) = kept(&set.read().unwrap_or_else(PoisonError::into_inner)) {
            return key;
        }
        let key = Arc::new(root.sub_key(attach_id));
        let mut set = set.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(raced) = kept(&set) {
            return raced;
        }
        let way = set.next;
        set.ways[way] = Some((attach_id, Arc::clone(&key)));
        set.next = (way + 1) % WAYS;
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_within_its_bound_and_returns_the_right_key() {
        for suite in Suite::ALL {
            let block_size = strongroom_block::BlockSize::DEFAULT;
            let context = SealContext::new(strongroom_block::SealingDomain([1; 16]), block_size, 1).with_suite(suite);
            let root = Root::new(&VolumeKey::new([5; 32]), &context);
            let cache = SubKeys::default();
            let counters = CryptoCounters::new();
            let binding = Binding { mode: strongroom_block::Mode::Encrypt, nonce: [0; NONCE_BYTES], associated: b"" };
            let tag_of = |key: &SealKey| key.seal(&binding, &mut [], &counters);
            for round in 0..2u8 {
                for id in 0..=255u8 {
                    let attach_id = AttachId([id; 16]);
                    let cached = cache.lookup(attach_id, &root);
                    assert_eq!(tag_of(&cached), tag_of(&root.sub_key(attach_id)), "round {round}, id {id}");
                    assert!(Arc::ptr_eq(&cached, &cache.lookup(attach_id, &root)), "kept for the next block");
                }
            }
            let kept: usize = cache.0.iter().map(|set| set.read().unwrap().ways.iter().flatten().count()).sum();
            assert_eq!(kept, SUB_KEYS_CACHED_MAX);
        }
    }

    /// Attach ids that differ in their last bytes alone have the same key in XAES, whose nonces then differ, and different
    /// keys in the other suites.
    #[test]
    fn no_key_and_nonce_are_shared_by_two_stamps() {
        for suite in Suite::ALL {
            let block_size = strongroom_block::BlockSize::DEFAULT;
            let context = SealContext::new(strongroom_block::SealingDomain([1; 16]), block_size, 1).with_suite(suite);
            let root = Root::new(&VolumeKey::new([5; 32]), &context);
            let counters = CryptoCounters::new();
            let mut seen = std::collections::HashSet::new();
            for last in 0..4 {
                for counter in 0..4 {
                    let mut id = [9; 16];
                    id[15] = last;
                    let stamp = Stamp { attach_id: AttachId(id), counter };
                    let nonce = root.nonce(stamp);
                    let binding = Binding { mode: strongroom_block::Mode::Encrypt, nonce, associated: b"" };
                    let mut text = [0; 32];
                    root.sub_key(stamp.attach_id).seal(&binding, &mut text, &counters);
                    assert!(seen.insert(text), "{suite}: the same key stream twice");
                }
            }
        }
    }
}

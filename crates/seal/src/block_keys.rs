//! Custody `target`: a fresh random key per write, kept by the trusted target and wrapped for rest. For comparison also the
//! lazy-crypto paper's other mapping (§4): one key for a run of blocks.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap};
use strongroom_block::{
    AttachId, BLOCK_KEY_BYTES, BlockKeyWrap, CryptoCounters, HoleRecord, Lba, OpenError, RecordFlags, SealRecord,
    SealingDomain, Stamp, WRAPPED_KEY_BYTES, WrapError, keyless_checksum,
};
use strongroom_cipher::NONCE_BYTES;
use zeroize::Zeroize;

use crate::aead::{Binding, SealKey};
use crate::blind::derive;
use crate::secret::{KEY_BYTES, Secret, WrappingKey};
use crate::{SealContext, associated};

/// Block keys drawn from the operating system at a time: one call per key would cost as much as the sealing.
pub const KEY_BATCH: usize = 64;

/// Fills a slice from the operating system's generator.
pub type FillRandom = Box<dyn FnMut(&mut [u8]) + Send>;

/// Each key seals one write and nothing else, so its nonce may be constant; the stamp is bound as associated data.
const NONCE: [u8; NONCE_BYTES] = [0; NONCE_BYTES];

/// What a block's record says if its key is its own, and if it shares it.
const OWN: RecordFlags = RecordFlags(RecordFlags::BLOCK_KEY);
const SHARED: RecordFlags = RecordFlags(RecordFlags::BLOCK_KEY | RecordFlags::SHARED_KEY);

/// Seals every write under a key of its own, which its record carries; opens by the record's key.
///
/// An initiator needs nothing but this and the channel: it holds no key that lasts.
pub struct BlockKeys {
    context: SealContext,
    batch: Mutex<Batch>,
    /// Blocks that share a key, at most.
    blocks_per_key: NonZeroU32,
    wrapper: Option<Arc<dyn BlockKeyWrap>>,
    counters: Arc<CryptoCounters>,
}

impl fmt::Debug for BlockKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockKeys").field("context", &self.context).finish_non_exhaustive()
    }
}

impl BlockKeys {
    /// Block keys drawn by `fill_random`, [`KEY_BATCH`] at a time.
    pub fn new(context: SealContext, fill_random: FillRandom, counters: Arc<CryptoCounters>) -> BlockKeys {
        let batch = Mutex::new(Batch::new(fill_random));
        BlockKeys { context, batch, blocks_per_key: NonZeroU32::MIN, wrapper: None, counters }
    }

    /// The same, with one key for up to this many consecutive blocks that are sealed one after the other (a run never crosses a
    /// multiple of that). An attacker who learns the key of one block then opens the adjacent blocks: for benchmarks.
    #[must_use]
    pub fn with_blocks_per_key(self, blocks_per_key: NonZeroU32) -> BlockKeys {
        BlockKeys { blocks_per_key, ..self }
    }

    /// The same, able to open records as they rest, wrapped by `wrapper`: for a trusted target.
    #[must_use]
    pub fn with_wrapper(mut self, wrapper: Arc<dyn BlockKeyWrap>) -> BlockKeys {
        self.wrapper = Some(wrapper);
        self
    }

    /// Wipes the keys that were drawn and not used, so that the next write gets a newly drawn one. For any attacker who may have been
    /// resumed from a snapshot of its memory: another copy of it has the same unused keys, and the nonce is constant.
    pub fn forget_unused(&self) {
        self.batch().forget_unused();
    }

    /// What these keys seal for.
    pub fn context(&self) -> &SealContext {
        &self.context
    }

    /// Seals `block` in place, for `lba`; the record carries the key (88 bytes: only ever sent inside a channel).
    ///
    /// # Panics
    /// If `block` is not one block long.
    pub fn seal(&self, lba: Lba, stamp: Stamp, block: &mut [u8]) -> SealRecord {
        self.context.assert_one_block(block);
        let (flags, key) = self.key_for(lba, stamp);
        let associated = associated::of_block(&self.context, self.context.mode, flags, lba, stamp);
        let binding = self.binding(flags, stamp, &associated);
        let tag = SealKey::new(self.context.suite, key.expose()).seal(&binding, block, &self.counters);
        self.record(flags, stamp, keyless_checksum(block), tag, &key)
    }

    /// Seals `plain` into `out`, for `lba`.
    ///
    /// # Panics
    /// If `plain` or `out` is not one block long.
    pub fn seal_into(&self, lba: Lba, stamp: Stamp, plain: &[u8], out: &mut [u8]) -> SealRecord {
        self.context.assert_one_block(plain);
        self.context.assert_one_block(out);
        let (flags, key) = self.key_for(lba, stamp);
        let associated = associated::of_block(&self.context, self.context.mode, flags, lba, stamp);
        let binding = self.binding(flags, stamp, &associated);
        let tag = SealKey::new(self.context.suite, key.expose()).seal_into(&binding, plain, out, &self.counters);
        self.record(flags, stamp, keyless_checksum(out), tag, &key)
    }

    /// Opens `block` in place by the record's key.
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `block` are then unspecified.
    pub fn open(&self, lba: Lba, record: &SealRecord, block: &mut [u8]) -> Result<(), OpenError> {
        let (associated, key) = self.check_block(lba, record, block)?;
        key.open(&self.binding(record.flags(), record.stamp(), &associated), &record.tag(), block, &self.counters)
    }

    /// Opens `sealed` into `out` by the record's key.
    ///
    /// # Errors
    /// [`OpenError`]; the contents of `out` are then unspecified.
    ///
    /// # Panics
    /// If `out` is not one block long.
    pub fn open_into(&self, lba: Lba, record: &SealRecord, sealed: &[u8], out: &mut [u8]) -> Result<(), OpenError> {
        self.context.assert_one_block(out);
        let (associated, key) = self.check_block(lba, record, sealed)?;
        let binding = self.binding(record.flags(), record.stamp(), &associated);
        key.open_into(&binding, &record.tag(), sealed, out, &self.counters)
    }

    /// Seals the absence of `count` blocks from `start`.
    ///
    /// # Panics
    /// If the range is empty or runs past the end of the address space.
    pub fn seal_hole(&self, start: Lba, count: u64, stamp: Stamp) -> HoleRecord {
        SealContext::assert_range(start, count);
        let flags = RecordFlags(RecordFlags::HOLE | RecordFlags::BLOCK_KEY);
        let associated = associated::of_hole(&self.context, self.context.mode, flags, start, count, stamp);
        let key = self.batch().draw();
        let binding = self.binding(flags, stamp, &associated);
        let tag = SealKey::new(self.context.suite, key.expose()).seal(&binding, &mut [], &self.counters);
        HoleRecord { start, count, record: self.record(flags, stamp, 0, tag, &key) }
    }

    /// Whether `hole` is authentic as a whole.
    ///
    /// # Errors
    /// [`OpenError`] if it was not sealed like this under the key that it carries.
    pub fn open_hole(&self, hole: &HoleRecord) -> Result<(), OpenError> {
        let flags = RecordFlags(RecordFlags::HOLE | RecordFlags::BLOCK_KEY);
        let record = &hole.record;
        self.context.check_record(record, flags)?;
        if record.checksum() != 0 {
            return Err(OpenError::NotAuthentic);
        }
        let key = self.key_of(record)?;
        let stamp = record.stamp();
        let associated = associated::of_hole(&self.context, self.context.mode, flags, hole.start, hole.count, stamp);
        key.open(&self.binding(flags, stamp, &associated), &record.tag(), &mut [], &self.counters)
    }

    /// A shared key seals under each counter of one attach id once; one of its own seals once.
    fn binding<'a>(&self, flags: RecordFlags, stamp: Stamp, associated: &'a [u8]) -> Binding<'a> {
        let mut nonce = NONCE;
        if flags.has_shared_key() {
            nonce[NONCE_BYTES - 8..].copy_from_slice(&stamp.counter.to_be_bytes());
        }
        Binding { mode: self.context.mode, nonce, associated }
    }

    /// A panic of the random source leaves the batch empty or whole, so a poisoned lock still guards fresh keys.
    fn batch(&self) -> MutexGuard<'_, Batch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key of a block, and what its record says of it.
    fn key_for(&self, lba: Lba, stamp: Stamp) -> (RecordFlags, Secret<BLOCK_KEY_BYTES>) {
        match self.blocks_per_key.get() {
            1 => (OWN, self.batch().draw()),
            blocks => (SHARED, self.batch().draw_for_run(lba, stamp, blocks)),
        }
    }

    fn record(
        &self,
        flags: RecordFlags,
        stamp: Stamp,
        checksum: u64,
        tag: [u8; 16],
        key: &Secret<BLOCK_KEY_BYTES>,
    ) -> SealRecord {
        let SealContext { suite, mode, epoch, .. } = self.context;
        SealRecord::new(suite, mode, flags, epoch, stamp, checksum, tag).with_block_key(key.expose())
    }

    fn check_block(
        &self,
        lba: Lba,
        record: &SealRecord,
        sealed: &[u8],
    ) -> Result<([u8; associated::BLOCK_BYTES], SealKey), OpenError> {
        let flags = if record.flags().has_shared_key() { SHARED } else { OWN };
        self.context.check_record(record, flags)?;
        self.context.check_body(record, sealed)?;
        let key = self.key_of(record)?;
        Ok((associated::of_block(&self.context, self.context.mode, flags, lba, record.stamp()), key))
    }

    fn key_of(&self, record: &SealRecord) -> Result<SealKey, OpenError> {
        if let Some(raw) = record.raw_block_key() {
            return Ok(SealKey::new(self.context.suite, raw));
        }
        let no_key = OpenError::NoKey { epoch: record.epoch() };
        let wrapper = self.wrapper.as_ref().ok_or(no_key)?;
        let wrapped = record.wrapped_block_key().ok_or(no_key)?;
        let mut raw = wrapper.unwrap(wrapped).map_err(|WrapError| OpenError::NotAuthentic)?;
        let key = SealKey::new(self.context.suite, &raw);
        raw.zeroize();
        Ok(key)
    }
}

/// Random keys not yet used; each is wiped when it is given out.
struct Batch {
    keys: Secret<{ KEY_BATCH * BLOCK_KEY_BYTES }>,
    left: usize,
    fill_random: FillRandom,
    /// The key that consecutive blocks share.
    run: Option<Run>,
}

/// A key that goes on to the next block.
struct Run {
    key: Secret<BLOCK_KEY_BYTES>,
    attach_id: AttachId,
    /// The last counter that it sealed under, which is its nonce.
    counter: u64,
    /// The block that it may seal next.
    next: Option<Lba>,
}

impl Batch {
    fn new(fill_random: FillRandom) -> Batch {
        Batch { keys: Secret::new([0; KEY_BATCH * BLOCK_KEY_BYTES]), left: 0, fill_random, run: None }
    }

    fn forget_unused(&mut self) {
        self.keys.zeroize();
        self.left = 0;
        self.run = None;
    }

    /// The key of the block before, if `lba` goes on with its run and `stamp` is a nonce that it has not had; else a fresh one.
    fn draw_for_run(&mut self, lba: Lba, stamp: Stamp, blocks: u32) -> Secret<BLOCK_KEY_BYTES> {
        let Stamp { attach_id, counter } = stamp;
        let goes_on = |run: &Run| run.next == Some(lba) && run.attach_id == attach_id && counter > run.counter;
        let key = match self.run.take().filter(|run| !lba.0.is_multiple_of(blocks.into()) && goes_on(run)) {
            Some(run) => run.key.clone(),
            None => self.draw(),
        };
        self.run = Some(Run { key: key.clone(), attach_id, counter, next: lba.checked_add(1) });
        key
    }

    fn draw(&mut self) -> Secret<BLOCK_KEY_BYTES> {
        if self.left == 0 {
            (self.fill_random)(self.keys.expose_mut());
            self.left = KEY_BATCH;
        }
        self.left -= 1;
        let at = self.left * BLOCK_KEY_BYTES;
        let drawn = &mut self.keys.expose_mut()[at..at + BLOCK_KEY_BYTES];
        let key = Secret::filled(|out| out.copy_from_slice(drawn));
        drawn.zeroize();
        key
    }
}

/// Wraps block keys for rest under AES-256 (RFC 3394), with a key of the sealing domain's own.
///
/// Bound to the domain and not to the volume: snapshots and clones share stored records. Keeps nothing of what it wraps or unwraps: a
/// trusted target has the key of a write no longer than the write is at work.
#[derive(Debug)]
pub struct KeyWrapper {
    key: Secret<KEY_BYTES>,
}

impl KeyWrapper {
    /// The wrapper of `domain`, derived from `wrapping_key`.
    pub fn new(wrapping_key: &WrappingKey, domain: SealingDomain) -> KeyWrapper {
        KeyWrapper { key: derive(&wrapping_key.0, &[b"wrap", &domain.0]) }
    }

    fn kek(&self) -> AesKek {
        AesKek::new(&AES_256, self.key.expose()).expect("32 bytes are an AES-256 key")
    }
}

impl BlockKeyWrap for KeyWrapper {
    fn wrap(&self, key: &[u8; BLOCK_KEY_BYTES]) -> Result<[u8; WRAPPED_KEY_BYTES], WrapError> {
        let mut wrapped = [0; WRAPPED_KEY_BYTES];
        self.kek().wrap(key, &mut wrapped).map_err(|_| WrapError)?;
        Ok(wrapped)
    }

    fn unwrap(&self, wrapped: &[u8; WRAPPED_KEY_BYTES]) -> Result<[u8; BLOCK_KEY_BYTES], WrapError> {
        // What does not unwrap leaves nothing behind.
        let mut key = Secret::new([0; BLOCK_KEY_BYTES]);
        self.kek().unwrap(wrapped, key.expose_mut()).map_err(|_| WrapError)?;
        Ok(*key.expose())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 3394 §4.6: 256 bits of key data under a 256-bit key.
    #[test]
    fn the_wrap_is_rfc_3394() {
        let kek: [u8; 32] = std::array::from_fn(|at| at as u8);
        let mut data = [0; 32];
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = if at < 16 { (at * 0x11) as u8 } else { (at - 16) as u8 };
        }
        let golden = [
            0x28, 0xc9, 0xf4, 0x04, 0xc4, 0xb8, 0x10, 0xf4, 0xcb, 0xcc, 0xb3, 0x5c, 0xfb, 0x87, 0xf8, 0x26, 0x3f, 0x57,
            0x86, 0xe2, 0xd8, 0x0e, 0xd3, 0x26, 0xcb, 0xc7, 0xf0, 0xe7, 0x1a, 0x99, 0xf4, 0x3b, 0xfb, 0x98, 0x8b, 0x9b,
            0x7a, 0x02, 0xdd, 0x21,
        ];
        let wrapper = KeyWrapper { key: Secret::new(kek) };
        assert_eq!(wrapper.wrap(&data), Ok(golden));
        assert_eq!(wrapper.unwrap(&golden), Ok(data));
        // One is never taken for another.
        let other = [7; 32];
        let wrapped = wrapper.wrap(&other).unwrap();
        assert_ne!(wrapped, golden);
        for _ in 0..2 {
            assert_eq!((wrapper.unwrap(&wrapped), wrapper.wrap(&other)), (Ok(other), Ok(wrapped)));
            assert_eq!((wrapper.wrap(&data), wrapper.unwrap(&golden)), (Ok(golden), Ok(data)));
            let mut changed = golden;
            changed[39] ^= 1;
            assert_eq!(wrapper.unwrap(&changed), Err(WrapError));
        }
    }

    /// There is no place in it for the key of a write.
    #[test]
    fn a_wrapper_holds_no_key_but_its_own() {
        assert_eq!(size_of::<KeyWrapper>(), size_of::<Secret<KEY_BYTES>>());
    }

    /// A key never seals twice under one nonce: not after a new attach id, a counter that went back, nor another run.
    #[test]
    fn a_run_shares_its_key_and_no_nonce() {
        let mut drawn = 0;
        let fill: FillRandom = Box::new(move |out| {
            for key in out.chunks_exact_mut(BLOCK_KEY_BYTES) {
                drawn += 1;
                key.fill(drawn);
            }
        });
        let mut batch = Batch::new(fill);
        let mut key = |lba: u64, attach_id: u8, counter: u64| {
            let stamp = Stamp { attach_id: AttachId([attach_id; 16]), counter };
            batch.draw_for_run(Lba(lba), stamp, 4).expose()[0]
        };
        let first = key(4, 1, 10);
        assert_eq!((key(5, 1, 11), key(6, 1, 20)), (first, first));
        let back = key(7, 1, 20);
        assert_ne!(back, first, "the counter did not go on");
        let next_run = key(8, 1, 21);
        assert_ne!(next_run, back, "a run ends at its boundary");
        let elsewhere = key(10, 1, 22);
        assert_ne!(elsewhere, next_run, "a block was left out");
        let again = key(10, 1, 23);
        assert_ne!(again, elsewhere, "the same block again");
        assert_ne!(key(11, 2, 24), again, "another attach id counts from anywhere");
        let last = key(u64::MAX - 1, 2, 25);
        assert_eq!(key(u64::MAX, 2, 26), last);
        assert_ne!(key(0, 2, 27), last);
        batch.forget_unused();
        assert!(batch.run.is_none());
    }

    #[test]
    fn keys_are_drawn_in_batches_and_never_twice() {
        let calls = Arc::new(Mutex::new((0u32, 0u64)));
        let seen = Arc::clone(&calls);
        let fill: FillRandom = Box::new(move |out| {
            let mut state = seen.lock().unwrap();
            state.0 += 1;
            for chunk in out.chunks_exact_mut(8) {
                state.1 += 1;
                chunk.copy_from_slice(&state.1.to_be_bytes());
            }
        });
        let mut batch = Batch::new(fill);
        let drawn: std::collections::HashSet<[u8; 32]> = (0..2 * KEY_BATCH).map(|_| *batch.draw().expose()).collect();
        assert_eq!(drawn.len(), 2 * KEY_BATCH);
        assert_eq!(calls.lock().unwrap().0, 2);
        assert!(batch.keys.expose().iter().all(|&byte| byte == 0), "keys given out are wiped from the batch");
    }

    /// Two copies of one machine must not go on with the same keys.
    #[test]
    fn unused_keys_can_be_forgotten() {
        let mut drawn = 0;
        let fill: FillRandom = Box::new(move |out| {
            drawn += 1;
            out.fill(drawn);
        });
        let mut batch = Batch::new(fill);
        assert_eq!(batch.draw().expose(), &[1; BLOCK_KEY_BYTES]);
        batch.forget_unused();
        assert!(batch.keys.expose().iter().all(|&byte| byte == 0), "they are wiped");
        assert_eq!(batch.draw().expose(), &[2; BLOCK_KEY_BYTES], "none of the first batch");
    }
}

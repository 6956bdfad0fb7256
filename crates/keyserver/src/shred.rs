//! The shred file: for each epoch one key, in a slot of its own, overwritten in place when the epoch is destroyed.
//!
//! The database copies pages when it writes, so that old bytes of a record stay behind in it and in its backups; what was
//! wrapped under a slot's key is worthless once the slot is overwritten. `docs/keys.md` gives the format.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use strongroom_seal::{KEY_BYTES, Secret};
use zeroize::Zeroizing;

use crate::keys::ShredKey;
use crate::wire::{Put, Take};

const MAGIC: &[u8; 8] = b"SRSHRED1";
/// Two headers, written one after the other, so that one is always whole.
const HEADER_PLACES: [u64; 2] = [0, 512];
const HEADER_BYTES: usize = 8 + 16 + 8 + 8;
const SLOTS_AT: u64 = 1024;
const SLOT_BYTES: usize = 64;
/// Most slots: more than 100,000 volumes of ten epochs each.
const SLOTS_MAX: u32 = 1 << 20;

pub(crate) struct ShredFile {
    file: File,
    database: [u8; 16],
    /// A database that has not come to this sequence was rolled back.
    sequence: u64,
    slots: Vec<Option<ShredKey>>,
    /// Slots that hold something, whether or not it is whole.
    dirty: BTreeSet<u32>,
}

impl ShredFile {
    pub(crate) fn create(path: &Path, database: [u8; 16]) -> io::Result<ShredFile> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let mut shred = ShredFile { file, database, sequence: 0, slots: Vec::new(), dirty: BTreeSet::new() };
        shred.write_header(0)?;
        Ok(shred)
    }

    /// `None`: it is not the shred file of this database.
    pub(crate) fn open(path: &Path, database: [u8; 16]) -> io::Result<Option<ShredFile>> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut sequence = None;
        for place in HEADER_PLACES {
            let mut header = [0; HEADER_BYTES];
            if file.read_exact_at(&mut header, place).is_ok() {
                sequence = sequence.max(read_header(&header, &database));
            }
        }
        let Some(sequence) = sequence else { return Ok(None) };
        let bytes = file.metadata()?.len().saturating_sub(SLOTS_AT);
        let count = bytes.div_ceil(SLOT_BYTES as u64).min(SLOTS_MAX.into()) as u32;
        let mut shred = ShredFile { file, database, sequence, slots: Vec::new(), dirty: BTreeSet::new() };
        for index in 0..count {
            let mut slot = Zeroizing::new([0; SLOT_BYTES]);
            // The last one may be cut short.
            let _ = shred.file.read_exact_at(&mut *slot, place_of(index));
            if slot.iter().any(|byte| *byte != 0) {
                shred.dirty.insert(index);
            }
            shred.slots.push(read_slot(&slot, index));
        }
        Ok(Some(shred))
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&ShredKey> {
        self.slots.get(slot as usize)?.as_ref()
    }

    /// A slot that nothing uses, besides those in `taken`.
    pub(crate) fn free(&self, taken: &BTreeSet<u32>) -> Option<u32> {
        (0..SLOTS_MAX).find(|slot| !self.dirty.contains(slot) && !taken.contains(slot))
    }

    /// Belongs to another database from now on, which has come to this sequence.
    pub(crate) fn adopt(&mut self, database: [u8; 16], sequence: u64) -> io::Result<()> {
        if self.database == database {
            return Ok(());
        }
        self.database = database;
        self.write_header(sequence)
    }

    /// Writes keys into slots, durably, for a transaction of this sequence. A database that has not come to the one before is an
    /// older copy from then on: it would take these keys for leftovers.
    pub(crate) fn fill(&mut self, keys: &[(u32, ShredKey)], sequence: u64) -> io::Result<()> {
        if keys.is_empty() {
            return Ok(());
        }
        for (slot, key) in keys {
            if *slot >= SLOTS_MAX {
                return Err(io::Error::other("the shred file has no slot of this number"));
            }
            self.dirty.insert(*slot);
            self.file.write_all_at(&*slot_bytes(key, *slot), place_of(*slot))?;
        }
        self.file.sync_all()?;
        let before = sequence.saturating_sub(1);
        if before > self.sequence {
            self.write_header(before)?;
        }
        for (slot, key) in keys {
            let slots_min = *slot as usize + 1;
            if self.slots.len() < slots_min {
                self.slots.resize(slots_min, None);
            }
            self.slots[*slot as usize] = Some(key.clone());
        }
        Ok(())
    }

    /// Overwrites every slot that is not in `used`, twice, and remembers that the database had come to `sequence`.
    pub(crate) fn wipe_all_but(&mut self, used: &BTreeSet<u32>, sequence: u64) -> io::Result<usize> {
        let unused: Vec<u32> = self.dirty.difference(used).copied().collect();
        if unused.is_empty() {
            return Ok(0);
        }
        for byte in [0xff, 0] {
            for slot in &unused {
                self.file.write_all_at(&[byte; SLOT_BYTES], place_of(*slot))?;
            }
            self.file.sync_all()?;
        }
        for slot in &unused {
            if let Some(key) = self.slots.get_mut(*slot as usize) {
                *key = None;
            }
            self.dirty.remove(slot);
        }
        self.write_header(sequence)?;
        Ok(unused.len())
    }

    fn write_header(&mut self, sequence: u64) -> io::Result<()> {
        let mut put = Put::with_capacity(HEADER_BYTES);
        put.bytes(MAGIC).bytes(&self.database).u64(sequence);
        let header = put.done();
        let check = digest(&SHA256, &header);
        let whole = [&header[..], &check.as_ref()[..8]].concat();
        for place in HEADER_PLACES {
            self.file.write_all_at(&whole, place)?;
            self.file.sync_all()?;
        }
        self.sequence = sequence;
        Ok(())
    }
}

fn place_of(slot: u32) -> u64 {
    SLOTS_AT + u64::from(slot) * SLOT_BYTES as u64
}

fn read_header(header: &[u8; HEADER_BYTES], database: &[u8; 16]) -> Option<u64> {
    let mut take = Take::new(header);
    let magic: [u8; 8] = take.array().ok()?;
    let id: [u8; 16] = take.array().ok()?;
    let sequence = take.u64().ok()?;
    let check = digest(&SHA256, &header[..HEADER_BYTES - 8]);
    (magic == *MAGIC && id == *database && check.as_ref()[..8] == header[HEADER_BYTES - 8..]).then_some(sequence)
}

/// The key, a check of it, and nothing.
fn slot_bytes(key: &ShredKey, slot: u32) -> Zeroizing<[u8; SLOT_BYTES]> {
    let mut bytes = Zeroizing::new([0; SLOT_BYTES]);
    bytes[..KEY_BYTES].copy_from_slice(key.0.expose());
    bytes[KEY_BYTES..KEY_BYTES + 8].copy_from_slice(&check_of(key.0.expose(), slot));
    bytes
}

fn read_slot(bytes: &[u8; SLOT_BYTES], slot: u32) -> Option<ShredKey> {
    let key: &[u8; KEY_BYTES] = bytes.first_chunk()?;
    let is_whole = bytes[KEY_BYTES..KEY_BYTES + 8] == check_of(key, slot) && *key != [0; KEY_BYTES];
    is_whole.then(|| ShredKey(Secret::filled(|secret| secret.copy_from_slice(key))))
}

fn check_of(key: &[u8; KEY_BYTES], slot: u32) -> [u8; 8] {
    let mut input = Zeroizing::new([0; KEY_BYTES + 4]);
    input[..KEY_BYTES].copy_from_slice(key);
    input[KEY_BYTES..].copy_from_slice(&slot.to_be_bytes());
    digest(&SHA256, &*input).as_ref()[..8].try_into().expect("eight of 32 bytes")
}

/// For the fuzzer: headers and slots with any content.
pub(crate) fn fuzz_shred(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        let id = header[8..24].try_into().expect("16 bytes");
        let _ = read_header(header, &id);
    }
    for (slot, bytes) in (0..).zip(bytes.chunks_exact(SLOT_BYTES)) {
        let bytes = bytes.try_into().expect("a whole slot");
        if let Some(key) = read_slot(bytes, slot) {
            assert_eq!(slot_bytes(&key, slot)[..KEY_BYTES + 8], bytes[..KEY_BYTES + 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_kept_until_they_are_wiped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shred");
        let mut shred = ShredFile::create(&path, [1; 16]).unwrap();
        let keys: Vec<(u32, ShredKey)> = (0..3).map(|slot| (slot, ShredKey::fresh())).collect();
        shred.fill(&keys, 1).unwrap();
        assert_eq!(shred.free(&[3].into()), Some(4));
        assert_eq!(shred.wipe_all_but(&[0, 2].into(), 9).unwrap(), 1);
        let bytes = std::fs::read(&path).unwrap();
        let found = |key: &ShredKey| bytes.windows(KEY_BYTES).any(|window| window == key.0.expose());
        assert!(found(&keys[0].1) && !found(&keys[1].1) && found(&keys[2].1));
        let again = ShredFile::open(&path, [1; 16]).unwrap().unwrap();
        assert_eq!(again.sequence(), 9);
        assert!(again.get(0).unwrap().0 == keys[0].1.0 && again.get(1).is_none() && again.get(2).is_some());
        assert_eq!(again.free(&BTreeSet::new()), Some(1));
        assert!(ShredFile::open(&path, [2; 16]).unwrap().is_none(), "another database's");
    }

    #[test]
    fn a_torn_slot_is_not_a_key_and_is_wiped_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shred");
        let mut shred = ShredFile::create(&path, [1; 16]).unwrap();
        shred.fill(&[(0, ShredKey::fresh())], 1).unwrap();
        shred.file.write_all_at(&[7; 8], place_of(0)).unwrap();
        shred.file.write_all_at(&[7; 20], place_of(1)).unwrap();
        let mut again = ShredFile::open(&path, [1; 16]).unwrap().unwrap();
        assert!(again.get(0).is_none() && again.get(1).is_none());
        assert_eq!(again.wipe_all_but(&BTreeSet::new(), 1).unwrap(), 2);
        assert!(std::fs::read(&path).unwrap()[SLOTS_AT as usize..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn one_damaged_header_is_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shred");
        let shred = ShredFile::create(&path, [1; 16]).unwrap();
        for place in HEADER_PLACES {
            let mut byte = [0];
            shred.file.read_exact_at(&mut byte, place + 30).unwrap();
            shred.file.write_all_at(&[byte[0] ^ 1], place + 30).unwrap();
            assert!(ShredFile::open(&path, [1; 16]).unwrap().is_some());
            shred.file.write_all_at(&byte, place + 30).unwrap();
        }
        shred.file.write_all_at(b"x", 0).unwrap();
        shred.file.write_all_at(b"x", 512).unwrap();
        assert!(ShredFile::open(&path, [1; 16]).unwrap().is_none());
    }
}

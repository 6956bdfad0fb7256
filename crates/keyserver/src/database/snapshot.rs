//! All of a database as a stream: what a backup holds, and what a new standby begins with.
//!
//! ```text
//! snapshot = part*              part = tag (1), content; the last one is `end`
//!   1 head   version 2 (1), database id (16), generation (8), sequence (8), longest lease in ms (8), audit lines (8),
//!             audit hash (32)
//!   2 volumes   record behind its length (4), …
//!   3 slots     number (4), shred key (32), …
//!   4 lines     version (1), key (32) if that is 2, text behind its length (2), …; in a snapshot of version 1 text alone
//!   5 end
//! backup   = "SRKEYBK1", id of the backup (16), wrapped root key behind its length (4), then each part sealed, behind its length (4)
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::PoisonError;

use strongroom_seal::{KEY_BYTES, Secret};
use zeroize::Zeroizing;

use super::{Database, DatabaseError, DatabaseState};
use crate::audit::{AuditHead, AuditLine, line};
use crate::batch::{Role, slots_of};
use crate::keys::{MasterKey, RootKey, ShredKey, random};
use crate::volume::Volume;
use crate::wire::{Malformed, Put, Take};

const BACKUP_MAGIC: &[u8; 8] = b"SRKEYBK1";
/// Version 1, which is still read, had lines as text.
const SNAPSHOT_VERSION: u8 = 2;
/// A part is full with this many bytes; a record may stand over.
const PART_BYTES: usize = 192 << 10;
/// Longest part, in bytes: one that is full but for a byte, and the largest record.
const PART_BYTES_MAX: usize = 512 << 10;

/// A whole database, in memory.
#[derive(Default)]
pub(crate) struct Snapshot {
    head: Option<SnapshotHead>,
    volumes: Vec<Volume>,
    slots: BTreeMap<u32, ShredKey>,
    lines: Vec<AuditLine>,
    is_whole: bool,
}

#[derive(Clone, Copy)]
struct SnapshotHead {
    version: u8,
    id: [u8; 16],
    generation: u64,
    sequence: u64,
    lease_ms: u64,
    audit: AuditHead,
}

/// Gives items out in parts of about the same length.
struct Parts<'a, E> {
    tag: u8,
    part: Put,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<(), E>,
}

impl<'a, E> Parts<'a, E> {
    fn new(tag: u8, sink: &'a mut dyn FnMut(&[u8]) -> Result<(), E>) -> Parts<'a, E> {
        let mut part = Put::with_capacity(PART_BYTES_MAX);
        part.u8(tag);
        Parts { tag, part, sink }
    }

    fn item(&mut self, put: impl FnOnce(&mut Put)) -> Result<(), E> {
        put(&mut self.part);
        if self.part.len() >= PART_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), E> {
        if self.part.len() > 1 {
            let part = std::mem::replace(&mut self.part, Put::with_capacity(PART_BYTES_MAX)).done();
            self.part.u8(self.tag);
            (self.sink)(&part)?;
        }
        Ok(())
    }
}

impl Database {
    /// Gives the whole database out, part by part, as it is at one moment.
    pub(crate) fn snapshot<E: From<DatabaseError>>(
        &self,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (head, volumes, slots) = {
            let state = self.state();
            let shred = self.shred.read().unwrap_or_else(PoisonError::into_inner);
            let volumes: Vec<_> = state.volumes.values().cloned().collect();
            let used = slots_of(volumes.iter().map(|volume| &**volume));
            let slots: Vec<_> = used.iter().filter_map(|slot| Some((*slot, shred.get(*slot)?.clone()))).collect();
            let (generation, sequence, audit) = (state.generation, state.sequence, state.head);
            let (version, id, lease_ms) = (SNAPSHOT_VERSION, state.id, state.lease_ms);
            (SnapshotHead { version, id, generation, sequence, lease_ms, audit }, volumes, slots)
        };
        let mut parts = Parts::new(1, sink);
        parts.item(|put| {
            put.u8(head.version).bytes(&head.id).u64(head.generation).u64(head.sequence).u64(head.lease_ms);
            put.u64(head.audit.lines).bytes(&head.audit.hash);
        })?;
        parts.flush()?;
        let mut parts = Parts::new(2, sink);
        for volume in &volumes {
            parts.item(|put| {
                put.block(&volume.encode());
            })?;
        }
        parts.flush()?;
        let mut parts = Parts::new(3, sink);
        for (slot, key) in &slots {
            parts.item(|put| {
                put.u32(*slot).bytes(key.0.expose());
            })?;
        }
        parts.flush()?;
        let mut parts = Parts::new(4, sink);
        let (mut left, mut failed) = (head.audit.lines, None);
        self.lines(1, |line| {
            if left == 0 {
                return false;
            }
            left -= 1;
            let given = parts.item(|put| line.put(put));
            failed = given.err();
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
        parts.flush()?;
        sink(&[5])
    }

    /// The same, sealed under the root key, which comes along wrapped under the master key.
    pub(crate) fn backup<E: From<DatabaseError>>(&self, sink: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut start = Put::with_capacity(256);
        // Parts of two backups do not fit together.
        let backup_id = random::<16>();
        start.bytes(BACKUP_MAGIC).bytes(&*backup_id).block(self.root.wrapped());
        sink(&start.done())?;
        let mut number = 0;
        self.snapshot(&mut |part| {
            let sealed = self.root.seal(&part_context(&backup_id, number), part);
            number += 1;
            let mut put = Put::with_capacity(sealed.len() + 4);
            put.block(&sealed);
            sink(&put.done())
        })
    }

    /// Makes a database of a backup, in a directory that is empty. It serves as a primary of a newer generation.
    ///
    /// # Errors
    /// [`DatabaseError`]; what is in the directory then is to be removed.
    pub fn restore(directory: &Path, master: &dyn MasterKey, backup: &mut dyn Read) -> Result<Database, DatabaseError> {
        let snapshot = read_backup(master, backup)?;
        let database = Self::create(directory, master, *random(), Role::Primary)?;
        database.install(snapshot, Role::Primary, true)?;
        Ok(database)
    }

    /// Gives each epoch the slot that it has here, or a free one, and says what is to be put into those: what lies in slots that are
    /// used is not overwritten.
    pub(crate) fn to_own_slots(
        &self,
        volumes: &mut [Volume],
        keys: &BTreeMap<u32, ShredKey>,
        mut taken: BTreeSet<u32>,
    ) -> Result<Vec<(u32, ShredKey)>, DatabaseError> {
        let mut slots = Vec::new();
        for volume in volumes {
            let known = self.state().volumes.get(&volume.domain).cloned();
            for (number, epoch) in &mut volume.epochs {
                let same = known.as_ref().and_then(|known| known.epochs.get(number));
                if let Some(same) = same.filter(|same| same.wrapped == epoch.wrapped) {
                    epoch.slot = same.slot;
                    continue;
                }
                let key = keys.get(&epoch.slot).ok_or(DatabaseError::Backup("a key is missing in it"))?;
                let slot = self.free_slot(&taken).ok_or_else(|| self.damaged("its shred file is full"))?;
                epoch.slot = slot;
                taken.insert(slot);
                slots.push((slot, key.clone()));
            }
        }
        Ok(slots)
    }

    /// Puts a snapshot in the place of everything that is there.
    pub(crate) fn install(&self, snapshot: Snapshot, role: Role, is_restored: bool) -> Result<(), DatabaseError> {
        let Some(mut head) = snapshot.head.filter(|_| snapshot.is_whole) else {
            return Err(DatabaseError::Backup("its end is missing"));
        };
        snapshot.check(&head)?;
        let mut lines = snapshot.lines;
        if is_restored {
            let at = crate::engine::wall_clock_ms();
            let text = format!("restore from sequence={} generation={}", head.sequence, head.generation);
            let told = line(head.audit.lines + 1, at, None, &text);
            head.audit = head.audit.then(&told).expect("numbered right here");
            lines.push(told);
            head.sequence += crate::engine::SEQUENCE_GAP;
            head.generation += 1;
        }
        let mut volumes = snapshot.volumes;
        let slots = self.to_own_slots(&mut volumes, &snapshot.slots, BTreeSet::new())?;
        let io = |source| self.io("write", super::SHRED_FILE, source);
        self.shred.write().unwrap_or_else(PoisonError::into_inner).fill(&slots, 0).map_err(io)?;
        let mut state = DatabaseState::empty(head.id, role);
        (state.generation, state.sequence, state.lease_ms) = (head.generation, head.sequence, head.lease_ms);
        (state.head, state.previous) = (head.audit, head.audit);
        let state = self.replace_all(&self.root, state, volumes, &lines)?;
        let mut shred = self.shred.write().unwrap_or_else(PoisonError::into_inner);
        shred.adopt(head.id, head.sequence).map_err(io)?;
        drop(shred);
        *super::lock(&self.page_end) = AuditHead::start(&state.id);
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.shred_unused()
    }
}

fn part_context(backup: &[u8; 16], number: u64) -> Vec<u8> {
    [b"backup part 1", &backup[..], &number.to_be_bytes()].concat()
}

fn read_backup(master: &dyn MasterKey, backup: &mut dyn Read) -> Result<Snapshot, DatabaseError> {
    let cut = |_| DatabaseError::Backup("it is cut short");
    let mut magic = [0; 8];
    backup.read_exact(&mut magic).map_err(cut)?;
    if magic != *BACKUP_MAGIC {
        return Err(DatabaseError::Backup("it does not begin as one"));
    }
    let mut backup_id = [0; 16];
    backup.read_exact(&mut backup_id).map_err(cut)?;
    let mut block = || -> Result<Vec<u8>, DatabaseError> {
        let mut length = [0; 4];
        backup.read_exact(&mut length).map_err(cut)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > PART_BYTES_MAX + 64 {
            return Err(DatabaseError::Backup("a length in it is wrong"));
        }
        let mut bytes = vec![0; length];
        backup.read_exact(&mut bytes).map_err(cut)?;
        Ok(bytes)
    };
    let root = RootKey::unwrap(master, &block()?)?;
    let mut snapshot = Snapshot::default();
    for number in 0.. {
        let sealed = block()?;
        let part = root.open(&part_context(&backup_id, number), &sealed);
        let part = part.ok_or(DatabaseError::Backup("a part of it was altered or moved"))?;
        if snapshot.add(&part).map_err(|_| DatabaseError::Backup("a part of it is malformed"))? {
            break;
        }
    }
    Ok(snapshot)
}

impl Snapshot {
    /// Takes a part; says whether it was the last.
    pub(crate) fn add(&mut self, part: &[u8]) -> Result<bool, Malformed> {
        let mut take = Take::new(part);
        match take.u8()? {
            1 if self.head.is_none() => {
                let version = take.u8()?;
                if !(1..=SNAPSHOT_VERSION).contains(&version) {
                    return Err(Malformed);
                }
                let (id, generation, sequence, lease_ms) = (take.array()?, take.u64()?, take.u64()?, take.u64()?);
                let audit = AuditHead { lines: take.u64()?, hash: take.array()? };
                self.head = Some(SnapshotHead { version, id, generation, sequence, lease_ms, audit });
                take.finish()?;
            }
            2 => {
                while !take.is_empty() {
                    self.volumes.push(Volume::decode(take.block()?)?);
                }
            }
            3 => {
                while !take.is_empty() {
                    let slot = take.u32()?;
                    let key: Zeroizing<[u8; KEY_BYTES]> = Zeroizing::new(take.array()?);
                    self.slots.insert(slot, ShredKey(Secret::filled(|bytes| bytes.copy_from_slice(&*key))));
                }
            }
            4 => {
                let version = self.head.ok_or(Malformed)?.version;
                let take_line = if version == 1 { AuditLine::take_text } else { AuditLine::take };
                while !take.is_empty() {
                    self.lines.push(take_line(&mut take)?);
                }
            }
            5 => {
                take.finish()?;
                self.is_whole = true;
            }
            _ => return Err(Malformed),
        }
        Ok(self.is_whole)
    }

    /// Whether everything in it fits together.
    fn check(&self, head: &SnapshotHead) -> Result<(), DatabaseError> {
        let mut audit = AuditHead::start(&head.id);
        for line in &self.lines {
            audit = audit.then(line).map_err(|_| DatabaseError::Backup("its audit log has a gap"))?;
        }
        if audit != head.audit {
            return Err(DatabaseError::Backup("its audit log does not fit"));
        }
        let (mut slots, mut names) = (BTreeSet::new(), BTreeSet::new());
        for volume in &self.volumes {
            let own = slots_of([volume]);
            if own.len() != volume.epochs.len() || !slots.is_disjoint(&own) || !names.insert(&volume.name) {
                return Err(DatabaseError::Backup("two of its volumes share what they cannot"));
            }
            slots.extend(own);
            for (number, epoch) in &volume.epochs {
                let key =
                    self.slots.get(&epoch.slot).and_then(|key| key.unwrap(volume.domain, *number, &epoch.wrapped));
                key.ok_or(DatabaseError::Backup("a key in it does not open"))?;
            }
        }
        Ok(())
    }

    /// Whether its log passes through either of these heads: whether a server that ended there is its past.
    pub(crate) fn continues(&self, heads: &[AuditHead]) -> bool {
        let Some(head) = &self.head else { return false };
        let mut audit = AuditHead::start(&head.id);
        let mut met = heads.contains(&audit);
        for line in &self.lines {
            match audit.then(line) {
                Ok(next) => audit = next,
                Err(_) => return false,
            }
            met |= heads.contains(&audit);
        }
        met
    }
}

/// For the fuzzer: parts, each behind its length, as a standby gets them; and all of it as a backup.
pub(super) fn fuzz_snapshot(bytes: &[u8]) {
    let mut snapshot = Snapshot::default();
    let mut take = Take::new(bytes);
    while let Ok(part) = take.block() {
        if snapshot.add(part).is_err() {
            break;
        }
    }
    if let Some(head) = snapshot.head {
        let _ = (snapshot.check(&head), snapshot.continues(&[head.audit]));
    }
    let keys = strongroom_seal::VolumeKeyFile::new(strongroom_seal::KeyPurpose::Master, &[1; KEY_BYTES]);
    let master = crate::LocalMasterKey::new(&keys).expect("it is a master key");
    assert!(read_backup(&master, &mut &bytes[..]).is_err(), "a backup cannot be made without the master key");
}

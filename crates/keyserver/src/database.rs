//! Where everything is kept: an embedded transactional store (redb) and the shred file beside it. The storage interface: code that
//! puts another store here gives these functions.
//!
//! ```text
//! meta     "format" → 1, "id", "root" → the root key wrapped under the master key, "head" → sealed head
//! volumes  sealing domain → sealed record
//! lines    number → stored line of the audit log
//! ```
//!
//! The sealed head binds all of it together: generation, sequence, the audit log's head and a keyed digest over every
//! record. What is served comes from memory, so that a database that cannot be written any more still gives keys out.

mod load;
mod migrate;
mod open;
mod redb_file;
mod replace;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use redb::backends::FileBackend;
use redb::{ReadableDatabase, StorageBackend, TableDefinition};
use strongroom_block::SealingDomain;
use strongroom_handshake::PublicKey;
use strongroom_seal::{VolumeKey, VolumeKeyFile};

use crate::audit::{AuditError, AuditHead, AuditLine, LINE_BYTES, stored};
use crate::batch::{Batch, Role, slots_of};
use crate::keys::{MasterKeyError, RootKey};
use crate::shred::ShredFile;
use crate::volume::Volume;
use crate::wire::{Malformed, Put, Take};

pub(crate) use self::snapshot::Snapshot;

/// Runs the decoders of what lies in files over arbitrary bytes, for fuzzing: the head, the shred file, lines and heads of the audit log,
/// parts of snapshots and backups.
#[doc(hidden)]
pub fn fuzz_files(bytes: &[u8]) {
    if let Ok(head) = Head::decode(bytes) {
        assert_eq!(head.encode(), bytes);
    }
    crate::shred::fuzz_shred(bytes);
    snapshot::fuzz_snapshot(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(head) = text.parse::<AuditHead>() {
        assert_eq!(head.to_string().parse(), Ok(head));
    }
    let start = AuditHead::start(&[1; 16]);
    let unsealed = |text: &str| AuditLine { text: text.to_owned(), key: None };
    let end = text.lines().try_fold(start, |head, line| head.then(&unsealed(line)));
    assert!(end.is_err() || end.is_ok_and(|end| end.lines == text.lines().count() as u64));
}

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
const VOLUMES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("volumes");
const LINES: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("lines");

/// Format 1 had the lines of the audit log as text, in a table of another name.
const FORMAT: u8 = 2;
const DATABASE_FILE: &str = "keys.redb";
const SHRED_FILE: &str = "keys.shred";
const HEAD_CONTEXT: &[u8] = b"head 1";

/// What keeps the database from being used. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A file cannot be read or written.
    #[error(
        "cannot {what} {path}: {source}; nothing was changed: mend it (space, permissions, the disk) and try again"
    )]
    Io {
        /// A verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The store refused.
    #[error(
        "the key database {path} cannot be written ({source}); nothing was changed: mend it (space, the disk) and try again"
    )]
    Store {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: Box<redb::Error>,
    },
    /// Another process has it.
    #[error("another process has the key database {path} open; stop that key server first")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is not what was written.
    #[error(
        "the key database in {path} is damaged ({what}); restore it from a backup (strongroom keyserver --restore), or promote the standby"
    )]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// A later version made it.
    #[error("the key database in {path} has a newer format than this build knows; update strongroom")]
    Newer {
        /// The directory.
        path: PathBuf,
    },
    /// The database is older than the shred file beside it.
    #[error(
        "the key database in {path} is an older copy: it ends at change {database}, and its shred file knows of change {shred}. \
         Bring back the newest database, or restore a backup into an empty directory"
    )]
    RolledBack {
        /// The directory.
        path: PathBuf,
        /// Where the database is.
        database: u64,
        /// Where it was once, at least.
        shred: u64,
    },
    /// There is none yet.
    #[error("there is no key database in {path} yet; the first start makes one")]
    Missing {
        /// The directory.
        path: PathBuf,
    },
    /// The directory holds something else.
    #[error(
        "{path} is not empty and holds no key database; give the right directory, or an empty one for a new database"
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
    },
    /// There is one already.
    #[error("{path} holds a key database already; restore into an empty directory")]
    Exists {
        /// The directory.
        path: PathBuf,
    },
    /// The audit log does not fit its head.
    #[error("{source}; the key database in {path} is not trusted: restore it from a backup, or promote the standby")]
    Audit {
        /// The directory.
        path: PathBuf,
        /// What does not fit.
        source: AuditError,
    },
    /// The master key does not open it.
    #[error(transparent)]
    MasterKey(#[from] MasterKeyError),
    /// A backup is not one, or cut short.
    #[error("this is not a whole backup of a key database ({0}); take another copy of it")]
    Backup(&'static str),
}

/// What is served: all volumes, and how far the log has come.
#[derive(Debug)]
pub(crate) struct DatabaseState {
    pub(crate) id: [u8; 16],
    pub(crate) generation: u64,
    pub(crate) sequence: u64,
    pub(crate) role: Role,
    /// The longest that keys may be out for.
    pub(crate) lease_ms: u64,
    pub(crate) head: AuditHead,
    /// The log's head before the last transaction.
    pub(crate) previous: AuditHead,
    pub(crate) volumes: BTreeMap<SealingDomain, Arc<Volume>>,
    pub(crate) names: BTreeMap<String, SealingDomain>,
    /// The keyed digest of all records, and what each of them gives to it.
    digest: [u128; 2],
    digests: BTreeMap<SealingDomain, [u128; 2]>,
    /// How many volumes are granted to each identity.
    granted: BTreeMap<PublicKey, usize>,
}

impl DatabaseState {
    fn empty(id: [u8; 16], role: Role) -> DatabaseState {
        let head = AuditHead::start(&id);
        DatabaseState {
            id,
            generation: 1,
            sequence: 0,
            role,
            lease_ms: 0,
            head,
            previous: head,
            volumes: BTreeMap::new(),
            names: BTreeMap::new(),
            digest: [0; 2],
            digests: BTreeMap::new(),
            granted: BTreeMap::new(),
        }
    }

    /// Whether any volume is granted to the identity.
    pub(crate) fn knows(&self, identity: &PublicKey) -> bool {
        self.granted.contains_key(identity)
    }

    fn count_grants(&mut self, volume: &Volume, add: bool) {
        for identity in volume.grants.keys() {
            let count = self.granted.entry(*identity).or_default();
            *count = if add { *count + 1 } else { count.saturating_sub(1) };
            if *count == 0 {
                self.granted.remove(identity);
            }
        }
    }

    fn put(&mut self, domain: SealingDomain, volume: Option<Volume>) {
        if let Some(old) = self.volumes.remove(&domain) {
            if self.names.get(&old.name) == Some(&domain) {
                self.names.remove(&old.name);
            }
            self.count_grants(&old, false);
        }
        if let Some(volume) = volume {
            self.count_grants(&volume, true);
            self.names.insert(volume.name.clone(), domain);
            self.volumes.insert(domain, Arc::new(volume));
        }
    }
}

/// The stored head, before it is sealed.
struct Head {
    generation: u64,
    sequence: u64,
    role: Role,
    lease_ms: u64,
    audit: AuditHead,
    previous: AuditHead,
    digest: [u128; 2],
}

impl Head {
    fn of(state: &DatabaseState) -> Head {
        Head {
            generation: state.generation,
            sequence: state.sequence,
            role: state.role,
            lease_ms: state.lease_ms,
            audit: state.head,
            previous: state.previous,
            digest: state.digest,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut put = Put::with_capacity(256);
        put.u64(self.generation)
            .u64(self.sequence)
            .u8(self.role as u8)
            .u64(self.lease_ms)
            .u64(self.audit.lines)
            .bytes(&self.audit.hash);
        put.u64(self.previous.lines).bytes(&self.previous.hash);
        for half in &self.digest {
            put.bytes(&half.to_be_bytes());
        }
        put.done().to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Head, Malformed> {
        let mut take = Take::new(bytes);
        let head = Head {
            generation: take.u64()?,
            sequence: take.u64()?,
            role: Role::from_number(take.u8()?).ok_or(Malformed)?,
            lease_ms: take.u64()?,
            audit: AuditHead { lines: take.u64()?, hash: take.array()? },
            previous: AuditHead { lines: take.u64()?, hash: take.array()? },
            digest: [u128::from_be_bytes(take.array()?), u128::from_be_bytes(take.array()?)],
        };
        take.finish()?;
        Ok(head)
    }
}

/// The database file, as it is; a test can let writing to it fail.
#[derive(Debug)]
struct Backend {
    file: FileBackend,
    full: Option<Arc<AtomicBool>>,
}

impl Backend {
    fn room(&self) -> io::Result<()> {
        let is_full = self.full.as_ref().is_some_and(|full| full.load(Ordering::SeqCst));
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

/// A key database, open. One process at a time.
pub struct Database {
    directory: PathBuf,
    root: Arc<RootKey>,
    /// While it is set, nothing can be written: for tests of a full disk.
    full: Option<Arc<AtomicBool>>,
    /// `None` after an error, until it is reopened.
    store: Mutex<Option<Arc<redb::Database>>>,
    shred: RwLock<ShredFile>,
    state: RwLock<DatabaseState>,
    /// Where the page of the audit log ended that was read last.
    page_end: Mutex<AuditHead>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("directory", &self.directory).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Database {
    /// Where it lies.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What it is, independently of its configuration.
    pub fn role(&self) -> Role {
        self.state().role
    }

    /// The end of its audit log.
    pub fn head(&self) -> AuditHead {
        self.state().head
    }

    /// How many volumes it has keys of.
    pub fn volumes(&self) -> usize {
        self.state().volumes.len()
    }

    pub(crate) fn state(&self) -> RwLockReadGuard<'_, DatabaseState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot of the shred file that is free, besides those in `taken`.
    pub(crate) fn free_slot(&self, taken: &std::collections::BTreeSet<u32>) -> Option<u32> {
        self.shred.read().unwrap_or_else(PoisonError::into_inner).free(taken)
    }

    /// The keys of a volume's epochs, opened.
    pub(crate) fn open_keys(&self, volume: &Volume) -> Result<VolumeKeyFile, DatabaseError> {
        let shred = self.shred.read().unwrap_or_else(PoisonError::into_inner);
        let keys: Option<BTreeMap<u32, VolumeKey>> = volume
            .epochs
            .iter()
            .map(|(&number, epoch)| {
                let key = shred.get(epoch.slot)?.unwrap(volume.domain, number, &epoch.wrapped)?;
                Some((number, key))
            })
            .collect();
        let damaged = || self.damaged(format!("a key of volume {} does not open", volume.name));
        VolumeKeyFile::of_volume(keys.ok_or_else(damaged)?).map_err(|_| damaged())
    }

    /// Lines of the audit log from a number on, until `take` has enough.
    pub(crate) fn lines(&self, from: u64, mut take: impl FnMut(AuditLine) -> bool) -> Result<(), DatabaseError> {
        let store = self.store()?;
        let mut unopened = None;
        let mut read = || -> Result<(), redb::Error> {
            let table = store.begin_read()?.open_table(LINES)?;
            for entry in table.range(from..)? {
                let (number, line) = entry?;
                let Some(line) = stored::decode(&self.root, number.value(), line.value()) else {
                    unopened = Some(number.value());
                    break;
                };
                if !take(line) {
                    break;
                }
            }
            Ok(())
        };
        read().map_err(|error| self.store_error(error))?;
        unopened.map_or(Ok(()), |number| Err(self.damaged(format!("line {number} of its audit log does not open"))))
    }

    /// Lines of the audit log from number `from` on, as many as fit into this many bytes, and the chain's head before them.
    pub(crate) fn page(&self, from: u64, bytes_max: usize) -> Result<(AuditHead, Vec<AuditLine>), DatabaseError> {
        let known = *lock(&self.page_end);
        let begun = if known.lines < from { known } else { AuditHead::start(&self.state().id) };
        let last = self.state().head.lines;
        let (mut head, mut start, mut lines, mut bytes, mut problem) = (begun, begun, Vec::new(), 0, None);
        self.lines(begun.lines + 1, |line| {
            if head.lines == last || bytes >= bytes_max {
                return false;
            }
            match head.then(&line) {
                Ok(next) => head = next,
                Err(error) => problem = Some(error),
            }
            if head.lines < from {
                start = head;
            } else {
                bytes += line.text.len() + LINE_BYTES;
                lines.push(line);
            }
            problem.is_none()
        })?;
        if let Some(source) = problem {
            return Err(DatabaseError::Audit { path: self.directory.clone(), source });
        }
        // Later reads need not wait for the chain to be computed from its beginning.
        *lock(&self.page_end) = head;
        Ok((start, lines))
    }

    /// Stores a batch, durably, and serves what it changes from then on. After an error nothing of it is served; whether it
    /// is stored is seen by [`Database::recover`].
    ///
    /// What it gives back is an error after that: keys that were destroyed could not be overwritten, and are tried again with
    /// the next that are destroyed, and at the next start.
    pub(crate) fn commit(&self, batch: &Batch) -> Result<Result<(), DatabaseError>, DatabaseError> {
        let role = self.state().role;
        self.commit_as(batch, role)
    }

    pub(crate) fn commit_as(&self, batch: &Batch, role: Role) -> Result<Result<(), DatabaseError>, DatabaseError> {
        let store = self.store()?;
        self.shred
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .fill(&batch.slots, batch.sequence)
            .map_err(|source| self.io("write", SHRED_FILE, source))?;
        let sealed: Vec<(SealingDomain, Option<Vec<u8>>)> = batch
            .volumes
            .iter()
            .map(|(domain, volume)| {
                (*domain, volume.as_ref().map(|volume| self.root.seal(&volume_context(*domain), &volume.encode())))
            })
            .collect();
        let (head, changes) = self.next_head(batch, &sealed, role);
        let sealed_head = self.root.seal(HEAD_CONTEXT, &head.encode());
        if let Err(error) = write(&store, &self.root, &sealed, batch, &sealed_head) {
            // The store takes nothing more until it is reopened.
            *lock(&self.store) = None;
            return Err(self.store_error(error));
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = slots_of(batch.volumes.iter().filter_map(|(domain, _)| state.volumes.get(domain)).map(|v| &**v));
        let after = slots_of(batch.volumes.iter().filter_map(|(_, volume)| volume.as_ref()));
        (state.generation, state.sequence, state.role) = (head.generation, head.sequence, head.role);
        state.lease_ms = head.lease_ms;
        (state.head, state.previous, state.digest) = (head.audit, head.previous, head.digest);
        for (domain, digest) in changes {
            match digest {
                Some(digest) => drop(state.digests.insert(domain, digest)),
                None => drop(state.digests.remove(&domain)),
            }
        }
        for (domain, volume) in &batch.volumes {
            state.put(*domain, volume.clone());
        }
        drop(state);
        let destroyed = !before.is_subset(&after);
        Ok(if destroyed { self.shred_unused() } else { Ok(()) })
    }

    /// Overwrites the shred keys that no epoch uses any more.
    fn shred_unused(&self) -> Result<(), DatabaseError> {
        let (used, sequence) = {
            let state = self.state();
            (slots_of(state.volumes.values().map(|volume| &**volume)), state.sequence)
        };
        let mut shred = self.shred.write().unwrap_or_else(PoisonError::into_inner);
        shred
            .wipe_all_but(&used, sequence)
            .map(drop)
            .map_err(|source| self.io("overwrite destroyed keys in", SHRED_FILE, source))
    }

    fn next_head(
        &self,
        batch: &Batch,
        sealed: &[(SealingDomain, Option<Vec<u8>>)],
        role: Role,
    ) -> (Head, BTreeMap<SealingDomain, Option<[u128; 2]>>) {
        let state = self.state();
        let mut digest = state.digest;
        let mut changes = BTreeMap::new();
        for (domain, sealed) in sealed {
            let old = match changes.get(domain) {
                Some(changed) => *changed,
                None => state.digests.get(domain).copied(),
            };
            let new = sealed.as_ref().map(|sealed| digest_of(&self.root, *domain, sealed));
            for half in 0..2 {
                let removed = old.map_or(0, |old: [u128; 2]| old[half]);
                digest[half] = digest[half].wrapping_sub(removed).wrapping_add(new.map_or(0, |new| new[half]));
            }
            changes.insert(*domain, new);
        }
        let head = Head {
            generation: batch.generation,
            sequence: batch.sequence,
            role,
            lease_ms: batch.lease_ms,
            audit: batch.head,
            previous: state.head,
            digest,
        };
        (head, changes)
    }

    fn store(&self) -> Result<Arc<redb::Database>, DatabaseError> {
        let store = lock(&self.store).clone();
        store.ok_or_else(|| self.io("use", DATABASE_FILE, io::Error::other("an earlier write failed")))
    }

    fn io(&self, what: &'static str, file: &str, source: io::Error) -> DatabaseError {
        DatabaseError::Io { what, path: self.directory.join(file), source }
    }

    fn damaged(&self, what: impl Into<String>) -> DatabaseError {
        DatabaseError::Damaged { path: self.directory.clone(), what: what.into() }
    }

    fn store_error(&self, error: redb::Error) -> DatabaseError {
        redb_file::store_error(&self.directory, error)
    }
}

fn write(
    store: &redb::Database,
    root: &RootKey,
    sealed: &[(SealingDomain, Option<Vec<u8>>)],
    batch: &Batch,
    head: &[u8],
) -> Result<(), redb::Error> {
    let transaction = store.begin_write()?;
    {
        let mut volumes = transaction.open_table(VOLUMES)?;
        for (domain, record) in sealed {
            match record {
                Some(record) => drop(volumes.insert(&domain.0[..], &record[..])?),
                None => drop(volumes.remove(&domain.0[..])?),
            }
        }
        let mut lines = transaction.open_table(LINES)?;
        for (number, line) in (batch.head.lines + 1 - batch.lines.len() as u64..).zip(&batch.lines) {
            lines.insert(number, &stored::encode(root, number, line)[..])?;
        }
        transaction.open_table(META)?.insert("head", head)?;
    }
    transaction.commit()?;
    Ok(())
}

fn volume_context(domain: SealingDomain) -> Vec<u8> {
    [b"volume 1", &domain.0[..]].concat()
}

fn digest_of(root: &RootKey, domain: SealingDomain, sealed: &[u8]) -> [u128; 2] {
    let digest = root.digest(&volume_context(domain), sealed);
    let (high, low) = digest.split_at(16);
    [high, low].map(|half| u128::from_be_bytes(half.try_into().expect("half of 32 bytes")))
}

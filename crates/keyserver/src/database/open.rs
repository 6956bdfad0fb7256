//! Making a database, and opening one: everything in it is checked before anything of it is served.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use redb::backends::FileBackend;
use redb::{ReadableDatabase, ReadableTable};
use strongroom_block::SealingDomain;

use super::{
    Backend, DATABASE_FILE, Database, DatabaseError, DatabaseState, FORMAT, HEAD_CONTEXT, Head, LINES, META,
    SHRED_FILE, VOLUMES, digest_of, lock, migrate, volume_context,
};
use crate::audit::{AuditHead, stored};
use crate::batch::{Role, slots_of};
use crate::keys::{MasterKey, RootKey, random};
use crate::shred::ShredFile;
use crate::volume::Volume;

impl Database {
    /// Opens the database in `directory`; makes one if there is nothing.
    ///
    /// # Errors
    /// [`DatabaseError`]; nothing was changed.
    pub fn open_or_create(directory: &Path, master: &dyn MasterKey) -> Result<Database, DatabaseError> {
        Self::open_or_create_as(directory, master, Role::Primary)
    }

    /// The same for a standby: a new one is filled by its primary.
    ///
    /// # Errors
    /// [`DatabaseError`]; nothing was changed.
    pub fn open_or_create_standby(directory: &Path, master: &dyn MasterKey) -> Result<Database, DatabaseError> {
        Self::open_or_create_as(directory, master, Role::Standby)
    }

    fn open_or_create_as(directory: &Path, master: &dyn MasterKey, role: Role) -> Result<Database, DatabaseError> {
        if is_vacant(directory)? {
            return Self::create(directory, master, *random(), role);
        }
        Self::open(directory, master)
    }

    /// Opens a database; one of an older format is brought to this one first.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn open(directory: &Path, master: &dyn MasterKey) -> Result<Database, DatabaseError> {
        let mut database = Self::open_through(directory, master, None)?;
        if migrate::is_older(&database)? {
            database = migrate::to_this_format(database, master)?;
        }
        // What was being destroyed, or made, when the process ended.
        database.shred_unused()?;
        Ok(database)
    }

    /// Checks a database, and overwrites nothing.
    ///
    /// # Errors
    /// [`DatabaseError`].
    pub fn inspect(directory: &Path, master: &dyn MasterKey) -> Result<Database, DatabaseError> {
        Self::open_through(directory, master, None)
    }

    pub(crate) fn open_through(
        directory: &Path,
        master: &dyn MasterKey,
        full: Option<Arc<AtomicBool>>,
    ) -> Result<Database, DatabaseError> {
        if is_vacant(directory)? {
            return Err(DatabaseError::Missing { path: directory.to_owned() });
        }
        if !directory.join(DATABASE_FILE).exists() {
            return Err(DatabaseError::Foreign { path: directory.to_owned() });
        }
        let store = open_store(directory, full.as_ref())?;
        let (root, state) =
            guarded(directory, || load(directory, &store, |wrapped| Ok(Arc::new(RootKey::unwrap(master, wrapped)?))))?;
        let shred = open_shred(directory, &state)?;
        let database = Database {
            directory: directory.to_owned(),
            root,
            full,
            store: Mutex::new(Some(store)),
            shred: RwLock::new(shred),
            page_end: Mutex::new(AuditHead::start(&state.id)),
            state: RwLock::new(state),
        };
        Ok(database)
    }

    /// Makes an empty database.
    pub(crate) fn create(
        directory: &Path,
        master: &dyn MasterKey,
        id: [u8; 16],
        role: Role,
    ) -> Result<Database, DatabaseError> {
        let io = |what, file: &str| {
            let path = directory.join(file);
            move |source| DatabaseError::Io { what, path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io("make", ""))?;
        if !is_vacant(directory)? {
            return Err(DatabaseError::Exists { path: directory.to_owned() });
        }
        let root = Arc::new(RootKey::fresh(master)?);
        let shred = ShredFile::create(&directory.join(SHRED_FILE), id).map_err(io("make", SHRED_FILE))?;
        let store = open_store(directory, None)?;
        let state = DatabaseState::empty(id, role);
        let sealed_head = root.seal(HEAD_CONTEXT, &Head::of(&state).encode());
        let write = || -> Result<(), redb::Error> {
            let transaction = store.begin_write()?;
            {
                let mut meta = transaction.open_table(META)?;
                meta.insert("format", &[FORMAT][..])?;
                meta.insert("id", &id[..])?;
                meta.insert("root", root.wrapped())?;
                meta.insert("head", &sealed_head[..])?;
                transaction.open_table(VOLUMES)?;
                transaction.open_table(LINES)?;
            }
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| store_error(directory, error))?;
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(io("make durable", ""))?;
        Ok(Database {
            directory: directory.to_owned(),
            root,
            full: None,
            store: Mutex::new(Some(store)),
            shred: RwLock::new(shred),
            page_end: Mutex::new(AuditHead::start(&state.id)),
            state: RwLock::new(state),
        })
    }

    /// After a failed commit: reopens the store, serves its content, and returns that it did. Otherwise does nothing.
    pub(crate) fn recover(&self) -> Result<bool, DatabaseError> {
        let mut store = lock(&self.store);
        if store.is_some() {
            return Ok(false);
        }
        self.forget_cached();
        let opened = open_store(&self.directory, self.full.as_ref())?;
        let (_, state) = guarded(&self.directory, || {
            load(&self.directory, &opened, |wrapped| {
                let same = wrapped == self.root.wrapped();
                if same { Ok(Arc::clone(&self.root)) } else { Err(self.damaged("it was exchanged")) }
            })
        })?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        *store = Some(opened);
        drop(store);
        self.shred_unused()?;
        Ok(true)
    }

    /// After a sync that failed the kernel may hold what the disk never got: what is read next is to come from the disk.
    fn forget_cached(&self) {
        if let Ok(file) = File::open(self.directory.join(DATABASE_FILE)) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

/// Whether a new database can be made there.
fn is_vacant(directory: &Path) -> Result<bool, DatabaseError> {
    match fs::read_dir(directory) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(source) => Err(DatabaseError::Io { what: "look into", path: directory.to_owned(), source }),
    }
}

fn open_store(directory: &Path, full: Option<&Arc<AtomicBool>>) -> Result<Arc<redb::Database>, DatabaseError> {
    open_store_in(directory, DATABASE_FILE, full)
}

pub(super) fn open_store_in(
    directory: &Path,
    name: &str,
    full: Option<&Arc<AtomicBool>>,
) -> Result<Arc<redb::Database>, DatabaseError> {
    let path = directory.join(name);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = file.map_err(|source| DatabaseError::Io { what: "open", path: path.clone(), source })?;
    let opened = guarded(directory, || {
        let opened = FileBackend::new(file)
            .and_then(|file| redb::Builder::new().create_with_backend(Backend { file, full: full.cloned() }));
        let mut store = opened.map_err(|error| store_error(directory, error.into()))?;
        match store.check_integrity() {
            Ok(_) => Ok(store),
            Err(error) => Err(store_error(directory, error.into())),
        }
    })?;
    Ok(Arc::new(opened))
}

/// The store panics at some kinds of damage; that is damage, and no more.
fn guarded<T>(directory: &Path, work: impl FnOnce() -> Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(DatabaseError::Damaged { path: directory.to_owned(), what: "its pages do not fit together".into() })
    })
}

pub(super) fn store_error(directory: &Path, error: redb::Error) -> DatabaseError {
    let path = directory.join(DATABASE_FILE);
    match error {
        redb::Error::DatabaseAlreadyOpen => DatabaseError::InUse { path },
        redb::Error::Io(source) if source.kind() == std::io::ErrorKind::InvalidData => {
            DatabaseError::Damaged { path: directory.to_owned(), what: "it is no database".into() }
        }
        redb::Error::Corrupted(what) => DatabaseError::Damaged { path: directory.to_owned(), what },
        redb::Error::RepairAborted
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableDoesNotExist(_)
        | redb::Error::TypeDefinitionChanged { .. } => {
            DatabaseError::Damaged { path: directory.to_owned(), what: error.to_string() }
        }
        error => DatabaseError::Store { path, source: Box::new(error) },
    }
}

fn open_shred(directory: &Path, state: &DatabaseState) -> Result<ShredFile, DatabaseError> {
    let path = directory.join(SHRED_FILE);
    let shred = ShredFile::open(&path, state.id).map_err(|source| DatabaseError::Io {
        what: "read",
        path: path.clone(),
        source,
    })?;
    let damaged = |what: &str| DatabaseError::Damaged { path: directory.to_owned(), what: what.to_owned() };
    let shred = shred.ok_or_else(|| damaged("its shred file is another database's, or damaged"))?;
    if shred.sequence() > state.sequence {
        return Err(DatabaseError::RolledBack {
            path: directory.to_owned(),
            database: state.sequence,
            shred: shred.sequence(),
        });
    }
    for volume in state.volumes.values() {
        for (&number, epoch) in &volume.epochs {
            let key = shred.get(epoch.slot).and_then(|key| key.unwrap(volume.domain, number, &epoch.wrapped));
            if key.is_none() {
                return Err(damaged(&format!("the key of epoch {number} of volume {} does not open", volume.name)));
            }
        }
    }
    Ok(shred)
}

/// Reads and checks everything.
fn load(
    directory: &Path,
    store: &redb::Database,
    root_of: impl FnOnce(&[u8]) -> Result<Arc<RootKey>, DatabaseError>,
) -> Result<(Arc<RootKey>, DatabaseState), DatabaseError> {
    let damaged = |what: &str| DatabaseError::Damaged { path: directory.to_owned(), what: what.to_owned() };
    let failed = |error: redb::Error| store_error(directory, error);
    let read = store.begin_read().map_err(|error| failed(error.into()))?;
    let meta = read.open_table(META).map_err(|error| failed(error.into()))?;
    let get = |name: &str| -> Result<Vec<u8>, DatabaseError> {
        let value = meta.get(name).map_err(|error| failed(error.into()))?;
        value.map(|value| value.value().to_vec()).ok_or_else(|| damaged(&format!("its {name} is missing")))
    };
    let format = match get("format")?[..] {
        [format @ 1..=FORMAT] => format,
        [newer] if newer > FORMAT => return Err(DatabaseError::Newer { path: directory.to_owned() }),
        _ => return Err(damaged("its format is unknown")),
    };
    let id: [u8; 16] = get("id")?.try_into().map_err(|_| damaged("its id is malformed"))?;
    let root = root_of(&get("root")?)?;
    let head = root.open(HEAD_CONTEXT, &get("head")?).ok_or_else(|| damaged("its head does not open"))?;
    let head = Head::decode(&head).map_err(|_| damaged("its head is malformed"))?;
    let mut state = DatabaseState::empty(id, head.role);
    (state.generation, state.sequence, state.previous) = (head.generation, head.sequence, head.previous);
    state.lease_ms = head.lease_ms;
    let volumes = read.open_table(VOLUMES).map_err(|error| failed(error.into()))?;
    let mut slots = BTreeSet::new();
    for entry in volumes.iter().map_err(|error| failed(error.into()))? {
        let (domain, sealed) = entry.map_err(|error| failed(error.into()))?;
        let domain = SealingDomain(domain.value().try_into().map_err(|_| damaged("a record has no proper name"))?);
        let record = root.open(&volume_context(domain), sealed.value());
        let record = record.ok_or_else(|| damaged(&format!("the record of {domain} does not open")))?;
        let volume = Volume::decode(&record).map_err(|_| damaged(&format!("the record of {domain} is malformed")))?;
        let own = slots_of([&volume]);
        if volume.domain != domain || own.len() != volume.epochs.len() || !slots.is_disjoint(&own) {
            return Err(damaged(&format!("the record of {domain} is malformed")));
        }
        slots.extend(own);
        let digest = digest_of(&root, domain, sealed.value());
        state.digest = [0, 1].map(|half| state.digest[half].wrapping_add(digest[half]));
        state.digests.insert(domain, digest);
        state.put(domain, Some(volume));
    }
    if state.digest != head.digest {
        return Err(damaged("a record is missing, or an older one was put in its place"));
    }
    let audit_error = |source| DatabaseError::Audit { path: directory.to_owned(), source };
    let mut unopened = None;
    if format == 1 {
        for line in migrate::texts(directory, &read)? {
            state.head = state.head.then(&line).map_err(audit_error)?;
        }
    } else {
        let lines = read.open_table(LINES).map_err(|error| failed(error.into()))?;
        for entry in lines.iter().map_err(|error| failed(error.into()))? {
            let (number, line) = entry.map_err(|error| failed(error.into()))?;
            state.head = match stored::decode(&root, number.value(), line.value()) {
                Some(line) => state.head.then(&line).map_err(audit_error)?,
                // The chain says more of what was done to the log, and needs no key.
                None => {
                    unopened.get_or_insert(number.value());
                    state.head.then_sealed(stored::sealed_of(line.value()))
                }
            };
        }
    }
    if state.head.lines < head.audit.lines {
        let (found, expected) = (state.head.lines, head.audit.lines);
        return Err(audit_error(crate::AuditError::Truncated { found, expected }));
    }
    if state.head != head.audit {
        return Err(audit_error(crate::AuditError::Altered { lines: state.head.lines }));
    }
    if let Some(number) = unopened {
        return Err(damaged(&format!("line {number} of its audit log does not open")));
    }
    Ok((root, state))
}

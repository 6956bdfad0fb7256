//! Making a database, and opening one: everything in it is checked before anything of it is served.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::load::load;
use super::redb_file::{guarded, open_store, store_error};
use super::{
    DATABASE_FILE, Database, DatabaseError, DatabaseState, FORMAT, HEAD_CONTEXT, Head, LINES, META, SHRED_FILE,
    VOLUMES, lock, migrate,
};
use crate::audit::AuditHead;
use crate::batch::Role;
use crate::keys::{MasterKey, RootKey, random};
use crate::shred::ShredFile;

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
        let store = open_store(directory, DATABASE_FILE, full.as_ref())?;
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
        let store = open_store(directory, DATABASE_FILE, None)?;
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
        let opened = open_store(&self.directory, DATABASE_FILE, self.full.as_ref())?;
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

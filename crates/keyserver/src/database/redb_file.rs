//! The file of the embedded store (redb): opening it, and what its errors mean. What the tables contain is not known here.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redb::backends::FileBackend;

use super::{Backend, DATABASE_FILE, DatabaseError};

/// Opens the store in a file of that name, or makes one, and checks its pages.
pub(super) fn open_store(
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

/// Runs what reads the store. It panics at some kinds of damage; that is damage, and no more.
pub(super) fn guarded<T>(
    directory: &Path,
    work: impl FnOnce() -> Result<T, DatabaseError>,
) -> Result<T, DatabaseError> {
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

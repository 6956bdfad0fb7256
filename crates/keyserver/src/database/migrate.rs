//! Brings a database of format 1 to this one: there the lines of the audit log were text, which revealed names and grants to anyone who had the file.
//!
//! All of it is written to another file, which then takes the database's place: pages that are no longer used keep what was in them.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use redb::{ReadableDatabase as _, ReadableTable as _};

use super::load::texts;
use super::redb_file::{open_store, store_error};
use super::{DATABASE_FILE, Database, DatabaseError, FORMAT, LINES, META, VOLUMES};
use crate::audit::stored;
use crate::keys::MasterKey;

#[cfg(test)]
mod tests;

const NEW_FILE: &str = "keys.redb.new";

/// Whether the database is of an older format.
pub(super) fn is_older(database: &Database) -> Result<bool, DatabaseError> {
    let store = database.store()?;
    let read = || -> Result<bool, redb::Error> {
        let meta = store.begin_read()?.open_table(META)?;
        Ok(meta.get("format")?.is_some_and(|format| format.value() != [FORMAT]))
    };
    read().map_err(|error| database.store_error(error))
}

/// Rewrites a database of format 1, which was checked as a whole when it was opened.
pub(super) fn to_this_format(database: Database, master: &dyn MasterKey) -> Result<Database, DatabaseError> {
    let directory = database.directory.clone();
    let new_path = directory.join(NEW_FILE);
    let io = |what, path: &Path| {
        let path = path.to_owned();
        move |source| DatabaseError::Io { what, path, source }
    };
    // What a crash left of an attempt before.
    match fs::remove_file(&new_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io("remove", &new_path)(error)),
        _ => {}
    }
    let store = database.store()?;
    let read = store.begin_read().map_err(|error| database.store_error(error.into()))?;
    let lines = texts(&directory, &read)?;
    let new = open_store(&directory, NEW_FILE, None)?;
    let copy = || -> Result<(), redb::Error> {
        let transaction = new.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            for entry in read.open_table(META)?.iter()? {
                let (name, value) = entry?;
                meta.insert(name.value(), value.value())?;
            }
            meta.insert("format", &[FORMAT][..])?;
            let mut volumes = transaction.open_table(VOLUMES)?;
            for entry in read.open_table(VOLUMES)?.iter()? {
                let (domain, record) = entry?;
                volumes.insert(domain.value(), record.value())?;
            }
            let mut table = transaction.open_table(LINES)?;
            for (number, line) in (1..).zip(&lines) {
                table.insert(number, &stored::encode(&database.root, number, line)[..])?;
            }
        }
        transaction.commit()?;
        Ok(())
    };
    copy().map_err(|error| store_error(&directory, error))?;
    drop(new);
    let path = directory.join(DATABASE_FILE);
    let old = File::options().write(true).open(&path).map_err(io("open", &path))?;
    // The old one is locked until it has no name any more.
    fs::rename(&new_path, &path).map_err(io("replace", &path))?;
    File::open(&directory).and_then(|directory| directory.sync_all()).map_err(io("make durable", &directory))?;
    drop((read, store, database));
    if let Err(error) = overwrite(old) {
        tracing::warn!(%error, "the audit log of the old format could not be overwritten; its text may still be found on the disk");
    }
    tracing::info!(lines = lines.len(), "the audit log is encrypted from now on");
    Database::open_through(&directory, master, None)
}

/// The blocks of a file that has no name any more.
fn overwrite(mut old: File) -> io::Result<()> {
    let zeros = vec![0; 64 << 10];
    let mut left = old.metadata()?.len();
    while left > 0 {
        let count = left.min(zeros.len() as u64);
        old.write_all(&zeros[..count as usize])?;
        left -= count;
    }
    old.sync_all()
}

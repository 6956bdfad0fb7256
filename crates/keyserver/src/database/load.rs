//! Reads the tables of a database and checks that they belong together: the head binds all records and the audit log. Changes nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadTransaction, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use strongroom_block::SealingDomain;

use super::redb_file::store_error;
use super::{
    DatabaseError, DatabaseState, FORMAT, HEAD_CONTEXT, Head, LINES, META, VOLUMES, digest_of, volume_context,
};
use crate::audit::{AuditHead, AuditLine, stored};
use crate::batch::slots_of;
use crate::keys::RootKey;
use crate::volume::Volume;

/// The log of format 1.
pub(super) const TEXTS: TableDefinition<'static, u64, &str> = TableDefinition::new("audit");

/// Reads and checks everything.
pub(super) fn load(
    directory: &Path,
    store: &redb::Database,
    root_of: impl FnOnce(&[u8]) -> Result<Arc<RootKey>, DatabaseError>,
) -> Result<(Arc<RootKey>, DatabaseState), DatabaseError> {
    let read = store.begin_read().map_err(|error| store_error(directory, error.into()))?;
    let tables = Tables { directory, read };
    let format = tables.format()?;
    let id: [u8; 16] = tables.meta("id")?.try_into().map_err(|_| tables.damaged("its id is malformed"))?;
    let root = root_of(&tables.meta("root")?)?;
    let head = tables.head(&root)?;
    let mut state = DatabaseState::empty(id, head.role);
    (state.generation, state.sequence, state.previous) = (head.generation, head.sequence, head.previous);
    state.lease_ms = head.lease_ms;
    tables.read_volumes(&root, &mut state)?;
    if state.digest != head.digest {
        return Err(tables.damaged("a record is missing, or an older one was put in its place"));
    }
    let unopened = tables.read_log(format, &root, &mut state.head)?;
    if state.head.lines < head.audit.lines {
        let (found, expected) = (state.head.lines, head.audit.lines);
        return Err(tables.audit_error(crate::AuditError::Truncated { found, expected }));
    }
    if state.head != head.audit {
        return Err(tables.audit_error(crate::AuditError::Altered { lines: state.head.lines }));
    }
    if let Some(number) = unopened {
        return Err(tables.damaged(&format!("line {number} of its audit log does not open")));
    }
    Ok((root, state))
}

/// The lines of a database of format 1.
pub(super) fn texts(directory: &Path, read: &ReadTransaction) -> Result<Vec<AuditLine>, DatabaseError> {
    let collect = || -> Result<Vec<AuditLine>, redb::Error> {
        let mut lines = Vec::new();
        for entry in read.open_table(TEXTS)?.iter()? {
            lines.push(AuditLine { text: entry?.1.value().to_owned(), key: None });
        }
        Ok(lines)
    };
    collect().map_err(|error| store_error(directory, error))
}

/// The tables as one transaction sees them. Each error names the database's directory.
struct Tables<'a> {
    directory: &'a Path,
    read: ReadTransaction,
}

impl Tables<'_> {
    fn damaged(&self, what: &str) -> DatabaseError {
        DatabaseError::Damaged { path: self.directory.to_owned(), what: what.to_owned() }
    }

    fn failed(&self, error: impl Into<redb::Error>) -> DatabaseError {
        store_error(self.directory, error.into())
    }

    fn audit_error(&self, source: crate::AuditError) -> DatabaseError {
        DatabaseError::Audit { path: self.directory.to_owned(), source }
    }

    fn meta(&self, name: &str) -> Result<Vec<u8>, DatabaseError> {
        let meta = self.read.open_table(META).map_err(|error| self.failed(error))?;
        let value = meta.get(name).map_err(|error| self.failed(error))?;
        value.map(|value| value.value().to_vec()).ok_or_else(|| self.damaged(&format!("its {name} is missing")))
    }

    fn format(&self) -> Result<u8, DatabaseError> {
        match self.meta("format")?[..] {
            [format @ 1..=FORMAT] => Ok(format),
            [newer] if newer > FORMAT => Err(DatabaseError::Newer { path: self.directory.to_owned() }),
            _ => Err(self.damaged("its format is unknown")),
        }
    }

    fn head(&self, root: &RootKey) -> Result<Head, DatabaseError> {
        let head =
            root.open(HEAD_CONTEXT, &self.meta("head")?).ok_or_else(|| self.damaged("its head does not open"))?;
        Head::decode(&head).map_err(|_| self.damaged("its head is malformed"))
    }

    /// Adds all volumes to `state`, with their digest.
    fn read_volumes(&self, root: &RootKey, state: &mut DatabaseState) -> Result<(), DatabaseError> {
        let volumes = self.read.open_table(VOLUMES).map_err(|error| self.failed(error))?;
        let mut slots = BTreeSet::new();
        for entry in volumes.iter().map_err(|error| self.failed(error))? {
            let (domain, sealed) = entry.map_err(|error| self.failed(error))?;
            let domain: [u8; 16] =
                domain.value().try_into().map_err(|_| self.damaged("a record has no proper name"))?;
            let domain = SealingDomain(domain);
            let record = root.open(&volume_context(domain), sealed.value());
            let record = record.ok_or_else(|| self.damaged(&format!("the record of {domain} does not open")))?;
            let malformed = || self.damaged(&format!("the record of {domain} is malformed"));
            let volume = Volume::decode(&record).map_err(|_| malformed())?;
            let own = slots_of([&volume]);
            if volume.domain != domain || own.len() != volume.epochs.len() || !slots.is_disjoint(&own) {
                return Err(malformed());
            }
            slots.extend(own);
            let digest = digest_of(root, domain, sealed.value());
            state.digest = [0, 1].map(|half| state.digest[half].wrapping_add(digest[half]));
            state.digests.insert(domain, digest);
            state.put(domain, Some(volume));
        }
        Ok(())
    }

    /// Brings `head` to the end of the audit log. Returns the first line that does not open.
    fn read_log(&self, format: u8, root: &RootKey, head: &mut AuditHead) -> Result<Option<u64>, DatabaseError> {
        if format == 1 {
            for line in texts(self.directory, &self.read)? {
                *head = head.then(&line).map_err(|error| self.audit_error(error))?;
            }
            return Ok(None);
        }
        let mut unopened = None;
        let lines = self.read.open_table(LINES).map_err(|error| self.failed(error))?;
        for entry in lines.iter().map_err(|error| self.failed(error))? {
            let (number, line) = entry.map_err(|error| self.failed(error))?;
            *head = match stored::decode(root, number.value(), line.value()) {
                Some(line) => head.then(&line).map_err(|error| self.audit_error(error))?,
                // The chain says more of what was done to the log, and needs no key.
                None => {
                    unopened.get_or_insert(number.value());
                    head.then_sealed(stored::sealed_of(line.value()))
                }
            };
        }
        Ok(unopened)
    }
}

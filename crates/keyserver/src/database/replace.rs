//! Rewrites everything in a database in one transaction: for a restored backup and a changed master key.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use super::{
    Database, DatabaseError, DatabaseState, HEAD_CONTEXT, Head, LINES, META, SHRED_FILE, VOLUMES, digest_of, lock,
    volume_context,
};
use crate::audit::{AuditLine, line, stored};
use crate::batch::Role;
use crate::engine::wall_clock_ms;
use crate::keys::{MasterKey, RootKey, ShredKey};
use crate::volume::Volume;

impl Database {
    /// Draws a new root key, wraps it under another master key, and wraps every volume key and every line of the audit log again: neither the old master key nor the
    /// old bytes of the database file open anything then. Backups that were made before still open with the old one.
    ///
    /// # Errors
    /// [`DatabaseError`]; the old master key holds then.
    pub fn change_master_key(self, new: &dyn MasterKey) -> Result<(), DatabaseError> {
        let root = RootKey::fresh(new)?;
        let mut lines = Vec::new();
        self.lines(1, |line| {
            lines.push(line);
            true
        })?;
        let (mut state, volumes) = {
            let now = self.state();
            let volumes: Vec<Volume> = now.volumes.values().map(|volume| Volume::clone(volume)).collect();
            let mut state = DatabaseState::empty(now.id, now.role);
            (state.generation, state.sequence, state.lease_ms) = (now.generation, now.sequence, now.lease_ms);
            (state.previous, state.head) = (now.previous, now.head);
            // A standby's log is its primary's, and so are its transactions.
            if now.role == Role::Primary {
                let number = now.head.lines + 1;
                let told = line(number, wall_clock_ms(), None, &format!("master-key to={}", new.id()));
                state.sequence += 1;
                (state.previous, state.head) = (now.head, now.head.then(&told).expect("numbered right here"));
                lines.push(told);
            }
            (state, volumes)
        };
        let (mut taken, mut slots, mut rewrapped) = (BTreeSet::new(), Vec::new(), Vec::new());
        for mut volume in volumes {
            let keys = self.open_keys(&volume)?;
            for (number, epoch) in &mut volume.epochs {
                let slot = self.free_slot(&taken).ok_or_else(|| self.damaged("its shred file is full"))?;
                let shred = ShredKey::fresh();
                let key = keys.volume_key(*number).expect("opened from these epochs");
                (epoch.slot, epoch.wrapped) = (slot, shred.wrap(volume.domain, *number, key));
                taken.insert(slot);
                slots.push((slot, shred));
            }
            rewrapped.push(volume);
        }
        let filled = self.shred.write().unwrap_or_else(PoisonError::into_inner).fill(&slots, state.sequence);
        filled.map_err(|source| self.io("write", SHRED_FILE, source))?;
        state = self.replace_all(&root, state, rewrapped, &lines)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.shred_unused()
    }

    /// Writes volumes, all lines and the head, and gives the state back that is stored then.
    pub(super) fn replace_all(
        &self,
        root: &RootKey,
        mut state: DatabaseState,
        volumes: Vec<Volume>,
        lines: &[AuditLine],
    ) -> Result<DatabaseState, DatabaseError> {
        let mut records = Vec::with_capacity(volumes.len());
        for volume in volumes {
            let domain = volume.domain;
            let sealed = root.seal(&volume_context(domain), &volume.encode());
            let digest = digest_of(root, domain, &sealed);
            state.digest = [0, 1].map(|half| state.digest[half].wrapping_add(digest[half]));
            state.digests.insert(domain, digest);
            state.put(domain, Some(volume));
            records.push((domain, sealed));
        }
        let sealed_head = root.seal(HEAD_CONTEXT, &Head::of(&state).encode());
        let store = self.store()?;
        let write = || -> Result<(), redb::Error> {
            let transaction = store.begin_write()?;
            {
                let mut table = transaction.open_table(VOLUMES)?;
                table.retain(|_, _| false)?;
                for (domain, record) in &records {
                    table.insert(&domain.0[..], &record[..])?;
                }
                let mut table = transaction.open_table(LINES)?;
                table.retain(|_, _| false)?;
                for (number, line) in (1..).zip(lines) {
                    table.insert(number, &stored::encode(root, number, line)[..])?;
                }
                let mut meta = transaction.open_table(META)?;
                meta.insert("id", &state.id[..])?;
                meta.insert("root", root.wrapped())?;
                meta.insert("head", &sealed_head[..])?;
            }
            transaction.commit()?;
            Ok(())
        };
        if let Err(error) = write() {
            *lock(&self.store) = None;
            return Err(self.store_error(error));
        }
        Ok(state)
    }
}

//! A volume's store in the hands of a command, while no target has it open: for what takes long and would stand in a worker's way,
//! sending and receiving. And volumes made for what a stream brings.
//!
//! Absent: the stream (the store's business) and where it comes from.

use std::sync::Arc;

use strongroom_store::{Sender, SnapshotId, Store, StreamInfo, UnitKind};

use super::{Catalogue, VolumeLock, VolumeSpec, describe, store_error};
use crate::config::Limits;
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::volume::{Volume, of_branch};

/// A volume that a command has opened, with the lock that keeps targets from opening it meanwhile.
pub struct OpenVolume {
    catalogue: Catalogue,
    volume: Volume,
    pub(crate) store: Store,
    _lock: VolumeLock,
}

impl Catalogue {
    /// Opens a volume's store, or of a clone that of the volume it was made from.
    ///
    /// # Errors
    /// [`CatalogueError::InUse`] while a target or another command has it; [`CatalogueError::Missing`]; else why it does not open.
    pub fn open_volume(&self, name: &str) -> Result<OpenVolume, CatalogueError> {
        let asked = VolumeName::new(name)?;
        let name = self.load(&asked)?.store_name();
        let lock = self.lock(&name)?;
        let (base, dir) = (self.load(&name)?, self.store_dir(&name));
        let limits = Limits::default();
        let options = base.open_options((limits.record_cache_bytes, limits.data_cache_bytes));
        let opened = Store::open(&dir, &options, Arc::new(|| {}));
        let store = opened.map_err(|source| store_error(&name, source))?;
        base.agrees_with(store.info()).map_err(|problem| problem.at(dir))?;
        self.mend(&base, &store)?;
        let volume = self.load(&asked)?;
        Ok(OpenVolume { catalogue: self.clone(), volume, store, _lock: lock })
    }

    /// Makes a volume for what a stream brings: in the stream's sealing domain, so that the same key opens it, and under the
    /// same identity, so that it is the same volume to initiators; unless a volume with that identity is here already.
    ///
    /// # Errors
    /// [`CatalogueError`]; nothing is left behind.
    pub fn create_for(&self, spec: &VolumeSpec, info: &StreamInfo) -> Result<Volume, CatalogueError> {
        let mut volume = describe(spec, &self.root)?;
        let is_taken = |name: &VolumeName| self.load(name).is_ok_and(|other| other.id == info.volume_id);
        if !self.names()?.iter().any(is_taken) {
            volume.id = info.volume_id;
        }
        if let (Some(sealed), UnitKind::Sealed { domain, .. }) = (&mut volume.sealed, info.kind) {
            sealed.domain = domain;
            if let Some(as_sent) = info.sealing {
                (sealed.suite, sealed.mode, sealed.epoch) = (as_sent.suite, as_sent.mode, as_sent.epoch);
            }
        }
        self.place(&volume, |dir| self.fill(dir, &volume))?;
        Ok(volume)
    }
}

impl OpenVolume {
    /// What it is, as it was opened.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Its store.
    pub fn store(&mut self) -> &mut Store {
        &mut self.store
    }

    /// A stream of its snapshot `to`, as [`Sender::new`], that tells how the volume is sealed.
    pub fn sender(&self, from: Option<SnapshotId>, to: SnapshotId, position: u64) -> Sender {
        Sender::new(from, to, position).sealed_as(self.volume.stream_sealing())
    }

    /// A snapshot of it by name.
    pub fn snapshot(&self, name: &str) -> Option<SnapshotId> {
        let branch = self.volume.branch();
        let snapshots = self.store.index().snapshots();
        snapshots.into_iter().find(|info| info.branch == branch && info.name == name).map(|info| info.id)
    }

    /// Writes down which snapshots it has now: initiators are told of them before the store is open.
    ///
    /// # Errors
    /// [`CatalogueError::Io`], [`CatalogueError::Description`].
    pub fn note(&self) -> Result<(), CatalogueError> {
        let noted = self.catalogue.change(&self.volume.name, |noted| {
            noted.snapshots = of_branch(&self.store.index().snapshots(), self.volume.branch());
            noted.geometry = self.store.info().geometry;
        });
        noted.map(drop)
    }

    /// Lets go of it, all durable.
    ///
    /// # Errors
    /// [`CatalogueError::Store`].
    pub fn close(self) -> Result<(), CatalogueError> {
        let name = self.volume.store_name();
        self.store.close().map_err(|source| store_error(&name, source))
    }
}

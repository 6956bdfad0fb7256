//! The machine: requests in, completions out.

use std::path::Path;

use strongroom_block::Token;

use crate::{
    Backend, Completion, CreateOptions, Op, OpError, OpenOptions, Outcome, Stats, StoreError, VolumeInfo, Waker,
};

/// One volume, open.
pub struct Store {
    info: VolumeInfo,
    stats: Stats,
}

impl Store {
    /// Makes a store in the directory `dir` (made if missing) and closes it again.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Options`], [`StoreError::Io`].
    pub fn create(dir: &Path, options: &CreateOptions) -> Result<(), StoreError> {
        let _ = options;
        Err(StoreError::Missing(dir.to_owned()))
    }

    /// Makes a store on a backend that holds none.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create_on(backend: Box<dyn Backend>, options: &CreateOptions) -> Result<(), StoreError> {
        let _ = (backend, options);
        Err(StoreError::NoFreeSegment)
    }

    /// Opens the store in `dir`, takes its lock, recovers. `waker` is called when there is something new to poll.
    ///
    /// # Errors
    /// Any [`StoreError`] but `Exists` and `Options`.
    pub fn open(dir: &Path, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let _ = (options, waker);
        Err(StoreError::Missing(dir.to_owned()))
    }

    /// Opens the store on a backend.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(backend: Box<dyn Backend>, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let _ = (backend, options, waker);
        Err(StoreError::NoFreeSegment)
    }

    /// What the store in `dir` says of its volume, from its superblock alone; works while it is open elsewhere.
    ///
    /// # Errors
    /// [`StoreError`] if there is no readable store.
    pub fn inspect(dir: &Path) -> Result<VolumeInfo, StoreError> {
        Err(StoreError::Missing(dir.to_owned()))
    }

    /// What the store says of its volume.
    pub fn info(&self) -> &VolumeInfo {
        &self.info
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Takes a request in. It is worked on in the next [`Store::poll_completions`], so that requests submitted together
    /// share one append; it always completes, once. `token` must be unique among requests in flight.
    pub fn submit(&mut self, token: Token, op: Op) {
        let _ = (token, op);
    }

    /// Moves everything forward as far as it goes and appends what has finished to `completions`; returns how many.
    pub fn poll_completions(&mut self, completions: &mut Vec<Completion>) -> usize {
        let _ = completions;
        0
    }

    /// Does one request and waits for it: for tools and tests, not for a worker. Completions of other requests in
    /// flight stay to be polled.
    ///
    /// # Errors
    /// As the request.
    pub fn execute(&mut self, op: Op) -> Result<Outcome, OpError> {
        let _ = op;
        Err(OpError::Busy)
    }

    /// To be called when nothing was asked for a second or so: notes in the log what is durable, so that damage to the
    /// last flushed writes is told from writes that were never flushed, and cleans a little.
    pub fn idle(&mut self) {}

    /// Finishes what is in flight, syncs, and marks the store as closed in order.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the last sync fails; what was flushed before is safe.
    pub fn close(self) -> Result<(), StoreError> {
        Ok(())
    }
}

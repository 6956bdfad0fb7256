//! Making a store, finding one in a directory, and removing it.

use std::fs::{self, File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use super::Store;
use super::directory::{LOG_NAME, lock, lock_in, missing_or};
use super::erasure::Erasure;
use super::format::{format, fresh, plan};
use crate::backend::{Backend, FileBackend, MemoryBackend, Waker};
use crate::error::StoreError;
use crate::layout::{LOG_START, RECORD_BLOCK, SUPERBLOCK_AT};
use crate::medium::Medium;
use crate::options::{CreateOptions, OpenOptions, VolumeInfo};
use crate::random::random;
use crate::recover::Recovered;
use crate::superblock::Superblock;

/// Name of the log while it is being made.
const NEW_LOG_NAME: &str = "log.new";

impl Store {
    /// Makes a store in the directory `dir` (made if missing) and closes it again. The volume reads as zeros if plain,
    /// and must be formatted by an initiator if sealed.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::InUse`], [`StoreError::Options`], [`StoreError::Io`].
    pub fn create(dir: &Path, options: &CreateOptions) -> Result<(), StoreError> {
        let action = || format!("making a store in {}", dir.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(StoreError::io(action()))?;
        let _lock = lock_in(dir)?;
        if dir.join(LOG_NAME).exists() {
            return Err(StoreError::Exists(dir.to_owned()));
        }
        match &options.medium {
            // There is nothing to make; but what cannot be is refused now.
            Medium::Memory => return plan(options).map(drop),
            Medium::Directory => create_log(dir, options, &action())?,
            Medium::File(path) | Medium::Device(path) => link_log(dir, path, options, &action())?,
        }
        let parent = dir.canonicalize().ok().and_then(|dir| dir.parent().map(Path::to_owned));
        for dir in [Some(dir.to_owned()), parent].into_iter().flatten() {
            sync_dir(&dir).map_err(StoreError::io(action()))?;
        }
        Ok(())
    }

    /// A new store in memory, open. Everything in it is lost when it is closed.
    ///
    /// # Errors
    /// [`StoreError::Options`].
    pub fn open_in_memory(create: &CreateOptions, options: &OpenOptions, waker: Waker) -> Result<Store, StoreError> {
        let mut superblock = plan(create)?;
        // Its number tells initiators that knew another one of this name that this is not the same.
        superblock.open_epoch = u64::from(u32::from_be_bytes(random()?));
        let mut backend = Box::new(MemoryBackend::for_segments(create.segment_bytes));
        format(backend.as_mut(), superblock)?;
        Store::open_on(backend, options, waker)
    }

    /// Removes what the store in `dir` has outside of it: a log at another path goes, a device is made blank.
    ///
    /// # Errors
    /// [`StoreError::InUse`], [`StoreError::Io`].
    pub fn remove_outside(dir: &Path) -> Result<(), StoreError> {
        let _lock = match lock(dir) {
            Ok(lock) => lock,
            // Nothing was made, or what the link leads to is gone.
            Err(StoreError::Missing(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        crate::medium::remove_linked(&dir.join(LOG_NAME))
            .map_err(StoreError::io(format!("removing what {} leads to", dir.join(LOG_NAME).display())))
    }

    /// Makes a store on a backend that holds none (or nothing worth keeping).
    ///
    /// # Errors
    /// [`StoreError::Options`], [`StoreError::Io`].
    pub fn create_on(mut backend: Box<dyn Backend>, options: &CreateOptions) -> Result<VolumeInfo, StoreError> {
        format(backend.as_mut(), plan(options)?)
    }

    /// What the store in `dir` says of its volume, from its superblock alone; works while it is open elsewhere.
    ///
    /// # Errors
    /// [`StoreError`] if there is no readable store.
    pub fn inspect(dir: &Path) -> Result<VolumeInfo, StoreError> {
        let file = File::open(dir.join(LOG_NAME)).map_err(missing_or("reading the store", dir))?;
        let mut copies = [[0; RECORD_BLOCK]; 2];
        for (copy, at) in copies.iter_mut().zip(SUPERBLOCK_AT) {
            match std::os::unix::fs::FileExt::read_exact_at(&file, copy, at) {
                // A file cut short: what is missing is zeros, and no superblock.
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    return Err(StoreError::io("reading the superblock")(error));
                }
                _ => {}
            }
        }
        Superblock::choose([&copies[0], &copies[1]]).map(|(superblock, _)| superblock.info())
    }

    /// Whether the directory holds a store.
    pub fn exists(dir: &Path) -> bool {
        dir.join(LOG_NAME).exists()
    }
}

/// Opens a store that was being erased.
pub(super) fn open_erasing(
    mut backend: Box<dyn Backend>,
    options: &OpenOptions,
    waker: Waker,
    open_id: u64,
) -> Result<Store, StoreError> {
    let (superblock, copy) = crate::recover::read_superblock(backend.as_mut())?;
    // Nothing of it is read or written: this is a placeholder for what there was.
    let mut store = Store::from_recovered(backend, options.clone(), waker, fresh(superblock, copy, open_id));
    store.engine.erasure = Some(Erasure::resumed());
    store.engine.medium.io.wake();
    Ok(store)
}

/// Opens what a repair could recover, as a new epoch: that writes a segment table and both superblocks.
///
/// # Errors
/// As [`Store::open`] for want of space.
pub(crate) fn open_recovered(backend: Box<dyn Backend>, recovered: Recovered) -> Result<Store, StoreError> {
    let mut store = Store::from_recovered(backend, OpenOptions::default(), Arc::new(|| {}), recovered);
    store.engine.begin_epoch()?;
    Ok(store)
}

/// Makes the log as a file in the store's directory.
fn create_log(dir: &Path, options: &CreateOptions, action: &str) -> Result<(), StoreError> {
    let new = dir.join(NEW_LOG_NAME);
    let mut file_options = FileOptions::new();
    file_options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = file_options.open(&new).map_err(StoreError::io(action))?;
    let length = file.try_clone().map_err(StoreError::io(action))?;
    let info = Store::create_on(Box::new(FileBackend::new(file).map_err(StoreError::io(action))?), options)?;
    // The whole length from the start: sparse, and a file that lost its end is noticed.
    length.set_len(log_bytes(&info)).and_then(|()| length.sync_all()).map_err(StoreError::io(action))?;
    fs::rename(&new, dir.join(LOG_NAME)).map_err(StoreError::io(action))
}

/// Makes the log elsewhere, and the link to it.
fn link_log(dir: &Path, path: &Path, options: &CreateOptions, action: &str) -> Result<(), StoreError> {
    let info = plan(options)?.info();
    let outside = || format!("making the log at {}", path.display());
    let is_file = matches!(options.medium, Medium::File(_));
    let file = if is_file {
        crate::medium::new_file(path, log_bytes(&info))
    } else {
        crate::medium::blank_device(path, log_bytes(&info))
    };
    let file = file.map_err(StoreError::io(outside()))?;
    let made = FileBackend::new(file)
        .map_err(StoreError::io(outside()))
        .and_then(|backend| Store::create_on(Box::new(backend), options))
        .and_then(|_| sync_parent(path).map_err(StoreError::io(outside())))
        .and_then(|()| std::os::unix::fs::symlink(path, dir.join(LOG_NAME)).map_err(StoreError::io(action)));
    if made.is_err() && is_file {
        let _ = fs::remove_file(path);
    }
    made
}

fn log_bytes(info: &VolumeInfo) -> u64 {
    LOG_START + u64::from(info.segments) * u64::from(info.segment_bytes)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_dir)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, Geometry, VolumeId};

    use super::*;
    use crate::options::UnitKind;

    #[test]
    fn too_few_segments_are_refused() {
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 160 };
        let options = CreateOptions {
            segment_bytes: 64 << 10,
            medium: Medium::Memory,
            ..CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)
        };
        let open = |segments| {
            let options = CreateOptions { segments: Some(segments), ..options.clone() };
            Store::open_in_memory(&options, &OpenOptions::default(), std::sync::Arc::new(|| {}))
        };
        for segments in [0, 1, 2, 16] {
            assert!(
                matches!(open(segments), Err(StoreError::Options(why)) if why.contains("take 17 or more")),
                "{segments}"
            );
        }
        assert_eq!(open(17).unwrap().info().segments, 17);
    }
}

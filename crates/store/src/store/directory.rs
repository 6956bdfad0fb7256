//! A store's directory: its log, and the locks that keep a store from being opened twice.

use std::fs::{self, File, OpenOptions as FileOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Chosen, FileBackend, IoChoice, backend_on};
use crate::error::StoreError;

/// Name of the log in a store's directory.
pub(super) const LOG_NAME: &str = "log";
/// Name of the file whose lock keeps the store open once.
const LOCK_NAME: &str = "lock";

/// How long the last I/O of a killed process may take to arrive, and how often to look.
const IN_FLIGHT_PATIENCE: Duration = Duration::from_secs(5);
const IN_FLIGHT_PAUSE: Duration = Duration::from_millis(2);

/// The lock that keeps others from opening a store. It is unlocked when it is dropped, not only closed: a process that was forked meanwhile,
/// to run another program, has the open file as well until that program begins.
#[derive(Debug)]
pub(crate) struct StoreLock(File);

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Closing it comes next in any case.
        let _ = self.0.unlock();
    }
}

/// The log of the store in `dir`, and the lock that keeps others from opening it.
pub(crate) fn locked_log(dir: &Path, io: IoChoice) -> Result<(StoreLock, Chosen), StoreError> {
    Ok((lock(dir)?, open_log(dir, io)?))
}

/// The log of the store in `dir` for tools that write nothing, on any medium, also a read-only one. The lock, where there
/// is one and it can be had, keeps others from opening the store meanwhile. Right after its process was killed, what that had in
/// flight is waited for.
pub(crate) fn log_for_reading(dir: &Path) -> Result<(Option<StoreLock>, Box<dyn Backend>), StoreError> {
    let file = File::open(dir.join(LOG_NAME)).map_err(missing_or("opening the store", dir))?;
    let lock = File::open(dir.join(LOCK_NAME)).ok().map(StoreLock);
    let in_use = |taken| matches!(taken, Err(TryLockError::WouldBlock));
    if lock.as_ref().is_some_and(|lock| in_use(lock.0.try_lock_shared()))
        || in_use(patiently(|| file.try_lock_shared()))
    {
        return Err(StoreError::InUse(dir.to_owned()));
    }
    Ok((lock, Box::new(FileBackend::new(file).map_err(StoreError::io("preparing to read the log"))?)))
}

/// Takes the lock of the store in `dir`.
pub(super) fn lock(dir: &Path) -> Result<StoreLock, StoreError> {
    if !dir.join(LOG_NAME).exists() {
        return Err(StoreError::Missing(dir.to_owned()));
    }
    lock_in(dir)
}

pub(super) fn lock_in(dir: &Path) -> Result<StoreLock, StoreError> {
    let action = || format!("locking the store in {}", dir.display());
    let mut options = FileOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(dir.join(LOCK_NAME)).map_err(StoreError::io(action()))?;
    match file.try_lock() {
        Ok(()) => Ok(StoreLock(file)),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse(dir.to_owned())),
        Err(TryLockError::Error(error)) => Err(StoreError::io(action())(error)),
    }
}

/// Takes the log's own lock, which lasts as long as anything is done to the log: after a process was killed, until what it
/// had in flight has arrived; nothing of it may arrive later, in what was written since. And two directories may lead to
/// the same log.
fn lock_log(file: &File) -> Result<(), TryLockError> {
    patiently(|| file.try_lock())
}

fn patiently(mut lock: impl FnMut() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    let until = Instant::now() + IN_FLIGHT_PATIENCE;
    loop {
        match lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(IN_FLIGHT_PAUSE),
            outcome => return outcome,
        }
    }
}

fn open_log(dir: &Path, io: IoChoice) -> Result<Chosen, StoreError> {
    let path = dir.join(LOG_NAME);
    let is_device = fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    let file = if is_device {
        crate::medium::open_device(&path)
    } else {
        FileOptions::new().read(true).write(true).open(&path)
    };
    let file = file.map_err(missing_or("opening the store", dir))?;
    lock_log(&file).map_err(|error| match error {
        TryLockError::WouldBlock => StoreError::InUse(dir.to_owned()),
        TryLockError::Error(error) => StoreError::io("locking the log")(error),
    })?;
    // A file elsewhere was preallocated; a device has no space to give back, but discarding tells it what it may forget.
    let preallocated = !is_device && path.is_symlink();
    backend_on(file, io, preallocated)
        .map_err(StoreError::io(format!("preparing the log for I/O (io = {io}; auto takes what works here)")))
}

pub(super) fn missing_or(action: &'static str, dir: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing(dir.to_owned()),
        _ => StoreError::io(format!("{action} in {}", dir.display()))(error),
    }
}

#[cfg(test)]
mod tests {
    use strongroom_block::{BlockSize, Geometry, VolumeId};

    use super::*;
    use crate::check::CheckReport;
    use crate::options::{CreateOptions, UnitKind};
    use crate::store::Store;

    #[test]
    fn a_lock_is_gone_with_its_owner_although_a_forked_process_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(LOG_NAME), []).unwrap();
        let held = lock(dir.path()).unwrap();
        let forked = held.0.try_clone().unwrap();
        assert!(matches!(lock(dir.path()), Err(StoreError::InUse(_))));
        drop(held);
        lock(dir.path()).unwrap();
        drop(forked);
    }

    #[test]
    fn who_looks_waits_for_what_a_killed_process_had_in_flight() {
        let dir = tempfile::tempdir().unwrap();
        let geometry = Geometry { block_size: BlockSize::DEFAULT, blocks: 160 };
        Store::create(dir.path(), &CreateOptions::new(VolumeId([1; 16]), geometry, UnitKind::Plain)).unwrap();
        // The kernel lets go of the log when the last I/O has arrived; of the lock, with the process.
        let log = File::open(dir.path().join(LOG_NAME)).unwrap();
        log.try_lock().unwrap();
        let arrives = std::thread::spawn(move || {
            std::thread::sleep(IN_FLIGHT_PATIENCE / 20);
            drop(log);
        });
        assert!(CheckReport::of(dir.path(), &mut |_, _| ()).unwrap().is_sound());
        arrives.join().unwrap();
        // A live process has the lock, and is not waited for.
        let _held = lock(dir.path()).unwrap();
        let asked = Instant::now();
        assert!(matches!(CheckReport::of(dir.path(), &mut |_, _| ()), Err(StoreError::InUse(_))));
        assert!(asked.elapsed() < IN_FLIGHT_PATIENCE);
    }
}

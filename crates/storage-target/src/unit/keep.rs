//! What a unit remembers on disk beside its volume's description: persistent reservations and writer leases, a file each, replaced whole,
//! and synced before the command that changed them is answered. Writing is done by a thread of its own, one after the other, so that a sync
//! holds up no other command.
//!
//! A file that cannot be read keeps the volume from being opened: it says who is kept from writing, and forgetting that could let two write.

pub(super) mod leases;
mod reservations;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::catalogue::modes;
use crate::error::CatalogueError;
use strongroom_scsi::persistent::SavedReservations;

use super::leases::LeaseRecord;

/// Largest file that is read, in bytes: 256 registrations take less than a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Space that is kept for one more file of each kind, in bytes: some dozens of leases.
const SPARE_BYTES: u64 = 8 << 10;

/// What is kept in a file of its own.
pub(crate) trait KeptState: Clone + Default + PartialEq + Send + 'static {
    /// The file's name, in the volume's directory.
    const FILE: &'static str;
    /// What it is, for people.
    const WHAT: &'static str;
    /// What a person can do who finds it damaged.
    const REMEDY: &'static str;

    /// The file's text; `None`: nothing is to be kept, and there is no file.
    fn to_toml(&self) -> Option<String>;

    /// Reads the file's text.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    fn from_toml(text: &str) -> Result<Self, String>;
}

/// All that a unit remembers, and what keeps it.
pub(crate) struct UnitMemory {
    pub(super) reservations: (Keeper<SavedReservations>, SavedReservations),
    pub(super) leases: (Keeper<Vec<LeaseRecord>>, Vec<LeaseRecord>),
}

impl UnitMemory {
    /// Reads what was kept in `dir`. `wake` is called when something was written.
    ///
    /// # Errors
    /// [`CatalogueError`] for a file that is there and cannot be understood.
    pub(crate) fn open(dir: &Path, wake: &Arc<dyn Fn() + Send + Sync>) -> Result<UnitMemory, CatalogueError> {
        let reservations = Keeper::open(dir.to_owned(), Arc::clone(wake))?;
        let leases = Keeper::open(dir.to_owned(), Arc::clone(wake))?;
        Ok(UnitMemory { reservations, leases })
    }

    /// For simulations: reads what was kept in memory, and keeps it there.
    pub(crate) fn shared(memory: &SharedMemory) -> UnitMemory {
        let SharedMemory { reservations, leases } = memory;
        UnitMemory { reservations: Keeper::in_memory(reservations), leases: Keeper::in_memory(leases) }
    }

    /// For a unit that nobody may write to, and so nobody can reserve.
    pub(crate) fn nowhere() -> UnitMemory {
        UnitMemory { reservations: Keeper::nowhere(), leases: Keeper::nowhere() }
    }
}

/// What stands for the files of a unit in a simulation, and outlives the unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedMemory {
    pub(crate) reservations: Arc<Mutex<SavedReservations>>,
    leases: Arc<Mutex<Vec<LeaseRecord>>>,
}

/// Where it is kept.
enum Place<T> {
    /// Nothing is ever kept.
    Nowhere,
    /// In a file in this directory.
    Directory(PathBuf),
    /// In memory. What is to be written is there when the keeper was polled, and told through the sender.
    Memory(Arc<Mutex<T>>, Option<Sender<io::Result<()>>>),
}

/// Keeps one of these of one volume.
pub(crate) struct Keeper<T> {
    place: Place<T>,
    /// Called by the thread when it is done.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// What is on disk, as far as is known; asking for the same again writes nothing. After a write that failed anything may be there.
    on_disk: Option<T>,
    /// What the thread writes.
    writing: Option<(T, Receiver<io::Result<()>>)>,
}

impl<T: KeptState> Keeper<T> {
    fn open(dir: PathBuf, wake: Arc<dyn Fn() + Send + Sync>) -> Result<(Keeper<T>, T), CatalogueError> {
        let kept: T = read(&dir.join(T::FILE))?;
        make_spare(&dir, T::FILE);
        let keeper = Keeper { place: Place::Directory(dir), wake, on_disk: Some(kept.clone()), writing: None };
        Ok((keeper, kept))
    }

    fn in_memory(memory: &Arc<Mutex<T>>) -> (Keeper<T>, T) {
        let kept = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let place = Place::Memory(Arc::clone(memory), None);
        (Keeper { place, wake: Arc::new(|| {}), on_disk: Some(kept.clone()), writing: None }, kept)
    }

    fn nowhere() -> (Keeper<T>, T) {
        let keeper = Keeper { place: Place::Nowhere, wake: Arc::new(|| {}), on_disk: None, writing: None };
        (keeper, T::default())
    }

    /// Has `kept` written instead of what was kept before. Whether that must be waited for: otherwise it is on disk already. One write at a
    /// time: the caller waits for [`Keeper::poll`] in between.
    pub(super) fn keep(&mut self, kept: T) -> bool {
        assert!(self.writing.is_none(), "one change is written at a time");
        if self.on_disk.as_ref() == Some(&kept) {
            return false;
        }
        let (done, outcome) = mpsc::channel();
        let dir = match &mut self.place {
            Place::Nowhere => return false,
            Place::Directory(dir) => dir.clone(),
            Place::Memory(_, written) => {
                *written = Some(done);
                self.writing = Some((kept, outcome));
                return true;
            }
        };
        let (text, wake) = (kept.to_toml(), Arc::clone(&self.wake));
        let before = self.on_disk.take();
        self.writing = Some((kept, outcome));
        let body = move || {
            let written = replace(&dir, T::FILE, text.as_deref());
            // What is refused must not be there after a restart, if that can be helped.
            if let (Err(_), Some(before)) = (&written, before)
                && let Err(error) = replace(&dir, T::FILE, before.to_toml().as_deref())
            {
                tracing::error!(dir = %dir.display(), %error, "a refused change of {} may come back after a restart: look at {}", T::WHAT, T::FILE);
            }
            let _ = done.send(written);
            wake();
        };
        // If there is no thread the channel is closed, which `poll` takes for the failure that it is.
        if let Err(error) = std::thread::Builder::new().name(T::WHAT.to_owned()).spawn(body) {
            tracing::error!(%error, "no thread to write {}", T::WHAT);
        }
        true
    }

    /// Whether something is being written.
    pub(super) fn is_busy(&self) -> bool {
        self.writing.is_some()
    }

    /// What has become of the writing.
    pub(super) fn poll(&mut self) -> Option<io::Result<()>> {
        let (kept, outcome) = self.writing.as_ref()?;
        if let Place::Memory(memory, written) = &mut self.place
            && let Some(written) = written.take()
        {
            *memory.lock().unwrap_or_else(PoisonError::into_inner) = kept.clone();
            let _ = written.send(Ok(()));
        }
        let result = match outcome.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread that writes it is gone")),
        };
        let (kept, _) = self.writing.take().expect("looked at above");
        if result.is_ok() {
            self.on_disk = Some(kept);
        }
        Some(result)
    }
}

impl<T> Drop for Keeper<T> {
    fn drop(&mut self) {
        if let Place::Memory(_, written) = &mut self.place {
            *written = None;
        }
        if let Some((_, outcome)) = self.writing.take() {
            let _ = outcome.recv();
        }
    }
}

/// Replaces a file whole; without text it goes. On a full file system the space comes from what is spare.
fn replace(dir: &Path, name: &str, text: Option<&str>) -> io::Result<()> {
    let is_full = |error: &io::Error| matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT));
    let mut replaced = try_to_replace(dir, name, text);
    if replaced.as_ref().is_err_and(is_full) && fs::remove_file(spare_of(dir, name)).is_ok() {
        replaced = try_to_replace(dir, name, text);
    }
    make_spare(dir, name);
    replaced
}

fn try_to_replace(dir: &Path, name: &str, text: Option<&str>) -> io::Result<()> {
    let path = dir.join(name);
    match text {
        Some(text) => {
            let temporary = dir.join(format!(".{name}"));
            let mut file = modes::make_file(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
        }
        None => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        },
    }
    File::open(dir)?.sync_all()
}

fn spare_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.spare"))
}

/// Takes space for one more file like this, if it is not there yet. A volume fills the file system that it is on, and must be attached again to
/// be emptied, which a change of its writer leases comes before.
fn make_spare(dir: &Path, name: &str) {
    let path = spare_of(dir, name);
    if path.exists() {
        return;
    }
    let made = modes::make_file(&path).and_then(|file| {
        let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, SPARE_BYTES);
        // A file system that cannot do that may take written zeros.
        allocated
            .or_else(|_| (&file).write_all(&[0; SPARE_BYTES as usize]).map_err(|_| Errno::NOSPC))
            .map_err(Into::into)
    });
    if let Err(error) = made {
        // Nothing spare is worth nothing.
        let _ = fs::remove_file(&path);
        tracing::debug!(path = %path.display(), %error, "no space is spare");
    }
}

fn read<T: KeptState>(path: &Path) -> Result<T, CatalogueError> {
    let broken = |problem: &str| CatalogueError::Description {
        path: path.to_owned(),
        problem: format!("{problem}; {}", T::REMEDY),
    };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        Err(source) => return Err(CatalogueError::Io { what: "read", path: path.to_owned(), source }),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(broken("it is far too large")),
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).map_err(CatalogueError::io("read", path))?;
    T::from_toml(&text).map_err(|problem| broken(&problem))
}

#[cfg(test)]
mod tests {
    //! Proves that what is kept is found again, that what cannot be written leaves what was there, and that a damaged file is refused.
    use super::reservations::tests::{GOLDEN, sample};
    use super::*;

    fn open(dir: &Path) -> Result<(Keeper<SavedReservations>, SavedReservations), CatalogueError> {
        Keeper::open(dir.to_owned(), Arc::new(|| {}))
    }

    #[test]
    fn a_damaged_file_is_refused_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        for (from, to) in [("version = 1", "version = 2"), ("kind = 5", "kind = 2"), ("4000", "40xx"), ("fedc", "")] {
            fs::write(dir.path().join(SavedReservations::FILE), GOLDEN.replace(from, to)).unwrap();
            let opened = open(dir.path());
            assert!(matches!(opened, Err(CatalogueError::Description { .. })), "{to}");
        }
    }

    #[test]
    fn keeps_and_forgets() {
        let dir = tempfile::tempdir().unwrap();
        let open = || open(dir.path()).unwrap();
        let (mut keeper, before) = open();
        assert_eq!(before, SavedReservations::default());
        assert!(!keeper.keep(SavedReservations::default()), "nothing to write");
        let mut keep = |kept: SavedReservations| {
            assert!(keeper.keep(kept) && keeper.is_busy());
            loop {
                match keeper.poll() {
                    Some(written) => return written,
                    None => std::thread::yield_now(),
                }
            }
        };
        keep(sample()).unwrap();
        assert_eq!(open().1, sample());
        // What cannot be written leaves what was there, and is written when it can.
        let in_the_way = dir.path().join(format!(".{}", SavedReservations::FILE));
        fs::create_dir(&in_the_way).unwrap();
        let other = SavedReservations { held: None, ..sample() };
        assert!(keep(other.clone()).is_err());
        assert_eq!(open().1, sample());
        fs::remove_dir(&in_the_way).unwrap();
        keep(other.clone()).unwrap();
        assert_eq!(open().1, other);
        keep(SavedReservations::default()).unwrap();
        assert_eq!(open().1, SavedReservations::default());
        assert!(!dir.path().join(SavedReservations::FILE).exists());
    }
}

//! A small file beside a volume's description that a unit replaces as a whole: persistent reservations, writer leases, the pinned image. It is
//! synced before the command that changed it is answered. A thread of its own writes it, so that a sync delays no other command.
//!
//! A file that cannot be read keeps the volume from being opened: it says which initiators must not write, and ignoring that could let two
//! of them write.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use rustix::io::Errno;

use crate::catalogue::modes;
use crate::error::{CatalogueError, DescriptionError};

/// Largest file that is read, in bytes: 256 registrations take less than a quarter of it.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Space that is reserved for each spare file, in bytes: some dozens of leases.
const SPARE_BYTES: u64 = 8 << 10;

/// The contents of such a file.
pub(crate) trait FileContents: Clone + Default + PartialEq + Send + 'static {
    /// The file's name, in the volume's directory.
    const FILE: &'static str;
    /// What it contains, for log messages.
    const WHAT: &'static str;
    /// What an administrator can do about a damaged file.
    const REMEDY: &'static str;
    /// Space is reserved for it, because it must be written even if the file system is full.
    const HAS_SPARE: bool = true;

    /// The file's text; `None`: the contents are empty, and there is no file.
    fn to_toml(&self) -> Option<String>;

    /// Parses the file's text.
    ///
    /// # Errors
    /// [`ContentsError`] for a damaged file, and for one of a newer version.
    fn from_toml(text: &str) -> Result<Self, ContentsError>;
}

/// Why a file cannot be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContentsError {
    /// It is not TOML, or has unknown or missing fields.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A newer build wrote it.
    #[error("its version is {found} and this build knows {known}")]
    Version { found: u32, known: u32 },
    /// A value that a field cannot have.
    #[error("'{value}' is no {expected}")]
    Value { value: String, expected: &'static str },
    /// A public key that does not parse.
    #[error("'{value}': {source}")]
    Key { value: String, source: strongroom_handshake::KeyTextError },
    /// A lease whose holder is identified twice.
    #[error("a holder has a key or a CHAP user, not both")]
    TwoIdentities,
}

impl ContentsError {
    pub(super) fn value(value: impl Into<String>, expected: &'static str) -> ContentsError {
        ContentsError::Value { value: value.into(), expected }
    }

    /// Refuses every version but `known`.
    pub(super) fn check_version(found: u32, known: u32) -> Result<(), ContentsError> {
        if found == known { Ok(()) } else { Err(ContentsError::Version { found, known }) }
    }
}

/// Where the contents are stored.
enum Backing<T> {
    /// Nowhere.
    Discarded,
    /// In a file in this directory.
    Directory(PathBuf),
    /// In memory, for simulations. A write takes effect when the file is polled; the sender then reports it.
    Memory(Arc<Mutex<T>>, Option<Sender<io::Result<()>>>),
}

/// One file of one volume.
pub(crate) struct PersistentFile<T> {
    backing: Backing<T>,
    /// Called by the writing thread when it has finished.
    wake: Arc<dyn Fn() + Send + Sync>,
    /// What is on disk, if known; writing the same again does nothing. Unknown after a failed write.
    on_disk: Option<T>,
    /// What the thread is writing.
    writing: Option<(T, Receiver<io::Result<()>>)>,
}

impl<T: FileContents> PersistentFile<T> {
    /// Reads the file in `dir`. `wake` is called when a write has ended.
    pub(super) fn open(
        dir: PathBuf,
        wake: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<(PersistentFile<T>, T), CatalogueError> {
        let contents: T = read(&dir.join(T::FILE))?;
        if T::HAS_SPARE {
            make_spares(&dir, T::FILE);
        }
        let file =
            PersistentFile { backing: Backing::Directory(dir), wake, on_disk: Some(contents.clone()), writing: None };
        Ok((file, contents))
    }

    /// For simulations: contents in memory that outlives the unit.
    pub(super) fn in_memory(memory: &Arc<Mutex<T>>) -> (PersistentFile<T>, T) {
        let contents = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let backing = Backing::Memory(Arc::clone(memory), None);
        (PersistentFile { backing, wake: Arc::new(|| {}), on_disk: Some(contents.clone()), writing: None }, contents)
    }

    /// A file that stores nothing.
    pub(super) fn discarded() -> (PersistentFile<T>, T) {
        let file = PersistentFile { backing: Backing::Discarded, wake: Arc::new(|| {}), on_disk: None, writing: None };
        (file, T::default())
    }

    /// Begins to write `contents`. Returns whether the caller must wait for [`PersistentFile::poll`]; otherwise the contents are on disk already.
    /// One write at a time.
    pub(super) fn write(&mut self, contents: T) -> bool {
        assert!(self.writing.is_none(), "one change is written at a time");
        if self.on_disk.as_ref() == Some(&contents) {
            return false;
        }
        let (done, outcome) = mpsc::channel();
        let dir = match &mut self.backing {
            Backing::Discarded => return false,
            Backing::Directory(dir) => dir.clone(),
            Backing::Memory(_, written) => {
                *written = Some(done);
                self.writing = Some((contents, outcome));
                return true;
            }
        };
        let (text, wake) = (contents.to_toml(), Arc::clone(&self.wake));
        let before = self.on_disk.take();
        self.writing = Some((contents, outcome));
        let body = move || {
            let written = replace::<T>(&dir, text.as_deref());
            // A refused change must not be there after a restart, if that can be prevented.
            if let (Err(_), Some(before)) = (&written, before)
                && let Err(error) = replace::<T>(&dir, before.to_toml().as_deref())
            {
                tracing::error!(dir = %dir.display(), %error, "a refused change of {} may come back after a restart: look at {}", T::WHAT, T::FILE);
            }
            let _ = done.send(written);
            wake();
        };
        // Without a thread the channel is closed, which `poll` reports as a failed write.
        if let Err(error) = std::thread::Builder::new().name(T::WHAT.to_owned()).spawn(body) {
            tracing::error!(%error, "no thread to write {}", T::WHAT);
        }
        true
    }

    /// Writes `contents`, and waits for the disk.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub(super) fn write_now(&mut self, contents: T) -> Result<(), CatalogueError> {
        if let Backing::Directory(dir) = &self.backing {
            let path = dir.join(T::FILE);
            replace::<T>(dir, contents.to_toml().as_deref()).map_err(CatalogueError::io("write", &path))?;
        }
        self.on_disk = Some(contents);
        Ok(())
    }

    /// Whether a write has not ended.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// The result of a write that has ended.
    pub(super) fn poll(&mut self) -> Option<io::Result<()>> {
        let (contents, outcome) = self.writing.as_ref()?;
        if let Backing::Memory(memory, written) = &mut self.backing
            && let Some(written) = written.take()
        {
            *memory.lock().unwrap_or_else(PoisonError::into_inner) = contents.clone();
            let _ = written.send(Ok(()));
        }
        let result = match outcome.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread that writes it is gone")),
        };
        let (contents, _) = self.writing.take().expect("looked at above");
        if result.is_ok() {
            self.on_disk = Some(contents);
        }
        Some(result)
    }
}

impl<T> Drop for PersistentFile<T> {
    fn drop(&mut self) {
        if let Backing::Memory(_, written) = &mut self.backing {
            *written = None;
        }
        if let Some((_, outcome)) = self.writing.take() {
            let _ = outcome.recv();
        }
    }
}

/// Replaces a file; without text removes it. On a full file system it uses the space that was reserved.
fn replace<T: FileContents>(dir: &Path, text: Option<&str>) -> io::Result<()> {
    let name = T::FILE;
    let replaced = match text {
        Some(text) => match write_new(dir, name, text) {
            Err(error) if T::HAS_SPARE && is_no_space(&error) => write_spare(dir, name, text),
            written => written,
        },
        None => remove::<T>(dir),
    };
    if T::HAS_SPARE {
        make_spares(dir, name);
    }
    replaced?;
    File::open(dir)?.sync_all()
}

/// Whether the file system, or a quota, has no room.
pub(super) fn is_no_space(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOSPC | Errno::DQUOT))
}

fn write_new(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let temporary = dir.join(format!(".{name}"));
    let written = modes::make_file(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    fs::rename(&temporary, dir.join(name))
}

/// Writes into space that is allocated already. None is given back, because another writer that waits for space might take it: the old file becomes the
/// spare one.
fn write_spare(dir: &Path, name: &str, text: &str) -> io::Result<()> {
    let spare = spares_of(dir, name).into_iter().find(|spare| spare.exists()).ok_or(Errno::NOSPC)?;
    let file = File::options().write(true).open(&spare)?;
    let mut bytes = text.as_bytes().to_vec();
    // To cut the file would free what is behind the text. TOML may end in empty lines.
    bytes.resize(bytes.len().max(file.metadata()?.len() as usize), b'\n');
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    let path = dir.join(name);
    match rustix::fs::renameat_with(CWD, &spare, CWD, &path, RenameFlags::EXCHANGE) {
        // There is no old file, or the file system cannot exchange two.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => fs::rename(&spare, &path),
        exchanged => Ok(exchanged?),
    }
}

fn remove<T: FileContents>(dir: &Path) -> io::Result<()> {
    let path = dir.join(T::FILE);
    let missing = spares_of(dir, T::FILE).into_iter().find(|spare| T::HAS_SPARE && !spare.exists());
    let removed = match missing {
        Some(spare) => fs::rename(&path, spare),
        None => fs::remove_file(&path),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Two: between the removal of the file and the next one it takes no space itself.
fn spares_of(dir: &Path, name: &str) -> [PathBuf; 2] {
    [dir.join(format!(".{name}.spare")), dir.join(format!(".{name}.spare2"))]
}

/// Reserves space for more files like this, where that was not done. A volume can fill its file system; to delete data from it, an initiator
/// must attach it, which first changes its writer leases.
fn make_spares(dir: &Path, name: &str) {
    for path in spares_of(dir, name) {
        if fs::metadata(&path).is_ok_and(|spare| spare.len() >= SPARE_BYTES) {
            continue;
        }
        let existed = path.exists();
        let file = if existed { File::options().write(true).open(&path) } else { modes::make_file(&path) };
        let made = file.and_then(|file| {
            let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, SPARE_BYTES);
            // A file system without fallocate may accept written zeros.
            allocated
                .or_else(|_| file.write_all_at(&[0; SPARE_BYTES as usize], 0).map_err(|_| Errno::NOSPC))
                .map_err(Into::into)
        });
        if let Err(error) = made {
            // A partial reservation is useless, but for a file that was in use.
            if !existed {
                let _ = fs::remove_file(&path);
            }
            tracing::debug!(path = %path.display(), %error, "no space is reserved");
        }
    }
}

fn read<T: FileContents>(path: &Path) -> Result<T, CatalogueError> {
    let broken = |problem: &str| DescriptionError::Contents { problem: problem.to_owned(), remedy: T::REMEDY }.at(path);
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
        Err(source) => return Err(CatalogueError::Io { what: "read", path: path.to_owned(), source }),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(broken("it is far too large")),
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).map_err(CatalogueError::io("read", path))?;
    T::from_toml(&text).map_err(|error| broken(&error.to_string()))
}

#[cfg(test)]
mod tests {
    //! Proves that written contents are read again, that a failed write leaves the old contents, and that a damaged file is refused.
    use strongroom_scsi::persistent::SavedReservations;

    use super::*;
    use crate::unit::reservations::format::tests::{GOLDEN, sample};

    fn open(dir: &Path) -> Result<(PersistentFile<SavedReservations>, SavedReservations), CatalogueError> {
        PersistentFile::open(dir.to_owned(), Arc::new(|| {}))
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
    fn on_a_full_file_system_no_space_is_taken_and_none_is_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, name) = (dir.path(), SavedReservations::FILE);
        let path = dir.join(name);
        let blocks = || {
            let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
            files.map(|file| std::os::unix::fs::MetadataExt::blocks(&file)).sum::<u64>()
        };
        make_spares(dir, name);
        let reserved = blocks();
        assert!(reserved * 512 >= 2 * SPARE_BYTES);
        let other = SavedReservations { held: None, ..sample() };
        // Changed twice, removed, and again.
        for contents in [Some(sample()), Some(other.clone()), None, Some(sample()), Some(other), None, Some(sample())] {
            match contents.as_ref().and_then(FileContents::to_toml) {
                Some(text) => write_spare(dir, name, &text).unwrap(),
                None => remove::<SavedReservations>(dir).unwrap(),
            }
            assert_eq!(read::<SavedReservations>(&path).unwrap(), contents.unwrap_or_default());
            assert_eq!(blocks(), reserved);
        }
        // A file that was short when it was written became the spare one; it is made long again.
        replace::<SavedReservations>(dir, sample().to_toml().as_deref()).unwrap();
        write_spare(dir, name, &sample().to_toml().unwrap()).unwrap();
        make_spares(dir, name);
        assert!(spares_of(dir, name).iter().all(|spare| fs::metadata(spare).unwrap().len() >= SPARE_BYTES));
    }

    #[test]
    fn keeps_and_forgets() {
        let dir = tempfile::tempdir().unwrap();
        let open = || open(dir.path()).unwrap();
        let (mut file, before) = open();
        assert_eq!(before, SavedReservations::default());
        assert!(!file.write(SavedReservations::default()), "nothing to write");
        let mut write = |contents: SavedReservations| {
            assert!(file.write(contents) && file.is_writing());
            loop {
                match file.poll() {
                    Some(written) => return written,
                    None => std::thread::yield_now(),
                }
            }
        };
        write(sample()).unwrap();
        assert_eq!(open().1, sample());
        // A failed write leaves the old contents; the next one succeeds when it can.
        let obstacle = dir.path().join(format!(".{}", SavedReservations::FILE));
        fs::create_dir(&obstacle).unwrap();
        let other = SavedReservations { held: None, ..sample() };
        assert!(write(other.clone()).is_err());
        assert_eq!(open().1, sample());
        fs::remove_dir(&obstacle).unwrap();
        write(other.clone()).unwrap();
        assert_eq!(open().1, other);
        write(SavedReservations::default()).unwrap();
        assert_eq!(open().1, SavedReservations::default());
        assert!(!dir.path().join(SavedReservations::FILE).exists());
    }
}

//! The catalogue: a directory with one directory per volume, each with `volume.toml`, `store` and `lock`.
//!
//! Every operation works while a target serves the same root: making a volume is one rename, so it is seen whole or not at all;
//! deleting needs the lock that an open volume holds. Deliberately absent: formatting (sealing the first hole), which needs keys
//! and is done by an initiator.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use strongroom_block::{BlockSize, Custody, Geometry, Mode, SealingDomain, Suite, VolumeId};
use strongroom_store::{CreateOptions, IoChoice, Medium, Store};

use crate::error::{CatalogueError, DescriptionError};
use crate::names::VolumeName;
use crate::operate::error::OperationError;
use crate::operate::operation::Operation;
use crate::schedule::Schedule;
use crate::volume::{Access, Sealed, Volume};

mod clones;
mod description;
mod index;
pub(crate) mod modes;
mod succession;
mod transfer;
mod unfinished;

pub(crate) use index::CatalogueIndex;
pub use succession::{SUCCESSOR_SUFFIX, Successions, SuccessorSpec};
pub use transfer::OpenVolume;

const DESCRIPTION: &str = "volume.toml";
const STORE: &str = "store";
const LOCK: &str = "lock";
/// Locked while a description is being changed; `lock` is held as long as a volume is open.
const DESCRIPTION_LOCK: &str = ".volume.toml.lock";
/// Prefix of directories being made or deleted; no volume's name starts with a dot.
const UNFINISHED: &str = ".unfinished-";

/// Block sizes of plain volumes, in bytes: what stock initiators know.
const PLAIN_BLOCK_SIZES: [u32; 2] = [512, 4096];

/// Largest `volume.toml` that is read, in bytes.
const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;

/// The volumes under one directory.
#[derive(Clone, Debug)]
pub struct Catalogue {
    root: PathBuf,
}

/// What to make.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its block size in bytes.
    pub block_size: u64,
    /// How it is sealed; `None` for a plain volume.
    pub sealed: Option<SealedSpec>,
    /// The share of its size that retained versions may take, in percent.
    pub retention_percent: u8,
    /// Space for cleaning, in percent of what it takes when all of it is written.
    pub spare_percent: u16,
    /// What its blocks lie on.
    pub medium: Medium,
    /// How its store is read and written.
    pub io: IoChoice,
    /// Who may use it.
    pub access: Access,
}

/// How a new volume is sealed.
#[derive(Clone, Debug)]
pub struct SealedSpec {
    /// Who holds the keys.
    pub custody: Custody,
    /// The cipher. One that is for benchmarks alone only on a medium that forgets.
    pub suite: Suite,
    /// What sealing does.
    pub mode: Mode,
    /// Custody `target`: the file with the wrapping key, which must not lie under the catalogue's directory.
    pub wrapping_key: Option<PathBuf>,
    /// Open at target: the file with the volume's key, which must not lie under the catalogue's directory either.
    pub opened_with: Option<PathBuf>,
}

impl SealedSpec {
    /// Encrypted with the usual suite; custody `target` still needs its wrapping key.
    pub fn new(custody: Custody) -> SealedSpec {
        SealedSpec { custody, suite: Suite::default(), mode: Mode::Encrypt, wrapping_key: None, opened_with: None }
    }
}

impl VolumeSpec {
    /// A plain volume of 4096-byte blocks that nobody may use yet.
    pub fn plain(name: impl Into<String>, size_bytes: u64) -> VolumeSpec {
        VolumeSpec {
            name: name.into(),
            size_bytes,
            block_size: BlockSize::DEFAULT.bytes().into(),
            sealed: None,
            retention_percent: CreateOptions::RETENTION_PERCENT_DEFAULT,
            spare_percent: CreateOptions::SPARE_PERCENT_DEFAULT,
            medium: Medium::Directory,
            io: IoChoice::Auto,
            access: Access::default(),
        }
    }

    /// The same, sealed under a key that only initiators hold.
    pub fn sealed(name: impl Into<String>, size_bytes: u64) -> VolumeSpec {
        let sealed = SealedSpec::new(Custody::KeyFile);
        VolumeSpec { sealed: Some(sealed), ..VolumeSpec::plain(name, size_bytes) }
    }
}

/// Volumes by name, each with its status or what is wrong with it.
pub type Listing = Vec<(VolumeName, Result<VolumeStatus, CatalogueError>)>;

/// A volume as `list` and `show` tell of it.
#[derive(Clone, Debug)]
pub struct VolumeStatus {
    /// What it is.
    pub volume: Volume,
    /// A process has it open.
    pub in_use: bool,
    /// What its files take on the host, in bytes.
    pub host_bytes: u64,
}

/// Keeps a volume from being deleted or opened by another process; let go of when dropped.
#[derive(Debug)]
pub(crate) struct VolumeLock {
    _file: File,
}

impl Catalogue {
    /// The catalogue under `root`, which must be a directory.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub fn open(root: impl Into<PathBuf>) -> Result<Catalogue, CatalogueError> {
        let root = root.into();
        let kind = fs::metadata(&root).map_err(CatalogueError::io("open the volumes' directory", &root))?;
        if !kind.is_dir() {
            let source = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(CatalogueError::Io { what: "open the volumes' directory", path: root, source });
        }
        Ok(Catalogue { root })
    }

    /// The same, making the directory if it is not there.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub fn open_or_create(root: impl Into<PathBuf>) -> Result<Catalogue, CatalogueError> {
        let root = root.into();
        modes::make_dir(&root).map_err(CatalogueError::io("make the volumes' directory", &root))?;
        Catalogue::open(root)
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes a volume: its store first, under a name that no one opens, then one rename.
    ///
    /// # Errors
    /// [`CatalogueError`]; nothing is left behind.
    pub fn create(&self, spec: &VolumeSpec) -> Result<Volume, CatalogueError> {
        let volume = describe(spec, &self.root)?;
        self.place(&volume, |dir| self.fill(dir, &volume))?;
        Ok(volume)
    }

    /// Makes a volume's directory under a name that no one opens, then renames it.
    fn place(
        &self,
        volume: &Volume,
        fill: impl FnOnce(&Path) -> Result<(), CatalogueError>,
    ) -> Result<(), CatalogueError> {
        let final_dir = self.dir(&volume.name);
        if final_dir.exists() || self.successions().have_replaced(&volume.name)? {
            return Err(CatalogueError::Exists { name: volume.name.to_string() });
        }
        let work_dir = self.unfinished(&volume.name);
        modes::make_new_dir(&work_dir).map_err(CatalogueError::io("make", &work_dir))?;
        let _held = unfinished::hold(&work_dir)?;
        let made = fill(&work_dir).and_then(|()| {
            // A directory is replaced by rename only if it is empty, and no volume's is.
            fs::rename(&work_dir, &final_dir).map_err(|source| match source.kind() {
                io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                    CatalogueError::Exists { name: volume.name.to_string() }
                }
                _ => CatalogueError::Io { what: "make", path: final_dir.clone(), source },
            })
        });
        if let Err(error) = made {
            let _ = Store::remove_outside(&work_dir.join(STORE));
            let _ = fs::remove_dir_all(&work_dir);
            return Err(error);
        }
        sync_dir(&self.root)
    }

    fn fill(&self, dir: &Path, volume: &Volume) -> Result<(), CatalogueError> {
        let store = dir.join(STORE);
        Store::create(&store, &volume.create_options()).map_err(|source| store_error(&volume.name, source))?;
        let lock = dir.join(LOCK);
        modes::make_file(&lock).map_err(CatalogueError::io("make", &lock))?;
        write_synced(&dir.join(DESCRIPTION), volume.to_toml().as_bytes())?;
        sync_dir(dir)
    }

    /// Every volume, by name; one whose description cannot be read is there as its error.
    ///
    /// # Errors
    /// [`CatalogueError::Io`] if the directory itself cannot be read.
    pub fn list(&self) -> Result<Listing, CatalogueError> {
        let names = self.names()?;
        Ok(names.into_iter().map(|name| (name.clone(), self.status(&name))).collect())
    }

    /// The names of all volumes, in order.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub fn names(&self) -> Result<Vec<VolumeName>, CatalogueError> {
        let failed = |source| CatalogueError::Io { what: "list", path: self.root.clone(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // What is no name of ours is not a volume: dot files, lost+found.
            let name = entry.file_name().to_str().and_then(|name| VolumeName::new(name).ok());
            names.extend(name.filter(|_| entry.path().join(DESCRIPTION).is_file()));
        }
        names.sort();
        Ok(names)
    }

    /// One volume.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub fn show(&self, name: &str) -> Result<VolumeStatus, CatalogueError> {
        self.status(&VolumeName::new(name)?)
    }

    fn status(&self, name: &VolumeName) -> Result<VolumeStatus, CatalogueError> {
        let volume = self.load(name)?;
        let in_use = matches!(self.lock(name), Err(CatalogueError::InUse { .. }));
        Ok(VolumeStatus { volume, in_use, host_bytes: host_bytes(&self.dir(name)) })
    }

    /// Reads a volume's description.
    ///
    /// # Errors
    /// [`CatalogueError::Missing`], [`CatalogueError::Description`], [`CatalogueError::Io`].
    pub fn load(&self, name: &VolumeName) -> Result<Volume, CatalogueError> {
        if self.successions().have_replaced(&name.volume())? {
            return Err(CatalogueError::Succeeded { name: name.to_string() });
        }
        let volume = self.read_description(name)?;
        if volume.name != name.volume() {
            let problem = DescriptionError::OtherVolume(volume.name.to_string());
            return Err(problem.at(self.dir(name).join(DESCRIPTION)));
        }
        match name.snapshot() {
            Some(snapshot) if volume.snapshots.iter().any(|known| known == snapshot) => Ok(volume.as_snapshot(name)),
            Some(_) => Err(self.missing(name)),
            None => Ok(volume),
        }
    }

    /// What a volume's directory has for a description, whomever it describes.
    fn read_description(&self, name: &VolumeName) -> Result<Volume, CatalogueError> {
        let path = self.dir(name).join(DESCRIPTION);
        let len = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.missing(name)),
            Err(source) => return Err(CatalogueError::Io { what: "read", path, source }),
        };
        if len > DESCRIPTION_BYTES_MAX {
            return Err(DescriptionError::TooLarge.at(path));
        }
        let text = fs::read_to_string(&path).map_err(CatalogueError::io("read", &path))?;
        Volume::from_toml(&text).map_err(|problem| problem.at(path))
    }

    /// Changes who may use a volume; sessions that are there go on.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub fn set_access(&self, name: &str, access: Access) -> Result<Volume, CatalogueError> {
        let name = VolumeName::new(name)?;
        let is_sealed = self.load(&name)?.sealed.is_some();
        access.protection.check(is_sealed).map_err(CatalogueError::Protection)?;
        self.change(&name, |volume| volume.access = access)
    }

    /// Sets when snapshots of a volume are taken by themselves; `None`: no longer.
    ///
    /// # Errors
    /// [`CatalogueError`].
    pub fn set_schedule(&self, name: &str, schedule: Option<Schedule>) -> Result<Volume, CatalogueError> {
        schedule.iter().try_for_each(Schedule::check).map_err(CatalogueError::Schedule)?;
        self.change(&VolumeName::new(name)?, |volume| volume.schedule = schedule)
    }

    /// Deletes a volume and everything in it.
    ///
    /// # Errors
    /// [`CatalogueError::InUse`] while a process has it open; [`CatalogueError::Missing`]; [`CatalogueError::Io`].
    pub fn delete(&self, name: &str) -> Result<(), CatalogueError> {
        let name = VolumeName::new(name)?;
        let dir = self.dir(&name);
        if !dir.is_dir() {
            return Err(self.missing(&name));
        }
        if let Some(other) = self.read_description(&name).ok().and_then(|volume| volume.successor.or(volume.succeeds)) {
            return Err(CatalogueError::Moving { name: name.to_string(), other: other.to_string() });
        }
        if let Some(clone) = self.clones_of(&name)?.first() {
            return Err(CatalogueError::HasClones { name: name.to_string(), clone: clone.name.to_string() });
        }
        if self.load(&name).is_ok_and(|volume| volume.clone_of.is_some()) {
            return self.operate(name.as_str(), &Operation::DeleteClone).map(drop).map_err(|error| match error {
                OperationError::Catalogue(error) => error,
                error => CatalogueError::Operation(error.to_string()),
            });
        }
        // A volume whose description is broken, or whose lock is gone, can still be deleted.
        let _lock = self.lock(&name)?;
        // First: if this fails the volume is still there to be deleted.
        Store::remove_outside(&dir.join(STORE)).map_err(|source| store_error(&name, source))?;
        let (doomed, _held) = (self.unfinished(&name), unfinished::hold(&dir)?);
        fs::rename(&dir, &doomed).map_err(CatalogueError::io("delete", &dir))?;
        sync_dir(&self.root)?;
        fs::remove_dir_all(&doomed).map_err(CatalogueError::io("delete", &doomed))
    }

    /// Takes the lock of a volume.
    pub(crate) fn lock(&self, name: &VolumeName) -> Result<VolumeLock, CatalogueError> {
        let path = self.dir(name).join(LOCK);
        let file = match File::options().create(true).append(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(self.missing(name)),
            Err(source) => return Err(CatalogueError::Io { what: "lock", path, source }),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(CatalogueError::InUse { name: name.to_string() }),
            Err(TryLockError::Error(source)) => return Err(CatalogueError::Io { what: "lock", path, source }),
        }
        // The volume may have been deleted between opening the file and locking it, or have given its place to another one.
        let identity = |metadata: io::Result<fs::Metadata>| metadata.map(|found| (found.dev(), found.ino())).ok();
        match identity(fs::metadata(&path)) {
            None => Err(self.missing(name)),
            found if found == identity(file.metadata()) => Ok(VolumeLock { _file: file }),
            Some(_) => Err(CatalogueError::InUse { name: name.to_string() }),
        }
    }

    /// The directory of a volume's store.
    pub(crate) fn store_dir(&self, name: &VolumeName) -> PathBuf {
        self.dir(name).join(STORE)
    }

    /// Whether another volume than this one and its clones has the same wrapping key: destroying it would erase that too. By the file, for
    /// one file has many paths; what cannot be told counts as shared, and so does a file with a second name.
    ///
    /// # Errors
    /// [`CatalogueError::Io`].
    pub fn wrapping_key_is_shared(&self, volume: &Volume) -> Result<bool, CatalogueError> {
        let key_of = |volume: &Volume| volume.sealed.as_ref().and_then(|sealed| sealed.wrapping_key.clone());
        let Some(key) = key_of(volume) else { return Ok(false) };
        let Some(file) = fs::metadata(&key).ok().filter(|metadata| metadata.nlink() == 1) else { return Ok(true) };
        let is_the_same = |other: &Path| {
            fs::metadata(other).map_or(true, |other| (other.dev(), other.ino()) == (file.dev(), file.ino()))
        };
        // A volume whose description cannot be read may be the one: better not erased than two erased.
        let names = self.names()?.into_iter().filter(|name| *name != volume.name);
        let is_other = |other: Result<Volume, CatalogueError>| match other {
            Ok(other) => {
                other.store_name() != volume.store_name() && key_of(&other).is_some_and(|key| is_the_same(&key))
            }
            Err(_) => true,
        };
        Ok(names.map(|name| self.load(&name)).any(is_other))
    }

    /// The directory of a volume.
    pub(crate) fn volume_dir(&self, name: &VolumeName) -> PathBuf {
        self.dir(name)
    }

    fn dir(&self, name: &VolumeName) -> PathBuf {
        self.root.join(name.volume().as_str())
    }

    fn missing(&self, name: &VolumeName) -> CatalogueError {
        CatalogueError::Missing { name: name.to_string(), root: self.root.clone() }
    }
}

/// A new volume from what was asked for.
fn describe(spec: &VolumeSpec, root: &Path) -> Result<Volume, CatalogueError> {
    let name = VolumeName::new(&spec.name)?;
    let geometry = Geometry::from_bytes(spec.size_bytes, BlockSize::new(spec.block_size)?)?;
    if spec.sealed.is_none() && !PLAIN_BLOCK_SIZES.contains(&geometry.block_size.bytes()) {
        return Err(CatalogueError::Kind("a plain volume has blocks of 512 or 4096 bytes; choose one of these"));
    }
    let mut random = [0; 16];
    fill_random(&mut random);
    let id = VolumeId::from_random(random);
    fill_random(&mut random);
    let domain = SealingDomain::from_random(random);
    let sealed = spec.sealed.as_ref().map(|sealed| seal_spec(sealed, domain, root)).transpose()?;
    if sealed.as_ref().is_some_and(|sealed| sealed.suite.is_for_benchmarks_only()) && spec.medium.is_durable() {
        return Err(CatalogueError::Kind(
            "aes192-cbc+hmac-md5 protects nothing today: it is for benchmarks, on a volume with `--medium memory`; choose \
             another suite",
        ));
    }
    spec.access.protection.check(sealed.is_some()).map_err(CatalogueError::Protection)?;
    if sealed.is_some() && !spec.access.initiators.is_empty() {
        return Err(CatalogueError::Kind(
            "a sealed volume refuses plain sessions; name peers that may use it, not initiators",
        ));
    }
    if spec.medium.path().is_some_and(|path| path.starts_with(root)) {
        return Err(CatalogueError::Kind(
            "the path of a volume's medium must not lie among the volumes; choose another place, or `directory`",
        ));
    }
    let (retention_percent, medium, access) = (spec.retention_percent, spec.medium.clone(), spec.access.clone());
    Ok(Volume {
        name,
        id,
        geometry,
        sealed,
        retention_percent,
        spare_percent: spec.spare_percent,
        medium,
        io: spec.io,
        clone_of: None,
        snapshots: Vec::new(),
        schedule: None,
        successor: None,
        succeeds: None,
        access,
    })
}

fn seal_spec(spec: &SealedSpec, domain: SealingDomain, root: &Path) -> Result<Sealed, CatalogueError> {
    match &spec.opened_with {
        Some(path) if path.starts_with(root) => {
            return Err(CatalogueError::Kind(
                "the volume's key must not lie beside the volumes: choose another place for its file",
            ));
        }
        Some(_) if spec.custody != Custody::KeyFile || spec.mode != Mode::Encrypt => {
            return Err(CatalogueError::Kind(
                "a target opens what arrives only of encrypted volumes of custody 'keyfile'; leave the custody or the mode out",
            ));
        }
        _ => {}
    }
    match (&spec.wrapping_key, spec.custody) {
        (None, Custody::Target) => Err(CatalogueError::Kind(
            "custody 'target' needs a wrapping key outside the store; make one with `strongroom key new` and name its file",
        )),
        (Some(path), Custody::Target) if path.starts_with(root) => Err(CatalogueError::Kind(
            "the wrapping key must not lie beside the volumes: a thief of their disk would have it; choose another place",
        )),
        (Some(_), Custody::KeyFile | Custody::KeyServer) => {
            Err(CatalogueError::Kind("a wrapping key belongs to custody 'target' alone; leave it out"))
        }
        (wrapping_key, custody) => Ok(Sealed {
            custody,
            domain,
            suite: spec.suite,
            mode: spec.mode,
            epoch: 1,
            wrapping_key: wrapping_key.clone(),
            opened_with: spec.opened_with.clone(),
        }),
    }
}

pub(crate) fn store_error(name: &VolumeName, source: strongroom_store::StoreError) -> CatalogueError {
    match source {
        strongroom_store::StoreError::InUse(_) => CatalogueError::InUse { name: name.to_string() },
        source => CatalogueError::Store { name: name.to_string(), source },
    }
}

/// Sixteen random bytes.
pub(crate) fn random_id() -> [u8; 16] {
    let mut random = [0; 16];
    fill_random(&mut random);
    random
}

fn random_u64() -> u64 {
    let mut random = [0; 8];
    fill_random(&mut random);
    u64::from_be_bytes(random)
}

fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("a Linux that runs this has a random number generator");
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), CatalogueError> {
    let written = modes::make_file(path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(CatalogueError::io("write", path))
}

fn sync_dir(path: &Path) -> Result<(), CatalogueError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(CatalogueError::io("sync", path))
}

/// What the files under a directory take, in bytes; what cannot be read counts nothing.
fn host_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match fs::metadata(entry.path()) {
            Ok(metadata) if metadata.is_dir() => host_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests;

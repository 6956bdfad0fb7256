//! The catalogue in memory: every volume's description, read again only when its file has changed. For questions about all volumes,
//! which must not read all their files.
//!
//! Any process may change the files, so that a look at the directory comes first ([`CatalogueIndex::refresh`]: one `stat` or two for each
//! volume). That is not for a worker's thread; what a worker asks ([`CatalogueIndex::may_have_plain`]) costs one `stat`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use super::succession::successor_of;
use super::{Catalogue, DESCRIPTION};
use crate::names::VolumeName;
use crate::volume::Volume;

/// A file that was changed so short a time ago may change again without showing another time.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The catalogue in memory.
#[derive(Debug)]
pub(crate) struct CatalogueIndex {
    catalogue: Catalogue,
    /// Locked during a refresh.
    refresh: Mutex<Refresh>,
    current: RwLock<Arc<Snapshot>>,
}

#[derive(Debug, Default)]
struct Refresh {
    entries: BTreeMap<VolumeName, Entry>,
    began: Option<Instant>,
    /// Descriptions that were read.
    descriptions_read: u64,
}

#[derive(Debug)]
struct Entry {
    stamps: [Option<FileStamp>; 2],
    /// `None`: it cannot be read, or is no volume (any more).
    volume: Option<Arc<Volume>>,
}

/// All volumes at one moment.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// In the order of their names.
    pub(crate) volumes: Vec<Arc<Volume>>,
    /// Of the directory with the volumes.
    root: Option<FileStamp>,
}

/// What changes when a file or a directory is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    inode: u64,
    len: u64,
    changed: (i64, i64),
    modified: (i64, i64),
    /// The next change will show as another time.
    is_settled: bool,
}

impl FileStamp {
    /// `None`: there is no such file.
    fn of(path: &Path, now: SystemTime) -> Option<FileStamp> {
        let found = fs::metadata(path).ok()?;
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(found.ctime()).ok()?);
        // A clock that was set back makes nothing settled for that time, which costs reads and nothing else.
        let is_settled = now.duration_since(changed).is_ok_and(|age| age >= SETTLED_AFTER);
        Some(FileStamp {
            is_settled,
            inode: found.ino(),
            len: found.len(),
            changed: (found.ctime(), found.ctime_nsec()),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

impl CatalogueIndex {
    /// Reads every description once. What cannot be read is left out.
    pub(crate) fn new(catalogue: Catalogue) -> CatalogueIndex {
        let index = CatalogueIndex { catalogue, refresh: Mutex::default(), current: RwLock::default() };
        index.refresh(Instant::now());
        index
    }

    /// What there is at `asked` or later: looks again, unless another one who asked has done so since.
    pub(crate) fn refresh(&self, asked: Instant) -> Arc<Snapshot> {
        let mut refresh = self.refresh.lock().unwrap_or_else(PoisonError::into_inner);
        if refresh.began.is_some_and(|began| began >= asked) {
            return self.current();
        }
        refresh.began = Some(Instant::now());
        let now = SystemTime::now();
        // Before the names are read: what is made in between shows as a change.
        let root = FileStamp::of(self.catalogue.root(), now);
        let names = match self.catalogue.names() {
            Ok(names) => names,
            Err(error) => {
                tracing::error!(%error, "the volumes cannot be listed");
                return self.current();
            }
        };
        let mut before = std::mem::take(&mut refresh.entries);
        for name in names {
            let entry = match before.remove(&name).filter(|entry| entry.is_current(&self.catalogue, &name, now)) {
                Some(entry) => entry,
                None => {
                    refresh.descriptions_read += 1;
                    // Before it is read, likewise.
                    let stamps = stamps_of(&self.catalogue, &name, now);
                    Entry { stamps, volume: self.catalogue.load(&name).ok().map(Arc::new) }
                }
            };
            refresh.entries.insert(name, entry);
        }
        let volumes = refresh.entries.values().filter_map(|entry| entry.volume.clone()).collect();
        let snapshot = Arc::new(Snapshot { volumes, root });
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&snapshot);
        snapshot
    }

    /// Whether there is a plain volume; also true if one may have been made since the last look. Costs one `stat`.
    pub(crate) fn may_have_plain(&self) -> bool {
        let current = self.current();
        // A volume does not change its kind in place: it is made, deleted or renamed, and that changes the directory.
        let is_current = current.root.is_some_and(|root| root.is_settled)
            && current.root == FileStamp::of(self.catalogue.root(), SystemTime::now());
        !is_current || current.volumes.iter().any(|volume| volume.sealed.is_none())
    }

    /// Whether [`CatalogueIndex::may_have_plain`] could tell for sure after another look.
    pub(crate) fn is_outdated(&self) -> bool {
        let current = self.current();
        let now = FileStamp::of(self.catalogue.root(), SystemTime::now());
        now.is_some_and(|now| now.is_settled) && current.root != now
    }

    fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    #[cfg(test)]
    fn descriptions_read(&self) -> u64 {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner).descriptions_read
    }
}

impl Entry {
    fn is_current(&self, catalogue: &Catalogue, name: &VolumeName, now: SystemTime) -> bool {
        let are_settled = self.stamps.iter().flatten().all(|stamp| stamp.is_settled);
        are_settled && self.stamps == stamps_of(catalogue, name, now)
    }
}

/// Of a volume's description, and of the one that may take its place: with that one it is no volume any more.
fn stamps_of(catalogue: &Catalogue, name: &VolumeName, now: SystemTime) -> [Option<FileStamp>; 2] {
    let stamp = |name: &VolumeName| FileStamp::of(&catalogue.volume_dir(name).join(DESCRIPTION), now);
    [stamp(name), successor_of(name).ok().and_then(|next| stamp(&next))]
}

#[cfg(test)]
mod tests {
    //! Proves that nothing is read twice that has not changed, and that every change is seen. Counts reads.
    use std::fs::FileTimes;

    use super::*;
    use crate::catalogue::VolumeSpec;
    use crate::volume::Access;

    /// Waits until every file counts as settled: the time of its last change cannot be set.
    fn settle(index: &CatalogueIndex) {
        let until = Instant::now() + Duration::from_secs(60);
        let names = index.catalogue.names().unwrap();
        let paths = names.iter().map(|name| index.catalogue.volume_dir(name).join(DESCRIPTION));
        for path in paths.chain([index.catalogue.root().to_owned()]) {
            while !FileStamp::of(&path, SystemTime::now()).unwrap().is_settled {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    #[test]
    fn only_what_changed_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        for number in 0..20 {
            catalogue.create(&VolumeSpec::sealed(format!("v{number}"), 1 << 20)).unwrap();
        }
        let index = CatalogueIndex::new(catalogue.clone());
        assert!(index.may_have_plain(), "it cannot be told yet");
        settle(&index);
        assert_eq!(index.refresh(Instant::now()).volumes.len(), 20);
        let read = index.descriptions_read();
        assert!(!index.may_have_plain() && !index.is_outdated());
        for _ in 0..100 {
            assert_eq!(index.refresh(Instant::now()).volumes.len(), 20);
        }
        assert_eq!(index.descriptions_read(), read, "nothing has changed");
        // One description changes.
        catalogue.set_access("v7", Access { peers: vec!["bob".into()], ..Access::default() }).unwrap();
        let volumes = &index.refresh(Instant::now()).volumes;
        let seen = volumes.iter().find(|volume| volume.name.as_str() == "v7").unwrap();
        assert_eq!(seen.access.peers, ["bob"]);
        assert_eq!(index.descriptions_read(), read + 1);
        // One goes, and one comes, which is plain.
        catalogue.delete("v3").unwrap();
        catalogue.create(&VolumeSpec::plain("disk", 1 << 20)).unwrap();
        assert!(index.may_have_plain(), "at once, without a look");
        let names: Vec<String> =
            index.refresh(Instant::now()).volumes.iter().map(|volume| volume.name.to_string()).collect();
        assert!(names.len() == 20 && names.contains(&"disk".to_owned()) && !names.contains(&"v3".to_owned()));
        // Who asked before a look that has begun since need not look again.
        let asked = Instant::now();
        let first = index.refresh(asked);
        assert!(Arc::ptr_eq(&first, &index.refresh(asked)));
    }

    #[test]
    fn a_change_that_keeps_length_and_modification_time_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        catalogue.create(&VolumeSpec::plain("disk", 1 << 20)).unwrap();
        let path = dir.path().join("disk").join(DESCRIPTION);
        let index = CatalogueIndex::new(catalogue);
        settle(&index);
        index.refresh(Instant::now());
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let text = fs::read_to_string(&path).unwrap().replace("retention_percent = 10", "retention_percent = 20");
        fs::write(&path, text).unwrap();
        fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_times(FileTimes::new().set_modified(modified))
            .unwrap();
        assert_eq!(index.refresh(Instant::now()).volumes[0].retention_percent, 20);
    }
}

//! A volume's contents are resealed into another volume, its successor, which then replaces it: name, identity and access.
//!
//! ```text
//! begun      NAME           description: successor = "NAME.resealed"; nobody writes to it
//!            NAME.resealed  description: succeeds = "NAME"; filled by an initiator
//! committed  NAME.resealed  its description, replaced whole, is NAME's from here on: this is the moment
//! settled    NAME           the directory of the successor, renamed; the other one is deleted
//! ```
//!
//! Before the commit everything is in NAME, after it everything is in the successor; what a crash leaves after it is finished when a target
//! starts. Absent: the contents, which only an initiator can open and seal.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use strongroom_block::VolumeId;
use strongroom_store::{Medium, Store};

use super::unfinished::hold;
use super::{
    Catalogue, DESCRIPTION, STORE, SealedSpec, UNFINISHED, VolumeSpec, describe, host_bytes, store_error, sync_dir,
};
use crate::error::CatalogueError;
use crate::names::VolumeName;
use crate::unit::LEASES_FILE;
use crate::volume::{Access, Volume};

/// What a successor's name ends with.
pub const SUCCESSOR_SUFFIX: &str = ".resealed";
/// What the name of a directory ends with whose successor has its place.
const REPLACED: &str = "-replaced";

/// How long a start waits for a process that has a volume open, and how often it tries.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// What a volume is to become.
#[derive(Clone, Debug)]
pub struct SuccessorSpec {
    /// How it is to be sealed; `None`: plain.
    pub sealed: Option<SealedSpec>,
    /// What its blocks are to lie on.
    pub medium: Medium,
    /// The peers that may fill it, by name.
    pub peers: Vec<String>,
}

impl Catalogue {
    /// Volumes that are replaced by the successors that their contents are moved to.
    pub fn successions(&self) -> Successions<'_> {
        Successions(self)
    }
}

/// The successions of a catalogue's volumes.
#[derive(Clone, Copy, Debug)]
pub struct Successions<'a>(&'a Catalogue);

impl Successions<'_> {
    /// Begins: nobody who logs in from here on writes to `name`, and its successor is made, empty.
    ///
    /// # Errors
    /// [`CatalogueError::InUse`] while a target has the volume open, for what sessions and jobs write there would stay behind; what cannot
    /// be moved (snapshots, clones, no room, a volume in memory). Nothing is changed then.
    pub fn begin(&self, name: &str, spec: &SuccessorSpec) -> Result<Volume, CatalogueError> {
        let name = VolumeName::new(name)?;
        let next = successor_of(&name)?;
        // A process that opens it later reads a description that says so.
        let _not_open = self.0.lock(&name)?;
        let volume = self.0.load(&name)?;
        self.check_movable(&volume, spec)?;
        let (plain, is_sealed) = (VolumeSpec::plain(next.as_str(), volume.geometry.bytes()), spec.sealed.is_some());
        let peers = spec.peers.clone();
        if peers.is_empty() || peers.iter().any(|peer| peer == "*") {
            return Err(CatalogueError::Kind(
                "say which peer moves the contents, by its name: it alone may use the successor until that has its place",
            ));
        }
        let made = VolumeSpec {
            block_size: volume.geometry.block_size.bytes().into(),
            sealed: spec.sealed.clone(),
            retention_percent: volume.retention_percent,
            spare_percent: volume.spare_percent,
            medium: spec.medium.clone(),
            io: volume.io,
            access: Access { peers, protection: volume.access.protection.clone(), ..Access::default() },
            ..plain
        };
        let mut made = describe(&made, &self.0.root)?;
        volume.access.protection.check(is_sealed).map_err(CatalogueError::Protection)?;
        // The same volume to initiators, before and after.
        (made.id, made.succeeds) = (volume.id, Some(name.clone()));
        if self.0.dir(&next).exists() {
            return Err(CatalogueError::Exists { name: next.to_string() });
        }
        // First: what is written from here on would not be in the successor.
        self.0.change(&name, |volume| volume.successor = Some(next.clone()))?;
        if let Err(error) = self.0.place(&made, |dir| self.0.fill(dir, &made)) {
            self.0.change(&name, |volume| volume.successor = None)?;
            return Err(error);
        }
        Ok(made)
    }

    /// Gives it up: the successor is deleted, and the volume is written to again.
    ///
    /// # Errors
    /// [`CatalogueError::InUse`] while somebody has the successor open; [`CatalogueError::Operation`] if nothing was begun.
    pub fn abandon(&self, name: &str) -> Result<(), CatalogueError> {
        let name = VolumeName::new(name)?;
        let next = successor_of(&name)?;
        if self.0.load(&name)?.successor.as_ref() != Some(&next) {
            return Err(CatalogueError::Operation(format!("the contents of '{name}' are not being resealed")));
        }
        if self.0.dir(&next).is_dir() {
            let _lock = self.0.lock(&next)?;
            // From here on it cannot be committed; unless it was.
            self.0.try_change(&next, |volume| {
                volume.succeeds = None;
                Ok(())
            })?;
            Store::remove_outside(&self.0.dir(&next).join(STORE)).map_err(|source| store_error(&next, source))?;
            let (doomed, _held) = (self.0.unfinished(&next), hold(&self.0.dir(&next))?);
            fs::rename(self.0.dir(&next), &doomed).map_err(CatalogueError::io("delete", &doomed))?;
            sync_dir(&self.0.root)?;
            fs::remove_dir_all(&doomed).map_err(CatalogueError::io("delete", &doomed))?;
        }
        self.0.change(&name, |volume| volume.successor = None).map(drop)
    }

    /// The commit point: from here on the successor is the volume, also after a crash. Its name then.
    ///
    /// # Errors
    /// [`CatalogueError::Operation`] if it is no successor, or the volume is not as it was when this began; then nothing has changed.
    pub(crate) fn commit(&self, successor: &VolumeName) -> Result<VolumeName, CatalogueError> {
        let refused = |problem: &str| CatalogueError::Operation(format!("'{successor}': {problem}"));
        let succeeds = self.0.load(successor)?.succeeds;
        let name = succeeds.ok_or_else(|| refused("it was not made to take another volume's place"))?;
        // Nobody changes who may use it meanwhile.
        let _turn = self.0.description_turn(&name)?;
        let before = self.0.load(&name)?;
        self.check_views(&before)?;
        self.0.try_change(successor, |volume| {
            if before.successor.as_ref() != Some(successor) || !is_same(&before, volume.id, volume) {
                return Err(refused(
                    "the volume whose place it is to take is not as it was when this began; start again from the beginning",
                ));
            }
            let is_sealed = volume.sealed.is_some();
            before.access.protection.check(is_sealed).map_err(CatalogueError::Protection)?;
            let initiators = before.access.initiators.iter().filter(|_| !is_sealed).cloned().collect();
            let previous_versions = before.access.previous_versions && is_sealed;
            let access = Access { initiators, previous_versions, ..before.access.clone() };
            (volume.name, volume.succeeds, volume.access) = (name.clone(), None, access);
            volume.schedule = before.schedule;
            match Volume::from_toml(&volume.to_toml()) {
                Ok(_) => Ok(()),
                Err(problem) => Err(refused(&problem.to_string())),
            }
        })?;
        Ok(name)
    }

    /// Finishes what was committed: the old volume goes, the successor is found under its name. Nothing to do otherwise.
    ///
    /// # Errors
    /// [`CatalogueError::InUse`] while somebody has either open; [`CatalogueError::Io`].
    pub(crate) fn settle(&self, name: &VolumeName) -> Result<(), CatalogueError> {
        if !self.have_replaced(name)? {
            return Ok(());
        }
        let next = successor_of(name)?;
        let (old_dir, next_dir, doomed) = (self.0.dir(name), self.0.dir(&next), self.replaced(name));
        let _next = self.0.lock(&next)?;
        if old_dir.is_dir() {
            let _old = self.0.lock(name)?;
            Store::remove_outside(&old_dir.join(STORE)).map_err(|source| store_error(name, source))?;
            remove_if_there(&doomed)?;
            fs::rename(&old_dir, &doomed).map_err(CatalogueError::io("delete", &old_dir))?;
            sync_dir(&self.0.root)?;
        }
        // Who filled it had it to itself; that keeps nobody out of the volume.
        match fs::remove_file(next_dir.join(LEASES_FILE)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(CatalogueError::Io { what: "delete", path: next_dir.join(LEASES_FILE), source });
            }
            _ => {}
        }
        fs::rename(&next_dir, &old_dir).map_err(CatalogueError::io("rename", &next_dir))?;
        sync_dir(&self.0.root)?;
        remove_if_there(&doomed)
    }

    /// The same for every volume, when a target starts: what a crash left.
    pub(crate) fn settle_all(&self) -> Result<(), CatalogueError> {
        for next in self.0.names()? {
            let Some(name) = next.as_str().strip_suffix(SUCCESSOR_SUFFIX) else { continue };
            let Ok(name) = VolumeName::new(name) else { continue };
            let until = Instant::now() + LOCK_PATIENCE;
            let settled = loop {
                match self.settle(&name) {
                    // A process that lists volumes has them open for a moment.
                    Err(CatalogueError::InUse { .. }) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
                    outcome => break outcome,
                }
            };
            if let Err(error) = settled {
                tracing::error!(volume = %name, %error, "what it was resealed as has not its place yet; start again to finish it");
            }
        }
        let failed = |source| CatalogueError::Io { what: "list", path: self.0.root.clone(), source };
        for entry in fs::read_dir(&self.0.root).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.starts_with(UNFINISHED)
                && name.ends_with(REPLACED)
                && let Err(error) = remove_if_there(&path)
            {
                tracing::error!(path = %path.display(), %error, "what is left of a volume as it was takes space");
            }
        }
        Ok(())
    }

    /// Whether a volume's successor is the volume by now, and has not its directory. What cannot be read is not taken for a no.
    pub(super) fn have_replaced(&self, name: &VolumeName) -> Result<bool, CatalogueError> {
        let Ok(next) = successor_of(name) else { return Ok(false) };
        let path = self.0.dir(&next).join(DESCRIPTION);
        if !path.try_exists().map_err(CatalogueError::io("look for", &path))?
            || self.0.read_description(&next)?.name != *name
        {
            return Ok(false);
        }
        // A copy of a directory under that name succeeds nobody.
        match self.0.read_description(name) {
            Err(CatalogueError::Missing { .. }) => Ok(true),
            found => Ok(found?.successor == Some(next)),
        }
    }

    fn replaced(&self, name: &VolumeName) -> PathBuf {
        self.0.root.join(format!("{UNFINISHED}{name}{REPLACED}"))
    }

    fn check_movable(&self, volume: &Volume, spec: &SuccessorSpec) -> Result<(), CatalogueError> {
        let name = volume.name.to_string();
        if let Some(other) = volume.successor.as_ref().or(volume.succeeds.as_ref()) {
            return Err(CatalogueError::Moving { name, other: other.to_string() });
        }
        if volume.sealed.is_none() && spec.sealed.is_none() {
            return Err(CatalogueError::Kind("the volume is plain already; there is nothing to do"));
        }
        if let Some(clone) = &volume.clone_of {
            let problem = format!(
                "'{name}' is a clone and shares its blocks with '{}'; copy it into a volume of its own (`strongroom copy`), or delete it",
                clone.volume
            );
            return Err(CatalogueError::Operation(problem));
        }
        if !volume.medium.is_durable() || !spec.medium.is_durable() {
            return Err(CatalogueError::Kind(
                "what is in memory is not moved: it would not survive a crash in between",
            ));
        }
        self.check_views(volume)?;
        let needed = host_bytes(&self.0.dir(&volume.name)).max(volume.geometry.bytes().min(1 << 20));
        if matches!(spec.medium, Medium::Directory) {
            let room = rustix::fs::statvfs(&self.0.root).map_err(|error| CatalogueError::Io {
                what: "look at the room under",
                path: self.0.root.clone(),
                source: error.into(),
            })?;
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            if free < needed {
                return Err(CatalogueError::Room { name, needed, free });
            }
        }
        Ok(())
    }

    /// What shares blocks with it would stay behind, under the old keys.
    fn check_views(&self, volume: &Volume) -> Result<(), CatalogueError> {
        if let Some(clone) = self.0.clones_of(&volume.name)?.first() {
            return Err(CatalogueError::HasClones { name: volume.name.to_string(), clone: clone.name.to_string() });
        }
        match volume.snapshots.first() {
            None => Ok(()),
            Some(snapshot) => Err(CatalogueError::Operation(format!(
                "'{0}' has snapshots, '{0}@{snapshot}' for one, which stay under the keys that they were written under; delete them \
                 first, or copy them into volumes of their own (`strongroom copy`)",
                volume.name
            ))),
        }
    }
}

/// Whether a volume is the one that its successor was made for.
fn is_same(volume: &Volume, id: VolumeId, successor: &Volume) -> bool {
    volume.id == id && volume.geometry == successor.geometry && successor.succeeds.as_ref() == Some(&volume.name)
}

pub(super) fn successor_of(name: &VolumeName) -> Result<VolumeName, CatalogueError> {
    VolumeName::new(&format!("{name}{SUCCESSOR_SUFFIX}"))
}

fn remove_if_there(path: &std::path::Path) -> Result<(), CatalogueError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(CatalogueError::Io { what: "delete", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    //! Proves that a volume and its successor change places whole or not at all, wherever a crash comes in between.

    use super::*;

    fn begun() -> (tempfile::TempDir, Catalogue, Volume) {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        let access = Access { initiators: vec!["*".into()], peers: vec!["alice".into()], ..Access::default() };
        let plain = catalogue.create(&VolumeSpec { access, ..VolumeSpec::plain("x", 1 << 20) }).unwrap();
        let made = catalogue.successions().begin("x", &to_key_file()).unwrap();
        assert_eq!((made.id, made.geometry), (plain.id, plain.geometry));
        assert!(catalogue.show("x").unwrap().volume.successor.is_some());
        (dir, catalogue, made)
    }

    fn to_key_file() -> SuccessorSpec {
        let sealed = Some(SealedSpec::new(strongroom_block::Custody::KeyFile));
        SuccessorSpec { sealed, medium: Medium::Directory, peers: vec!["mover".into()] }
    }

    fn entries(catalogue: &Catalogue) -> Vec<String> {
        let names = fs::read_dir(catalogue.root()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_successor_takes_name_identity_and_access_and_the_old_one_goes() {
        let (_dir, catalogue, made) = begun();
        assert_eq!(made.access.peers, ["mover"]);
        assert_eq!(catalogue.successions().commit(&made.name).unwrap().as_str(), "x");
        assert!(matches!(catalogue.show("x"), Err(CatalogueError::Succeeded { .. })), "nobody gets the old one now");
        assert!(catalogue.show("x.resealed").is_err());
        assert!(matches!(catalogue.successions().abandon("x"), Err(CatalogueError::Succeeded { .. })));
        assert!(catalogue.set_access("x", Access::default()).is_err(), "it would be undone");
        catalogue.successions().settle(&VolumeName::new("x").unwrap()).unwrap();
        let volume = catalogue.show("x").unwrap().volume;
        assert_eq!((volume.id, &volume.sealed), (made.id, &made.sealed));
        assert_eq!((&volume.succeeds, &volume.successor), (&None, &None));
        assert_eq!(volume.access.peers, ["alice"]);
        assert!(volume.access.initiators.is_empty(), "a sealed volume has no plain sessions");
        volume.agrees_with(&Store::inspect(&catalogue.store_dir(&volume.name)).unwrap()).unwrap();
        assert_eq!(entries(&catalogue), ["x"]);
    }

    #[test]
    fn a_crash_after_the_commit_is_finished_at_the_next_start() {
        // Where it stopped: at once, with the old one out of the way, with both renamed.
        for stage in 0..3 {
            let (dir, catalogue, made) = begun();
            catalogue.successions().commit(&made.name).unwrap();
            let (old, next) = (dir.path().join("x"), dir.path().join("x.resealed"));
            if stage > 0 {
                fs::rename(&old, dir.path().join(".unfinished-x-replaced")).unwrap();
                let taken = catalogue.create(&VolumeSpec::plain("x", 1 << 20));
                assert!(taken.is_err(), "nobody takes the name in between");
            }
            if stage > 1 {
                fs::rename(&next, &old).unwrap();
            }
            catalogue.successions().settle_all().unwrap();
            catalogue.successions().settle_all().unwrap();
            assert_eq!(catalogue.show("x").unwrap().volume.sealed, made.sealed);
            assert_eq!(entries(&catalogue), ["x"], "stopped at {stage}");
        }
    }

    #[test]
    fn before_the_commit_nothing_is_lost_and_it_can_be_given_up() {
        let (_dir, catalogue, made) = begun();
        catalogue.successions().settle_all().unwrap();
        assert!(catalogue.show("x").unwrap().volume.sealed.is_none());
        let moving = |outcome: Result<(), CatalogueError>| matches!(outcome, Err(CatalogueError::Moving { .. }));
        assert!(moving(catalogue.successions().begin("x", &to_key_file()).map(drop)));
        assert!(moving(catalogue.delete("x")) && moving(catalogue.delete("x.resealed")));
        let lock = catalogue.lock(&made.name).unwrap();
        assert!(matches!(catalogue.successions().abandon("x"), Err(CatalogueError::InUse { .. })));
        drop(lock);
        catalogue.successions().abandon("x").unwrap();
        assert!(catalogue.successions().abandon("x").is_err());
        assert_eq!(entries(&catalogue), ["x"]);
        let volume = catalogue.show("x").unwrap().volume;
        assert_eq!(volume.successor, None);
        assert!(catalogue.successions().commit(&volume.name).is_err(), "it succeeds nobody");
        catalogue.delete("x").unwrap();
    }

    #[test]
    fn what_cannot_be_moved_is_refused_before_anything_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(dir.path()).unwrap();
        let name = catalogue.create(&VolumeSpec::plain("x", 1 << 20)).unwrap().name;
        let before = fs::metadata(dir.path().join("x").join(DESCRIPTION)).unwrap().modified().unwrap();
        let begin = |spec: &SuccessorSpec| catalogue.successions().begin("x", spec).unwrap_err().to_string();
        assert!(begin(&SuccessorSpec { sealed: None, ..to_key_file() }).contains("plain already"));
        assert!(begin(&SuccessorSpec { medium: Medium::Memory, ..to_key_file() }).contains("in memory"));
        let written = fs::metadata(dir.path().join("x").join(DESCRIPTION)).unwrap().modified().unwrap();
        assert_eq!(before, written, "its description was not touched");
        catalogue.change(&name, |volume| volume.snapshots = vec!["monday".into()]).unwrap();
        assert!(begin(&to_key_file()).contains("x@monday"));
        catalogue.change(&name, |volume| volume.snapshots.clear()).unwrap();
        assert!(begin(&SuccessorSpec { peers: vec!["*".into()], ..to_key_file() }).contains("which peer"));
        // A target has it open, whether that can be asked or not.
        let open = catalogue.lock(&name).unwrap();
        assert!(matches!(catalogue.successions().begin("x", &to_key_file()), Err(CatalogueError::InUse { .. })));
        drop(open);
        assert_eq!(catalogue.show("x").unwrap().volume.successor, None);
        let made = catalogue.successions().begin("x", &to_key_file()).unwrap();
        // What it then asks of sessions cannot be had by what it becomes.
        catalogue.change(&name, |volume| volume.access.protection.schemes = vec!["S0".into()]).unwrap();
        assert!(matches!(catalogue.successions().commit(&made.name), Err(CatalogueError::Protection(_))));
        catalogue.change(&name, |volume| volume.access.protection.schemes.clear()).unwrap();
        // Grown behind its back: what is in the successor is not all.
        catalogue.change(&name, |volume| volume.geometry.blocks += 1).unwrap();
        assert!(
            catalogue
                .successions()
                .commit(&made.name)
                .unwrap_err()
                .to_string()
                .contains("start again from the beginning")
        );
        assert_eq!(entries(&catalogue), ["x", "x.resealed"]);
    }

    #[test]
    fn a_copy_of_a_directory_takes_nobodys_place_and_what_cannot_be_read_is_no_answer() {
        let (dir, catalogue, made) = begun();
        let name = VolumeName::new("x").unwrap();
        fs::write(dir.path().join("x.resealed").join(DESCRIPTION), "nonsense").unwrap();
        assert!(catalogue.load(&name).is_err() && catalogue.successions().abandon("x").is_err());
        fs::write(dir.path().join("x.resealed").join(DESCRIPTION), made.to_toml()).unwrap();
        catalogue.successions().abandon("x").unwrap();
        fs::create_dir(dir.path().join("x.resealed")).unwrap();
        fs::copy(dir.path().join("x").join(DESCRIPTION), dir.path().join("x.resealed").join(DESCRIPTION)).unwrap();
        assert!(catalogue.load(&name).is_ok());
        catalogue.successions().settle_all().unwrap();
        assert!(dir.path().join("x").join(STORE).exists());
    }
}

//! The directory for what does not outlive a restart of the machine: which volumes are attached, and their logs.
//!
//! It may lie in a directory that everybody can write to, such as /tmp, so what is already there is not trusted: it must be a directory
//! of this user that nobody else can enter, and files in it are opened relative to it, never through symbolic links. Absent: what the
//! files hold.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, open, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Upper bound on a file that is read here, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The directory, checked and open.
#[derive(Debug)]
pub(crate) struct RuntimeDir {
    path: PathBuf,
    dir: OwnedFd,
}

impl RuntimeDir {
    /// The one of this user, made if there is none.
    pub(crate) fn open() -> Result<RuntimeDir> {
        RuntimeDir::open_at(usual_path())
    }

    /// The one of this user, if there is one.
    pub(crate) fn find() -> Result<Option<RuntimeDir>> {
        let path = usual_path();
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => RuntimeDir::check(path).map(Some),
        }
    }

    /// The one at `path`, made if there is none.
    fn open_at(path: PathBuf) -> Result<RuntimeDir> {
        let parent = path.parent().context("the directory for attachments has no parent; set XDG_RUNTIME_DIR")?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.with_context(|| format!("cannot make {}", parent.display()))?;
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("cannot make {}", path.display()))
            }
            _ => RuntimeDir::check(path),
        }
    }

    fn check(path: PathBuf) -> Result<RuntimeDir> {
        let shown = path.display();
        let advice = "somebody else may have made it; remove it, or set XDG_RUNTIME_DIR to a directory of your own";
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match open(&path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                bail!("{shown} is not a directory (a symbolic link is not followed): {advice}")
            }
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}: {advice}")),
        };
        let status = fstat(&dir).with_context(|| format!("cannot look at {shown}"))?;
        let user = rustix::process::geteuid().as_raw();
        if status.st_uid != user {
            bail!("{shown} belongs to user {} and not to user {user}: {advice}", status.st_uid);
        }
        let mode = status.st_mode & 0o777;
        if mode & 0o077 != 0 {
            bail!("others can enter {shown} (mode {mode:03o}); look what is in it, then run: chmod 700 {shown}");
        }
        // Who may rename entries of the parent could put another directory in its place.
        if let Some(parent) = path.parent() {
            let metadata = fs::metadata(parent).with_context(|| format!("cannot look at {}", parent.display()))?;
            let is_guarded = metadata.mode() & 0o022 == 0 || metadata.mode() & 0o1000 != 0;
            if !is_guarded || (metadata.uid() != user && metadata.uid() != 0) {
                bail!(
                    "others can rename what is in {} (mode {:03o}), so {shown} cannot be trusted; set XDG_RUNTIME_DIR to a directory of \
                     your own",
                    parent.display(),
                    metadata.mode() & 0o7777,
                );
            }
        }
        Ok(RuntimeDir { path, dir })
    }

    /// Where a file of it is, for another process.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes a file, in the place of one that may be there.
    pub(crate) fn create(&self, name: &str) -> Result<File> {
        self.remove(name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR);
        Ok(File::from(file.with_context(|| format!("cannot make {}", self.path_of(name).display()))?))
    }

    /// Writes a file; a reader sees all of it or what was there before.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let new = format!("{name}.new");
        let written = self.create(&new)?.write_all(content);
        let renamed = written.and_then(|()| renameat(&self.dir, &new, &self.dir, name).map_err(io::Error::from));
        renamed
            .inspect_err(|_| self.remove(&new))
            .with_context(|| format!("cannot write {}", self.path_of(name).display()))
    }

    /// Reads a regular file of this user.
    pub(crate) fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        // A pipe would block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.dir, name, flags, Mode::empty())?;
        let status = fstat(&file)?;
        let is_ours = status.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("not a regular file of this user"));
        }
        let mut content = Vec::new();
        File::from(file).take(FILE_BYTES_MAX).read_to_end(&mut content)?;
        Ok(content)
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, name: &str) {
        let _ = unlinkat(&self.dir, name, AtFlags::empty());
    }

    /// The names of its files with this extension.
    pub(crate) fn names(&self, extension: &str) -> io::Result<Vec<String>> {
        let entries = Dir::read_from(&self.dir)?;
        let names = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let name = Path::new(std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()));
            (name.extension()? == extension).then(|| name.to_str().map(str::to_owned))?
        });
        Ok(names.collect())
    }
}

fn usual_path() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/strongroom");
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let shared = || std::env::temp_dir().join(format!("strongroom-{}", user.as_raw()));
    runtime.map_or_else(shared, |path| path.join("strongroom"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A directory that everybody can write to, as /tmp is.
    fn shared() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o1777);
        dir
    }

    #[test]
    fn it_is_made_for_its_user_alone() {
        let shared = shared();
        let path = shared.path().join("strongroom-1");
        for _ in 0..2 {
            let dir = RuntimeDir::open_at(path.clone()).unwrap();
            dir.write("1.json", b"{}").unwrap();
            assert_eq!(dir.read("1.json").unwrap(), b"{}");
            assert_eq!(dir.names("json").unwrap(), ["1.json"]);
            dir.remove("1.json");
            assert!(dir.read("1.json").is_err());
            drop(dir.create("a.log").unwrap());
            for (entry, mode) in [(path.clone(), 0o700), (path.join("a.log"), 0o600)] {
                assert_eq!(fs::metadata(&entry).unwrap().mode() & 0o777, mode, "{}", entry.display());
            }
        }
    }

    /// What somebody else could have put in its place beforehand.
    #[test]
    fn attack_a_planted_directory_for_attachments() {
        let shared = shared();
        let path = shared.path().join("strongroom-1");
        let refused = |what: &str, advice: &str| {
            let error = format!("{:#}", RuntimeDir::open_at(path.clone()).unwrap_err());
            assert!(error.contains(what) && error.contains(advice), "{error}");
        };
        let own = tempfile::tempdir().unwrap();
        symlink(own.path(), &path).unwrap();
        refused("symbolic link", "remove it");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        refused("is not a directory", "remove it");
        fs::remove_file(&path).unwrap();
        for mode in [0o701, 0o710, 0o777] {
            fs::create_dir(&path).unwrap();
            set_mode(&path, mode);
            refused("others can enter", "chmod 700");
            fs::remove_dir(&path).unwrap();
        }
        // Only root can make one that belongs to somebody else.
        if rustix::process::geteuid().is_root() {
            fs::create_dir(&path).unwrap();
            set_mode(&path, 0o700);
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            refused("belongs to user 12345", "remove it");
            fs::remove_dir(&path).unwrap();
        }
        set_mode(shared.path(), 0o777);
        refused("others can rename", "XDG_RUNTIME_DIR");
    }

    /// Links and pipes inside, by which it could be made to write or read elsewhere, or to wait.
    #[test]
    fn attack_planted_links_in_the_directory_for_attachments() {
        let shared = shared();
        let dir = RuntimeDir::open_at(shared.path().join("strongroom-1")).unwrap();
        let victim = shared.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        for name in ["1.json", "1.json.new", "a.log"] {
            symlink(&victim, dir.path_of(name)).unwrap();
        }
        assert!(dir.read("1.json").is_err());
        dir.write("1.json", b"{}").unwrap();
        dir.create("a.log").unwrap().write_all(b"log").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(dir.read("1.json").unwrap(), b"{}");
        let pipe = dir.path_of("2.json");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(dir.read("2.json").is_err());
    }
}

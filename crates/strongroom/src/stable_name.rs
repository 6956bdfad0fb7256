//! A name of an attached volume that stays the same: a symbolic link `/dev/strongroom/VOLUME` to the block device or file that has the volume
//! now, as udev makes them for disks. It is there while the volume is attached.
//!
//! Nothing is ever replaced: a name that something else has is refused, and a link is removed only if it still leads where this program had it
//! lead. Absent: which attachment has which name (`attachments`).

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, fchmod, fstat, mkdirat, openat, readlinkat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Where the names are.
const DIRECTORY: &str = "/dev/strongroom";
/// Longest name of a file, in bytes.
const NAME_BYTES_MAX: usize = 255;

/// A link, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StableName {
    path: PathBuf,
    leads_to: PathBuf,
}

/// Why a link could not be made.
#[derive(Debug)]
pub(crate) enum NotMade {
    /// Something has the name.
    Taken,
    Failed(anyhow::Error),
}

/// A name in the directory that `attach` was told to use, or what is made from the volume's name: letters, digits and `#+-.:=@_` as they are,
/// every other byte as `\xNN`, as udev does.
pub(crate) fn escape(volume: &str) -> String {
    let mut name = String::new();
    for (at, byte) in volume.bytes().enumerate() {
        // A leading dot would hide it, or name a directory.
        match is_plain(byte) && (at > 0 || byte != b'.') {
            true => name.push(byte.into()),
            false => write!(name, "\\x{byte:02x}").expect("a string takes everything"),
        }
    }
    name
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte)
}

/// A name that a person chooses for `--name`.
pub(crate) fn parse(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || escape(name) != name {
        return Err(format!(
            "a name below {DIRECTORY} has 1 to {NAME_BYTES_MAX} letters, digits, and characters of #+-.:=@_, and does not begin with a dot"
        ));
    }
    Ok(name.to_owned())
}

/// Where a name is.
pub(crate) fn path_of(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

impl StableName {
    /// The name `name` for what is at `device`. Nothing is made yet.
    pub(crate) fn new(name: &str, device: &Path) -> StableName {
        StableName { path: path_of(name), leads_to: device.to_owned() }
    }

    /// The link.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the link.
    pub(crate) fn make(&self) -> Result<(), NotMade> {
        let Some(name) = self.name().filter(|name| name.len() <= NAME_BYTES_MAX) else {
            return Err(NotMade::Failed(anyhow::anyhow!(
                "{} is too long for a name; choose another one: --name NAME",
                self.path.display()
            )));
        };
        let directory = NameDirectory::open_or_make(self.directory()).map_err(NotMade::Failed)?;
        match symlinkat(&self.leads_to, &directory.fd, name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(NotMade::Taken),
            Err(error) => Err(NotMade::Failed(
                anyhow::Error::from(error).context(format!("cannot make the link {}", self.path.display())),
            )),
        }
    }

    /// Removes the link, if it leads where it did. Returns whether it was there.
    pub(crate) fn remove(&self) -> bool {
        let (Some(name), Ok(Some(directory))) = (self.name(), NameDirectory::find(self.directory())) else {
            return false;
        };
        directory.leads_to(name).is_some_and(|found| found == self.leads_to)
            && unlinkat(&directory.fd, name, AtFlags::empty()).is_ok()
    }

    fn name(&self) -> Option<&OsStr> {
        self.path.file_name()
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(DIRECTORY))
    }
}

/// What has the name of `path`, for people; `None` if nothing has.
pub(crate) fn occupant(path: &Path) -> Result<Option<String>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    let Some(directory) = NameDirectory::find(parent)? else { return Ok(None) };
    let shown = path.display();
    Ok(match readlinkat(&directory.fd, name, Vec::new()) {
        Ok(found) => {
            let to = Path::new(OsStr::from_bytes(found.as_bytes())).display();
            Some(format!("{shown} is a link to {to}, and no attachment that is listed has made it"))
        }
        Err(Errno::NOENT) => None,
        Err(_) => Some(format!("{shown} is not a link of an attachment")),
    })
}

/// Removes the links that lead to one of `devices`, or to a file in `directory`. Returns them.
pub(crate) fn remove_leading_to(devices: &[PathBuf], directory: &Path) -> Vec<PathBuf> {
    let Ok(Some(names)) = NameDirectory::find(Path::new(DIRECTORY)) else { return Vec::new() };
    let is_left = |to: &Path| devices.iter().any(|device| device == to) || to.parent() == Some(directory);
    let links = names.links().into_iter().filter(|(_, to)| is_left(to));
    let removed = links.map(|(name, leads_to)| StableName { path: Path::new(DIRECTORY).join(name), leads_to });
    removed.filter(StableName::remove).map(|link| link.path).collect()
}

/// The directory of names, checked and open: only root makes names in it.
struct NameDirectory {
    fd: OwnedFd,
}

impl NameDirectory {
    fn open_or_make(path: &Path) -> Result<NameDirectory> {
        let is_new = match mkdirat(CWD, path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(Errno::ACCESS | Errno::PERM) => bail!("{} can only be made by root", path.display()),
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
        };
        let found = NameDirectory::find(path)?;
        let directory = found.with_context(|| format!("somebody has removed {} again", path.display()))?;
        if is_new {
            // Names are for everybody who may use what they lead to; the process's own files are not.
            fchmod(&directory.fd, Mode::from_raw_mode(0o755))
                .with_context(|| format!("cannot let others into {}", path.display()))?;
        }
        Ok(directory)
    }

    fn find(path: &Path) -> Result<Option<NameDirectory>> {
        let shown = path.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                bail!("{shown} is not a directory (a symbolic link is not followed); look what it is, and remove it")
            }
            Err(error) => return Err(error).with_context(|| format!("cannot open {shown}")),
        };
        let status = fstat(&fd).with_context(|| format!("cannot look at {shown}"))?;
        let owner = status.st_uid;
        if owner != rustix::process::geteuid().as_raw() && owner != 0 {
            bail!("{shown} belongs to user {owner}, who could change what its names lead to; remove it");
        }
        let mode = status.st_mode & 0o7777;
        if mode & 0o022 != 0 {
            bail!(
                "others can write to {shown} (mode {mode:03o}), and change what its names lead to: chmod 755 {shown}"
            );
        }
        Ok(Some(NameDirectory { fd }))
    }

    /// Where a link leads; `None` if there is none.
    fn leads_to(&self, name: &OsStr) -> Option<PathBuf> {
        let target = readlinkat(&self.fd, name, Vec::new()).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
    }

    fn links(&self) -> Vec<(PathBuf, PathBuf)> {
        let Ok(entries) = Dir::read_from(&self.fd) else { return Vec::new() };
        let links = entries.filter_map(|entry: Result<_, Errno>| {
            let entry = entry.ok().filter(|entry| entry.file_type() == FileType::Symlink)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            Some((PathBuf::from(name), self.leads_to(name)?))
        });
        links.collect()
    }
}

/// Whether this process may make names at all.
pub(crate) fn may_make() -> io::Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("only root makes names in {DIRECTORY}"))),
    }
}

#[cfg(test)]
mod tests {
    //! Proves that names are escaped, that nothing is replaced or removed that is not ours, and that a planted directory is refused.
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn name(directory: &Path, to: &str) -> StableName {
        StableName { path: directory.join("vault"), leads_to: PathBuf::from(to) }
    }

    #[test]
    fn names_are_escaped_as_udev_does() {
        for (volume, escaped) in [
            ("vault", "vault"),
            ("vault@monday", "vault@monday"),
            ("a b/c", "a\\x20b\\x2fc"),
            ("..", "\\x2e."),
            (".hidden.1", "\\x2ehidden.1"),
            ("\u{e9}\n", "\\xc3\\xa9\\x0a"),
            ("a\\x2f", "a\\x5cx2f"),
        ] {
            assert_eq!(escape(volume), escaped);
            assert!(!escape(volume).contains('/'));
            assert_eq!(parse(volume).is_ok(), volume == escaped, "{volume}");
        }
        for name in ["", &"a".repeat(256), "../../etc/passwd"] {
            assert!(parse(name).unwrap_err().contains("letters, digits"));
        }
    }

    #[test]
    fn a_name_is_there_until_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("names");
        let vault = name(&directory, "/dev/loop7");
        assert!(!vault.remove(), "there is not even a directory");
        vault.make().unwrap();
        assert_eq!(fs::read_link(vault.path()).unwrap(), Path::new("/dev/loop7"));
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o7022, 0);
        assert!(matches!(name(&directory, "/dev/loop8").make(), Err(NotMade::Taken)));
        assert!(!name(&directory, "/dev/loop8").remove(), "it is another one's");
        assert!(vault.remove() && !vault.remove());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        let long = StableName { path: directory.join("a".repeat(256)), leads_to: "/dev/loop7".into() };
        assert!(matches!(long.make(), Err(NotMade::Failed(error)) if error.to_string().contains("--name")));
    }

    /// What lies in the place of a name, or of their directory.
    #[test]
    fn attack_planted_files_in_place_of_a_stable_name() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("names");
        let victim = root.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        fs::create_dir(&directory).unwrap();
        let vault = name(&directory, "/dev/loop7");
        // A link of somebody else's, a file, a directory: all stay as they are.
        symlink(&victim, vault.path()).unwrap();
        assert!(matches!(vault.make(), Err(NotMade::Taken)));
        assert!(occupant(vault.path()).unwrap().unwrap().contains("no attachment that is listed has made it"));
        assert!(!vault.remove());
        assert_eq!(fs::read_link(vault.path()).unwrap(), victim);
        fs::remove_file(vault.path()).unwrap();
        fs::write(vault.path(), "foreign").unwrap();
        assert!(matches!(vault.make(), Err(NotMade::Taken)) && !vault.remove());
        assert!(occupant(vault.path()).unwrap().unwrap().contains("not a link"));
        assert_eq!(fs::read_to_string(vault.path()).unwrap(), "foreign");
        fs::remove_file(vault.path()).unwrap();
        assert_eq!(occupant(vault.path()).unwrap(), None);
        // The directory.
        let refused = |what: &str| match vault.make() {
            Err(NotMade::Failed(error)) => assert!(format!("{error:#}").contains(what), "{error:#}"),
            other => panic!("{other:?}"),
        };
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).unwrap();
        refused("others can write to");
        fs::remove_dir(&directory).unwrap();
        let elsewhere = root.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, &directory).unwrap();
        refused("a symbolic link is not followed");
        fs::remove_file(&directory).unwrap();
        fs::write(&directory, "").unwrap();
        refused("is not a directory");
        fs::remove_file(&directory).unwrap();
        if rustix::process::geteuid().is_root() {
            fs::create_dir(&directory).unwrap();
            std::os::unix::fs::chown(&directory, Some(12_345), None).unwrap();
            refused("belongs to user 12345");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    }
}

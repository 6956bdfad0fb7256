//! Mounts of this machine, as the kernel lists them; bind mounts made and undone. Paths that come from the orchestrator are checked here before
//! anything is done with them.
//!
//! Absent: file systems on volumes, which attachments mount.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{major, minor};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};
use tonic::Status;

use crate::error::of_system;

/// Longest path that Linux takes, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) device: (u32, u32),
    /// What of the file system is mounted.
    pub(crate) root: PathBuf,
    pub(crate) at: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) file_system: String,
    pub(crate) source: String,
}

impl Mount {
    /// Whether it shows what a path of another mount is.
    pub(crate) fn is_of(&self, place: &MountedPlace) -> bool {
        self.device == place.device && self.root == place.root
    }
}

/// A path inside a file system: which one, and where in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountedPlace {
    device: (u32, u32),
    root: PathBuf,
}

/// Where in its file system a path is.
///
/// # Errors
/// What the system says.
pub(crate) fn on_file_system(path: &Path) -> Result<Option<MountedPlace>, Status> {
    let path = resolved(path);
    let around = all()?.into_iter().filter(|mount| path.starts_with(&mount.at));
    let nearest = around.max_by_key(|mount| mount.at.components().count());
    Ok(nearest.and_then(|mount| {
        let inside = path.strip_prefix(&mount.at).ok()?;
        Some(MountedPlace { device: mount.device, root: mount.root.join(inside) })
    }))
}

/// A path that a request names: absolute, without `..`, and not a symbolic link.
///
/// # Errors
/// `INVALID_ARGUMENT`.
pub(crate) fn checked_path(text: &str, what: &str) -> Result<PathBuf, Status> {
    let refused = |why: &str| Status::invalid_argument(format!("{what} {why}"));
    if text.is_empty() {
        return Err(refused("is missing"));
    }
    let path = Path::new(text);
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if text.len() >= PATH_BYTES_MAX
        || text.contains('\0')
        || !path.is_absolute()
        || !is_plain
        || path.parent().is_none()
    {
        return Err(refused("is not an absolute path without '..'"));
    }
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_symlink()) {
        return Err(refused("is a symbolic link, which is not followed"));
    }
    Ok(path.components().collect())
}

/// All mounts that this process sees, in the order in which they were made.
///
/// # Errors
/// What the system says.
pub(crate) fn all() -> Result<Vec<Mount>, Status> {
    let table = fs::read("/proc/self/mountinfo").map_err(|error| of_system("read the table of mounts", error))?;
    Ok(table.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// What is mounted on a path, the topmost.
///
/// # Errors
/// What the system says.
pub(crate) fn on(path: &Path) -> Result<Option<Mount>, Status> {
    // The kernel's table has no symbolic links in it.
    let path = resolved(path);
    Ok(all()?.into_iter().rfind(|mount| mount.at == path))
}

/// A path whose parents are followed, as the kernel's table has it. What is mounted there is not touched: it may hang.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    match (path.parent().map(fs::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

/// A line of `/proc/self/mountinfo` (proc(5)).
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = unescaped(fields.next()?);
    let at = unescaped(fields.next()?);
    let read_only = fields.next()?.split(|&byte| byte == b',').any(|option| option == b"ro");
    fields.find(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let (file_system, source) = (text(fields.next()?), text(fields.next()?));
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Mount { device, root, at, read_only, file_system, source })
}

/// Spaces and the like are octal there.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The device that a node in the file system stands for, if it is one.
pub(crate) fn block_device(path: &Path) -> Option<(u32, u32)> {
    let metadata = fs::symlink_metadata(path).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    Some((major(metadata.rdev()), minor(metadata.rdev())))
}

/// Mounts a directory or file a second time.
///
/// # Errors
/// What the system says; nothing is mounted then.
pub(crate) fn bind(source: &Path, target: &Path, read_only: bool) -> Result<(), Status> {
    mount_bind(source, target).map_err(|error| of_system("publish the volume", error))?;
    if read_only {
        // A bind mount takes no other flags at first.
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
        if let Err(error) = mount_remount(target, flags, "") {
            undo(target)?;
            return Err(of_system("publish the volume read-only", error));
        }
    }
    Ok(())
}

/// Unmounts all that is mounted on a path, which may be nothing.
///
/// # Errors
/// What the system says.
pub(crate) fn undo(target: &Path) -> Result<(), Status> {
    while on(target)?.is_some() {
        unmount(target, UnmountFlags::NOFOLLOW).map_err(|error| match error {
            rustix::io::Errno::BUSY => Status::failed_precondition(format!(
                "{} is in use on this node; end what uses it (fuser -vm shows that)",
                target.display()
            )),
            error => of_system("unmount the volume", error),
        })?;
    }
    Ok(())
}

/// Removes what was mounted on: an empty directory, or an empty file.
///
/// # Errors
/// What the system says; that something is in it.
pub(crate) fn remove_place(target: &Path) -> Result<(), Status> {
    let removed = match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(target),
        Ok(metadata) if metadata.is_file() && metadata.len() == 0 => fs::remove_file(target),
        Ok(_) => Err(io::Error::other("it is not what this driver made there")),
    };
    removed.map_err(|error| of_system("remove the place where the volume was published", error))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn the_kernels_table_is_read() {
        let line = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!((mount.device, mount.root, mount.at), ((98, 0), "/mnt1".into(), "/mnt 2".into()));
        assert_eq!((mount.read_only, mount.file_system.as_str(), mount.source.as_str()), (false, "ext3", "/dev/root"));
        assert!(parse(b"36 35 7:3 / /a ro,relatime - xfs /dev/loop3 rw").unwrap().read_only);
        for broken in [&b""[..], b"36 35", b"36 35 a:b / /a rw - x y", b"36 35 7:3 / /a rw x y"] {
            assert_eq!(parse(broken), None);
        }
        assert_eq!(unescaped(b"a\\134b\\9"), PathBuf::from("a\\b\\9"));
        assert!(all().unwrap().iter().any(|mount| mount.at == Path::new("/")));
    }

    #[test]
    fn only_what_the_driver_made_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        fs::create_dir(&full).unwrap();
        fs::write(full.join("data"), "data").unwrap();
        assert!(remove_place(&full).is_err() && remove_place(&full.join("data")).is_err());
        assert!(full.join("data").exists());
        fs::create_dir(dir.path().join("empty")).unwrap();
        for _ in 0..2 {
            remove_place(&dir.path().join("empty")).unwrap();
        }
    }

    /// A path of a request that leads elsewhere: mounting there would hide, and unmounting show, what is not the volume's.
    #[test]
    fn attack_csi_paths_that_lead_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("staging");
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        let refused = checked_path(link.to_str().unwrap(), "staging_target_path").unwrap_err();
        assert!(refused.code() == Code::InvalidArgument && refused.message().contains("symbolic link"), "{refused}");
        for hostile in ["", "relative", "/a/../etc", "../..", "/", "/a\0b", &format!("/{}", "x".repeat(5000))] {
            let refused = checked_path(hostile, "target_path").unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument, "{hostile:?}");
        }
        assert_eq!(checked_path("/a//b/./c/", "target_path").unwrap(), PathBuf::from("/a/b/c"));
    }
}

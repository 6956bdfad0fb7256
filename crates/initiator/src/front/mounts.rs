//! The kernel's table of mounts, as this process sees it (proc(5), `/proc/PID/mountinfo`). Absent: mounting and unmounting.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// How the sources of this program's FUSE mounts begin. (Their type is `fuse.strongroom` or, where no helper mounts, `fuse`.)
pub(crate) const FUSE_SOURCE_PREFIX: &str = "strongroom:";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Where it is.
    pub directory: PathBuf,
    /// What kind of file system it is.
    pub file_system: String,
    /// What is mounted, as the mount call named it.
    pub source: String,
    /// Major and minor number of its device.
    pub device: (u32, u32),
}

impl Mount {
    /// Whether it is a FUSE mount of this program.
    pub fn is_attachment(&self) -> bool {
        let is_fuse = self.file_system == "fuse" || self.file_system.starts_with("fuse.");
        is_fuse && self.source.starts_with(FUSE_SOURCE_PREFIX)
    }
}

/// Every mount, in the order in which they were made: of several on one directory the last one is seen there.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn mounts() -> io::Result<Vec<Mount>> {
    Ok(fs::read("/proc/self/mountinfo")?.split(|&byte| byte == b'\n').filter_map(parse).collect())
}

/// What is mounted on exactly that directory, the newest last. The path is compared as it is: a dead mount cannot be resolved.
///
/// # Errors
/// As [`mounts`].
pub fn mounts_on(directory: &Path) -> io::Result<Vec<Mount>> {
    Ok(mounts()?.into_iter().filter(|mount| mount.directory == directory).collect())
}

/// `36 35 98:0 /root /mnt/point rw,noatime master:1 - ext3 /dev/root rw`: six fields, optional ones, a dash, then type and source.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let directory = unescape(fields.nth(1)?);
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    Some(Mount {
        directory: PathBuf::from(OsString::from_vec(directory)),
        file_system: fields.next().map(text)?,
        source: fields.next().map(text)?,
        device: (major.parse().ok()?, minor.parse().ok()?),
    })
}

/// Spaces and the like are `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok();
        match (first, tail.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_and_without_optional_fields() {
        let plain = parse(b"21 28 0:19 / /run/a\\040b rw,nosuid - fuse strongroom:vault rw").unwrap();
        assert_eq!(plain.directory, Path::new("/run/a b"));
        assert_eq!((plain.file_system.as_str(), plain.device), ("fuse", (0, 19)));
        assert!(plain.is_attachment());
        let shared = parse(b"36 35 7:3 /mnt1 /mnt2 rw,noatime shared:1 master:2 - ext4 /dev/loop3 rw").unwrap();
        assert_eq!(
            (shared.file_system.as_str(), shared.source.as_str(), shared.device),
            ("ext4", "/dev/loop3", (7, 3))
        );
        assert!(!shared.is_attachment());
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 98:0 / /mnt"), None);
    }

    #[test]
    fn this_machine_has_mounts() {
        let mounts = mounts().unwrap();
        assert!(mounts.iter().any(|mount| mount.directory == Path::new("/")), "{mounts:?}");
        assert!(mounts_on(Path::new("/proc")).unwrap().iter().any(|mount| mount.file_system == "proc"));
    }
}

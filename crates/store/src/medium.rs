//! What a store's log lies on: a file in the store's directory, a file elsewhere, a raw device, or memory.
//!
//! Wherever it is, the store's directory has it under the name `log`: as the file itself, or as a link to it. So a program that
//! has the directory finds the log, and only making and removing a store need to know the difference.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// What a store's log lies on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// A file in the store's directory, which takes space on the host as it is used and gives it back.
    #[default]
    Directory,
    /// A file at this path, all of whose space is taken when it is made.
    File(PathBuf),
    /// A block device, all of it.
    Device(PathBuf),
    /// Memory: **everything is lost when the store is closed**. For tests and benchmarks.
    Memory,
}

impl Medium {
    /// Whether what was flushed survives the process.
    pub fn is_durable(&self) -> bool {
        *self != Medium::Memory
    }

    /// Where the log is, if that is outside the store's directory.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Medium::File(path) | Medium::Device(path) => Some(path),
            Medium::Directory | Medium::Memory => None,
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Medium::Directory => f.write_str("directory"),
            Medium::File(path) => write!(f, "file:{}", path.display()),
            Medium::Device(path) => write!(f, "device:{}", path.display()),
            Medium::Memory => f.write_str("memory"),
        }
    }
}

/// Not the name of a medium.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no medium: use directory, file:PATH, device:PATH or memory; paths begin with '/'")]
pub struct MediumError(String);

impl FromStr for Medium {
    type Err = MediumError;

    fn from_str(text: &str) -> Result<Medium, MediumError> {
        let absolute = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
        match text.split_once(':') {
            None if text == "directory" => Some(Medium::Directory),
            None if text == "memory" => Some(Medium::Memory),
            Some(("file", path)) => absolute(path).map(Medium::File),
            Some(("device", path)) => absolute(path).map(Medium::Device),
            _ => None,
        }
        .ok_or_else(|| MediumError(text.to_owned()))
    }
}

/// The largest prefix of a device that is looked at to tell whether it is in use for something else.
const BLANK_BYTES: u64 = 1 << 20;

/// A new file at `path`, with all its space.
pub(crate) fn new_file(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let reserved = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes);
    match reserved {
        Ok(()) => Ok(file),
        Err(error) => {
            let _ = fs::remove_file(path);
            Err(error.into())
        }
    }
}

/// A device that nobody else uses and that has nothing at its start.
pub(crate) fn blank_device(path: &Path, bytes: u64) -> io::Result<File> {
    let file = open_device(path)?;
    let refuse = |kind, what: String| Err(io::Error::new(kind, what));
    let size = device_bytes(&file)?;
    if size < bytes {
        let what = format!("the device has {size} bytes and the volume's store needs {bytes}; make the volume smaller");
        return refuse(io::ErrorKind::StorageFull, what);
    }
    let mut start = vec![0; BLANK_BYTES.min(size) as usize];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut start, 0)?;
    if start.iter().any(|&byte| byte != 0) {
        let what =
            "there is something on the device; if it is not needed, clear it first: blkdiscard -z -l 1MiB DEVICE";
        return refuse(io::ErrorKind::AlreadyExists, what.to_owned());
    }
    Ok(file)
}

/// Opens a device so that no one else can mount it or open it so.
pub(crate) fn open_device(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::FileTypeExt as _;
    let file =
        File::options().read(true).write(true).custom_flags(rustix::fs::OFlags::EXCL.bits() as i32).open(path)?;
    if !file.metadata()?.file_type().is_block_device() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a block device; for a file use file:PATH"));
    }
    Ok(file)
}

/// The end, not the metadata: a device has one too.
pub(crate) fn device_bytes(mut file: &File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

/// Removes what a link leads to: a file goes, a device is blank again.
pub(crate) fn remove_linked(log: &Path) -> io::Result<()> {
    use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
    let Ok(path) = fs::read_link(log) else { return Ok(()) };
    match fs::metadata(&path) {
        Ok(metadata) if metadata.file_type().is_block_device() => {
            let file = open_device(&path)?;
            file.write_all_at(&vec![0; BLANK_BYTES as usize], 0)?;
            file.sync_all()
        }
        Ok(_) => fs::remove_file(&path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_written() {
        for text in ["directory", "memory", "file:/srv/a:b", "device:/dev/loop7"] {
            assert_eq!(text.parse::<Medium>().unwrap().to_string(), text);
        }
        for text in ["", "file", "file:", "file:relative", "device:loop7", "tape", "memory:/x"] {
            assert!(text.parse::<Medium>().is_err(), "{text}");
        }
    }
}

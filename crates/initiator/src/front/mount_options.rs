//! The options of a mount, as `mount -o` takes them: which are the kernel's flags, and which are for the file system.
//!
//! Absent: mounting.

use std::ffi::{CStr, CString};
use std::str::FromStr;

use rustix::mount::MountFlags;

/// Most bytes of options for a file system: the kernel takes a page.
const DATA_BYTES_MAX: usize = 4095;

/// What each word does to the flags: these are set, or taken away.
const FLAGS: [(&str, MountFlags, bool); 17] = [
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("lazytime", MountFlags::LAZYTIME, true),
];
/// What is said elsewhere, or is no mount of a file system.
const ELSEWHERE: [&str; 8] = ["ro", "rw", "remount", "bind", "rbind", "move", "loop", "defaults"];

/// Options of a mount. Unless they say otherwise, devices and set-user-id programs on it do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    flags: MountFlags,
    data: CString,
}

/// Options that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum MountOptionsError {
    /// One that is not for this.
    #[error("the mount option '{0}' is not for --mount-options; for ro there is --read-only")]
    Elsewhere(String),
    /// Too much, or with a NUL.
    #[error("these are not mount options, or more than the kernel takes")]
    Malformed,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions { flags: MountFlags::NODEV | MountFlags::NOSUID, data: CString::default() }
    }
}

impl FromStr for MountOptions {
    type Err = MountOptionsError;

    fn from_str(text: &str) -> Result<MountOptions, MountOptionsError> {
        let mut flags = MountOptions::default().flags;
        let mut data = Vec::new();
        for option in text.split(',').filter(|option| !option.is_empty()) {
            if ELSEWHERE.contains(&option) {
                return Err(MountOptionsError::Elsewhere(option.to_owned()));
            }
            match FLAGS.iter().find(|(name, ..)| *name == option) {
                Some((_, flag, is_set)) => flags.set(*flag, *is_set),
                None => data.push(option),
            }
        }
        let data = CString::new(data.join(",")).map_err(|_| MountOptionsError::Malformed)?;
        if data.as_bytes().len() > DATA_BYTES_MAX {
            return Err(MountOptionsError::Malformed);
        }
        Ok(MountOptions { flags, data })
    }
}

impl MountOptions {
    pub(super) fn flags(&self) -> MountFlags {
        self.flags
    }

    /// What the file system is told, with one more option.
    pub(super) fn data(&self, more: Option<&CStr>) -> Option<CString> {
        let parts: Vec<&[u8]> = [Some(self.data.as_c_str()), more]
            .into_iter()
            .flatten()
            .map(CStr::to_bytes)
            .filter(|part| !part.is_empty())
            .collect();
        (!parts.is_empty()).then(|| CString::new(parts.join(&b','))).transpose().ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_what_is_for_the_file_system_are_told_apart() {
        let usual = MountFlags::NODEV | MountFlags::NOSUID;
        let options: MountOptions = "noatime,commit=30,suid,,nouuid".parse().unwrap();
        assert_eq!(options.flags(), MountFlags::NODEV | MountFlags::NOATIME);
        assert_eq!(options.data(None).as_deref(), Some(c"commit=30,nouuid"));
        assert_eq!(options.data(Some(c"norecovery")).as_deref(), Some(c"commit=30,nouuid,norecovery"));
        let none: MountOptions = "".parse().unwrap();
        assert_eq!((none.flags(), none.data(None)), (usual, None));
        assert_eq!(none, MountOptions::default());
        assert_eq!(none.data(Some(c"noload")).as_deref(), Some(c"noload"));
    }

    #[test]
    fn what_is_no_option_of_a_file_system_is_refused() {
        for text in ["ro", "noatime,bind", "remount", "loop", &"x".repeat(5000), "a\0b"] {
            assert!(text.parse::<MountOptions>().is_err(), "{text:?}");
        }
    }
}
